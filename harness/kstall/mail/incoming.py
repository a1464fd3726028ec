# SPDX-License-Identifier: GPL-2.0-or-later
"""``kstall check-thread``: a series from a mailing list, up to where validation begins.

It is taken apart, put in order by b4, applied to the base, compared with the series of
this checkout, and looked through for tracepoints.  ``<out>/threads/<name>/`` gets the
patches as they apply, what was found, and the project to validate.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path

from ..base import KstallError, cache, process
from ..lint import checkpatch, discover
from ..series import Project, Series, patchfile
from ..tree import git, source, tree
from . import adopt, compare, mail, thread

_MESSAGE_ID = re.compile(r"[\w.+=%$!#&'*/?^`{|}~-]+@[\w.-]+", re.ASCII)
_LORE = re.compile(r"https?://[\w.-]+/(?:[\w.-]+/)*(?P<id>[^/\s]+@[^/\s]+)/?")
# Makefiles and Kconfig run commands, and so do programs that they call.
_RUNS = re.compile(
    r"(?:^|/)(?:Makefile|Kbuild|Kconfig)[^/]*$|^(?:scripts|tools|usr)/|/tools/"
)
_FETCH_S = 300.0
_B4_S = 120.0


@dataclass(frozen=True)
class Incoming:
    """What came, as it applies: ``dir`` has it on disk."""

    dir: Path
    thread: thread.Thread
    plan: tree.Plan
    found: compare.Resemblance | None
    points: tuple[discover.Found, ...]
    remarks: tuple[checkpatch.Remark, ...]


def receive(
    what: str,
    project: Project,
    base: source.Base,
    out: Path,
    scratch: Path,
    *,
    version: int | None = None,
) -> Incoming:
    """Take in the thread that ``what`` names: a file, a directory or a message-id.

    Raises `thread.BadThread`, a verdict on the series, `am.ApplyError` if it is not for
    this base, and `KstallError`.
    """
    mails = _fetch(what, scratch)
    found = thread.read(mails, scratch, version)
    files = _ready(found, scratch)
    name = _slug(found.title) or "thread"
    contents = [file.read_bytes() for file in files]
    digest = cache.digest([content.decode("latin-1") for content in contents])[:8]
    directory = out / "threads" / f"{name}-v{found.version}-{digest}"
    with cache.publish(directory) as made:
        (made / "patches").mkdir()
        for number, (one, content) in enumerate(
            zip(found.patches, contents, strict=True), 1
        ):
            path = made / "patches" / f"{number:04}-{_slug(one.subject)}.patch"
            path.write_bytes(content)
    patches = [patchfile.parse(path) for path in sorted(directory.glob("patches/*"))]
    plan = tree.plan(base, patches, scratch)
    known = project.load() if project.names() else ()
    return Incoming(
        directory,
        found,
        plan,
        compare.find(plan, known, scratch),
        discover.tracepoints(plan),
        checkpatch.run(base, [patch.path for patch in patches], scratch, signed=True),
    )


def runs_here(came: Incoming) -> tuple[str, ...]:
    """What the patches change that runs on this machine while a kernel is built.

    All that is ours to the letter is left out.
    """
    if came.found is not None and came.found.same_tree:
        return ()
    return tuple(path for path in came.plan.touched if _RUNS.search(path))


def adopted(
    came: Incoming,
    project: Project,
    kconfig: Path | None,
    workload: Path | None = None,
    *,
    trusted: bool,
) -> Series:
    """The series to validate, in a project of its own below the thread's directory.

    One that is known has its own configuration and workloads, unless some are given;
    it is then taken for an unknown one.  Unless it is ``trusted``, it may not change
    what would run on this machine.
    """
    if (risky := runs_here(came)) and not trusted:
        raise KstallError(
            "the patches change what runs on this machine when they are built, and not "
            f"in the guest: {', '.join(risky)}",
            next="read these changes, then add --trusted",
        )
    target = came.dir / "project"
    cache.remove(target)
    ours = kconfig is None and workload is None
    if came.found is not None and came.found.complete and ours:
        return adopt.known(project, target, came.found)
    return adopt.unknown(
        *(project, target, came.plan, came.points, came.thread.title),
        *(kconfig, workload),
    )


def _fetch(what: str, scratch: Path) -> Path:
    """The file that ``what`` is, or the thread that b4 finds for a message-id."""
    path = Path(what).expanduser()
    if path.exists():
        return path
    link = _LORE.fullmatch(what)
    wanted = link["id"] if link else what.strip("<>")
    if not _MESSAGE_ID.fullmatch(wanted) or wanted.startswith("-"):
        raise KstallError(
            f"{what}: neither a file nor a message-id",
            next="name an mbox, a directory of mails, or a message-id",
        )
    target = scratch / "fetched"
    target.mkdir(parents=True)
    words = ("mbox", "-n", "thread", "-o", target, wanted)
    try:
        done = process.run(_b4(*words), timeout=_FETCH_S)
    except process.CommandError as error:
        raise KstallError(
            f"b4 cannot fetch {wanted}:\n{error.output.strip()}",
            next="is it on lore.kernel.org, and is there a network?",
        ) from error
    mboxes = list(target.iterdir())
    if len(mboxes) != 1:
        raise KstallError(f"b4 fetched nothing for {wanted}:\n{done.stdout.strip()}")
    return mboxes[0]


def _b4(*words: str | Path) -> tuple[str | Path, ...]:
    argv = (sys.executable, "-m", "b4.command", "--no-interactive", "--no-stdin")
    return (*argv, *words)


def _ready(found: thread.Thread, scratch: Path) -> list[Path]:
    """The patches as `b4 am` puts them for `git am`, a file each."""
    home = scratch / "b4"
    work = home / "work"
    work.mkdir(parents=True)
    git.git("init", "-q", "--template=", work)
    mbox = home / "thread.mbox"
    chosen = [*([found.cover] if found.cover else []), *found.patches]
    mbox.write_bytes(b"".join(mail.quoted(one.content) for one in chosen))
    words = ("--offline-mode", "am", "-m", mbox, "-v", str(found.version))
    try:
        done = process.run(
            _b4(*words, "-o", home / "ready", "-n", "series", "--no-cover"),
            cwd=work,
            # Local files only: what the user has set up must not decide.
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
        raise thread.BadThread(f"b4 refuses it:\n{error.output.strip()}") from error
    (home / "split").mkdir()
    ready = list((home / "ready").glob("*.mbx"))
    for one in ready[:1]:
        git.git("mailsplit", "--mboxrd", f"-o{home / 'split'}", one)
    files = sorted((home / "split").iterdir())
    if len(files) != len(found.patches):
        raise thread.BadThread(
            f"b4 makes {len(files)} patches of {len(found.patches)}:\n"
            f"{done.stdout.strip()}"
        )
    return files


def _slug(title: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")[:52].rstrip("-")


def text(came: Incoming) -> str:
    """What was found, for people."""
    moved = len(came.plan.offsets)
    count = len(came.thread.patches)
    lines = [
        f"{came.thread.title} (v{came.thread.version}), "
        f"{count} patch{'' if count == 1 else 'es'}",
        *(f"left out: {one}" for one in came.thread.ignored),
        "",
        f"applies to {came.plan.base.id} ({came.plan.base.describe}): "
        f"{len(came.plan.touched)} files"
        + (f", {moved} hunks at an offset" if moved else ""),
        f"checkpatch --strict: {checkpatch.summary(came.remarks)}",
        *(
            f"  {one.file}:{one.line}: {one.level} {one.kind}: {one.text}"
            for one in came.remarks
            if one.level != "CHECK"
        ),
        "",
        *_compared(came.found),
        "",
        "tracepoints that it adds:" if came.points else "it adds no tracepoint",
    ]
    for point in came.points:
        kind = "bare" if point.bare else "event"
        lines.append(f"  {point.event} ({kind}), {point.header}")
        lines += [f"    in {function}() of {file}" for file, function in point.sites]
        if not point.sites:
            lines.append("    no caller was found")
    return "\n".join(lines) + "\n"


def _compared(found: compare.Resemblance | None) -> list[str]:
    if found is None:
        return ["it is none of the series here"]
    lines = [
        f"it is {found.series.name}"
        + (", and makes the same tree" if found.same_tree else ", and another tree")
    ]
    for pair in found.pairs:
        one = pair.ours or pair.theirs
        assert one is not None
        lines.append(f"  {pair.relation:8} {one.subject}")
    if not found.same_tree and found.range_diff:
        lines += ["", "range-diff, ours against theirs:", found.range_diff]
    return lines
