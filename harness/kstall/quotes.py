# SPDX-License-Identifier: GPL-2.0-or-later
"""Records of a run for a letter to quote, and figures in prose that no run carries.

A record that ``cover.txt`` shows is a pattern: what is sent has the record of the
proving run that is most like it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from .evidence import Evidence
from .records import Event
from .report import Report, SeriesReport
from .series import Series

_TRACED = re.compile(r"\s*.{1,16}-\d+ .*? \d+\.\d{6}: (?P<record>(?P<name>\w+): .*)")
_QUOTED = re.compile(r"(?P<indent> +)(?P<name>\w+): (?P<body>.*[=:].*)")
_PAIR = re.compile(r"([\w.]+)[=:] ?([^\s,]+)")
# A number that stands alone: no part of a name, a version, a path or an option.
_NUMBER = re.compile(
    r"(?<![\w.,=:/@+-])(\d{1,3}(?:,\d{3})+|\d+)(\.\d+)?(?![\w/=:]|\.\d|,\d)"
)
_DIGITS = re.compile(r"\d+(?:\.\d+)?")
#: Figures with fewer digits are mostly counts of things that the text names.
_FIGURE = 3


def records(results: Evidence, series: Series) -> dict[str, tuple[str, ...]]:
    """Each record that ftrace printed, as ``name: fields``, by event and in order.

    Bare tracepoints have no text of their own: theirs is made of what bpftrace read.
    """
    found: dict[str, dict[str, None]] = {}
    for load in results.workloads.values():
        path = load.dir / "trace.txt"
        if path.exists():
            with path.open(encoding="utf-8", errors="replace") as lines:
                for line in lines:
                    if match := _TRACED.match(line.rstrip("\n")):
                        found.setdefault(match["name"], {})[match["record"]] = None
        if not (load.dir / "record.jsonl").exists():
            continue
        for point in series.spec.tracepoint:
            if point.kind == "bare":
                for event in load.record(point.name):
                    found.setdefault(point.name, {})[_as_text(event)] = None
    return {name: tuple(lines) for name, lines in found.items()}


def _as_text(event: Event) -> str:
    pairs = (f"{key}={value}" for key, value in event.fields.items())
    return f"{event.name}: {' '.join(pairs)}"


def closest(wanted: str, candidates: Iterable[str]) -> str:
    """The first of ``candidates`` with the most fields that are as in ``wanted``."""
    pairs = set(_PAIR.findall(wanted))

    def alike(line: str) -> int:
        return len(pairs & set(_PAIR.findall(line)))

    return max(candidates, key=alike)


def replaced(body: str, found: Mapping[str, tuple[str, ...]]) -> tuple[str, set[str]]:
    """``body`` with the run's records in the place of those that it shows.

    The events that are shown come back, too.
    """
    lines, shown = [], set()
    for line in body.splitlines():
        match = _QUOTED.fullmatch(line)
        if match is not None and match["name"] in found:
            shown.add(match["name"])
            record = closest(line, found[match["name"]])
            line = match["indent"] + record
        lines.append(line)
    return "\n".join(lines) + "\n", shown


def unfounded(body: str, report: Report, entry: SeriesReport) -> tuple[str, ...]:
    """Figures in the prose of ``body`` that do not occur in the report.

    Lines that are set off, such as records and commands, are not prose.
    """
    known = {
        number.rstrip("0").rstrip(".") if "." in number else number
        for part in (entry, report.environment, *([report.tree] if report.tree else []))
        for number in _DIGITS.findall(part.model_dump_json())
    }
    found: dict[str, None] = {}
    for line in body.splitlines():
        if line.startswith(" "):
            continue
        for match in _NUMBER.finditer(line):
            figure = match[1].replace(",", "") + (match[2] or "")
            if len(figure) >= _FIGURE and figure not in known:
                found[match[0]] = None
    return tuple(found)
