# SPDX-License-Identifier: GPL-2.0-or-later
"""A small subsystem, compiled with and without its event and with each fault."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from kstall.base import Architecture, arch, process
from kstall.cost import costs, footprint, structs
from kstall.cost.footprint import Declaration
from kstall.evidence import btf

DECLARATION = Declaration({"job_wait": ("submit",)}, frozenset({"submit"}))
Build = Callable[..., Path]


@dataclass(frozen=True)
class Machine:
    """How code for it is compiled, and how what is looked for is written in it."""

    arch: Architecture
    flags: tuple[str, ...]
    nop: int
    call: str
    load: str


MACHINES = (
    Machine(arch.X86_64, ("-mcmodel=kernel",), 5, "call", "qword ptr ["),
    Machine(arch.ARM64, ("-mgeneral-regs-only",), 4, "bl", "ldr x"),
)


@pytest.fixture(
    scope="module", params=MACHINES, ids=lambda target: str(target.arch.name)
)
def machine(request: pytest.FixtureRequest) -> Machine:
    target: Machine = request.param
    if shutil.which(target.arch.tool("gcc")) is None:
        pytest.skip(f"no {target.arch.tool('gcc')}")
    return target


@pytest.fixture(scope="module")
def build(
    project_root: Path, tmp_path_factory: pytest.TempPathFactory, machine: Machine
) -> Build:
    """Compile the subsystem with some macros; -O2, as a kernel is."""
    source = project_root / "tests/data/overhead/trace.c"
    folder = tmp_path_factory.mktemp("objects")

    def compile_with(*macros: str, flags: tuple[str, ...] = ()) -> Path:
        target = folder / ("-".join(["trace", *macros, *flags]) + ".o")
        if not target.exists():
            process.run(
                [machine.arch.tool("gcc"), "-O2", "-c", "-fno-pic", "-gbtf", "-w"]
                + [*machine.flags]
                + ["-fno-asynchronous-unwind-tables", "-fno-tree-vectorize", *flags]
                + [f"-D{macro}" for macro in macros]
                + ["-o", str(target), str(source)]
            )
        return target

    return compile_with


def compare(build: Build, *macros: str, flags: tuple[str, ...] = ()) -> costs.Footprint:
    base, patched = build(flags=flags), build("PATCHED", *macros, flags=flags)
    return footprint.binaries("trace", base, patched, DECLARATION)


def paths_of(comparison: costs.Footprint, name: str) -> costs.FunctionPaths:
    return next(paths for paths in comparison.paths if paths.name == name)


def test_an_event_is_one_nop(build: Build, machine: Machine) -> None:
    comparison = compare(build)
    (site,) = comparison.sites
    assert (site.event, site.function, site.declared) == (
        "job_wait",
        "submit",
        "submit",
    )
    assert site.nop == machine.nop
    assert machine.nop in comparison.nops
    assert site.hot
    assert site.out_of_line
    assert any("ktime_get" in line for line in site.cold_code)
    assert site.cold_bytes > 0
    paths = paths_of(comparison, "submit")
    assert paths.proven
    assert (paths.most, paths.nops) == (0, 1)
    assert paths.clock_reads == paths.calls == []
    assert {function.name for function in comparison.functions} == {"submit"}
    assert comparison.unchanged == 2


def test_a_clock_read_outside_the_guard_is_found(
    build: Build, machine: Machine
) -> None:
    paths = paths_of(compare(build, "CLOCK"), "submit")
    assert paths.most > 0
    (line,) = paths.clock_reads
    assert line.startswith("submit+")
    assert line.endswith(f"{machine.call} ktime_get")


def test_a_call_outside_the_guard_is_found(build: Build, machine: Machine) -> None:
    paths = paths_of(compare(build, "ARGUMENT"), "submit")
    assert paths.most > 0
    assert paths.clock_reads == []
    called = [line.partition(": ")[2] for line in paths.calls]
    assert called == [f"{machine.call} estimate"]


def test_an_argument_read_outside_the_guard_is_found(
    build: Build, machine: Machine
) -> None:
    paths = paths_of(compare(build, "LOAD"), "submit")
    assert paths.most >= 1
    assert any(
        machine.load in text for stretch in paths.stretches for text in stretch.added
    )


def test_a_site_in_an_inline_function_is_nobodys(build: Build) -> None:
    comparison = compare(build, "INLINE")
    assert {(site.function, site.declared) for site in comparison.sites} == {
        ("submit", "submit"),
        ("poll", None),
    }


def test_a_key_that_is_read_is_no_site(build: Build) -> None:
    comparison = compare(build, "BROKEN")
    assert comparison.sites == []
    assert paths_of(comparison, "submit").most > 0


@pytest.mark.parametrize("flag", ["-Os", "-O1", "-fno-reorder-blocks", "-O3"])
def test_any_optimisation_gives_the_same_answer(
    build: Build, machine: Machine, flag: str
) -> None:
    comparison = compare(build, flags=(flag,))
    assert [site.nop for site in comparison.sites] == [machine.nop]
    assert paths_of(comparison, "submit").clock_reads == []


def test_the_register_that_a_retpoline_calls_is_the_compiler_s_choice(
    tmp_path: Path,
) -> None:
    if shutil.which(arch.X86_64.tool("gcc")) is None:
        pytest.skip("no compiler for x86-64")

    def calling(register: str, more: str = "") -> Path:
        source = (
            f'void f(void (*g)(void)) {{ asm volatile({more}CALL("{register}")); }}'
        )
        call = '#define CALL(r) "call __x86_indirect_thunk_" r\n'
        target = tmp_path / f"{register}{len(more)}.o"
        target.with_suffix(".c").write_text(call + source)
        process.run(
            [
                *(arch.X86_64.tool("gcc"), "-O2", "-c", "-fno-pic", "-mcmodel=kernel"),
                *("-o", str(target), str(target.with_suffix(".c"))),
            ]
        )
        return target

    comparison = footprint.binaries("f", calling("rax"), calling("r10"), DECLARATION)
    assert comparison.paths == []
    comparison = footprint.binaries(
        "f", calling("rax"), calling("r10", r'"xor %eax, %eax\n" '), DECLARATION
    )
    assert paths_of(comparison, "f").most == 1
    assert paths_of(comparison, "f").calls == []


def test_the_same_object_twice_is_no_difference(build: Build) -> None:
    comparison = footprint.binaries("trace", build(), build(), DECLARATION)
    assert not (comparison.paths or comparison.functions or comparison.sites)
    assert comparison.unchanged == 3


def test_layouts_are_compared(build: Build) -> None:
    base, patched = btf.read(build()), btf.read(build("GROWN"))
    (change,) = structs.compare("trace", base, patched)
    assert (change.name, change.base, change.patched) == ("job", 16, 24)
    assert change.members == ["+submitted"]


def test_a_namesake_in_another_binary_hides_no_growth() -> None:
    def types(size: int) -> btf.Types:
        ident = btf.StructMember("id", 0, 8)
        layout = btf.Layout("queue", False, size, (ident,))
        fake = SimpleNamespace(layouts=lambda: [layout], prototypes=dict)
        return cast("btf.Types", fake)

    comparison = costs.Footprint()
    structs.add(
        comparison,
        [
            ("net", types(32), types(24)),
            ("block", types(16), types(24)),
            ("shares its header with block", types(16), types(24)),
        ],
    )
    changes = [(change.binary, change.growth) for change in comparison.structs]
    assert changes == [("net", -8), ("block", 8)]


BASE_STRUCTS = """
typedef struct { long a, b; } request;
struct context { long c, d; };
struct lonely { long e; };
struct kept { long f, g; };
"""
NEW_STRUCTS = """
typedef struct { long a, b, more[64]; } request;
struct context_ext { long c, d; long more[64]; };
struct crowd { long e, f, g; };
struct kept { long f, g; };
"""


def test_structs_grow_by_any_name(tmp_path: Path) -> None:
    """Also those that only a typedef names, and those that get another name."""

    def types(name: str, text: str) -> btf.Types:
        used = "request r; struct kept k;"
        used += "struct context c; struct lonely l;" if name == "base" else ""
        used += "struct context_ext c; struct crowd l;" if name != "base" else ""
        source = tmp_path / f"{name}.c"
        source.write_text(text + used)
        target = source.with_suffix(".o")
        process.run(["gcc", "-c", "-gbtf", "-o", target, source])
        return btf.read(target)

    base, patched = types("base", BASE_STRUCTS), types("patched", NEW_STRUCTS)
    changes = {
        change.name: (change.was, change.base, change.patched)
        for change in structs.compare("trace", base, patched)
    }
    assert changes == {
        "request": ("", 16, 528),
        "context_ext": ("context", 16, 528),
        "crowd": ("", None, 24),
        "lonely": ("", 8, None),
    }


def test_a_module_without_types_is_named(build: Build, tmp_path: Path) -> None:
    bare = tmp_path / "bare.o"
    process.run(["gcc", "-c", "-x", "c", "-o", bare, "/dev/null"])
    comparison = costs.Footprint()
    pairs = [("vmlinux", build(), build("GROWN")), ("nap", bare, bare)]
    structs.add(comparison, structs.types(pairs))
    assert [change.name for change in comparison.structs] == ["job"]
    assert comparison.limits == ["nap has no types: its structs are not compared"]


def test_a_record_s_text_begins_behind_its_last_member() -> None:
    """As __data does, so that what the compiler adds at the end is no hole."""
    opcode = btf.StructMember("opcode", 0, 8)
    assert btf.Layout("record", False, 4, (opcode,)).holes == (btf.Hole("the end", 3),)
    text = btf.StructMember("__data", 8, 0)
    assert btf.Layout("record", False, 4, (opcode, text)).holes == ()
    later = btf.StructMember("__data", 32, 0)
    assert btf.Layout("record", False, 4, (opcode, later)).holes == (
        btf.Hole("__data", 3),
    )


def test_holes_are_found(build: Build) -> None:
    layouts = {layout.name: layout for layout in btf.read(build("HOLE")).layouts()}
    record = layouts["trace_event_raw_job_wait"]
    assert record.holes == (btf.Hole("wait_ns", 4),)
    assert layouts["job"].holes == ()


def test_a_loop_comes_by_one_site_again(build: Build) -> None:
    comparison = footprint.binaries(
        "trace", build("LOOP"), build("PATCHED", "LOOP"), DECLARATION
    )
    paths = paths_of(comparison, "submit")
    assert (paths.nops, paths.sites) == (1, 1)
    twice = footprint.binaries(
        "trace", build("LOOP"), build("PATCHED", "LOOP", "TWICE"), DECLARATION
    )
    assert paths_of(twice, "submit").nops == 2


def test_what_moves_into_a_loop_runs_more_often(build: Build) -> None:
    """With -Os the loop begins at its condition, so each place is there once."""
    before, inside = (build(macro, flags=("-Os",)) for macro in ("ONCE", "EACH"))
    paths = paths_of(footprint.binaries("trace", before, inside, DECLARATION), "total")
    # What a path that goes round once has more, and has no longer.
    assert (paths.proven, paths.cost) == (True, 0)
    assert paths.longer_loop is not None and paths.longer_loop.startswith("total+")
    (line,) = paths.clock_reads
    assert line.endswith(" ktime_get")
    back = footprint.binaries("trace", inside, before, DECLARATION)
    assert paths_of(back, "total").longer_loop is None
    assert paths_of(back, "total").clock_reads == []


@pytest.mark.parametrize(
    ("macro", "base", "patched"),
    [
        ("SWAPPED", ["struct job *", "u32"], ["u32", "struct job *"]),
        ("WIDER", ["struct job *", "u32"], ["struct job *", "u64"]),
        ("MORE", ["struct job *", "u32"], ["struct job *", "u32", "s8 *"]),
        ("GONE", ["struct job *", "u32"], None),
    ],
)
def test_prototypes_are_compared_by_position(
    build: Build,
    machine: Machine,
    macro: str,
    base: list[str],
    patched: list[str] | None,
) -> None:
    if patched is not None and machine.arch is arch.ARM64:
        # A char has no sign there.
        patched = [prototype.replace("s8", "u8") for prototype in patched]
    comparison = costs.Footprint()
    structs.add(
        comparison, structs.types([("trace", build(), build("PATCHED", macro))])
    )
    assert comparison.same_prototypes == 0
    shown = [
        (prototype.event, prototype.base, prototype.patched)
        for prototype in comparison.prototypes
    ]
    assert shown == [
        ("job_done", base, patched),
        ("job_wait", None, ["struct job *", "u64"]),
    ]


def test_the_same_prototypes_are_counted(build: Build) -> None:
    comparison = costs.Footprint()
    structs.add(comparison, structs.types([("trace", build(), build("LOOP"))]))
    assert (comparison.same_prototypes, comparison.prototypes) == (1, [])
