# SPDX-License-Identifier: GPL-2.0-or-later
"""``kstall series``: a proven series, written as a thread that can be sent and applied.

``<out>/mail/<series>/v<n>/`` gets the mails as files for `git send-email`, and all of
them as one mbox.  Nothing is sent here.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime
from pathlib import Path

from ..base import KstallError, cache, temporary
from ..lint import checkpatch, patchcheck
from ..series import PatchExemption, Project, Series, patchfile
from ..tree import am, commits, source, tree
from . import contributor, cover, excerpts, figures, mail, proof, recipients
from . import thread as threads
from .contributor import Person

#: The author of drafts, as whom mail can be neither sent nor answered.
DRAFTER = Person("kstall", "noreply@kstall.invalid")
_CHECKPATCH = ("checkpatch_strict", "checkpatch_tags")
# In the letter's head, or where b4 has it, in a line of its own.
_CHANGE_ID = re.compile(r"(?mi)^(?:x-)?change-id: +([\w.-]+)$")
#: Characters of a trace line that are enough to identify it.
_RECORD = 40


class NotForSending(KstallError):
    """A series that is kept, but not to be sent."""


@dataclass(frozen=True)
class Export:
    """What to export, and how.

    ``run`` is the run to quote, else the newest that counts.  ``sign_off`` is None for
    a draft, else the key of the statement that the contributor has confirmed, empty if
    they have not seen it; ``again`` is the command that exports this, without the key.
    ``previous`` has the mails of the previous version, and ``report_url`` is where the
    report of the run is published, if it is.  ``replace``: mails of the same patches
    that were signed off are written again.
    """

    project: Project
    kernel: Path | None
    cache: Path
    out: Path
    version: int = 1
    rfc: bool = False
    run: Path | None = None
    previous: Path | None = None
    report_url: str | None = None
    sign_off: str | None = None
    again: tuple[str, ...] = ()
    replace: bool = False


@dataclass(frozen=True)
class Exported:
    """A thread on disk, and the facts about it; ``signed`` is None for a draft.

    ``authors`` and ``messages`` are those of the patches; ``body`` is the cover letter
    without shortlog, diffstat and range-diff; ``argued`` has those of the ``remarks``
    that an exemption covers.
    """

    series: Series
    plan: tree.Plan
    dir: Path
    thread: mail.Thread
    letters: tuple[mail.Letter, ...]
    authors: tuple[Person, ...]
    messages: tuple[str, ...]
    body: str
    recipients: recipients.Recipients
    proof: proof.Proof
    unfounded: tuple[str, ...]
    remarks: tuple[checkpatch.CheckpatchRemark, ...]
    argued: Mapping[checkpatch.CheckpatchRemark, PatchExemption]
    signed: Person | None

    @property
    def send(self) -> str:
        """The command that sends them; git asks before it does."""
        files = [str(self.dir / letter.name) for letter in self.letters]
        words = ["git", "send-email", "--no-thread", "--confirm=always"]
        # Without it, git takes a comma in the user's name for the end of an address.
        words.append(f"--from={self.thread.author.header}")
        # The mails name all recipients; "Assisted-by: LLM" is no address.
        words += ["--suppress-cc=author", "--suppress-cc=body"]
        return shlex.join([*words, *files])


def export(request: Export, series: Series, base: source.Base) -> Exported:
    """Write the thread of ``series``.

    Raises `NotForSending`, `proof.NoProof`, `cover.Unfinished`,
    `contributor.NoIdentity`, `contributor.NotCertified`, `patchfile.Unmailable`,
    `recipients.BadAddress` and `KstallError`; nothing is written then.
    """
    require_for_sending([series])
    if request.version < 1:
        raise KstallError(f"version {request.version}: the first is 1")
    cover.require_finished(series)
    _require_changes(request, series)
    run = proof.find(series, base, request.out, request.kernel, request.run)
    with temporary.directory("mail") as scratch:
        return _export(request, series, base, run, scratch)


def require_for_sending(selection: Sequence[Series]) -> None:
    """Raise `NotForSending`, with the reasons, if some are not to be sent."""
    refused = [series for series in selection if series.not_sent is not None]
    if refused:
        raise NotForSending(
            "\n".join(
                f"{series.name} is not to be sent: {series.not_sent}"
                for series in refused
            ),
            next="name other series; `not-sent` in series.toml says which are not sent",
        )


def _export(
    request: Export,
    series: Series,
    base: source.Base,
    run: proof.Proof,
    scratch: Path,
) -> Exported:
    plan = tree.plan(base, series.patches, scratch)
    addressees = recipients.find(series, plan, scratch)
    claimed = [contributor.author(patch.path) for patch in series.patches]
    split = [contributor.split(patch.path) for patch in series.patches]
    trace = excerpts.trace(run.results(), series)
    quoted = [excerpts.replaced(message, trace) for message, _ in split]
    rendered = cover.render(
        series,
        run,
        trace,
        base,
        assisted=sum("\nAssisted-by: " in message for message, _ in split),
        quoted=frozenset(event for quote in quoted for event in quote.shown),
        applied=_applied(plan),
        url=request.report_url,
    )
    doubts = (*rendered.unfounded, *_doubts(quoted, run))
    messages = [quote.text.strip("\n") for quote in quoted]
    rests = [rest for _, rest in split]
    target = request.out / "mail" / series.name / f"v{request.version}"
    patches = list(zip(claimed, messages, rests, strict=True))
    _require_replaceable(request, series, target, patches)
    signed = _signer(request, series, plan, claimed, run, doubts)
    if signed is not None:
        messages = [mail.signed_off(message, signed) for message in messages]
    previous = _previous(request, series, scratch)
    known = None if previous is None else previous.change_id
    thread = mail.Thread(
        signed or DRAFTER,
        request.version,
        request.rfc,
        known or mail.change_id(series.name, _began(series)),
        mail.now(),
    )
    authors = [
        thread.author if author is None or author.is_same(thread.author) else author
        for author in claimed
    ]
    body = "\n".join([rendered.text.rstrip("\n"), *_changes(request, series, previous)])
    tail = _tail(request, plan, thread, messages, previous, scratch)
    text = "\n\n".join([body, _shortlog(series, authors), tail])
    parts = [mail.MailContent(series.spec.title, text, addressees.cover)]
    for patch, author, message, rest, to in zip(
        series.patches, authors, messages, rests, addressees.patches, strict=True
    ):
        # Whom the patch is from, if not from whom the mail is.
        credit = "" if author == thread.author else f"From: {author.tag}\n\n"
        content = f"{credit}{message}\n---\n{rest}"
        parts.append(mail.MailContent(patch.subject, content, to))
    letters = mail.compose(thread, parts)
    with cache.publish(target) as directory:
        for letter in letters:
            (directory / letter.name).write_bytes(letter.content)
        (directory / "thread.mbox").write_bytes(mail.mbox(letters))
        files = [directory / letter.name for letter in letters[1:]]
        _require_same(plan, files, scratch)
        remarks = checkpatch.run(base, files, scratch, signed=signed is not None)
        argued = _argued(series, remarks, directory)
    return Exported(
        series=series,
        plan=plan,
        dir=target,
        thread=thread,
        letters=letters,
        authors=tuple(authors),
        messages=tuple(messages),
        body=body,
        recipients=addressees,
        proof=run,
        unfounded=doubts,
        remarks=remarks,
        argued=argued,
        signed=signed,
    )


def _argued(
    series: Series, remarks: Sequence[checkpatch.CheckpatchRemark], directory: Path
) -> dict[checkpatch.CheckpatchRemark, PatchExemption]:
    exemptions = {}
    for remark in remarks:
        finding = patchcheck.from_remark(directory / remark.file, remark)
        for exemption in series.spec.exemption:
            if exemption.check in _CHECKPATCH and patchcheck.covers(exemption, finding):
                exemptions[remark] = exemption
    return exemptions


def _doubts(quoted: Sequence[excerpts.Replaced], run: proof.Proof) -> tuple[str, ...]:
    """Figures and records of messages that the run lacks, with the patch's number."""
    doubts = []
    for number, quote in enumerate(quoted, 1):
        unfounded = figures.unfounded(quote.text, run.report, run.entry)
        doubts += [f"{number:04}: {figure}" for figure in unfounded]
        doubts += [f"{number:04}: {record[:_RECORD]}" for record in quote.strange]
    return tuple(doubts)


def _require_replaceable(
    request: Export,
    series: Series,
    target: Path,
    patches: Sequence[tuple[Person | None, str, str]],
) -> None:
    """Raise `KstallError` if the mails in ``target`` were signed off, and thus probably
    sent, unless they are to be replaced by the same ``patches``: author, message and
    what comes after it."""
    mails = sorted(target.glob("*.patch"))
    sender = contributor.author(mails[0]) if mails else None
    if sender is None:
        return
    newer = f"--version {request.version + 1} writes the next version"
    if not request.replace:
        raise KstallError(
            f"{target} has mails that were signed off, and nothing else has their "
            "Message-IDs",
            next=f"{newer}; --replace replaces them, if nobody has got them yet and "
            "the patches are the same",
        )
    there = [
        (
            patchfile.parse(path).subject,
            *_unsigned(sender, contributor.author(path), *contributor.split(path)),
        )
        for path in mails[1:]
    ]
    here = [
        (patch.subject, *_unsigned(sender, *parts))
        for patch, parts in zip(series.patches, patches, strict=True)
    ]
    if here != there:
        raise KstallError(
            f"{target} has mails that were signed off with other patches",
            next=f"{newer}; or remove that directory, if nobody has got them yet",
        )


def _unsigned(
    sender: Person, author: Person | None, message: str, rest: str
) -> tuple[str, str, str]:
    """A patch, by its author's address, without what ``sender`` added by signing off
    and mailing it."""
    tag = f"Signed-off-by: {sender.tag}"
    kept = [line for line in message.splitlines() if line != tag]
    address = (author or sender).address.lower()
    return address, "\n".join(kept).strip("\n"), rest.rstrip("\n")


def _signer(
    request: Export,
    series: Series,
    plan: tree.Plan,
    authors: Sequence[Person | None],
    run: proof.Proof,
    doubts: Sequence[str],
) -> Person | None:
    """The contributor who signs off; None for a draft."""
    if request.sign_off is None:
        return None
    person = contributor.identity()
    statement = contributor.statement(series, plan, person, authors, run.report, doubts)
    again = shlex.join(request.again)
    contributor.require_certified(statement, request.sign_off, again)
    return person


def _applied(plan: tree.Plan) -> str:
    if not plan.offsets:
        return ""
    return f"{len(plan.offsets)} hunks applied at an offset."


def _began(series: Series) -> datetime:
    """The date of the first patch, as good as any for the first version."""
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
    """Raise `cover.Unfinished` unless the changes of each later version are listed."""
    versions = {change.version for change in series.spec.mail.change}
    missing = [n for n in range(2, request.version + 1) if n not in versions]
    if missing:
        raise cover.Unfinished(
            f"{series.dir / 'series.toml'}: no changes are listed for version "
            f"{missing[-1]}",
            next=f"add [[mail.change]] with version = {missing[-1]} and items",
        )


def _changes(request: Export, series: Series, previous: _Previous | None) -> list[str]:
    """The changes in each version, the newest first."""
    items = {change.version: change.items for change in series.spec.mail.change}
    lines = []
    for version in range(request.version, 1, -1):
        lines += ["", f"Changes in v{version}:"]
        lines += [cover.fill(f"- {item}", 0, 2) for item in items[version]]
        if previous is not None and previous.message_id and version == request.version:
            link = f"https://lore.kernel.org/r/{previous.message_id}"
            lines.append(f"- Link to v{version - 1}: {link}")
    return lines


def _shortlog(series: Series, authors: Sequence[Person]) -> str:
    """The patches of each author, as `git shortlog` lists them."""
    subjects: dict[str, list[str]] = {}
    for patch, author in zip(series.patches, authors, strict=True):
        subjects.setdefault(author.name, []).append(f"  {patch.subject}")
    return "\n\n".join(
        "\n".join([f"{name} ({len(subjects[name])}):", *subjects[name]])
        for name in sorted(subjects)
    )


def _tail(
    request: Export,
    plan: tree.Plan,
    thread: mail.Thread,
    messages: Sequence[str],
    previous: _Previous | None,
    scratch: Path,
) -> str:
    """Diffstat, range-diff and base, below the shortlog."""
    older = previous.patches if previous else ()
    touched = [path for patch in older for path in patch.touches]
    repository = commits.Repository(scratch)
    tip = repository.add(plan, messages, touched)
    lines = [repository.diffstat(tip), ""]
    if older:
        version = f"v{request.version - 1}"
        try:
            before = tree.plan(plan.base, older, scratch)
        except am.ApplyError:
            # As is usual if the series was carried over to another tree meanwhile.
            reason = f"{version} does not apply to this base, so there is no range-diff"
            lines += [f"{reason}.", ""]
        else:
            older_messages = [contributor.split(patch.path)[0] for patch in older]
            older_tip = repository.add(before, older_messages, list(plan.files))
            range_diff = repository.range_diff(older_tip, tip)
            lines += [f"Range-diff against {version}:", range_diff, ""]
    if plan.base.commit is not None:
        lines.append(f"base-commit: {plan.base.commit}")
    lines.append(f"change-id: {thread.change_id}")
    return "\n".join(lines)


@dataclass(frozen=True)
class _Previous:
    """The previous version: its patches, its message-id unless it is a draft, and its
    change-id if it has one."""

    patches: tuple[patchfile.PatchFile, ...]
    message_id: str | None
    change_id: str | None


def _previous(request: Export, series: Series, scratch: Path) -> _Previous | None:
    """The mails of the previous version, or None for the first."""
    if request.version == 1:
        if request.previous is not None:
            raise KstallError(
                f"{request.previous}: version 1 has no previous version",
                next="say which version this is, such as --version 2",
            )
        return None
    version = request.version - 1
    default = request.out / "mail" / series.name / f"v{version}"
    mails = request.previous or default
    if not mails.exists():
        raise KstallError(
            f"{mails}: no mails of version {version} to compare with",
            next="export that version, or name its mails: "
            f"kstall series {series.name} --version {request.version} --previous MBOX",
        )
    thread = threads.read(mails, scratch / "previous", version)
    directory = scratch / "previous" / "patches"
    directory.mkdir(parents=True)
    patches = []
    for patch in thread.patches:
        path = directory / f"{patch.number:04}.patch"
        path.write_bytes(patch.content)
        patches.append(patchfile.parse(path))
    letter = thread.cover
    draft = (
        letter is None or f"@{DRAFTER.address.partition('@')[2]}>" in letter.message_id
    )
    sent = None if letter is None or draft else letter.message_id.strip("<>")
    known = (
        None
        if letter is None
        else _CHANGE_ID.search(letter.content.decode(errors="replace"))
    )
    return _Previous(tuple(patches), sent, known[1] if known else None)


def _require_same(plan: tree.Plan, files: Sequence[Path], scratch: Path) -> None:
    """Raise `KstallError` unless the mails result in the proven tree, to the byte."""
    again = tree.plan(plan.base, [patchfile.parse(file) for file in files], scratch)
    if again.content != plan.content:
        raise KstallError(
            "the mails do not result in the tree that was proven: a bug in kstall"
        )
