# SPDX-License-Identifier: GPL-2.0-or-later
"""What a node lacks, for training and for recording it.  It only reads.

The result of a check is pass, warn or unknown.  What could not be read is unknown, and
unknown never passes.
"""

from __future__ import annotations

import json
import os
import re
import resource
import sys
from collections.abc import Callable, Iterator
from typing import NamedTuple

from .catalogue import CLASSES, of
from .errors import NodeError, shown
from .facts import Facts
from .host import Host
from .sources import missing, reasons
from .tracefs import Tracefs

PASS, WARN, UNKNOWN = "pass", "warn", "unknown"
_PCI = "/sys/bus/pci/devices"
_ENOUGH = 1 << 30


class Check(NamedTuple):
    """The result of one check."""

    name: str
    status: str
    #: What was seen.  The fields' names are the keys of --json.
    said: str
    fix: str = ""


def main(host: Host, *, as_json: bool) -> int:
    """Print all checks; the exit status is 0 if all pass, else 3."""
    checks = examine(host)
    if as_json:
        print(json.dumps([check._asdict() for check in checks], indent=1))
    else:
        for check in checks:
            fix = f"; {check.fix}" if check.fix else ""
            print(f"{check.status:<8}{check.name:<20}{shown(check.said)}{shown(fix)}")
    sys.stdout.flush()
    return 0 if all(check.status == PASS for check in checks) else 3


def examine(host: Host) -> list[Check]:
    """Run all checks; one that fails to run is unknown, and the others still run."""
    checks: list[Check] = []
    for name, look in _CHECKS:
        try:
            results = list(look(host))
        except (NodeError, OSError, ValueError) as error:
            results = [Check(name, UNKNOWN, str(error))]
        checks += results or [Check(name, UNKNOWN, "this node does not say")]
    return checks


def _providers(host: Host) -> Iterator[Check]:
    tracefs = Tracefs(host)
    for cls in CLASSES:
        name = f"provider {cls}"
        whys = []
        for source in of(cls):
            why = missing(source, tracefs)
            if why is not None:
                whys.append(why)
                continue
            unsure = [
                probe.function
                for probe in source.probes
                if tracefs.function(probe.function) is None
            ]
            if unsure:
                yield Check(name, UNKNOWN, f"{source.name}: if {unsure[0]} is there")
            elif source.lost:
                text = f"{source.name}; not known: {source.lost}"
                yield Check(name, WARN, text, f"a kernel with {of(cls)[0].name}")
            else:
                yield Check(name, PASS, source.name)
            break
        else:
            yield Check(name, WARN, f"not recorded: {reasons(whys)}")


def _classes(host: Host, wanted: str) -> list[str]:
    """PCI devices whose class begins with ``wanted``."""
    return [
        device
        for device in host.names(_PCI)
        if (host.text(f"{_PCI}/{device}/class") or "").startswith(wanted)
    ]


def _gpus(host: Host) -> list[str]:
    """3D controllers, other displays and accelerators, and VGA on PCI Express.

    The VGA of a server's BMC is behind a bridge to conventional PCI, and has no link.
    """
    vga = [
        device
        for device in _classes(host, "0x0300")
        if host.text(f"{_PCI}/{device}/max_link_speed") is not None
    ]
    others = ("0x0302", "0x0380", "0x12")
    return vga + [device for cls in others for device in _classes(host, cls)]


def _nics(host: Host) -> list[str]:
    return _classes(host, "0x0207") + _classes(host, "0x0200")


def _rdma(host: Host) -> Iterator[Check]:
    top = "/sys/class/infiniband"
    devices = host.names(top)
    if not devices:
        yield Check("rdma", UNKNOWN, "no RDMA device")
    for device in devices:
        for port in host.names(f"{top}/{device}/ports"):
            here = f"{top}/{device}/ports/{port}"
            state, rate = host.text(f"{here}/state"), host.text(f"{here}/rate")
            text = (
                f"{device}/{port}: {state or 'state unknown'}, {rate or 'rate unknown'}"
            )
            status = PASS if state and "ACTIVE" in state else WARN
            if state is None or rate is None:
                status = UNKNOWN
            yield Check(
                "rdma", status, text, "" if status == PASS else "ibstat, the cable"
            )


def _numa(host: Host) -> Iterator[Check]:
    gpus, nics = _gpus(host), _classes(host, "0x0207") or _classes(host, "0x0200")
    if not gpus or not nics:
        yield Check("numa distance", UNKNOWN, "no GPU, or no network card, on PCI")
        return
    nodes = {
        device: host.number(f"{_PCI}/{device}/numa_node") for device in gpus + nics
    }
    for gpu in gpus:
        best: tuple[int, str] | None = None
        for nic in nics:
            far = _distance(host, nodes[gpu], nodes[nic])
            if far is not None and (best is None or far < best[0]):
                best = (far, nic)
        if best is None:
            yield Check("numa distance", UNKNOWN, f"{gpu}: no node is known")
        else:
            near = best[0] <= 10
            text = f"{gpu} to {best[1]}: {best[0]}"
            fix = "" if near else "the card in a slot of the GPU's socket"
            yield Check("numa distance", PASS if near else WARN, text, fix)


def _distance(host: Host, gpu: int | None, nic: int | None) -> int | None:
    if gpu is None or nic is None or gpu < 0 or nic < 0:
        return None
    text = host.text(f"/sys/devices/system/node/node{gpu}/distance") or ""
    words = text.split()
    return int(words[nic]) if nic < len(words) else None


def _links(host: Host) -> Iterator[Check]:
    for device in _gpus(host) + _nics(host):
        here = f"{_PCI}/{device}"
        names = ("current_link_speed", "max_link_speed")
        speed, most = (host.text(f"{here}/{name}") for name in names)
        names = ("current_link_width", "max_link_width")
        width, widest = (host.text(f"{here}/{name}") for name in names)
        if None in (speed, most, width, widest):
            yield Check("pcie link", UNKNOWN, f"{device}: speed or width not known")
            continue
        good = (speed, width) == (most, widest)
        text = f"{device}: {speed} x{width} of {most} x{widest}"
        fix = "" if good else "idle cards slow down; under load: slot, riser, BIOS"
        yield Check("pcie link", PASS if good else WARN, text, fix)


def _aer(host: Host) -> Iterator[Check]:
    seen, bad = 0, []
    for device in host.names(_PCI):
        for kind in ("correctable", "nonfatal", "fatal"):
            text = host.text(f"{_PCI}/{device}/aer_dev_{kind}")
            match = re.search(r"^TOTAL_ERR_\w+ (\d+)$", text or "", re.M)
            if match:
                seen += 1
                if int(match[1]):
                    bad.append(f"{device}: {match[1]} {kind}")
    if not seen:
        yield Check(
            "aer", UNKNOWN, "no device counts errors (CONFIG_PCIEAER, firmware)"
        )
    elif bad:
        yield Check("aer", WARN, "; ".join(bad[:8]), "look at link and slot")
    else:
        yield Check("aer", PASS, f"{seen} counters, all 0")


def _iommu(host: Host) -> Iterator[Check]:
    groups = host.names("/sys/kernel/iommu_groups")
    if not groups:
        yield Check("iommu", UNKNOWN, "no groups: there is none, or it is off")
        return
    wanted = set(_gpus(host) + _nics(host))
    for group in groups:
        here = f"/sys/kernel/iommu_groups/{group}"
        devices = wanted & set(host.names(f"{here}/devices"))
        if not devices:
            continue
        kind = host.text(f"{here}/type")
        if kind is None:
            yield Check("iommu", UNKNOWN, f"group {group}: no type")
            continue
        good = kind in ("identity", "DMA-FQ")
        fix = (
            "" if good else "iommu.strict=0 or iommu=pt, if the threat model allows it"
        )
        text = f"{', '.join(sorted(devices))}: {kind}"
        yield Check("iommu", PASS if good else WARN, text, fix)


def _peer(host: Host) -> Iterator[Check]:
    modules = host.text("/proc/modules")
    if modules is None:
        return
    names = {line.split()[0] for line in modules.splitlines() if line}
    loaded = sorted(names & {"nvidia_peermem", "nv_peer_mem", "amdgpu", "ib_peer_mem"})
    if loaded:
        yield Check("peer memory", PASS, ", ".join(loaded))
    else:
        text = "neither peermem nor amdgpu; whether dma-buf is used cannot be seen"
        yield Check("peer memory", UNKNOWN, text)


def _hugepages(host: Host) -> Iterator[Check]:
    total = host.number("/proc/sys/vm/nr_hugepages")
    thp = host.text("/sys/kernel/mm/transparent_hugepage/enabled")
    if total is None or thp is None:
        return
    chosen = re.search(r"\[(\w+)\]", thp)
    word = chosen[1] if chosen else "unknown"
    good = total > 0 or word in ("always", "madvise")
    text = f"{total} reserved, transparent huge pages: {word}"
    yield Check("hugepages", PASS if good else WARN, text)


def _memlock(host: Host) -> Iterator[Check]:
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if soft == resource.RLIM_INFINITY or soft >= _ENOUGH:
        yield Check("memlock", PASS, "unlimited" if soft < 0 else f"{soft} bytes")
    else:
        text = f"{soft} bytes in this session; a job's limit may differ"
        yield Check("memlock", WARN, text, "ulimit -l unlimited, LimitMEMLOCK=infinity")


def _isolcpus(host: Host) -> Iterator[Check]:
    text = host.text("/sys/devices/system/cpu/isolated")
    if text is None:
        return
    note = f"isolated: {text}; only threads that are bound there use them"
    yield Check("isolcpus", WARN if text else PASS, note if text else "none isolated")


def _balancing(host: Host) -> Iterator[Check]:
    value = host.number("/proc/sys/kernel/numa_balancing")
    if value is None:
        return
    fix = "sysctl kernel.numa_balancing=0" if value else ""
    yield Check("numa_balancing", WARN if value else PASS, str(value), fix)


def _quotas(host: Host) -> Iterator[Check]:
    """Each group with a quota, against the threads of all groups below it."""
    facts = Facts(host)
    seen = 0
    for path in facts.groups():
        quota = facts.cpu_max(path)
        if quota is None:
            continue
        seen += 1
        words = quota.split()
        if len(words) != 2 or not (words[0].isdigit() and words[1].isdigit()):
            continue
        allowed = int(words[0]) / max(1, int(words[1]))
        threads = _threads(host, path)
        text = host.text(f"{path}/cpu.stat") or ""
        held = re.search(r"^nr_throttled (\d+)$", text, re.M)
        summary = (
            f"{path[len('/sys/fs/cgroup') :]}: {allowed:g} CPUs for {threads} threads"
        )
        if held:
            summary += f", throttled {held[1]} times"
        tight = threads > allowed or (held is not None and int(held[1]) > 0)
        fix = "raise cpu.max or cpu.max.burst, or run fewer threads" if tight else ""
        yield Check("cpu.max", WARN if tight else PASS, summary, fix)
    if seen:
        yield Check("cpu.max", PASS, f"{seen} groups were checked")


def _threads(host: Host, path: str) -> int:
    here = host.path(path)
    count = 0
    for top, _, names in os.walk(here):
        name = "cgroup.threads" if "cgroup.threads" in names else "tasks"
        try:
            with open(os.path.join(top, name), "rb") as file:
                count += sum(1 for _ in file)
        except OSError:
            continue
    return count


def _nccl(host: Host) -> Iterator[Check]:
    """Ranks that have sockets and no RDMA device open: NCCL on TCP."""
    facts = Facts(host)
    facts.scan()
    ranks = {
        fact["tgid"]: fact
        for fact in facts.take()
        if fact["kind"] == "proc" and fact["rank"] is not None
    }
    if not ranks:
        yield Check("nccl", UNKNOWN, "no process of a job runs here now")
    for pid, fact in sorted(ranks.items()):
        verbs = sockets = 0
        names = host.names(f"/proc/{pid}/fd")
        for name in names:
            try:
                target = os.readlink(host.path(f"/proc/{pid}/fd/{name}"))
            except OSError:
                continue
            verbs += "/dev/infiniband/uverbs" in target
            sockets += target.startswith("socket:")
        who = f"rank {fact['rank']} (process {pid})"
        if not names:
            yield Check("nccl", UNKNOWN, f"{who}: its files cannot be seen")
        elif verbs:
            yield Check("nccl", PASS, f"{who}: {verbs} RDMA devices open")
        elif host.names("/sys/class/infiniband"):
            text = f"{who}: {sockets} sockets and no RDMA device open"
            yield Check("nccl", WARN, text, "NCCL_DEBUG=INFO; NCCL_IB_DISABLE, memlock")
        else:
            yield Check("nccl", UNKNOWN, f"{who}: no RDMA device on this node")


_CHECKS: tuple[tuple[str, Callable[[Host], Iterator[Check]]], ...] = (
    ("providers", _providers),
    ("rdma", _rdma),
    ("numa distance", _numa),
    ("pcie link", _links),
    ("aer", _aer),
    ("iommu", _iommu),
    ("peer memory", _peer),
    ("hugepages", _hugepages),
    ("memlock", _memlock),
    ("isolcpus", _isolcpus),
    ("numa_balancing", _balancing),
    ("cpu.max", _quotas),
    ("nccl", _nccl),
)
