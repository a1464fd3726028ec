# SPDX-License-Identifier: GPL-2.0-or-later
"""Each series as mails: sent, received, applied, and the tree that was proven again."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

import postbox
import synthetic
from kstall.base import cache
from kstall.mail import adopt, export, incoming, prep
from kstall.series import Project
from kstall.tree import Base, source, tree
from kstall.tree.am import read

# No boot, but the kernel's source is needed.
pytestmark = pytest.mark.live

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = (
    *("Makefile", "Kbuild", "MAINTAINERS", ".get_maintainer.ignore", ".mailmap"),
    *("scripts/get_maintainer.pl", "scripts/checkpatch.pl", "scripts/spelling.txt"),
    *(
        "scripts/const_structs.checkpatch",
        "Documentation/process/coding-assistants.rst",
    ),
    "Documentation/process/submitting-patches.rst",
    # By these checkpatch.pl knows the top of a tree.
    *("COPYING", "CREDITS", "README", "arch/Kconfig", "drivers/Kconfig", "fs/Kconfig"),
    *("include/linux/init.h", "init/Kconfig", "ipc/Makefile", "kernel/Makefile"),
    "lib/Kconfig",
)


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


@pytest.mark.parametrize(
    "name",
    [series.name for series in Project(ROOT).load() if series.not_sent is None],
)
def test_there_and_back(
    base: Base,
    project_copy: Project,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    """In a git checkout of what the series touches, with the tree's own scripts."""
    home = tmp_path / "home"
    for key, value in postbox.environment(home).items():
        monkeypatch.setenv(key, value)
    project = _finished(project_copy)
    (series,) = project.load([name])
    files = tree.pristine(base, [*sorted(series.touches), *SCRIPTS])
    linux = postbox.checkout(files, tmp_path / "linux", home)
    ours = source.obtain(linux, tmp_path / "cache", lambda _: None)
    out = tmp_path / "out"
    synthetic.prove(series, ours, out)
    request = export.Export(project, linux, tmp_path / "cache", out)
    done = postbox.sign_off(request, name, ours)
    assert f"\nbase-commit: {ours.commit}\n" in done.letters[0].content.decode()
    # What was proven is what the whole kernel becomes.
    plan = tree.plan(base, series.patches, tmp_path)

    with postbox.server() as (box, port):
        postbox.send(shlex.split(done.send), port, home)
    _arrived(done, box)
    received = box.mbox(tmp_path / "received.mbox")
    _applied(done, plan, received, home)
    _prepared(done, linux, home)

    scratch = tmp_path / "scratch"
    posting = incoming.read(str(received), scratch)
    came = incoming.receive(posting, project, base, tmp_path / "came", scratch)
    assert came.resemblance is not None
    assert came.resemblance.series.name == name
    assert came.resemblance.same_tree
    assert {pair.relation for pair in came.resemblance.pairs} == {"same"}
    points = [(p.event, p.kind == "bare", p.header) for p in series.spec.tracepoint]
    events = [(p.event, p.bare, p.header) for p in came.points]
    assert sorted(events) == sorted(points)
    assert (
        incoming.adopted(came, project, None, level="full", trusted=True).name == name
    )
    if series.spec.tracepoint:
        # As if we had never seen it.
        strange = (came.plan, came.points, came.thread.title)
        adopted = adopt.unknown(project, tmp_path / "strange", *strange, None)
        assert [point.event for point in adopted.spec.tracepoint] == [
            x[0] for x in events
        ]
        assert adopted.touches == series.touches


def _arrived(done: export.Exported, box: postbox.Postbox) -> None:
    """What the server got is what was to be sent, to whom it was to be sent."""
    mails = box.parsed()
    count = len(done.series.patches)
    assert len(mails) == count + 1
    cover = mails[0]
    for number, mail in enumerate(mails):
        assert str(mail["subject"]).startswith(f"[PATCH {number}/{count}] ")
        assert mail["from"].addresses[0].display_name == postbox.NAME
        assert mail["from"].addresses[0].addr_spec == postbox.ADDRESS
        assert mail.get_content_type() == "text/plain"
        assert max(map(len, box.mails[number].split(b"\r\n"))) <= 998
        wanted = {recipient.address for recipient in done.letters[number].recipients}
        assert set(box.receivers[number]) - {postbox.ADDRESS} == wanted
        named = [
            address.addr_spec for f in ("to", "cc") for address in mail[f].addresses
        ]
        assert sorted(named) == sorted(wanted)
        if number:
            assert mail["in-reply-to"] == cover["message-id"]
            assert f"Signed-off-by: {postbox.NAME}" in mail.get_content()
    acting = {address.addr_spec for address in cover["to"].addresses}
    assert done.series.spec.subsystem.list in acting


def _applied(done: export.Exported, plan: tree.Plan, mbox: Path, home: Path) -> None:
    """Whichever way the mails are applied, it is the tree that was proven."""
    root = mbox.parent
    pristine = dict(plan.states[0])
    by_am = postbox.checkout(pristine, root / "am", home)
    postbox.b4("am", "-m", mbox, "-o", root / "b4", cwd=by_am, home=home)
    (ready,) = (root / "b4").glob("*.mbx")
    postbox.run(("git", "am", "-q", ready), by_am, home)
    by_shazam = postbox.checkout(pristine, root / "shazam", home)
    postbox.b4("shazam", "-m", mbox, cwd=by_shazam, home=home)
    by_files = postbox.checkout(pristine, root / "files", home)
    files = [done.dir / letter.name for letter in done.letters[1:]]
    postbox.run(("git", "am", "-q", *files), by_files, home)
    by_mbox = postbox.checkout(pristine, root / "mbox", home)
    postbox.b4("shazam", "-m", done.dir / "thread.mbox", cwd=by_mbox, home=home)

    count = len(done.series.patches)
    who = f"{postbox.NAME} <{postbox.ADDRESS}>"
    for work in (by_am, by_shazam, by_files, by_mbox):
        assert {path: read(work / path) for path in plan.files} == plan.files
        assert postbox.tracked(work, home) <= set(plan.files)
        log = postbox.run(
            ("git", "log", "--format=%an <%ae>%n%s%n%b", "-z"), work, home
        )
        commits = log.split("\0")
        assert len([entry for entry in commits if entry.strip()]) == count + 1
        for commit, patch in zip(
            reversed(commits[:count]), done.series.patches, strict=True
        ):
            assert commit.startswith(f"{who}\n{patch.subject}\n")
            assert commit.count(f"Signed-off-by: {who}") == 1


def _prepared(done: export.Exported, linux: Path, home: Path) -> None:
    """b4 takes the branch for its own."""
    postbox.run(("git", "switch", "-q", prep.branch(done, linux)), linux, home)
    output = postbox.b4("prep", "--check", cwd=linux, home=home)
    # For who wants to see it: pytest -s.
    print(output)
    match = re.search(r"Success: (\d+), Warning: (\d+), Error: (\d+)", output)
    assert match is not None
    # All that checkpatch says is argued, and b4 was told so.
    assert set(done.remarks) == set(done.argued)
    assert [int(n) for n in match.groups()] == [len(done.series.patches), 0, 0]
    sent = linux.parent / "sent"
    postbox.b4("send", "--no-sign", "-o", sent, cwd=linux, home=home)
    # b4 puts the cover of a single patch below its "---".
    count = len(done.series.patches)
    assert len(list(sent.glob("*.eml"))) == (1 if count == 1 else count + 1)
