# SPDX-License-Identifier: GPL-2.0-or-later
"""Three guests with clocks of their own, one job, and `kstall fleet pull` over them.

When the ranks came and when they were let go the hub has written down by the host's
clock, of which nothing that is recorded knows.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import sys
import threading
import time
import zipapp
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import reach
from kstall.debian import Root
from kstall.guest.guest import Accel, GuestRun, Machine, Share, boot
from kstall_ops import align, cli, explain, fleet, store
from test_live_node import packed

pytestmark = [pytest.mark.live, pytest.mark.deep]

STEPS = 36
#: What each one's wall clock is ahead by, in s, and what its clock gains, in ppm.
SKEWS = ((37, 200), (-3, -200), (0, 0))
REACH = Path(__file__).with_name("reach.py")


@dataclass
class Hub:
    """Lets all ranks go when all have come; times are the host's."""

    ports: list[socket.socket]
    came: dict[tuple[int, int], int] = field(default_factory=dict)
    freed: dict[int, int] = field(default_factory=dict)

    def line(self, rank: int) -> str:
        text = b""
        while not text.endswith(b"\n"):
            piece = self.ports[rank].recv(1)
            assert piece, f"node{rank} has gone"
            text += piece
        return text.decode().strip()

    def run(self) -> None:
        """All steps; each rank's line is waited for by a thread of its own."""
        for step in range(STEPS):

            def wait(rank: int, step: int = step) -> None:
                assert self.line(rank) == str(step)
                self.came[rank, step] = time.monotonic_ns()

            waiting = [threading.Thread(target=wait, args=(rank,)) for rank in range(3)]
            for one in waiting:
                one.start()
            for one in waiting:
                one.join()
            assert len(self.came) == 3 * (step + 1)
            self.freed[step] = time.monotonic_ns()
            for each in self.ports:
                each.sendall(f"{step}\n".encode())
        for rank in range(3):
            assert self.line(rank) == "ready"


@dataclass
class Fleet:
    """The guests, and where their agents are reached."""

    top: Path
    hub: Hub
    ran: dict[int, GuestRun] = field(default_factory=dict)

    def via(self, **hows: str) -> str:
        """A command line for nodes that are well, or as said: (kill, stop, old)."""
        for name, how in hows.items():
            rank, _, what = how.partition(" ")
            what, end = ("", "old") if what == "old" else (what, "agent")
            script = self.top / f"reach-{name}"
            place = self.top / rank / end
            script.write_text(
                f"#!/bin/sh\nexec {sys.executable} {REACH} {place} {what}\n"
            )
            script.chmod(0o755)
        return f"{self.top}/reach-{{node}}"


@contextmanager
def guests(image: Path, root: Root, project: Path, top: Path) -> Iterator[Fleet]:
    """Run the job in them; then their agents answer."""
    threads = []
    ran: dict[int, GuestRun] = {}
    for rank, (ahead, ppm) in enumerate(SKEWS):
        place = top / str(rank)
        share = place / "share"
        share.mkdir(parents=True)
        old = packed(project, share / "kstall-node")
        _older(old, share / "kstall-node-old")
        script = project / "scripts/workloads/operator/fleet.py"
        (share / "fleet.py").write_bytes(script.read_bytes())
        base = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(time.time() + ahead))
        devices = ["-rtc", f"base={base}", "-device", "virtio-serial-pci,id=fleet"]
        for end in ("hub", "agent", "old"):
            devices += ["-chardev"]
            devices += [f"socket,id={end},path={place}/{end},server=on,wait=off"]
            devices += ["-device"]
            devices += [f"virtserialport,bus=fleet.0,chardev={end},name=kstall.{end}"]

        def run(
            rank: int = rank,
            share: Path = share,
            place: Path = place,
            ppm: int = ppm,
            devices: tuple[str, ...] = tuple(devices),
        ) -> None:
            ran[rank] = boot(
                image,
                root,
                Accel("tcg", "for the test"),
                Machine(cpus=1, memory="1G", devices=devices),
                (Share("/run/share", share, writable=True),),
                (
                    *("python3", "/run/share/fleet.py", "/run/share/kstall-node"),
                    *("/run/share/rec", str(rank), "3", str(STEPS), str(ppm)),
                ),
                out=place / "guest",
                deadline=400.0,
                say=lambda _: None,
            )

        threads.append(threading.Thread(target=run))
        threads[-1].start()
    hub = Hub([_connected(top / str(rank) / "hub") for rank in range(3)])
    made = Fleet(top, hub, ran)
    try:
        hub.run()
        yield made
    finally:
        for port in hub.ports:
            # One that was stopped is ended, too.
            try:
                os.kill(reach.guest(port), signal.SIGCONT)
                port.sendall(b"done\n")
            except OSError:
                pass
        for thread in threads:
            thread.join()


def _older(node: Path, target: Path) -> None:
    """The same that speaks the version before."""
    source = node.with_suffix(".z")
    path = source / "kstall_node/agent.py"
    text = path.read_text()
    path.write_text(re.sub(r"(?m)^SPOKEN = \d+$", "SPOKEN = 0", text))
    assert path.read_text() != text
    zipapp.create_archive(source, target, main="kstall_node.__main__:run")


def _connected(path: Path) -> socket.socket:
    until = time.monotonic() + 60
    while True:
        made = socket.socket(socket.AF_UNIX)
        try:
            made.connect(str(path))
            return made
        except OSError:
            made.close()
            assert time.monotonic() < until, f"no guest has made {path}"
            time.sleep(0.1)


def aligned(made: Path) -> dict[str, align.Clock]:
    """By node, as `kstall timeline` does it."""
    with store.reading(made) as opened:
        rows = opened.execute(
            'SELECT sid, t_mono, t_real, peer, "offset", bound, method FROM clock'
        ).fetchall()
        nodes = dict(opened.execute("SELECT sid, node FROM session").fetchall())
    found = align.clocks(sorted(nodes), rows, [])
    return {nodes[sid]: clock for sid, clock in found.items()}


def test_a_fleet(
    project_root: Path,
    kernel_image: Path,
    guest_root: Root,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with guests(kernel_image, guest_root, project_root, tmp_path) as found:
        well = {f"node{rank}": f"{rank}" for rank in range(3)}
        made = tmp_path / "s.duckdb"
        (tmp_path / "hub.json").write_text(
            json.dumps([list(found.hub.came.items()), list(found.hub.freed.items())])
        )
        words = ["fleet", "pull", "-w", "node[0-2]", "--via", found.via(**well)]
        assert cli.main([*words, "-o", str(made)]) == 0, capsys.readouterr().out
        assert cli.main([*words, "-o", str(made)]) == 0
        assert "0 recordings sealed, 3 were there already" in capsys.readouterr().out

        # One is killed in the middle, one stands still, one is older.
        hows = {"node0": "0", "node1": "1 kill", "node2": "2 stop", "old": "0 old"}
        other = tmp_path / "t.duckdb"
        pulled = fleet.pull(list(hows), found.via(**hows), other, timeout=60)
        said = {one.node: one.outcome for one in pulled.nodes}
        assert pulled.status == fleet.SOME == 3, said
        assert {one.node for one in pulled.nodes if one.ok} == {"node0"}
        assert said["node1"].startswith("ended in the middle, status")
        assert said["node2"] == "silent for 60 s: stopped, or far away"
        assert said["old"].startswith("its agent speaks version 0, this kstall 1")
        _, rows, _ = store.query(other, "SELECT node FROM session")
        assert rows == [("node0",)]
    assert {rank: one.status for rank, one in found.ran.items()} == {
        0: "completed",
        1: "lost",
        2: "completed",
    }
    judged(made, found.hub)
    # Of a part of the job is said what can be, and what not.
    told = explain.report(other)
    (verdict,) = told.verdicts
    assert verdict.stragglers == []
    assert {one.node for one in told.missing} == {"node1", "node2", "old"}


def judged(made: Path, hub: Hub) -> None:
    """Who was late and why; and the clocks, against the hub's."""
    (verdict,) = explain.report(made).verdicts
    (late,) = verdict.stragglers
    assert (late.rank, late.node) == (1, "node1")
    (best, *_) = late.findings
    assert (best.cls, best.level) == ("throttle", "explains"), best
    first, last = STEPS // 3, 2 * STEPS // 3
    # Its quota is lifted by the rank itself, which may first have to wait for that in
    # the step in which it does.
    wanted = set(range(first, last))
    assert len(wanted & set(best.steps)) >= 8
    assert set(best.steps) <= wanted | {last}
    _, rows, _ = store.query(
        made, "SELECT DISTINCT node, verdict FROM oracle JOIN session USING (sid)"
    )
    assert ("node1", "agrees") in rows and "disagrees" not in str(rows)

    clocks = aligned(made)
    assert {clock.method for clock in clocks.values()} == {"ping"}
    _, marks, _ = store.query(
        made, "SELECT node, rank, step, phase, t FROM mark JOIN session USING (sid)"
    )
    assert len(marks) == 3 * STEPS * 2
    assert contradicted(clocks, marks, hub) == 0
    # Whether that could fail: with one clock as wrong as it is a second later.
    for node in clocks:
        off = clocks[node]
        points = tuple(
            align.Point(one.t, one.offset + 10**9, one.bound) for one in off.points
        )
        wrong = {**clocks, node: align.Clock(off.sid, off.method, points)}
        assert contradicted(wrong, marks, hub) > 0


def contradicted(
    clocks: dict[str, align.Clock], marks: list[tuple[object, ...]], hub: Hub
) -> int:
    """Marks that by these clocks are surely on the wrong side of what the hub saw."""
    wrong = 0
    for node, rank, step, phase, t in marks:
        assert isinstance(rank, int) and isinstance(step, int) and isinstance(t, int)
        when, bound = clocks[str(node)].at(t)
        if phase == "enter":
            wrong += when - bound > hub.came[rank, step]
        else:
            wrong += when + bound < hub.freed[step]
    return wrong
