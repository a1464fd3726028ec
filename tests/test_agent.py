# SPDX-License-Identifier: GPL-2.0-or-later
"""The guest's agent on a made-up /sys and with a stand-in for bpftrace."""

from __future__ import annotations

import ast
import contextlib
import errno
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import kstall_guest
from kstall_guest import (
    errors,
    hosttime,
    job,
    kmsg,
    layout,
    recorder,
    script,
    session,
    tracefs,
    waiting,
    workload,
)
from kstall_guest.__main__ import Report, gnu_build_id
from kstall_guest.errors import (
    BadJob,
    CannotStart,
    MissingEvent,
    NotRecordable,
    TracefsError,
    TracerFailed,
)

DATA = Path(__file__).parent / "data"
FAKE = (sys.executable, str(Path(__file__).parent / "fake_bpftrace.py"))
SWITCH = "sched:sched_switch"
QUEUE = "workqueue:workqueue_queue_work"


def spec(**load: Any) -> dict[str, Any]:
    """A job with one workload, whose keys ``load`` replaces."""
    return {
        "schema": 1,
        "series": "s",
        "build_id": "ab" * 20,
        "results": "/r",
        "scripts": "/s",
        "formats": [QUEUE],
        "workloads": [{"name": "w", "argv": ["true"], **load}],
    }


def load_of(**load: Any) -> job.Workload:
    return job.parse(spec(**load)).workloads[0]


@pytest.fixture
def machine(tmp_path: Path) -> session.Machine:
    """A tracefs of plain files in which any instance "w" has one CPU."""
    root = tmp_path / "tracing"
    for event in (SWITCH, QUEUE):
        name = event.replace(":", "/")
        target = root / "events" / name / "format"
        target.parent.mkdir(parents=True)
        target.write_text((DATA / "formats" / name).read_text())
    (root / "instances").mkdir()
    (tmp_path / "kmsg").write_text("")
    return session.Machine(
        tracefs.Tracefs(root),
        kmsg=tmp_path / "kmsg",
        bpftrace=FAKE,
        scratch=tmp_path / "scratch",
    )


# --- the job ---


def test_a_whole_job() -> None:
    value = spec(
        events=[SWITCH],
        record=[QUEUE],
        modules=["m"],
        bpftrace=[{"name": "a", "script": "a.bt"}],
        deadline_s=2.5,
    )
    read = job.parse(value | {"modules": "/m"})
    assert read.all_formats() == (QUEUE, SWITCH) and read.all_modules() == ("m",)
    assert read.workloads[0].bpftrace == (job.Script("a", "a.bt"),)
    assert read.workloads[0].deadline_s == 2.5


@pytest.mark.parametrize(
    ("load", "complaint"),
    [
        ({"argv": []}, r"job.workloads\[0\].argv: empty"),
        ({"argv": ["a", 1]}, r"argv\[1\]: expected str, got int"),
        ({"argv": "ls"}, r"argv: expected list, got str"),
        ({"name": "../x"}, r"name: expected letters"),
        ({"name": "formats"}, r"'formats' is taken"),
        ({"events": ["sched"]}, r"events\[0\]: expected system:event, got 'sched'"),
        ({"deadline_s": 0}, r"deadline_s: expected a positive number: 0"),
        ({"deadline_s": True}, r"deadline_s: expected a positive number: True"),
        ({"evnts": []}, r"workloads\[0\]: unknown keys: evnts"),
        ({"modules": ["m"]}, r"job.modules: missing"),
        ({"bpftrace": [{"name": "a"}]}, r"bpftrace\[0\].script: missing"),
        ({"bpftrace": [{"name": "record", "script": "x"}]}, "'record' is taken"),
        (
            {"bpftrace": [{"name": "a", "script": "x"}] * 2},
            r"workloads\[0\].bpftrace: two are called 'a'",
        ),
    ],
)
def test_a_bad_job_is_refused_by_place(load: dict[str, Any], complaint: str) -> None:
    with pytest.raises(BadJob, match=complaint):
        job.parse(spec(**load))


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"schema": 2}, "job.schema: this agent reads 1, not 2"),
        ({"build_id": "xyz"}, "job.build_id: expected hex digits"),
        ({"workloads": []}, "job.workloads: empty"),
        ({"workloads": spec()["workloads"] * 2}, "two are called 'w'"),
        ({"series": None}, "job.series: expected str, got null"),
        ({"more": 1}, "job: unknown keys: more"),
    ],
)
def test_a_bad_head_is_refused(change: dict[str, Any], complaint: str) -> None:
    with pytest.raises(BadJob, match=complaint):
        job.parse(spec() | change)


def test_a_job_file_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(BadJob, match="No such file"):
        job.load(tmp_path / "job.json")
    (tmp_path / "job.json").write_text("{")
    with pytest.raises(BadJob, match="not JSON"):
        job.load(tmp_path / "job.json")


# --- facts about the machine ---


def test_build_id_among_other_notes() -> None:
    def note(kind: int, name: bytes, desc: bytes) -> bytes:
        sizes = (len(name), len(desc), kind)
        head = b"".join(size.to_bytes(4, sys.byteorder) for size in sizes)
        return head + name.ljust(-len(name) % 4 + len(name), b"\0") + desc

    notes = note(6, b"Xen\0", b"12345678") + note(0x100, b"Linux\0", b"\0" * 4)
    assert gnu_build_id(notes) == ""
    assert gnu_build_id(notes + note(3, b"GNU\0", b"\xab" * 20)) == "ab" * 20


def test_kernel_log_records_as_dmesg_prints_them() -> None:
    assert kmsg.render("6,339,5140900,-;NET: hello\n SUBSYSTEM=acpi\n") == (
        "[    5.140900] NET: hello\n"
    )


def test_stats_of_a_cpu() -> None:
    text = (
        "entries: 12\noverrun: 3\ncommit overrun: 1\nbytes: 99\n"
        "oldest event ts:   12.3\nnow ts:  4.5\ndropped events: 2\nread events: 0\n"
    )
    cpu = tracefs.parse_stats(text)
    assert cpu == {"entries": 12, "overrun": 3, "commit_overrun": 1, "dropped": 2}
    assert tracefs.lost({"cpu0": cpu, "cpu1": cpu}) == 12


def test_the_kernel_refuses_an_instance(machine: session.Machine) -> None:
    # Plain files lack options/ below a new directory, as a broken tracefs would.
    with (
        pytest.raises(TracefsError, match="cannot write '0'"),
        machine.tracefs.instance("x", [SWITCH], 64),
    ):
        pass


def test_a_missing_event_is_named_by_its_reader(machine: session.Machine) -> None:
    with pytest.raises(MissingEvent, match=r"recorder: .*no tracepoint") as e:
        machine.tracefs.layout("sched:nope", reader="recorder")
    assert e.value.as_json()["event"] == "sched:nope"


# --- generated and mended scripts ---


def read_layout(event: str) -> layout.Layout:
    system, name = event.split(":")
    return layout.parse((DATA / "formats" / system / name).read_text(), system)


def test_recorder_script() -> None:
    assert recorder.script([read_layout(QUEUE)]) == (
        "tracepoint:workqueue:workqueue_queue_work\n"
        "{\n"
        "    print((\n"
        '        "workqueue:workqueue_queue_work",\n'
        "        nsecs(monotonic),\n"
        "        cpu,\n"
        "        (int64)((struct task_struct *)curtask)->pid,\n"
        "        (int64)((struct task_struct *)curtask)->tgid,\n"
        "        comm,\n"
        "        (uint64)args.work,\n"
        "        (uint64)args.function,\n"
        "        str(args.workqueue),\n"
        "        (int64)args.req_cpu,\n"
        "        (int64)args.cpu\n"
        "    ));\n"
        "}\n"
    )
    # A fixed char array is a string for bpftrace already, str() of it an error.
    assert "        args.prev_comm,\n" in recorder.script([read_layout(SWITCH)])


@pytest.mark.parametrize(
    "ctype", ["__data_loc u64[]", "__rel_loc char[]", "enum mode", "struct list_head"]
)
def test_what_cannot_be_recorded_is_refused(ctype: str) -> None:
    bad = layout.Layout(
        "s", "e", 1, (), (layout.Field("x", ctype, 8, 16, False),), '""'
    )
    with pytest.raises(NotRecordable, match=r"s:e: member .* x: "):
        recorder.script([bad])


SCRIPT = """\
// tracepoint:a:comment { str(args.workqueue) }
config = { max_strlen = 64 }
BEGIN { printf("t:a:string { %d\\n", 1); }
tracepoint:workqueue:workqueue_queue_work /str(args.workqueue) == "x"/ {
\t@[str(args->workqueue, 8), args.cpu] = count(); // args.workqueue
}
t:sched:sched_switch { if (args.prev_pid) { @ = count(); } }
tracepoint:sched:*, tracepoint:irq:softirq_entry { @any = count(); }
"""


def test_attach_points_of_a_script() -> None:
    assert script.attach_points(SCRIPT) == (QUEUE, SWITCH, "irq:softirq_entry")


def test_strings_are_read_from_where_they_are() -> None:
    address = "kptr((uint64)args.workqueue - 108)"
    text = script.mended(SCRIPT, read_layout)
    assert f'/str({address}) == "x"/' in text
    assert f"@[str({address}, 8), args.cpu]" in text
    assert text.startswith("// tracepoint:a:comment { str(args.workqueue) }\n")
    assert text.endswith(SCRIPT[SCRIPT.index("t:sched") :])


def test_a_second_string_stands_behind_the_first() -> None:
    fields = (
        layout.Field("a", "__data_loc char[]", 8, 4, False),
        layout.Field("n", "u64", 16, 8, False),
        layout.Field("b", "__data_loc char[]", 24, 4, False),
    )
    two = layout.Layout("s", "e", 1, (), fields, '""')
    text = script.mended("t:s:e { @ = (str(args.b), args.n); }", lambda _: two)
    record = "((uint64)args.a - 112)"
    address = f"kptr({record} + (*(uint32 *)kptr({record} + 24) & 0xffff))"
    assert text == f"t:s:e {{ @ = (str({address}), args.n); }}"


def test_what_cannot_be_mended_is_refused() -> None:
    with pytest.raises(TracerFailed, match="named in full"):
        script.mended("t:workqueue:* { @ = str(args.x); }", read_layout)
    with pytest.raises(TracerFailed, match="different records"):
        script.mended(
            f"t:{QUEUE}, t:irq:irq_handler_entry {{ @ = str(args.name); }}", read_layout
        )


def test_only_one_release_needs_mending() -> None:
    versions = ["0.22.1-1", "0.23.2-1", "0.24.1-1", "0.230.1", "unknown"]
    assert [script.needs_mending(v) for v in versions] == [False, True] + 3 * [False]


# --- running programs ---


def test_a_workload_that_ends(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", "print('out'); raise SystemExit(3)"]
    ended = workload.run("w", argv, deadline_s=300, results=tmp_path)
    assert (ended.exit_status, ended.timed_out, ended.strays) == (3, False, 0)
    assert (tmp_path / "stdout").read_text() == "out\n"
    assert 0 < ended.seconds < 300


def test_nothing_outlives_the_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A child in the group, and one in its own session that ignores SIGTERM.
    text = "(setsid sh -c 'trap \"\" TERM; sleep 999' &); sleep 999 & sleep 999"
    wait = hosttime.wait

    def all_there(child: subprocess.Popen[bytes]) -> bool:
        mark = f"w-{os.getpid()}"
        names = []
        for pid in workload._marked(mark, Path("/proc"), child.pid)[0]:
            with contextlib.suppress(OSError):
                names.append(Path(f"/proc/{pid}/comm").read_text())
        return names.count("sleep\n") == 3

    def waited(child: subprocess.Popen[bytes], seconds: float) -> int:
        # What has not begun by then is not there to be ended.
        until = time.monotonic() + 60
        while not all_there(child):
            assert time.monotonic() < until
            time.sleep(0.01)
        return wait(child, seconds)

    monkeypatch.setattr(hosttime, "wait", waited)
    ended = workload.run("w", ["sh", "-c", text], deadline_s=0.4, results=tmp_path)
    assert ended.timed_out and ended.exit_status is None
    assert ended.strays >= 3
    assert ended.seconds < 300


@pytest.mark.parametrize(("owed", "status"), [("0", None), ("300", 0), ("", None)])
def test_time_that_the_host_did_not_give_is_not_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owed: str, status: int | None
) -> None:
    lost = tmp_path / "lost"

    class Countdown(hosttime.Countdown):
        """Right after it has begun the host finds what it owes."""

        def __init__(self, seconds: float) -> None:
            lost.write_text("7.0")
            super().__init__(seconds)
            lost.write_text(str(7 + float(owed)) if owed else "")

    monkeypatch.setattr(hosttime, "_LOST", lost)
    monkeypatch.setattr(hosttime, "_PATIENCE", 1000.0)
    monkeypatch.setattr(hosttime, "Countdown", Countdown)
    argv = ["sleep", "999" if status is None else "1"]
    ended = workload.run("w", argv, deadline_s=0.5, results=tmp_path)
    assert ended.exit_status == status


def test_a_host_that_is_busy_without_end_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hosttime, "_LOST", tmp_path / "lost")
    countdown = hosttime.Countdown(1000)
    assert 900 < countdown.left() <= 1000
    (tmp_path / "lost").write_text("100000")
    assert 5900 < countdown.left() <= 6000
    # Time that was added is not taken away again.
    (tmp_path / "lost").write_text("half a li")
    assert 5900 < countdown.left() <= 6000


#: A workload that waits for something that does not happen in time.
AWAITS = """
import sys
from pathlib import Path
from kstall_guest import hosttime, waiting
hosttime._LOST = Path(sys.argv[1])
owed = sys.argv[2]
def holds():
    if owed:
        hosttime._LOST.write_text(owed)
    return []
print(waiting.until(holds, 0.2, "rain", patched=sys.argv[3] == "patched"))
"""


@pytest.mark.parametrize(
    ("reported", "owed", "patched", "says"),
    [
        # The host gave all of it.
        ("7.0", "7.0", "patched", None),
        ("7.0", "7.5", "patched", None),
        ("7.0", "7.0", "", "no rain in 0.2 s"),
        # It gave next to nothing, or reports nothing.
        ("7.0", "99.0", "patched", "no rain in 0.2 s: the host gave 0 s of them"),
        ("7.0", "99.0", "", "no rain in 0.2 s: the host gave 0 s of them"),
        (None, "", "patched", "no rain in 0.2 s: the host does not tell how much"),
    ],
)
def test_whose_fault_it_is_that_something_does_not_come(
    machine: session.Machine,
    tmp_path: Path,
    reported: str | None,
    owed: str,
    patched: str,
    says: str | None,
) -> None:
    lost = tmp_path / "lost"
    if reported is not None:
        lost.write_text(reported)
    argv = [sys.executable, "-c", AWAITS, str(lost), owed, patched]
    entry = session.run(machine, load_of(argv=argv), tmp_path, tmp_path / "out")
    # The program continues in any case, and prints that nothing came.
    assert entry["exit_status"] == 0
    assert (tmp_path / "out/stdout").read_text() == "[]\n"
    if says is None:
        assert (entry["status"], entry["errors"]) == ("exited", [])
    else:
        (error,) = entry["errors"]
        assert (error["kind"], error["fault"]) == ("not-in-time", "apparatus")
        assert error["message"].startswith(says)


#: A selftest that gives up, while the host keeps this machine waiting.
GIVES_UP = """
import sys
from pathlib import Path
Path(sys.argv[1]).write_text(sys.argv[2])
print("# migrate: Test terminated by timeout", file=sys.stderr)
print("not ok 1 hmm.migrate")
sys.exit(1)
"""


@pytest.mark.parametrize(
    ("owed", "kinds"), [("27.0 0", ["not-in-time"]), ("8.0 0", [])]
)
def test_a_selftest_gives_up_by_the_clock(
    machine: session.Machine,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    owed: str,
    kinds: list[str],
) -> None:
    lost = tmp_path / "lost"
    lost.write_text("7.0 0")
    monkeypatch.setattr(hosttime, "_LOST", lost)
    argv = [sys.executable, "-c", GIVES_UP, str(lost), owed]
    entry = session.run(machine, load_of(argv=argv), tmp_path, tmp_path / "out")
    assert entry["exit_status"] == 1
    assert [error["kind"] for error in entry["errors"]] == kinds


def test_what_comes_in_time_is_no_trouble(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KSTALL_TROUBLE", str(tmp_path / "trouble.txt"))
    answers = iter([0, 0, 17])
    assert waiting.until(lambda: next(answers), 60, "it", pause_s=0.01) == 17
    assert workload.troubles(tmp_path) == []


def test_what_outlives_its_end_is_no_word_on_the_series(
    machine: session.Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hang is long enough for the kernel's watchdog to report it."""
    assert workload._DEATH_S > 2 * 60
    ended = workload._kill_all

    def immortal(*words: Any) -> int:
        with monkeypatch.context() as here:
            here.setattr(workload, "_DEATH_S", 0.1)
            here.setattr(os, "kill", lambda *_: None)
            try:
                return ended(*words)
            finally:
                here.undo()
                ended(*words)

    monkeypatch.setattr(workload, "_kill_all", immortal)
    load = load_of(argv=["sleep", "999"], deadline_s=0.1)
    entry = session.run(machine, load, tmp_path, tmp_path / "out")
    (error,) = entry["errors"]
    assert (error["kind"], error["fault"]) == ("unkillable", "apparatus")
    assert "still there after SIGKILL: " in error["message"]
    assert "sleep" in error["message"]


def test_what_it_leaves_behind_is_ended_too(tmp_path: Path) -> None:
    argv = ["sh", "-c", "setsid sleep 999 & exit 0"]
    ended = workload.run("w", argv, deadline_s=300, results=tmp_path)
    assert (ended.exit_status, ended.strays) == (0, 1)


def test_what_executes_a_program_meanwhile_is_not_missed(tmp_path: Path) -> None:
    """Its environment is empty for a moment: it is found only at a later look."""
    source = tmp_path / "proc"
    kernel_thread, zombie = "S 2 0 0 0 -1 2129984", "Z 1 9 9 0 -1 4194304"
    for pid, stat in (
        *((10, "S 1 9 9 0 -1 4194304"), (30, "R 1 9 9 0 -1 4194304")),
        *((31, kernel_thread), (32, zombie)),
    ):
        (source / str(pid)).mkdir(parents=True)
        (source / str(pid) / "environ").touch()
        (source / str(pid) / "stat").write_text(f"{pid} (a) b) {stat} 0 0")
    (source / "33").mkdir()
    (source / "33" / "environ").write_bytes(b"A=b\0KSTALL_WORKLOAD=w-1\0")
    assert workload._marked("w-1", source, 20) == ([33], [30])


def test_a_stray_that_is_about_to_leave_is_ended(tmp_path: Path) -> None:
    """The program may end while the other is forked, leaves, or executes."""
    for turn in range(20):
        delay = f"i=0; while [ $i -lt {turn * 40} ]; do i=$((i + 1)); done"
        argv = ["sh", "-c", f"setsid sleep 998 & {delay}; exit 0"]
        ended = workload.run("w", argv, deadline_s=300, results=tmp_path)
        assert (ended.exit_status, ended.strays) == (0, 1)


def test_no_such_program(tmp_path: Path) -> None:
    with pytest.raises(CannotStart, match="/no/such: No such file"):
        workload.run("w", ["/no/such"], deadline_s=1, results=tmp_path)


# --- a session ---


def test_a_session_with_a_recorder(machine: session.Machine, tmp_path: Path) -> None:
    witness = tmp_path / "witness"
    (tmp_path / "wait.bt").write_text(f"delay 0.3\nwitness {witness}")
    load = load_of(
        argv=["cat", str(witness)],
        bpftrace=[{"name": "wait", "script": "wait.bt"}],
    )
    entry = session.run(machine, load, tmp_path, tmp_path / "out")
    assert (entry["status"], entry["exit_status"]) == ("exited", 0)
    assert entry["error"] is None and entry["tracers"]["wait"]["lost"] == 0
    # The program ran only when the slow tracer was attached.
    assert (tmp_path / "out" / "stdout").read_text() == "attached"
    assert (tmp_path / "out" / "kmsg.txt").read_text() == ""
    kept = (tmp_path / "out" / "bpftrace-wait.json").read_text()
    assert kept.endswith('{"type": "map", "data": {"@end": 1}}\n')
    assert not list((tmp_path / "scratch").iterdir())


def test_a_session_that_loses_events(machine: session.Machine, tmp_path: Path) -> None:
    (tmp_path / "a.bt").write_text(
        'emit {"type": "lost_events", "data": {"events": 4}}'
    )
    load = load_of(bpftrace=[{"name": "a", "script": "a.bt"}])
    entry = session.run(machine, load, tmp_path, tmp_path / "out")
    assert (entry["status"], entry["exit_status"]) == ("tracer-failed", 0)
    assert entry["error"]["kind"] == "lost-events"


def _printed(**data: Any) -> str:
    head = [QUEUE, 5, 1, 77, 77, "tom"]
    return json.dumps({"type": "value", "data": [*head, 1, 2, 3, "wq", 5], **data})


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (f"emit {_printed()}\ncut {_printed()[:40]}", "lost-events"),
        (f"emit {_printed(data=[QUEUE])}", "error"),
    ],
)
def test_a_recorder_whose_output_is_broken_fails_its_workload_alone(
    machine: session.Machine,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    text: str,
    kind: str,
) -> None:
    monkeypatch.setattr(recorder, "script", lambda _: text)
    entry = session.run(machine, load_of(record=[QUEUE]), tmp_path, tmp_path / "out")
    assert (entry["status"], entry["exit_status"]) == ("tracer-failed", 0)
    assert [error["kind"] for error in entry["errors"]] == [kind]
    record = tmp_path / "out" / "record.jsonl"
    assert record.exists() is (kind == "lost-events")


def test_missing_events_are_found_before_anything_runs(
    machine: session.Machine, tmp_path: Path
) -> None:
    (tmp_path / "a.bt").write_text("tracepoint:sched:nope { @ = count(); }")
    ran = tmp_path / "ran"
    for keys in (
        {"bpftrace": [{"name": "a", "script": "a.bt"}]},
        {"record": ["sched:nope"]},
    ):
        load = load_of(argv=["touch", str(ran)], **keys)
        entry = session.run(machine, load, tmp_path, tmp_path / "out")
        assert entry["status"] == "tracer-failed"
        assert entry["error"]["kind"] == "missing-event"
        assert entry["error"]["event"] == "sched:nope"
    assert not ran.exists()


def test_a_format_that_cannot_be_read_is_not_recordable(
    machine: session.Machine, tmp_path: Path
) -> None:
    path = machine.tracefs.root / "events" / QUEUE.replace(":", "/") / "format"
    path.write_text(path.read_text().replace("offset:", "at:"))
    load = load_of(argv=["true"], record=[QUEUE])
    entry = session.run(machine, load, tmp_path, tmp_path / "out")
    assert entry["status"] == "tracer-failed"
    assert entry["error"]["kind"] == "not-recordable"
    assert f"recorder: {QUEUE}: " in entry["error"]["message"]


def test_a_program_that_does_not_exist(
    machine: session.Machine, tmp_path: Path
) -> None:
    entry = session.run(machine, load_of(argv=["/no"]), tmp_path, tmp_path / "out")
    assert entry["status"] == "failed-to-start"
    assert entry["error"]["kind"] == "failed-to-start"


def test_a_deadline(machine: session.Machine, tmp_path: Path) -> None:
    load = load_of(argv=["sleep", "999"], deadline_s=0.2)
    entry = session.run(machine, load, tmp_path, tmp_path / "out")
    assert (entry["status"], entry["exit_status"]) == ("timeout", None)
    (error,) = entry["errors"]
    assert (error["kind"], error["fault"]) == ("deadline", "apparatus")
    assert "not done after 0.2 s: " in error["message"] and "sleep" in error["message"]
    assert "the host does not tell" in error["message"]


def test_a_step_that_the_host_did_not_do_is_reported_by_the_agent(
    machine: session.Machine, tmp_path: Path
) -> None:
    """The program fails because of it; else that would look like the kernel's fault."""
    program = (sys.executable, "-m", "kstall_guest.monitor", "hit")
    entry = session.run(machine, load_of(argv=[*program]), tmp_path, tmp_path / "out")
    assert (entry["status"], entry["exit_status"]) == ("tracer-failed", 1)
    (error,) = entry["errors"]
    assert (error["kind"], error["fault"]) == ("step-failed", "apparatus")
    assert "declares steps" in error["message"]


def test_trouble_does_not_hide_other_trouble(
    machine: session.Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Results from before the last reader failed are still reported."""
    (tmp_path / "a.bt").write_text(
        'emit {"type": "lost_events", "data": {"events": 4}}'
    )

    def full(*_: object) -> int:
        raise OSError(errno.EIO, "broken", "/run/x")

    monkeypatch.setattr(session, "_room", full)
    load = load_of(bpftrace=[{"name": "a", "script": "a.bt"}])
    entry = session.run(machine, load, tmp_path, tmp_path / "out")
    kinds = [error["kind"] for error in entry["errors"]]
    assert kinds == ["lost-events", "error"]


#: A fault of the apparatus gives no verdict; a wrong entry here excuses a broken patch,
#: or blames a good one.
FAULTS = {
    "error": "apparatus",
    "bad-job": "apparatus",
    "wrong-kernel": "apparatus",
    "no-module": "series",
    "missing-event": "series",
    "not-recordable": "series",
    "tracefs": "apparatus",
    "event-refused": "series",
    "tracer-failed": "apparatus",
    "script-refused": "series",
    "decoder-crashed": "series",
    "lost-events": "apparatus",
    "skipped-events": "apparatus",
    "helper-error": "series",
    "helper-busy": "apparatus",
    "failed-to-start": "series",
    "shortage": "apparatus",
    "deadline": "apparatus",
    "step-failed": "apparatus",
    "not-in-time": "apparatus",
    "stress-failed": "apparatus",
    "stress-refused": "series",
    "unkillable": "apparatus",
}


def test_whose_fault_each_kind_of_error_is() -> None:
    assert {kind: error.fault for kind, error in errors.kinds().items()} == FAULTS
    for kind, fault in FAULTS.items():
        # The format before errors had a fault, and the present format.
        assert errors.fault_of({"kind": kind}) == fault
        assert errors.fault_of({"kind": "x", "fault": fault}) == fault
    assert errors.fault_of({"kind": "of tomorrow"}) == "apparatus"
    assert errors.GuestError("x").as_json() == {
        "kind": "error",
        "fault": "apparatus",
        "message": "x",
    }


@pytest.mark.parametrize(
    ("said", "fault"),
    [
        ("could not insert 'nap': Cannot allocate memory", "apparatus"),
        ("could not insert 'nap': Input/output error", "apparatus"),
        (
            "could not insert 'nap': Cannot allocate memory\nno more",
            "apparatus",
        ),
        ("exit status -9", "apparatus"),
        ("exit status 1", "series"),
        ("could not insert 'nap': Invalid argument", "series"),
        (
            "could not insert 'nap': Unknown symbol in module, or "
            "unknown parameter (see dmesg)",
            "series",
        ),
        ("modprobe: FATAL: Module nap not found in directory /lib/modules", "series"),
    ],
)
def test_whose_fault_a_module_is_that_is_not_loaded(said: str, fault: str) -> None:
    error = errors.NoModule(f"modprobe nap: {said}").as_json()
    assert (error["kind"], error["fault"]) == ("no-module", fault)
    assert errors.fault_of(error) == fault


@pytest.mark.parametrize(
    ("number", "kind"), [(errno.EINVAL, "event-refused"), (errno.ENOMEM, "tracefs")]
)
def test_an_event_that_cannot_be_switched_on(
    machine: session.Machine, monkeypatch: pytest.MonkeyPatch, number: int, kind: str
) -> None:

    def refuse(path: Path, *_: Any, **__: Any) -> int:
        if path.name == "enable":
            raise OSError(number, "refused")
        return 0

    monkeypatch.setattr(Path, "write_text", refuse)
    with (
        pytest.raises(errors.TracefsError) as caught,
        machine.tracefs.instance("i", [QUEUE], 8),
    ):
        pass
    assert caught.value.kind == kind


@pytest.mark.parametrize(
    ("number", "kind"), [(errno.ENOEXEC, "failed-to-start"), (errno.EAGAIN, "shortage")]
)
def test_why_a_program_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, kind: str
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(number, "no")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    with pytest.raises(CannotStart) as caught:
        workload.run("w", ["true"], deadline_s=1, results=tmp_path)
    assert caught.value.kind == kind


def test_formats_are_saved_or_reported(
    machine: session.Machine, tmp_path: Path
) -> None:
    wanted = [QUEUE, "sched:nope"]
    statuses = session.save_formats(machine.tracefs, wanted, tmp_path)
    assert statuses == {QUEUE: "saved", "sched:nope": "missing"}
    saved = tmp_path / "formats" / "workqueue" / "workqueue_queue_work"
    assert saved.read_text().startswith("name: workqueue_queue_work\n")


def test_the_report_is_whole_after_every_step(tmp_path: Path) -> None:
    parsed = job.parse(spec() | {"results": str(tmp_path)})
    report = Report(parsed)

    def written() -> dict[str, Any]:
        value: dict[str, Any] = json.loads((tmp_path / "agent.json").read_text())
        return value

    assert (written()["schema"], written()["status"]) == (1, "running")
    report.workload({"name": "w", "status": "running"})
    assert written()["workloads"] == [{"name": "w", "status": "running"}]
    report.workload({"name": "w", "status": "exited"})
    report.update(status="completed")
    assert written()["workloads"] == [{"name": "w", "status": "exited"}]
    assert not list(tmp_path.glob(".agent*"))


def test_the_guest_needs_the_minimal_python_only() -> None:
    # Common modules that Debian's python3-minimal lacks.
    absent = {"ctypes", "shutil", "shlex", "tarfile", "statistics", "uuid", "asyncio"}
    for path in Path(kstall_guest.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [node.module or ""]
            for name in names:
                root = name.split(".")[0]
                assert root in sys.stdlib_module_names, f"{path}: {name}"
                assert root not in absent, f"{path}: {name}"
