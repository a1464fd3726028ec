# SPDX-License-Identifier: GPL-2.0-or-later
"""What a guest had of the host's time, and which reports that explains."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import consoles
from kstall.guest import console, hosttime
from kstall.guest.hosttime import Host, HostSample, Thresholds

SOFT = "watchdog: BUG: soft lockup - CPU#1 stuck for {}s! [doze:7]"
HARD = "watchdog: Watchdog detected hard LOCKUP on cpu 0"
WORKQUEUE = "BUG: workqueue lockup - pool cpus=0 node=0 flags=0x0 nice=0 stuck for {}s!"
HUNG = "INFO: task doze:7 blocked for more than {} seconds."
RCU = "rcu: INFO: rcu_preempt detected stalls on CPUs/tasks:"


def host(share: float, other: float = 0.0, seconds: int = 300) -> Host:
    """A guest whose two processors wait these shares of each second."""
    return Host(
        tuple(
            HostSample(
                float(at),
                {"CPU 0/TCG": at * share, "CPU 1/TCG": at * other},
                console=100 * at,
            )
            for at in range(1, seconds + 1)
        )
    )


def slow_disk(share: float) -> Host:
    """A guest with processors of its own, whose QEMU waits for a disk."""
    return Host(
        tuple(
            HostSample(float(at), {"CPU 0/TCG": 0.0, hosttime.DISK: at * share}, 0.0)
            for at in range(1, 301)
        )
    )


def splat(line: str, more: str = "") -> console.Splat:
    (report,) = consoles.scan(f"[  100.000000] {line}\n[  100.000001] {more}\n")
    return report


def rcu(seconds: float) -> console.Splat:
    return splat(RCU, f"(detected by 0, t={seconds * 250:.0f} jiffies, g=9, q=1)")


@pytest.mark.parametrize(
    ("report", "stall"),
    [
        (splat(SOFT.format(23)), (23, 20)),
        (splat(HARD), (20, 10)),
        (splat(WORKQUEUE.format(40)), (40, 30)),
        (splat(HUNG.format(61)), (61, 60)),
        (rcu(21), (21, 21)),
        (rcu(84), (84, 21)),
        # Reports that the load of the host never explains.
        (splat("WARNING: CPU: 0 PID: 7 at kernel/x.c:3 f+0x1/0x2"), None),
        (splat("BUG: KASAN: use-after-free in f"), None),
        (splat("WARNING: possible circular locking dependency detected"), None),
        (splat("BUG: kernel NULL pointer dereference, address: 8"), None),
        (splat("Kernel panic - not syncing: softlockup: hung tasks"), None),
    ],
)
def test_which_reports_go_by_the_clock(
    report: console.Splat, stall: tuple[float, float] | None
) -> None:
    timing = hosttime.stall(report, Thresholds())
    assert (timing and (timing.seconds, timing.limit)) == stall
    starved = hosttime.excuse(report, 250, host(0.95, 0.95), Thresholds())
    assert (starved is not None) == (stall is not None)


@pytest.mark.parametrize(
    "line",
    [
        "workqueue: psi_avgs_work hogged CPU for >10000us 4 times, consider switching "
        "to WQ_UNBOUND",
        "hrtimer: interrupt took 9000000 ns",
        "perf: interrupt took too long (9000 > 2500), lowering the limit",
        "sched: RT throttling activated",
    ],
)
def test_remarks_on_a_slow_machine_are_no_reports(line: str) -> None:
    assert consoles.scan(f"[  100.000000] {line}\n") == ()


@pytest.mark.parametrize(
    ("report", "when", "excused"),
    [
        # No other process wanted the processors: the kernel is at fault.
        (splat(SOFT.format(23)), host(0.0), False),
        (splat(SOFT.format(23)), host(0.2, 0.1), False),
        # It had 23 - 14 seconds, less than half of the 20 that are allowed.
        (splat(SOFT.format(23)), host(0.6), True),
        # Each processor waited for the host and then for the other processor.
        (splat(SOFT.format(23)), host(0.3, 0.3), True),
        # It lasted so long that even its share of the host was enough.
        (splat(SOFT.format(123)), host(0.6), False),
        (splat(SOFT.format(223)), host(0.6, 0.6), False),
        (rcu(21), host(0.3), False),
        (rcu(21), host(0.7), True),
        (rcu(189), host(0.7), False),
        (splat(HUNG.format(61)), host(0.1), False),
        (splat(HUNG.format(61)), host(0.8), True),
        (splat(WORKQUEUE.format(33)), host(0.9), True),
        # The host reports nothing.
        (splat(SOFT.format(23)), Host(), True),
        (splat(HUNG.format(61)), Host(), True),
        # QEMU waited for a disk, and no processor of the guest waited meanwhile.
        (splat(HUNG.format(61)), slow_disk(0.8), True),
        (splat(HUNG.format(61)), slow_disk(0.4), False),
        (splat(HUNG.format(223)), slow_disk(0.4), False),
    ],
)
def test_what_a_busy_host_explains(
    report: console.Splat, when: Host, excused: bool
) -> None:
    why = hosttime.excuse(report, 280, when, Thresholds())
    assert (why is not None) == excused
    if why is not None:
        assert "stood still" in why
        assert ("the watchdog allows" in why) == bool(when.samples)


def test_only_the_time_of_the_stall_counts() -> None:
    """A host that was busy before, or after, explains nothing."""
    samples = [
        HostSample(float(at), {"CPU 0/TCG": float(max(0, min(at, 60) - 10))})
        for at in range(1, 200)
    ]
    report = splat(SOFT.format(22))
    excuses = {
        at: hosttime.excuse(report, at, Host(tuple(samples)), Thresholds()) is not None
        for at in (9, 40, 60, 100)
    }
    assert excuses == {9: False, 40: True, 60: True, 100: False}


def test_the_settings_of_watchdogs_are_read(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text(
        "CONFIG_HZ=100\nCONFIG_RCU_CPU_STALL_TIMEOUT=180\n"
        "CONFIG_DEFAULT_HUNG_TASK_TIMEOUT=120\n"
    )
    words = (
        *("watchdog_thresh=60", "workqueue.watchdog_thresh=180"),
        "sysctl.kernel.hung_task_timeout_secs=300",
    )
    assert hosttime.thresholds(config) == Thresholds(rcu=180, hung=120, hz=100)
    assert hosttime.thresholds(config, words) == Thresholds(
        soft=120, hard=60, rcu=180, workqueue=180, hung=300, hz=100
    )
    assert hosttime.thresholds(tmp_path / "none") == Thresholds()


def _thread(
    task: Path, number: int, name: str, waited: float, state: str = "S"
) -> None:
    (task / str(number)).mkdir(parents=True, exist_ok=True)
    (task / str(number) / "comm").write_text(f"{name}\n")
    (task / str(number) / "schedstat").write_text(f"1 {waited * 1e9:.0f} 3\n")
    (task / str(number) / "stat").write_text(f"{number} ({name}) {state} 1 1 1 0\n")


def _process(proc: Path, pid: int, parent: int) -> Path:
    task = proc / str(pid) / "task"
    task.mkdir(parents=True)
    (proc / str(pid) / "stat").write_text(f"{pid} (a b) c) S {parent} 1 1 0\n")
    return task


def _stat(proc: Path, stolen: int) -> None:
    (proc / "stat").write_text(
        f"cpu  1 2 3 4 5 6 7 {stolen} 0 0\ncpu0 0\ncpu1 0\nintr 1\n"
    )


def test_the_threads_of_the_guest_s_processors_are_watched(tmp_path: Path) -> None:
    proc = tmp_path / "proc"
    _process(proc, 10, 1)
    _process(proc, 11, 10)
    qemu = _process(proc, 12, 11)
    others = _process(proc, 20, 1)
    _stat(proc, 100)
    text = tmp_path / "console"
    watch = hosttime.Watch(10, text, tmp_path / "lost", proc)
    _thread(qemu, 12, "qemu-system-x86", 50)
    watch.sample()
    assert watch.host == Host() and watch.lost == 0 and not watch.printed
    _thread(qemu, 13, "CPU 0/TCG", 0.25)
    _thread(others, 21, "CPU 0/KVM", 40)
    watch._began -= 30
    text.write_text("x" * 9)
    watch.sample()
    _thread(qemu, 13, "CPU 0/TCG", 1)
    _thread(qemu, 14, "CPU 1/TCG", 4)
    watch._threads = ()
    _stat(proc, 100 + 2 * hosttime._TICKS)
    watch.sample()
    first, second = watch.host.samples
    assert (first.waited, first.stolen, first.console) == ({"CPU 0/TCG": 0.25}, 0, 9)
    assert second.waited == {"CPU 0/TCG": 1, "CPU 1/TCG": 4}
    # Two seconds of two processors: each lost one.
    assert second.stolen == 1 and watch.lost == 5
    assert (tmp_path / "lost").read_text().split() == ["5.000", "7.000"]
    # After its end there is nothing to read.
    for name in ("13", "14"):
        (qemu / name / "schedstat").unlink()
    watch.sample()
    assert len(watch.host.samples) == 2


def test_who_waits_for_a_disk_is_watched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proc = tmp_path / "proc"
    task = _process(proc, 10, 1)
    _stat(proc, 0)
    watch = hosttime.Watch(10, tmp_path / "console", tmp_path / "lost", proc)
    now = watch._began
    monkeypatch.setattr(hosttime.time, "monotonic", lambda: now)
    _thread(task, 11, "CPU 0/KVM", 1)
    _thread(task, 10, "qemu-system-x86", 50)
    now += 10
    watch.sample()
    for main, worker, processor in ("SSS", "DSS", "SDS", "DDS", "SSD", "RSR", "SSS"):
        _thread(task, 10, "qemu-system-x86", 50, main)
        _thread(task, 11, "CPU 0/KVM", 1, processor)
        _thread(task, 12, "a) (worker", 0, worker)
        now += 2
        watch.look()
    watch.sample()
    seen = watch.host.samples[-1]
    assert seen.waited == {"CPU 0/KVM": 1 + 2, hosttime.DISK: 6}
    assert watch.lost == 3 + 6
    # The time for the disk counts once in the sum, and each processor's by itself.
    assert sum(watch.host.waits(10, now)) == 2 + 6


@pytest.mark.parametrize("counted", ["0 0 0\n", None])
def test_a_host_that_does_not_tell(tmp_path: Path, counted: str | None) -> None:
    """The kernel has no such file, or the file exists and counts nothing."""
    proc = tmp_path / "proc"
    task = _process(proc, 10, 1)
    _stat(proc, 0)
    _thread(task, 11, "CPU 0/TCG", 7, "D")
    place = task / "11" / "schedstat"
    place.unlink() if counted is None else place.write_text(counted)
    watch = hosttime.Watch(10, tmp_path / "console", tmp_path / "lost", proc)
    watch.sample()
    watch.look()
    watch.sample()
    assert watch.host == Host() and watch.lost == 0
    # The guest knows by the missing file.
    assert not (tmp_path / "lost").exists()
    report = splat(SOFT.format(23))
    why = hosttime.excuse(report, 280, watch.host, Thresholds())
    assert why is not None and "does not tell" in why


def test_what_was_seen_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / hosttime.FILE
    seen = host(0.25, seconds=4)
    path.write_text(json.dumps(seen.as_json()))
    assert hosttime.read(path) == seen
    assert seen.as_json()["samples"][2]["share"] == {"CPU 0/TCG": 0.25, "CPU 1/TCG": 0}
    for text in ("", "[]", '{"samples": [{}]}', '{"samples": 3}'):
        path.write_text(text)
        assert hosttime.read(path) == Host()


def test_when_something_was_printed() -> None:
    seen = host(0.0, seconds=4)
    assert [seen.printed(n) for n in (0, 99, 100, 350, 10**6)] == [1, 1, 2, 4, 4]
    assert Host().printed(3) == 0


def test_lines_are_found_again_by_their_number(tmp_path: Path) -> None:
    path = tmp_path / "console"
    path.write_bytes(b"one\r\n\xff\xfe\nthree\n")
    assert console.offsets(path, [1, 3, 9]) == {1: 0, 3: 8}
