# SPDX-License-Identifier: GPL-2.0-or-later
"""Each series as mails: sent, received, applied, and the tree that was proven again."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

import postbox
import synthetic
from kstall import cache, contributor, export, source, tree
from kstall.am import read
from kstall.series import Project
from kstall.source import Base

# No boot, but the kernel's source is needed.
pytestmark = pytest.mark.live

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def base() -> Base:
    """Debian's newest kernel source, as `kstall series` takes it."""
    return source.obtain(None, cache.default_dir(), lambda _: None)


def _finished(project: Project) -> Project:
    """Without places that are yet to be filled in."""
    for path in project.patches.glob("*/*"):
        if path.suffix in (".patch", ".txt"):
            text = path.read_text()
            filled = re.sub(r"@@[A-Z]\w*@@", "(a run's)", text)
            if filled != text:
                path.write_text(filled)
    return project


def _signed(request: export.Request, name: str, base: Base) -> export.Exported:
    """What a contributor does: look at what a sign-off means, and then sign off."""
    (series,) = request.project.load([name])
    with pytest.raises(contributor.NotCertified) as shown:
        export.export(vars_with(request, ""), series, base)
    assert "Developer's Certificate of Origin 1.1" in str(shown.value)
    assert "Assisted-by: LLM" in str(shown.value)
    match = re.search(r"--sign-off=(\w+)", str(shown.value))
    assert match is not None
    return export.export(vars_with(request, match[1]), series, base)


def vars_with(request: export.Request, key: str) -> export.Request:
    """``request`` with a sign-off."""
    return export.Request(**{**vars(request), "sign_off": key})


@pytest.mark.parametrize("name", Project(ROOT).names())
def test_there_and_back(
    base: Base,
    project_copy: Project,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    home = tmp_path / "home"
    for key, value in postbox.environment(home).items():
        monkeypatch.setenv(key, value)
    project = _finished(project_copy)
    (series,) = project.load([name])
    out = tmp_path / "out"
    synthetic.prove(series, base, out)
    request = export.Request(project, None, cache.default_dir(), out)
    done = _signed(request, name, base)
    plan = tree.plan(base, series.patches, tmp_path)

    with postbox.server() as (box, port):
        postbox.send(shlex.split(done.send), port, home)
    mails = box.parsed()
    count = len(series.patches)
    assert len(mails) == count + 1

    cover = mails[0]
    for number, mail in enumerate(mails):
        assert str(mail["subject"]).startswith(f"[PATCH {number}/{count}] ")
        assert mail["from"].addresses[0].display_name == postbox.NAME
        assert mail["from"].addresses[0].addr_spec == postbox.ADDRESS
        assert mail.get_content_type() == "text/plain"
        assert max(map(len, box.mails[number].split(b"\r\n"))) <= 998
        wanted = {one.address for one in done.letters[number].recipients}
        assert set(box.receivers[number]) - {postbox.ADDRESS} == wanted
        named = [one.addr_spec for f in ("to", "cc") for one in mail[f].addresses]
        assert sorted(named) == sorted(wanted)
        if number:
            assert mail["in-reply-to"] == cover["message-id"]
            assert f"Signed-off-by: {postbox.NAME}" in mail.get_content()
    assert series.spec.subsystem.list in {
        one.addr_spec for one in cover["to"].addresses
    }

    mbox = box.mbox(tmp_path / "received.mbox")
    pristine = dict(plan.states[0])
    by_am = postbox.checkout(pristine, tmp_path / "am", home)
    postbox.b4("am", "-m", mbox, "-o", tmp_path / "b4", cwd=by_am, home=home)
    (ready,) = (tmp_path / "b4").glob("*.mbx")
    postbox.run(("git", "am", "-q", ready), by_am, home)
    by_shazam = postbox.checkout(pristine, tmp_path / "shazam", home)
    postbox.b4("shazam", "-m", mbox, cwd=by_shazam, home=home)
    by_files = postbox.checkout(pristine, tmp_path / "files", home)
    files = [done.dir / letter.name for letter in done.letters[1:]]
    postbox.run(("git", "am", "-q", *files), by_files, home)
    by_mbox = postbox.checkout(pristine, tmp_path / "mbox", home)
    postbox.b4("shazam", "-m", done.mbox, cwd=by_mbox, home=home)

    for work in (by_am, by_shazam, by_files, by_mbox):
        found = {path: read(work / path) for path in plan.files}
        assert found == plan.files
        assert postbox.tracked(work, home) <= set(plan.files)
        log = postbox.run(
            ("git", "log", "--format=%an <%ae>%n%s%n%b", "-z"), work, home
        )
        commits = log.split("\0")
        assert len([one for one in commits if one.strip()]) == count + 1
        who = f"{postbox.NAME} <{postbox.ADDRESS}>"
        for commit, patch in zip(
            reversed(commits[:count]), series.patches, strict=True
        ):
            assert commit.startswith(f"{who}\n{patch.subject}\n")
            assert commit.count(f"Signed-off-by: {who}") == 1
