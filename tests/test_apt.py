# SPDX-License-Identifier: GPL-2.0-or-later
"""The newest Debian package, asked for with an apt of our own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kstall.base import KstallError, cache
from kstall.debian import apt

PACKAGE = "linux-source-7.3"
DAY = 24 * 3600.0
APT_GET = """\
#!/bin/sh -e
# Speaks like apt-get; $FAKE has the version that the archive holds, per suite.
suite=$(sed -n 's/.* \\(\\S*\\) main$/\\1/p' ../sources.list)
echo "$suite $*" >> "$FAKE/log"
cp "$APT_CONFIG" ../sources.list "$FAKE/"
case "$*" in
*update)
    test -e "$FAKE/up" || { echo "Err:1 http://m trixie InRelease"; exit 100; }
    ;;
*--print-uris*)
    version=$(cat "$FAKE/$suite") || exit 100
    echo "'http://m/p.deb' linux-source-7.3_${version}_all.deb 1000 SHA256:0"
    ;;
*download*)
    version=$(cat "$FAKE/$suite")
    echo "$version" > "linux-source-7.3_${version}_all.deb"
    ;;
esac
"""
APT_CONFIG = """\
#!/bin/sh
echo 'Acquire::http::Proxy "http://proxy.example:3128";'
echo 'APT::Update::Post-Invoke:: "rm -rf /everything";'
"""


class Archive:
    """A fake apt on PATH, an /etc/apt, and the versions it finds."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.etc = place / "etc"
        self.etc.mkdir()
        (self.etc / "sources.list").write_text("deb http://m/debian bookworm main\n")
        self.bin = place / "bin"
        self.bin.mkdir()
        for name, text in (("apt-get", APT_GET), ("apt-config", APT_CONFIG)):
            (self.bin / name).write_text(text)
            (self.bin / name).chmod(0o755)
        self.up()
        self.messages: list[str] = []

    def up(self) -> None:
        (self.place / "up").touch()

    def down(self) -> None:
        (self.place / "up").unlink()

    def has(self, version: str, suite: str = "trixie-backports") -> None:
        (self.place / suite).write_text(version)

    def asked(self) -> int:
        log = self.place / "log"
        return log.read_text().count("update") if log.exists() else 0

    def newest(self, now: float) -> apt.Deb:
        self.messages.clear()
        store = self.place / "store"
        return apt.newest(PACKAGE, store, self.messages.append, now=now, etc=self.etc)


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Archive:
    mirror = Archive(tmp_path)
    monkeypatch.setenv("PATH", f"{mirror.bin}:{os.environ['PATH']}")
    monkeypatch.setenv("FAKE", str(tmp_path))
    monkeypatch.setattr(apt, "keyring", lambda: Path("/keys.gpg"))
    return mirror


def test_fetched_once_and_not_asked_for_again_that_day(archive: Archive) -> None:
    archive.has("7.3.4-1")
    deb = archive.newest(DAY)
    assert (deb.version, deb.path.name) == ("7.3.4-1", f"{PACKAGE}_7.3.4-1_all.deb")
    assert deb.path.read_text() == "7.3.4-1\n"
    assert archive.messages == [
        f"fetching {PACKAGE} 7.3.4-1 from trixie-backports (0 MB)"
    ]
    assert archive.newest(DAY + 3600) == deb
    assert archive.asked() == 1 and archive.messages == []
    assert archive.newest(2 * DAY + 1) == deb
    assert archive.asked() == 2 and archive.messages == []
    assert list(deb.path.parent.glob("kstall-*")) == []


def test_two_runs_fetch_different_packages_at_once(archive: Archive) -> None:
    """Both are kept in one directory."""
    archive.has("7.3.4-1")
    store = archive.place / "store"

    def say(text: str) -> None:
        apt.newest("linux-source-7.2", store, lambda _: None, now=0, etc=archive.etc)

    deb = apt.newest(PACKAGE, store, say, now=0, etc=archive.etc)
    assert deb.path.read_text() == "7.3.4-1\n"
    assert list(store.glob("kstall-*")) == []


def test_what_only_the_release_still_has_comes_from_there(archive: Archive) -> None:
    archive.has("6.12.1-1", "trixie")
    assert archive.newest(DAY).version == "6.12.1-1"
    assert archive.messages == [f"fetching {PACKAGE} 6.12.1-1 from trixie (0 MB)"]


def test_a_newer_one_is_taken_and_said(archive: Archive) -> None:
    archive.has("7.3.4-1")
    old = archive.newest(0)
    archive.has("7.3.5-1")
    assert archive.newest(DAY - 1) == old
    assert archive.newest(DAY + 1).version == "7.3.5-1"
    assert any(
        line.endswith(
            "7.3.5-1: this run uses it instead of 7.3.4-1, which is still there: "
            f"{old.path}"
        )
        for line in archive.messages
    )
    assert old.path.exists()
    archive.has("7.3.6-1")
    archive.newest(3 * DAY)
    assert not old.path.exists()  # the store keeps two


@pytest.mark.fault("truncated", "the package with the kernel's sources")
def test_one_that_was_cut_short_is_fetched_again(archive: Archive) -> None:
    archive.has("7.3.4-1")
    known = archive.newest(0)
    os.truncate(known.path, 3)
    with cache.remarked() as remarks:
        assert archive.newest(60) == known
    assert known.path.read_text() == "7.3.4-1\n"
    assert archive.asked() == 2
    assert remarks[0].startswith(f"{known.path} is damaged (3 bytes instead of 8)")


@pytest.mark.fault("clock", "it goes back a day after the mirror was asked")
def test_the_mirror_is_asked_again_when_the_clock_went_back(archive: Archive) -> None:
    archive.has("7.3.4-1")
    known = archive.newest(10 * DAY)
    archive.has("7.3.5-1")
    assert archive.newest(9 * DAY).version == "7.3.5-1"
    assert known.path.exists()
    assert archive.newest(9 * DAY + 60).version == "7.3.5-1"
    assert archive.asked() == 2


@pytest.mark.fault("no mirror", "for the kernel's sources, of which there are some")
def test_without_a_mirror_the_last_one_is_used_and_said(archive: Archive) -> None:
    archive.has("7.3.4-1")
    known = archive.newest(0)
    archive.down()
    assert archive.newest(2 * DAY) == known
    assert "using linux-source-7.3 7.3.4-1, fetched before" in archive.messages[0]
    # Finding out that there is no network can be slow: not at every run.
    asked = archive.asked()
    assert archive.newest(2 * DAY + 60) == known
    assert archive.asked() == asked
    archive.newest(2 * DAY + 2 * 3600)
    assert archive.asked() == asked + 1


@pytest.mark.fault("no mirror", "for the kernel's sources, of which there are none")
def test_without_a_mirror_and_without_a_package(archive: Archive) -> None:
    archive.down()
    with pytest.raises(KstallError, match="cannot be read: Err:1") as caught:
        archive.newest(0)
    assert "KERNEL=" in str(caught.value)
    assert list((archive.place / "store").glob("kstall-*")) == []


def test_the_next_suite_is_asked_when_the_first_has_none(archive: Archive) -> None:
    archive.has("7.3.9-1", suite="sid")
    assert archive.newest(0).version == "7.3.9-1"
    (archive.place / "sid").unlink()
    archive.newest(0)
    with pytest.raises(KstallError, match="Debian has no linux-source"):
        apt.newest(PACKAGE, archive.place / "b", print, now=0, etc=archive.etc)


def test_it_shares_only_the_way_to_the_network(archive: Archive) -> None:
    archive.has("7.3.4-1")
    archive.newest(0)
    config = (archive.place / "apt.conf").read_text()
    assert 'Acquire::http::Proxy "http://proxy.example:3128";' in config
    assert "Post-Invoke" not in config
    for line in config.splitlines():
        if "Dir::" in line and "/dev/null" not in line:
            assert str(archive.place / "store") in line
    sources = (archive.place / "sources.list").read_text()
    assert (
        sources == "deb [signed-by=/keys.gpg] http://m/debian trixie-backports main\n"
    )


def test_without_apt_the_way_out_is_named(
    archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(archive.place / "nowhere"))
    with pytest.raises(KstallError, match="without apt") as caught:
        archive.newest(0)
    assert "KERNEL=" in str(caught.value)
