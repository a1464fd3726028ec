# SPDX-License-Identifier: GPL-2.0-or-later
"""The checks of the pci-aer series.

What is held against the event is none of its own: which errors were made and where,
by the words of QEMU's monitor or by the writes to /dev/aer_inject; the kernel's
counters in sysfs before and after; interrupts, their handlers' return values, and
`ras:aer_event`, all of which were there before.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kstall.evidence import Event, Evidence, Injected, Verdict, WorkloadResult

NONFATAL, FATAL, CORRECTABLE = 0, 1, 2
#: What the kernel calls them where it counts.
_TOTALS = {
    CORRECTABLE: "total_err_cor",
    NONFATAL: "total_err_nonfatal",
    FATAL: "total_err_fatal",
}
_COUNTED = {CORRECTABLE: "correctable", NONFATAL: "nonfatal", FATAL: "fatal"}
RXERR, BADTLP, ADVISORY = 0x1, 0x40, 0x2000
TIMEOUT, UNSUPPORTED = 0x4000, 0x100000
#: Records that the kernel has room for.
ROOM = 128

_WORKLOADS = (
    "single",
    "merge",
    "overflow",
    "multi",
    "orphan",
    "advisory",
    "uncor",
    "between",
    "quiet",
    "mixed",
)


@dataclass(frozen=True)
class Turn:
    """Something that a workload did, what it saw of it, and what was recorded."""

    load: WorkloadResult
    facts: Mapping[str, Any]

    @property
    def label(self) -> str:
        """For the comparisons."""
        return f"{self.load.name}: {self.facts['name']}"

    def _recorded(self, name: str) -> list[Event]:
        low, high = self.facts["began_ns"], self.facts["ended_ns"]
        return [e for e in self.load.record(name) if low <= e.ts_ns <= high]

    @property
    def messages(self) -> list[Event]:
        """The messages to the Root Port that the turn is about."""
        root = self.facts["addresses"]["root"]
        return [
            event
            for event in self._recorded("pcie_aer_msg")
            if event.fields["root"] == root
        ]

    @property
    def reports(self) -> list[Event]:
        """What was read from devices, in that time."""
        return self._recorded("aer_event")

    def source(self, device: str) -> int:
        """The Requester ID of a device."""
        return int(self.facts["sources"][device])

    def grown(self, device: str, counter: str) -> int:
        """By how much a counter of the kernel grew."""
        return int(self.facts["grown"][device].get(counter, 0))


def a_message_a_record(ev: Evidence) -> Verdict:
    """QEMU itself says which number the guest has given to the device."""
    v = Verdict()
    made = _turn(ev, "single", "made-up")
    v.equal("writes to aer_inject that failed", _failed(made), 0)
    for turn, device in ((made, "ep2"), *((_turn(ev, "single", d), d) for d in _EPS)):
        v.equal(
            f"{turn.label}: messages",
            _said(turn.messages),
            [_message(turn.source(device), nr_dev=1, nr_logged=1)],
        )
        # Such as 0000:07:00.0
        domain = int(str(turn.facts["addresses"][device]).partition(":")[0], 16)
        told = {_int(event, "domain") for event in turn.messages}
        v.equal(f"{turn.label}: domain", told, {domain})
        _reported(v, turn, (device, CORRECTABLE, RXERR))
        v.equal(f"{turn.label}: {device}", turn.grown(device, "correctable RxErr"), 1)
    sent = [_sender(step) for step in ev.workload("single").injected]
    seen = [_turn(ev, "single", device).source(device) for device in _EPS]
    v.equal("senders by QEMU's monitor", sent, seen)
    return v


_EPS = ("ep0", "ep1")


def merged_messages_are_told(ev: Evidence) -> Verdict:
    """One device's status, set fifty times before it is read once."""
    v = Verdict()
    turn = _turn(ev, "merge", "burst-50")
    _burst(v, turn, 50)
    logged = [event.fields["nr_logged"] for event in turn.messages]
    v.equal("nr_logged", Counter(logged), Counter({0: 49, 1: 1}))
    v.equal("the first has the details", logged[:1], [1])
    v.equal("aer_event", len(turn.reports), 1)
    v.equal("TOTAL_ERR_COR of the device", _device_total(turn, "ep2"), 1)
    v.equal("Root Port's total", turn.grown("root", "total_err_cor"), 50)
    return v


def dropped_messages_are_told(ev: Evidence) -> Verdict:
    """More interrupts than records: what the Root Port's total has not, had no room."""
    v = Verdict()
    turn = _turn(ev, "overflow", "burst-130")
    _burst(v, turn, 130)
    kept = [event for event in turn.messages if not event.fields["dropped"]]
    dropped = [event for event in turn.messages if event.fields["dropped"]]
    v.equal("kept", len(kept), ROOM)
    v.equal(
        "dropped",
        _said(dropped),
        [_message(turn.source("ep2"), dropped=1)] * 2,
    )
    v.equal("Root Port's total", turn.grown("root", "total_err_cor"), ROOM)
    # They are told of when it happens, not when their turn would have been.
    first = min(event.ts_ns for event in kept)
    early = sum(event.ts_ns < first for event in dropped)
    v.equal("of which before the first one that was kept", early, 2)
    v.equal("of which in the AER driver's interrupt handler", _in_handler(turn), 2)
    v.equal("aer_event", len(turn.reports), 1)
    return v


def several_messages_in_one(ev: Evidence) -> Verdict:
    """The guest stood still meanwhile: the Root Port has one bit for all but one."""
    v = Verdict()
    turn = _turn(ev, "multi", "two-devices")
    v.equal(
        "two devices",
        _said(turn.messages),
        [_message(turn.source("ep0"), multi=1, nr_dev=2, nr_logged=2)],
    )
    _reported(v, turn, ("ep0", CORRECTABLE, RXERR), ("ep1", CORRECTABLE, BADTLP))
    v.equal("two devices: root total", turn.grown("root", "total_err_cor"), 1)
    turn = _turn(ev, "multi", "one-device-twice")
    v.equal(
        "one device twice",
        _said(turn.messages),
        [_message(turn.source("ep0"), multi=1, nr_dev=1, nr_logged=1)],
    )
    _reported(v, turn, ("ep0", CORRECTABLE, RXERR | BADTLP))
    turn = _turn(ev, "multi", "six-devices")
    v.equal(
        "six devices",
        _said(turn.messages),
        [_message(turn.source("ep0"), multi=1, nr_dev=5, nr_logged=5)],
    )
    v.equal("six devices: aer_event", len(turn.reports), 5)
    # Who was the sixth can be seen from its status: nobody has cleared that.
    left = [name for name, status in turn.facts["left"].items() if status]
    told = {event.fields["dev_name"] for event in turn.reports}
    v.equal("six devices: with an error left", len(left), 1)
    missing = [turn.facts["addresses"][name] for name in left]
    v.equal("six devices: of which reported", len(told.intersection(missing)), 0)
    for turn in _turns_of(ev, "mixed"):
        several = sum(_int(event, "multi") for event in turn.messages)
        wanted = int(turn.facts["name"] == "two-devices")
        v.equal(f"{turn.label}: multi", several, wanted)
    sent = [len(step.answers) - 2 for step in ev.workload("multi").injected]
    v.equal("errors by QEMU's monitor", sent, [2, 2, 6])
    return v


def unknown_sender_is_told(ev: Evidence) -> Verdict:
    """The device was removed from the kernel, not from the machine."""
    v = Verdict()
    turn = _turn(ev, "orphan", "ep1")
    source = turn.facts["source"]
    v.equal("messages", _said(turn.messages), [_message(source)])
    v.equal("aer_event", len(turn.reports), 0)
    v.equal("Root Port's total", turn.grown("root", "total_err_cor"), 1)
    (step,) = ev.workload("orphan").injected
    v.equal("sender by QEMU's monitor", _sender(step), source)
    again = next(fact for fact in _facts(turn.load) if fact["what"] == "again")
    v.true("the device was there all the time", again["found"])
    return v


def advisory_error_is_one_message(ev: Evidence) -> Verdict:
    """A kernel that allows them reports each twice, as if the second were another.

    Whether it allows them was read from the device, and whether it looked for the
    error that is meant, from the status that it clears then.
    """
    v = Verdict()
    turn = _turn(ev, "advisory", "ep0-advisory")
    v.equal(
        "messages",
        _said(turn.messages),
        [_message(turn.source("ep0"), nr_dev=1, nr_logged=1)],
    )
    twice = _advisory_twice(turn)
    reports = [("ep0", CORRECTABLE, ADVISORY), ("ep0", NONFATAL, UNSUPPORTED)]
    _reported(v, turn, *reports[: 1 + twice])
    v.equal("ERR_COR counted", turn.grown("root", "total_err_cor"), 1)
    v.equal("ERR_NONFATAL counted", turn.grown("root", "total_err_nonfatal"), 0)
    v.equal("NonFatalErr counted", turn.grown("ep0", "correctable NonFatalErr"), 1)
    wrong = turn.grown("ep0", "nonfatal TOTAL_ERR_NONFATAL")
    if twice:
        v.equal("ERR_NONFATAL counted for the device nevertheless", wrong, 1)
    else:
        v.equal("ERR_NONFATAL counted for the device by a kernel before 7.3", wrong, 0)
    left = 0 if twice else UNSUPPORTED
    v.equal("uncorrectable status left", turn.facts["left"], left)
    return v


def _advisory_twice(turn: Turn) -> bool:
    """Whether the kernel lets devices send advisory messages.

    It does since 7.3, and from then on reports, counts and clears the error that is
    meant as well.  Before, the mask is as the device came with it, and only somebody
    else, as the workload here, makes a device send them.
    """
    return not turn.facts["mask"] & ADVISORY


def told_before_recovery(ev: Evidence) -> Verdict:
    """The kernel logs the end of the recovery; a line of our own tells its clock."""
    v = Verdict()
    turn = _turn(ev, "uncor", "ep3-fatal")
    v.equal(
        "messages",
        _said(turn.messages),
        [_message(turn.source("ep3"), severity=FATAL, nr_dev=1, nr_logged=1)],
    )
    # The link is not to be trusted, so the status is not read.
    _reported(v, turn, ("ep3", FATAL, 0))
    v.equal("Root Port's total", turn.grown("root", "total_err_fatal"), 1)
    log = re.findall(r"(?m)^\[ *(\d+)\.(\d{6})\] (.*)$", turn.load.kmsg)
    lines = [(int(s) * 1_000_000 + int(us), text) for s, us, text in log]
    marks = [us for us, text in lines if text == "kstall: now"]
    v.equal("lines of our own", len(marks), 1)
    if not marks:
        return v
    mark = marks[0]
    reset = [us for us, text in lines if us > mark and "has been reset" in text]
    v.equal("resets of the link", len(reset), 1)
    over = [us for us, text in lines if us > mark and "device recovery" in text]
    v.equal("ends of recovery", len(over), 1)
    if over and turn.messages and reset:
        # Our line was logged after this, and printk cuts to microseconds.
        earliest = turn.facts["marked_ns"][0] + (over[0] - mark - 1) * 1000
        first = turn.facts["marked_ns"][0] + (reset[0] - mark - 1) * 1000
        told = turn.messages[0].ts_ns
        v.at_least("from the event to the link's reset", first - told, 0, "ns")
        v.at_least("from the event to the end", earliest - told, 0, "ns")
    return v


def error_before_the_clearing(ev: Evidence) -> Verdict:
    """Who waits for aer_event has another error made before it is returned from.

    This holds for a kernel without pci-aer-fixes, which is what this series is proven
    on.  With "PCI/AER: Do not clear Correctable Errors that were not reported" from
    there, the second message has nr_logged 1, an aer_event and a count of its own, and
    this check is to fail.
    """
    v = Verdict()
    turn = _turn(ev, "between", "between")
    v.equal("writes to aer_inject that failed", _failed(turn), 0)
    source = turn.source("ep2")
    v.equal(
        "messages",
        _said(turn.messages),
        [_message(source, nr_dev=1, nr_logged=1), _message(source, nr_dev=1)],
    )
    _reported(v, turn, ("ep2", CORRECTABLE, RXERR))
    v.equal("RxErr counted", turn.grown("ep2", "correctable RxErr"), 1)
    v.equal("BadTLP counted", turn.grown("ep2", "correctable BadTLP"), 0)
    v.equal("Root Port's total", turn.grown("root", "total_err_cor"), 2)
    return v


def masked_error_is_silent(ev: Evidence) -> Verdict:
    """N1: the device knows of the error and sends nothing."""
    v = Verdict()
    turn = _turn(ev, "quiet", "masked")
    v.equal("status of the device", turn.facts["status"] & RXERR, RXERR)
    v.equal("steps of the monitor", _steps(ev, "quiet")["ep0-masked"], 1)
    _silent(v, turn)
    return v


def nonfatal_is_no_correctable(ev: Evidence) -> Verdict:
    """N2: a filter for ERR_COR does not see it."""
    v = Verdict()
    turn = _turn(ev, "uncor", "ep0-nonfatal")
    correctable = [e for e in turn.messages if e.fields["severity"] == CORRECTABLE]
    v.equal("ERR_COR", len(correctable), 0)
    v.equal(
        "messages",
        _said(turn.messages),
        [_message(turn.source("ep0"), severity=NONFATAL, nr_dev=1, nr_logged=1)],
    )
    _reported(v, turn, ("ep0", NONFATAL, TIMEOUT))
    v.equal("ERR_COR counted", turn.grown("root", "total_err_cor"), 0)
    v.equal("ERR_NONFATAL counted", turn.grown("root", "total_err_nonfatal"), 1)
    return v


def interrupt_without_error_is_silent(ev: Evidence) -> Verdict:
    """N3: other services of the port share its interrupt."""
    v = Verdict()
    turn = _turn(ev, "quiet", "no-error")
    v.equal("writes to aer_inject that failed", _failed(turn), 0)
    v.equal("interrupts of the port", turn.facts["interrupts"], turn.facts["writes"])
    _silent(v, turn)
    return v


def traffic_is_silent(ev: Evidence) -> Verdict:
    """N3: a disk in the same switch is read from end to end."""
    v = Verdict()
    turn = _turn(ev, "quiet", "traffic")
    v.equal("bytes", turn.facts["bytes"], 16 << 20)
    v.at_least("interrupts of the disk", turn.facts["interrupts"], 1000)
    _silent(v, turn)
    heard = _turn(ev, "quiet", "ep0")
    v.equal("messages of a real error afterwards", len(heard.messages), 1)
    return v


def firmware_first_is_silent(ev: Evidence) -> Verdict:
    """N4: on such a machine the kernel never looks at the Root Port."""
    v = Verdict()
    turn = _turn(ev, "firmware", "firmware")
    v.true("the report was taken", turn.facts["taken"])
    v.equal("messages", len(turn.messages), 0)
    _reported(v, turn, ("up", CORRECTABLE, RXERR))
    v.equal("counted for the device", turn.grown("up", "correctable RxErr"), 1)
    v.equal("counted for the Root Port", turn.facts["grown"]["root"], {})
    return v


def messages_are_the_root_ports_totals(ev: Evidence) -> Verdict:
    """By severity, in each turn; what was dropped is not counted by the kernel."""
    v = Verdict()
    for turn in _turns(ev):
        kept = [e for e in turn.messages if not e.fields["dropped"]]
        told = Counter(_TOTALS[_int(e, "severity")] for e in kept)
        counted = {n: turn.grown("root", n) for n in _TOTALS.values()}
        v.equal(f"{turn.label}", dict(told), {n: c for n, c in counted.items() if c})
    return v


def logged_is_the_aer_events(ev: Evidence) -> Verdict:
    """Those of a message precede it in its thread; advisory ones come in pairs.

    With or without pci-aer-fixes.
    """
    v = Verdict()
    for name in _WORKLOADS:
        waiting: list[Event] = []
        wrong = 0
        total = 0
        for event in ev.workload(name).record():
            if event.name == "aer_event":
                waiting.append(event)
            elif event.name == "pcie_aer_msg" and not event.fields["dropped"]:
                kind = event.fields["severity"]
                own = [e for e in waiting if e.fields["severity"] == kind]
                extra = len(waiting) - len(own)
                allowed = sum(bool(_int(e, "status") & ADVISORY) for e in own)
                wrong += len(own) != event.fields["nr_logged"]
                wrong += extra > (allowed if kind == CORRECTABLE else 0)
                wrong += any(e.pid != event.pid for e in waiting)
                total += len(own)
                waiting = []
        v.equal(f"{name}: messages with other reports", wrong, 0)
        v.equal(f"{name}: reports without a message", len(waiting), 0)
        counted = sum(_device_totals(turn) for turn in _turns_of(ev, name))
        extra = len(ev.workload(name).record("aer_event")) - total
        v.equal(f"{name}: counted for devices, advisory ones apart", counted, total)
        # Not those of a kernel that does not know what an advisory one is about.
        turns = _turns_of(ev, name) if name == "advisory" else []
        v.equal(f"{name}: advisory", extra, sum(map(_advisory_twice, turns)))
    return v


def thread_of_the_port_tells(ev: Evidence) -> Verdict:
    """Only what is dropped is told of by somebody else."""
    v = Verdict()
    for turn in _turns(ev):
        strange = [
            event
            for event in turn.messages
            if (event.pid != turn.facts["thread"]) != bool(event.fields["dropped"])
        ]
        v.equal(f"{turn.label}: by another", len(strange), 0)
    return v


def text_names_the_sender(ev: Evidence) -> Verdict:
    """What ftrace prints is what lspci shows."""
    v = Verdict()
    for name in _WORKLOADS:
        load = ev.workload(name)
        lines = [event.text for event in load.events("pcie_aer_msg")]
        shapes = [
            re.fullmatch(
                r"(\S+) severity:(\w+), source:([\da-f:.]+), multi:(\d+), "
                r"dropped:(\d+), nr_dev:(\d+), nr_logged:(\d+)",
                line,
            )
            for line in lines
        ]
        printed = [shape.groups() if shape else () for shape in shapes]
        read = [
            (
                str(event.fields["root"]),
                _KINDS.get(_int(event, "severity"), "?"),
                _address(_int(event, "domain"), _int(event, "source")),
                *(str(event.fields[key]) for key in _FLAGS),
            )
            for event in load.record("pcie_aer_msg")
        ]
        v.at_least(f"{name}: lines", len(printed), 1)
        v.equal(f"{name}: other lines than records", _differ(printed, read), 0)
    return v


_KINDS = {CORRECTABLE: "ERR_COR", NONFATAL: "ERR_NONFATAL", FATAL: "ERR_FATAL"}
_FLAGS = ("multi", "dropped", "nr_dev", "nr_logged")


def scripts_add_up(ev: Evidence) -> Verdict:
    """The numbers are the recorder's and the writer's, the names the workload's."""
    v = Verdict()
    load = ev.workload("mixed")
    messages = [
        e for e in load.record("pcie_aer_msg") if e.fields["severity"] == CORRECTABLE
    ]
    counts = load.bpftrace("pci-aer").maps
    for name, wanted in (
        ("@messages", messages),
        ("@nodetail", [e for e in messages if not e.fields["nr_logged"]]),
        ("@dropped", [e for e in messages if e.fields["dropped"]]),
    ):
        told = Counter(_key(e.fields["root"], _int(e, "source")) for e in wanted)
        v.equal(name, _plain(counts.get(name, {})), dict(sorted(told.items())))
    # What was written, and what of that the kernel has counted.
    bursts = [t for t in _turns_of(ev, "mixed") if t.facts["name"].startswith("burst-")]
    writes = sum(turn.facts["writes"] for turn in bursts)
    kept = sum(turn.grown("root", "total_err_cor") for turn in bursts)
    addresses = bursts[0].facts["addresses"]
    sender = _key(addresses["root"], bursts[0].source("ep2"))
    v.equal("sent", _plain(counts.get("@messages", {})).get(sender, 0), writes)
    v.equal("lost", sum(_plain(counts.get("@dropped", {})).values()), writes - kept)
    who = load.bpftrace("pci-aer-who")
    bits = Counter(
        f"{e.fields['dev_name']},{e.fields['status']}"
        for e in load.record("aer_event")
        if e.fields["severity"] == CORRECTABLE
    )
    v.equal("@status", _plain(who.maps["@status"]), dict(sorted(bits.items())))
    alarms = [line for line in who.lines if "ERR_COR from" in line]
    named = {re.findall(r"ERR_COR from (\S+):", line)[0] for line in alarms}
    v.equal("alarms name", named, {addresses["ep2"]})
    # One in 10 s, and both bursts may well be within the same.
    v.within("alarms", len(alarms), 1, len(bursts))
    lines = [line for line in who.lines if "ERR_NONFATAL" in line]
    v.equal("uncorrectable", len(lines), 1)
    return v


# -- what was said


def _facts(load: WorkloadResult) -> list[dict[str, Any]]:
    return [json.loads(line) for line in load.stdout.splitlines()]


def _turns_of(ev: Evidence, name: str) -> list[Turn]:
    load = ev.workload(name)
    return [Turn(load, fact) for fact in _facts(load) if fact["what"] == "turn"]


def _turns(ev: Evidence) -> list[Turn]:
    return [turn for name in _WORKLOADS for turn in _turns_of(ev, name)]


def _turn(ev: Evidence, load: str, name: str) -> Turn:
    return next(turn for turn in _turns_of(ev, load) if turn.facts["name"] == name)


def _failed(turn: Turn) -> int:
    return sum(map(bool, turn.facts["errors"]))


def _device_total(turn: Turn, device: str) -> int:
    return turn.grown(device, "correctable TOTAL_ERR_COR")


def _device_totals(turn: Turn) -> int:
    """What was counted for all devices, the Root Port among them.

    The kernel counts an advisory error a second time, as one that was not corrected.
    """
    total = 0
    for grown in turn.facts["grown"].values():
        counted = {
            kind: sum(n for key, n in grown.items() if key.startswith(f"{kind} TOTAL_"))
            for kind in _COUNTED.values()
        }
        total += sum(counted.values())
        if grown.get("correctable NonFatalErr"):
            total -= counted["nonfatal"]
    return total


def _steps(ev: Evidence, load: str) -> Counter[str]:
    return Counter(step.step for step in ev.workload(load).injected if not step.error)


def _sender(step: Injected) -> int | None:
    """The Requester ID in the monitor's answer to pcie_aer_inject_error."""
    for _, reply, _ in step.answers:
        found = re.search(r" bus: ([\da-f]+) devfn: ([\da-f]+)\.(\d)$", str(reply))
        if found:
            bus, device, function = (int(part, 16) for part in found.groups())
            return bus << 8 | device << 3 | function
    return None


# -- what was recorded


def _int(event: Event, name: str) -> int:
    return int(event.fields[name])  # type: ignore[arg-type]


_PARTS = ("severity", "source", *_FLAGS)


def _message(source: int, **facts: int) -> dict[str, int]:
    wanted = dict.fromkeys(_PARTS, 0) | {"severity": CORRECTABLE, "source": source}
    return wanted | facts


def _said(events: Iterable[Event]) -> list[dict[str, int]]:
    return [{name: _int(event, name) for name in _PARTS} for event in events]


def _reported(v: Verdict, turn: Turn, *wanted: tuple[str, int, int]) -> None:
    """``wanted`` are the device, severity and status of each aer_event, in order."""
    told = [
        (event.fields["dev_name"], event.fields["severity"], event.fields["status"])
        for event in turn.reports
    ]
    addresses = turn.facts["addresses"]
    v.equal(
        f"{turn.label}: aer_event", told, [(addresses[d], s, b) for d, s, b in wanted]
    )


def _burst(v: Verdict, turn: Turn, count: int) -> None:
    """All written before the thread began, each an interrupt of its own."""
    v.equal("writes", turn.facts["writes"], count)
    v.equal("of which failed", _failed(turn), 0)
    v.equal("records taken before the last write", turn.facts["taken"], 0)
    v.equal("interrupts with something to be read", _handled(turn), count)
    v.equal("messages", len(turn.messages), count)
    senders = {_int(event, "source") for event in turn.messages}
    v.equal("senders", senders, {turn.source("ep2")})
    v.equal("multi", sum(_int(event, "multi") for event in turn.messages), 0)


def _handled(turn: Turn) -> int:
    """How often the AER driver's interrupt handler said that it was for it."""
    found = 0
    ours = False
    for event in turn.load.events():
        if not turn.facts["began_ns"] <= event.ts_ns <= turn.facts["ended_ns"]:
            continue
        if event.name == "irq_handler_entry":
            ours = event.fields["name"] == "aerdrv"
        elif event.name == "irq_handler_exit" and ours:
            found += event.fields["ret"] == "handled"
    return found


def _in_handler(turn: Turn) -> int:
    """How many dropped messages were told of where the driver's handler ran."""
    found = 0
    inside: dict[int, bool] = {}
    for event in turn.load.events():
        if event.name == "irq_handler_entry":
            inside[event.cpu] = event.fields["name"] == "aerdrv"
        elif event.name == "irq_handler_exit":
            inside[event.cpu] = False
        elif event.name == "pcie_aer_msg" and event.fields["dropped"]:
            found += inside.get(event.cpu, False)
    return found


def _silent(v: Verdict, turn: Turn) -> None:
    v.equal("messages", len(turn.messages), 0)
    v.equal("aer_event", len(turn.reports), 0)
    grown = {name: one for name, one in turn.facts["grown"].items() if one}
    v.equal("counters that grew", grown, {})


def _address(domain: int, source: int) -> str:
    return f"{domain:04x}:{source >> 8:02x}:{source >> 3 & 31:02x}.{source & 7}"


def _differ(one: Sequence[object], two: Sequence[object]) -> int:
    return sum(a != b for a, b in zip(one, two, strict=False)) + abs(
        len(one) - len(two)
    )


def _key(root: object, source: int) -> str:
    """How the script spells a port and a sender."""
    parts = (root, source >> 8, source >> 3 & 31, source & 7)
    return ",".join(map(str, parts))


def _plain(counts: Mapping[str, Any]) -> dict[str, int]:
    return {name: int(count) for name, count in sorted(counts.items())}
