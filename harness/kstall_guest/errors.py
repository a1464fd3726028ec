# SPDX-License-Identifier: GPL-2.0-or-later
"""What can go wrong in the guest, each with a ``kind`` that the host can match on.

The kinds end up in agent.json as ``error.kind``; they are part of its schema.
"""

from __future__ import annotations


class GuestError(Exception):
    """Something that stops a job or a workload; ``kind`` is stable, the text is not."""

    kind = "error"

    def as_json(self) -> dict[str, str]:
        return {"kind": self.kind, "message": str(self)}


def last_words(text: str) -> str:
    """The end of what a program said before it failed, to be put behind a message."""
    tail = "\n".join(text.strip().splitlines()[-8:])
    return f":\n{tail}" if tail else ""


class BadJob(GuestError):
    """The job file does not say what it must; the text starts with the place in it."""

    kind = "bad-job"


class WrongKernel(GuestError):
    """Another kernel was booted than the one the job is about."""

    kind = "wrong-kernel"


class NoModule(GuestError):
    """modprobe failed."""

    kind = "no-module"


class MissingEvent(GuestError):
    """The running kernel has no such tracepoint: ``event`` is ``system:name``."""

    kind = "missing-event"

    def __init__(self, event: str, reader: str) -> None:
        super().__init__(f"{reader}: the running kernel has no tracepoint {event}")
        self.event = event

    def as_json(self) -> dict[str, str]:
        return {**super().as_json(), "event": self.event}


class NotRecordable(GuestError):
    """No recorder can be generated for this event."""

    kind = "not-recordable"


class TracefsError(GuestError):
    """The kernel refused a tracing set-up."""

    kind = "tracefs"


class TracerFailed(GuestError):
    """bpftrace, perf or trace-cmd: it did not compile, attach, stay, or stop."""

    kind = "tracer-failed"


class LostEvents(GuestError):
    """A reader did not see every event, so no count it gives can be trusted."""

    kind = "lost-events"


class HelperError(GuestError):
    """A BPF helper failed while the script ran (a full map, say)."""

    kind = "helper-error"


class CannotStart(GuestError):
    """The workload's program could not be executed."""

    kind = "failed-to-start"


class StepFailed(GuestError):
    """The host could not do what a workload asked of it."""

    kind = "step-failed"


class StressFailed(GuestError):
    """What should have stressed the kernel did not."""

    kind = "stress-failed"


class Unkillable(GuestError):
    """A process of the workload outlived SIGKILL."""

    kind = "unkillable"
