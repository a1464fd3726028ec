# SPDX-License-Identifier: GPL-2.0-or-later
"""Format files of two kernels, held against each other."""

from __future__ import annotations

import io
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from kstall import cli
from kstall.evidence import traceabi
from kstall.evidence.records import Layout
from kstall.pipeline import Ui, overhead
from kstall.pipeline import run as runs
from kstall.report import SeriesReport
from kstall.series import Project, Series
from kstall.verdict import Verdict

EVENT = "sched:sched_stat_throttled"
# As a booted Linux 7.3.4 with the patches has it.
THROTTLED = """\
name: sched_stat_throttled
ID: 247
format:
	field:unsigned short common_type;	offset:0;	size:2;	signed:0;
	field:unsigned char common_flags;	offset:2;	size:1;	signed:0;
	field:unsigned char common_preempt_count;	offset:3;	size:1;	signed:0;
	field:int common_pid;	offset:4;	size:4;	signed:1;

	field:__data_loc char[] comm;	offset:8;	size:4;	signed:0;
	field:pid_t pid;	offset:12;	size:4;	signed:1;
	field:u64 delay;	offset:16;	size:8;	signed:0;

print fmt: "comm=%s pid=%d delay=%Lu [ns]", __get_str(comm), REC->pid, \
(unsigned long long)REC->delay
"""


class Kernels:
    """Two directories of formats, with all real ones there are, to change."""

    def __init__(self, root: Path, formats: Path) -> None:
        self.base, self.patched = root / "base", root / "patched"
        shutil.copytree(formats, self.base)
        self._write(self.base, EVENT, THROTTLED)
        shutil.copytree(self.base, self.patched)

    def _write(self, side: Path, event: str, text: str) -> None:
        path = side.joinpath(*event.split(":"))
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)

    def add(self, event: str, text: str) -> None:
        """An event that only the patched kernel has."""
        self._write(self.patched, event, text)

    def change(self, *pairs: tuple[str, str]) -> None:
        """Replace text in the patched kernel's event."""
        path = self.patched.joinpath(*EVENT.split(":"))
        text = path.read_text()
        for old, new in pairs:
            assert text.count(old) == 1, old
            text = text.replace(old, new)
        path.write_text(text)

    def compare(self) -> traceabi.FormatChanges:
        """What became of the events."""
        return traceabi.compare(traceabi.read(self.base), traceabi.read(self.patched))

    def judge(self, *declared: str) -> Verdict:
        """The verdict, with ``declared`` events."""
        return traceabi.existing_events_are_kept(self.compare(), frozenset(declared))


@pytest.fixture
def kernels(tmp_path: Path, project_root: Path) -> Kernels:
    return Kernels(tmp_path, project_root / "tests/data/formats")


def _wrong(verdict: Verdict) -> list[str]:
    return [
        f"{comparison.label}: {comparison.detail}"
        for comparison in verdict.comparisons
        if not comparison.ok
    ]


def test_the_same_kernel_twice(kernels: Kernels) -> None:
    changes = kernels.compare()
    assert changes == traceabi.FormatChanges((), (), 9, (), ())
    assert _wrong(kernels.judge()) == []


def test_an_id_is_no_part_of_it(kernels: Kernels) -> None:
    kernels.change(("ID: 247", "ID: 248"))
    assert kernels.compare().same == 9


FIELD = "\tfield:u64 delay;\toffset:16;\tsize:8;\tsigned:0;\n"
BROKEN: list[tuple[tuple[tuple[str, str], ...], str]] = [
    (((" delay;", " wait;"), ("REC->delay", "REC->wait")), "delay is gone"),
    (
        (("u64 delay;\toffset:16;\tsize:8", "u32 delay;\toffset:16;\tsize:4"),),
        "u64 delay (8 bytes at 16, unsigned) became "
        "u32 delay (4 bytes at 16, unsigned)",
    ),
    ((("u64 delay;\toffset:16", "u64 delay;\toffset:24"),), "became u64 delay"),
    (
        (("size:8;\tsigned:0", "size:8;\tsigned:1"),),
        "became u64 delay (8 bytes at 16, signed)",
    ),
    (
        (
            ("pid;\toffset:12", "pid;\toffset:16"),
            ("delay;\toffset:16", "delay;\toffset:24"),
            (
                "\tfield:pid_t",
                "\tfield:int cpu;\toffset:12;\tsize:4;\tsigned:1;\n\tfield:pid_t",
            ),
        ),
        "cpu is new at 12, before the end at 24",
    ),
    ((("field:int common_pid", "field:u32 common_pid"),), "u32 common_pid"),
    ((("delay=%Lu", "wait=%Lu"),), 'not "comm=%s pid=%d delay=%Lu [ns]"'),
    ((("[ns]", ""),), 'prints "comm=%s pid=%d delay=%Lu "'),
    ((("REC->pid,", "REC->pid + 1,"),), "prints __get_str(comm), REC->pid + 1"),
    ((("long)REC->delay", "long)REC->delay / 1000"),), "REC->delay / 1000"),
]


@pytest.mark.parametrize(("pairs", "says"), BROKEN)
def test_an_event_that_changes_is_broken(
    kernels: Kernels, pairs: tuple[tuple[str, str], ...], says: str
) -> None:
    kernels.change(*pairs)
    changes = kernels.compare()
    assert (changes.same, len(changes.grown)) == (8, 0)
    (change,) = changes.broken
    assert change.event == EVENT
    assert says in change.what
    assert len(_wrong(kernels.judge())) == 1


def test_a_number_that_is_printed_does_not_get_digits(kernels: Kernels) -> None:
    for side in (kernels.base, kernels.patched):
        path = side.joinpath(*EVENT.split(":"))
        path.write_text(path.read_text().replace(" [ns]", ""))
    kernels.change(("%Lu", "%Lu0"))
    assert [change.event for change in kernels.compare().broken] == [EVENT]


def test_an_event_that_is_gone_is_broken(kernels: Kernels) -> None:
    kernels.patched.joinpath(*EVENT.split(":")).unlink()
    assert kernels.compare().broken == (traceabi.EventChange(EVENT, "is gone"),)


def test_an_event_may_grow_at_its_end(kernels: Kernels) -> None:
    kernels.change(
        (FIELD, FIELD + "\tfield:u32 cpu;\toffset:24;\tsize:4;\tsigned:0;\n"),
        ("[ns]", "[ns] cpu=%u"),
        ("long)REC->delay", "long)REC->delay, REC->cpu"),
    )
    changes = kernels.compare()
    assert changes.grown == (traceabi.EventChange(EVENT, "has more at its end: cpu"),)
    assert _wrong(kernels.judge()) == []


def test_a_new_event_has_to_be_declared(kernels: Kernels) -> None:
    text = THROTTLED.replace("sched_stat_throttled", "nap")
    kernels.add("demo:nap", text)
    assert _wrong(kernels.judge("demo:nap")) == []
    assert _wrong(kernels.judge()) == ["demo:nap is declared: "]


def test_a_new_record_with_a_hole(kernels: Kernels) -> None:
    text = THROTTLED.replace("sched_stat_throttled", "nap")
    kernels.add("demo:nap", text.replace("offset:16", "offset:24"))
    verdict = kernels.judge("demo:nap")
    (wrong,) = [comparison for comparison in verdict.comparisons if not comparison.ok]
    assert (wrong.label, wrong.observed) == ("demo:nap: holes", "8 bytes before delay")
    (layout,) = kernels.compare().new
    assert traceabi.describe(layout) == [
        "demo:nap",
        "      8    4  __data_loc char[] comm",
        "     12    4  pid_t pid",
        "     16    8  (hole)",
        "     24    8  u64 delay",
    ]


def test_a_new_name_that_another_system_has(kernels: Kernels) -> None:
    kernels.add("demo:sched_stat_throttled", THROTTLED)
    verdict = kernels.judge("demo:sched_stat_throttled")
    assert _wrong(verdict) == [
        "demo:sched_stat_throttled has a unique name: "
        "sched:sched_stat_throttled has the same name"
    ]


def test_what_tracefs_has_besides_is_passed_over(kernels: Kernels) -> None:
    """A copy of events/: formats in directories, switches, ftrace's own records."""
    for side in (kernels.base, kernels.patched):
        for path in [path for path in side.glob("*/*") if path.is_file()]:
            text = path.read_text()
            path.unlink()
            path.mkdir()
            (path / "format").write_text(text)
            (path / "enable").write_text("0\n")
            (path.parent / "enable").write_text("0\n")
            (path.parent / "filter").write_text("none\n")
        (side / "ftrace" / "function").mkdir(parents=True)
        (side / "ftrace" / "function" / "format").write_text("name: function\n")
    assert kernels.compare().same == 9


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda side: (side / "sched/sched_switch").write_text("x"), "sched_switch"),
        (lambda side: shutil.rmtree(side), "no format files"),
    ],
)
def test_what_cannot_be_read_is_no_result(
    kernels: Kernels, spoil: Callable[[Path], object], says: str
) -> None:
    spoil(kernels.patched)
    with pytest.raises(traceabi.NoFormats, match=says):
        kernels.compare()


def test_an_event_that_we_cannot_read_is_compared_as_text(kernels: Kernels) -> None:
    odd = THROTTLED.replace("u64 delay;", "int (*delay)(int);")
    for side in (kernels.base, kernels.patched):
        side.joinpath(*EVENT.split(":")).write_text(odd)
    kernels.change(("ID: 247", "ID: 9"))
    assert kernels.compare().same == 9
    kernels.change(("(*delay)(int)", "(*delay)(long)"))
    assert [change.event for change in kernels.compare().broken] == [EVENT]


# -- in a run ------------------------------------------------------------------------


def _printed(side: Path, project_root: Path) -> str:
    """What the guest's program prints of a copy of tracefs."""
    for path in [path for path in side.glob("*/*") if path.is_file()]:
        text = path.read_text()
        path.unlink()
        path.mkdir()
        (path / "format").write_text(text)
    script = (project_root / traceabi.PROGRAM).read_text()
    assert "cd /sys/kernel/tracing/events\n" in script
    script = script.replace("/sys/kernel/tracing/events", str(side))
    done = subprocess.run(["sh", "-c", script], capture_output=True, check=True)
    return done.stdout.decode()


def test_what_the_guest_prints_is_read_back(
    kernels: Kernels, project_root: Path
) -> None:
    layouts = traceabi.read(kernels.base)
    assert traceabi.parse_list(_printed(kernels.base, project_root)) == layouts


@pytest.mark.parametrize("text", ["", "sh: tail: not found\n"])
def test_what_is_no_list_of_formats_is_no_result(text: str) -> None:
    with pytest.raises(traceabi.NoFormats):
        traceabi.parse_list(text)


def _stage(tmp_path: Path, series: Series, texts: list[str]) -> SeriesReport:
    run = runs.begin(tmp_path / "out", ["kstall"], Ui(Console(file=io.StringIO())))
    entry = SeriesReport(name="s", title="s", digest="d")
    with run.stage("events", entry) as stage:
        overhead._events(series, texts, entry, stage)
    return entry


def test_a_run_judges_the_events_of_both_kernels(
    kernels: Kernels, project_root: Path, tmp_path: Path
) -> None:
    """The series declares sched_stat_throttled, which the base has not."""
    (series,) = Project(project_root).load(["sched-throttle"])
    event = {"name": EVENT.split(":")[1], "kind": "event"}
    points = series.spec.tracepoint
    more = points[0].model_copy(update=event)
    spec = series.spec.model_copy(update={"tracepoint": (*points, more)})
    series = replace(series, spec=spec)
    kernels.base.joinpath(*EVENT.split(":")).unlink()
    texts = [_printed(side, project_root) for side in (kernels.base, kernels.patched)]
    entry = _stage(tmp_path, series, texts)
    (check,) = entry.checks
    assert (check.name, check.kind) == ("existing_events_are_kept", "abi")
    assert check.status == "pass", check
    assert entry.stages[0].summary == (
        "8 existing events, 0 broken; new: sched_stat_throttled"
    )
    changed = texts[1].replace("prev_pid=%d", "pid=%d")
    (check,) = _stage(tmp_path, series, [texts[0], changed]).checks
    assert check.status == "fail"
    (wrong,) = [comparison for comparison in check.comparisons if not comparison.ok]
    assert wrong.label == "sched:sched_switch can be read as before"


def test_the_command_says_what_changed(
    kernels: Kernels, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["abi", str(kernels.base), str(kernels.patched)]
    kernels.add("demo:nap", THROTTLED.replace("sched_stat_throttled", "nap"))
    assert cli.main(words) == 0
    assert "new       demo:nap" in capsys.readouterr().out
    kernels.change(("delay=%Lu", "wait=%Lu"))
    assert cli.main(words) == 1
    assert f"BROKEN    {EVENT}: prints" in capsys.readouterr().out


def test_layouts_of_real_events_are_read(kernels: Kernels) -> None:
    layouts: dict[str, Layout] = traceabi.read(kernels.base)
    assert layouts[EVENT].fields[-1].name == "delay"
    assert "sched:sched_switch" in layouts
