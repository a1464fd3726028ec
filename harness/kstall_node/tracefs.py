# SPDX-License-Identifier: GPL-2.0-or-later
"""ftrace: one instance, and our own probes."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import time
from pathlib import Path

from .errors import NodeError, shown
from .host import Host

INSTANCE = "kstall"
_PLACES = ("/sys/kernel/tracing", "/sys/kernel/debug/tracing")
_OURS = re.compile(r"^[a-z]\d*:(kstall_(\d+)_(\d+))/(\w+)\s", re.M)
_COUNTER = re.compile(r"kstall_(\d+)_(\d+)_count_\w+")
#: The event of marks.
MARK = "ftrace:print"
_STATS = {
    "entries": "entries",
    "overrun": "overrun",
    "commit overrun": "commit_overrun",
    "dropped events": "dropped",
    "read events": "read",
}


class Refused(NodeError):
    """The kernel does not accept an event, a probe or a filter; others may work."""


def write(path: Path, text: str) -> None:
    """Write with a single call, as tracefs requires.  Raises `Refused`."""
    try:
        handle = os.open(path, os.O_WRONLY | os.O_APPEND)
        try:
            os.write(handle, text.encode())
        finally:
            os.close(handle)
    except OSError as error:
        why = f"cannot write {shown(text.strip())!r} to {path}: {error.strerror}"
        raise Refused(why) from None


class Tracefs:
    """The mounted file system.  Raises `NodeError` if it cannot be found or read."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.top = self._find()
        self._functions: bytes | None = None

    def _find(self) -> Path:
        denied = None
        for place in _PLACES:
            path = self.host.path(place)
            try:
                if "instances" in os.listdir(path):
                    return path
            except PermissionError:
                denied = path
            except OSError:
                continue
        if denied is not None:
            raise NodeError(f"{denied}: no right to read it; kstall-node needs root")
        raise NodeError(
            "no tracefs: mount -t tracefs nodev /sys/kernel/tracing; a kernel that "
            "does not know this file system was built without CONFIG_FTRACE"
        )

    def has(self, event: str) -> bool:
        """Whether the kernel has ``system:event``."""
        system, _, name = event.partition(":")
        return (self.top / "events" / system / name / "format").exists()

    def format(self, event: str) -> str:
        """The text of the event's format file."""
        system, _, name = event.partition(":")
        try:
            return (self.top / "events" / system / name / "format").read_text("utf-8")
        except OSError as error:
            raise Refused(f"{event}: no format: {error.strerror}") from None

    def print_format(self) -> str | None:
        """The format of `MARK`; None if there is none."""
        try:
            return (self.top / "events/ftrace/print/format").read_text("utf-8")
        except OSError:
            return None

    def can_probe(self) -> str | None:
        """Why fprobe events cannot be used here; None if they can."""
        if not (self.top / "dynamic_events").exists():
            return "no dynamic_events: CONFIG_DYNAMIC_EVENTS is off"
        try:
            readme = (self.top / "README").read_text("utf-8", "replace")
        except OSError:
            return "tracefs has no README, which lists the kinds of probes"
        if "f[:[<group>/][<event>]]" not in readme:
            return "no fprobe events (before 6.5, or CONFIG_FPROBE_EVENTS is off)"
        return None

    def function(self, name: str) -> bool | None:
        """Whether a function can be probed; None if that is not known."""
        if self._functions is None:
            try:
                path = self.top / "available_filter_functions"
                self._functions = b"\n" + path.read_bytes()
            except OSError:
                return None
        at = re.escape(name.encode())
        return (
            re.search(rb"\n" + at + rb"(?:[ \t][^\n]*)?\n", self._functions) is not None
        )

    def define(self, text: str) -> None:
        """Define a dynamic event.  Raises `Refused`, with the kernel's reason."""
        try:
            write(self.top / "dynamic_events", text + "\n")
        except Refused:
            raise Refused(f"the kernel refuses `{text}`{self._why()}") from None

    def _why(self) -> str:
        try:
            log = (self.top / "error_log").read_text("utf-8", "replace")
        except OSError:
            return ""
        lines = [line for line in log.splitlines() if ": error: " in line]
        return f": {lines[-1].partition(': error: ')[2]}" if lines else ""

    def remove_probes(self, group: str, only: set[str] | None = None) -> list[str]:
        """Remove probes of ``group``, all or ``only`` some; the errors, in words."""
        left = []
        for owner, _, _, name in self.probes():
            if owner == group and (only is None or name in only):
                try:
                    write(self.top / "dynamic_events", f"-:{group}/{name}\n")
                except Refused as error:
                    left.append(str(error))
        return left

    def probes(self) -> list[tuple[str, int, int, str]]:
        """(group, pid, start, name) of all probes of kstall, of any recorder."""
        try:
            text = (self.top / "dynamic_events").read_text("utf-8", "replace")
        except OSError:
            return []
        return [(m[1], int(m[2]), int(m[3]), m[4]) for m in _OURS.finditer(text)]

    def remove_dead(self) -> list[str]:
        """Remove what killed recorders left behind; what was removed, in words."""
        removed = []
        path = self.top / "instances" / INSTANCE
        if path.exists():
            Instance(path).close()
            removed.append("the instance of a recorder that was killed")
        for name, pid, since in self._counters():
            if self.host.starttime(pid) != since or pid == os.getpid():
                Instance(self.top / "instances" / name).close()
                removed.append(f"what process {pid} counted with, which is gone")
        groups = {(group, pid, since) for group, pid, since, _ in self.probes()}
        for group, pid, since in sorted(groups):
            if self.host.starttime(pid) != since or pid == os.getpid():
                self.remove_probes(group)
                removed.append(f"probes of process {pid}, which is gone")
        return removed

    def _counters(self) -> list[tuple[str, int, int]]:
        matches = map(_COUNTER.fullmatch, os.listdir(self.top / "instances"))
        return [(m[0], int(m[1]), int(m[2])) for m in matches if m]

    def living(self) -> int | None:
        """The PID of another living recorder, known by its probes; None without one."""
        theirs = [(pid, since) for _, pid, since, _ in self.probes()]
        theirs += [(pid, since) for _, pid, since in self._counters()]
        for pid, since in theirs:
            if pid != os.getpid() and self.host.starttime(pid) == since:
                return pid
        return None

    def counter(self, group: str, name: str) -> Counter:
        """A new buffer of which only the number of records matters."""
        path = self.top / "instances" / f"{group}_count_{name}"
        try:
            path.mkdir()
        except OSError as error:
            raise Refused(f"{path}: {error.strerror}") from None
        return Counter(path)

    def instance(self, buffer_kb: int) -> Instance:
        """A new instance that does not trace yet, or the old one if a job holds it."""
        path = self.top / "instances" / INSTANCE
        try:
            path.mkdir(exist_ok=True)
        except OSError as error:
            if error.errno in (errno.EPERM, errno.EACCES, errno.EROFS):
                raise NodeError(
                    f"{path}: {error.strerror}; kstall-node needs root on tracefs"
                ) from None
            raise NodeError(f"{path}: {error.strerror}") from None
        instance = Instance(path)
        try:
            write(path / "tracing_on", "0")
            write(path / "trace_clock", "mono")
            write(path / "buffer_size_kb", str(buffer_kb))
        except Refused:
            instance.close()
            raise
        with contextlib.suppress(Refused):
            write(path / "buffer_percent", "25")
        instance.clear()
        return instance


class Instance:
    """One ftrace instance: a ring buffer and the events enabled in it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def cpus(self) -> list[int]:
        """The CPUs that have a buffer."""
        numbers = [
            int(name[3:])
            for name in os.listdir(self.path / "per_cpu")
            if name.startswith("cpu") and name[3:].isdigit()
        ]
        return sorted(numbers)

    def switch(self, on: bool) -> None:
        """Switch tracing on or off."""
        write(self.path / "tracing_on", "1" if on else "0")

    def open_marker(self) -> None:
        """Let all users write marks, and search the directories above the marker.

        That shows them the names of events; all other files stay closed to them.
        Raises `NodeError`.
        """
        above = (self.path.parent.parent, self.path.parent, self.path)
        rights = [(path, 0o001) for path in above]
        for path, right in (*rights, (self.path / "trace_marker", 0o002)):
            try:
                path.chmod(path.stat().st_mode & 0o7777 | right)
            except OSError as error:
                raise NodeError(f"{path}: {error.strerror}") from None

    def clear(self) -> None:
        """Empty the buffer."""
        with contextlib.suppress(OSError):
            os.close(os.open(self.path / "trace", os.O_WRONLY | os.O_TRUNC))

    def enable(self, event: str, on: bool = True) -> None:
        """Switch one event on or off."""
        system, _, name = event.partition(":")
        path = self.path / "events" / system / name / "enable"
        write(path, "1" if on else "0")

    def filter(self, event: str, text: str) -> None:
        """Set an event's filter; ``0`` removes it."""
        system, _, name = event.partition(":")
        write(self.path / "events" / system / name / "filter", text)

    def stats(self, cpu: int) -> dict[str, int]:
        """The counters of one CPU's buffer since it was created."""
        try:
            path = self.path / f"per_cpu/cpu{cpu}/stats"
            text = path.read_text("ascii", "replace")
        except OSError:
            return {}
        stats = {}
        for line in text.splitlines():
            key, _, value = line.partition(": ")
            if key in _STATS:
                with contextlib.suppress(ValueError):
                    stats[_STATS[key]] = int(value)
        return stats

    def open_raw(self, cpu: int) -> int:
        """A file descriptor from which each read returns a page."""
        path = self.path / f"per_cpu/cpu{cpu}/trace_pipe_raw"
        try:
            return os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            if error.errno == errno.EBUSY:
                raise NodeError(f"{path}: another reader has it") from None
            raise NodeError(f"{path}: {error.strerror}") from None

    def close(self) -> bool:
        """Disable and remove it; False if a job holds it open, and then it is empty."""
        for name, text in (("tracing_on", "0"), ("events/enable", "0")):
            with contextlib.suppress(Refused):
                write(self.path / name, text)
        for _ in range(20):
            try:
                self.path.rmdir()
                return True
            except FileNotFoundError:
                return True
            except OSError as error:
                # The file of a killed reader stays open for a moment.
                if error.errno != errno.EBUSY:
                    break
                time.sleep(0.05)
        with contextlib.suppress(Refused):
            write(self.path / "buffer_size_kb", "4")
        self.clear()
        return False


class Counter(Instance):
    """Counts records of events: its small buffer is never read.

    The kernel counts records that are written into a buffer, overwritten or not.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        with contextlib.suppress(Refused):
            write(path / "buffer_size_kb", "4")

    def total(self) -> int:
        """How many records were written so far."""
        names = ("entries", "overrun", "read")
        stats = [self.stats(cpu) for cpu in self.cpus()]
        return sum(counts.get(name, 0) for counts in stats for name in names)
