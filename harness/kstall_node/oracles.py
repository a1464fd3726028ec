# SPDX-License-Identifier: GPL-2.0-or-later
"""Whether a provider is right: its sums compared with counters that the kernel keeps.

A probe that is right on one kernel may be wrong on the next: one for throttling was
22 % off.  So each source is compared, while it records, with counters that have nothing
to do with tracing.  They are read before and after tracing is switched, so each is
known up to an interval; a source agrees if its own sum is in it, with a tolerance for
clocks that were read at other instants.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, NamedTuple

from .catalogue import Source
from .facts import Facts
from .host import Host
from .pages import Record
from .tracefs import Counter

#: The tolerance: a share of the oracle's sum, and ns.
SHARE, ABSOLUTE = 0.02, 1000
#: No source is refused before its oracle has counted so much.
ENOUGH_NS = 20_000_000
#: Stalls of one queue are as long as its periods, 0.1 s: these last some seconds.
_SPANS = 64
#: How many keys of stalls are remembered, the last ones.
_KEYS = 16_384
_VFIO = "/sys/bus/pci/drivers/vfio-pci"
_AER = re.compile(r"^TOTAL_ERR_\w+ (\d+)$", re.M)

#: An interval; of a counter's growth the least and the most that it may be.
Span = tuple[int, int]


class Verdict(NamedTuple):
    """One comparison, for stalls that had ended by ``until``; None means all of them.

    In the others None means unknown.  ``theirs`` is between ``low`` and ``high``.
    """

    scope: str
    metric: str
    ours: int | None
    theirs: int | None
    verdict: str
    until: int | None = None
    low: int | None = None
    high: int | None = None

    def fact(self, provider: str) -> dict[str, Any]:
        """As a line of facts.jsonl."""
        return {"kind": "oracle", "provider": provider, **self._asdict()}


def judge(scope: str, metric: str, ours: int | None, span: Span | None) -> Verdict:
    """Compare our sum with the growth of a counter."""
    if span is None:
        return Verdict(scope, metric, ours, None, "unknown")
    low, high = span
    if ours is None:
        middle = (low + high) // 2
        return Verdict(scope, metric, None, middle, "unknown", None, low, high)
    nearest = min(max(ours, low), high)
    allowed = 0 if metric == "count" else max(ABSOLUTE, int(SHARE * nearest))
    wide = metric != "count" and high - low > 2 * max(allowed, ENOUGH_NS)
    text = "unknown" if wide else "agrees"
    if abs(ours - nearest) > allowed:
        text = "disagrees"
    return Verdict(scope, metric, ours, nearest, text, None, low, high)


class Union:
    """How long at least one of several intervals lasted.

    They may come in any order, but what is older than the last `_SPANS` disjoint ones
    is not looked at again.
    """

    def __init__(self) -> None:
        #: The newest spans, disjoint and in order.
        self._spans: list[Span] = []
        #: Of those before them the sum and the end.
        self._settled = self._until = 0

    def add(self, begin: int, end: int) -> None:
        """Add an interval."""
        begin = max(begin, self._until)
        if end <= begin:
            return
        later = []
        while self._spans and begin <= self._spans[-1][1]:
            first, last = self._spans.pop()
            if end < first:
                later.append((first, last))
            else:
                begin, end = min(begin, first), max(end, last)
        self._spans += [(begin, end), *reversed(later)]
        if len(self._spans) > _SPANS:
            first, self._until = self._spans.pop(0)
            self._settled += self._until - first

    def total(self) -> int:
        """The length of the union, in ns."""
        return self._settled + sum(end - begin for begin, end in self._spans)


class Tally:
    """Sums of one source, as its oracle needs them."""

    def __init__(self, source: Source, specs: Iterable[dict[str, Any]]) -> None:
        self.source = source
        self.specs = list(specs)
        self._open: dict[tuple[object, ...], list[Record]] = {}
        #: For stalls with two events: beginnings, ends, and ends without a beginning.
        self.begun = self.ended = self.astray = 0
        #: Ends whose stall had begun before tracing did.
        self.early = 0
        #: Groups of such ends, since the oracle's baseline.
        self.early_groups: set[object] = set()
        #: Whether the first period is over.
        self.settled = False
        #: The keys of the last records, in their order.
        self._seen: dict[tuple[object, ...], None] = {}
        self.sums: dict[object, int] = {}
        #: Stalls of the providers that the oracle covers: all, and by device.
        self.counted = 0
        self.counts: dict[object, int] = {}
        self._unions: dict[tuple[object, object], Union] = {}
        #: Stalls whose cgroup is not known.
        self.homeless = 0
        #: Whether `take` has had every record; if not, it only looks up threads.
        self.complete = True

    def take(self, record: Record, facts: Facts) -> None:
        """Add a record; records come in the order of time."""
        for number, spec in enumerate(self.specs):
            if not self.complete:
                if record.layout.event == (spec.get("begin") or spec["end"]):
                    _look_up(spec, record, facts)
                continue
            if record.layout.event == spec["end"] and _holds(spec, record):
                self._end(number, spec, record, facts)
            if record.layout.event == spec.get("begin"):
                # Now: it may be gone when its stall ends, which may never happen.
                _look_up(spec, record, facts)
                self.begun += number < self.source.counts
                key = (number, *(record.get(name) for name in spec["key"]))
                self._remember(key)
                if spec.get("many"):
                    self._open.setdefault(key, []).append(record)
                else:
                    self._open[key] = [record]

    def _end(
        self, number: int, spec: dict[str, Any], record: Record, facts: Facts
    ) -> None:
        if spec.get("begin"):
            key = (number, *(record.get(name) for name in spec["key"]))
            beginnings = self._open.pop(key, [])
            ours = number < self.source.counts
            for begun in beginnings:
                self.ended += ours
                self._stall(number, begun.t, record.t, begun, record, facts)
            early = not beginnings and key not in self._seen
            if not beginnings and not spec.get("many"):
                self.astray += ours
                self.early += ours and early
            # What ends many is also there if nothing was stalled, later as well.
            if early and not (spec.get("many") and self.settled):
                self.early_groups.add(record.get(spec.get("cgroup_id")))
            self._remember(key)
            return
        dur = spec.get("dur")
        lasted: Any = 0
        if isinstance(dur, list):
            first, second = (record.get(name) for name in dur)
            if isinstance(first, int) and isinstance(second, int):
                lasted = first - second
        elif dur:
            lasted = record.get(dur)
        began = record.t - int(lasted or 0)
        self._stall(number, began, record.t, record, record, facts)

    def _remember(self, key: tuple[object, ...]) -> None:
        self._seen.pop(key, None)
        self._seen[key] = None
        if len(self._seen) > _KEYS:
            del self._seen[next(iter(self._seen))]

    def _stall(
        self,
        number: int,
        begin: int,
        end: int,
        owner: Record,
        last: Record,
        facts: Facts,
    ) -> None:
        spec = self.specs[number]
        if number < self.source.counts:
            device = last.get(spec.get("device")) if spec.get("device") else None
            self.counts[device] = self.counts.get(device, 0) + 1
            self.counted += 1
        tid = _look_up(spec, owner, facts)
        if not (self.source.oracle or "").startswith("cpu.stat"):
            return
        if spec.get("cgroup_id"):
            group: object = owner.get(spec["cgroup_id"])
        else:
            group = None if tid is None else facts.cgroup_of.get(tid)
        if group is None:
            self.homeless += 1
            return
        self.sums[group] = self.sums.get(group, 0) + end - begin
        if self.source.oracle != "cpu.stat.threads":
            return
        cpu = owner.get(spec.get("cpu", "common_cpu") or "common_cpu")
        self._unions.setdefault((group, cpu), Union()).add(begin, end)

    def union(self, group: object) -> int:
        """How long any thread of a group was stalled on a CPU, summed over CPUs."""
        return sum(
            union.total()
            for (whose, _), union in self._unions.items()
            if whose == group
        )

    def open_since(self, then: int) -> list[tuple[Record, int | None]]:
        """Beginnings up to ``then`` without an end, each with its thread, oldest first.

        Empty if records are missing, as an end may be among them.
        """
        if not self.complete:
            return []
        beginnings = [
            (record, _owner(self.specs[number], record))
            for (number, *_), records in self._open.items()
            if isinstance(number, int)
            for record in records
            if record.t <= then
        ]
        return sorted(beginnings, key=lambda pair: pair[0].t)

    @property
    def still_open(self) -> int:
        """Beginnings without an end, so far."""
        return sum(
            len(records)
            for (number, *_), records in self._open.items()
            if isinstance(number, int) and number < self.source.counts
        )


def _owner(spec: dict[str, Any], record: Record) -> int | None:
    """The stalled thread; None in an interrupt, which is not the current thread's."""
    name = spec.get("tid", "common_pid")
    tid = record.get(name) if name else None
    if name == "common_pid" and record.interrupted:
        return None
    return tid if isinstance(tid, int) else None


def _look_up(spec: dict[str, Any], record: Record, facts: Facts) -> int | None:
    """The same, after it was reported."""
    tid = _owner(spec, record)
    if tid is not None:
        facts.thread(tid)
    return tid


def _holds(spec: dict[str, Any], record: Record) -> bool:
    for member, mask, value in spec.get("when", ()):
        actual = record.get(member)
        if not isinstance(actual, int) or actual & mask != value:
            return False
    return True


class Oracle:
    """Counters of the kernel, read before and after; for ``counted``, a `Counter`."""

    def __init__(
        self, name: str, host: Host, facts: Facts, counter: Counter | None = None
    ) -> None:
        self.name, self.host, self.facts = name, host, facts
        self.counter = counter
        self._before: dict[object, int] = {}
        self._began: dict[object, Span] = {}
        #: The last verdict on each group while it existed.
        self._looks: dict[object, Verdict] = {}

    def read(self) -> dict[object, int]:
        """The present values."""
        if self.name.startswith("cpu.stat"):
            return self._cpu_stat(threads=self.name.endswith("threads"))
        if self.name.startswith("aer"):
            return self._aer(roots=self.name.endswith("roots"))
        if self.counter is not None:
            return {"all": self.counter.total()}
        return {}

    def before(self, look: dict[object, int] | None = None) -> None:
        """Read the counters before tracing is switched on, unless ``look`` has them."""
        self._before = self.read() if look is None else look

    def began(self) -> None:
        """Read them again after it was."""
        for key, now in self.read().items():
            self._began[key] = (self._before.get(key, 0), now)

    def grown(
        self, early: dict[object, int], late: dict[object, int]
    ) -> dict[object, Span | None]:
        """By how much each has grown; ``early`` and ``late`` are around tracing's end.

        None for a counter that no longer exists.
        """
        spans: dict[object, Span | None] = {}
        for key in {*self._began, *late}:
            low, high = self._began.get(key, (0, 0))
            if key not in late:
                spans[key] = None
                continue
            first = early.get(key, 0 if key not in self._began else high)
            slack = ABSOLUTE if self.name.startswith("cpu.stat") else 0
            spans[key] = (max(0, first - high - slack), late[key] - low + slack)
        return spans

    def verdicts(
        self,
        tally: Tally,
        early: dict[object, int],
        late: dict[object, int],
        *,
        whole: bool = True,
    ) -> list[Verdict]:
        """All comparisons of a source; not ``whole`` if stalls were left out."""
        usable = whole and tally.complete
        if self.name == "pairs":
            ours = tally.ended + tally.still_open + tally.astray
            theirs = tally.begun + tally.early
            if not usable or not (ours or theirs):
                # Without any stall it is not known whether one would be seen.
                return [judge("all", "count", None, None)]
            return [judge("all", "count", ours, (theirs, theirs))]
        if self.name == "counted":
            (span,) = self.grown(early, late).values() or (None,)
            if not whole or (span is not None and not span[1] and not tally.counted):
                span = None
            if self._others(tally, span):
                span = None
            return [judge("all", "count", tally.counted if usable else None, span)]
        verdicts = [look for key, look in self._looks.items() if key not in late]
        known = {verdict.scope for verdict in verdicts}
        for key, grown in sorted(self.grown(early, late).items(), key=str):
            span = grown if whole else None
            verdict = self._compared(tally, key, span, usable=usable)
            if verdict is not None and verdict.scope not in known:
                verdicts.append(verdict)
                known.add(verdict.scope)
        if self.name.startswith("cpu.stat"):
            # Groups that came and went between two readings: unknown.
            for group in tally.sums:
                if f"cgroup:{group}" not in known:
                    verdicts.append(judge(f"cgroup:{group}", self._metric, None, None))
        return verdicts

    def look(
        self,
        tally: Tally,
        early: dict[object, int],
        late: dict[object, int],
        until: int,
    ) -> None:
        """Keep the present verdicts, as a group may be gone when the recording ends."""
        if not self.name.startswith("cpu.stat") or not tally.complete:
            return
        for key, grown in self.grown(early, late).items():
            if key in late and key in tally.sums and not self._is_early(tally, key):
                verdict = self._compared(tally, key, grown, usable=True)
                if verdict is not None:
                    self._looks[key] = verdict._replace(until=until)

    def settle(
        self, tally: Tally, early: dict[object, int], late: dict[object, int]
    ) -> None:
        """Begin anew with groups of which a stall had begun before tracing did.

        The kernel counts all of it when it ends, and there is no record of how long it
        was.  So what the counter has now is taken to be what was recorded.
        """
        if not self.name.startswith("cpu.stat") or not tally.complete:
            return
        known = self._began.keys() & early.keys() & late.keys()
        for key in known & tally.early_groups:
            ours = self._ours(tally, key)
            self._began[key] = (early[key] - ours, late[key] - ours)
        tally.early_groups.clear()
        tally.settled = True

    def _is_early(self, tally: Tally, key: object) -> bool:
        """Whether the counter has a stall that had begun before tracing did."""
        return key in tally.early_groups and key in self._began

    def _ours(self, tally: Tally, key: object) -> int:
        """What was recorded of a group."""
        if self._metric == "union_ns":
            return tally.union(key)
        return tally.sums.get(key, 0)

    @property
    def _metric(self) -> str:
        if self.name.startswith("aer"):
            return "count"
        return "union_ns" if self.name.endswith("threads") else "ns"

    def _compared(
        self, tally: Tally, key: object, span: Span | None, *, usable: bool
    ) -> Verdict | None:
        """The verdict on one device or group; None if neither side has counted any."""
        if self._metric == "count":
            ours = tally.counts.get(key, 0)
            if not ours and span is not None and not span[1]:
                return None
            return judge(f"device:{key}", "count", ours if usable else None, span)
        ours = self._ours(tally, key)
        if not ours and (span is None or span[1] <= 2 * ABSOLUTE):
            return None
        doubt = tally.homeless or self._is_early(tally, key)
        if doubt and span is not None and ours < span[0]:
            # What is lacking may be among the stalls whose group is not known, or of
            # one that had begun before tracing did.
            return judge(f"cgroup:{key}", self._metric, ours, None)
        return judge(f"cgroup:{key}", self._metric, ours if usable else None, span)

    def _others(self, tally: Tally, span: Span | None) -> bool:
        """Whether the oracle may have counted user space's DMA, which has no events."""
        if tally.source.cls != "iotlb" or span is None or tally.counted >= span[0]:
            return False
        return any(":" in name for name in self.host.names(_VFIO))

    def _cpu_stat(self, *, threads: bool) -> dict[object, int]:
        """Throttled ns by group: of its own quota or, for ``threads``, of any above it.

        Only cpu.stat.local has the latter.  Without it, only groups that have no
        groups below them can be compared with their threads.
        """
        throttled: dict[object, int] = {}
        for path in self.facts.groups():
            text = self.host.text(f"{path}/cpu.stat.local") if threads else None
            if text is None:
                text = self.host.text(f"{path}/cpu.stat")
            match = re.search(r"^throttled_usec (\d+)$", text or "", re.M)
            unit = 1000
            if match is None:
                match = re.search(r"^throttled_time (\d+)$", text or "", re.M)
                unit = 1
            if match is None:
                continue
            number = self.facts.group(path, report=int(match[1]) > 0)
            if number is not None:
                throttled[number] = int(match[1]) * unit
        return throttled

    def _aer(self, *, roots: bool) -> dict[object, int]:
        totals: dict[object, int] = {}
        top = "/sys/bus/pci/devices"
        for device in self.host.names(top):
            total = None
            for kind in ("correctable", "nonfatal", "fatal"):
                if roots:
                    short = "cor" if kind == "correctable" else kind
                    count = self.host.number(
                        f"{top}/{device}/aer_rootport_total_err_{short}"
                    )
                else:
                    text = self.host.text(f"{top}/{device}/aer_dev_{kind}")
                    match = _AER.search(text or "")
                    count = int(match[1]) if match else None
                if count is not None:
                    total = (total or 0) + count
            if total is not None:
                totals[device] = total
        return totals
