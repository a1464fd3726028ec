# SPDX-License-Identifier: GPL-2.0-or-later
"""What becomes of debug kernels, and their guests, when something goes wrong.

As in `test_faults`, but at ``LEVEL=deep``, and with two series in one kernel.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import indent

import pytest

from fakeworld import Ran, World
from faulty import (
    HANGS,
    KILLED,
    PANIC,
    RUNNING,
    STARVED,
    cut,
    empty,
    forget,
    impatient,
    little,
    needs_mounts,
    overwrite,
    require_proven,
    require_stopped,
    restored,
    save,
    settled,
    settling,
    small_disk,
    tiny_disk,
)
from kstall.report import SeriesReport, Stage

_SIDES = ("patched", "base")
#: Guests of a run in which no kernel complains.
_GUESTS = {
    f"{series}/{flavour}-patched"
    for series in ("demo", "other")
    for flavour in ("debug", "kcsan")
}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> World:
    sandbox = World(tmp_path_factory.mktemp("deep") / "world", level="deep")
    require_proven(sandbox.validate())
    assert _booted(sandbox) == sorted(_GUESTS)
    return save(sandbox)


@pytest.fixture
def deep(shared: World) -> Iterator[World]:
    """A world in which two series were proven; what a test breaks, it sees mended."""
    with settling(restored(shared)):
        yield shared


def _booted(world: World, since: int = 0) -> list[str]:
    """The guests with debug kernels, but for the first so many of all guests."""
    return sorted(name for name in world.guests[since:] if "/" in name)


def _series(ran: Ran, name: str) -> SeriesReport:
    assert ran.report is not None, ran.output
    return next(series for series in ran.report.series if series.name == name)


def _debug(ran: Ran, name: str) -> Stage:
    """The stage in which a series is judged."""
    return next(stage for stage in _series(ran, name).stages if stage.name == "debug")


def _checks(ran: Ran, name: str) -> dict[str, str]:
    """The status of each check on these guests."""
    checks = _series(ran, name).checks
    return {check.name: check.status for check in checks if check.kind == "debug"}


def _only(series: str, what: str, *, guest: str = "debug-patched") -> str:
    """``what`` a guest does, for one guest of ``series``."""
    return f'if name == "{series}/{guest}":\n{indent(what, "    ")}'


# -- killed --------------------------------------------------------------------------

#: In their order: those of the kernel that all share, and of those that are for this.
_PROGRAMS = (
    *("together", "build", "programs", "guest"),
    *("debug-apply", "debug-patched-all", "kcsan-patched-all"),
    "debug-guests",
)


@pytest.mark.fault("killed", "SIGKILL in each stage of a debug kernel")
@pytest.mark.fault("interrupted", "Ctrl-C in each stage of such a kernel")
@pytest.mark.fault("killed", "the run after the ended ones")
def test_runs_that_are_ended_leave_nothing_running_and_are_gone_on_with(
    tmp_path: Path,
) -> None:
    """Each is ended a stage later than those before."""
    world = World(tmp_path / "world", level="deep", at_once=2)
    for stage in _PROGRAMS:
        child = world.held(stage, inside=True)
        world.kill(child)
        assert world.processes() == [] and world.free(), stage
        ran = world.outcome(child)
        assert ran.report is not None and ran.report.status == "running"

        child = world.held(stage, inside=True)
        os.kill(child.pid or 0, signal.SIGINT)
        ran = world.end(child)
        assert "interrupted; what was finished is kept" in ran.output, stage
        assert "Traceback" not in ran.output
        # Of two at once, the guest of the one may have come back before it was.
        assert "interrupted" in [entry.error for entry in ran.every(stage)]
        settled(world)
    require_proven(after := world.validate())
    settled(world)
    # Programs are those of the kernel that all share.
    assert {"debug-programs", *_PROGRAMS[5:7]} <= after.reused


@pytest.mark.fault("killed", "SIGKILL between guests")
@pytest.mark.fault("interrupted", "Ctrl-C between guests, and in two at once")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
@pytest.mark.parametrize("processors", [1, 2])
def test_a_guest_that_came_back_is_not_booted_again(
    deep: World, number: signal.Signals, processors: int
) -> None:
    forget(deep, "watched")
    start = len(deep.guests)
    deep.prepare.append(lambda: vars(os).update(sched_getaffinity=_set_of(processors)))
    # When the first two are kept.
    kept = 'test "$(ls "$WORLD/cache/watched" 2>/dev/null | wc -l)" -ge 2'
    child = deep.held("debug-guests", inside=True, when=kept)
    if number == signal.SIGKILL:
        deep.kill(child)
    else:
        os.kill(child.pid or 0, number)
        assert "interrupted; what was finished is kept" in deep.end(child).output
    assert deep.processes() == [] and deep.free()
    before = _booted(deep, start)
    assert len(set(before)) == len(before) >= 2
    # What one was just being kept in when the run was killed is none.
    known = {path.name for path in deep.cache.glob("watched/[!.]*")}
    start = len(deep.guests)
    require_proven(deep.validate())
    assert len(_booted(deep, start)) == len(_GUESTS) - len(known)


def _set_of(processors: int) -> Callable[[int], set[int]]:
    return lambda _: set(range(processors))


def test_what_is_kept_is_not_used_if_fresh_guests_are_asked_for(deep: World) -> None:
    both = [_only("demo", _COMPLAINS, guest=f"debug-{side}") for side in _SIDES]
    deep.guest("".join(both))
    start = len(deep.guests)
    ran = deep.validate("--again")
    require_proven(ran)
    assert "debug-guests" not in ran.reused
    assert _booted(deep, start) == sorted({*_GUESTS, "demo/debug-base"})
    # The base's as well.
    start = len(deep.guests)
    require_proven(deep.validate("--again"))
    assert "demo/debug-base" in _booted(deep, start)
    deep.guest(None)


# -- damaged -------------------------------------------------------------------------


@pytest.mark.fault("truncated", "what is kept of a debug kernel's guest")
@pytest.mark.fault("corrupted", "what is kept of a debug kernel's guest")
@pytest.mark.parametrize(
    ("file", "damage"),
    [("debug.json", cut), ("agent.json", overwrite), ("console.txt", empty)],
)
def test_a_damaged_guest_is_named_and_booted_again(
    deep: World, file: str, damage: Callable[[Path], None]
) -> None:
    kept = sorted(deep.cache.glob("watched/*"))
    assert len(kept) == len(_GUESTS)
    damage(kept[0] / file)
    start = len(deep.guests)
    ran = deep.validate()
    require_proven(ran)
    summary = ran.stage("debug-guests").summary
    assert f"{kept[0]} is damaged ({file} is not what it was)" in summary
    assert "made anew" in summary
    assert len(_booted(deep, start)) == 1
    assert "debug-guests" not in ran.reused
    assert "debug-guests" in deep.validate().reused


# -- a full disk ---------------------------------------------------------------------


@needs_mounts
@pytest.mark.fault("disk full", "where results of debug kernels' guests are kept")
def test_a_full_disk_costs_no_guest_that_came_back(deep: World) -> None:
    forget(deep, "watched")
    deep.prepare.append(tiny_disk(deep.cache / "watched"))
    ran = deep.validate()
    deep.prepare.clear()
    require_proven(ran)
    summary = ran.stage("debug-guests").summary
    assert "could not be kept (No space left on device)" in summary
    require_proven(deep.validate())


@needs_mounts
@pytest.mark.fault("disk full", "by what a debug kernel's guest writes")
def test_a_guest_that_fills_the_disk_is_no_verdict(deep: World) -> None:
    forget(deep, "watched")
    deep.prepare.append(small_disk(deep.out, "8m"))
    deep.guest(
        _only(
            "demo",
            """
with (results / "huge").open("wb", buffering=0) as file:
    try:
        while True:
            file.write(bytes(4096))
    except OSError:
        sys.exit()
""",
        )
    )
    ran = deep.validate()
    deep.guest(None)
    deep.prepare.clear()
    assert ran.exit_code == 2, ran.output
    assert "Traceback" not in ran.output, ran.output
    # Whichever comes first: the guest's own end, or what we write for one beside it.
    full = ("no room for what the guest writes", "no space left on the device")
    assert any(words in ran.output for words in full)
    assert "next: free some" in ran.output and "--out" in ran.output
    require_proven(deep.validate())


@needs_mounts
@pytest.mark.fault("disk full", "as a debug kernel is built")
def test_a_full_disk_stops_such_a_kernel_and_is_said(deep: World) -> None:
    config = deep.project.kconfigs / "debug.config"
    text = config.read_text()
    config.write_text(f"{text}CONFIG_MORE=y\n")
    deep.prepare.append(tiny_disk(deep.cache / "builds"))
    ran = deep.validate()
    deep.prepare.clear()
    require_stopped(ran, "debug-patched-all", "KSTALL_CACHE")
    # All that the series' own kernels have said stands.
    checks = [
        check for each in ("demo", "other") for check in _series(ran, each).checks
    ]
    statuses = {check.status for check in checks}
    # What there is nothing to look at for, such as documents, is skipped.
    assert "pass" in statuses and statuses <= {"pass", "skip"}
    require_proven(deep.validate())
    config.write_text(text)
    require_proven(deep.validate())


# -- guests --------------------------------------------------------------------------


_COMPLAINS = """
with console.open("a") as file:
    file.write("[    1.000000] WARNING: lost and found\\n")
"""


@pytest.mark.fault("guest panics", "with a debug kernel")
def test_a_kernel_that_panics_is_held_against_its_series(deep: World) -> None:
    forget(deep, "watched")
    deep.guest(_only("demo", RUNNING + PANIC))
    start = len(deep.guests)
    ran = deep.validate()
    deep.guest(None)
    assert ran.exit_code == 1, ran.output
    assert _checks(ran, "demo")["no_new_splats"] == "fail"
    assert _checks(ran, "demo")["workloads_come_to_their_end"] == "fail"
    assert "debug: guest ended as: observed panic" in ran.output
    assert "out of ideas" in ran.output
    stage = _debug(ran, "demo")
    assert "debug-patched: panic, see demo/debug-patched/console.log" in (stage.summary)
    assert (ran.dir / "demo/debug-patched/console.log").stat().st_size > 0
    # The other one has its verdict, and the base was asked about this one alone.
    assert set(_checks(ran, "other").values()) == {"pass", "skip"}
    assert _debug(ran, "other").status == "pass"
    assert _booted(deep, start) == sorted({*_GUESTS, "demo/debug-base"})


@pytest.mark.fault("guest hangs", "with a debug kernel")
def test_a_kernel_that_hangs_in_silence_is_not_judged(deep: World) -> None:
    """The deadline is the harness's own, so that it says nothing of the series."""
    forget(deep, "watched")
    deep.guest(_only("demo", RUNNING + HANGS))
    deep.prepare.append(impatient)
    ran = deep.validate()
    deep.guest(None)
    deep.prepare.clear()
    assert ran.exit_code == 2, ran.output
    stage = _debug(ran, "demo")
    assert stage.status == "error"
    error = stage.error or ""
    assert "the guest did not end in workload doze" in error
    assert "demo/debug-patched/console.log" in error
    assert (ran.dir / "demo/debug-patched/console.log").stat().st_size > 0
    # The other one has its verdict.
    assert set(_checks(ran, "other").values()) == {"pass", "skip"}
    assert _debug(ran, "other").status == "pass"
    start = len(deep.guests)
    require_proven(deep.validate())
    assert _booted(deep, start) == ["demo/debug-patched"]


@pytest.mark.fault("guest out of memory", "with a debug kernel")
@pytest.mark.fault("QEMU killed", "with a debug kernel")
@pytest.mark.parametrize("processors", [1, 2])
@pytest.mark.parametrize(
    ("what", "says"),
    [
        (STARVED, ("the guest ran out of memory", "python3", "[machine]")),
        (KILLED, ("the guest went away", "run the same command again")),
    ],
    ids=["memory", "killed"],
)
def test_a_guest_that_says_nothing_of_its_kernel_is_no_verdict(
    deep: World, what: str, says: tuple[str, ...], processors: int
) -> None:
    forget(deep, "watched")
    deep.guest(_only("demo", RUNNING + what))
    deep.prepare.append(lambda: vars(os).update(sched_getaffinity=_set_of(processors)))
    start = len(deep.guests)
    ran = deep.validate()
    deep.guest(None)
    deep.prepare.clear()
    require_stopped(ran, "debug", *says, "demo/debug-patched/console.log")
    assert _checks(ran, "demo") == {}
    assert "3 guests came back, 1 did not" in ran.stage("debug-guests").summary
    assert set(_checks(ran, "other").values()) == {"pass", "skip"}
    assert _booted(deep, start) == sorted(_GUESTS)
    start = len(deep.guests)
    require_proven(deep.validate())
    assert _booted(deep, start) == ["demo/debug-patched"]


@pytest.mark.fault("QEMU killed", "as the base is asked what it says of itself")
def test_a_base_that_is_lost_is_no_verdict(deep: World) -> None:
    """The series' kernel complained, and nobody knows whether the base does."""
    forget(deep, "watched")
    base = _only("demo", KILLED, guest="debug-base")
    deep.guest(_only("demo", _COMPLAINS) + base)
    ran = deep.validate()
    deep.guest(None)
    assert ran.exit_code == 2, ran.output
    (check,) = (
        check
        for check in _series(ran, "demo").checks
        if check.kind == "debug" and check.status not in ("pass", "skip")
    )
    assert (check.name, check.status) == ("no_new_splats", "error")
    for text in ("went away", "demo/debug-base/console.log", "next: "):
        assert text in check.detail, check.detail
    assert "0 guests came back, 1 did not" in ran.stage("debug-base-guests").summary
    assert set(_checks(ran, "other").values()) == {"pass", "skip"}
    require_proven(deep.validate())


@pytest.mark.fault("killed", "SIGKILL as the base is asked what it says of itself")
@pytest.mark.fault("interrupted", "Ctrl-C as the base is asked what it says of itself")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_base_is_asked_when_a_run_is_taken_up_again(
    deep: World, number: signal.Signals
) -> None:
    forget(deep, "watched")
    both = [_only("demo", _COMPLAINS, guest=f"debug-{side}") for side in _SIDES]
    deep.guest("".join(both))
    child = deep.held("debug-base-guests", inside=True)
    if number == signal.SIGKILL:
        deep.kill(child)
    else:
        os.kill(child.pid or 0, number)
        assert "interrupted; what was finished is kept" in deep.end(child).output
    assert deep.processes() == [] and deep.free()
    start = len(deep.guests)
    ran = deep.validate()
    deep.guest(None)
    require_proven(ran)
    # What complains is not kept, unless it is the base.
    assert _booted(deep, start) == ["demo/debug-base", "demo/debug-patched"]
    assert "debug-patched-all" in ran.reused
    require_proven(deep.validate())


@pytest.mark.fault("endless console", "100 MB of it, of a debug kernel")
@pytest.mark.parametrize("ends", [True, False])
def test_a_kernel_that_prints_without_end(deep: World, ends: bool) -> None:
    """With a complaint in the middle of it, where no end of it is."""
    forget(deep, "watched")
    talks = """
if load["name"] == "doze":
    with console.open("a") as file:
        for number in range(100):
            file.write("x" * 99 + "\\n" + "y" * 10**6 + "\\n")
            if number == 50:
                file.write("[    1.000000] WARNING: lost and found\\n")
"""
    deep.guest(_only("demo", talks + ("" if ends else PANIC)))
    deep.prepare.append(little)
    ran = deep.validate()
    deep.guest(None)
    deep.prepare.clear()
    assert ran.exit_code == 1, ran.output
    assert "lost and found" in ran.output
    assert ("out of ideas" in ran.output) != ends
    place = ran.dir / "demo/debug-patched"
    assert (place / "console.log").stat().st_size > 99 * 10**6
    assert (place / "results/console.txt").stat().st_size < 10**7
    for name in ("report.json", "report.html", "junit.xml", "results.ktap"):
        assert (ran.dir / name).stat().st_size < 10**6, name
    assert set(_checks(ran, "other").values()) == {"pass", "skip"}
    shutil.rmtree(ran.dir)
    require_proven(deep.validate())


@pytest.mark.fault("endless console", "100 MB of it, of a debug kernel of the base")
def test_what_a_base_says_among_much_is_known_the_next_time(deep: World) -> None:
    """A base's guest is kept with its complaints, and they count as often as it is."""
    forget(deep, "watched")
    complains = """
if load["name"] == "doze":
    with console.open("a") as file:
        for number in range(100):
            file.write("y" * (10**6 if name.endswith("base") else 9) + "\\n")
            if number == 50:
                file.write("[    1.000000] WARNING: lost and found\\n")
"""
    both = [_only("demo", complains, guest=f"debug-{side}") for side in _SIDES]
    deep.guest("".join(both))
    deep.prepare.append(little)
    require_proven(deep.validate())
    kept = sum(path.stat().st_size for path in deep.cache.glob("watched/*/console.txt"))
    assert kept < 10**7
    start = len(deep.guests)
    again = deep.validate()
    deep.guest(None)
    deep.prepare.clear()
    require_proven(again)
    assert _booted(deep, start) == ["demo/debug-patched"]
    assert "reported by the base: warning: WARNING: lost and found" in str(again.report)
    require_proven(deep.validate())


# -- two runs at once ----------------------------------------------------------------


@pytest.mark.fault("two runs", "both need guests with debug kernels")
def test_of_two_runs_one_takes_the_guests_of_the_other(deep: World) -> None:
    forget(deep, "watched")
    start = len(deep.guests)
    first = deep.held("debug-guests", inside=True)
    second = deep.held("waiting")
    deep.release()
    run, other = deep.end(first), deep.end(second)
    require_proven(run)
    require_proven(other)
    # Once for each guest that was still running when this run came to it.
    lines = [row for row in other.output.splitlines() if "this very guest" in row]
    assert lines
    assert all(f"waiting: process {first.pid} (" in line for line in lines)
    assert _booted(deep, start) == sorted(_GUESTS)


@pytest.mark.fault("two runs", "both need a debug kernel")
def test_of_two_runs_one_takes_the_kernel_of_the_other(deep: World) -> None:
    forget(deep, "kernels", "configs")
    first = deep.held("debug-patched-all", inside=True)
    second = deep.held("waiting")
    deep.release()
    run, other = deep.end(first), deep.end(second)
    require_proven(run)
    require_proven(other)
    assert "debug-patched-all" not in run.reused
    assert "debug-patched-all" in other.reused
    # Between the two kernels whoever waits may come first.
    assert ("kcsan-patched-all" in run.reused) != ("kcsan-patched-all" in other.reused)
