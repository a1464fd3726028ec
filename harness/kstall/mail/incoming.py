# SPDX-License-Identifier: GPL-2.0-or-later
"""``kstall check-thread``: a series from a mailing list, up to where validation begins.

It is split, put in order by b4, applied to the base, compared with the series of this
checkout, and searched for tracepoints.  ``<out>/threads/<name>/`` gets the patches as
they apply, the findings, and the project to validate.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path

from ..base import KstallError, cache, process
from ..lint import checkpatch, discover
from ..series import Level, Project, Series, patchfile
from ..tree import git, source, tree
from . import adopt, compare, hostcode, mail, thread

_MESSAGE_ID = re.compile(r"[\w.+=%$!#&'*/?^`{|}~-]+@[\w.-]+", re.ASCII)
_LORE = re.compile(r"https?://[\w.-]+/(?:[\w.-]+/)*(?P<id>[^/\s]+@[^/\s]+)/?")
_FETCH_S = 300.0
_B4_S = 120.0


@dataclass(frozen=True)
class Incoming:
    """A received series that applies; ``dir`` has it on disk."""

    dir: Path
    thread: thread.ReceivedThread
    plan: tree.Plan
    resemblance: compare.Resemblance | None
    points: tuple[discover.NewTracepoint, ...]
    remarks: tuple[checkpatch.CheckpatchRemark, ...]


def read(
    origin: str, scratch: Path, version: int | None = None
) -> thread.ReceivedThread:
    """Read the thread at ``origin``: a file, a directory or a message-id.

    It needs no kernel, so that a typo is reported before one is fetched.  Raises
    `thread.BadThread`, a verdict on the series, and `KstallError`.
    """
    posting = thread.read(_fetch(origin, scratch), scratch, version)
    for message in _mails(posting):
        if not message.message_id:
            raise KstallError(
                f"{origin}: {message.subject}: has no Message-ID: header, without "
                "which b4 takes no mail",
                next="give the mails as they were sent, or write patches with "
                "`git format-patch --thread`",
            )
    return posting


def receive(
    posting: thread.ReceivedThread,
    project: Project,
    base: source.Base,
    out: Path,
    scratch: Path,
) -> Incoming:
    """Apply a thread that was `read`, and look at what it adds.

    Raises `thread.BadThread`, a verdict on the series, `am.ApplyError` if it does not
    apply to this base, and `KstallError`.
    """
    files = _ready(posting, scratch)
    name = _slug(posting.title) or "thread"
    contents = [file.read_bytes() for file in files]
    digest = cache.digest([content.decode("latin-1") for content in contents])[:8]
    directory = out / "threads" / f"{name}-v{posting.version}-{digest}"
    with cache.publish(directory) as staging:
        (staging / "patches").mkdir()
        for number, (message, content) in enumerate(
            zip(posting.patches, contents, strict=True), 1
        ):
            path = staging / "patches" / f"{number:04}-{_slug(message.subject)}.patch"
            path.write_bytes(content)
    patches = [patchfile.parse(path) for path in sorted(directory.glob("patches/*"))]
    plan = tree.plan(base, patches, scratch)
    candidates = project.load() if project.names() else ()
    return Incoming(
        directory,
        posting,
        plan,
        compare.find(plan, candidates, scratch),
        discover.tracepoints(plan),
        checkpatch.run(base, [patch.path for patch in patches], scratch, signed=True),
    )


def runs_here(incoming: Incoming, level: Level) -> tuple[str, ...]:
    """Touched files that may run code on this machine in a proof at ``level``.

    The same patches as ours have none.  A file that a later patch restores counts, for
    each state is built.
    """
    if incoming.resemblance is not None and incoming.resemblance.same_patches:
        return ()
    return hostcode.among(incoming.plan.files, incoming.plan.base, level)


def adopted(
    incoming: Incoming,
    project: Project,
    kconfig: Path | None,
    workload: Path | None = None,
    *,
    level: Level,
    trusted: bool,
) -> Series:
    """The series to validate, in a project of its own below the thread's directory.

    A known series has its own configuration and workloads; if either is given, it is
    treated as unknown.  Unless ``trusted``, it may not change files that may run code
    on this machine in a proof at ``level``.
    """
    if not trusted and (risky := runs_here(incoming, level)):
        raise KstallError(
            "the patches change files that may run code on this machine, not in the "
            f"guest: {', '.join(risky)}",
            next="read these changes, then add --trusted",
        )
    target = incoming.dir / "project"
    cache.remove(target)
    own_setup = kconfig is None and workload is None
    if incoming.resemblance is not None and incoming.resemblance.complete and own_setup:
        return adopt.known(project, target, incoming.resemblance)
    return adopt.unknown(
        project,
        target,
        incoming.plan,
        incoming.points,
        title=incoming.thread.title,
        kconfig=kconfig,
        workload=workload,
    )


def _mails(posting: thread.ReceivedThread) -> list[thread.ReceivedMail]:
    return [*([posting.cover] if posting.cover else []), *posting.patches]


def _fetch(origin: str, scratch: Path) -> Path:
    """The path ``origin``, or the thread that b4 fetches if it is a message-id."""
    path = Path(origin).expanduser()
    if path.exists():
        return path
    link = _LORE.fullmatch(origin)
    message_id = link["id"] if link else origin.strip("<>")
    if not _MESSAGE_ID.fullmatch(message_id) or message_id.startswith("-"):
        raise KstallError(
            f"{origin}: neither a file nor a message-id",
            next="name an mbox, a directory of mails, or a message-id",
        )
    target = scratch / "fetched"
    target.mkdir(parents=True)
    words = ("mbox", "-n", "thread", "-o", target, message_id)
    try:
        completed = process.run(_b4(*words), timeout=_FETCH_S)
    except process.CommandError as error:
        raise KstallError(
            f"b4 cannot fetch {message_id}:\n{error.output.strip()}",
            next="check the network, and that lore.kernel.org has it",
        ) from error
    mboxes = list(target.iterdir())
    if len(mboxes) != 1:
        raise KstallError(
            f"b4 fetched nothing for {message_id}:\n{completed.stdout.strip()}"
        )
    return mboxes[0]


def _b4(*words: str | Path) -> tuple[str | Path, ...]:
    argv = (sys.executable, "-m", "b4.command", "--no-interactive", "--no-stdin")
    return (*argv, *words)


def _ready(posting: thread.ReceivedThread, scratch: Path) -> list[Path]:
    """The patches as `b4 am` prepares them for `git am`, a file each."""
    home = scratch / "b4"
    work = home / "work"
    work.mkdir(parents=True)
    git.git("init", "-q", "--template=", work)
    mbox = home / "thread.mbox"
    mbox.write_bytes(
        b"".join(mail.quoted(message.content) for message in _mails(posting))
    )
    words = ("--offline-mode", "am", "-m", mbox, "-v", str(posting.version))
    try:
        completed = process.run(
            _b4(*words, "-o", home / "ready", "-n", "series", "--no-cover"),
            cwd=work,
            # Local files only: the user's configuration must not matter.
            env={
                "HOME": str(home),
                "XDG_CONFIG_HOME": str(home / "config"),
                "XDG_CACHE_HOME": str(home / "cache"),
                "XDG_DATA_HOME": str(home / "data"),
                "GIT_CONFIG_GLOBAL": "/dev/null",
                "LC_ALL": "C.UTF-8",
            },
            timeout=_B4_S,
        )
    except process.CommandError as error:
        raise thread.BadThread(
            f"b4 rejects the thread:\n{error.output.strip()}"
        ) from error
    (home / "split").mkdir()
    ready = list((home / "ready").glob("*.mbx"))
    for file in ready[:1]:
        git.git("mailsplit", "--mboxrd", f"-o{home / 'split'}", file)
    files = sorted((home / "split").iterdir())
    if len(files) != len(posting.patches):
        raise thread.BadThread(
            f"b4 makes {len(files)} patches of {len(posting.patches)}:\n"
            f"{completed.stdout.strip()}"
        )
    return files


def _slug(title: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")[:52].rstrip("-")


def text(incoming: Incoming) -> str:
    """The findings, for a terminal."""
    moved = len(incoming.plan.offsets)
    count = len(incoming.thread.patches)
    lines = [
        f"{incoming.thread.title} (v{incoming.thread.version}), "
        f"{count} patch{'' if count == 1 else 'es'}",
        *(f"left out: {ignored}" for ignored in incoming.thread.ignored),
        "",
        f"applies to {incoming.plan.base.id} ({incoming.plan.base.describe}): "
        f"{len(incoming.plan.touched)} files"
        + (f", {moved} hunks at an offset" if moved else ""),
        f"checkpatch --strict: {checkpatch.summary(incoming.remarks)}",
        *(
            f"  {remark.file}:{remark.line}: {remark.level} {remark.kind}: "
            f"{remark.text}"
            for remark in incoming.remarks
            if remark.level != "CHECK"
        ),
        "",
        *_compared(incoming.resemblance),
        "",
        "added tracepoints:" if incoming.points else "no added tracepoints",
    ]
    for point in incoming.points:
        kind = "bare" if point.bare else "event"
        lines.append(f"  {point.event} ({kind}), {point.header}")
        lines += [f"    in {function}() of {file}" for file, function in point.sites]
        if not point.sites:
            lines.append("    no caller was found")
    return "\n".join(lines) + "\n"


def _compared(resemblance: compare.Resemblance | None) -> list[str]:
    if resemblance is None:
        return ["it is no version of a series of this checkout"]
    lines = [
        f"it is {resemblance.series.name}"
        + (
            ", and results in the same tree"
            if resemblance.same_tree
            else ", and results in a different tree"
        )
    ]
    for pair in resemblance.pairs:
        patch = pair.ours or pair.theirs
        assert patch is not None
        lines.append(f"  {pair.relation:8} {patch.subject}")
    if not resemblance.same_tree and resemblance.range_diff:
        lines += ["", "range-diff, ours against theirs:", resemblance.range_diff]
    return lines
