# SPDX-License-Identifier: GPL-2.0-or-later
"""The outcomes of mutants, as data: part of ``report.json``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from ..verdict import Model

Outcome = Literal["caught", "escaped", "argued", "not-applicable"]


class MutantOutcome(Model):
    """One operator on one field of an event, or on its records, and who noticed."""

    event: str = Field(description="system:name")
    field: str = Field(description="of the event; (records): it is about whole ones")
    operator: str = Field(description="what was made false")
    part: str = Field(
        default="",
        description="in which records: those of a [[tracepoint.part]]; empty: in all",
    )
    outcome: Outcome = Field(
        description="not-applicable: the operator changes nothing in this evidence"
    )
    check: str = Field(default="", description="the check that failed, of caught")
    because: str = Field(
        default="",
        description="why no check can, of argued; why nothing changes, of "
        "not-applicable, if series.toml says so",
    )
    resolution: str = Field(
        default="", description="what the instrument resolves, of argued"
    )
    noticed: str = Field(
        default="",
        description="from where on the same is caught, and by what check, if it is not "
        "caught itself",
    )
    broke: list[str] = Field(
        default=[], description="checks that could not judge it, which is no catch"
    )
    left_open: str = Field(
        default="",
        description="the apparatus' fault that all of these excused it by; empty if "
        "one of them just broke",
    )

    @property
    def where(self) -> str:
        """The event, and the part of its records, if it is about one."""
        return _where(self.event, self.part)

    @property
    def is_untried(self) -> bool:
        """Whether it changes nothing, and series.toml does not say why.

        If it is about a part of the records, it was tried on all records as well.
        """
        return self.outcome == "not-applicable" and not (self.because or self.part)


class RefutedArgument(Model):
    """An argument of [[unproven]] that does not hold in this evidence, which fails, or
    about a mutant that this evidence showed to be caught, which does not."""

    event: str
    field: str
    operator: str
    why: str
    part: str = ""
    noticed: str = Field(default="", description="as of the mutant's outcome")

    @property
    def where(self) -> str:
        """The event, and the part of its records, if it is about one."""
        return _where(self.event, self.part)


@dataclass(frozen=True)
class Row:
    """The outcomes of one field, for reading: operators by the check or argument.

    ``event`` may have a part of its records after it, see `MutantOutcome.where`.
    What is ``idle`` changes nothing, for a reason; what is ``untried``, for none.
    """

    event: str
    field: str
    caught: dict[str, list[str]]
    argued: dict[str, list[str]]
    escaped: list[str]
    idle: dict[str, list[str]]
    untried: list[str]

    @property
    def tried(self) -> bool:
        """Whether any operator changes something, or it is said why none does."""
        named = self.caught, self.argued, self.escaped, self.idle, self.untried
        return any(named)

    @property
    def good(self) -> bool:
        """Whether nothing escaped, and nothing is left unsaid."""
        return not self.escaped and not self.untried


class Mutation(Model):
    """The falsified evidence of a series."""

    digest: str = Field(description="changes with evidence, checks and engine")
    seconds: float = Field(description="wall-clock time of the judging")
    witnesses: list[str] = Field(description="checks that were asked")
    silent: list[str] = Field(
        description="checks that were not, as they read what scripts or programs print "
        "of the events' records"
    )
    mutants: list[MutantOutcome]
    stale: list[RefutedArgument] = Field(
        default=[], description="arguments that do not hold: a fault of theirs"
    )
    spare: list[RefutedArgument] = Field(
        default=[],
        description="arguments that this evidence did not need; other evidence of the "
        "same kernel may, as it depends on when things happened",
    )

    def count(self, outcome: Outcome) -> int:
        """The number of mutants with this outcome."""
        return sum(mutant.outcome == outcome for mutant in self.mutants)

    def rows(self) -> list[Row]:
        """A row for each field, and for the records, of each event."""
        rows: dict[tuple[str, str], Row] = {}
        for mutant in self.mutants:
            key = mutant.where, mutant.field
            row = rows.setdefault(key, Row(*key, {}, {}, [], {}, []))
            match mutant.outcome:
                case "caught":
                    row.caught.setdefault(mutant.check, []).append(mutant.operator)
                case "argued":
                    row.argued.setdefault(_reason(mutant), []).append(mutant.operator)
                case "escaped":
                    row.escaped.append(mutant.operator)
                case _ if mutant.is_untried:
                    row.untried.append(mutant.operator)
                case _ if mutant.because:
                    row.idle.setdefault(_reason(mutant), []).append(mutant.operator)
        return [*rows.values()]

    def unproven(self) -> list[str]:
        """What escapes for a reason, a line for each reason, and what has no record."""
        lines = _by_reason([(row, row.argued) for row in self.rows()])
        return lines + [f"{part}: no record of it" for part in self._unseen()]

    def _unseen(self) -> list[str]:
        """Parts of events of which this evidence has no records."""
        tried: dict[str, bool] = {}
        for mutant in self.mutants:
            if mutant.part:
                name = mutant.where.partition(":")[2]
                changes = mutant.outcome != "not-applicable"
                tried[name] = tried.get(name, False) or changes
        return [name for name, changes in tried.items() if not changes]

    def unchanged(self) -> list[str]:
        """What changes nothing for a reason, a line for each reason."""
        return _by_reason([(row, row.idle) for row in self.rows()])


def _where(event: str, part: str) -> str:
    return f"{event} ({part})" if part else event


def _reason(mutant: MutantOutcome) -> str:
    tail = f" (resolution: {mutant.resolution})" if mutant.resolution else ""
    return mutant.because + tail


def _by_reason(rows: Iterable[tuple[Row, Mapping[str, Sequence[str]]]]) -> list[str]:
    """A line for each reason: its events, their fields and operators."""
    reasons: dict[str, dict[str, dict[str, list[str]]]] = {}
    for row, operators in rows:
        event = row.event.partition(":")[2]
        for reason, names in operators.items():
            fields = reasons.setdefault(reason, {}).setdefault(event, {})
            # Fields with the same operators are named together.
            fields.setdefault(", ".join(names), []).append(row.field.strip("()"))
    lines = []
    for reason, events in reasons.items():
        places = [
            ", ".join(
                [event, *(f"{', '.join(fields[names])} ({names})" for names in fields)]
            )
            for event, fields in events.items()
        ]
        lines.append(f"{'; '.join(places)}: {reason}")
    return lines
