# SPDX-License-Identifier: GPL-2.0-or-later
"""A store as Perfetto TrackEvents, with flows from stalls of late ranks to others.

Tracks have names and no PIDs: two nodes may have the same PID, and Perfetto would make
one process of both.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import duckdb
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb

from . import explain, files, pending, store
from .align import Clock
from .chains import Verdict
from .recording import digest
from .straggler import Job

_SEQUENCE = 1
_STALLS = """
SELECT sid, coalesce(tgid, tid), tid, comm, class, cause, device, provider, id, t0, t1
FROM stall WHERE coalesce(t0, t1) IS NOT NULL ORDER BY sid, tid, class, coalesce(t0, t1)
"""


def write(path: Path, output: Path, job: str | None = None) -> int:
    """Write the timeline of a store; how many packets.  Raises `OpsError`."""
    report = explain.report(path, job)
    with (
        files.replacing(output) as draft,
        store.reading(path) as opened,
        draft.open("wb") as file,
    ):
        writer = _Writer(file, opened, report.seen)
        for verdict in report.verdicts:
            writer.job(verdict)
        writer.stalls()
    return writer.packets


class _Writer:
    def __init__(
        self,
        file: IO[bytes],
        opened: duckdb.DuckDBPyConnection,
        seen: Mapping[int, int],
    ) -> None:
        self.packets = 0
        self._file, self._opened, self._seen = file, opened, seen
        rows = opened.execute("SELECT sid, node, began FROM session").fetchall()
        self._nodes = {sid: node for sid, node, _ in rows}
        self._began = {sid: began for sid, _, began in rows}
        self._until = pending.known_until(opened)
        self._clocks = explain.clocks_of(opened)
        known = [clock for clock in self._clocks.values() if clock.known]
        starts = [clock.at(self._began[clock.sid])[0] for clock in known]
        self._start = min(starts, default=0)
        self._tracks: set[int] = set()
        #: By session, thread and class of stalls: between which times of its clock they
        #: explain a late arrival, and the flow from them.
        self._causes: dict[tuple[str, int, str], list[tuple[int, int, int]]] = {}

    def _packet(self, packet: Any) -> None:
        packet.trusted_packet_sequence_id = _SEQUENCE
        if not self.packets:
            packet.sequence_flags = pb.TracePacket.SEQ_INCREMENTAL_STATE_CLEARED
        self._file.write(pb.Trace(packet=[packet]).SerializeToString())
        self.packets += 1

    def _when(self, sid: str, t: int) -> int:
        """A time on the common scale; unaligned clocks begin at its start."""
        clock: Clock = self._clocks[sid]
        if clock.known:
            return max(0, clock.at(t)[0])
        return max(0, t - int(self._began[sid]) + self._start)

    def _track(self, *names: str) -> int:
        """The track that has these names, from the outermost to its own."""
        parent = 0
        for at in range(len(names)):
            uuid = int.from_bytes(digest("track", *names[: at + 1]), "big") or 1
            if uuid not in self._tracks:
                self._tracks.add(uuid)
                packet = pb.TracePacket()
                packet.track_descriptor.uuid = uuid
                packet.track_descriptor.name = names[at]
                if parent:
                    packet.track_descriptor.parent_uuid = parent
                self._packet(packet)
            parent = uuid
        return parent

    def _node(self, sid: str) -> str:
        doubt = "" if self._clocks[sid].known else " (clock not aligned)"
        return f"{self._nodes[sid]}{doubt}"

    def _slice(
        self,
        track: int,
        begin: int,
        end: int,
        name: str,
        flows: tuple[int, ...] = (),
        notes: dict[str, Any] | None = None,
    ) -> None:
        for kind, when in (
            (pb.TrackEvent.TYPE_SLICE_BEGIN, begin),
            (pb.TrackEvent.TYPE_SLICE_END, max(begin, end)),
        ):
            packet = pb.TracePacket(timestamp=when)
            packet.track_event.type = kind
            packet.track_event.track_uuid = track
            if kind == pb.TrackEvent.TYPE_SLICE_BEGIN:
                packet.track_event.name = name
                packet.track_event.categories.append("kstall")
                packet.track_event.flow_ids.extend(flows)
                for key, value in (notes or {}).items():
                    if value is not None:
                        note = packet.track_event.debug_annotations.add()
                        note.name = key
                        if isinstance(value, int):
                            note.int_value = value
                        else:
                            note.string_value = str(value)
            self._packet(packet)

    def job(self, verdict: Verdict) -> None:
        """Write the steps of each rank, and flows in steps that are explained."""
        job = verdict.job
        explained: dict[tuple[int, int], set[str]] = {}
        for late in verdict.stragglers:
            for finding in late.findings:
                for number in finding.steps if finding.level == "explains" else ():
                    explained.setdefault((late.rank, number), set()).add(finding.cls)
        for at, step in enumerate(job.steps):
            late_by = step.lateness(step.last)
            classes = explained.get((step.last, step.number), set())
            if late_by < job.limit:
                classes = set()
            for rank in job.ranks:
                self._arrival(job, at, rank, sorted(classes))

    def _arrival(self, job: Job, at: int, rank: int, classes: Sequence[str]) -> None:
        """Write one rank's part of a step; ``classes`` explain who came last."""
        step = job.steps[at]
        arrival = step.arrivals[rank]
        who = f"rank {rank} thread {'unknown' if arrival.tid is None else arrival.tid}"
        groups = () if job.group is None else (f"process group {job.group}",)
        track = self._track(self._node(arrival.sid), *groups, who)
        assert arrival.since is not None
        late = step.lateness(rank)
        is_last = step.last == rank and late >= job.limit
        culprit = step.last
        # A step may have several collectives.
        flow = digest("flow", job.name + job.start, at)
        arrow = int.from_bytes(flow, "big") >> 1
        if culprit == rank and arrival.tid is not None:
            for cls in classes:
                self._causes.setdefault((arrival.sid, arrival.tid, cls), []).append(
                    (arrival.since, arrival.enter, arrow)
                )
        begin = self._when(arrival.sid, arrival.since)
        # A host may enqueue the next collective before a device has finished this one.
        enter = max(begin, self._when(arrival.sid, arrival.enter))
        end = self._when(arrival.sid, arrival.exit)
        name = f"compute {step.number}{' (late)' if is_last else ''}"
        self._slice(track, begin, enter, name, notes={"lateness_ns": late})
        # The late rank does not wait: the flow continues to the ranks that do.
        self._slice(
            track,
            enter,
            end,
            f"collective {step.number}",
            flows=(arrow,) if classes and culprit != rank else (),
            notes={"waits_for_rank": None if culprit == rank else culprit},
        )

    def stalls(self) -> None:
        """Write all stalls, each class of a thread on its own tracks."""
        for key, group in self._grouped():
            sid, tgid, tid, comm, cls = key
            who = f"{comm or 'thread'} {tid}" if tid is not None else "no thread"
            process = f"stalls of process {tgid}" if tgid is not None else "devices"
            lanes: list[tuple[int, int]] = []
            for cause, device, provider, id_, t0, t1 in group:
                until = min(self._until[sid], self._seen.get(id_, self._until[sid]))
                end = t1 if t1 is not None else max(t0, until)
                begin = self._when(sid, t0 if t0 is not None else end)
                stop = max(begin, self._when(sid, end))
                # Slices of one track must nest: stalls that overlap get another track.
                if lanes and lanes[0][0] <= begin:
                    lane = heapq.heappop(lanes)[1]
                else:
                    lane = len(lanes)
                heapq.heappush(lanes, (stop, lane))
                name = cls if not lane else f"{cls} {lane + 1}"
                track = self._track(self._node(sid), process, who, name)
                open_end = "" if t1 is not None else " (no end seen)"
                self._slice(
                    track,
                    begin,
                    stop,
                    f"{cls}: {cause or device or 'cause unknown'}{open_end}",
                    flows=self._flows(sid, tid, cls, t0, end),
                    notes={"provider": provider, "id": f"{id_:016x}", "device": device},
                )

    def _flows(
        self, sid: str, tid: int | None, cls: str, t0: int | None, t1: int
    ) -> tuple[int, ...]:
        if tid is None or t0 is None:
            return ()
        return tuple(
            arrow
            for since, enter, arrow in self._causes.get((sid, tid, cls), ())
            if t0 < enter and t1 > since
        )

    def _grouped(self) -> Iterator[tuple[tuple[Any, ...], list[tuple[Any, ...]]]]:
        key: tuple[Any, ...] | None = None
        group: list[tuple[Any, ...]] = []
        result = self._opened.execute(_STALLS)
        while rows := result.fetchmany(10_000):
            for row in rows:
                if key is not None and row[:5] != key:
                    yield key, group
                    group = []
                key = row[:5]
                group.append(row[5:])
        if key is not None:
            yield key, group
