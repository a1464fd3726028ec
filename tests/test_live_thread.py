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
    assert proven.exit_code == 0, proven.said
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


def _status(found: Outcome, name: str) -> Check:
    (check,) = [one for one in found.report.series[0].checks if one.name == name]
    return check


def test_a_series_of_ours_is_known_and_proven_by_its_own_checks(
    project_root: Path, tmp_path: Path, received: Path
) -> None:
    found = _check(project_root, tmp_path, received)
    assert found.exit_code == 0, found.said
    assert f"it is {SERIES}, and results in the same tree" in found.said
    assert "range-diff" not in found.said
    (entry,) = found.report.series
    assert entry.name == SERIES
    (ours,) = Project(project_root).load([SERIES])
    judged = {one.name for one in entry.checks}
    assert {one.name for one in ours.spec.check} < judged
    assert {"off_is_a_nop", "events_fire", "checkpatch_strict"} < judged
    assert found.report.status == "proven"
    # The mails are what was judged: they are signed, and ours are not.
    texts = [path.read_text() for path in found.dir.parent.glob("threads/*/patches/*")]
    assert all(f"Signed-off-by: {postbox.NAME}" in text for text in texts)
    digests = {cache.file_digest(path) for path in _arrived(found).glob("*.patch")}
    assert {one.sha256 for one in entry.patches} == digests


def _arrived(found: Outcome) -> Path:
    (place,) = found.dir.parent.glob(f"threads/*/project/patches/{SERIES}")
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
    found = _check(project_root, tmp_path / "out", changed, *words)
    assert f"it is {SERIES}, and results in a different tree" in found.said
    assert "changed  drm/sched: Trace how long a job waited and for what" in found.said
    assert "range-diff, ours against theirs:" in found.said
    call = r"\s+trace_call__\w+\(job, ktime_sub\(now, job->submit_ts\)"
    assert re.search(rf"-\+{call},", found.said)
    assert re.search(rf"\+\+{call} >> 10,", found.said)
    # What came is built and run (now, or when this was tested the last time), and says
    # too little.
    assert found.exit_code == 1, found.said
    assert found.stage("guest").status == "pass"
    failed = {x.name for x in found.report.series[0].checks if x.status == "fail"}
    assert "second_job_waits_for_credits" in failed, found.failed()


def test_a_series_that_nobody_here_has_seen(project_root: Path, tmp_path: Path) -> None:
    found = _check(project_root, tmp_path, STRANGE)
    assert found.exit_code == 0, found.said
    assert "it is no version of a series of this checkout" in found.said
    assert "pipe:pipe_resize (event), include/trace/events/pipe.h" in found.said
    assert "in pipe_resize_ring() of fs/pipe.c" in found.said
    (entry,) = found.report.series
    assert [one.name for one in entry.events] == ["pipe:pipe_resize"]
    listed = _status(found, "kernel_lists_them")
    assert listed.status == "pass"
    fields = "unsigned int from, unsigned int to, unsigned int used; holes: none"
    assert fields in listed.comparisons[0].detail
    fire = _status(found, "they_fire")
    assert fire.status == "skip"
    assert fire.detail == (
        "did not fire, and no workload was named to make them fire: pipe:pipe_resize"
    )
    assert entry.overhead is not None and entry.overhead.footprint is not None
    (site,) = entry.overhead.footprint.sites
    assert (site.event, site.function) == ("pipe_resize", "pipe_resize_ring")
    assert site.nop in (2, 5)
    assert _status(found, "off_is_a_nop").status == "pass"
    assert found.report.status == "proven"


def test_it_fires_if_somebody_says_how(project_root: Path, tmp_path: Path) -> None:
    program = tmp_path / "resize.py"
    program.write_text(RESIZE)
    found = _check(project_root, tmp_path / "out", STRANGE, "--workload", str(program))
    assert found.exit_code == 0, found.said
    assert _status(found, "they_fire").status == "pass"
    trace = next(found.dir.glob("*/results/named/trace.txt")).read_text()
    assert "pipe_resize: from=16 to=32 used=0" in trace


def test_a_workload_that_does_not_make_it_fire_fails(
    project_root: Path, tmp_path: Path
) -> None:
    program = tmp_path / "idle.sh"
    program.write_text("#!/bin/sh\n")
    found = _check(project_root, tmp_path / "out", STRANGE, "--workload", str(program))
    assert found.exit_code == 1, found.said
    assert found.failed() == {
        "they_fire": "pipe:pipe_resize: 0 events, expected >= 1 events"
    }
