# SPDX-License-Identifier: GPL-2.0-or-later
"""kstall-node on Debian's own kernels, which have none of our events.

What it finds there, what each fallback's oracle says, and what is NULL.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import stock
from kstall.debian import Root
from kstall.guest import guestrun
from kstall.guest.guest import Accel, Machine, Share
from kstall.guest.monitor import MonitorStep, QemuCommand
from kstall_ops import seal, store
from test_live_node import packed

pytestmark = [pytest.mark.live, pytest.mark.deep]

MACHINE = Machine(
    cpus=2,
    append=("pcie_ports=native", "intel_iommu=on", "iommu.strict=1"),
    devices=(
        *("-device", "intel-iommu,intremap=off,caching-mode=off"),
        *(
            "-device",
            "pcie-root-port,id=rp0,bus=pcie.0,addr=10.0,chassis=1,slot=1,hotplug=off",
        ),
        *("-device", "x3130-upstream,id=up,bus=rp0"),
        *(
            "-device",
            "xio3130-downstream,id=d0,bus=up,addr=0,chassis=2,slot=2,hotplug=off",
        ),
        *(
            "-device",
            "xio3130-downstream,id=d1,bus=up,addr=1,chassis=3,slot=3,hotplug=off",
        ),
        *("-device", "virtio-rng-pci,id=ep0,bus=d0,aer=on"),
        *("-device", "virtio-rng-pci,id=ep1,bus=d1,aer=on"),
        *("-blockdev", "null-co,node-name=disk,size=16777216,read-zeroes=on"),
        "-device",
        "virtio-blk-pci,drive=disk,serial=dma,iommu_platform=on,disable-legacy=on",
    ),
)


def _inject(name: str, words: str, device: str) -> MonitorStep:
    said = f"pcie_aer_inject_error {words}"
    return MonitorStep(
        "stock", name, (QemuCommand(said, {}, human=True, reply=f"OK id: {device} .*"),)
    )


STEPS = (
    _inject("ep0", "-c ep0 0x1", "ep0"),
    _inject("ep1", "-c ep1 0x1", "ep1"),
    _inject("nonfatal", "ep0 0x4000", "ep0"),
)


def run(
    kernel: stock.Stock, root: Root, project: Path, out: Path
) -> list[tuple[dict[str, Any], Path]]:
    """Each case, and its store."""
    share = out / "share"
    share.mkdir(parents=True)
    packed(project, share / "kstall-node")
    scripts = project / "scripts/workloads"
    shutil.copy2(scripts / "operator/stock.py", share)
    for program in ("io_uring-sq/sq-pressure", "mm-migrate/kvm"):
        name = Path(program).name
        log = out / "cc.log"
        guestrun.compile_program(scripts / program, share / name, log, root.arch)
    shutil.copytree(project / "harness/kstall_guest", share / "harness/kstall_guest")
    shutil.copytree(kernel.modules / "lib", share / "modules/lib")
    ran = stock.boot(
        kernel,
        root,
        Accel("tcg", "for the test"),
        MACHINE,
        (Share("/run/share", share, writable=True),),
        (
            *("env", "PYTHONPATH=/run/share/harness", "python3"),
            *("/run/share/stock.py", "/run/share/kstall-node"),
            *("/run/share/rec", "/run/share/modules"),
        ),
        out=out / "guest",
        deadline=600.0,
        say=print,
        steps=STEPS,
    )
    printed = (out / "guest/job.log").read_text()
    assert (ran.status, ran.exit_status) == ("completed", 0), printed
    found = []
    for line in printed.splitlines():
        if line.startswith("{"):
            said = json.loads(line)
            assert said["status"] == 0, said["said"]
            (rec,) = (share / "rec" / str(said["number"])).iterdir()
            made = out / f"{said['number']}.duckdb"
            seal.seal([rec], made)
            found.append((said, made))
    return found


def ask(made: Path, sql: str) -> list[tuple[Any, ...]]:
    """Rows."""
    _, rows, _ = store.query(made, sql)
    return [tuple(row) for row in rows]


USED = {
    ("throttle", ""): ["throttle/threads"],
    ("throttle", "throttle/queues"): ["throttle/queues"],
    ("throttle", "throttle/clock"): ["throttle/clock"],
    ("io_uring", ""): ["io_uring/wait"],
    ("mmu", ""): ["mmu/start"],
    ("aer", ""): ["ras:aer_event"],
    ("iotlb", ""): ["iotlb/intel"],
}
#: There a queue's clock is behind when it is read: a recipe that is refused meanwhile,
#: and another one takes its place.
OLD = USED | {("throttle", ""): ["throttle/clock", "throttle/queues"]}
LIAR = "throttle/clock"
LOST = {
    # What the fallback cannot know is NULL, not 0.
    "throttle/queues": "tid",
    "throttle/clock": "tid",
    "iotlb/intel": "device",
    "mmu/start": "join_key",
    "ras:aer_event": "tid",
    "io_uring/wait": "value1",
}


@pytest.mark.parametrize(("version", "used"), [("7.3", USED), ("6.12", OLD)])
def test_a_stock_kernel(
    project_root: Path,
    tmp_path: Path,
    version: str,
    used: dict[tuple[str, str], list[str]],
) -> None:
    kernel = stock.obtain(version, tmp_path / "kernel")
    root = stock.guest_root(project_root, tmp_path / "root.log")
    judged(run(kernel, root, project_root, tmp_path / "out"), used)


def judged(
    cases: list[tuple[dict[str, Any], Path]], used: dict[tuple[str, str], list[str]]
) -> None:
    """The provider, the truth, the oracle, and what is NULL."""
    assert {(said["cls"], said["provider"]) for said, _ in cases} == set(used)
    lies = used is OLD
    for said, made in cases:
        cls, truth = said["cls"], said["truth"]
        names = used[cls, said["provider"]]
        assert truth, said["said"]
        found = ask(made, "SELECT DISTINCT provider FROM stall ORDER BY 1")
        assert found == [(name,) for name in names], said["said"]
        oracles = ask(made, "SELECT DISTINCT provider, verdict FROM oracle ORDER BY 1")
        wanted = [
            (name, "disagrees" if lies and name == LIAR else "agrees") for name in names
        ]
        assert oracles == wanted, said["said"]
        for name in set(names) & set(LOST):
            assert (
                ask(made, f"SELECT 1 FROM stall WHERE {LOST[name]} IS NOT NULL") == []
            )
        # Of what was refused all that was recorded counts as lost.
        losses = [(f"refused {names[0]}",)] if len(names) > 1 else []
        assert ask(made, "SELECT reason FROM loss") == losses, said["said"]
        ((count, total),) = ask(made, "SELECT count(*), sum(dur) FROM stall")
        if cls == "throttle":
            _throttled(made, names[-1], truth, whole=len(names) == 1)
        elif cls == "io_uring":
            assert count >= 3 and total >= 2 * 200_000_000
        elif cls == "aer":
            assert count == truth["asked"] == truth["counted"]
        elif cls == "iotlb":
            # A page a read, and a mapping is gone before the next one is made.
            assert count >= truth
        else:
            assert count >= 1 and total > 0


def _throttled(made: Path, name: str, truth: dict[str, int], *, whole: bool) -> None:
    """What it is compared with is what cpu.stat says to others, too."""
    rows = ask(
        made, f"SELECT ours, theirs, verdict FROM oracle WHERE provider='{name}'"
    )
    ((ours, theirs, verdict),) = rows
    if whole:
        assert abs(theirs - truth["usec"] * 1000) <= 1000
    else:
        # Since it took the other one's place.
        assert 0 < theirs < truth["usec"] * 1000
    if verdict == "disagrees":
        # A published recipe, by which the kernel would have told a part of it.
        assert ours < 0.9 * theirs
    else:
        assert abs(ours - theirs) <= 0.02 * theirs
