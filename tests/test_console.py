# SPDX-License-Identifier: GPL-2.0-or-later
"""Console: reports in texts recorded from a 7.3.4 guest (a module misbehaved)."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest

import consoles
from kstall.guest import console

DATA = Path(__file__).parent / "data/console"


def scan(name: str) -> tuple[console.Splat, ...]:
    return consoles.scan((DATA / name).read_text())


def kinds(name: str) -> list[tuple[str, int]]:
    return [(splat.kind, splat.line) for splat in scan(name)]


def test_clean_boot_has_no_reports() -> None:
    assert scan("clean.log") == ()


def test_oops_is_one_report_and_the_panic_it_ends_in_another() -> None:
    oops, panic = scan("null.log")
    assert (oops.kind, oops.line) == ("oops", 12)
    assert oops.headline == (
        "BUG: kernel NULL pointer dereference, address: 0000000000000000"
    )
    assert "Oops: Oops: 0002 [#1]" in oops.excerpt
    assert "splat_init+" in oops.excerpt
    assert oops.excerpt.endswith("---[ end trace 0000000000000000 ]---")
    assert panic.headline == "Kernel panic - not syncing: Fatal exception"
    assert console.panicked((oops, panic))
    assert not console.panicked((oops,))


def test_bug_starts_where_it_was_cut() -> None:
    bug, panic = scan("bug.log")
    assert (bug.kind, bug.headline) == ("bug", "kernel BUG at splat.c:12!")
    assert "[ cut here ]" in bug.excerpt.splitlines()[0]
    assert panic.kind == "panic"


def test_crash_by_sysrq_is_a_panic() -> None:
    (panic,) = scan("crash.log")
    assert panic.headline == "Kernel panic - not syncing: sysrq triggered crash"
    assert "sysrq_handle_crash" in panic.excerpt


@pytest.mark.parametrize(
    ("why", "rootless"),
    [
        ("VFS: Unable to mount root fs on unknown-block(254,0)", True),
        ('VFS: Unable to mount root fs on "/dev/root" or unknown-block(0,0)', True),
        ("No working init found.  Try passing init= option to kernel.", True),
        ("Requested init /run/virtme/init failed (error -2).", True),
        ("Attempted to kill init! exitcode=0x0000000b", False),
        ("Fatal exception", False),
        ("stack-protector: Kernel stack is corrupted in: f+0x1/0x2", False),
    ],
)
def test_a_kernel_without_user_space_gives_up(why: str, rootless: bool) -> None:
    lines = [
        "List of all partitions:",
        "No filesystem could mount root, tried: ",
        f"Kernel panic - not syncing: {why}",
        "CPU: 0 UID: 0 PID: 1 Comm: swapper/0 Not tainted 7.3.4 #1",
        "Call Trace:",
        " <TASK>",
        " vpanic+0x32a/0x340",
        " mount_root_generic+0x1c7/0x270",
        " </TASK>",
        f"---[ end Kernel panic - not syncing: {why} ]---",
    ]
    (splat,) = consoles.scan("".join(f"[    1.000000] {line}\n" for line in lines))
    assert splat.kind == "panic"
    assert console.is_rootless(splat) == rootless


def test_an_oops_of_arm64_is_one_report_with_its_stack() -> None:
    oops, panic = scan("arm64-oops.log")
    assert (oops.kind, oops.line, panic.kind) == ("oops", 3, "panic")
    assert oops.headline.endswith("at virtual address 006b6b6b6b6b6b7b")
    assert "drm_sched_fini+0xc8/0x160 [gpu_sched]" in oops.excerpt
    assert oops.excerpt.endswith("---[ end trace 0000000000000000 ]---")


def test_warnings_hung_tasks_and_atomic_sleep() -> None:
    assert kinds("warnings.log") == [
        ("warning", 5),
        ("warning", 41),
        ("hung-task", 75),
        ("bug", 93),
        ("warning", 126),
        ("hung-task", 158),
    ]
    splat = scan("warnings.log")[1]
    # 7.3 prints a WARN's own words before the line that names it.
    assert "] splat: 5\n" in splat.excerpt
    hung = scan("warnings.log")[2]
    assert hung.headline == "INFO: task sleeper:62 blocked for more than 5 seconds."
    assert hung.excerpt.endswith("</TASK>")


def test_stalls_and_lockups() -> None:
    assert [kind for kind, _ in kinds("stall.log")] == [
        "rcu-stall",
        "lockup",
        "lockup",
        "rcu-stall",
        "lockup",
    ]
    assert scan("stall.log")[-1].excerpt.endswith("</TASK>")


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        # As printed by the sources of 7.3, and by older kernels where they differ.
        ("warning", "WARNING: CPU: 1 PID: 77 at mm/slub.c:12 free_pages+0x1/0x2"),
        ("warning", "WARNING: at foo+0x1/0x2, CPU#1: sh/77"),
        ("lockdep", "WARNING: possible circular locking dependency detected"),
        ("lockdep", "WARNING: possible recursive locking detected"),
        ("lockdep", "WARNING: possible irq lock inversion dependency detected"),
        ("lockdep", "WARNING: SOFTIRQ-safe -> SOFTIRQ-unsafe lock order detected"),
        ("lockdep", "WARNING: HARDIRQ-READ-safe -> HARDIRQ-READ-unsafe lock order d"),
        ("lockdep", "WARNING: inconsistent lock state"),
        ("lockdep", "WARNING: suspicious RCU usage"),
        ("lockdep", "WARNING: bad unlock balance detected!"),
        ("lockdep", "WARNING: held lock freed!"),
        ("lockdep", "WARNING: sh/77 still has locks held!"),
        ("lockdep", "WARNING: lock held when returning to user space!"),
        ("lockdep", "INFO: trying to register non-static key."),
        ("lockdep", "[ BUG: Invalid wait context ]"),
        ("warning", "DMA-API: debugging out of memory - disabling"),
        ("warning", "DMA-API: cacheline tracking ENOMEM, dma-debug disabled"),
        ("kasan", "BUG: KASAN: slab-use-after-free in foo+0x1/0x2"),
        ("kcsan", "BUG: KCSAN: data-race in foo / bar"),
        ("kasan", "BUG: KFENCE: out-of-bounds read in foo+0x1/0x2"),
        ("warning", "ODEBUG: Out of memory. ODEBUG disabled"),
        ("warning", "kmemleak: Kernel memory leak detector disabled"),
        ("ubsan", "UBSAN: array-index-out-of-bounds in drivers/foo.c:12:3"),
        ("bug", "BUG kmalloc-64 (Not tainted): Redzone overwritten"),
        ("bug", "BUG: Bad page state in process sh  pfn:12345"),
        ("bug", "BUG: sleeping function called from invalid context at a.c:1"),
        ("oops", "BUG: unable to handle page fault for address: ffffffffa0000091"),
        ("oops", "BUG: TASK stack guard page was hit at 0 (stack is 1..2)"),
        ("oops", "Oops: general protection fault, probably for address 0x1: 0000 [#1]"),
        ("oops", "general protection fault, probably for non-canonical address 0x1"),
        ("oops", "Oops: invalid opcode: 0000 [#1] SMP"),
        ("oops", "Unable to handle kernel paging request at virtual address 006b6b"),
        ("oops", "Internal error: Oops - BUG: 00000000f2000800 [#1]  SMP"),
        ("warning", "Call trace:"),
        ("lockup", "watchdog: CPU0: Watchdog detected hard LOCKUP on cpu 0"),
        ("lockup", "BUG: workqueue lockup - pool cpus=0 node=0 flags=0x0 nice=0"),
        ("rcu-stall", "rcu: INFO: rcu_preempt detected stalls on CPUs/tasks:"),
        ("rcu-stall", "rcu: INFO: rcu_preempt detected expedited stalls on CPUs/tasks"),
        ("rcu-stall", "INFO: rcu_tasks detected stalls on tasks:"),
        ("hung-task", "INFO: task sh:1 blocked in I/O wait for more than 120 seconds."),
    ],
)
def test_headlines(kind: str, text: str) -> None:
    assert [splat.kind for splat in consoles.scan(f"[   12.345678] {text}")] == [kind]
    # With CONFIG_PRINTK_CALLER, and after something that a program printed.
    assert len(consoles.scan(f"# [   12.345678][  T123] {text}\r")) == 1


@pytest.mark.parametrize(
    "text",
    [
        # Not the kernel's: no time stamp.
        "BUG: kernel NULL pointer dereference, address: 0000000000000000",
        "[    1.000000] virtme-ng-init: WARNING: failed to run: ip",
        "[    1.000000] INFO: lockdep is turned off.",
        "[    1.000000] INFO: task sh:1 blocked on a mutex likely owned by task a:2.",
        "[    1.000000] sysrq: Show Blocked State",
        "[    1.000000] NMI backtrace for cpu 1",
        "[    1.000000] ---[ end Kernel panic - not syncing: crash ]---",
        "[    1.000000] Debug: BUG: in the middle of a line",
    ],
)
def test_harmless_lines(text: str) -> None:
    assert consoles.scan(text) == ()


def test_report_without_end_is_cut_short() -> None:
    text = "[    1.000000] WARNING: x\n" + "[    1.000001]  noise\n" * 500
    (splat,) = consoles.scan(text)
    assert len(splat.excerpt.splitlines()) == 60


def test_reports_between_rules_are_told_apart() -> None:
    assert kinds("kcsan.log") == [("kcsan", 2), ("kcsan", 18)]
    assert kinds("lockdep.log") == [("lockdep", 3), ("lockdep", 59)]


def _file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "console"
    path.write_bytes(text.encode())
    return path


def test_reports_are_read_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever a report lies to the places where reading makes a pause."""
    lines = 2000
    monkeypatch.setattr(console, "_AT_ONCE", lines * len("noise\n"))
    report = (
        "[    1.000000] ------------[ cut here ]------------\n"
        "[    1.000001] WARNING: mm/x.c:1 at f+0x1/0x2\n"
        "[    1.000002] RIP: 0010:f+0x1/0x2\r\n"
        "[    1.000003] ---[ end trace 0000000000000000 ]---\n"
    )
    expected = report.replace("\r", "").rstrip()
    panic = "[    9.000000] Kernel panic - not syncing: no\n"
    for before in range(lines - 300, lines + 10, 7):
        text = "noise\n" * before + report + "noise\n" * 290 + report + panic
        splats = console.scan_file(_file(tmp_path, text))
        assert [(splat.kind, splat.line - before) for splat in splats] == [
            ("warning", 2),
            ("warning", 296),
            ("panic", 299),
        ]
        assert {splat.excerpt for splat in splats[:2]} == {expected}


def test_long_lines_take_no_more_memory_than_short_ones(tmp_path: Path) -> None:
    path = tmp_path / "console"
    path.write_bytes((b"y" * 10**6 + b"\n") * 60)
    tracemalloc.start()
    try:
        assert console.scan_file(path) == ()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2**24


def test_lines_that_printk_lost_are_reported() -> None:
    text = "[    1.000000] one\n** 12 printk messages dropped **\n[    1.000001] two\n"
    (splat,) = consoles.scan(text)
    assert (splat.kind, splat.line) == ("warning", 2)


STACK = (
    "[    1.000001] CPU: 1 UID: 0 PID: 9 Comm: sh Not tainted\n"
    "[    1.000002] Call Trace:\n"
    "[    1.000003]  <TASK>\n"
    "[    1.000004]  dump_stack_lvl+0x5d/0x80\n"
    "[    1.000005]  somewhere+0x1/0x2\n"
    "[    1.000006]  </TASK>\n"
)


def test_a_stack_without_words_is_a_report() -> None:
    (splat,) = consoles.scan("[    1.000000] Whatever this is\n" + STACK)
    assert (splat.kind, splat.headline) == ("warning", "Call Trace:")
    assert splat.excerpt.endswith("</TASK>")


@pytest.mark.parametrize(
    "text",
    [
        "FAULT_INJECTION: forcing a failure.",
        "hmm-tests: page allocation failure: order:9, mode:0x0",
        "task:sh  state:S stack:0 pid:9",
        "NMI backtrace for cpu 1",
    ],
)
def test_a_stack_that_was_asked_for_is_none(text: str) -> None:
    assert consoles.scan(f"[    1.000000] {text}\n" + STACK) == ()


@pytest.mark.parametrize(
    "before", ["noise\n", "[    0.900000] WARNING: at x\n" + "noise\n" * 59]
)
def test_a_stack_that_was_asked_for_is_none_wherever_reading_makes_a_pause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str
) -> None:
    lines = 1000
    monkeypatch.setattr(console, "_AT_ONCE", lines * len("noise\n"))
    registers = "[    1.000000] RAX: 0000000000000000\n" * 18
    dump = f"[    1.000000] NMI backtrace for cpu 1\n{registers}{STACK}"
    for number in range(400, 760, 5):
        text = "noise\n" * number + before + dump + "noise\n" * lines
        splats = console.scan_file(_file(tmp_path, text))
        assert [
            splat.headline for splat in splats if "at x" not in splat.headline
        ] == []


@pytest.mark.fault("endless console", "more reports than anyone reads")
def test_of_very_many_reports_a_new_one_is_reported(tmp_path: Path) -> None:
    text = "".join(f"[    1.000000] WARNING: at x, CPU#{n}\n" for n in range(3000))
    text += "[    2.000000] BUG: KASAN: slab-use-after-free in f+0x1/0x2\n"
    text += "[    3.000000] WARNING: at x, CPU#0\n"
    splats = console.scan_file(_file(tmp_path, text))
    assert len(splats) == console._MOST_REPORTS + 1
    assert (splats[-1].kind, splats[-1].line) == ("kasan", 3001)


@pytest.mark.fault("endless console", "more reports than anyone reads")
def test_of_very_many_reports_the_panic_is_reported(tmp_path: Path) -> None:
    text = "[    1.000000] WARNING: at x\n" * 3000
    text += "[    9.000000] Kernel panic - not syncing: no\n"
    splats = console.scan_file(_file(tmp_path, text))
    assert len(splats) == console._MOST_REPORTS + 1
    assert (splats[-1].kind, splats[-1].line) == ("panic", 3001)


def test_a_long_console_is_kept_without_its_middle(tmp_path: Path) -> None:
    size = 3 * console._ABRIDGED
    long = _file(tmp_path, "a" + "b" * (size - 2) + "c")
    console.abridge(long, tmp_path / "kept")
    kept = (tmp_path / "kept").read_text()
    assert kept[0] == "a" and kept[-1] == "c"
    assert f"[kstall: {console._ABRIDGED} bytes are left out here]" in kept
    assert len(kept) < size - console._ABRIDGED + 100
    console.abridge(_file(tmp_path, "short\n"), tmp_path / "kept")
    assert (tmp_path / "kept").read_text() == "short\n"


@pytest.mark.fault("guest out of memory", "as the kernel tells it")
def test_who_was_killed_for_want_of_memory(tmp_path: Path) -> None:
    path = _file(
        tmp_path,
        "[    1.0] Memory cgroup out of memory: Killed process 5 (wanted) total-vm:1\n"
        "[    2.0] Out of memory: Killed process 7 (python3) total-vm:1kB\n"
        "user space says Out of memory: Killed process\n",
    )
    assert console.victims(path) == ("python3",)
