# SPDX-License-Identifier: GPL-2.0-or-later
"""The export of several series, and a page on their recipients, proofs and what is
missing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..base import KstallError, cache
from ..lint import checkpatch
from ..series import Series
from ..tree import source
from . import export, mail
from .recipients import Recipient, shown


@dataclass(frozen=True)
class ExportOutcome:
    """A series that was exported, or the error that prevented it.

    One that is not to be sent has neither.
    """

    series: Series
    exported: export.Exported | None
    error: KstallError | None = None

    @property
    def left_out(self) -> bool:
        """Whether it was left out, as it is not to be sent."""
        return self.exported is None and self.error is None

    @property
    def missing(self) -> tuple[str, ...]:
        """What has to be done before it can be sent."""
        if self.error is not None:
            first, *rest = self.error.what.splitlines()
            lines = [line.strip() for line in rest[:_NAMED]]
            if len(rest) > _NAMED:
                lines.append("...")
            todo = [f"next: `{self.error.next}`"] if self.error.next else []
            return ("; ".join([first, *lines]), *todo)
        if self.exported is None:
            return ()
        missing = []
        # Who signs off has vouched for them.
        if self.exported.unfounded and self.exported.signed is None:
            doubts = ", ".join(self.exported.unfounded)
            missing.append(f"support by the run for figures in the texts: {doubts}")
        unargued = [
            remark
            for remark in self.exported.remarks
            if remark not in self.exported.argued
        ]
        if unargued:
            remarks = checkpatch.summary(unargued)
            missing.append(f"an exemption for remarks of checkpatch: {remarks}")
        home = self.series.spec.subsystem.name
        if not self.exported.recipients.know(home):
            missing.append(
                f"a section of MAINTAINERS that is called {home} and has one of the "
                "files: see `name` of [subsystem]"
            )
        if self.exported.recipients.unknown:
            commits = ", ".join(self.exported.recipients.unknown)
            missing.append(
                f"authors of commits in Fixes: as recipients: {commits}; those of a "
                "KERNEL= that is a git checkout with its history are looked up"
            )
        if self.exported.signed is None:
            missing.append("a sign-off: `kstall series --sign-off` shows what it means")
        return tuple(missing)

    @property
    def state(self) -> str:
        """What its thread is, in a word."""
        if self.exported is None:
            return "not to be sent" if self.left_out else "not written"
        if self.exported.signed is None:
            return "draft"
        return "signed" if self.missing else "ready"


_NAMED = 6


def export_all(
    request: export.Export, selection: Sequence[Series], base: source.Base
) -> tuple[ExportOutcome, ...]:
    """Export each series but those that are not to be sent; an error in one does not
    stop the others."""
    outcomes = []
    for series in selection:
        if series.not_sent is not None:
            outcomes.append(ExportOutcome(series, None))
            continue
        try:
            outcomes.append(ExportOutcome(series, export.export(request, series, base)))
        except KstallError as error:
            outcomes.append(ExportOutcome(series, None, error))
    return tuple(outcomes)


def write(outcomes: Sequence[ExportOutcome], base: source.Base, out: Path) -> Path:
    """Write the page to ``<out>/mail/summary.md`` and return its path."""
    target = out / "mail" / "summary.md"
    cache.write_text(target, page(outcomes, base, out))
    return target


def page(outcomes: Sequence[ExportOutcome], base: source.Base, out: Path) -> str:
    """The page, as Markdown that can be read as it is."""
    lines = [
        "# Series as mails",
        "",
        f"Base: {base.id}, {base.describe} ({base.kind}).",
        "",
        "| series | thread | proven by | mails | to | cc: people | cc: lists "
        "| checkpatch |",
        "|---|---|---|---|---|---|---|---|",
        *map(_row, outcomes),
    ]
    for outcome in outcomes:
        lines += ["", f"## {outcome.series.name}", "", outcome.series.spec.title, ""]
        if outcome.exported is not None:
            lines += _details(outcome.exported, out)
        if outcome.left_out:
            lines += [f"Not to be sent: {outcome.series.not_sent}"]
        if outcome.missing:
            lines += ["Missing:", "", *(f"- {text}" for text in outcome.missing)]
    return "\n".join(lines).rstrip("\n") + "\n"


def _row(outcome: ExportOutcome) -> str:
    if outcome.exported is None:
        return f"| {outcome.series.name} | {outcome.state} | - | - | - | - | - | - |"
    exported = outcome.exported
    everyone = exported.recipients.cover
    others = [recipient for recipient in everyone if not recipient.to]
    lists = sum(recipient.is_list for recipient in others)
    cells = [
        outcome.series.name,
        f"{exported.thread.prefix(0, len(exported.letters) - 1)} {outcome.state}",
        exported.proof.dir.name,
        str(len(exported.letters)),
        str(len(everyone) - len(others)),
        str(len(others) - lists),
        str(lists),
        checkpatch.summary(exported.remarks).partition(" (")[0],
    ]
    return f"| {' | '.join(cells)} |"


def _details(exported: export.Exported, out: Path) -> list[str]:
    largest = max(len(letter.content) for letter in exported.letters)
    checks = exported.proof.entry.checks
    skipped = [check for check in checks if check.status == "skip"]
    causes: dict[str, list[str]] = {}
    for check in skipped:
        causes.setdefault(check.detail, []).append(check.name)
    held = [
        recipient.shown
        for recipient in exported.recipients.cover
        if _is_held(recipient)
    ]
    lines = [
        f"- mails: `{exported.dir.relative_to(out)}`, the largest {largest} bytes of "
        f"{mail.LARGEST}",
        f"- proven by run {exported.proof.dir.name}: {len(checks)} checks, "
        f"{len(skipped)} of them skipped",
        *(
            f"  - skipped: {', '.join(names)}: {cause}"
            for cause, names in causes.items()
        ),
        f"- change-id: {exported.thread.change_id}",
        f"- checkpatch --strict: {_remarks(exported)}",
        *(f"  - argued: {text}" for text in _reasons(exported)),
        f"- to: {shown(exported.recipients.cover, lists=False, to=True)}",
        f"- to, lists: {shown(exported.recipients.cover, lists=True, to=True)}",
        *([f"- moderated for non-subscribers: {', '.join(held)}"] * bool(held)),
        "",
        "| recipient | field, kind | mails | reason |",
        "|---|---|---|---|",
    ]
    for recipient in exported.recipients.cover:
        kind = "list" if recipient.is_list else "person"
        lines.append(
            f"| {_cell(recipient.shown)} | {recipient.field}, {kind} "
            f"| {_gets(exported, recipient)} | {_cell('; '.join(recipient.because))} |"
        )
    if exported.recipients.omitted:
        lines += ["", "Named by MAINTAINERS, but left out:", ""]
        lines += [
            f"- {recipient.shown}: {'; '.join(recipient.because)}"
            for recipient in exported.recipients.omitted
        ]
    return [*lines, ""]


def _remarks(exported: export.Exported) -> str:
    """The summary of checkpatch's remarks, and whether the series argues all."""
    argued = exported.remarks and all(
        remark in exported.argued for remark in exported.remarks
    )
    return checkpatch.summary(exported.remarks) + (", all argued" if argued else "")


def _is_held(recipient: Recipient) -> bool:
    """Whether it is a list that is moderated according to MAINTAINERS."""
    return recipient.is_list and any("moderated" in role for role in recipient.because)


def _reasons(exported: export.Exported) -> list[str]:
    """The reasons for argued remarks of checkpatch, each once."""
    by_reason: dict[str, set[str]] = {}
    for remark, exemption in exported.argued.items():
        by_reason.setdefault(exemption.because, set()).add(remark.kind)
    return [
        f"{', '.join(sorted(kinds))}: {reason}" for reason, kinds in by_reason.items()
    ]


def _gets(exported: export.Exported, recipient: Recipient) -> str:
    """The numbers of the mails that ``recipient`` gets."""
    numbers = [
        letter.number
        for letter in exported.letters
        if recipient.address.lower()
        in {other.address.lower() for other in letter.recipients}
    ]
    if len(numbers) == len(exported.letters):
        return "all"
    return ", ".join(map(str, numbers))


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def print_outcomes(
    outcomes: Sequence[ExportOutcome], say: Callable[[str], None]
) -> None:
    """Print the outcomes and the next steps to a terminal."""
    for outcome in outcomes:
        if outcome.left_out:
            reason = outcome.series.not_sent
            say(f"{outcome.series.name}: left out, as it is not to be sent: {reason}")
            continue
        if outcome.exported is None:
            say(f"{outcome.series.name}: not written: {outcome.error}")
            continue
        exported = outcome.exported
        everyone = exported.recipients.cover
        people = sum(not recipient.is_list for recipient in everyone)
        say(
            f"{outcome.series.name}: {len(exported.letters)} mails in {exported.dir}, "
            f"to {people} people and {len(everyone) - people} lists; checkpatch: "
            f"{_remarks(exported)}"
        )
        for text in outcome.missing:
            say(f"  missing: {text}")
        if outcome.state == "ready":
            say(f"  look at them, then send: {exported.send}")
