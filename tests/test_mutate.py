# SPDX-License-Identifier: GPL-2.0-or-later
"""Falsified evidence: each operator, in each reading, and what checks say of it."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from kstall import cli
from kstall.evidence import (
    Evidence,
    common,
    evidence,
    falsify,
    mutate,
    operators,
    readers,
)
from kstall.evidence.cexpr import Member
from kstall.evidence.falsify import Genuine
from kstall.evidence.falsity import MutantOutcome, Mutation
from kstall.evidence.operators import MS, RECORDS, FieldMutant
from kstall.evidence.records import parse_layout
from kstall.report import html, report
from kstall.series import Project, Series, Spec
from kstall.verdict import Check
from ringpages import entry, page, record

NAP, DREAM = "demo:demo_nap", "demo:demo_dream"
FORMAT = """\
name: demo_nap
ID: 5
format:
\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;
\tfield:unsigned char common_flags;\toffset:2;\tsize:1;\tsigned:0;
\tfield:unsigned char common_preempt_count;\toffset:3;\tsize:1;\tsigned:0;
\tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;

\tfield:u64 nap_ns;\toffset:8;\tsize:8;\tsigned:0;
\tfield:u64 snore_ns;\toffset:16;\tsize:8;\tsigned:0;
\tfield:const void * bed;\toffset:24;\tsize:8;\tsigned:0;
\tfield:u32 kind;\toffset:32;\tsize:4;\tsigned:0;
\tfield:int ret;\toffset:36;\tsize:4;\tsigned:1;
\tfield:u8 deep;\toffset:40;\tsize:1;\tsigned:0;
\tfield:bool warm;\toffset:41;\tsize:1;\tsigned:0;
\tfield:__data_loc char[] cat;\toffset:44;\tsize:4;\tsigned:0;

print fmt: "nap_ns=%llu snore_ns=%llu bed=%px kind=%s ret=%d deep=%u warm=%d cat=%s", \
REC->nap_ns, REC->snore_ns, REC->bed, __print_symbolic(REC->kind, { 1, "on" }, \
{ 2, "under" }, { 7, "beside" }), REC->ret, REC->deep, REC->warm, __get_str(cat)
"""
KINDS = {1: "on", 2: "under", 7: "beside"}
BED = 0xFFFF888000001000
#: CPU and time in ns; then nap_ns, snore_ns, bed, kind, ret, deep, warm, cat
NAPS: tuple[tuple[int, int, tuple[Any, ...]], ...] = (
    (0, 1_000_000_100, (5_000, 40, BED, 1, -11, 0, 1, "tom")),
    (1, 1_010_000_200, (7_001, 50, BED, 2, 0, 1, 1, "kit")),
    (1, 1_020_000_300, (9_000, 60, BED + 64, 7, 0, 1, 0, "tom")),
    (0, 1_030_000_400, (2_000, 70, BED, 1, -11, 0, 0, "kit")),
)
NAMES = ("nap_ns", "snore_ns", "bed", "kind", "ret", "deep", "warm", "cat")
SPEC: dict[str, Any] = {
    "schema": 1,
    "title": "demo: Trace naps",
    "patches": ["0001-demo.patch"],
    "cover": "cover.txt",
    "kconfig": "demo.config",
    "subsystem": {
        "name": "DEMO",
        "prefix": "demo",
        "tree": "https://example.org/demo.git",
        "branch": "next",
        "list": "demo@lists.example.org",
    },
    "tracepoint": [
        {
            "name": "demo_nap",
            "system": "demo",
            "patch": "0001-demo.patch",
            "header": "demo.h",
            "joins": "nothing",
            "site": [
                {"file": "demo.c", "function": "nap", "hot": False, "context": "any"}
            ],
            "fields": {
                "nap_ns": "u64",
                "snore_ns": "u64",
                "bed": "const void *",
                "kind": "u32",
                "ret": "int",
                "deep": "u8",
                "warm": "bool",
                "cat": "__data_loc char[]",
            },
        },
        {
            "name": "demo_dream",
            "system": "demo",
            "kind": "bare",
            "patch": "0001-demo.patch",
            "header": "demo.h",
            "joins": "nothing",
            "site": [
                {"file": "demo.c", "function": "nap", "hot": False, "context": "any"}
            ],
            "fields": {"p": "struct task_struct *", "delta": "u64"},
            "reads": {"task": "p->pid"},
        },
    ],
    "workload": [
        {
            "name": "doze",
            "program": "doze",
            "events": [NAP],
            "record": [NAP, DREAM],
            "deadline-s": 5,
        }
    ],
    "check": [
        {
            "name": "naps_are_as_long_as_cats_say",
            "kind": "positive",
            "workloads": ["doze"],
            "claim": "They are.",
        }
    ],
}
TRUE = f"NAPS = {[tuple(values) for *_, values in NAPS]!r}\n"
#: A check that holds every value against what is known, and raises on a strange cat.
CHECKS = (
    """
from kstall.evidence import Event, Evidence, Verdict

KINDS = {1: "on", 2: "under", 7: "beside"}
TIMES = (1000000000, 1010000000, 1020000000, 1030000000)
"""
    + TRUE
    + """

def naps_are_as_long_as_cats_say(ev: Evidence) -> Verdict:
    v = Verdict()
    load = ev.workload("doze")
    known = {"tom": 0, "kit": 1}
    for event, values, at in zip(load.events("demo_nap"), NAPS, TIMES):
        told = dict(event.fields)
        known[told["cat"]]
        v.equal("cat", told.pop("cat"), values[7])
        v.equal("kind", told.pop("kind"), KINDS[values[3]])
        rest = (*values[:3], *values[4:7])
        v.equal("values", tuple(told.values()), rest)
        v.equal("time", event.ts_ns, at)
    v.equal("naps", len(load.events("demo_nap")), 4)
    v.equal("dreams", [e.fields["task"] for e in load.record("demo_dream")], [7, 8])
    return v
"""
)
NO_CHECK = """
from kstall.evidence import Evidence, Verdict


def naps_are_as_long_as_cats_say(ev: Evidence) -> Verdict:
    v = Verdict()
    v.at_least("naps", len(ev.workload("doze").events("demo_nap")), 1)
    return v
"""
BY_SCRIPT = """
from kstall.evidence import Evidence, Verdict


def naps_are_as_long_as_cats_say(ev: Evidence) -> Verdict:
    v = Verdict()
    load = ev.workload("doze")
    told = sum(e.fields["nap_ns"] for e in load.events("demo_nap"))
    v.equal("sum", told, load.bpftrace("naps").maps["@ns"][""])
    return v
"""


def made(tmp_path: Path, checks: str = CHECKS, **changes: Any) -> Series:
    """The series, with ``checks`` as its checks.py."""
    place = tmp_path / "patches" / "demo"
    place.mkdir(parents=True, exist_ok=True)
    (place / "checks.py").write_text(checks)
    return Series("demo", place, Spec.model_validate({**SPEC, **changes}), ())


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """What a guest left of four naps and two dreams."""
    root = tmp_path / "results"
    load = root / "doze"
    (load / "pages").mkdir(parents=True)
    agent = {"status": "completed", "workloads": [{"name": "doze", "seconds": 1}]}
    (root / "agent.json").write_text(json.dumps(agent))
    (root / "formats" / "demo").mkdir(parents=True)
    (root / "formats" / "demo" / "demo_nap").write_text(FORMAT)
    layout = parse_layout(FORMAT, "demo")
    traced, recorded = [], []
    entries: dict[int, list[bytes]] = {0: [], 1: []}
    last = {0: 1_000_000_000, 1: 1_000_000_000}
    for cpu, at, values in NAPS:
        fields: dict[str, Member] = dict(zip(NAMES, values, strict=True))
        us = round(at / 1000)
        text = (
            "nap_ns={} snore_ns={} bed={:016x} kind={} ret={} deep={} warm={:d} cat={}"
        ).format(*values[:3], KINDS[values[3]], *values[4:])
        stamp = f"{us // 10**6}.{us % 10**6:06}"
        head = f"{'doze':>16}-77      [{cpu:03}] ..... {stamp:>12}"
        traced.append(f"{head}: demo_nap: {text}")
        entries[cpu].append(entry(at - last[cpu], record(layout, 77, fields)))
        last[cpu] = at
        recorded.append(_line(NAP, at + 900, cpu, fields))
    for number, at in ((7, 1_040_000_000), (8, 1_050_000_000)):
        recorded.append(
            _line(DREAM, at, 0, {"p": number << 20, "delta": 3, "task": number})
        )
    for cpu, naps in entries.items():
        (load / "pages" / f"cpu{cpu}").write_bytes(page(1_000_000_000, naps))
    (load / "trace.txt").write_text("".join(f"{line}\n" for line in traced))
    (load / "record.jsonl").write_text("".join(f"{line}\n" for line in recorded))
    total = {"type": "map", "data": {"@ns": sum(values[0] for *_, values in NAPS)}}
    (load / "bpftrace-naps.json").write_text(json.dumps(total))
    return root


def _line(event: str, at: int, cpu: int, fields: Mapping[str, Member]) -> str:
    head = {"event": event, "ts": at, "cpu": cpu, "pid": 77, "tgid": 77}
    return json.dumps({**head, "comm": "doze", "fields": dict(fields)})


def false(series: Series, results: Path, *mutant: str) -> Evidence:
    """The evidence that a mutant of demo_nap makes; it has to change something."""
    variant, where = Genuine(series, evidence.load(results)).falsified(
        FieldMutant(NAP if mutant[0] != "p" else DREAM, *mutant)
    )
    assert where == {"doze"}
    return variant


def told(saved: Evidence, field: str) -> list[Member]:
    """A field as each reading has it, which has to be the same, in time order."""
    load = saved.workload("doze")
    raw = sorted(load.raw("demo_nap"), key=lambda event: event.ts_ns)
    values = [event.fields[field] for event in raw]
    assert [event.fields[field] for event in load.record("demo_nap")] == values
    parsed = [event.fields[field] for event in load.events("demo_nap")]
    if field == "kind":
        kinds: list[Any] = values
        assert parsed == [KINDS.get(kind, f"0x{kind:x}") for kind in kinds]
    else:
        assert parsed == values
    return values


@pytest.mark.parametrize(
    ("field", "operator", "values"),
    [
        ("nap_ns", "zero", [0, 0, 0, 0]),
        ("nap_ns", "one more", [5_001, 7_002, 9_001, 2_001]),
        ("nap_ns", "one less", [4_999, 7_000, 8_999, 1_999]),
        ("nap_ns", "half", [2_500, 3_500, 4_500, 1_000]),
        ("nap_ns", "double", [10_000, 14_002, 18_000, 4_000]),
        ("nap_ns", "x1000", [5_000_000, 7_001_000, 9_000_000, 2_000_000]),
        ("nap_ns", "/1000", [5, 7, 9, 2]),
        ("nap_ns", "fixed", [9_001] * 4),
        ("nap_ns", "stale", [5_000, 5_000, 7_001, 9_000]),
        ("nap_ns", "from snore_ns", [40, 50, 60, 70]),
        ("bed", "one more", [BED + 1, BED + 1, BED + 65, BED + 1]),
        ("bed", "fixed", [BED + 64 + 0x1000] * 4),
        ("bed", "32 bits", [0x1000, 0x1000, 0x1040, 0x1000]),
        ("kind", "another enum value", [2, 7, 1, 2]),
        ("kind", "fixed", [8, 8, 8, 8]),
        ("ret", "half", [-5, 0, 0, -5]),
        ("ret", "one less", [-12, -1, -1, -12]),
        ("deep", "inverted", [1, 0, 0, 1]),
        ("deep", "one less", [255, 0, 0, 255]),
        ("warm", "inverted", [0, 0, 1, 1]),
        ("warm", "always", [1, 1, 1, 1]),
        ("cat", "empty", [""] * 4),
        ("cat", "another string", ["kstall-false"] * 4),
        ("cat", "cut short", ["to", "ki", "to", "ki"]),
        ("cat", "stale", ["tom", "tom", "kit", "tom"]),
    ],
)
def test_an_operator_on_a_value_in_all_readings(
    field: str, operator: str, values: list[Member], tmp_path: Path, results: Path
) -> None:
    saved = false(made(tmp_path), results, field, operator)
    assert told(saved, field) == values
    true = evidence.load(results)
    for other in NAMES:
        if other != field:
            assert told(saved, other) == told(true, other)
    # Readers are held against each other, and all of them show what is false.
    series = made(tmp_path)
    for check in (common.readers_agree, readers.text_is_the_record):
        verdict = check(series, saved)
        assert [
            comparison for comparison in verdict.comparisons if not comparison.ok
        ] == []


def test_text_is_what_the_kernel_would_print(tmp_path: Path, results: Path) -> None:
    def texts(*mutant: str) -> list[str]:
        saved = false(made(tmp_path), results, *mutant)
        return [event.text for event in saved.workload("doze").events("demo_nap")]

    assert texts("bed", "zero")[0] == (
        "nap_ns=5000 snore_ns=40 bed=0000000000000000 kind=on ret=-11 deep=0 warm=1 "
        "cat=tom"
    )
    assert texts("kind", "fixed")[1].endswith("kind=0x8 ret=0 deep=1 warm=1 cat=kit")
    assert "ret=-12 " in texts("ret", "one less")[3]
    assert texts("cat", "empty")[2].endswith("warm=0 cat=")


def test_two_fields_that_are_swapped(tmp_path: Path, results: Path) -> None:
    saved = false(made(tmp_path), results, "nap_ns", "swapped with snore_ns")
    assert told(saved, "nap_ns") == [40, 50, 60, 70]
    assert told(saved, "snore_ns") == [5_000, 7_001, 9_000, 2_000]


@pytest.mark.parametrize(
    ("operator", "naps", "moved"),
    [
        ("first dropped", [7_001, 9_000, 2_000], 0),
        ("last dropped", [5_000, 7_001, 9_000], 0),
        ("every third dropped", [5_000, 7_001, 2_000], 0),
        ("one doubled", [5_000, 7_001, 9_000, 9_000, 2_000], 0),
        # Of one thread, in the middle.
        ("two swapped", [5_000, 7_001, 2_000, 9_000], 0),
        ("1 ms later", [5_000, 7_001, 9_000, 2_000], MS),
        ("1 ms earlier", [5_000, 7_001, 9_000, 2_000], -MS),
    ],
)
def test_an_operator_on_whole_records(
    operator: str, naps: list[int], moved: int, tmp_path: Path, results: Path
) -> None:
    saved = false(made(tmp_path), results, RECORDS, operator)
    assert told(saved, "nap_ns") == naps
    times = [event.ts_ns for event in saved.workload("doze").events("demo_nap")]
    assert times[0] % (10 * MS) == moved % (10 * MS)
    if operator in ("two swapped", "1 ms later", "1 ms earlier"):
        true = [e.ts_ns for e in evidence.load(results).workload("doze").record()][:4]
        assert [e.ts_ns - moved for e in saved.workload("doze").record()][:4] == true
    # The other event's records are what and where they were.
    dreams = saved.workload("doze").record("demo_dream")
    assert [event.fields["task"] for event in dreams] == [7, 8]


def test_what_is_read_through_a_false_pointer_follows_it(
    tmp_path: Path, results: Path
) -> None:
    def dreams(operator: str) -> list[tuple[Member, Member]]:
        saved = false(made(tmp_path), results, "p", operator)
        events = saved.workload("doze").record("demo_dream")
        return [(event.fields["p"], event.fields["task"]) for event in events]

    assert dreams("stale") == [(7 << 20, 7), (7 << 20, 7)]
    assert dreams("fixed") == [(7 << 20, 7), (7 << 20, 7)]
    assert dreams("zero") == [(0, 0), (0, 0)]
    assert dreams("one more") == [((7 << 20) + 1, 0), ((8 << 20) + 1, 0)]


def test_what_changes_nothing_is_not_applicable(tmp_path: Path, results: Path) -> None:
    mutation = mutate.judged(made(tmp_path), evidence.load(results))
    idle = {
        (mutant.field, mutant.operator)
        for mutant in mutation.mutants
        if mutant.outcome == "not-applicable"
    }
    # No value is above 32 bits, and no third dream is there to be dropped.
    assert idle == {
        ("nap_ns", "32 bits"),
        ("snore_ns", "32 bits"),
        ("delta", "32 bits"),
        ("p", "32 bits"),
        ("delta", "stale"),
        (RECORDS, "every third dropped"),
    }


def outcomes(mutation: Mutation, field: str) -> dict[str, str]:
    return {
        mutant.operator: mutant.outcome
        for mutant in mutation.mutants
        if mutant.field == field
    }


def test_checks_that_know_better_catch_it(tmp_path: Path, results: Path) -> None:
    mutation = mutate.judged(made(tmp_path), evidence.load(results))
    for field in NAMES[:-1]:
        assert set(outcomes(mutation, field).values()) <= {"caught", "not-applicable"}
    assert mutation.witnesses == ["naps_are_as_long_as_cats_say", "events_fire"]
    assert {
        mutant.check for mutant in mutation.mutants if mutant.outcome == "caught"
    } == {"naps_are_as_long_as_cats_say"}


def test_an_error_is_no_catch(tmp_path: Path, results: Path) -> None:
    mutation = mutate.judged(made(tmp_path), evidence.load(results))
    assert outcomes(mutation, "cat") == {
        "empty": "escaped",
        "another string": "escaped",
        "cut short": "escaped",
        # Both cats are known, so that there is a verdict.
        "stale": "caught",
    }
    (broke,) = next(
        mutant for mutant in mutation.mutants if mutant.operator == "empty"
    ).broke
    assert broke == "naps_are_as_long_as_cats_say: KeyError: ''"


def with_parts(*parts: dict[str, Any]) -> list[dict[str, Any]]:
    """The tracepoints, with ``parts`` of the naps' records."""
    nap, dream = SPEC["tracepoint"]
    return [{**nap, "part": parts}, dream]


NIGHT = {"name": "night", "where": {"deep": [1]}}


def test_a_part_of_the_records_is_false_alone(tmp_path: Path, results: Path) -> None:
    series = made(tmp_path, tracepoint=with_parts(NIGHT))
    assert told(false(series, results, "nap_ns", "zero", "night"), "nap_ns") == [
        *(5_000, 0, 0, 2_000)
    ]
    saved = false(series, results, RECORDS, "first dropped", "night")
    assert told(saved, "nap_ns") == [5_000, 9_000, 2_000]
    elsewhere = {"name": "elsewhere", "workloads": ["other"]}
    series = made(tmp_path, tracepoint=with_parts(elsewhere))
    genuine = Genuine(series, evidence.load(results))
    mutant = FieldMutant(NAP, "nap_ns", "zero", "elsewhere")
    assert genuine.falsified(mutant)[1] == frozenset()
    nap, dream = SPEC["tracepoint"]
    never = {**dream, "part": [{"name": "never", "where": {"delta": [9]}}]}
    genuine = Genuine(made(tmp_path, tracepoint=[nap, never]), evidence.load(results))
    assert genuine.falsified(FieldMutant(DREAM, "p", "fixed", "never"))[1] == set()


def test_what_is_only_noticed_elsewhere_fails_the_check(
    tmp_path: Path, results: Path
) -> None:
    """The check compares light naps only; in all records it notices each operator."""
    light = CHECKS.replace(
        "        told = dict",
        "        if values[5]:\n            continue\n        told = dict",
    )
    assert light != CHECKS
    tracepoint = with_parts(NIGHT, {"name": "never", "where": {"deep": [7]}})
    series = made(tmp_path, light, tracepoint=tracepoint)
    mutation = mutate.judged(series, evidence.load(results))
    result = mutate.judge(series, mutation)
    wrong = {
        comparison.label: str(comparison.observed)
        for comparison in result.comparisons
        if not comparison.ok
    }
    assert result.status == "fail"
    assert "demo_nap: nap_ns: escaped" not in wrong
    assert wrong["demo_nap (night): nap_ns: escaped"].startswith("zero, one more")
    # What has no records at all is for other checks to miss, and is said.
    assert not any("(never)" in label for label in wrong)
    assert mutation.unproven()[-1:] == ["demo_nap (never): no record of it"]
    rows = {(row.event, row.field): row for row in mutation.rows()}
    assert rows[NAP, "nap_ns"].caught and not rows[NAP, "nap_ns"].escaped
    argued = made(
        tmp_path,
        light,
        tracepoint=tracepoint,
        unproven=[argument("nap_ns", "zero", part="night")],
    )
    escaped = {
        (mutant.part, mutant.operator)
        for mutant in mutate.argued(argued, mutation).mutants
        if mutant.field == "nap_ns" and mutant.outcome == "escaped"
    }
    assert ("night", "zero") not in escaped and ("night", "half") in escaped


def test_what_escapes_fails_the_check(tmp_path: Path, results: Path) -> None:
    series = made(tmp_path, NO_CHECK)
    mutation = mutate.judged(series, evidence.load(results))
    result = mutate.judge(series, mutation)
    assert result.status == "fail"
    wrong = {
        comparison.label: str(comparison.observed)
        for comparison in result.comparisons
        if not comparison.ok
    }
    assert "zero, one more, one less, half" in wrong["demo_nap: nap_ns: escaped"]
    assert wrong["demo_nap: (records): escaped"].startswith("first dropped, last")
    assert wrong["demo_nap: nap_ns: any caught or argued"] == "False"


def test_what_is_excused_by_a_busy_host_is_left_open(
    tmp_path: Path, results: Path
) -> None:
    excused = NO_CHECK.replace(
        "    v.at_least",
        '    naps = ev.workload("doze").events("demo_nap")\n'
        '    told = [nap.fields["nap_ns"] for nap in naps]\n'
        "    v.at_least('longest nap', max(told), 1)\n"
        "    with v.excused('the host was late'):\n"
        "        v.at_least('shortest nap', min(told), 2_000)\n    v.at_least",
    )
    mutation = mutate.judged(made(tmp_path, excused), evidence.load(results))
    (half,) = (
        m for m in mutation.mutants if (m.field, m.operator) == ("nap_ns", "half")
    )
    assert (half.outcome, half.left_open) == ("escaped", "the host was late")
    result = mutate.judge(made(tmp_path, excused), mutation)
    nap = {c.label: c for c in result.comparisons if "nap_ns" in c.label}
    assert not nap["demo_nap: nap_ns: left open by a check"].ok
    assert "half" in str(nap["demo_nap: nap_ns: left open by a check"].observed)
    assert "half" not in str(nap["demo_nap: nap_ns: escaped"].observed)
    # Others escape altogether, which nothing excuses.
    assert result.status == "fail"
    only = mutation.model_copy(update={"mutants": [half]})
    result = mutate.judge(made(tmp_path, excused), only)
    assert (result.status, result.detail) == ("error", "the host was late")


def argument(
    field: str | None, *operators: str, event: str = NAP, **keys: Any
) -> dict[str, Any]:
    """An entry of [[unproven]]; ``keys`` are those of other names, with dashes."""
    named = {name.replace("_", "-"): value for name, value in keys.items()}
    entry = {"event": event, "operators": operators, "because": "so", **named}
    return entry | ({"fields": [field]} if field else {})


#: What changes nothing in the evidence, for a reason.
UNCHANGED = (
    *(
        argument(field, "32 bits", event=event, changes_nothing=True)
        for event, field in (
            *((NAP, "nap_ns"), (NAP, "snore_ns")),
            *((DREAM, "delta"), (DREAM, "p")),
        )
    ),
    argument("delta", "stale", event=DREAM, changes_nothing=True),
    argument(None, "every third dropped", event=DREAM, changes_nothing=True),
)


def near(slack: int) -> str:
    """The checks, with one that knows the times of naps to within ``slack`` ns."""
    exact = 'v.equal("time", event.ts_ns, at)'
    assert exact in CHECKS
    return CHECKS.replace(exact, f'v.at_most("time", abs(event.ts_ns - at), {slack})')


def moved(mutation: Mutation, to: str) -> MutantOutcome:
    """The outcome of naps that are 1 ms later, or earlier."""
    (mutant,) = (
        mutant
        for mutant in mutation.mutants
        if (mutant.event, mutant.operator) == (NAP, f"1 ms {to}")
    )
    return mutant


@pytest.mark.parametrize(
    ("slack", "declared", "outcome", "noticed"),
    [
        (MS // 2, None, "caught", None),
        # Nobody has said that this is near enough.
        (5 * MS, None, "escaped", 10),
        (5 * MS, 10, "argued", 10),
        (5 * MS, 100, "argued", 10),
        (50 * MS, 100, "argued", 100),
        # Coarser than declared.
        (50 * MS, 10, "escaped", 100),
        (500 * MS, 100, "escaped", None),
    ],
)
def test_how_near_a_time_is_known_is_declared(
    tmp_path: Path,
    results: Path,
    slack: int,
    declared: int | None,
    outcome: str,
    noticed: int | None,
) -> None:
    declaration = argument(None, "1 ms later", "1 ms earlier", noticed_from_ms=declared)
    known = [] if declared is None else [declaration]
    series = made(tmp_path, near(slack), unproven=known)
    mutation = mutate.argued(series, mutate.judged(series, evidence.load(results)))
    for to in ("later", "earlier"):
        mutant = moved(mutation, to)
        assert mutant.outcome == outcome
        text = f"{noticed} ms {to}, caught by naps_are_as_long_as_cats_say"
        assert mutant.noticed == (text if noticed else "")
        resolution = f"{noticed} ms" if outcome == "argued" else ""
        assert mutant.resolution == resolution
        # It comes to the same when it is judged again from what was kept.
        assert moved(mutate.argued(series, mutation), to) == mutant


def test_a_time_that_is_known_less_well_than_declared(
    tmp_path: Path, results: Path
) -> None:
    """It may be the host's fault, so there is no verdict; the patch has not failed."""
    checks = near(50 * MS)
    arguments = [
        *(*UNCHANGED, argument("cat", "empty", "another string", "cut short")),
        argument("delta", "zero", "one more", "one less", "half", "double", "fixed",
                 "x1000", "/1000", event=DREAM),
        argument(None, "1 ms later", "1 ms earlier", event=DREAM),
    ]  # fmt: skip

    def judged(ms: int) -> Check:
        entry = argument(None, "1 ms later", "1 ms earlier", noticed_from_ms=ms)
        series = made(tmp_path, checks, unproven=[*arguments, entry])
        mutation = mutate.judged(series, evidence.load(results))
        return mutate.judge(series, mutation)

    assert judged(100).status == "pass"
    coarse = judged(10)
    assert coarse.status == "error" and "due to a busy host" in coarse.detail
    wrong = {
        comparison.label: str(comparison.observed)
        for comparison in coarse.comparisons
        if not comparison.ok
    }
    by = "100 ms later, caught by naps_are_as_long_as_cats_say"
    assert f"1 ms later ({by})" in wrong["demo_nap: (records): noticed too late"]
    (label,) = (label for label in wrong if label.startswith("arguments"))
    assert label == "arguments of [[unproven]] that do not hold in this evidence"
    assert f"1 ms later: it is not noticed from 10 ms on: {by}" in wrong[label]
    # What not even 100 ms are noticed of is no matter of the host.
    checks = near(500 * MS)
    assert judged(100).status == "fail"


def test_what_changes_nothing_needs_an_argument(tmp_path: Path, results: Path) -> None:
    arguments = [
        argument("cat", "empty", "another string", "cut short"),
        argument("delta", "zero", "one more", "one less", "half", "double", "fixed",
                 "x1000", "/1000", event=DREAM),
        argument(None, "1 ms later", "1 ms earlier", event=DREAM),
    ]  # fmt: skip
    saved = evidence.load(results)
    series = made(tmp_path, unproven=[*arguments, *UNCHANGED])
    mutation = mutate.judged(series, saved)
    assert mutate.judge(series, mutation).status == "pass"
    # It is no fault of the patch, but this evidence proves nothing about it.
    series = made(tmp_path, unproven=[*arguments, *UNCHANGED[1:]])
    result = mutate.judge(series, mutation)
    assert result.status == "error"
    assert "demo_nap nap_ns (32 bits); so it cannot show" in result.detail
    assert mutate.summary(mutate.argued(series, mutation)).endswith(
        "6 not applicable, 1 of them not argued"
    )
    # What escapes counts for more.
    series = made(tmp_path, unproven=[*arguments[1:], *UNCHANGED[1:]])
    assert mutate.judge(series, mutation).status == "fail"


def test_what_is_said_to_change_nothing_and_does_fails(
    tmp_path: Path, results: Path
) -> None:
    text = {"operators": ["empty", "another string", "cut short"]}
    arguments = [
        *(*UNCHANGED, argument("cat", "empty", changes_nothing=True) | text),
        argument("delta", "zero", "one more", "one less", "half", "double", "fixed",
                 "x1000", "/1000", event=DREAM),
        argument(None, "1 ms later", "1 ms earlier", event=DREAM),
        # It changes something, and is noticed.
        argument("snore_ns", "zero", changes_nothing=True),
    ]  # fmt: skip
    series = made(tmp_path, unproven=arguments)
    mutation = mutate.argued(series, mutate.judged(series, evidence.load(results)))
    assert outcomes(mutation, "cat")["empty"] == "escaped"
    why = "it changes something in this evidence, and no check notices"
    assert {(stale.operator, stale.why) for stale in mutation.stale} == {
        (operator, why) for operator in text["operators"]
    }
    assert [spare.field for spare in mutation.spare] == ["snore_ns"]
    assert mutate.judge(series, mutation).status == "fail"


@pytest.mark.parametrize(
    ("entry", "fault"),
    [
        (argument("cat", "1 ms later", noticed_from_ms=10), "only about records"),
        (argument(None, "one doubled", noticed_from_ms=10), "only about records"),
        (argument(None, "1 ms later", noticed_from_ms=20), "Input should be 10 or 100"),
        (
            argument("cat", "empty", changes_nothing=True, resolution="a whisker"),
            "is not a matter of resolution",
        ),
    ],
)
def test_an_argument_that_contradicts_itself(
    tmp_path: Path, entry: dict[str, Any], fault: str
) -> None:
    with pytest.raises(ValueError, match=fault):
        made(tmp_path, unproven=[entry])


def test_what_is_argued_does_not(tmp_path: Path, results: Path) -> None:
    arguments = [
        argument("cat", "empty", "another string", "cut short", because="all purr"),
        argument("delta", "zero", "one more", "one less", "half", "double", "fixed",
                 "x1000", "/1000", event=DREAM),
        argument(None, "one doubled", "two swapped", event=DREAM),
        argument(None, "1 ms later", "1 ms earlier", event=DREAM),
        *UNCHANGED,
    ]  # fmt: skip
    bare = [point["name"] for point in SPEC["tracepoint"]]
    assert bare == ["demo_nap", "demo_dream"]
    series = made(tmp_path, unproven=arguments)
    mutation = mutate.argued(series, mutate.judged(series, evidence.load(results)))
    escaped = {
        (mutant.field, mutant.operator)
        for mutant in mutation.mutants
        if mutant.outcome == "escaped"
    }
    assert escaped == set()
    spare = {
        (refutation.field, refutation.operator, refutation.why)
        for refutation in mutation.spare
    }
    # Doubled and swapped dreams are noticed by their tasks, in this run: another one
    # may need the argument.
    assert spare == {
        (RECORDS, "one doubled", "caught by naps_are_as_long_as_cats_say"),
        (RECORDS, "two swapped", "caught by naps_are_as_long_as_cats_say"),
    }
    assert not mutation.stale
    assert mutate.judge(series, mutation).status == "pass"
    arguments[2:3] = []
    series = made(tmp_path, unproven=arguments)
    assert mutate.judge(series, mutation).status == "pass"
    # A line for each reason.
    assert mutate.argued(series, mutation).unproven() == [
        "demo_nap, cat (empty, another string, cut short): all purr",
        "demo_dream, delta (zero, one more, one less, half, double, fixed, x1000, "
        "/1000), records (1 ms later, 1 ms earlier): so",
    ]
    assert mutate.argued(series, mutation).unchanged() == [
        "demo_nap, nap_ns, snore_ns (32 bits); demo_dream, p (32 bits), delta (stale, "
        "32 bits), records (every third dropped): so"
    ]
    # Whoever argues no more has an escape again, also of what was judged before.
    assert mutate.judge(made(tmp_path), mutation).status == "fail"


BY_PROGRAM = """
from kstall.evidence import Evidence, Verdict


def naps_are_as_long_as_cats_say(ev: Evidence) -> Verdict:
    v = Verdict()
    load = ev.workload("doze")
    told = [e.fields["nap_ns"] for e in load.events("demo_nap")]
    v.equal("naps", told, [fact["ns"] for fact in load.objects("record")])
    return v
"""
BY_LINES = BY_PROGRAM.replace(
    'for fact in load.objects("record")]',
    "for fact in map(json.loads, load.stdout.splitlines())\n"
    '            if fact["what"] == "record"]',
).replace("from kstall", "import json\nfrom kstall", 1)


def test_a_program_that_shows_the_records_is_no_witness(
    tmp_path: Path, results: Path
) -> None:
    lines = [{"what": "record", "ns": values[0]} for *_, values in NAPS]
    text = "".join(f"{json.dumps(line)}\n" for line in [*lines, {"what": "cat"}])
    (results / "doze" / "stdout").write_text(text)
    saved = evidence.load(results)
    # It would be, as nobody says what these lines are.
    genuine = mutate.judged(made(tmp_path, BY_PROGRAM), saved)
    assert outcomes(genuine, "nap_ns")["one more"] == "caught"
    load = {**SPEC["workload"][0], "shows-events": ["record"]}
    series = made(tmp_path, BY_PROGRAM, workload=[load])
    mutation = mutate.judged(series, saved)
    assert mutation.silent == ["naps_are_as_long_as_cats_say"]
    assert outcomes(mutation, "nap_ns")["one more"] == "escaped"
    doze = false(series, results, "nap_ns", "one more").workload("doze")
    assert doze.stdout == '{"what": "cat"}\n'
    assert doze.objects() == doze.objects("cat") == [{"what": "cat"}]
    with pytest.raises(falsify.Withheld, match="record of doze shows the records"):
        doze.objects("record")
    # Nor can a check have them that reads the output by itself.
    series = made(tmp_path, BY_LINES, workload=[load])
    with pytest.raises(mutate.NotProven, match="naps_are_as_long_as_cats_say: fail"):
        mutate.judged(series, saved)


def test_an_argument_that_is_refuted(tmp_path: Path, results: Path) -> None:
    arguments = [
        argument("cat", "double"),
        # It changes nothing here, and could elsewhere.
        argument("nap_ns", "32 bits"),
        # Another run may not notice it.
        argument("snore_ns", "zero"),
    ]
    series = made(tmp_path, unproven=arguments)
    mutation = mutate.argued(series, mutate.judged(series, evidence.load(results)))
    assert [
        (refutation.field, refutation.operator, refutation.why)
        for refutation in mutation.stale
    ] == [
        ("cat", "double", "there is no such operator for it"),
    ]
    assert [
        (refutation.field, refutation.operator, refutation.why)
        for refutation in mutation.spare
    ] == [
        ("snore_ns", "zero", "caught by naps_are_as_long_as_cats_say"),
    ]
    result = mutate.judge(series, mutation)
    assert not result.comparisons[-2].ok
    assert result.comparisons[-2].label == (
        "arguments of [[unproven]] that do not hold"
    )


def test_events_of_one_class_are_false_together(tmp_path: Path, results: Path) -> None:
    nap = SPEC["tracepoint"][0]
    twin = {**nap, "name": "demo_doze"}
    loads = [{**SPEC["workload"][0], "record": [NAP]}]
    series = made(tmp_path, tracepoint=[nap, twin], workload=loads)
    text = FORMAT.replace("name: demo_nap\nID: 5", "name: demo_doze\nID: 6")
    (results / "formats" / "demo" / "demo_doze").write_text(text)
    both = f"{NAP}+demo_doze"
    saved = evidence.load(results)
    assert {mutant.event for mutant in operators.mutants(series, saved)} == {
        NAP,
        "demo:demo_doze",
        both,
    }
    false, where = Genuine(series, saved).falsified(FieldMutant(both, "nap_ns", "zero"))
    assert where == {"doze"} and told(false, "nap_ns") == [0] * 4
    # An argument for one of them holds for both.
    arguing = made(
        *(tmp_path, NO_CHECK),
        tracepoint=[nap, twin],
        workload=loads,
        unproven=[argument("cat", "empty")],
    )
    escaped = MutantOutcome(
        event=both, field="cat", operator="empty", outcome="escaped"
    )
    mutation = Mutation(
        digest="", seconds=0, witnesses=[], silent=[], mutants=[escaped]
    )
    (mutant,) = mutate.argued(arguing, mutation).mutants
    assert (mutant.outcome, mutant.because) == ("argued", "so")


def test_the_output_of_a_script_is_no_witness(tmp_path: Path, results: Path) -> None:
    series = made(tmp_path, BY_SCRIPT)
    mutation = mutate.judged(series, evidence.load(results))
    assert mutation.silent == ["naps_are_as_long_as_cats_say"]
    assert mutation.witnesses == ["events_fire"]
    assert outcomes(mutation, "nap_ns")["double"] == "escaped"
    saved = false(series, results, "nap_ns", "double").workload("doze")
    for read in (lambda: saved.bpftrace("naps"), lambda: saved.decoded("perf.txt")):
        with pytest.raises(falsify.Withheld, match="cannot prove them"):
            read()


def test_evidence_that_is_not_accepted_proves_nothing(
    tmp_path: Path, results: Path
) -> None:
    series = made(tmp_path, CHECKS.replace('"naps", len', '"cats", 1 + len'))
    with pytest.raises(mutate.NotProven, match="naps_are_as_long_as_cats_say: fail"):
        mutate.judged(series, evidence.load(results))


def test_readers_that_do_not_have_the_same_records(
    tmp_path: Path, results: Path
) -> None:
    path = results / "doze" / "trace.txt"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[1:]))
    with pytest.raises(falsify.Unmatched, match="different numbers of records"):
        mutate.judged(made(tmp_path, NO_CHECK), evidence.load(results))


def test_a_recorder_that_has_skipped_a_record(tmp_path: Path, results: Path) -> None:
    path = results / "doze" / "record.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([lines[0], *lines[2:]]))
    saved = false(made(tmp_path), results, "nap_ns", "stale").workload("doze")
    naps = [event.fields["nap_ns"] for event in saved.events("demo_nap")]
    assert naps == [5_000, 5_000, 7_001, 9_000]
    # The second is not there, and the others are what they are among all.
    read = [event.fields["nap_ns"] for event in saved.record("demo_nap")]
    assert read == [5_000, 7_001, 9_000]
    # What nobody else has is no record that was skipped.
    path.write_text("".join([*lines[1:2], *lines]))
    with pytest.raises(falsify.Unmatched, match="different numbers of records"):
        mutate.judged(made(tmp_path), evidence.load(results))


def test_a_thread_that_is_moved_between_two_readers(
    tmp_path: Path, results: Path
) -> None:
    path = results / "doze" / "record.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    naps = [line for line in lines if line["event"] == NAP]
    naps[1]["cpu"] += 1
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    saved = false(made(tmp_path), results, "nap_ns", "stale").workload("doze")
    for event in (saved.events("demo_nap"), saved.record("demo_nap")):
        assert [nap.fields["nap_ns"] for nap in event] == [5_000, 5_000, 7_001, 9_000]
    # Another thread's is not that record.
    naps[1]["pid"] += 1
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(falsify.Unmatched, match="different numbers of records"):
        mutate.judged(made(tmp_path), evidence.load(results))


def test_a_check_that_does_not_end_is_no_catch(
    tmp_path: Path, results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mutate, "_LIMIT", 0.2)
    endless = NO_CHECK.replace(
        "    return v",
        '    while ev.workload("doze").events("demo_nap")[0].fields["deep"]:\n'
        "        pass\n    return v",
    )
    mutation = mutate.judged(made(tmp_path, endless), evidence.load(results))
    (mutant,) = (
        m for m in mutation.mutants if (m.field, m.operator) == ("deep", "inverted")
    )
    assert mutant.outcome == "escaped" and "processor time" in mutant.broke[0]


def test_several_processes_find_the_same(tmp_path: Path, results: Path) -> None:
    series, saved = made(tmp_path), evidence.load(results)
    assert mutate.judged(series, saved, workers=2).mutants == (
        mutate.judged(series, saved).mutants
    )


def test_what_was_judged_is_not_judged_again(
    tmp_path: Path, results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    series, cached = made(tmp_path), tmp_path / "cache"
    first, reused = mutate.mutation(series, results, cached, 1)
    assert not reused
    again, reused = mutate.mutation(series, results, cached, 1)
    assert reused and again == first
    # An argument judges nothing, and is seen.
    arguing = made(tmp_path, unproven=[argument("cat", "empty")])
    other, reused = mutate.mutation(arguing, results, cached, 1)
    assert reused and outcomes(other, "cat")["empty"] == "argued"
    # Other checks, other evidence, another engine: each is judged anew.
    assert not mutate.mutation(made(tmp_path, NO_CHECK), results, cached, 1)[1]
    assert mutate.mutation(made(tmp_path), results, cached, 1)[1]
    (results / "doze" / "stdout").write_text("dozed\n")
    assert not mutate.mutation(made(tmp_path), results, cached, 1)[1]
    monkeypatch.setattr(mutate.sources, "digest", lambda *_: "another engine")
    assert not mutate.mutation(made(tmp_path), results, cached, 1)[1]


def test_what_was_judged_does_not_pile_up(
    tmp_path: Path, results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mutate.cache, "RETAINED", 3)
    kept = tmp_path / "cache" / "mutations"
    kept.mkdir(parents=True)
    # As those of before, which nothing has deleted.
    for number in range(5):
        (kept / f"{number}.json").write_text("{}")
        os.utime(kept / f"{number}.json", (number, number))
    mutate.mutation(made(tmp_path), results, tmp_path / "cache", 1)
    old = {path.name for path in kept.glob("*.json")}
    assert old == {"3.json", "4.json"} and len([*kept.iterdir()]) == 3


def run_of(series: Series, tmp_path: Path, **fields: Any) -> report.Report:
    """The report of a run in ``tmp_path``, which has ``results`` as its evidence."""
    entry = report.SeriesReport(
        name=series.name,
        title="t",
        digest="d",
        **{"evidence": "results", **fields},
    )
    run_report = report.Report(
        run="r",
        started="2026-01-02T03:04:05+00:00",
        command=["kstall"],
        environment=report.Environment(kstall="0", python="3", host="h", cpus=1),
        series=[entry],
    )
    report.write(run_report, tmp_path / "report.json")
    return run_report


#: The check that caught them, and the operators, of a field.
BY_NAME = (
    "naps_are_as_long_as_cats_say: zero, one more, one less, half, double, fixed, stale"
)


def test_it_is_shown(tmp_path: Path, results: Path) -> None:
    never = {"name": "never", "where": {"deep": [7]}}
    series = made(
        tmp_path,
        unproven=[argument("cat", "empty"), UNCHANGED[0]],
        tracepoint=with_parts(never),
    )
    mutation = mutate.argued(series, mutate.judged(series, evidence.load(results)))
    shown = run_of(series, tmp_path, mutation=mutation)
    again = report.read(tmp_path / "report.json")
    assert again.series[0].mutation == mutation
    html.write(shown, tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text()
    assert "escaped: another string, cut short" in text
    assert "empty: so" in text
    rows = [
        [re.sub(r"<[^>]+>", "", cell) for cell in re.findall(r"(?s)<td.*?</td>", row)]
        for row in re.findall(r"(?s)<tr.*?</tr>", text)
    ]
    by_field = {row[0]: row[1:] for row in rows if len(row) == 3}
    assert by_field["demo_nap ret"] == [BY_NAME, ""]
    caught, other = by_field["demo_nap cat"]
    assert caught == "naps_are_as_long_as_cats_say: stale"
    assert other == "escaped: another string, cut shortempty: so"
    assert by_field["demo_nap nap_ns"][1] == "32 bits changes nothing: so"
    assert by_field["demo_nap snore_ns"][1] == "changes nothing, not argued: 32 bits"
    assert by_field["demo_nap (never) ret"] == [
        *("", "no such record, or none that changes")
    ]


# -- kstall mutate --------------------------------------------------------------------

#: What is argued of the evidence, so that nothing escapes.
ARGUED = (
    ("cat", "empty", "another string", "cut short"),
    *(
        ("delta", "zero", "one more", "one less", "half", "double", "fixed", "x1000"),
        ("delta", "/1000"),
        (None, "1 ms later", "1 ms earlier"),
    ),
)


@pytest.fixture
def command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """`kstall mutate` of the run in ``tmp_path`` with this series in the project: its
    exit status, and what it prints."""

    def call(series: Series, *words: str, run: Path = tmp_path) -> tuple[int, str, str]:
        monkeypatch.setenv("KSTALL_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(Project, "load", lambda *_: (series,))
        code = cli.main(["mutate", str(run), *words])
        return code, *capsys.readouterr()

    return call


def test_the_command_is_zero_if_all_is_noticed_or_argued(
    tmp_path: Path, results: Path, command: Callable[..., tuple[int, str, str]]
) -> None:
    arguments = [
        argument(field, *operators, event=NAP if field == "cat" else DREAM)
        for field, *operators in ARGUED
    ]
    series = made(tmp_path, unproven=[*arguments, *UNCHANGED])
    run_of(series, tmp_path)
    code, output, _ = command(series)
    assert code == 0, output
    row = next(line for line in output.splitlines() if "demo_nap: cat" in line)
    assert row.split()[2:6] == ["1", "of", "4", "3"]
    assert "argued: empty, another string, cut short" in row
    assert "escaped:" not in output and BY_NAME not in output
    # The names of the checks are for who asks.
    code, output, _ = command(series, "demo", "--all")
    assert code == 0, output
    row = next(line for line in output.splitlines() if "demo_nap: ret" in line)
    assert row.rstrip().endswith(BY_NAME)
    assert "argued: demo_nap, cat (empty, another string, cut short); " in output
    assert "changes nothing: demo_nap, nap_ns, snore_ns (32 bits); " in output
    # What changes nothing is no proof of anything, unless somebody says why.
    code, output, _ = command(made(tmp_path, unproven=arguments))
    assert code == 2, output
    row = next(line for line in output.splitlines() if "demo_nap: nap_ns" in line)
    assert row.rstrip().endswith("changes nothing, not argued: 32 bits")
    assert "so it cannot show whether a check would notice" in " ".join(output.split())


def test_the_command_is_one_if_something_escapes(
    tmp_path: Path, results: Path, command: Callable[..., tuple[int, str, str]]
) -> None:
    series = made(tmp_path)
    run_of(series, tmp_path)
    code, output, _ = command(series)
    assert code == 1, output
    row = next(line for line in output.splitlines() if "demo_nap: cat" in line)
    assert "escaped: empty, another string, cut short" in row
    assert f"{NAP} cat: empty: naps_are_as_long_as_cats_say: KeyError: ''" in output
    # So is an argument about what does not exist.
    arguments = [argument("cat", "double"), argument("snore_ns", "zero")]
    code, output, _ = command(made(tmp_path, unproven=arguments))
    assert code == 1, output
    absent = f"{NAP} cat: double: there is no such operator for it"
    assert f"does not hold: [[unproven]] {absent}" in output
    spare = f"{NAP} snore_ns: zero: caught by naps_are_as_long_as_cats_say"
    assert f"not needed by this run: [[unproven]] {spare}" in output


def test_the_command_is_two_without_evidence(
    tmp_path: Path, results: Path, command: Callable[..., tuple[int, str, str]]
) -> None:
    series = made(tmp_path)
    code, _, errors = command(series, run=results)
    assert code == 2 and f"{results} holds no report.json of a run" in errors
    run_of(series, tmp_path, evidence=None)
    code, _, errors = command(series, "demo")
    assert code == 2 and f"{tmp_path} has no evidence of demo" in errors
    code, shown, errors = command(series)
    assert code == 2 and shown == "" and f"{tmp_path} has no evidence\n" in errors
    assert "next: name a run that came to its end" in errors
    # Of what no check accepts nothing can be said.
    series = made(tmp_path, CHECKS.replace('"naps", len', '"cats", 1 + len'))
    run_of(series, tmp_path)
    code, _, errors = command(series)
    assert code == 2 and "checks do not accept the genuine evidence" in errors


def test_every_declared_field_is_falsified(tmp_path: Path, results: Path) -> None:
    series, saved = made(tmp_path), evidence.load(results)
    made_of = {
        (mutant.event, mutant.field) for mutant in operators.mutants(series, saved)
    }
    assert made_of == {
        *((NAP, name) for name in (*NAMES, RECORDS)),
        *((DREAM, name) for name in ("p", "delta", RECORDS)),
    }
    swapped = [
        mutant.operator
        for mutant in operators.mutants(series, saved)
        if mutant.operator.startswith("swapped")
    ]
    assert swapped == ["swapped with snore_ns"]


def declaring(values: Mapping[str, list[int]]) -> list[dict[str, Any]]:
    """The tracepoints, with these ``values`` of the fields of naps."""
    nap, dream = SPEC["tracepoint"]
    return [{**nap, "values": values}, dream]


@pytest.mark.parametrize(
    ("field", "values", "operator", "false_values"),
    [
        # What is printed as a number has no names to go by,
        ("ret", [-11, 0, 3], "another enum value", [0, 3, 3, 0]),
        # and a flag can have any width.
        ("deep", [0, 1], "always", [1, 1, 1, 1]),
        ("deep", [0, 1], "inverted", [1, 0, 0, 1]),
    ],
)
def test_values_that_are_declared(
    tmp_path: Path,
    results: Path,
    field: str,
    values: list[int],
    operator: str,
    false_values: list[int],
) -> None:
    series = made(tmp_path, tracepoint=declaring({field: values}))
    assert told(false(series, results, field, operator), field) == false_values


@pytest.mark.parametrize(
    ("field", "values", "more"),
    [
        ("ret", [-11, 0], {"another enum value"}),
        ("ret", [0, 1], {"always", "inverted"}),
        # Of one byte, it has always been inverted.
        ("deep", [1, 0], {"always"}),
        ("snore_ns", [40, 50], {"another enum value"}),
    ],
)
def test_operators_fit_the_values_that_are_declared(
    tmp_path: Path, results: Path, field: str, values: list[int], more: set[str]
) -> None:
    saved = evidence.load(results)
    before, after = (
        {m.operator for m in operators.mutants(series, saved) if m.field == field}
        for series in (
            made(tmp_path),
            made(tmp_path, tracepoint=declaring({field: values})),
        )
    )
    assert after - before == more and before <= after


@pytest.mark.parametrize(
    ("field", "expected"),
    [
        # An address has no size, and a truth has two values.
        ("bed", {"zero", "one more", "one less", "fixed", "stale", "32 bits"}),
        ("warm", {"zero", "always", "inverted", "stale"}),
    ],
)
def test_operators_fit_the_type(
    tmp_path: Path, results: Path, field: str, expected: set[str]
) -> None:
    mutants = [*operators.mutants(made(tmp_path), evidence.load(results))]
    assert {m.operator for m in mutants if m.field == field} == expected
    # Another field of the type can be in its place.
    nap, dream = SPEC["tracepoint"]
    fields = {**nap["fields"], "other": nap["fields"][field]}
    series = made(tmp_path, tracepoint=[{**nap, "fields": fields}, dream])
    mutants = [*operators.mutants(series, evidence.load(results))]
    assert {m.operator for m in mutants if (m.event, m.field) == (NAP, field)} == (
        expected | {"from other", "swapped with other"}
    )
