# SPDX-License-Identifier: GPL-2.0-or-later
"""bpftrace's wrapper against a stand-in that fails in the ways the real one does."""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kstall_guest import bpftrace
from kstall_guest.errors import (
    HelperBusy,
    HelperError,
    LostEvents,
    MissingEvent,
    ScriptRefused,
    TracerFailed,
)

FAKE = (sys.executable, str(Path(__file__).parent / "fake_bpftrace.py"))
Start = Callable[..., bpftrace.Tracer]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a tracer on the given directives; none outlives the test."""
    tracers: list[bpftrace.Tracer] = []

    def begin(*steps: str, name: str = "t") -> object:
        script = tmp_path / f"{name}.bt"
        script.write_text("\n".join(steps))
        tracers.append(
            bpftrace.start(name, script, results=tmp_path, ring_pages=8, program=FAKE)
        )
        return tracers[-1]

    yield begin  # type: ignore[misc]
    bpftrace.kill(tracers)


def test_waits_for_the_attachment_and_not_for_the_output(
    start: Start, tmp_path: Path
) -> None:
    slow, quick = start("delay 0.4", name="slow"), start(name="quick")
    while not slow.output.exists() or "attached" not in slow.output.read_text():
        time.sleep(0.01)
    assert not slow.attached
    bpftrace.wait_attached([slow, quick], 60)
    assert slow.attached_s is not None and slow.attached_s >= 0.4
    assert quick.attached


def test_ends_in_its_own_words(start: Start) -> None:
    tracer = start("ring")
    bpftrace.wait_attached([tracer], 60)
    (outcome,) = bpftrace.stop([tracer])
    assert outcome.errors == () and outcome.exit_status == 0
    lines = tracer.output.read_text().splitlines()
    assert lines[1] == '{"type": "printf", "data": "8\\n"}'
    assert lines[-1] == '{"type": "map", "data": {"@end": 1}}'


@pytest.mark.parametrize(
    "complaint",
    [
        "/x.bt:1:1-21: ERROR: tracepoint not found: sched:nope",
        "/x.bt:4-5: ERROR: tracepoints not found: sched:nope",
    ],
)
def test_names_a_missing_tracepoint(start: Start, complaint: str) -> None:
    tracer = start(f"stderr {complaint}", "die 1")
    with pytest.raises(MissingEvent) as caught:
        bpftrace.wait_attached([tracer], 60)
    assert caught.value.event == "sched:nope"


def test_a_missing_tracepoint_among_several_is_no_mere_warning(start: Start) -> None:
    tracer = start("stderr /x.bt:4-5: WARNING: tracepoint not found: sched:nope")
    with pytest.raises(MissingEvent, match="sched:nope"):
        bpftrace.wait_attached([tracer], 60)


def test_a_skipped_probe_is_no_mere_warning(start: Start) -> None:
    tracer = start("stderr WARNING: could not attach probe kprobe:x, skipping.")
    with pytest.raises(TracerFailed, match="kprobe:x"):
        bpftrace.wait_attached([tracer], 60)


def test_shows_why_a_script_does_not_compile(start: Start) -> None:
    tracer = start("stderr ERROR: no field named 'nope'", "die 1")
    with pytest.raises(TracerFailed, match=r"status 1 before .*\n.*named 'nope'"):
        bpftrace.wait_attached([tracer], 60)


def test_does_not_wait_for_ever_to_attach(start: Start) -> None:
    hangs, works = start("hang", name="hangs"), start(name="works")
    # Its message is in the pipe, but has not been read yet.
    assert works.process.stdout is not None
    assert select.select([works.process.stdout], [], [], 60)[0]
    with pytest.raises(TracerFailed, match=r"\(hangs\): not attached after 1 s"):
        bpftrace.wait_attached([hangs, works], 1)
    assert hangs.process.poll() is None


def test_counts_lost_events(start: Start) -> None:
    tracer = start(
        'emit {"type": "lost_events", "data": {"events": 40}}',
        'emit {"type": "lost_events", "data": {"events": 2}}',
    )
    bpftrace.wait_attached([tracer], 60)
    (outcome,) = bpftrace.stop([tracer])
    assert outcome.lost == 42
    assert [type(error) for error in outcome.errors] == [LostEvents]


def test_output_that_is_cut_off_is_lost(start: Start) -> None:
    tracer = start(
        'emit {"type": "lost_events", "data": {"events": 40}}',
        'cut {"type": "lost_events", "da',
    )
    bpftrace.wait_attached([tracer], 60)
    (outcome,) = bpftrace.stop([tracer])
    assert (outcome.exit_status, outcome.lost) == (0, 40)
    assert [type(error) for error in outcome.errors] == [LostEvents] * 2
    assert "cut off" in str(outcome.errors[0])


def test_a_failed_helper_is_a_failure(start: Start) -> None:
    error = (
        'emit {"type": "helper_error", "msg": "Map full; can\'t update element", '
        '"helper": "map_update_elem", "retcode": -7, "line": 2, "col": 3}'
    )
    tracer = start(error, error)
    bpftrace.wait_attached([tracer], 60)
    (outcome,) = bpftrace.stop([tracer])
    assert [type(error) for error in outcome.errors] == [HelperError]
    assert "line 2: map_update_elem: Map full" in str(outcome.errors[0])
    assert "(2 times)" in str(outcome.errors[0])


def test_a_non_zero_exit_is_a_failure(start: Start) -> None:
    tracer = start("exit 4")
    bpftrace.wait_attached([tracer], 60)
    (outcome,) = bpftrace.stop([tracer])
    assert "exit status 4" in str(outcome.errors[0])


def test_one_that_left_early_saw_not_everything(start: Start) -> None:
    tracer = start("leave 0")
    bpftrace.wait_attached([tracer], 60)
    tracer.process.wait(60)
    (outcome,) = bpftrace.stop([tracer])
    assert "before the workload did" in str(outcome.errors[0])


def test_one_that_left_at_once_was_attached(start: Start) -> None:
    tracer = start("leave 0")
    # Its output and its end are now in the pipe, to be read together.
    os.waitid(os.P_PID, tracer.process.pid, os.WEXITED | os.WNOWAIT)
    bpftrace.wait_attached([tracer], 60)
    (outcome,) = bpftrace.stop([tracer])
    assert "before the workload did" in str(outcome.errors[0])


def test_one_that_does_not_stop_is_killed(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bpftrace, "_STOP_S", 0.3)
    tracer = start("deaf")
    bpftrace.wait_attached([tracer], 60)
    (outcome,) = bpftrace.stop([tracer])
    assert outcome.exit_status is None
    assert "did not stop" in str(outcome.errors[0])
    assert tracer.process.poll() == -9


def test_events_that_the_kernel_skipped_are_lost(start: Start, tmp_path: Path) -> None:
    tracer = start()
    bpftrace.wait_attached([tracer], 60)
    fdinfo = tmp_path / "proc" / str(tracer.process.pid) / "fdinfo"
    fdinfo.mkdir(parents=True)
    (fdinfo / "3").write_text("pos:\t0\n")
    (fdinfo / "12").write_text("prog_type:\t5\nrecursion_misses:\t2\n")
    (fdinfo / "13").write_text("prog_type:\t5\nrecursion_misses:\t1\n")
    (outcome,) = bpftrace.stop([tracer], tmp_path / "proc")
    assert outcome.missed == 3
    assert [error.as_json() for error in outcome.errors] == [
        {
            "kind": "skipped-events",
            "fault": "apparatus",
            "message": "bpftrace t: 3 events fired while the CPU ran another BPF "
            "program and were skipped",
            "tracer": "t",
            "count": 3,
        }
    ]


@pytest.mark.parametrize(
    ("complaint", "end", "kind"),
    [
        ("/x.bt:1:30-44: ERROR: no field named 'nope'", "die 1", ScriptRefused),
        ("ERROR: Unable to load program: Permission denied", "die 1", ScriptRefused),
        # No script is at fault for these.
        ("ERROR: failed to create map: Cannot allocate memory", "die 1", TracerFailed),
        ("terminate called", "die 1", TracerFailed),
        ("ERROR: half a line", "raise 9", TracerFailed),
        ("WARNING: could not attach probe kprobe:x, skipping.", "", ScriptRefused),
        (
            "WARNING: Unable to attach probe x: Too many open files, skipping.",
            "",
            TracerFailed,
        ),
    ],
)
def test_whose_fault_a_script_that_does_not_attach_is(
    start: Start, complaint: str, end: str, kind: type[TracerFailed]
) -> None:
    tracer = start(f"stderr {complaint}", *filter(None, [end]))
    with pytest.raises(TracerFailed) as caught:
        bpftrace.wait_attached([tracer], 60)
    assert type(caught.value) is kind


def test_a_helper_that_was_busy_is_nobody_s_fault(start: Start) -> None:
    error = (
        'emit {"type": "helper_error", "msg": "Device or resource busy", '
        '"helper": "map_update_elem", "retcode": -16, "line": 2, "col": 3}'
    )
    tracer = start(error)
    bpftrace.wait_attached([tracer], 60)
    (outcome,) = bpftrace.stop([tracer])
    assert [type(error) for error in outcome.errors] == [HelperBusy]


def test_no_bpftrace_at_all(tmp_path: Path) -> None:
    with pytest.raises(TracerFailed, match="/no/such"):
        bpftrace.start(
            "t",
            tmp_path / "t.bt",
            results=tmp_path,
            ring_pages=8,
            program=("/no/such",),
        )


def test_it_does_not_run_while_it_is_paused(start: Start) -> None:
    first, other = start(name="first"), start(name="other")
    bpftrace.wait_attached([first, other], 60)
    bpftrace.pause([first, other])
    for tracer in (first, other):
        stat = Path(f"/proc/{tracer.process.pid}/stat").read_text()
        assert stat.rpartition(")")[2].split()[0] == "T"
    outcomes = bpftrace.stop([first, other])
    assert [outcome.errors for outcome in outcomes] == [(), ()]
    assert [outcome.exit_status for outcome in outcomes] == [0, 0]


def test_one_that_left_cannot_be_paused(start: Start) -> None:
    tracer = start("leave 0")
    bpftrace.wait_attached([tracer], 60)
    os.waitid(os.P_PID, tracer.process.pid, os.WEXITED | os.WNOWAIT)
    bpftrace.pause([tracer])
    (outcome,) = bpftrace.stop([tracer])
    assert "before the workload did" in str(outcome.errors[0])


def test_one_that_is_paused_can_be_killed(start: Start) -> None:
    tracer = start()
    bpftrace.wait_attached([tracer], 60)
    bpftrace.pause([tracer])
    bpftrace.kill([tracer])
    assert tracer.process.poll() == -9
