# SPDX-License-Identifier: GPL-2.0-or-later
"""Bare tracepoints: declared by hand, so what is declared wrongly has to show."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kstall.evidence import Evidence, WorkloadResult, common
from kstall.guest import guestrun
from kstall.series import Tracepoint, Workload
from kstall_guest import recorder
from kstall_guest.bare import Bare
from kstall_guest.errors import BadJob, NotRecordable
from kstall_guest.job import parse

NAP = Bare(
    "demo:demo_nap",
    (("cat", "struct cat *"), ("ns", "u64"), ("paws", "int")),
    (("lives", "cat->owner->cats.lives"),),
)


def test_the_recorder_reads_arguments_and_what_they_point_to() -> None:
    text = recorder.script([NAP])
    assert text.startswith("rawtracepoint:demo_nap_tp\n{")
    for value in (
        '"demo:demo_nap"',
        "(uint64)arg0",
        "(uint64)arg1",
        "(int64)(int32)arg2",
        "(int64)((struct cat *)arg0)->owner->cats.lives",
    ):
        assert f"        {value}" in text


def test_recorded_lines_carry_the_declared_names() -> None:
    head = ["demo:demo_nap", 5, 1, 77, 77, "tom"]
    line = json.dumps({"type": "value", "data": [*head, 4096, 30, -4, 9]})
    (record,) = recorder.lines(line + "\n", [NAP]).splitlines()
    assert json.loads(record)["fields"] == {
        "cat": 4096,
        "ns": 30,
        "paws": -4,
        "lives": 9,
    }


@pytest.mark.parametrize(
    "bare",
    [
        Bare("demo:demo_nap", (("cat", "struct cat"),), ()),
        Bare("demo:demo_nap", (("name", "char *"),), ()),
        Bare("demo:demo_nap", (("ns", "u64"),), (("x", "ns->lives"),)),
        Bare("demo:demo_nap", (("cat", "struct cat *"),), (("x", "dog->lives"),)),
        Bare("demo:demo_nap", (("cat", "struct cat *"),), (("x", "cat->a[0]"),)),
        Bare("demo:demo_nap", (("cat", "struct cat *"),), (("x", "cat"),)),
    ],
)
def test_what_cannot_be_read_is_refused(bare: Bare) -> None:
    with pytest.raises(NotRecordable, match="demo:demo_nap"):
        recorder.script([bare])


def _declared() -> tuple[Any, Workload]:
    point = Tracepoint.model_validate(
        {
            "name": "demo_nap",
            "system": "demo",
            "kind": "bare",
            "patch": "0001-demo.patch",
            "header": "demo_trace.h",
            "joins": "nothing",
            "site": [
                {"file": "a.c", "function": "nap", "hot": False, "context": "any"}
            ],
            "fields": {"cat": "struct cat *"},
            "reads": {"lives": "cat->lives"},
        }
    )
    load = Workload.model_validate(
        {
            "name": "doze",
            "program": "workloads/demo/doze",
            "record": ["demo:demo_nap", "demo:demo_wake"],
            "deadline-s": 5,
        }
    )
    spec = SimpleNamespace(tracepoint=(point,), workload=(load,))
    return SimpleNamespace(name="demo", spec=spec), load


def test_the_job_tells_the_guest_what_ftrace_cannot() -> None:
    series, _ = _declared()
    value = guestrun.job_for(series, SimpleNamespace(build_id="0" * 40))  # type: ignore[arg-type]
    job = parse(value)
    (load,) = job.workloads
    assert load.record == ("demo:demo_wake",)
    assert load.bare == (
        Bare("demo:demo_nap", (("cat", "struct cat *"),), (("lives", "cat->lives"),)),
    )
    assert job.all_formats() == ("demo:demo_wake",)
    value["workloads"][0]["bare"][0]["args"]["cat"] = 4
    with pytest.raises(BadJob, match=r"bare\[0\]\.args\.cat: expected str"):
        parse(value)


@pytest.mark.parametrize("fired", [0, 2])
def test_a_bare_event_has_to_fire_as_well(tmp_path: Path, fired: int) -> None:
    series, _ = _declared()
    record = {"event": "demo:demo_nap", "ts": 1, "cpu": 0, "pid": 7, "comm": "tom"}
    (tmp_path / "record.jsonl").write_text(
        (json.dumps(record | {"fields": {"cat": 1, "lives": 9}}) + "\n") * fired
    )
    result = WorkloadResult("doze", tmp_path, {}, {})
    saved = Evidence(tmp_path, {}, {"doze": result}, {})
    verdict = common.events_fire(series, saved)
    assert [item.ok for item in verdict.comparisons] == [fired > 0]
