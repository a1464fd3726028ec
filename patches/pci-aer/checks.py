# SPDX-License-Identifier: GPL-2.0-or-later
"""The checks of the pci-aer series.

The event is checked only against independent sources: which errors were injected and
where, by the answers of QEMU's monitor or by the writes to /dev/aer_inject; the
kernel's counters in sysfs before and after; interrupts, their handlers' return values,
and `ras:aer_event`, all of which exist without the patches.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kstall.evidence import Event, Evidence, Injected, Verdict, WorkloadResult

#: Severities, as aer_event numbers them.
NONFATAL, FATAL, CORRECTABLE = 0, 1, 2
#: Bits of Root Error Status, PCIe r6.0, sec 7.8.4.10.
COR, MULTI_COR, UNCOR, MULTI_UNCOR = 0x1, 0x2, 0x4, 0x8
FIRST_FATAL, NONFATAL_RCV, FATAL_RCV = 0x10, 0x20, 0x40
_BITS = {
    COR: "COR",
    MULTI_COR: "MULTI_COR",
    UNCOR: "UNCOR",
    MULTI_UNCOR: "MULTI_UNCOR",
    FIRST_FATAL: "FIRST_FATAL",
    NONFATAL_RCV: "NONFATAL",
    FATAL_RCV: "FATAL",
}
_CLEARED = sum(_BITS)
RXERR, BADTLP, ADVISORY = 0x1, 0x40, 0x2000
TIMEOUT, UNSUPPORTED = 0x4000, 0x100000
#: Records that the kernel has room for.
ROOM = 128
#: Devices that the kernel looks for because of one, AER_MAX_MULTI_ERR_DEVICES.
LOOKED_FOR = 5

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
    "unheard",
    "mixed",
)


@dataclass(frozen=True)
class Turn:
    """One thing that a workload did, what it saw of it, and what was recorded."""

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
            if event.fields["port_name"] == root
        ]

    @property
    def printed(self) -> list[Event]:
        """The lines that ftrace prints for these messages."""
        low, high = self.facts["began_ns"], self.facts["ended_ns"]
        root = self.facts["addresses"]["root"]
        return [
            event
            for event in self.load.events("pcie_aer_msg")
            # Text has whole microseconds.
            if low - 1000 <= event.ts_ns <= high and event.text.startswith(f"{root} ")
        ]

    @property
    def reports(self) -> list[Event]:
        """The aer_event of what was read from devices in that time."""
        return self._recorded("aer_event")

    def source(self, device: str) -> int:
        """The Requester ID of a device."""
        return int(self.facts["sources"][device])

    def grown(self, device: str, counter: str) -> int:
        """By how much a counter of the kernel grew."""
        return int(self.facts["grown"][device].get(counter, 0))


def a_message_a_record(ev: Evidence) -> Verdict:
    """QEMU's monitor says which number the guest has given to the device."""
    v = Verdict()
    injected = _turn(ev, "single", "made-up")
    v.equal("writes to aer_inject that failed", _failed(injected), 0)
    for turn, device in (
        (injected, "ep2"),
        *((_turn(ev, "single", d), d) for d in _EPS),
    ):
        v.equal(
            f"{turn.label}: messages",
            _messages(turn.messages),
            [_message(COR, cor=turn.source(device))],
        )
        # Such as 0000:07:00.0
        domain = int(str(turn.facts["addresses"][device]).partition(":")[0], 16)
        domains = {event.number("domain") for event in turn.messages}
        v.equal(f"{turn.label}: domain", domains, {domain})
        _check_reports(v, turn, (device, CORRECTABLE, RXERR))
        v.equal(f"{turn.label}: {device}", turn.grown(device, "correctable RxErr"), 1)
    sent = [_sender(step) for step in ev.workload("single").injected]
    sources = [_turn(ev, "single", device).source(device) for device in _EPS]
    v.equal("senders by QEMU's monitor", sent, sources)
    return v


_EPS = ("ep0", "ep1")


def merged_reports_have_messages(ev: Evidence) -> Verdict:
    """One device's status, set fifty times before it is read once."""
    v = Verdict()
    turn = _turn(ev, "merge", "burst-50")
    _check_burst(v, turn, 50, 50)
    v.equal("aer_event", len(turn.reports), 1)
    v.equal("TOTAL_ERR_COR of the device", _device_total(turn, "ep2"), 1)
    v.equal("Root Port's total", turn.grown("root", "total_err_cor"), 50)
    return v


def full_fifo_is_reported(ev: Evidence) -> Verdict:
    """More interrupts than records: what the Root Port's total lacks found no room."""
    v = Verdict()
    turn = _turn(ev, "overflow", "burst-130")
    _check_burst(v, turn, 130, ROOM)
    v.equal("Root Port's total", turn.grown("root", "total_err_cor"), ROOM)
    v.equal("aer_event", len(turn.reports), 1)
    return v


def several_messages_in_one(ev: Evidence) -> Verdict:
    """The guest was stopped meanwhile: the Root Port has one bit for all but one."""
    v = Verdict()
    first = [
        _message(COR | MULTI_COR, cor=_turn(ev, "multi", "two-devices").source("ep0"))
    ]
    for name in ("two-devices", "one-device-twice", "six-devices"):
        turn = _turn(ev, "multi", name)
        v.equal(name, _messages(turn.messages), first)
        v.equal(f"{name}: root total", turn.grown("root", "total_err_cor"), 1)
    _check_reports(
        v,
        _turn(ev, "multi", "two-devices"),
        ("ep0", CORRECTABLE, RXERR),
        ("ep1", CORRECTABLE, BADTLP),
    )
    twice = _turn(ev, "multi", "one-device-twice")
    _check_reports(v, twice, ("ep0", CORRECTABLE, RXERR | BADTLP))
    # Each error is counted, but the device's total grows once.
    counted = {"correctable RxErr": 1, "correctable BadTLP": 1}
    counted["correctable TOTAL_ERR_COR"] = 1
    v.equal(f"{twice.label}: counted", twice.facts["grown"]["ep0"], counted)
    six = _turn(ev, "multi", "six-devices")
    v.equal("six-devices: aer_event", len(six.reports), LOOKED_FOR)
    left = [status & RXERR for status in six.facts["left"].values()]
    v.equal("six-devices: statuses left", left.count(RXERR), 6 - LOOKED_FOR)
    for turn in _turns_of(ev, "mixed"):
        merged = sum(bool(_status(event) & MULTI_COR) for event in turn.messages)
        expected = int(turn.facts["name"] == "two-devices")
        v.equal(f"{turn.label}: merged", merged, expected)
    sent = [len(step.answers) - 2 for step in ev.workload("multi").injected]
    v.equal("errors by QEMU's monitor", sent, [2, 2, 6])
    return v


def unknown_sender_is_reported(ev: Evidence) -> Verdict:
    """The device was removed from the kernel, not from the machine."""
    v = Verdict()
    turn = _turn(ev, "orphan", "ep1")
    source = turn.facts["source"]
    v.equal("messages", _messages(turn.messages), [_message(COR, cor=source)])
    v.none("aer_event", turn.reports)
    v.equal("Root Port's total", turn.grown("root", "total_err_cor"), 1)
    (step,) = ev.workload("orphan").injected
    v.equal("sender by QEMU's monitor", _sender(step), source)
    again = turn.load.objects("again")[0]
    v.true("the device was there all the time", again["found"])
    return v


def advisory_error_is_one_message(ev: Evidence) -> Verdict:
    """A kernel that allows these reports each twice, the second time as another error.

    The device's mask shows whether the kernel allows them, and the status, which it
    clears then, whether it looked for the underlying error.
    """
    v = Verdict()
    turn = _turn(ev, "advisory", "ep0-advisory")
    v.equal(
        "messages", _messages(turn.messages), [_message(COR, cor=turn.source("ep0"))]
    )
    twice = _advisory_twice(turn)
    reports = [("ep0", CORRECTABLE, ADVISORY), ("ep0", NONFATAL, UNSUPPORTED)]
    _check_reports(v, turn, *reports[: 1 + twice])
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

    It does since 7.3, and from then on reports, counts and clears the underlying error
    as well.  Before, the mask keeps the device's default, and a device sends them only
    if somebody else, such as the workload here, clears that.
    """
    return not turn.facts["mask"] & ADVISORY


def kinds_are_told_apart(ev: Evidence) -> Verdict:
    """What came while the guest was stopped is in one record, with each kind's bits."""
    v = Verdict()
    turn = _turn(ev, "uncor", "both-kinds")
    status = COR | UNCOR | NONFATAL_RCV
    senders = {"cor": turn.source("ep1"), "uncor": turn.source("ep0")}
    v.equal("both kinds", _messages(turn.messages), [_message(status, **senders)])
    _check_reports(v, turn, ("ep1", CORRECTABLE, RXERR), ("ep0", NONFATAL, TIMEOUT))
    turn = _turn(ev, "uncor", "nonfatal-and-fatal")
    # The first was not fatal, so FIRST_FATAL is not set.
    status = UNCOR | MULTI_UNCOR | NONFATAL_RCV | FATAL_RCV
    expected = [_message(status, uncor=turn.source("ep4"))]
    v.equal("non-fatal and fatal", _messages(turn.messages), expected)
    v.equal("ERR_FATAL counted", turn.grown("root", "total_err_fatal"), 1)
    v.equal("ERR_NONFATAL counted", turn.grown("root", "total_err_nonfatal"), 0)
    turn = _turn(ev, "uncor", "ep3-fatal")
    status = UNCOR | FIRST_FATAL | FATAL_RCV
    expected = [_message(status, uncor=turn.source("ep3"))]
    v.equal("fatal", _messages(turn.messages), expected)
    return v


def reported_before_recovery(ev: Evidence) -> Verdict:
    """The kernel logs the end of the recovery; a line that we log gives its clock."""
    v = Verdict()
    turn = _turn(ev, "uncor", "ep3-fatal")
    v.equal("messages", len(turn.messages), 1)
    # The link cannot be trusted, so the status is not read.
    _check_reports(v, turn, ("ep3", FATAL, 0))
    counted = turn.facts["grown"].get("ep3")
    v.equal("counted for the device", counted, {"fatal TOTAL_ERR_FATAL": 1})
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
        traced_ns = turn.messages[0].ts_ns
        v.at_least("from the event to the link's reset", first - traced_ns, 0, "ns")
        v.at_least("from the event to the end", earliest - traced_ns, 0, "ns")
    return v


def each_of_two_is_reported(ev: Evidence) -> Verdict:
    """A reader of aer_event injects another error before the first one is cleared.

    What the kernel does with the second one is not judged: it may clear it unseen.
    """
    v = Verdict()
    turn = _turn(ev, "between", "between")
    v.equal("writes to aer_inject that failed", _failed(turn), 0)
    message = _message(COR, cor=turn.source("ep2"))
    v.equal("messages", _messages(turn.messages), [message, message])
    v.at_least("aer_event", len(turn.reports), 1)
    if len(turn.messages) == 2 and turn.reports:
        between = turn.messages[1].ts_ns - turn.reports[0].ts_ns
        v.at_least("from the first one's report to the second", between, 1, "ns")
    v.equal("RxErr counted", turn.grown("ep2", "correctable RxErr"), 1)
    v.equal("Root Port's total", turn.grown("root", "total_err_cor"), 2)
    return v


def masked_error_is_silent(ev: Evidence) -> Verdict:
    """N1: the device knows of the error and sends nothing."""
    v = Verdict()
    turn = _turn(ev, "quiet", "masked")
    v.equal("status of the device", turn.facts["status"] & RXERR, RXERR)
    v.equal("steps of the monitor", _steps(ev, "quiet")["ep0-masked"], 1)
    _check_silence(v, turn)
    return v


def nonfatal_is_no_correctable(ev: Evidence) -> Verdict:
    """N2: a filter for ERR_COR does not see it."""
    v = Verdict()
    turn = _turn(ev, "uncor", "ep0-nonfatal")
    correctable = [e for e in turn.messages if _status(e) & (COR | MULTI_COR)]
    v.none("ERR_COR", correctable)
    v.equal(
        "messages",
        _messages(turn.messages),
        [_message(UNCOR | NONFATAL_RCV, uncor=turn.source("ep0"))],
    )
    _check_reports(v, turn, ("ep0", NONFATAL, TIMEOUT))
    v.equal("ERR_COR counted", turn.grown("root", "total_err_cor"), 0)
    v.equal("ERR_NONFATAL counted", turn.grown("root", "total_err_nonfatal"), 1)
    return v


def interrupt_without_error_is_silent(ev: Evidence) -> Verdict:
    """N3: other services of the port share its interrupt."""
    v = Verdict()
    turn = _turn(ev, "quiet", "no-error")
    v.equal("writes to aer_inject that failed", _failed(turn), 0)
    v.equal("interrupts of the port", turn.facts["interrupts"], turn.facts["writes"])
    _check_silence(v, turn)
    return v


def traffic_is_silent(ev: Evidence) -> Verdict:
    """N3: a disk in the same switch is read from end to end."""
    v = Verdict()
    turn = _turn(ev, "quiet", "traffic")
    v.equal("bytes", turn.facts["bytes"], 16 << 20)
    v.at_least("interrupts of the disk", turn.facts["interrupts"], 1000)
    _check_silence(v, turn)
    heard = _turn(ev, "quiet", "ep0")
    v.equal("messages of a real error afterwards", len(heard.messages), 1)
    return v


def unheard_port_is_silent(ev: Evidence) -> Verdict:
    """N4: the port's register shows that the message has arrived."""
    v = Verdict()
    turn = _turn(ev, "unheard", "unheard")
    v.equal("received by the port", turn.facts["status"] & _CLEARED, COR)
    v.equal(
        "by the device's number", turn.facts["rest"][1] & 0xFFFF, turn.source("ep0")
    )
    _check_silence(v, turn)
    heard = _turn(ev, "unheard", "ep1")
    expected = [_message(COR, cor=heard.source("ep1"))]
    v.equal("messages of the next one", _messages(heard.messages), expected)
    return v


def messages_are_the_root_ports_totals(ev: Evidence) -> Verdict:
    """By kind, in each turn; what found no room is not counted by the kernel."""
    v = Verdict()
    for turn in _turns(ev):
        counts = Counter[str]()
        for event in turn.messages:
            if not event.fields["dropped"]:
                status = _status(event)
                counts["total_err_cor"] += bool(status & COR)
                fatal = (
                    "total_err_fatal" if status & FATAL_RCV else "total_err_nonfatal"
                )
                counts[fatal] += bool(status & UNCOR)
        counted = {n: turn.grown("root", n) for n in counts}
        v.equal(f"{turn.label}", dict(counts), counted)
        grown = turn.facts["grown"]["root"]
        totals = sum(n for name, n in grown.items() if name.startswith("total_err_"))
        v.equal(f"{turn.label}: of all kinds", counts.total(), totals)
    return v


def registers_are_the_ports(ev: Evidence) -> Verdict:
    """Nobody clears the register of senders, so the workload has read the last ones.

    aer_inject emulates the registers of a port from the first write on, empty at first;
    so for such a port nothing is known of them before its first message.

    QEMU's ports have interrupt message number 0: a record that lacks the bits that are
    not cleared would look the same.
    """
    v = Verdict()
    for name in _WORKLOADS:
        before: dict[object, int] = {}
        for turn in _turns_of(ev, name):
            root = turn.facts["addresses"]["root"]
            status, senders = turn.facts["rest"]
            others = [_status(event) & ~_CLEARED for event in turn.messages]
            v.equal(f"{turn.label}: the rest", {*others} - {status & ~_CLEARED}, set())
            moved = 0
            for event in turn.messages:
                now, was = event.number("err_src"), before.get(root)
                valid = _valid(_status(event))
                moved += was is not None and bool((now ^ was) & ~valid)
                before[root] = now
            v.equal(f"{turn.label}: halves that changed without a message", moved, 0)
            if turn.messages:
                v.equal(f"{turn.label}: err_src", before[root], senders)
    return v


def _valid(status: int) -> int:
    """The bits of err_src that a record with this status is about."""
    return (0xFFFF if status & COR else 0) | (0xFFFF0000 if status & UNCOR else 0)


def reported_by_the_interrupt(ev: Evidence) -> Verdict:
    """Compared with the older events of the interrupt, on the same CPU."""
    v = Verdict()
    for name in _WORKLOADS:
        inside: dict[int, int | None] = {}
        strange = taken = several = 0
        for event in ev.workload(name).events():
            if event.name == "irq_handler_entry" and event.fields["name"] == "aerdrv":
                inside[event.cpu] = 0
            elif event.name == "irq_handler_exit":
                records = inside.pop(event.cpu, None)
                if records is not None:
                    taken += event.fields["ret"] == "handled"
                    several += records != (event.fields["ret"] == "handled")
            elif event.name == "pcie_aer_msg":
                strange += event.cpu not in inside
                inside[event.cpu] = (inside.get(event.cpu) or 0) + 1
        v.equal(f"{name}: outside of the handler", strange, 0)
        v.equal(f"{name}: calls with another number of records", several, 0)
        v.at_least(f"{name}: calls that found something", taken, 1)
    return v


def reports_follow_messages(ev: Evidence) -> Verdict:
    """A port's thread reads the status of devices because of a message.

    The second report of an advisory error is uncorrectable; its message is correctable.
    """
    v = Verdict()
    for turn in _turns(ev):
        wrong = 0
        for report in turn.reports:
            kind = COR if report.fields["severity"] == CORRECTABLE else UNCOR
            if turn.facts["name"] == "ep0-advisory":
                kind = COR
            before = [e for e in turn.messages if e.ts_ns <= report.ts_ns]
            wrong += not any(_status(e) & kind for e in before)
        v.equal(f"{turn.label}: without a message before", wrong, 0)
    return v


#: The devices that are made to send first in a turn: a correctable error, and another.
_FIRST = {
    "made-up": ("ep2", None),
    "ep0": ("ep0", None),
    "ep1": ("ep1", None),
    "two-devices": ("ep0", None),
    "one-device-twice": ("ep0", None),
    "six-devices": ("ep0", None),
    "ep0-advisory": ("ep0", None),
    "ep0-nonfatal": (None, "ep0"),
    "both-kinds": ("ep1", "ep0"),
    "nonfatal-and-fatal": (None, "ep4"),
    "ep3-fatal": (None, "ep3"),
    "between": ("ep2", None),
    "burst-40": ("ep2", None),
    "burst-50": ("ep2", None),
    "burst-130": ("ep2", None),
    "burst-131": ("ep2", None),
}
_LINE = re.compile(
    r"(?P<root>\S+) root_status:0x(?P<status>[\da-f]{8}) \((?P<bits>\S*)\), "
    r"err_src:0x(?P<senders>[\da-f]{8}), dropped:[01]"
)


def text_names_the_sender(ev: Evidence) -> Verdict:
    """ftrace prints the addresses that sysfs has for the devices made to send."""
    v = Verdict()
    for turn in _turns(ev):
        addresses = turn.facts["addresses"]
        senders = _FIRST.get(str(turn.facts["name"]), (None, None))
        if turn.load.name == "orphan":
            senders = (None, None)
        wrong = 0
        for event in turn.printed:
            match = _LINE.fullmatch(event.text)
            if match is None or match["root"] != addresses["root"]:
                wrong += 1
                continue
            status = int(match["status"], 16)
            names = [name for bit, name in _BITS.items() if status & bit]
            if rest := status & ~_CLEARED:
                names.append(f"0x{rest:x}")
            wrong += match["bits"] != "|".join(names)
            domain = match["root"].partition(":")[0]
            # The lower half has the sender of a correctable error.
            for half, device in zip(
                (match["senders"][4:], match["senders"][:4]), senders, strict=True
            ):
                sender = f"{domain}:{_bdf(int(half, 16))}"
                wrong += device is not None and sender != addresses[device]
        v.equal(f"{turn.label}: lines", len(turn.printed), len(turn.messages))
        v.equal(f"{turn.label}: of which wrong", wrong, 0)
    return v


def _bdf(requester: int) -> str:
    """Bus, device and function as sysfs writes them."""
    return f"{requester >> 8:02x}:{requester >> 3 & 0x1F:02x}.{requester & 7}"


def scripts_add_up(ev: Evidence) -> Verdict:
    """Numbers come from the recorder and the writer, names from the workload."""
    v = Verdict()
    load = ev.workload("mixed")
    turns = {str(turn.facts["name"]): turn for turn in _turns_of(ev, "mixed")}
    sent, merged, full = Counter[str](), Counter[str](), Counter[str]()
    for name, turn in turns.items():
        device, _ = _FIRST[name]
        if device is not None:
            sender = _script_key(turn.facts["addresses"]["root"], turn.source(device))
            writes = turn.facts.get("writes", 1)
            sent[sender] += writes
            merged[sender] += name == "two-devices"
            full[sender] += max(0, writes - ROOM)
    counts = load.bpftrace("pci-aer").maps
    expected = {"@messages": sent, "@merged": merged, "@dropped": full}
    for name, count in expected.items():
        v.equal(name, _counts(counts.get(name, {})), dict(sorted((+count).items())))
    bursts = [turn for name, turn in turns.items() if name.startswith("burst-")]
    addresses = bursts[0].facts["addresses"]
    script = load.bpftrace("pci-aer-who")
    bits = Counter(
        f"{e.fields['dev_name']},{e.fields['status']}"
        for e in load.record("aer_event")
        if e.fields["severity"] == CORRECTABLE
    )
    v.equal("@status", _counts(script.maps["@status"]), dict(sorted(bits.items())))
    alarms = [line for line in script.lines if "ERR_COR from" in line]
    named = {re.findall(r"ERR_COR from (\S+):", line)[0] for line in alarms}
    v.equal("alarms name", named, {addresses["ep2"]})
    # One in 10 s, and both bursts may well be within the same.
    v.within("alarms", len(alarms), 1, len(bursts))
    lines = [line for line in script.lines if "ERR_NONFATAL" in line]
    v.equal("uncorrectable", len(lines), 1)
    return v


# -- what the programs printed


def _turns_of(ev: Evidence, name: str) -> list[Turn]:
    load = ev.workload(name)
    return [Turn(load, fact) for fact in load.objects("turn")]


def _turns(ev: Evidence) -> list[Turn]:
    return [turn for name in _WORKLOADS for turn in _turns_of(ev, name)]


def _turn(ev: Evidence, load: str, name: str) -> Turn:
    return next(turn for turn in _turns_of(ev, load) if turn.facts["name"] == name)


def _failed(turn: Turn) -> int:
    return sum(map(bool, turn.facts["errors"]))


def _device_total(turn: Turn, device: str) -> int:
    return turn.grown(device, "correctable TOTAL_ERR_COR")


def _steps(ev: Evidence, load: str) -> Counter[str]:
    return Counter(step.step for step in ev.workload(load).injected if not step.error)


def _sender(step: Injected) -> int | None:
    """The Requester ID in the monitor's answer to pcie_aer_inject_error."""
    for _, reply, _ in step.answers:
        match = re.search(r" bus: ([\da-f]+) devfn: ([\da-f]+)\.(\d)$", str(reply))
        if match:
            bus, device, function = (int(part, 16) for part in match.groups())
            return bus << 8 | device << 3 | function
    return None


# -- what was recorded


def _status(event: Event) -> int:
    return event.number("root_status")


def _message(
    received: int, cor: int | None = None, uncor: int | None = None, full: int = 0
) -> dict[str, int | None]:
    """A record: what was received, from whom first, and whether there was no room."""
    return {"received": received, "cor": cor, "uncor": uncor, "full": full}


def _messages(events: Iterable[Event]) -> list[dict[str, int | None]]:
    return [
        _message(
            _status(event) & _CLEARED,
            event.number("err_src") & 0xFFFF if _status(event) & COR else None,
            event.number("err_src") >> 16 if _status(event) & UNCOR else None,
            event.number("dropped"),
        )
        for event in events
    ]


def _check_reports(v: Verdict, turn: Turn, *expected: tuple[str, int, int]) -> None:
    """``expected`` are the device, severity and status of each aer_event, in order."""
    reports = [
        (event.fields["dev_name"], event.fields["severity"], event.fields["status"])
        for event in turn.reports
    ]
    addresses = turn.facts["addresses"]
    v.equal(
        f"{turn.label}: aer_event",
        reports,
        [(addresses[d], s, b) for d, s, b in expected],
    )


def _check_burst(v: Verdict, turn: Turn, count: int, room: int) -> None:
    """All errors were written before the thread began, each with an interrupt."""
    v.equal("writes", turn.facts["writes"], count)
    v.equal("of which failed", _failed(turn), 0)
    v.equal("records taken before the last write", turn.facts["taken"], 0)
    v.equal("interrupts with something to be read", _handled(turn), count)
    message = _message(COR, cor=turn.source("ep2"))
    expected = [message] * room + [{**message, "full": 1}] * (count - room)
    messages = _messages(turn.messages)
    v.equal("messages", len(messages), count)
    v.equal("of which differ from those written", _differences(messages, expected), 0)


def _handled(turn: Turn) -> int:
    """How often the AER driver's interrupt handler returned IRQ_HANDLED."""
    handled = 0
    is_aer = False
    for event in turn.load.events():
        if not turn.facts["began_ns"] <= event.ts_ns <= turn.facts["ended_ns"]:
            continue
        if event.name == "irq_handler_entry":
            is_aer = event.fields["name"] == "aerdrv"
        elif event.name == "irq_handler_exit" and is_aer:
            handled += event.fields["ret"] == "handled"
    return handled


def _check_silence(v: Verdict, turn: Turn) -> None:
    v.none("messages", turn.messages)
    v.none("aer_event", turn.reports)
    grown = {name: growth for name, growth in turn.facts["grown"].items() if growth}
    v.equal("counters that grew", grown, {})


def _differences(left: Sequence[object], right: Sequence[object]) -> int:
    return sum(a != b for a, b in zip(left, right, strict=False)) + abs(
        len(left) - len(right)
    )


def _script_key(root: object, source: int) -> str:
    """How the script spells a port and a sender."""
    parts = (root, source >> 8, source >> 3 & 31, source & 7)
    return ",".join(map(str, parts))


def _counts(counts: Mapping[str, Any]) -> dict[str, int]:
    return {name: int(count) for name, count in sorted(counts.items())}
