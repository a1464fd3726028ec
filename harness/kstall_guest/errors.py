# SPDX-License-Identifier: GPL-2.0-or-later
"""What can go wrong in the guest, each with a ``kind`` that the host can match on.

The kinds end up in agent.json as ``error.kind``, and whose fault each is as
``error.fault``; both are part of its schema.  What is the apparatus' fault says nothing
of the series, neither good nor bad.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal

Fault = Literal["apparatus", "series"]

# What another try can find to be there.
_SHORT_OF = (
    errno.ENOMEM,
    errno.EAGAIN,
    errno.EMFILE,
    errno.ENFILE,
    errno.ENOSPC,
    errno.EINTR,
    errno.EIO,
)


class GuestError(Exception):
    """Something that stops a job or a workload; ``kind`` is stable, the text is not."""

    kind = "error"
    fault: Fault = "apparatus"

    def as_json(self) -> dict[str, Any]:
        """As in agent.json."""
        return {"kind": self.kind, "fault": self.fault, "message": str(self)}


def last_words(text: str) -> str:
    """The end of what a program said before it failed, to be put behind a message."""
    tail = "\n".join(text.strip().splitlines()[-8:])
    return f":\n{tail}" if tail else ""


def is_shortage(error: OSError) -> bool:
    """Whether the machine had not enough of something, so that nobody is to blame."""
    return error.errno in _SHORT_OF


class BadJob(GuestError):
    """The job file does not say what it must; the text starts with the place in it."""

    kind = "bad-job"


class WrongKernel(GuestError):
    """Another kernel was booted than the one the job is about."""

    kind = "wrong-kernel"


class NoModule(GuestError):
    """modprobe failed; ``message`` ends with what it said, or with its exit status.

    If the machine had not enough of something, or it was killed, nobody is to blame.
    """

    kind = "no-module"
    fault: Fault = "series"

    def __init__(self, message: str) -> None:
        super().__init__(message)
        words = "|".join(re.escape(os.strerror(number)) for number in _SHORT_OF)
        # As subprocess has it, of a signal.
        if re.search(rf": (?:{words}|exit status -\d+)$", message, re.MULTILINE):
            self.fault = "apparatus"


class MissingEvent(GuestError):
    """The running kernel has no such tracepoint: ``event`` is ``system:name``."""

    kind = "missing-event"
    fault: Fault = "series"

    def __init__(self, event: str, reader: str) -> None:
        super().__init__(f"{reader}: the running kernel has no tracepoint {event}")
        self.event = event

    def as_json(self) -> dict[str, Any]:
        """As in agent.json."""
        return {**super().as_json(), "event": self.event}


class NotRecordable(GuestError):
    """No recorder can be generated for this event, or its format cannot be read."""

    kind = "not-recordable"
    fault: Fault = "series"


class TracefsError(GuestError):
    """The kernel refused a tracing set-up."""

    kind = "tracefs"


class EventRefused(TracefsError):
    """The kernel refused to switch an event on, and not for want of memory."""

    kind = "event-refused"
    fault: Fault = "series"


class TracerFailed(GuestError):
    """bpftrace, perf or trace-cmd: it did not start, attach in time, stay, or stop."""

    kind = "tracer-failed"


class ScriptRefused(TracerFailed):
    """bpftrace says what is wrong with a script, for this kernel's events."""

    kind = "script-refused"
    fault: Fault = "series"


class DecoderCrashed(TracerFailed):
    """perf or trace-cmd fell over records or their format."""

    kind = "decoder-crashed"
    fault: Fault = "series"


class LostEvents(GuestError):
    """A reader did not see every event, so no count it gives can be trusted."""

    kind = "lost-events"


class SkippedEvents(LostEvents):
    """The kernel did not hand ``count`` events to the programs of ``tracer``."""

    kind = "skipped-events"

    def __init__(self, tracer: str, count: int) -> None:
        super().__init__(
            f"bpftrace {tracer}: {count} events fired while the CPU ran another BPF "
            "program and were skipped"
        )
        self.tracer = tracer
        self.count = count

    def as_json(self) -> dict[str, Any]:
        """As in agent.json."""
        return {**super().as_json(), "tracer": self.tracer, "count": self.count}


class HelperError(GuestError):
    """A BPF helper refused what the script asked of it (a full map, say)."""

    kind = "helper-error"
    fault: Fault = "series"


class HelperBusy(HelperError):
    """A BPF helper could not do its work at that moment."""

    kind = "helper-busy"
    fault: Fault = "apparatus"


class CannotStart(GuestError):
    """The workload's program could not be executed."""

    kind = "failed-to-start"
    fault: Fault = "series"


class Shortage(CannotStart):
    """There was no memory, or no file handle, to execute the workload's program."""

    kind = "shortage"
    fault: Fault = "apparatus"


class DeadlineOver(GuestError):
    """The workload's program had not ended when its time was up."""

    kind = "deadline"


class StepFailed(GuestError):
    """The host could not do what a workload asked of it."""

    kind = "step-failed"


class NotInTime(GuestError):
    """What a workload waited for did not come; mostly no patch has any part in it."""

    kind = "not-in-time"


class StressFailed(GuestError):
    """What should have stressed the kernel did not."""

    kind = "stress-failed"


class StressRefused(StressFailed):
    """The kernel did not let go of a processor or a module, or did not take it back."""

    kind = "stress-refused"
    fault: Fault = "series"


class Unkillable(GuestError):
    """A process of the workload outlived SIGKILL, by time that the guest had.

    A kernel at fault has said so by then, which is a verdict.  If it has not, nobody
    knows who keeps the process: it may be a disk of the host's.
    """

    kind = "unkillable"


def kinds() -> dict[str, type[GuestError]]:
    """Every kind of error, by its name."""
    return {one.kind: one for one in _below(GuestError)}


def fault_of(error: Mapping[str, Any]) -> Fault:
    """Whose fault an error of agent.json is.

    One of before there were faults has that of its kind.  A kind that nobody knows is
    the apparatus': what is not understood is no verdict.
    """
    if error.get("fault") in ("apparatus", "series"):
        fault: Fault = error["fault"]
        return fault
    kind = kinds().get(str(error.get("kind")))
    return kind.fault if kind is not None else "apparatus"


def _below(top: type[GuestError]) -> Iterator[type[GuestError]]:
    yield top
    for one in top.__subclasses__():
        yield from _below(one)
