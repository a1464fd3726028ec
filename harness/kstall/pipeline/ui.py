# SPDX-License-Identifier: GPL-2.0-or-later
"""What a run shows while it works: one line a stage, a bar for what takes long."""

from __future__ import annotations

import contextvars
import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from ..report import Stage, escape, status_word

#: Seconds between progress lines where there is no terminal to redraw.
_QUIET = 20.0
# The label of the stage that runs in this thread.
_label: contextvars.ContextVar[str] = contextvars.ContextVar("label", default="")
# The run that this thread works for, if others work at the same time.
_run: contextvars.ContextVar[str] = contextvars.ContextVar("run", default="")


class Ui:
    """Stage events in, text out; on a terminal with a bar, else plain lines."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar = Progress(
            TextColumn("  {task.description:<12}"),
            BarColumn(bar_width=30),
            TextColumn("{task.percentage:>3.0f}% {task.fields[step]}"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("", total=None, step="", visible=False)
        self._spoke = time.monotonic()

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def heading(self, text: str) -> None:
        """Announce the run that the next lines belong to."""
        self._print(f"[bold]{escape(text)}[/]")

    def apart(self, name: str) -> None:
        """Name the run in each line of this thread and of those that it starts."""
        _run.set(name)

    def begin(self, series: str | None, stage: str) -> None:
        """A stage starts."""
        label = ": ".join(word for word in (_run.get(), series, stage) if word)
        _label.set(label)
        self._spoke = time.monotonic()
        self._bar.reset(
            self._task, description=label, total=None, step="", visible=True
        )

    def say(self, text: str) -> None:
        """Something worth a line, such as waiting for another run."""
        self._spoke = time.monotonic()
        self._print(f"  [dim]{escape(_label.get())}: {escape(text)}[/]")

    def progress(self, done: float, total: float, step: str) -> None:
        """How far the stage is; ``done`` and ``total`` in steps of its own."""
        self._bar.update(
            self._task, completed=done, total=total, step=escape(step[-40:])
        )
        quiet = time.monotonic() - self._spoke
        if not self._console.is_terminal and quiet >= _QUIET:
            share = 100 * done / total if total else 0
            self.say(f"{share:.0f}% {step}")

    def end(self, stage: Stage) -> None:
        """A stage ended; its one line stays on the screen."""
        self._bar.update(self._task, visible=False)
        mark = {
            "pass": "[green]ok[/]  ",
            "fail": "[bold red]FAIL[/]",
            "skip": "[yellow]skip[/]",
            "error": "[bold magenta]could not judge[/]",
        }.get(stage.status, f"[yellow]{status_word(stage.status)}[/]")
        tag = "[dim]reused[/] " if stage.reused else ""
        seconds = f"{stage.seconds:6.1f}s"
        self._print(
            f"{mark} {escape(_label.get()):<28} {seconds}  {tag}{escape(stage.summary)}"
        )

    def error(self, series: str | None, stage: Stage) -> None:
        """Print the whole error of a stage, of which `end` printed one line."""
        where = f"{series}: {stage.name}" if series else stage.name
        self._print(f"{escape(where)}: {escape(stage.error or '')}")

    def _print(self, text: str) -> None:
        self._console.print(text, soft_wrap=True)
