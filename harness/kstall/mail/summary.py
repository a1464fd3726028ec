# SPDX-License-Identifier: GPL-2.0-or-later
"""Many series exported, and the page that says who gets what, what is proven, and what
is missing."""

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
class Outcome:
    """A series that became a thread, or what stood in its way."""

    series: Series
    exported: export.Exported | None
    error: KstallError | None = None

    @property
    def missing(self) -> tuple[str, ...]:
        """What has to be done before it can be sent."""
        if self.error is not None:
            first, *rest = self.error.what.splitlines()
            named = [line.strip() for line in rest[:_NAMED]]
            if len(rest) > _NAMED:
                named.append("...")
            todo = [f"next: `{self.error.next}`"] if self.error.next else []
            return ("; ".join([first, *named]), *todo)
        assert self.exported is not None
        found = []
        if self.exported.unfounded:
            doubts = ", ".join(self.exported.unfounded)
            found.append(f"in the texts, and not shown by the run: {doubts}")
        left = [x for x in self.exported.remarks if x not in self.exported.argued]
        if left:
            found.append(
                f"a reason for what checkpatch says: {checkpatch.summary(left)}"
            )
        if self.exported.signed is None:
            found.append("a sign-off: `kstall series --sign-off` shows what it means")
        return tuple(found)


_NAMED = 6


def export_all(
    request: export.Export, series: Sequence[Series], base: source.Base
) -> tuple[Outcome, ...]:
    """Export each; what stops one does not stop the others."""
    outcomes = []
    for one in series:
        try:
            outcomes.append(Outcome(one, export.export(request, one, base)))
        except KstallError as error:
            outcomes.append(Outcome(one, None, error))
    return tuple(outcomes)


def write(outcomes: Sequence[Outcome], base: source.Base, out: Path) -> Path:
    """Write the page to ``<out>/mail/summary.md`` and say where."""
    target = out / "mail" / "summary.md"
    cache.write_text(target, page(outcomes, base, out))
    return target


def page(outcomes: Sequence[Outcome], base: source.Base, out: Path) -> str:
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
    for one in outcomes:
        lines += ["", f"## {one.series.name}", "", one.series.spec.title, ""]
        if one.exported is not None:
            lines += _details(one.exported, out)
        if one.missing:
            lines += ["Missing:", "", *(f"- {text}" for text in one.missing)]
    return "\n".join(lines).rstrip("\n") + "\n"


def _row(one: Outcome) -> str:
    if one.exported is None:
        return f"| {one.series.name} | not written | - | - | - | - | - | - |"
    done = one.exported
    everyone = done.recipients.cover
    kind = "draft" if done.signed is None else "ready"
    cells = [
        one.series.name,
        f"{done.thread.prefix(0, len(done.letters) - 1)} {kind}",
        done.proof.dir.name,
        str(len(done.letters)),
        str(_count(everyone, to=True)),
        str(_count([x for x in everyone if not x.is_list], to=False)),
        str(_count([x for x in everyone if x.is_list], to=False)),
        checkpatch.summary(done.remarks).partition(" (")[0],
    ]
    return f"| {' | '.join(cells)} |"


def _count(recipients: Sequence[Recipient], *, to: bool) -> int:
    return sum(one.to == to for one in recipients)


def _details(done: export.Exported, out: Path) -> list[str]:
    largest = max(len(letter.content) for letter in done.letters)
    checks = done.proof.entry.checks
    skipped = [one for one in checks if one.status == "skip"]
    causes: dict[str, list[str]] = {}
    for check in skipped:
        causes.setdefault(check.detail, []).append(check.name)
    held = [one.shown for one in done.recipients.cover if _is_held(one)]
    lines = [
        f"- mails: `{done.dir.relative_to(out)}`, the largest {largest} bytes of "
        f"{mail.LARGEST}",
        f"- proven by run {done.proof.dir.name}: {len(checks)} checks, {len(skipped)} "
        "of them skipped",
        *(f"  - skipped: {', '.join(names)}: {why}" for why, names in causes.items()),
        f"- change-id: {done.thread.change_id}",
        f"- checkpatch --strict: {_said(done)}",
        *(f"  - argued: {text}" for text in _reasons(done)),
        f"- to: {shown(done.recipients.cover, lists=False, to=True)}",
        f"- to, lists: {shown(done.recipients.cover, lists=True, to=True)}",
        *(
            [f"- held for a moderator if you do not read it: {', '.join(held)}"]
            * bool(held)
        ),
        "",
        "| who | as | gets | because |",
        "|---|---|---|---|",
    ]
    for one in done.recipients.cover:
        field = "To" if one.to else "Cc"
        kind = "list" if one.is_list else "person"
        lines.append(
            f"| {_cell(one.shown)} | {field}, {kind} | {_gets(done, one)} "
            f"| {_cell('; '.join(one.because))} |"
        )
    if done.recipients.omitted:
        lines += ["", "Named by MAINTAINERS, and left out:", ""]
        lines += [
            f"- {one.shown}: {'; '.join(one.because)}"
            for one in done.recipients.omitted
        ]
    return [*lines, ""]


def _said(done: export.Exported) -> str:
    """What checkpatch says, and whether the series argues all of that."""
    argued = done.remarks and all(one in done.argued for one in done.remarks)
    return checkpatch.summary(done.remarks) + (", all argued" if argued else "")


def _is_held(one: Recipient) -> bool:
    """Whether MAINTAINERS says that a list does not take mail from everybody."""
    return one.is_list and any("moderated" in role for role in one.because)


def _reasons(done: export.Exported) -> list[str]:
    """Why remarks of checkpatch are not followed, each reason once."""
    found: dict[str, set[str]] = {}
    for remark, one in done.argued.items():
        found.setdefault(" ".join(one.because.split()), set()).add(remark.kind)
    return [f"{', '.join(sorted(kinds))}: {why}" for why, kinds in found.items()]


def _gets(done: export.Exported, one: Recipient) -> str:
    """Which of the mails ``one`` gets."""
    numbers = [
        letter.number
        for letter in done.letters
        if one.address.lower() in {x.address.lower() for x in letter.recipients}
    ]
    if len(numbers) == len(done.letters):
        return "all"
    return ", ".join(map(str, numbers))


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def tell(outcomes: Sequence[Outcome], say: Callable[[str], None]) -> None:
    """What came out, and what to do next, for a terminal."""
    for one in outcomes:
        if one.exported is None:
            say(f"{one.series.name}: not written: {one.error}")
            continue
        done = one.exported
        everyone = done.recipients.cover
        people = sum(not x.is_list for x in everyone)
        say(
            f"{one.series.name}: {len(done.letters)} mails in {done.dir}, to {people} "
            f"people and {len(everyone) - people} lists; checkpatch: "
            f"{_said(done)}"
        )
        for text in one.missing:
            say(f"  missing: {text}")
        if done.signed is not None:
            say(f"  look at them, then send: {done.send}")
