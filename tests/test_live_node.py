# SPDX-License-Identifier: GPL-2.0-or-later
"""The recorder in a guest: what is sealed is what the kernel counted meanwhile."""

from __future__ import annotations

import json
import re
import subprocess
import zipapp
from pathlib import Path
from typing import Any

import pytest

from kstall.base import cache
from kstall.debian import Root
from kstall.guest.guest import Accel, Machine, Share, boot
from kstall_ops import seal, store
from live import validate

pytestmark = [pytest.mark.live, pytest.mark.deep]


def packed(project_root: Path, path: Path) -> Path:
    """The recorder as one file, as `make node` makes it."""
    source = path.with_suffix(".d")
    subprocess.run(
        ["cp", "-r", str(project_root / "harness/kstall_node"), str(source)],
        check=True,
    )
    outer = path.with_suffix(".z")
    outer.mkdir()
    source.rename(outer / "kstall_node")
    zipapp.create_archive(outer, path, main="kstall_node.__main__:run")
    return path


def recorded(
    image: Path,
    guest_root: Root,
    project_root: Path,
    out: Path,
    job: str = "throttled.py",
    machine: Machine | None = None,
) -> dict[str, Any]:
    """Run the workload in a guest; what it printed, by what it is about."""
    share = out / "share"
    share.mkdir(parents=True)
    packed(project_root, share / "kstall-node")
    for name in ("throttled.py", "lossy.py", "busy.py"):
        script = project_root / "scripts/workloads/operator" / name
        (share / name).write_bytes(script.read_bytes())
    ran = boot(
        image,
        guest_root,
        Accel("tcg", "for the test"),
        machine or Machine(),
        (Share("/run/share", share, writable=True),),
        (
            *("python3", f"/run/share/{job}"),
            *("/run/share/kstall-node", "/run/share/rec"),
        ),
        out=out / "guest",
        deadline=240.0,
        say=print,
    )
    printed = (out / "guest/job.log").read_text()
    assert (ran.status, ran.exit_status) == ("completed", 0), printed
    said: dict[str, Any] = {}
    for line in printed.splitlines():
        if line.startswith("{"):
            one = json.loads(line)
            said[one["what"]] = one
    return said


def judged(said: dict[str, Any], out: Path, provider: str) -> None:
    """What is sealed, against cpu.stat and against the witness."""
    assert said["ended"]["status"] == 0, said["ended"]
    assert "refused" not in said["ended"]["errors"]
    # The first of the three recordings; the others are of the recorders after it.
    rec = min(
        (out / "share/rec").iterdir(), key=lambda one: int(one.name.split("-")[-1])
    )
    made = out / "s.duckdb"
    seal.seal([rec], made)
    group = said["group"]
    _, rows, _ = store.query(
        made, "SELECT tid, count(*), sum(dur), count(dur) FROM stall GROUP BY tid"
    )
    assert {tid for tid, *_ in rows} == set(group["pids"])
    _, named, _ = store.query(made, "SELECT DISTINCT provider, cgroup_id FROM stall")
    assert named == [(provider, group["id"])]
    _, oracles, _ = store.query(
        made, "SELECT metric, ours, theirs, verdict FROM oracle"
    )
    ((metric, ours, theirs, verdict),) = oracles
    assert (metric, verdict) == ("union_ns", "agrees")
    kernel = group["stat"]["throttled_usec"] * 1000
    assert abs(theirs - kernel) <= 1000
    assert abs(ours - kernel) <= 0.02 * kernel
    session = json.loads((rec / "session.json").read_text())
    events = {session["providers"][0]["end"], session["providers"][0].get("begin")}
    assert set(said["enabled"]["events"]) == events - {None}
    _, lost, _ = store.query(made, "SELECT * FROM loss")
    assert lost == []
    _, records, _ = store.query(made, "SELECT records FROM session")
    assert records == [(len(said["witness"]["lines"]),)]
    if provider == "sched:sched_stat_throttled":
        # To the nanosecond, record by record.
        found: dict[int, list[int]] = {}
        for line in said["witness"]["lines"]:
            match = re.search(r" pid=(\d+) delay=(\d+)", line)
            assert match, line
            found.setdefault(int(match[1]), []).append(int(match[2]))
        assert {tid: (n, total) for tid, n, total, _ in rows} == {
            tid: (len(delays), sum(delays)) for tid, delays in found.items()
        }
    else:
        name = session["providers"][0]["begin"].partition(":")[2]
        begun = [x for x in said["witness"]["lines"] if f" {name}: " in x]
        assert sum(n for _, n, _, _ in rows) == len(begun)
    assert said["left"] == {"what": "left", "instances": [], "probes": []}
    assert said["killed"]["instances"] == ["kstall"]
    assert said["cleaned"]["status"] == 0
    assert "recorder that was killed" in said["cleaned"]["errors"]
    assert said["cleaned"]["instances"] == said["cleaned"]["probes"] == []


def lost(said: dict[str, Any], out: Path) -> None:
    """What was not read in time is counted, to the record."""
    recs = sorted(
        (out / "share/rec").iterdir(), key=lambda one: int(one.name.split("-")[-1])
    )
    made = out / "s.duckdb"
    seal.seal(recs[:1], made)
    _, ((marks, losses),), _ = store.query(
        made, "SELECT (SELECT count(*) FROM mark), (SELECT sum(n) FROM loss)"
    )
    match = re.search(r"^overrun: (\d+)$", said["ended"]["stats"], re.M)
    assert match and int(match[1]) > 0
    assert losses == int(match[1])
    assert marks + losses == said["marks"]["count"]
    # The instance stays as long as the job has its marker open, with nothing on, and
    # the job's next marks are in the next recording.
    assert said["held"]["instances"] == ["kstall"] and said["held"]["on"] == "0"
    assert "holds its trace_marker open" in said["ended"]["errors"]
    assert said["again"]["status"] == 0
    again = out / "again.duckdb"
    seal.seal(recs[1:], again)
    _, rows, _ = store.query(again, "SELECT step, phase, rank FROM mark")
    assert rows == [(0, "exit", 0)]


def test_above_the_rate_it_is_suspended_and_said(
    project_root: Path, kernel_image: Path, guest_root: Root, tmp_path: Path
) -> None:
    """Probes have no duration that could be filtered, so they are switched off."""
    out = tmp_path / "out"
    suspended(recorded(kernel_image, guest_root, project_root, out, "busy.py"), out)


def suspended(said: dict[str, Any], out: Path) -> None:
    """Recorded is what was before, lost is all that came later."""
    assert set(said["before"]["events"]) == {"throttled", "unthrottled"}
    assert said["suspended"]["events"] == []
    assert said["ended"]["status"] == 0
    assert "records a second: throttle/threads is suspended" in said["ended"]["errors"]
    assert said["left"] == {"what": "left", "instances": [], "probes": []}
    made = out / "s.duckdb"
    seal.seal(list((out / "share/rec").iterdir()), made)
    _, losses, _ = store.query(made, "SELECT t0, t1, n, reason FROM loss")
    ((since, until, count, reason),) = losses
    assert (until, count, reason) == (None, None, "suspended throttle/threads")
    assert since <= said["suspended"]["at"]
    _, ((stalls, last),), _ = store.query(made, "SELECT count(*), max(t0) FROM stall")
    assert stalls > 5 and last < said["suspended"]["at"]
    # There is no word of agreement about half a recording.
    _, verdicts, _ = store.query(made, "SELECT DISTINCT verdict FROM oracle")
    assert verdicts in ([], [("unknown",)])


def test_losses_are_what_the_buffer_counted(
    project_root: Path, kernel_image: Path, guest_root: Root, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    lost(recorded(kernel_image, guest_root, project_root, out, "lossy.py"), out)


def test_throttling_by_the_kernels_own_event(
    project_root: Path, guest_root: Root, tmp_path: Path
) -> None:
    proven = validate(
        project_root, tmp_path / "v", "--level", "quick", "--", "sched-throttle"
    )
    key = proven.report.series[0].kernel
    assert key is not None, proven.output
    image = cache.default_dir() / "kernels" / key / "bzImage"
    said = recorded(image, guest_root, project_root, tmp_path / "out")
    # Of the series' first version an event with the time, of the second tracepoints.
    spec = proven.report.series[0].model_dump_json()
    first = "sched:sched_stat_throttled" in spec
    provider = "sched:sched_stat_throttled" if first else "throttle/tracepoints"
    judged(said, tmp_path / "out", provider)


def test_throttling_on_a_stock_scheduler(
    project_root: Path, kernel_image: Path, guest_root: Root, tmp_path: Path
) -> None:
    """The kernel of another series, whose scheduler nobody has changed."""
    said = recorded(kernel_image, guest_root, project_root, tmp_path / "out")
    judged(said, tmp_path / "out", "throttle/threads")


def test_throttling_beside_a_processor_that_was_never_up(
    project_root: Path, kernel_image: Path, guest_root: Root, tmp_path: Path
) -> None:
    """The kernel has a place for its buffer, and no buffer."""
    machine = Machine(cpus=3, append=("maxcpus=2",))
    said = recorded(
        kernel_image, guest_root, project_root, tmp_path / "out", machine=machine
    )
    assert (said["cpus"]["possible"], said["cpus"]["online"]) == ("0-2", "0-1")
    judged(said, tmp_path / "out", "throttle/threads")
