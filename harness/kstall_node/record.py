# SPDX-License-Identifier: GPL-2.0-or-later
"""Record: enable sources of the catalogue, drain pages, and note what was lost."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import select
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from . import FORMAT, VERSION, pages, sources, tracefs
from .buffers import CHUNK, Buffers
from .catalogue import Source, of
from .errors import Full, NodeError, shown
from .facts import Facts
from .host import Host
from .journal import Journal
from .limiter import Limiter
from .older import Older
from .oracles import ENOUGH_NS, Oracle, Tally, Verdict
from .tracefs import INSTANCE, MARK, Instance, Refused, Tracefs

#: Seconds between readings of clocks, processes and oracles.
PERIOD = 10.0
#: A thread is looked up when its first record is read, and may be gone by then; so
#: buffers are read every few seconds, even if they hold less than a page.
_READ = 2.0
_TICK = 0.5
_SETTLE = 0.2
#: Bytes between two rounds that are tallied for oracles, as in 40 full pages a second;
#: with more that is left to `kstall seal`.
_TALLIED = int(_READ) * 40 * pages.PAGE
#: Of pages that are not tallied, every how many is read to know which event is busy.
_SAMPLED = 64
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
        self.journal = Journal(settings.out)
        self.attached: list[sources.Attached] = []
        self.refused: list[sources.Refusal] = []
        self.tallies: dict[str, Tally] = {}
        self.oracles: dict[str, Oracle] = {}
        self._layouts: dict[int, pages.Layout] = {}
        self._counters: list[tracefs.Counter] = []
        self._pending: list[pages.Record] = []
        #: Providers whose thresholds rose meanwhile, or which were suspended.
        self._cut: set[str] = set()
        #: The comparisons that were noted last, by provider and scope.
        self._noted: dict[tuple[str, str], Verdict] = {}
        #: Stalls without an end that were listed already: time and CPU.
        self._lasting: set[tuple[int, int]] = set()
        self._busy = 0
        self.began = 0
        self.stopping = False
        self._instance: Instance | None = None
        self._buffers: Buffers | None = None
        self._limiter: Limiter | None = None
        self._older: Older | None = None

    # -- one recording ----------------------------------------------------------------

    def run(self) -> int:
        """Record until `stopping` is set or the time is over; the exit status."""
        status = 0
        with self._alone():
            for left in self.tracefs.remove_dead():
                self.say(f"removed {left}")
            kb = self.settings.buffer_kb
            instance = self._instance = self.tracefs.instance(kb)
            self._buffers = Buffers(instance, kb)
            self._limiter = Limiter(
                self.settings.max_rate, instance, self.journal, self.say
            )
            try:
                try:
                    self._begin()
                    self._loop()
                except Full as error:
                    status = 1
                    self.journal.make_room()
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
    def buffers(self) -> Buffers:
        """The buffers of its ftrace instance."""
        assert self._buffers is not None
        return self._buffers

    @property
    def limiter(self) -> Limiter:
        """What keeps the rate of its records low."""
        assert self._limiter is not None
        return self._limiter

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
        self.journal.make(self.host.node, self.began)
        self._write_formats(*self.attached)
        self.buffers.open(self.journal.dir / "segments")
        self.facts.scan()
        for oracle in self.oracles.values():
            oracle.before()
        if self.settings.open_marker:
            self.instance.open_marker()
        self.instance.switch(True)
        for oracle in self.oracles.values():
            oracle.began()
        self._write_session(None)
        self.journal.note_clock()
        self.journal.note(*self.facts.take())
        self.limiter.begin(self.buffers.written)
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
        self.say(f"recording into {self.journal.dir}, {until}")

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
        for event in sources.events(attached.specs):
            system = event.partition(":")[0]
            try:
                layout = pages.layout(self.tracefs.format(event), system)
            except ValueError as error:
                raise NodeError(f"{event}: {error}") from None
            self._layouts[layout.id] = layout
        return True

    def _counter(self, source: Source) -> tracefs.Counter | None:
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

    def _write_formats(self, *attached: sources.Attached) -> None:
        texts = {MARK: self.tracefs.print_format()}
        for entry in attached:
            for event in sources.events(entry.specs):
                texts[event] = self.tracefs.format(event)
        self.journal.write_formats(
            {event: text for event, text in texts.items() if text is not None}
        )

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
        self.journal.write_session(
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
        self.buffers.watch(poller)
        by_handle = {handle: cpu for cpu, handle in self.buffers.handles.items()}
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
                self.buffers.seal_due(now)
                self._keep_within()
            if read + _READ <= now < due:
                read = now
                self._round()
                self._look_at_rate(now)
            if now >= due:
                read, due = now, now + PERIOD
                self._period()
                self._look_at_rate(now)
                self.buffers.watch(poller)

    def _period(self) -> None:
        # The pages are read between the two readings of the oracles.
        early = {name: oracle.read() for name, oracle in self.oracles.items()}
        until = self._round()
        late = self._read_late()
        self._note_losses()
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
        self.journal.note_clock()
        self.facts.forget()
        self.facts.scan()
        self.journal.note(*self.facts.take())

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
                    self.journal.note(dated.fact(name))

    def _seal_aged(self, until: int) -> bool:
        """Once one segment is old enough, seal all; whether all is noted as complete.

        A collector gets only sealed segments, and a job that hangs writes no records:
        only this note shows that nothing happened since.
        """
        now = time.monotonic() + PERIOD
        if self.buffers.any_due(now):
            self.buffers.seal_all()
        if self.buffers.any_open:
            return False
        self._complete(until)
        return True

    def _complete(self, until: int | None) -> None:
        """Note which segments a copy needs to have everything before ``until``.

        Nothing is noted if that is None: not everything is in segments.
        """
        if until is None:
            return
        self.journal.note(
            {"kind": "complete", "until": until, "segments": self.buffers.next}
        )

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
        for cpu in self.buffers.handles:
            if self.buffers.look(cpu):
                self._drain_all(cpu)
        self._tally(until)
        self.journal.note(*self.facts.take())
        return until

    def _drain_all(self, cpu: int) -> None:
        """Read all that a CPU's buffer has now, and not all that comes meanwhile."""
        left = self.buffers.most
        count = CHUNK
        while count == CHUNK and left > 0:
            count = self._drain(cpu)
            left -= count

    def _drain(self, cpu: int) -> int:
        """Read pages of one CPU that are there, up to `CHUNK`; how many."""
        chunk = self.buffers.read(cpu)
        if not chunk:
            return 0
        count = len(chunk)
        self._busy += sum(map(pages.used, chunk))
        tallied = self._busy <= _TALLIED
        sample = chunk if tallied else chunk[::_SAMPLED]
        read = [
            record
            for page in sample
            for record in pages.records(page, cpu, self._layouts)
        ]
        kinds = Counter(record.layout.event for record in read)
        share = count // len(sample)
        self.limiter.count({event: number * share for event, number in kinds.items()})
        if tallied:
            self._pending += read
        else:
            for tally in self.tallies.values():
                tally.complete = False
            self._pending.clear()
        self._write_pages(cpu, b"".join(chunk))
        return count

    def _write_pages(self, cpu: int, data: bytes) -> None:
        try:
            self.buffers.write(cpu, data)
        except Full:
            self.journal.note_loss(cpu, None, None, "disk full")
            raise

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
            if record.layout.event == MARK:
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
            self.journal.note(verdict.fact(name))
        for event in sources.events(attached.specs):
            with contextlib.suppress(Refused):
                self.instance.enable(event, False)
        del self.oracles[name], self.tallies[name]
        now = time.monotonic_ns()
        self.journal.note_loss(None, self.began, now, f"refused {name}")
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
        """Cut the busiest event if there are too many records, after a round."""
        if cut := self.limiter.look(now, self.buffers.written, self._active):
            self._cut.add(cut)
            self._write_session(None)
        self._busy = 0

    def _keep_within(self) -> None:
        """With --ring, delete the oldest segments if there are too many."""
        if self._older is None:
            return
        limit = self.settings.max_mb << 20
        self._older.shrink(limit - self.buffers.size, _DROPS)
        while self.buffers.size > limit:
            cpu, until = self.buffers.drop_oldest()
            for tally in self.tallies:
                self._cut.add(tally)
            self.journal.note_loss(cpu, self.began, until, "ring")

    def _note_losses(self) -> None:
        """Note losses that pages do not show: records that never reached the buffer."""
        lost, overwritten = self.buffers.lost()
        for cpu, t0, t1, reason, n in lost:
            self.journal.note_loss(cpu, t0 or self.began, t1, reason, n)
        if overwritten:
            for tally in self.tallies.values():
                tally.complete = False

    # -- the end ----------------------------------------------------------------------

    def _finish(self, *, full: bool = False) -> None:
        if not self.journal.is_open:
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
        self._note_losses()
        for cpu in self.buffers.handles if not full else ():
            # All was read: what is left is overwritten records that no page counts.
            if (rest := self.buffers.overwritten(cpu)) > 0:
                self.journal.note_loss(cpu, self.began, ended, "overrun", rest)
        self.buffers.seal_all()
        self.journal.make_room()
        self._complete(ended if whole else None)
        for name, oracle in self.oracles.items():
            verdicts = oracle.verdicts(
                self.tallies[name],
                early[name],
                late[name],
                whole=name not in self._cut and whole,
            )
            for verdict in verdicts:
                self.journal.note(verdict.fact(name))
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
        self.journal.note_clock()
        self.facts.scan()
        self.journal.note(*self.facts.take())
        self._write_session(ended)
        self.say(
            f"{self.journal.dir}: {self.buffers.size >> 10} KB of records; next, "
            "where you analyse: kstall fleet pull, or copy it and run kstall seal"
        )
        if unread is not None:
            raise unread

    def _drain_rest(self, ended: int) -> NodeError | None:
        """Read what is left; why some of it cannot be read, None if all was."""
        unread = None
        for cpu in self.buffers.handles:
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
        left = self.buffers.left(self.buffers.handles if cpu is None else [cpu])
        self.journal.note_loss(cpu, None, ended, "not read", left)
        for tally in self.tallies.values():
            tally.complete = False

    def _clean(self) -> None:
        """Disable, remove and close everything, also after an error."""
        if self._buffers is not None:
            self._buffers.close()
        if self._instance is not None and not self._instance.close():
            self.say(
                "a process holds its trace_marker open, so the instance stays, empty"
            )
        for counter in self._counters:
            counter.close()
        for left in self.tracefs.remove_probes(self.group):
            self.say(left)
        self.journal.close()


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
