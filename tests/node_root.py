# SPDX-License-Identifier: GPL-2.0-or-later
"""A node made of files: enough of /sys and /proc for `kstall-node --root`."""

from __future__ import annotations

from pathlib import Path

from kstall.ftrace import parse_layout
from recordings import FORMATS, format_text
from ringpages import entry, page, record

STAT = format_text(
    "sched_stat_throttled",
    3001,
    [("__data_loc char[] comm", 4), ("int pid", 4), ("u64 delay", 8)],
)
_PAIR = [("void * subscription", 8), ("void * function", 8), ("u32 pass", 4)]
PAIRS = {
    "begin": format_text("mmu_notifier_callback_begin", 3101, _PAIR),
    "end": format_text("mmu_notifier_callback_end", 3102, _PAIR),
}
README = "f[:[<group>/][<event>]] <func-name>[%return] [<args>]\n"
_STATS = (
    "entries: 0\noverrun: {overrun}\ncommit overrun: 0\nbytes: 0\n"
    "oldest event ts: 1.0\nnow ts: 2.0\ndropped events: {dropped}\n"
    "read events: {read}\n"
)


class Node:
    """A root directory; the instance is there, as of a recorder that was killed."""

    def __init__(self, top: Path, cpus: int = 1) -> None:
        self.root = top / "root"
        self.tracing = self.root / "sys/kernel/tracing"
        self.instance = self.tracing / "instances/kstall"
        self.write("proc/sys/kernel/hostname", "node7\n")
        self.write("proc/sys/kernel/random/boot_id", "boot-7\n")
        self.write("proc/sys/kernel/osrelease", "7.3.4\n")
        (self.root / "run").mkdir()
        for event, text in (
            ("sched/sched_stat_throttled", STAT),
            ("ftrace/print", FORMATS["ftrace/print"]),
        ):
            self.write(f"sys/kernel/tracing/events/{event}/format", text)
        for name in ("enable", "filter"):
            self.trace(f"events/sched/sched_stat_throttled/{name}", "")
        for name in ("tracing_on", "trace_clock", "buffer_size_kb", "events/enable"):
            self.trace(name, "")
        for cpu in range(cpus):
            self.trace(f"per_cpu/cpu{cpu}/trace_pipe_raw", "")
            self.stats(cpu)

    def write(self, name: str, text: str | bytes) -> None:
        """A file of the node."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())

    def trace(self, name: str, text: str | bytes) -> None:
        """A file of the instance."""
        self.write(f"sys/kernel/tracing/instances/kstall/{name}", text)

    def stats(
        self, cpu: int, overrun: int = 0, dropped: int = 0, read: int = 0
    ) -> None:
        """What the buffer has counted."""
        text = _STATS.format(overrun=overrun, dropped=dropped, read=read)
        self.trace(f"per_cpu/cpu{cpu}/stats", text)

    def throttled(
        self, cpu: int, *stalls: tuple[int, int, int], each: int = 40
    ) -> None:
        """Records of sched_stat_throttled: (when, thread, delay) in order."""
        layout = parse_layout(STAT, "sched")
        pages = []
        for at in range(0, len(stalls), each):
            some, before, entries = stalls[at : at + each], stalls[at][0], []
            for t, tid, delay in some:
                data = record(layout, 0, {"comm": "x", "pid": tid, "delay": delay})
                entries.append(entry(t - before, data))
                before = t
            pages.append(page(some[0][0], entries))
        self.trace(f"per_cpu/cpu{cpu}/trace_pipe_raw", b"".join(pages))

    def with_pairs(self) -> None:
        """The kernel has events at both ends of a stall, those of mmu_notifier."""
        for end, text in PAIRS.items():
            name = f"mmu_notifier/mmu_notifier_callback_{end}"
            self.write(f"sys/kernel/tracing/events/{name}/format", text)
            for file in ("enable", "filter"):
                self.trace(f"events/{name}/{file}", "")

    def pairs(self, cpu: int, *ends: tuple[str, int, int]) -> None:
        """Records of those: (begin or end, when, thread) in order."""
        entries, before = [], ends[0][1]
        for end, t, tid in ends:
            layout = parse_layout(PAIRS[end], "mmu_notifier")
            fields = {"subscription": tid, "function": 1, "pass": 1}
            entries.append(entry(t - before, record(layout, tid, fields)))
            before = t
        self.trace(f"per_cpu/cpu{cpu}/trace_pipe_raw", page(ends[0][1], entries))

    def process(
        self,
        pid: int,
        comm: str = "python3",
        group: str = "/t",
        environ: bytes = b"",
        threads: int = 0,
    ) -> None:
        """A process, or with threads some more of its."""
        for number in range(threads + 1):
            tid = pid + number
            where = [f"proc/{pid}/task/{tid}", f"proc/{tid}"]
            for here in where:
                rest = " ".join(["S", *(["0"] * 18), "123", "0"])
                self.write(f"{here}/stat", f"{tid} ({comm}) {rest}\n")
                self.write(f"{here}/comm", f"{comm}\n")
                self.write(f"{here}/cgroup", f"0::{group}\n")
                self.write(f"{here}/status", f"Name:\t{comm!r}\nTgid:\t{pid}\n")
        self.write(f"proc/{pid}/environ", environ)

    def group(self, name: str, throttled_usec: int, local: int | None = None) -> int:
        """A cgroup with a quota; its id."""
        here = f"sys/fs/cgroup/{name}"
        self.write("sys/fs/cgroup/cgroup.controllers", "cpu\n")
        self.write(f"{here}/cpu.max", "20000 100000\n")
        stat = f"usage_usec 1\nnr_throttled 1\nthrottled_usec {throttled_usec}\n"
        self.write(f"{here}/cpu.stat", stat)
        if local is not None:
            self.write(f"{here}/cpu.stat.local", f"throttled_usec {local}\n")
        return (self.root / here).stat().st_ino

    def last(self, name: str) -> str:
        """What was written last into a file of the instance: all is appended."""
        return (self.instance / name).read_text()[-1:]
