# SPDX-License-Identifier: GPL-2.0-or-later
"""What a guest's kernel, perf 6.12 and trace-cmd 3.3 said of three real records.

The data is what the guest left of the drm-sched series' workload `credits`.  Each test
changes one side, as a fault in the kernel, in a decoder or in a print fmt would.
"""

from __future__ import annotations

import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from kstall.evidence import Evidence, evidence, readers
from kstall.series import Project, Series
from kstall.verdict import Verdict

DATA = Path(__file__).parent / "data" / "readers"
WAIT = "drm_sched_job_wait"
Check = Callable[[Series, Evidence], Verdict]


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """A copy of the results, to be changed."""
    return Path(shutil.copytree(DATA, tmp_path / "results"))


@pytest.fixture
def series(project_root: Path) -> Series:
    """drm-sched with only the workload that there are results of."""
    (whole,) = Project(project_root).load(["drm-sched"])
    kept = tuple(load for load in whole.spec.workload if load.name == "credits")
    spec = whole.spec.model_copy(update={"workload": kept})
    return Series(whole.name, whole.dir, spec, whole.patches)


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def wrong(check: Check, series: Series, results: Path) -> list[str]:
    verdict = check(series, evidence.load(results))
    assert verdict.comparisons
    return [
        f"{comparison.label}: {comparison.observed}"
        for comparison in verdict.comparisons
        if not comparison.ok
    ]


@pytest.mark.parametrize(
    "check",
    [
        readers.text_is_the_record,
        readers.listed_by_perf,
        readers.decoded_by_perf,
        readers.decoded_by_trace_cmd,
    ],
)
def test_real_readers_agree(check: Check, series: Series, results: Path) -> None:
    assert wrong(check, series, results) == []


def test_raw_records_are_what_bpftrace_read(results: Path) -> None:
    ran = evidence.load(results).workload("credits")
    assert len(ran.raw()) == 9
    (raw_event,) = ran.raw("drm_sched_job_no_credits")
    (event,) = ran.record("drm_sched_job_no_credits")
    assert raw_event.fields == event.fields and (raw_event.cpu, raw_event.pid) == (
        event.cpu,
        event.pid,
    )
    both = zip(ran.raw(WAIT), ran.record(WAIT), strict=True)
    assert all(raw.fields == read.fields for raw, read in both)


def test_a_kernel_that_prints_another_member(series: Series, results: Path) -> None:
    # TP_printk takes dep_ns where its format says wait_ns.
    edit(results / "credits/trace.txt", "wait_ns=4688761", "wait_ns=0")
    assert wrong(readers.text_is_the_record, series, results) == [
        f"credits: {WAIT}: unlike the record: REC->wait_ns: printed 0, recorded 4688761"
    ]


def test_a_record_that_holds_something_else(series: Series, results: Path) -> None:
    path = results / "credits/pages/cpu0"
    old, new = (struct.pack("<Q", value) for value in (1039519601, 1039519602))
    path.write_bytes(path.read_bytes().replace(old, new))
    (mismatch,) = wrong(readers.text_is_the_record, series, results)
    assert mismatch.endswith("printed 1039519601, recorded 1039519602")


@pytest.mark.parametrize(
    ("file", "check"),
    [
        ("perf.txt", readers.decoded_by_perf),
        ("trace-cmd.txt", readers.decoded_by_trace_cmd),
    ],
)
def test_a_decoder_that_does_not_understand(
    file: str, check: Check, series: Series, results: Path
) -> None:
    path = results / "credits" / file
    good = path.read_text()
    # The words of libtraceevent for a print fmt with a call in it.
    edit(path, "dev=drm_sched_test_credits", "[FAILED TO PARSE] dev=drm_sched_test")
    assert any(
        "[FAILED TO PARSE]" in mismatch for mismatch in wrong(check, series, results)
    )
    path.write_text(good.replace("credit_limit=1", "credit_limit=0"))
    assert [
        mismatch.partition(": (")[0] for mismatch in wrong(check, series, results)
    ] == [
        "credits: drm_sched_job_no_credits: missing",
        "credits: drm_sched_job_no_credits: not in ftrace",
    ]
    path.write_text("\n".join(good.splitlines()[:-1]) if "perf" in file else "")
    assert wrong(check, series, results)


def test_an_event_that_perf_does_not_list(series: Series, results: Path) -> None:
    path = results / "credits/perf-list.txt"
    edit(path, f"gpu_scheduler:{WAIT} ", "gpu_scheduler:drm_sched_job_weight ")
    assert wrong(readers.listed_by_perf, series, results) == [f"{WAIT}: listed: none"]


def test_a_workload_that_nobody_decodes(series: Series, results: Path) -> None:
    (load,) = series.spec.workload
    spec = series.spec.model_copy(
        update={"workload": (load.model_copy(update={"decode": False}),)}
    )
    silent = Series(series.name, series.dir, spec, series.patches)
    for check in (readers.decoded_by_perf, readers.decoded_by_trace_cmd):
        assert len(wrong(check, silent, results)) == 2
    assert wrong(readers.listed_by_perf, silent, results)
    assert wrong(readers.text_is_the_record, silent, results) == []
