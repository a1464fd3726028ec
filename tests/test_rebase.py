# SPDX-License-Identifier: GPL-2.0-or-later
"""A series on another tree: merged, compiled, shown; and nobody's tree is touched."""

from __future__ import annotations

import concurrent.futures
import fcntl
import os
import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from fake_kernel import commit, git, snapshot
from fakeworld import CHECKS, KERNEL, NO_TYPES, PATCH, TOML, Ran, World, write
from kstall.report import report
from kstall.tree import remote

#: What moves a patch's lines without touching them.
MOVED = "/* one\n * two\n * three\n */\n"
#: Far enough away for both patches to be merged line by line.
LINES = "".join(f"int line_{n};\n" for n in range(20))
SECOND = """\
From 0000000000000000000000000000000000000000 Mon Sep 17 00:00:00 2001
From: Somebody Else <else@example.org>
Date: Thu, 1 Jan 2026 00:00:01 +0000
Subject: [PATCH 2/2] demo: Say more

More is said.

Assisted-by: LLM
---
 demo.c | 2 +-
 1 file changed, 1 insertion(+), 1 deletion(-)

diff --git a/demo.c b/demo.c
--- a/demo.c
+++ b/demo.c
@@ -12,7 +12,7 @@ int line_3;
 int line_7;
 int line_8;
 int line_9;
-int line_10;
+int line_ten;
 int line_11;
 int line_12;
 int line_13;
"""
DEMO = KERNEL["demo.c"] + LINES


@pytest.fixture
def world(tmp_path: Path) -> World:
    """A series of two patches that applies to ``linux``, and not to ``new``."""
    sandbox = World(tmp_path, level="quick")
    series = sandbox.project.patches / "demo"
    (series / "0001-demo.patch").unlink()
    write(
        series,
        {
            "0001-demo-Return-what-was-asked-for.patch": PATCH.replace(
                "[PATCH]", "[PATCH 1/2]"
            ).replace("@@ -1,4 +1,4 @@", "@@ -1,6 +1,6 @@")[
                : PATCH.index("--\n2.39") + 4
            ]
            + " int line_0;\n int line_1;\n",
            "0002-demo-Say-more.patch": SECOND,
            "series.toml": TOML.replace(
                '["0001-demo.patch"]',
                '["0001-demo-Return-what-was-asked-for.patch", '
                '"0002-demo-Say-more.patch"]',
            ),
        },
    )
    write(sandbox.kernel, {"demo.c": DEMO})
    return sandbox


def _new(world: World, demo: str, **files: str) -> Path:
    top = world.root / "new"
    shutil.rmtree(top, ignore_errors=True)
    write(top, {**KERNEL, "demo.c": demo, **files})
    (top / "btf").write_bytes(NO_TYPES)
    # Other sources, and so another base.
    (top / "Kbuild").write_text("# new\n" + KERNEL["Kbuild"])
    return top


def _rebase(world: World, *words: str, kernel: Path | str | None = None) -> Ran:
    return world.run(
        *("rebase", str(kernel or world.root / "new"), "demo"),
        *("--from", str(world.kernel), "--out", str(world.out), *words),
    )


def _place(world: World) -> Path:
    (place,) = (world.out / "rebase").glob("demo-*")
    return place


def _patches(world: World) -> dict[str, str]:
    return {
        patch.name: patch.read_text() for patch in _place(world).glob("patches/*.patch")
    }


def test_what_only_moved_is_carried_over_compiled_and_shown(world: World) -> None:
    # Neither fits by itself: the first one's context changed, and all lines moved.
    demo = MOVED + DEMO.replace("int line_1;", "int line_one;")
    _new(world, demo)
    before = snapshot(world.root / "new"), snapshot(world.kernel)
    own = snapshot(world.project.root)
    ran = _rebase(world)
    assert ran.exit_code == 0, ran.output
    assert (snapshot(world.root / "new"), snapshot(world.kernel)) == before
    assert snapshot(world.project.root) == own
    assert list(_patches(world)) == [
        *("0001-demo-Return-what-was-asked-for.patch", "0002-demo-Say-more.patch")
    ]
    first, second = _patches(world).values()
    assert " int line_one;\n" in first and "[PATCH 1/2]" in first
    # Whose it is, and when and why it was written, stays.
    assert "From: Somebody Else <else@example.org>" in second
    assert "Date: Thu, 1 Jan 2026 00:00:01 +0000" in second
    assert "Assisted-by: LLM" in second and "kstall@" not in second
    # As git range-diff shows it: the second one is the same patch.
    assert re.search(r"(?m)^1: +[0-9a-f]+ ! 1: +[0-9a-f]+ demo: Return", ran.output)
    assert re.search(r"(?m)^2: +[0-9a-f]+ = 2: +[0-9a-f]+ demo: Say more", ran.output)
    assert "verdict  demo: carried over" in ran.output
    run_report = report.read(_place(world) / "run" / "report.json")
    (entry,) = run_report.series
    assert (run_report.status, entry.status) == ("proven", "pass")
    stages = {stage.name: stage.summary for stage in entry.stages}
    assert stages["rebase"] == "2 of 2 patches carried over"
    assert "checks pass" in stages["compile"]
    # Each patch was compiled, and nothing was booted.
    assert {check.name for check in entry.checks} >= {"compiles_as_configured"}
    assert world.guests == []
    # By `git am`, as everybody applies it.
    top = world.root / "new"
    commit(top)
    git(top, "am", "-q", *map(str, sorted(_place(world).glob("patches/*"))))
    assert "return 3;" in (top / "demo.c").read_text()


def test_what_does_not_compile_there_has_failed(world: World) -> None:
    demo = "#define demo(x) 0 0\n" + DEMO
    _new(world, demo.replace("int demo(void)", "int (demo)(void)"))
    path = world.project.patches / "demo/0002-demo-Say-more.patch"
    path.write_text(path.read_text().replace("line_ten;", "line_ten = demo(1);"))
    ran = _rebase(world)
    assert ran.exit_code in (1, 3), ran.output
    _new(world, MOVED + DEMO)
    # The name is taken in the new tree.
    write(world.root / "new", {"demo.c": DEMO + "char line_ten[2];\n"})
    path.write_text(path.read_text().replace(" = demo(1)", ""))
    shutil.rmtree(world.out)
    ran = _rebase(world)
    assert ran.exit_code == 1, ran.output
    assert "compiles_as_configured" in ran.output
    assert "verdict  demo: carried over, and does not compile" in ran.output
    assert "not written" not in ran.output
    own = snapshot(world.project.root)
    assert _rebase(world, "--write").exit_code == 1
    assert snapshot(world.project.root) == own


def test_a_test_program_that_does_not_compile_there_has_failed(world: World) -> None:
    # Its function takes an argument there, far from what the patch changes.
    program = "int grade(void)\n{\n\treturn 0;\n}\n" + LINES + KERNEL["selftest.c"]
    changed = program.replace("int grade(void)", "int grade(int least)")
    place = "tools/selftest.c"
    series = world.project.patches / "demo"
    toml = (series / "series.toml").read_text()
    (series / "series.toml").write_text(toml.replace('"selftest.c"', f'"{place}"'))
    start = SECOND.index("diff --git")
    hunk = """\
diff --git a/tools/selftest.c b/tools/selftest.c
--- a/tools/selftest.c
+++ b/tools/selftest.c
@@ -22,7 +22,7 @@ int line_16;
 int line_17;
 int line_18;
 int line_19;
 int main(void)
 {
-\treturn 0;
+\treturn grade();
 }
"""
    head = SECOND[:start].replace(" demo.c |", f" {place} |")
    (series / "0002-demo-Say-more.patch").write_text(head + hunk)
    write(world.kernel, {place: program})
    _new(world, MOVED + DEMO, **{place: changed})
    ran = _rebase(world)
    assert ran.exit_code == 1, ran.output
    assert re.search("programs: .*does not compile from the tree", ran.output)
    assert "too few arguments to function" in ran.output
    log = re.search("  log: (.*)", ran.output)
    assert log is not None, ran.output
    assert "too few arguments" in Path(log[1]).read_text()
    assert "verdict  demo: carried over, and does not compile" in ran.output
    shutil.rmtree(world.out)
    _new(world, MOVED + DEMO, **{place: program})
    ran = _rebase(world)
    assert ran.exit_code == 0, ran.output
    assert re.search(r"ok +demo: programs .* selftest", ran.output)


def test_a_conflict_is_left_with_the_commands_to_go_on(world: World) -> None:
    _new(world, MOVED + DEMO.replace("return 1;", "return 9;"))
    before = snapshot(world.root / "new"), snapshot(world.kernel)
    own = snapshot(world.project.root)
    ran = _rebase(world, "--write")
    assert ran.exit_code == 3, ran.output
    assert (snapshot(world.root / "new"), snapshot(world.kernel)) == before
    assert snapshot(world.project.root) == own
    work = _place(world) / "tree"
    assert re.search(
        r"0001-demo-Return-what-was-asked-for\.patch, demo\.c:7: both trees", ran.output
    )
    steps = ran.output.partition("outside of your tree:\n")[2].splitlines()[:5]
    *settle, proceed, again_ = (step.strip() for step in steps)
    assert "show CHERRY_PICK_HEAD" in settle[0]
    words = (f"rebase {world.root / 'new'} demo", f"--from={world.kernel}", "--write")
    assert all(word in again_ for word in (*words, f"--out={world.out}")), again_
    # Only what it touches is there; the rest is one command away.
    assert (work / "demo.c").exists() and not (work / "scripts").exists()
    # The same again changes nothing of what a person is at.
    (work / "notes.txt").write_text("mine\n")
    before_tree = (work / "demo.c").read_text()
    again = _rebase(world)
    assert again.exit_code == 3
    assert (work / "demo.c").read_text() == before_tree
    # The commands, as they are printed, with an editor in between.
    (work / "demo.c").write_text(
        re.sub(r"(?s)<<<<<<< .*>>>>>>> [^\n]*\n", "\treturn 3;\n", before_tree)
    )
    subprocess.run(["sh", "-ec", "\n".join(settle)], check=True)
    settled = _rebase(world)
    assert settled.exit_code == 3
    assert "resolved, and not yet committed" in settled.output
    assert proceed in settled.output
    subprocess.run(
        ["sh", "-c", proceed], check=True, env=_editor(), capture_output=True
    )
    done = _rebase(world)
    assert done.exit_code == 0, done.output
    first, _ = _patches(world).values()
    assert "-\treturn 9;\n+\treturn 3;\n" in first
    assert git(work, "sparse-checkout", "disable") == ""
    assert (work / "scripts/checkpatch.pl").exists()


def _editor() -> dict[str, str]:
    return {**os.environ, "GIT_EDITOR": "true"}


def test_a_patch_that_the_tree_has_is_left_out_and_told(world: World) -> None:
    _new(world, MOVED + DEMO.replace("return 1;", "return 3;"))
    own = snapshot(world.project.root)
    ran = _rebase(world, "--write")
    assert "the tree has 0001-demo-Return-what-was-asked-for.patch" in ran.output
    # Which patches a series has is not for a program to say.
    assert ran.exit_code == 2, ran.output
    assert "these are other patches than series.toml lists" in ran.output
    assert snapshot(world.project.root) == own
    assert list(_patches(world)) == ["0001-demo-Say-more.patch"]
    assert _rebase(world).exit_code == 0


@pytest.mark.parametrize(
    ("demo", "code"),
    [
        # All of its patches, and one of them.
        (DEMO.replace("return 1;", "return 3;").replace("line_10;", "line_ten;"), 0),
        (DEMO.replace("return 1;", "return 3;"), 2),
    ],
    ids=["all", "one"],
)
def test_what_the_tree_has_of_one_series_does_not_stop_the_next(
    world: World, demo: str, code: int
) -> None:
    name = "0001-demo-Return-what-was-asked-for.patch"
    patch = PATCH.replace("demo.c", "other.c").replace("int demo(", "int other(")
    patch = patch.replace("-\treturn 1;", "-\treturn 2;")
    files = {
        "patches/zeta/series.toml": TOML.replace("0001-demo.patch", name),
        f"patches/zeta/{name}": patch.replace("\n--\n2.39.5\n", "\n"),
        "patches/zeta/cover.txt": "What was asked for is returned.\n",
        "patches/zeta/checks.py": CHECKS,
    }
    write(world.project.root, files)
    _new(world, demo, **{"other.c": MOVED + KERNEL["other.c"]})
    words = ("rebase", str(world.root / "new"), "demo", "zeta", "--write")
    ran = world.run(*words, "--from", str(world.kernel), "--out", str(world.out))
    assert ran.exit_code == code, ran.output
    assert "verdict  zeta: carried over" in ran.output
    written = world.project.patches / "zeta" / name
    assert f"written  {written}" in ran.output
    assert "@@ -1,4 +1,4 @@" not in written.read_text()


def test_nothing_is_left_of_a_series_that_the_tree_has(world: World) -> None:
    demo = DEMO.replace("return 1;", "return 3;").replace("line_10;", "line_ten;")
    _new(world, MOVED + demo)
    ran = _rebase(world)
    assert ran.exit_code == 0, ran.output
    assert "0 of 2 patches carried over; the tree has 0001-" in ran.output
    assert "nothing is left of it" in ran.output
    assert _patches(world) == {}


@pytest.mark.parametrize("how", ["skipped", "resolved to nothing"])
def test_a_patch_that_a_person_dropped_is_not_said_to_be_there(
    world: World, how: str
) -> None:
    _new(world, MOVED + DEMO.replace("return 1;", "return 9;"))
    assert _rebase(world).exit_code == 3
    work = _place(world) / "tree"
    if how == "skipped":
        git(work, "cherry-pick", "--skip")
    else:
        git(work, "checkout", "--ours", "demo.c")
        git(work, "add", "-u")
    for _ in range(2):
        ran = _rebase(world)
        assert ran.exit_code == 2, ran.output
        first = "0001-demo-Return-what-was-asked-for.patch"
        assert f"{first} was dropped" in ran.output
        assert "the tree has" not in ran.output
    # As the next step says.
    git(work, "cherry-pick", "--strategy-option=theirs", "series~1")
    ran = _rebase(world)
    assert ran.exit_code == 0, ran.output
    assert "2 of 2 patches carried over" in ran.output


def test_write_replaces_the_patches_and_nothing_else(world: World) -> None:
    second = world.project.patches / "demo/0002-demo-Say-more.patch"
    who = "kstall <noreply@kstall.invalid>"
    second.write_text(SECOND.replace("Somebody Else <else@example.org>", who))
    _new(world, MOVED + DEMO.replace("int line_1;", "int line_one;"))
    before = snapshot(world.root / "new"), snapshot(world.kernel)
    own = snapshot(world.project.root)
    ran = _rebase(world, "--write")
    assert ran.exit_code == 0, ran.output
    assert (snapshot(world.root / "new"), snapshot(world.kernel)) == before
    after = snapshot(world.project.root)
    changed = {name for name in after | own if after.get(name) != own.get(name)}
    assert {Path(name).name for name in changed} == {
        *("0001-demo-Return-what-was-asked-for.patch", "0002-demo-Say-more.patch"),
        "demo",  # their directory, which has a time stamp
    }
    assert "written  " in ran.output
    # They apply there now, and are proven.
    ran = world.validate(kernel=world.root / "new")
    assert ran.exit_code == 0, ran.output


def test_a_file_that_was_renamed_is_followed(world: World) -> None:
    top = _new(world, DEMO, **{"nap.c": MOVED + DEMO})
    (top / "demo.c").unlink()
    ran = _rebase(world, "--no-compile")
    assert ran.exit_code == 0, ran.output
    assert all("a/nap.c" in text for text in _patches(world).values())
    assert "--no-compile: whether it compiles" in ran.output


def test_a_branch_by_name_and_its_true_commit(world: World) -> None:
    top = _new(world, MOVED + DEMO.replace("int line_1;", "int line_one;"))
    head = commit(top)
    before = snapshot(top)
    ran = _rebase(world, "--no-compile", kernel=f"file://{top}#master")
    assert ran.exit_code == 0, ran.output
    assert snapshot(top) == before
    # The work tree stands on what was fetched.
    tip = git(_place(world) / "tree", "rev-parse", "kstall-new").strip()
    assert tip == head


def test_another_series_or_tree_is_not_mixed_in(world: World) -> None:
    _new(world, MOVED + DEMO.replace("return 1;", "return 9;"))
    assert _rebase(world).exit_code == 3
    toml = world.project.patches / "demo/series.toml"
    toml.write_text(toml.read_text().replace("It dozes", "It dozes off"))
    ran = _rebase(world)
    assert ran.exit_code == 2
    assert "was begun from other patches, or another series.toml" in ran.output
    assert (_place(world) / "tree/demo.c").exists()


def test_bad_input_is_one_message(world: World, tmp_path: Path) -> None:
    _new(world, MOVED + DEMO)
    for words, says in (
        (("--write", "--no-compile"), "--write needs a compiled result"),
        (("--out", str(tmp_path / "new" / "out")), "lies inside the kernel tree"),
    ):
        ran = _rebase(world, *words)
        assert ran.exit_code == 2 and says in ran.output, ran.output
    assert not (tmp_path / "new" / "out").exists()
    ran = _rebase(world, kernel=f"{tmp_path}/gone#x")
    assert ran.exit_code == 2 and "there is no" in ran.output
    ran = world.run("rebase", str(tmp_path / "new"), "nobody")
    assert ran.exit_code == 2 and "no such series: nobody" in ran.output
    # It has to apply to where it comes from.
    write(world.kernel, {"demo.c": "int other;\n"})
    ran = _rebase(world)
    assert ran.exit_code == 2, ran.output
    assert "demo does not apply to the tree that it is to be carried" in ran.output
    assert "expects" in ran.output and "with --from" in ran.output
    assert "conflict" not in ran.output


def test_one_waits_for_another_of_the_same_series(world: World) -> None:
    _new(world, MOVED + DEMO)
    tops = world.out / "rebase"
    tops.mkdir(parents=True)
    with (
        (tops / ".run-demo.lock").open("w") as file,
        concurrent.futures.ThreadPoolExecutor(1) as pool,
    ):
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write("process 7 (kstall rebase)")
        file.flush()
        second = pool.submit(_rebase, world, "--no-compile")
        while not second.done() and not any(
            "waiting for process 7 (kstall rebase), which carries demo over" in text
            for text in (path.read_text() for path in world.root.glob("said-*"))
        ):
            time.sleep(0.01)
        assert [path.name for path in tops.iterdir()] == [".run-demo.lock"]
        fcntl.flock(file, fcntl.LOCK_UN)
    assert second.result().exit_code == 0


def test_uncommitted_work_is_not_passed_over(world: World) -> None:
    _new(world, MOVED + DEMO)
    assert _rebase(world, "--no-compile").exit_code == 0
    work = _place(world) / "tree"
    text = (work / "demo.c").read_text()
    (work / "demo.c").write_text(text + "int more;\n")
    ran = _rebase(world, "--no-compile")
    assert ran.exit_code == 2
    assert "has changes that are not committed" in ran.output
    git(work, "commit", "-q", "-a", "-m", "demo: One more")
    ran = _rebase(world, "--no-compile")
    assert ran.exit_code == 0, ran.output
    assert len(_patches(world)) == 3


def test_trees_are_committed_once_and_old_ones_go(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    top = _new(world, MOVED + DEMO)
    first = _rebase(world, "--no-compile")
    assert first.output.count("importing 7.3.4 into a repository") == 2
    store = remote.repository(world.cache)
    assert len(list(store.glob("held/*"))) == 1
    (top / "other.c").write_text("int another;\n")
    second = _rebase(world, "--no-compile")
    assert second.output.count("importing 7.3.4 into a repository") == 1
    # What is fetched has the same content as what was copied.
    names = git(store, "for-each-ref", "--format=%(refname)", "refs/kstall/bases")
    for name in names.split():
        tree = git(store, "rev-parse", f"{name}^{{tree}}").strip()
        assert name.endswith(f"-{tree[:12]}")


@pytest.mark.fault("killed", "while a series is committed: its directory is not there")
def test_one_that_is_killed_leaves_nothing_half_made(world: World) -> None:
    _new(world, MOVED + DEMO)
    stale = world.out / "rebase"
    (stale / ".demo-7.3.4-x.tmp-1").mkdir(parents=True)
    store = remote.repository(world.cache)
    assert _rebase(world, "--no-compile").exit_code == 0
    (store / "fast_import_crash_1").write_text("x")
    (store / "objects/pack/tmp_pack_1").write_text("x")
    shutil.rmtree(_place(world))
    assert _rebase(world, "--no-compile").exit_code == 0
    (world.root / "new/other.c").write_text("int another;\n")
    assert _rebase(world, "--no-compile").exit_code == 0
    assert not (store / "fast_import_crash_1").exists()
    assert not (store / "objects/pack/tmp_pack_1").exists()
