# SPDX-License-Identifier: GPL-2.0-only
"""Control groups with a CPU quota, and tasks that use it up.

What the programs here print is the independent record of a run: counters that the
kernel has without the tracepoints, and clocks that user space reads itself.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import errno
import json
import mmap
import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from kstall_guest import own, waiting
from kstall_guest.own import Printed

ROOT = Path("/sys/fs/cgroup")
MS = 1_000_000
#: Off the CPU for longer than this is a gap; two looks at a clock are far closer.
GAP_NS = MS
#: A task without progress while its CPU idled for this long is throttled, not merely
#: waiting for its CPU: a CPU does not idle while a task on it may run, nor while the
#: host has taken it away.
STILL_S = 0.2
#: How much longer it is left so, once it is known to be throttled.
HOLD_S = 0.1
LIMIT_S = 60.0
#: How long a scene lasts at most; a tenth of that if the kernel throttles at all.
SCENE_S = 30.0
#: How many throttlings of a group have to be seen before a scene is over.
ENDS = 15
#: What is seen of a throttling: by how much throttled_usec grows, and for how long the
#: CPU idled, of which /proc/stat has hundredths of a second.
SEEN_US = 10_000


def say(**facts: object) -> None:
    """Print one line of the record."""
    print(json.dumps(facts), flush=True)


def mono() -> int:
    """CLOCK_MONOTONIC in ns, the clock of the recorded events."""
    return time.monotonic_ns()


class Group:
    """A control group for as long as this program runs; its counters start at zero."""

    def __init__(self, name: str, parent: Group | None = None) -> None:
        if not (ROOT / "cgroup.controllers").exists():
            subprocess.run(["mount", "-t", "cgroup2", "none", str(ROOT)], check=True)
        above = parent.path if parent else ROOT
        _control(above, "+cpu")
        self.path = above / name
        self.path.mkdir()
        atexit.register(self._remove)

    def _remove(self) -> None:
        """Leave nothing behind, whatever went wrong: no task, and no limit on it."""
        self.lift()
        (self.path / "cgroup.kill").write_text("1")
        self.wait_empty()
        self.path.rmdir()

    def wait_empty(self) -> None:
        """Return once there is no task in it any more."""
        while "populated 1" in (self.path / "cgroup.events").read_text():
            time.sleep(0.01)

    def remove(self) -> None:
        """Remove it as it is: empty, but with its limit, and with what it owes."""
        atexit.unregister(self._remove)
        self.path.rmdir()

    def remove_exiting(self) -> None:
        """Remove it once all that is in it exits, which need not be done by then."""
        atexit.unregister(self._remove)
        while True:
            try:
                self.path.rmdir()
            except OSError as error:
                if error.errno != errno.EBUSY:
                    raise
            else:
                return

    def disable(self) -> None:
        """Take the cpu controller from the groups in it: what they count is gone."""
        _control(self.path, "-cpu")

    def enable(self) -> None:
        """Give it to them again."""
        _control(self.path, "+cpu")

    def limit(self, quota_us: int, period_us: int) -> None:
        """Allow ``quota_us`` of CPU time in each ``period_us``."""
        (self.path / "cpu.max").write_text(f"{quota_us} {period_us}")

    def lift(self) -> None:
        """Take the limit away; what is throttled by it is not any more."""
        (self.path / "cpu.max").write_text("max")

    def add(self, pid: int) -> None:
        """Move process ``pid`` here."""
        (self.path / "cgroup.procs").write_text(str(pid))

    def counters(self) -> dict[str, int]:
        """cpu.stat: what is throttled right now is not in it yet."""
        return _counters(self.path / "cpu.stat")

    def say(self, **facts: object) -> None:
        """Print the group's id and counters."""
        say(
            what="group",
            name=self.path.name,
            cgroup=self.path.stat().st_ino,
            parent=self.path.parent.stat().st_ino,
            stat=self.counters(),
            local=_counters(self.path / "cpu.stat.local"),
            **facts,
        )


def _control(path: Path, change: str) -> None:
    (path / "cgroup.subtree_control").write_text(change)


def _counters(path: Path) -> dict[str, int]:
    lines = (line.split() for line in path.read_text().splitlines())
    return {key: int(value) for key, value in lines}


class Task:
    """A forked process that joins ``group`` and a CPU, and then does ``work``.

    What ``work`` returns is what it measured; `result` returns it.
    """

    def __init__(
        self, name: str, group: Group | None, cpu: int, work: Callable[[], object]
    ) -> None:
        self.name = name
        reader, writer = os.pipe()
        started, start = os.pipe()
        sys.stdout.flush()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(reader)
            os.close(started)
            self._child(group, cpu, work, writer, start)
        os.close(writer)
        os.close(start)
        self._result = os.fdopen(reader)
        if not os.read(started, 1):
            raise ChildProcessError(f"{name} did not start")
        os.close(started)

    def _child(
        self,
        group: Group | None,
        cpu: int,
        work: Callable[[], object],
        result: int,
        start: int,
    ) -> None:
        status = 1
        try:
            Path("/proc/self/comm").write_text(self.name)
            os.sched_setaffinity(0, {cpu})
            if group is not None:
                group.add(os.getpid())
            os.write(start, b".")
            os.write(result, json.dumps(work()).encode())
            status = 0
        finally:
            os._exit(status)

    def result(self) -> object:
        """Wait for the task's end; raises when it failed."""
        text = self._result.read()
        _, status = os.waitpid(self.pid, 0)
        if status:
            raise ChildProcessError(f"{self.name} ended with status {status:#x}")
        return json.loads(text)

    def kill(self) -> None:
        """End a task that would go on for ever."""
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        self._result.close()

    def wait(self) -> None:
        """Wait for the end of a task that returns nothing."""
        os.waitpid(self.pid, 0)
        self._result.close()

    def run_ns(self) -> int:
        """CPU time so far, from /proc: updated in each tick and at each switch."""
        return int(Path(f"/proc/{self.pid}/schedstat").read_text().split()[0])

    def wait_still(self, *, patched: bool = False) -> int:
        """Wait until the task stands still, and for `HOLD_S`; when it did first, in ns.

        It has not run since.  If ``patched`` code has to bring that about, 0 is for a
        task that does not stand still, though the host had time for it.
        """
        (cpu,) = os.sched_getaffinity(self.pid)
        since, last = _idle_us(cpu), self.run_ns()

        def still() -> int:
            nonlocal since, last
            now, idle, run = mono(), _idle_us(cpu), self.run_ns()
            if run != last:
                since, last = idle, run
            if idle - since < STILL_S * 1e6:
                return 0
            time.sleep(HOLD_S)
            return now if self.run_ns() == last else 0

        label = f"standstill of {self.name}"
        if patched:
            return waiting.until(still, SCENE_S, label, patched=True, pause_s=0.01)
        return _until(still, label)

    def wait_moving(self) -> None:
        """Return when the task gets CPU time again."""
        enough = self.run_ns() + 8 * MS
        _until(lambda: self.run_ns() >= enough, f"end of {self.name}'s standstill")


class Watch:
    """What is seen of a group's throttlings on ``cpu`` by other means than events.

    ``grown`` is how often its throttled time was seen to have grown, which it does when
    a throttling ends.  ``stood`` is how often the CPU had idled meanwhile, so that all
    tasks there stood still; as it may be seen late that one has ended, the next one may
    be counted twice.
    """

    def __init__(self, group: Group, cpu: int) -> None:
        self._group, self._cpu = group, cpu
        self._used, self._idle = self._look()
        self.grown = self.stood = 0

    def _look(self) -> tuple[int, int]:
        return self._group.counters()["throttled_usec"], _idle_us(self._cpu)

    def look(self) -> None:
        """Bring the counts up to date; to be called more than once a period."""
        used, idle = self._look()
        if used - self._used >= SEEN_US:
            self.grown += 1
            self.stood += idle - self._idle >= SEEN_US
            self._used, self._idle = used, idle

    def facts(self) -> dict[str, int]:
        """The counts, to be printed."""
        return {"grown": self.grown, "stood": self.stood}


def watch(holds: Callable[[], bool], *watches: Watch) -> None:
    """Keep looking until ``holds``.

    If that does not happen, though the host had time for it, the checks have to judge
    what is wrong: the kernel may not throttle any more.
    """

    def look() -> bool:
        for group_watch in watches:
            group_watch.look()
        return holds()

    waiting.until(look, SCENE_S, "end of it", patched=True, pause_s=0.01)


def _idle_us(cpu: int) -> int:
    """How long ``cpu`` has idled, from /proc/stat, which has hundredths of a second."""
    lines = Path("/proc/stat").read_text().splitlines()
    (fields,) = (line.split() for line in lines if line.startswith(f"cpu{cpu} "))
    idle, waiting_for_io = (int(field) for field in fields[4:6])
    return (idle + waiting_for_io) * 1_000_000 // os.sysconf("SC_CLK_TCK")


def _until(holds: Callable[[], int], label: str) -> int:
    """Wait for what kernels do without the patches as well."""
    value = waiting.until(holds, LIMIT_S, label, pause_s=0.01)
    if not value:
        raise TimeoutError(f"no {label}")
    return value


def wait_used(group: Group, used_us: int) -> None:
    """Return once tasks of ``group`` have used so much CPU time."""
    _until(
        lambda: group.counters()["usage_usec"] >= used_us,
        f"use of {used_us} us of CPU time by {group.path.name}",
    )


def set_fifo(pid: int, priority: int) -> None:
    """Make ``pid`` a real-time task."""
    os.sched_setscheduler(pid, os.SCHED_FIFO, os.sched_param(priority))


class Flag:
    """False, until one of the processes that were forked from here raises it."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, 1)

    def raise_(self) -> None:
        """Make it true for all."""
        self._memory[0] = 1

    def wait(self, label: str) -> None:
        """Return when it is raised; ``label`` says what that means."""
        _until(self, label)

    def __call__(self) -> bool:
        """Whether it is true by now."""
        return bool(self._memory[0])


def after(seconds: float) -> Callable[[], bool]:
    """True when so many ``seconds`` from now are over."""
    end = mono() + seconds * 1e9
    return lambda: mono() >= end


def spin(over: Callable[[], bool]) -> dict[str, object]:
    """Use the CPU until it is ``over``; measure when it was not ours.

    ``gaps`` are the times [from, to] between two looks at the clock that are longer
    than ``gap_ns``, up to the last one.  The CPU time is that within the run, the
    run_delay that of a little more, so that each is a bound.
    """
    delay = _run_delay()
    begin = last = mono()
    run = time.process_time_ns()
    gaps = []
    while not over():
        now = mono()
        if now - last > GAP_NS:
            gaps.append((last, now))
        last = now
    run = time.process_time_ns() - run
    return {
        "begin_ns": begin,
        "last_ns": last,
        "end_ns": mono(),
        "run_ns": run,
        "run_delay_ns": _run_delay() - delay,
        "gap_ns": GAP_NS,
        "gaps": gaps,
    }


def _run_delay() -> int:
    return int(Path("/proc/self/schedstat").read_text().split()[1])


def spin_for_ever() -> None:
    """Use the CPU until killed."""
    while True:
        pass


def populate(megabytes: int) -> dict[str, int]:
    """One system call that stays in the kernel, with mmap_lock held.

    The CPU time is that from before ``begin_ns`` until before ``after_ns``, and
    ``cpu_ns`` all that the task ever had by then.
    """
    run = time.process_time_ns()
    begin = mono()
    memory = mmap.mmap(
        -1,
        megabytes << 20,
        flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE,
    )
    end = mono()
    cpu = time.process_time_ns()
    after = mono()
    memory.close()
    return {
        "begin_ns": begin,
        "end_ns": end,
        "run_ns": cpu - run,
        "cpu_ns": cpu,
        "after_ns": after,
    }


@dataclass(frozen=True)
class LongCall:
    """How much to `populate` in a long call, and the CPU time that it takes, in ns."""

    megabytes: int
    ns: int

    def quota_us(self, times: int = 8) -> int:
        """A quota of which the call uses so many; the kernel has none below 1 ms."""
        return max(1_000, self.ns // 1000 // times)

    def wait(self, group: Group) -> None:
        """Return once a task of ``group`` is in the call, by what it has used.

        On a host that takes the CPU away it stands still before the call as well.
        """
        # Twice the largest quota above.
        wait_used(group, self.ns // 4000)


def long_call() -> LongCall:
    """About 0.4 s of CPU time, less where all this memory is cleared faster.

    It is measured on memory that caches hold, and where the host takes its time, it
    takes longer: both only add to the debt.
    """
    sample = 16
    run = min(populate(sample)["run_ns"] for _ in range(5))
    megabytes = min(sample * 400 * MS // run, 768)
    return LongCall(megabytes, run * megabytes // sample)


def owe(group: Group, megabytes: int, then: Callable[[], object] | None = None) -> None:
    """Run up a debt that takes the group seconds to pay, do ``then``, and spin.

    The task joins the group right before the call: out of quota any earlier, it would
    be held up before it owes much.
    """
    group.add(os.getpid())
    populate(megabytes)
    if then is not None:
        then()
    spin_for_ever()


#: Bytes of memory for a task that has much to free as it exits.
_BULK = 256 << 20


def fill() -> mmap.mmap:
    """Memory that takes long to be freed: of small pages."""
    memory = mmap.mmap(-1, _BULK, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_NOHUGEPAGE)
    for offset in range(0, _BULK, mmap.PAGESIZE):
        memory[offset] = 1
    return memory


def free_ns() -> int:
    """How much CPU time it takes to free it."""
    memory = fill()
    run = time.process_time_ns()
    memory.close()
    return time.process_time_ns() - run


def leave(group: Group, joined: Flag) -> None:
    """Join the group and exit, which frees all memory: an exiting task runs on."""
    memory = fill()
    group.add(os.getpid())
    joined.raise_()
    os._exit(memory[0] - 1)


class PiLock:
    """A PI mutex that is shared with all processes that are forked from here."""

    _PRIO_INHERIT, _SHARED = 1, 1

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, mmap.PAGESIZE)
        self._libc = ctypes.CDLL(None)
        self._mutex = ctypes.byref(ctypes.c_char.from_buffer(self._memory))
        attributes = ctypes.create_string_buffer(64)
        self._call("mutexattr_init", attributes)
        self._call("mutexattr_setprotocol", attributes, self._PRIO_INHERIT)
        self._call("mutexattr_setpshared", attributes, self._SHARED)
        self._call("mutex_init", self._mutex, attributes)

    def _call(self, name: str, *args: object) -> None:
        error = getattr(self._libc, f"pthread_{name}")(*args)
        if error:
            raise OSError(error, os.strerror(error))

    def lock(self) -> None:
        """Take it; whoever has it gets this thread's priority meanwhile."""
        self._call("mutex_lock", self._mutex)

    def unlock(self) -> None:
        """Give it back."""
        self._call("mutex_unlock", self._mutex)


class Ring:
    """Just enough of io_uring to have its workers write ``size`` bytes each time."""

    _SETUP, _ENTER = 425, 426
    _GETEVENTS, _ASYNC, _WRITE = 1, 16, 23
    #: struct io_uring_params: sq_entries is first, sq_off and cq_off are at 40 and 80.
    _PARAMS, _SQ_OFF, _CQ_OFF = 120, 40, 80
    _SQES = 0x10000000

    def __init__(self, fd: int, size: int) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._libc.syscall.restype = ctypes.c_long
        params = bytearray(self._PARAMS)
        buffer = (ctypes.c_char * len(params)).from_buffer(params)
        self._ring = self._syscall(self._SETUP, 8, buffer)
        self._tail, self._array = struct.unpack_from("4xI16xI", params, self._SQ_OFF)
        self._head = struct.unpack_from("I", params, self._CQ_OFF)[0]
        self._shared = mmap.mmap(self._ring, 2 * mmap.PAGESIZE, flags=mmap.MAP_SHARED)
        self._sqes = mmap.mmap(
            self._ring, mmap.PAGESIZE, flags=mmap.MAP_SHARED, offset=self._SQES
        )
        self._fd, self._count = fd, 0
        self._data = ctypes.create_string_buffer(size)

    def _syscall(self, number: int, *args: object) -> int:
        result = self._libc.syscall(number, *args)
        if result < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        return int(result)

    def write(self) -> None:
        """Write to the start of the file, from a worker, and wait for it."""
        struct.pack_into(
            "=BBHiQQIIQ24x",
            self._sqes,
            0,
            self._WRITE,
            self._ASYNC,
            0,
            self._fd,
            0,
            ctypes.addressof(self._data),
            len(self._data),
            0,
            0,
        )
        struct.pack_into("I", self._shared, self._array + 4 * (self._count % 8), 0)
        self._count += 1
        struct.pack_into("I", self._shared, self._tail, self._count)
        self._syscall(self._ENTER, self._ring, 1, 1, self._GETEVENTS, None, 0)
        # What is done is taken off the completion queue unread.
        struct.pack_into("I", self._shared, self._head, self._count)


def write_by_workers(over: Callable[[], bool], writing: Flag) -> dict[str, object]:
    """Have io_uring's workers use the CPU; their ids are those of /proc.

    So is the CPU time, in ns, that each had when it was last seen.  ``writing`` is
    raised when the first one has written.
    """
    begin = mono()
    workers: dict[int, int] = {}
    ring = Ring(os.memfd_create("io-wq"), 8 << 20)
    ring.write()
    writing.raise_()
    while not over():
        ring.write()
        for thread in Path("/proc/self/task").iterdir():
            # It may have ended by now.
            with contextlib.suppress(OSError):
                if (thread / "comm").read_text().startswith("iou-wrk-"):
                    run = (thread / "schedstat").read_text().split()[0]
                    workers[int(thread.name)] = int(run)
    return {
        "begin_ns": begin,
        "end_ns": mono(),
        "workers": sorted(workers),
        "run_ns": [workers[pid] for pid in sorted(workers)],
    }


#: Each line begins with its time: CPUs have buffers of their own, which are printed in
#: turn.
LISTEN = """
rawtracepoint:sched_cfs_throttle_tp {
	$cfs_rq = (struct cfs_rq *)arg0;
	printf("%llu throttle %lu\\n", nsecs, $cfs_rq->tg->css.cgroup->kn->id);
}
rawtracepoint:sched_cfs_unthrottle_tp {
	$cfs_rq = (struct cfs_rq *)arg0;
	printf("%llu unthrottle %lu %lu\\n", nsecs, $cfs_rq->tg->css.cgroup->kn->id,
		arg1);
}
rawtracepoint:sched_cfs_throttle_task_tp {
	printf("%llu throttle_task %d\\n", nsecs, ((struct task_struct *)arg0)->pid);
}
rawtracepoint:sched_cfs_unthrottle_task_tp {
	printf("%llu unthrottle_task %d %d\\n", nsecs, ((struct task_struct *)arg0)->pid,
		(int32)arg2);
}
"""


def listener() -> AbstractContextManager[Printed]:
    """A bpftrace of the workload's own that prints each of the four events."""
    return own.bpftrace("listener", LISTEN, patched=True)


def wait_heard(printed: Printed, count: int) -> None:
    """Return when so many events were printed, or did not come though they had time."""
    waiting.until(
        lambda: len(printed.lines()) >= count, SCENE_S, f"{count} events", patched=True
    )


def heard(printed: Printed, count: int) -> list[str]:
    """The first ``count`` events, without their times."""
    words = (line.partition(" ") for line in printed.lines())
    events = sorted(words, key=lambda parts: int(parts[0]))
    return [text for _, _, text in events[:count]]
