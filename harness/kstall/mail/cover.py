# SPDX-License-Identifier: GPL-2.0-or-later
"""The cover letter: the text of ``cover.txt``, and the results of one run.

The body is written by hand: what cannot be observed today, what exists, what is added
and what is not covered.  The rest is generated from the patches and from the report of
the run that proved the series.
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
from ..evidence import falsity
from ..lint import patchtext
from ..series import Series
from ..tree import Base
from ..verdict import Check, Comparison
from . import excerpts, figures
from .proof import Proof

WIDTH = patchtext.WIDTH
_ITEM = re.compile(r"(?:[-*] |\d+(?: and \d+| to \d+)? )")
_SHORT = 28
#: Expected values that mean nothing: no events, none by name, no counter that grew.
_NOTHING = (0, "Counter()", "{}", "[]", "set()")
#: Checks of patches, in the words of the cover letter.
_PATCH_CHECKS = {
    "checkpatch_strict": "checkpatch --strict (without the Signed-off-by: that the "
    "sender adds)",
    "checkpatch_tags": "tags by checkpatch",
    "kernel_doc": "kernel-doc",
    "documents": "well-formed documents",
    "include_order": "order of includes",
    "new_files_are_maintained": "new files in MAINTAINERS",
    "sections_complete": "sections of MAINTAINERS",
    "inlines_are_in_headers": "use of inline",
    "mentioned_documents_exist": "references to documents",
    "event_names_are_new": "unique event names",
    "tags": "form of tags",
    "fixes_are_in_history": "Fixes: tags",
    "spelling_is_right": "codespell",
    "prose_is_wrapped": "wrapped messages",
    "nothing_to_fill_in": "no placeholders in messages",
    "coccinelle_clean": "Coccinelle",
    "sphinx_clean": "Sphinx",
    "compiles_as_configured": "builds patch by patch",
    "no_new_warnings": "no new warnings at W=1",
    "sparse_clean": "sparse",
    "headers_stand_alone": "self-contained headers",
    "tracepoints_are_called": "no unused tracepoints",
    "compiles_without_tracing": "builds without tracing",
    "compiles_tiny": "builds in a tiny configuration",
}
#: Packages of the guest whose programs trace events, and the names of the programs.
_READERS = {"bpftrace": "bpftrace", "linux-perf": "perf", "trace-cmd": "trace-cmd"}


class Unfinished(KstallError):
    """A text of the series is not complete."""


@dataclass(frozen=True)
class Cover:
    """``text`` ends before shortlog and diffstat; ``unfounded`` are figures in the
    hand-written prose that the run does not show."""

    text: str
    unfounded: tuple[str, ...]


def require_finished(series: Series) -> None:
    """Raise `Unfinished` for ``@@...@@`` left in the cover letter or in a patch."""
    places = []
    for path in (
        series.dir / series.spec.cover,
        *(patch.path for patch in series.patches),
    ):
        text = path.read_text(encoding="utf-8", errors="replace")
        for number, line in enumerate(text.splitlines(), 1):
            if path.suffix == ".patch" and line.startswith("diff --git "):
                # The diff follows, where hunks begin with @@.
                break
            placeholders = patchtext.PLACEHOLDER.findall(line)
            places += [
                f"{path}:{number}: {placeholder}" for placeholder in placeholders
            ]
    if places:
        raise Unfinished(
            "not filled in yet:\n    " + "\n    ".join(places),
            next="insert the output of a run there, and validate the series again",
        )


def render(
    series: Series,
    proof: Proof,
    trace: excerpts.RunTrace,
    base: Base,
    *,
    assisted: int,
    applied: str = "",
) -> Cover:
    """The letter's text; ``trace`` is that of ``proof``.

    ``assisted`` is the number of patches with an Assisted-by: tag; ``applied`` is a
    remark on how the patches apply, or empty.  Raises `KstallError` if the letter is
    not finished, or an event has no record to show.
    """
    require_finished(series)
    body = (series.dir / series.spec.cover).read_text(encoding="utf-8")
    records = trace.records()
    replaced = excerpts.replaced(body, trace)
    names = [point.symbol for point in series.spec.tracepoint]
    if missing := [name for name in names if name not in records]:
        raise KstallError(
            f"{proof.dir}: proven, but it has no record of {', '.join(missing)}",
            next="run it again",
        )
    values: dict[str, Any] = {
        "body": wrapped(replaced.text).strip("\n"),
        "records": [
            records[name][0].text("  ") for name in names if name not in replaced.shown
        ],
        "series": series,
        "entry": proof.entry,
        "environment": proof.report.environment,
        "base": base,
        "day": proof.report.started[:10],
        "checks": [check for check in proof.entry.checks if _is_quoted(check)],
        "harness": [
            check
            for check in proof.entry.checks
            if check.kind == "harness" and check.status == "pass"
        ],
        "debug": [
            check
            for check in proof.entry.checks
            if check.kind == "debug" and check.status == "pass"
        ],
        "skipped": skipped(proof.entry.checks),
        "undetected": undetected(proof.entry.mutation),
        "argued": argued(series, proof.entry.checks),
        "overhead": proof.entry.overhead,
        "assisted": assisted,
        "applied": applied,
    }
    text = _environment().get_template("cover.txt").render(values)
    tidy = re.sub(r"\n{3,}", "\n\n", text).strip("\n") + "\n"
    return Cover(tidy, figures.unfounded(replaced.text, proof.report, proof.entry))


def _is_quoted(check: Check) -> bool:
    return check.kind in ("positive", "negative", "invariant") and (
        check.status == "pass" and bool(check.comparisons)
    )


def skipped(checks: Sequence[Check]) -> list[tuple[str, str]]:
    """The claims of skipped checks, joined by reason, and the reasons."""
    by_reason: dict[str, list[str]] = {}
    for check in checks:
        if check.status == "skip":
            by_reason.setdefault(check.detail, []).append(check.claim.rstrip("."))
    return [("; ".join(claims), reason) for reason, claims in by_reason.items()]


def undetected(mutation: falsity.Mutation | None) -> str:
    """Wrong values of events that this run could not detect, and why."""
    if mutation is None:
        return ""
    groups = {
        "undetected wrong values": mutation.unproven(),
        "errors that change nothing in this run": mutation.unchanged(),
    }
    return "\n".join(
        "\n".join([f"- {title}:", *(fill(line, 2, 4) for line in lines)])
        for title, lines in groups.items()
        if lines
    )


def watchers(versions: Mapping[str, str]) -> str:
    """The tracers in a guest with packages of these ``versions``, as a clause."""
    programs = [
        f"{name} {versions[package]}"
        for package, name in _READERS.items()
        if package in versions
    ]
    if not programs:
        return ""
    return f", traced with {', '.join(['ftrace', *programs[:-1]])} and {programs[-1]}"


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        # Mails are plain text.
        autoescape=False,  # noqa: S701
    )
    environment.filters["fill"] = fill
    environment.globals.update(
        allowances=allowances,
        deciding=deciding,
        growth=growth,
        mitigated=mitigated,
        medians=medians,
        patch_checks=patch_checks,
        reasons=reasons,
        structs=structs,
        paths=paths,
        watchers=watchers,
    )
    return environment


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
    """``text`` with paragraphs that are too wide filled again.

    Indented lines, such as records and commands, stay as they are.  An item of a list
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
    if first.startswith(" ") or (
        not hang and any(line.startswith(" ") for line in rest)
    ):
        return "\n".join(lines)
    # Rejoin names that were broken behind an underscore.
    return fill(re.sub(r"_\n\s*", "_", "\n".join(lines)), 0, hang)


def deciding(check: Check) -> Comparison | None:
    """The most telling comparison of a check that fits in a line, or None.

    For a negative control that is the last that expects nothing, or else the last that
    expects equality; for others the one about most events.
    """
    figures = [
        comparison
        for comparison in check.comparisons
        if isinstance(comparison.observed, int | float)
        and not isinstance(comparison.observed, bool)
        and comparison.relation != "holds"
    ]
    short = [
        comparison for comparison in check.comparisons if len(comparison.seen) <= _SHORT
    ]
    if check.kind == "negative":
        silent = [
            comparison
            for comparison in check.comparisons
            if comparison.expected in _NOTHING
        ]
        equal = [comparison for comparison in short if comparison.relation == "="]
        return next(iter((silent or equal or short)[-1:]), None)
    if figures:
        return max(figures, key=_telling)
    return next(iter(short[-1:]), None)


def _telling(comparison: Comparison) -> tuple[bool, float]:
    expected = (
        comparison.expected if isinstance(comparison.expected, int | float) else 0
    )
    return "event" in comparison.label and not comparison.unit, expected


def argued(series: Series, checks: Sequence[Check]) -> list[str]:
    """Findings in the patches that exemptions of the series cover, and the reasons."""
    lines = []
    for exemption in series.spec.exemption:
        details = " ".join(
            comparison.detail
            for check in checks
            if check.name == exemption.check
            for comparison in check.comparisons
        )
        if exemption.because in details:
            kinds = [kind for kind in exemption.kinds if kind in details]
            where = f" in {', '.join(exemption.files)}" if exemption.files else ""
            name = exemption.check.replace("_", " ")
            lines.append(f"{name}, {', '.join(kinds)}{where}: {exemption.because}")
    return lines


def allowances(overhead: costs.Overhead) -> list[str]:
    """What may cost more than a NOP, and why; one line a reason."""
    grouped: dict[tuple[str, str], list[str]] = {}
    for exemption in overhead.exemptions:
        name = (
            f"{exemption.function}()"
            if exemption.function
            else f"struct {exemption.struct}"
        )
        unit = "instruction" if exemption.function else "byte"
        amount = f"{exemption.allowed} {unit}{'' if exemption.allowed == 1 else 's'}"
        because = " ".join(exemption.because.split()).rstrip(".")
        grouped.setdefault((amount, because), []).append(name)
    return [
        f"{amount} allowed for {', '.join(names)}: {because}"
        for (amount, because), names in grouped.items()
    ]


def growth(footprint: costs.Footprint) -> list[str]:
    """The growth of each binary in bytes of text and of all other sections."""
    totals: dict[str, dict[str, int]] = {}
    for section in footprint.sections:
        kind = "text" if "text" in section.section else "data"
        total = totals.setdefault(section.binary, {"text": 0, "data": 0})
        total[kind] += section.patched - section.base
    return [
        f"{binary}: {total['text']:+} bytes of text, {total['data']:+} of all others"
        for binary, total in totals.items()
    ]


def paths(footprint: costs.Footprint) -> list[str]:
    """The additional instructions of each changed function while the events are off,
    by the figure that is judged."""
    lines = []
    for path in footprint.paths:
        heat = ", hot" if path.hot else ""
        where = "on a path" if path.proven else "not reached before"
        jumps = path.most - path.cost
        lines.append(
            f"{path.name}() [{path.binary}{heat}]: {path.nops} NOP, other instructions "
            f"{where}: {path.cost:+} at most"
            + (f", and unconditional jumps: {jumps}" if jumps else "")
        )
    return lines


def mitigated(overhead: costs.Overhead) -> list[str]:
    """Sites and longer paths in objects compiled with mitigations, in one line."""
    if overhead.mitigated is None:
        return []
    mitigated = {path.name: path.work for path in overhead.mitigated.paths}
    kernel = overhead.footprint or costs.Footprint()
    unmitigated = {path.name: path.work for path in kernel.paths}
    longer = [
        f"{name}() {work:+} at most"
        for name, work in mitigated.items()
        if work > max(0, unmitigated.get(name, 0))
    ]
    sites = overhead.mitigated.sites
    nops = sum(site.nop in overhead.mitigated.nops for site in sites)
    return [
        f"compiled with mitigations, as distributions do: {nops} of {len(sites)} sites "
        f"are a NOP; longer paths than without: {', '.join(longer) or 'none'}"
    ]


def reasons(overhead: costs.Overhead) -> list[str]:
    """Why measured operations execute more than a NOP, where the series says so."""
    own = [
        f"{measurement.operation}: {measurement.predicted:+g} instructions predicted: "
        + " ".join(measurement.because.split()).rstrip(".")
        for measurement in overhead.measurements
        if measurement.because is not None
    ]
    others = [
        f"{measurement.operation}: {measurement.others:+.3g} NOPs of other series in "
        "the same kernel"
        for measurement in overhead.measurements
        if measurement.others
    ]
    return own + others


def patch_checks(checks: Sequence[Check]) -> str:
    """The passed checks of the patches, as a list in one line."""
    return ", ".join(
        _PATCH_CHECKS.get(check.name, check.name.replace("_", " "))
        for check in checks
        if check.kind == "patch" and check.status == "pass"
    )


def structs(footprint: costs.Footprint) -> list[str]:
    """Existing structs whose size or layout changed."""
    lines = []
    for struct in footprint.structs:
        if struct.record or struct.base is None or struct.patched is None:
            continue
        size = f"{struct.base} to {struct.patched} bytes"
        if struct.base == struct.patched:
            size = f"{struct.base} bytes as before, with a changed layout"
        lines.append(f"struct {struct.name}: {size}")
    return lines


def medians(measurement: costs.Measurement) -> Mapping[str, str]:
    """Instructions per operation by mode, as text; - where there are none."""
    by_mode = {mode: f"{value:,.1f}" for mode, value in measurement.medians.items()}
    modes: Sequence[costs.Mode] = ("base", "off", "ftrace", "bpftrace")
    return {mode: by_mode.get(mode, "-") for mode in modes}
