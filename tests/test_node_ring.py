# SPDX-License-Identifier: GPL-2.0-or-later
"""What --ring deletes of earlier recordings, and above all what it does not."""

from __future__ import annotations

import io
import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kstall_node import agent, files, record
from kstall_node.host import Host
from kstall_node.older import Older
from kstall_ops import recording, seal, store
from node_root import Node

PAGE = 4096
MB = 1 << 20


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


class Small(record.Recorder):
    """Each page is a segment."""

    def _write_pages(self, cpu: int, data: bytes) -> None:
        for at in range(0, len(data), PAGE):
            super()._write_pages(cpu, data[at : at + PAGE])
            self.buffers.seal(cpu)


def recorded(
    node: Node, out: Path, count: int, *, ring: bool = True, seconds: float = 0.2
) -> tuple[Path, int]:
    """A recording of ``count`` pages with a record each, and the time of the first."""
    before = set(out.iterdir()) if out.exists() else set()
    when = time.monotonic_ns()
    node.throttled(0, *[(when + n, 1, 1) for n in range(count)], each=1)
    settings = record.Settings(out, ["throttle"], ring=ring, max_mb=1, seconds=seconds)
    assert Small(Host(str(node.root)), settings).run() == 0
    (made,) = set(out.iterdir()) - before
    return made, when


def tree(top: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(top)): path.read_bytes()
        for path in sorted(top.rglob("*"))
        if path.is_file()
    }


def older(node: Node, out: Path, said: list[str] | None = None) -> Older:
    lines: list[str] = [] if said is None else said
    return Older(Host(str(node.root)), out, lines.append)


def losses(rec: Path) -> list[dict[str, object]]:
    lines = map(json.loads, (rec / "facts.jsonl").read_text().splitlines())
    return [fact for fact in lines if fact["kind"] == "loss"]


def size(top: Path) -> int:
    return sum(len(data) for data in tree(top).values())


def test_a_ring_holds_over_restarts(
    node: Node, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "o"
    first, when = recorded(node, out, 150)
    assert "earlier recordings" not in capsys.readouterr().err
    second, _ = recorded(node, out, 150, seconds=2.5)
    assert "earlier recordings count as well: 1, of 0 MB" in capsys.readouterr().err
    # Of the first the oldest are gone, and all of the second are there.
    left = recording.load(first)
    assert 0 < left.pages < 150
    assert [one.seq for one in left.segments] == [*range(150 - left.pages, 150)]
    assert recording.load(second).pages == 150
    assert size(first) + 150 * PAGE <= MB < size(first) + 151 * PAGE + 400
    assert {one["reason"] for one in losses(first)} == {"ring"}
    assert losses(first)[-1]["t1"] == when + 150 - left.pages
    assert losses(second) == []
    done = seal.seal([first, second], tmp_path / "s")
    assert done.left_out == [] and done.remarks == []
    _, rows, _ = store.query(tmp_path / "s", "SELECT count(*) FROM stall")
    assert rows == [(left.pages + 150,)]
    # One that needs all the room leaves nothing of those before it.
    third, _ = recorded(node, out, 300, seconds=2.5)
    assert [*out.iterdir()] == [third]
    assert recording.load(third).pages == MB // PAGE


def test_the_oldest_makes_room_first(node: Node, tmp_path: Path) -> None:
    out = tmp_path / "o"
    recs = [recorded(node, out, 3)[0] for _ in range(3)]
    sizes = [size(rec) for rec in recs]
    earlier = older(node, out)
    assert (earlier.size, earlier.count) == (sum(sizes), 3)
    earlier.shrink(sum(sizes))
    assert [size(rec) for rec in recs] == sizes
    earlier.shrink(sum(sizes[1:]), most=1)
    assert len(recording.load(recs[0]).segments) == 2
    earlier.shrink(sum(sizes[1:]))
    assert [rec.exists() for rec in recs] == [False, True, True]
    assert (earlier.size, earlier.count) == (sum(sizes[1:]), 2)
    earlier.shrink(0)
    assert not any(out.iterdir())


def test_of_a_killed_recorder(node: Node, tmp_path: Path) -> None:
    """A torn line, a segment that was not sealed, and drafts."""
    rec, when = recorded(node, tmp_path / "o", 3)
    (rec / "segments/cpu0-2.json").rename(rec / "segments/.cpu0-2.json.tmp")
    (rec / ".session.json.tmp").write_text("{")
    (rec / ".reserve").write_bytes(bytes(PAGE))
    session = json.loads((rec / "session.json").read_text())
    (rec / "session.json").write_text(json.dumps(session | {"ended": None}))
    with (rec / "facts.jsonl").open("a") as file:
        file.write('{"kind": "clo')
    earlier = older(node, tmp_path / "o")
    earlier.shrink(size(rec) - 1)
    (lost,) = losses(rec)
    assert (lost["t0"], lost["t1"]) == (session["began"], when + 1)
    assert [one.seq for one in recording.load(rec).segments] == [1, 2]
    earlier.shrink(0)
    assert not rec.exists()


@pytest.mark.parametrize("already", ["segments", "formats/sched", "formats"])
def test_a_removal_that_was_interrupted_is_completed(
    node: Node, tmp_path: Path, already: str
) -> None:
    """By a kill; or somebody removes it by hand meanwhile."""
    rec, _ = recorded(node, tmp_path / "o", 3)
    shutil.rmtree(rec / already)
    older(node, tmp_path / "o").shrink(0)
    assert not rec.exists()
    gone, _ = recorded(node, tmp_path / "o", 3)
    said: list[str] = []
    earlier = older(node, tmp_path / "o", said)
    shutil.rmtree(gone)
    earlier.shrink(0)
    assert (said, earlier.count) == ([], 0)


def _config(rec: Path, **values: object) -> None:
    session = json.loads((rec / "session.json").read_text())
    (rec / "session.json").write_text(json.dumps(session | values))


def _renamed(rec: Path) -> None:
    rec.rename(rec.with_name("mine"))


def _elsewhere(rec: Path) -> None:
    """A link in its place: what it leads to is somewhere else."""
    rec.rename(rec.parent.parent / rec.name)
    rec.symlink_to(rec.parent.parent / rec.name)


def _linked(rec: Path) -> None:
    """Its segments are somewhere else."""
    (rec / "segments").rename(rec.parent.parent / "segments")
    (rec / "segments").symlink_to(rec.parent.parent / "segments")


@pytest.mark.parametrize(
    "spoil",
    [
        lambda rec: (rec / "keep").touch(),
        lambda rec: (rec / "truth.jsonl").write_text("{}"),
        lambda rec: _config(rec, config={"ring": False}),
        lambda rec: _config(rec, config=None),
        lambda rec: _config(rec, node="node8"),
        lambda rec: _config(rec, instance="other"),
        lambda rec: _config(rec, format=2),
        lambda rec: _config(rec, began=7),
        lambda rec: (rec / "session.json").write_text("[" * 100_000),
        lambda rec: (rec / "session.json").write_text("[]"),
        lambda rec: (rec / "session.json").unlink(),
        lambda rec: rec.chmod(0o777),
        _renamed,
        _elsewhere,
        _linked,
    ],
)
def test_what_is_not_quite_a_recording_of_its_own_stays(
    node: Node, tmp_path: Path, spoil: Callable[[Path], object]
) -> None:
    rec, _ = recorded(node, tmp_path / "o", 3)
    (tmp_path / "o/notes.txt").write_text("not of kstall")
    spoil(rec)
    before = tree(tmp_path)
    older(node, tmp_path / "o").shrink(0)
    assert tree(tmp_path) == before


def test_recordings_without_a_ring_stay(node: Node, tmp_path: Path) -> None:
    """Nobody has said that they may go."""
    out = tmp_path / "o"
    kept, _ = recorded(node, out, 3, ring=False)
    before = tree(kept)
    ring, _ = recorded(node, out, 300, seconds=2.5)
    assert tree(kept) == before
    # Nor is what -o names itself one of those below it.
    assert older(node, ring).count == 0 < older(node, out).count


def test_what_somebody_put_below_stays(node: Node, tmp_path: Path) -> None:
    rec, _ = recorded(node, tmp_path / "o", 3)
    for name in ("segments/cpu0-0.pages.gz", "segments/cpu00-0.pages"):
        (rec / name).write_text("mine")
    said: list[str] = []
    earlier = older(node, tmp_path / "o", said)
    earlier.shrink(0)
    assert {*tree(rec)} >= {"segments/cpu0-0.pages.gz", "segments/cpu00-0.pages"}
    assert said == [
        f"{rec}: Directory not empty; it stays, and --ring does not count it"
    ]
    assert earlier.count == 0


def test_a_recording_that_goes_on_stays(node: Node, tmp_path: Path) -> None:
    """Another container's recorder holds it; that of an older version is alive."""
    out = tmp_path / "o"
    rec, _ = recorded(node, out, 3)
    before = tree(rec)
    handle = files.in_use(rec)
    assert handle is not None
    earlier = older(node, out)
    earlier.shrink(0)
    assert tree(rec) == before and earlier.count == 1
    os.close(handle)
    node.process(os.getpid())
    alive = Host(str(node.root)).starttime(os.getpid())
    recorder = {"pid": os.getpid(), "starttime": alive}
    _config(rec, ended=None, recorder=recorder)
    assert older(node, out).count == 0
    _config(rec, ended=1, recorder=recorder)
    assert older(node, out).count == 1

    class Watched(Small):
        """It is looked at while it records."""

        def _loop(self) -> None:
            super()._loop()
            before = tree(self.journal.dir)
            _config(self.journal.dir, ended=1)
            assert older(node, out).count == 2
            older(node, out).shrink(0)
            assert tree(self.journal.dir).keys() == before.keys()

    settings = record.Settings(out, ["throttle"], ring=True, seconds=0.2)
    assert Watched(Host(str(node.root)), settings).run() == 0


def test_a_recording_that_is_fetched_stays(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rec, _ = recorded(node, tmp_path / "o", 3)
    before = tree(rec)
    earlier = older(node, tmp_path / "o")
    send = agent._send

    def slowly(*what: Any) -> None:
        earlier.shrink(0)
        send(*what)

    monkeypatch.setattr(agent, "_send", slowly)
    answers = io.BytesIO()
    requests = io.BytesIO(b'{"op":"pull"}\n')
    assert agent.serve(Host(str(node.root)), tmp_path / "o", requests, answers) == 0
    assert answers.getvalue().count(b'"op": "file"') == len(before)
    assert tree(rec) == before
    # Afterwards it may go.
    earlier.shrink(0)
    assert not rec.exists()


def pulled(node: Node, out: Path, words: dict[str, object], to: Path) -> list[str]:
    """What the agent says before, between and after the files that it sends."""
    answers = io.BytesIO()
    requests = io.BytesIO(json.dumps({"op": "pull", **words}).encode() + b"\n")
    assert agent.serve(Host(str(node.root)), out, requests, answers) == 0
    answers.seek(0)
    said = []
    for line in iter(answers.readline, b""):
        answer = json.loads(line)
        if answer["op"] != "file":
            said.append(answer.get("text", answer["op"]))
            continue
        path = to / answer["path"]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(answers.read(answer["size"]))
    return said


def test_what_ended_before_is_not_fetched(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A segment's t1 is when its last page began, so the next one tells its end."""
    out = tmp_path / "o"
    over, _ = recorded(node, out, 3, ring=False)
    rec, when = recorded(node, out, 6, ring=False)
    session = json.loads((rec / "session.json").read_text())
    monkeypatch.setattr(time, "monotonic_ns", lambda: session["ended"] + 10)
    last = {"last": session["ended"] + 10 - when - 3}
    assert pulled(node, out, last, tmp_path / "to") == ["since", "end"]
    assert [path.name for path in (tmp_path / "to").iterdir()] == [rec.name]
    copy = recording.load(tmp_path / "to" / rec.name)
    assert [segment.seq for segment in copy.segments] == [3, 4, 5]
    assert (copy.since, copy.gaps) == (when + 3, [])
    assert not any("missing" in remark for remark in copy.remarks)
    # It has as many facts as the whole, and fewer pages.
    assert copy.extent < recording.load(rec).extent
    # What nobody asked to leave out is missing.
    for path in (tmp_path / "to" / rec.name / "segments").glob("cpu0-3.*"):
        path.unlink()
    gaps = recording.load(tmp_path / "to" / rec.name).gaps
    assert gaps == [recording.Gap(0, 3, 4)]
    # All of it was in that time; and nothing.
    last = {"last": session["ended"]}
    assert pulled(node, out, last, tmp_path / "all") == ["since", "end"]
    assert tree(tmp_path / "all") == tree(out)
    assert pulled(node, out, {"last": 5}, tmp_path / "none") == [
        "since",
        f"{out}: no recording of that time, only earlier ones",
    ]
    assert pulled(node, out, {"last": "1h"}, tmp_path / "none") == [
        "last: 1h is no number of ns above 0"
    ]
    assert over.exists() and not (tmp_path / "none").exists()


def test_of_an_earlier_boot_nothing_is_recent_unless_this_one_is(
    node: Node, tmp_path: Path
) -> None:
    out = tmp_path / "o"
    rec, _ = recorded(node, out, 3)
    _config(rec, boot_id="earlier")
    here = time.monotonic_ns()
    said = pulled(node, out, {"last": here // 2}, tmp_path / "none")
    assert said[1:] == [f"{out}: no recording of that time, only earlier ones"]
    # It is not known how long before this boot it ended.
    said = pulled(node, out, {"last": 2 * here}, tmp_path / "all")
    assert (said, tree(tmp_path / "all")) == (["since", "end"], tree(out))


def test_where_directories_cannot_be_locked_all_stay(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on NFS, where an exclusive lock takes the right to write."""
    out = tmp_path / "o"
    recs = [recorded(node, out, 3)[0] for _ in range(2)]
    before = tree(out)

    def unable(handle: int, how: int) -> None:
        raise OSError(9, "Bad file descriptor")

    monkeypatch.setattr("fcntl.flock", unable)
    said: list[str] = []
    earlier = older(node, out, said)
    earlier.shrink(0)
    why = "Bad file descriptor; it stays, and --ring does not count it"
    assert said == [f"{rec}: {why}" for rec in recs]
    assert tree(out) == before and earlier.count == 0


def test_it_goes_on_if_it_cannot_delete(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An old recording is no reason to lose a new one."""
    out = tmp_path / "o"
    rec, _ = recorded(node, out, 200)

    def denied(name: str, at: int) -> int:
        raise PermissionError(1, "Operation not permitted", name)

    monkeypatch.setattr("kstall_node.older._unlink", denied)
    said: list[str] = []
    earlier = older(node, out, said)
    earlier.shrink(0)
    earlier.shrink(0)
    assert said == [
        f"{rec}: Operation not permitted; it stays, and --ring does not count it"
    ]
    recorded(node, out, 200, seconds=2.5)
