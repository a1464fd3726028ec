# SPDX-License-Identifier: GPL-2.0-or-later
"""``kstall check-thread`` as a whole: threads that came by mail, built and booted."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

import live
import postbox
from kstall.base import cache
from kstall.mail import export
from kstall.series import Project
from kstall.tree import source
from kstall.verdict import Check
from live import Outcome

pytestmark = [pytest.mark.live, pytest.mark.deep]

SERIES = "drm-sched"
STRANGE = Path(__file__).parent / "data/thread/pipe-resize.mbox"
RESIZE = """\
#!/usr/bin/python3
import fcntl
import os
fcntl.fcntl(os.pipe()[1], fcntl.F_SETPIPE_SZ, 1 << 17)
"""


@pytest.fixture(scope="module")
def received(project_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A thread as it comes out of a mail server: proven, exported, signed and sent."""
    place = tmp_path_factory.mktemp("received")
    home, out = place / "home", place / "out"
    proven = live.validate(project_root, out, SERIES)
    assert proven.exit_code == 0, proven.output
    # Before the home is another one.
    kept = cache.default_dir()
    with pytest.MonkeyPatch.context() as patch:
        for key, value in postbox.environment(home).items():
            patch.setenv(key, value)
        base = source.obtain(None, kept, lambda _: None)
        request = export.Export(Project(project_root), None, kept, out)
        done = postbox.sign_off(request, SERIES, base)
        assert done.unfounded == ()
        with postbox.server() as (box, port):
            postbox.send(shlex.split(done.send), port, home)
    return box.mbox(place / "received.mbox")


def _check(project: Path, out: Path, thread: Path, *arguments: str) -> Outcome:
    return live.run(project, "check-thread", out, str(thread), *arguments)


def _status(outcome: Outcome, name: str) -> Check:
    (check,) = [
        check for check in outcome.report.series[0].checks if check.name == name
    ]
    return check


def test_a_series_of_ours_is_known_and_proven_by_its_own_checks(
    project_root: Path, tmp_path: Path, received: Path
) -> None:
    outcome = _check(project_root, tmp_path, received)
    assert outcome.exit_code == 0, outcome.output
    assert f"it is {SERIES}, and results in the same tree" in outcome.output
    assert "range-diff" not in outcome.output
    (entry,) = outcome.report.series
    assert entry.name == SERIES
    (ours,) = Project(project_root).load([SERIES])
    judged = {check.name for check in entry.checks}
    assert {check.name for check in ours.spec.check} < judged
    assert {"off_is_a_nop", "events_fire", "checkpatch_strict"} < judged
    assert outcome.report.status == "proven"
    # The mails are what was judged: they are signed, and ours are not.
    texts = [
        path.read_text() for path in outcome.dir.parent.glob("threads/*/patches/*")
    ]
    assert all(f"Signed-off-by: {postbox.NAME}" in text for text in texts)
    digests = {cache.file_digest(path) for path in _arrived(outcome).glob("*.patch")}
    assert {patch.sha256 for patch in entry.patches} == digests


def _arrived(outcome: Outcome) -> Path:
    (place,) = outcome.dir.parent.glob(f"threads/*/project/patches/{SERIES}")
    return place


def test_one_line_that_was_changed_is_shown_and_is_what_is_judged(
    project_root: Path, tmp_path: Path, received: Path
) -> None:
    old = b"ktime_sub(now, job->submit_ts),"
    text = received.read_bytes()
    assert text.count(old) == 1
    changed = tmp_path / "changed.mbox"
    changed.write_bytes(text.replace(old, old[:-1] + b" >> 10,"))
    # It has a Makefile, which runs here: of ours it is known, of others to be read.
    words = ("--level=quick", "--trusted")
    outcome = _check(project_root, tmp_path / "out", changed, *words)
    assert f"it is {SERIES}, and results in a different tree" in outcome.output
    assert (
        "changed  drm/sched: Trace how long a job waited and for what" in outcome.output
    )
    assert "range-diff, ours against theirs:" in outcome.output
    call = r"\s+trace_call__\w+\(job, ktime_sub\(now, job->submit_ts\)"
    assert re.search(rf"-\+{call},", outcome.output)
    assert re.search(rf"\+\+{call} >> 10,", outcome.output)
    # What came is built and run (now, or when this was tested the last time), and says
    # too little.
    assert outcome.exit_code == 1, outcome.output
    assert outcome.stage("guest").status == "pass"
    failed = {x.name for x in outcome.report.series[0].checks if x.status == "fail"}
    assert "second_job_waits_for_credits" in failed, outcome.failed()


def test_a_series_that_nobody_here_has_seen(project_root: Path, tmp_path: Path) -> None:
    outcome = _check(project_root, tmp_path, STRANGE)
    assert outcome.exit_code == 0, outcome.output
    assert "it is no version of a series of this checkout" in outcome.output
    assert "pipe:pipe_resize (event), include/trace/events/pipe.h" in outcome.output
    assert "in pipe_resize_ring() of fs/pipe.c" in outcome.output
    (entry,) = outcome.report.series
    assert [event.name for event in entry.events] == ["pipe:pipe_resize"]
    listed = _status(outcome, "kernel_lists_them")
    assert listed.status == "pass"
    fields = "unsigned int from, unsigned int to, unsigned int used; holes: none"
    assert fields in listed.comparisons[0].detail
    fire = _status(outcome, "they_fire")
    assert fire.status == "skip"
    assert fire.detail == (
        "did not fire, and no workload was named to make them fire: pipe:pipe_resize"
    )
    assert entry.overhead is not None and entry.overhead.footprint is not None
    (site,) = entry.overhead.footprint.sites
    assert (site.event, site.function) == ("pipe_resize", "pipe_resize_ring")
    assert site.nop in (2, 5)
    assert _status(outcome, "off_is_a_nop").status == "pass"
    assert outcome.report.status == "proven"


def test_it_fires_if_somebody_says_how(project_root: Path, tmp_path: Path) -> None:
    program = tmp_path / "resize.py"
    program.write_text(RESIZE)
    outcome = _check(
        project_root, tmp_path / "out", STRANGE, "--workload", str(program)
    )
    assert outcome.exit_code == 0, outcome.output
    assert _status(outcome, "they_fire").status == "pass"
    trace = next(outcome.dir.glob("*/results/named/trace.txt")).read_text()
    assert "pipe_resize: from=16 to=32 used=0" in trace


def test_a_workload_that_does_not_make_it_fire_fails(
    project_root: Path, tmp_path: Path
) -> None:
    program = tmp_path / "idle.sh"
    program.write_text("#!/bin/sh\n")
    outcome = _check(
        project_root, tmp_path / "out", STRANGE, "--workload", str(program)
    )
    assert outcome.exit_code == 1, outcome.output
    assert outcome.failed() == {
        "they_fire": "pipe:pipe_resize: 0 events, expected >= 1 events"
    }
