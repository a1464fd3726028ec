# SPDX-License-Identifier: GPL-2.0-or-later
"""Results that real guests and machines wrote, read back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kstall.evidence import records
from kstall.evidence.printk import Unreadable, compile_fmt
from kstall.evidence.records import Bucket, Malformed
from kstall_guest import recorder

DATA = Path(__file__).parent / "data"
HEADER = """\
name: {name}
ID: 7
format:
\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;
\tfield:unsigned char common_flags;\toffset:2;\tsize:1;\tsigned:0;
\tfield:unsigned char common_preempt_count;\toffset:3;\tsize:1;\tsigned:0;
\tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;

"""


def layout(event: str) -> records.Layout:
    system, name = event.split(":")
    return records.parse_layout((DATA / "formats" / system / name).read_text(), system)


def made(name: str, *fields: str, fmt: str = '"x"') -> records.Layout:
    text = HEADER.format(name=name)
    text += "".join(f"\tfield:{field}\n" for field in fields)
    return records.parse_layout(f"{text}\nprint fmt: {fmt}\n", "sys")


def test_odd_task_names_survive() -> None:
    text = (DATA / "trace" / "odd-names.txt").read_text()
    events = records.trace(text, [layout("sched:sched_process_exit")])
    names = [
        "a b-1 [2] x: y",
        "ev\nil",
        "  lead-",
        "#hash",
        'q"\\\tä',
        "x-12 [000] ....",
        "prio=1 comm=z",
    ]
    assert [event.fields["comm"] for event in events] == names
    # The head's own copy is padded with blanks, so a name's leading ones are gone.
    assert [event.comm for event in events] == [name.lstrip() for name in names]
    assert [event.pid for event in events] == list(range(546, 553))
    first = events[0]
    assert (first.cpu, first.ts_ns, first.name) == (
        1,
        2392_457632_000,
        "sched_process_exit",
    )
    assert (first.system, first.fields["prio"]) == ("sched", 120)


def test_both_readers_agree() -> None:
    text = (DATA / "trace" / "workqueue.txt").read_text()
    enabled = (
        "workqueue:workqueue_queue_work",
        "irq:irq_handler_entry",
        "irq:softirq_entry",
    )
    trace = records.trace(text, [layout(event) for event in enabled])
    printed = [e for e in trace if e.name == "workqueue_queue_work"]
    recorded = [
        event
        for event in records.recorded((DATA / "trace" / "workqueue.jsonl").read_text())
        if printed[0].ts_ns <= event.ts_ns <= printed[-1].ts_ns + 5000
    ]
    assert len(printed) == len(recorded) == 24
    same = ("work", "workqueue", "req_cpu", "cpu")
    for line, record in zip(printed, recorded, strict=True):
        assert [line.fields[key] for key in same] == [
            record.fields[key] for key in same
        ]
        assert (line.pid, line.cpu) == (record.pid, record.cpu)
        # ftrace reads the clock first, and prints it rounded to a microsecond.
        assert -500 <= record.ts_ns - line.ts_ns < 100_000


def test_both_readers_agree_on_drm_sched() -> None:
    layouts = [layout(f"gpu_scheduler:drm_sched_job_{x}") for x in ("queue", "run")]
    layouts.append(layout("gpu_scheduler:drm_sched_job_done"))
    printed = records.trace((DATA / "trace" / "drm-credits.txt").read_text(), layouts)
    recorded = records.recorded((DATA / "trace" / "drm-credits.jsonl").read_text())
    order = ["queue", "queue", "run", "done", "run", "done"]
    assert [event.name.removeprefix("drm_sched_job_") for event in recorded] == order
    assert [(e.name, e.pid, e.comm, dict(e.fields)) for e in printed] == [
        (e.name, e.pid, e.comm, dict(e.fields)) for e in recorded
    ]
    assert recorded[0].fields["dev"] == "drm_sched_test_credits.drm-mock-scheduler-0"


def test_drm_sched_style_with_every_separator() -> None:
    drm_job = layout("gpu_scheduler:drm_sched_job_queue")
    values = compile_fmt(drm_job.print_fmt).match(
        "dev=my, dev=1, fence=18446744073709551615:2, ring=r 0, fence=3:4, "
        "job count:1, hw job count:-2, client_id:5"
    )
    assert values == {
        "dev": "my, dev=1",
        "fence_context": 2**64 - 1,
        "fence_seqno": 2,
        "name": "r 0, fence=3:4",
        "job_count": 1,
        "hw_job_count": -2,
        "client_id": 5,
    }


@pytest.mark.parametrize(
    ("fmt", "body", "fields"),
    [
        ('"a=%d b=%-5s|", REC->a, __get_str(b)', "a=-3 b=x    |", {"a": -3, "b": "x"}),
        ('"v=0x%08lx", ((unsigned long)(REC->v))', "v=0x000000ff", {"v": 255}),
        ('"v=%#x", REC->v', "v=0x1f", {"v": 31}),
        ('"p=%p q=%px", REC->p, REC->q', "p=ffff888102e1a820 q=(null)",
         {"p": 0xFFFF888102E1A820, "q": 0}),
        ('"s=%s", __print_symbolic(REC->s, { 0, "a, b" }, { 1, "c" })', "s=a, b",
         {"s": "a, b"}),
        ('"p=%s%s x=%d", REC->p & 1 ? "R" : "S", REC->q ? "+" : "", REC->x',
         "p=R+ x=1", {"p": "R+", "x": 1}),
        ('"prio=%d", REC->prio - 120', "prio=5", {"prio": 5}),
        ('"n=%lu twice %lu", REC->n, REC->n', "n=1 twice 1", {"n": 1}),
        ('"100%% of %s\\n", __get_str(s)', "100% of it", {"s": "it"}),
        ('"%.*s|%c", 4, __get_str(s), REC->c', "abcd|x", {"s": "abcd"}),
        ('"one " "two"', "one two", {}),
    ],
)  # fmt: skip
def test_print_fmt(fmt: str, body: str, fields: dict[str, object]) -> None:
    values = compile_fmt(fmt).match(body)
    assert values is not None
    assert {key: values[key] for key in fields} == fields


@pytest.mark.parametrize(
    "fmt", ['"%d"', '"%*d"', '"%.*s", 4', '"%s%s", REC->x', "REC->x", '"open']
)
def test_a_broken_print_fmt_is_refused(fmt: str) -> None:
    with pytest.raises(Unreadable):
        compile_fmt(fmt)


def test_an_escape_that_is_none_stays() -> None:
    pattern = compile_fmt(r'"\8=%d", REC->x')
    assert pattern.match("8=1") == {"x": 1}


def test_a_print_fmt_that_is_broken_concerns_its_own_event_only() -> None:
    member = "int x;\toffset:8;\tsize:4;\tsigned:1;"
    events = [
        made("ev", member, fmt='"x=%d", REC->x'),
        made("bad", member, fmt='"%*d"'),
    ]
    line = "              sh-9       [000] .....     1.000002: ev: x=7\n"
    assert len(records.trace(line, events)) == 1
    with pytest.raises(Malformed, match="line 1: bad: more conversions than"):
        records.trace(line.replace("ev:", "bad:"), events)


def test_a_line_of_another_format_is_refused_with_its_number() -> None:
    event = made("ev", "int x;\toffset:8;\tsize:4;\tsigned:1;", fmt='"x=%d", REC->x')
    line = "              sh-9       [000] .....     1.000002: ev: x="
    (read,) = records.trace(f"# tracer: nop\n{line}7\n", [event])
    assert read.ts_ns == 1_000_002_000
    with pytest.raises(Malformed, match="line 2: ev: not what its print fmt"):
        records.trace(f"# tracer: nop\n{line}seven\n", [event])
    with pytest.raises(Malformed, match="line 1: no format for event ev"):
        records.trace(f"{line}7\n", [])
    with pytest.raises(Malformed, match="not an event"):
        records.trace("garbage\n", [event])


def test_gaps_in_a_trace_are_skipped() -> None:
    text = (
        "##### CPU 1 buffer started ####\nCPU:1 [LOST 41 EVENTS]\nCPU:0 [LOST EVENTS]\n"
    )
    assert records.trace(text, []) == ()


def test_layout_and_holes() -> None:
    known = layout("workqueue:workqueue_queue_work")
    assert [(f.name, f.ctype, f.offset, f.size, f.signed) for f in known.fields] == [
        ("work", "void *", 8, 8, False),
        ("function", "void *", 16, 8, False),
        ("workqueue", "__data_loc char[]", 24, 4, False),
        ("req_cpu", "int", 28, 4, True),
        ("cpu", "int", 32, 4, True),
    ]
    assert len(known.common) == 4 and known.holes() == ()
    assert layout("sched:sched_switch").fields[0].ctype == "char[16]"
    holed = made(
        "ev",
        "u64 a;\toffset:16;\tsize:8;\tsigned:0;",
        "u8 b;\toffset:24;\tsize:1;\tsigned:0;",
        "int c;\toffset:28;\tsize:4;\tsigned:1;",
    )
    assert [(hole.before, hole.offset, hole.size) for hole in holed.holes()] == [
        ("a", 8, 8),
        ("c", 25, 3),
    ]
    with pytest.raises(Malformed, match="not a tracepoint format"):
        records.parse_layout("", "sys")


def test_bpftrace_output() -> None:
    out = records.bpftrace((DATA / "bpftrace" / "maps.json").read_text())
    assert out.lost == 0
    assert out.lines == ('a "quoted" line', "no newline yes")
    assert out.maps["@m"] == {"": 334} and out.maps["@sw"] == {"": 12993}
    assert out.maps["@c"]["sh,262"] == 20
    assert out.maps["@str"] == {"bpftrace": "bpftrace", "sh": "sh"}
    assert out.maps["@t"] == {"": [1, "a,b", -3]}
    assert out.maps["@u"] == {"1": 2**64 - 1}
    assert out.hists["@h"]["bpftrace"][0] == Bucket(2, 3, 1)
    assert out.hists["@l"][""][-1] == Bucket(100, None, 37)


def test_bpftrace_trouble() -> None:
    out = records.bpftrace(
        '{"type": "lost_events", "data": {"events": 40}}\n'
        '{"type": "lost_events", "data": {"events": 2}}\n'
        '{"type": "helper_error", "msg": "Map full", "helper": "map_update_elem", '
        '"retcode": -7, "line": 2, "col": 33}\n'
    )
    assert out.lost == 42
    with pytest.raises(Malformed, match="line 2"):
        records.bpftrace('{"type": "printf", "data": "a"}\n{"type": "map", "da')
    with pytest.raises(Malformed, match="unknown type 'new'"):
        records.bpftrace('{"type": "new", "data": 1}\n')


def test_recorder_lines_become_events() -> None:
    raw = (DATA / "bpftrace" / "record.json").read_text()
    text = recorder.lines(raw, [layout("workqueue:workqueue_queue_work")])
    assert text == (DATA / "trace" / "workqueue.jsonl").read_text()
    event = records.recorded(text)[0]
    assert (event.system, event.name) == ("workqueue", "workqueue_queue_work")
    assert event.fields["workqueue"] == "events"
    value = json.loads(text.splitlines()[0]) | {"fields": {"list": [1, 2]}}
    assert records.recorded(json.dumps(value))[0].fields["list"] == (1, 2)
    with pytest.raises(Malformed, match="record line 1"):
        records.recorded(text[:50])
