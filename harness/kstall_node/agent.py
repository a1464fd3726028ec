# SPDX-License-Identifier: GPL-2.0-or-later
"""Answer a collector over standard input and output: ssh's, srun's, any pipe's."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from . import files
from .errors import NodeError, shown
from .host import Host

#: Version of the protocol, see docs/recording.md.
SPOKEN = 1
_LINE = 1 << 16
_REC = re.compile(r"[\w][\w.-]{0,200}")
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
        _pull(host, dir, answers)
    else:
        raise NodeError(f"{shown(content.get('op'))}: not known here")


def _pull(host: Host, dir: Path, answers: BinaryIO) -> None:
    recs = recordings(dir)
    for rec in recs:
        handle = files.in_use(rec)
        try:
            for path in _files(host, rec):
                _send(path, f"{rec.name}/{path.relative_to(rec).as_posix()}", answers)
        finally:
            if handle is not None:
                os.close(handle)
    if not recs:
        raise NodeError(f"{dir}: no recording")
    _reply(answers, op="end")


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


def _files(host: Host, rec: Path) -> Iterator[Path]:
    """The files to send; only sealed segments if its recorder still runs."""
    yield rec / "session.json"
    yield from sorted((rec / "formats").glob("*/*"))
    live = lives(host, rec)
    for path in sorted((rec / "segments").glob("cpu*-*.pages")):
        about = path.with_suffix(".json")
        sealed = about.is_file()
        if sealed or not live:
            yield path
        if sealed:
            yield about
    # After the pages, as it has the losses up to their end.
    yield rec / "facts.jsonl"


def lives(host: Host, rec: Path) -> bool:
    """Whether a recorder of this boot still writes ``rec``."""
    try:
        session = json.loads((rec / "session.json").read_text("utf-8"))
        recorder = session["recorder"]
        if session["ended"] is not None or session["boot_id"] != host.boot_id:
            return False
        return host.starttime(int(recorder["pid"])) == int(recorder["starttime"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return False


def _send(path: Path, name: str, answers: BinaryIO) -> None:
    """Send a file at its present size, as it may grow meanwhile."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        # --ring has deleted an old segment.
        return
    except OSError as error:
        raise NodeError(f"{path}: {error.strerror}") from None
    with file:
        size = os.fstat(file.fileno()).st_size
        _reply(answers, op="file", path=name, size=size)
        while size:
            piece = file.read(min(size, _PIECE))
            if not piece:
                # The collector would take the next line for the rest of the file.
                raise SystemExit(
                    f"kstall-node: {path}: became shorter while it was sent"
                )
            answers.write(piece)
            size -= len(piece)
    answers.flush()
