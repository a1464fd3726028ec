# SPDX-License-Identifier: GPL-2.0-only
"""Devices behind an IOMMU, programs that have them map memory, and what they know."""

from __future__ import annotations

import bisect
import ctypes
import dataclasses
import fcntl
import itertools
import mmap
import os
import platform
import re
import struct
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from kstall_guest import own, waiting
from kstall_guest.errors import LostEvents
from kstall_guest.workload import complain

PAGE = mmap.PAGESIZE
HUGE = 2 << 20
#: Longer than a flush queue waits by far, so that one that is left alone is empty.
DRAIN_S = 0.5
TRACING = Path("/sys/kernel/tracing")


@dataclasses.dataclass(frozen=True)
class Iommu:
    """The functions of a driver: ``sync`` invalidates what was gathered, ``flush`` all
    of a domain.  ``flushing`` is slowed down for a longer flush: ``flush`` itself, or
    one that it calls.  ``walk``, where there is one, invalidates in the course of an
    unmapping what led to a table that is freed."""

    sync: str
    flush: str
    flushing: str
    walk: str | None = None


#: The IOMMU of QEMU's machine.
IOMMU = {
    "x86_64": Iommu(
        "intel_iommu_tlb_sync", "intel_flush_iotlb_all", "intel_flush_iotlb_all"
    ),
    # Kprobes do not use ftrace there: one at the entry of a function runs before an
    # fprobe, so that its time would not count as the flush's.
    "aarch64": Iommu(
        "arm_smmu_iotlb_sync",
        "arm_smmu_flush_iotlb_all",
        "arm_smmu_domain_inv_range",
        "arm_smmu_tlb_inv_walk",
    ),
}[platform.machine()]


class Pci:
    """A PCI device, the driver that it is for, and the domain that it is in."""

    def __init__(self, path: Path, driver: str) -> None:
        self.path = path
        self.driver = driver

    def type(self) -> str:
        """The type of its domain, as the kernel calls it."""
        return (self.path / "iommu_group/type").read_text().strip()

    def set_type(self, kind: str) -> None:
        """Change the domain's type; but for DMA to DMA-FQ it must not be bound."""
        (self.path / "iommu_group/type").write_text(kind)
        if self.type() != kind:
            raise OSError(f"the domain is {self.type()}, not {kind}")

    def renew(self, kind: str) -> None:
        """Give it a new domain of this type, and its driver back."""
        if (self.path / "driver").exists():
            (self.path / "driver/unbind").write_text(self.path.name)
        # A domain that is of this type already would stay.
        self.set_type("DMA" if kind == "identity" else "identity")
        self.set_type(kind)
        (self.path / "driver_override").write_text(self.driver)
        Path("/sys/bus/pci/drivers_probe").write_text(self.path.name)
        wait_for((self.path / "driver").exists)


def _find(name: str, value: str) -> Path:
    for path in sorted(Path("/sys/bus/pci/devices").iterdir()):
        if (path / name).read_text().startswith(value):
            return path
    raise OSError(f"no PCI device with {name} {value}")


def edu() -> Pci:
    """QEMU's device for lessons; the kernel's DMA map benchmark may have it."""
    return Pci(_find("device", "0x11e8"), "dma_map_benchmark")


def nvme() -> Pci:
    """The NVMe controller."""
    return Pci(_find("class", "0x010802"), "nvme")


def wait_for(holds: Any) -> Any:
    """Poll until the result is true, and return it."""
    # Devices and drivers come without the patches, too.
    value = waiting.until(holds, 60.0, "device")
    if not value:
        raise TimeoutError("the device was not ready within a minute")
    return value


class Benchmark:
    """DMA_MAP_BENCHMARK of a device: a thread that maps and unmaps."""

    _FORMAT = "QQQQIIiIIIIB75x"
    _IOCTL = 0xC0000000 | struct.calcsize(_FORMAT) << 16 | ord("d") << 8 | 1
    _FROM_DEVICE = 2

    def __init__(self, device: Pci) -> None:
        self.path = Path("/sys/kernel/debug/dma_map_benchmark")
        wait_for(self.path.exists)
        self.device = device

    def run(
        self,
        granule: int,
        *,
        scattered: bool = False,
        pause_ns: int = 0,
        seconds: int = 1,
        threads: int = 1,
    ) -> dict[str, object]:
        """Map and unmap ``granule`` pages at a time; the averages, in 100 ns."""
        request = struct.pack(
            self._FORMAT, 0, 0, 0, 0, threads, seconds, -1, 32, self._FROM_DEVICE,
            pause_ns, granule, scattered,
        )  # fmt: skip
        with self.path.open("rb") as file:
            answer = fcntl.ioctl(file, self._IOCTL, request)
        fields = struct.unpack(self._FORMAT, answer)
        return {"avg_map_100ns": fields[0], "avg_unmap_100ns": fields[2]}


class Buffer:
    """Memory to read into: pages, and where they are in physical memory."""

    def __init__(self, memory: mmap.mmap, offsets: list[int]) -> None:
        self.memory = memory
        self.offsets = offsets
        self.pieces: list[memoryview] = []
        view = memoryview(memory)
        for begin, end in _joined(offsets):
            self.pieces.append(view[begin:end])

    @classmethod
    def scattered(cls, count: int) -> Buffer:
        """Every second page of an area without huge pages."""
        memory = mmap.mmap(-1, 2 * count * PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        memory.madvise(mmap.MADV_NOHUGEPAGE)
        memory.write(b"\1" * len(memory))
        return cls(memory, list(range(0, len(memory), 2 * PAGE)))

    @classmethod
    def adjacent(cls, count: int) -> Buffer:
        """Pages of one huge page."""
        memory = mmap.mmap(-1, 2 * HUGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        memory.madvise(mmap.MADV_HUGEPAGE)
        memory.write(b"\1" * len(memory))
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        begin = -address % HUGE
        return cls(memory, list(range(begin, begin + count * PAGE, PAGE)))

    def frames(self) -> list[int]:
        """The number of each page's frame."""
        address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        frames = []
        pagemap = os.open("/proc/self/pagemap", os.O_RDONLY)
        for offset in self.offsets:
            entry = os.pread(pagemap, 8, (address + offset) // PAGE * 8)
            frames.append(int.from_bytes(entry, "little") & ((1 << 55) - 1))
        os.close(pagemap)
        return frames

    def runs(self, window: int) -> list[int]:
        """Of each ``window`` bytes: how many physically contiguous pieces they are."""
        frames = self.frames()
        step = window // PAGE
        return [
            1 + sum(b != a + 1 for a, b in itertools.pairwise(part))
            for part in (frames[at : at + step] for at in range(0, len(frames), step))
        ]


def _joined(offsets: list[int]) -> list[tuple[int, int]]:
    """The areas that these pages form: adjacent ones are a single piece."""
    areas: list[tuple[int, int]] = []
    for offset in offsets:
        if areas and areas[-1][1] == offset:
            areas[-1] = (areas[-1][0], offset + PAGE)
        else:
            areas.append((offset, offset + PAGE))
    return areas


class Disk:
    """The block device of an NVMe controller, read past the page cache."""

    def __init__(self, device: Pci) -> None:
        stats = wait_for(lambda: list(device.path.glob("nvme/nvme*/nvme*n*/stat")))
        self.sysfs = stats[0].parent
        self.path = Path("/dev") / self.sysfs.name
        wait_for(self.path.exists)
        # Until nobody looks for partitions any more.
        wait_for(self._quiet)
        kib = int((self.sysfs / "queue/max_sectors_kb").read_text())
        self.most = kib * 1024

    def _quiet(self) -> bool:
        before = self._done()
        time.sleep(0.5)
        return before == self._done()

    def _done(self) -> tuple[int, int]:
        """Reads and sectors so far, as the block layer counts them."""
        words = (self.sysfs / "stat").read_text().split()
        return int(words[0]), int(words[2])

    def read(self, buffer: Buffer, count: int) -> dict[str, object]:
        """Fill the buffer ``count`` times, one read after the other."""
        runs = buffer.runs(self.most)
        before = self._done()
        file = os.open(self.path, os.O_RDONLY | os.O_DIRECT)
        got = 0
        for number in range(count):
            size = len(buffer.offsets) * PAGE
            got += os.preadv(file, buffer.pieces, number * size)
        os.close(file)
        after = self._done()
        return {
            "bytes": got,
            "most": self.most,
            "requests": after[0] - before[0],
            "sectors": after[1] - before[1],
            "runs": runs * count,
            "runs_after": buffer.runs(self.most) * count,
        }


class Trace:
    """An instance of ftrace that this program has for itself."""

    def __init__(self, name: str) -> None:
        self.path = TRACING / "instances" / name

    def __enter__(self) -> Trace:
        self.path.mkdir()
        (self.path / "trace_clock").write_text("mono")
        (self.path / "buffer_size_kb").write_text("8192")
        return self

    def enable(self, event: str, on: bool) -> None:
        """Switch ``system/event`` on or off."""
        (self.path / "events" / event / "enable").write_text("1" if on else "0")

    def _stats(self, words: str, cpu: str = "*") -> int:
        paths = self.path.glob(f"per_cpu/cpu{cpu}/stats")
        stats = "".join(path.read_text() for path in paths)
        return sum(map(int, re.findall(rf"(?m)^(?:{words}): (\d+)$", stats)))

    def count(self, cpu: str = "*") -> int:
        """How many events there were, with those that found no room any more; of all
        processors or of one."""
        return self._stats("entries|overrun", cpu)

    def lines(self) -> list[str]:
        """What was traced; raises if the buffer was too small for it."""
        if lost := self._stats("overrun"):
            error = LostEvents(f"{self.path.name}: {lost} events lost")
            complain(error)
            raise error
        text = (self.path / "trace").read_text()
        return [line for line in text.splitlines() if not line.startswith("#")]

    def __exit__(self, *_: object) -> None:
        self.path.rmdir()


#: Of the probes that programs define.
GROUP = "kstall"


def define(line: str) -> None:
    """Make or remove a probe, by a line as dynamic_events takes it.

    These are fprobes: a kprobe is missed in an interrupt that comes during another
    kprobe.
    """
    # Python's own append mode seeks to the end, which tracefs does not allow.
    file = os.open(TRACING / "dynamic_events", os.O_WRONLY | os.O_APPEND)
    os.write(file, f"{line}\n".encode())
    os.close(file)


class Probes:
    """An unmapping of the DMA API, as probes see it: whose device it is, both ends of
    iommu_unmap_fast() and of the driver's part of an invalidation.

    ``waits`` has [asked, device, unmap begin, unmap end, sync begin, sync end, first
    IOVA, last IOVA, domain] of each that was invalidated: whole microseconds, and the
    name that the device's kobject has.  ``walks`` has [begin, end, first IOVA, size] of
    what the driver invalidated while it unmapped, whether or not it is gathered, too.
    ``entered`` has [time, name] of each function of ``others`` that began, ``lazy`` the
    times at which a domain had got its queues.
    """

    #: The functions that are given a device, and unmap its memory.
    _ENTRIES = (
        *("iommu_dma_unmap_phys", "iommu_dma_unmap_sg", "dma_iova_unlink"),
        # Before 7.3 it does not call dma_iova_unlink().
        "dma_iova_destroy",
        # A driver that lets its device go frees its coherent memory.
        "iommu_dma_free",
    )
    # struct iommu_iotlb_gather: start, end
    _FETCH = "first=+0($arg2):x64 last=+8($arg2):x64 domain=$arg1:x64"
    # struct device begins with its kobject, which begins with its name.
    _NAME = "device=+0(+0($arg1)):string"

    def __init__(self, *others: str) -> None:
        self.trace = Trace("kstall-probes")
        self.waits: list[tuple[int, str, int, int, int, int, int, int, int]] = []
        self.walks: list[list[int]] = []
        self.entered: list[tuple[int, str]] = []
        self.lazy: list[int] = []
        self._others = others
        self._probes = {
            "begin": f"f:{GROUP}/begin iommu_unmap_fast",
            "end": f"f:{GROUP}/end iommu_unmap_fast%return",
            "in": f"f:{GROUP}/in {IOMMU.sync} {self._FETCH}",
            "out": f"f:{GROUP}/out {IOMMU.sync}%return",
            "lazy": f"f:{GROUP}/lazy iommu_dma_init_fq%return",
        }
        if IOMMU.walk is not None:
            self._probes |= {
                "walk": f"f:{GROUP}/walk {IOMMU.walk} iova=$arg1:x64 size=$arg2:x64",
                "walked": f"f:{GROUP}/walked {IOMMU.walk}%return",
            }
        self._probes |= {
            name: f"f:{GROUP}/{name} {name} {self._NAME}"
            for name in (*self._ENTRIES, *others)
        }

    def __enter__(self) -> Probes:
        for probe in self._probes.values():
            define(probe)
        self.trace.__enter__()
        for name in self._probes:
            self.trace.enable(f"{GROUP}/{name}", True)
        return self

    def __exit__(self, *_: object) -> None:
        for name in self._probes:
            self.trace.enable(f"{GROUP}/{name}", False)
        try:
            self._read(self.trace.lines())
        finally:
            self.trace.__exit__()
            for name in self._probes:
                define(f"-:{GROUP}/{name}")

    def _read(self, lines: list[str]) -> None:
        names = "|".join(self._probes)
        pattern = re.compile(
            rf"^\s*(.*?)\s+\[\d+\] (\S+)\s+(\d+)\.(\d+): ({names}): (.*)"
        )
        seen: dict[str, _Seen] = {}
        for line in lines:
            match = pattern.match(line)
            if match is None:
                raise OSError(f"not an event: {line!r}")
            at, name = int(match[3]) * 1_000_000 + int(match[4]), match[5]
            if name in self._others:
                self.entered.append((at, name))
            if name == "lazy":
                self.lazy.append(at)
                continue
            # What is interrupted goes on afterwards, as does what lost the CPU.
            context = next((bit for bit in "Hhs" if bit in match[2]), match[1])
            unmap = seen.setdefault(context, _Seen())
            values = [int(word, 16) for word in re.findall(r"=0x(\w+)", match[6])]
            if name == "begin":
                unmap.begin, unmap.end, unmap.sync, unmap.walks = at, 0, 0, []
            elif name == "end":
                unmap.end = at
            elif name == "in" and unmap.end:
                unmap.sync = at
                unmap.given = values
            elif name == "walk":
                unmap.walks.append([at, 0, *values])
            elif name == "walked" and unmap.walks:
                unmap.walks[-1][1] = at
                self.walks.append(unmap.walks[-1])
            elif name == "out" and unmap.sync:
                first, last, domain = unmap.given
                # What was invalidated with a table need not be gathered.
                for _, _, iova, size in unmap.walks:
                    first = min(first, iova)
                    last = max(last, iova + size - 1)
                self.waits.append(
                    (
                        unmap.asked, unmap.device, unmap.begin, unmap.end,
                        unmap.sync, at, first, last, domain,
                    )
                )  # fmt: skip
                del seen[context]
            elif name in self._ENTRIES:
                unmap.asked = at
                unmap.device = match[6].rpartition("device=")[2].strip('"')


@dataclasses.dataclass
class _Seen:
    """What probes saw so far of an unmapping that is under way."""

    asked: int = 0
    device: str = ""
    begin: int = 0
    end: int = 0
    sync: int = 0
    walks: list[list[int]] = dataclasses.field(default_factory=list)
    given: list[int] = dataclasses.field(default_factory=list)


class Iovas:
    """Where the DMA API takes IOVA space, where it gives it back, and when the driver
    begins to flush all that a queue has.

    ``taken`` and ``freed`` have [time, pages] of each, ``flushed`` has times: whole
    microseconds.
    """

    def __init__(self) -> None:
        self.trace = Trace("kstall-iovas")
        self.taken: list[tuple[int, int]] = []
        self.freed: list[tuple[int, int]] = []
        self.flushed: list[int] = []
        self._probes = {
            "taken": f"f:{GROUP}/taken alloc_iova_fast pages=$arg2:u64",
            "freed": f"f:{GROUP}/freed free_iova_fast pages=$arg3:u64",
            "flushed": f"f:{GROUP}/flushed {IOMMU.flush}",
        }

    def __enter__(self) -> Iovas:
        for probe in self._probes.values():
            define(probe)
        self.trace.__enter__()
        for name in self._probes:
            self.trace.enable(f"{GROUP}/{name}", True)
        return self

    def __exit__(self, *_: object) -> None:
        for name in self._probes:
            self.trace.enable(f"{GROUP}/{name}", False)
        try:
            self._read(self.trace.lines())
        finally:
            self.trace.__exit__()
            for name in self._probes:
                define(f"-:{GROUP}/{name}")

    def _read(self, lines: list[str]) -> None:
        for line in lines:
            match = re.search(r" (\d+)\.(\d+): (taken|freed|flushed): (.*)", line)
            if match is None:
                raise OSError(f"not an event: {line!r}")
            at = int(match[1]) * 1_000_000 + int(match[2])
            if match[3] == "flushed":
                self.flushed.append(at)
                continue
            times = self.taken if match[3] == "taken" else self.freed
            times.append((at, int(match[4].rpartition("pages=")[2])))


#: Makes a function on processor 0 slower: a BPF program may not wait, but it may walk
#: through a map.
_SLOW = """
BEGIN {
	$at = 0;
	while ($at < 4000) { @steps[$at] = 0; $at++; }
}
kprobe:FUNCTION / cpu == 0 / {
	for ($step : @steps) { @last = nsecs; }
}
END { clear(@steps); }
"""


def slowed(function: str) -> AbstractContextManager[object]:
    """Calls of this function on processor 0 take longer meanwhile."""
    return own.bpftrace("slow", _SLOW.replace("FUNCTION", function), skips=True)


_OF_FLUSHES = {
    "timer": "f:{} fq_flush_timeout",
    "over": "f:{} fq_flush_timeout%return",
    "asked": "f:{} iommu_dma_unmap_phys",
    "flush": f"f:{{}} {IOMMU.flush} domain=$arg1:x64",
    "flushed": f"f:{{}} {IOMMU.flush}%return",
    "free": "f:{} free_iova_fast",
}


class FlushProbes:
    """What a flush of a queue calls: the driver's flush, and what frees each IOVA.

    ``flushes`` has [timer, domain, begin, end, first, last, freed, cpu] of each: when
    the timer's function began (0: it was not the timer), both ends of the driver's
    flush, when the first and when the last IOVA was freed (0: none), all in whole
    microseconds, how many were, and on which processor.  ``others`` says how many were
    freed by no flush.
    """

    def __init__(self) -> None:
        self.trace = Trace("kstall-flushes")
        self.flushes: list[list[int]] = []
        self.others = 0

    def __enter__(self) -> FlushProbes:
        for name, probe in _OF_FLUSHES.items():
            define(probe.format(f"{GROUP}/{name}"))
        self.trace.__enter__()
        for name in _OF_FLUSHES:
            self.trace.enable(f"{GROUP}/{name}", True)
        return self

    def __exit__(self, *_: object) -> None:
        for name in _OF_FLUSHES:
            self.trace.enable(f"{GROUP}/{name}", False)
        try:
            self.flushes, self.others = self._flushes()
        finally:
            self.trace.__exit__()
            for name in _OF_FLUSHES:
                define(f"-:{GROUP}/{name}")

    def full(self, *cpus: int) -> bool:
        """Whether each of these has flushed a queue by now, and not by the timer."""
        flushes, _ = self._flushes()
        return all(any(not f[0] and f[7] == cpu for f in flushes) for cpu in cpus)

    def _flushes(self) -> tuple[list[list[int]], int]:
        flushes: list[list[int]] = []
        others = 0
        # Of each processor: when its timer began, and the flush that it is in.
        timers: dict[int, int] = {}
        under_way: dict[int, list[int]] = {}
        names = "|".join(_OF_FLUSHES)
        pattern = re.compile(rf" \[(\d+)\] .* (\d+)\.(\d+): ({names}): (.*)")
        for line in self.trace.lines():
            match = pattern.search(line)
            if match is None:
                raise OSError(f"not an event: {line!r}")
            cpu, name = int(match[1]), match[4]
            at = int(match[2]) * 1_000_000 + int(match[3])
            flush = under_way.get(cpu)
            if name == "timer":
                timers[cpu] = at
                under_way.pop(cpu, None)
            elif name == "flush":
                domain = int(match[5].rpartition("domain=0x")[2], 16)
                flush = [timers.pop(cpu, 0), domain, at, 0, 0, 0, 0, cpu]
                flushes.append(flush)
                under_way[cpu] = flush
            elif name == "flushed" and flush:
                flush[3] = at
            elif name == "free" and flush and flush[3]:
                flush[4] = flush[4] or at
                flush[5] = at
                flush[6] += 1
            elif name == "free":
                others += 1
            elif name == "over" or (name == "asked" and flush and not flush[0]):
                # Interrupts are disabled until a full queue has been freed, so that the
                # next unmapping on that processor comes after it.
                under_way.pop(cpu, None)
        return flushes, others


class Unmapped:
    """The DMA API's own event of an unmapping, which comes when that is done, outside
    interrupts.

    ``unmappings`` has [time, pid, device] of each, in whole microseconds, over all
    blocks that used this.
    """

    _PATTERN = re.compile(
        r"-(\d+)\s+\[\d+\] (\S+)\s+(\d+)\.(\d+): dma_unmap_phys: (\S+) "
    )

    def __init__(self) -> None:
        self.trace = Trace("kstall-unmapped")
        self.unmappings: list[tuple[int, int, str]] = []

    def __enter__(self) -> Unmapped:
        self.trace.__enter__()
        self.trace.enable("dma/dma_unmap_phys", True)
        return self

    def __exit__(self, *_: object) -> None:
        self.trace.enable("dma/dma_unmap_phys", False)
        for line in self.trace.lines():
            match = self._PATTERN.search(line)
            if match is None:
                raise OSError(f"not an event: {line!r}")
            if not set("Hhs") & set(match[2]):
                at = int(match[3]) * 1_000_000 + int(match[4])
                self.unmappings.append((at, int(match[1]), match[5]))
        self.trace.__exit__()

    def after(self, times: Sequence[int]) -> list[tuple[int, int, str]]:
        """The first one at or after each of these times."""
        return [
            self.unmappings[place]
            for place in (bisect.bisect_left(self.unmappings, (at,)) for at in times)
            if place < len(self.unmappings)
        ]
