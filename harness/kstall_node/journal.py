# SPDX-License-Identifier: GPL-2.0-or-later
"""What a recording says of itself: facts as they come, formats, and its session."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from . import files
from .errors import Full
from .host import clock_pair

_RESERVE = 256 << 10


class Journal:
    """The directory of a recording: until `make` it is that of all recordings."""

    def __init__(self, out: Path) -> None:
        self.dir = self._out = out
        self._facts: int | None = None
        self._in_use: int | None = None

    @property
    def is_open(self) -> bool:
        """Whether facts can be noted."""
        return self._facts is not None

    def make(self, node: str, began: int) -> None:
        """Make the directory, named after the node and the beginning.

        If that fails, nothing of it is left: a supervisor may try again for days.
        Raises `NodeError`.
        """
        safe = re.sub(r"[^\w.-]", "_", node)[:100].lstrip(".-") or "node"
        self.dir = self._out / f"{safe}-{began}"
        try:
            self.dir.mkdir(parents=True)
        except OSError as error:
            raise files.failure(self.dir, error) from None
        try:
            (self.dir / "segments").mkdir()
            self.dir.chmod(0o700)
            self._in_use = files.in_use(self.dir)
            self._facts = os.open(
                self.dir / "facts.jsonl",
                os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC,
                0o600,
            )
            # Deleted on a full disk, so that the end of the recording can be written.
            with (self.dir / ".reserve").open("wb") as file:
                file.write(os.urandom(_RESERVE))
        except OSError as error:
            self._remove()
            raise files.failure(self.dir, error) from None

    def _remove(self) -> None:
        if self._facts is not None:
            os.close(self._facts)
            self._facts = None
        self.make_room()
        with contextlib.suppress(OSError):
            (self.dir / "facts.jsonl").unlink(missing_ok=True)
            (self.dir / "segments").rmdir()
            self.dir.rmdir()

    def make_room(self) -> None:
        """Delete what was kept for a full disk."""
        if self.dir == self._out:
            return  # it has made no directory, and a file of that name is not its own
        with contextlib.suppress(OSError):
            (self.dir / ".reserve").unlink()

    def write_formats(self, texts: Mapping[str, str]) -> None:
        """Keep the format of each event.  Raises `NodeError`."""
        for event, text in texts.items():
            path = self.dir / "formats" / event.replace(":", "/")
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, "utf-8")
            except OSError as error:
                raise files.failure(path, error) from None

    def write_session(self, session: Mapping[str, Any]) -> None:
        """Write what is known of the recording as a whole.  Raises `NodeError`."""
        files.replace(self.dir / "session.json", session)

    def note(self, *facts: Mapping[str, Any]) -> None:
        """Append facts, if there is a directory.  Raises `NodeError`."""
        if self._facts is None:
            return
        for fact in facts:
            line = json.dumps(fact).encode() + b"\n"
            size = os.fstat(self._facts).st_size
            try:
                files.write_all(self._facts, line)
            except OSError as error:
                # Once there is room, others follow, and only the last may be torn.
                os.ftruncate(self._facts, size)
                raise files.failure(self.dir / "facts.jsonl", error) from None

    def note_clock(self) -> None:
        """Note what the monotonic clock shows, and the time of day.

        Raises `NodeError`.
        """
        mono, real, bound = clock_pair()
        self.note(
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

    def note_loss(
        self,
        cpu: int | None,
        t0: int | None,
        t1: int | None,
        reason: str,
        n: int | None = None,
    ) -> None:
        """Note that ``n`` records of a CPU, or of all, are not in the recording.

        They are of the time from ``t0`` to ``t1``, as far as that is known.  On a full
        disk it is not noted.  Raises `NodeError`.
        """
        fact = {"kind": "loss", "cpu": cpu, "t0": t0, "t1": t1, "n": n}
        with contextlib.suppress(Full):
            self.note({**fact, "reason": reason})

    def close(self) -> None:
        """Close all files."""
        for handle in (self._facts, self._in_use):
            if handle is not None:
                os.close(handle)
        self._facts = self._in_use = None
        self.make_room()
