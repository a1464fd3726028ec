# SPDX-License-Identifier: GPL-2.0-or-later
"""Reports of runs that never were, for tests of what is made of reports."""

from __future__ import annotations

import json
from pathlib import Path

from kstall.cost import costs
from kstall.report import Report, SeriesReport, report
from kstall.series import Series
from kstall.tree import Base
from kstall.verdict import Check, Comparison

#: What a full run asks of each patch.
EACH_PATCH = "compiles_as_configured"
#: A value of each C type, as a record would have it.
_VALUES = {"u64": "17", "int": "-11"}


def record(series: Series, position: int) -> str:
    """``name: key=value ...`` of a declared tracepoint."""
    point = series.spec.tracepoint[position]
    fields = " ".join(
        f"{name}={_VALUES.get(kind, '7')}" for name, kind in point.fields.items()
    )
    return f"{point.name}: {fields}"


def prove(
    series: Series,
    base: Base,
    out: Path,
    *,
    name: str = "20260102T030405Z",
    overhead: bool = True,
    level: str = "full",
) -> Path:
    """A run directory below ``out`` whose report says that ``series`` is proven."""
    directory = out / name
    results = directory / series.name / "results"
    load = results / "load"
    load.mkdir(parents=True)
    agent = {"status": "completed", "workloads": [{"name": "load", "seconds": 1}]}
    (results / "agent.json").write_text(json.dumps(agent))
    traced, recorded = [], []
    for position, point in enumerate(series.spec.tracepoint):
        if point.kind == "event":
            text = record(series, position)
            traced.append(f"            load-178     [000] .....    85.239137: {text}")
        else:
            event = {"event": point.event, "ts": 1, "cpu": 0, "pid": 1, "tgid": 1}
            fields = dict.fromkeys(point.fields, 7)
            recorded.append(json.dumps({**event, "comm": "load", "fields": fields}))
    (load / "trace.txt").write_text("".join(f"{line}\n" for line in traced))
    (load / "record.jsonl").write_text("".join(f"{line}\n" for line in recorded))
    run_report = Report(
        run=name,
        started="2026-01-02T03:04:05+00:00",
        command=["kstall", "validate"],
        tree=report.Tree(
            kind=base.kind,
            origin=base.origin,
            version=base.version,
            describe=base.describe,
            commit=base.commit,
            id=base.id,
        ),
        environment=report.Environment(
            kstall="0",
            python="3",
            host="h",
            cpus=2,
            compiler="gcc 1.2",
            qemu="QEMU 3.4",
            accelerator="tcg",
            guest={"bpftrace": "0.24"},
        ),
        series=[
            SeriesReport(
                name=series.name,
                title=series.spec.title,
                digest=series.digest,
                evidence=f"{series.name}/results",
                stages=[_compiled(level)],
                checks=[
                    _check(check.name, check.kind, check.claim)
                    for check in _all(series)
                ],
                overhead=_overhead() if overhead else None,
            )
        ],
    )
    run_report.settle()
    assert run_report.status == "proven"
    report.write(run_report, directory / "report.json")
    return directory


def _compiled(level: str) -> report.Stage:
    """As `validate` leaves it: what a quick run leaves out it skips."""
    status: report.Status = "skip" if level == "quick" else "pass"
    return report.Stage(name="compile", status=status, seconds=0)


def _all(series: Series) -> list[Check]:
    declared = [
        Check(name=check.name, kind=check.kind, claim=check.claim, status="pass")
        for check in series.spec.check
    ]
    harness = Check(name="booted", kind="harness", claim="It booted.", status="pass")
    each = Check(name=EACH_PATCH, kind="patch", claim="It compiles.", status="pass")
    return [harness, each, *declared]


def _check(name: str, kind: object, claim: str) -> Check:
    wanted = 0 if kind == "negative" else 31337
    comparison = Comparison(
        label="events", relation="=", expected=wanted, observed=wanted, ok=True
    )
    return Check.model_validate(
        {
            "name": name,
            "kind": kind,
            "claim": claim,
            "status": "pass",
            "comparisons": [comparison],
        }
    )


def _overhead() -> costs.Overhead:
    site = costs.Site(
        event="nap",
        binary="vmlinux",
        function="doze",
        offset=4,
        nop=5,
        out_of_line=True,
        cold_bytes=13,
    )
    measured = costs.Measurement(
        workload="job",
        operation="job that waits for nothing",
        resolution=0.25,
        samples=[
            costs.Sample(mode="base", boots=[], median=2982.5, spread=0),
            costs.Sample(mode="off", boots=[], median=2983.5, spread=0),
        ],
    )
    return costs.Overhead(
        base_kernel="k",
        footprint=costs.Footprint(sites=[site], limits=["one compiler"]),
        measurements=[measured],
        exemptions=[costs.Exemption(struct="bed", allowed=8, because="sheets")],
    )
