# SPDX-License-Identifier: GPL-2.0-or-later
"""Data races at lines that the base has as well, and where a report's lines are."""

from __future__ import annotations

from pathlib import Path

import pytest

from kstall.base import arch, process
from kstall.build import Kernel
from kstall.cost import lines
from kstall.evidence import races
from kstall.evidence.races import Edit, Frame, SourceLine

REPORT = """\
[    1.000000] BUG: KCSAN: data-race in put / get
[    1.000000]
[    1.000000] write to 0xffff888100a31040 of 4 bytes by interrupt on cpu 0:
[    1.000000]  put.isra.0+0x17a/0x1a0
[    1.000000]  common_interrupt+0x7d/0x90
[    1.000000]
[    1.000000] read to 0xffff888100a31040 of 4 bytes by task 45 on cpu 1:
[    1.000000]  get+0x42/0x100
[    1.000000]  kthread+0x1de/0x230
[    1.000000]
[    1.000000] value changed: 0x00000983 -> 0x00000984
"""
PUT, GET = Frame("put.isra.0", 0x17A, False), Frame("get", 0x42, False)
PLACES = {
    PUT: (SourceLine("push", "fifo.h", 9), SourceLine("put.isra.0", "q.c", 20)),
    GET: (SourceLine("get", "q.c", 30),),
    Frame("kthread", 0x1DE, False): (SourceLine("kthread", "kernel/kthread.c", 4),),
}
EDIT = Edit({"q.c": frozenset({21, 22}), "q.h": frozenset()})


def test_frames_are_those_of_both_stacks() -> None:
    assert list(races.frames(REPORT)) == [
        PUT,
        Frame("common_interrupt", 0x7D, False),
        GET,
        Frame("kthread", 0x1DE, False),
    ]
    module = "[    1.000000]  run+0x1/0x2 [gpu_sched]\n"
    assert list(races.frames(module)) == [Frame("run", 1, True)]


def test_a_race_of_the_base_is_at_its_lines() -> None:
    assert races.kept(REPORT, PLACES, EDIT, {"put", "get"}) == (
        SourceLine("put.isra.0", "q.c", 20),
        SourceLine("get", "q.c", 30),
    )


@pytest.mark.parametrize(
    ("report", "places", "edit"),
    [
        pytest.param(
            REPORT, PLACES, Edit({"q.c": frozenset({30})}), id="one access is new"
        ),
        pytest.param(
            REPORT,
            PLACES,
            Edit({"q.c": frozenset(), "fifo.h": frozenset({9})}),
            id="what is inlined is new",
        ),
        pytest.param(
            REPORT,
            PLACES,
            Edit({"kernel/kthread.c": frozenset({4})}),
            id="it is called from a new place",
        ),
        pytest.param(
            REPORT,
            PLACES,
            Edit({"q.c": frozenset()}, frozenset({"put"})),
            id="a line is gone around it",
        ),
        pytest.param(REPORT, {GET: PLACES[GET]}, EDIT, id="a place is unknown"),
        pytest.param(
            REPORT.replace("common_interrupt+0x7d/0x90", "run+0x1/0x2 [gpu_sched]"),
            PLACES,
            EDIT,
            id="modules have no lines",
        ),
        pytest.param(
            REPORT.replace("read to 0xffff888100a31040 of 4 bytes by task 45", ""),
            PLACES,
            EDIT,
            id="the second access is unknown",
        ),
        pytest.param(REPORT, PLACES, Edit(), id="no line is in a touched file"),
    ],
)
def test_any_other_may_be_new(report: str, places: races.Places, edit: Edit) -> None:
    assert races.kept(report, places, edit, {"put", "get"}) == ()


@pytest.mark.parametrize(
    ("before", "after", "added", "rewritten"),
    [
        ("a\nb\n", "a\nb\n", set(), False),
        ("a\nb\n", "a\nnew\nb\n", {2}, False),
        ("a\nb\n", "a\nother\n", {2}, True),
        ("a\nb\n", "b\n", set(), True),
        (None, "a\nb\n", {1, 2}, True),
    ],
)
def test_what_patches_did_to_lines(
    before: str | None, after: str, added: set[int], rewritten: bool
) -> None:
    assert races.added(before or "", after) == added
    assert races.is_rewritten(before, after) is rewritten


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
