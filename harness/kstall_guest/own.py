# SPDX-License-Identifier: GPL-2.0-or-later
"""bpftrace as a part of a workload's program, rather than as one of its readers.

Such a tracer can fail like the agent's, and that is not the kernel's fault either:
without attached probes, or with lost events, its output proves nothing.  The program
reports that to the agent, and checks of the workload are not judged.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from . import bpftrace as wrapper
from .errors import (
    GuestError,
    HelperError,
    LostEvents,
    SkippedEvents,
    TracerFailed,
)
from .workload import complain

# As for the agent's tracers: each takes seconds to compile under TCG.
_ATTACH_S = 300.0
# Of 4 KiB each, a power of two; such scripts print a few lines.
_RING_PAGES = 256


class Printed:
    """The output of a script, also after its tracer has ended."""

    def __init__(self, output: Path) -> None:
        self._output = output
        self._all: list[str] | None = None

    def lines(self) -> list[str]:
        """The lines so far; lines of different CPUs may be out of order."""
        return self._read() if self._all is None else self._all

    def end(self) -> None:
        """Read the rest, as the file will be removed."""
        self._all = self._read()

    def _read(self) -> list[str]:
        text = self._output.read_text(encoding="utf-8", errors="replace")
        # The last line may be incomplete.
        records = map(json.loads, text.split("\n")[:-1])
        printed = (r["data"] for r in records if r.get("type") == "printf")
        return "".join(printed).splitlines()


@contextlib.contextmanager
def bpftrace(
    name: str,
    script: str,
    *,
    patched: bool = False,
    skips: bool = False,
    program: Sequence[str] = ("bpftrace",),
) -> Iterator[Printed]:
    """A bpftrace whose probes are attached while the block runs.

    Raises `GuestError` if they cannot be attached, which is also reported to the agent,
    like all that makes the output incomplete.  If the script is about ``patched`` code,
    checks judge a script that bpftrace rejects.  With ``skips`` the kernel may skip
    events, and a map of the script may be full.
    """
    with tempfile.TemporaryDirectory(prefix="kstall-") as folder:
        place = Path(folder)
        source = place / f"{name}.bt"
        source.write_text(script, encoding="utf-8")
        tracers: list[wrapper.Tracer] = []
        try:
            try:
                tracers.append(
                    wrapper.start(
                        name,
                        source,
                        results=place,
                        ring_pages=_RING_PAGES,
                        program=program,
                    )
                )
                wrapper.wait_attached(tracers, _ATTACH_S)
            except GuestError as error:
                _report(error, patched)
                raise
            printed = Printed(tracers[0].output)
            yield printed
            (outcome,) = wrapper.stop(tracers)
            printed.end()
        finally:
            wrapper.kill(tracers)
        for problem in outcome.errors:
            if not (skips and isinstance(problem, SkippedEvents | HelperError)):
                _report(problem, patched)


def _report(error: GuestError, patched: bool) -> None:
    if patched and error.fault == "series":
        return
    # Errors of other kinds have more than a text, and blame the series.
    kind = LostEvents if isinstance(error, LostEvents) else TracerFailed
    complain(kind(str(error)))
