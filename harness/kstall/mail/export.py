# SPDX-License-Identifier: GPL-2.0-or-later
"""``kstall series``: a proven series, written as a thread that can be sent and applied.

``<out>/mail/<series>/v<n>/`` gets the mails as files for `git send-email`, and all of
them as one mbox.  Nothing is sent here.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime
from pathlib import Path

from ..base import KstallError, cache, temporary
from ..lint import checkpatch, patchcheck
from ..series import PatchExemption, Project, Series, patchfile
from ..tree import commits, source, tree
from . import contributor, cover, excerpts, figures, mail, proof, recipients
from . import thread as threads
from .contributor import Person

#: Who drafts are from: mail cannot be sent as them, or answered.
DRAFTER = Person("kstall", "noreply@kstall.invalid")
_MBOX = "thread.mbox"
_CHECKPATCH = ("checkpatch_strict", "checkpatch_tags")
#: How much of a line of a trace says which one it is.
_RECORD = 40


@dataclass(frozen=True)
class Export:
    """What is to be written, and how.

    ``run`` is the run to quote, else the newest that counts.  ``sign_off`` is None for
    a draft, else the key of the statement that the contributor has confirmed, empty if
    they have not seen it.  ``previous`` holds the mails of the version before.
    """

    project: Project
    kernel: Path | None
    cache: Path
    out: Path
    version: int = 1
    rfc: bool = False
    run: Path | None = None
    previous: Path | None = None
    sign_off: str | None = None


@dataclass(frozen=True)
class Exported:
    """A thread on disk, and what is to be known of it; ``signed`` is None for a draft.

    ``body`` is the cover letter without what git makes of the patches, ``argued`` has
    those of the ``remarks`` that the series says why it does not follow.
    """

    series: Series
    plan: tree.Plan
    dir: Path
    thread: mail.Thread
    letters: tuple[mail.Letter, ...]
    messages: tuple[str, ...]
    body: str
    recipients: recipients.Recipients
    proof: proof.Proof
    unfounded: tuple[str, ...]
    remarks: tuple[checkpatch.Remark, ...]
    argued: Mapping[checkpatch.Remark, PatchExemption]
    signed: Person | None

    @property
    def mbox(self) -> Path:
        """All mails in one file."""
        return self.dir / _MBOX

    @property
    def send(self) -> str:
        """The command that sends them; git asks before it does."""
        files = [str(self.dir / letter.name) for letter in self.letters]
        words = ["git", "send-email", "--no-thread", "--confirm=always"]
        # Git takes a comma in its own idea of the name for the end of an address.
        words.append(f"--from={self.thread.author.header}")
        # Everybody is named in the mails; "Assisted-by: LLM" is nobody.
        words += ["--suppress-cc=author", "--suppress-cc=body"]
        return shlex.join([*words, *files])


def export(request: Export, series: Series, base: source.Base) -> Exported:
    """Write the thread of ``series``, or raise what stands in its way.

    Raises `proof.NoProof`, `cover.Unfinished`, `contributor.NoIdentity`,
    `contributor.NotCertified`, `patchfile.Unmailable` and `KstallError`; nothing is
    written then.
    """
    if request.version < 1:
        raise KstallError(f"version {request.version}: the first is 1")
    cover.require_finished(series)
    _require_changes(request, series)
    found = proof.find(series, base, request.out, request.kernel, request.run)
    with temporary.directory("mail") as place:
        return _export(request, series, base, found, place)


def _export(
    request: Export,
    series: Series,
    base: source.Base,
    found: proof.Proof,
    scratch: Path,
) -> Exported:
    plan = tree.plan(base, series.patches, scratch)
    who = recipients.find(series, plan, scratch)
    split = [patchfile.split(patch.path) for patch in series.patches]
    trace = excerpts.trace(found.results(), series)
    quoted = [excerpts.replaced(message, trace) for message, _ in split]
    letter = cover.render(
        series,
        found,
        trace,
        base,
        assisted=sum("\nAssisted-by: " in message for message, _ in split),
        applied=_applied(plan),
    )
    doubts = (*letter.unfounded, *_doubts(quoted, found))
    signed = _author(request, series, plan, doubts)
    messages = [one.text.strip("\n") for one in quoted]
    if signed is not None:
        messages = [mail.signed_off(message, signed) for message in messages]
    thread = mail.Thread(
        signed or DRAFTER,
        request.version,
        request.rfc,
        mail.change_id(series.name, _began(series)),
        mail.now(),
    )
    old = _previous(request, series, scratch)
    body = "\n".join([letter.text.rstrip("\n"), *_changes(request, series, old)])
    tail = _tail(request, series, plan, thread, messages, old, scratch)
    parts = [mail.Part(series.spec.title, f"{body}\n\n{tail}", who.cover)]
    for patch, message, (_, rest), to in zip(
        series.patches, messages, split, who.patches, strict=True
    ):
        parts.append(mail.Part(patch.subject, f"{message}\n---\n{rest}", to))
    letters = mail.compose(thread, parts)
    target = request.out / "mail" / series.name / f"v{request.version}"
    with cache.publish(target) as directory:
        for one in letters:
            (directory / one.name).write_bytes(one.content)
        (directory / _MBOX).write_bytes(mail.mbox(letters))
        files = [directory / one.name for one in letters[1:]]
        _require_same(plan, files, scratch)
        remarks = checkpatch.run(base, files, scratch, signed=signed is not None)
        argued = _argued(series, remarks, directory)
    return Exported(
        *(series, plan, target, thread, letters, tuple(messages), body),
        *(who, found, doubts, remarks, argued, signed),
    )


def _argued(
    series: Series, remarks: Sequence[checkpatch.Remark], directory: Path
) -> dict[checkpatch.Remark, PatchExemption]:
    found = {}
    for remark in remarks:
        about = patchcheck.finding(directory / remark.file, remark)
        for one in series.spec.exemption:
            if one.check in _CHECKPATCH and patchcheck.covers(one, about):
                found[remark] = one
    return found


def _doubts(quoted: Sequence[excerpts.Replaced], found: proof.Proof) -> tuple[str, ...]:
    """What messages show that the run does not, with the number of the patch."""
    doubts = []
    for number, one in enumerate(quoted, 1):
        known = figures.unfounded(one.text, found.report, found.entry)
        doubts += [f"{number:04}: {figure}" for figure in known]
        doubts += [f"{number:04}: {record[:_RECORD]}" for record in one.strange]
    return tuple(doubts)


def _author(
    request: Export, series: Series, plan: tree.Plan, doubts: Sequence[str]
) -> Person | None:
    """Whose mails these are: None for a draft."""
    if request.sign_off is None:
        return None
    who = contributor.identity()
    made = contributor.statement(series, plan, who, doubts)
    again = ["kstall", "series", series.name]
    if request.version > 1:
        again.append(f"--version={request.version}")
    if request.rfc:
        again.append("--rfc")
    if request.kernel is not None:
        again.append(f"--kernel={request.kernel}")
    contributor.require_certified(made, request.sign_off, shlex.join(again))
    return who


def _applied(plan: tree.Plan) -> str:
    if not plan.offsets:
        return ""
    return f"{len(plan.offsets)} hunks applied at an offset."


def _began(series: Series) -> datetime:
    """When the first patch was dated: no version changes that."""
    raw = series.patches[0].path.read_text(encoding="utf-8", errors="replace")
    dates = [line[6:] for line in raw.splitlines() if line.startswith("Date: ")]
    try:
        return parsedate_to_datetime(dates[0])
    except (IndexError, ValueError) as error:
        raise patchfile.Unmailable(
            f"{series.patches[0].path}: no Date: that can be read",
            next="write patches with `git format-patch`",
        ) from error


def _require_changes(request: Export, series: Series) -> None:
    """Raise `cover.Unfinished` unless it is said what each later version changes."""
    told = {one.version for one in series.spec.mail.change}
    missing = [n for n in range(2, request.version + 1) if n not in told]
    if missing:
        raise cover.Unfinished(
            f"{series.dir / 'series.toml'}: nothing says what changed in version "
            f"{missing[-1]}",
            next=f"add [[mail.change]] with version = {missing[-1]} and items",
        )


def _changes(request: Export, series: Series, old: _Previous | None) -> list[str]:
    """What is new in each version, the newest first."""
    told = {one.version: one.items for one in series.spec.mail.change}
    lines = []
    for version in range(request.version, 1, -1):
        lines += ["", f"Changes in v{version}:"]
        lines += [cover.fill(f"- {item}", 0, 2) for item in told[version]]
        if old is not None and old.message_id and version == request.version:
            link = f"https://lore.kernel.org/r/{old.message_id}"
            lines.append(f"- Link to v{version - 1}: {link}")
    return lines


def _tail(
    request: Export,
    series: Series,
    plan: tree.Plan,
    thread: mail.Thread,
    messages: Sequence[str],
    old: _Previous | None,
    scratch: Path,
) -> str:
    """What git makes of the patches, below the letter."""
    texts = [
        f"{patch.subject}\n\n{message}\n"
        for patch, message in zip(series.patches, messages, strict=True)
    ]
    older = old.patches if old else ()
    touched = [path for patch in older for path in patch.touches]
    repository = commits.Repository(scratch)
    now = repository.add(plan, texts, touched)
    shortlog = "\n".join(f"  {patch.subject}" for patch in series.patches)
    lines = [
        f"{thread.author.name} ({len(series.patches)}):",
        shortlog,
        "",
        repository.diffstat(now),
        "",
    ]
    if older:
        before = tree.plan(plan.base, older, scratch)
        told = [
            f"{patch.subject}\n\n{patchfile.split(patch.path)[0]}\n" for patch in older
        ]
        line = repository.add(before, told, list(dict(plan.states[-1])))
        compared = repository.range_diff(line, now)
        lines += [f"Range-diff against v{request.version - 1}:", compared, ""]
    if plan.base.commit is not None:
        lines.append(f"base-commit: {plan.base.commit}")
    lines.append(f"change-id: {thread.change_id}")
    return "\n".join(lines)


@dataclass(frozen=True)
class _Previous:
    """The version before: its patches, and its message-id, if it is no draft."""

    patches: tuple[patchfile.Patch, ...]
    message_id: str | None


def _previous(request: Export, series: Series, scratch: Path) -> _Previous | None:
    """The mails of the version before this one, or None for the first."""
    if request.version == 1:
        return None
    version = request.version - 1
    usual = request.out / "mail" / series.name / f"v{version}"
    named = request.previous or usual
    if not named.exists():
        raise KstallError(
            f"{named}: no mails of version {version}, to compare this with",
            next="export that version, or name its mails: "
            f"kstall series {series.name} --version {request.version} --previous MBOX",
        )
    found = threads.read(named, scratch / "previous", version)
    directory = scratch / "previous" / "patches"
    directory.mkdir(parents=True)
    patches = []
    for one in found.patches:
        path = directory / f"{one.number:04}.patch"
        path.write_bytes(one.content)
        patches.append(patchfile.parse(path))
    cover = found.cover
    draft = (
        cover is None or f"@{DRAFTER.address.partition('@')[2]}>" in cover.message_id
    )
    sent = None if cover is None or draft else cover.message_id.strip("<>")
    return _Previous(tuple(patches), sent)


def _require_same(plan: tree.Plan, files: Sequence[Path], scratch: Path) -> None:
    """The mails have to make the tree that was proven, to the byte."""
    again = tree.plan(plan.base, [patchfile.parse(one) for one in files], scratch)
    if again.content != plan.content:
        raise KstallError(
            "the mails do not make the tree that was proven: a bug in kstall"
        )
