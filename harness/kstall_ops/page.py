# SPDX-License-Identifier: GPL-2.0-or-later
"""An explanation as a single HTML page, without scripts or external resources."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import duckdb

from . import chains, explain, files, schema, store, window, wording
from .chains import Finding, Overlap, Verdict
from .errors import shown
from .explain import Lost, Report
from .pending import Hung
from .rules import rules
from .straggler import Job, ranks_text
from .window import Window

_ROWS, _STEPS = 24, 1500
# In pixels: the least and the greatest width of a step; the share of it for a bar.
_CELLS, _WIDE, _LANE, _BAR, _STRIP, _FULL = (9, 18), 560, 58, 36, 6, 0.86
# The least range of the axis of durations, so that small differences look small.
_BUCKETS = 12
_NAMES, _HEAD = 76, 20
_SPREAD = f"""
WITH {window.TABLE}
SELECT class, CAST(floor(log2(greatest(dur, 1))) AS INTEGER) AS bucket, count(*),
    sum(dur)::BIGINT
FROM stall JOIN asked USING (sid) WHERE dur IS NOT NULL AND {window.OVERLAPS}
GROUP BY ALL ORDER BY ALL
"""  # noqa: S608


def write(path: Path, report: Report, output: Path) -> None:
    """Write the page of ``report``, which is of the store at ``path``.

    Raises `OpsError`.
    """
    css = Path(__file__).with_name("page.css").read_text(encoding="utf-8")
    with store.reading(path) as opened:
        parts = [_hung(hang) for hang in report.hung]
        hung = {hang.job for hang in report.hung}
        rest, quiet = wording.arranged(report)
        for verdict in rest:
            hangs = verdict.job.name in hung
            parts.append(_verdict(verdict, report.seen, opened, hangs=hangs))
        parts += _quiet(quiet)
        parts += _open(report)
        parts += _incidents(report)
        parts.append(_distributions(opened, report.asked))
    if not report.verdicts and not report.hung:
        parts.insert(0, "<p>No job has marks: a table of lost time only.</p>")
    parts.append(_lost(report.lost))
    parts.append(_clocks(report))
    if report.remarks:
        items = "".join(f"<li>{_text(remark)}</li>" for remark in report.remarks)
        heading = "What cannot be known, or only with doubt"
        parts.append(f"<h2>{heading}</h2><ul>{items}</ul>")
    if levels := wording.meanings(report, rules()):
        listed = _list((level.capitalize(), text) for level, text in levels)
        parts.append(f"<h2>How sure that is</h2>{listed}")
    nodes = f"{len(report.nodes)} node{'s' if len(report.nodes) != 1 else ''}"
    # Even if an untrusted name injected markup, nothing would be run or fetched.
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    text = f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>kstall: who was late, and why</title>
<style>
{css}</style>
</head>
<body>
<h1>Who was late, and why</h1>
<p class="soft">{nodes}: {_text(", ".join(report.nodes[:12]))}\
{"…" if len(report.nodes) > 12 else ""}</p>
{"".join(parts)}
</body>
</html>
"""
    with files.replacing(output) as draft:
        draft.write_text(text, encoding="utf-8")


def _text(value: object, limit: int = 400) -> str:
    return html.escape(shown(value, limit))


def _upper(text: str) -> str:
    return _text(f"{text[:1].upper()}{text[1:]}")


def _hung(hang: Hung) -> str:
    parts = [
        f'<div class="card high"><strong>{_text(wording.hung_title(hang))}</strong>'
    ]
    for absent in hang.absent[:20]:
        parts.append(f"<p>{_text(wording.absent_title(absent))}</p>")
        if absent.cls is None:
            parts.append(f"<p>Cause: {_text(absent.text)}.</p>")
            parts.append(_list([("", text) for text in absent.caps]))
            continue
        texts = (*absent.caps, *wording.uncompared(absent))
        entries = [("", text) for text in texts]
        entries += [("fix", absent.fix), ("see", absent.doc)]
        entries.append(("does not say", absent.not_said))
        parts.append(
            f'<p><span class="level">Coincides · high</span> · {absent.cls}: '
            f"{_text(absent.text)}, {absent.coverage:.0%} of that time</p>"
            f"{_list(entries)}"
        )
    return "".join([*parts, "</div>"])


def _open(report: Report) -> list[str]:
    if not report.open:
        return []
    items = "".join(
        f"<li>{_text(wording.open_text(stall))}</li>" for stall in report.open[:50]
    )
    more = len(report.open) - 50
    rest = f'<p class="soft">{more} more: kstall query --named open</p>'
    return [
        f"<h2>Stalls without an end, when the recording ended</h2><ul>{items}</ul>",
        rest if more > 0 else "",
    ]


def _verdict(
    verdict: Verdict,
    seen: Mapping[int, int],
    opened: duckdb.DuckDBPyConnection,
    *,
    hangs: bool,
) -> str:
    job = verdict.job
    parts = [f"<h2>{_text(explain.title(job))}</h2>"]
    parts.append(f'<p class="soft">{" · ".join(wording.measure(job))}</p>')
    parts += [f"<p>⚠ {_text(text)}</p>" for text in job.remarks]
    if (text := wording.nobody(verdict, rules(), hangs=hangs)) is not None:
        parts.append(f'<div class="card">{_upper(text)}.</div>')
    for heading, text, caps in wording.slowed(verdict):
        doubts = _list(("doubtful, as", cap) for cap in caps) if caps else ""
        parts.append(
            f'<div class="card warn"><span class="level">{_upper(heading)}</span>: '
            f"{_text(text)}.{doubts}</div>"
        )
    for late in verdict.stragglers:
        parts.append(
            f"<h3>Rank {late.rank} on {_text(late.node)} was {job.word} in "
            f"{len(late.steps)} of {len(job.steps)} steps</h3>"
            f'<p class="soft">thread {wording.thread(late)} · '
            f"steps {ranks_text(late.steps)} · "
            f"{late.lateness_ns / 1e6:.1f} ms in all</p>"
        )
        parts += [
            f'<p class="soft">{_upper(text)}</p>' for text in wording.unordered(late)
        ]
        if (cause := wording.elsewhere(late)) is not None:
            parts.append(f'<div class="card">Cause: {cause}.</div>')
        parts += [_finding(finding) for finding in late.findings]
    if job.steps and len(job.ranks) > 1:
        parts.append(_lateness(verdict, seen, opened))
    return "".join(parts)


def _quiet(alike: Sequence[Sequence[Job]]) -> list[str]:
    """A card for all groups of a job, as their plots would hide those of late ranks."""
    parts = []
    for groups in alike:
        summary = wording.quiet_text(groups)
        lines = [f"<strong>{_text(summary.title, 1000)}</strong>"]
        lines += [f"⚠ {_text(text)}" for text in summary.remarks]
        if summary.verdict:
            lines.append(f"{_upper(summary.verdict)}.")
        inside = "".join(f"<p>{line}</p>" for line in lines)
        parts.append(f'<div class="card">{inside}</div>')
    title = "<h2>Process groups in which no late rank was seen</h2>"
    return [title, *parts] if parts else []


def _incidents(report: Report) -> list[str]:
    parts = [
        f'<div class="card high"><span class="level">Observed · high</span> · '
        f"{bad.cls} on {_text(bad.node)}: {_text(bad.text)}; records: {bad.n}"
        f"{_list([('fix', bad.fix), ('see', bad.doc), ('does not say', bad.not_said)])}"
        "</div>"
        for bad in report.incidents[:50]
    ]
    return ["<h2>Serious on one occurrence</h2>", *parts] if parts else []


def _list(entries: Iterable[tuple[str, str]]) -> str:
    rows = "".join(f"<dt>{_text(k)}</dt><dd>{_text(v)}</dd>" for k, v in entries)
    return f"<dl>{rows}</dl>"


def _finding(finding: Finding) -> str:
    entries: list[tuple[str, str]] = []
    if finding.coverage is not None:
        entries.append(("evidence", wording.evidence(finding, rules().coverage)))
    if finding.control is not None:
        entries.append(("control", wording.control(finding.control)))
    entries += [("not more, as", cap) for cap in finding.caps]
    entries += [("", text) for text in wording.uncompared(finding)]
    if finding.level == "explains" or finding.severity == "high":
        entries += [("fix", finding.fix), ("see", finding.doc)]
    entries.append(("does not say", finding.not_said))
    return (
        f'<div class="card {finding.severity}"><span class="level">'
        f"{finding.level.capitalize()} · {finding.severity}</span> · {finding.cls}: "
        f"{_text(finding.text)}"
        f"{_list(entries)}</div>"
    )


def _lateness(
    verdict: Verdict, seen: Mapping[int, int], opened: duckdb.DuckDBPyConnection
) -> str:
    """A lane for each rank: bars of lateness, and below each the thread's stalls."""
    job = verdict.job
    late = [straggler.rank for straggler in verdict.stragglers]
    ranks = [*late, *(rank for rank in job.ranks if rank not in late)][:_ROWS]
    begin = max(0, len(job.steps) - _STEPS)
    if late and begin:
        begin = min(begin, max(0, _first(job, verdict.stragglers[0].steps) - 50))
    steps = range(begin, min(len(job.steps), begin + _STEPS))
    peak = max((s.lateness(r) for s in job.steps for r in job.ranks), default=0)
    peak = max(peak, job.limit, 1)
    # Horizontal positions are in percent, so that the plot adapts to the screen.
    least = max(_CELLS[0], min(_CELLS[1], _WIDE // len(steps))) * len(steps)
    most = max(least, _CELLS[1] * len(steps))
    cell = 100 / len(steps)
    used: set[str] = set()
    height = _HEAD + len(ranks) * _LANE
    overlaps = chains.overlaps_of(opened, job, ranks, seen, rules())
    lanes: list[str] = []
    names: list[str] = []
    for row, rank in enumerate(ranks):
        top = _HEAD + row * _LANE
        bold = ' class="late"' if rank in late else ""
        names.append(f'<text x="8" y="{top + 24}"{bold}>rank {rank}</text>')
        base = top + 6 + _BAR
        lanes.append(_line(base, "100%"))
        for x, at in enumerate(steps):
            lanes.append(
                _cell(job, rank, at, (x * cell, cell), base, peak, overlaps[rank], used)
            )
    ticks = [
        f'<text x="{x * cell:.2f}%" y="14">{job.steps[at].number}</text>'
        for x, at in enumerate(steps)
        if job.steps[at].number % 10 == 0
    ]
    key = "".join(
        f'<span><i style="background:var(--{cls})"></i>{cls}</span>'
        for cls in schema.CLASSES
        if cls in used
    )
    more = ""
    if len(ranks) < len(job.ranks) or len(steps) < len(job.steps):
        more = (
            f'<p class="soft">Shown are {len(ranks)} of {len(job.ranks)} ranks, '
            f"stragglers first, and {len(steps)} of {len(job.steps)} steps.</p>"
        )
    return f"""<h3>Lateness by rank and step</h3>
<p class="soft">A bar is how much later a rank arrived than the first one, coloured as
far as its thread was kept from running by a stall; full height is {peak / 1e6:.4g} ms.
The strip below it is the time between two collectives, with the stalls where they
were.</p>
<div class="key"><span><i style="background:var(--plain)"></i>late, not in kernel
events</span>{key}</div>
<div class="scroll wide" tabindex="0" role="region"
aria-label="Lateness by rank and step">
<div class="plot"><svg class="names" width="{_NAMES}" height="{height}">
<text x="8" y="14">step</text>{"".join(names)}</svg>
<svg class="bars" style="min-width:{max(least, 120)}px;max-width:{max(most, 120)}px"
height="{height}" role="img" aria-label="lateness of each rank in each step">
{"".join(ticks)}{"".join(lanes)}</svg>
</div></div>{more}"""


def _first(job: Job, numbers: Sequence[int]) -> int:
    wanted = set(numbers)
    return next(at for at, step in enumerate(job.steps) if step.number in wanted)


def _line(y: int, width: object) -> str:
    return f'<line class="axis" x1="0" x2="{width}" y1="{y}" y2="{y}"/>'


def _rect(x: float, y: float, w: float, h: float, fill: str, unit: str = "") -> str:
    return (
        f'<rect x="{x:.2f}{unit}" y="{y:.1f}" width="{w:.2f}{unit}" height="{h:.1f}" '
        f'style="fill:var(--{fill})"/>'
    )


def _cell(
    job: Job,
    rank: int,
    at: int,
    place: tuple[float, float],
    base: int,
    peak: int,
    overlaps: dict[str, Overlap],
    used: set[str],
) -> str:
    x, cell = place
    step = job.steps[at]
    arrival = step.arrivals[rank]
    assert arrival.since is not None
    lateness = step.lateness(rank)
    parts: list[str] = []
    notes = [f"step {step.number}, rank {rank}: {lateness / 1e6:.2f} ms late"]
    y, left = float(base), lateness
    span = max(1, arrival.enter - arrival.since)
    for cls in schema.CLASSES:
        intervals = overlaps.get(cls, Overlap()).mine.spans.get(at, [])
        if not intervals:
            continue
        used.add(cls)
        covered = chains.covered_of(step, rank, intervals)
        notes.append(f"{cls} {covered / 1e6:.2f} ms")
        part = min(covered, left)
        high = part / peak * _BAR
        if lateness >= job.limit and high >= 0.1:
            y -= high
            left -= part
            parts.append(_rect(x, y, cell * _FULL, high, cls, "%"))
        for t0, t1 in intervals:
            begin = (max(t0, arrival.since) - arrival.since) / span * cell * _FULL
            end = (min(t1, arrival.enter) - arrival.since) / span * cell * _FULL
            width = max(0.05 * cell, end - begin)
            parts.append(_rect(x + begin, base + 3, width, _STRIP, cls, "%"))
    high = left / peak * _BAR
    if high >= 0.1:
        parts.append(_rect(x, y - high, cell * _FULL, high, "plain", "%"))
    if not parts:
        return ""
    return f"<g><title>{_text('; '.join(notes))}</title>{''.join(parts)}</g>"


def _distributions(opened: duckdb.DuckDBPyConnection, asked: Window) -> str:
    buckets: dict[str, dict[int, int]] = {}
    total: dict[str, int] = {}
    for cls, bucket, count, lasted in opened.execute(
        _SPREAD, [asked.spans(opened)]
    ).fetchall():
        buckets.setdefault(cls, {})[bucket] = count
        total[cls] = total.get(cls, 0) + lasted
    if not buckets:
        return ""
    low = min(min(counts) for counts in buckets.values())
    high = max(max(counts) for counts in buckets.values())
    low = max(0, low - (short := max(0, _BUCKETS - (high - low + 1))) // 2)
    high += short - short // 2
    parts = []
    for cls in sorted(buckets, key=lambda name: -total[name]):
        count = sum(buckets[cls].values())
        parts.append(
            f"<div><strong>{cls}</strong> <span class='soft'>{count} stalls, "
            f"{total[cls] / 1e6:.1f} ms</span>"
            f"{_histogram(cls, buckets[cls], low, high)}</div>"
        )
    return (
        '<h2>How long stalls were, by class</h2><p class="soft">All stalls, whether or '
        "not a rank was late; a bar is a power of two, and its height the logarithm of "
        f'the count.</p><div class="spread">{"".join(parts)}</div>'
    )


def _histogram(cls: str, counts: dict[int, int], low: int, high: int) -> str:
    width, height, space = 300, 100, 20
    bars = high - low + 1
    step = width / bars
    peak = math.log2(1 + max(counts.values()))
    parts = []
    for bucket, count in sorted(counts.items()):
        tall = math.log2(1 + count) / peak * (height - 4)
        x = (bucket - low) * step
        text = f"{_time(1 << bucket)} to {_time(2 << bucket)}: {count}"
        bar = _rect(x, height - tall, max(1.0, min(step - 1, 40)), tall, cls)
        parts.append(f"<g><title>{text}</title>{bar}</g>")
    first, last = _time(1 << low), _time(2 << high)
    return (
        f'<svg viewBox="0 0 {width} {height + space}" role="img" '
        f'aria-label="durations of {cls}">{"".join(parts)}'
        f'{_line(height, width)}<text x="0" y="{height + 15}">{first}</text>'
        f'<text x="{width}" y="{height + 15}" text-anchor="end">{last}</text></svg>'
    )


def _time(ns: int) -> str:
    for unit, size in (("s", 1_000_000_000), ("ms", 1_000_000), ("µs", 1000)):
        if ns >= size:
            return f"{ns / size:.3g} {unit}"
    return f"{ns} ns"


def _lost(lost: Iterable[Lost]) -> str:
    rows = [
        f"<tr><td>{_text(entry.node)}</td><td>{entry.cls}</td>"
        f'<td>{_text(entry.cause or "-")}</td><td class="n">{entry.n}</td>'
        f'<td class="n">{_ms(entry.lost_ns)}</td>'
        f'<td class="n">{_ms(entry.worst_ns)}</td><td>{_text(entry.provider)}</td></tr>'
        for entry in list(lost)[:100]
    ]
    if not rows:
        return '<div class="card">No stall was recorded.</div>'
    head = (
        '<tr><th>node</th><th>class</th><th>cause</th><th class="n">stalls</th>'
        '<th class="n">ms</th><th class="n">worst ms</th><th>provider</th></tr>'
    )
    return (
        "<h2>Lost time, whether or not a rank was late</h2>"
        '<div class="scroll" tabindex="0" role="region" aria-label="Lost time">'
        f"<table>{head}{''.join(rows)}</table></div>"
    )


def _ms(ns: int | None, digits: int = 1) -> str:
    return "unknown" if ns is None else f"{ns / 1e6:.{digits}f}"


def _clocks(report: Report) -> str:
    if len(report.clocks) < 2:
        return ""
    rows = "".join(
        f"<tr><td>{_text(clock['node'])}</td><td>{_text(clock['method'])}</td>"
        f'<td class="n">{_ms(clock["offset_ns"], 3)}</td>'
        f'<td class="n">{_ms(clock["bound_ns"], 3)}</td></tr>'
        for clock in report.clocks[:100]
    )
    return (
        '<h2>Clocks</h2><p class="soft">Lateness needs none of this. Order across '
        "nodes below the bound is unordered.</p>"
        '<div class="scroll" tabindex="0" role="region" aria-label="Clocks"><table>'
        '<tr><th>node</th><th>aligned by</th><th class="n">offset, ms</th>'
        f'<th class="n">bound, ms</th></tr>{rows}</table></div>'
    )
