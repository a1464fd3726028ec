# SPDX-License-Identifier: GPL-2.0-or-later
"""The generated part of cover letters is a screen, however much the report has."""

from __future__ import annotations

import html
import json
import re
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

import synthetic
from kstall.cost import costs
from kstall.evidence import evidence, falsity, mutate
from kstall.evidence.operators import RECORDS
from kstall.mail import cover, excerpts, proof, results
from kstall.report import SeriesReport, report
from kstall.report import html as pages
from kstall.series import Project, Series
from kstall.tree import Base, remote
from kstall.verdict import Check, Comparison, Kind

ROOT = Path(__file__).resolve().parents[1]
URL = "https://people.example.org/~somebody/kstall/20261127T105527Z/report.html"
#: The tree of a maintainer, and its branch, as a letter names it.
TREE = "git://git.kernel.org/pub/scm/linux/kernel/git/rdma/rdma.git"
HOME = "rdma/rdma.git, branch for-next"
#: Lines that a letter generates, at most.
SCREEN = 50
MODES: tuple[costs.Mode, ...] = ("base", "off", "ftrace", "bpftrace")
#: Checks that every series has, by kind: at least as many as there are.
OURS: dict[Kind, int] = {"harness": 14, "abi": 2, "overhead": 8, "debug": 12}
#: Facts of workloads, of which some were traced in each way.
ALL_TRACERS: tuple[dict[str, object], ...] = (
    {"trace": {"lost": 0}, "tracers": {"record": {}}, "decoded": {}},
    {"trace": {"lost": 0}, "tracers": {}, "decoded": {"trace-cmd": 1.2, "perf": 0.7}},
)
LIMITS = [
    f"limit {number}: one configuration and one compiler; with mitigations only "
    "single objects; with CONFIG_JUMP_LABEL=n only sizes"
    for number in range(4)
]


@dataclass(frozen=True)
class Letter:
    """The lines of a letter behind its hand-written body, and what they are made of."""

    series: Series
    entry: SeriesReport
    lines: tuple[str, ...]
    page: str

    @property
    def text(self) -> str:
        """All of it in one line."""
        return " ".join(" ".join(self.lines).split())


def _base(kind: str) -> Base:
    commit = "0123456789abcdef0123456789abcdef01234567" if kind == "git" else None
    return Base(
        id="7.3.4-5b1b93321fb4",
        path=Path("/nowhere"),
        kind=kind,  # type: ignore[arg-type]
        version="7.3.4",
        origin="linux-source-7.3",
        describe="7.3.4-1~bpo13+1" if commit is None else "v7.3-rc4-1234-g0123456789ab",
        commit=commit,
    )


def _passed(name: str, kind: Kind, claim: str, *details: str) -> Check:
    comparisons = [
        Comparison(
            label=f"comparison {number} of {name}",
            relation="=",
            expected=123456,
            observed=123456,
            ok=True,
            detail=details[number] if number < len(details) else "",
        )
        for number in range(40)
    ]
    return Check(
        name=name, kind=kind, claim=claim, status="pass", comparisons=comparisons
    )


def _checks(series: Series, *, skips: bool) -> list[Check]:
    """All checks, with all exemptions used; with ``skips`` every other one of ours is
    skipped, each for a reason of its own."""
    checks = [
        _passed(check.name, check.kind, check.claim) for check in series.spec.check
    ]
    for kind, count in OURS.items():
        checks += [
            _passed(f"{kind}_{number}", kind, f"Claim {number} of {kind} holds.")
            for number in range(count)
        ]
    for name in results._PATCH_CHECKS:
        details = [
            f"argued: {', '.join(exemption.kinds)} 1: {exemption.because}"
            for exemption in series.spec.exemption
            if exemption.check == name
        ]
        checks.append(_passed(name, "patch", f"Claim of {name}.", *details))
    if skips:
        ours = checks[len(series.spec.check) :: 2]
        for check in ours:
            if not any(comparison.detail for comparison in check.comparisons):
                check.status, check.comparisons = "skip", []
                check.detail = f"this host has nothing with which {check.name} is made"
    return checks


def _shown(series: Series) -> list[report.Shown]:
    return [
        report.Shown(
            check=bug.check,
            looks=" ".join(bug.looks.split()),
            comparisons=[
                Comparison(
                    label=label,
                    relation="=",
                    expected="{'0000:01:00.0': 16384, '0000:00:11.0': 16384}",
                    observed="WARNING: kernel/tracepoint.c:601 at tracepoint_notify",
                    ok=False,
                )
                for label in (*bug.fails, "complaint of the kernel")
            ],
        )
        for bug in series.spec.shown
    ]


def _measurement(series: Series, number: int) -> costs.Measurement:
    assert series.spec.overhead is not None
    measure = series.spec.overhead.workload[number]
    medians = {mode: 24634.9 + 1391.3 * step for step, mode in enumerate(MODES)}
    samples = [
        costs.Sample(
            mode=mode,
            boots=[costs.Boot(median=median, low=1, high=30000, repetitions=9)],
            median=median,
            spread=14.5,
        )
        for mode, median in medians.items()
    ]
    return costs.Measurement(
        workload=measure.name,
        operation=measure.operation,
        resolution=190.05,
        samples=samples,
        predicted=3,
        others=2,
        because=measure.because or "gcc keeps a value in one more register there",
    )


def _overhead(series: Series) -> costs.Overhead | None:
    declared = series.spec.overhead
    if declared is None:
        return None
    functions = {exemption.function: exemption for exemption in declared.exemption}
    places = [
        (point.symbol, site.function, site.hot)
        for point in series.spec.tracepoint
        for site in point.site
    ]
    names = dict.fromkeys(
        [*filter(None, functions), *(function for _, function, _ in places)]
    )
    paths = [
        costs.FunctionPaths(
            binary="vmlinux",
            name=name,
            proven=bool(number % 2),
            most=exemption.instructions + 2
            if (exemption := functions.get(name))
            else 0,
            work=exemption.instructions if exemption else 0,
            least=0,
            nops=number % 3,
            sites=1,
        )
        for number, name in enumerate(names)
    ]
    sites = [
        costs.Site(
            event=event,
            binary="vmlinux",
            function=function,
            hot=hot,
            offset=4,
            nop=nop,
            out_of_line=True,
            cold_bytes=120,
        )
        for event, function, hot in places
        for nop in (2, 5)
    ]
    structs = [
        costs.StructChange(
            binary="vmlinux",
            name=f"struct_that_grows_{size}",
            base=size,
            patched=size + 8,
            base_holes=0,
            patched_holes=0,
        )
        for size in (64, 128, 256)
    ]
    sections = [
        costs.SectionSize(binary=name, section=section, base=1, patched=14934)
        for name in ("vmlinux", "drm-sched-tests", "gpu-sched", "test_hmm")
        for section in (".text", ".data")
    ]
    longer = [path.model_copy(update={"work": path.work + 7}) for path in paths]
    return costs.Overhead(
        base_kernel="k",
        footprint=costs.Footprint(
            sites=sites, paths=paths, structs=structs, sections=sections, limits=LIMITS
        ),
        mitigated=costs.Footprint(sites=sites, paths=longer),
        measurements=[
            _measurement(series, number) for number in range(len(declared.workload))
        ],
        exemptions=[
            costs.Exemption(
                function=exemption.function,
                struct=exemption.struct,
                allowed=exemption.instructions or exemption.bytes_,
                because=exemption.because,
            )
            for exemption in declared.exemption
        ],
    )


def _mutation(series: Series) -> falsity.Mutation | None:
    """Every argument of the series is needed, and there is a caught value."""
    if not series.spec.tracepoint:
        return None
    outcomes = [
        falsity.MutantOutcome(
            event=event,
            field=field or RECORDS,
            operator=operator,
            part=argument.part or "",
            outcome="not-applicable" if argument.changes_nothing else "escaped",
            noticed=f"{argument.noticed_from_ms} ms later, caught by a check",
        )
        for argument in series.spec.unproven
        for event, field, operator in argument.keys
    ]
    event = series.spec.tracepoint[0].event
    caught = falsity.MutantOutcome(
        event=event,
        field="f",
        operator="zero",
        check="c",
        outcome="caught",
    )
    mutation = falsity.Mutation(
        digest="",
        seconds=0,
        witnesses=[],
        silent=[],
        mutants=[caught, *outcomes],
    )
    return mutate.argued(series, mutation)


def _letter(
    series: Series, place: Path, *, kind: str, skips: bool, url: str | None
) -> Letter:
    base = _base(kind)
    directory = synthetic.prove(series, base, place, overhead=False)
    run_report = report.read(directory / "report.json")
    environment = run_report.environment
    environment.compiler = "gcc (Debian 12.2.0-14+deb12u1) 12.2.0"
    environment.qemu = "QEMU emulator version 10.0.2 (Debian 1:10.0.2+ds-2+deb13u1)"
    environment.guest = {
        "bpftrace": "0.23.2-1",
        "linux-perf": "6.12.117-1",
        "trace-cmd": "3.3.1-1+b1",
    }
    (entry,) = run_report.series
    _record(directory / f"{series.name}/results", *ALL_TRACERS)
    entry.checks = _checks(series, skips=skips)
    entry.shown = _shown(series)
    entry.overhead = _overhead(series)
    entry.mutation = _mutation(series)
    alone = next(check for check in entry.checks if check.name == "harness_1")
    alone.name = "holds_alone"
    _share(run_report, [f"another-series-{number}" for number in range(15)])
    assert entry.evidence is not None
    trace = excerpts.trace(evidence.load(directory / entry.evidence), series)
    rendered = cover.render(
        series,
        proof.Proof(directory, run_report, entry),
        trace,
        base,
        assisted=len(series.patches),
        applied="123 hunks applied at an offset.",
        url=url,
    )
    body = excerpts.replaced((series.dir / series.spec.cover).read_text(), trace)
    written = len(cover.wrapped(body.text).strip("\n").splitlines())
    lines = tuple(rendered.text.splitlines()[written:])
    page = re.sub(r"<[^>]*>", " ", pages.page(run_report).replace("<wbr>", ""))
    return Letter(series, entry, lines, " ".join(html.unescape(page).split()))


def _share(run_report: report.Report, names: list[str]) -> None:
    """Have series called ``names`` in the kernel of the first one."""
    (entry,) = run_report.series
    entry.kernel = "0123456789abcdef"
    run_report.series += [entry.model_copy(update={"name": name}) for name in names]


def _record(results_dir: Path, *workloads: dict[str, object]) -> None:
    """Have results of ``workloads`` with these facts."""
    path = results_dir / "agent.json"
    named = [
        {"name": f"load{number or ''}", **facts}
        for number, facts in enumerate(workloads)
    ]
    path.write_text(json.dumps({"status": "completed", "workloads": named}))


@pytest.fixture(params=Project(ROOT).names())
def series(request: pytest.FixtureRequest) -> Series:
    """Each series that is here."""
    (subject,) = Project(ROOT).load([request.param])
    return subject


@pytest.mark.parametrize("skips", [False, True], ids=["all", "skips"])
@pytest.mark.parametrize("kind", ["debian", "git"])
def test_what_is_generated_fits_a_screen(
    series: Series, tmp_path: Path, kind: str, skips: bool
) -> None:
    letter = _letter(series, tmp_path, kind=kind, skips=skips, url=URL)
    assert len(letter.lines) <= SCREEN, "\n".join(letter.lines)
    assert max(map(len, letter.lines)) <= cover.WIDTH
    assert letter.lines[0] == ""
    assert ", and with these patches alone" in letter.text
    assert " 123 hunks applied at an offset." in letter.text
    assert letter.lines[-2:] == (
        "Everything else, each check with what it expected and observed:",
        URL,
    )
    for kind_of_check, count in OURS.items():
        if not skips:
            assert re.search(rf"\b{count} \S.* \({count * 40:,}\)", letter.text), (
                kind_of_check
            )
    skipped = sum(check.status == "skip" for check in letter.entry.checks)
    assert (f"Skipped: {skipped}, see below." in letter.text) == skips
    uncovered = bool(skips or series.spec.unproven or letter.entry.overhead)
    assert ("Not covered by this run:" in letter.text) == uncovered


def test_each_bug_is_shown_and_operations_have_their_figures(
    series: Series, tmp_path: Path
) -> None:
    letter = _letter(series, tmp_path, kind="debian", skips=True, url=None)
    for bug in letter.entry.shown:
        assert bug.looks in letter.text
    assert ("Without the patches" in letter.text) == bool(letter.entry.shown)
    overhead = letter.entry.overhead
    measurements = overhead.measurements if overhead is not None else []
    rows = [line for line in letter.lines if line.startswith("  24,634.9 ")]
    for row, measurement in zip(rows, measurements, strict=False):
        assert f"  {measurement.operation.split()[0]}" in row
    if len(rows) != len(measurements):
        assert len(rows) >= 2
        assert f"  and {len(measurements) - len(rows)} more" in letter.lines


def test_without_an_address_no_link_is_claimed(series: Series, tmp_path: Path) -> None:
    letter = _letter(series, tmp_path, kind="debian", skips=False, url=None)
    assert len(letter.lines) <= SCREEN
    assert letter.text.endswith(
        "is in the report of the run. It is not published, but available on request."
    )


def test_all_that_leaves_the_letter_is_in_the_report(
    series: Series, tmp_path: Path
) -> None:
    letter = _letter(series, tmp_path, kind="debian", skips=True, url=None)
    entry = letter.entry
    for check in entry.checks:
        assert " ".join(check.claim.split()) in letter.page
        assert check.detail in letter.page
        for comparison in check.comparisons:
            assert comparison.label in letter.page
            assert " ".join(comparison.detail.split()) in letter.page
    for bug in entry.shown:
        assert bug.looks in letter.page
    for argument in series.spec.unproven:
        assert " ".join(argument.because.split()) in letter.page
    if (overhead := entry.overhead) is None:
        return
    footprint = overhead.footprint
    assert footprint is not None
    for limit in footprint.limits:
        assert limit in letter.page
    for path in footprint.paths:
        assert path.name in letter.page
    for struct in footprint.structs:
        assert struct.name in letter.page
    for site in footprint.sites:
        assert site.event in letter.page
    for exemption in overhead.exemptions:
        assert " ".join(exemption.because.split()) in letter.page
    for measurement in overhead.measurements:
        assert measurement.operation in letter.page
        assert measurement.because is not None
        assert " ".join(measurement.because.split()) in letter.page


# -- sentences and items ---------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "+0"),
        (1.0, "+1"),
        (-2.584, "-2.58"),
        (14.5, "+14.5"),
        (232.2, "+232"),
        (9717.625, "+9,718"),
    ],
)
def test_figures_have_the_digits_that_matter(value: float, text: str) -> None:
    assert results._added(value) == text


def test_a_mode_that_nobody_measured_has_no_column() -> None:
    samples = [
        costs.Sample(mode=mode, boots=[], median=median, spread=0)
        for mode, median in (("base", 20.6123), ("off", 21.6123))
    ]
    nap = costs.Measurement(
        workload="w", operation="nap", resolution=0.25, samples=samples
    )
    assert results.table([nap]) == [
        ("base off  +/-", "(+/-: between boots of the base)"),
        ("20.6  +1 0.25", "nap"),
    ]


@pytest.mark.parametrize(
    ("workloads", "clause"),
    [
        (
            ALL_TRACERS,
            ", traced with ftrace, bpftrace 0.23.2, perf and trace-cmd 3.3.1",
        ),
        (ALL_TRACERS[:1], ", traced with ftrace and bpftrace 0.23.2"),
        (
            [{"trace": {"lost": 0}, "tracers": {}, "decoded": {}}],
            ", traced with ftrace",
        ),
        ([{"trace": None, "tracers": {}, "decoded": {}}], ""),
        ([], ""),
    ],
)
def test_only_what_traced_is_named(
    tmp_path: Path, workloads: list[dict[str, object]], clause: str
) -> None:
    _record(tmp_path, *workloads)
    versions = {"bpftrace": "0.23.2-1", "trace-cmd": "3.3.1-1+b1", "dwarves": "1.30"}
    assert results.watchers(versions, evidence.load(tmp_path)) == clause


@pytest.mark.parametrize(
    ("kind", "origin", "sentence"),
    [
        ("debian", "linux-source-7.3", f"Not tested on {HOME}."),
        ("tarball", "/linux-7.3.tar", f"Not tested on {HOME}."),
        ("git", "/home/me/linux", f"Whether this is {HOME}, was not checked."),
        ("git", f"{TREE}#master", f"Whether this is {HOME}, was not checked."),
        ("directory", "/linux", f"Whether this is {HOME}, was not checked."),
        ("git", str(remote.named(Path(f"{TREE}#for-next"))), ""),
    ],
)
def test_a_proof_on_the_maintainers_tree_is_not_denied(
    kind: str, origin: str, sentence: str
) -> None:
    (series,) = Project(ROOT).load(["rdma-cq"])
    assert (series.spec.subsystem.tree, series.spec.subsystem.branch) == (
        TREE,
        "for-next",
    )
    base = replace(_base(kind), origin=origin)
    assert results.untested(series, base) == sentence


def test_series_in_the_same_kernel_are_named(tmp_path: Path) -> None:
    (series,) = Project(ROOT).load(["drm-sched"])
    directory = synthetic.prove(series, _base("debian"), tmp_path)
    run_report = report.read(directory / "report.json")
    (entry,) = run_report.series
    alone = proof.Proof(directory, run_report, entry)
    assert results.patches(alone) == "these patches"
    elsewhere = entry.model_copy(update={"name": "elsewhere", "kernel": None})
    run_report.series.append(elsewhere)
    assert results.patches(alone) == "these patches"
    run_report.series.remove(elsewhere)
    _share(run_report, ["a", "b", "c", "d"])
    run_report.series.append(elsewhere)
    shared = "these patches and those of 4 other series (a, b, c and 1 more)"
    assert results.patches(alone) == shared
    check = _passed("holds_alone", "harness", "It passes alone, too.")
    entry.checks.append(check)
    assert results.patches(alone) == f"{shared}, and with these patches alone"
    check.status = "skip"
    assert results.patches(alone) == shared
    # Others were in that kernel, and are proven on another one.
    entry.beside = ["a", "elsewhere"]
    both = "these patches and those of 2 other series (a, elsewhere)"
    assert results.patches(alone) == both
    entry.beside = []
    assert results.patches(alone) == "these patches"


def test_what_does_not_fit_is_counted() -> None:
    items = cover._bullets(["one", "two", "three", "four"])
    assert cover._few(items, 4) == ["- one", "- two", "- three", "- four"]
    assert cover._few(items, 3) == ["- one", "- two", "- and 2 more"]
    assert cover._few(items, 2) == ["- one", "- and 3 more"]
    long, short = cover._bullets(["word " * 40, "two"])
    lines = cover._few([short, long], 3)
    assert lines[0] == "- two"
    assert len(lines) == 3
    assert lines[-1].endswith("[...]")


@pytest.mark.parametrize("spare", [12, 20, 40])
def test_lists_have_no_more_lines_than_there_are(spare: int) -> None:
    names = (
        "records",
        "shown",
        "argued",
        "uncovered",
        "operations",
        "reasons",
        "paths",
    )
    items = [cover._Item("- ", "word " * 80, 2)] * 30
    shares = cover._shares(dict.fromkeys(names, items), spare)
    assert sum(shares.values()) <= spare
    assert all(share >= 1 for share in shares.values())
    for name in names:
        assert len(cover._few(items, shares[name])) <= shares[name]
