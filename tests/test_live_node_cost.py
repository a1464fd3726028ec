# SPDX-License-Identifier: GPL-2.0-or-later
"""What recording costs, in instructions and bytes, for docs/recording.md."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from kstall.debian import Root
from kstall.guest.guest import Accel, Machine, Share, boot
from kstall_ops import seal, store
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
