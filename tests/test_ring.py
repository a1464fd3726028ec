# SPDX-License-Identifier: GPL-2.0-or-later
"""Raw pages, and the expressions that a print fmt has over what stands in them."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from kstall.evidence import cexpr, records
from kstall.evidence.printk import compile_fmt
from kstall.ftrace import Malformed, ring
from ringpages import entry, page, record

FORMATS = Path(__file__).parent / "data" / "formats"


def layout(event: str) -> records.Layout:
    system, name = event.split(":")
    return records.parse_layout((FORMATS / system / name).read_text(), system)


WORK = layout("workqueue:workqueue_queue_work")
SWITCH = layout("sched:sched_switch")
Values = dict[str, int | str | tuple[int, ...]]
FIELDS: Values = {
    "work": 2**64 - 8,
    "function": 7,
    "workqueue": "evänts",
    "req_cpu": -1,
}
QUEUED = record(WORK, 42, FIELDS | {"cpu": 3})


def read(*pages: bytes) -> list[records.Event]:
    return list(ring.records(b"".join(pages), 1, [WORK, SWITCH]))


def test_what_stands_in_a_page() -> None:
    fields: Values = {
        "prev_comm": "a b",
        "prev_pid": 1,
        "prev_prio": -2,
        "prev_state": 2**40,
        "next_comm": "sixteen letters",
        "next_pid": 2,
        "next_prio": 120,
    }
    long = record(WORK, -1, FIELDS | {"cpu": 0, "workqueue": "w" * 200})
    events = read(
        page(1000, [entry(5, QUEUED), entry(7, record(SWITCH, 1, fields))]),
        page(9000, [entry(0, long)]),
    )
    assert [(e.ts_ns, e.cpu, e.pid, e.system, e.name) for e in events] == [
        (1005, 1, 42, "workqueue", "workqueue_queue_work"),
        (1012, 1, 1, "sched", "sched_switch"),
        (9000, 1, -1, "workqueue", "workqueue_queue_work"),
    ]
    assert events[0].fields == FIELDS | {"cpu": 3}
    assert events[1].fields == fields
    assert events[2].fields["workqueue"] == "w" * 200


def test_time_between_records() -> None:
    extend = struct.pack("<II", 1 << 5 | 30, 2)
    stamp = struct.pack("<II", 9 << 5 | 31, 4)
    thrown = struct.pack("<II", 3 << 5 | 29, 12) + bytes(8)
    rest = struct.pack("<I", 29) + b"\xff" * 8
    lost = 1 << 31
    entries = [entry(1, QUEUED), extend, entry(1, QUEUED), thrown, entry(1, QUEUED)]
    upper = 5 << 59
    events = read(
        page(upper + 10, [*entries, stamp, entry(0, QUEUED), rest], flags=lost)
    )
    at = upper + 10 + 1 + (2 << 27) + 1 + 1
    expected = [upper + 11, at, at + 3 + 1, upper + (4 << 27) + 9]
    assert [event.ts_ns for event in events] == expected


def test_arrays() -> None:
    fields = (
        records.Field("raw", "__data_loc u8[]", 8, 4, False),
        records.Field("three", "u32[3]", 12, 12, False),
        records.Field("near", "__rel_loc char[]", 24, 4, False),
    )
    odd = records.Layout("s", "e", 9, (), fields, '""')
    fixed = bytes(8) + struct.pack("<HHIII", 34, 3, 1, 2, 2**31)
    data = fixed + struct.pack("<HH", 2, 4) + b"..abc\0\1\2\3"
    assert ring.members(odd, data) == {
        "raw": (1, 2, 3),
        "three": (1, 2, 2**31),
        "near": "abc",
    }


def test_text_to_the_end_of_the_record() -> None:
    """ftrace:print, whose format says `char buf[]` of size 0."""
    print_layout = records.parse_layout(
        "name: print\nID: 5\nformat:\n"
        "\tfield:unsigned long ip;\toffset:8;\tsize:8;\tsigned:0;\n"
        "\tfield:char buf[];\toffset:16;\tsize:0;\tsigned:0;\n\n"
        'print fmt: "%ps: %s", (void *)REC->ip, REC->buf\n',
        "ftrace",
    )
    data = struct.pack("<HBBiQ", 5, 0, 0, 7, 1) + b"step=3\n\0\xff"
    (event,) = ring.records(page(10, [entry(0, data)]), 0, [print_layout])
    assert event.fields == {"ip": 1, "buf": "step=3\n"}


@pytest.mark.parametrize(("flags", "lost"), [(0, 0), (1 << 31, None), (3 << 30, 9)])
def test_events_lost_before_a_page(flags: int, lost: int | None) -> None:
    buffer = bytearray(page(1, [entry(1, QUEUED)], flags=flags))
    at = 16 + len(entry(1, QUEUED))
    buffer[at : at + 8] = (9).to_bytes(8, "little")
    assert ring.missed(bytes(buffer)) == lost
    ((where, _),) = ring.placed(bytes(buffer), 1, [WORK])
    assert where == 20


@pytest.mark.parametrize(
    ("pages", "complaint"),
    [
        (page(1, [entry(1, QUEUED)])[:-1], "4095 bytes are no whole pages"),
        (page(1, [entry(1, b"\xee" * 8)]), "event 61166, which has no format"),
        (page(1, [entry(1, QUEUED[:8])]), "a record without work"),
        (page(1, [entry(1, QUEUED)[:-4]]), "a record that is cut off"),
        (page(1, [struct.pack("<II", 0, 2)]), "a record that is cut off"),
        (page(1, [], flags=5000), "says it holds 5016 bytes"),
    ],
)
def test_pages_that_are_none(pages: bytes, complaint: str) -> None:
    with pytest.raises(Malformed, match=complaint):
        read(pages)


MEMBERS: Values = {"a": 0x1234, "b": 2**32 - 1, "n": "name", "c": 200, "t": (1, 2)}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("(((REC->a) >> 3) & 0x1f)", 6),
        ("((1U << 0) | (1UL << 3))", 9),
        ("REC->a ? REC->n : \"none\"", "name"),
        ("!REC->a || REC->b == 017", 0),
        ("-7 / 2 + -7 % 2", -4),
        ("(int)REC->b", -1),
        ("(s8)REC->c", -56),
        ("(unsigned short)(REC->b + 2)", 1),
        ("(unsigned)REC->b", 2**32 - 1),
        ("(void *)REC->b", 2**32 - 1),
        ("(unsigned long long)REC->a", 0x1234),
    ],
)  # fmt: skip
def test_expressions(text: str, value: int | str) -> None:
    assert cexpr.evaluate(text, MEMBERS) == value


@pytest.mark.parametrize(
    "text", ["f(REC->a)", "REC->z", "REC->t", "1 +", "NAME", "REC->n + 1", "&REC->a"]
)
def test_what_is_left_to_the_kernel(text: str) -> None:
    with pytest.raises(cexpr.Unknown):
        cexpr.evaluate(text, MEMBERS)


@pytest.mark.parametrize(
    ("fmt", "text"),
    [
        ('"%04x:%d", REC->a & 0xff, (int)REC->b', "0034:-1"),
        ('"%s %u", __get_str(n), REC->b', "name 4294967295"),
        ('"%-6s|%5d|%pS", REC->n, REC->c, REC->a', "name  |  200|f+0x1/0x2 [m]"),
        ('"%s", __print_symbolic(REC->c, { (25 << 3), "a, b" }, { 1, "c" })', "a, b"),
        ('"%s", __print_symbolic(REC->c, { 1, "c" })', "0xc8"),
        ('"%s", __print_flags(REC->c, "|", { 8, "e" }, { 1, "o" })', "e|0xc0"),
        (
            '"%s", __print_flags((long)REC->c & 0x48, "|", { 8, "e" }, { 64, "f" })',
            "e|f",
        ),
        ('"%s.", __print_flags(REC->c & 2, "|", { 2, "z" })', "."),
        ('"p=%p %llx", REC->a, -1LL', "p=0000000000001234 ffffffffffffffff"),
    ],
)
def test_text_is_what_the_record_prints(fmt: str, text: str) -> None:
    printed = compile_fmt(fmt)
    read = printed.read(text)
    assert read is not None
    for value, reading in zip(printed.values, read, strict=True):
        if value.function:
            assert (reading, value.of(MEMBERS)) == ("f+0x1/0x2", 0x1234)
        else:
            assert reading == value.of(MEMBERS)
    assert printed.read("?" + text) != read


@pytest.mark.parametrize(
    "fmt", ['"%s", __get_str(a)', '"%s", REC->a', '"%s", __print_flags(REC->n, "|")']
)
def test_text_that_no_record_is_known_to_print(fmt: str) -> None:
    (value,) = compile_fmt(fmt).values
    with pytest.raises(cexpr.Unknown):
        value.of(MEMBERS)
