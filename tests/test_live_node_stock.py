# SPDX-License-Identifier: GPL-2.0-or-later
"""kstall-node on a kernel that has none of our events: what it finds, and oracles.

The kernel is the base that drm-sched is compared with: mainline as it was fetched.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from kstall.base import cache
from kstall.debian import Root
from kstall.guest import guestrun
from kstall.guest.guest import Accel, Machine, Share, boot
from kstall.guest.monitor import Command, Step
from kstall_ops import seal, store
from live import Outcome
from test_live_node import packed

pytestmark = [pytest.mark.live, pytest.mark.deep]

MACHINE = Machine(
    cpus=2,
    append=("pcie_ports=native", "intel_iommu=on", "iommu.strict=1"),
    devices=(
        *("-device", "intel-iommu,intremap=off,caching-mode=off"),
        *("-device", "pcie-root-port,id=rp0,bus=pcie.0,addr=10.0,chassis=1,slot=1"),
        *("-device", "x3130-upstream,id=up,bus=rp0"),
        *("-device", "xio3130-downstream,id=d0,bus=up,addr=0,chassis=2,slot=2"),
        *("-device", "xio3130-downstream,id=d1,bus=up,addr=1,chassis=3,slot=3"),
        *("-device", "virtio-rng-pci,id=ep0,bus=d0,aer=on"),
        *("-device", "virtio-rng-pci,id=ep1,bus=d1,aer=on"),
        *("-blockdev", "null-co,node-name=disk,size=16777216,read-zeroes=on"),
        "-device",
        "virtio-blk-pci,drive=disk,serial=dma,iommu_platform=on,disable-legacy=on",
    ),
)


def _inject(name: str, words: str, device: str) -> Step:
    said = f"pcie_aer_inject_error {words}"
    return Step(
        "stock", name, (Command(said, {}, human=True, reply=f"OK id: {device} .*"),)
    )


STEPS = (
    _inject("ep0", "-c ep0 0x1", "ep0"),
    _inject("ep1", "-c ep1 0x1", "ep1"),
    _inject("nonfatal", "ep0 0x4000", "ep0"),
)


def run(
    kernel: Path, root: Root, project: Path, out: Path
) -> list[tuple[dict[str, Any], Path]]:
    """Each case, and its store."""
    share = out / "share"
    share.mkdir(parents=True)
    packed(project, share / "kstall-node")
    scripts = project / "scripts/workloads"
    shutil.copy2(scripts / "operator/stock.py", share)
    for program in ("io_uring-sq/sq-pressure", "mm-migrate/kvm"):
        name = Path(program).name
        guestrun.compile_program(scripts / program, share / name, out / "cc.log")
    shutil.copytree(project / "harness/kstall_guest", share / "harness/kstall_guest")
    shutil.copytree(kernel / "modules", share / "modules", symlinks=True)
    ran = boot(
        kernel / "bzImage",
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
        deadline=400.0,
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
    ("throttle", ""): "throttle/threads",
    ("throttle", "throttle/queues"): "throttle/queues",
    ("throttle", "throttle/clock"): "throttle/clock",
    ("io_uring", ""): "io_uring/wait",
    ("mmu", ""): "mmu/start",
    ("aer", ""): "ras:aer_event",
    ("iotlb", ""): "iotlb/intel",
}
LOST = {
    # What the fallback cannot know is NULL, not 0.
    **{"throttle/queues": "tid", "throttle/clock": "tid", "iotlb/intel": "device"},
    **{"mmu/start": "join_key", "ras:aer_event": "tid", "io_uring/wait": "value1"},
}


def test_a_stock_kernel(
    project_root: Path, proven: Outcome, guest_root: Root, tmp_path: Path
) -> None:
    costs = proven.report.series[0].overhead
    assert costs is not None
    key = costs.base_kernel
    assert key is not None, proven.said
    kernel = cache.default_dir() / "kernels" / key
    judged(run(kernel, guest_root, project_root, tmp_path / "out"))


def judged(cases: list[tuple[dict[str, Any], Path]]) -> None:
    """The provider, the truth, the oracle, and what is NULL."""
    assert {(said["cls"], said["provider"]) for said, _ in cases} == set(USED)
    for said, made in cases:
        cls, truth = said["cls"], said["truth"]
        name = USED[cls, said["provider"]]
        assert truth, said["said"]
        assert ask(made, "SELECT DISTINCT provider FROM stall") == [(name,)], said
        oracles = ask(made, "SELECT verdict FROM oracle")
        assert oracles and set(oracles) == {("agrees",)}, said["said"]
        if name in LOST:
            assert (
                ask(made, f"SELECT 1 FROM stall WHERE {LOST[name]} IS NOT NULL") == []
            )
        assert ask(made, "SELECT 1 FROM loss") == []
        ((count, total),) = ask(made, "SELECT count(*), sum(dur) FROM stall")
        if cls == "throttle":
            ((_, theirs),) = ask(made, "SELECT scope, theirs FROM oracle")
            assert abs(theirs - truth["usec"] * 1000) <= 1000
        elif cls == "io_uring":
            assert count >= 3 and total >= 2 * 200_000_000
        elif cls == "aer":
            assert count == truth["asked"] == truth["counted"]
        elif cls == "iotlb":
            # A page a read, and a mapping is gone before the next one is made.
            assert count >= truth
        else:
            assert count >= 1 and total > 0
