# SPDX-License-Identifier: GPL-2.0-or-later
"""Which Debian mirror a machine's apt sources lead to."""

from __future__ import annotations

from pathlib import Path

import pytest

from kstall.base import KstallError
from kstall.debian import debian
from kstall.debian.debian import Mirror

ARCHIVE_KEY = "/usr/share/keyrings/debian-archive-keyring.gpg"


def apt(etc: Path, **files: str) -> Path:
    """An /etc/apt with ``list``, ``sources`` ... files, named by their ending."""
    parts = etc / "sources.list.d"
    parts.mkdir(parents=True, exist_ok=True)
    for ending, text in files.items():
        (parts / f"test.{ending}").write_text(text)
    return etc


def test_one_line_sources_with_options_and_security(tmp_path: Path) -> None:
    (tmp_path / "sources.list").write_text(
        "# deb http://old.example/debian buster main\n"
        "deb [arch=amd64] http://mirror.example/debian/ bookworm main contrib\n"
        "deb http://mirror.example/debian bookworm-updates main\n"
        "deb-src http://src.example/debian bookworm main\n"
        "deb http://security.example/debian-security bookworm-security main\n"
    )
    assert debian.mirrors(tmp_path) == (
        Mirror("http://mirror.example/debian", False),
        Mirror("http://security.example/debian-security", True),
    )
    assert debian.mirror_for("trixie", tmp_path) == "http://mirror.example/debian"
    assert debian.mirror_for("trixie-security", tmp_path).endswith("-security")


def test_deb822_sources_with_comment_inside_and_two_stanzas(tmp_path: Path) -> None:
    etc = apt(
        tmp_path,
        sources="Types: deb deb-src\n# a comment inside the stanza\n"
        "URIs: https://proxy.example/archive\nSuites: bookworm bookworm-updates\n"
        f"Components: main\nSigned-By: {ARCHIVE_KEY}\n\n"
        "Types: deb\nURIs: https://off.example/debian\nSuites: bookworm\n"
        "Components: main\nEnabled: no\n",
    )
    assert debian.mirrors(etc) == (Mirror("https://proxy.example/archive", False),)


@pytest.mark.parametrize(
    "line",
    [
        "deb https://vendor.example/linux/debian bookworm stable",
        "deb https://vendor.example/chrome/deb stable main",
        "deb [signed-by=/etc/apt/keyrings/v.gpg] https://v.example/deb bookworm main",
        "deb https://vendor.example/apt bookworm-pgdg main",
        "deb http://archive.ubuntu.example/ubuntu noble main universe",
        "deb cdrom:[Debian GNU/Linux 12]/ bookworm main",
        "deb http://flat.example/repo ./",
    ],
)
def test_other_vendors_are_left_out(tmp_path: Path, line: str) -> None:
    etc = apt(tmp_path, list=line + "\n")
    assert debian.mirrors(etc) == ()
    with pytest.raises(KstallError, match="no Debian mirror for trixie"):
        debian.mirror_for("trixie", etc)


def test_a_sure_mirror_comes_before_a_likely_one(tmp_path: Path) -> None:
    etc = apt(
        tmp_path,
        list="deb http://corp.example/remote bookworm main\n"
        "deb http://sure.example/debian bookworm main\n",
        disabled="deb http://not-read.example/debian bookworm main\n",
    )
    assert [mirror.uri for mirror in debian.mirrors(etc)] == [
        "http://sure.example/debian",
        "http://corp.example/remote",
    ]


def test_a_mirror_list_is_opened(tmp_path: Path) -> None:
    listing = tmp_path / "debian.list"
    listing.write_text("# ours\nhttps://one.example/debian\tpriority:1\n")
    etc = apt(
        tmp_path / "apt",
        sources=f"Types: deb\nURIs: mirror+file://{listing}\nSuites: trixie\n"
        "Components: main\n",
    )
    assert debian.mirror_for("trixie", etc) == "https://one.example/debian"


def test_no_keyring_names_the_package(tmp_path: Path) -> None:
    with pytest.raises(KstallError, match="debian-archive-keyring"):
        debian.keyring(tmp_path)
