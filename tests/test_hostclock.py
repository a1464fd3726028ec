# SPDX-License-Identifier: GPL-2.0-or-later
"""Hostclock: what an emulated kernel is told of time, and whether it was right."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from kstall.base import NotJudged, arch, process
from kstall.guest import guest, guestrun, hostclock, hosttime
from kstall.guest.console import Splat
from kstall.guest.guest import Accel, GuestRun, Machine

LIMITS = hosttime.Thresholds()
LOCKUP = Splat("lockup", 3, "watchdog: BUG: soft lockup - CPU#0 stuck for 26s!", "it")
OOPS = Splat("oops", 4, "Oops: general protection fault", "it")


def ran(
    place: Path,
    last: float,
    *splats: Splat,
    argv: tuple[str, ...] = (),
    caller: str = "",
) -> GuestRun:
    """A guest that was there for 100 s, with ``last`` as the time of its last lines."""
    console = place / "console.log"
    console.write_text(
        "[    0.000000] Linux version 7.3\r\n"
        + f"[{last:12.6f}]{caller} sh: reboot: Power down\r\n" * 12
    )
    return GuestRun("completed", 0, console, 100.0, 9.0, splats, argv)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="there is no such counter")
def test_counter_is_measured_alike_each_time() -> None:
    first = hostclock.khz()
    hostclock.khz.cache_clear()
    second = hostclock.khz()
    assert first is not None and second is not None
    assert abs(first - second) < first / 1000


def test_no_compiler_is_no_reason_to_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(argv: object, **_: object) -> None:
        raise process.CommandError(["gcc"], 1, "no")

    monkeypatch.setattr(process, "run", fails)
    hostclock.khz.cache_clear()
    assert hostclock.khz() is None
    hostclock.khz.cache_clear()


@pytest.mark.parametrize(
    ("accel", "devices", "told"),
    [("tcg", (), True), ("tcg", ("-icount", "shift=0"), False), ("kvm", (), False)],
)
def test_only_who_would_have_to_measure_it_is_reported(
    accel: str, devices: tuple[str, ...], told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hostclock, "khz", lambda: 1000)
    how = Accel(accel, "test")  # type: ignore[arg-type]
    got = guest._clock(how, Machine(devices=devices), arch.X86_64)
    assert got == (("tsc_early_khz=1000",) if told else ())


@pytest.mark.parametrize("caller", ["", "[    T1]", "[   C12]"])
@pytest.mark.parametrize(
    ("last", "wrong"), [(40.0, False), (113.0, False), (1300, True)]
)
def test_clock_that_ran_ahead_is_no_verdict(
    tmp_path: Path, last: float, wrong: bool, caller: str
) -> None:
    (tmp_path / "results").mkdir()
    boot = ran(tmp_path, last, caller=caller)
    if not wrong:
        guestrun.require_time(boot, tmp_path / "results", LIMITS)
        return
    with pytest.raises(NotJudged, match=r"showed 1300 s after 100 s of the host's"):
        guestrun.require_time(boot, tmp_path / "results", LIMITS)


def test_watchdogs_go_by_that_clock_and_oopses_do_not(tmp_path: Path) -> None:
    boot = ran(tmp_path, 1300, LOCKUP, OOPS)
    assert guestrun.relevant_reports(boot, LIMITS) == (OOPS,)


def test_counted_instructions_are_no_clock(tmp_path: Path) -> None:
    argv = ("--qemu-opts=-icount shift=0,sleep=off",)
    assert ran(tmp_path, 1300, argv=argv).ahead is None


def test_a_character_that_came_twice_is_no_clock(tmp_path: Path) -> None:
    """As it does where a report takes the serial line from the thread that prints."""
    boot = ran(tmp_path, 70.0)
    with boot.console.open("a") as file:
        file.write("[   770.072418] R13: 00007ffdb014ce50\r\n")
        file.write("[   70.072460] Call Trace:\r\n[   700.072471]  <TASK>\r\n")
    assert boot.ahead is None
