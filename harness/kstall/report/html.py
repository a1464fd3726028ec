# SPDX-License-Identifier: GPL-2.0-or-later
"""A `Report` as one HTML page, ``report.html``: no network, no script, no other file.

The page is `templates/report.html.j2` with `report.css`; here is only what a template
cannot say well: what is drawn where, and how a number reads.  Everything that a kernel,
a program or a patch may have written is escaped, and a policy in the page forbids
scripts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import jinja2
import markupsafe

from ..base import Status, cache
from ..cost import Exemption, Footprint, FunctionSize, Measurement, Mode, Part
from ..verdict import Check, Excerpt, Explanation
from . import explain
from .plain import printable
from .report import Report, SeriesReport, Stage
from .views import fact, word

_TEMPLATES = Path(__file__).parent / "templates"
# More bars than this say less; the rest is in the table below them.
_BARS = 12
# The plots leave this much free on both sides, in percent, for marks at the edge.
_MARGIN = 4.0
_MODES: dict[Mode, str] = {
    "base": "base, without the patches",
    "off": "patched, events off",
    "ftrace": "patched, read by ftrace",
    "bpftrace": "patched, read by bpftrace",
}
_PARTS: dict[Part, str] = {
    "code": "code",
    "cold": "split off as cold by the compiler",
    "event": "made by TRACE_EVENT()",
    "init": "discarded after boot",
}


def write(report: Report, path: Path) -> None:
    """Write the page to ``path``, whole or not at all."""
    cache.write_text(path, page(report))


def environment() -> jinja2.Environment:
    """What makes pages of templates: all that is put in is escaped."""
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=_clean,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    made.filters.update(
        number=number,
        signed=signed,
        duration=duration,
        ordered=_ordered,
        counts=_counts,
        anchor=_anchor,
        wrap=wrap,
        fact=fact,
        word=word,
        above_base=above_base,
        crossing=crossing,
        needed=needed,
        growth=growth,
        too_much=too_much,
    )
    made.tests["unusual"] = lambda check: check.status != "pass"
    return made


def page(report: Report) -> str:
    """The page, as text; the same for the same report."""
    template = environment().get_template("report.html.j2")
    return template.render(
        report=report,
        part_names=_PARTS,
        levels=levels,
        zoom=zoom,
        sizes=sizes,
        skipped=explain.skipped(report),
        unjudged=explain.unjudged(report),
        failed=[
            (series, check)
            for series in report.series
            for check in series.checks
            if check.status == "fail"
        ],
        excerpts_of=_Excerpts(),
        stopped=list(_stopped(report)),
        longest=max((stage.seconds for _, stage in _stages(report)), default=0),
    )


class _Excerpts:
    """Which excerpts are on the page: what explains many checks is shown once."""

    def __init__(self) -> None:
        self._places: dict[str, str] = {}

    def __call__(self, found: Explanation, place: str) -> list[tuple[Excerpt, str]]:
        """Each excerpt of ``found``, and the id of where it is already, or ""."""
        made = []
        for one in found.excerpts:
            first = self._places.setdefault(one.model_dump_json(), place)
            made.append((one, "" if first == place else first))
        return made


def _clean(value: object) -> object:
    if isinstance(value, markupsafe.Markup) or not isinstance(value, str):
        return value
    return printable(value)


def number(value: float) -> str:
    """``value`` with separators, and no more digits than it has, two at most."""
    text = f"{value:,.2f}".rstrip("0").rstrip(".") if value % 1 else f"{value:,.0f}"
    if text.strip("-0.") == "" and value:
        return f"{value:.1g}"
    return text.replace("-", "\N{MINUS SIGN}")


def signed(value: float) -> str:
    """As `number`, and what is more than nothing with its sign."""
    return f"+{number(value)}" if value > 0 else number(value)


def duration(seconds: float) -> str:
    """``seconds``, in minutes where there are many."""
    if seconds < 100:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02} s"


def _anchor(text: str) -> str:
    """``text`` as an identifier in the page."""
    return "".join(c if c.isascii() and c.isalnum() else "-" for c in text)


def wrap(name: str) -> markupsafe.Markup:
    """``name``, which may go on in the next line behind an underscore."""
    return markupsafe.escape(printable(name)).replace("_", markupsafe.Markup("_<wbr>"))


def _ordered(checks: Sequence[Check]) -> list[Check]:
    """What did not pass first, else as they were made."""
    grave: tuple[Status, ...] = ("fail", "error", "skip", "pass")
    return sorted(checks, key=lambda check: grave.index(check.status))


def _counts(series: SeriesReport) -> dict[Status, int]:
    """How many checks ended in each way, the gravest first."""
    found = [check.status for check in series.checks]
    kinds: tuple[Status, ...] = ("fail", "error", "skip", "pass")
    return {kind: found.count(kind) for kind in kinds if kind in found}


def _stages(report: Report) -> Iterator[tuple[str, Stage]]:
    for stage in report.stages:
        yield "", stage
    for series in report.series:
        for stage in series.stages:
            yield series.name, stage


def _stopped(report: Report) -> Iterator[tuple[str, Stage]]:
    """Stages that ended the run or a series, with the series' name."""
    return (
        one
        for one in _stages(report)
        if one[1].status in ("fail", "error", "does-not-apply")
    )


def above_base(one: Measurement) -> dict[Mode, float]:
    """What an operation takes more than on the base, in each mode that was measured."""
    medians = {sample.mode: sample.median for sample in one.samples}
    base = medians.get("base")
    if base is None:
        return {}
    return {mode: median - base for mode, median in medians.items() if mode != "base"}


def needed(found: Footprint, exempt: Exemption) -> int | None:
    """What of ``exempt`` the binaries need: instructions on a path, or bytes."""
    if exempt.struct is not None:
        grown = [
            one.patched - one.base
            for one in found.structs
            if one.name == exempt.struct and one.base is not None and one.patched
        ]
        return max(grown, default=None)
    paths = [
        path.most if path.hot else path.work
        for path in found.paths
        if path.name.partition(".")[0] == exempt.function
    ]
    return max(paths, default=None)


def too_much(one: Measurement) -> bool:
    """Whether the events cost more while off than the gate lets pass."""
    limit = one.predicted + one.others + one.resolution
    return bool(one.visible) and round((one.difference or 0) - limit, 3) > 0


def crossing(one: Measurement) -> str:
    """Whether the operation reaches the events, as they were counted when on."""
    hits = next((s.hits for s in one.samples if s.hits is not None), None)
    if hits is None:
        return "Whether the operation reaches an event was not counted."
    if hits:
        return f"Switched on, the events fire {number(hits)} times per operation."
    if one.predicted:
        return (
            "Switched on, none fires: the operation crosses a site and has nothing to "
            "tell."
        )
    return "Switched on, none fires: this is the cost for those who reach no site."


@dataclass(frozen=True)
class Bar:
    """A bar from ``left`` to ``left + width``, and a whisker; all in percent."""

    label: str
    kind: str
    value: str
    left: float
    width: float
    whisker: tuple[float, float] | None = None
    note: str = ""


def levels(one: Measurement) -> list[Bar]:
    """Instructions of an operation in each mode; the whisker spans the boots."""
    top = max(
        (boot.median for sample in one.samples for boot in sample.boots), default=0
    )
    scale = 100 / top if top else 0
    bars = []
    for sample in one.samples:
        boots = [boot.median for boot in sample.boots]
        many = f"{len(boots)} boots" if len(boots) > 1 else "1 boot"
        spread = f", {number(sample.spread)} apart" if len(boots) > 1 else ""
        bars.append(
            Bar(
                label=_MODES[sample.mode],
                kind=sample.mode,
                value=number(sample.median),
                left=0,
                width=sample.median * scale,
                whisker=(min(boots) * scale, max(boots) * scale)
                if sample.spread
                else None,
                note=many + spread,
            )
        )
    return bars


# What a row of dots is, their color, and where they are.
_Row = tuple[str, str, list[float]]


@dataclass(frozen=True)
class Zoom:
    """Rows of dots above an axis, a band behind them; places are in percent."""

    dots: list[_Row]
    ticks: list[tuple[float, str]]
    zero: float
    band: tuple[float, float]
    predicted: float | None = None


def zoom(one: Measurement) -> Zoom | None:
    """What base and disabled events differ by, drawn as large as it can be."""
    by_mode = {sample.mode: sample for sample in one.samples}
    if "base" not in by_mode or "off" not in by_mode:
        return None
    middle = by_mode["base"].median
    modes: tuple[Mode, ...] = ("base", "off")
    rows: list[_Row] = [
        (_MODES[mode], mode, [boot.median - middle for boot in by_mode[mode].boots])
        for mode in modes
    ]
    band = (-one.resolution, one.resolution)
    seen = [value for _, _, values in rows for value in values]
    seen += [0, one.predicted, *band]
    low, high = min(seen), max(seen)
    # Less than an instruction is no picture.
    if high - low < 1:
        low, high = low - 0.5, high + 0.5
    step = _step(high - low)
    low, high = step * math.floor(low / step), step * math.ceil(high / step)

    def place(value: float) -> float:
        inner = 100 - 2 * _MARGIN
        return round(_MARGIN + inner * (value - low) / (high - low), 3)

    marks = [low + step * n for n in range(round((high - low) / step) + 1)]
    return Zoom(
        dots=[
            (name, kind, [place(one) for one in values]) for name, kind, values in rows
        ],
        ticks=[(place(value), signed(round(value, 6))) for value in marks],
        zero=place(0),
        band=(place(band[0]), place(band[1])),
        predicted=place(one.predicted) if one.predicted else None,
    )


def _step(span: float) -> float:
    """A round distance between ticks, such that ``span`` has two to five."""
    rough = span / 4
    power = float(10 ** math.floor(math.log10(rough)))
    return next(power * n for n in (1, 2, 5, 10) if power * n >= rough)


@dataclass(frozen=True)
class Sizes:
    """What became of the code of one binary, in bytes."""

    binary: str
    total: int
    parts: dict[Part, int]
    bars: list[Bar]
    # The others: how many, and bytes together.
    rest: tuple[int, int]
    functions: list[FunctionSize]
    zero: float


def sizes(found: Footprint) -> list[Sizes]:
    """The functions that changed their size, by binary; those with a site first."""
    with_site = {site.binary for site in found.sites}
    names = dict.fromkeys(one.binary for one in found.functions)
    ordered = sorted(names, key=lambda name: (name not in with_site, name))
    return [
        _of_binary(name, [one for one in found.functions if one.binary == name])
        for name in ordered
    ]


def growth(one: FunctionSize) -> int:
    """Bytes more than in the base."""
    return (one.patched or 0) - (one.base or 0)


def _of_binary(name: str, functions: list[FunctionSize]) -> Sizes:
    functions = sorted(functions, key=lambda one: (-abs(growth(one)), one.name))
    shown, rest = functions[:_BARS], functions[_BARS:]
    low = min(0, *map(growth, shown), 0)
    high = max(0, *map(growth, shown), 0)
    scale = 100 / (high - low) if high > low else 0
    zero = -low * scale
    parts = {
        part: sum(growth(one) for one in functions if one.part == part)
        for part in _PARTS
        if any(one.part == part for one in functions)
    }
    return Sizes(
        binary=name,
        total=sum(map(growth, functions)),
        parts=parts,
        bars=[
            Bar(
                label=one.name,
                kind=one.part,
                value=f"{signed(growth(one))} bytes",
                left=zero + min(0, growth(one)) * scale,
                width=abs(growth(one)) * scale,
                note=_change(one),
            )
            for one in shown
        ],
        rest=(len(rest), sum(map(growth, rest))),
        functions=functions,
        zero=zero,
    )


def _change(one: FunctionSize) -> str:
    if one.base is None:
        return "new"
    if one.patched is None:
        return "gone"
    return f"{number(one.base)} to {number(one.patched)}"
