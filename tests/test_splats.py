# SPDX-License-Identifier: GPL-2.0-or-later
"""Splats: which complaints of two kernels are the same.

The texts have the form in which 7.3's sources print them.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import consoles
from kstall.base import KstallError
from kstall.guest import splats

DATA = Path(__file__).parent / "data/console"


def reports(text: str) -> list[splats.KernelReport]:
    return [splats.kernel_report(splat) for splat in consoles.scan(text)]


def printed(*lines: str, start: float = 1.0) -> str:
    return "".join(
        f"[{start + n / 1000:12.6f}] {line}\n" for n, line in enumerate(lines)
    )


def sleeping(task: str, function: str, line: int, offset: int) -> str:
    return printed(
        f"BUG: sleeping function called from invalid context at mm/slab.c:{line}",
        f"in_atomic(): 1, irqs_disabled(): 0, non_block: 0, pid: 7, name: {task}",
        f"CPU: 0 UID: 0 PID: 7 Comm: {task} Not tainted 7.3.4-kstall #1",
        "Call Trace:",
        " <TASK>",
        " dump_stack_lvl+0x5d/0x80",
        " __might_resched.cold+0x9e/0xbb",
        " ? left_over+0x1/0x2",
        f" {function}.constprop.{offset}+{offset:#x}/0x100 [gpu_sched]",
        " process_one_work+0x2ec/0x520",
        " </TASK>",
    )


def test_boots_and_builds_differ_and_the_complaint_is_the_same() -> None:
    (first,) = reports(sleeping("kworker/0:1", "trace_wait", 301, 16))
    (second,) = reports(sleeping("sh", "trace_wait", 317, 64))
    assert first.signature == second.signature
    assert first.signature == (
        "bug: BUG: sleeping function called from invalid context at mm/slab.c: "
        "trace_wait < process_one_work"
    )
    assert first.functions == second.functions
    assert "trace_wait" in first.functions and "left_over" not in first.functions


def test_another_place_is_another_complaint() -> None:
    (first,) = reports(sleeping("sh", "trace_wait", 301, 16))
    (second,) = reports(sleeping("sh", "trace_done", 301, 16))
    assert first.signature != second.signature


def test_races_that_follow_each_other_are_told_apart() -> None:
    first, second = reports((DATA / "kcsan.log").read_text())
    assert first.signature == (
        "kcsan: BUG: KCSAN: data-race in tick_nohz_stop_tick / tick_sched_timer: "
        "read of 4 bytes in tick_nohz_stop_tick: write of 4 bytes in tick_sched_timer"
    )
    assert {"tick_sched_timer", "do_idle"} < first.functions
    assert first.accesses == {"tick_nohz_stop_tick", "tick_sched_timer"}
    assert second.accesses == {"drm_sched_job_trace_wait"}
    assert "drm_sched_job_trace_wait" not in first.functions
    assert second.signature == (
        "kcsan: BUG: KCSAN: data-race in drm_sched_job_trace_wait [gpu_sched]: "
        "read of 8 bytes in drm_sched_job_trace_wait"
    )
    assert "drm_sched_run_job_work" in second.functions
    assert "value changed: 0x0000000000000001" in second.excerpt


def race(title: str, *stacks: str, how: str = "write", who: str = "task 1") -> str:
    lines = [f"BUG: KCSAN: {title}", ""]
    for stack in stacks:
        lines.append(f"{how} to 0xffffffff82c0f0a0 of 4 bytes by {who} on cpu 0:")
        lines += [*(f" {name}+0x1/0x20" for name in stack.split()), ""]
    return "".join(f"[    1.000000] {line}\n" for line in lines)


def test_a_race_is_between_those_whom_its_title_names() -> None:
    # The end of a report can be missing, and any function can be the one.
    (report,) = reports(race("data-race in nap [bed] / report_nap.part.3", "nap sleep"))
    assert report.accesses == {"nap", "report_nap"}
    assert report.functions == {"nap", "sleep"}
    (report,) = reports(race("data-race in nap.isra.0+0x16/0x70 [bed]", "nap sleep"))
    assert report.accesses == {"nap"}


def test_an_assertion_on_the_way_to_a_race_may_be_anyones() -> None:
    text = race("assert: race in nap / doze", "nap bed", how="assert no writes")
    (report,) = reports(text)
    assert report.functions == {"nap", "bed"}
    assert report.accesses == {"nap", "bed", "doze"}
    assert "assert no writes of 4 bytes in nap" in report.signature


def test_what_was_interrupted_has_no_part_in_a_race() -> None:
    stack = "tick asm_sysvec_apic_timer_interrupt sleep bed"
    (report,) = reports(race("data-race in nap / tick", stack, who="interrupt"))
    assert report.functions == {"tick", "asm_sysvec_apic_timer_interrupt"}
    (report,) = reports(race("data-race in nap / tick", stack))
    assert {"sleep", "bed"} < report.functions
    # The next stack is another's.
    both = race("data-race in nap / tick", stack, "nap quilt", who="interrupt")
    assert "quilt" in reports(both)[0].functions


def test_deadlocks_are_told_apart_by_their_locks() -> None:
    deadlock, rcu = reports((DATA / "lockdep.log").read_text())
    assert deadlock.kind == rcu.kind == "lockdep"
    assert deadlock.signature == (
        "lockdep: WARNING: possible circular locking dependency detected: "
        "&entity->lock, &rq->lock"
    )
    assert deadlock.excerpt.endswith("</TASK>")
    assert rcu.signature == (
        "lockdep: WARNING: suspicious RCU usage: drm_sched_job_init"
    )


@pytest.mark.parametrize(
    ("text", "signature"),
    [
        (
            "WARNING: CPU: 1 PID: 77 at mm/slub.c:12 free_pages+0x1/0x2",
            "warning: WARNING: at mm/slub.c free_pages",
        ),
        (
            "WARNING: mm/slub.c:12 at free_pages+0x1/0x2, CPU#1: sh/77",
            "warning: WARNING: mm/slub.c at free_pages",
        ),
        (
            "BUG: KASAN: slab-use-after-free in foo+0x1/0x2",
            "kasan: BUG: KASAN: slab-use-after-free in foo",
        ),
        (
            "UBSAN: array-index-out-of-bounds in drivers/foo.c:12:3",
            "ubsan: UBSAN: array-index-out-of-bounds in drivers/foo.c",
        ),
        (
            "BUG: unable to handle page fault for address: ffffffffa0000091",
            "oops: BUG: unable to handle page fault for address: X",
        ),
    ],
)
def test_what_is_left_of_a_headline(text: str, signature: str) -> None:
    (report,) = reports(f"[    1.000000] {text}\n")
    assert report.signature == signature


LEAKS = """\
unreferenced object 0xffff888004a1b2c0 (size 64):
  comm "modprobe", pid 123, jiffies 4294892296
  hex dump (first 32 bytes):
    00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00  ................
  backtrace (crc 1f2e3d4c):
    kmemleak_alloc+0x4b/0x80
    __kmalloc_cache_noprof+0x2c4/0x340
    aer_inject_init+0x44/0x90 [aer_inject]
    do_one_initcall+0x84/0x2e0
unreferenced object 0xffff888004a1ffc0 (size 64):
  comm "modprobe", pid 124, jiffies 4294892299
  backtrace (crc 0):
    kmemleak_alloc+0x4b/0x80
    __kmalloc_cache_noprof+0x2c4/0x340
    aer_inject_init+0x48/0x90 [aer_inject]
    do_one_initcall+0x84/0x2e0
"""


def test_leaks_of_one_place_are_one_complaint() -> None:
    first, second = splats.leaks(LEAKS)
    assert first.signature == second.signature
    assert first.signature == "leak: 64 bytes: aer_inject_init < do_one_initcall"
    assert "aer_inject_init" in first.functions
    assert first.excerpt.startswith("unreferenced object 0xffff888004a1b2c0")
    assert splats.leaks("") == ()


def test_another_access_of_the_same_functions_is_another_race() -> None:
    text = (DATA / "kcsan.log").read_text()
    report, _ = reports(text)
    for other in (
        text.replace(
            "read to 0xffffffff82c0f0a0 of 4", "read to 0xffffffff82c0f0a0 of 8"
        ),
        text.replace(
            "write to 0xffffffff82c0f0a0", "write (marked) to 0xffffffff82c0f0a0"
        ),
    ):
        assert reports(other)[0].signature != report.signature
    again, _ = reports(text.replace("82c0f0a0", "82c0f0b8").replace("task 0", "task 9"))
    assert again.signature == report.signature


def test_two_places_of_one_file_are_two() -> None:
    first, second = (
        reports(
            printed(
                f"UBSAN: array-index-out-of-bounds in drivers/foo.c:{line}:3",
                "Call Trace:",
                " <TASK>",
                " ubsan_epilogue+0x5/0x30",
                f" {name}+0x5/0x30",
                " </TASK>",
            )
        )[0]
        for line, name in ((12, "foo"), (77, "bar"))
    )
    assert (
        first.signature
        == "ubsan: UBSAN: array-index-out-of-bounds in drivers/foo.c: foo"
    )
    assert second.signature.endswith(": bar")


def test_what_is_no_leak_is_not_taken_for_none() -> None:
    with pytest.raises(KstallError, match="not understood"):
        splats.leaks("unreferenced percpu object\n")
