# SPDX-License-Identifier: GPL-2.0-or-later
"""kstall as a whole on a real kernel: the good series, and mutants of it.

The kernels are built in the user's own cache, so only the first run is a long one.
Each mutant replaces lines of a copy of the series, one for one, and has to be caught
by the check that is there for it.
"""

from __future__ import annotations

import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from kstall.evidence import mutate
from kstall.evidence.operators import RECORDS
from kstall.series import Project
from live import Outcome, edit, kstall, validate
from processes import descendants

pytestmark = pytest.mark.live

SERIES = "drm-sched"
WAIT = "0002-drm-sched-Trace-how-long-a-job-waited-and-for-what.patch"
EVENT = "drm_sched_job_wait"


def test_the_series_is_proven(proven: Outcome) -> None:
    assert proven.exit_code == 0, proven.output
    assert proven.report.status == "proven"
    (series,) = proven.report.series
    # Two reasons only: another level tries it, or the smallest kernel has no scheduler.
    untold = [
        (check.name, check.status, check.detail)
        for check in series.checks
        if check.status != "pass"
        and not (check.status == "skip" and check.detail.endswith("at LEVEL=deep"))
        and (check.name, check.status) != ("compiles_tiny", "skip")
    ]
    assert untold == []
    spec = Project(_root()).load([SERIES])[0].spec
    declared = {check.name for check in spec.check}
    assert declared < {check.name for check in series.checks}
    # Each event was falsified, in its values and its records, and it was noticed.
    assert proven.stage("mutate").status == "pass"
    (falsifiable,) = (check for check in series.checks if check.name == mutate.NAME)
    assert falsifiable.status == "pass"
    assert series.mutation is not None and series.mutation.count("escaped") == 0
    noticed = {
        (mutant.event, mutant.field)
        for mutant in series.mutation.mutants
        if mutant.outcome == "caught" and mutant.check in series.mutation.witnesses
    }
    for point in spec.tracepoint:
        assert {(point.event, field) for field in (*point.fields, RECORDS)} <= noticed
    assert proven.report.environment.accelerator in ("kvm", "tcg")
    assert (proven.dir / "junit.xml").exists()
    assert (proven.dir / SERIES / "results/console.txt").stat().st_size > 0


def test_nothing_is_done_twice(
    proven: Outcome, project_root: Path, tmp_path: Path
) -> None:
    again = validate(project_root, tmp_path, SERIES)
    assert again.exit_code == 0, again.output
    for name in ("root", "config", "build", "guest", "mutate"):
        assert again.stage(name).reused, name
    assert not [
        c
        for s in again.report.series[0].stages
        for c in s.commands
        if c.argv[0] in ("make", "vng")
    ]


def _root() -> Path:
    return Path(__file__).resolve().parents[1]


def _patch(project: Project, old: str, new: str) -> None:
    edit(project.patches / SERIES / WAIT, old, new)


def _program(project: Project, text: str) -> None:
    path = project.scripts / "workloads" / SERIES / "kunit-suite"
    path.write_text(text)
    path.chmod(0o755)


@pytest.mark.deep
def test_a_patch_that_does_not_apply(project_copy: Project, tmp_path: Path) -> None:
    _patch(project_copy, "\n \ts_fence = sched_job->s_fence;\n", "\n \tother();\n")
    outcome = validate(project_copy.root, tmp_path / "out", SERIES)
    assert outcome.exit_code == 3
    error = outcome.stage("apply").error or ""
    place = f"{WAIT}, drivers/gpu/drm/scheduler/sched_main.c:1041: hunk"
    assert error.startswith(place), error


@pytest.mark.deep
def test_a_symbol_that_does_not_stick(project_copy: Project, tmp_path: Path) -> None:
    with (project_copy.kconfigs / "drm-sched.config").open("a") as fragment:
        fragment.write("# CONFIG_SND is not set\nCONFIG_SND_HDA_INTEL=m\n")
    outcome = validate(project_copy.root, tmp_path / "out", SERIES)
    # The base cannot have it either, so that it is no fault of the patches.
    assert outcome.exit_code == 2
    # The base, which comes first, is asked for the same symbols.
    error = outcome.stage("base").error or ""
    assert "CONFIG_SND_HDA_INTEL=m did not stick" in error
    assert "unmet dependency SND [=n]" in error


@pytest.mark.deep
def test_a_build_error(project_copy: Project, tmp_path: Path) -> None:
    _patch(project_copy, "ready = job->submit_ts, ts;\n", "ready = job->no_such, ts;\n")
    outcome = validate(project_copy.root, tmp_path / "out", SERIES)
    assert outcome.exit_code == 1
    error = outcome.stage("build").error or ""
    assert re.search(r"sched_main\.c:\d+:\d+: error: .*no_such", error), error


@pytest.mark.deep
def test_a_warning_fails_the_second_time_as_well(
    project_copy: Project, tmp_path: Path
) -> None:
    _patch(
        project_copy,
        "+\tu32 deps = 0, order_deps = 0, lazy_deps = 0;\n",
        "+\tu32 deps = 0, order_deps = 0, lazy_deps = 0, idle;\n",
    )
    for number in range(2):
        outcome = validate(project_copy.root, tmp_path / str(number), SERIES)
        assert outcome.exit_code == 1
        assert "unused variable" in (outcome.stage("build").error or "")


@pytest.mark.fault("guest panics", "a real kernel in a run")
@pytest.mark.deep
def test_a_guest_that_panics(project_copy: Project, tmp_path: Path) -> None:
    _program(project_copy, "#!/bin/sh\necho c >/proc/sysrq-trigger\n")
    outcome = validate(project_copy.root, tmp_path / "out", SERIES)
    assert outcome.exit_code == 1
    error = outcome.stage("guest").error or ""
    assert "the guest panicked in workload" in error
    assert "sysrq triggered crash" in error
    assert "console.log" in error


@pytest.mark.fault("guest hangs", "a real kernel in a run")
@pytest.mark.deep
def test_a_guest_that_hangs(project_copy: Project, tmp_path: Path) -> None:
    path = project_copy.patches / SERIES / "series.toml"
    text = re.sub(r"(?m)^deadline-s = .*$", "deadline-s = 1", path.read_text())
    text = re.sub(r"(?ms)^record = \[.*?\]$", "record = []", text)
    # Only the scripts of the workloads: a table's own `scripts` key.
    text = re.sub(r"(?ms)^scripts = \[.*?\]$", "scripts = []", text)
    path.write_text(text)
    # The agent is stopped, so nothing in the guest keeps the workload's deadline.
    _program(project_copy, "#!/bin/sh\nkill -STOP $PPID\nsleep 3600\n")
    outcome = validate(project_copy.root, tmp_path / "out", SERIES)
    # Its kernel is silent, and the deadline is the harness's: it is tried once more.
    assert outcome.exit_code == 2
    error = outcome.stage("guest").error or ""
    assert error.count("the guest did not end in workload") == 2
    assert "in the first try: " in error
    console = (outcome.dir / SERIES / "console.log").read_text(errors="replace")
    assert "Show Blocked State" in console or "Show State" in console
    assert not _qemus(outcome.dir)


@pytest.mark.deep
def test_an_event_that_never_fires(project_copy: Project, tmp_path: Path) -> None:
    _patch(
        project_copy,
        f"+\tif (trace_{EVENT}_enabled())\n",
        f"+\tif (0 && trace_{EVENT}_enabled())\n",
    )
    outcome = validate(project_copy.root, tmp_path / "out", SERIES)
    assert outcome.exit_code == 1
    assert f"{EVENT}: 0 events, expected >= 1" in outcome.failed()["events_fire"]
    assert "one_wait_for_each_run" in outcome.failed()


@pytest.mark.deep
def test_an_event_that_carries_a_wrong_value(
    project_copy: Project, tmp_path: Path
) -> None:
    _patch(
        project_copy,
        f"+\ttrace_call__{EVENT}(job, ktime_sub(now, job->submit_ts),\n",
        f"+\ttrace_call__{EVENT}(job, ktime_sub(now, job->submit_ts) >> 10,\n",
    )
    outcome = validate(project_copy.root, tmp_path / "out", SERIES)
    assert outcome.exit_code == 1
    assert "wait_ns" in outcome.failed()["second_job_waits_for_credits"]
    assert "times_agree_with_older_events" in outcome.failed()


@pytest.mark.deep
def test_a_record_with_a_hole(project_copy: Project, tmp_path: Path) -> None:
    def fields(*names: str) -> str:
        wide = {"deps": 32, "order_deps": 32, "lazy_deps": 32, "credits": 32}
        return "".join(
            f"+\t\t    __field(u{wide.get(name, 64)}, {name})\n" for name in names
        )

    _patch(
        project_copy,
        fields("dep_ns", "ctx", "seqno", "deps"),
        fields("deps", "dep_ns", "ctx", "seqno"),
    )
    outcome = validate(project_copy.root, tmp_path / "out", SERIES)
    assert outcome.exit_code == 1
    assert "4 bytes before dep_ns" in outcome.failed()["record_layout"]


@pytest.mark.deep
def test_a_print_fmt_that_only_the_kernel_can_evaluate(
    project_copy: Project, tmp_path: Path
) -> None:
    _patch(
        project_copy,
        "+\t\t  __get_str(name), __entry->wait_ns, __entry->dep_ns,\n",
        "+\t\t  __get_str(name), __entry->wait_ns, ktime_to_ns(__entry->dep_ns),\n",
    )
    outcome = validate(project_copy.root, tmp_path / "out", SERIES)
    assert outcome.exit_code == 1
    for reader in ("decoded_by_perf", "decoded_by_trace_cmd"):
        assert "[FAILED TO PARSE]" in outcome.failed()[reader]
    assert (
        "cannot be evaluated: ktime_to_ns(REC->dep_ns)"
        in outcome.failed()["text_is_the_record"]
    )


@pytest.mark.deep
def test_a_kernel_that_warns(project_copy: Project, tmp_path: Path) -> None:
    comment = (
        "+\t\t/* A fence can be signalled with a timestamp of the driver's choice. */"
    )
    _patch(project_copy, comment, "+\t\tWARN_ON_ONCE(deps < 1000);")
    outcome = validate(project_copy.root, tmp_path / "out", SERIES)
    assert outcome.exit_code == 1
    error = outcome.stage("guest").error or ""
    assert "the kernel complained" in error
    assert "drm_sched_job_trace_wait" in error


def _qemus(directory: Path) -> list[int]:
    """Processes that name ``directory``, directly or through a link of theirs."""
    pids = []
    for number in descendants():
        entry = Path(f"/proc/{number}")
        try:
            words = (entry / "cmdline").read_bytes()
            links = [str(fd.readlink()) for fd in (entry / "fd").iterdir()]
        except OSError:
            continue
        held = any(link.startswith(str(directory)) for link in links)
        if held or str(directory).encode() in words:
            pids.append(number)
    return pids


@pytest.mark.fault("killed", "a real build and a real guest")
@pytest.mark.deep
@pytest.mark.parametrize(
    ("stage", "how"),
    [
        ("build", signal.SIGKILL),
        ("guest", signal.SIGKILL),
        ("guest", signal.SIGINT),
    ],
)
def test_a_run_that_is_ended_leaves_nothing_and_goes_on(
    project_copy: Project, tmp_path: Path, stage: str, how: signal.Signals
) -> None:
    # A comment of its own, so that there is something to build and to run.
    comment = (
        "+\t/* A fence can be signalled with a timestamp of the driver's choice. */"
    )
    _patch(project_copy, comment, f"+\t/* {stage} {how.name} {time.time_ns()} */")
    out = tmp_path / "out"
    child = subprocess.Popen(
        [*kstall(project_copy.root), "validate", "--out", str(out), SERIES],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    log = out / "latest" / SERIES / ("build.log" if stage == "build" else "console.log")
    limit = time.monotonic() + 900
    while not (log.exists() and log.stat().st_size > 200):
        assert child.poll() is None, child.communicate()[0]
        assert time.monotonic() < limit
        time.sleep(0.05)
    directory = (out / "latest").resolve()
    child.send_signal(how)
    child.communicate(timeout=60)
    time.sleep(1)
    assert _qemus(directory) == []
    after = validate(project_copy.root, out, SERIES)
    assert after.exit_code == 0, after.output
