# SPDX-License-Identifier: GPL-2.0-or-later
"""The tracepoints of a bpftrace script, and a workaround for one bpftrace release.

bpftrace 0.23 (Debian 13) takes a string member's offset in the record for a count of
32-bit words: ``args.name`` points to record + 4 * offset, and ``str(args.name)`` reads
what is there, in most cases nothing.  Commit 665b754a5 ("codegen: Fix __data_loc
reads") of 0.24 fixes it; 0.22 and earlier are not affected.  The first string of a
record is right behind its fixed part, whose size follows from the format file, so the
correct addresses can be computed.  `mended` does that in a script's text, which is then
correct for 0.23 only; the scripts themselves are written for all other releases.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from .errors import ScriptRefused
from .layout import Layout

_QUIET = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:[^"\\\n]|\\.)*"', re.S)
_ATTACH = re.compile(r"\b(?:tracepoint|t):([\w*?\[\]]+):([\w*?\[\]]+)")
_MEMBER = re.compile(r"\bargs\s*(?:\.|->)\s*(\w+)")


@dataclass(frozen=True)
class Probe:
    """One probe of a script: its tracepoints ("system:name") and its extent."""

    events: tuple[str, ...]
    start: int
    end: int


def probes(source: str) -> Iterator[Probe]:
    """The probes of a script that name tracepoints."""
    # Of the same length, so that positions fit; no braces in comments or strings.
    plain = _QUIET.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), source)
    depth = start = 0
    events: tuple[str, ...] = ()
    for position, letter in enumerate(plain):
        if letter == "{":
            if depth == 0:
                pairs = _ATTACH.findall(plain[start:position])
                events = tuple(":".join(pair) for pair in pairs)
            depth += 1
        elif letter == "}":
            depth -= 1
            if depth == 0:
                if events:
                    yield Probe(events, start, position + 1)
                start = position + 1


def attach_points(source: str) -> tuple[str, ...]:
    """Every tracepoint a script names in full, without repeats."""
    named = dict.fromkeys(event for probe in probes(source) for event in probe.events)
    return tuple(event for event in named if re.fullmatch(r"\w+:\w+", event))


def needs_mending(version: str) -> bool:
    """Whether this bpftrace release ("0.23.2-1") reads strings at wrong addresses."""
    return re.match(r"v?0\.23(?!\d)", version) is not None


def mended(source: str, layout_of: Callable[[str], Layout]) -> str:
    """``source`` for bpftrace 0.23; unchanged if it reads no string.

    Raises `ScriptRefused` for a probe whose tracepoints have a string in different
    places, or are not named in full, and what ``layout_of`` raises.
    """
    parts = []
    done = 0
    for probe in probes(source):
        text = source[probe.start : probe.end]
        used = set(_MEMBER.findall(text))
        if not used:
            continue
        cures = {_cure(event, used, layout_of) for event in probe.events}
        if len(cures) != 1:
            raise ScriptRefused(
                f"{', '.join(probe.events)}: bpftrace 0.23 cannot read the strings "
                "of tracepoints with different records in one probe"
            )
        expressions = dict(cures.pop())
        parts.append(source[done : probe.start])
        parts.append(_MEMBER.sub(lambda m, e=expressions: e.get(m[1], m[0]), text))  # type: ignore[misc]
        done = probe.end
    return "".join(parts) + source[done:]


def _cure(
    event: str, used: set[str], layout_of: Callable[[str], Layout]
) -> tuple[tuple[str, str], ...]:
    """(member, expression for its address) of each dynamic member that is used."""
    if not re.fullmatch(r"\w+:\w+", event):
        raise ScriptRefused(f"{event}: bpftrace 0.23 needs tracepoints named in full")
    layout = layout_of(event)
    dynamic = [f for f in layout.fields if f.ctype.startswith("__data_loc")]
    if not dynamic:
        return ()
    fixed = max(field.offset + field.size for field in layout.fields)
    first = f"(uint64)args.{dynamic[0].name}"
    record = f"({first} - {4 * fixed})"
    cures = [(dynamic[0].name, f"kptr({first} - {3 * fixed})")]
    # The others' addresses cannot be divided: the verifier accepts only additions to
    # pointers to the record.
    cures += [
        (
            field.name,
            f"kptr({record} + (*(uint32 *)kptr({record} + {field.offset}) & 0xffff))",
        )
        for field in dynamic[1:]
    ]
    return tuple(cure for cure in cures if cure[0] in used)
