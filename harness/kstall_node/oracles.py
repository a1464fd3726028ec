# SPDX-License-Identifier: GPL-2.0-or-later
"""Whether a provider tells the truth: its sums beside what the kernel counts anyhow.

A recipe that is right on one kernel lies on the next: one for throttling was 22 % off.
So each source is compared, while it records, with counters that have nothing to do with
tracing.  They are read before and after tracing is switched, so each is known up to an
interval; a source agrees if its own sum is in it, give or take a share for clocks that
were read at other instants.
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

#: A share of theirs, and ns.
SHARE, ABSOLUTE = 0.02, 1000
#: With less than so much it is too early to refuse anything.
ENOUGH_NS = 20_000_000
_COMPACT = 4096
_VFIO = "/sys/bus/pci/drivers/vfio-pci"
_AER = re.compile(r"^TOTAL_ERR_\w+ (\d+)$", re.M)

#: What is known of a counter: not before, not after.
Span = tuple[int, int]


class Verdict(NamedTuple):
    """One comparison, of what had ended by ``until``; None is unknown, or all."""

    scope: str
    metric: str
    ours: int | None
    theirs: int | None
    verdict: str
    until: int | None = None

    def fact(self, provider: str) -> dict[str, Any]:
        """As a line of facts.jsonl."""
        return {"kind": "oracle", "provider": provider, **self._asdict()}


def judge(scope: str, metric: str, ours: int | None, span: Span | None) -> Verdict:
    """Compare with what a counter has grown by."""
    if span is None:
        return Verdict(scope, metric, ours, None, "unknown")
    low, high = span
    if ours is None:
        return Verdict(scope, metric, None, (low + high) // 2, "unknown")
    nearest = min(max(ours, low), high)
    if metric == "count":
        return Verdict(
            scope, metric, ours, nearest, "agrees" if ours == nearest else "disagrees"
        )
    allowed = max(ABSOLUTE, int(SHARE * nearest))
    if high - low > 2 * max(allowed, ENOUGH_NS):
        return Verdict(scope, metric, ours, nearest, "unknown")
    text = "agrees" if abs(ours - nearest) <= allowed else "disagrees"
    return Verdict(scope, metric, ours, nearest, text)


class Union:
    """For how long anything of several intervals lasted."""

    def __init__(self) -> None:
        self._spans: list[Span] = []

    def add(self, begin: int, end: int) -> None:
        """One more."""
        self._spans.append((begin, end))
        if len(self._spans) > _COMPACT:
            self._merge()

    def _merge(self) -> None:
        merged: list[Span] = []
        for begin, end in sorted(self._spans):
            if merged and begin <= merged[-1][1]:
                merged[-1] = (merged[-1][0], max(merged[-1][1], end))
            else:
                merged.append((begin, end))
        self._spans = merged

    def total(self) -> int:
        """So many ns."""
        self._merge()
        return sum(end - begin for begin, end in self._spans)


class Tally:
    """Sums of one source, in the way its oracle needs them."""

    def __init__(self, source: Source, specs: Iterable[dict[str, Any]]) -> None:
        self.source = source
        self.specs = list(specs)
        self._open: dict[tuple[object, ...], list[Record]] = {}
        #: Of stalls with two ends: beginnings, ends of them, and ends of none.
        self.begun = self.ended = self.astray = 0
        #: Ends of what had begun before we looked.
        self.early = 0
        self._seen: set[tuple[object, ...]] = set()
        self.sums: dict[object, int] = {}
        #: Of the providers that the oracle speaks of: all, and by device.
        self.counted = 0
        self.counts: dict[object, int] = {}
        self._unions: dict[tuple[object, object], Union] = {}
        #: Stalls whose cgroup nobody knows.
        self.homeless = 0
        #: Whether every record came by here.
        self.complete = True

    def take(self, record: Record, facts: Facts) -> None:
        """One record, in the order of time."""
        for number, spec in enumerate(self.specs):
            if record.layout.event == spec["end"] and _holds(spec, record):
                self._end(number, spec, record, facts)
            if record.layout.event == spec.get("begin"):
                tid = _owner(spec, record)
                if tid is not None:
                    # It may be gone when its stall ends, or that may never do.
                    facts.thread(tid)
                self.begun += number < self.source.counts
                key = (number, *(record.get(name) for name in spec["key"]))
                self._seen.add(key)
                if spec.get("many"):
                    self._open.setdefault(key, []).append(record)
                else:
                    self._open[key] = [record]

    def _end(
        self, number: int, spec: dict[str, Any], record: Record, facts: Facts
    ) -> None:
        if spec.get("begin"):
            key = (number, *(record.get(name) for name in spec["key"]))
            found = self._open.pop(key, [])
            ours = number < self.source.counts
            for begun in found:
                self.ended += ours
                self._stall(number, begun.t, record.t, begun, record, facts)
            if not found and not spec.get("many"):
                self.astray += ours
                self.early += ours and key not in self._seen
            self._seen.add(key)
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
        tid = _owner(spec, owner)
        if tid is not None:
            facts.thread(tid)
        if spec.get("cgroup_id"):
            group: object = owner.get(spec["cgroup_id"])
        else:
            group = None if tid is None else facts.cgroup_of.get(tid)
        if group is None:
            self.homeless += 1
            return
        self.sums[group] = self.sums.get(group, 0) + end - begin
        cpu = owner.get(spec.get("cpu", "common_cpu") or "common_cpu")
        self._unions.setdefault((group, cpu), Union()).add(begin, end)

    def union(self, group: int) -> int:
        """For how long any thread of a group was stalled, summed over CPUs."""
        return sum(
            union.total()
            for (whose, _), union in self._unions.items()
            if whose == group
        )

    def open_since(self, then: int) -> list[tuple[Record, int | None]]:
        """Beginnings that are older and have no end, and whose; none if not all came.

        What began before others is before them.
        """
        if not self.complete:
            return []
        found = [
            (record, _owner(self.specs[number], record))
            for (number, *_), records in self._open.items()
            if isinstance(number, int)
            for record in records
            if record.t <= then
        ]
        return sorted(found, key=lambda one: one[0].t)

    @property
    def still_open(self) -> int:
        """Beginnings without an end, so far."""
        return sum(
            len(records)
            for (number, *_), records in self._open.items()
            if isinstance(number, int) and number < self.source.counts
        )


def _owner(spec: dict[str, Any], record: Record) -> int | None:
    """The thread that is stalled; in an interrupt it is not the one that ran."""
    name = spec.get("tid", "common_pid")
    tid = record.get(name) if name else None
    if name == "common_pid" and record.interrupted:
        return None
    return tid if isinstance(tid, int) else None


def _holds(spec: dict[str, Any], record: Record) -> bool:
    for member, mask, value in spec.get("when", ()):
        found = record.get(member)
        if not isinstance(found, int) or found & mask != value:
            return False
    return True


class Oracle:
    """Counters of the kernel, read before and after; a `Counter` for ``counted``."""

    def __init__(
        self, name: str, host: Host, facts: Facts, counter: Counter | None = None
    ) -> None:
        self.name, self.host, self.facts = name, host, facts
        self.counter = counter
        self._before: dict[object, int] = {}
        self._began: dict[object, Span] = {}
        #: What was said of a group when it was last there.
        self._looks: dict[object, Verdict] = {}

    def read(self) -> dict[object, int]:
        """What they are now."""
        if self.name.startswith("cpu.stat"):
            return self._cpu_stat(threads=self.name.endswith("threads"))
        if self.name.startswith("aer"):
            return self._aer(roots=self.name.endswith("roots"))
        if self.counter is not None:
            return {"all": self.counter.total()}
        return {}

    def before(self) -> None:
        """Tracing is about to be switched on."""
        self._before = self.read()

    def began(self) -> None:
        """It was."""
        for key, now in self.read().items():
            self._began[key] = (self._before.get(key, 0), now)

    def grown(
        self, early: dict[object, int], late: dict[object, int]
    ) -> dict[object, Span | None]:
        """By how much each has grown, between two looks around tracing's end."""
        found: dict[object, Span | None] = {}
        for key in {*self._began, *late}:
            low, high = self._began.get(key, (0, 0))
            if key not in late:
                found[key] = None
                continue
            first = early.get(key, 0 if key not in self._began else high)
            slack = ABSOLUTE if self.name.startswith("cpu.stat") else 0
            found[key] = (max(0, first - high - slack), late[key] - low + slack)
        return found

    def verdicts(
        self,
        tally: Tally,
        early: dict[object, int],
        late: dict[object, int],
        *,
        whole: bool = True,
    ) -> list[Verdict]:
        """All comparisons of a source; none is ``whole`` whose thresholds were up."""
        usable = whole and tally.complete
        if self.name == "pairs":
            ours = tally.ended + tally.still_open + tally.astray
            theirs = tally.begun + tally.early
            if not usable or not (ours or theirs):
                # Of what never happened nobody knows whether it would be seen.
                return [judge("all", "count", None, None)]
            return [judge("all", "count", ours, (theirs, theirs))]
        if self.name == "counted":
            (span,) = self.grown(early, late).values() or (None,)
            if not whole or (span is not None and not span[1] and not tally.counted):
                span = None
            if self._others(tally, span):
                span = None
            return [judge("all", "count", tally.counted if usable else None, span)]
        said = [look for key, look in self._looks.items() if key not in late]
        known = {one.scope for one in said}
        for key, grown in sorted(self.grown(early, late).items(), key=str):
            one = self._compared(tally, key, grown if whole else None, usable=usable)
            if one is not None and one.scope not in known:
                said.append(one)
                known.add(one.scope)
        if self.name.startswith("cpu.stat"):
            # Groups that came and went between two looks: nobody can say.
            for group in tally.sums:
                if f"cgroup:{group}" not in known:
                    said.append(judge(f"cgroup:{group}", self._metric, None, None))
        return said

    def look(
        self,
        tally: Tally,
        early: dict[object, int],
        late: dict[object, int],
        until: int,
    ) -> None:
        """Remember what can be said now: a group may be gone when all is over."""
        if not self.name.startswith("cpu.stat") or not tally.complete:
            return
        for key, grown in self.grown(early, late).items():
            if key in late and key in tally.sums:
                one = self._compared(tally, key, grown, usable=True)
                if one is not None:
                    self._looks[key] = one._replace(until=until)

    @property
    def _metric(self) -> str:
        if self.name.startswith("aer"):
            return "count"
        return "union_ns" if self.name.endswith("threads") else "ns"

    def _compared(
        self, tally: Tally, key: object, span: Span | None, *, usable: bool
    ) -> Verdict | None:
        """Of one device or group; None if nothing was, and nothing is said."""
        if self._metric == "count":
            ours = tally.counts.get(key, 0)
            if not ours and span is not None and not span[1]:
                return None
            return judge(f"device:{key}", "count", ours if usable else None, span)
        assert isinstance(key, int)
        union = self._metric == "union_ns"
        ours = tally.union(key) if union else tally.sums.get(key, 0)
        if not ours and (span is None or span[1] <= 2 * ABSOLUTE):
            return None
        if tally.homeless and span is not None and ours < span[0]:
            # It may be one of those of which nobody knows whose they were.
            return judge(f"cgroup:{key}", self._metric, ours, None)
        return judge(f"cgroup:{key}", self._metric, ours if usable else None, span)

    def _others(self, tally: Tally, span: Span | None) -> bool:
        """Whether more was counted than the events are about: DMA of user space's."""
        if tally.source.cls != "iotlb" or span is None or tally.counted >= span[0]:
            return False
        return any(":" in name for name in self.host.names(_VFIO))

    def _cpu_stat(self, *, threads: bool) -> dict[object, int]:
        """Throttled ns by group: of a quota's own queues, or of those held up by it.

        cpu.stat.local counts a group below the one with the quota, too; where there is
        none, only groups without groups below them can be compared with their threads.
        """
        found: dict[object, int] = {}
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
            number = self.facts.group(path, say=int(match[1]) > 0)
            if number is not None:
                found[number] = int(match[1]) * unit
        return found

    def _aer(self, *, roots: bool) -> dict[object, int]:
        found: dict[object, int] = {}
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
                found[device] = total
        return found
