# SPDX-License-Identifier: GPL-2.0-or-later
"""Each patch compiled in each variant: what is right passes, what is wrong is caught.

The tree is a few files; make and gcc are real.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

import kbuildtree
import kerneltree
from kstall.base import cache, process
from kstall.build import Ground, Toolchain, kconfig, kernel
from kstall.compile import CompileWork, kbuild, seeds, sparse, variants
from kstall.compile import builds as compilestage
from kstall.compile.sparse import Checker
from kstall.cost import objects
from kstall.debian import Root
from kstall.evidence import compilecheck
from kstall.pipeline import Ui, builds, validate
from kstall.pipeline import run as runs
from kstall.report import report
from kstall.series import Level, Series
from kstall.tree import Base, Plan, tree
from kstall.verdict import Check
from steps import Step, series, write

SOURCE, HEADER = kbuildtree.SOURCE, kbuildtree.HEADER
TOOLS = Toolchain(("CC=gcc", "PAHOLE=pahole"), "gcc 12", "v1.30", False, ())
# Finds fault with every line that says so.
CHECK = """\
#!/bin/sh
for file; do :; done
grep -n BITWISE "$file" |
	sed "s|^\\([0-9]*\\):.*|sparse: $file:\\1:3: warning: bad|" >&2
"""
GOOD = Step(
    {
        "drivers/demo.c": SOURCE.replace("seconds + 1", "seconds + 2"),
        "include/linux/demo.h": HEADER.replace("return 0", "return 1"),
    }
)


def _source(text: str) -> str:
    """The source with ``text`` in its function."""
    return SOURCE.replace("\tTRACE(demo_old);\n", f"\tTRACE(demo_old);\n{text}")


def _demo(text: str) -> Step:
    """A patch that adds ``text`` to the function."""
    return Step({"drivers/demo.c": _source(text)})


@dataclass(frozen=True)
class Bench:
    """A tree, and what comes of patches to it."""

    root: Path
    base: Base

    @property
    def cache(self) -> Path:
        return self.root / "cache"

    def series(self, *steps: Step, **spec: Any) -> Series:
        """A series of ``steps``."""
        return series(self.root, kbuildtree.FILES, *steps, **spec)

    def plan(self, patchset: Series) -> Plan:
        """What the patches make of the tree."""
        return tree.plan(self.base, patchset.patches, self.root / "am")

    def prove(
        self, patchset: Series, *, everything: bool = True, seeds: tuple[int, ...] = ()
    ) -> tuple[report.SeriesReport, objects.ObjectCosts]:
        """The stages, and what objects tell of costs."""
        run = runs.begin(self.root / "out", ["test"], Ui(Console(file=io.StringIO())))
        entry = report.SeriesReport(name="demo", title="t", digest="d")
        run.report.series = [entry]
        plan = self.plan(patchset)
        project = SimpleNamespace(
            kconfigs=self.root / "kconfigs", load=lambda: (patchset,)
        )
        level: Level = "deep" if everything else "full"
        context = run.context(project, self.cache, level)  # type: ignore[arg-type]
        context = replace(context, seeds=seeds)
        root = Root("root", self.root, {}, True)
        ground = Ground(context.project, self.base, root, TOOLS, self.cache)
        work = CompileWork(context, patchset, plan, ground)
        with tree.workspace(self.base, lambda _: None) as put:
            told = builds.prove(work, put, run, entry)
        return entry, told

    def judge(self, *steps: Step, everything: bool = True) -> dict[str, Check]:
        """All checks of ``steps``, by name."""
        entry, _ = self.prove(self.series(*steps), everything=everything)
        return {check.name: check for check in entry.checks}


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    write(tmp_path / "tree", kbuildtree.FILES)
    write(tmp_path / "kconfigs", kbuildtree.FRAGMENTS)
    write(tmp_path, {"check": CHECK})

    def cross(name: str) -> Any:
        return lambda *_: variants.Variant(name, name, TOOLS, name)

    checker = Checker(tmp_path / "check", "1")
    monkeypatch.setattr(sparse, "obtain", lambda *_: checker)
    for name in ("clang", "arm64", "i386"):
        monkeypatch.setattr(variants, name, cross(name))
    return Bench(tmp_path, kerneltree.base(tmp_path / "tree", tmp_path / "cache"))


def _not_passed(checks: Mapping[str, Check]) -> dict[str, str]:
    """Without those that only a deep run tries."""
    return {
        name: check.status
        for name, check in checks.items()
        if check.status != "pass" and "LEVEL=deep" not in check.detail
    }


def _failed(check: Check) -> dict[str, str]:
    """What is wrong with which patch."""
    return {
        comparison.label[:4]: comparison.detail
        for comparison in check.comparisons
        if not comparison.ok
    }


def test_a_series_that_is_right_passes_every_check(bench: Bench) -> None:
    checks = bench.judge(GOOD, _demo("\tseconds++;\n"))
    assert _not_passed(checks) == {}
    assert tuple(checks) == (*compilecheck.CHECKS, compilecheck.LEFT_OUT)
    assert {len(checks[name].comparisons) for name in compilecheck.CHECKS} == {2}


def test_a_run_that_is_not_deep_tries_what_takes_seconds(bench: Bench) -> None:
    entry, _ = bench.prove(bench.series(GOOD), everything=False)
    assert [check.name for check in entry.checks if check.status == "pass"] == [
        *("compiles_as_configured", "no_new_warnings", "sparse_clean"),
        *("headers_stand_alone", "tracepoints_are_called", "compiles_without_tracing"),
        *("compiles_tiny", compilecheck.LEFT_OUT),
    ]
    left = {check.name for check in entry.checks if check.status == "skip"}
    assert left == set(compilecheck.CHECKS) - {check.name for check in entry.checks[:7]}
    # In the same words, so that views tell one cause once.
    skipped = [check for check in entry.checks if check.status == "skip"]
    assert {check.detail for check in skipped} == {compilestage.DEEP}
    assert not any(check.comparisons for check in skipped)
    assert "LEVEL=deep" in entry.stages[0].summary


def test_the_log_has_one_variant_after_the_other(bench: Bench) -> None:
    """Two are compiled at once, and lines of one between the other's tell nothing."""
    entry, _ = bench.prove(bench.series(GOOD), everything=False)
    place = bench.root / "out/latest/demo"
    assert [path.name for path in place.glob("compile*")] == ["compile.log"]
    told: list[tuple[bool, set[str]]] = []
    for line in (place / "compile.log").read_text().splitlines():
        if line.startswith("$ "):
            told.append(("C=1" in line.split(), set()))
        elif line.startswith("  C"):
            told[-1][1].add(line.split()[0])
    assert {(checks, *sorted(steps)) for checks, steps in told if steps} == {
        (True, "CC", "CHECK"),
        (False, "CC"),
    }
    assert entry.stages[0].log == "demo/compile.log"


# -- what each check catches -----------------------------------------------------------

# The one option that the code of that test hangs on has it compiled at all.
COMPILED = {
    *("compiles_as_configured", "compiles_without_tracing", "compiles_built_in"),
    *(
        "compiles_tiny",
        "compiles_with_clang",
        "compiles_for_arm64",
        "compiles_for_i386",
    ),
}


def test_a_patch_in_the_middle_does_not_compile(bench: Bench) -> None:
    later = Step({"include/linux/demo.h": f"#define LATER 1\n{HEADER}"})
    checks = bench.judge(_demo("\tseconds++;\n"), _demo("\tseconds += LATER;\n"), later)
    assert set(_not_passed(checks)) == COMPILED
    details = _failed(checks["compiles_as_configured"])
    assert set(details) == {"0002"}
    assert details["0002"].startswith("drivers/demo.c:8: error: 'LATER' undeclared")


@pytest.mark.parametrize(
    ("files", "checks", "detail"),
    [
        (
            {"drivers/demo.c": f"{SOURCE}#define UNUSED 1\n"},
            ["no_new_warnings", "compiles_without_tracing", "compiles_tiny"],
            "drivers/demo.c:10: -Wunused-macros: ",
        ),
        (
            {"drivers/demo.c": _source("\tseconds++; /* BITWISE */\n")},
            ["sparse_clean"],
            "drivers/demo.c:8: sparse: bad",
        ),
        (
            {
                "drivers/demo.c": SOURCE.replace("#in", "typedef int nap_t;\n\n#in"),
                "drivers/user.c": kbuildtree.USER.replace(
                    "#in", "typedef int nap_t;\n\n#in"
                ),
                "drivers/nap.c": kbuildtree.NAP.replace(
                    "#in", "typedef int nap_t;\n\n#in"
                ),
                "include/linux/demo.h": HEADER.replace("int nap)", "nap_t nap)"),
            },
            ["headers_stand_alone"],
            "include/linux/demo.h:4: not-self-contained: unknown type name 'nap_t'",
        ),
        (
            {
                "include/linux/demo.h": HEADER.replace(
                    "ifndef DEMO_H", "ifdef __unix__"
                )
                + "enum { DEMO };\n"
            },
            ["headers_stand_alone"],
            "redeclaration of enumerator 'DEMO'",
        ),
        (
            {
                "drivers/demo.c": SOURCE.replace(
                    "old);", "old);\nDEFINE_TRACE(demo_new);", 1
                )
            },
            ["tracepoints_are_called"],
            "tracepoint demo_new is defined, and nothing calls it",
        ),
        (
            {"drivers/demo.c": SOURCE.replace("\tTRACE(demo_old);\n", "")},
            ["tracepoints_are_called"],
            "tracepoint demo_old is defined, and nothing calls it",
        ),
        (
            {"drivers/demo.c": _source("\tseconds += sizeof(used_demo_old);\n")},
            ["compiles_without_tracing", "compiles_tiny"],
            "drivers/demo.c:8: error: ",
        ),
        (
            {"drivers/Makefile": f"{kbuildtree.DRIVERS}obj-y += gone.o\n"},
            ["compiles_as_configured", "compiles_without_tracing", "compiles_tiny"],
            "drivers/gone.o:0: no-source: ",
        ),
    ],
)
def test_mutants(
    bench: Bench, files: dict[str, str], checks: list[str], detail: str
) -> None:
    by_name = bench.judge(GOOD, Step(files), everything=False)
    assert set(_not_passed(by_name)) == set(checks)
    for name in checks:
        failed = _failed(by_name[name])
        assert set(failed) == {"0002"}
        assert detail in failed["0002"]


def test_a_makefile_that_a_later_patch_mends_fails(bench: Bench) -> None:
    broken = Step({"drivers/Makefile": f"{kbuildtree.DRIVERS}obj-y gone.o\n"})
    mended = Step({"drivers/Makefile": kbuildtree.DRIVERS})
    checks = bench.judge(GOOD, broken, mended, everything=False)
    failed = _failed(checks["compiles_as_configured"])
    assert set(failed) == {"0002"}
    assert "drivers/Makefile:3: error: missing separator" in failed["0002"]


def test_each_fault_of_a_header_is_reported_as_its_own(bench: Bench) -> None:
    """However many there are, and also where they lie in what it includes."""
    bad = "".join(f"extern nap{n}_t nap{n};\n" for n in range(5))
    first = "".join(f"typedef int nap{n}_t;\n" for n in range(5))
    sources = {
        "drivers/demo.c": first + SOURCE,
        "drivers/user.c": first + kbuildtree.USER,
        "drivers/nap.c": first + kbuildtree.NAP,
    }
    write(bench.root / "tree", {"include/linux/bad.h": bad, **sources})
    base = kerneltree.base(bench.root / "tree", bench.cache)
    files = {**kbuildtree.FILES, "include/linux/bad.h": bad, **sources}
    header = HEADER.replace("int demo(", "#include <linux/bad.h>\nint demo(")
    patchset = series(bench.root, files, Step({"include/linux/demo.h": header}))
    entry, _ = replace(bench, base=base).prove(patchset, everything=False)
    checks = {check.name: check for check in entry.checks}
    assert set(_not_passed(checks)) == {"headers_stand_alone"}
    detail = _failed(checks["headers_stand_alone"])["0001"]
    assert detail.startswith(
        "include/linux/demo.h:0: not-self-contained: in include/linux/bad.h: unknown "
        "type name 'nap0_t'; "
    )
    assert detail.endswith("; and 2 more")


def test_a_tree_whose_calls_leave_no_name(bench: Bench) -> None:
    """There nobody can tell a tracepoint that is called from one that is not."""
    old = kbuildtree.TRACEPOINT.replace("__tracepoint_check", "__used")
    write(bench.root / "tree", {"include/linux/tracepoint.h": old})
    base = kerneltree.base(bench.root / "tree", bench.cache)
    entry, _ = replace(bench, base=base).prove(bench.series(GOOD), everything=False)
    assert _not_passed({check.name: check for check in entry.checks}) == {}


def test_a_mutant_without_an_option(bench: Bench) -> None:
    header = HEADER.replace("static inline", "static")
    checks = bench.judge(Step({"include/linux/demo.h": header}))
    assert _not_passed(checks) == {
        "compiles_without_options": "fail",
        "compiles_tiny": "fail",
    }
    detail = _failed(checks["compiles_without_options"])["0001"]
    assert "-Wunused-function: NAP=n: 'nap' defined but not used" in detail
    detail = _failed(checks["compiles_tiny"])["0001"]
    assert "-Wunused-function: 'nap' defined but not used" in detail


@pytest.mark.parametrize("name", ["clang", "arm64", "i386", "builtin"])
def test_mutants_of_one_variant(
    bench: Bench, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line that only one of the variants does not bear."""
    requests = {"MUTANT": "y"}
    variant = variants.Variant(name, name, TOOLS, name, requests=requests)
    monkeypatch.setattr(variants, name, lambda *_: variant)
    checks = bench.judge(
        GOOD,
        Step({"drivers/demo.c": f"{SOURCE}#ifdef CONFIG_MUTANT\n#error no\n#endif\n"}),
    )
    check = {"builtin": "compiles_built_in", "clang": "compiles_with_clang"}.get(
        name, f"compiles_for_{name}"
    )
    # The option is one that the line hangs on, too.
    assert _not_passed(checks) == {check: "fail"}
    assert "drivers/demo.c:11: error: #error no" in _failed(checks[check])["0002"]


def test_a_division_that_only_a_library_has(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools = replace(TOOLS, make=("CC=gcc -m32",), compiler="gcc -m32")
    variant = variants.Variant("i386", "32 bits", tools, "i386")
    monkeypatch.setattr(variants, "i386", lambda *_: variant)
    text = SOURCE.replace("int demo(", "long long naps;\nint demo(").replace(
        "seconds + 1", "(int)(naps / seconds)"
    )
    checks = bench.judge(GOOD, Step({"drivers/demo.c": text}))
    assert _not_passed(checks) == {"compiles_for_i386": "fail"}
    detail = _failed(checks["compiles_for_i386"])["0002"]
    assert "drivers/demo.o:0: 64-bit-division: __divdi3() is called" in detail


# -- what is not a patch's fault, and what is argued -----------------------------------


def test_what_the_base_has_is_not_held_against_a_patch(bench: Bench) -> None:
    """Also when a patch in between has hidden it."""
    noisy = SOURCE + "#define UNUSED 1\n"
    write(bench.root / "tree", {"drivers/demo.c": noisy})
    base = kerneltree.base(bench.root / "tree", bench.cache)
    files = {**kbuildtree.FILES, "drivers/demo.c": noisy}
    patchset = series(
        bench.root,
        files,
        Step({"drivers/demo.c": noisy.replace("linux/demo", "linux/none")}),
        Step({"drivers/demo.c": noisy.replace("+ 1", "+ 2")}),
    )
    entry, _ = replace(bench, base=base).prove(patchset, everything=False)
    checks = {check.name: check for check in entry.checks}
    assert _failed(checks["no_new_warnings"]) == {}
    assert set(_failed(checks["compiles_as_configured"])) == {"0001"}


def test_a_finding_that_is_argued_passes_and_is_shown(bench: Bench) -> None:
    argument = {
        "check": "no_new_warnings",
        "kinds": ["-Wunused-macros"],
        "because": "it is for debuggers",
    }
    noisy = Step({"drivers/demo.c": f"{SOURCE}#define UNUSED 1\n"})
    patchset = bench.series(noisy, exemption=[argument])
    entry, _ = bench.prove(patchset, everything=False)
    checks = {check.name: check for check in entry.checks}
    assert checks["no_new_warnings"].status == "pass"
    (told,) = checks["no_new_warnings"].comparisons
    assert "argued: -Wunused-macros 1: it is for debuggers" in told.detail
    # Only for that check.
    assert checks["compiles_without_tracing"].status == "fail"


def test_a_source_that_no_fragment_has_compiled_is_a_finding(bench: Bench) -> None:
    stray = Step({"drivers/stray.c": "int stray;\n"})
    checks = bench.judge(stray, everything=False)
    detail = _failed(checks["compiles_as_configured"])["0001"]
    assert detail == "drivers/stray.c:0: not-compiled: no fragment enables it"
    gap = checks[compilecheck.LEFT_OUT]
    assert (gap.status, gap.comparisons) == ("skip", [])
    assert gap.detail == "drivers/stray.c: in none of the configurations"


# -- what is skipped -------------------------------------------------------------------


def test_what_a_check_needs_and_has_not_is_named(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_checker(*_: object) -> Checker:
        raise sparse.NoChecker("no sparse", next="install sparse")

    def no_compiler(*_: object) -> variants.Variant:
        raise variants.Unavailable("no compiler", next="apt-get install it")

    monkeypatch.setattr(sparse, "obtain", no_checker)
    monkeypatch.setattr(variants, "arm64", no_compiler)
    checks = bench.judge(GOOD)
    assert _not_passed(checks) == {
        "sparse_clean": "skip",
        "compiles_for_arm64": "skip",
    }
    assert checks["sparse_clean"].detail == "no sparse; install sparse"
    assert checks["compiles_for_arm64"].detail == "no compiler; apt-get install it"
    assert checks["compiles_for_arm64"].comparisons == []


def test_each_tree_keeps_its_own_sparse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs for other trees choose theirs while make calls it."""
    lender = Root("root", tmp_path, {}, True)
    checkers = []
    for name in ("old", "new"):
        write(tmp_path / name, {"sparse": f"#!/bin/sh\necho {name}\n"})
        monkeypatch.setenv("PATH", str(tmp_path / name), prepend=":")
        checkers.append(sparse.obtain(tmp_path, lender, tmp_path / "cache", print))
    for checker in checkers:
        completed = process.run([checker.program, "demo.c"])
        assert completed.stdout == f"sparse: {checker.version}\n"


def test_an_option_that_cannot_be_off_is_named(bench: Bench) -> None:
    text = f"{SOURCE}#ifdef CONFIG_X86\nextern int x86;\n#endif\n"
    checks = bench.judge(GOOD, Step({"drivers/demo.c": text}))
    # What was compiled is compared, and what cannot be is a skip of its own.
    assert _not_passed(checks) == {compilecheck.LEFT_OUT: "skip"}
    whole = checks["compiles_without_options"]
    assert whole.comparisons
    for check in (whole, checks[compilecheck.LEFT_OUT]):
        assert (
            "X86=n: X86 cannot be off: it is kept on by its own default" in check.detail
        )
    assert checks[compilecheck.LEFT_OUT].comparisons == []


def test_an_option_that_stays_on_is_named_each_time(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the configuration is cached, as it is for other patches."""
    monkeypatch.setattr(kconfig, "without", lambda *_: frozenset())
    patchset = bench.series(GOOD)
    for _ in range(2):
        entry, _ = bench.prove(patchset, everything=False)
        checks = {check.name: check for check in entry.checks}
        check = checks["compiles_without_tracing"]
        assert check.status == "skip"
        assert "TRACEPOINTS, FTRACE cannot be off" in check.detail
        cache.remove(bench.cache / "compiled")


# -- random configurations -------------------------------------------------------------

CHANCE = f"{SOURCE}#ifdef CONFIG_CHANCE\n#error no luck\n#endif\n"


def test_a_mutant_that_only_some_seeds_show(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(seeds, "of", lambda _: (0x11, 0x12))
    steps = (GOOD, Step({"drivers/demo.c": CHANCE}), _nothing(CHANCE))
    checks = bench.judge(*steps)
    # The option is one that the line hangs on, too; this tree's Kconfig has it not.
    check = checks["compiles_at_random"]
    assert check.status == "fail"
    details = _failed(check)
    # The seed is told, and the patch; those behind it are not at fault.
    assert set(details) == {"0002"}
    assert "error: KCONFIG_SEED=0x12: #error no luck" in details["0002"]
    assert check.detail.startswith("tried KCONFIG_SEED=0x11, KCONFIG_SEED=0x12")


def _nothing(text: str) -> Step:
    return Step({"drivers/demo.c": f"{text}\nextern int more;\n"})


def test_what_a_seed_shows_of_the_base_is_not_held_against_a_patch(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(seeds, "of", lambda _: (0x12,))
    files = {**kbuildtree.FILES, "drivers/demo.c": CHANCE}
    write(bench.root / "tree", files)
    base = kerneltree.base(bench.root / "tree", bench.cache)
    patchset = series(bench.root, files, _nothing(CHANCE))
    entry, _ = replace(bench, base=base).prove(patchset)
    checks = {check.name: check for check in entry.checks}
    assert checks["compiles_at_random"].status == "pass"


def test_a_seed_is_tried_by_itself_at_any_level(bench: Bench) -> None:
    patchset = bench.series(Step({"drivers/demo.c": CHANCE}))
    entry, _ = bench.prove(patchset, everything=False, seeds=(0x12,))
    checks = {check.name: check for check in entry.checks}
    assert checks["compiles_at_random"].status == "fail"
    entry, _ = bench.prove(patchset, everything=False, seeds=(0x13,))
    checks = {check.name: check for check in entry.checks}
    assert checks["compiles_at_random"].status == "pass"


def test_a_clean_configuration_is_compiled_once(bench: Bench) -> None:
    """What the base would say counts for nothing then."""
    patchset = bench.series(GOOD, _demo("\tseconds++;\n"))
    bench.prove(patchset, everything=False)
    outcomes = [*(bench.cache / "compiled").glob("*/outcome.json")]
    bench.prove(patchset, everything=False, seeds=(7,))
    more = {*(bench.cache / "compiled").glob("*/outcome.json")} - {*outcomes}
    (findings,) = (json.loads(path.read_text())["remarks"] for path in more)
    assert findings == []


def test_seeds_are_those_of_the_code(bench: Bench) -> None:
    patchset = bench.series(GOOD)
    path = patchset.patches[0].path

    def drawn() -> tuple[int, ...]:
        return seeds.of(bench.plan(patchset))

    numbers = drawn()
    assert len(set(numbers)) == seeds.COUNT
    # A message is no code.
    path.write_text(path.read_text().replace("\n---\n", "\nOne more word.\n---\n", 1))
    assert "One more word." in path.read_text()
    assert numbers == drawn()
    path.write_text(path.read_text().replace("seconds + 2", "seconds + 3"))
    assert not set(numbers) & set(drawn())


def test_what_code_cannot_be_without_is_fixed(tmp_path: Path) -> None:
    text = """\
config MODULES
	bool
	modules
config A
	bool "a"
config B
	tristate "b"
	depends on A && (C || D) && !E && NUMBER > 3
config C
	bool "c"
config D
	bool "d"
config E
	bool "e"
config NUMBER
	int "n"
	default 4
config HIDDEN
	bool
	depends on A
config SELECTS
	bool "s"
	select HIDDEN
config OFF
	bool "off"
config OTHER
	bool "other"
"""
    write(tmp_path, {"Kconfig": text})
    on = ("A", "B", "D", "HIDDEN", "SELECTS", "OTHER", "NUMBER")
    values = "".join(f"CONFIG_{name}=y\n" for name in on if name != "NUMBER")
    write(tmp_path, {".config": f"{values}CONFIG_NUMBER=4\n"})
    kconf = kconfig.load(tmp_path, tmp_path / ".config", ())
    settings = seeds.needed(kconf, ["B", "HIDDEN", "OFF", "UNKNOWN"])
    assert settings == dict.fromkeys(("A", "B", "D", "HIDDEN", "SELECTS"), "y")


# -- what is found again ---------------------------------------------------------------


def _compiled(bench: Bench) -> set[str]:
    return {path.name for path in (bench.cache / "compiled").iterdir()}


@pytest.mark.fault("killed", "a compiler, at a header that it has alone")
def test_a_compiler_that_is_killed_says_nothing_of_a_header(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed = bench.root / "killed"
    text = '#!/bin/sh\ncase $* in *-fsyntax-only*) exit 1 ;; esac\nexec gcc "$@"\n'
    write(bench.root, {killed.name: text})
    variant = variants.modules(replace(TOOLS, make=(f"CC={killed}",)), None)
    monkeypatch.setattr(variants, "modules", lambda *_: variant)
    patchset = bench.series(GOOD)
    with pytest.raises(runs.StageStopped):
        bench.prove(patchset, everything=False)
    (stage,) = report.read(bench.root / "out/latest/report.json").series[0].stages
    assert stage.status == "error" and "compiler was killed" in (stage.error or "")
    write(bench.root, {killed.name: '#!/bin/sh\nexec gcc "$@"\n'})
    entry, _ = bench.prove(patchset, everything=False)
    assert _not_passed({check.name: check for check in entry.checks}) == {}


def test_what_was_compiled_is_found_again(bench: Bench) -> None:
    patchset = bench.series(GOOD, _demo("\tseconds++;\n"))
    first, grown = bench.prove(patchset)
    known = _compiled(bench)
    again, same = bench.prove(patchset)
    assert (first.stages[0].reused, again.stages[0].reused) == (False, True)
    assert (again.checks, same) == (first.checks, grown)
    assert _compiled(bench) == known


@pytest.mark.parametrize("seeds", [(), (7,)])
def test_configurations_that_were_not_used_for_longest_are_deleted(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, seeds: tuple[int, ...]
) -> None:
    patchset = bench.series(GOOD)
    bench.prove(patchset, everything=False, seeds=seeds)
    configs = bench.cache / "configs"
    monkeypatch.setattr(kernel, "CONFIGS", len([*configs.iterdir()]))
    for directory in (configs, bench.cache / "compiled"):
        cache.remove(directory)
    with cache.keep(configs / "old"):
        pass
    os.utime(configs / "old", (1, 1))
    bench.prove(patchset, everything=False, seeds=seeds)
    assert len([*configs.iterdir()]) == kernel.CONFIGS
    assert not (configs / "old").exists()


def test_after_an_edit_only_what_is_behind_it_is_compiled(bench: Bench) -> None:
    bench.prove(bench.series(GOOD, _demo("\tseconds++;\n")), everything=False)
    known = _compiled(bench)
    edited = replace(bench, root=bench.root / "edited")
    patchset = edited.series(GOOD, _demo("\tseconds--;\n"))
    entry, _ = bench.prove(patchset, everything=False)
    assert not entry.stages[0].reused
    # The last state in each of the variants.
    assert len(_compiled(bench) - known) == 5


def test_a_patch_of_documentation_has_nothing_compiled(bench: Bench) -> None:
    bench.prove(bench.series(GOOD), everything=False)
    known = _compiled(bench)
    told = replace(bench, root=bench.root / "told")
    patchset = told.series(GOOD, Step({"Documentation/demo.rst": "Demo\n====\n"}))
    entry, _ = bench.prove(patchset, everything=False)
    assert entry.stages[0].reused
    assert _compiled(bench) == known


def test_what_two_fragments_ask_for_has_nothing_compiled(bench: Bench) -> None:
    """As all series share one configuration, it would be each of them again."""
    patchset = bench.series(GOOD)
    bench.prove(patchset, everything=False)
    known = _compiled(bench)
    base, own = (bench.root / "kconfigs" / name for name in kbuildtree.FRAGMENTS)
    own.write_text(own.read_text() + base.read_text())
    entry, _ = bench.prove(patchset, everything=False)
    assert entry.stages[0].reused
    assert _compiled(bench) == known
    own.write_text(own.read_text() + "# CONFIG_OTHER is not set\n")
    entry, _ = bench.prove(patchset, everything=False)
    assert not entry.stages[0].reused


def test_a_warning_is_not_lost_with_a_run_that_was_killed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The objects are there, and up to date; what was said of them is not."""
    noisy = bench.series(Step({"drivers/demo.c": f"{SOURCE}#define UNUSED 1\n"}))
    bench.prove(noisy, everything=False)
    for kept in (bench.cache / "compiled").iterdir():
        cache.remove(kept)
    for store in (bench.cache / "variants").rglob("kstall-objects.json"):
        store.unlink()
    entry, _ = bench.prove(noisy, everything=False)
    checks = {check.name: check for check in entry.checks}
    assert checks["no_new_warnings"].status == "fail"


def test_what_is_up_to_date_is_not_compiled_again(bench: Bench) -> None:
    patchset = bench.series(GOOD)
    bench.prove(patchset, everything=False)
    for kept in (bench.cache / "compiled").iterdir():
        cache.remove(kept)
    place = bench.cache / "variants" / bench.base.id / "modules"
    before = (place / "drivers/nap.o").stat().st_mtime_ns
    entry, _ = bench.prove(patchset, everything=False)
    assert entry.status != "fail"
    assert _not_passed({check.name: check for check in entry.checks}) == {}
    assert (place / "drivers/user.o").stat().st_mtime_ns > before


# -- what objects tell -----------------------------------------------------------------


def test_growth_without_jump_labels_is_reported_by_function(bench: Bench) -> None:
    bulky = "\tfor (int n = 0; n < seconds; n++)\n\t\tseconds -= n / 3;\n"
    entry, told = bench.prove(bench.series(_demo(bulky)), everything=False)
    assert entry.stages[0].status == "pass"
    (growth,) = told.worst
    assert (growth.binary, growth.name, growth.part) == (
        "drivers/demo.o",
        "demo",
        "code",
    )
    assert growth.base is not None
    assert growth.patched is not None
    assert growth.patched > growth.base


def test_what_is_longer_with_mitigations_is_reported_by_function(bench: Bench) -> None:
    bulky = "\tfor (int n = 0; n < seconds; n++)\n\t\tseconds -= n / 3;\n"
    entry, told = bench.prove(bench.series(_demo(bulky)), everything=False)
    assert entry.stages[1].name == "objects"
    assert told.mitigated is not None
    (path,) = told.mitigated.paths
    assert (path.binary, path.name) == ("drivers/demo.o", "demo")
    assert path.added or path.most > 0


def test_jumps_of_an_image_that_objtool_has_yet_to_read_are_made_nops(
    bench: Bench,
) -> None:
    """As kbuild leaves it to the link where branches are tracked."""
    bench.prove(bench.series(_demo("\tseconds++;\n")), everything=False)
    variants_ = bench.cache / "variants" / bench.base.id
    asked = (variants_ / "mitigated/tools/objtool/objtool-asked").read_text()
    hacks, places = zip(*(line.split() for line in asked.splitlines()), strict=True)
    assert set(hacks) == {"--hacks=jump_label"}
    assert {Path(place).name for place in places} == {"demo.o"}
    # What is compiled without such a guard objtool has read already.
    assert not (variants_ / "worst/tools/objtool/objtool-asked").exists()


def test_mitigations_that_cannot_be_had_are_reported(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    parse = kconfig.parse_config

    def without_ibt(path: Path) -> dict[str, str]:
        symbols = dict(parse(path))
        symbols.pop("X86_KERNEL_IBT", None)
        return symbols

    monkeypatch.setattr(kconfig, "parse_config", without_ibt)
    _, told = bench.prove(bench.series(_demo("\tseconds++;\n")), everything=False)
    assert told.mitigated is None
    assert told.unmitigated == "X86_KERNEL_IBT cannot be on"


def test_libraries_are_listed_too(tmp_path: Path) -> None:
    """kbuild goes to them from the top Makefile, and not from any other directory."""
    libraries = {
        "lib/Makefile": "obj-$(CONFIG_DEMO) += list.o\n",
        "lib/list.c": "int list;\n",
    }
    write(tmp_path / "tree", {**kbuildtree.FILES, **libraries})
    config = tmp_path / "config"
    config.write_text("CONFIG_DEMO=m\n")
    listing = kbuild.listed(
        tmp_path / "tree", config, "x86", ["lib", "drivers"], tmp_path / "scratch"
    )
    assert listing.objects == {"lib/list.o", "drivers/demo.o", "drivers/user.o"}
    assert not listing.no_source


def test_workers_may_ask_for_the_tree_after_it_was_read_here(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To pack it the workspace is locked, by the thread that had it for the readers."""
    patchset = bench.series(GOOD)
    plan = bench.plan(patchset)
    run = runs.begin(bench.root / "out", ["test"], Ui(Console(file=io.StringIO())))
    entry = report.SeriesReport(name="demo", title="t", digest="d")
    request = SimpleNamespace(level="full", project=None, cache=bench.cache, seeds=())
    ground = SimpleNamespace(base=bench.base)
    free = []

    def look() -> None:
        with (bench.base.path.parent / "lock").open("a+") as file:
            free.append(cache.locked_if_free(file))

    def read(
        context: object, series: object, plan: Plan, checkout: Any, *_: object
    ) -> None:
        checkout(plan)
        look()

    monkeypatch.setattr(validate.patches, "read", read)
    monkeypatch.setattr(validate.builds, "prove", lambda *_: look())
    validate._compile(request, run, ground, patchset, plan, entry)  # type: ignore[arg-type]
    assert free == [False, True]
