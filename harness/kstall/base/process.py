# SPDX-License-Identifier: GPL-2.0-or-later
"""The one way to run another program.

Every child runs in a PID namespace of its own whose first process dies with us, so
that neither Ctrl-C nor SIGKILL leaves a compiler or a QEMU behind.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import os
import shlex
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from . import scope
from .errors import KstallError


@dataclass(frozen=True)
class Completed:
    """A finished child: ``seconds`` is wall-clock time."""

    argv: tuple[str, ...]
    returncode: int
    stdout: str
    seconds: float

    def failure(self) -> CommandError:
        """The error, for a caller that takes this exit status for one."""
        return CommandError(self.argv, self.returncode, self.stdout)


class CommandError(KstallError):
    """A child exited non-zero; ``output`` is the end of what it printed."""

    def __init__(
        self,
        argv: Sequence[str],
        returncode: int,
        output: str,
        *,
        log: Path | None = None,
        next: str | None = None,
    ) -> None:
        tail = "\n".join(output.strip().splitlines()[-15:])
        super().__init__(
            f"`{shlex.join(argv)}` exited {returncode}"
            + (f":\n{tail}" if tail else ""),
            log=log,
            next=next,
        )
        self.returncode = returncode
        self.output = output

    @property
    def headline(self) -> str:
        """How it ended; of its last lines the first one would say nothing."""
        return self.what.splitlines()[0].removesuffix(":")

    @property
    def reason(self) -> str:
        """The first line that it printed."""
        return (self.output.strip().splitlines() or ["no reason given"])[0]


class Deadline(KstallError):
    """A child was still running when its time was up, and was ended."""


class NotInstalled(KstallError):
    """A program that the stage needs is not on PATH."""


_record: contextvars.ContextVar[list[Completed] | None] = contextvars.ContextVar(
    "record", default=None
)


def recorded() -> AbstractContextManager[list[Completed]]:
    """The children that end while the block runs (without what they printed)."""
    return scope.bound(_record, [])


class Ended(KstallError):
    """A child was not started, because its group has been ended."""


class _Interruption:
    """Whether the main thread can be interrupted now, and was meanwhile."""

    def __init__(self) -> None:
        self.held = False
        self.came = False


_interruption = _Interruption()


def interrupt(number: int, frame: FrameType | None) -> None:
    """Handle a signal by `KeyboardInterrupt`, though not before a child that is being
    started is known, and so is ended like the others."""
    if _interruption.held:
        _interruption.came = True
    else:
        raise KeyboardInterrupt


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Have `interrupt` wait for the end of the block."""
    if threading.current_thread() is not threading.main_thread():
        yield  # Handlers run in the main thread only.
        return
    _interruption.held = True
    try:
        yield
    finally:
        _interruption.held = False
        if _interruption.came:
            _interruption.came = False
            raise KeyboardInterrupt


class Children:
    """Children of several threads that are ended together."""

    def __init__(self) -> None:
        # Held while a child is started, lest `end` miss it.
        self._lock = threading.Lock()
        self._alive: set[subprocess.Popen[bytes]] = set()
        # Groups that threads of ours have begun.
        self._inner: set[Children] = set()
        self._ended = False

    @contextlib.contextmanager
    def start(
        self, make: Callable[[], subprocess.Popen[bytes]]
    ) -> Iterator[subprocess.Popen[bytes]]:
        """The child that ``make`` starts, ended with the others; raises `Ended` after
        `end`."""
        child = None
        try:
            with self._lock, _uninterrupted():
                if self._ended:
                    raise Ended("not started, as the run is ending")
                child = make()
                self._alive.add(child)
            yield child
        finally:
            if child is not None:
                end(child)
                with self._lock:
                    self._alive.discard(child)

    @property
    def ended(self) -> bool:
        """Whether no more children are started."""
        return self._ended

    def end(self) -> None:
        """Kill all children; from now on none is started."""
        with self._lock:
            self._ended = True
            for child in self._alive:
                _kill(child)
            for inner in self._inner:
                inner.end()

    @contextlib.contextmanager
    def around(self, inner: Children) -> Iterator[None]:
        """While the block runs, the children of ``inner`` end with ours."""
        with self._lock:
            self._inner.add(inner)
            if self._ended:
                inner.end()
        try:
            yield
        finally:
            with self._lock:
                self._inner.discard(inner)


_children: contextvars.ContextVar[Children | None] = contextvars.ContextVar(
    "children", default=None
)


@contextlib.contextmanager
def together() -> Iterator[Children]:
    """The children that are started in this context, and in copies of it.

    They end with those of the block around this one, if there is one.
    """
    children = Children()
    outer = _children.get()
    around = contextlib.nullcontext() if outer is None else outer.around(children)
    with scope.bound(_children, children), around:
        yield children


def require_going() -> None:
    """Raise `Ended` in a context whose children have been ended: for code that waits
    for something other than a child."""
    if (children := _children.get()) is not None and children.ended:
        raise Ended("given up, as the run is ending")


# Held while our own environment is another than that which children get.
_environment = threading.Lock()


@contextlib.contextmanager
def environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Have ``variables`` in our own environment while the block runs, for a library
    that looks for them there.

    Other threads start their children before or after it, without them; the block
    itself may not start any.
    """
    with _environment:
        before = {name: os.environ.get(name) for name in variables}
        try:
            os.environ.update(variables)
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value


_IF_PARENT_LIVES = 'test "$PPID" = "$0" || exit 125; '
# Without a namespace that dies with its first process, a shell ends its group instead.
# One in the background would get /dev/null for its input.
_ITS_GROUP = 'exec 3<&0; trap "kill -KILL 0" TERM; "$@" <&3 3<&- & wait "$!"'


@functools.cache
def _namespaces() -> tuple[str, ...]:
    """The widest containment this machine grants, as an argv prefix."""
    base = ("setpriv", "--pdeathsig", "KILL")
    if shutil.which("setpriv") is None:
        return ()
    unshare = ("unshare", "--fork", "--pid", "--mount-proc", "--kill-child=KILL")
    # A user namespace makes the PID namespace available to everyone.
    user = () if os.geteuid() == 0 else ("--user", "--map-current-user")
    prefix = (*base, *unshare, *user)
    with contextlib.suppress(OSError):
        probe = subprocess.run([*prefix, "true"], capture_output=True, check=False)
        if probe.returncode == 0:
            return prefix
    return base


def contained(argv: Sequence[str | Path], *, namespace: bool = True) -> list[str]:
    """``argv`` with the prefix that ties the child and its children to us.

    Without a ``namespace`` only its process group is sure to die with us.
    """
    if not (prefix := _namespaces()):
        return [*map(str, argv)]
    # The signal does not come if we died before setpriv asked for it: sh looks.
    pid = str(os.getpid())
    if namespace and len(prefix) > 3:
        alive = ("sh", "-c", _IF_PARENT_LIVES + 'exec "$@"', pid)
        return [*prefix[:3], *alive, *prefix[3:], *map(str, argv)]
    group = ("sh", "-c", _IF_PARENT_LIVES + _ITS_GROUP, pid)
    return ["setpriv", "--pdeathsig", "TERM", *group, *map(str, argv)]


@contextlib.contextmanager
def start(
    argv: Sequence[str | Path],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    stdin: int | None = subprocess.DEVNULL,
    stdout: int | None = subprocess.PIPE,
    stderr: int | None = subprocess.STDOUT,
    namespace: bool = True,
) -> Iterator[subprocess.Popen[bytes]]:
    """A running child (``env`` is added to ours), gone when the block is left."""
    if shutil.which(str(argv[0])) is None:
        raise NotInstalled(
            f"{argv[0]}: command not found", next="run `make setup`, or install it"
        )
    with _environment:
        inherited = dict(os.environ)
    began = time.monotonic()

    def make() -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            contained(argv, namespace=namespace),
            cwd=cwd,
            env={**inherited, **(env or {})},
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
        )

    child = None
    try:
        with (_children.get() or Children()).start(make) as child:
            yield child
    finally:
        # A child that did not start has not ended.
        if child is not None and (commands := _record.get()) is not None:
            words = tuple(map(str, argv))
            seconds = time.monotonic() - began
            commands.append(Completed(words, child.returncode, "", seconds))


def end(child: subprocess.Popen[bytes]) -> None:
    """Kill ``child``'s whole session, then wait for it."""
    _kill(child)
    child.wait()


def _kill(child: subprocess.Popen[bytes]) -> None:
    if child.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)


def run(
    argv: Sequence[str | Path],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    input: bytes | None = None,
    log: Path | None = None,
    timeout: float | None = None,
    check: bool = True,
    on_line: Callable[[str], None] | None = None,
    namespace: bool = True,
) -> Completed:
    """Run ``argv`` to its end; stdout and stderr come back merged.

    ``log`` gets the command, so that it can be pasted, and all it printed, as it is
    printed.  ``on_line`` sees each line at once.  Raises `CommandError` on a non-zero
    exit unless ``check`` is false, and `Deadline` after ``timeout`` seconds.  Without a
    ``namespace`` the child may make user namespaces of its own.
    """
    words = tuple(map(str, argv))
    began = time.monotonic()
    lines: list[str] = []
    with contextlib.ExitStack() as stack:
        sink = None
        if log is not None:
            log.parent.mkdir(parents=True, exist_ok=True)
            # A file name need not be UTF-8, and the command is there to be pasted.
            sink = stack.enter_context(
                log.open("a", encoding="utf-8", errors="surrogateescape")
            )
            sink.write(f"$ {shlex.join(words)}\n")
            sink.flush()
        child = stack.enter_context(
            start(
                words,
                cwd=cwd,
                env=env,
                stdin=subprocess.DEVNULL if input is None else subprocess.PIPE,
                namespace=namespace,
            )
        )
        assert child.stdout is not None
        expired = threading.Event()
        if timeout is not None:

            def expire() -> None:
                expired.set()
                end(child)

            timer = threading.Timer(timeout, expire)
            timer.daemon = True
            timer.start()
            stack.callback(timer.cancel)
        if input is not None:
            assert child.stdin is not None
            stdin = child.stdin

            def feed() -> None:
                with contextlib.suppress(BrokenPipeError), stdin:
                    stdin.write(input)

            # A thread, because a child that prints before it has read all would
            # otherwise wait for us while we wait for it.
            feeder = threading.Thread(target=feed, daemon=True)
            feeder.start()
            stack.callback(feeder.join)
        for raw in child.stdout:
            line = raw.decode("utf-8", "replace")
            lines.append(line)
            if sink is not None:
                sink.write(line)
                sink.flush()
            if on_line is not None:
                on_line(line.rstrip("\n"))
        returncode = child.wait()
    output = "".join(lines)
    if expired.is_set():
        raise Deadline(
            f"`{shlex.join(words)}` ran longer than {timeout:g} s",
            log=log,
            next="run it by itself, to see what it waits for; on a busy machine, try "
            "again later",
        )
    if check and returncode != 0:
        raise CommandError(words, returncode, output, log=log)
    return Completed(words, returncode, output, time.monotonic() - began)
