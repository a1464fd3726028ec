# SPDX-License-Identifier: GPL-2.0-or-later
"""Record: enable sources of the catalogue, drain pages, and note what was lost."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import select
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from . import FORMAT, VERSION, files, pages, sources
from .catalogue import Source, of
from .errors import Full, NodeError, shown
from .facts import Facts
from .host import Host, clock_pair
from .older import Older
from .oracles import ENOUGH_NS, Oracle, Tally, Verdict
from .segments import LIMIT, Segments
from .tracefs import INSTANCE, Counter, Instance, Refused, Tracefs

#: Seconds between readings of clocks, processes and oracles.
PERIOD = 10.0
#: A thread is looked up when its first record is read, and may be gone by then; so
#: buffers are read every few seconds, even if they hold less than a page.
_READ = 2.0
_TICK = 0.5
_SETTLE = 0.2
_MARK = "ftrace:print"
#: Bytes between two rounds that are tallied for oracles, as in 40 full pages a second;
#: with more that is left to `kstall seal`.
_TALLIED = int(_READ) * 40 * pages.PAGE
#: Of pages that are not tallied, every how many is read to know which event is busy.
_SAMPLED = 64
#: How many pages are read at a time.
_CHUNK = 1024
_RESERVE = 256 << 10
_RAISE = 4
_HIGHEST = 1_000_000_000
#: Segments of older recordings that --ring deletes at a time: buffers fill meanwhile.
_DROPS = 1000
#: How many stalls without an end are listed at a time.
_LISTED = 8

#: The values of all sources' oracles at one moment.
Looks = dict[str, dict[object, int]]


class Settings(NamedTuple):
    """The options of the command line."""

    out: Path
    classes: Sequence[str]
    min_ns: int = 0
    max_rate: int = 20_000
    ring: bool = False
    max_mb: int = 1024
    buffer_kb: int = 2048
    seconds: float | None = None
    providers: Sequence[str] = ()
    marks_alone: bool = False
    open_marker: bool = False


class Recorder:
    """One recording, from before the first event to after the last."""

    def __init__(self, host: Host, settings: Settings) -> None:
        self.host, self.settings = host, settings
        self.tracefs = Tracefs(host)
        self.facts = Facts(host)
        pid = os.getpid()
        self.since = host.starttime(pid) or time.monotonic_ns()
        self.group = f"kstall_{pid}_{self.since}"
        self.dir = settings.out
        self.attached: list[sources.Attached] = []
        self.refused: list[sources.Refusal] = []
        self.tallies: dict[str, Tally] = {}
        self.oracles: dict[str, Oracle] = {}
        self._layouts: dict[int, pages.Layout] = {}
        self._counters: list[Counter] = []
        self._segments: dict[int, Segments] = {}
        self._raw: dict[int, int] = {}
        self._stats: dict[int, dict[str, int]] = {}
        self._counted: dict[int, dict[str, int]] = {}
        self._pending: list[pages.Record] = []
        #: How many records were overwritten, by CPU, as counted in pages.
        self._missed: dict[int, int] = {}
        #: Providers whose thresholds rose meanwhile, or which were suspended.
        self._cut: set[str] = set()
        self._rated: tuple[float, int] = (0.0, 0)
        #: About how many records of each event were read since the last round.
        self._kinds: dict[str, int] = {}
        #: The comparisons that were noted last, by provider and scope.
        self._noted: dict[tuple[str, str], Verdict] = {}
        #: Stalls without an end that were listed already: time and CPU.
        self._lasting: set[tuple[int, int]] = set()
        self._busy = 0
        self.began = 0
        self.stopping = False
        self._instance: Instance | None = None
        self._facts_file: int | None = None
        self._older: Older | None = None
        self._in_use: int | None = None

    # -- one recording ----------------------------------------------------------------

    def run(self) -> int:
        """Record until `stopping` is set or the time is over; the exit status."""
        status = 0
        with self._alone():
            for left in self.tracefs.remove_dead():
                self.say(f"removed {left}")
            self._instance = self.tracefs.instance(self.settings.buffer_kb)
            try:
                try:
                    self._begin()
                    self._loop()
                except Full as error:
                    status = 1
                    self._make_room()
                    self.say(
                        f"{error}; recording ends, sealed segments are kept; make "
                        "room, use -o, or keep only the newest: --ring --max-mb N"
                    )
                    self._finish(full=True)
                except NodeError:
                    self._finish()
                    raise
                else:
                    self._finish()
            finally:
                self._clean()
        return status

    def say(self, text: str) -> None:
        """Print a line for the user."""
        print(f"kstall-node: {shown(text)}", file=sys.stderr, flush=True)

    @property
    def instance(self) -> Instance:
        """Its ftrace instance."""
        assert self._instance is not None
        return self._instance

    @property
    def _active(self) -> list[sources.Attached]:
        """Sources that were not refused meanwhile; a refused source has no tally."""
        return [
            attached
            for attached in self.attached
            if attached.source.name in self.tallies
        ]

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Exclude other recorders: two would take pages from each other."""
        other = self.tracefs.living()
        path = self.host.path("/run/kstall-node.lock")
        handle = None
        with contextlib.suppress(OSError):
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if handle is not None:
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError:
                    match = re.match(rb"\d+", os.read(handle, 32))
                    other = int(match[0]) if match else 0
                else:
                    os.ftruncate(handle, 0)
                    os.pwrite(handle, f"{os.getpid()} {self.since}\n".encode(), 0)
            if other is not None:
                who = f"process {other}" if other else "another process"
                raise NodeError(f"{who} records on this node already")
            yield
        finally:
            if handle is not None:
                os.close(handle)

    # -- begin ------------------------------------------------------------------------

    def _begin(self) -> None:
        for cls in self.settings.classes:
            self._attach(cls)
        if not self.attached:
            self._without_classes()
        text = self.tracefs.print_format()
        with contextlib.suppress(ValueError):
            layout = pages.layout(text or "", "ftrace")
            self._layouts[layout.id] = layout
        if self.settings.ring:
            self._older = Older(self.host, self.settings.out, self.say)
            self._older.shrink(self.settings.max_mb << 20)
        # Everything is in place before the first event.
        self.began = time.monotonic_ns()
        self._make_dir()
        self._write_formats(*self.attached)
        for cpu in self.instance.cpus():
            self._raw[cpu] = self.instance.open_raw(cpu)
            self._stats[cpu] = self.instance.stats(cpu)
            self._segments[cpu] = Segments(self.dir / "segments", cpu, LIMIT)
        self.facts.scan()
        for oracle in self.oracles.values():
            oracle.before()
        if self.settings.open_marker:
            self.instance.open_marker()
        self.instance.switch(True)
        for oracle in self.oracles.values():
            oracle.began()
        self._write_session(None)
        self._clock()
        self._write_facts()
        self._rated = (time.monotonic(), self._written())
        for attached in self.attached:
            lost = (
                f"; not known: {attached.source.lost}" if attached.source.lost else ""
            )
            self.say(f"{attached.source.cls}: {attached.source.name}{lost}")
        recorded = {attached.source.cls for attached in self.attached}
        for cls in self.settings.classes:
            if cls not in recorded:
                whys = [refusal.why for refusal in self.refused if refusal.cls == cls]
                self.say(f"{cls}: not recorded: {sources.reasons(whys)}")
        if not recorded:
            self.say(
                "no class is recorded, only the marks of jobs: they show which rank "
                "was late, and not why"
            )
        if self._older is not None and self._older.count:
            self.say(
                f"--ring: earlier recordings count as well: {self._older.count}, of "
                f"{self._older.size >> 20} MB"
            )
        lasts = self.settings.seconds
        until = "until Ctrl-C" if lasts is None else f"for {lasts:g} s"
        self.say(f"recording into {self.dir}, {until}")

    def _without_classes(self) -> None:
        """Raise `NodeError`, unless marks alone are wanted and can be recorded."""
        if self.settings.marks_alone and self.tracefs.print_format() is not None:
            return
        why = sources.reasons(refusal.why for refusal in self.refused)
        more = "; --marks-alone records who was late, and not why"
        if self.settings.marks_alone:
            more = "; nor marks, as it has no ftrace:print"
        raise NodeError(
            f"nothing can be recorded here: {why}; it takes Linux 6.5 or later "
            f"with CONFIG_FPROBE_EVENTS, or a kernel with these events{more}"
        )

    def _attach(self, cls: str, after: str | None = None) -> bool:
        attached, refused = sources.choose(
            cls,
            self.tracefs,
            self.instance,
            self.group,
            self.settings.min_ns,
            after=after,
            only=self.settings.providers,
        )
        self.refused += refused
        if attached is None:
            return False
        self.attached.append(attached)
        name = attached.source.name
        self.tallies[name] = Tally(attached.source, attached.specs)
        if attached.source.oracle:
            counter = self._counter(attached.source)
            self.oracles[name] = Oracle(
                attached.source.oracle, self.host, self.facts, counter
            )
        if self.settings.min_ns and attached.durations:
            self._cut.add(name)
        for event in self._events(attached.specs):
            system = event.partition(":")[0]
            try:
                layout = pages.layout(self.tracefs.format(event), system)
            except ValueError as error:
                raise NodeError(f"{event}: {error}") from None
            self._layouts[layout.id] = layout
        return True

    def _counter(self, source: Source) -> Counter | None:
        """The counter for a source's oracle; None if it has none, or it fails."""
        if source.oracle != "counted":
            return None
        try:
            counter = self.tracefs.counter(self.group, source.cls)
        except Refused as error:
            self.say(f"{source.name}: nothing to compare with: {error}")
            return None
        self._counters.append(counter)
        enabled, why = 0, ""
        for event in sources.counting(source, self.tracefs, self.group):
            try:
                counter.enable(event)
                enabled += 1
            except Refused as error:
                why = f": {error}"
        if not enabled or enabled < len(source.counted):
            self.say(f"{source.name}: nothing to compare with{why}")
            return None
        return counter

    def _events(self, specs: Sequence[dict[str, Any]]) -> list[str]:
        names = [spec.get(end) for spec in specs for end in ("begin", "end")]
        return [name for name in dict.fromkeys(names) if name]

    def _make_dir(self) -> None:
        safe = re.sub(r"[^\w.-]", "_", self.host.node)[:100].lstrip(".-") or "node"
        self.dir = self.settings.out / f"{safe}-{self.began}"
        try:
            self.dir.mkdir(parents=True)
        except OSError as error:
            raise files.failure(self.dir, error) from None
        try:
            (self.dir / "segments").mkdir()
            self.dir.chmod(0o700)
            self._in_use = files.in_use(self.dir)
            self._facts_file = os.open(
                self.dir / "facts.jsonl",
                os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC,
                0o600,
            )
            # Deleted on a full disk, so that the end of the recording can be written.
            with (self.dir / ".reserve").open("wb") as file:
                file.write(os.urandom(_RESERVE))
        except OSError as error:
            self._remove_dir()
            raise files.failure(self.dir, error) from None

    def _remove_dir(self) -> None:
        """Remove what `_make_dir` made: a supervisor may try again for days."""
        if self._facts_file is not None:
            os.close(self._facts_file)
            self._facts_file = None
        self._make_room()
        with contextlib.suppress(OSError):
            (self.dir / "facts.jsonl").unlink(missing_ok=True)
            (self.dir / "segments").rmdir()
            self.dir.rmdir()

    def _make_room(self) -> None:
        if self.dir == self.settings.out:
            return  # it has made no directory, and a file of that name is not its own
        with contextlib.suppress(OSError):
            (self.dir / ".reserve").unlink()

    def _write_formats(self, *attached: sources.Attached) -> None:
        texts = {"ftrace:print": self.tracefs.print_format()}
        for entry in attached:
            for event in self._events(entry.specs):
                texts[event] = self.tracefs.format(event)
        for event, text in texts.items():
            if text is None:
                continue
            path = self.dir / "formats" / event.replace(":", "/")
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, "utf-8")
            except OSError as error:
                raise files.failure(path, error) from None

    def _write_session(self, ended: int | None) -> None:
        settings = self.settings
        config = {
            "classes": list(settings.classes),
            "min_ns": settings.min_ns,
            "max_rate": settings.max_rate,
            "ring": settings.ring,
            "max_mb": settings.max_mb if settings.ring else None,
            "buffer_kb": settings.buffer_kb,
            "marks_alone": settings.marks_alone,
            "version": VERSION,
        }
        files.replace(
            self.dir / "session.json",
            {
                "format": FORMAT,
                "node": self.host.node,
                "boot_id": self.host.boot_id,
                "kernel": self.host.kernel,
                "instance": INSTANCE,
                "began": self.began,
                "ended": ended,
                "recorder": {"pid": os.getpid(), "starttime": self.since},
                "page_size": pages.PAGE,
                "config": config,
                "providers": [
                    spec for attached in self.attached for spec in attached.specs
                ],
                "refused": [refusal.as_json() for refusal in self.refused],
            },
        )

    # -- while recording --------------------------------------------------------------

    def _loop(self) -> None:
        poller = select.poll()
        self._watch(poller)
        by_handle = {handle: cpu for cpu, handle in self._raw.items()}
        now = time.monotonic()
        until = None if self.settings.seconds is None else now + self.settings.seconds
        due, looked, read = now + PERIOD, now, now
        while not self.stopping:
            now = time.monotonic()
            if until is not None and now >= until:
                return
            ready, took = poller.poll(_TICK * 1000), 0
            for handle, event in ready:
                took += self._drain(by_handle[handle])
                if event & select.POLLERR:
                    poller.unregister(handle)
            if ready and not took:
                # A stand-in for the pipe that is always ready: do not spin.
                time.sleep(_TICK / 10)
            now = time.monotonic()
            if now - looked >= 1:
                looked = now
                for cpu, segments in self._segments.items():
                    if segments.due(now):
                        segments.seal(self.instance.stats(cpu))
                self._keep_within()
            if read + _READ <= now < due:
                read = now
                self._round()
                self._look_at_rate(now)
            if now >= due:
                read, due = now, now + PERIOD
                self._period()
                self._look_at_rate(now)
                self._watch(poller)

    def _watch(self, poller: select.poll) -> None:
        """Have it wait for all CPUs.

        Those that were never up have no buffer: for them it returns at once.
        """
        for handle in self._raw.values():
            poller.register(handle, select.POLLIN)

    def _period(self) -> None:
        # The pages are read between the two readings of the oracles.
        early = {name: oracle.read() for name, oracle in self.oracles.items()}
        until = self._round()
        late = self._read_late()
        self._count_losses()
        self._refuse_disagreeing(early, late)
        for name, oracle in self.oracles.items():
            if name in early and name not in self._cut:
                oracle.look(self.tallies[name], early[name], late[name], until)
        if self._seal_aged(until):
            self._note_verdicts(early, late, until)
        for name, oracle in self.oracles.items():
            if name in early:
                oracle.settle(self.tallies[name], early[name], late[name])
        self._say_open(until)
        self._clock()
        self.facts.forget()
        self.facts.scan()
        self._write_facts()

    def _read_late(self) -> Looks:
        """Read the oracles after the pages.

        The kernel's AER thread counts errors some time after their interrupt.
        """
        if any(oracle.name.startswith("aer") for oracle in self.oracles.values()):
            time.sleep(_SETTLE)
        return {name: oracle.read() for name, oracle in self.oracles.items()}

    def _note_verdicts(self, early: Looks, late: Looks, until: int) -> None:
        """Note comparisons as of ``until``, unless they are as noted before.

        A recording may be fetched before it ends, or its recorder may be killed.
        """
        for name, oracle in self.oracles.items():
            if name not in early:
                continue  # another one was refused just now, and this is its successor
            for verdict in oracle.verdicts(
                self.tallies[name], early[name], late[name], whole=name not in self._cut
            ):
                key = (name, verdict.scope)
                if self._noted.get(key) != verdict and not _may_pass(verdict):
                    self._noted[key] = verdict
                    dated = verdict._replace(until=verdict.until or until)
                    self._fact(dated.fact(name))

    def _seal_aged(self, until: int) -> bool:
        """Once one segment is old enough, seal all; whether all is noted as complete.

        A collector gets only sealed segments, and a job that hangs writes no records:
        only this note shows that nothing happened since.
        """
        now = time.monotonic() + PERIOD
        if any(segment.due(now) for segment in self._segments.values()):
            for cpu, segments in self._segments.items():
                segments.seal(self.instance.stats(cpu))
        if any(segment.open for segment in self._segments.values()):
            return False
        self._complete(until)
        return True

    def _complete(self, until: int | None) -> None:
        """Note which segments a copy needs to have everything before ``until``.

        Nothing is noted if that is None: not everything is in segments.
        """
        if until is None:
            return
        after = {str(cpu): segment.next for cpu, segment in self._segments.items()}
        self._fact({"kind": "complete", "until": until, "segments": after})

    def _say_open(self, until: int) -> None:
        """List stalls that have lasted long and may never end, each once."""
        since = until - int(PERIOD * 1e9)
        # The end of a suspended source's stall would not be recorded.
        names = [
            attached.source.name
            for attached in self._active
            if not any(spec.get("suspended") for spec in attached.specs)
        ]
        stalls = [
            (record, name, tid)
            for name in names
            for record, tid in self.tallies[name].open_since(since)
            if (record.t, record.cpu) not in self._lasting
        ]
        for record, name, tid in stalls[:_LISTED]:
            who = "of no thread" if tid is None else f"thread {tid}"
            comm = None if tid is None else self.host.text(f"/proc/{tid}/comm")
            who += f" ({comm})" if comm else ""
            cls = self.tallies[name].source.cls
            lasted = (until - record.t) / 1e9
            self.say(f"{cls}: {who}: no end seen for {lasted:.0f} s ({name})")
        if len(stalls) > _LISTED:
            self.say(f"and {len(stalls) - _LISTED} more without an end")
        self._lasting |= {(record.t, record.cpu) for record, _, _ in stalls}

    def _round(self) -> int:
        """Read all CPUs; everything before the time that is returned is now read."""
        until = time.monotonic_ns()
        for cpu in self._raw:
            self._stats[cpu] = self.instance.stats(cpu)
            if self._stats[cpu].get("entries", 1):
                self._drain_all(cpu)
        self._tally(until)
        self._write_facts()
        return until

    def _drain_all(self, cpu: int) -> None:
        """Read all that a CPU's buffer has now.

        More may come meanwhile, so no more than twice its size is read.
        """
        left = 2 * (self.settings.buffer_kb << 10) // pages.PAGE
        count = _CHUNK
        while count == _CHUNK and left > 0:
            count = self._drain(cpu)
            left -= count

    def _drain(self, cpu: int) -> int:
        """Read pages of one CPU that are there, up to `_CHUNK`; how many."""
        chunk: list[bytes] = []
        handle = self._raw[cpu]
        try:
            while len(chunk) < _CHUNK:
                page = os.read(handle, pages.PAGE)
                if not page:
                    break
                chunk.append(page.ljust(pages.PAGE, b"\0"))
        except BlockingIOError:
            pass
        except OSError as error:
            # A CPU that was not up since then has no buffer.
            if error.errno != errno.ENODEV:
                text = f"cpu{cpu}: its buffer cannot be read: {error}"
                raise NodeError(text) from None
        if not chunk:
            return 0
        missed = sum(pages.missed(page) for page in chunk)
        self._missed[cpu] = self._missed.get(cpu, 0) + missed
        count = len(chunk)
        data = b"".join(chunk)
        self._busy += sum(map(pages.used, chunk))
        tallied = self._busy <= _TALLIED
        sample = chunk if tallied else chunk[::_SAMPLED]
        read = [
            record
            for page in sample
            for record in pages.records(page, cpu, self._layouts)
        ]
        for record in read:
            event = record.layout.event
            self._kinds[event] = self._kinds.get(event, 0) + count // len(sample)
        if tallied:
            self._pending += read
        else:
            for tally in self.tallies.values():
                tally.complete = False
            self._pending.clear()
        self._write_pages(cpu, data)
        return count

    def _write_pages(self, cpu: int, data: bytes) -> None:
        segments = self._segments[cpu]
        try:
            segments.write(data, time.monotonic())
        except Full:
            self._loss(cpu, None, None, "disk full")
            raise
        if segments.due(time.monotonic()):
            segments.seal(self.instance.stats(cpu))

    def _tally(self, until: int | None = None) -> None:
        """Tally pending records of all CPUs in the order of time.

        Those after ``until`` wait, as records of other CPUs may be older.
        """
        ordered = sorted(self._pending, key=lambda record: record.t)
        self._pending.clear()
        for record in ordered:
            if until is not None and record.t > until:
                self._pending.append(record)
                continue
            if record.layout.event == _MARK:
                # A thread that writes marks may be of a rank that started meanwhile.
                self.facts.thread(record.pid)
                continue
            for tally in self.tallies.values():
                tally.take(record, self.facts)

    def _refuse_disagreeing(self, early: Looks, late: Looks) -> None:
        """Replace each source that disagrees by the next source of its class."""
        for attached in self._active:
            name = attached.source.name
            oracle = self.oracles.get(name)
            if oracle is None or not oracle.name.startswith("cpu.stat"):
                continue
            bad = [
                verdict
                for verdict in oracle.verdicts(
                    self.tallies[name],
                    early[name],
                    late[name],
                    whole=name not in self._cut,
                )
                if verdict.verdict == "disagrees" and not _may_pass(verdict)
            ]
            if bad:
                self._replace(attached, bad)

    def _replace(self, attached: sources.Attached, bad: Sequence[Verdict]) -> None:
        name = attached.source.name
        why = f"disagrees with {attached.source.oracle}: " + ", ".join(
            f"{verdict.scope}: {verdict.ours} ns, the kernel says {verdict.theirs} ns"
            for verdict in bad[:3]
        )
        self.say(f"{name} {why}; refused")
        self.refused.append(sources.Refusal(name, attached.source.cls, why))
        for verdict in bad:
            self._fact(verdict.fact(name))
        for event in self._events(attached.specs):
            with contextlib.suppress(Refused):
                self.instance.enable(event, False)
        del self.oracles[name], self.tallies[name]
        now = time.monotonic_ns()
        self._loss(None, self.began, now, f"refused {name}")
        # Its events are on at once: what ends before the next reading may be recorded.
        looks = {
            source.oracle: Oracle(source.oracle, self.host, self.facts).read()
            for source in of(attached.source.cls)
            if source.oracle
        }
        if self._attach(attached.source.cls, after=name):
            replacement = self.attached[-1]
            self._write_formats(replacement)
            oracle = self.oracles.get(replacement.source.name)
            if oracle is not None:
                oracle.before(looks[oracle.name])
                oracle.began()
            self.say(f"{replacement.source.cls}: {replacement.source.name} instead")
        self._write_session(None)

    def _look_at_rate(self, now: float) -> None:
        """Measure records a second, after a round; if too many, cut the busiest event.

        Marks do not count: they cannot be cut, and any user may write many.
        """
        total, (then, before) = self._written(), self._rated
        self._rated = (now, total)
        rate = (total - before) / max(now - then, 0.001)
        if rate > self.settings.max_rate:
            counted = sum(self._kinds.values())
            rate *= 1 - self._kinds.pop(_MARK, 0) / max(1, counted)
            if rate > self.settings.max_rate:
                self._cut_busiest(int(rate))
        self._kinds.clear()
        self._busy = 0

    def _written(self) -> int:
        """How many records were written into the buffers, as of the last round."""
        names = ("read", "entries", "overrun", "dropped")
        return sum(
            stats.get(name, 0) for stats in self._stats.values() for name in names
        )

    def _cut_busiest(self, rate: int) -> None:
        """Raise the threshold of the busiest event; without a duration, suspend it."""
        users = {
            event: attached
            for attached in self._active
            for event in self._events(
                [spec for spec in attached.specs if not spec.get("suspended")]
            )
        }
        counted = {event: self._kinds.get(event, 0) for event in users}
        event = max(counted, key=counted.__getitem__, default=None)
        if event is None or not counted[event]:
            return
        attached, now = users[event], time.monotonic_ns()
        specs = [
            spec for spec in attached.specs if event in (spec.get("begin"), spec["end"])
        ]
        member, least = attached.durations.get(event), specs[0]["min_ns"] or 0
        if member is not None and least < _HIGHEST:
            least = min(_HIGHEST, max(1000, least * _RAISE))
            self.instance.filter(event, f"{member} >= {least}")
            specs[0]["min_ns"] = least
            name = specs[0]["provider"]
            self._report_cut(attached, f"threshold {name} {least} ns", now)
            what = f"records only what lasted {least} ns or longer from now on"
        else:
            name = self._suspend(attached, specs, now)
            what = "is suspended"
        self.say(f"{rate} records a second: {name} {what}")
        self._write_session(None)

    def _suspend(
        self, attached: sources.Attached, specs: list[dict[str, Any]], now: int
    ) -> str:
        """Switch off events of these providers that no others need; their name."""
        for spec in specs:
            spec["suspended"] = now
        rest = [spec for spec in attached.specs if not spec.get("suspended")]
        for event in set(self._events(specs)) - set(self._events(rest)):
            with contextlib.suppress(Refused):
                self.instance.enable(event, False)
        whole = specs[0]["provider"] if rest else attached.source.name
        self._report_cut(attached, f"suspended {whole}", now)
        return str(whole)

    def _report_cut(self, attached: sources.Attached, reason: str, now: int) -> None:
        self._cut.add(attached.source.name)
        self._loss(None, now, None, reason)

    def _keep_within(self) -> None:
        """With --ring, delete the oldest segments if there are too many."""
        if self._older is None:
            return
        limit = self.settings.max_mb << 20
        self._older.shrink(limit - self._size, _DROPS)
        while self._size > limit:
            cpu = min(
                (cpu for cpu, segments in self._segments.items() if segments.sealed),
                key=lambda cpu: self._segments[cpu].oldest,
            )
            until = self._segments[cpu].drop_oldest()
            for tally in self.tallies:
                self._cut.add(tally)
            self._loss(cpu, self.began, until, "ring")

    @property
    def _size(self) -> int:
        """The bytes in sealed segments."""
        return sum(segments.size for segments in self._segments.values())

    # -- facts ------------------------------------------------------------------------

    def _fact(self, fact: dict[str, Any]) -> None:
        if self._facts_file is None:
            return
        line = json.dumps(fact).encode() + b"\n"
        size = os.fstat(self._facts_file).st_size
        try:
            files.write_all(self._facts_file, line)
        except OSError as error:
            # Once there is room, others follow, and only the last line may be torn.
            os.ftruncate(self._facts_file, size)
            raise files.failure(self.dir / "facts.jsonl", error) from None

    def _write_facts(self) -> None:
        for fact in self.facts.take():
            self._fact(fact)

    def _clock(self) -> None:
        mono, real, bound = clock_pair()
        self._fact(
            {
                "kind": "clock",
                "t_mono": mono,
                "t_real": real,
                "peer": None,
                "offset": None,
                "bound": bound,
                "method": "adjtimex",
            }
        )

    def _loss(
        self,
        cpu: int | None,
        t0: int | None,
        t1: int | None,
        reason: str,
        n: int | None = None,
    ) -> None:
        fact = {"kind": "loss", "cpu": cpu, "t0": t0, "t1": t1, "n": n}
        with contextlib.suppress(Full):
            self._fact({**fact, "reason": reason})

    def _count_losses(self) -> None:
        """Note losses that pages do not show: records that never reached the buffer."""
        now = time.monotonic_ns()
        for cpu in self._raw:
            stats = self.instance.stats(cpu)
            before = self._counted.get(cpu, {})
            for name in ("dropped", "commit_overrun"):
                grown = stats.get(name, 0) - before.get(name, 0)
                if grown > 0:
                    t0 = before.get("t", self.began)
                    self._loss(cpu, t0, now, name.replace("_", " "), grown)
            overrun = stats.get("overrun", 0)
            if overrun > before.get("overrun", 0):
                # No loss is noted: the pages count these, at their place.
                for tally in self.tallies.values():
                    tally.complete = False
            self._counted[cpu] = {**stats, "t": now}

    # -- the end ----------------------------------------------------------------------

    def _finish(self, *, full: bool = False) -> None:
        if self._facts_file is None:
            return
        early = {name: oracle.read() for name, oracle in self.oracles.items()}
        with contextlib.suppress(Refused):
            self.instance.switch(False)
        ended = time.monotonic_ns()
        late = self._read_late()
        unread = None
        if full:
            self._leave(None, ended)
        else:
            self._busy = 0
            unread = self._drain_rest(ended)
        whole = not full and unread is None
        self._tally()
        self._count_losses()
        for cpu in self._raw:
            # All was read: what is left is overwritten records that no page counts.
            rest = self.instance.stats(cpu).get("overrun", 0) - self._missed.get(cpu, 0)
            if rest > 0 and not full:
                self._loss(cpu, self.began, ended, "overrun", rest)
        for cpu, segments in self._segments.items():
            segments.seal(self.instance.stats(cpu))
        self._make_room()
        self._complete(ended if whole else None)
        for name, oracle in self.oracles.items():
            verdicts = oracle.verdicts(
                self.tallies[name],
                early[name],
                late[name],
                whole=name not in self._cut and whole,
            )
            for verdict in verdicts:
                self._fact(verdict.fact(name))
                if verdict.verdict == "disagrees":
                    unit = "" if verdict.metric == "count" else " ns"
                    self.say(
                        f"{name} disagrees with {oracle.name} ({verdict.scope}: "
                        f"{verdict.ours}{unit}, the kernel says {verdict.theirs}{unit}"
                        "); refused: nothing is claimed from it"
                    )
                    self.refused.append(
                        sources.Refusal(
                            name,
                            self.tallies[name].source.cls,
                            f"disagrees with {oracle.name}",
                        )
                    )
        self._clock()
        self.facts.scan()
        self._write_facts()
        self._write_session(ended)
        self.say(
            f"{self.dir}: {self._size >> 10} KB of records; next, where you "
            "analyse: kstall fleet pull, or copy it and run kstall seal"
        )
        if unread is not None:
            raise unread

    def _drain_rest(self, ended: int) -> NodeError | None:
        """Read what is left; why some of it cannot be read, None if all was."""
        unread = None
        for cpu in self._raw:
            try:
                while self._drain(cpu):
                    continue
            except Full:
                raise
            except NodeError as error:
                unread = error
                self._leave(cpu, ended)
        return unread

    def _leave(self, cpu: int | None, ended: int) -> None:
        """Note as lost what is in the buffer of a CPU, or of all."""
        cpus = self._raw if cpu is None else [cpu]
        left = sum(self.instance.stats(number).get("entries", 0) for number in cpus)
        self._loss(cpu, None, ended, "not read", left)
        for tally in self.tallies.values():
            tally.complete = False

    def _clean(self) -> None:
        """Disable, remove and close everything, also after an error."""
        for handle in self._raw.values():
            with contextlib.suppress(OSError):
                os.close(handle)
        self._raw.clear()
        for segments in self._segments.values():
            segments.abandon()
        if self._instance is not None and not self._instance.close():
            self.say(
                "a process holds its trace_marker open, so the instance stays, empty"
            )
        for counter in self._counters:
            counter.close()
        for left in self.tracefs.remove_probes(self.group):
            self.say(left)
        if self._facts_file is not None:
            os.close(self._facts_file)
            self._facts_file = None
        if self._in_use is not None:
            os.close(self._in_use)
            self._in_use = None
        self._make_room()


def _may_pass(verdict: Verdict) -> bool:
    """Whether it disagrees by so little that the next look may agree.

    A stall that goes on at a reading is in neither sum.
    """
    return (
        verdict.verdict == "disagrees"
        and verdict.metric != "count"
        and (verdict.theirs or 0) < ENOUGH_NS
    )


def record(host: Host, settings: Settings) -> int:
    """Record until SIGINT, SIGTERM or SIGHUP; the exit status."""
    recorder = Recorder(host, settings)

    def stop(number: int, frame: object) -> None:
        recorder.stopping = True

    before = {
        number: signal.signal(number, stop)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    }
    try:
        return recorder.run()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
