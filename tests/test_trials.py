# SPDX-License-Identifier: GPL-2.0-or-later
"""Guests that are booted once, once more, or many times, and what is said of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fakeworld import Ran, World
from faulty import (
    HANGS,
    KILLED,
    PANIC,
    RUNNING,
    impatient,
    require_proven,
    settled,
    settling,
)
from kstall import cli
from kstall.base import KstallError, process
from kstall.build import kernel
from kstall.guest import guestrun
from kstall.pipeline import again
from kstall.report import SeriesReport, report
from kstall.verdict import Check

#: Of a guest's fault: how many guests of the series were started until now.
COUNT = "number = (world / 'guests').read_text().split().count('doze')\n"
LOSES = """
error = {"kind": "lost-events", "fault": "apparatus"}
error["message"] = "ftrace: 9 events lost"
agent["workloads"][-1].update(status="tracer-failed", error=error, errors=[error])
"""
SAYS = '(place / "stdout").write_text("snored\\\\n")\n'


def _if(condition: str, what: str) -> str:
    body = "".join(f"    {line}\n" for line in what.strip().splitlines())
    return f"{COUNT}if name == 'doze' and {condition}:\n{body}"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> World:
    sandbox = World(tmp_path_factory.mktemp("built") / "world", level="quick")
    require_proven(sandbox.validate())
    return sandbox


@pytest.fixture
def world(built: World) -> Iterator[World]:
    """A world in which everything is built, and no guest was run."""
    with settling(built):
        _forget(built)
        yield built
        if (built.root / "guest-fault.py").exists():
            built.guest(None)
        settled(built)


def _forget(world: World) -> None:
    (world.root / "guests").write_text("")
    for place in world.cache.glob("evidence/*"):
        place.rename(world.root / f"old-{place.name}-{len(list(world.root.iterdir()))}")


def _series(ran: Ran) -> SeriesReport:
    assert ran.report is not None, ran.output
    return ran.report.series[0]


def _states(ran: Ran) -> dict[str, str]:
    return {
        check.name: check.status
        for check in _series(ran).checks
        if check.kind != "patch"
    }


def _kept(world: World) -> list[Path]:
    return list(world.cache.glob("evidence/*/agent.json"))


def test_what_could_not_be_judged_is_tried_once_more(world: World) -> None:
    world.guest(_if("number == 1", LOSES))
    ran = world.validate()
    require_proven(ran)
    assert world.guests.count("doze") == 2
    series = _series(ran)
    assert [attempt.number for attempt in series.tries] == [1, 2]
    first, second = series.tries
    cause = "could not judge: workload doze: ftrace: 9 events lost"
    assert {unjudged.cause.partition("; ")[0] for unjudged in first.unjudged} == {cause}
    assert "dozes" in {unjudged.check for unjudged in first.unjudged}
    assert (first.evidence, second.evidence) == ("demo/results", "demo/try-2/results")
    assert series.evidence == second.evidence and second.unjudged == []
    for attempt in series.tries:
        assert (ran.dir / str(attempt.evidence) / "agent.json").exists()
    assert [stage.name for stage in series.stages].count("guest") == 1
    assert "booting this guest once more" in ran.output
    # The second is kept, the first is not.
    (kept,) = _kept(world)
    assert "lost-events" not in kept.read_text()


def test_twice_is_enough(world: World) -> None:
    world.guest(_if("True", LOSES))
    ran = world.validate()
    assert (ran.exit_code, world.guests.count("doze")) == (2, 2)
    assert _states(ran) == {"booted_kernel": "error", "dozes": "error"}
    (check,) = [check for check in _series(ran).checks if check.name == "dozes"]
    assert check.tainted
    assert "ftrace: 9 events lost; in the first try: could not judge" in check.detail
    assert _kept(world) == [], "what was not judged is nothing to judge by"
    # The comparison holds, and is no pass all the same.
    assert [comparison.ok for comparison in check.comparisons] == [True]
    # The next run starts from nothing.
    world.guest(None)
    require_proven(world.validate())
    assert world.guests.count("doze") == 3


def test_what_failed_is_not_tried_again(world: World) -> None:
    world.guest(_if("load['name'] == 'doze'", SAYS))
    ran = world.validate()
    assert (ran.exit_code, world.guests.count("doze")) == (1, 1)
    assert _states(ran) == {"booted_kernel": "pass", "dozes": "fail"}
    assert [attempt.number for attempt in _series(ran).tries] == [1]
    # Nor with the help of the apparatus: what another workload shows stays shown.
    _forget(world)
    fails = "load['name'] == 'selftest'"
    exits = 'agent["workloads"][-1].update(exit_status=3)'
    world.guest(_if("load['name'] == 'doze'", LOSES) + _if(fails, exits))
    ran = world.validate()
    assert (ran.exit_code, world.guests.count("doze")) == (1, 1)
    assert _states(ran) == {"booted_kernel": "fail", "dozes": "error"}


def test_a_panic_is_not_tried_again(world: World) -> None:
    world.guest(RUNNING + PANIC)
    ran = world.validate()
    assert (ran.exit_code, world.guests.count("doze")) == (1, 1)
    assert ran.stage("guest").status == "fail"


def test_a_guest_that_goes_away_is_tried_once_more(world: World) -> None:
    world.guest(_if("number == 1", RUNNING + KILLED))
    ran = world.validate()
    require_proven(ran)
    first, _ = _series(ran).tries
    assert first.guest.status == "error" and first.unjudged == []
    assert "the guest went away" in (first.guest.error or "")
    assert ran.stage("guest").status == "pass"


def test_a_guest_that_hangs_in_silence_is_reported_twice(world: World) -> None:
    """A deadline says nothing of the kernel, but that it never ended is not hidden."""
    world.guest(RUNNING + HANGS)
    world.prepare.append(impatient)
    ran = world.validate()
    world.prepare.clear()
    assert (ran.exit_code, world.guests.count("doze")) == (2, 2)
    stage = ran.stage("guest")
    assert stage.status == "error"
    causes = (stage.error or "").split("in the first try: ")
    assert len(causes) == 2
    for text in causes:
        assert "the guest did not end in workload doze in the 70 s" in text
        assert "its kernel did not say why" in text and "console.log" in text
    assert _series(ran).status == "error"


@pytest.mark.parametrize(
    ("report", "code", "says"),
    [
        ("WARNING: possible recursive locking detected", 1, "the guest hung"),
        # By the clock; of the time that these guests have nobody keeps account.
        ("INFO: task doze:7 blocked for more than 61 seconds.", 2, "does not tell"),
    ],
)
def test_a_guest_that_hangs_with_a_report(
    world: World, report: str, code: int, says: str
) -> None:
    line = f"[    1.000000] {report}\\n"
    write = f'with console.open("a") as file: file.write("{line}")\n'
    world.guest(RUNNING + write + HANGS)
    world.prepare.append(impatient)
    ran = world.validate()
    world.prepare.clear()
    assert (ran.exit_code, world.guests.count("doze")) == (code, code)
    error = ran.stage("guest").error or ""
    assert report in error and says in error


def test_again_boots_what_was_kept(world: World) -> None:
    require_proven(world.validate())
    ran = world.validate()
    assert ran.stage("guest").reused and world.guests.count("doze") == 1
    ran = world.validate("--again")
    require_proven(ran)
    assert not ran.stage("guest").reused and world.guests.count("doze") == 2
    assert ran.stage("build").reused


def test_a_verdict_is_used_again_for_the_same_evidence_and_checks(world: World) -> None:
    require_proven(world.validate())
    first = world.validate()
    require_proven(first)
    assert {"guest", "judge"} <= first.reused
    # A stricter check judges the same guest anew, each time as it fails.
    checks = world.project.patches / "demo/checks.py"
    genuine = checks.read_text()
    checks.write_text(genuine.replace('"dozed', '"snored'))
    assert checks.read_text() != genuine
    try:
        for _ in range(2):
            ran = world.validate()
            assert ran.exit_code == 1 and _states(ran)["dozes"] == "fail"
            assert "guest" in ran.reused and "judge" not in ran.reused
    finally:
        checks.write_text(genuine)
    ran = world.validate()
    require_proven(ran)
    assert "judge" in ran.reused
    assert _series(ran).checks == _series(first).checks
    assert _series(ran).events == _series(first).events
    # What was damaged is not believed.
    for entry in world.cache.glob("judgements/*"):
        entry.write_text("{}")
    ran = world.validate()
    require_proven(ran)
    assert "judge" not in ran.reused
    assert world.guests.count("doze") == 1


def test_a_failure_of_an_earlier_guest_says_so(world: World) -> None:
    world.guest(_if("load['name'] == 'doze'", SAYS))
    assert world.validate().exit_code == 1
    world.guest(None)
    ran = world.validate()
    assert (ran.exit_code, world.guests.count("doze")) == (1, 1)
    assert "this guest ran earlier, the same command with `--again`" in ran.output
    require_proven(world.validate("--again"))
    ran = world.validate()
    require_proven(ran)
    assert ran.stage("guest").reused and "ran earlier" not in ran.output


def _tally(ran: Ran) -> dict[str, tuple[int, int, int]]:
    repeats = _series(ran).repeats
    assert repeats is not None
    return {row.check: (row.passed, row.failed, row.unjudged) for row in repeats.tally}


def test_repeats_that_agree(world: World) -> None:
    ran = world.validate("--repeat", "3")
    require_proven(ran)
    assert world.guests.count("doze") == 3
    assert _tally(ran) == dict.fromkeys(("guest", "booted_kernel", "dozes"), (3, 0, 0))
    # One is enough to look at, and none is used for a verdict of one.
    assert len(list(ran.dir.glob("demo/repeat-*"))) == 1
    assert (ran.dir / str(_series(ran).evidence) / "agent.json").exists()
    assert _kept(world) == []
    assert "3 runs: 3 proven" in ran.output


def test_repeats_that_differ(world: World) -> None:
    """One that failed, one that went away, one that lost events, and two good ones."""
    world.guest(
        _if("number == 2 and load['name'] == 'doze'", SAYS)
        + _if("number == 3", RUNNING + KILLED)
        + _if("number == 4", LOSES)
    )
    ran = world.validate("--repeat", "5")
    assert (ran.exit_code, world.guests.count("doze")) == (1, 5), ran.output
    assert _tally(ran) == {
        "guest": (4, 0, 1),
        "booted_kernel": (3, 0, 2),
        "dozes": (2, 1, 2),
    }
    repeats = _series(ran).repeats
    assert repeats is not None
    odd = [run.number for run in repeats.runs if run.odd]
    assert odd == [2, 3, 4]
    kept = sorted(path.name for path in ran.dir.glob("demo/repeat-*"))
    assert kept == ["repeat-002", "repeat-003", "repeat-004"]
    assert _series(ran).evidence == "demo/repeat-002/results"
    assert _states(ran) == {"booted_kernel": "error", "dozes": "fail"}
    assert repeats.runs[1].failed == ["dozes"]
    assert "the guest went away" in (repeats.runs[2].error or "")
    rows = [line.split() for line in ran.output.splitlines()]
    assert ["dozes", "2", "1", "2", "0"] in rows
    assert "5 runs: 2 proven, 1 failed, 2 could not be judged" in ran.output


def test_repeats_of_which_one_was_not_judged(world: World) -> None:
    world.guest(_if("number == 2", LOSES))
    ran = world.validate("--repeat", "3")
    assert (ran.exit_code, world.guests.count("doze")) == (2, 3)
    assert _tally(ran)["dozes"] == (2, 0, 1)
    assert _states(ran) == {"booted_kernel": "error", "dozes": "error"}
    assert ran.stage("guest").status == "pass"


def test_repeats_of_which_one_panics(world: World) -> None:
    world.guest(_if("number == 1", RUNNING + PANIC))
    ran = world.validate("--repeat", "2")
    assert (ran.exit_code, world.guests.count("doze")) == (1, 2)
    assert _tally(ran) == {
        "guest": (1, 1, 0),
        "booted_kernel": (1, 0, 1),
        "dozes": (1, 0, 1),
    }
    assert ran.stage("guest").status == "fail"
    assert "run 1: the guest panicked" in (ran.stage("guest").error or "")


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (("--again",), _if("number == 2", RUNNING + PANIC)),
        (("--repeat", "2"), _if("number == 3", RUNNING + PANIC)),
        (("--repeat", "2"), _if("number == 2", SAYS)),
    ],
)
def test_what_failed_is_not_proven_by_a_guest_of_before(
    world: World, words: tuple[str, ...], fault: str
) -> None:
    require_proven(world.validate())
    world.guest(fault)
    assert world.validate(*words).exit_code == 1
    world.guest(None)
    before = world.guests.count("doze")
    require_proven(world.validate())
    assert world.guests.count("doze") == before + 1


def _no_second() -> None:
    boot = guestrun._boot
    count = iter(range(1, 9))

    def once(*words: Any) -> Any:
        if next(count) == 2:
            raise KstallError("QEMU did not start")
        return boot(*words)

    vars(guestrun).update(_boot=once)


def test_a_failure_is_reported_though_a_later_guest_cannot_be_tried(
    world: World,
) -> None:
    world.guest(_if("number == 1", SAYS))
    world.prepare.append(_no_second)
    ran = world.validate("--repeat", "3")
    world.prepare.clear()
    assert ran.exit_code == 1, ran.output
    assert _states(ran)["dozes"] == "fail"
    repeats = _series(ran).repeats
    assert repeats is not None
    assert [run.status for run in repeats.runs] == ["fail", "error"]
    assert "QEMU did not start" in (ran.stage("guest").error or "")


@pytest.mark.parametrize("status", ["running", "interrupted", "could-not-run"])
def test_a_run_that_was_cut_short_is_not_judged_to_be_proven(
    world: World, status: report.RunStatus
) -> None:
    ran = world.validate()
    require_proven(ran)
    assert ran.report is not None
    ran.report.status = status
    for series in ran.report.series:
        series.status = "error"
    report.write(ran.report, ran.dir / "report.json")
    assert again.judge_again(world.project, ran.dir).exit_code == 2
    # Nor is it for CI to go on, if another series does not apply.
    other = ran.report.series[0].model_copy(deep=True)
    other.name, other.evidence, other.checks = "other", None, []
    other.stages = [report.Stage(name="apply", status="does-not-apply", seconds=0)]
    ran.report.series.append(other)
    report.write(ran.report, ran.dir / "report.json")
    assert again.judge_again(world.project, ran.dir).exit_code == 2


def test_a_run_that_stopped_while_it_judged_is_not_judged_to_be_proven(
    world: World,
) -> None:
    ran = world.validate()
    require_proven(ran)
    assert ran.report is not None
    # As if it could not read the results, and thus never did what comes after that.
    stages = ran.report.series[0].stages
    (judged,) = (stage for stage in stages if stage.name == "judge")
    judged.status, judged.error = "error", "it cannot be read"
    del stages[stages.index(judged) + 1 :]
    ran.report.settle()
    report.write(ran.report, ran.dir / "report.json")
    assert again.judge_again(world.project, ran.dir).exit_code == 2


def test_a_check_that_is_no_longer_declared_is_not_judged_again(world: World) -> None:
    ran = world.validate()
    folder = world.project.patches / "demo"
    files = [folder / "series.toml", folder / "checks.py"]
    genuine = {path: path.read_text() for path in files}
    try:
        for path, text in genuine.items():
            path.write_text(text.replace("dozes", "naps"))
        (series,) = again.judge_again(world.project, ran.dir).series
    finally:
        for path, text in genuine.items():
            path.write_text(text)
    names = [check.name for check in series.checks]
    assert "naps" in names and "dozes" not in names
    assert len(names) == len(_series(ran).checks)


def test_a_tree_that_does_not_build_is_not_the_patches_fault(tmp_path: Path) -> None:
    """In a file that they do not touch, nor anything that it could include."""
    broken = "int other(void)\n{\n\treturn nothing;\n}\n"
    for level in ("quick", "full"):
        with settling(World(tmp_path / level, level=level)) as world:
            away = world.kernel / "away"
            away.mkdir()
            makefile = world.kernel / "Makefile"
            makefile.write_text(
                makefile.read_text()
                .replace("$(O)/other.o\n", "$(O)/other.o $(O)/far.o\n")
                .replace(
                    "allnoconfig randconfig:",
                    "$(O)/far.o: $(S)away/far.c\n\t@$(CC) -c -fPIC -o $@ $<\n"
                    "allnoconfig randconfig:",
                )
            )
            (away / "far.c").write_text(broken)
            ran = world.validate()
            assert ran.exit_code == 2, ran.output
            stage = ran.stage("build" if level == "quick" else "base")
            assert stage.status == "error"
            assert "far.c:3" in (stage.error or "")
            assert "without any patch" in ran.output


def test_a_compiler_that_is_killed_refuses_nothing() -> None:
    def failed(output: str) -> bool:
        return kernel.refused(process.CommandError(("gcc",), 1, output))

    assert failed("x.c:3:1: error: 'half' undeclared")
    assert failed("ld: x.o: undefined reference to `half'")
    assert failed("ld: x.o: multiple definition of `twice'; y.o: first defined here")
    assert not failed("gcc: fatal error: Killed signal terminated program cc1")
    assert not failed("/usr/bin/ld: cannot find -lnuma: No such file or directory")
    assert not failed("cc1: out of memory allocating 65536 bytes")


@pytest.mark.parametrize("count", ["0", "-1", "many"])
def test_a_number_of_runs_is_one(
    count: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        cli.main(["validate", "--repeat", count])
    assert "--repeat" in capsys.readouterr().err


def test_an_odd_run_is_one_unlike_most() -> None:
    from kstall.pipeline import trials

    def check(status: str) -> Check:
        return Check(
            name="c",
            kind="positive",
            claim="",
            status=status,
        )

    runs = [
        (report.Repeat(number=n, status="pass"), [check(status)])
        for n, status in enumerate(("pass", "skip", "pass"), 1)
    ]
    trials._mark_odd(runs)
    assert [ran.odd for ran, _ in runs] == [False, True, False]
