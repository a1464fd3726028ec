# SPDX-License-Identifier: GPL-2.0-or-later
"""Each way in which a check can come out, the bad ones above all."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kstall.evidence import Evidence, common, evidence, records
from kstall.verdict import Check, Verdict, run_check
from ringpages import entry, page, record

FORMAT = """\
name: demo_nap
ID: 5
format:
\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;
\tfield:unsigned char common_flags;\toffset:2;\tsize:1;\tsigned:0;
\tfield:unsigned char common_preempt_count;\toffset:3;\tsize:1;\tsigned:0;
\tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;

\tfield:u64 nap_ns;\toffset:8;\tsize:8;\tsigned:0;
\tfield:u32 cat;\toffset:16;\tsize:4;\tsigned:0;

print fmt: "nap_ns=%llu cat=%u", REC->nap_ns, REC->cat
"""
TRACE = """\
# tracer: nop
            doze-77      [001] .....   100.000002: demo_nap: nap_ns=5 cat=1
            doze-77      [001] .....   100.000009: demo_nap: nap_ns=6 cat=2
"""


# As perf and trace-cmd print the same two records.
PERF = """\
[001] 99.000000000: demo:demo_nap: nap_ns=99 cat=9
[001] 100.000002003:         demo:demo_nap: nap_ns=5 cat=1
[001] 100.000009004:         demo:demo_nap: nap_ns=6 cat=2
"""
TRACE_CMD = """\
cpus=2
            doze-77    [001] ..... 100.000002001: demo_nap:             nap_ns=5 cat=1
           <...>-77    [001] ..... 100.000009001: demo_nap:             nap_ns=6 cat=2
"""
LISTED = "  demo:demo_nap                    [Tracepoint event]\n"


def _pages(*naps: tuple[int, int], text: str = FORMAT) -> bytes:
    """A page with records that are 7 us apart, each with ``nap_ns`` and ``cat``."""
    layout = records.parse_layout(text, "demo")
    payloads = [record(layout, 77, {"nap_ns": a, "cat": b}) for a, b in naps]
    return (
        page(99_999_995_000 + 1, [entry(7_000, data) for data in payloads])
        if payloads
        else b""
    )


def _write_results(root: Path, **changes: Any) -> None:
    entry = {
        "name": "doze",
        "status": "exited",
        "exit_status": 0,
        "seconds": 1.5,
        "began_ns": 100_000_000_000,
        "ended_ns": 101_500_000_000,
        "trace": {"entries": 2, "lost": 0},
        "events": ["demo:demo_nap"],
        "record": ["demo:demo_nap"],
        "bare": [],
        "error": None,
    } | changes.pop("facts", {})
    agent = {"schema": 1, "status": "completed", "workloads": [entry]}
    records = [
        {
            "event": "demo:demo_nap",
            "ts": 100_000_002_000 + 7_000 * i,
            "cpu": 1,
            "pid": 77,
            "tgid": 77,
            "comm": "doze",
            "fields": {"nap_ns": 5 + i, "cat": 1 + i},
        }
        for i in range(2)
    ]
    files = {
        "agent.json": json.dumps(agent),
        "formats/demo/demo_nap": FORMAT,
        "doze/trace.txt": TRACE,
        "doze/record.jsonl": "".join(json.dumps(r) + "\n" for r in records),
        "doze/bpftrace-record.json": "",
        "doze/bpftrace-nap.json": '{"type": "map", "data": {"@naps": 2}}\n',
        "doze/stdout": "2 naps\n",
        "doze/pages/cpu0": b"",
        "doze/pages/cpu1": _pages((5, 1), (6, 2)),
        "doze/perf.txt": PERF,
        "doze/trace-cmd.txt": TRACE_CMD,
        "doze/perf-list.txt": LISTED,
    } | changes
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())


def _series(**fields: str) -> Any:
    point = SimpleNamespace(
        name="demo_nap",
        event="demo:demo_nap",
        kind="event",
        fields=fields or {"nap_ns": "u64", "cat": "u32"},
    )
    load = SimpleNamespace(
        name="doze",
        events=("demo:demo_nap",),
        record=("demo:demo_nap",),
        decode=True,
        scripts=("nap.bt",),
    )
    spec = SimpleNamespace(discovered=False, tracepoint=[point], workload=[load])
    return SimpleNamespace(spec=spec)


def _status(name: str, series: Any, saved: Evidence) -> Check:
    checks = {check.name: check for check in common.judge(series, saved)}
    assert set(checks) == {f.__name__ for f in common._CHECKS}
    return checks[name]


def test_good_results_pass_every_common_check(tmp_path: Path) -> None:
    _write_results(tmp_path)
    saved = evidence.load(tmp_path)
    results = common.judge(_series(), saved)
    assert {check.status for check in results} == {"pass"}, results
    load = saved.workload("doze")
    assert [e.fields["nap_ns"] for e in load.events("demo_nap")] == [5, 6]
    assert load.record("demo_nap")[0].ts_ns == 100_000_002_000
    assert load.bpftrace("nap").maps == {"@naps": {"": 2}}
    assert load.stdout == "2 naps\n"


def test_a_series_of_fixes_has_no_events_to_judge(tmp_path: Path) -> None:
    _write_results(tmp_path)
    saved = evidence.load(tmp_path)
    series = _series()
    series.spec.tracepoint = []
    names = [check.name for check in common.judge(series, saved)]
    assert names == ["booted_kernel", "nothing_lost", "readers_agree"]
    (load,) = series.spec.workload
    load.events = load.record = load.scripts = ()
    assert [check.name for check in common.judge(series, saved)] == ["booted_kernel"]


def test_names_that_ftrace_prints_are_compared_by_how_often(tmp_path: Path) -> None:
    text = TRACE.replace("cat=1", "cat=tom").replace("cat=2", "cat=minka")
    _write_results(tmp_path, **{"formats/demo/demo_nap": NAMED, "doze/trace.txt": text})
    result = _status("readers_agree", _series(), evidence.load(tmp_path))
    assert result.status == "pass", result
    (tmp_path / "doze/trace.txt").write_text(text.replace("minka", "tom"))
    result = _status("readers_agree", _series(), evidence.load(tmp_path))
    assert [item.label for item in result.comparisons if not item.ok] == [
        "doze: demo_nap: cat"
    ]


def test_readers_agree_on_names_and_functions(tmp_path: Path) -> None:
    text = NAMED.replace("nap_ns=%llu", "fn=%ps").replace(
        "REC->nap_ns", "(void *)REC->nap_ns"
    )
    texts = {
        "trace.txt": TRACE.replace("nap_ns=5 cat=1", "fn=nap [demo] cat=tom"),
        "perf.txt": PERF.replace("nap_ns=99 cat=9", "fn=nap cat=minka").replace(
            "nap_ns=5 cat=1", "fn=nap cat=tom"
        ),
        "trace-cmd.txt": TRACE_CMD.replace("nap_ns=5 cat=1", "fn=nap cat=tom"),
    }
    end = ("nap_ns=6 cat=2", "fn=nap cat=minka")
    _write_results(
        tmp_path,
        **{
            "formats/demo/demo_nap": text,
            "doze/pages/cpu1": _pages((5, 1), (5, 2)),
            **{f"doze/{name}": value.replace(*end) for name, value in texts.items()},
        },
    )
    saved = evidence.load(tmp_path)
    for check in ("text_is_the_record", "decoded_by_perf", "decoded_by_trace_cmd"):
        result = _status(check, _series(), saved)
        assert result.status == "pass", result
    # perf does not know the functions of a module that came later, but where they are.
    perf = texts["perf.txt"].replace(*end)
    for address, status in (("0x5", "pass"), ("0x6", "fail")):
        (tmp_path / "doze/perf.txt").write_text(
            perf.replace("fn=nap cat=tom", f"fn={address} cat=tom")
        )
        result = _status("decoded_by_perf", _series(), evidence.load(tmp_path))
        assert result.status == status, result
    # One name for two addresses, and a name that the record does not mean.
    (tmp_path / "doze/pages/cpu1").write_bytes(_pages((5, 1), (6, 3)))
    result = _status("text_is_the_record", _series(), evidence.load(tmp_path))
    wrong = [str(item.observed) for item in result.comparisons if not item.ok]
    assert len(wrong) == 2 and wrong[1] == "nap: 5, 6"
    assert wrong[0].endswith("printed 'minka', recorded '0x3'")
    text = (
        texts["trace.txt"].replace(*end).replace("fn=nap cat=minka", "fn=x cat=minka")
    )
    (tmp_path / "doze/trace.txt").write_text(text)
    (tmp_path / "doze/pages/cpu1").write_bytes(_pages((5, 1), (5, 2)))
    result = _status("text_is_the_record", _series(), evidence.load(tmp_path))
    wrong = [str(item.observed) for item in result.comparisons if not item.ok]
    assert wrong == ["5: nap, x"]


def test_what_no_reader_can_decode(tmp_path: Path) -> None:
    # As trace-cmd 3.3.1 prints what its print fmt has a call in, and an enum's name.
    body = "nap_ns=6 cat=2"
    _write_results(tmp_path)
    for name in ("perf.txt", "trace-cmd.txt"):
        path = tmp_path / "doze" / name
        good = path.read_text()
        check = "decoded_by_perf" if name == "perf.txt" else "decoded_by_trace_cmd"
        for bad, says in (
            (f"[FAILED TO PARSE] {body}", f"[FAILED TO PARSE] {body}"),
            ("nap_ns=6 cat=0x2", "nap_ns=6 cat=0x2"),
            ("nap_ns=6 cat=0", "(6, 2)"),
        ):
            path.write_text(good.replace(body, bad))
            result = _status(check, _series(), evidence.load(tmp_path))
            wrong = [str(item.observed) for item in result.comparisons if not item.ok]
            assert says in wrong
        path.write_text(good)


def test_a_member_that_is_not_printed_is_named(tmp_path: Path) -> None:
    text = FORMAT.replace(" cat=%u", "").replace(", REC->cat", "")
    traced = TRACE.replace(" cat=1", "").replace(" cat=2", "")
    _write_results(
        tmp_path, **{"formats/demo/demo_nap": text, "doze/trace.txt": traced}
    )
    result = _status("text_is_the_record", _series(), evidence.load(tmp_path))
    assert result.status == "pass"
    assert [item.detail for item in result.comparisons if item.detail] == [
        "not printed: cat"
    ]


def test_what_only_a_kernel_could_evaluate(tmp_path: Path) -> None:
    text = FORMAT.replace("REC->cat", "nap_depth(REC->cat)")
    _write_results(tmp_path, **{"formats/demo/demo_nap": text})
    result = _status("text_is_the_record", _series(), evidence.load(tmp_path))
    (wrong,) = [str(item.observed) for item in result.comparisons if not item.ok]
    assert wrong.startswith("cannot be evaluated: ") and "1 more" in wrong


def test_nothing_is_read_of_what_has_no_format(tmp_path: Path) -> None:
    _write_results(tmp_path)
    series = _series()
    series.spec.tracepoint[0].kind = "bare"
    names = [check.name for check in common.judge(series, evidence.load(tmp_path))]
    assert not {check.__name__ for check in common._READERS} & set(names)
    assert "record_layout" not in names and "readers_agree" in names
    # Nor is one reader held against another where only one can read.
    (load,) = series.spec.workload
    load.events = []
    names = [check.name for check in common.judge(series, evidence.load(tmp_path))]
    assert names == ["booted_kernel", "events_fire", "nothing_lost"]


NAMED = FORMAT.replace("cat=%u", "cat=%s").replace(
    "REC->cat", '__print_symbolic(REC->cat, {1, "tom"}, {2, "minka"})'
)
NO_EVENT = "\n".join(TRACE.splitlines()[:1]) + "\n"
OTHER_VALUE = TRACE.replace("nap_ns=6", "nap_ns=7")
HOLE = FORMAT.replace("offset:16", "offset:20")
LOST = '{"type": "lost_events", "data": {"events": 3}}\n'


@pytest.mark.parametrize(
    ("check", "changes", "says"),
    [
        ("events_fire", {"doze/trace.txt": NO_EVENT}, "0 events"),
        ("readers_agree", {"doze/trace.txt": OTHER_VALUE}, "1"),
        ("readers_agree", {"doze/trace.txt": NO_EVENT}, "2"),
        (
            "text_is_the_record",
            {"doze/trace.txt": OTHER_VALUE},
            "printed 7, recorded 6",
        ),
        ("text_is_the_record", {"doze/pages/cpu1": _pages((5, 1))}, "text without"),
        ("text_is_the_record", {"doze/trace.txt": NO_EVENT}, "no text for"),
        (
            "text_is_the_record",
            {"doze/pages/cpu1": b"", "doze/trace.txt": NO_EVENT},
            "0 records",
        ),
        ("listed_by_perf", {"doze/perf-list.txt": "\n"}, "none"),
        ("decoded_by_perf", {"doze/perf.txt": ""}, "(5, 1) (and 1 more)"),
        ("decoded_by_perf", {"doze/perf.txt": PERF + PERF}, "(5, 1) (and 1 more)"),
        ("decoded_by_trace_cmd", {"doze/trace-cmd.txt": "cpus=2\n"}, "0 records"),
        ("record_layout", {"formats/demo/demo_nap": HOLE}, "4 bytes before cat"),
        ("nothing_lost", {"doze/bpftrace-record.json": LOST}, "3"),
        ("booted_kernel", {"facts": {"exit_status": 1}}, "1"),
        (
            "booted_kernel",
            {
                "facts": {
                    "status": "tracer-failed",
                    "error": {"kind": "missing-event", "message": "no demo_nap"},
                }
            },
            "tracer-failed: no demo_nap",
        ),
    ],
)
def test_each_common_check_can_fail(
    tmp_path: Path, check: str, changes: dict[str, Any], says: str
) -> None:
    _write_results(tmp_path, **changes)
    result = _status(check, _series(), evidence.load(tmp_path))
    assert result.status == "fail"
    assert any(
        says in comparison.seen
        for comparison in result.comparisons
        if not comparison.ok
    )


LATE = {
    "kind": "tracer-failed",
    "fault": "apparatus",
    "message": "bpftrace (nap): not attached after 300 s:\nand so on",
}
GONE = {"kind": "missing-event", "fault": "series", "message": "no demo_nap"}
SKIPPED = {
    "kind": "skipped-events",
    "fault": "apparatus",
    "message": "bpftrace record: 1 events fired and were skipped",
    "tracer": "record",
    "count": 1,
}


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
def test_what_is_no_number_in_json_is_read_as_it_was_written(value: float) -> None:
    def ratio() -> Verdict:
        verdict = Verdict()
        verdict.within("ratio", value, 1.0, 3.0, "per nap")
        verdict.within("limits", 2.0, value, value)
        return verdict

    check = run_check("ratio", "invariant", "It is small.", ratio)
    assert check.status == "fail"
    assert Check.model_validate_json(check.model_dump_json()) == check
    assert check.comparisons[0].seen == f"{value} per nap"


def _doze(saved: Evidence) -> Verdict:
    verdict = Verdict()
    verdict.equal("naps", len(saved.workload("doze").events("demo_nap")), 2)
    return verdict


def _walk(saved: Evidence) -> Verdict:
    verdict = Verdict()
    verdict.equal("said", saved.workload("walk").stdout, "2 walks\n")
    return verdict


def _judge(saved: Evidence, function: Any, *workloads: str) -> Check:
    return evidence.judge_check("x", "negative", "c", function, saved, workloads)


def _facts(**facts: Any) -> dict[str, Any]:
    errors = facts.get("errors", ())
    return {"facts": {"error": errors[0] if errors else None, **facts}}


@pytest.mark.parametrize(
    ("facts", "cause"),
    [
        ({"trace": {"entries": 2, "lost": 9}}, "ftrace: 9 events lost"),
        ({"tracers": {"nap": {"missed": 2}}}, "bpftrace nap: 2 events skipped"),
        ({"tracers": {"nap": {"lost": 3}}}, "bpftrace nap: 3 events lost"),
        ({"status": "timeout", "exit_status": None}, "it did not end in time"),
        (
            {"status": "tracer-failed", "errors": [LATE]},
            "bpftrace (nap): not attached after 300 s",
        ),
        # No more can be skipped than is missing, and no less.
        (
            {"tracers": {"record": {"missed": 1}}, "errors": [SKIPPED]},
            "bpftrace record: 1 events fired and were skipped",
        ),
    ],
)
def test_what_the_apparatus_failed_is_no_verdict(
    tmp_path: Path, facts: dict[str, Any], cause: str
) -> None:
    """Neither of what holds nor of what does not; other workloads are judged."""
    _write_results(tmp_path, **_facts(**facts))
    agent = json.loads((tmp_path / "agent.json").read_text())
    agent["workloads"].append({"name": "walk", "status": "exited", "exit_status": 0})
    (tmp_path / "agent.json").write_text(json.dumps(agent))
    (tmp_path / "walk").mkdir()
    (tmp_path / "walk/stdout").write_text("2 walks\n")
    saved = evidence.load(tmp_path)
    why = f"could not judge: workload doze: {cause}"
    # A check that holds, one that does not, and one that looks where it did not say.
    for trace in (TRACE, NO_EVENT):
        (tmp_path / "doze/trace.txt").write_text(trace)
        saved = evidence.load(tmp_path)
        for declared in (("doze",), ("doze", "walk"), ()):
            result = _judge(saved, _doze, *declared)
            assert (result.status, result.detail) == ("error", why)
    result = _judge(saved, _walk, "walk", "doze")
    assert (result.status, result.detail) == ("error", why)
    assert _judge(saved, _walk, "walk").status == "pass"
    (tmp_path / "walk/stdout").write_text("")
    assert _judge(saved, _walk, "walk").status == "fail"
    # The common ones: the layout is read from no workload.
    for check in common.judge(_series(), evidence.load(tmp_path)):
        wanted = "pass" if check.name == "record_layout" else "error"
        assert (check.name, check.status) == (check.name, wanted)
        assert wanted == "pass" or check.detail == why


def test_the_apparatus_does_not_excuse_what_is_the_series_fault(
    tmp_path: Path,
) -> None:
    _write_results(
        tmp_path,
        **_facts(status="tracer-failed", errors=[LATE, GONE], exit_status=None),
    )
    result = _status("booted_kernel", _series(), evidence.load(tmp_path))
    assert result.status == "fail"
    assert any(
        comparison.observed == "no demo_nap" for comparison in result.comparisons
    )


def test_a_fault_of_the_series_leaves_its_checks_as_they_were(tmp_path: Path) -> None:
    _write_results(tmp_path, **_facts(status="tracer-failed", errors=[GONE]))
    saved = evidence.load(tmp_path)
    assert _status("booted_kernel", _series(), saved).status == "fail"
    assert _judge(saved, _doze, "doze").status == "pass"


def test_what_fails_in_another_workload_is_a_failure(tmp_path: Path) -> None:
    """Of a common check, which is about all of them."""
    _write_results(tmp_path, **_facts(trace={"entries": 2, "lost": 9}))
    agent = json.loads((tmp_path / "agent.json").read_text())
    other = agent["workloads"][0] | {"name": "walk", "trace": {"lost": 0}}
    agent["workloads"].append(other | {"exit_status": 3})
    (tmp_path / "agent.json").write_text(json.dumps(agent))
    (tmp_path / "doze").rename(tmp_path / "walk")
    (tmp_path / "doze").symlink_to("walk")
    series = _series()
    walk = SimpleNamespace(**vars(series.spec.workload[0]) | {"name": "walk"})
    series.spec.workload.append(walk)
    saved = evidence.load(tmp_path)
    assert _status("booted_kernel", series, saved).status == "fail"
    assert _status("nothing_lost", series, saved).status == "error"


def _skips(tmp_path: Path, keep: list[int], missed: int = 1, **facts: Any) -> Evidence:
    """Results whose recorder has only the records ``keep`` of the two."""
    error = SKIPPED | {"count": missed}
    _write_results(
        tmp_path,
        **_facts(
            **{
                "status": "tracer-failed",
                "tracers": {"record": {"missed": missed, "lost": 0}},
                "errors": [error],
                **facts,
            }
        ),
    )
    path = tmp_path / "doze/record.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[number] for number in keep))
    return evidence.load(tmp_path)


@pytest.mark.parametrize(
    ("ts_ns", "status"),
    [
        (99_000_000_000, "pass"),
        (101_500_000_001, "pass"),
        (100_500_000_000, "fail"),
    ],
    ids=["before", "after", "while it ran"],
)
def test_what_only_the_recorder_saw(tmp_path: Path, ts_ns: int, status: str) -> None:
    """It is attached before ftrace is switched on, and goes on when that is off."""
    _write_results(tmp_path)
    path = tmp_path / "doze/record.jsonl"
    lines = path.read_text().splitlines()
    other = json.dumps(json.loads(lines[0]) | {"ts": ts_ns})
    path.write_text("\n".join([*lines, other, ""]))
    saved = evidence.load(tmp_path)
    result = _status("readers_agree", _series(), saved)
    assert result.status == status, result
    held = saved.workload("doze").agreement("demo_nap")
    assert held.outside == (status == "pass")


def test_what_ftrace_tells_of_a_skip_is_not_lost(tmp_path: Path) -> None:
    saved = _skips(tmp_path, [1])
    load = saved.workload("doze")
    assert load.skipped == {"demo_nap": 1} and not saved.impaired
    results = {check.name: check for check in common.judge(_series(), saved)}
    assert {check.status for check in results.values()} == {"pass"}, results
    observations = {
        (comparison.label, comparison.observed)
        for check in ("nothing_lost", "readers_agree")
        for comparison in results[check].comparisons
    }
    assert ("doze: bpftrace record: missed, and recorded by ftrace", 1) in observations
    assert ("doze: demo_nap: records, and 1 that it skipped", 2) in observations
    # What counts the recorder's records cannot be judged, what counts ftrace's can.
    assert _judge(saved, _doze, "doze").status == "pass"

    def counts(saved: Evidence) -> Verdict:
        verdict = Verdict()
        verdict.at_least("naps", len(saved.workload("doze").record("demo_nap")), 1)
        return verdict

    result = _judge(saved, counts, "doze")
    assert result.status == "error" and "missed some demo_nap" in result.detail
    with pytest.raises(evidence.Incomplete, match="missed some events"):
        load.record()
    assert len(load.record("demo_nap", partly=True)) == 1


@pytest.mark.parametrize(
    ("keep", "facts"),
    [
        ([0, 1], {}),  # counted, but nothing is missing
        ([], {}),  # more is missing than was counted
        ([1], {"trace": {"entries": 2, "lost": 1}}),  # ftrace is not complete
        ([1], {"tracers": {"record": {"missed": 1, "lost": 1}}}),
        # Of these ftrace has nothing.
        ([1], {"bare": ["demo:demo_bare"]}),
        ([1], {"events": []}),
    ],
)
def test_a_skip_that_is_not_explained(
    tmp_path: Path, keep: list[int], facts: dict[str, Any]
) -> None:
    saved = _skips(tmp_path, keep, **facts)
    assert saved.workload("doze").skipped is None
    assert list(saved.impaired) == ["doze"]
    assert _judge(saved, _doze, "doze").status == "error"
    with pytest.raises(evidence.Incomplete):
        saved.workload("doze").record("demo_nap")


def test_perf_does_not_get_what_the_kernel_skipped(tmp_path: Path) -> None:
    _skips(tmp_path, [1])
    perf = tmp_path / "doze/perf.txt"
    good = perf.read_text()
    first, second = (
        line for line in good.splitlines(keepends=True) if "] 100." in line
    )
    perf.write_text(good.replace(first, ""))
    result = _status("decoded_by_perf", _series(), evidence.load(tmp_path))
    assert (result.status, result.tainted) == ("error", True)
    assert result.detail.startswith("could not judge: workload doze: perf missed some")
    # More than was skipped, or a value that nobody recorded, is another matter.
    for bad in (
        good.replace(first, "").replace(second, ""),
        good.replace("nap_ns=5", "nap_ns=4"),
    ):
        perf.write_text(bad)
        result = _status("decoded_by_perf", _series(), evidence.load(tmp_path))
        assert result.status == "fail"
    # What trace-cmd reads is whole.
    perf.write_text(good)
    path = tmp_path / "doze/trace-cmd.txt"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[2:]))
    result = _status("decoded_by_trace_cmd", _series(), evidence.load(tmp_path))
    assert result.status == "fail"


def test_a_skip_does_not_hide_another_value(tmp_path: Path) -> None:
    saved = _skips(tmp_path, [1])
    (tmp_path / "doze/trace.txt").write_text(OTHER_VALUE)
    saved = evidence.load(tmp_path)
    assert saved.workload("doze").skipped is None
    assert _status("readers_agree", _series(), saved).status == "error"


def test_names_of_records_that_were_skipped(tmp_path: Path) -> None:
    text = TRACE.replace("cat=1", "cat=tom").replace("cat=2", "cat=minka")
    _skips(tmp_path, [1])
    (tmp_path / "formats/demo/demo_nap").write_text(NAMED)
    (tmp_path / "doze/trace.txt").write_text(text)
    result = _status("readers_agree", _series(), evidence.load(tmp_path))
    assert result.status == "pass", result


def test_a_record_that_only_bpftrace_lacks_without_a_word(tmp_path: Path) -> None:
    saved = _skips(tmp_path, [1], status="exited", tracers={}, errors=[])
    assert "1 records of demo_nap are missing" in saved.impaired["doze"]
    assert _status("readers_agree", _series(), saved).status == "error"
    # One that only bpftrace has is another matter.
    (tmp_path / "doze/trace.txt").write_text(NO_EVENT)
    saved = evidence.load(tmp_path)
    assert not saved.impaired
    assert _status("readers_agree", _series(), saved).status == "fail"


def test_a_record_that_bpftrace_printed_twice(tmp_path: Path) -> None:
    _write_results(tmp_path)
    path = tmp_path / "doze/record.jsonl"
    first, *others = path.read_text().splitlines(keepends=True)
    path.write_text("".join([first, first, *others]))
    saved = evidence.load(tmp_path)
    assert "1 records of demo_nap are there twice" in saved.impaired["doze"]
    assert _judge(saved, _doze, "doze").status == "error"
    with pytest.raises(evidence.Incomplete, match="printed some demo_nap twice"):
        saved.workload("doze").record()
    # One that fired a nanosecond later is another firing, of which ftrace has none.
    later = {**json.loads(first), "ts": json.loads(first)["ts"] + 1}
    path.write_text("".join([first, json.dumps(later) + "\n", *others]))
    saved = evidence.load(tmp_path)
    assert not saved.impaired
    assert _status("readers_agree", _series(), saved).status == "fail"


@pytest.mark.parametrize(
    "fields",
    [
        {"nap_ns": "u32", "cat": "u32"},
        {"cat": "u32", "nap_ns": "u64"},
        {"nap_ns": "u64"},
    ],
)
def test_a_record_unlike_its_declaration(
    tmp_path: Path, fields: dict[str, str]
) -> None:
    _write_results(tmp_path)
    result = _status("record_layout", _series(**fields), evidence.load(tmp_path))
    assert result.status == "fail"


def test_an_event_the_kernel_lacks_is_an_error_by_name(tmp_path: Path) -> None:
    _write_results(tmp_path)
    (tmp_path / "formats/demo/demo_nap").unlink()
    result = _status("record_layout", _series(), evidence.load(tmp_path))
    assert (result.status, "demo:demo_nap" in result.detail) == ("error", True)


def _run(function: Any) -> Check:
    return evidence.run_check("x", "positive", "claim", function, None)


def test_how_a_check_can_end() -> None:
    def passes(_: Evidence) -> Verdict:
        verdict = Verdict()
        verdict.within("share", 0.5, 0.4, 0.6)
        verdict.at_least("wait", 1_000_000, 1_000_000, "ns")
        return verdict

    def fails(_: Evidence) -> Verdict:
        verdict = Verdict()
        verdict.equal("count", 1, 1)
        verdict.at_most("wait", 11, 10, "ns")
        return verdict

    def proves_nothing(_: Evidence) -> Verdict:
        return Verdict()

    def too_little(_: Evidence) -> Verdict:
        verdict = Verdict()
        verdict.undecide("2 of 96 flushes overlapped")
        return verdict

    def too_little_and(contradicted: bool, excused: str) -> Any:
        def half_decided(_: Evidence) -> Verdict:
            verdict = Verdict()
            verdict.undecide("2 of 96 flushes overlapped")
            with verdict.excused(excused):
                verdict.equal("events", 2 if contradicted else 1, 1)
            return verdict

        return half_decided

    def excuses(what: str) -> Any:
        def half_excused(_: Evidence) -> Verdict:
            verdict = Verdict()
            verdict.equal("count", 1, 1)
            for number in (2, 3):
                with verdict.excused("the host was busy"):
                    verdict.equal("late", number, 1)
            with verdict.excused(what):
                verdict.equal("wrong", 2, 1)
            return verdict

        return half_excused

    def skips(_: Evidence) -> Verdict:
        verdict = Verdict()
        verdict.skip("needs a GPU")
        return verdict

    def compares_and_skips(_: Evidence) -> Verdict:
        verdict = Verdict()
        verdict.equal("clean", 1, 1)
        verdict.skip("needs a GPU")
        return verdict

    def crashes(_: Evidence) -> Verdict:
        raise ZeroDivisionError

    assert _run(passes).status == "pass"
    assert _run(passes).comparisons[1].expected == 1_000_000
    assert _run(fails).status == "fail"
    assert _run(proves_nothing).status == "error"
    assert _run(too_little).status == "error"
    assert _run(too_little).detail == "2 of 96 flushes overlapped"
    # What contradicts the claim does so however little there is.
    assert _run(too_little_and(True, "")).status == "fail"
    assert _run(too_little_and(False, "")).status == "error"
    open_ = _run(too_little_and(True, "a full disk"))
    assert (open_.status, open_.detail) == (
        "error",
        "2 of 96 flushes overlapped; a full disk",
    )
    assert _run(excuses("a full disk")).status == "error"
    assert _run(excuses("a full disk")).detail == "the host was busy; a full disk"
    assert [held.ok for held in _run(excuses("it")).comparisons] == [True, *[False] * 3]
    assert _run(excuses("")).status == "fail"
    assert _run(skips).status == "skip"
    assert _run(skips).detail == "needs a GPU"
    # It would have ticked what nobody wanted to be judged.
    assert _run(compares_and_skips).status == "error"
    assert "is skipped (needs a GPU) and has compared 'clean'" in (
        _run(compares_and_skips).detail
    )
    skipped = Check.model_validate({**_run(fails).model_dump(), "status": "skip"})
    assert skipped.comparisons == []
    assert _run(crashes).status == "error"
    assert "ZeroDivisionError" in _run(crashes).detail
    assert _run(lambda _: None).status == "error"
    with pytest.raises(ValueError, match="needs a reason"):
        Verdict().skip("")


def test_a_print_fmt_that_cannot_be_read_is_no_end_of_the_run(tmp_path: Path) -> None:
    _skips(tmp_path, [1])
    path = tmp_path / "formats/demo/demo_nap"
    path.write_text(FORMAT.replace("cat=%u", "cat=%*u"))
    saved = evidence.load(tmp_path)
    assert not saved.complete and saved.impaired
    results = {check.name: check for check in common.judge(_series(), saved)}
    assert results["record_layout"].status == "pass"
    assert results["decoded_by_perf"].status == "error"
    _write_results(
        tmp_path, **{"formats/demo/demo_nap": FORMAT.replace("cat=%u", "cat=%*u")}
    )
    saved = evidence.load(tmp_path)
    assert saved.complete
    result = _status("text_is_the_record", _series(), saved)
    (wrong,) = [item for item in result.comparisons if not item.ok]
    assert result.status == "fail"
    assert wrong.detail.startswith("more conversions than arguments: ")
    result = _status("decoded_by_perf", _series(), saved)
    assert result.status == "error" and "more conversions" in result.detail
    assert "Traceback" not in result.detail


def test_a_format_that_cannot_be_read_is_no_end_of_the_run(tmp_path: Path) -> None:
    _write_results(
        tmp_path,
        **{
            "formats/demo/demo_nap": FORMAT.replace("offset:16", "offset:?"),
            "formats/demo/demo_doze": FORMAT.replace("demo_nap", "demo_doze"),
        },
    )
    saved = evidence.load(tmp_path)
    assert saved.layout("demo:demo_doze").fields and saved.complete
    result = _status("record_layout", _series(), saved)
    assert result.status == "error" and "Traceback" not in result.detail
    assert "demo:demo_nap: cannot read field" in result.detail


def test_what_a_program_printed_is_read_by_its_kind(tmp_path: Path) -> None:
    text = '{"what": "nap", "ns": 5}\n{"what": "cat"}\n'
    _write_results(tmp_path, **{"doze/stdout": text})
    load = evidence.load(tmp_path).workload("doze")
    assert load.objects() == [{"what": "nap", "ns": 5}, {"what": "cat"}]
    assert load.objects("nap") == [{"what": "nap", "ns": 5}]
    _write_results(tmp_path, **{"doze/stdout": f"{text}oops\n"})
    with pytest.raises(ValueError, match="Expecting value"):
        evidence.load(tmp_path).workload("doze").objects("nap")


def test_members_of_records(tmp_path: Path) -> None:
    _write_results(tmp_path)
    load = evidence.load(tmp_path).workload("doze")
    assert load.values("demo_nap", "nap_ns") == [5, 6]
    assert load.values("demo_nap", "nap_ns", cat=2) == [6]
    (first, _) = load.record("demo_nap")
    assert first.number("nap_ns") == 5
    named = dataclasses.replace(first, fields={"cat": "tom"})
    with pytest.raises(TypeError, match="demo_nap: cat is 'tom', not a number"):
        named.number("cat")


def test_results_that_are_not_there(tmp_path: Path) -> None:
    afresh = "  next: have the guest booted afresh"
    with pytest.raises(evidence.EvidenceError, match=rf"agent\.json.*\n{afresh}"):
        evidence.load(tmp_path)
    _write_results(tmp_path)
    (tmp_path / "doze/stdout").unlink()
    saved = evidence.load(tmp_path)
    gone = f"no results of workload walk\n{afresh}"
    with pytest.raises(evidence.EvidenceError, match=gone):
        saved.workload("walk")
    nothing = "no event demo:gone\n  next: see whether a patch adds it"
    with pytest.raises(evidence.EvidenceError, match=nothing):
        saved.layout("demo:gone")
    with pytest.raises(evidence.EvidenceError, match="left no doze/stdout"):
        _ = saved.workload("doze").stdout
