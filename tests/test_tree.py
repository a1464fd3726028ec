# SPDX-License-Identifier: GPL-2.0-or-later
"""Series go onto a base as `git am` would have it, and come off again whole."""

from __future__ import annotations

import copy
import dataclasses
import fcntl
import os
import shutil
import signal
import threading
from collections.abc import Callable
from multiprocessing.context import ForkProcess
from pathlib import Path

import pytest

from fake_kernel import LINES, commit, contents, git, write
from kstall.base import DoesNotApply, FailedCheck, KstallError
from kstall.build import outputs
from kstall.series import PatchFile
from kstall.series.patchfile import parse
from kstall.tree import Base, Plan, source, tree
from kstall.tree.am import ApplyError

Edit = Callable[[Path], object]


class Lab:
    """A base, and the upstream repository that patches for it are made in."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.upstream = place / "upstream"
        if not self.upstream.exists():
            commit(write(self.upstream))
        self.head = git(self.upstream, "rev-parse", "HEAD").strip()
        self.messages: list[str] = []
        self.base: Base = self.obtain()

    def obtain(self) -> Base:
        return source.obtain(self.upstream, self.place / "cache", self.messages.append)

    def patches(self, name: str, *edits: Edit) -> tuple[PatchFile, ...]:
        """One commit an edit, as patch mails; upstream is back at its head then."""
        for number, edit in enumerate(edits, 1):
            edit(self.upstream)
            commit(self.upstream, f"{name}: step {number}")
        out = self.place / name
        git(self.upstream, "format-patch", "-q", "-o", str(out), self.head)
        git(self.upstream, "reset", "-q", "--hard", self.head)
        git(self.upstream, "clean", "-qfd")
        return tuple(parse(path) for path in sorted(out.iterdir()))

    def plan(self, patches: tuple[PatchFile, ...]) -> Plan:
        return tree.plan(self.base, patches, self.place / "scratch")

    def checkout(self, plan: Plan) -> dict[str, tuple[object, ...]]:
        with tree.workspace(plan.base, self.messages.append) as put:
            applied = put(plan)
            assert applied.path == self.base.path
            return contents(applied.path)

    def fresh(self, patches: tuple[PatchFile, ...]) -> dict[str, tuple[object, ...]]:
        """What `git am` makes of a clone that nobody worked in."""
        clone = self.place / "clone"
        git(self.place, "clone", "-q", str(self.upstream), str(clone))
        if patches:
            git(clone, "am", "-q", *(str(patch.path.absolute()) for patch in patches))
        shutil.rmtree(clone / ".git")
        files = contents(clone)
        shutil.rmtree(clone)
        return files


@pytest.fixture(scope="module")
def first_lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    return Lab(tmp_path_factory.mktemp("lab"))


@pytest.fixture
def lab(tmp_path: Path, first_lab: Lab) -> Lab:
    """A copy of one lab, for making it takes a dozen runs of git."""
    lab = copy.copy(first_lab)
    lab.place, lab.messages = tmp_path, []
    for name in ("upstream", "cache"):
        shutil.copytree(first_lab.place / name, tmp_path / name, symlinks=True)
    lab.upstream = tmp_path / "upstream"
    path = tmp_path / first_lab.base.path.relative_to(first_lab.place)
    lab.base = dataclasses.replace(first_lab.base, path=path)
    return lab


def change(name: str, old: str, new: str) -> Edit:
    def edit(top: Path) -> None:
        path = top / name
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))

    return edit


def everything(top: Path) -> None:
    """Every way in which a patch can change a tree."""
    change("drivers/sched.c", "line 7\n", "line seven\n")(top)
    change("net/xt_MARK.c", "upper", "UPPER")(top)
    (top / "include/trace/events").mkdir(parents=True)
    (top / "include/trace/events/x.h").write_text("new\n")
    (top / "net/only/gone.c").unlink()
    (top / "scripts/run.sh").chmod(0o644)
    (top / "Kbuild").chmod(0o755)
    (top / "drivers/sched_trace.h").rename(top / "drivers/trace.h")
    (top / "empty").touch()


def file_to_directory(top: Path) -> None:
    (top / "net/xt_mark.c").unlink()
    (top / "net/xt_mark.c").mkdir()
    (top / "net/xt_mark.c/new.c").write_text("a directory now\n")


# -- plan ----------------------------------------------------------------------------


def test_every_state_of_a_series_is_known(lab: Lab) -> None:
    patches = lab.patches(
        "two",
        change("drivers/sched.c", "line 7\n", "line seven\n"),
        change("drivers/sched.c", "line seven\n", "line VII\n"),
    )
    plan = lab.plan(patches)
    texts = [state[0][1].data.decode() for state in plan.states if state[0][1]]
    assert [text.splitlines()[6] for text in texts] == [
        "line 7",
        "line seven",
        "line VII",
    ]
    assert plan.touched == ("drivers/sched.c",)
    assert plan.upto(1).files == dict(plan.states[1])
    assert plan.upto(0).touched == () and plan.upto(2).content == plan.content
    with pytest.raises(ValueError):
        plan.upto(3)
    assert list((lab.place / "scratch").iterdir()) == []


def test_content_names_the_tree_and_not_the_way_to_it(lab: Lab) -> None:
    edit = change("Kbuild", "obj-y", "obj-m")
    first = lab.plan(lab.patches("one", edit))
    same = lab.plan(lab.patches("same", edit))
    undone = lab.plan(lab.patches("undone", edit, change("Kbuild", "obj-m", "obj-y")))
    assert first.content == same.content
    assert undone.content == first.upto(0).content == lab.plan(()).content
    assert first.content != undone.content


@pytest.mark.parametrize(
    ("path", "compiled"),
    [
        ("Documentation/a/b.rst", False),
        ("MAINTAINERS", False),
        ("Documentation/Kconfig", True),
        ("tools/Documentation/a.c", True),
    ],
)
def test_prose_is_not_compiled(lab: Lab, path: str, compiled: bool) -> None:
    def add(root: Path) -> None:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text("one\n")

    bare, plan = lab.plan(()), lab.plan(lab.patches("added", add))
    assert plan.content != bare.content
    assert (plan.compiled != bare.compiled) == compiled


def test_a_hunk_that_moved_is_reported(lab: Lab) -> None:
    patches = lab.patches("moved", change("drivers/sched.c", "line 30\n", "XXX\n"))
    change("drivers/sched.c", "line 1\n", "line 0a\nline 0b\nline 1\n")(lab.upstream)
    commit(lab.upstream)
    lab.base = lab.obtain()
    plan = lab.plan(patches)
    assert plan.offsets == plan.upto(1).offsets == (patches[0].path,)
    assert plan.upto(0).offsets == ()


def test_a_conflict_names_patch_file_and_hunk(lab: Lab) -> None:
    def two_hunks(top: Path) -> None:
        change("drivers/sched.c", "line 3\n", "three\n")(top)
        change("drivers/sched.c", "line 30\n", "thirty\n")(top)

    patches = lab.patches("bad", change("Kbuild", "obj-y", "obj-m"), two_hunks)
    change("drivers/sched.c", "line 29\n", "somebody was here\n")(lab.upstream)
    commit(lab.upstream)
    lab.base = lab.obtain()
    before = contents(lab.base.path)
    log = lab.place / "apply.log"
    with pytest.raises(ApplyError) as caught:
        tree.plan(lab.base, patches, lab.place / "scratch", log=log)
    error = caught.value
    assert isinstance(error, DoesNotApply)
    assert not isinstance(error, FailedCheck)
    assert (error.patch, error.file) == (patches[1].path, "drivers/sched.c")
    assert error.hunk is not None
    assert (error.hunk.number, error.hunk.old[0], error.line) == (2, 27, 27)
    assert not error.applied
    place = f"{patches[1].path.name}, drivers/sched.c:27: hunk 2 does not fit"
    assert error.what.startswith(place)
    assert "KERNEL=" in str(error)
    # The log has the others as well.
    assert error.log == log
    assert "Hunk #1 applied cleanly" in log.read_text()
    assert "Rejected hunk #2" in log.read_text()
    assert contents(lab.base.path) == before
    assert list((lab.place / "scratch").iterdir()) == []


def test_no_fuzz_and_no_three_way_merge(lab: Lab) -> None:
    # `patch` would take this one with fuzz, `git am -3` by merging.
    patches = lab.patches("fuzzy", change("drivers/sched.c", "line 30\n", "thirty\n"))
    change("drivers/sched.c", "line 33\n", "context\n")(lab.upstream)
    commit(lab.upstream)
    lab.base = lab.obtain()
    with pytest.raises(ApplyError, match="hunk 1"):
        lab.plan(patches)


def test_a_patch_that_the_kernel_has_is_told_apart(lab: Lab) -> None:
    edit = change("drivers/sched.c", "line 7\n", "line seven\n")
    patches = lab.patches("there", edit)
    edit(lab.upstream)
    commit(lab.upstream)
    lab.base = lab.obtain()
    with pytest.raises(ApplyError, match="already has this patch") as caught:
        lab.plan(patches)
    assert caught.value.applied


def _thrice(lab: Lab) -> tuple[Edit, Edit, Edit]:
    return (
        change("drivers/sched.c", "line 7\n", "line seven\n"),
        change("drivers/sched.c", "line seven\n", "line VII\n"),
        change("drivers/sched.c", "line 30\n", "line thirty\n"),
    )


def test_a_series_that_the_kernel_has_is_told_apart(lab: Lab) -> None:
    edits = _thrice(lab)
    patches = lab.patches("there", *edits)
    for edit in edits:
        edit(lab.upstream)
    commit(lab.upstream)
    lab.base = lab.obtain()
    # The first cannot be taken back before the second.
    with pytest.raises(
        ApplyError, match=r"has 3 of 3 patches: 0001-.*, 0003-"
    ) as error:
        lab.plan(patches)
    assert error.value.applied


def test_a_kernel_that_has_some_of_a_series_does_not_have_it(lab: Lab) -> None:
    first, second, third = _thrice(lab)
    patches = lab.patches("half", first, second, third)
    for edit in (first, second, change("drivers/sched.c", "line 29\n", "theirs\n")):
        edit(lab.upstream)
    commit(lab.upstream)
    lab.base = lab.obtain()
    with pytest.raises(ApplyError) as caught:
        lab.plan(patches)
    assert not caught.value.applied
    names = ", ".join(patch.path.name for patch in patches[:2])
    assert caught.value.what.endswith(f"; the kernel has 2 of 3 patches: {names}")


def test_files_that_are_missing_or_in_the_way(lab: Lab) -> None:
    def add(top: Path) -> None:
        (top / "new.c").write_text("ours\n")

    missing = lab.patches("missing", change("Kbuild", "obj-y", "obj-m"))
    in_the_way = lab.patches("in-the-way", add)
    (lab.upstream / "Kbuild").unlink()
    write(lab.upstream, Kbuild="")
    git(lab.upstream, "rm", "-q", "--cached", "drivers/sched.c")
    (lab.upstream / "new.c").write_text("theirs\n")
    commit(lab.upstream)
    lab.base = lab.obtain()
    there = r"0001-\S+, new\.c:1: the kernel already has this file"
    with pytest.raises(ApplyError, match=there):
        lab.plan(in_the_way)
    with pytest.raises(ApplyError, match=r"0001-\S+, Kbuild:1: "):
        lab.plan(missing)


def test_a_path_through_a_link_is_refused(lab: Lab) -> None:
    patches = lab.patches("link", change("Kbuild", "obj-y", "obj-m"))
    text = patches[0].path.read_text().replace("Kbuild", "drivers/sub/Kbuild")
    patches[0].path.write_text(text)
    (lab.upstream / "drivers" / "sub").symlink_to("/etc")
    commit(lab.upstream)
    lab.base = lab.obtain()
    with pytest.raises(ApplyError, match="drivers/sub is a symbolic link") as caught:
        lab.plan((parse(patches[0].path),))
    assert caught.value.patch == patches[0].path


def test_the_users_git_settings_do_not_matter(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    patches = lab.patches("plain", change("Kbuild", "obj-y", "obj-m"))
    home = lab.place / "home"
    (home / "hooks").mkdir(parents=True)
    hook = home / "hooks" / "applypatch-msg"
    hook.write_text("#!/bin/sh\nexit 1\n")
    hook.chmod(0o755)
    (home / ".gitconfig").write_text(
        f"[core]\n hooksPath = {home}/hooks\n autocrlf = true\n"
        "[commit]\n gpgSign = true\n[am]\n threeWay = true\n"
        "[user]\n useConfigOnly = true\n"
    )
    monkeypatch.setenv("HOME", str(home))
    assert lab.plan(patches).touched == ("Kbuild",)


# -- checkout ------------------------------------------------------------------------


def test_workspace_equals_a_fresh_apply_whatever_was_there_before(lab: Lab) -> None:
    series = {
        "everything": lab.patches("everything", everything),
        "one": lab.patches("one", change("drivers/sched.c", "line 9\n", "nine\n")),
        "directory": lab.patches("directory", file_to_directory),
        "none": (),
    }
    fresh = {name: lab.fresh(patches) for name, patches in series.items()}
    plans = {name: lab.plan(patches) for name, patches in series.items()}
    order = ["everything", "one", "directory", "everything", "none", "directory", "one"]
    for name in [*order, "none"]:
        assert lab.checkout(plans[name]) == fresh[name], name
    # The plan does not depend on what is in the workspace meanwhile, either.
    lab.checkout(plans["everything"])
    again = lab.plan(series["one"])
    assert (again.states, again.content) == (plans["one"].states, plans["one"].content)


def test_only_what_differs_gets_a_new_mtime(lab: Lab) -> None:
    def both(top: Path) -> None:
        change("Kbuild", "obj-y", "obj-m")(top)
        change("drivers/sched.c", "line 9\n", "nine\n")(top)

    first = lab.plan(lab.patches("first", both))
    second = lab.plan(lab.patches("second", both, change("Kbuild", "obj-m", "obj-z")))

    def mtimes() -> dict[str, int]:
        names = ("Kbuild", "drivers/sched.c", "Makefile", "net/xt_mark.c")
        return {name: (lab.base.path / name).stat().st_mtime_ns for name in names}

    def tick() -> None:
        """File times move in steps, and two writes may come within one of them."""
        clock = lab.place / "clock"
        clock.touch()
        outputs._outwait_the_clock(clock)

    lab.checkout(first)
    before = mtimes()
    lab.checkout(first)
    assert mtimes() == before
    tick()
    lab.checkout(second)
    after = mtimes()
    assert {name for name in after if after[name] != before[name]} == {"Kbuild"}
    assert after["Kbuild"] > before["Kbuild"]
    tick()
    lab.checkout(lab.plan(()))
    # Put back, it must look newer than what was compiled from the patched one.
    assert mtimes()["Kbuild"] > after["Kbuild"]


@pytest.mark.fault("killed", "between any two writes to the sources")
def test_a_run_killed_between_any_two_writes_is_healed(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    patches = lab.patches("everything", everything, file_to_directory)
    other = lab.patches("other", change("drivers/sched.c", "line 9\n", "nine\n"))
    plan, next_plan = lab.plan(patches), lab.plan(other)
    fresh, next_fresh = lab.fresh(patches), lab.fresh(other)
    home = lab.base.path.parent
    shutil.copytree(home, lab.place / "unused", symlinks=True)

    def killed(after: int) -> None:
        left = after

        def dying(real: Callable[..., object]) -> Callable[..., object]:
            def call(*words: object, **options: object) -> object:
                nonlocal left
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                left -= 1
                return real(*words, **options)

            return call

        monkeypatch.setattr(tree, "_write", dying(tree._write))
        monkeypatch.setattr(Path, "unlink", dying(Path.unlink))
        monkeypatch.setattr(Path, "rename", dying(Path.rename))
        monkeypatch.setattr(os, "replace", dying(os.replace))
        lab.checkout(plan)

    kills = 0
    while True:
        shutil.rmtree(home)
        shutil.copytree(lab.place / "unused", home, symlinks=True)
        if kills % 2:
            lab.checkout(next_plan)
        child = ForkProcess(target=killed, args=(kills,))
        child.start()
        child.join()
        if child.exitcode == 0:
            break
        assert child.exitcode == -signal.SIGKILL
        assert lab.checkout(next_plan) == next_fresh, kills
        assert lab.checkout(plan) == fresh, kills
        kills += 1
    assert kills > 20


def test_a_touched_file_that_somebody_edited_is_put_right(lab: Lab) -> None:
    patches = lab.patches("one", change("Kbuild", "obj-y", "obj-m"))
    plan = lab.plan(patches)
    lab.checkout(plan)
    (lab.base.path / "Kbuild").write_text("by hand\n")
    assert lab.checkout(plan) == lab.fresh(patches)
    (lab.base.path / "Kbuild").unlink()
    assert lab.checkout(plan) == lab.fresh(patches)
    (lab.base.path / "Kbuild").unlink()
    (lab.base.path / "Kbuild").symlink_to("/etc/passwd")
    assert lab.checkout(plan) == lab.fresh(patches)


@pytest.mark.parametrize("how", ["edit", "add", "remove", "chmod"])
def test_a_workspace_that_somebody_changed_is_not_built(lab: Lab, how: str) -> None:
    plan = lab.plan(lab.patches("one", change("Kbuild", "obj-y", "obj-m")))
    lab.checkout(plan)
    path = lab.base.path / "drivers/sched.c"
    if how == "edit":
        path.write_text(LINES.replace("line 1", "LINE 1"))
    elif how == "add":
        path = lab.base.path / ".config"
        path.write_text("CONFIG_X=y\n")
    elif how == "remove":
        path.unlink()
    else:
        path.chmod(0o755)
    with pytest.raises(KstallError, match="somebody changed 1 files") as caught:
        lab.checkout(plan)
    assert path.name in str(caught.value)
    assert str(lab.base.path.parent) in str(caught.value.next)


@pytest.mark.fault("corrupted", "what was kept aside of a file of another series")
def test_what_was_kept_aside_and_is_damaged_is_not_put_back(lab: Lab) -> None:
    first = lab.patches("one", change("drivers/sched.c", "line 7\n", "line seven\n"))
    other = lab.patches("other", change("Kbuild", "drivers", "mm"))
    lab.checkout(lab.plan(first))
    home = lab.base.path.parent
    aside = home / "pristine/drivers/sched.c"
    aside.write_bytes(bytes(aside.stat().st_size))
    with pytest.raises(KstallError, match=r"drivers/sched\.c") as caught:
        lab.checkout(lab.plan(other))
    assert f"remove {home}" in str(caught.value)
    assert "\0" not in (lab.base.path / "drivers/sched.c").read_text()


def test_a_plan_does_not_take_edited_text_for_pristine(lab: Lab) -> None:
    patches = lab.patches("one", change("drivers/sched.c", "line 9\n", "nine\n"))
    (lab.base.path / "drivers/sched.c").write_text(LINES + "by hand\n")
    with pytest.raises(KstallError, match=r"somebody changed .*drivers/sched\.c"):
        lab.plan(patches)


@pytest.mark.fault("two runs", "both want the workspace")
def test_a_second_run_waits_for_the_workspace(lab: Lab) -> None:
    plan = lab.plan(lab.patches("one", change("Kbuild", "obj-y", "obj-m")))
    with tree.workspace(lab.base, lab.messages.append) as put:
        put(plan)
        told = threading.Event()

        def say(text: str) -> None:
            if "waiting for another part of this run" in text:
                told.set()

        def second() -> None:
            with tree.workspace(lab.base, say) as put_second:
                put_second(plan.upto(0))

        waiter = threading.Thread(target=second)
        waiter.start()
        assert told.wait(60)
        assert "obj-m" in (lab.base.path / "Kbuild").read_text()
    waiter.join()
    assert "obj-y" in (lab.base.path / "Kbuild").read_text()


def test_a_base_that_was_removed_meanwhile_is_said_to_be_gone(lab: Lab) -> None:
    home = lab.base.path.parent
    home.rename(home.parent / ".removed-it")
    with pytest.raises(KstallError, match="gone"), tree.workspace(lab.base, print):
        pass
    assert not home.exists()


def test_the_workspace_is_free_after_an_error_inside(lab: Lab) -> None:
    plan = lab.plan(())
    with pytest.raises(KeyboardInterrupt), tree.workspace(lab.base, print) as put:
        put(plan)
        raise KeyboardInterrupt
    with (lab.base.path.parent / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
