# SPDX-License-Identifier: GPL-2.0-or-later
"""What recording costs, in instructions and bytes, for docs/recording.md."""

from __future__ import annotations

import dataclasses
import json
import shutil
import statistics
import time
from pathlib import Path
from typing import Any

import pytest

from kstall.base import cache
from kstall.build import Kernel, extra, kernel
from kstall.cost import counting
from kstall.debian import Root
from kstall.guest.guest import Accel, Machine, Share, boot
from kstall.series import Project, Series
from kstall_ops import seal, store
from live import validate
from test_live_node import packed

pytestmark = [pytest.mark.live, pytest.mark.deep]

ICOUNT = ("-icount", "shift=0,sleep=off,align=off")


def run(image: Path, root: Root, project: Path, out: Path) -> list[dict[str, Any]]:
    """What the guest printed."""
    share = out / "share"
    share.mkdir(parents=True)
    packed(project, share / "kstall-node")
    shutil.copy2(project / "scripts/workloads/operator/cost.py", share)
    ran = boot(
        image,
        root,
        Accel("tcg", "instructions are counted"),
        Machine(cpus=1, devices=ICOUNT),
        (Share("/run/share", share, writable=True),),
        # The files are on the guest's own memory: 9p would be half of the cost.
        (
            *("sh", "-c"),
            "python3 /run/share/cost.py /run/share/kstall-node /run/rec && "
            "cp -r /run/rec /run/share/rec",
        ),
        out=out / "guest",
        deadline=900.0,
        say=print,
    )
    printed = (out / "guest/job.log").read_text()
    assert (ran.status, ran.exit_status) == ("completed", 0), printed
    return [json.loads(line) for line in printed.splitlines() if line[:1] == "{"]


def figures(said: list[dict[str, Any]], share: Path) -> list[str]:
    """Lines for people; fails where the budget is not kept."""
    off, on = sorted(
        one["each"] for one in said if one["what"] == "mark" and one["each"] > 0
    )
    lines = [f"a mark: {off:.0f} instructions with tracing off, {on:.0f} while on"]
    idle, *rates = [one for one in said if one["what"] == "rate"]
    lines.append(f"idle: {idle['ns'] / idle['seconds'] / 1e6:.2f} M instructions/s")
    for one in rates:
        each = (one["ns"] - idle["ns"]) / one["count"]
        lines.append(
            f"{one['rate']:6} records/s: {each:7.0f} instructions and "
            f"{one['bytes'] / one['count']:.1f} bytes a record"
        )
    (rec,) = (share / "rec").iterdir()
    began = time.process_time()
    seal.seal([rec], share / "s.duckdb")
    took = time.process_time() - began
    _, ((marks,),), _ = store.query(share / "s.duckdb", "SELECT count(*) FROM mark")
    lines.append(f"sealing: {marks / took:.0f} marks a second of one processor")
    # Above what is compared while recording, a record costs its bytes' way to the disk.
    last = rates[-1]
    each = (last["ns"] - idle["ns"]) / last["count"]
    assert last["rate"] == 20_000 and each * last["rate"] < 0.01 * 4e9, lines
    assert marks == sum(one["count"] for one in rates) + 1000, "none was lost"
    return lines


def test_the_cost_of_recording(
    project_root: Path,
    kernel_image: Path,
    guest_root: Root,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    said = run(kernel_image, guest_root, project_root, tmp_path / "out")
    lines = figures(said, tmp_path / "out/share")
    with capsys.disabled():
        print("", *lines, sep="\n")


#: Whose operations are counted, and the class that is recorded meanwhile.
CLASSES = {
    "drm-sched": "drm",
    "rdma-cq": "rdma",
    "pci-aer": "aer",
    "iommu-iotlb": "iotlb",
    "io_uring-sq": "io_uring",
    "mm-migrate": "mmu",
    "sched-throttle": "throttle",
}


def wrapped(series: Series, cls: str) -> Series:
    """The same series, whose programs run beside a recorder."""
    overhead = series.spec.overhead
    assert overhead is not None
    made = [
        one.model_copy(
            update={
                "program": str(Path(one.program).with_name("each.py")),
                "args": (cls, Path(one.program).name, *one.args),
            }
        )
        for one in overhead.workload
    ]
    changed = overhead.model_copy(update={"workload": tuple(made)})
    spec = series.spec.model_copy(update={"overhead": changed})
    return dataclasses.replace(series, spec=spec)


def recorded(
    project: Project, series: Series, cls: str, built: Kernel, root: Root, out: Path
) -> dict[str, float]:
    """Instructions of each operation while it is recorded, by the measure's name."""
    log = out.with_suffix(".log")
    counting.compile_programs(project, series, out, log, root.arch)
    for one in series.measures:
        target = out / "programs" / one.program
        target.parent.mkdir(parents=True, exist_ok=True)
        # A script is not compiled, and of a wrapped series only the wrapper is known.
        if not target.exists():
            shutil.copy2(project.scripts / one.program, target)
        shutil.copy2(project.scripts / "workloads/operator/each.py", target.parent)
        node = target.with_name("kstall-node")
        if not node.exists():
            packed(project.root, node)
    sources = dict.fromkeys(one.module for one in series.measures if one.module)
    paths = [project.scripts / one for one in sources]
    more = cache.default_dir() / "extra" / extra.key_of(built, paths) if paths else None
    boot = counting.BootPlan(built, more, "patched-1", ("off",))
    counts = counting.run(
        project,
        wrapped(series, cls),
        boot,
        counting._vm(series, counting.Kernels(built, built, root), boot),
        out,
    )
    return {
        one["workload"]: statistics.median(one["taken"]) / one["operations"]
        for one in counts
    }


@pytest.mark.parametrize("name", CLASSES)
def test_what_recording_adds_to_each_operation(
    project_root: Path,
    guest_root: Root,
    tmp_path: Path,
    name: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """No more than the event twice, once for the record and once for its oracle."""
    proven = validate(project_root, tmp_path / "v", "--level", "full", "--", name)
    entry = proven.report.series[0]
    assert entry.overhead is not None and entry.kernel is not None, proven.output
    built = kernel.find(entry.kernel, cache.default_dir())
    assert built is not None
    project = Project(project_root)
    (series,) = project.load([name])
    found = recorded(
        project, series, CLASSES[name], built, guest_root, tmp_path / "counted"
    )
    lines = []
    for one in entry.overhead.measurements:
        modes = {sample.mode: sample.median for sample in one.samples}
        off, traced, now = modes["off"], modes.get("ftrace"), found[one.workload]
        said = "-" if traced is None else f"{traced:.0f}"
        lines.append(
            f"{one.operation}: off {off:.0f}, traced {said}, recorded {now:.0f}"
        )
        # The recorder itself takes its share of the processor, at any rate below 5 %.
        allowed = 1.05 * off + 2.2 * max(0, (traced or off) - off) + 100
        assert now <= allowed, lines
    with capsys.disabled():
        print("", *lines, sep="\n")
