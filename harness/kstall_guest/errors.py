# SPDX-License-Identifier: GPL-2.0-or-later
"""The errors of the guest, each with a ``kind`` that the host can match on.

agent.json has the kind as ``error.kind``, and whose fault the error is as
``error.fault``; both are part of its schema.  A fault of the apparatus says nothing
about the series, neither good nor bad.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal

Fault = Literal["apparatus", "series"]

# Lacks of resources that another try may not have.
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
    """The end of a failed program's output, to be appended to a message."""
    tail = "\n".join(text.strip().splitlines()[-8:])
    return f":\n{tail}" if tail else ""


def is_shortage(error: OSError) -> bool:
    """Whether a resource of the machine was exhausted, so that nobody is to blame."""
    return error.errno in _SHORT_OF


class BadJob(GuestError):
    """The job file is invalid; the text starts with the place in it."""

    kind = "bad-job"


class WrongKernel(GuestError):
    """The booted kernel is not the job's."""

    kind = "wrong-kernel"


class NoModule(GuestError):
    """modprobe failed; ``message`` ends with its output, or with its exit status.

    If a resource was exhausted, or modprobe was killed, nobody is to blame.
    """

    kind = "no-module"
    fault: Fault = "series"

    def __init__(self, message: str) -> None:
        super().__init__(message)
        words = "|".join(re.escape(os.strerror(number)) for number in _SHORT_OF)
        # subprocess's status for a signal.
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
    """The kernel refused a setting of tracefs."""

    kind = "tracefs"


class EventRefused(TracefsError):
    """The kernel refused to enable an event, and not for want of memory."""

    kind = "event-refused"
    fault: Fault = "series"


class TracerFailed(GuestError):
    """bpftrace, perf or trace-cmd: it did not start, attach in time, stay, or stop."""

    kind = "tracer-failed"


class ScriptRefused(TracerFailed):
    """bpftrace rejects a script for this kernel's events, with a reason."""

    kind = "script-refused"
    fault: Fault = "series"


class DecoderCrashed(TracerFailed):
    """perf or trace-cmd crashed on records or their format."""

    kind = "decoder-crashed"
    fault: Fault = "series"


class LostEvents(GuestError):
    """A reader did not get every event, so its counts cannot be trusted."""

    kind = "lost-events"


class SkippedEvents(LostEvents):
    """The kernel did not pass ``count`` events to the programs of ``tracer``."""

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
    """A BPF helper failed (a full map, say)."""

    kind = "helper-error"
    fault: Fault = "series"


class HelperBusy(HelperError):
    """A BPF helper failed for the moment."""

    kind = "helper-busy"
    fault: Fault = "apparatus"


class CannotStart(GuestError):
    """The workload's program could not be executed."""

    kind = "failed-to-start"
    fault: Fault = "series"


class Shortage(CannotStart):
    """Memory or file handles did not suffice to execute the workload's program."""

    kind = "shortage"
    fault: Fault = "apparatus"


class DeadlineOver(GuestError):
    """The workload's program had not ended at its deadline."""

    kind = "deadline"


class StepFailed(GuestError):
    """The host could not perform a step for a workload."""

    kind = "step-failed"


class NotInTime(GuestError):
    """A workload waited in vain; in most cases no patch is involved."""

    kind = "not-in-time"


class StressFailed(GuestError):
    """The kernel could not be stressed."""

    kind = "stress-failed"


class StressRefused(StressFailed):
    """A processor did not go offline or online, or a module was not (un)loaded."""

    kind = "stress-refused"
    fault: Fault = "series"


class Unkillable(GuestError):
    """A process of the workload outlived SIGKILL by minutes of the guest's own time.

    A kernel at fault has reported a hung task by then, which is a verdict.  Without a
    report the reason is unknown: it may be a disk of the host's.
    """

    kind = "unkillable"


def kinds() -> dict[str, type[GuestError]]:
    """Every kind of error, by its name."""
    return {error.kind: error for error in _below(GuestError)}


def fault_of(error: Mapping[str, Any]) -> Fault:
    """Whose fault an error of agent.json is.

    An error without a fault, of an older agent, has that of its kind.  An unknown kind
    is the apparatus' fault, as it gives no verdict.
    """
    if error.get("fault") in ("apparatus", "series"):
        fault: Fault = error["fault"]
        return fault
    kind = kinds().get(str(error.get("kind")))
    return kind.fault if kind is not None else "apparatus"


def _below(top: type[GuestError]) -> Iterator[type[GuestError]]:
    yield top
    for error in top.__subclasses__():
        yield from _below(error)
