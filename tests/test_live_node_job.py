# SPDX-License-Identifier: GPL-2.0-or-later
"""A job of three ranks in a guest, one of them under a quota for a while, explained.

`examples/throttled-rank` is what such a run has left.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from kstall.base import cache
from kstall.debian import Root
from kstall.guest.guest import Accel, Machine, Share, boot
from kstall_ops import explain, seal, store
from live import Outcome
from test_live_node import packed

pytestmark = [pytest.mark.live, pytest.mark.deep]

STEPS, QUOTA = 60, (20, 40)
#: The guest has no `ip`: SIOCSIFFLAGS of lo, IFF_UP.
LO = (
    "import fcntl, socket, struct; "
    "fcntl.ioctl(socket.socket(), 0x8914, struct.pack('16sh14x', b'lo', 1))"
)
JOB = (
    *("allreduce.py", "--ranks", "3", "--steps", str(STEPS), "--compute", "100"),
    *("--job", "train", "--quota", "1:{}-{}:20000".format(*QUOTA)),
)


def run(image: Path, root: Root, project: Path, out: Path) -> Path:
    """The recording; beside it what the ranks say of themselves."""
    share = out / "share"
    (share / "results").mkdir(parents=True)
    packed(project, share / "kstall-node")
    for name in ("recorded.py", "allreduce.py"):
        shutil.copy2(project / "scripts/workloads/operator" / name, share)
    words = " ".join(("python3 /run/share/recorded.py throttle any", *JOB))
    ran = boot(
        image,
        root,
        Accel("tcg", "for the test"),
        Machine(cpus=2),
        (Share("/run/share", share, writable=True),),
        (
            *("env", "KSTALL_TROUBLE=/run/share/results/trouble.txt", "sh", "-c"),
            f'echo node0 >/proc/sys/kernel/hostname; python3 -c "{LO}"; exec {words}',
        ),
        out=out / "guest",
        deadline=300.0,
        say=print,
    )
    printed = (out / "guest/job.log").read_text()
    assert (ran.status, ran.exit_status) == ("completed", 0), printed
    (rec,) = (share / "results/rec").iterdir()
    lines = [line for line in printed.splitlines(True) if line.startswith("{")]
    (rec / "truth.jsonl").write_text("".join(lines))
    return rec


def test_a_quota_that_is_lifted_again(
    project_root: Path, proven: Outcome, guest_root: Root, tmp_path: Path
) -> None:
    costs = proven.report.series[0].overhead
    assert costs is not None and costs.base_kernel is not None
    image = cache.default_dir() / "kernels" / costs.base_kernel / "bzImage"
    judged(run(image, guest_root, project_root, tmp_path / "out"), tmp_path)


def judged(rec: Path, out: Path) -> None:
    """Rank 1, in the steps in which it had a quota, and that is why."""
    made = out / "s.duckdb"
    seal.seal([rec], made)
    (one,) = explain.report(made).verdicts
    (late,) = one.stragglers
    assert (late.rank, late.node) == (1, "node0")
    best = late.findings[0]
    assert (best.cls, best.level, best.severity) == ("throttle", "explains", "high")
    first, last = QUOTA
    # It is thrown out of the step in which the quota is lifted at its end.
    assert set(best.steps) <= set(range(first, last + 1)) and len(best.steps) >= 8
    truth = [json.loads(x) for x in (rec / "truth.jsonl").read_text().splitlines()]
    (stat,) = [one["cpu_stat"] for one in truth if one["cpu_stat"]]
    _, rows, _ = store.query(made, "SELECT ours, theirs, verdict FROM oracle")
    ((ours, theirs, verdict),) = rows
    assert verdict == "agrees"
    assert abs(theirs - stat["throttled_usec"] * 1000) <= 1000
    assert abs(ours - theirs) <= 0.02 * theirs
