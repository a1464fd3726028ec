# SPDX-License-Identifier: GPL-2.0-or-later
"""Root: its package list, its key, the command that makes it; one real run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kstall.base import KstallError, process
from kstall.debian import debian, root

LISTING = Path(__file__).parent.parent / "scripts/guest-packages.txt"


def test_listing_of_the_project_is_valid() -> None:
    assert {"bpftrace", "kmod", "dwarves"} <= set(root.packages(LISTING))


def test_listing_takes_comments_and_blank_lines(tmp_path: Path) -> None:
    listing = tmp_path / "list"
    listing.write_text("# what for\nkmod\n\nlibc6 # the C library\n")
    assert root.packages(listing) == ("kmod", "libc6")


def test_bad_name_is_located(tmp_path: Path) -> None:
    listing = tmp_path / "list"
    listing.write_text("kmod\n--include=evil\n")
    with pytest.raises(KstallError, match=r"list:2: not a package name: --include"):
        root.packages(listing)


def test_key_ignores_order_and_repetition(monkeypatch: pytest.MonkeyPatch) -> None:
    assert root.key_of(["a1", "b2"]) == root.key_of(["b2", "a1", "b2"])
    assert root.key_of(["a1"]) != root.key_of(["a1", "b2"])
    before = root.key_of(["a1"])
    monkeypatch.setattr(root, "SUITE", "sid")
    assert root.key_of(["a1"]) != before


def test_command_verifies_with_debians_keys(tmp_path: Path) -> None:
    argv = root.mmdebstrap_argv(
        ["kmod", "bpftrace"],
        "http://deb.example/debian",
        Path("/k.gpg"),
        tmp_path / "root.tar",
    )
    assert argv[:5] == [
        "mmdebstrap",
        f"--mode={'root' if os.geteuid() == 0 else 'unshare'}",
        "--variant=essential",
        "--include=kmod,bpftrace",
        "--keyring=/k.gpg",
    ]
    assert "--dpkgopt=path-exclude=/usr/share/doc/*" in argv
    assert argv[-3:] == [
        "trixie",
        str(tmp_path / "root.tar"),
        "deb http://deb.example/debian trixie main",
    ]


def test_versions_are_those_of_installed_packages(tmp_path: Path) -> None:
    status = tmp_path / "var/lib/dpkg/status"
    status.parent.mkdir(parents=True)
    status.write_text(
        "Package: kmod\nStatus: install ok installed\nVersion: 34.2-2\n"
        "Description: tools\n more: text\n\n"
        "Package: gone\nStatus: deinstall ok config-files\nVersion: 1\n"
    )
    assert root.versions(tmp_path) == {"kmod": "34.2-2"}


def test_failed_mmdebstrap_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(argv: list[str], **_: object) -> None:
        raise process.CommandError(argv, 100, "I: working\nE: no such package: nope\n")

    monkeypatch.setattr(process, "run", fail)
    monkeypatch.setattr(debian, "mirror_for", lambda _: "http://deb.example")
    monkeypatch.setattr(debian, "keyring", lambda: Path("/k.gpg"))
    with pytest.raises(KstallError, match="E: no such package: nope"):
        root.obtain(["nope"], tmp_path, lambda _: None, log=tmp_path / "log")
    assert [p.suffix for p in (tmp_path / "roots").iterdir()] == [".lock"]


def test_mmdebstrap_works_where_the_next_run_sweeps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Path] = []

    def fail(argv: list[str], env: dict[str, str], **_: object) -> None:
        seen.append(Path(env["TMPDIR"]))
        assert (seen[0] / ".kstall-scratch").exists()
        # Or those whose ids it works with cannot get in.
        assert seen[0].stat().st_mode & 0o777 == 0o711
        raise process.CommandError(argv, 100, "E: no such package: nope\n")

    monkeypatch.setattr(process, "run", fail)
    monkeypatch.setattr(debian, "mirror_for", lambda _: "http://deb.example")
    monkeypatch.setattr(debian, "keyring", lambda: Path("/k.gpg"))
    with pytest.raises(KstallError):
        root.obtain(["nope"], tmp_path, lambda _: None, log=tmp_path / "log")
    assert len(seen) == 1 and not seen[0].exists()


@pytest.mark.live
def test_real_root_is_made_once(tmp_path: Path) -> None:
    messages: list[str] = []
    log = tmp_path / "root.log"
    first = root.obtain(["kmod", "pahole"], tmp_path, messages.append, log=log)
    assert not first.reused
    assert first.versions["kmod"]
    assert first.image.stat().st_size > 1 << 20
    assert process.run([first.pahole, "--version"]).stdout.startswith("v1.")
    assert any("installing" in line for line in messages)
    again = root.obtain(["pahole", "kmod"], tmp_path, messages.append, log=log)
    assert again.reused
    assert again.path == first.path
