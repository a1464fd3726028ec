# SPDX-License-Identifier: GPL-2.0-or-later
"""bpftrace as a part of a workload's program, rather than as one of its readers.

Such a tracer can fail as those of the agent can, and that is not the kernel's fault
either: output of one that did not attach, or that lost events, proves nothing.  The
program reports it to the agent, and checks of the workload are not judged.
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

# As for the agent's own: TCG takes seconds to compile each program.
_ATTACH_S = 300.0
# A power of two, of 4 KiB each: such scripts print a few lines.
_RING_PAGES = 256


class Printed:
    """What a script has printed, also once its tracer is gone."""

    def __init__(self, output: Path) -> None:
        self._output = output
        self._all: list[str] | None = None

    def lines(self) -> list[str]:
        """The lines until now; those of different CPUs can be in another order."""
        return self._read() if self._all is None else self._all

    def end(self) -> None:
        """Nothing more comes, and the file may be removed."""
        self._all = self._read()

    def _read(self) -> list[str]:
        text = self._output.read_text(encoding="utf-8", errors="replace")
        # The last line may be half written.
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

    Raises `GuestError` if they cannot be, which is also reported to the agent, as is
    whatever makes its output incomplete.  That bpftrace refuses a script is left to
    the checks if the script is about ``patched`` code.  With ``skips`` it does not
    matter if the kernel skips events, or a map of the script has no room for one.
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
    # Errors of other kinds are made of more than a text, and blame the series.
    kind = LostEvents if isinstance(error, LostEvents) else TracerFailed
    complain(kind(str(error)))
