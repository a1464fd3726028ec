# SPDX-License-Identifier: GPL-2.0-or-later
"""Each way in which a check can come out, the bad ones above all."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kstall import common, evidence, records, report
from kstall.evidence import Evidence, Verdict
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
    made = [record(layout, 77, {"nap_ns": a, "cat": b}) for a, b in naps]
    return (
        page(99_999_995_000 + 1, [entry(7_000, data) for data in made]) if made else b""
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


def _status(name: str, series: Any, saved: Evidence) -> evidence.CheckResult:
    found = {check.name: check for check in common.judge(series, saved)}
    assert set(found) == {f.__name__ for f in common._CHECKS}
    return found[name]


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
    found = [check.name for check in common.judge(series, saved)]
    assert found == ["booted_kernel", "nothing_lost", "readers_agree"]
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
    said = {
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
            **{f"doze/{name}": value.replace(*end) for name, value in said.items()},
        },
    )
    saved = evidence.load(tmp_path)
    for check in ("text_is_the_record", "decoded_by_perf", "decoded_by_trace_cmd"):
        result = _status(check, _series(), saved)
        assert result.status == "pass", result
    # perf does not know the functions of a module that came later, but where they are.
    perf = said["perf.txt"].replace(*end)
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
    text = said["trace.txt"].replace(*end).replace("fn=nap cat=minka", "fn=x cat=minka")
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
    assert wrong.startswith("cannot be told: ") and "1 more" in wrong


def test_nothing_is_read_of_what_has_no_format(tmp_path: Path) -> None:
    _write_results(tmp_path)
    series = _series()
    series.spec.tracepoint[0].kind = "bare"
    names = [check.name for check in common.judge(series, evidence.load(tmp_path))]
    assert not {check.__name__ for check in common._READERS} & set(names)


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
        ("nothing_lost", {"facts": {"trace": {"entries": 2, "lost": 9}}}, "9"),
        ("nothing_lost", {"facts": {"tracers": {"nap": {"missed": 2}}}}, "2"),
        ("booted_kernel", {"facts": {"exit_status": 1}}, "1"),
        ("booted_kernel", {"facts": {"status": "timeout"}}, "timeout"),
        (
            "booted_kernel",
            {"facts": {"status": "tracer-failed", "error": {"message": "no probe"}}},
            "tracer-failed: no probe",
        ),
    ],
)
def test_each_common_check_can_fail(
    tmp_path: Path, check: str, changes: dict[str, Any], says: str
) -> None:
    _write_results(tmp_path, **changes)
    result = _status(check, _series(), evidence.load(tmp_path))
    assert result.status == "fail"
    wrong = [report.Comparison(**vars(one)) for one in result.comparisons if not one.ok]
    assert any(says in one.seen for one in wrong)


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


def _run(function: Any) -> evidence.CheckResult:
    return evidence.run_check("x", "positive", "claim", function, None)  # type: ignore[arg-type]


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

    def skips(_: Evidence) -> Verdict:
        verdict = Verdict()
        verdict.skip("needs a GPU")
        return verdict

    def crashes(_: Evidence) -> Verdict:
        raise ZeroDivisionError

    assert _run(passes).status == "pass"
    assert _run(passes).comparisons[1].expected == 1_000_000
    assert _run(fails).status == "fail"
    assert _run(proves_nothing).status == "error"
    assert _run(skips).status == "skip"
    assert _run(skips).detail == "needs a GPU"
    assert _run(crashes).status == "error"
    assert "ZeroDivisionError" in _run(crashes).detail
    assert _run(lambda _: None).status == "error"
    with pytest.raises(ValueError, match="needs a reason"):
        Verdict().skip("")


def test_results_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(evidence.EvidenceError, match=r"agent\.json"):
        evidence.load(tmp_path)
    _write_results(tmp_path)
    (tmp_path / "doze/stdout").unlink()
    saved = evidence.load(tmp_path)
    with pytest.raises(evidence.EvidenceError, match="no results of workload walk"):
        saved.workload("walk")
    with pytest.raises(evidence.EvidenceError, match="left no doze/stdout"):
        _ = saved.workload("doze").stdout
