# SPDX-License-Identifier: GPL-2.0-or-later
"""What commands print, and how."""

from __future__ import annotations

import io
import re
from typing import IO, cast

from rich.console import Console
from rich.markup import escape


class _Unpadded(io.TextIOBase):
    """A text stream that drops blanks at the ends of lines, as rich pads tables."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """The encoding of the stream, by which rich chooses its characters."""
        return str(getattr(self._stream, "encoding", None) or "utf-8")

    def write(self, text: str) -> int:
        """Write ``text``, of which rich passes whole lines."""
        self._stream.write(re.sub(r" +$", "", text, flags=re.MULTILINE))
        return len(text)

    def flush(self) -> None:
        """Flush the stream itself."""
        self._stream.flush()


def output(*, stderr: bool = False) -> Console:
    """The output: not cut to a width where there is no terminal, in colour only where a
    view asks for it, and without emoji, as `x.c:100:5` holds the code of one."""
    console = Console(stderr=stderr, highlight=False, emoji=False)
    if not console.is_terminal:
        console.width = 1000
        console.file = cast("IO[str]", _Unpadded(console.file))
    return console


def say(console: Console, text: str) -> None:
    """Print ``text`` as it is: no markup, and no line is broken."""
    console.print(text, markup=False, soft_wrap=True)


def complain(text: str) -> None:
    """Print ``text``, which may have any characters, as an error of kstall."""
    output(stderr=True).print(f"[bold red]kstall:[/] {escape(text)}", soft_wrap=True)
