# SPDX-License-Identifier: GPL-2.0-only
"""PCIe devices as the kernel knows them, and errors for them.

Devices below a Root Port are identified by where series.toml puts them.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import json
import os
import signal
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from kstall_guest import waiting

DEVICES = Path("/sys/bus/pci/devices")
INJECT = Path("/dev/aer_inject")
INSTANCES = Path("/sys/kernel/tracing/instances")
PRINTK = Path("/proc/sys/kernel/printk")
# Above the interrupt's thread, which is a FIFO task of priority 50.
ABOVE = 60

# Records that the kernel has room for.
ROOM = 128
# Seconds to wait for what the code that the patches change has to do; the checks judge
# the outcome.
LIMIT_S = 45.0

RXERR, BADTLP, ADVISORY = 0x1, 0x40, 0x2000
#: Offsets in the AER capability.
UNCOR_STATUS, UNCOR_MASK, COR_STATUS, COR_MASK = 0x4, 0x8, 0x10, 0x14
ROOT_STATUS, ERR_SRC = 0x30, 0x34
_EXTENDED, _ID_AER = 0x100, 0x1
# More than a line of a trace, and a number of bytes that nothing else asks for.
_TRACED = 4093
# The number of read(2), which differs between architectures.
_READ = {"x86_64": "0", "aarch64": "63"}[os.uname().machine]


def say(**fact: object) -> None:
    """Print one JSON line for the checks."""
    print(json.dumps(fact), flush=True)


def mono() -> int:
    """CLOCK_MONOTONIC in ns, the clock of the trace."""
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC)


@dataclass(frozen=True)
class Device:
    """A PCI device, by its address as sysfs spells it."""

    address: str

    @property
    def path(self) -> Path:
        """Its directory in sysfs."""
        return DEVICES / self.address

    @property
    def below(self) -> tuple[Device, ...]:
        """The devices on the bus that this bridge leads to, by number."""
        paths = self.path.resolve().glob("????:??:??.?")
        return tuple(sorted((Device(path.name) for path in paths), key=str))

    @property
    def number(self) -> tuple[int, int, int, int]:
        """Domain, bus, device, function."""
        domain, bus, rest = self.address.split(":")
        device, function = rest.split(".")
        return int(domain, 16), int(bus, 16), int(device, 16), int(function, 16)

    @property
    def source(self) -> int:
        """The Requester ID."""
        _, bus, device, function = self.number
        return bus << 8 | device << 3 | function

    def counters(self) -> dict[str, int]:
        """The kernel's AER counters for it: by error, and the totals."""
        counted: dict[str, int] = {}
        for kind in ("correctable", "nonfatal", "fatal"):
            file = self.path / f"aer_dev_{kind}"
            for line in file.read_text().splitlines():
                name, _, value = line.rpartition(" ")
                counted[f"{kind} {name}"] = int(value)
        for file in self.path.glob("aer_rootport_total_err_*"):
            counted[file.name.removeprefix("aer_rootport_")] = int(file.read_text())
        return counted

    @property
    def position(self) -> int:
        """Where its AER capability is."""
        with (self.path / "config").open("rb", buffering=0) as file:
            at = _EXTENDED
            while at:
                header = struct.unpack("<I", os.pread(file.fileno(), 4, at))[0]
                if header & 0xFFFF == _ID_AER:
                    return at
                at = header >> 20
        raise LookupError(f"{self.address} has no AER capability")

    def read(self, register: int) -> int:
        """A register of its AER capability."""
        at = self.position + register
        with (self.path / "config").open("rb", buffering=0) as file:
            value: int = struct.unpack("<I", os.pread(file.fileno(), 4, at))[0]
            return value

    def write(self, register: int, value: int) -> None:
        """Set a register of its AER capability; ones clear a status."""
        at = self.position + register
        with (self.path / "config").open("r+b", buffering=0) as file:
            os.pwrite(file.fileno(), struct.pack("<I", value), at)


def port(slot: int) -> Device:
    """The Root Port in a slot of the root bus."""
    return Device(f"0000:00:{slot:02x}.0")


class Injector:
    """``/dev/aer_inject``: errors that the kernel itself simulates."""

    def __init__(self) -> None:
        self.file = INJECT.open("wb", buffering=0)

    def hit(self, device: Device, cor: int, uncor: int = 0) -> int:
        """Inject ``cor`` and ``uncor`` of ``device``; returns 0 or an errno."""
        domain, bus, slot, function = device.number
        record = struct.pack(
            "=BBBxIIIIIII", bus, slot, function, uncor, cor, 0, 0, 0, 0, domain
        )
        try:
            os.write(self.file.fileno(), record)
        except OSError as error:
            return error.errno or errno.EIO
        return 0


@contextlib.contextmanager
def before_the_thread() -> Iterator[None]:
    """Run before any interrupt thread may, on the only CPU there is.

    The console is silent: to print a line takes longer than all the rest.
    """
    level = PRINTK.read_text().split()[0]
    PRINTK.write_text("1")
    gc.disable()
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(ABOVE))
    try:
        yield
    finally:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
        gc.enable()
        PRINTK.write_text(level)


SERVICES = Path("/sys/bus/pci_express/drivers/aer")


@contextlib.contextmanager
def unheard(root: Device) -> Iterator[None]:
    """Unbind the AER driver from a Root Port during the block."""
    (service,) = (path.name for path in SERVICES.glob(f"{root.address}:*"))
    (SERVICES / "unbind").write_text(service)
    try:
        yield
    finally:
        (SERVICES / "bind").write_text(service)


def thread_of(root: Device) -> int:
    """The thread that handles the messages to a Root Port."""
    numbers = {path.name for path in (root.path / "msi_irqs").iterdir()}
    for comm in Path("/proc").glob("[0-9]*/comm"):
        with contextlib.suppress(OSError):
            name = comm.read_text().strip()
            if name.endswith("-aerdrv") and name[4:].split("-")[0] in numbers:
                return int(comm.parent.name)
    raise LookupError(f"{root.address} has no AER interrupt thread")


def idle(pid: int) -> bool:
    """Whether a task sleeps interruptibly, so that it has nothing under way."""
    text = Path(f"/proc/{pid}/stat").read_text()
    return text.rpartition(")")[2].split()[0] == "S"


@contextlib.contextmanager
def told(event: str) -> Iterator[None]:
    """Leave the block when ``system/event`` was traced in it, or after `LIMIT_S`."""
    trace = INSTANCES / "kstall-told"
    trace.mkdir()
    try:
        (trace / "events" / event / "enable").write_text("1")
        yield
        name = event.partition("/")[2]
        waiting.until(
            lambda: name in (trace / "trace").read_text(), LIMIT_S, name, patched=True
        )
        (trace / "events" / event / "enable").write_text("0")
    finally:
        trace.rmdir()


@contextlib.contextmanager
def logged(
    text: str, times: int = 1, outcomes: list[bool] | None = None
) -> Iterator[None]:
    """Leave the block when the kernel logged ``text`` in it, or after `LIMIT_S`.

    With several ``times``, wait for each until one does not come; whether each came is
    added to ``outcomes``.
    """
    log = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
    try:
        os.lseek(log, 0, os.SEEK_END)
        yield
        for _ in range(times):
            seen = waiting.until(
                lambda: _logs(log, text), LIMIT_S, repr(text), patched=True
            )
            if outcomes is not None:
                outcomes.append(seen)
            if not seen:
                break
    finally:
        os.close(log)


def _logs(log: int, text: str) -> bool:
    """Whether ``text`` is in what was logged since the last time."""
    with contextlib.suppress(BlockingIOError):
        while text not in os.read(log, 16384).decode(errors="replace"):
            pass
        return True
    return False


def _reads(pid: int, size: int) -> bool:
    """Whether a task waits in read(2), for so many bytes."""
    words = Path(f"/proc/{pid}/syscall").read_text().split()
    return words[0] == _READ and int(words[3], 0) == size


def interrupts(name: str) -> int:
    """How often the interrupts whose line has ``name`` in it were taken."""
    total = 0
    for line in Path("/proc/interrupts").read_text().splitlines():
        number, _, rest = line.partition(":")
        if number.strip().isdigit() and name in rest:
            total += sum(int(word) for word in rest.split() if word.isdigit())
    return total


class Watch:
    """The counters of a Root Port and of what is below it, before and after."""

    def __init__(self, root: Device, devices: dict[str, Device]) -> None:
        self.devices = {"root": root, **devices}
        self.thread = thread_of(root)
        self.before = {name: device.counters() for name, device in self.devices.items()}
        self.began = mono()

    def received(self) -> int:
        """Records that the Root Port's thread has taken since."""
        return sum(
            value - self.before["root"][name]
            for name, value in self.devices["root"].counters().items()
            if name.startswith("total_err_")
        )

    def settle(self, records: int) -> None:
        """Wait until so many records were taken and handled."""
        waiting.until(
            lambda: self.received() >= records and idle(self.thread),
            LIMIT_S,
            f"{records} records",
            patched=True,
        )

    def say(self, name: str, **facts: object) -> None:
        """Print by how much the counters grew, without those that did not."""
        grown = {}
        for key, device in self.devices.items():
            if device.path.exists():
                after = device.counters()
                grown[key] = {
                    counter: value - self.before[key].get(counter, 0)
                    for counter, value in after.items()
                    if value != self.before[key].get(counter, 0)
                }
        say(
            what="turn",
            name=name,
            thread=self.thread,
            began_ns=self.began,
            ended_ns=mono(),
            grown=grown,
            # As the last message has left them: nobody clears the sender.
            rest=[
                self.devices["root"].read(register)
                for register in (ROOT_STATUS, ERR_SRC)
            ],
            sources={key: device.source for key, device in self.devices.items()},
            addresses={key: device.address for key, device in self.devices.items()},
            **facts,
        )


def burst(root: Device, below: dict[str, Device], count: int) -> None:
    """Inject Receiver Errors of "ep2", all before the first one can be handled."""
    watch = Watch(root, below)
    injector = Injector()
    # No code may run for the first time while a message waits: to read in a page of it
    # would let the thread run.
    watch.received()
    with before_the_thread():
        errors = [injector.hit(below["ep2"], RXERR) for _ in range(count)]
        taken = watch.received()
    watch.settle(min(count, ROOM))
    watch.say(f"burst-{count}", writes=count, errors=errors, taken=taken)


Hit = Callable[[Injector, Device], int]


def _receiver_error(injector: Injector, device: Device) -> int:
    return injector.hit(device, RXERR)


def _bad_tlp(injector: Injector, device: Device) -> int:
    return injector.hit(device, BADTLP)


def before_the_clearing(
    root: Device,
    below: dict[str, Device],
    first: Hit = _receiver_error,
    second: Hit = _bad_tlp,
) -> None:
    """An error of "ep2", and another one between its report and its clearing.

    A reader of ras:aer_event is woken there, and runs at once.
    """
    watch = Watch(root, below)
    injector = Injector()
    instance = INSTANCES / "kstall-own"
    instance.mkdir()
    try:
        (instance / "events/ras/aer_event/enable").write_text("1")
        child = os.fork()
        if not child:
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(ABOVE))
            pipe = os.open(instance / "trace_pipe", os.O_RDONLY)
            os.read(pipe, _TRACED)
            os._exit(second(injector, below["ep2"]))
        try:
            # It also sleeps before it gets there.
            while not (_reads(child, _TRACED) and idle(child)):
                time.sleep(0.02)
            wrong = [first(injector, below["ep2"])]
            watch.settle(2)
        finally:
            if watch.received() < 2:
                os.kill(child, signal.SIGKILL)
            _, status = os.waitpid(child, 0)
        wrong.append(os.waitstatus_to_exitcode(status))
        (instance / "events/ras/aer_event/enable").write_text("0")
    finally:
        instance.rmdir()
    watch.say("between", writes=2, errors=wrong)
