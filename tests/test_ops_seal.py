# SPDX-License-Identifier: GPL-2.0-or-later
"""Recordings become a store: once, as a whole, and whatever is wrong is said."""

from __future__ import annotations

import copy
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pytest

import recordings
from kstall_ops import cli, errors, explain, recording, schema, seal, store, wording
from recordings import BEGAN, MS, SECOND, Node, culprit, seal_segment


def dump(path: Path) -> dict[str, list[tuple[object, ...]]]:
    """All tables, in an order of their own."""
    tables = ("session", "proc", "cgroup", "stall", "mark", "clock", "loss", "oracle")
    return {
        name: sorted(store.query(path, f"SELECT * FROM {name}")[1], key=repr)
        for name in tables
    }


def stalls(path: Path, columns: str = "t0, t1, dur") -> list[tuple[object, ...]]:
    return store.query(path, f"SELECT {columns} FROM stall ORDER BY coalesce(t0, t1)")[
        1
    ]


def test_sealing_twice_changes_nothing(tmp_path: Path) -> None:
    top, made = culprit().write(tmp_path / "rec"), tmp_path / "s.duckdb"
    assert len(seal.seal([top], made).added) == 3
    before, bytes_before = dump(made), made.read_bytes()
    again = seal.seal([top], made)
    assert (again.added, len(again.same)) == ([], 3)
    assert made.read_bytes() == bytes_before
    copied = tmp_path / "copied"
    shutil.copytree(top, copied)
    seal.seal([copied, top], tmp_path / "other.duckdb")
    assert dump(tmp_path / "other.duckdb") == before


def test_in_any_order_and_one_by_one(tmp_path: Path) -> None:
    top = culprit().write(tmp_path / "rec")
    seal.seal([top], tmp_path / "all.duckdb")
    for name in ("node2", "node0", "node1"):
        seal.seal([top / name], tmp_path / "one.duckdb")
    assert dump(tmp_path / "one.duckdb") == dump(tmp_path / "all.duckdb")


def test_a_recording_that_grew_takes_the_place_of_what_was_sealed(
    tmp_path: Path,
) -> None:
    node, made = Node(ended=None), tmp_path / "s.duckdb"
    node.throttle(BEGAN + 1, BEGAN + 1 + MS, 7)
    node.event(BEGAN + 5 * MS, 0, 8, "throttle_in", cgroup=1, task=8)
    early = node.write(tmp_path / "early", sealed=False)
    seal.seal([early], made)
    assert stalls(made) == [
        (BEGAN + 1, BEGAN + 1 + MS, MS),
        (BEGAN + 5 * MS, None, None),
    ]
    (loss,) = dump(made)["loss"]
    assert loss[-1] == "recorder gone"
    node.ended = BEGAN + SECOND
    node.event(BEGAN + 6 * MS, 1, 0, "throttle_out", cgroup=1, task=8)
    late = node.write(tmp_path / "late")
    seal.seal([late], made)
    whole = [(BEGAN + 1, BEGAN + 1 + MS, MS), (BEGAN + 5 * MS, BEGAN + 6 * MS, MS)]
    assert stalls(made) == whole
    assert not dump(made)["loss"]
    # And less than is there changes nothing.
    seal.seal([early], made)
    assert stalls(made) == whole


def test_what_is_added_by_fetching_makes_no_copy_a_later_one(tmp_path: Path) -> None:
    """A whole copy is better than a part of it, and a later one than pings."""
    node = Node(ended=None)
    for at in range(60):
        node.mark(BEGAN + at * SECOND, 1, at, "enter")
    copies = {"whole": node.write(tmp_path / "whole")}
    for name in ("earlier", "part"):
        other = copy.deepcopy(node)
        other.events = node.events[30:]
        for t in (1, 2):
            other.fact("clock", t_mono=BEGAN + t * SECOND, t_real=BEGAN, method="ping")
        if name == "part":
            other.fact("left out", until=BEGAN + 30 * SECOND, segments={})
        copies[name] = other.write(tmp_path / name)
    extents = {name: recording.load(place).extent for name, place in copies.items()}
    assert extents["part"] < extents["earlier"] < extents["whole"]
    for name in ("part", "earlier"):
        made = tmp_path / f"{name}.duckdb"
        seal.seal([copies["whole"]], made)
        assert seal.seal([copies[name]], made).added == []
        seal.seal([copies[name]], tmp_path / f"{name}2.duckdb")
        assert seal.seal([copies["whole"]], tmp_path / f"{name}2.duckdb").added != []


def test_of_a_ring_the_later_copy_counts_though_it_has_fewer_pages(
    tmp_path: Path,
) -> None:
    """The limit is reached: what is deleted is now more and now less than what came."""
    node, made = Node(ended=None, config={"ring": True}), tmp_path / "s.duckdb"
    for at in range(60):
        node.mark(BEGAN + at * SECOND, 1, at, "enter")
    early = node.write(tmp_path / "early")
    node.events = node.events[30:]
    node.mark(BEGAN + 61 * SECOND, 1, 61, "enter")
    node.fact("clock", t_mono=BEGAN + 60 * SECOND)
    late = node.write(tmp_path / "late")
    assert recording.load(late).pages < recording.load(early).pages
    seal.seal([early, late], tmp_path / "both.duckdb")
    seal.seal([early], made)
    for _ in range(2):
        seal.seal([late], made)
        seal.seal([early], made)
    assert dump(made) == dump(tmp_path / "both.duckdb")
    assert len(dump(made)["mark"]) == 31


def test_values_are_those_of_the_pages(tmp_path: Path) -> None:
    node = Node()
    node.proc(40, comm='a"b\n\x1b[31m', cgroup_id=2**64 - 1)
    node.event(
        BEGAN + 9 * MS, 2, 40, "io_uring_sqring_wait", ctx=2**64 - 9, wait_ns=4 * MS
    )
    node.event(BEGAN + 10 * MS, 2, 40, "aer_event", dev_name="0000:01:00.0", severity=1)
    node.mark(BEGAN + 11 * MS, 40, 3, "enter", " rank=5 job=j")
    node.event(BEGAN + 12 * MS, 0, 40, "print", ip=1, buf="DROP TABLE stall; --")
    made = tmp_path / "s.duckdb"
    seal.seal([node.write(tmp_path / "rec")], made)
    assert stalls(
        made, "t0, t1, dur, tid, tgid, comm, cgroup_id, cpu, device, cause, join_key"
    ) == [
        (
            *(BEGAN + 5 * MS, BEGAN + 9 * MS, 4 * MS, 40, 40, 'a"b\n\x1b[31m'),
            *(2**64 - 1, 2, None, "ring full", str(2**64 - 9)),
        ),
        # A device's message has no thread: unknown is NULL.
        (
            *(BEGAN + 10 * MS, BEGAN + 10 * MS, None, None, None, None, None, 2),
            *("0000:01:00.0", "fatal", "0000:01:00.0"),
        ),
    ]
    ((_, t, tid, _, job, rank, step, phase),) = dump(made)["mark"]
    assert (t, tid, job, rank, step, phase) == (BEGAN + 11 * MS, 40, "j", 5, 3, "enter")


def test_a_number_used_again_is_another_process(tmp_path: Path) -> None:
    node = Node()
    node.proc(40, comm="first", starttime=1)
    node.proc(40, comm="second", starttime=BEGAN + 50 * MS)
    node.throttle(BEGAN + 10 * MS, BEGAN + 20 * MS, 40)
    node.throttle(BEGAN + 60 * MS, BEGAN + 70 * MS, 40)
    node.throttle(BEGAN + 80 * MS, BEGAN + 90 * MS, 41)
    seal.seal([node.write(tmp_path / "rec")], tmp_path / "s.duckdb")
    found = stalls(tmp_path / "s.duckdb", "comm, starttime")
    assert found == [("first", 1), ("second", BEGAN + 50 * MS), (None, None)]


def test_one_number_on_two_nodes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        node = Node(name, f"boot-{name}")
        node.proc(40, comm=f"on {name}")
        node.fact("cgroup", cgroup_id=77, path=f"/{name}")
        node.throttle(BEGAN + 10, BEGAN + 20, 40)
        node.write(tmp_path / "rec" / name)
    made = tmp_path / "s.duckdb"
    seal.seal([tmp_path / "rec"], made)
    sql = (
        "SELECT node, comm, path, count(DISTINCT id) OVER () FROM stall JOIN session "
        "USING (sid) JOIN cgroup USING (sid, cgroup_id) ORDER BY node"
    )
    _, rows, _ = store.query(made, sql)
    assert rows == [("a", "on a", "/a", 2), ("b", "on b", "/b", 2)]


def test_ends_without_a_beginning_are_kept_and_counted(tmp_path: Path) -> None:
    node = Node()
    node.event(BEGAN + 5, 0, 0, "throttle_out", cgroup=1, task=8)
    done = seal.seal([node.write(tmp_path / "rec")], tmp_path / "s.duckdb")
    assert stalls(tmp_path / "s.duckdb") == [(None, BEGAN + 5, None)]
    assert "1 stalls of which only one end was recorded" in done.remarks[0]


def test_a_beginning_that_is_followed_by_another_did_end(tmp_path: Path) -> None:
    node = Node()
    for at in (10, 20):
        node.event(BEGAN + at, 0, 40, "throttle_in", cgroup=77, task=40)
    node.event(BEGAN + 25, 0, 40, "throttle_out", cgroup=77, task=40)
    done = seal.seal([node.write(tmp_path / "rec")], tmp_path / "s.duckdb")
    assert "1 stalls of which only one end was recorded" in done.remarks[0]
    _, rows, _ = store.query(
        tmp_path / "s.duckdb", "SELECT t0, t1, dur FROM stall ORDER BY t0"
    )
    first, second = BEGAN + 10, BEGAN + 20
    assert rows == [(first, first, None), (second, BEGAN + 25, 5)]


def test_lost_events_become_intervals(tmp_path: Path) -> None:
    node = Node()
    node.throttle(BEGAN + 10, BEGAN + 20, 40)
    node.throttle(BEGAN + 1000, BEGAN + 2000, 40)
    dir = node.write(tmp_path / "rec", per_page=1)
    path = dir / "segments/cpu0-0.pages"
    data = bytearray(path.read_bytes())
    length = int.from_bytes(data[4096 + 8 : 4096 + 12], "little")
    data[4096 + 8 : 4096 + 16] = (length | 3 << 30).to_bytes(8, "little")
    data[4096 + 16 + length : 4096 + 24 + length] = (12).to_bytes(8, "little")
    path.write_bytes(data)
    recordings.seal_segment(path, 0)
    seal.seal([dir], tmp_path / "s.duckdb")
    ((_, cpu, t0, t1, n, reason),) = dump(tmp_path / "s.duckdb")["loss"]
    assert (cpu, t0, t1, n, reason) == (0, BEGAN + 10, BEGAN + 1000, 12, "overrun")


@pytest.mark.parametrize(
    ("metric", "scope", "theirs", "verdict"),
    [
        ("sum_ns", "cgroup:77", 90 * MS, "agrees"),
        ("sum_ns", "cgroup:77", 90 * MS * 100 // 99, "agrees"),
        ("sum_ns", "cgroup:77", 100 * MS, "disagrees"),
        ("sum_ns", "cgroup:78", 10 * MS, "agrees"),
        ("sum_ns", "node", 100 * MS, "agrees"),
        ("count", "node", 10, "agrees"),
        ("count", "node", 11, "disagrees"),
        ("count", "node", None, "unknown"),
    ],
)
def test_oracles_are_compared_with_what_was_sealed(
    tmp_path: Path, metric: str, scope: str, theirs: int | None, verdict: str
) -> None:
    node = Node()
    for at in range(10):
        begin = BEGAN + at * 20 * MS
        node.throttle(begin, begin + 10 * MS, 40, 78 if at == 9 else 77)
    node.fact(
        "oracle",
        provider="throttle/fprobe",
        scope=scope,
        metric=metric,
        ours=5,
        theirs=theirs,
        verdict="agrees",
    )
    seal.seal([node.write(tmp_path / "rec")], tmp_path / "s.duckdb")
    _, rows, _ = store.query(tmp_path / "s.duckdb", "SELECT verdict FROM oracle")
    assert rows == [(verdict,)]


def _edit(
    name: str, change: Callable[[dict[str, object]], None]
) -> Callable[..., None]:
    def edit(dir: Path) -> None:
        said = json.loads((dir / name).read_text())
        change(said)
        (dir / name).write_text(json.dumps(said))

    return edit


def test_of_one_that_is_damaged_it_is_said_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes = culprit().nodes()
    bad = [nodes[n].write(tmp_path / f"r{n}") for n in (0, 1)]
    _cut(bad[0])
    _flip(bad[1])
    words = ["seal", *map(str, bad), "-o", str(tmp_path / "s")]
    assert cli.main(words) == 2
    said = capsys.readouterr().err
    assert f"kstall: {bad[0]}: segments/cpu0-0.pages: " in said
    assert f"truncated; {bad[1]}: segments/cpu0-0.pages: not the bytes" in said
    assert "; nothing was sealed: leave it out, or copy it again" in said
    assert not (tmp_path / "s").exists()
    file = tmp_path / "file"
    file.touch()
    assert cli.main(["seal", str(file), "-o", str(tmp_path / "s")]) == 2
    assert capsys.readouterr().err.startswith(f"kstall: {file}: no directory; ")


def missing(path: Path) -> list[tuple[object, ...]]:
    return store.query(path, "SELECT kind, node, place, reason FROM missing")[1]


def test_one_that_is_damaged_costs_the_others_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is named, the status says so, and the store knows until a whole one comes."""
    top, made = culprit().write(tmp_path / "rec"), tmp_path / "s.duckdb"
    whole = tmp_path / "whole"
    shutil.copytree(top / "node2", whole)
    _cut(top / "node2")
    words = ["seal", str(top), "-o", str(made)]
    assert cli.main(words) == 3
    said = capsys.readouterr().out
    assert f"! {top}/node2: segments/cpu0-0.pages: " in said
    assert "truncated; left out: copy it again, if that damaged it, and seal" in said
    assert "2 recordings sealed" in said and "; 1 left out\n" in said
    assert [row[:3] for row in missing(made)] == [
        ("recording", "node2", str(top / "node2"))
    ]
    # What is missing caps what is claimed, as what is lost does.
    told = explain.report(made)
    (late,) = told.verdicts[0].stragglers
    (finding,) = late.findings
    assert (late.rank, finding.level) == (1, "coincides")
    assert "of which nothing came (node2)" in finding.caps[0]
    text = wording.as_text(told)
    assert f"  - node2: a recording is missing, {top}/node2: segments/" in text
    assert "  ! recordings are missing (node2): a rank of which nothing came" in text
    assert explain.as_json(told)["missing"][0]["node"] == "node2"
    # The same again changes nothing, and a whole copy ends it, wherever it is.
    before = made.read_bytes()
    assert cli.main(words) == 3
    assert made.read_bytes() == before
    assert cli.main(["seal", str(whole), "-o", str(made)]) == 0
    assert missing(made) == []
    assert cli.main(words) == 3
    assert missing(made) == [], "of what is there a damaged copy is not missing"
    assert explain.report(made).verdicts[0].stragglers[0].explained


def test_one_of_which_not_even_the_node_is_known(tmp_path: Path) -> None:
    """Anything may be in it; its segments show that it is a recording."""
    top, made = culprit().write(tmp_path / "rec"), tmp_path / "s.duckdb"
    Node("other", "other").write(top / "x")
    (top / "x/session.json").unlink()
    done = seal.seal([top], made)
    assert (len(done.added), len(done.left_out)) == (3, 1)
    ((kind, node, place, reason),) = missing(made)
    assert (kind, node, place) == ("recording", None, str(top / "x"))
    assert str(reason).startswith("not a recording of kstall-node, it has no session")
    (late,) = explain.report(made).verdicts[0].stragglers
    assert not late.explained


@pytest.mark.parametrize(("meanwhile", "level"), [(True, "coincides"), (False, None)])
def test_a_recording_of_the_same_boot_that_is_missing_is_a_loss(
    tmp_path: Path, meanwhile: bool, level: str | None
) -> None:
    top, made = culprit().write(tmp_path / "rec"), tmp_path / "s.duckdb"
    began = BEGAN + (1 if meanwhile else 1000) * SECOND
    other = Node("node1", "boot1", began, began + SECOND)
    other.throttle(began + 1, began + 2, 40)
    _cut(other.write(top / "again"))
    seal.seal([top], made)
    (late,) = explain.report(made).verdicts[0].stragglers
    (finding,) = late.findings
    assert finding.level == (level or "explains")
    assert bool(finding.caps) == meanwhile
    if meanwhile:
        assert (
            f"lost meanwhile (the recording {top}/again is missing)"
            in (finding.caps[0])
        )


def test_what_is_nonsense_even_in_its_name_is_kept_as_text(tmp_path: Path) -> None:
    top, made = culprit().write(tmp_path / "rec"), tmp_path / "s.duckdb"
    for number in range(2):
        _edit(
            "session.json",
            lambda s: s.update(node="n\ud800\x1b", began=10**30, ended=True),
        )(Node(boot_id=f"x{number}").write(top / f"x{number}"))
    assert len(seal.seal([top], made).left_out) == 2
    rows = store.query(made, "SELECT node, began, ended FROM missing")[1]
    assert set(rows) == {("n\\ud800\x1b", None, 1)}
    before = made.read_bytes()
    seal.seal([top / "node0"], made)
    assert made.read_bytes() == before
    rows = missing(made)
    seal.seal([top], made)
    assert missing(made) == rows
    assert "\x1b" not in wording.as_text(explain.report(made))


def test_what_grew_and_is_damaged_leaves_what_was_sealed(tmp_path: Path) -> None:
    node, made = Node(ended=None), tmp_path / "s.duckdb"
    node.throttle(BEGAN + 1, BEGAN + 1 + MS, 7)
    seal.seal([node.write(tmp_path / "early")], made)
    before = dump(made)
    for at in range(30):
        node.throttle(BEGAN + (at + 2) * SECOND, BEGAN + (at + 2) * SECOND + MS, 7)
    other = Node("other", "other").write(tmp_path / "other")
    late = node.write(tmp_path / "late")
    # It shows when pages before it are decoded already.
    path = late / "segments/cpu1-0.pages"
    data = path.read_bytes()
    assert len(data) > 4096
    path.write_bytes(data[:4096] + b"\xee" * 4096)
    recordings.seal_segment(path, 1)
    done = seal.seal([late, other], made)
    assert (len(done.added), len(done.left_out)) == (1, 1)
    assert dump(made)["stall"] == before["stall"]
    assert len(dump(made)["session"]) == 2
    assert missing(made) == []


@pytest.mark.parametrize(
    ("seqs", "config", "said"),
    [
        ((0, 1, 2), {}, None),
        ((0, 2), {}, "cpu0: segment 1 is missing"),
        ((2,), {}, "cpu0: segments 0 to 1 are missing"),
        # With --ring the oldest makes room, which the recorder counts itself.
        ((2,), {"ring": True}, None),
        ((0, 1), {}, "cpu0: segment 2 is missing"),
        ((), {}, "cpu0: segments 0 to 2 are missing"),
    ],
)
def test_a_copy_that_was_interrupted_is_a_loss(
    tmp_path: Path, seqs: tuple[int, ...], config: dict[str, Any], said: str | None
) -> None:
    node = Node(config=config)
    for at in range(60):
        node.mark(BEGAN + at * SECOND, 1, at, "enter")
    node.fact("complete", until=node.ended, segments={"0": 3, "1": 0})
    rec = node.write(tmp_path / "rec", sealed=False)
    whole = (rec / "segments/cpu0-0.pages").read_bytes()
    (rec / "segments/cpu0-0.pages").unlink()
    assert len(whole) == 3 * 4096
    for seq in seqs:
        path = rec / f"segments/cpu0-{seq}.pages"
        path.write_bytes(whole[seq * 4096 : (seq + 1) * 4096])
        seal_segment(path, 0)
    done = seal.seal([rec], tmp_path / "s")
    assert done.remarks == ([f"{rec}: {said}: copy it again"] if said else [])
    _, rows, _ = store.query(tmp_path / "s", "SELECT t0, t1, n, reason FROM loss")
    ends = {
        (0, 2): (BEGAN + 19 * SECOND, BEGAN + 40 * SECOND),
        (2,): (BEGAN, BEGAN + 40 * SECOND),
        (0, 1): (BEGAN + 39 * SECOND, node.ended),
        (): (BEGAN, node.ended),
    }
    assert rows == ([(*ends[seqs], None, "segment missing")] if said else [])


def _cut(dir: Path) -> None:
    path = dir / "segments/cpu0-0.pages"
    path.write_bytes(path.read_bytes()[:-1])


def _flip(dir: Path) -> None:
    path = dir / "segments/cpu0-0.pages"
    data = bytearray(path.read_bytes())
    data[30] ^= 1
    path.write_bytes(data)


def _foreign(dir: Path) -> None:
    path = dir / "segments/cpu0-0.pages"
    path.write_bytes(b"\xee" * 4096)
    recordings.seal_segment(path, 0)


def _format(dir: Path) -> None:
    """As if the formats had changed under the recorder: other numbers."""
    path = dir / "formats/kstall/throttle_in"
    path.write_text(path.read_text().replace("ID: 2001", "ID: 2100"))


def _longer(dir: Path) -> None:
    path = dir / "formats/kstall/throttle_in"
    path.write_text(
        path.read_text().replace("offset:16;\tsize:4", "offset:400;\tsize:4")
    )


def _twice(dir: Path) -> None:
    path = dir / "formats/kstall/throttle_in"
    path.write_text(path.read_text().replace("ID: 2001", "ID: 2002"))


BROKEN: list[tuple[Callable[[Path], object], str]] = [
    (_cut, "4095 bytes, but 4096 were sealed: truncated"),
    (_flip, "not the bytes that were sealed"),
    (_foreign, "page 0: .*; the pages are not of these formats"),
    (_format, "event 2001, which has no format"),
    (_longer, "a record without task"),
    (_twice, "have the same number, 2002"),
    (
        _edit("session.json", lambda s: s.update(format=9)),
        "format 9, this kstall reads",
    ),
    (_edit("session.json", lambda s: s.update(began="x")), "began is missing"),
    (
        _edit("session.json", lambda s: s.update(page_size=65536)),
        "pages of 65536 bytes",
    ),
    (
        _edit("session.json", lambda s: s["providers"][0].update({"class": "x\x1b"})),  # type: ignore[index]
        r"provider 0: class x\\x1b is not one",
    ),
    (
        _edit("session.json", lambda s: s["providers"].append(s["providers"][0])),  # type: ignore[attr-defined,index]
        "is there twice",
    ),
    (
        _edit("session.json", lambda s: s["providers"][0].update(tid=["x"])),  # type: ignore[index]
        "provider 0: tid is .*, not a name",
    ),
    (lambda dir: (dir / "session.json").write_text("[" * 9999), "cannot be read"),
    (
        lambda dir: (dir / "facts.jsonl").write_text("[" * 9999 + "\n1\n"),
        ":1: not JSON",
    ),
    (
        lambda dir: (dir / "facts.jsonl").write_text(
            '{{"kind": ' + "[" * 99_999 + "\n1\n"
        ),
        ":1: not JSON",
    ),
    (lambda dir: (dir / "session.json").unlink(), "not a recording of kstall-node"),
    (lambda dir: (dir / "session.json").write_text("{"), "cannot be read"),
    (lambda dir: (dir / "session.json").write_text("[]"), "not of kstall-node"),
    (lambda dir: (dir / "formats/ftrace/print").write_text("x"), "not a format file"),
    (
        lambda dir: (dir / "facts.jsonl").write_text("{\n{}\n"),
        "facts.jsonl:1: not JSON",
    ),
    (lambda dir: (dir / "facts.jsonl").write_text("[]\n"), "facts.jsonl:1: not a fact"),
    (
        lambda dir: (dir / "facts.jsonl").write_text('{"kind":"proc","pid":"x"}\n'),
        "its facts do not fit",
    ),
    (lambda dir: (dir / "segments/x.pages").write_text(""), "not a segment"),
]


@pytest.mark.parametrize(
    ("damage", "complaint"), BROKEN, ids=[text[:30] for _, text in BROKEN]
)
def test_one_clear_message_each(
    tmp_path: Path,
    damage: Callable[[Path], object],
    complaint: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    node = Node()
    node.throttle(BEGAN + 10, BEGAN + 20, 40)
    good = Node("good", "other")
    good.throttle(BEGAN + 10, BEGAN + 20, 40)
    made = tmp_path / "s.duckdb"
    seal.seal([good.write(tmp_path / "good")], made)
    before = made.read_bytes()
    dir = node.write(tmp_path / "bad")
    damage(dir)
    with pytest.raises(errors.OpsError, match=complaint) as caught:
        seal.seal([dir], made)
    assert "\n" not in str(caught.value)
    assert cli.main(["seal", str(dir), "-o", str(made)]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert made.read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "bad",
        "good",
        "s.duckdb",
    ]


@pytest.mark.parametrize(
    ("damage", "complaint"), BROKEN, ids=[text[:30] for _, text in BROKEN]
)
def test_whatever_it_is_the_others_are_sealed(
    tmp_path: Path, damage: Callable[[Path], object], complaint: str
) -> None:
    node = Node()
    node.proc(7)
    node.throttle(BEGAN + 10, BEGAN + 20, 40)
    dir = node.write(tmp_path / "rec/bad")
    damage(dir)
    good = Node("good", "other")
    good.throttle(BEGAN + 10, BEGAN + 20, 40)
    good.write(tmp_path / "rec/good")
    made = tmp_path / "s.duckdb"
    done = seal.seal([tmp_path / "rec"], made)
    assert (len(done.added), len(done.left_out)) == (1, 1)
    # As if it had not been there, but for what is known to be missing.
    seal.seal([tmp_path / "rec/good"], tmp_path / "alone")
    assert dump(made) == dump(tmp_path / "alone")
    ((_, _, place, reason),) = missing(made)
    assert place == str(dir) and str(dir) not in str(reason)
    assert re.search(complaint, str(reason))


@pytest.mark.parametrize(
    ("words", "limit"),
    [
        (["seal", "REC", "-o", "OUT"], 600_000),
        (["seal", "REC", "-o", "OUT"], 1000),
        (["explain", "STORE", "--html", "OUT"], 1000),
        (["timeline", "STORE", "-o", "OUT"], 1000),
    ],
)
def test_a_full_disk_leaves_what_was_there(
    tmp_path: Path, words: list[str], limit: int
) -> None:
    """DuckDB closes a file without a word of what it could not write."""
    store_, out, top = (tmp_path / name for name in ("s.duckdb", "out", "rec"))
    seal.seal([culprit().write(top) / "node0"], store_)
    shutil.copy(store_, out)
    here = sorted(tmp_path.iterdir())
    names = {"REC": str(top), "STORE": str(store_), "OUT": str(out)}
    done = subprocess.run(
        [
            *(sys.executable, "-c"),
            "import resource, sys\n"
            "limit = int(sys.argv.pop(1))\n"
            "resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))\n"
            # Compiled modules would be cut as well, and be read by the next test.
            "sys.dont_write_bytecode = True\n"
            "from kstall_ops.cli import main\n"
            "sys.exit(main(sys.argv[1:]))",
            *(str(limit), *(names.get(word, word) for word in words)),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("\n") == 1 and str(out) in done.stderr
    assert "as it was" in done.stderr
    assert out.read_bytes() == store_.read_bytes()
    assert sorted(tmp_path.iterdir()) == here


@pytest.mark.parametrize(
    "words",
    [
        ["seal", "REC", "-o", "no/such/s"],
        ["explain", "STORE", "--html", "no/such/s"],
        ["timeline", "STORE", "-o", "no/such/s"],
        ["fleet", "pull", "-w", "a", "--via", "true", "-o", "no/such/s"],
    ],
)
def test_a_place_that_is_not_there(
    tmp_path: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    Node().write(tmp_path / "rec")
    seal.seal([tmp_path / "rec"], tmp_path / "s.duckdb")
    names = {"REC": str(tmp_path / "rec"), "STORE": str(tmp_path / "s.duckdb")}
    assert cli.main([names.get(word, word) for word in words]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "no/such" in said and "No such file" in said


def test_a_torn_last_fact_is_what_a_killed_recorder_leaves(tmp_path: Path) -> None:
    dir = Node().write(tmp_path / "rec")
    (dir / "facts.jsonl").write_text('{"kind":"clock","t_mono":1}\n{"kind":"pr')
    assert "its last line is torn" in " ".join(recording.load(dir).remarks)


def test_a_torn_fact_costs_no_other(tmp_path: Path) -> None:
    """On a full disk, older recorders went on behind it, on the same line."""
    dir = Node().write(tmp_path / "rec")
    clock = '{"kind": "clock", "t_mono": %d}'
    torn = clock % 1 + "\n" + '{"kind": "lo{"ki' + clock % 2 + "\n" + clock % 3 + "\n"
    (dir / "facts.jsonl").write_text(torn)
    loaded = recording.load(dir)
    assert [fact["t_mono"] for fact in loaded.facts] == [1, 2, 3]
    assert loaded.remarks == ["facts.jsonl:2: a torn line was left out"]


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda path: None, "no such store"),
        (lambda path: path.write_text("hello"), "cannot be opened as a store"),
        (lambda path: path.mkdir(), "not a file"),
        (lambda path: duckdb.connect(path).close(), "but not a store of kstall"),
    ],
)
def test_what_is_no_store(
    tmp_path: Path, make: Callable[[Path], object], complaint: str
) -> None:
    path = tmp_path / "s.duckdb"
    make(path)
    with pytest.raises(errors.NotAStore, match=complaint) as caught:
        store.check(path)
    assert "\n" not in str(caught.value)


def test_a_store_of_another_version(tmp_path: Path) -> None:
    path = tmp_path / "s.duckdb"
    with duckdb.connect(path) as made:
        made.execute("CREATE TABLE meta AS SELECT 7 AS version")
    with pytest.raises(
        errors.NotAStore, match=f"version 7, this kstall reads version {schema.VERSION}"
    ):
        store.check(path)


# -- read-only ------------------------------------------------------------------------

ESCAPES = {
    "copy to": "COPY stall TO '{dir}/out.csv'",
    "copy from": "COPY stall FROM '{dir}/in.csv'",
    "attach": "ATTACH '{dir}/new.duckdb' AS x",
    "read a file": "SELECT * FROM read_text('{dir}/in.csv')",
    "read a table of a file": "SELECT * FROM '{dir}/in.csv'",
    "install": "INSTALL httpfs",
    "load": "LOAD '{dir}/x.duckdb_extension'",
    "export": "EXPORT DATABASE '{dir}/export'",
    "unlock": "SET enable_external_access = true",
    "directories": "SET allowed_directories = ['{dir}']",
    "reset": "RESET enable_external_access",
    "list files": "SELECT * FROM glob('{dir}/*')",
    "read bytes": "SELECT * FROM read_blob('/etc/passwd')",
    "write": "INSERT INTO meta VALUES (2)",
    "drop": "DROP TABLE stall",
    "second statement": "SELECT 1; COPY stall TO '{dir}/out.csv'",
    "memory": "ATTACH ':memory:' AS x",
    "settings of python": "SET python_enable_replacements = true",
    "spill": "SET temp_directory = '{dir}'",
    "log to a file": "CALL enable_logging(storage_path = '{dir}/log')",
    "profile to a file": "PRAGMA profiling_output = '{dir}/profile'",
}


@pytest.mark.parametrize("sql", ESCAPES.values(), ids=ESCAPES.keys())
def test_queries_neither_write_nor_read_files(tmp_path: Path, sql: str) -> None:
    made, dir = tmp_path / "s.duckdb", tmp_path / "dir"
    dir.mkdir()
    (dir / "in.csv").write_text("a,b\n1,2\n")
    seal.seal([Node().write(tmp_path / "rec")], made)
    before = made.read_bytes()
    with pytest.raises(errors.Refused) as caught:
        store.query(made, sql.format(dir=dir))
    assert "\n" not in str(caught.value)
    assert [path.name for path in dir.iterdir()] == ["in.csv"]
    assert made.read_bytes() == before


def test_a_query_that_does_not_end_is_stopped(tmp_path: Path) -> None:
    made = tmp_path / "s.duckdb"
    seal.seal([Node().write(tmp_path / "rec")], made)
    with pytest.raises(errors.Refused, match=r"longer than 0\.3 s"):
        store.query(
            made,
            "SELECT sum(a.range * b.range) FROM range(10000000) a, range(10000000) b",
            seconds=0.3,
        )


def test_what_is_printed_cannot_move_the_cursor(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    node = Node("n\x1b[2J")
    node.proc(40, comm="\x1b]0;pwned\x07\n| DROP", job="j\u202e", rank=0)
    node.throttle(BEGAN + 10, BEGAN + 20, 40)
    made = tmp_path / "s.duckdb"
    assert cli.main(["seal", str(node.write(tmp_path / "rec")), "-o", str(made)]) == 0
    for name in store.NAMED:
        assert cli.main(["query", str(made), "--named", name]) == 0
    assert cli.main(["explain", str(made)]) == 0
    said = capsys.readouterr().out
    assert r"\x1b]0;pwned\x07\n| DROP" in said
    assert all(char.isprintable() or char == "\n" for char in said)
