# SPDX-License-Identifier: GPL-2.0-or-later
"""Data races at lines that the base has as well, and where a report's lines are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kstall.base import arch, process
from kstall.build import Kernel
from kstall.cost import lines
from kstall.evidence import debugcheck, races
from kstall.evidence.races import Edits, FileEdit, Frame, SourceLine

REPORT = """\
[    1.000000] BUG: KCSAN: data-race in put / get
[    1.000000]
[    1.000000] write to 0xffff888100a31040 of 4 bytes by interrupt on cpu 0:
[    1.000000]  put.isra.0+0x17a/0x1a0
[    1.000000]  asm_common_interrupt+0x27/0x40
[    1.000000]  run+0x1/0x2 [gpu_sched]
[    1.000000]
[    1.000000] read to 0xffff888100a31040 of 4 bytes by task 45 on cpu 1:
[    1.000000]  get+0x42/0x100
[    1.000000]  kthread+0x1de/0x230
[    1.000000]
[    1.000000] value changed: 0x00000983 -> 0x00000984
[    1.000000]
[    1.000000] Reported by Kernel Concurrency Sanitizer on:
"""
PUT, GET = Frame("put.isra.0", 0x17A, False), Frame("get", 0x42, False)
ENTRY, THREAD = Frame("asm_common_interrupt", 0x27, False), Frame("kthread", 478, False)
PLACES = {
    PUT: (
        SourceLine("push", "linux/fifo.h", 9),
        SourceLine("put.isra.0", "net/q.c", 20),
    ),
    GET: (SourceLine("get", "net/q.c", 30),),
    ENTRY: (SourceLine("asm_common_interrupt", "arch/idtentry.h", 6),),
    THREAD: (SourceLine("kthread", "kernel/kthread.c", 4),),
}
FILE = FileEdit(frozenset({21, 22}), frozenset({"len"}), frozenset({"put", "get"}))
EDITS: Edits = {"net/q.c": FILE}


def test_frames_are_those_of_both_accesses() -> None:
    assert list(races.frames(REPORT)) == [PUT, ENTRY, GET, THREAD]


def test_a_race_of_the_base_is_at_its_lines() -> None:
    assert races.kept(REPORT, PLACES, EDITS) == (
        SourceLine("put.isra.0", "net/q.c", 20),
        SourceLine("get", "net/q.c", 30),
    )


def also(path: str, **change: Any) -> Edits:
    """`EDITS`, and a change to a file that all its functions survive."""
    kept = frozenset({"put", "get", "push", "kthread"})
    changed = replace(EDITS.get(path, FileEdit(kept=kept)), **change)
    return {**EDITS, path: changed}


@pytest.mark.parametrize(
    "edits",
    [
        pytest.param(also("net/q.c", added=frozenset({30})), id="one access is new"),
        pytest.param(
            also("linux/fifo.h", added=frozenset({9})), id="what is inlined is new"
        ),
        pytest.param(
            also("kernel/kthread.c", added=frozenset({4})),
            id="it is called from a new place",
        ),
        pytest.param(
            also("net/q.c", kept=frozenset({"get"})), id="a line is gone around it"
        ),
        pytest.param(also("net/q.c", orders=True), id="a lock is gone in its file"),
        pytest.param(also("net/other.h", orders=True), id="or in its header"),
        pytest.param(also("include/linux/l.h", orders=True), id="or in one for all"),
        pytest.param(also("kernel/k.h", orders=True), id="or in a caller's"),
        pytest.param(
            also("net/other.c", words=frozenset({"get"})), id="something new names it"
        ),
        pytest.param({}, id="no line is in a touched file"),
    ],
)
def test_any_other_may_be_new(edits: Edits) -> None:
    assert races.kept(REPORT, PLACES, edits) == ()


@pytest.mark.parametrize(
    "edits",
    [
        also("net/other.c", orders=True),
        also("include/trace/events/q.h", orders=True),
        also("drivers/other.h", orders=True),
        also("net/other.c", words=frozenset({"getter"})),
        also("kernel/kthread.c", added=frozenset({5})),
    ],
)
def test_what_is_changed_elsewhere_makes_it_no_new_one(edits: Edits) -> None:
    assert races.kept(REPORT, PLACES, edits) != ()


@pytest.mark.parametrize("frame", [PUT, ENTRY, GET, THREAD])
def test_a_frame_without_a_place_excuses_nothing(frame: Frame) -> None:
    places = {other: place for other, place in PLACES.items() if other != frame}
    assert races.kept(REPORT, places, EDITS) == ()


def test_a_place_has_a_directory() -> None:
    bare = {**PLACES, THREAD: (SourceLine("kthread", "kthread.c", 4),)}
    assert races.kept(REPORT, bare, EDITS) == ()


@pytest.mark.parametrize(
    ("whole", "part"),
    [
        ("kthread+0x1de/0x230", "run+0x1/0x2 [gpu_sched]"),
        ("kthread+0x1de/0x230", "what?+0x1de/0x230"),
        ("read to 0xffff888100a31040 of 4 bytes by task 45", ""),
        ("write to", "race at unknown origin, with write to"),
        (" get+0x42/0x100\n[    1.000000]  kthread+0x1de/0x230", ""),
        ("Reported by Kernel Concurrency Sanitizer", ""),
        ("kthread+0x1de/0x230", "0xffffffffc0001234"),
        ("  kthread+0x1de/0x230\n", 63 * "  kthread+0x1de/0x230\n"),
    ],
)
def test_a_report_that_is_not_whole_excuses_nothing(whole: str, part: str) -> None:
    assert whole in REPORT
    report = REPORT.replace(whole, part)
    extra = {Frame("run", 1, in_module=True): PLACES[THREAD]}
    assert races.kept(report, {**PLACES, **extra}, EDITS) == ()


BEFORE = """\
#define SIZE 128

struct q {
	u32 busy;
};

int put(struct q *q)
{
	if (q->busy)
		return 0;
	q->busy++;
	wait_event(wq,
		q->busy);
	if (q)
		run();
	else
		stop();
	return 1;
}

#define both(q) \\
	one(q)
"""


def edit(old: str, new: str) -> FileEdit:
    """What becomes of `BEFORE` with ``new`` in place of ``old``."""
    assert BEFORE.count(old) == 1
    code = debugcheck.code_of({"net/q.c": (BEFORE, BEFORE.replace(old, new))}, [])
    return dict(code.edits)["net/q.c"]


def test_lines_are_counted_as_they_are_in_the_patched_tree() -> None:
    file = edit("\tq->busy++;\n", "\tif (full(q))\n\t\treturn 0;\n\tq->busy++;\n")
    # The new return may be the first or the second one.
    assert file.added == {10, 11, 12}
    assert {"full", "return"} <= file.words
    assert file.kept == {"put"}
    assert not file.orders


@pytest.mark.parametrize(
    ("old", "new", "kept", "orders"),
    [
        ("128", "256	/* a power of 2 */", True, False),
        ("SIZE 128\n", "SIZE 128\n#define HALF 64\n", True, False),
        ("\n\nstruct", "\n\n/* A lock is\n * not needed */\nstruct", True, False),
        # A statement goes on.
        ("\t\treturn 0;\n", "\t\ttrace();\n\t\treturn 0;\n", False, False),
        (
            "\t\tq->busy);",
            "\t\tq->done &&\n\t\tq->busy);",
            False,
            False,
        ),
        (
            "\t\tq->busy);",
            "\t\tq->busy\n\t\t);",
            False,
            False,
        ),
        ("\tq->busy++;\n", "", False, False),
        ("\tq->busy++;\n", "\tq = &shared;\n\tq->busy++;\n", False, False),
        ("\tq->busy++;\n", "\t++q->busy;\n\tq->busy++;\n", False, False),
        ("\tq->busy++;\n", "\tint n = 2;\n\tq->busy++;\n", True, False),
        (
            "\tq->busy++;\n",
            "\tif (q->n >= 2)\n\t\treturn 2;\n\tq->busy++;\n",
            True,
            False,
        ),
        ("\telse\n", "\tif (q)\n\t\ttrace();\n\telse\n", False, False),
        ("\tq->busy++;\n", "\tspin_unlock(&l);\n\tq->busy++;\n", True, True),
        ("\tq->busy++;\n", "\tup_write(&sem);\n\tq->busy++;\n", True, True),
        ("\tq->busy++;\n", "\tcomplete(&done);\n\tq->busy++;\n", True, True),
        ("\tq->busy++;\n", "\tif (late())\n\t\tbreak;\n\tq->busy++;\n", True, True),
        ("\tq->busy++;\n", "\tgoto out;\n\tq->busy++;\n", True, True),
        ("\tq->busy++;\n", "#if 0\n\tq->busy++;\n#endif\n", False, True),
        ("\tu32 busy;", "\tu32 busy:1;", True, True),
        ("#define SIZE 128", "#define SIZE size()", True, True),
        ("#define SIZE 128", "#define SIZE size", True, True),
        ("\tone(q)", "\ttwo(q), \\\n\tone(q)", True, True),
        ("\tu32 busy;", "\tunion {\n\tu32 busy;\n\t};", True, True),
    ],
)
def test_what_patches_did_to_a_file(
    old: str, new: str, kept: bool, orders: bool
) -> None:
    file = edit(old, new)
    assert ("put" in file.kept) is kept
    assert file.orders is orders


def test_a_macro_that_was_no_number_may_order_accesses() -> None:
    before = "#define get() READ_ONCE(n)\n"
    assert races.edit_of(before, "#define get() n\n").orders
    assert races.edit_of("#define get() a(n)\n", "").orders
    assert races.edit_of("int gone(void)\n{\n}\n", "").orders


SOURCE = """\
int shared;
static inline __attribute__((always_inline)) void touch(int value)
{
	*(volatile int *)&shared = value;
}
void outer(int value)
{
	touch(value);
}
void _start(void)
{
	outer(1);
}
"""


@pytest.fixture
def kernel(tmp_path: Path) -> Kernel:
    """A program that stands for a kernel, with debug information and symbols."""
    (tmp_path / "q.c").write_text(SOURCE)
    process.run(
        [
            *("gcc", "-O1", "-g", "-nostdlib", "-static", "-fno-inline-functions"),
            *(f"-fdebug-prefix-map={tmp_path}=./.", "-o", "vmlinux", "./q.c"),
        ],
        cwd=tmp_path,
    )
    symbols = process.run(["nm", "vmlinux"], cwd=tmp_path).stdout
    (tmp_path / "System.map").write_text(symbols)
    return Kernel("k", tmp_path, "7.3.4", "ab" * 20, reused=True)


def test_a_frame_is_at_the_lines_of_its_functions(kernel: Kernel) -> None:
    at = {
        int(address, 16): name
        for address, _, name in (
            line.split()
            for line in (kernel.path / "System.map").read_text().split("\n")
            if line
        )
    }
    start = next(address for address, name in at.items() if name == "outer")
    located = lines.at(kernel.vmlinux, range(start, start + 12), arch.X86_64)
    chains = {
        tuple((line.function, line.number) for line in chain)
        for chain in located.values()
    }
    assert (("touch", 4), ("outer", 8)) in chains
    assert {line.file for chain in located.values() for line in chain} == {"q.c"}
    frame = Frame("outer", 1, in_module=False)
    places = lines.of_frames(kernel, {frame, Frame("outer", 1, in_module=True)})
    assert list(places) == [frame]
    assert places[frame] == tuple(located[start])


def test_no_line_is_guessed(kernel: Kernel) -> None:
    frame = Frame("outer", 1, in_module=False)
    assert lines.of_frames(kernel, {Frame("none", 1, in_module=False)}) == {}
    with (kernel.path / "System.map").open("a") as stream:
        stream.write("ffffffff81000000 t outer\n")
    assert lines.of_frames(kernel, {frame}) == {}


def test_without_debug_information_there_are_no_lines(kernel: Kernel) -> None:
    process.run(["strip", "-g", "vmlinux"], cwd=kernel.path)
    assert lines.of_frames(kernel, {Frame("outer", 1, in_module=False)}) == {}
