# SPDX-License-Identifier: GPL-2.0-or-later
"""A recording of ``kstall-node record``: a directory, which is only read.

docs/recording.md describes the format.  Damage is reported in one line.  The recording
of a killed recorder is not damaged; what it lacks counts as a loss.
"""

from __future__ import annotations

import collections
import hashlib
import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from kstall.ftrace import Malformed, event, parse_layout, ring

from .errors import NotARecording, shown
from .schema import CLASSES

PAGE = ring.PAGE
#: The format of recordings that this kstall reads; others are refused.
FORMAT = 1
SESSION, FACTS, FORMATS, SEGMENTS = "session.json", "facts.jsonl", "formats", "segments"
#: The fact, and the loss, of what the agent was not to send.
LEFT_OUT = "left out"
_SEGMENT = re.compile(r"cpu(\d{1,4})-(\d{1,9})\.pages")
_CPU = re.compile(r"\d{1,4}")
#: In place of a note that a later one supersedes: the number of facts stays the same.
_SUPERSEDED: Mapping[str, Any] = {"kind": "complete"}
_EVENT = re.compile(r"[\w-]{1,100}")


#: See `Recording.extent`.
Extent = tuple[bool, int, bool, int]


@dataclass(frozen=True)
class Segment:
    """Pages of one CPU; ``first`` is the number of the first page."""

    path: Path
    cpu: int
    seq: int
    first: int
    sealed: bool

    def pages(self) -> Iterator[tuple[int, bytes]]:
        """(number, page) for each whole page; an open segment may end in a torn one."""
        with self.path.open("rb") as file:
            number = self.first
            while len(page := file.read(PAGE)) == PAGE:
                yield number, page
                number += 1


class Gap(NamedTuple):
    """Missing segments of one CPU: numbers from ``first`` to just before ``after``."""

    cpu: int
    first: int
    after: int


@dataclass(frozen=True)
class Recording:
    """The content of a directory, without the pages themselves."""

    dir: Path
    sid: str
    session: Mapping[str, Any]
    layouts: Sequence[event.Layout]
    segments: Sequence[Segment]
    gaps: Sequence[Gap]
    facts: Sequence[Mapping[str, Any]]
    remarks: Sequence[str]
    #: If the agent was to leave out what was before, the time from which all was sent.
    since: int | None = None

    @property
    def pages(self) -> int:
        """How many pages there are, open segments included."""
        return sum(segment.path.stat().st_size // PAGE for segment in self.segments)

    @property
    def complete(self) -> int | None:
        """Up to when a recording without an end is complete, by its recorder's notes.

        A note counts only if its segments are here, or --ring has deleted them: they
        may have been sealed after a collector had listed the files.
        """
        reached = _reached(self.segments, self.facts)
        for fact in reversed(self.facts):
            if fact["kind"] == "complete" and _is_covered(fact, reached):
                return int(fact["until"])
        return None

    @property
    def unrecorded(self) -> dict[str, str]:
        """Classes that were not recorded, and why."""
        config = self.session.get("config")
        wanted = config.get("classes") if isinstance(config, dict) else None
        taken = [
            provider.get("class")
            for provider in self.session["providers"]
            if isinstance(provider, dict)
        ]
        refused = self.session.get("refused")
        whys: dict[str, list[str]] = {}
        for refusal in refused if isinstance(refused, list) else []:
            if isinstance(refusal, dict):
                why = str(refusal.get("why"))
                whys.setdefault(str(refusal.get("class")), []).append(why)
        reasons = {}
        for name in CLASSES:
            if isinstance(wanted, list) and name not in wanted:
                reasons[name] = "not asked for"
            elif name not in taken:
                reasons[name] = "; ".join(
                    dict.fromkeys(whys.get(name, ["no reason given"]))
                )
        return reasons

    @property
    def noted(self) -> int:
        """How many facts the recorder wrote: `fleet pull` adds pings of its own."""
        return sum(fact.get("method") != "ping" for fact in self.facts)

    @property
    def extent(self) -> Extent:
        """A key to compare copies of one recording: the later one is larger.

        The recorder only adds facts; pages it also deletes, with --ring.
        """
        ended = self.session.get("ended") is not None
        return ended, self.noted, self.since is None, self.pages


def load(dir: Path) -> Recording:
    """Read ``dir``.  Raises `NotARecording`."""
    session = session_of(dir)
    remarks: list[str] = []
    segments = _segments(dir, remarks)
    # What --ring deletes is noted later than the note that names it.
    reached = _reached(segments, _facts(dir, []))
    facts = _with_last_notes(_facts(dir, remarks), reached)
    since, firsts = _left_out(dir, facts)
    # Copies are compared by their facts, and this is of the copy.
    facts = [fact for fact in facts if fact["kind"] != LEFT_OUT]
    gaps = _gaps(session, facts, segments, firsts)
    remarks += [
        f"cpu{cpu}: {_numbers(first, after)} missing: copy it again"
        for cpu, first, after in gaps
    ]
    if session.get("ended") is None:
        remarks.append("no end: it is still being recorded, or the recorder was killed")
    return Recording(
        dir=dir,
        sid=sid_of(session),
        session=session,
        layouts=_layouts(dir),
        segments=segments,
        gaps=gaps,
        facts=facts,
        remarks=remarks,
        since=since,
    )


def _left_out(
    dir: Path, facts: Iterable[Mapping[str, Any]]
) -> tuple[int | None, dict[int, int]]:
    """Since when all was sent, and by CPU the first segment; None if all was."""
    for fact in facts:
        if fact["kind"] == LEFT_OUT:
            since, firsts = fact.get("until"), fact.get("segments")
            if not (isinstance(since, int) and isinstance(firsts, dict)):
                raise NotARecording(f"{dir / FACTS}: what was left out is not known")
            return since, _numbered(firsts)
    return None, {}


def _reached(
    segments: Iterable[Segment], facts: Iterable[Mapping[str, Any]]
) -> dict[str, int]:
    """By CPU the number of segments up to the last one that is sealed or deleted."""
    reached = collections.Counter(
        str(fact.get("cpu"))
        for fact in facts
        if fact["kind"] == "loss" and fact.get("reason") == "ring"
    )
    for segment in segments:
        if segment.sealed:
            cpu = str(segment.cpu)
            reached[cpu] = max(segment.seq + 1, reached[cpu])
    return reached


def _is_covered(fact: Mapping[str, Any], reached: Mapping[str, int]) -> bool:
    """Whether all segments that a note of completeness names are here, or deleted."""
    after = fact.get("segments")
    return (
        isinstance(fact.get("until"), int)
        and isinstance(after, dict)
        and all(
            isinstance(number, int) and number <= reached.get(cpu, 0)
            for cpu, number in after.items()
        )
    )


def _with_last_notes(
    facts: Iterable[Mapping[str, Any]], reached: Mapping[str, int]
) -> list[Mapping[str, Any]]:
    """``facts``, of which those that are written again and again are kept only once.

    Of notes of completeness, each of which names all CPUs, and of comparisons of one
    scope, those of a day would take most of the memory.
    """
    kept: list[Mapping[str, Any]] = []
    #: By what it is about the place of the last one, and of the last one that holds for
    #: what is here.
    places: dict[tuple[str, ...], tuple[int, int]] = {}
    known = -1
    for fact in facts:
        if about := _about(fact):
            if fact["kind"] == "complete":
                holds = _is_covered(fact, reached)
                known = fact["until"] if holds else known
            else:
                until = fact.get("until")
                holds = not isinstance(until, int) or until <= known
            here = len(kept)
            before = places.get(about, (here, here))
            places[about] = (here, here if holds else before[1])
            for at in {*before} - {*places[about]}:
                kept[at] = _SUPERSEDED
        kept.append(fact)
    return kept


def _about(fact: Mapping[str, Any]) -> tuple[str, ...]:
    """What later facts say again, as things are then; empty if it is said once."""
    if fact["kind"] == "complete" and isinstance(fact.get("segments"), dict):
        return ("complete",)
    return scope_of(fact) if fact["kind"] == "oracle" else ()


def scope_of(fact: Mapping[str, Any]) -> tuple[str, ...]:
    """What tells the comparisons with oracles in one recording apart."""
    return tuple(str(fact.get(name)) for name in ("provider", "scope", "metric"))


def _numbers(first: int, after: int) -> str:
    if after == first + 1:
        return f"segment {first} is"
    return f"segments {first} to {after - 1} are"


def session_of(dir: Path) -> Mapping[str, Any]:
    """The content of session.json.  Raises `NotARecording`."""
    path = dir / SESSION
    try:
        session = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise NotARecording(
            f"{dir}: not a recording of kstall-node, it has no {SESSION}"
        ) from None
    except NotADirectoryError:
        raise NotARecording(f"{dir}: a recording is a directory") from None
    except (OSError, ValueError, RecursionError) as error:
        raise NotARecording(f"{path}: cannot be read: {shown(error)}") from None
    if not isinstance(session, dict) or "format" not in session:
        raise NotARecording(f"{path}: not of kstall-node")
    if session["format"] != FORMAT:
        raise NotARecording(
            f"{dir}: a recording of format {shown(session['format'])}, this kstall "
            f"reads format {FORMAT}; use the kstall that came with its kstall-node"
        )
    kinds = (("node", str), ("boot_id", str), ("instance", str), ("began", int))
    for name, kind in (*kinds, ("providers", list)):
        if not isinstance(session.get(name), kind):
            raise NotARecording(f"{path}: {name} is missing, or is not what it should")
    if session.get("page_size", PAGE) != PAGE:
        raise NotARecording(
            f"{dir}: pages of {shown(session['page_size'])} bytes; only those of "
            f"{PAGE} can be read"
        )
    return session


def sid_of(session: Mapping[str, Any]) -> str:
    """The id of a recording, which is the same for all its copies."""
    parts = (session[name] for name in ("node", "boot_id", "instance", "began"))
    return digest(*parts).hex()


def digest(*parts: object) -> bytes:
    """Eight bytes of a hash over ``parts``, which depends on where each part ends."""
    text = json.dumps(parts, ensure_ascii=True).encode()
    return hashlib.blake2b(text, digest_size=8).digest()


def _layouts(dir: Path) -> list[event.Layout]:
    layouts: dict[int, event.Layout] = {}
    for path in sorted((dir / FORMATS).glob("*/*")):
        if not (_EVENT.fullmatch(path.name) and path.is_file()):
            continue
        try:
            layout = parse_layout(path.read_text("utf-8"), path.parent.name)
        except (Malformed, OSError, ValueError) as error:
            raise NotARecording(f"{path}: not a format file: {shown(error)}") from None
        if layout.id in layouts and layouts[layout.id] != layout:
            raise NotARecording(
                f"{dir}: {layout.event} and {layouts[layout.id].event} have the same "
                f"number, {layout.id}: formats that changed meanwhile"
            )
        layouts[layout.id] = layout
    return list(layouts.values())


def _segments(dir: Path, remarks: list[str]) -> list[Segment]:
    segments: list[Segment] = []
    for path in (dir / SEGMENTS).glob("*.pages"):
        match = _SEGMENT.fullmatch(path.name)
        if match is None or path.is_symlink() or not path.is_file():
            raise NotARecording(f"{path}: not a segment of kstall-node")
        cpu, seq = int(match[1]), int(match[2])
        segments.append(_segment(path, cpu, seq, remarks))
    segments.sort(key=lambda segment: (segment.cpu, segment.seq))
    return segments


def _gaps(
    session: Mapping[str, Any],
    facts: Sequence[Mapping[str, Any]],
    segments: Sequence[Segment],
    firsts: Mapping[int, int],
) -> list[Gap]:
    """Gaps in the numbers of segments: only these show that a copy was interrupted.

    ``firsts`` are the first segments of CPUs of which earlier ones were left out.
    """
    there: dict[int, list[int]] = {}
    for segment in segments:
        there.setdefault(segment.cpu, []).append(segment.seq)
    # Without an end, segments may have been sealed after a collector had listed files.
    if session.get("ended") is not None:
        for cpu, number in _expected(facts).items():
            there.setdefault(cpu, []).append(number)
    config = session.get("config")
    ring = isinstance(config, dict) and bool(config.get("ring"))
    gaps = []
    for cpu, numbers in sorted(there.items()):
        # With --ring the recorder deletes the oldest segments, and notes that as loss.
        start = [] if ring else [firsts.get(cpu, 0) - 1]
        for before, after in itertools.pairwise([*start, *numbers]):
            if after > before + 1:
                gaps.append(Gap(cpu, before + 1, after))
    return gaps


def _expected(facts: Sequence[Mapping[str, Any]]) -> dict[int, int]:
    """By CPU the number after its last segment, from the recorder's last note."""
    for fact in reversed(facts):
        after = fact.get("segments")
        if fact["kind"] == "complete" and isinstance(after, dict):
            return _numbered(after)
    return {}


def _numbered(segments: Mapping[str, Any]) -> dict[int, int]:
    """The numbers of segments in a fact, by CPU."""
    return {
        int(cpu): number
        for cpu, number in segments.items()
        if _CPU.fullmatch(cpu) and isinstance(number, int)
    }


def _segment(path: Path, cpu: int, seq: int, remarks: list[str]) -> Segment:
    about = path.with_suffix(".json")
    size = path.stat().st_size
    try:
        content = json.loads(about.read_text(encoding="utf-8"))
        first, pages, hashed = (
            content["first_page"],
            content["pages"],
            content["blake2b"],
        )
        if not (isinstance(first, int) and isinstance(pages, int)):
            raise TypeError("numbers that are none")
    except FileNotFoundError:
        remarks.append(f"{path.name}: never sealed; {size % PAGE} bytes are torn off")
        # Its first page's number is not known; this one is unique to the segment.
        return Segment(path, cpu, seq, seq << 32, False)
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise NotARecording(f"{about}: cannot be read: {shown(error)}") from None
    if size != pages * PAGE:
        raise NotARecording(
            f"{path}: {size} bytes, but {pages * PAGE} were sealed: truncated"
        )
    with path.open("rb") as file:
        actual = hashlib.file_digest(
            file, lambda: hashlib.blake2b(digest_size=16)
        ).hexdigest()
    if actual != hashed:
        raise NotARecording(f"{path}: not the bytes that were sealed")
    return Segment(path, cpu, seq, seq << 32, True)


def _facts(dir: Path, remarks: list[str]) -> Iterator[Mapping[str, Any]]:
    try:
        text = (dir / FACTS).read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        remarks.append(f"no {FACTS}: no processes, no ranks, no oracles")
        return
    lines = text.split("\n")
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        try:
            fact = json.loads(line)
        except (ValueError, RecursionError):
            fact = _behind_torn(line)
            if fact is None and number == len(lines):
                remarks.append(f"{FACTS}: its last line is torn")
                return
            if fact is None:
                raise NotARecording(f"{dir / FACTS}:{number}: not JSON") from None
            remarks.append(f"{FACTS}:{number}: a torn line was left out")
        if not isinstance(fact, dict) or not isinstance(fact.get("kind"), str):
            raise NotARecording(f"{dir / FACTS}:{number}: not a fact")
        yield fact


def _behind_torn(line: str) -> object | None:
    """What older recorders wrote behind a torn line, which a full disk left."""
    at = line.rfind('{"kind": ')
    try:
        return json.loads(line[at:]) if at > 0 else None
    except (ValueError, RecursionError):
        return None
