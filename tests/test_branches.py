# SPDX-License-Identifier: GPL-2.0-or-later
"""Branches by name: what is here is only read, what is elsewhere comes without history.

``file://`` is a repository elsewhere: git speaks to it as to any other.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from fake_kernel import commit, contents, git, snapshot, write
from kstall.base import KstallError
from kstall.base.cache import digest
from kstall.tree import Base, remote, source


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def upstream(tmp_path: Path) -> Path:
    """A repository with a branch, for-next, and a HEAD that is another one."""
    top = tmp_path / "upstream"
    commit(write(top))
    git(top, "switch", "-q", "-c", "for-next")
    (top / "Kbuild").write_text("obj-y += next/\n")
    commit(top, "next")
    git(top, "tag", "-a", "-m", "a tag", "v7.3.4")
    git(top, "switch", "-q", "master")
    return top


def url(top: Path) -> str:
    return f"file://{top}"


def obtain(name: str, cache: Path, remarks: list[str] | None = None) -> Base:
    return source.obtain(
        Path(name), cache, (remarks if remarks is not None else []).append
    )


# -- names ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "repository", "branch"),
    [
        ("https://example.org/a.git#master", "https://example.org/a.git", "master"),
        ("git://example.org/a/b#for-next", "git://example.org/a/b", "for-next"),
        ("file:///srv/linux#a/b", "file:///srv/linux", "a/b"),
        ("https://example.org/linux.git", "https://example.org/linux.git", "HEAD"),
        ("git@example.org:linux.git#x", "git@example.org:linux.git", "x"),
        ("host:linux#x", "host:linux", "x"),
    ],
)
def test_addresses_survive_being_paths(name: str, repository: str, branch: str) -> None:
    address = remote.named(Path(name))
    assert address is not None and address.path is None
    assert address.url == repository
    assert address.branch == branch


@pytest.mark.parametrize(
    "name",
    [
        *("https://example.org/a.git#b", "file:///srv/linux", "git@host:a.git#b"),
        *("debian:7.2", "~/linux#b", "/srv/linux"),
    ],
)
def test_a_tree_is_written_as_it_was_named(name: str) -> None:
    assert remote.written(Path(name)) == name


@pytest.mark.parametrize("name", ["debian:7.2", "linux", "/srv/linux", "~/linux"])
def test_other_paths_name_no_branch(name: str) -> None:
    assert remote.named(Path(name)) is None


def test_a_directory_with_a_hash_in_its_name_is_that_directory(
    tmp_path: Path, cache: Path
) -> None:
    top = write(tmp_path / "linux#2")
    assert remote.named(top) is None
    assert obtain(str(top), cache).kind == "directory"


# -- on this machine -----------------------------------------------------------------


def test_a_branch_here_is_read_where_it_is(upstream: Path, cache: Path) -> None:
    # None of this is in a branch.
    (upstream / "Makefile").write_text("broken\n")
    before = snapshot(upstream)
    base = obtain(f"{upstream}#for-next", cache)
    assert snapshot(upstream) == before
    assert base.commit == git(upstream, "rev-parse", "for-next").strip()
    assert (base.path / "Kbuild").read_text() == "obj-y += next/\n"
    assert base.dirty == ()
    assert base.origin == f"{upstream}#for-next"
    assert base.describe.startswith("for-next at v7.3.4")
    assert not (cache / "sources" / "git").exists()
    # Whatever names a commit will do.
    assert obtain(f"{upstream}#v7.3.4", cache).id == base.id
    assert obtain(f"{upstream}#{base.commit[:12]}", cache).id == base.id


def test_a_bare_repository_and_one_below_the_current_directory(
    upstream: Path, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git(tmp_path, "clone", "-q", "--bare", str(upstream), "bare.git")
    before = snapshot(tmp_path / "bare.git")
    monkeypatch.chdir(tmp_path)
    base = obtain("bare.git#for-next", cache)
    assert base.commit == git(upstream, "rev-parse", "for-next").strip()
    assert snapshot(tmp_path / "bare.git") == before


@pytest.mark.parametrize("place", [str, url], ids=["here", "elsewhere"])
def test_an_unknown_branch_is_named_with_those_like_it(
    upstream: Path, cache: Path, place: Callable[[Path], str]
) -> None:
    with pytest.raises(KstallError) as caught:
        obtain(f"{place(upstream)}#for-nxt", cache)
    message = str(caught.value)
    assert f"{place(upstream)} has no branch, tag or commit 'for-nxt'" in message
    assert "it has for-next" in message
    with pytest.raises(KstallError, match=r"it has such as .*master"):
        obtain(f"{place(upstream)}#qqqqqqq", cache)


@pytest.mark.parametrize("branch", ["--upload-pack=x", "a b", "a..b~1", "x\ny", "/x"])
def test_what_no_branch_can_be_called_is_no_option_of_git_s(
    upstream: Path, cache: Path, branch: str
) -> None:
    for place in (str(upstream), url(upstream)):
        with pytest.raises(KstallError, match=r"valid name of a branch|has no branch"):
            obtain(f"{place}#{branch}", cache)


@pytest.mark.parametrize("place", [str, url], ids=["here", "elsewhere"])
def test_a_branch_without_a_kernel(
    upstream: Path, cache: Path, place: Callable[[Path], str]
) -> None:
    git(upstream, "switch", "-q", "--orphan", "notes")
    (upstream / "notes.txt").write_text("no kernel\n")
    commit(upstream, "notes")
    with pytest.raises(KstallError) as caught:
        obtain(f"{place(upstream)}#notes", cache)
    message = str(caught.value)
    assert "#notes is no Linux source tree: its notes " in message
    assert "has no Makefile with VERSION" in message


def test_what_is_no_repository(tmp_path: Path, cache: Path) -> None:
    top = write(tmp_path / "linux")
    with pytest.raises(KstallError, match=r"is no git repository"):
        obtain(f"{top}#master", cache)
    with pytest.raises(KstallError, match=r"there is no .*/gone"):
        obtain(f"{tmp_path}/gone#master", cache)
    with pytest.raises(KstallError, match=r"git cannot read file://.*/gone") as caught:
        obtain(f"file://{tmp_path}/gone#master", cache)
    assert "check the address" in str(caught.value)


# -- elsewhere -----------------------------------------------------------------------


def test_a_branch_elsewhere_comes_without_its_history(
    upstream: Path, cache: Path
) -> None:
    before = snapshot(upstream)
    remarks: list[str] = []
    base = obtain(f"{url(upstream)}#for-next", cache, remarks)
    assert snapshot(upstream) == before
    assert base.commit == git(upstream, "rev-parse", "for-next").strip()
    assert base.origin == f"{url(upstream)}#for-next"
    assert base.describe == f"for-next at {base.commit[:12]}"
    assert any("without its history" in line for line in remarks)
    ours = remote.repository(cache)
    assert git(ours, "rev-list", "--all", "--count").strip() == "1"
    # The same content, however it came.
    assert contents(obtain(f"{upstream}#for-next", cache).path) == contents(base.path)


def test_what_is_there_is_not_fetched_again(upstream: Path, cache: Path) -> None:
    name = f"{url(upstream)}#for-next"
    first = obtain(name, cache)
    remarks: list[str] = []
    assert obtain(name, cache, remarks) == first
    assert not any("fetching" in line for line in remarks)
    git(upstream, "switch", "-q", "for-next")
    (upstream / "Kbuild").write_text("obj-y += newer/\n")
    head = commit(upstream, "newer")
    base = obtain(name, cache, remarks)
    assert base.commit == head and base.id != first.id
    assert any("fetching" in line for line in remarks)
    assert obtain(f"{url(upstream)}#v7.3.4", cache).id == first.id
    assert obtain(url(upstream), cache).commit == head


def test_hooks_and_helpers_of_the_repository_are_not_run(
    upstream: Path, tmp_path: Path, cache: Path
) -> None:
    trap = tmp_path / "trap"
    trap.write_text(f'#!/bin/sh\ntouch {tmp_path}/sprung\nexec "$@"\n')
    trap.chmod(0o755)
    git(upstream, "config", "uploadpack.packObjectsHook", str(trap))
    git(upstream, "config", "core.fsmonitor", str(trap))
    (upstream / ".git" / "hooks" / "post-checkout").symlink_to(trap)
    obtain(f"{url(upstream)}#for-next", cache)
    obtain(f"{upstream}#master", cache)
    assert not (tmp_path / "sprung").exists()


def test_root_fetches_what_belongs_to_somebody_else(
    upstream: Path, cache: Path
) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give files away")
    subprocess.run(["chown", "-R", "65534", upstream], check=True)
    assert obtain(f"{url(upstream)}#for-next", cache).kind == "git"
    assert obtain(f"{upstream}#for-next", cache).kind == "git"


@pytest.mark.fault("killed", "a fetch, that leaves its locks and half a pack")
def test_what_a_killed_fetch_left_is_cleared_away(upstream: Path, cache: Path) -> None:
    obtain(f"{url(upstream)}#master", cache)
    ours = remote.repository(cache)
    left = [ours / "shallow.lock", ours / "objects/pack/tmp_pack_x"]
    kept = f"{digest(url(upstream), 'for-next')}.lock"
    left.append(ours / "refs/kstall/branches" / kept)
    for path in left:
        path.write_text("half")
    base = obtain(f"{url(upstream)}#for-next", cache)
    assert base.commit == git(upstream, "rev-parse", "for-next").strip()
    assert not any(path.exists() for path in left)


def test_a_tag_of_a_tree_is_no_kernel(upstream: Path, cache: Path) -> None:
    git(upstream, "tag", "no-history", "HEAD^{tree}")
    with pytest.raises(KstallError, match="no-history is no commit"):
        obtain(f"{url(upstream)}#no-history", cache)


@pytest.mark.fault("truncated", "what the other side sends, which dies at it")
def test_a_fetch_that_breaks_off_is_no_base(upstream: Path, cache: Path) -> None:
    blob = git(upstream, "rev-parse", "for-next:Kbuild").strip()
    path = upstream / ".git/objects" / blob[:2] / blob[2:]
    aside = path.rename(path.with_suffix(".aside"))
    with pytest.raises(KstallError, match=r"git cannot read file://"):
        obtain(f"{url(upstream)}#for-next", cache)
    aside.rename(path)
    base = obtain(f"{url(upstream)}#for-next", cache)
    assert (base.path / "Kbuild").read_text() == "obj-y += next/\n"


def test_many_fetches_do_not_pile_up(
    upstream: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "_PACKS", 1)
    obtain(f"{url(upstream)}#master", cache)
    obtain(f"{url(upstream)}#for-next", cache)
    packs = [*remote.repository(cache).glob("objects/pack/*.pack")]
    assert len(packs) <= 1


def test_trees_of_one_matrix_do_not_drive_each_other_out(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kstall.tree.store._IDLE_S", -1)
    tops = [write(tmp_path / f"linux-{n}", Kbuild=f"# {n}\n") for n in range(5)]
    # Nobody holds them.
    paths = [source.obtain(top, cache, lambda _: None, keep=5).path for top in tops]
    assert all(path.is_dir() for path in paths)
    more = write(tmp_path / "more", Kbuild="# more\n")
    obtain(str(more), cache)
    assert sum(path.is_dir() for path in paths) == 2
