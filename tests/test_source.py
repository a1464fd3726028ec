# SPDX-License-Identifier: GPL-2.0-or-later
"""Kernel sources come in whole, and nothing of the user's changes."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tarfile
import time
from collections.abc import Callable
from multiprocessing.context import ForkProcess
from pathlib import Path

import pytest

from fake_kernel import (
    FILES,
    build_in_place,
    commit,
    contents,
    git,
    snapshot,
    write,
)
from kstall.base import KstallError, space
from kstall.debian import apt
from kstall.tree import Base, source, store


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def said() -> list[str]:
    return []


def obtain(kernel: Path, cache: Path, messages: list[str] | None = None) -> Base:
    return source.obtain(
        kernel, cache, (messages if messages is not None else []).append
    )


def bases(cache: Path) -> list[str]:
    return sorted(path.name for path in (cache / "trees").glob("*") if path.is_dir())


def clean(tmp_path: Path) -> dict[str, tuple[object, ...]]:
    """What a private copy of the fake kernel must hold."""
    return contents(write(tmp_path / "expected"))


@pytest.mark.parametrize("kernel", ["debian:7.3", "elsewhere#branch"])
def test_what_a_killed_run_left_makes_room_first(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kernel: str
) -> None:
    """A disk that it fills would be full at each later run, too."""
    left = cache / "trees" / ".import-killed"

    def full(*_: object, **__: object) -> None:
        assert not left.exists()
        raise space.NoSpace("a download", 2, cache)

    left.mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(source.apt, "newest", full)
    monkeypatch.setattr(source.remote, "read", full)
    with pytest.raises(space.NoSpace):
        obtain(Path(kernel), cache)


# -- a git checkout ------------------------------------------------------------------


def dirty_checkout(top: Path) -> str:
    """Staged, unstaged, untracked and deleted files, and a build in the tree."""
    head = commit(write(top))
    build_in_place(top)
    (top / "Kbuild").write_text("changed\n")
    (top / "drivers/sched.c").write_text("staged\n")
    git(top, "add", "drivers/sched.c")
    (top / "net/only/gone.c").unlink()
    (top / "untracked.c").write_text("new\n")
    # As stale as an index gets: git would love to refresh it.
    os.utime(top / "Makefile", (1, 1))
    return head


def test_a_dirty_checkout_is_read_at_head_and_left_alone(
    tmp_path: Path, cache: Path, said: list[str]
) -> None:
    top = tmp_path / "linux"
    head = dirty_checkout(top)
    before = snapshot(top)
    base = obtain(top, cache, said)
    obtain(top, cache)
    assert snapshot(top) == before
    assert contents(base.path) == clean(tmp_path)
    assert (base.kind, base.version, base.commit) == ("git", "7.3.4", head)
    assert base.dirty == ("Kbuild", "drivers/sched.c", "net/only/gone.c")
    assert any("3 changed files" in line and head[:12] in line for line in said)
    assert base.id == f"7.3.4-{git(top, 'rev-parse', 'HEAD^{tree}')[:12]}"


def test_a_split_index_is_left_alone(tmp_path: Path, cache: Path) -> None:
    top = tmp_path / "linux"
    commit(write(top))
    git(top, "update-index", "--split-index")
    (shared,) = (top / ".git").glob("sharedindex.*")
    os.utime(shared, (1, 1))  # git freshens it whenever it reads the index
    (top / "Kbuild").write_text("changed\n")
    before = snapshot(top)
    assert obtain(top, cache).dirty == ("Kbuild",)
    assert snapshot(top) == before


def test_programs_that_the_users_git_would_run_are_not_run(
    tmp_path: Path, cache: Path
) -> None:
    top = tmp_path / "linux"
    commit(write(top))
    trap = tmp_path / "trap"
    trap.write_text(f"#!/bin/sh\ntouch {tmp_path}/sprung\ncat\n")
    trap.chmod(0o755)
    git(top, "config", "core.fsmonitor", str(trap))
    git(top, "config", "filter.x.smudge", str(trap))
    (top / ".git" / "hooks" / "post-checkout").symlink_to(trap)
    before = snapshot(top)
    obtain(top, cache)
    assert snapshot(top) == before
    assert not (tmp_path / "sprung").exists()


def test_attributes_change_nothing_on_the_way_out(tmp_path: Path, cache: Path) -> None:
    top = write(tmp_path / "linux")
    (top / ".gitattributes").write_text(
        "*.c export-ignore\n*.h export-subst ident text eol=crlf\n"
        "Kbuild working-tree-encoding=UTF-16\nscripts/* filter=gone\n"
    )
    (top / "drivers/sched_trace.h").write_text("$Format:%H$ $Id$\n")
    git(top, "init", "-q")
    # Their way in is not ours to judge: store the blobs as they are.
    (top / ".git/info/attributes").write_text("* -text -working-tree-encoding -ident\n")
    commit(top)
    base = obtain(top, cache)
    assert (base.path / "drivers/sched_trace.h").read_text() == "$Format:%H$ $Id$\n"
    assert (base.path / "Kbuild").read_text() == FILES["Kbuild"]
    assert (base.path / "drivers/sched.c").read_text() == FILES["drivers/sched.c"]


def test_a_linked_worktree_and_a_shallow_clone_are_the_same_base(
    tmp_path: Path, cache: Path
) -> None:
    top = tmp_path / "linux"
    head = commit(write(top))
    git(top, "tag", "-a", "-m", "x", "v7.3.4")
    git(top, "worktree", "add", "-q", str(tmp_path / "tree"), "HEAD")
    git(tmp_path, "clone", "-q", "--depth=1", f"file://{top}", "shallow")
    assert (tmp_path / "tree" / ".git").is_file()
    before = snapshot(tmp_path / "tree"), snapshot(top), snapshot(tmp_path / "shallow")
    trees = [obtain(tmp_path / name, cache) for name in ("linux", "tree", "shallow")]
    after = snapshot(tmp_path / "tree"), snapshot(top), snapshot(tmp_path / "shallow")
    assert after == before
    assert {base.id for base in trees} == {trees[0].id}
    assert all(base.commit == head and not base.dirty for base in trees)
    assert trees[0].describe == "v7.3.4"
    assert bases(cache) == [trees[0].id]


def test_a_git_that_runs_us_does_not_lead_us_astray(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = commit(write(tmp_path / "linux"))
    commit(write(tmp_path / "other", Kbuild="other\n"))
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "other" / ".git"))
    monkeypatch.setenv("GIT_INDEX_FILE", "/nowhere/index")
    base = obtain(tmp_path / "linux", cache)
    assert (base.commit, base.dirty) == (head, ())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root meets others' files")
def test_root_reads_the_checkout_of_somebody_else(tmp_path: Path, cache: Path) -> None:
    top = tmp_path / "linux"
    commit(write(top))
    for path in [top, *top.rglob("*")]:
        os.chown(path, 12345, 12345, follow_symlinks=False)
    before = snapshot(top)
    assert obtain(top, cache).kind == "git"
    assert snapshot(top) == before


def test_a_partial_clone_is_named_and_not_filled(tmp_path: Path, cache: Path) -> None:
    top = tmp_path / "linux"
    commit(write(top))
    git(top, "config", "uploadpack.allowFilter", "true")
    words = ("clone", "-q", "--filter=blob:none", "--no-checkout")
    git(tmp_path, *words, f"file://{top}", "partial")
    before = snapshot(tmp_path / "partial")
    with pytest.raises(KstallError, match="partial clone"):
        obtain(tmp_path / "partial", cache)
    assert snapshot(tmp_path / "partial") == before
    assert bases(cache) == []


def test_a_new_commit_is_a_new_base(tmp_path: Path, cache: Path) -> None:
    top = tmp_path / "linux"
    commit(write(top))
    first = obtain(top, cache)
    (top / "Kbuild").write_text("new\n")
    head = commit(top)
    second = obtain(top, cache)
    assert second.id != first.id and second.commit == head
    assert (second.path / "Kbuild").read_text() == "new\n"


def test_a_checkout_with_a_file_gone_from_its_objects(
    tmp_path: Path, cache: Path
) -> None:
    top = tmp_path / "linux"
    commit(write(top))
    blob = git(top, "rev-parse", "HEAD:drivers/sched.c").strip()
    (top / ".git/objects" / blob[:2] / blob[2:]).unlink()
    with pytest.raises(KstallError, match="lacks files of HEAD"):
        obtain(top, cache)
    assert bases(cache) == []


@pytest.mark.parametrize("kind", ["empty", "not a kernel", "broken"])
def test_a_checkout_without_a_kernel_says_why(
    tmp_path: Path, cache: Path, kind: str
) -> None:
    top = write(tmp_path / "linux")
    if kind == "empty":
        git(top, "init", "-q")
    elif kind == "broken":
        (top / ".git").write_text("gitdir: /nowhere\n")
    else:
        (top / "Makefile").write_text("all:\n")
        commit(top)
    why = {"empty": "no commit", "broken": "cannot read", "not a kernel": "VERSION"}
    with pytest.raises(KstallError, match=why[kind]):
        obtain(top, cache)


# -- a plain directory ---------------------------------------------------------------


def test_a_directory_with_a_build_in_it(
    tmp_path: Path, cache: Path, said: list[str]
) -> None:
    top = write(tmp_path / "linux")
    build_in_place(top)
    before = snapshot(top)
    base = obtain(top, cache, said)
    assert snapshot(top) == before
    assert contents(base.path) == clean(tmp_path)
    assert base.kind == "directory" and base.version == "7.3.4"
    assert any("leaving out 2 files" in line for line in said)


def test_the_same_sources_are_one_base_however_they_come(
    tmp_path: Path, cache: Path
) -> None:
    top = write(tmp_path / "linux")
    plain = obtain(top, cache)
    (top / ".checkpatch-camelcase.date.202611152230").write_text("Foo\n")
    checked = obtain(top, cache)
    build_in_place(top)
    built = obtain(top, cache)
    commit(write(tmp_path / "checkout"))
    checked_out = obtain(tmp_path / "checkout", cache)
    with tarfile.open(tmp_path / "linux.tar.gz", "w:gz") as tar:
        tar.add(write(tmp_path / "other"), arcname="linux-7.3.4")
    packed = obtain(tmp_path / "linux.tar.gz", cache)
    assert plain.id == checked.id == built.id == checked_out.id == packed.id
    assert bases(cache) == [plain.id]


def test_a_changed_directory_is_a_new_base(tmp_path: Path, cache: Path) -> None:
    top = write(tmp_path / "linux")
    first = obtain(top, cache)
    path = top / "drivers" / "sched.c"
    stat = path.stat()
    path.write_text(path.read_text().replace("line 7", "LINE 7"))
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))  # as rsync might
    second = obtain(top, cache)
    assert second.id != first.id
    assert "LINE 7" in (second.path / "drivers" / "sched.c").read_text()
    assert "LINE 7" not in (first.path / "drivers" / "sched.c").read_text()


def test_an_unchanged_directory_is_not_read(
    tmp_path: Path, cache: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    top = write(tmp_path / "linux")
    first = obtain(top, cache)
    monkeypatch.setattr(store, "_make", None)
    monkeypatch.setattr(source, "_copy", None)
    assert obtain(top, cache, said) == first
    assert said == []


@pytest.mark.fault("read-only", "a source directory")
def test_a_read_only_directory(tmp_path: Path, cache: Path) -> None:
    top = write(tmp_path / "linux")
    expected = clean(tmp_path)
    for path in [*top.rglob("*"), top]:
        if not path.is_symlink():
            path.chmod(path.stat().st_mode & ~0o222)
    before = snapshot(top)
    base = obtain(top, cache)
    assert snapshot(top) == before
    assert contents(base.path) == expected


def test_the_copy_of_a_base_is_that_base(tmp_path: Path, cache: Path) -> None:
    base = obtain(write(tmp_path / "linux"), cache)
    again = obtain(base.path, cache)
    assert (again.id, again.path) == (base.id, base.path)


# -- tarballs ------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["tar", "tar.gz", "tar.xz", "tar.zst"])
def test_a_tarball(tmp_path: Path, cache: Path, ending: str) -> None:
    write(tmp_path / "linux-7.3")
    archive = tmp_path / f"linux.{ending}"
    argv = ["tar", "-caf", str(archive), "linux-7.3"]
    subprocess.run(argv, cwd=tmp_path, check=True)
    base = obtain(archive, cache)
    assert contents(base.path) == clean(tmp_path)
    assert (base.kind, base.origin) == ("tarball", str(archive))
    moved = archive.rename(tmp_path / f"moved.{ending}")
    assert obtain(moved, cache).id == base.id


@pytest.mark.parametrize("kind", ["damaged", "text", "no kernel", "two tops"])
def test_a_tarball_that_holds_no_kernel(tmp_path: Path, cache: Path, kind: str) -> None:
    archive = tmp_path / "linux.tar"
    top = write(tmp_path / "linux")
    if kind == "no kernel":
        (top / "Kbuild").unlink()
    with tarfile.open(archive, "w") as tar:
        tar.add(top, arcname="linux")
        if kind == "two tops":
            tar.add(top, arcname="another")
    if kind == "damaged":
        archive.write_bytes(archive.read_bytes()[:4000])
    if kind == "text":
        archive.write_text("hello\n")
    with pytest.raises(KstallError) as caught:
        obtain(archive, cache)
    assert str(archive) in str(caught.value) and caught.value.next
    assert bases(cache) == []


def test_a_tarball_of_a_link_does_not_lead_to_the_users_tree(
    tmp_path: Path, cache: Path
) -> None:
    top = write(tmp_path / "linux-7.3")
    build_in_place(top)
    (tmp_path / "linux").symlink_to(top)
    before = snapshot(top)
    archive = tmp_path / "linux.tar"
    subprocess.run(["tar", "-cf", archive, "linux"], cwd=tmp_path, check=True)
    with pytest.raises(store.NotAKernel, match="one directory with a Makefile"):
        obtain(archive, cache)
    # Beside the directory it does no harm.
    argv = ["tar", "-cf", str(archive), "linux", "linux-7.3"]
    subprocess.run(argv, cwd=tmp_path, check=True)
    assert not obtain(archive, cache).path.is_symlink()
    assert snapshot(top) == before


def test_a_copy_that_is_a_link_is_neither_cleaned_nor_used(
    tmp_path: Path, cache: Path
) -> None:
    top = write(tmp_path / "linux")
    base = obtain(top, cache)
    build_in_place(top)
    before = snapshot(top)

    def fill(scratch: Path) -> None:
        (scratch / "src").symlink_to(top)

    job = store.CopyJob(top, 0, fill, lambda: None)
    with pytest.raises(store.NotAKernel, match="symbolic link"):
        store.obtain(job, cache, lambda _: None)
    # One that an earlier kstall made is made anew.
    shutil.rmtree(base.path)
    base.path.symlink_to(top)
    assert not obtain(top, cache).path.is_symlink()
    assert contents(base.path) == clean(tmp_path)
    assert snapshot(top) == before


@pytest.mark.parametrize("kind", ["directory", "tarball"])
def test_a_build_is_not_deleted_through_a_link_out_of_the_tree(
    tmp_path: Path, cache: Path, kind: str
) -> None:
    users = write(tmp_path / "users")
    build_in_place(users)
    top = write(tmp_path / "linux")
    (top / ".config").write_text("")
    shutil.rmtree(top / "include")
    (top / "include").symlink_to(users / "include")
    before = snapshot(users), snapshot(top)
    kernel = top
    if kind == "tarball":
        kernel = tmp_path / "linux.tar"
        subprocess.run(["tar", "-cf", kernel, "linux"], cwd=tmp_path, check=True)
    with pytest.raises(KstallError, match="include, a link out of it") as caught:
        obtain(kernel, cache)
    assert str(kernel) in str(caught.value) and caught.value.next
    assert (snapshot(users), snapshot(top)) == before
    assert bases(cache) == []


# -- what is none --------------------------------------------------------------------


def test_what_is_no_kernel_tree_is_said_with_what_was_missed(
    tmp_path: Path, cache: Path
) -> None:
    def why(kernel: Path) -> str:
        with pytest.raises(store.NotAKernel) as caught:
            obtain(kernel, cache)
        return str(caught.value)

    assert "no such file" in why(tmp_path / "nowhere")
    top = tmp_path / "linux"
    top.mkdir()
    assert "has no Makefile" in why(top)
    (top / "Makefile").write_text("all:\n")
    assert "sets no VERSION" in why(top)
    (top / "Makefile").write_text(FILES["Makefile"])
    assert "has no Kbuild" in why(top)
    assert "neither a directory nor a file" in why(Path("/dev/null"))


def test_places_where_a_cache_cannot_be(tmp_path: Path) -> None:
    top = write(tmp_path / "linux")
    with pytest.raises(KstallError, match="inside the kernel tree"):
        obtain(top, top / "out" / "cache")
    assert contents(top) == clean(tmp_path)
    with pytest.raises(KstallError, match="space or colon"):
        obtain(top, tmp_path / "my cache")


def test_versions() -> None:
    assert store.version_of(FILES["Makefile"]) == "7.3.4"
    text = "VERSION = 7\nPATCHLEVEL = 4\nSUBLEVEL = 0\nEXTRAVERSION = -rc1\n"
    assert store.version_of(text) == "7.4.0-rc1"
    assert store.version_of("VERSION =\nPATCHLEVEL = 4\n") is None


# -- Debian's ------------------------------------------------------------------------


def test_debians_package_without_a_kernel_named(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside = tmp_path / "deb" / "usr" / "src"
    inside.mkdir(parents=True)
    write(tmp_path / "linux-source-7.3")
    archive = str(inside / "linux-source-7.3.tar.xz")
    subprocess.run(["tar", "-caf", archive, "linux-source-7.3"], cwd=tmp_path)
    (tmp_path / "deb" / "DEBIAN").mkdir()
    (tmp_path / "deb" / "DEBIAN" / "control").write_text(
        "Package: linux-source-7.3\nVersion: 7.3.4-1\nArchitecture: all\n"
        "Maintainer: nobody <nobody@example.org>\nDescription: none\n"
    )
    package = tmp_path / "linux-source-7.3_7.3.4-1_all.deb"
    subprocess.run(["dpkg-deb", "-b", tmp_path / "deb", package], check=True)
    asked: list[str] = []

    def newest(name: str, *_: object, **__: object) -> apt.Deb:
        asked.append(name)
        return apt.Deb(name, "7.3.4-1", package)

    monkeypatch.setattr(apt, "newest", newest)
    base = source.obtain(None, cache, print)
    assert contents(base.path) == clean(tmp_path)
    assert (base.kind, base.origin) == ("debian", "linux-source-7.3")
    assert (base.describe, base.version) == ("7.3.4-1", "7.3.4")
    assert obtain(package, cache).id == base.id
    # Another version by its name, and a path that only looks like one.
    assert source.obtain(Path("debian:6.12"), cache, print).id == base.id
    assert asked == ["linux-source-7.3", "linux-source-6.12"]
    with pytest.raises(KstallError, match="there is no such file"):
        source.obtain(tmp_path / "debian:6.12", cache, print)


# -- full disks and killed runs ------------------------------------------------------


def test_too_little_room_is_found_before_copying(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(space, "available", lambda _: 5000)
    with pytest.raises(space.NoSpace) as caught:
        obtain(write(tmp_path / "linux"), cache)
    text = str(caught.value)
    assert "5.0 kB free" in text and str(cache) in text and "KSTALL_CACHE" in text
    assert bases(cache) == []


@pytest.mark.fault("disk full", "while sources are copied")
@pytest.mark.parametrize("kind", ["directory", "git", "tarball"])
def test_a_disk_that_fills_up_meanwhile(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    full = tmp_path / "bin"
    full.mkdir()
    for program in ("cp", "tar"):
        (full / program).write_text(
            f"#!/bin/sh\necho '{program}: write: No space left on device' >&2\nexit 1\n"
        )
        (full / program).chmod(0o755)
    real = shutil.which("git")
    (full / "git").write_text(
        f'#!/bin/sh\nif [ "$1" = checkout-index ]; then\n'
        f"echo 'error: unable to write file drivers/missing.c' >&2; exit 1\n"
        f'fi\nexec {real} "$@"\n'
    )
    (full / "git").chmod(0o755)
    kernel = write(tmp_path / "linux")
    if kind == "git":
        commit(kernel)
    if kind == "tarball":
        argv = ["tar", "-caf", "linux.tar.gz", "linux"]
        subprocess.run(argv, cwd=tmp_path, check=True)
        kernel = tmp_path / "linux.tar.gz"
    with monkeypatch.context() as patched:
        patched.setenv("PATH", f"{full}:{os.environ['PATH']}")
        if kind == "git":  # which does not say why
            patched.setattr(space, "require", lambda *_: None)
            patched.setattr(space, "available", lambda _: 0)
        with pytest.raises(space.NoSpace, match="no room for a private copy"):
            obtain(kernel, cache)
    assert list((cache / "trees").glob(".import-*")) == []
    assert bases(cache) == []
    assert contents(obtain(kernel, cache).path) == clean(tmp_path)


def in_a_child(act: Callable[[], None]) -> ForkProcess:
    child = ForkProcess(target=act)
    child.start()
    return child


@pytest.mark.fault("killed", "while sources are copied")
def test_a_killed_import_is_cleared_away_by_the_next_run(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    top = write(tmp_path / "linux")

    def killed() -> None:
        def blobs(*_: object) -> None:
            os.kill(os.getpid(), signal.SIGKILL)

        monkeypatch.setattr("kstall.tree.listing.blobs", blobs)
        obtain(top, cache)

    child = in_a_child(killed)
    child.join()
    assert child.exitcode == -signal.SIGKILL
    assert len(list((cache / "trees").glob(".import-*"))) == 1
    assert contents(obtain(top, cache).path) == clean(tmp_path)
    assert list((cache / "trees").glob(".import-*")) == []


def test_a_second_run_waits_and_takes_what_the_first_made(
    tmp_path: Path, cache: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    top = write(tmp_path / "linux")
    real = source._copy

    def slow() -> None:
        def copy(*words: object) -> None:
            # The first to open it waits for the second.
            (tmp_path / "copying").open("w").close()
            (tmp_path / "waiting").open().close()
            real(*words)  # type: ignore[arg-type]

        monkeypatch.setattr(source, "_copy", copy)
        obtain(top, cache)

    def say(text: str) -> None:
        said.append(text)
        if text.startswith("waiting for"):
            (tmp_path / "waiting").open("w").close()

    for name in ("copying", "waiting"):
        os.mkfifo(tmp_path / name)
    child = in_a_child(slow)
    (tmp_path / "copying").open().close()
    base = source.obtain(top, cache, say)
    child.join()
    assert child.exitcode == 0
    assert contents(base.path) == clean(tmp_path)
    assert any(f"waiting for process {child.pid}" in line for line in said)
    assert not any("making" in line for line in said)


def test_copies_do_not_pile_up(
    tmp_path: Path, cache: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    top = write(tmp_path / "linux")
    copies = []
    for number in range(5):
        (top / "Kbuild").write_text(f"# {number}\n")
        copies.append(obtain(top, cache, said).path.parent)
        when = time.time() - 7200 + number
        os.utime(copies[-1] / "base.json", (when, when))
    assert bases(cache) == sorted(home.name for home in copies[-3:])
    assert any(f"removing the private copy {copies[0].name}" in line for line in said)


def test_a_copy_that_a_run_has_obtained_is_not_removed_by_another(
    tmp_path: Path, cache: Path
) -> None:
    top = write(tmp_path / "linux")
    first = obtain(top, cache)
    home = first.path.parent

    def others(*numbers: int) -> None:
        for number in numbers:
            (top / "Kbuild").write_text(f"# {number}\n")
            used = obtain(top, cache).path.parent / "base.json"
            os.utime(used, (number, number))

    os.utime(home / "base.json", (1, 1))
    others(2, 3, 4, 5)
    assert len(bases(cache)) == 4 and home.is_dir()
    del first  # as at the end of its run
    others(6)
    assert len(bases(cache)) == 3 and not home.exists()


def test_a_copy_in_use_is_not_removed(tmp_path: Path, cache: Path) -> None:
    import fcntl

    top = write(tmp_path / "linux")
    first = obtain(top, cache).path
    with (first.parent / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        os.utime(first.parent / "base.json", (1, 1))
        for number in range(4):
            (top / "Kbuild").write_text(f"# {number}\n")
            base = obtain(top, cache)
            os.utime(base.path.parent / "base.json", (1, 2 + number))
    assert first.is_dir()


# -- the real thing ------------------------------------------------------------------


@pytest.mark.live
def test_debians_real_kernel_source(cache: Path, said: list[str]) -> None:
    base = source.obtain(None, cache, said.append)
    assert base.version.startswith("7.3.") and base.describe.startswith("7.3.")
    assert (base.path / "net/netfilter/xt_mark.c").is_file()
    said.clear()
    assert source.obtain(None, cache, said.append) == base
    assert obtain(base.path, cache, said).id == base.id
    # Neither fetched nor copied again.
    assert said == []
