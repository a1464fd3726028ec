# SPDX-License-Identifier: GPL-2.0-or-later
"""The page of a run: whole, escaped, and honest about what was not looked at."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from kstall import cli
from kstall.cost import costs
from kstall.pipeline import run as runs
from kstall.report import Report, SeriesReport, Stage, html, report
from kstall.verdict import Check, Comparison, Excerpt, Explanation, Status

HOSTILE = "<script>alert('&\"')</script>\x1b[31m\x00\ufffe{{ 7 * 7 }}"
ESCAPED = "&lt;script&gt;alert(&#39;&amp;&#34;&#39;)&lt;/script&gt;[31m{{ 7 * 7 }}"
_VOID = {"meta", "link", "img", "br", "hr", "input", "wbr"}


def sample(mode: costs.Mode, *medians: float, hits: float | None = None) -> Any:
    boots = [costs.Boot(median=m, low=m, high=m, repetitions=3) for m in medians]
    return costs.Sample(
        mode=mode,
        boots=boots,
        median=sorted(medians)[len(medians) // 2],
        spread=max(medians) - min(medians),
        hits=hits,
    )


def measurement(**fields: Any) -> costs.Measurement:
    return costs.Measurement.model_validate(
        {
            "workload": "naps",
            "operation": "nap",
            "resolution": 0.5,
            "samples": [
                sample("base", 100, 100.5, 100),
                sample("off", 102, 102, 102.5),
                sample("ftrace", 400, hits=1.25),
            ],
            "difference": 2.0,
            "visible": True,
            "predicted": 1.0,
            **fields,
        }
    )


def size(
    name: str, base: int | None, patched: int | None, part: costs.Part = "code"
) -> costs.FunctionSize:
    return costs.FunctionSize(
        binary="vmlinux",
        section=".text",
        part=part,
        name=name,
        base=base,
        patched=patched,
    )


def explanation(text: str) -> Explanation:
    excerpt = Excerpt(title=f"why: {text}", file=text, lines=[text])
    return Explanation(
        excerpts=[excerpt], files=[text], again=[f"kstall validate {text}"]
    )


def check(status: Status, text: str = "n") -> Check:
    detail = {"skip": f"no GPU: {text}", "error": f"Traceback: {text}"}
    return Check(
        explanation=explanation(text) if status in ("fail", "error") else None,
        name=f"check_{status}",
        kind="positive",
        claim=f"each nap is seen: {text}",
        status=status,
        comparisons=[
            Comparison(
                label=text, relation="=", expected=2, observed=1, ok=status == "pass"
            )
        ]
        if status in ("pass", "fail")
        else [],
        detail=detail.get(status, ""),
    )


def path(text: str) -> costs.FunctionPaths:
    return costs.FunctionPaths(
        binary=text,
        name=text,
        proven=False,
        most=2,
        work=1,
        least=0,
        nops=1,
        sites=1,
        stretches=[
            costs.Stretch(base=text, patched=text, added=[text], removed=[], net=1)
        ],
        longer_loop=text,
        clock_reads=[text],
        calls=[text],
        unproven=[text],
        added=[text],
    )


def full(text: str = "n") -> Report:
    """A report with something of everything, ``text`` in every place for words."""
    overhead = costs.Overhead(
        base_kernel=text,
        footprint=costs.Footprint(
            sites=[
                costs.Site(
                    event=text,
                    binary=text,
                    function=text,
                    offset=16,
                    nop=5,
                    out_of_line=True,
                    cold_bytes=13,
                    cold_code=[text],
                )
            ],
            functions=[size(text, 10, 40), size("gone", 30, None, "event")],
            sections=[costs.SectionSize(binary=text, section=text, base=1, patched=2)],
            paths=[path(text)],
            structs=[
                costs.StructChange(
                    binary=text,
                    name=text,
                    base=8,
                    patched=16,
                    base_holes=0,
                    patched_holes=4,
                    moved=[text],
                    members=[text],
                )
            ],
            limits=[text],
        ),
        measurements=[measurement(workload=text, operation=text, because=text)],
        worst=[size(text, 10, 47), size("made", None, 300, "event")],
        mitigated=costs.Footprint(paths=[path(text)]),
        exemptions=[costs.Exemption(function=text, allowed=1, because=text)],
    )
    stage = Stage(
        name=text,
        status="error",
        seconds=1,
        summary=text,
        error=text,
        log=text,
        figures=[report.Figure(name=text, value=1, unit=text)],
        commands=[report.Command(argv=[text], returncode=0, seconds=1)],
        explanation=explanation(text),
    )
    run_report = Report(
        run=text,
        started="2026-01-01T00:00:00+00:00",
        command=[text],
        tree=report.Tree(
            kind="git",
            origin=text,
            version=text,
            describe=text,
            commit=text,
            id=text,
            dirty=[text],
        ),
        environment=report.Environment(
            kstall=text, python=text, host=text, cpus=2, guest={text: text}
        ),
        stages=[stage],
        series=[
            SeriesReport(
                name=text,
                title=text,
                not_sent=text,
                digest=text,
                kernel=text,
                evidence=text,
                stages=[stage],
                events=[
                    report.EventFormat(
                        name=text,
                        kind="event",
                        joins=text,
                        sites=[text],
                        fields=[report.EventField(name=text, ctype=text)],
                        holes=0,
                        print_fmt=text,
                    )
                ],
                checks=[
                    check("pass", text),
                    check("fail", text),
                    check("skip", text),
                    check("error", text),
                ],
                overhead=overhead,
            )
        ],
    )
    run_report.settle()
    return run_report


class Balance(HTMLParser):
    """Raises on an end tag that closes something else than what is open."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.links: list[str] = []
        self.ids: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        self.links += [
            attributes[name] or "" for name in ("href", "src") if name in attributes
        ]
        self.ids += [attributes["id"] or ""] if "id" in attributes else []
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, (tag, self.getpos())


def parsed(text: str) -> Balance:
    balance = Balance()
    balance.feed(text)
    balance.close()
    assert balance.open == []
    return balance


def words(text: str) -> str:
    """What a reader sees."""
    body = text[text.index("<body>") :].replace("<wbr>", "")
    return " ".join(re.sub(r"<[^>]*>", " ", body).split())


@pytest.mark.parametrize("text", ["n", HOSTILE])
def test_the_page_is_whole_and_needs_nothing_else(text: str) -> None:
    page = parsed(html.page(full(text)))
    for link in page.links:
        assert link.startswith(("./", "#")), link
    for link in (link for link in page.links if link.startswith("#")):
        assert link[1:] in page.ids
    style = html.page(full(text)).split("<style>")[1].split("</style>")[0]
    assert "url(" not in style
    assert "@import" not in style


def test_nothing_that_was_recorded_is_taken_for_markup() -> None:
    text = html.page(full(HOSTILE))
    assert "<script" not in text
    assert "\x1b" not in text
    assert "\x00" not in text
    # In the order of the page: a place that were left out would not be escaped either.
    assert text.count(ESCAPED) > 60
    assert "49" not in words(text)


def test_every_word_of_a_report_is_on_the_page() -> None:
    shown = words(html.page(full()))
    for expected in (
        "check_pass",
        "observed",
        "Not judged here: no GPU: n",
        "n (not to be sent: n)",
        "n not to be sent: n Checks",
        "Traceback: n",
        "Uncommitted paths",
        "not proven path by path",
        "n may cost 1 instruction more, and costs 1: n",
        "what runs when enabled",
        "Together they are 5 bytes that run while the events are off, and 13 that",
        "Why more than the NOPs",
        "In the touched objects, functions grow by +37 bytes together; what "
        "TRACE_EVENT() generates, which runs for enabled events, by +300",
        "Limitations",
    ):
        assert expected in shown, expected


def test_a_skip_never_looks_like_a_pass() -> None:
    run_report = full()
    run_report.series[0].checks = [check("pass"), check("skip")]
    run_report.series[0].stages = run_report.stages = []
    run_report.settle()
    assert run_report.status == "proven"
    text = html.page(run_report)
    shown = words(text)
    # At the top, before anything that passed, and in its place.
    assert shown.index("Skipped, so neither passed nor failed") < shown.index("pass")
    assert "check_skip of n: no GPU: n" in shown
    assert "1 skipped" in shown
    (place,) = re.findall(
        r'(?s)<details class="check skip" id="[^"]*" open>.*?</details>', text
    )
    assert 'class="badge skip">○ skipped<' in place
    assert "pass" not in place
    assert "✓" not in place


def test_a_stage_that_was_skipped_is_reported_at_the_top() -> None:
    run_report = full()
    run_report.series[0].stages = [
        Stage(name="rival", status="skip", seconds=0, summary="no other compiler")
    ]
    assert "stage rival of n: no other compiler" in words(html.page(run_report))


def test_what_failed_comes_first_and_is_open() -> None:
    text = html.page(full())
    details = re.findall(r'<details class="check (\w+)" id="[^"]*"( open)?>', text)
    assert details == [
        ("fail", " open"),
        ("error", " open"),
        ("skip", " open"),
        ("pass", ""),
    ]


@pytest.mark.parametrize(
    ("status", "headline"),
    [
        ("proven", "✓ proven"),
        ("failed", "✗ failed"),
        ("could-not-run", "! could not judge"),
        ("does-not-apply", "○ does not apply"),
        ("interrupted", "! interrupted"),
        ("running", "○ running"),
    ],
)
def test_the_verdict_stands_at_the_top(status: report.RunStatus, headline: str) -> None:
    run_report = full()
    run_report.status = status
    assert headline in words(html.page(run_report))[:60]


def test_a_run_that_got_nowhere_has_a_page() -> None:
    run_report = full()
    run_report.tree = None
    run_report.series = []
    run_report.settle()
    shown = words(html.page(run_report))
    assert "No series was requested" in shown
    run_report = full()
    run_report.series[0] = SeriesReport(name="demo", title="t", digest="d")
    run_report.settle()
    shown = words(html.page(run_report))
    assert "no check was reached" in shown
    assert "Not reached" in shown


def test_a_difference_that_is_not_seen_is_not_called_one() -> None:
    run_report = full()
    assert run_report.series[0].overhead is not None
    run_report.series[0].overhead.measurements = [
        measurement(difference=0.25, visible=False, predicted=0)
    ]
    shown = words(html.page(run_report))
    assert "below resolution" in shown
    assert "nothing measurable" in shown
    assert "differ by up to 0.5 instructions" in shown
    assert "+0.25" not in shown


@pytest.mark.parametrize(
    ("hits", "predicted", "text"),
    [
        (1.25, 1.0, "fire 1.25 times per operation"),
        (0.0, 1.0, "crosses a site, but has nothing to report"),
        (0.0, 0.0, "without reaching a site"),
        (None, 1.0, "was not counted"),
    ],
)
def test_what_was_measured_is_not_said_to_be_more(
    hits: float | None, predicted: float, text: str
) -> None:
    traced = [sample("base", 1), sample("off", 1), sample("ftrace", 4, hits=hits)]
    crossing = measurement(samples=traced, predicted=predicted)
    assert text in html.crossing(crossing)


@pytest.mark.parametrize(
    ("exempt", "count"),
    [
        ({"function": "n"}, 1),
        ({"struct": "n"}, 8),
        ({"function": "elsewhere"}, None),
        ({"struct": "elsewhere"}, None),
    ],
)
def test_what_an_exception_is_needed_for(
    exempt: dict[str, str], count: int | None
) -> None:
    overhead = full().series[0].overhead
    assert overhead is not None
    assert overhead.footprint is not None
    exemption = costs.Exemption.model_validate({"allowed": 9, "because": "n", **exempt})
    assert html.needed(overhead.footprint, exemption) == count


def test_what_is_more_than_predicted_stands_out() -> None:
    assert html.too_much(measurement(difference=1.6))
    assert not html.too_much(measurement(difference=1.5))
    assert not html.too_much(measurement(difference=1.6, visible=False))
    # What other series in the kernel cost is not held against this one.
    assert not html.too_much(measurement(difference=3.5, others=2))
    assert html.too_much(measurement(difference=3.6, others=2))
    run_report = full("nap")
    assert '<b class="fail">+2</b>' in html.page(run_report)
    assert "more than the 1 that the series predicts" in words(html.page(run_report))


def test_the_table_of_costs_has_all_modes() -> None:
    assert html.above_base(measurement()) == {"off": 2, "ftrace": 300}
    assert html.above_base(measurement(samples=[sample("off", 7)])) == {}
    text = html.page(full("nap"))
    cells = re.findall(r'<td class="num" data-label="added, ([^"]+)">(.*?)</td>', text)
    assert ("events off", '<b class="fail">+2</b>') in cells
    assert ("by ftrace", "+300") in cells
    assert ("by bpftrace", "not measured") in cells


def test_bars_are_to_scale_and_whiskers_span_the_boots() -> None:
    base, off, ftrace = html.levels(measurement())
    assert (ftrace.left, ftrace.width, ftrace.whisker) == (0, 100, None)
    assert base.width == 25
    assert base.whisker == (25, 25.125)
    assert base.note == "3 boots, 0.5 apart"
    assert off.value == "102"


def test_the_zoom_has_base_boots_in_its_band_and_the_others_where_they_are() -> None:
    zoom = html.zoom(measurement())
    assert zoom is not None
    (_, _, base), (_, _, off) = zoom.dots
    low, high = zoom.band
    assert all(low <= place <= high for place in base)
    assert all(place > high for place in off)
    assert zoom.zero == base[0]
    places = {text: place for place, text in zoom.ticks}
    assert places["+1"] == zoom.predicted
    assert places["+2"] == off[0]
    assert all(0 <= place <= 100 for place in [*base, *off, *places.values()])


def test_the_zoom_of_equal_boots_is_a_picture_all_the_same() -> None:
    same = [sample("base", 7, 7), sample("off", 7, 7)]
    zoom = html.zoom(measurement(samples=same, resolution=0, predicted=0))
    assert zoom is not None
    assert {place for _, _, dots in zoom.dots for place in dots} == {50}
    assert html.zoom(measurement(samples=same[:1])) is None


def test_a_reason_that_series_share_is_reported_once() -> None:
    run_report = full()
    skipped = Stage(name="rival", status="skip", seconds=0, summary="no other compiler")
    run_report.series = [
        SeriesReport(name=name, title="t", digest="d", stages=[skipped])
        for name in ("one", "two")
    ]
    assert "stage rival of one, two: no other compiler" in words(html.page(run_report))


def test_many_skips_of_one_cause_are_one_line_at_the_top() -> None:
    run_report = full()
    run_report.series[0].checks = [
        check("pass"),
        *(
            check("skip").model_copy(update={"name": f"lazy_{n}", "detail": "no GPU"})
            for n in range(6)
        ),
    ]
    run_report.series[0].checks.append(
        check("skip").model_copy(update={"detail": "no cat"})
    )
    text = html.page(run_report)
    (box,) = re.findall(r'(?s)<div class="note skip"><b>Skipped.*?</div>', text)
    assert box.count("<li>") == 2
    assert "lazy_0 , lazy_1 , lazy_2" in words(f"<body>{box}")
    assert box.count("no GPU") == 1


def test_a_failure_explains_itself_on_the_page() -> None:
    shown = words(html.page(full("nap")))
    assert "check_fail : nap: 1, expected = 2" in shown[: shown.index("Verdicts")]
    for phrase in (
        "why: nap nap nap",
        "to see more less nap",
        "to try again kstall validate nap",
    ):
        assert phrase in shown, phrase
    # Stage, check: what explains both is there once.
    assert shown.count("why: nap nap nap") == 1
    assert "why: nap: see above" in shown


def test_what_could_not_be_judged_is_called_that_everywhere() -> None:
    run_report = full()
    run_report.series[0].checks = [check("error"), check("pass")]
    run_report.series[0].stages, run_report.stages = run_report.series[0].stages, []
    run_report.settle()
    assert run_report.status == "could-not-run"
    text = html.page(run_report)
    shown = words(text)
    assert "! COULD NOT JUDGE" in shown
    assert "Could not be judged, so neither passed nor failed: check_error" in shown
    assert "1 could not judge" in shown
    assert "could not run" not in text.lower()


def test_a_status_of_a_newer_kstall_does_not_break_the_page() -> None:
    run_report = full()
    run_report.status = "half-proven"  # type: ignore[assignment]
    run_report.series[0].status = "half-proven"  # type: ignore[assignment]
    assert "! half proven" in words(html.page(run_report))


@pytest.mark.parametrize("span", [0.003, 1, 2.5, 3, 7, 40, 999])
def test_ticks_are_round_and_few(span: float) -> None:
    step = html._step(span)
    assert 1 <= span / step <= 4
    assert f"{step:e}"[0] in "125"


def test_sizes_of_functions_are_drawn_from_zero_both_ways() -> None:
    functions = [size("grew", 10, 40), size("gone", 10, None), size("new", None, 20)]
    (chart,) = html.sizes(costs.Footprint(functions=functions))
    assert chart.total == 40
    bars = {bar.label: bar for bar in chart.bars}
    assert [bar.label for bar in chart.bars] == ["grew", "new", "gone"]
    assert (bars["grew"].left, bars["grew"].width) == (25, 75)
    assert (bars["gone"].left, bars["gone"].width) == (0, 25)
    assert bars["gone"].value == "\N{MINUS SIGN}10 bytes"
    assert (bars["gone"].note, bars["new"].note) == ("gone", "new")
    assert bars["grew"].note == "10 to 40"


def test_functions_that_are_not_drawn_are_counted() -> None:
    functions = [size(f"f{n:02}", None, 100 - n) for n in range(15)]
    (chart,) = html.sizes(costs.Footprint(functions=functions))
    assert len(chart.bars) == 12
    assert chart.rest == (3, 88 + 87 + 86)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (2982.5, "2,982.5"),
        (12669.128, "12,669.13"),
        (100, "100"),
        (-3, "\N{MINUS SIGN}3"),
        (0.001, "0.001"),
        (10.0, "10"),
    ],
)
def test_numbers_read_well(value: float, text: str) -> None:
    assert html.number(value) == text


def test_names_break_behind_underscores_only() -> None:
    assert html.wrap("a_b<c\x1b") == "a_<wbr>b&lt;c"


def test_signs_and_durations() -> None:
    assert [html.signed(n) for n in (1, 0, -1)] == ["+1", "0", "\N{MINUS SIGN}1"]
    assert [html.duration(n) for n in (2.44, 125)] == ["2.4 s", "2 min 05 s"]


def test_the_page_is_written_when_the_run_is_over(tmp_path: Path) -> None:
    run_report = full()
    run = runs.Run(tmp_path, run_report, None, 0)  # type: ignore[arg-type]
    run_report.status = "running"
    run.save()
    assert not (tmp_path / "report.html").exists()
    run_report.settle()
    run.save()
    assert "FAILED" in (tmp_path / "report.html").read_text()


def test_the_page_is_made_again_from_what_is_saved(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_report = full()
    report.write(run_report, tmp_path / "report.json")
    assert cli.main(["html", str(tmp_path)]) == 0
    assert (tmp_path / "report.html").read_text() == html.page(run_report)
    assert "report.html" in capsys.readouterr().out
    assert cli.main(["html", str(tmp_path / "none")]) == 2
    assert "holds no report.json" in capsys.readouterr().err
