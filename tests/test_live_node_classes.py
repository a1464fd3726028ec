# SPDX-License-Identifier: GPL-2.0-or-later
"""kstall-node records the workloads by which each series is proven.

The workload runs as ever, with all its tracers and under all its checks, which say
whether the kernel's events are true; beside them the recorder has buffers of its own.
What is sealed is then what the others saw, and the oracles agree.
"""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from kstall.base import arch
from kstall.evidence import evidence
from kstall.ftrace import Event, ring
from kstall.guest import guestrun
from kstall.series import Project
from kstall_ops import seal, store
from live import keep_only, validate
from test_live_node import packed

pytestmark = [pytest.mark.live, pytest.mark.deep]

Row = tuple[Any, ...]


class Recorded(NamedTuple):
    """A workload's recording, sealed, and what its other tracer saw."""

    store: Path
    session: dict[str, Any]
    events: list[Event]
    said: str

    def named(self, name: str) -> list[Event]:
        """Those of one name, in the order of time."""
        return [event for event in self.events if event.name == name]

    def rows(self, sql: str) -> list[Row]:
        """What a query of the store gives."""
        _, found, _ = store.query(self.store, sql)
        return [tuple(row) for row in found]

    def stalls(self, columns: str, where: str = "true") -> Counter[Row]:
        """Rows of the table, each as often as it is there."""
        return Counter(self.rows(f"SELECT {columns} FROM stall WHERE {where}"))


def run(
    project: Project,
    out: Path,
    series: str,
    cls: str,
    checks: Sequence[str],
    provider: str = "any",
) -> dict[str, Recorded]:
    """Prove ``series`` by some of its checks, and record the workloads of these."""
    folder = project.patches / series
    keep_only(folder, checks)
    toml = folder / "series.toml"
    parts = re.split(r"(?m)^(?=\[)", toml.read_text())
    decoded = any("\ndecode = true" in part for part in parts)
    for number, part in enumerate(parts):
        if part.startswith("[[workload]]"):
            part = _wrapped(project, part, cls, provider, out)
            # Others read each new event somewhere, too, and it is checked that they do.
            more = "" if decoded else "decode = true\n"
            parts[number] = part.replace("\nprogram", f"\n{more}program", 1)
    toml.write_text("".join(parts))
    done = validate(project.root, out, "--level", "quick", series)
    assert done.exit_code == 0, done.output + str(done.failed())
    entry = done.report.series[0]
    assert entry.evidence is not None
    saved = evidence.load(done.dir / entry.evidence)
    return {name: _recorded(load, out) for name, load in saved.workloads.items()}


def _wrapped(project: Project, part: str, cls: str, provider: str, out: Path) -> str:
    """The workload's table with the recorder around its program."""
    match = re.search(r'(?m)^program = "(.*)"$', part)
    assert match
    program = project.scripts / match[1]
    log = out.with_suffix(".log")
    guestrun.compile_program(program, program, log, arch.X86_64)
    scripts = project.scripts / "workloads/operator"
    shutil.copy2(scripts / "recorded.py", program.with_name("recorded.py"))
    node = program.with_name("kstall-node")
    if not node.exists():
        packed(project.root, node)
    wrapper = match[1].rpartition("/")[0] + "/recorded.py"
    part = part.replace(match[0], f'program = "{wrapper}"')
    words = ", ".join(f'"{word}"' for word in (cls, provider, program.name))
    if "\nargs = [" in part:
        return part.replace("\nargs = [", f"\nargs = [{words}, ", 1).replace(", ]", "]")
    return part.replace("\nprogram", f"\nargs = [{words}]\nprogram", 1)


def _recorded(load: evidence.WorkloadResult, out: Path) -> Recorded:
    told = json.loads((load.dir / "recorder.json").read_text())
    assert told["status"] == 0, told["said"]
    (rec,) = (load.dir / "rec").iterdir()
    made = out / f"{load.name}.duckdb"
    seal.seal([rec], made)
    events = [
        event
        for path in sorted((load.dir / "pages").iterdir())
        for event in ring.records(
            path.read_bytes(), int(path.name[3:]), load.layouts.values()
        )
    ]
    events.sort(key=lambda event: event.ts_ns)
    session = json.loads((rec / "session.json").read_text())
    found = Recorded(made, session, events, told["said"])
    assert found.rows("SELECT * FROM loss") == [], told["said"]
    assert found.rows("SELECT 1 FROM stall WHERE t0 > t1") == []
    return found


def agrees(found: Recorded) -> int:
    """That all oracles agree; what they counted."""
    oracles = found.rows("SELECT provider, scope, ours, theirs, verdict FROM oracle")
    assert oracles and {row[4] for row in oracles} == {"agrees"}, (oracles, found.said)
    return sum(row[2] for row in oracles)


def test_drm(project_copy: Project, tmp_path: Path) -> None:
    checks = ["second_job_waits_for_credits", "deep_queue_matches_the_tests_own_clock"]
    for found in run(project_copy, tmp_path / "o", "drm-sched", "drm", checks).values():
        waits = found.named("drm_sched_job_wait")
        assert waits
        assert found.stalls("dur, value1, value2, device, join_key, tid") == Counter(
            (
                *(event.fields[name] for name in ("wait_ns", "dep_ns", "deps", "dev")),
                *(str(event.fields["fence_seqno"]), None),
            )
            for event in waits
        )
        # Of jobs that were run, which an older event tells.
        assert agrees(found) == len(found.named("drm_sched_job_run")) == len(waits)


def test_drm_on_a_stock_scheduler(project_copy: Project, tmp_path: Path) -> None:
    """The older events' pairs have the time of the new event, and a little more."""
    (found,) = run(
        project_copy,
        tmp_path / "o",
        "drm-sched",
        "drm",
        ["second_job_waits_for_credits"],
        "gpu_scheduler:drm_sched_job_queue",
    ).values()
    waits = {
        str(event.fields["fence_seqno"]): event.fields["wait_ns"]
        for event in found.named("drm_sched_job_wait")
    }
    rows = found.rows("SELECT join_key, dur, tid IS NOT NULL FROM stall")
    assert {key for key, _, _ in rows} == set(waits) and len(rows) == len(waits)
    for key, lasted, known in rows:
        # From its _queue to its _run, which are around what the kernel times.
        assert lasted >= waits[key] and known
    assert agrees(found) == len(waits)


_CAUSES = {1: "no memory for a request", 2: "entries dropped", 3: "entry in error"}


def test_io_uring(project_copy: Project, tmp_path: Path) -> None:
    checks = [
        *(
            "full_ring_wait_is_timed",
            "signal_leaves_it_full",
            "every_waiter_has_its_own",
        ),
        *("busy_writer_adds_up", "dropped_sqe_is_reported", "no_memory_is_reported"),
        *("async_start_is_seen_twice", "canceled_work_leaves_the_queue"),
    ]
    found = run(project_copy, tmp_path / "o", "io_uring-sq", "io_uring", checks)
    # How often one waited for room both ends have told; of the rest nobody else knows.
    assert agrees(found["wait"]) == len(found["wait"].named("io_uring_sqring_wait_end"))
    for one in found.values():
        assert one.stalls(
            "tid, join_key, value1, value2", "cause = 'submission queue full'"
        ) == Counter(
            (event.pid, *_members(event, "ctx", "queued", "sq_entries"))
            for event in one.named("io_uring_sqring_wait_end")
        )
        assert one.stalls(
            "tid, cause, join_key, value1, value2", "provider LIKE '%short_submit'"
        ) == Counter(
            (
                *(event.pid, _CAUSES[int(str(event.fields["reason"]))]),
                *_members(event, "ctx", "left", "sq_dropped"),
            )
            for event in one.named("io_uring_short_submit")
        )
        assert one.stalls(
            "tid, join_key, value1, value2", "cause = 'request waited for a worker'"
        ) == Counter(
            (None, *_members(event, "ctx", "opcode", "cancel"))
            for event in one.named("io_uring_start_async_work")
        )
    assert found["wait"].stalls("1", "cause = 'submission queue full'")
    assert found["short"].stalls("1", "cause = 'entries dropped'")
    assert found["async"].stalls("1", "value2 = 1")


def _members(event: Event, key: str, *others: str) -> Row:
    """The first as text, as a join key is."""
    return (str(event.fields[key]), *(event.fields[name] for name in others))


def test_rdma(project_copy: Project, tmp_path: Path) -> None:
    checks = [
        "overrun_names_device_queue_owner_and_depth",
        "queue_pairs_follow_their_queue",
        *("bad_key_is_an_event_of_the_target", "failed_completions_of_the_kernel"),
    ]
    words = {0: "completion queue error", 1: "queue pair fatal"}
    for found in run(project_copy, tmp_path / "o", "rdma-cq", "rdma", checks).values():
        queues = found.named("cq_async_event")
        pairs = found.named("qp_async_event")
        assert queues or pairs
        assert found.stalls(
            "tid, cause, device, join_key, value1, comm",
            "provider = 'rdma_core:cq_async_event'",
        ) == Counter(
            (
                *(event.fields["pid"] or None, words[int(str(event.fields["event"]))]),
                *(event.fields["device"], str(event.fields["cq_id"])),
                *(event.fields["cqe"], event.fields["owner"]),
            )
            for event in queues
        )
        assert found.stalls(
            "device, join_key, value1", "provider LIKE '%qp_async%'"
        ) == Counter(
            (event.fields["device"], *_members(event, "qp_num", "scq_id"))
            for event in pairs
        )
        assert found.stalls(
            "device, join_key, value1, comm, tid", "provider LIKE '%cq_wc_error'"
        ) == Counter(
            (
                *(event.fields["device"], *_members(event, "cq_id", "status")),
                *(event.fields["owner"], None),
            )
            for event in found.named("cq_wc_error")
        )
        # As often as the core's handlers were called.
        assert agrees(found) == len(queues) + len(pairs)


_ACCESS = "queue pair access error"


def test_rdma_on_a_stock_core(project_copy: Project, tmp_path: Path) -> None:
    """The handlers of user space's queues, which a kernel without patches has, too."""
    checks = [
        "overrun_names_device_queue_owner_and_depth",
        *("bad_key_is_an_event_of_the_target", "failed_completions_of_the_kernel"),
    ]
    every = run(
        project_copy, tmp_path / "o", "rdma-cq", "rdma", checks, "rdma/handlers"
    )
    pairs = every["badkey"].named("qp_async_event")
    assert pairs and every["badkey"].stalls(
        "device, cause", "cause NOT LIKE 'completion%'"
    ) == Counter((event.fields["device"], _ACCESS) for event in pairs)
    found = every["flush"]
    queues = found.named("cq_async_event")
    assert queues and not found.named("qp_async_event")
    assert found.stalls("tid, cause, device, join_key, comm, dur") == Counter(
        (None, "completion queue error", event.fields["device"], None, None, None)
        for event in queues
    )
    # Nothing else counts them, and that is said.
    assert found.rows("SELECT * FROM oracle") == []


def test_aer(project_copy: Project, tmp_path: Path) -> None:
    checks = ["a_message_a_record", "full_fifo_is_reported", "kinds_are_told_apart"]
    found = run(project_copy, tmp_path / "o", "pci-aer", "aer", checks)
    kinds: dict[str, Callable[[int, int], bool]] = {
        "correctable": lambda status, lost: bool(status & 1) and not lost,
        "nonfatal": lambda status, lost: status & 0x44 == 4 and not lost,
        "fatal": lambda status, lost: status & 0x44 == 0x44 and not lost,
        "more of them": lambda status, _: not status & 5,
        "not looked into": lambda _, lost: bool(lost),
    }
    seen: set[str] = set()
    for one in found.values():
        wanted = Counter(
            (kind, event.fields["port_name"], event.fields["root_status"])
            for event in one.named("pcie_aer_msg")
            for kind, holds in kinds.items()
            if holds(
                int(str(event.fields["root_status"])),
                int(str(event.fields["dropped"])),
            )
        )
        assert one.stalls("cause, device, value1") == wanted
        assert one.stalls("1", "tid IS NOT NULL") == Counter()
        seen |= {kind for kind, _, _ in wanted}
        # sysfs counts what was looked into.
        assert agrees(one) == sum(
            n
            for (kind, _, _), n in wanted.items()
            if kind in ("correctable", "nonfatal", "fatal")
        )
    assert {"correctable", "nonfatal", "fatal", "not looked into"} <= seen


def test_iotlb(project_copy: Project, tmp_path: Path) -> None:
    checks = [
        "strict_unmapping_waits",
        "full_queue_frees_255",
        "strict_to_lazy_in_one_boot",
    ]
    found = run(project_copy, tmp_path / "o", "iommu-iotlb", "iotlb", checks)
    for one in found.values():
        syncs = one.named("iotlb_sync")
        (spec,) = [
            spec for spec in one.session["providers"] if "/" not in spec["provider"]
        ]
        # Whichever version of the event this tree has.
        lasted = "sync_ns" if syncs and "sync_ns" in syncs[0].fields else "duration_ns"
        assert not syncs or spec["dur"] == lasted
        interrupts = 0x58
        assert one.stalls(
            "dur, value1, join_key, device, tid", "provider = 'iommu:iotlb_sync'"
        ) == Counter(
            (
                *(event.fields[lasted], event.fields["size"]),
                *(str(event.fields["domain"]), event.fields.get("device")),
                None if event.flags & interrupts else event.pid,
            )
            for event in syncs
        )
        flushes = one.named("iotlb_fq_flush")
        assert one.stalls(
            "dur, value1, value2, tid", "provider LIKE '%fq_flush'"
        ) == Counter(
            (
                *(event.fields[name] for name in ("flush_ns", "freed", "free_ns")),
                None,
            )
            for event in flushes
        )
        # As often as the driver's function was called; if never, nobody can compare.
        if syncs:
            assert agrees(one) == len(syncs)
        else:
            assert one.rows("SELECT verdict FROM oracle") == [("unknown",)]
    assert found["bench-strict"].stalls("1")


def test_mmu(project_copy: Project, tmp_path: Path) -> None:
    checks = ["one_event_for_each_page", "delay_is_measured"]
    every = run(project_copy, tmp_path / "o", "mm-migrate", "mmu", checks)
    for found in every.values():
        callbacks(found)


def callbacks(found: Recorded) -> None:
    """Each callback of a subscriber, of whichever version the events are."""
    ends = found.named("mmu_notifier_callback_end")
    if ends:
        # The time that is in the event is that between the two, and a little less.
        times = sorted(int(str(event.fields["duration_ns"])) for event in ends)
        rows = found.rows("SELECT dur FROM stall ORDER BY dur")
        assert all(row[0] >= time for row, time in zip(rows, times, strict=True))
        assert agrees(found) == len(ends)
    else:
        ends = found.named("mmu_notifier_invalidate")
        assert found.stalls("dur", "provider NOT LIKE '%finish'") == Counter(
            (event.fields["duration_ns"],) for event in ends
        )
    assert ends
    assert found.stalls(
        "tid, join_key, value1, value2", "provider NOT LIKE '%finish'"
    ) == Counter(
        (
            *(event.pid, str(event.fields["function"])),
            *(_signed(event.fields[name]) for name in ("start", "end")),
        )
        for event in ends
    )


def _signed(value: object) -> int | None:
    """A column has no room for the end of all memory."""
    assert isinstance(value, int)
    return value if value < 1 << 63 else None
