# SPDX-License-Identifier: GPL-2.0-or-later
"""The verdict on costs: each fault by the name of the function and its cause."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

from kstall.build import Kernel
from kstall.cost import compiler_of, costs, footprint, gate, objects, structs
from kstall.evidence import btf
from kstall.series import ExemptionSpec, Measure, Project, Series
from kstall.series.spec import OverheadSpec
from kstall.verdict import Check, Verdict
from test_footprint import DECLARATION, MACHINES, Machine, build

__all__ = ["build"]
Build = Callable[..., Path]


@pytest.fixture(scope="module")
def machine() -> Machine:
    """One will do: what a verdict says does not depend on it."""
    return MACHINES[0]


@pytest.fixture(scope="module")
def series(project_root: Path) -> Series:
    """A series that declares the event of the small subsystem."""
    (drm_sched,) = Project(project_root).load(["drm-sched"])
    point = drm_sched.spec.tracepoint[0]
    site = point.site[0].model_copy(update={"function": "submit", "hot": True})
    point = point.model_copy(update={"name": "job_wait", "site": (site,)})
    spec = drm_sched.spec.model_copy(
        update={"tracepoint": (point,), "overhead": OverheadSpec()}
    )
    return dataclasses.replace(drm_sched, spec=spec)


def exempting(series: Series, **fields: object) -> Series:
    exemption = ExemptionSpec.model_validate({"because": "it is argued", **fields})
    spec = series.spec.model_copy(
        update={"overhead": OverheadSpec(exemption=(exemption,))}
    )
    return dataclasses.replace(series, spec=spec)


def with_figures_of(series: Series, *compilers: str) -> Series:
    assert series.spec.overhead is not None
    overhead = series.spec.overhead.model_copy(update={"compilers": compilers})
    spec = series.spec.model_copy(update={"overhead": overhead})
    return dataclasses.replace(series, spec=spec)


def judged(
    series: Series, build: Build, *macros: str, compiler: str = ""
) -> dict[str, Check]:
    base, patched = build(), build("PATCHED", *macros)
    comparison = footprint.binaries("trace", base, patched, DECLARATION)
    comparison.structs = list(
        structs.compare("trace", btf.read(base), btf.read(patched))
    )
    overhead = costs.Overhead(
        base_kernel="base", footprint=comparison, compiler=compiler
    )
    return {check.name: check for check in gate.judge(series, overhead)}


def prototypes(series: Series, build: Build, *macros: str) -> Check:
    """The check of prototypes, of the same subsystem."""
    comparison = costs.Footprint()
    structs.add(
        comparison, structs.types([("trace", build(), build("PATCHED", *macros))])
    )
    return gate.judge_prototypes(series, comparison)


def faults(check: Check) -> str:
    return "\n".join(
        f"{comparison.label}: {comparison.observed}, not {comparison.expected}"
        for comparison in check.comparisons
        if not comparison.ok
    )


def test_one_nop_passes(series: Series, build: Build) -> None:
    checks = judged(series, build)
    assert {check.status for check in checks.values()} == {"pass"}


@pytest.mark.parametrize(
    ("macro", "check", "words"),
    [
        ("CLOCK", "disabled_path_unchanged", ("submit", "reads a clock", "ktime_get")),
        ("ARGUMENT", "disabled_path_unchanged", ("submit", "calls", "call estimate")),
        ("LOAD", "disabled_path_unchanged", ("submit", "instructions more")),
        ("GROWN", "structs_do_not_grow", ("struct job: +submitted", "24, not 16")),
        ("INLINE", "off_is_a_nop", ("job_wait", "poll, undeclared")),
        ("BROKEN", "off_is_a_nop", ("job_wait: functions with a site",)),
    ],
)
def test_a_fault_is_named(
    series: Series, build: Build, macro: str, check: str, words: tuple[str, ...]
) -> None:
    checks = judged(series, build, macro)
    assert checks[check].status == "fail"
    for word in words:
        assert word in faults(checks[check])


@pytest.mark.parametrize(
    ("sited", "status"),
    [("abcde", "pass"), ("abcdx", "fail"), ("abcd", "fail"), ("abcdex", "fail")],
)
def test_each_of_many_functions_with_a_site_counts(
    series: Series, sited: str, status: str
) -> None:
    (point,) = series.spec.tracepoint
    (site,) = point.site
    sites = tuple(site.model_copy(update={"function": name}) for name in "abcde")
    point = point.model_copy(update={"site": sites})
    spec = series.spec.model_copy(update={"tracepoint": (point,)})
    built = [
        costs.Site(
            event=point.symbol,
            binary="vmlinux",
            function=name,
            declared=name if name in "abcde" else None,
            offset=0,
            nop=5,
            out_of_line=True,
            cold_bytes=9,
        )
        for name in sited
    ]
    overhead = costs.Overhead(base_kernel="", footprint=costs.Footprint(sites=built))
    check, *_ = gate.judge(dataclasses.replace(series, spec=spec), overhead)
    assert (check.name, check.status) == ("off_is_a_nop", status)


def guarded(series: Series, build: Build, *macros: str) -> Check:
    """The check of objects with mitigations, of the same subsystem."""
    pair = {"drivers/trace.o": (build(), build("PATCHED", *macros))}
    mitigated = objects.compare(pair, DECLARATION)
    overhead = costs.Overhead(base_kernel="base", mitigated=mitigated)
    (check,) = gate.judge(series, overhead)
    assert check.name == "mitigations_add_nothing"
    return check


@pytest.mark.parametrize(
    ("macro", "words"),
    [
        ("CLOCK", ("submit", "drivers/trace.o", "reads a clock", "ktime_get")),
        ("ARGUMENT", ("submit", "calls", "call estimate")),
        ("LOAD", ("submit", "instructions more")),
        ("BROKEN", ("job_wait: sites: 0, not 1",)),
    ],
)
def test_a_fault_with_mitigations_is_named(
    series: Series, build: Build, macro: str, words: tuple[str, ...]
) -> None:
    assert guarded(series, build).status == "pass"
    check = guarded(series, build, macro)
    assert check.status == "fail"
    for word in words:
        assert word in faults(check)


def test_without_objects_with_mitigations_nothing_is_ticked(series: Series) -> None:
    overhead = costs.Overhead(base_kernel="base", unmitigated="X86_KERNEL_IBT: no")
    (check,) = gate.judge(series, overhead)
    assert (check.status, check.comparisons) == ("skip", [])
    assert "X86_KERNEL_IBT" in check.detail


def test_what_is_declared_holds_with_mitigations_too(
    series: Series, build: Build
) -> None:
    allowed = exempting(series, function="submit", instructions=9, calls=["estimate"])
    assert guarded(allowed, build, "ARGUMENT").status == "pass"


@pytest.mark.parametrize(
    ("macro", "check", "words"),
    [
        ("CLOCK", "disabled_path_unchanged", "reads a clock"),
        ("GROWN", "structs_do_not_grow", "struct job: +submitted: 24"),
    ],
)
def test_somebody_else_s_costs_are_reported_and_not_judged(
    series: Series, build: Build, macro: str, check: str, words: str
) -> None:
    spec = series.spec.model_copy(update={"discovered": True})
    verdict = judged(dataclasses.replace(series, spec=spec), build, macro)[check]
    assert verdict.status == "skip"
    assert verdict.detail.startswith("received series, only reported: ")
    assert words in verdict.detail
    assert verdict.comparisons == []
    assert " more comparisons hold" in verdict.detail


def test_somebody_else_s_sites_need_not_be_where_sources_have_them(
    series: Series, build: Build
) -> None:
    spec = series.spec.model_copy(update={"discovered": True})
    theirs = dataclasses.replace(series, spec=spec)
    assert judged(theirs, build, "INLINE")["off_is_a_nop"].status == "pass"
    check = judged(theirs, build, "BROKEN")["off_is_a_nop"]
    assert check.status == "fail"
    assert "job_wait: sites: 0, not 1" in faults(check)


def test_an_exemption_counts_instructions(series: Series, build: Build) -> None:
    allowed = exempting(series, function="submit", instructions=9, calls=["estimate"])
    checks = judged(allowed, build, "ARGUMENT")
    assert checks["disabled_path_unchanged"].status == "pass"
    allowed = exempting(series, function="submit", instructions=9)
    assert (
        judged(allowed, build, "ARGUMENT")["disabled_path_unchanged"].status == "fail"
    )


def test_a_longer_loop_needs_an_exemption(series: Series) -> None:
    paths = costs.FunctionPaths(
        binary="vmlinux",
        name="submit",
        proven=True,
        most=0,
        work=0,
        least=0,
        longer_loop="submit+0x40",
        nops=1,
        sites=1,
    )
    overhead = costs.Overhead(
        base_kernel="base", footprint=costs.Footprint(paths=[paths])
    )

    def check(series: Series) -> Check:
        checks = gate.judge(series, overhead)
        (check,) = (
            check for check in checks if check.name == "disabled_path_unchanged"
        )
        return check

    assert check(series).status == "fail"
    assert "submit: no loop runs more instructions while off" in faults(check(series))
    seen = " ".join(comparison.seen for comparison in check(series).comparisons)
    assert "submit+0x40" in seen
    assert 'no [[overhead.exemption]] has function = "submit"' in seen
    assert check(exempting(series, function="submit", calls=["x"])).status == "fail"
    assert check(exempting(series, function="submit", instructions=1)).status == "pass"


def test_what_an_exemption_would_need_is_said(series: Series, build: Build) -> None:
    check = judged(series, build, "LOAD")["disabled_path_unchanged"]
    fault = " ".join(comparison.seen for comparison in check.comparisons)
    assert 'no [[overhead.exemption]] has function = "submit"' in fault
    other = exempting(series, function="__do_sys_submit", instructions=9)
    fault = faults(judged(other, build, "LOAD")["disabled_path_unchanged"])
    assert "exemption for __do_sys_submit()" in fault
    # One for a function that got no longer does no harm by itself.
    checks = judged(other, build)
    assert checks["disabled_path_unchanged"].status == "pass"


def test_no_exemption_lets_a_clock_be_read(series: Series, build: Build) -> None:
    allowed = exempting(series, function="submit", instructions=99, calls=["ktime_get"])
    checks = judged(allowed, build, "CLOCK")
    assert "reads a clock" in faults(checks["disabled_path_unchanged"])


GCC, CLANG = "x86_64 gcc 12", "x86_64 clang 19"


@pytest.mark.parametrize(
    ("compiler", "figures", "macro", "status"),
    [
        (CLANG, (GCC,), "LOAD", "skip"),
        ("arm64 gcc 12", (GCC, CLANG), "LOAD", "skip"),
        (CLANG, (GCC,), "CLOCK", "fail"),
        (CLANG, (GCC,), "ARGUMENT", "fail"),
        (GCC, (GCC,), "LOAD", "fail"),
        (CLANG, (GCC, CLANG), "LOAD", "fail"),
        (CLANG, (), "LOAD", "fail"),
        # As in reports of earlier versions.
        ("", (GCC,), "LOAD", "fail"),
    ],
)
def test_figures_are_those_of_a_compiler(
    series: Series,
    build: Build,
    compiler: str,
    figures: tuple[str, ...],
    macro: str,
    status: str,
) -> None:
    declared = with_figures_of(exempting(series, function="other"), *figures)
    check = judged(declared, build, macro, compiler=compiler)["disabled_path_unchanged"]
    assert check.status == status
    if status == "skip":
        assert f"of {' and '.join(figures)}, and" in check.detail
        assert f"is of {compiler}, only reported: submit" in check.detail
        assert " more comparisons hold" in check.detail
    unchanged = judged(declared, build, compiler=compiler)
    assert unchanged["disabled_path_unchanged"].status == "pass"


def test_no_compiler_makes_a_loop_longer(series: Series) -> None:
    paths = costs.FunctionPaths(
        binary="vmlinux",
        name="submit",
        proven=True,
        most=1,
        work=1,
        least=0,
        longer_loop="submit+0x40",
        nops=1,
        sites=1,
    )
    footprint = costs.Footprint(paths=[paths])
    overhead = costs.Overhead(base_kernel="", compiler=CLANG, footprint=footprint)
    check = gate.disabled_path_unchanged(with_figures_of(series, GCC), overhead)
    assert not check.open and check.skipped is None
    paths.longer_loop = None
    check = gate.disabled_path_unchanged(with_figures_of(series, GCC), overhead)
    assert check.skipped is not None


@pytest.mark.parametrize(("compiler", "skipped"), [(GCC, False), (CLANG, True)])
def test_counted_figures_are_those_of_a_compiler(
    series: Series, compiler: str, skipped: bool
) -> None:
    measurement = costs.Measurement(
        workload="w", operation="call", resolution=0, difference=5, predicted=2
    )
    overhead = costs.Overhead(
        base_kernel="", compiler=compiler, measurements=[measurement]
    )
    check = gate.off_costs_what_is_predicted(with_figures_of(series, GCC), overhead)
    assert (check.skipped is not None) is skipped
    assert not check.open
    if skipped:
        assert "w: instructions per call added while off: 5" in str(check.skipped)


@pytest.mark.parametrize(
    ("lines", "compiler"),
    [
        ("CONFIG_GCC_VERSION=120200\nCONFIG_CLANG_VERSION=0", "x86_64 gcc 12"),
        ("CONFIG_GCC_VERSION=0\nCONFIG_CLANG_VERSION=190107", "x86_64 clang 19"),
        ("CONFIG_X86_64=y", ""),
        (None, ""),
    ],
)
def test_a_kernel_names_its_compiler(
    tmp_path: Path, lines: str | None, compiler: str
) -> None:
    kernel = Kernel("key", tmp_path, "7.3", "", reused=False)
    if lines is not None:
        kernel.config.write_text(f"# Linux\n{lines}\n")
    assert compiler_of(kernel) == compiler


def test_a_struct_may_grow_as_declared(series: Series, build: Build) -> None:
    checks = judged(exempting(series, struct="job", bytes=8), build, "GROWN")
    assert checks["structs_do_not_grow"].status == "pass"


def test_a_struct_may_not_grow_by_another_name(series: Series) -> None:
    change = costs.StructChange(
        binary="vmlinux",
        name="job_ext",
        was="job",
        base=16,
        patched=24,
        base_holes=0,
        patched_holes=0,
        members=["+submitted"],
    )
    footprint = costs.Footprint(structs=[change])
    overhead = costs.Overhead(base_kernel="base", footprint=footprint)
    check = gate.structs_do_not_grow(series, overhead)
    assert not check.comparisons[0].ok
    assert check.comparisons[0].label == "struct job_ext, was job: +submitted"


def measured(
    base: list[float], off: list[float], predicted: float, others: float = 0
) -> Verdict:
    samples = [
        costs.Sample(
            mode=mode,
            boots=[],
            median=sorted(values)[len(values) // 2],
            spread=max(values) - min(values),
        )
        for mode, values in (("base", base), ("off", off))
    ]
    measurement = costs.Measurement(
        workload="w",
        operation="call",
        resolution=samples[0].spread,
        samples=samples,
        difference=samples[1].median - samples[0].median,
        predicted=predicted,
        others=others,
    )
    measurement.visible = gate.visible(measurement)
    overhead = costs.Overhead(base_kernel="base", measurements=[measurement])
    return gate.off_costs_what_is_predicted(None, overhead)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("nops", "hits", "difference", "others", "status"),
    [
        (1, 1.0, 0.0, 0.0, "pass"),
        # It crosses the site and has nothing to tell.
        (1, 0.0, 1.0, 0.0, "pass"),
        # What is more are the sites of another series.
        (1, 0.0, 1.0, 1.0, "fail"),
        (1, 0.0, 0.0, 0.0, "fail"),
        (1, None, -3.0, 0.0, "fail"),
        # What is said to go by the sites need not cross them.
        (0, 0.0, 0.0, 0.0, None),
    ],
)
def test_an_operation_crosses_what_it_is_said_to(
    series: Series,
    nops: float,
    hits: float | None,
    difference: float,
    others: float,
    status: str | None,
) -> None:
    load = Measure.model_validate(
        {"name": "w", "program": "p", "operation": "call", "nops": nops}
    )
    spec = series.spec.model_copy(update={"overhead": OverheadSpec(workload=(load,))})
    measurement = costs.Measurement(
        workload="w",
        operation="call",
        resolution=0,
        samples=[
            costs.Sample(mode="ftrace", boots=[], median=9, spread=0, hits=hits),
        ],
        difference=difference,
        others=others,
        visible=difference != 0,
    )
    overhead = costs.Overhead(base_kernel="base", measurements=[measurement])
    checks = {
        check.name: check.status
        for check in gate.judge(dataclasses.replace(series, spec=spec), overhead)
    }
    assert checks.get("measured_operations_cross_sites") == status


@pytest.mark.parametrize(
    ("base", "off", "predicted", "good"),
    [
        ([100, 100, 100], [101, 101, 101], 1, True),
        ([100, 100, 100], [102, 102, 102], 1, False),
        # A difference that boots of one kernel show as well is no verdict.
        ([100, 104, 100], [103, 103, 103], 0, True),
        ([100, 100, 100], [99, 99, 99], 0, True),
    ],
)
def test_only_what_can_be_seen_is_judged(
    base: list[float], off: list[float], predicted: float, good: bool
) -> None:
    verdict = measured(base, off, predicted)
    assert all(comparison.ok for comparison in verdict.comparisons) is good


@pytest.mark.parametrize(
    ("base", "off", "verdict"),
    [
        # Of three boots two cost more: this may be noise, but it is no pass.
        ([1000, 1000, 1000], [1000, 6000, 6000], "open"),
        ([1000, 1000, 1000], [1000, 1000, 6000], "pass"),
        ([1000, 1000, 1000], [6000, 6000, 9000], "fail"),
        # Only the base's noise is the apparatus's own.
        ([1000, 1000, 6000], [1000, 6000, 6000], "pass"),
    ],
)
def test_a_noisier_kernel_may_not_cost_more(
    base: list[float], off: list[float], verdict: str
) -> None:
    comparisons = measured(base, off, 0)
    if verdict == "open":
        assert "boots of the patched kernel differ by 5,000.0" in comparisons.open
    else:
        assert not comparisons.open
        good = all(comparison.ok for comparison in comparisons.comparisons)
        assert good is (verdict == "pass")


@pytest.mark.parametrize(
    ("base", "off", "limit", "found"),
    [
        ([1000, 1000, 1000], [9000, 9000, 9000], 4000, True),
        ([1000, 1000, 1000], [1000, 9000, 9000], 0, False),
        ([1000, 9000, 1000], [9000, 9000, 9000], 0, False),
        ([1000, 1000, 1000], [1001, 1001, 1001], 1, False),
        ([None] * 3, [9000, 9000, 9000], 0, False),
    ],
)
def test_what_a_quarter_of_repetitions_costs_more_is_no_pass(
    base: list[float | None], off: list[float | None], limit: float, found: bool
) -> None:
    samples = [
        costs.Sample(
            mode=mode,
            boots=[
                costs.Boot(median=1000, low=1000, high=9000, upper=upper, repetitions=9)
                for upper in values
            ],
            median=1000,
            spread=0,
        )
        for mode, values in (("base", base), ("off", off))
    ]
    measurement = costs.Measurement(
        workload="w",
        operation="call",
        resolution=limit,
        samples=samples,
        difference=0,
    )
    overhead = costs.Overhead(base_kernel="base", measurements=[measurement])
    verdict = gate.off_costs_what_is_predicted(None, overhead)  # type: ignore[arg-type]
    assert ("a quarter of the repetitions" in verdict.open) is found
    assert all(comparison.ok for comparison in verdict.comparisons) is not found


@pytest.mark.parametrize(
    ("off", "others", "good"),
    [(101, 0, True), (103, 2, True), (104, 2, False), (103, 0, False)],
)
def test_nops_of_other_series_in_the_kernel_are_added(
    off: float, others: float, good: bool
) -> None:
    verdict = measured([100, 100, 100], [off] * 3, 1, others)
    assert all(comparison.ok for comparison in verdict.comparisons) is good


def test_prototypes_that_are_kept_and_a_new_one_that_is_declared(
    series: Series, build: Build
) -> None:
    check = prototypes(series, build)
    assert (check.status, check.kind) == ("pass", "abi")
    assert [comparison.label for comparison in check.comparisons] == [
        "1 tracepoints keep their arguments",
        "job_wait is declared",
    ]


@pytest.mark.parametrize(
    ("macro", "words"),
    [
        ("SWAPPED", "(struct job *, u32) became (u32, struct job *)"),
        ("WIDER", "(struct job *, u32) became (struct job *, u64)"),
        ("GONE", "is gone"),
    ],
)
def test_a_changed_prototype_is_named(
    series: Series, build: Build, macro: str, words: str
) -> None:
    check = prototypes(series, build, macro)
    assert check.status == "fail"
    (wrong,) = (comparison for comparison in check.comparisons if not comparison.ok)
    assert wrong.label == "job_done can be attached to as before"
    assert wrong.detail == words


def test_an_argument_at_the_end_moves_no_other(series: Series, build: Build) -> None:
    check = prototypes(series, build, "MORE")
    assert check.status == "pass"
    assert "became (struct job *, u32, s8 *)" in str(check.comparisons)


def test_a_new_prototype_has_to_be_declared(series: Series, build: Build) -> None:
    spec = series.spec.model_copy(update={"tracepoint": ()})
    check = prototypes(dataclasses.replace(series, spec=spec), build)
    assert check.status == "fail"
    assert "job_wait is declared" in faults(check)


def test_types_without_any_prototype_decide_nothing(series: Series) -> None:
    check = gate.judge_prototypes(series, costs.Footprint())
    assert check.status == "skip"
    assert "CONFIG_BPF_EVENTS" in check.detail
