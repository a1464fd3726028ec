#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""`kstall-node record` on a kernel without our events, class by class.

    stock.py NODE OUT MODULES

For each class something stalls while the recorder uses what the kernel offers, and the
truth is printed: a JSON line each.
"""

from __future__ import annotations

import json
import mmap
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from kstall_guest import monitor

HERE = Path(__file__).resolve().parent
TOP = Path("/sys/fs/cgroup")
DEVICES = Path("/sys/bus/pci/devices")
READS = 64


def io_uring(_: str) -> object:
    """Submitters that wait for room: their own account of the waits."""
    process = subprocess.run(
        [HERE / "sq-pressure", "wait", "wait-two", "press=8,500"],
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )
    return [json.loads(line) for line in process.stdout.splitlines()]


def mmu(modules: str) -> object:
    """Pages of a virtual machine move."""
    process = subprocess.run(
        [HERE / "kvm", "32", modules], stdout=subprocess.PIPE, check=True, text=True
    )
    return process.stdout.splitlines()


def totals() -> int:
    """The errors that sysfs has counted, of all devices and kinds."""
    total = 0
    for path in DEVICES.glob("*/aer_dev_*"):
        for line in path.read_text().splitlines():
            if line.startswith("TOTAL_ERR_"):
                total += int(line.split()[1])
    return total


def aer(_: str) -> object:
    """Errors that QEMU's monitor injects."""
    os.environ["KSTALL_WORKLOAD"] = "stock-1"
    before = totals()
    for step in ("ep0", "ep1", "ep0", "nonfatal"):
        monitor.ask(step)
        time.sleep(0.5)
    return {"asked": 4, "counted": totals() - before}


def iotlb(_: str) -> object:
    """Reads of a disk behind an IOMMU."""
    (disk,) = [
        Path("/dev") / path.parent.name
        for path in Path("/sys/block").glob("vd*/serial")
        if path.read_text().strip() == "dma"
    ]
    handle = os.open(disk, os.O_RDONLY | os.O_DIRECT)
    with mmap.mmap(-1, 4096) as page:
        for number in range(READS):
            os.preadv(handle, [page], 4096 * number)
    os.close(handle)
    return READS


def throttle_for_long(modules: str) -> object:
    """So long that the recorder compares with the oracle meanwhile, and goes on."""
    return throttle(modules, 24)


def throttle(_: str, seconds: float = 4) -> object:
    """Two processes that use up a quota."""
    group = TOP / "kstall-stock"
    (TOP / "cgroup.subtree_control").write_text("+cpu")
    group.mkdir()
    (group / "cpu.max").write_text("20000 100000")
    pids = []
    for cpu in (0, 1):
        pid = os.fork()
        if pid == 0:
            os.sched_setaffinity(0, {cpu})
            (group / "cgroup.procs").write_text(str(os.getpid()))
            while True:
                pass
        pids.append(pid)
    time.sleep(seconds)
    (group / "cpu.max").write_text("max")
    time.sleep(0.5)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    counters = dict(
        line.split() for line in (group / "cpu.stat").read_text().splitlines()
    )
    # main() removes the group: the recorder needs it as an oracle until its end.
    os.environ["KSTALL_GROUP"] = str(group)
    return {"group": group.stat().st_ino, "usec": int(counters["throttled_usec"])}


CASES: tuple[tuple[str, str, Callable[[str], object]], ...] = (
    ("throttle", "", throttle_for_long),
    ("throttle", "throttle/queues", throttle),
    ("throttle", "throttle/clock", throttle),
    ("io_uring", "", io_uring),
    ("mmu", "", mmu),
    ("aer", "", aer),
    ("iotlb", "", iotlb),
)


def main() -> None:
    """Each in turn; one that fails does not stop the others."""
    node, out, modules = sys.argv[1:]
    for number, (cls, provider, act) in enumerate(CASES):
        words = [node, "record", "-o", f"{out}/{number}", "--class", cls]
        words += ["--provider", provider] if provider else []
        recorder = subprocess.Popen(
            [sys.executable, *words], stderr=subprocess.PIPE, text=True
        )
        assert recorder.stderr is not None
        log = ""
        for line in recorder.stderr:
            log += line
            if "recording into" in line:
                break
        truth: object = None
        try:
            truth = act(modules)
        except (OSError, subprocess.CalledProcessError, ValueError) as error:
            log += f"workload: {error}\n"
        recorder.send_signal(signal.SIGINT)
        log += recorder.communicate(timeout=60)[1]
        if "KSTALL_GROUP" in os.environ:
            Path(os.environ.pop("KSTALL_GROUP")).rmdir()
        facts = {"cls": cls, "provider": provider, "truth": truth, "said": log}
        print(json.dumps({"number": number, "status": recorder.returncode, **facts}))
        sys.stdout.flush()


if __name__ == "__main__":
    main()
