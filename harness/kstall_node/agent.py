# SPDX-License-Identifier: GPL-2.0-or-later
"""Answer a collector over standard input and output: ssh's, srun's, any pipe's."""

from __future__ import annotations

import json
import math
import os
import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from . import files
from .errors import NodeError, shown
from .host import Host

#: Version of the protocol, see docs/recording.md.
SPOKEN = 1
_LINE = 1 << 16
_REC = re.compile(r"[\w][\w.-]{0,200}")
_SEGMENT = re.compile(r"cpu(\d{1,4})-(\d{1,9})")
_PIECE = 1 << 20


def serve(host: Host, dir: Path, requests: BinaryIO, answers: BinaryIO) -> int:
    """Answer until the collector closes the pipe; the exit status."""
    while True:
        line = requests.readline(_LINE)
        if not line:
            return 0
        try:
            _answer(host, dir, line, answers)
        except NodeError as error:
            _reply(answers, op="error", text=str(error))


def _reply(answers: BinaryIO, **fields: Any) -> None:
    answers.write(json.dumps(fields).encode() + b"\n")
    answers.flush()


def _answer(host: Host, dir: Path, line: bytes, answers: BinaryIO) -> None:
    try:
        content = json.loads(line)
        if not isinstance(content, dict):
            raise ValueError("no object")
    except (ValueError, RecursionError):
        raise NodeError(f"not a line of JSON: {shown(line[:80])}") from None
    if content.get("op") == "ping":
        _reply(answers, op="pong", n=content.get("n"), mono=time.monotonic_ns())
    elif content.get("op") == "hello":
        _reply(
            answers, op="hello", version=SPOKEN, node=host.node, boot_id=host.boot_id
        )
    elif content.get("op") == "pull":
        _pull(host, dir, answers, _since(content.get("last")))
    else:
        raise NodeError(f"{shown(content.get('op'))}: not known here")


def _since(last: object) -> int | None:
    """When the last so many ns began, on this node's clock; None if all is wanted."""
    if last is None:
        return None
    if not isinstance(last, int) or last <= 0:
        raise NodeError(f"last: {shown(last)} is no number of ns above 0")
    return time.monotonic_ns() - last


def _pull(host: Host, dir: Path, answers: BinaryIO, since: int | None) -> None:
    recs = recordings(dir)
    if not recs:
        raise NodeError(f"{dir}: no recording")
    if since is not None:
        # By this a collector tells it from an older agent, which sends all.
        _reply(answers, op="since", mono=since)
        recs = [rec for rec in recs if not _is_over(host, rec, since)]
        if not recs:
            raise NodeError(f"{dir}: no recording of that time, only earlier ones")
    for rec in recs:
        handle = files.in_use(rec)
        try:
            _send_all(host, rec, answers, since)
        finally:
            if handle is not None:
                os.close(handle)
    _reply(answers, op="end")


def _send_all(host: Host, rec: Path, answers: BinaryIO, since: int | None) -> None:
    firsts = {} if since is None else _firsts(rec, since)
    for path in _files(host, rec, firsts):
        _send(path, f"{rec.name}/{path.relative_to(rec).as_posix()}", answers)
    # After the pages, as it has the losses up to their end.
    note = b""
    if firsts:
        fact = {"kind": "left out", "until": since, "segments": firsts}
        note = json.dumps(fact).encode() + b"\n"
    _send(rec / "facts.jsonl", f"{rec.name}/facts.jsonl", answers, note)


def _is_over(host: Host, rec: Path, since: int) -> bool:
    """Whether it ended before ``since``; what is damaged did not, so as to be named."""
    session = _session(rec)
    if session.get("boot_id", host.boot_id) != host.boot_id:
        # It has times of an earlier boot, and ``since`` is in this one if above 0.
        return since > 0
    ended = session.get("ended")
    return isinstance(ended, int) and ended < since


def _firsts(rec: Path, since: int) -> dict[str, int]:
    """By CPU the first segment to send, if all records in earlier ones are too old."""
    numbers: dict[str, list[int]] = {}
    for path in (rec / "segments").glob("cpu*-*.json"):
        match = _SEGMENT.fullmatch(path.stem)
        if match is not None:
            numbers.setdefault(match[1], []).append(int(match[2]))
    firsts = {}
    for cpu, seqs in numbers.items():
        for seq in sorted(seqs)[:0:-1]:
            # That it began before ``since`` shows that earlier ones ended before: t1 of
            # a segment is only the beginning of its last page.
            if _begins(rec / "segments" / f"cpu{cpu}-{seq}.json") <= since:
                firsts[cpu] = seq
                break
    return firsts


def _begins(about: Path) -> float:
    """The time of a sealed segment's first record; infinite if that is not known."""
    try:
        t0 = json.loads(about.read_text("utf-8"))["t0"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return math.inf
    return t0 if isinstance(t0, int) else math.inf


def recordings(dir: Path) -> list[Path]:
    """The recordings in ``dir``, or ``dir`` itself if it is a recording."""
    try:
        if (dir / "session.json").is_file():
            return [dir]
        names = sorted(os.listdir(dir))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise NodeError(f"{dir}: {error.strerror}") from None
    return [
        dir / name
        for name in names
        if _REC.fullmatch(name) and (dir / name / "session.json").is_file()
    ]


def _files(host: Host, rec: Path, firsts: Mapping[str, int]) -> Iterator[Path]:
    """The files to send but the facts; only sealed segments if its recorder runs."""
    yield rec / "session.json"
    yield from sorted((rec / "formats").glob("*/*"))
    live = lives(host, rec)
    for path in sorted((rec / "segments").glob("cpu*-*.pages")):
        match = _SEGMENT.fullmatch(path.stem)
        if match is not None and int(match[2]) < firsts.get(match[1], 0):
            continue
        about = path.with_suffix(".json")
        sealed = about.is_file()
        if sealed or not live:
            yield path
        if sealed:
            yield about


def lives(host: Host, rec: Path) -> bool:
    """Whether a recorder of this boot still writes ``rec``."""
    session = _session(rec)
    try:
        recorder = session["recorder"]
        if session["ended"] is not None or session["boot_id"] != host.boot_id:
            return False
        return host.starttime(int(recorder["pid"])) == int(recorder["starttime"])
    except (ValueError, KeyError, TypeError):
        return False


def _session(rec: Path) -> dict[str, Any]:
    """The content of session.json; empty if that is damaged."""
    try:
        session = json.loads((rec / "session.json").read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return session if isinstance(session, dict) else {}


def _send(path: Path, name: str, answers: BinaryIO, note: bytes = b"") -> None:
    """Send a file at its present size, as it may grow meanwhile.

    A ``note`` comes behind its last whole line: a killed recorder may leave a torn one.
    """
    try:
        file = path.open("rb")
    except FileNotFoundError:
        # --ring has deleted an old segment.
        return
    except OSError as error:
        raise NodeError(f"{path}: {error.strerror}") from None
    with file:
        size = os.fstat(file.fileno()).st_size
        if note:
            at = max(0, size - _PIECE)
            size = at + os.pread(file.fileno(), _PIECE, at).rfind(b"\n") + 1
        _reply(answers, op="file", path=name, size=size + len(note))
        while size:
            piece = file.read(min(size, _PIECE))
            if not piece:
                # The collector would take the next line for the rest of the file.
                raise SystemExit(
                    f"kstall-node: {path}: became shorter while it was sent"
                )
            answers.write(piece)
            size -= len(piece)
    answers.write(note)
    answers.flush()
