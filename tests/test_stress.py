# SPDX-License-Identifier: GPL-2.0-or-later
"""The stress phases of a debug guest, on a made-up machine."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from kstall_guest import errors, session, stress
from kstall_guest import job as jobs
from kstall_guest.errors import BadJob, StressFailed
from kstall_guest.tracefs import Tracefs

HERE = Path(__file__).parent
SWITCH = "sched:sched_switch"
QUEUE = "workqueue:workqueue_queue_work"
DEBUGFS = {
    "kmemleak": "",
    "dma-api/all_errors": "0\n",
    "dma-api/error_count": "3\n",
    "dma-api/disabled": "N\n",
    "debug_objects/stats": "max_chain     : 4\nwarnings      : 2\n",
    "kcsan": "enabled: 1\nused_watchpoints: 1\nsetup_watchpoints: 77\n",
}
MODPROBE = """\
#!/bin/sh
# modprobe -d DIR [-r] MODULE, of modules that are files
shift 2
if [ "$1" = -r ]; then
	[ "$2" != stuck ] || { echo "Module stuck is in use."; exit 1; }
	rm "$0.loaded/$2"
else
	touch "$0.loaded/$1"
fi
"""


def spec(results: Path, **changed: Any) -> dict[str, Any]:
    return {
        "schema": 1,
        "series": "s",
        "build_id": "ab" * 20,
        "results": str(results),
        "scripts": "/s",
        "modules": "/m",
        "formats": [],
        "workloads": [
            {"name": "w", "argv": ["true"], "modules": ["one", "two"]},
            {"name": "long", "argv": ["true"]},
            {"name": "v", "argv": ["true"]},
        ],
        "stress": {
            "program": str(HERE / "fake_toggle.py"),
            "events": [SWITCH, QUEUE, "not:here"],
            "bare": ["sched:sched_hook"],
            "reload": ["two", "one"],
            "toggles": 200,
            "cycles": 3,
            "reloads": 2,
        }
        | changed,
    }


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> stress.System:
    """A machine of files, with three processors and modules one and two loaded."""
    monkeypatch.setattr(stress, "_LEAK_AGE_S", 0.0)
    monkeypatch.setattr(stress, "_BPFTRACE_ON_S", 0.01)
    monkeypatch.setattr(stress, "_UNLOAD_S", 0.1)
    monkeypatch.setattr(stress, "_UNLOAD_TRIES", 2)
    for event in (SWITCH, QUEUE):
        name = event.replace(":", "/")
        target = tmp_path / "tracing/events" / name / "format"
        target.parent.mkdir(parents=True)
        target.write_text((HERE / "data/formats" / name).read_text())
    for number in (1, 2):
        (tmp_path / f"cpu/cpu{number}").mkdir(parents=True)
        (tmp_path / f"cpu/cpu{number}/online").write_text("1")
    modprobe = tmp_path / "modprobe"
    modprobe.write_text(MODPROBE)
    modprobe.chmod(0o755)
    loaded = tmp_path / "modprobe.loaded"
    loaded.mkdir()
    for name in ("one", "two", "stuck"):
        (loaded / name).touch()
    debugfs = tmp_path / "debug"
    for name, text in DEBUGFS.items():
        (debugfs / name).parent.mkdir(parents=True, exist_ok=True)
        (debugfs / name).write_text(text)
    owned = f"ffff0000 T __traceiter_{QUEUE.partition(':')[2]}\t[two]\n"
    (tmp_path / "kallsyms").write_text("ffff0000 T __traceiter_sched_switch\n" + owned)
    (tmp_path / "lockdep").write_text(" debug_locks:                             1\n")
    return stress.System(
        Tracefs(tmp_path / "tracing"),
        cpus=tmp_path / "cpu",
        loaded=loaded,
        debugfs=debugfs,
        kallsyms=tmp_path / "kallsyms",
        lockdep=tmp_path / "lockdep",
        modprobe=(str(modprobe),),
        bpftrace=(sys.executable, str(HERE / "fake_bpftrace.py")),
        scratch=tmp_path / "scratch",
    )


def run(
    system: stress.System, results: Path, **changed: Any
) -> tuple[dict[str, Any], list[str]]:
    """The facts at the end, and what was run under which names, in order."""
    job = jobs.parse(spec(results, **changed))
    assert job.stress is not None
    reports: list[dict[str, Any]] = []
    ran: list[str] = []

    def execute(load: jobs.Workload, name: str) -> float:
        ran.append(f"{load.name} as {name}")
        return 99.0 if load.name == "long" else 1.0

    stress.run(job, job.stress, system, execute, reports.append)
    return reports[-1], list(dict.fromkeys(ran))


def test_all_of_it(system: stress.System, tmp_path: Path) -> None:
    facts, ran = run(system, tmp_path / "r")
    assert ran[:5] == [
        "w as w",
        "long as long",
        "v as v",
        "w as cpus",
        "v as cpus",
    ]
    # The other phases need no modules.
    assert [line for line in ran if line.endswith(" as modules")] == ["w as modules"]
    assert list(facts["seconds"]) == [
        "workloads",
        "cpus",
        "modules",
        "more",
        "end",
        "leaks",
    ]
    assert set(facts["readers"]) == {"ftrace", "perf", "bpf", "raw"}
    assert sum(reader[SWITCH]["toggles"] for reader in facts["readers"].values()) >= 200
    assert "not:here" not in facts["readers"]["ftrace"]
    assert facts["bpftrace"]["rounds"] >= 1 and facts["bpftrace"]["errors"] == []
    assert facts["cpus"].pop("runs") >= 1
    assert facts["cpus"] == {"cycles": {"1": 3, "2": 3}, "errors": []}
    assert facts["modules"] == {
        "unloads": {"two": 2, "one": 2},
        "owners": {QUEUE: "two"},
        "runs": 2,
        "errors": [],
    }
    assert facts["leaks"] is True and facts["lockdep"] is True
    assert (system.debugfs / "kmemleak").read_text() == "scan"
    assert (system.debugfs / "dma-api/all_errors").read_text() == "1"
    assert facts["counters"] == {
        "dma-errors": 3,
        "dma-disabled": 0,
        "object-warnings": 2,
        "kcsan-enabled": 1,
        "kcsan-watchpoints": 77,
    }
    assert (tmp_path / "r/kmemleak.txt").exists()
    assert {module.name for module in system.loaded.iterdir()} == {
        "one",
        "two",
        "stuck",
    }


def test_what_is_switched_and_how_it_is_filtered(
    system: stress.System, tmp_path: Path
) -> None:
    run(system, tmp_path / "r")
    event, queue, raw = (tmp_path / "r/stress/list").read_text().splitlines()
    assert event == (
        'event sched sched_switch prev_comm ~ "*" && prev_pid != 123456789 && '
        "prev_prio != 123456789 && prev_state != 123456789 && "
        'next_comm ~ "*" && next_pid != 123456789 && next_prio != 123456789'
    )
    assert queue.startswith("event workqueue workqueue_queue_work ")
    assert raw == "raw sched_hook_tp"
    script = (system.scratch / "visit.bt").read_text()
    assert f"tracepoint:{SWITCH}\n{{" in script
    assert "rawtracepoint:sched_hook_tp\n{" in script


def test_a_module_that_stays_is_reported(system: stress.System, tmp_path: Path) -> None:
    facts, _ = run(system, tmp_path / "r", reload=["stuck", "one"])
    assert facts["modules"]["unloads"] == {"one": 2}
    error = facts["modules"]["errors"][0]
    assert error["message"] == "modprobe -r stuck: Module stuck is in use."
    assert errors.fault_of(error) == "series"


def test_time_alone_does_not_say_that_a_module_stays(
    system: stress.System, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Who holds it lets go at the third try, when the time is long over.
    monkeypatch.setattr(stress, "_UNLOAD_S", 0.0)
    monkeypatch.setattr(stress, "_UNLOAD_TRIES", 3)
    (system.loaded.parent / "modprobe").write_text(
        MODPROBE.replace(
            '[ "$2" != stuck ]',
            'echo try >>"$0.tries"; [ $(($(wc -l <"$0.tries") % 3)) = 0 ]',
        )
    )
    facts, _ = run(system, tmp_path / "r", reload=["one"])
    assert facts["modules"]["unloads"] == {"one": 2}
    assert facts["modules"]["errors"] == []


def test_a_module_that_stays_is_waited_for_once(
    system: stress.System, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stress, "_UNLOAD_TRIES", 10**6)
    monkeypatch.setattr(stress, "_UNLOAD_AT_MOST_S", 0.5)
    modprobe = system.loaded.parent / "modprobe"
    modprobe.write_text(
        MODPROBE.replace('echo "Module', 'echo try >>"$0.tries"; echo "Module')
    )
    facts, _ = run(system, tmp_path / "r", reload=["stuck"], reloads=3)
    assert [error["message"] for error in facts["modules"]["errors"]] == [
        "modprobe -r stuck: Module stuck is in use."
    ] * 3
    tries = (modprobe.parent / "modprobe.tries").read_text().count("try")
    # One in each of the two later rounds, and those of the first.
    assert 3 <= tries <= 2 + 4


def test_a_processor_that_stays_is_reported(
    system: stress.System, tmp_path: Path
) -> None:
    switch = system.cpus / "cpu2/online"
    switch.unlink()
    switch.mkdir()
    facts, _ = run(system, tmp_path / "r")
    assert facts["cpus"]["cycles"] == {"1": 3}
    error = facts["cpus"]["errors"][0]
    assert error["message"].endswith("cpu2/online: Is a directory")
    assert errors.fault_of(error) == "series"


def test_a_kernel_that_does_not_look_is_reported(
    system: stress.System, tmp_path: Path
) -> None:
    (system.debugfs / "kmemleak").unlink()
    (system.debugfs / "kmemleak").mkdir()
    system.lockdep.unlink()
    facts, _ = run(system, tmp_path / "r")
    assert facts["leaks"] is False and facts["lockdep"] is None
    assert not (tmp_path / "r/kmemleak.txt").exists()


def test_lockdep_that_gave_up_is_reported(
    system: stress.System, tmp_path: Path
) -> None:
    system.lockdep.write_text(" debug_locks:                             0\n")
    facts, _ = run(system, tmp_path / "r")
    assert facts["lockdep"] is False


@pytest.mark.parametrize(
    ("program", "fault"),
    [
        ("raise SystemExit(3)", "apparatus"),
        ("raise SystemExit('ERROR: Invalid argument')", "series"),
    ],
)
def test_bpftrace_that_fails_is_reported(
    system: stress.System, tmp_path: Path, program: str, fault: str
) -> None:
    failing = stress.System(
        **{**vars(system), "bpftrace": (sys.executable, "-c", program)}
    )
    facts, _ = run(failing, tmp_path / "r")
    assert facts["bpftrace"]["rounds"] == 0
    error = facts["bpftrace"]["errors"][0]
    assert "before it was attached" in error["message"]
    assert errors.fault_of(error) == fault


def test_too_few_toggles_are_waited_for_and_then_reported(
    system: stress.System, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stress, "_MORE_S", 0.2)
    facts, ran = run(system, tmp_path / "r", toggles=10**9, reload=[])
    assert "w as more" in ran and "w as modules" not in ran
    assert 0 < facts["readers"]["perf"][QUEUE]["toggles"] < 10**9


@pytest.mark.parametrize(
    ("program", "complaint"),
    [("/nowhere/toggle", "No such file"), ("/bin/false", "ended")],
)
def test_nothing_that_switches_is_an_error(
    system: stress.System, tmp_path: Path, program: str, complaint: str
) -> None:
    with pytest.raises(StressFailed, match=complaint):
        run(system, tmp_path / "r", program=program)


def test_its_last_words_are_reported(system: stress.System, tmp_path: Path) -> None:
    source = system.tracefs.root / "events/sched/sched_switch/format"
    target = system.tracefs.root / "events/sched/die/format"
    target.parent.mkdir()
    target.write_text(source.read_text().replace("sched_switch", "die"))
    with pytest.raises(StressFailed, match="ended: no such thing"):
        run(system, tmp_path / "r", events=["sched:die"])


def test_what_bpftrace_counted(tmp_path: Path) -> None:
    output = tmp_path / "out.json"
    output.write_text(
        '{"type": "attached_probes", "data": {"probes": 2}}\n'
        '{"type": "map", "data": {"@": {"tracepoint:a:b": 3, '
        '"rawtracepoint:c_tp": 4}}}\n'
        '{"type": "map", "data": {"@last": {"tracepoint:a:b": "\\n  f+1\\n"}}}\n'
    )
    assert stress._counted(output) == {"a:b": 3, "c_tp": 4}
    output.write_text("")
    assert stress._counted(output) == {}


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"toggles": 0}, "job.stress.toggles: expected a positive number"),
        ({"events": ["x"]}, r"job.stress.events\[0\]: expected system:event"),
        ({"more": 1}, "job.stress: unknown keys: more"),
    ],
)
def test_a_bad_job_is_refused_by_place(
    tmp_path: Path, change: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(BadJob, match=complaint):
        jobs.parse(spec(tmp_path, **change))


def test_options_are_for_the_program_that_switches(
    system: stress.System, tmp_path: Path
) -> None:
    run(system, tmp_path / "r")
    status = tmp_path / "r/stress/status.json"
    assert json.loads(status.read_text())["options"] == []
    run(system, tmp_path / "again", options=["triggers"])
    status = tmp_path / "again/stress/status.json"
    assert json.loads(status.read_text())["options"] == ["triggers"]


def test_each_reader_has_to_have_its_share(tmp_path: Path) -> None:
    status = tmp_path / "status.json"
    readers = {
        "ftrace": {QUEUE: {"toggles": 90, "absent": 0}},
        "perf": {QUEUE: {"toggles": 10, "absent": 0}},
        "raw": {
            SWITCH: {"toggles": 95, "absent": 0},
            QUEUE: {"toggles": 0, "absent": 1},
        },
    }
    toggler = stress.Toggler(None, status, tmp_path / "stderr")  # type: ignore[arg-type]
    assert toggler.least() == 0
    status.write_text(json.dumps({"readers": readers}))
    assert toggler.least() == 10 * stress.ONE_IN
    readers["perf"][QUEUE]["toggles"] = 40
    status.write_text(json.dumps({"readers": readers}))
    assert toggler.least() == 95


def test_a_visit_has_files_of_its_own(tmp_path: Path) -> None:
    tracefs = Tracefs(tmp_path)
    machine = session.Machine(tracefs, bpftrace_version="0")
    # A workload's scratch directory is deleted with the workload.
    assert stress.System(tracefs).scratch != machine.scratch


def test_the_module_that_has_the_event_goes_with_another(
    system: stress.System, tmp_path: Path
) -> None:
    # `modprobe -r one` also unloads module two, which nothing else needs.
    (system.loaded.parent / "modprobe").write_text(
        MODPROBE.replace('rm "$0.loaded/$2"', 'rm -f "$0.loaded/one" "$0.loaded/two"')
    )
    facts, _ = run(system, tmp_path / "r", reload=["one"])
    assert facts["modules"]["unloads"] == {"one": 2, "two": 2}


def test_a_workload_that_cannot_be_run_while_processors_go(
    system: stress.System, tmp_path: Path
) -> None:
    job = jobs.parse(spec(tmp_path / "r"))
    assert job.stress is not None
    reports: list[dict[str, Any]] = []

    def execute(load: jobs.Workload, name: str) -> float:
        if name == "cpus":
            raise KeyError("seconds")
        return 1.0

    stress.run(job, job.stress, system, execute, reports.append)
    assert reports[-1]["cpus"]["runs"] == 0
    (error,) = reports[-1]["cpus"]["errors"]
    assert error["message"] == "the workload: KeyError('seconds')"
    assert errors.fault_of(error) == "apparatus"
