# SPDX-License-Identifier: GPL-2.0-or-later
"""A series of fixes has to fail without its patches, in what it says and only there."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fakeworld import Ran, World
from farms import crowd, verdict, without_results
from faulty import KILLED, PANIC, RUNNING, require_proven, settling
from kstall.pipeline import again
from kstall.series import SeriesError
from test_sharing import KNOWS, OVERHEAD, entry, make, shared, stage
from test_trials import LOSES

SHOWN = """
[[shown]]
check = "dozes"
fails = ["said"]
looks = "it sleeps instead"
"""
#: Another workload, which is not run without the patches.
AWAKE = """
[[workload]]
name = "beta-awake"
program = "workloads/beta/doze"
deadline-s = 5

[[check]]
name = "stays_awake"
kind = "positive"
workloads = ["beta-awake"]
claim = "It stays awake."
"""
#: The same, of a bug of which only the kernel has something to say.
COMPLAINS = SHOWN.replace('fails = ["said"]', 'complaint = "WARNING: .* at nap"')
WARNING = "WARNING: nap.c:7 at nap+0x1/0x2, CPU#0: doze/9"
#: A bug: without the patch of beta, it is something else that is said.
BUG = KNOWS + 'if mine == "beta" and not has["beta"]: '
SLEEPS = '(place / "stdout").write_text("slept")'
CHECK = "fails_without_the_patches"


def fix(world: World, shown: str = SHOWN) -> Path:
    """Have beta be a series of fixes."""
    path = world.project.root / "patches/beta/series.toml"
    text = path.read_text().replace("schema = 1", 'schema = 1\nkind = "fix"', 1)
    path.write_text(text + shown)
    return path


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with settling(make(World(tmp_path / "world", level="quick"))) as sandbox:
        fix(sandbox)
        yield sandbox


def test_what_fails_without_the_patches_is_reported(world: World) -> None:
    world.guest(BUG + SLEEPS)
    ran = world.validate("beta")
    require_proven(ran)
    outcome = entry(ran, "beta")
    (check,) = (check for check in outcome.checks if check.name == CHECK)
    assert check.status == "pass"
    (shown,) = outcome.shown
    assert (shown.check, shown.looks) == ("dozes", "it sleeps instead")
    (comparison,) = shown.comparisons
    assert (comparison.label, comparison.observed, comparison.expected) == (
        "said",
        "slept",
        "dozed\n",
    )
    assert stage(ran, "beta", "without").summary == (
        "1 of 1 checks fail on the base kernel"
    )
    # Neither guest is booted again.
    again = world.validate("beta")
    require_proven(again)
    assert world.guests == ["beta-dozes", "beta-dozes"]
    assert stage(again, "beta", "without").reused


def test_workers_run_only_what_shows_the_bugs(world: World) -> None:
    folder = world.project.root / "patches/beta"
    with (folder / "series.toml").open("a") as spec:
        spec.write(AWAKE)
    with (folder / "checks.py").open("a") as checks:
        checks.write("\n\ndef stays_awake(ev: Evidence) -> Verdict:\n")
        checks.write('    verdict = Verdict()\n    verdict.equal("is", 1, 1)\n')
        checks.write("    return verdict\n")
    world.guest(BUG + SLEEPS)
    with crowd(world, "one") as workers:
        ran = workers.validate("beta")
    require_proven(ran)
    assert stage(ran, "beta", "without").summary == (
        "1 of 1 checks fail on the base kernel"
    )


def test_verdict_with_a_worker_is_that_without(tmp_path: Path) -> None:
    """As tests/test_live_farm.py has it with real kernels."""
    with settling(make(World(tmp_path / "world"))) as world:
        path = fix(world)
        path.write_text(path.read_text().replace(OVERHEAD.format(name="beta"), ""))
        world.guest(BUG + SLEEPS)
        require_proven(world.validate("beta"))
        alone, helped = (
            _from_nothing(world, name, workers)
            for name, workers in (("alone", ()), ("helped", ("one",)))
        )
    assert verdict(alone) == verdict(helped)
    for name in ("compile", "guest", "without"):
        figures = {figure.name for figure in stage(helped, "beta", name).figures}
        assert "work of one" in figures


def _from_nothing(world: World, name: str, workers: tuple[str, ...]) -> Ran:
    """A run that has kernels, and no results."""
    place = without_results(world.cache, world.root / name)
    world.prepare.append(lambda: os.environ.update(KSTALL_CACHE=str(place)))
    with crowd(world, *workers) as helpers:
        ran = world.validate("beta", *(("--on", helpers.address) if workers else ()))
    world.prepare.clear()
    require_proven(ran)
    assert {"base", "config", "build"} <= ran.reused
    assert {"compile", "guest", "without"}.isdisjoint(ran.reused)
    return ran


def test_others_may_build_many_kernels_meanwhile(world: World) -> None:
    words = "import sys, pathlib; from kstall.base import cache\n"
    words += "cache.prune(pathlib.Path(sys.argv[1]), keep=0)"
    argv = [sys.executable, "-c", words, str(world.cache / "kernels")]
    prune = f"import subprocess; subprocess.run({argv}, check=True)"
    world.guest(f"{BUG + SLEEPS}\n{prune}")
    # The base is needed only after the guest with the patches.
    require_proven(world.validate("beta"))
    assert world.guests == ["beta-dozes", "beta-dozes"]


def test_a_workload_s_module_is_there_on_both_kernels(world: World) -> None:
    """Each has its own, and an edit of it boots both guests again."""
    root = world.project.root
    path = root / "patches/beta/series.toml"
    module = root / "scripts/workloads/beta/kstall_sleep.c"
    bring = f'module = "workloads/beta/{module.name}"\nnot-debugged = "it sleeps"\n'
    text = path.read_text().replace("deadline-s", f"{bring}deadline-s", 1)
    path.write_text(text)
    module.write_text("int sleep;\n")
    found = """
    (ko,) = share.glob("modules/lib/modules/*/extra/kstall_sleep.ko")
    with (world / "modules").open("a") as log:
        log.write(" ".join(job["workloads"][0]["modules"]) + "\\n")
    """
    world.guest(f"if True:{found}\n{BUG}{SLEEPS}")
    require_proven(world.validate("beta"))
    assert len(list(world.cache.glob("extra/*/kstall_sleep.ko"))) == 2
    assert (world.root / "modules").read_text() == "kstall_sleep\n" * 2
    require_proven(world.validate("beta"))
    assert len(world.guests) == 2
    module.write_text("int deep;\n")
    require_proven(world.validate("beta"))
    assert len(world.guests) == 4
    path.write_text(text.replace('not-debugged = "it sleeps"\n', ""))
    with pytest.raises(SeriesError, match="debug kernels get no module"):
        world.project.load(["beta"])
    path.write_text(text.replace(module.name, "gone.c"))
    with pytest.raises(SeriesError, match=r"no such file: scripts/.*gone\.c"):
        world.project.load(["beta"])


def test_a_workload_s_module_that_does_not_compile(world: World) -> None:
    path = world.project.root / "patches/beta/series.toml"
    bring = 'module = "workloads/beta/bad.c"\nnot-debugged = "it sleeps"\n'
    text = path.read_text()
    path.write_text(text.replace("deadline-s", f"{bring}deadline-s", 1))
    (world.project.root / "scripts/workloads/beta/bad.c").write_text("int bad = ;\n")
    ran = world.validate()
    assert not world.guests or "beta-dozes" not in world.guests
    found = stage(ran, "beta", "programs")
    assert found.status == "fail"
    assert "does not compile" in (found.error or "")
    assert stage(ran, "alpha", "guest").status == "pass"


def test_in_a_kernel_of_several_the_base_has_none_of_them(world: World) -> None:
    world.guest(BUG + SLEEPS)
    ran = world.validate()
    require_proven(ran)
    assert not entry(ran, "alpha").shown and entry(ran, "beta").shown
    assert len(world.guests) == 4


def test_costs_are_compared_with_a_kernel_that_has_the_fixes(tmp_path: Path) -> None:
    with settling(make(World(tmp_path / "world", at_once=2))) as world:
        path = fix(world)
        path.write_text(path.read_text().replace(OVERHEAD.format(name="beta"), ""))
        world.guest(BUG + SLEEPS)
        ran = world.validate()
        require_proven(ran)
        assert shared(ran)[3:] == ["together", "base", "fixed", "config", "build"]
        told = [ran.stage(name).summary for name in ("base", "fixed", "build")]
        assert [summary.rpartition("with")[2] for summary in told] == [
            "out patches",
            " beta",
            # A fix is applied before the others, whatever its name.
            " beta, alpha, delta",
        ]
        built = {
            image.parent.name: image.read_bytes()
            for image in world.cache.glob("kernels/*/vmlinux")
        }
        assert len(built) == 3
        for name in ("alpha", "delta"):
            costs = entry(ran, name).overhead
            assert costs is not None
            compared = built[costs.base_kernel]
            assert b"beta by its patch" in compared
            assert f"{name} by its patch".encode() not in compared
        again = world.validate()
        assert {"base", "fixed", "build"} <= again.reused


def test_a_check_that_holds_without_the_patches_proves_nothing(world: World) -> None:
    ran = world.validate("beta")
    assert ran.exit_code == 1
    (check,) = (check for check in entry(ran, "beta").checks if check.name == CHECK)
    assert check.status == "fail"
    seen = {
        comparison.label: (comparison.observed, comparison.expected)
        for comparison in check.comparisons
    }
    assert seen["dozes: without the patches"] == ("pass", "fail")
    outcome = again.judge_again(world.project, ran.dir)
    assert outcome.exit_code == 1
    assert [kept for kept in outcome.series[0].checks if kept.name == CHECK] == [check]


def test_something_else_that_fails_is_not_the_bug(world: World) -> None:
    path = world.project.root / "patches/beta/checks.py"
    text = path.read_text().replace(
        "    return verdict", '    verdict.equal("naps", 1, 1)\n    return verdict'
    )
    path.write_text(text)
    toml = world.project.root / "patches/beta/series.toml"
    toml.write_text(toml.read_text().replace('["said"]', '["naps"]'))
    world.guest(BUG + SLEEPS)
    ran = world.validate("beta")
    assert ran.exit_code == 1
    (check,) = (check for check in entry(ran, "beta").checks if check.name == CHECK)
    seen = {
        comparison.label: (comparison.observed, comparison.expected)
        for comparison in check.comparisons
    }
    assert seen["dozes: what fails"] == ("['said']", "['naps']")


def test_a_base_that_panics_is_no_verdict(world: World) -> None:
    lines = PANIC.replace("\n", "\n    ")
    world.guest(KNOWS + f'if mine == "beta" and not has["beta"]:\n    {lines}')
    ran = world.validate("beta")
    assert ran.exit_code == 2
    step = stage(ran, "beta", "without")
    assert step.status == "error"
    assert (step.error or "").startswith("without the patches: ")


#: Of beta's guest without its patch: how many were started until now.
WITHOUT = (
    BUG
    + """
    number = 1 + len(list(world.glob("without-*")))
    (world / f"without-{number}").touch()
"""
)


def until(last: int, what: str) -> str:
    """A guest that does ``what`` without the patches, but for later boots of it."""
    body = what.strip().replace("\n", "\n        ")
    return f"{WITHOUT}    {SLEEPS}\n    if number <= {last}:\n        {body}\n"


@pytest.mark.parametrize("what", [LOSES, RUNNING + KILLED], ids=["loses", "killed"])
def test_a_base_that_could_not_be_judged_is_booted_again(
    world: World, what: str
) -> None:
    world.guest(until(1, what))
    ran = world.validate("beta")
    require_proven(ran)
    assert len(world.guests) == 3
    assert "without the patches: booting it again" in ran.output
    outcome = entry(ran, "beta")
    # Both are reported, apart from those with the patches.
    assert [attempt.number for attempt in outcome.tries] == [1]
    first, second = outcome.base_tries
    assert (first.number, second.number) == (1, 2)
    assert (first.evidence, second.evidence) == (
        "beta/without/results",
        "beta/without-2/results",
    )
    for attempt in outcome.base_tries:
        place = str(attempt.evidence)
        assert (ran.dir / place).is_dir()
        assert place in ran.output
        assert place in (ran.dir / "report.html").read_text()
    if what == LOSES:
        (unjudged,) = first.unjudged
        assert unjudged.check == "dozes"
        assert "ftrace: 9 events lost" in unjudged.cause
        assert first.guest.error is None
    else:
        assert first.unjudged == []
        assert "the guest went away" in (first.guest.error or "")
    assert first.guest.log == "beta/without/guest.log"
    assert second.unjudged == [] and second.guest.status == "pass"
    # The stage is that of the one that was judged.
    (step,) = (step for step in outcome.stages if step.name == "without")
    assert step == second.guest and step.status == "pass"
    assert len(outcome.shown) == 1
    assert sum(check.name == CHECK for check in outcome.checks) == 1


def test_a_base_that_could_not_be_judged_twice_is_no_verdict(world: World) -> None:
    world.guest(until(2, LOSES))
    ran = world.validate("beta")
    assert (ran.exit_code, len(world.guests)) == (2, 3)
    (check,) = (check for check in entry(ran, "beta").checks if check.name == CHECK)
    assert check.status == "error"
    assert "ftrace: 9 events lost; in the first try: could not judge" in check.detail
    assert len(entry(ran, "beta").base_tries) == 2


def test_a_base_that_goes_away_twice_is_reported_twice(world: World) -> None:
    world.guest(until(2, RUNNING + KILLED))
    ran = world.validate("beta")
    assert (ran.exit_code, len(world.guests)) == (2, 3)
    step = stage(ran, "beta", "without")
    assert (step.error or "").count("the guest went away") == 2
    assert "\nin the first try: the guest went away" in (step.error or "")
    assert [attempt.number for attempt in entry(ran, "beta").base_tries] == [1, 2]


def tally(ran: Ran, name: str) -> tuple[int, int, int]:
    """How often a check of beta passed, failed, and was not judged."""
    repeats = entry(ran, "beta").repeats
    assert repeats is not None
    (row,) = (row for row in repeats.tally if row.check == name)
    return row.passed, row.failed, row.unjudged


def test_repeats_boot_the_base_as_often(world: World) -> None:
    world.guest(until(0, "pass"))
    require_proven(world.validate("beta"))
    ran = world.validate("beta", "--repeat", "3")
    require_proven(ran)
    assert len(list(world.root.glob("without-*"))) == 4
    assert world.guests == ["beta-dozes"] * 8
    assert tally(ran, CHECK) == tally(ran, "dozes") == (3, 0, 0)
    outcome = entry(ran, "beta")
    assert sum(check.name == CHECK for check in outcome.checks) == 1
    (shown,) = outcome.shown
    assert [comparison.observed for comparison in shown.comparisons] == ["slept"]
    # Of runs that agree one is kept, with both guests.
    (kept,) = ran.dir.glob("beta/repeat-*")
    assert (kept / "results").is_dir() and (kept / "without/results").is_dir()
    # What was kept before is used again.
    again = world.validate("beta")
    assert stage(again, "beta", "guest").reused
    assert stage(again, "beta", "without").reused


def test_a_bug_that_did_not_show_in_one_of_several_runs(world: World) -> None:
    world.guest(until(0, "pass"))
    require_proven(world.validate("beta"))
    dozes = '(place / "stdout").write_text("dozed\\n")'
    world.guest(until(3, f"if number == 3: {dozes}"))
    ran = world.validate("beta", "--repeat", "3")
    assert ran.exit_code == 1, ran.output
    assert tally(ran, CHECK) == (2, 1, 0)
    assert tally(ran, "dozes") == (3, 0, 0)
    assert [path.name for path in ran.dir.glob("beta/repeat-*")] == ["repeat-002"]
    outcome = entry(ran, "beta")
    (check,) = (check for check in outcome.checks if check.name == CHECK)
    assert check.status == "fail" and not outcome.shown[0].comparisons
    assert outcome.repeats is not None
    assert [run.failed for run in outcome.repeats.runs] == [[], [CHECK], []]
    # Nor is it proven by the guest of before.
    before = len(world.guests)
    assert not stage(world.validate("beta"), "beta", "without").reused
    assert len(world.guests) == before + 2


@pytest.mark.parametrize("what", [LOSES, RUNNING + KILLED], ids=["loses", "killed"])
def test_a_base_that_was_not_judged_in_one_of_several_runs(
    world: World, what: str
) -> None:
    world.guest(until(1, what))
    ran = world.validate("beta", "--repeat", "2")
    assert ran.exit_code == 2, ran.output
    # There is no second try.
    assert len(world.guests) == 4
    assert tally(ran, CHECK) == (1, 0, 1)
    assert tally(ran, "dozes") == (2, 0, 0)


@pytest.mark.parametrize("names", [["beta"], []], ids=["alone", "shared"])
def test_stability_boots_the_base_as_often(world: World, names: list[str]) -> None:
    dozes = '(place / "stdout").write_text("dozed\\n")'
    world.guest(until(2, f"if number == 2: {dozes}"))
    words = ["stability", "--runs", "3", "--load", "0", "--at-once", "1"]
    place = ["--kernel", str(world.kernel), "--out", str(world.out)]
    ran = world.run(*words, *place, *names)
    assert ran.exit_code == 1, ran.output
    assert "beta, load 0: 3 runs: 2 proven, 1 failed" in ran.output
    assert f"  {CHECK}: 2 pass, 1 fail" in ran.output
    assert world.guests.count("beta-dozes") == 6
    # The kernels were built once.
    assert len(list(world.cache.glob("kernels/[!.]*"))) == 2
    if not names:
        assert "alpha, load 0: 3 runs: 3 proven" in ran.output
        assert world.guests.count("alpha-dozes") == 3


def complains(world: World, text: str) -> None:
    """Have beta's guest say ``text`` without its patch, and its check hold there."""
    say = f'file.write("[    1.000000] {text}\\n")'
    base = 'if mine == "beta" and not has["beta"]:\n    '
    world.guest(KNOWS + base + f'with console.open("a") as file: {say}')


def test_a_complaint_is_what_a_bug_may_look_like(tmp_path: Path) -> None:
    with settling(make(World(tmp_path / "world", level="quick"))) as world:
        fix(world, COMPLAINS)
        complains(world, WARNING)
        ran = world.validate("beta")
        require_proven(ran)
        outcome = entry(ran, "beta")
        (shown,) = outcome.shown
        (comparison,) = shown.comparisons
        assert (comparison.observed, comparison.expected) == (WARNING, "none")
        assert stage(ran, "beta", "without").summary == (
            "0 of 1 checks fail on the base kernel, which complains"
        )
        # Neither guest is booted again, and what was said is still known.
        again = world.validate("beta")
        require_proven(again)
        assert world.guests == ["beta-dozes", "beta-dozes"]
        assert entry(again, "beta").shown == outcome.shown
        # What is expected no more is not taken from before.
        path = world.project.root / "patches/beta/series.toml"
        path.write_text(path.read_text().replace("at nap", "at snore"))
        assert world.validate("beta").exit_code == 2


OOPS = """\
[    1.000000] BUG: unable to handle page fault for address: 0000002000000078
[    1.000100] RIP: 0010:nap+0x6b/0x210
[    1.000200] Kernel panic - not syncing: Fatal exception
"""


def ends(world: World, text: str) -> None:
    """Have beta's guest end with ``text`` without its patch."""
    say = f"file.write({text!r})"
    world.guest(
        KNOWS + 'if mine == "beta" and not has["beta"]:\n    '
        f'with console.open("a") as file: {say}\n    sys.exit()'
    )


def test_a_bug_may_end_the_kernel(tmp_path: Path) -> None:
    with settling(make(World(tmp_path / "world", level="quick"))) as world:
        fix(world, COMPLAINS.replace("WARNING: .* at nap", "RIP: .*:nap"))
        ends(world, OOPS)
        ran = world.validate("beta")
        require_proven(ran)
        (shown,) = entry(ran, "beta").shown
        (comparison,) = shown.comparisons
        assert comparison.observed == OOPS.splitlines()[0].partition("] ")[2]
        assert stage(ran, "beta", "without").summary == (
            "the base kernel ends early, and complains"
        )
        assert not stage(ran, "beta", "without").reused
        again = world.validate("beta")
        require_proven(again)
        assert stage(again, "beta", "without").reused
        assert entry(again, "beta").shown == entry(ran, "beta").shown
        # Another end is not that of the bug, and ends what was kept.
        ends(world, OOPS.replace("nap", "snore"))
        ran = world.validate("--again", "beta")
        assert ran.exit_code == 2
        assert world.validate("beta").exit_code == 2
        ends(world, OOPS.replace("[    1.000200]", f"[    1.000150] {WARNING}\n[1.0]"))
        assert world.validate("--again", "beta").exit_code == 2


def test_what_would_fail_cannot_be_seen_in_a_kernel_that_ended(tmp_path: Path) -> None:
    with settling(make(World(tmp_path / "world", level="quick"))) as world:
        fix(world, SHOWN + 'complaint = "RIP: .*:nap"\n')
        ends(world, OOPS)
        ran = world.validate("beta")
        assert ran.exit_code == 2
        (check,) = (check for check in entry(ran, "beta").checks if check.name == CHECK)
        assert check.status == "error" and "the kernel ended" in check.detail
        # It is booted again, as nothing was shown.
        assert not stage(world.validate("beta"), "beta", "without").reused


def test_an_end_that_no_longer_shows_all_is_not_used_again(tmp_path: Path) -> None:
    with settling(make(World(tmp_path / "world", level="quick"))) as world:
        text = COMPLAINS.replace("WARNING: .* at nap", "RIP: .*:nap")
        path = fix(world, text)
        ends(world, OOPS)
        require_proven(world.validate("beta"))
        path.write_text(
            path.read_text().replace(text, SHOWN + "complaint = 'RIP: .*:nap'\n")
        )
        ran = world.validate("beta")
        assert ran.exit_code == 2
        assert not stage(ran, "beta", "without").reused


def test_a_complaint_that_does_not_come_proves_nothing(tmp_path: Path) -> None:
    with settling(make(World(tmp_path / "world", level="quick"))) as world:
        fix(world, COMPLAINS)
        ran = world.validate("beta")
        assert ran.exit_code == 1
        (check,) = (check for check in entry(ran, "beta").checks if check.name == CHECK)
        assert check.status == "fail"
        (wrong,) = (comparison for comparison in check.comparisons if not comparison.ok)
        assert wrong.label == "dozes: the kernel complains"


@pytest.mark.parametrize(
    "text",
    [
        "WARNING: nap.c:7 at snore+0x1/0x2, CPU#0: doze/9",
        "Kernel panic - not syncing: at nap",
        "** 7 printk messages dropped **",
    ],
)
def test_another_complaint_is_not_the_bug(tmp_path: Path, text: str) -> None:
    with settling(make(World(tmp_path / "world", level="quick"))) as world:
        fix(world, COMPLAINS.replace(" at nap", " at nap|messages dropped"))
        complains(world, text)
        ran = world.validate("beta")
        assert ran.exit_code == 2
        step = stage(ran, "beta", "without")
        assert text.removeprefix("Kernel panic - ") in (step.error or "")


def test_a_complaint_with_the_patches_is_a_failure(tmp_path: Path) -> None:
    with settling(make(World(tmp_path / "world", level="quick"))) as world:
        fix(world, COMPLAINS)
        complains(world, WARNING)
        path = world.root / "guest-fault.py"
        path.write_text(path.read_text().replace(' and not has["beta"]', ""))
        ran = world.validate("beta")
        assert ran.exit_code == 1
        assert WARNING in (stage(ran, "beta", "guest").error or "")


@pytest.mark.parametrize(
    ("shown", "what"),
    [
        ("", r"a fix, but no \[\[shown\]\]"),
        (SHOWN.replace('"dozes"', '"naps"'), r"no \[\[check\]\] called naps"),
        (SHOWN + SHOWN, "dozes is shown twice"),
        (SHOWN.replace('["said"]', "[]"), "neither fails nor complaint"),
        (COMPLAINS.replace("WARNING: .* at nap", "(WARNING)?"), "any complaint"),
        (COMPLAINS.replace("WARNING: .* at nap", "("), "no regular expression"),
    ],
)
def test_bad_metadata(tmp_path: Path, shown: str, what: str) -> None:
    world = make(World(tmp_path / "world", level="quick"))
    fix(world, shown)
    with pytest.raises(SeriesError, match=what):
        world.project.load(["beta"])


def test_only_fixes_show_anything(tmp_path: Path) -> None:
    world = make(World(tmp_path / "world", level="quick"))
    path = fix(world)
    path.write_text(path.read_text().replace('kind = "fix"', ""))
    with pytest.raises(SeriesError, match="only of a series of fixes"):
        world.project.load(["beta"])
