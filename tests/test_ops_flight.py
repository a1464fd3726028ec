# SPDX-License-Identifier: GPL-2.0-or-later
"""Dumps of PyTorch's Flight Recorder as files: what is read, and what is refused."""

from __future__ import annotations

import os
import pickle
import struct
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from flightdumps import REAL, entry, jsoned, pickled, whole
from kstall_ops import errors, flight


@pytest.fixture
def real(project_root: Path) -> Path:
    """What a gloo job of PyTorch 2.13 left: see the README beside it."""
    return project_root / "tests/data/flight"


def test_both_real_forms_say_the_same(real: Path) -> None:
    a = flight.load(real / "nccl_trace_rank_1")
    b = flight.load(real / "json_rank_1.json")
    assert (a.rank, b.rank, a.version, b.version) == (1, 1, "2.10", "2.10")
    assert [one.first for one in a.collectives] == [True] * 24
    # Stacks are in pickles only.
    assert [one.first for one in b.collectives] == [None] * 24
    for one, other in zip(a.collectives, b.collectives, strict=True):
        assert vars(one) | {"first": None} == vars(other)


# -- what may be read -----------------------------------------------------------------


class _Runs:
    """Unpickling it runs something."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self._path}",)


def test_a_pickle_is_not_run(tmp_path: Path) -> None:
    for protocol in (2, 4):
        path = tmp_path / "nccl_trace_rank_0"
        said = whole([entry(1, REAL)]) | {"x": _Runs(tmp_path / "ran")}
        path.write_bytes(pickle.dumps(said, protocol))
        with pytest.raises(errors.NotADump) as caught:
            flight.load(path)
        text = str(caught.value)
        assert text.startswith(f"{path}: it holds ") and "nothing was run" in text
        assert "\n" not in text
        assert ("system" in text) == (protocol == 2)
    assert not (tmp_path / "ran").exists()


PLAIN = whole([entry(1, REAL)])
BOMB = b"\x80\x02}r\xff\xff\xff\xffX\x01\x00\x00\x00aX\x01\x00\x00\x00bs."
KEYS = b"\x80\x02})\x85X\x01\x00\x00\x00bs."


def without(name: str) -> dict[str, Any]:
    return {key: value for key, value in entry(1, REAL).items() if key != name}


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (pickled(PLAIN | {"x": {1, 2}}), "it holds GLOBAL"),
        (pickle.dumps(PLAIN | {"x": {1, 2}}, 4), "it holds EMPTY_SET"),
        (pickle.dumps(PLAIN | {"x": b"1"}, 4), "it holds SHORT_BINBYTES"),
        (b"\x80\x02\x82\x01.", "it holds EXT1 1"),
        (b"\x80\x02X\x01\x00\x00\x00aQ.", "it holds BINPERSID"),
        (BOMB, "it has no version"),
        (KEYS, "its instructions do not fit"),
        # Numbers that all have one hash take for ever to look up.
        (b"\x80\x02}K\x01K\x02s.", "its instructions do not fit"),
        (b"\x80\x02ha.", "its instructions do not fit"),
        (b"\x80\x02\x85.", "its instructions do not fit"),
        (b"\x80\x02\xff.", "truncated, or not a pickle: 0xff is no instruction"),
        (b"\x80\x02\x00.", "truncated, or not a pickle: 0x00 is no instruction"),
        (b"\x80\x02cos", "it holds GLOBAL, which no dump has"),
        (b"\x80\x02\x8a\x05\x00.", "truncated"),
        (b"\x80\x02]q", "truncated: its end is missing"),
        (b"\x80\x02\x8d" + b"\xff" * 8 + b".", "truncated: its end is missing"),
        (b"", "empty"),
        (b"hello", "neither a pickle nor JSON"),
        (b"{" * 100_000, "nested too deep|not JSON"),
        (b'{"version": "2.10", "entries": [', "truncated, or not JSON"),
        (b"{}", "it has no version"),
        (pickled([1]), "it has no version"),
        (pickled(PLAIN | {"version": "3.0"}), "of format 3.0; this kstall reads"),
        (pickled(PLAIN | {"version": "1.5"}), "of format 1.5; this kstall reads"),
        (pickled(PLAIN | {"version": "2"}), "of format 2; this kstall reads"),
        (pickled(PLAIN | {"version": "2.\x1b[2J"}), r"of format 2.\\x1b\[2J;"),
        (pickled(PLAIN | {"version": 2.1}), "none that is text"),
        (pickled(PLAIN | {"entries": []}), "it holds no collectives"),
        (jsoned(PLAIN | {"entries": []}), "it holds no collectives"),
        (pickled(PLAIN | {"entries": {"a": 1}}), "it holds no collectives"),
        (pickled(PLAIN | {"entries": [entry(1, REAL), 7]}), "entry 1: no dict"),
        (pickled(whole([without("time_created_ns")])), "entry 0: time_created_ns is"),
        (
            pickled(whole([without("collective_seq_id")])),
            "collective_seq_id is missing",
        ),
        (pickled(whole([without("process_group")])), "process_group is not a name"),
        (
            pickled(whole([entry(1, REAL, process_group=("0", 7))])),
            "process_group is m",
        ),
        (
            pickled(whole([entry(1, REAL, profiling_name="x" * 999)])),
            "profiling_name is",
        ),
        (pickled(whole([without("profiling_name")])), "profiling_name is missing"),
        (pickled(whole([entry(1, -1)])), "time_created_ns is missing, or is not"),
        (pickled(whole([entry(1, 1 << 80)])), "time_created_ns is missing, or is not"),
        (pickled(whole([entry(1, True)])), "time_created_ns is missing, or is not"),
        (pickled(whole([entry(1, REAL, profiling_name="nccl:send")])), "nothing to go"),
        (pickled(whole([entry(1, REAL, is_p2p=True)])), "nothing to go by: no coll"),
    ],
)
def test_what_is_no_dump_is_one_line(
    tmp_path: Path, data: bytes, complaint: str
) -> None:
    path = tmp_path / "nccl_trace_rank_0"
    path.write_bytes(data)
    with pytest.raises(errors.NotADump, match=complaint) as caught:
        flight.load(path)
    text = str(caught.value)
    assert text.startswith(f"{path}: ") and text.isprintable() and len(text) < 400


@pytest.mark.parametrize("name", ["nccl_trace_rank_0", "json_rank_1.json"])
def test_a_real_dump_cut_off_anywhere(real: Path, tmp_path: Path, name: str) -> None:
    data = (real / name).read_bytes()
    path = tmp_path / name
    for count in range(1, len(data) - 1, len(data) // 50):
        path.write_bytes(data[:count])
        with pytest.raises(errors.NotADump, match="truncated"):
            flight.load(path)


def test_a_pickle_that_keeps_its_reader_busy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "nccl_trace_rank_0"
    path.write_bytes(b"\x80\x02" + b"]" * 1000 + b".")
    monkeypatch.setattr(flight, "_INSTRUCTIONS", 1000)
    with pytest.raises(errors.NotADump, match="more than 1000 instructions: not a d"):
        flight.load(path)
    monkeypatch.setattr(flight, "_LARGEST", 1 << 20)
    path.write_bytes(b"\x80" * (1 << 20) + b".")
    with pytest.raises(errors.NotADump, match="larger than 1 MB: not a dump"):
        flight.load(path)


def test_ranks_of_a_group_that_keep_their_reader_busy(tmp_path: Path) -> None:
    """A million of them, and what is nearly some in a million ways."""
    path = tmp_path / "nccl_trace_rank_0"
    begun = time.process_time()
    for text in ("[" + " " * 100_000 + "x1", "[" + "1," * (1 << 20) + "0]"):
        dump = whole([entry(1, REAL)])
        dump["pg_config"]["0"]["ranks"] = text
        path.write_bytes(pickled(dump))
        assert flight.load(path).collectives[0].ranks == ()
    assert time.process_time() - begun < 2


@pytest.mark.parametrize("what", ["it holds GLOBAL", "of format "])
def test_what_is_refused_is_not_looked_at_for_long(tmp_path: Path, what: str) -> None:
    """It is one line of output, which took a hundred times its memory to make."""
    path, long = tmp_path / "nccl_trace_rank_0", b"\x1b" * (1 << 22)
    version = b"X\x07\x00\x00\x00version" + b"X" + struct.pack("<I", len(long)) + long
    data = b"c" + long + b"\nx\n." if "GLOBAL" in what else b"}" + version + b"s."
    path.write_bytes(b"\x80\x02" + data)
    tracemalloc.start()
    try:
        with pytest.raises(errors.NotADump, match=what) as caught:
            flight.load(path)
        assert tracemalloc.get_traced_memory()[1] < 6 * len(long)
    finally:
        tracemalloc.stop()
    assert "\x1b" not in str(caught.value) and len(str(caught.value)) < 400


def test_what_is_no_plain_file_is_not_read(tmp_path: Path) -> None:
    """A pipe would wait for its other end, and a device has none."""
    pipe, device = tmp_path / "nccl_trace_rank_0", tmp_path / "nccl_trace_rank_1"
    os.mkfifo(pipe)
    device.symlink_to("/dev/zero")
    for path in (pipe, device):
        with pytest.raises(errors.NotADump, match="no plain file"):
            flight.load(path)


def test_a_later_minor_version_adds_keys_only(tmp_path: Path) -> None:
    path = tmp_path / "nccl_trace_rank_0"
    path.write_bytes(pickled(PLAIN | {"version": "2.99", "more": {"a": [1.5, None]}}))
    assert flight.load(path).version == "2.99"


@pytest.mark.parametrize("name", ["dump", "rank_1_of_3_old", "0.1"])
def test_whose_it_is_only_its_name_says(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(pickled(PLAIN))
    if name == "0.1":
        assert flight.load(path).rank == 1
        return
    with pytest.raises(errors.NotADump, match="its name does not end in a rank"):
        flight.load(path)


def test_a_rank_that_is_in_none_of_its_groups(tmp_path: Path) -> None:
    """Files whose names were exchanged: a rank has only the groups it is in."""
    path = tmp_path / "nccl_trace_rank_1"
    dump = whole([entry(1, REAL)])
    dump["pg_config"]["5"] = {"name": "5", "desc": "tp", "ranks": "[0, 2]"}
    path.write_bytes(pickled(dump))
    with pytest.raises(errors.NotADump, match=r"named after rank 1, but .* \[0, 2\]"):
        flight.load(path)
    dump["pg_config"]["5"]["ranks"] = "nobody knows"
    path.write_bytes(pickled(dump))
    assert flight.load(path).collectives[0].ranks == (0, 1, 2)


def test_what_is_left_out_of_a_dump(tmp_path: Path) -> None:
    ended = {"time_discovered_completed_ns": REAL + 90, "duration_ms": 5e-5}
    entries = [
        entry(1, REAL, pg_id=0),
        entry(2, REAL + 10, profiling_name="nccl:broadcast", pg_id=1),
        # In one go: an entry for each, and one that has the times.
        entry(3, REAL + 20, profiling_name="nccl:all_gather", pg_id=1),
        entry(3, REAL + 21, profiling_name="nccl:all_gather", pg_id=1),
        entry(3, REAL + 22, profiling_name="nccl:coalesced", pg_id=1, **ended),
        # Sending in one go has the number of the collective before.
        entry(3, REAL + 30, profiling_name="nccl:send", is_p2p=True, p2p_seq_id=1),
        entry(3, REAL + 31, profiling_name="nccl:coalesced", p2p_seq_id=1, pg_id=1),
        # It ended before it began.
        entry(4, REAL + 40, time_discovered_completed_ns=REAL + 39, pg_id=1),
        entry(5, REAL + 41, time_discovered_started_ns=REAL + 90, pg_id=1)
        | {"time_discovered_completed_ns": REAL + 80},
        # Nanoseconds taken for milliseconds, and a length without an end.
        entry(6, REAL + 42, pg_id=1, **ended | {"duration_ms": 50.0}),
        entry(7, REAL + 43, pg_id=1, duration_ms=50.0),
        *(
            entry(9 + at, REAL + 44, pg_id=1, **ended | {"duration_ms": bad})
            for at, bad in enumerate(("1", True, -1.0, float("nan"), float("inf")))
        ),
        entry(8, REAL + 50, profiling_name="nccl:_reduce_scatter_base", pg_id=1),
    ]
    path = tmp_path / "nccl_trace_rank_0"
    path.write_bytes(pickled(whole(entries)))
    dump = flight.load(path)
    seen = [(one.seq, one.enqueued - REAL, one.lasted) for one in dump.collectives]
    assert seen == [(3, 22, 50), (8, 50, None)]
    assert dump.collectives[0].op == "nccl:all_gather"
    assert [remark.partition(" are left out: ")[::2] for remark in dump.remarks] == [
        ("2 collectives", "a rank may leave them before all have entered them"),
        ("1 collectives", "their process group was made again"),
        ("9 collectives", "their times do not fit each other"),
    ]
