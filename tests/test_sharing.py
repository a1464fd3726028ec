# SPDX-License-Identifier: GPL-2.0-or-later
"""Several series in one kernel, and what becomes of the others if one is in the way."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fakeworld import KERNEL, MAKEFILE, Ran, World, write
from faulty import PANIC, forget, require_proven, settling
from kstall.evidence import Evidence, falsify, mutate, operators
from kstall.pipeline import sharing
from kstall.report import SeriesReport, Stage
from kstall.verdict import Check, Verdict
from test_trials import LOSES

NAMES = ("alpha", "beta", "delta")
SOURCE = """\
const char {name}_is[] = "{name} of the base";
int {name}(void)
{{
	return 1;
}}
"""
PATCH = """\
From 0000000000000000000000000000000000000000 Mon Sep 17 00:00:00 2001
From: kstall <noreply@kstall.invalid>
Date: Thu, 1 Jan 2026 00:00:00 +0000
Subject: [PATCH] {name}: Say something else

Nobody asked for one.

Assisted-by: LLM
---
 {file} | 2 +-
 1 file changed, 1 insertion(+), 1 deletion(-)

diff --git a/{file} b/{file}
--- a/{file}
+++ b/{file}
@@ -{line},{lines} +{line},{lines} @@
{hunk}
--
2.39.5

"""
TOML = """\
schema = 1
title = "{name}: Say something else"
patches = ["0001-{name}.patch"]
cover = "cover.txt"
kconfig = "{name}.config"

[subsystem]
name = "DEMO"
prefix = "{name}"
tree = "https://example.org/demo.git"
branch = "next"
list = "demo@lists.example.org"

[[workload]]
name = "{name}-dozes"
program = "workloads/{name}/doze"
deadline-s = 5

[[check]]
name = "dozes"
kind = "positive"
workloads = ["{name}-dozes"]
claim = "It dozes."
"""
CHECKS = """\
from kstall.evidence import Evidence, Verdict


def dozes(ev: Evidence) -> Verdict:
    verdict = Verdict()
    verdict.equal("said", ev.workload("{name}-dozes").stdout, "dozed\\n")
    return verdict
"""
OVERHEAD = """
[overhead]
[[overhead.workload]]
name = "nap-{name}"
program = "workloads/{name}/nap"
operation = "nap"
"""
#: What a guest knows of the kernel that it boots.
KNOWS = """
kernel = pathlib.Path(sys.argv[sys.argv.index("--run") + 1]).read_bytes()
has = {one: b"%s by its patch" % one.encode() in kernel for one in ("alpha", "beta",
    "delta")}
mine = job["series"]
"""


def patch(name: str, new: str, *, line: int = 1, file: str = "") -> str:
    """A patch that changes a line of the file of ``name``, or of another one."""
    file = file or f"{name}.c"
    lines = SOURCE.format(name=file.removesuffix(".c")).splitlines()
    hunk = [f" {line}" for line in lines]
    hunk[line - 1 : line] = [f"-{lines[line - 1]}", f"+{new}"]
    text = "\n".join(hunk)
    return PATCH.format(name=name, file=file, line=1, lines=len(lines), hunk=text)


def give(world: World, name: str, text: str) -> None:
    """Have the series ``name`` be this one patch."""
    path = f"patches/{name}/0001-{name}.patch"
    write(world.root / "project", {path: text})


def says(name: str) -> str:
    return f'const char {name}_is[] = "{name} by its patch";'


def make(world: World) -> World:
    """A world with three series, each with a file of its own."""
    objects = " ".join(f"$(O)/{name}.o" for name in NAMES)
    write(
        world.kernel,
        {
            "Makefile": MAKEFILE.replace("$(O)/demo.o $(O)/other.o", objects),
            "Kbuild": "obj-y += alpha.o beta.o delta.o\n",
            **{f"{name}.c": SOURCE.format(name=name) for name in NAMES},
        },
    )
    for name in set(KERNEL) & {"demo.c", "other.c"}:
        (world.kernel / name).unlink()
    for folder in ("patches/demo", "patches/other"):
        shutil.rmtree(world.project.root / folder, ignore_errors=True)
    for name in NAMES:
        toml = TOML.format(name=name)
        if world.level != "quick":
            toml += OVERHEAD.format(name=name)
        files = {
            f"patches/{name}/series.toml": toml,
            f"patches/{name}/cover.txt": "Something else is said.\n",
            f"patches/{name}/checks.py": CHECKS.format(name=name),
            f"kconfigs/{name}.config": f"CONFIG_{name.upper()}=y\n",
            f"scripts/workloads/{name}/doze": "#!/bin/sh\necho dozed\n",
            f"scripts/workloads/{name}/nap": "#!/bin/sh\n",
        }
        write(world.project.root, files)
        give(world, name, patch(name, says(name)))
    return world


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with settling(make(World(tmp_path / "world", level="quick", at_once=2))) as sandbox:
        yield sandbox


def entry(ran: Ran, name: str) -> SeriesReport:
    assert ran.report is not None, ran.output
    return next(series for series in ran.report.series if series.name == name)


def stage(ran: Ran, name: str, which: str) -> Stage:
    return next(step for step in entry(ran, name).stages if step.name == which)


def statuses(ran: Ran) -> dict[str, str]:
    assert ran.report is not None, ran.output
    return {series.name: series.status for series in ran.report.series}


def shared(ran: Ran) -> list[str]:
    """The stages of the run itself."""
    assert ran.report is not None, ran.output
    return [step.name for step in ran.report.stages]


def kernels(world: World) -> int:
    """How many kernels were built, whatever became of them."""
    return len(list((world.cache / "kernels").glob("[!.]*")))


def proven(*failing: str) -> dict[str, str]:
    return {name: "fail" if name in failing else "pass" for name in NAMES}


def test_all_series_share_one_kernel(world: World) -> None:
    ran = world.validate()
    require_proven(ran)
    assert kernels(world) == 1
    assert len({entry(ran, name).kernel for name in NAMES}) == 1
    assert sorted(world.guests) == [f"{name}-dozes" for name in NAMES]
    assert ran.stage("together").summary == "3 series in one kernel"
    assert shared(ran)[3:] == ["together", "config", "build"]
    assert "alpha, beta, delta" in ran.stage("build").summary
    again = world.validate()
    require_proven(again)
    assert kernels(world) == 1 and len(world.guests) == 3
    assert {"config", "build", "guest"} <= again.reused


def test_one_series_has_a_kernel_of_its_own(world: World) -> None:
    ran = world.validate("beta")
    require_proven(ran)
    assert "together" not in shared(ran)
    assert [step.name for step in entry(ran, "beta").stages][3:5] == ["config", "build"]
    (config,) = world.cache.glob("kernels/*/config")
    assert "ALPHA" not in config.read_text() and "BETA" in config.read_text()


def test_the_order_in_which_series_are_named_makes_no_other_kernel(
    world: World,
) -> None:
    require_proven(world.validate(*NAMES))
    require_proven(world.validate(*reversed(NAMES)))
    assert kernels(world) == 1 and len(world.guests) == 3


def test_costs_are_those_of_one_base_and_one_patched_kernel(tmp_path: Path) -> None:
    with settling(make(World(tmp_path / "world", at_once=2))) as world:
        ran = world.validate()
        require_proven(ran)
        assert kernels(world) == 2
        bases = {entry(ran, name).overhead.base_kernel for name in NAMES}  # type: ignore[union-attr]
        assert len(bases) == 1
        assert shared(ran)[3:] == ["together", "base", "config", "build"]


def one_processor() -> None:
    """This process and what it starts have no other; nobody else has one less."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


#: A guest that ends in an error where another one runs.
ONE_AT_A_TIME = """
(world / "running").mkdir()
time.sleep(0.1)
(world / "running").rmdir()
"""


@pytest.mark.parametrize("level", ["quick", "full"])
def test_a_host_with_one_processor_proves_the_same(tmp_path: Path, level: str) -> None:
    sandbox = make(World(tmp_path / "world", level=level, at_once=None))
    with settling(sandbox) as world:
        world.prepare.append(one_processor)
        world.guest(ONE_AT_A_TIME)
        # Several guests, and a guest and its counts, could run at once elsewhere.
        for names in (NAMES, NAMES[:1]):
            ran = world.validate(*names, "--again")
            require_proven(ran)
            assert ran.report is not None and ran.report.environment.cpus == 1
            assert [entry(ran, name).status for name in names] == ["pass"] * len(names)


# -- what does not go together --------------------------------------------------------


def test_one_that_does_not_apply_beside_another_is_proven_alone(world: World) -> None:
    other = 'const char beta_is[] = "delta by its patch";'
    give(world, "delta", patch("delta", other, file="beta.c"))
    ran = world.validate()
    require_proven(ran)
    assert kernels(world) == 2
    beside = stage(ran, "delta", "beside")
    assert beside.status == "skip"
    assert beside.summary == "does not apply beside beta: on a kernel of its own"
    assert "delta does not apply beside beta" in ran.stage("together").summary
    assert entry(ran, "alpha").kernel == entry(ran, "beta").kernel
    assert entry(ran, "delta").kernel != entry(ran, "beta").kernel


def test_one_that_stands_apart_shares_a_base_that_has_what_it_asks_for(
    tmp_path: Path,
) -> None:
    """A base for one series would be a kernel more to build, and the same code."""
    with settling(make(World(tmp_path / "world", at_once=2))) as world:
        other = 'const char beta_is[] = "delta by its patch";'
        give(world, "delta", patch("delta", other, file="beta.c"))
        write(world.root / "project", {"kconfigs/delta.config": "CONFIG_BETA=y\n"})
        ran = world.validate()
        require_proven(ran)
        assert kernels(world) == 3
        bases = {entry(ran, name).overhead.base_kernel for name in NAMES}  # type: ignore[union-attr]
        assert len(bases) == 1
        assert entry(ran, "delta").kernel != entry(ran, "beta").kernel
        write(world.root / "project", {"kconfigs/delta.config": "CONFIG_DELTA=y\n"})
        asks_more = world.validate()
        require_proven(asks_more)
        assert kernels(world) == 5, "a base and a patched one of its own"


def test_those_that_stand_apart_are_all_built_before_their_guests_run(
    world: World,
) -> None:
    """So that their guests can run at the same time."""
    toml = world.project.patches / "delta/series.toml"
    conflicts = "".join(
        f'[[conflict]]\nseries = "{name}"\nbecause = "so"\n\n'
        for name in ("alpha", "beta")
    )
    toml.write_text(
        toml.read_text().replace("[[workload]]", conflicts + "[[workload]]")
    )
    other = 'const char beta_is[] = "alpha by its patch";'
    give(world, "alpha", patch("alpha", other, file="beta.c"))
    ran = world.validate()
    require_proven(ran)
    assert len({entry(ran, name).kernel for name in NAMES}) == 3
    lines = ran.output.splitlines()
    at = {
        (name, which): next(
            number
            for number, line in enumerate(lines)
            if line.startswith("ok") and f" {name}: {which} " in line
        )
        for name in NAMES
        for which in ("build", "guest")
    }
    assert max(at[name, "build"] for name in NAMES) < min(
        at[name, "guest"] for name in NAMES
    )
    # One that does not build is no matter for the others.
    give(world, "delta", patch("delta", "what is this?"))
    ran = world.validate()
    assert statuses(ran) == proven("delta")


def test_one_that_does_not_apply_at_all_is_no_matter_for_the_others(
    world: World,
) -> None:
    give(world, "beta", patch("beta", says("beta")).replace("of the base", "of old"))
    ran = world.validate()
    assert ran.exit_code == 3
    assert statuses(ran) == {**proven(), "beta": "does-not-apply"}
    assert kernels(world) == 1


def test_one_that_breaks_the_build_is_found_and_the_others_are_proven(
    world: World,
) -> None:
    give(world, "beta", patch("beta", "what is this?"))
    ran = world.validate()
    assert statuses(ran) == proven("beta")
    assert ran.exit_code == 1
    assert stage(ran, "beta", "beside").summary == (
        "does not build: on a kernel of its own"
    )
    assert stage(ran, "beta", "build").status == "fail"
    assert "beta.c" in (stage(ran, "beta", "build").error or "")
    assert entry(ran, "alpha").kernel == entry(ran, "delta").kernel is not None
    # The compiler names its file, so that nobody else is left out to try.
    tries = [name for name in shared(ran) if name.endswith("-build")]
    assert tries == ["attempt-1-build", "attempt-2-build"]
    assert kernels(world) == 1


def test_two_that_do_not_build_together_are_named(world: World) -> None:
    """The linker's complaint of a name that both define tells of neither's file."""
    for name in ("alpha", "delta"):
        new = f"int twice; {says(name)}"
        give(world, name, patch(name, new))
    ran = world.validate()
    require_proven(ran)
    told = {
        name: [
            step.summary for step in entry(ran, name).stages if step.name == "beside"
        ]
        for name in NAMES
    }
    (loner,) = (name for name, summaries in told.items() if summaries)
    other = {"alpha": "delta", "delta": "alpha"}[loner]
    assert told[loner] == [f"does not build beside {other}: on a kernel of its own"]
    assert entry(ran, "beta").kernel == entry(ran, other).kernel


def test_one_whose_kernel_does_not_boot_is_found(world: World) -> None:
    world.guest(KNOWS + f'if has["beta"]:{_indented(PANIC)}')
    ran = world.validate()
    assert statuses(ran) == proven("beta")
    assert stage(ran, "beta", "beside").summary == (
        "does not boot: on a kernel of its own"
    )
    assert "out of ideas" in (stage(ran, "beta", "guest").error or "")
    for name in ("alpha", "delta"):
        assert stage(ran, name, "guest").status == "pass"
        assert entry(ran, name).kernel == entry(ran, "alpha").kernel


def test_one_that_fails_by_itself_is_no_matter_for_the_others(world: World) -> None:
    world.guest(KNOWS + 'if mine == "beta": (place / "stdout").write_text("woke")')
    ran = world.validate()
    assert statuses(ran) == proven("beta")
    alone = stage(ran, "beta", "alone")
    assert alone.summary == "on a kernel of its own as well: dozes"
    # That of all, and its own.
    assert kernels(world) == 2


def test_a_failure_that_another_series_makes_is_not_held_against_it(
    world: World,
) -> None:
    world.guest(
        KNOWS
        + 'if mine == "alpha" and has["delta"]: (place / "stdout").write_text("woke")'
    )
    ran = world.validate()
    require_proven(ran)
    beside = stage(ran, "alpha", "beside")
    assert beside.status == "skip"
    assert beside.summary == ("beside delta, dozes fails; these results are without it")
    assert entry(ran, "alpha").kernel != entry(ran, "delta").kernel
    assert entry(ran, "beta").kernel == entry(ran, "delta").kernel
    # The kernel that these were proven on had all three.
    assert entry(ran, "alpha").beside == []
    assert entry(ran, "beta").beside == ["alpha", "delta"]
    assert entry(ran, "delta").beside == ["alpha", "beta"]


SECOND_CHECK = """

def naps(ev: Evidence) -> Verdict:
    verdict = Verdict()
    napped = (ev.workload("alpha-dozes").dir / "napped").exists()
    verdict.equal("napped", napped, False)
    return verdict
"""
#: Makes two checks of alpha fail beside delta, those of the first guest and the others.
TWO_FAIL = """
if mine == "alpha" and has["delta"]:
    failing = {later}
    if (world / "first").exists():
        failing = {first}
        (world / "first").unlink()
    if "dozes" in failing:
        (place / "stdout").write_text("woke")
    if "naps" in failing:
        (place / "napped").write_text("")
"""


@pytest.mark.parametrize(
    ("first", "later", "blamed"),
    [
        (["dozes", "naps"], ["dozes", "naps"], True),
        (["dozes"], ["dozes", "naps"], True),
        # What is not seen again would go with what is.
        (["dozes", "naps"], ["dozes"], False),
        # Another failure is none that was seen.
        (["dozes"], ["naps"], False),
    ],
)
def test_another_is_to_blame_for_what_fails_again_beside_it(
    world: World, first: list[str], later: list[str], blamed: bool
) -> None:
    folder = world.project.patches / "alpha"
    toml, checks = folder / "series.toml", folder / "checks.py"
    text = toml.read_text()
    second = text[text.index("[[check]]") :].replace('"dozes"', '"naps"')
    toml.write_text(f"{text}\n{second}")
    checks.write_text(checks.read_text() + SECOND_CHECK)
    (world.root / "first").write_text("")
    world.guest(KNOWS + TWO_FAIL.format(first=first, later=later))
    ran = world.validate()
    failures = ", ".join(first)
    if blamed:
        require_proven(ran)
        assert stage(ran, "alpha", "beside").summary == (
            f"beside delta, {failures} fails; these results are without it"
        )
        return
    assert statuses(ran) == proven("alpha")
    checked = entry(ran, "alpha").checks
    assert [check.name for check in checked if check.status == "fail"] == first
    assert stage(ran, "alpha", "alone").summary == (
        f"{failures}: passes on a kernel of its own, and fails beside no single other "
        "series"
    )


def test_a_failure_that_nobody_is_shown_to_make_stands(world: World) -> None:
    """Such as one that comes and goes: to be proven it has to hold each time."""
    (world.root / "once").write_text("")
    world.guest(
        KNOWS
        + """
once = world / "once"
if mine == "alpha" and once.exists():
    once.unlink()
    (place / "stdout").write_text("woke")
"""
    )
    ran = world.validate()
    assert statuses(ran) == proven("alpha")
    assert "fails beside no single other series" in (
        stage(ran, "alpha", "alone").summary
    )


#: What happens to the first guest of a series.
ONCE = """
once = world / f"once-{{mine}}"
if once.exists():
    once.unlink()
    {what}
"""
WOKE = '(place / "stdout").write_text("woke")'


def once(world: World, what: str, *names: str) -> None:
    """Have the first guest of each of ``names`` do ``what``."""
    for name in names:
        (world.root / f"once-{name}").write_text("")
    world.guest(KNOWS + ONCE.format(what=_indented(what)))


@pytest.mark.parametrize("what", [WOKE, PANIC], ids=["wrong value", "panic"])
def test_beside_one_other_series_as_well(world: World, what: str) -> None:
    """That kernel is the one on which it failed, and there it has to fail again."""
    once(world, what, "alpha")
    ran = world.validate("alpha", "delta")
    assert statuses(ran) == {"alpha": "fail", "delta": "pass"}
    assert "fails beside no single other series" in (
        stage(ran, "alpha", "alone").summary
    )
    assert sorted(world.guests) == ["alpha-dozes"] * 3 + ["delta-dozes"]
    if what == WOKE:
        # The guest that passed is not the one that the next run judges by.
        again = world.validate("alpha", "delta")
        assert statuses(again) == {"alpha": "fail", "delta": "pass"}
        assert stage(again, "alpha", "guest").reused


@pytest.mark.parametrize("what", [WOKE, PANIC], ids=["wrong value", "panic"])
def test_of_two_the_other_is_to_blame_for_what_fails_again(
    world: World, what: str
) -> None:
    world.guest(KNOWS + f'if mine == "alpha" and has["delta"]:\n    {_indented(what)}')
    ran = world.validate("alpha", "delta")
    require_proven(ran)
    failed = "dozes" if what == WOKE else "guest"
    assert stage(ran, "alpha", "beside").summary == (
        f"beside delta, {failed} fails; these results are without it"
    )
    assert sorted(world.guests) == ["alpha-dozes"] * 3 + ["delta-dozes"]


@pytest.mark.parametrize("names", [("alpha", "delta"), NAMES], ids=["two", "three"])
def test_a_kernel_that_does_not_boot_once_is_no_conflict(
    world: World, names: tuple[str, ...]
) -> None:
    once(world, PANIC, *names)
    ran = world.validate(*names)
    assert statuses(ran) == dict.fromkeys(names, "fail")
    for name in names:
        assert stage(ran, name, "guest").status == "fail"
        assert "fails beside no single other series" in (
            stage(ran, name, "alone").summary
        )


def test_of_two_that_do_not_boot_together_the_later_one_stands_apart(
    world: World,
) -> None:
    both = f'if has["alpha"] and has["delta"]:{_indented(PANIC)}'
    world.guest(KNOWS + both)
    ran = world.validate("alpha", "delta")
    require_proven(ran)
    assert stage(ran, "delta", "beside").summary == (
        "does not boot beside alpha: on a kernel of its own"
    )
    # All twice, and each alone.
    attempts = [name for name in shared(ran) if name.endswith("-guest")]
    assert attempts == [f"attempt-{number}-guest" for number in (1, 2, 3)]


def test_an_attempt_that_cannot_be_judged_is_not_used_again(world: World) -> None:
    once = world.root / "once"
    once.touch()
    lost = f"\n(world / 'once').unlink(){LOSES}"
    world.guest(
        f"{KNOWS}if all(has.values()):{_indented(PANIC)}"
        f"elif (world / 'once').exists() and has['beta']:{_indented(lost)}"
    )
    ran = world.validate()
    require_proven(ran)
    assert not once.exists()
    # Their kernel, after that of all and that of the first one.
    assert entry(ran, "alpha").kernel == entry(ran, "beta").kernel
    assert len(entry(ran, "alpha").tries) == 1


def test_a_pair_that_changes_one_file_is_booted_once(world: World) -> None:
    """Whichever of the two is first in their kernel."""
    booted: list[tuple[str, ...]] = []

    def fails(_: object, part: tuple[str, ...], *__: object, again: bool) -> bool:
        booted.append(part)
        return not again

    def subject(name: str) -> SimpleNamespace:
        series = SimpleNamespace(touches=frozenset({"demo.c"}))
        return SimpleNamespace(name=name, series=series)

    delta, alpha = subject("delta"), subject("alpha")
    here: Any = SimpleNamespace(
        _subjects={"delta": delta, "alpha": alpha}, _fails_beside=fails
    )
    fresh: Any = alpha
    names = ("delta", "alpha")
    culprit = sharing._Sharing._culprit(here, fresh, names, frozenset({"dozes"}))
    assert (culprit, booted) == (None, [names])


def test_alone_proves_each_on_a_kernel_of_its_own_as_well(world: World) -> None:
    ran = world.validate("--alone")
    require_proven(ran)
    assert kernels(world) == 4 and len(world.guests) == 6
    for name in NAMES:
        (check,) = [
            check for check in entry(ran, name).checks if check.name == sharing.ALONE
        ]
        assert check.status == "pass"
        assert "dozes" in [comparison.label for comparison in check.comparisons]


def test_alone_shows_what_only_another_series_makes_true(world: World) -> None:
    world.guest(
        KNOWS
        + 'if mine == "alpha" and not has["delta"]:\n'
        + '    (place / "stdout").write_text("woke")'
    )
    require_proven(world.validate())
    ran = world.validate("--alone")
    assert statuses(ran) == proven("alpha")
    (check,) = [
        check for check in entry(ran, "alpha").checks if check.name == sharing.ALONE
    ]
    assert [
        comparison.label for comparison in check.comparisons if not comparison.ok
    ] == ["dozes"]


def test_guests_one_after_the_other_say_the_same(world: World) -> None:
    ran = world.validate("--at-once", "1")
    require_proven(ran)
    assert sorted(world.guests) == [f"{name}-dozes" for name in NAMES]


def test_an_edit_of_one_makes_a_new_kernel_and_new_guests(world: World) -> None:
    """Evidence is that of a kernel: what changes that leaves none of before."""
    require_proven(world.validate())
    give(world, "beta", patch("beta", says("beta") + " int more;"))
    ran = world.validate()
    require_proven(ran)
    assert kernels(world) == 2 and len(world.guests) == 6
    # Patches of the others are not looked at again, nor is their kernel alone.
    assert stage(ran, "alpha", "patches").reused
    assert not stage(ran, "beta", "patches").reused


# -- falsified evidence ---------------------------------------------------------------


def with_events() -> None:
    """The series of this process pass for ones with events, which fire."""
    fired = Verdict()
    fired.at_least("nap", 1, 1, "events")
    common = SimpleNamespace(events_fire=lambda series, saved: fired)
    vars(mutate).update(concerns=lambda series: True, common=common)


def blind() -> None:
    """One value of an event is falsified, and no check can see that."""
    falsified = operators.FieldMutant("demo:nap", "nap_ns", "zero")
    vars(operators).update(mutants=lambda series, saved: [falsified])

    def same(genuine: falsify.Genuine, _: object) -> tuple[Evidence, frozenset[str]]:
        return genuine.withheld, frozenset(genuine.withheld.workloads)

    falsify.Genuine.falsified = same  # type: ignore[method-assign, assignment]


def falsifiable(ran: Ran, name: str) -> Check:
    return next(one for one in entry(ran, name).checks if one.name == mutate.NAME)


@pytest.mark.parametrize("names", [NAMES[:1], NAMES[:2]], ids=["alone", "shared"])
def test_evidence_is_falsified(tmp_path: Path, names: tuple[str, ...]) -> None:
    with settling(make(World(tmp_path / "world", at_once=2))) as world:
        world.prepare.append(with_events)
        ran = world.validate(*names)
        require_proven(ran)
        for name in names:
            assert found(ran, name)["mutate"] == falsifiable(ran, name).status == "pass"
            mutation = entry(ran, name).mutation
            assert mutation is not None
            assert mutation.witnesses == ["dozes", "events_fire"]
        assert {"mutate"} <= world.validate(*names).reused
        # A value that no check notices is a failure of the series.
        forget(world, "mutations")
        world.prepare.append(blind)
        ran = world.validate(*names)
        assert ran.exit_code == 1, ran.output
        for name in names:
            assert entry(ran, name).status == "fail"
            assert found(ran, name)["mutate"] == "pass"
            (wrong, *_) = falsifiable(ran, name).comparisons
            assert (wrong.label, wrong.observed) == ("nap: nap_ns: escaped", "zero")


def test_only_evidence_that_is_accepted_is_falsified(full: World) -> None:
    full.prepare.append(with_events)
    full.guest('if name == "alpha-dozes": (place / "stdout").write_text("awake")')
    ran = full.validate("alpha")
    assert ran.exit_code == 1, ran.output
    step = stage(ran, "alpha", "mutate")
    assert step.status == "skip" and "did not pass" in step.summary
    assert entry(ran, "alpha").mutation is None


def test_a_quick_run_falsifies_nothing(world: World) -> None:
    world.prepare.append(with_events)
    ran = world.validate("alpha")
    require_proven(ran)
    assert stage(ran, "alpha", "mutate").summary.startswith("LEVEL=quick: ")
    assert entry(ran, "alpha").mutation is None


# -- counting beside the guest --------------------------------------------------------


@pytest.fixture
def full(tmp_path: Path) -> Iterator[World]:
    with settling(make(World(tmp_path / "world", at_once=2))) as sandbox:
        yield sandbox


def found(ran: Ran, name: str = "alpha") -> dict[str, str]:
    return {step.name: step.status for step in entry(ran, name).stages}


def test_one_series_is_counted_beside_its_guest(full: World) -> None:
    ran = full.validate("alpha")
    require_proven(ran)
    assert found(ran)["instructions"] == found(ran)["guest"] == "pass"
    names = [step.name for step in entry(ran, "alpha").stages]
    assert len(names) == len(set(names))
    overhead = entry(ran, "alpha").overhead
    assert overhead is not None and len(overhead.measurements) == 1
    guests = len(full.guests)
    again = full.validate("alpha")
    require_proven(again)
    assert {"guest", "instructions"} <= again.reused and len(full.guests) == guests


def test_an_edit_counts_in_the_patched_kernel_only(full: World) -> None:
    require_proven(full.validate("alpha"))
    before = len(full.guests)
    give(full, "alpha", patch("alpha", says("alpha") + " int more;"))
    require_proven(full.validate("alpha"))
    # The guest, and the three boots of the patched kernel.
    assert len(full.guests) == before + 4


def test_a_guest_that_fails_ends_the_counting_beside_it(full: World) -> None:
    full.guest(f'if job["workloads"][0]["name"] == "alpha-dozes":{_indented(PANIC)}')
    ran = full.validate("alpha")
    assert ran.exit_code == 1
    assert found(ran)["guest"] == "fail"
    assert found(ran)["instructions"] in ("pass", "skip")
    assert "gate" not in found(ran)


def test_counting_that_fails_leaves_the_guest_its_verdict(full: World) -> None:
    full.guest(
        'if load["name"].startswith("nap-alpha-off"):\n'
        '    agent["workloads"][-1]["exit_status"] = 3'
    )
    ran = full.validate("alpha")
    assert ran.exit_code == 1
    assert found(ran)["instructions"] == "fail"
    assert found(ran)["guest"] == found(ran)["judge"] == "pass"
    assert "gate" not in found(ran)


@pytest.mark.parametrize("names", [("alpha",), NAMES], ids=["one", "shared"])
def test_a_run_that_is_interrupted_ends_all_guests(
    full: World, names: tuple[str, ...]
) -> None:
    full.guest('(world / f"here-{os.getpid()}").touch()\nsignal.pause()')
    child = full.start(*names)
    limit = time.monotonic() + 300
    while not list(full.root.glob("here-*")) and time.monotonic() < limit:
        time.sleep(0.05)
    os.kill(child.pid or 0, signal.SIGINT)
    ran = full.end(child)
    assert ran.exit_code == 2
    assert ran.report is not None and ran.report.status == "interrupted"
    assert "Traceback" not in ran.output
    stopped = [
        step.error
        for series in ran.report.series
        for step in series.stages
        if step.status == "error"
    ]
    assert set(stopped) == {"interrupted"}
    full.guest(None)
    require_proven(full.validate(*names))


def _indented(text: str) -> str:
    return "\n    ".join(text.splitlines()) + "\n"
