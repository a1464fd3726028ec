# SPDX-License-Identifier: GPL-2.0-or-later
"""The cover letter: what ``cover.txt`` says, and what one run showed.

The body is written by hand and says what stays invisible, what there is, what is added
and what is not covered.  All else is made here of the report of the run that proved the
series, and of the patches.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2

from ..base import KstallError
from ..cost import costs
from ..lint import patchtext
from ..series import Series
from ..tree import Base
from ..verdict import Check, Comparison
from . import excerpts, figures
from .proof import Proof

WIDTH = patchtext.WIDTH
_ITEM = re.compile(r"(?:[-*] |\d+(?: and \d+| to \d+)? )")
_SHORT = 28
#: As a comparison has them: no events, none by name, no counter that grew.
_NOTHING = (0, "Counter()", "{}", "[]", "set()")
#: Checks of patches, in the words of who reads the mail.
_PATCH_CHECKS = {
    "checkpatch_strict": "checkpatch --strict (without the Signed-off-by: that the "
    "sender adds)",
    "documents": "documents are well-formed",
    "include_order": "the order of includes",
    "new_files_are_maintained": "MAINTAINERS has new files",
    "event_names_are_new": "no event has the name of another",
    "prose_is_wrapped": "messages are wrapped",
    "nothing_to_fill_in": "and complete",
    "compiles_as_configured": "each patch compiles",
    "no_new_warnings": "without a new warning at W=1",
    "sparse_clean": "or by sparse",
    "headers_stand_alone": "each header by itself",
    "tracepoints_are_called": "no tracepoint is unused",
    "compiles_without_tracing": "and all that without tracing, too",
    "compiles_tiny": "and in a tiny configuration",
}
#: Packages of the guest, and what the programs are called that read events there.
_READERS = {"bpftrace": "bpftrace", "linux-perf": "perf", "trace-cmd": "trace-cmd"}


class Unfinished(KstallError):
    """A text of the series has a place that nobody has filled in."""


@dataclass(frozen=True)
class Cover:
    """``text`` ends before shortlog and diffstat; ``unfounded`` are figures in the
    hand-written prose that the run does not show."""

    text: str
    unfounded: tuple[str, ...]


def require_finished(series: Series) -> None:
    """Raise `Unfinished` for ``@@...@@`` left in the cover letter or in a patch."""
    places = []
    for path in (series.dir / series.spec.cover, *(one.path for one in series.patches)):
        text = path.read_text(encoding="utf-8", errors="replace")
        for number, line in enumerate(text.splitlines(), 1):
            if path.suffix == ".patch" and line.startswith("diff --git "):
                # From here on it is code, where hunks begin with such signs.
                break
            found = patchtext.PLACEHOLDER.findall(line)
            places += [f"{path}:{number}: {one}" for one in found]
    if places:
        raise Unfinished(
            "not filled in yet:\n    " + "\n    ".join(places),
            next="quote there what a run showed, and prove the series again",
        )


def render(
    series: Series,
    proof: Proof,
    trace: excerpts.Trace,
    base: Base,
    *,
    assisted: int,
    applied: str = "",
) -> Cover:
    """The letter's text; ``trace`` is that of ``proof``.

    ``assisted`` is how many patches have an Assisted-by: tag; ``applied`` says what
    there is to say about how they apply.
    """
    require_finished(series)
    body = (series.dir / series.spec.cover).read_text(encoding="utf-8")
    found = trace.records()
    made = excerpts.replaced(body, trace)
    new = [excerpts.name_of(point) for point in series.spec.tracepoint]
    if missing := [name for name in new if name not in found]:
        raise KstallError(
            f"{proof.dir}: proven, but it has no record of {', '.join(missing)}",
            next="run it again",
        )
    values: dict[str, Any] = {
        "body": wrapped(made.text).strip("\n"),
        "records": [
            found[name][0].text("  ") for name in new if name not in made.shown
        ],
        "series": series,
        "entry": proof.entry,
        "environment": proof.report.environment,
        "base": base,
        "day": proof.report.started[:10],
        "checks": [one for one in proof.entry.checks if _tells(one)],
        "harness": [
            one
            for one in proof.entry.checks
            if one.kind == "harness" and one.status == "pass"
        ],
        "watched": [
            one
            for one in proof.entry.checks
            if one.kind == "debug" and one.status == "pass"
        ],
        "skipped": skipped(proof.entry.checks),
        "unproven": proof.entry.mutation.unproven() if proof.entry.mutation else [],
        "argued": argued(series, proof.entry.checks),
        "overhead": proof.entry.overhead,
        "assisted": assisted,
        "applied": applied,
    }
    text = _environment().get_template("cover.txt").render(values)
    tidy = re.sub(r"\n{3,}", "\n\n", text).strip("\n") + "\n"
    return Cover(tidy, figures.unfounded(made.text, proof.report, proof.entry))


def _tells(check: Check) -> bool:
    return check.kind in ("positive", "negative", "invariant") and (
        check.status == "pass" and bool(check.comparisons)
    )


def skipped(checks: Sequence[Check]) -> list[tuple[str, str]]:
    """What was not shown, as claims, and why; claims of one reason together."""
    found: dict[str, list[str]] = {}
    for check in checks:
        if check.status == "skip":
            found.setdefault(check.detail, []).append(check.claim.rstrip("."))
    return [("; ".join(claims), why) for why, claims in found.items()]


def watchers(versions: Mapping[str, str]) -> str:
    """Who reads events in a guest with programs of these ``versions``, as a clause."""
    known = [
        f"{name} {versions[package]}"
        for package, name in _READERS.items()
        if package in versions
    ]
    if not known:
        return ""
    return f", watched by {', '.join(['ftrace', *known[:-1]])} and {known[-1]}"


def _environment() -> jinja2.Environment:
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        # Mails are plain text.
        autoescape=False,  # noqa: S701
    )
    made.filters["fill"] = fill
    made.globals.update(
        allowances=allowances,
        deciding=deciding,
        growth=growth,
        guarded=guarded,
        medians=medians,
        patch_checks=patch_checks,
        reasons=reasons,
        structs=structs,
        paths=paths,
        watchers=watchers,
    )
    return made


def fill(text: str, indent: int = 0, hang: int | None = None) -> str:
    """One paragraph, filled to the width of a mail; later lines ``hang`` further."""
    return textwrap.fill(
        " ".join(text.split()),
        WIDTH,
        initial_indent=" " * indent,
        subsequent_indent=" " * (indent if hang is None else hang),
        break_long_words=False,
        break_on_hyphens=False,
    )


def wrapped(text: str) -> str:
    """``text`` with paragraphs that are too wide filled anew.

    What is indented, such as records and commands, stays as it is.  An item of a list
    keeps its mark and its hanging indent.
    """
    return "\n\n".join(map(_paragraph, re.split(r"\n{2,}", text.strip("\n")))) + "\n"


def _paragraph(text: str) -> str:
    lines = text.splitlines()
    if all(len(line) <= WIDTH for line in lines):
        return text
    items: list[list[str]] = []
    for line in lines:
        starts = _ITEM.match(line) is not None and (
            not items or _ITEM.match(items[0][0]) is not None
        )
        if not items or starts:
            items.append([line])
        else:
            items[-1].append(line)
    return "\n".join(map(_item, items))


def _item(lines: list[str]) -> str:
    first, *rest = lines
    hang = (
        2 if _ITEM.match(first) and all(line.startswith("  ") for line in rest) else 0
    )
    if first.startswith(" ") or (not hang and any(one.startswith(" ") for one in rest)):
        return "\n".join(lines)
    # A name that was too long for its line is whole again.
    return fill(re.sub(r"_\n\s*", "_", "\n".join(lines)), 0, hang)


def deciding(check: Check) -> Comparison | None:
    """The comparison of a check that says most in a line, if there is one that fits.

    Of a check that nothing happens that is the last that has to be nothing, or else
    the last that has to be equal; of others the one about most events.
    """
    figures = [
        one
        for one in check.comparisons
        if isinstance(one.observed, int | float)
        and not isinstance(one.observed, bool)
        and one.relation != "holds"
    ]
    short = [one for one in check.comparisons if len(one.seen) <= _SHORT]
    if check.kind == "negative":
        silent = [one for one in check.comparisons if one.expected in _NOTHING]
        equal = [one for one in short if one.relation == "="]
        return next(iter((silent or equal or short)[-1:]), None)
    if figures:
        return max(figures, key=_telling)
    return next(iter(short[-1:]), None)


def _telling(one: Comparison) -> tuple[bool, float]:
    expected = one.expected if isinstance(one.expected, int | float) else 0
    return "event" in one.label and not one.unit, expected


def argued(series: Series, checks: Sequence[Check]) -> list[str]:
    """What checks of the patches found and the series does not follow, and why."""
    lines = []
    for one in series.spec.exemption:
        found = " ".join(
            comparison.detail
            for check in checks
            if check.name == one.check
            for comparison in check.comparisons
        )
        because = " ".join(one.because.split())
        if because in found:
            kinds = [kind for kind in one.kinds if kind in found]
            where = f" in {', '.join(one.files)}" if one.files else ""
            name = one.check.replace("_", " ")
            lines.append(f"{name}, {', '.join(kinds)}{where}: {because}")
    return lines


def allowances(found: costs.Overhead) -> list[str]:
    """What may cost more than a NOP, and why; what has one reason is one line."""
    grouped: dict[tuple[str, str], list[str]] = {}
    for one in found.exemptions:
        name = f"{one.function}()" if one.function else f"struct {one.struct}"
        unit = "instruction" if one.function else "byte"
        much = f"{one.allowed} {unit}{'' if one.allowed == 1 else 's'}"
        because = " ".join(one.because.split()).rstrip(".")
        grouped.setdefault((much, because), []).append(name)
    return [
        f"allowed for {', '.join(names)}, {much}: {because}"
        for (much, because), names in grouped.items()
    ]


def growth(found: costs.Footprint) -> list[str]:
    """By how many bytes of text and of data each binary grew, records of it aside."""
    totals: dict[str, dict[str, int]] = {}
    for one in found.sections:
        kind = "text" if "text" in one.section else "data"
        of = totals.setdefault(one.binary, {"text": 0, "data": 0})
        of[kind] += one.patched - one.base
    return [
        f"{binary}: {of['text']:+} bytes of text, {of['data']:+} of all else"
        for binary, of in totals.items()
    ]


def paths(found: costs.Footprint) -> list[str]:
    """What each changed function runs more while the events are off, as judged."""
    lines = []
    for one in found.paths:
        heat = ", hot" if one.hot else ""
        where = "on a path" if one.proven else "not reached before"
        most = one.most if one.hot else one.work
        jumps = one.most - most
        lines.append(
            f"{one.name}() [{one.binary}{heat}]: {one.nops} NOP, other instructions "
            f"{where}: {most:+} at most"
            + (f", and unconditional jumps: {jumps}" if jumps else "")
        )
    return lines


def guarded(found: costs.Overhead) -> list[str]:
    """What is seen in objects that are compiled with mitigations, in a line."""
    if found.mitigated is None:
        return []
    here = {one.name: one.work for one in found.mitigated.paths}
    kernel = found.footprint or costs.Footprint()
    there = {one.name: one.work for one in kernel.paths}
    more = [
        f"{name}() {work:+} at most"
        for name, work in here.items()
        if work > max(0, there.get(name, 0))
    ]
    sites = found.mitigated.sites
    nops = sum(one.nop in found.mitigated.nops for one in sites)
    return [
        f"compiled with mitigations, as distributions do: {nops} of {len(sites)} sites "
        f"are a NOP; paths with more than without: {', '.join(more) or 'none'}"
    ]


def reasons(found: costs.Overhead) -> list[str]:
    """Why measured operations execute more than a NOP, where the series says so."""
    own = [
        f"{one.operation}: {one.predicted:+g} predicted: "
        + " ".join(one.because.split()).rstrip(".")
        for one in found.measurements
        if one.because is not None
    ]
    others = [
        f"{one.operation}: {one.others:+.3g} by sites of other series that were in the "
        "kernel"
        for one in found.measurements
        if one.others
    ]
    return own + others


def patch_checks(checks: Sequence[Check]) -> str:
    """What held for the patches before they were built, as a list in one line."""
    return ", ".join(
        _PATCH_CHECKS.get(one.name, one.name.replace("_", " "))
        for one in checks
        if one.kind == "patch" and one.status == "pass"
    )


def structs(found: costs.Footprint) -> list[str]:
    """Structs of before whose size or layout changed."""
    lines = []
    for one in found.structs:
        if one.record or one.base is None or one.patched is None:
            continue
        size = f"{one.base} to {one.patched} bytes"
        if one.base == one.patched:
            size = f"{one.base} bytes as before, with another layout"
        lines.append(f"struct {one.name}: {size}")
    return lines


def medians(one: costs.Measurement) -> Mapping[str, str]:
    """Instructions per operation by mode, as text; - where there is none."""
    known = {sample.mode: f"{sample.median:,.1f}" for sample in one.samples}
    modes: Sequence[costs.Mode] = ("base", "off", "ftrace", "bpftrace")
    return {mode: known.get(mode, "-") for mode in modes}
