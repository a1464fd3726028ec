# SPDX-License-Identifier: GPL-2.0-or-later
"""Boot a kernel in QEMU, run one command in it, and return how it ended.

Everything that knows virtme-ng is here.  Control and console are separate: the
command's status comes back as a file, and QEMU itself writes the whole console to
another, so that neither can garble the other.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Literal

from ..base import (
    Architecture,
    KstallError,
    cache,
    places,
    process,
    temporary,
)
from ..debian import Root
from . import console as console_text
from . import dump, hostclock, hosttime, monitor
from .console import Splat

# The directory of the job's script and its status files in the guest.
_CONTROL = "/run/kstall-control"
_JOB = Path(__file__).parent / "guest-job.sh"
_POLL = 0.05
# The most that a busy host can extend a deadline, as a factor.
_PATIENCE = 6.0
# Seconds for a guest to power off after its job, before it is killed.
_GRACE = 20.0
# The kernel silently truncates its command line, whose end starts init, to this.
_COMMAND_LINE_SIZE = 2048
# Bytes that virtme-ng adds by itself, and for each mount beside its path, rounded up.
_VNG_BYTES = 875
_VNG_BYTES_PER_MOUNT = 100
_KERNEL = (
    # virtme-ng adds `quiet`; the last one wins.  Before the console's parameter, as the
    # console discards what the level at its start suppresses.
    "loglevel=7",
)
_KERNEL_LATER = (
    # After an oops nothing can be trusted; panic=-1 then ends the guest at once.
    "oops=panic",
    "nokaslr",
    "kunit.autorun=0",
)


class GuestError(KstallError):
    """The guest could not be started at all."""


@dataclass(frozen=True)
class Accel:
    """How QEMU runs guest code; ``why`` says how that was decided.

    ``one_thread``: an emulated guest's processors take turns in one host thread.
    """

    kind: Literal["kvm", "tcg"]
    why: str
    one_thread: bool = False


@dataclass(frozen=True)
class Machine:
    """The guest's hardware; ``devices`` are QEMU arguments, given as they are."""

    cpus: int = 2
    memory: str = "2G"
    append: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()

    @property
    def bytes_of_memory(self) -> int:
        """``memory``, in the notation of series.toml, in bytes."""
        return int(self.memory[:-1]) << {"M": 20, "G": 30}[self.memory[-1]]


@dataclass(frozen=True)
class Share:
    """A host directory that the guest sees at ``guest``, an absolute path."""

    guest: str
    host: Path
    writable: bool = False


@dataclass(frozen=True)
class GuestRun:
    """How a guest ended, and what it printed.

    ``status`` is ``completed`` if the command ended, with ``exit_status``, ``panic`` if
    the kernel did, ``hang`` if neither did before the deadline, and ``lost`` if QEMU
    ended for an unknown reason.  The console of a hung guest ends with a dump of its
    tasks.  ``first_line_seconds`` is from QEMU's start to the command's, or None if it
    never started.  ``performed`` is what the monitor did on the guest's request.
    ``lost`` are the seconds in which the host ran something else while the busiest of
    the guest's processors was runnable, or had QEMU wait for a disk; ``host`` has the
    details.  ``deadline`` is in seconds without those.  ``splats`` are all reports that
    were printed before tasks were dumped; `excused` ones say nothing about the kernel.
    """

    status: Literal["completed", "panic", "hang", "lost"]
    exit_status: int | None
    console: Path
    seconds: float
    first_line_seconds: float | None
    splats: tuple[Splat, ...]
    argv: tuple[str, ...]
    performed: tuple[monitor.Performed, ...] = ()
    # Processes that the kernel killed for want of memory.
    victims: tuple[str, ...] = ()
    host: hosttime.Host = field(default_factory=hosttime.Host)
    lost: float = 0.0
    deadline: float = 0.0

    @property
    def ahead(self) -> str | None:
        """How far the guest's clock was ahead of the host's, if it was.

        None with icount, with which the guest's clock counts instructions.
        """
        if any("-icount" in word for word in self.argv):
            return None
        return hostclock.ahead(self.console, self.seconds)

    @property
    def last_words(self) -> str:
        """The last line that QEMU, or vng, printed on its own behalf; may be empty."""
        log = self.console.with_name("guest.log")
        if not log.exists():
            return ""
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
        return next(
            (line for line in reversed(lines) if line.strip() and line[:2] != "$ "), ""
        )

    def excused(self, limits: hosttime.Thresholds) -> dict[int, str]:
        """Reports that a busy host explains: index in ``splats``, and the reason."""
        stalls = {
            number: splat
            for number, splat in enumerate(self.splats)
            if hosttime.stall(splat, limits) is not None
        }
        if ahead := self.ahead:
            return dict.fromkeys(stalls, ahead)
        offsets = console_text.offsets(
            self.console, [splat.line for splat in stalls.values()]
        )
        excuses = {}
        for number, splat in stalls.items():
            at = self.host.printed(offsets.get(splat.line, 0))
            if reason := hosttime.excuse(splat, at, self.host, limits):
                excuses[number] = reason
        return excuses


@dataclass(frozen=True)
class _Desk:
    """A short-named directory for one run's sockets and links.

    virtme-ng hands its arguments to a shell, and a socket's path may have 107 bytes;
    links from here make both independent of the names of the user's directories.
    """

    path: Path

    @property
    def home(self) -> Path:
        return self.path / "home"

    @property
    def control(self) -> Path:
        return self.path / "control"

    @property
    def serial(self) -> Path:
        return self.path / "serial"

    @property
    def monitor(self) -> Path:
        return self.path / "monitor"

    @property
    def steps(self) -> Path:
        return self.path / "steps"

    def link(self, name: str, target: Path) -> Path:
        link = self.path / name
        if not link.is_symlink():
            link.symlink_to(target.resolve())
        return link


def boot(  # noqa: PLR0913 - all parts of a guest, each by its name
    image: Path,
    root: Root,
    accel: Accel,
    machine: Machine,
    shares: Sequence[Share],
    command: Sequence[str],
    *,
    out: Path,
    deadline: float,
    say: Callable[[str], None],
    steps: Sequence[monitor.MonitorStep] = (),
    scripts: Path | None = None,
) -> GuestRun:
    """Run ``command`` in a guest; ``deadline`` is in seconds that the guest can use:
    those in which it waited for a processor or a disk of the host do not count.

    ``steps`` are what the guest may ask QEMU's monitor for, see `kstall_guest.monitor`;
    ``scripts`` is what ``{scripts}`` in the machine's devices stands for.

    ``out`` gets ``console.log``, ``job.log`` (the command's output), ``guest.log``
    (that of virtme-ng and QEMU), ``host.json`` (see `hosttime`) and, if a hung kernel
    does not respond to SysRq, ``registers.txt``.  Raises `GuestError`.
    """
    out.mkdir(parents=True, exist_ok=True)
    console = out / "console.log"
    for stale in (console, out / "job.log", out / "registers.txt"):
        stale.unlink(missing_ok=True)
    with contextlib.ExitStack() as stack:
        # Another run may build many kernels meanwhile.
        stack.enter_context(cache.held(image.parent))
        stack.enter_context(places.taken())
        desk = stack.enter_context(_desk())
        if scripts is not None:
            machine = _with_files(machine, desk.link("scripts", scripts))
        argv = vng_argv(
            image,
            root,
            accel,
            _with_port(machine, desk) if steps else machine,
            shares,
            command,
            desk=desk,
            console=console,
        )
        performed = stack.enter_context(
            monitor.answering(desk.steps, desk.monitor, steps)
        )
        with (out / "guest.log").open("wb") as log:
            log.write(os.fsencode(f"$ {shlex.join(argv)}\n"))
            log.flush()
            began = time.monotonic()
            with process.start(argv, env=_environment(desk)) as child:
                pump = threading.Thread(target=_pump, args=(child, log), daemon=True)
                pump.start()
                times = hosttime.Watch(child.pid, console, desk.control / hosttime.LOST)
                with times.watching():
                    watch = _wait(child, desk, began, deadline, times, say)
                    # A full disk causes worse errors, which are raised later.
                    with contextlib.suppress(OSError):
                        cache.write_json(out / hosttime.FILE, times.host.as_json())
                    if watch.hung:
                        say(f"timeout after {deadline:g} s: dumping the guest's tasks")
                        registers = out / "registers.txt"
                        dump.tasks(
                            desk.serial,
                            desk.monitor,
                            console,
                            registers,
                            lambda: times.spent,
                        )
            pump.join()
        seconds = time.monotonic() - began
        if not console.exists():
            raise GuestError(
                "QEMU did not start:\n" + _tail(out / "guest.log"),
                log=out / "guest.log",
                next="mend what the log names; if it names nothing, see whether the "
                f"host has {machine.memory} of memory to spare",
            )
        if (printed := desk.control / "output").exists():
            shutil.copyfile(printed, out / "job.log")
        run = _judge(desk, console, argv, seconds, watch, tuple(performed))
        return dataclasses.replace(
            run, host=times.host, lost=times.lost, deadline=deadline
        )


def vng_argv(
    image: Path,
    root: Root,
    accel: Accel,
    machine: Machine,
    shares: Sequence[Share],
    command: Sequence[str],
    *,
    desk: _Desk,
    console: Path,
) -> tuple[str, ...]:
    """The virtme-ng command line, which is only built here."""
    job = ["sh", f"{_CONTROL}/{_JOB.name}", *command]
    mounts = [Share(_CONTROL, desk.control, writable=True), *shares]
    _check_length(machine, mounts, job, root.arch)
    argv = [
        # The program beside our interpreter: a virtual environment need not be active.
        str(Path(sys.executable).parent / "vng"),
        "--run",
        str(desk.link("image", image)),
        "--root-disk",
        str(desk.link("root", root.image)),
        "--name=kstall",
        "--user=root",
        "--force-9p",
        "--disable-microvm",
        *((f"--arch={root.arch.vng}",) if not root.arch.native else ()),
        f"--cpus={machine.cpus}",
        f"--memory={machine.memory}",
        *(("--disable-kvm",) if accel.kind == "tcg" else ()),
    ]
    for number, share in enumerate(mounts):
        option = "--rwdir" if share.writable else "--rodir"
        argv.append(f"{option}={share.guest}={desk.link(f'share{number}', share.host)}")
    clock = _clock(accel, machine, root.arch)
    for word in (*kernel_parameters(machine, root.arch), *clock):
        argv.append(f"--append={word}")
    qemu = _qemu_argv(desk, desk.link("out", console.parent))
    qemu = (*qemu, *root.arch.hardware_for(accel.kind), *machine.devices)
    if accel.one_thread:
        qemu = (*qemu, "-accel", "tcg,thread=single")
    return (*argv, f"--exec={shlex.join(job)}", f"--qemu-opts={shlex.join(qemu)}")


def kernel_parameters(machine: Machine, architecture: Architecture) -> tuple[str, ...]:
    """The guest's kernel parameters, without those that virtme-ng adds."""
    return (*_KERNEL, *architecture.parameters, *_KERNEL_LATER, *machine.append)


def _clock(
    accel: Accel, machine: Machine, architecture: Architecture
) -> tuple[str, ...]:
    """The clock rate for an emulated kernel, so that it need not measure it; see
    `hostclock`.

    It is not among `kernel_parameters`, which are part of the key of a guest's results:
    it differs between hosts, and should equal what the kernel would have measured.
    With icount the counter is the guest's own, and its measurement cannot be disturbed.
    """
    if (
        accel.kind != "tcg"
        or "-icount" in machine.devices
        or architecture.counter is None
    ):
        return ()
    khz = hostclock.khz()
    return () if khz is None else (f"{architecture.counter}={khz}",)


def _check_length(
    machine: Machine,
    mounts: Sequence[Share],
    job: Sequence[str],
    architecture: Architecture,
) -> None:
    length = _VNG_BYTES + sum(
        len(word) + 1 for word in kernel_parameters(machine, architecture)
    )
    length += sum(_VNG_BYTES_PER_MOUNT + len(mount.guest) for mount in mounts)
    # virtme-ng puts the command there, too, in base64.
    length += len(shlex.join(job)) * 4 // 3
    if length > _COMMAND_LINE_SIZE:
        raise GuestError(
            "command and kernel parameters do not fit onto the kernel's command line",
            next="put the command into a script in a share",
        )


def _environment(desk: _Desk) -> dict[str, str]:
    # vng finds its helper virtme-run by PATH.
    path = f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}"
    return {"HOME": str(desk.home), "PATH": path, "TMPDIR": str(desk.path)}


def _qemu_argv(desk: _Desk, out: Path) -> tuple[str, ...]:
    # virtme-ng discards the serial console.  A second port would not help: of two
    # `console=ttyS*` the kernel takes the first.  So this alters virtme-ng's own.
    console = {
        "backend": "socket",
        "path": desk.serial,
        "server": "on",
        "wait": "off",
        "logfile": out / "console.log",
    }
    argv = ["-qmp", f"unix:{desk.monitor},server=on,wait=off"]
    # Names the threads, which identifies those of the guest's processors.
    argv += ["-name", "debug-threads=on"]
    for name, value in console.items():
        argv += ["-set", f"chardev.console.{name}={value}"]
    return tuple(argv)


def _with_files(machine: Machine, scripts: Path) -> Machine:
    """``machine`` with ``{scripts}`` replaced in its devices."""
    devices = (word.replace("{scripts}", str(scripts)) for word in machine.devices)
    return dataclasses.replace(machine, devices=tuple(devices))


def _with_port(machine: Machine, desk: _Desk) -> Machine:
    """``machine`` with the serial port over which the guest asks for steps."""
    port = (
        "-chardev",
        f"socket,id=kstall-steps,path={desk.steps},server=on,wait=off",
        "-device",
        "virtio-serial-pci,id=kstall-serial",
        "-device",
        f"virtserialport,bus=kstall-serial.0,chardev=kstall-steps,name={monitor.PORT}",
    )
    return dataclasses.replace(machine, devices=(*machine.devices, *port))


@contextlib.contextmanager
def _desk() -> Iterator[_Desk]:
    base = tempfile.gettempdir()
    if not re.fullmatch(r"[\w/.+-]{1,60}", base):
        base = "/tmp"  # noqa: S108 - the directory in it is made by mkdtemp
    with temporary.directory("guest", Path(base)) as place:
        desk = _Desk(place)
        desk.home.mkdir()
        desk.control.mkdir()
        shutil.copy2(_JOB, desk.control / _JOB.name)
        # The first configuration found wins: no other one may set options.
        config = desk.home / ".config/virtme-ng"
        config.mkdir(parents=True)
        (config / "virtme-ng.conf").write_text("{}\n", encoding="utf-8")
        yield desk


def _pump(child: subprocess.Popen[bytes], log: BinaryIO) -> None:
    """Copy the output of ``child`` to ``log``: QEMU reopens its outputs, and would
    truncate the file."""
    assert child.stdout is not None
    for line in child.stdout:
        log.write(line)
        log.flush()


@dataclass(frozen=True)
class _Watch:
    """What was seen of a guest from outside; ``first_line`` is as in `GuestRun`, and
    ``printed`` the bytes on the console at the end."""

    hung: bool
    first_line: float | None
    printed: int


def _wait(
    child: subprocess.Popen[bytes],
    desk: _Desk,
    began: float,
    deadline: float,
    times: hosttime.Watch,
    say: Callable[[str], None],
) -> _Watch:
    """Watch until the guest ends, or has had ``deadline`` seconds since ``began`` on
    the monotonic clock."""
    # When QEMU made its socket, and when the command began.  By our own clock: mtimes
    # are of a clock that may be set meanwhile.
    started = first = None
    hung = False
    while child.poll() is None and not hung:
        now = time.monotonic()
        if started is None and desk.monitor.exists():
            started = now
        if first is None and started is not None and (desk.control / "began").exists():
            first = now - started
            say(f"booted in {first:.1f} s")
        if (desk.control / "status").exists():
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(_GRACE)
            break
        hung = now - began >= min(deadline + times.lost, deadline * _PATIENCE)
        if not hung:
            time.sleep(_POLL)
    return _Watch(hung, first, times.printed)


def _judge(
    desk: _Desk,
    console: Path,
    argv: tuple[str, ...],
    seconds: float,
    watch: _Watch,
    performed: tuple[monitor.Performed, ...],
) -> GuestRun:
    splats = console_text.scan_file(console)
    if watch.hung:
        # Without the dump of the tasks, which may overrun the kernel's log.
        offsets = console_text.offsets(console, [splat.line for splat in splats])
        splats = tuple(splat for splat in splats if offsets[splat.line] < watch.printed)
    exit_status = None
    if (file := desk.control / "status").exists():
        status: Literal["completed", "panic", "hang", "lost"] = "completed"
        exit_status = int(file.read_text(encoding="ascii"))
    elif console_text.panicked(splats):
        status = "panic"
    else:
        status = "hang" if watch.hung else "lost"
    return GuestRun(
        status,
        exit_status,
        console,
        seconds,
        watch.first_line,
        splats,
        argv,
        performed,
        console_text.victims(console),
    )


def _tail(path: Path) -> str:
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    return "\n".join(lines[-10:])
