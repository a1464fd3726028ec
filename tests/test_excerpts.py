# SPDX-License-Identifier: GPL-2.0-or-later
"""Lines of a trace in texts, and those of a run that take their place."""

from __future__ import annotations

from kstall.mail import excerpts, figures
from kstall.mail.excerpts import Line, RunTrace
from kstall.report.report import Environment, Report, SeriesReport, Stage


def _line(head: str, name: str, body: str) -> Line:
    return Line(head, name, body)


NAPS = (
    _line("doze-7 [000] ..... 1.000001", "nap_begin", "who=1 bed=3"),
    _line("doze-7 [000] ..... 1.000002", "nap", "who=1 nap_ns=500 deep=0"),
    _line("doze-8 [001] ..... 2.000001", "nap_begin", "who=2 bed=4"),
    _line("doze-8 [001] ..... 2.000009", "nap_begin", "who=2 bed=4"),
    _line("doze-8 [001] ..... 2.000010", "nap", "who=2 nap_ns=900 deep=1"),
)
OTHERS = (_line("cat-9 [000] ..... 9.000001", "nap", "who=9 nap_ns=1 deep=0"),)
RUN = RunTrace((OTHERS, NAPS))


def test_a_record_without_a_time_is_the_one_most_like_it() -> None:
    replacement = excerpts.replaced(
        "Text:\n\n  nap: who=1 nap_ns=77 deep=0\n\nnap: who=1\n", RUN
    )
    assert replacement.text == "Text:\n\n  nap: who=1 nap_ns=500 deep=0\n\nnap: who=1\n"
    assert replacement.shown == {"nap"}
    assert replacement.strange == ()


def test_records_of_words_are_told_apart_as_well() -> None:
    run = RunTrace(
        ((_line("", "nap", "who 1, deep 0"), _line("", "nap", "who 2, deep 1")),)
    )
    replacement = excerpts.replaced("  nap: who 2, deep 7\n", run)
    assert replacement.text == "  nap: who 2, deep 1\n"


def test_an_excerpt_is_of_one_workload_in_order_and_close_together() -> None:
    shown = (
        "  doze-5 [000] ..... 5.000000: nap_begin: who=2 bed=4\n"
        "  doze-5 [000] ..... 5.500000: nap: who=2 nap_ns=1 deep=1\n"
    )
    replacement = excerpts.replaced(shown, RUN)
    assert replacement.text == (
        "  doze-8 [001] ..... 2.000009: nap_begin: who=2 bed=4\n"
        "  doze-8 [001] ..... 2.000010: nap: who=2 nap_ns=900 deep=1\n"
    )


def test_fields_that_an_excerpt_leaves_out_stay_out() -> None:
    replacement = excerpts.replaced("  doze-5 [000] 5.000000: nap: who=1 deep=0\n", RUN)
    assert replacement.text == "  doze-7 [000] ..... 1.000002: nap: who=1 deep=0\n"


def test_wide_lines_go_on_below_and_are_read_so() -> None:
    body = " ".join(f"field_{n}={'x' * 9}" for n in range(9))
    line = _line("doze-7 [000] ..... 1.000003", "wide", body)
    text = line.text("  ")
    assert max(map(len, text.splitlines())) <= 75
    assert len(text.splitlines()) > 2
    assert all(line.startswith("      field_") for line in text.splitlines()[1:])
    replacement = excerpts.replaced(f"{text}\n", RunTrace(((line,),)))
    assert replacement.text == f"{text}\n"


def test_what_the_run_has_not_stays_and_is_reported() -> None:
    shown = "  doze-5 [000] 5.000000: nap: who=1\n  doze-5 [000] 5.1: end\n"
    replacement = excerpts.replaced("  doze-5 [000] 5.000000: snore: who=1\n", RUN)
    assert replacement.text == "  doze-5 [000] 5.000000: snore: who=1\n"
    assert replacement.strange == ("snore: who=1",)
    both = shown.replace("5.1: end", "5.100000: end:")
    replacement = excerpts.replaced(both, RUN)
    assert replacement.text == both
    assert replacement.strange == ("nap: who=1", "end: ")


def test_figures_of_prose_and_not_of_samples() -> None:
    text = "It takes 1,234 ns, 12 times, on 7.3.4 with x86_64.\n  nap: nap_ns=99999\n"
    assert figures.in_prose(text) == ("1,234",)


def test_digits_of_a_hash_show_nothing() -> None:
    digest = "0a195b" * 8 + "0123456789abcdef"
    stage = Stage(name="guest", status="pass", seconds=2.0, summary="286 records")
    entry = SeriesReport(name="demo", title="t", digest=digest, stages=[stage])
    text = "There were 286 records, in 195 turns.\n"
    run = Report(
        run="r1",
        started="2026-01-01T00:00:00+00:00",
        command=["kstall"],
        environment=Environment(kstall="0", python="3", host="h", cpus=2),
    )
    assert figures.unfounded(text, run, entry) == ("195",)
