# SPDX-License-Identifier: GPL-2.0-or-later
"""Jobs of three ranks in a guest, one of them under a quota for a while, explained.

`docs/examples/throttled-rank` is what such a run has left.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

import stock
from kstall.debian import Root
from kstall.guest.guest import Accel, Machine, Share
from kstall_node import catalogue
from kstall_ops import explain, seal, store
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


def booted(
    kernel: stock.Stock,
    root: Root,
    project: Path,
    out: Path,
    words: str,
    deadline: float = 300.0,
) -> tuple[Path, str]:
    """Run ``words`` in a guest: what it left, and what it printed."""
    share = out / "share"
    (share / "results").mkdir(parents=True)
    packed(project, share / "kstall-node")
    for path in (project / "scripts/workloads/operator").iterdir():
        shutil.copy2(path, share)
    ran = stock.boot(
        kernel,
        root,
        Accel("tcg", "for the test"),
        Machine(cpus=2),
        (Share("/run/share", share, writable=True),),
        (
            *("env", "KSTALL_TROUBLE=/run/share/results/trouble.txt", "sh", "-c"),
            f'echo node0 >/proc/sys/kernel/hostname; python3 -c "{LO}"; exec {words}',
        ),
        out=out / "guest",
        deadline=deadline,
        say=print,
    )
    printed = (out / "guest/job.log").read_text()
    assert (ran.status, ran.exit_status) == ("completed", 0), printed
    return share / "results", printed


def recorded(results: Path, printed: str) -> Path:
    """The recording; beside it what the ranks say of themselves."""
    (rec,) = (results / "rec").iterdir()
    lines = [line for line in printed.splitlines(True) if line.startswith("{")]
    (rec / "truth.jsonl").write_text("".join(lines))
    return rec


def test_a_quota_that_is_lifted_again(project_root: Path, tmp_path: Path) -> None:
    kernel = stock.obtain("7.3", tmp_path / "kernel")
    root = stock.guest_root(project_root, tmp_path / "root.log")
    words = " ".join(("python3 /run/share/recorded.py throttle any", *JOB))
    found = booted(kernel, root, project_root, tmp_path / "out", words)
    judged(recorded(*found), tmp_path)


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
    _, rows, _ = store.query(made, "SELECT provider, ours, theirs, verdict FROM oracle")
    ((provider, ours, theirs, verdict),) = rows
    assert verdict == "agrees"
    # Of threads the counters are others than those of a quota's own queues.
    (oracle,) = {one.oracle for one in catalogue.SOURCES if one.name == provider}
    local = "local." if oracle == "cpu.stat.threads" else ""
    assert abs(theirs - stat[f"{local}throttled_usec"] * 1000) <= 1000
    assert abs(ours - theirs) <= 0.02 * theirs


#: Rank 1 needs 3.1 s of CPU time in step 20, and gets a hundredth of a CPU.
HANG = (
    *("/run/share/allreduce.py", "--ranks", "3", "--steps", "30", "--compute", "100"),
    *("--job", "train", "--late", "1:20-21:3000", "--quota", "1:20-21:1000"),
)


def test_a_job_that_hangs_is_reported_while_it_does(
    project_root: Path, tmp_path: Path
) -> None:
    kernel = stock.obtain("7.3", tmp_path / "kernel")
    root = stock.guest_root(project_root, tmp_path / "root.log")
    words = ("python3 /run/share/hang.py /run/share/kstall-node /run/share/results",)
    said = " ".join((*words, *HANG))
    results, printed = booted(kernel, root, project_root, tmp_path / "out", said)
    hung(results, printed, tmp_path)


def hung(results: Path, printed: str, out: Path) -> None:
    """Whom the others wait for, and why; and afterwards nobody does."""
    made = out / "meanwhile.duckdb"
    seal.seal([results / "meanwhile"], made)
    told = explain.report(made)
    (one,) = told.hung
    assert (one.step, one.waiting, one.silent) == (20, (0, 2), 0), printed
    (absent,) = one.absent
    assert (absent.rank, absent.cls, absent.caps) == (1, "throttle", ()), printed
    assert (absent.step, absent.phase, absent.gone_ns) == (19, "exit", None)
    assert absent.coverage > 0.9
    assert "/kstall-allreduce-1" in absent.text
    # It is known up to when it was looked at, but for what was not sealed yet.
    assert one.waited_ns > 20e9
    # The ranks were killed, and nobody waits any more.
    ended = out / "end.duckdb"
    seal.seal([results / "end"], ended)
    assert explain.report(ended).hung == []
    _, rows, _ = store.query(
        ended, "SELECT DISTINCT ended IS NULL FROM proc WHERE rank IS NOT NULL"
    )
    assert rows == [(False,)]


#: With marks of a job without rights, first where only root may write them.
MARKING = """
import os, signal, subprocess, sys

for more in ([], ["--open-marker"]):
    words = ["/run/share/kstall-node", "record", "--class", "throttle", *more]
    out = "/run/share/results/" + ("open" if more else "closed")
    recorder = subprocess.Popen(
        [sys.executable, *words, "-o", out], stderr=subprocess.PIPE, text=True
    )
    if not any("recording into" in line for line in recorder.stderr):
        raise SystemExit(f"the recorder ended with status {recorder.wait()}")
    # What the document tells to try, then a job.
    tried = subprocess.run(
        ["sh", "-c", TRIED],
        user=65534, group=65534, extra_groups=[], stderr=subprocess.PIPE, text=True,
        cwd="/",
    )
    job = subprocess.run(
        [sys.executable, "-c", JOB],
        user=65534, group=65534, extra_groups=[], stderr=subprocess.PIPE, text=True,
        cwd="/", env={"RANK": "1", "WORLD_SIZE": "2", "SLURM_JOB_ID": "9"},
    )
    print(out, tried.returncode, tried.stderr, job.returncode, job.stderr)
    recorder.send_signal(signal.SIGINT)
    if recorder.wait(120):
        raise SystemExit("the recorder failed")
"""
STEPS_OF_NOBODY = """
import time

for step in range(5):
    mark(step, "enter")
    mark(step, "exit")
    time.sleep(1)
"""


def test_marks_of_a_job_without_rights(project_root: Path, tmp_path: Path) -> None:
    """The function and the command are those of the document."""
    kernel = stock.obtain("7.3", tmp_path / "kernel")
    root = stock.guest_root(project_root, tmp_path / "root.log")
    text = (project_root / "docs/operator.md").read_text()
    (function,) = re.findall(r"(?ms)^```python\n(.*?)^mark\(", text)
    (command,) = re.findall(r"(?m)^echo test >/sys/kernel/tracing/.*$", text)
    share = tmp_path / "out/share"
    share.mkdir(parents=True)
    given = f"JOB = {function + STEPS_OF_NOBODY!r}\nTRIED = {command!r}\n"
    (share / "marking.py").write_text(given + MARKING)
    words = "python3 /run/share/marking.py"
    results, printed = booted(kernel, root, project_root, tmp_path / "out", words)
    closed, opened = printed.split("/run/share/results/open ")
    # The shell says what is wrong, and the job, too, once; but it goes on.
    assert closed.count("ermission denied") == 2, printed
    assert re.search(r"closed [12] ", closed) and "ermission" not in opened, printed
    assert opened.split()[:2] == ["0", "0"], printed
    for name, marks in (("closed", 0), ("open", 10)):
        made = tmp_path / f"{name}.duckdb"
        seal.seal([*(results / name).iterdir()], made)
        _, rows, _ = store.query(made, "SELECT job, rank, step, phase FROM mark")
        wanted = {("9", 1, n, phase) for n in range(5) for phase in ("enter", "exit")}
        assert (len(rows), set(rows)) == (marks, wanted if marks else set()), printed


#: Torch takes a minute to be imported, and Python of a rank longer for a step.
TORCH = (
    *("torchjob.py", "--ranks", "3", "--steps", str(STEPS), "--compute", "100"),
    *("--quota", "1:{}-{}:20000".format(*QUOTA)),
)


def test_a_job_of_torchrun_with_gloo(project_root: Path, tmp_path: Path) -> None:
    """Twenty minutes; PyTorch is Debian's, which has no GPU."""
    kernel = stock.obtain("7.3", tmp_path / "kernel")
    root = stock.guest_root(project_root, tmp_path / "root.log", "python3-torch")
    words = " ".join(("python3 /run/share/recorded.py throttle any", *TORCH))
    found = booted(kernel, root, project_root, tmp_path / "out", words, 2400.0)
    judged(recorded(*found), tmp_path)
