# SPDX-License-Identifier: GPL-2.0-or-later
"""Which of a kernel's complaints are the same: those of two kernels are compared.

Two boots never print the same bytes: addresses, processors, tasks, line numbers and the
way to the place differ.  What is left of a report without them is its signature.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from ..base import KstallError
from .console import Splat

# Printers of reports, allocators, and entries of the sanitizers: on every stack.
_MACHINERY = re.compile(
    r"_*(?:dump_stack\w*|show_stack|print_\w+|report_\w+|kasan_\w+|asan_\w+|kcsan_\w+"
    r"|tsan_\w+|ubsan_\w+|might_(?:sleep|resched|fault)|lockdep_\w+|warn_\w+|debug_\w+"
    r"|check_\w+_access|kmemleak_\w+|k[mvz]*alloc\w*|kmem_cache_alloc\w*|kvmalloc\w*"
    r"|kmalloc_\w+|vmalloc\w*|pcpu_alloc\w*|alloc_percpu\w*|alloc_pages\w*)"
)
# A line of a stack; what may be a left-over has a question mark, and is none.
_FRAME = re.compile(
    r"\s*(?:RIP: \w+:)?(?P<name>[A-Za-z_][\w.]*)\+0x[0-9a-f]+/0x[0-9a-f]+"
)
# lockdep's locks: `(&rq->__lock){-.-.}-{2:2}`.
_LOCK = re.compile(r"\((?P<lock>(?:[^()]|\([^()]*\))+)\)\{[^}]*\}")
# From there on lockdep lists what else was held.
_ELSE = "other info that might help us debug this"
_CLONE = re.compile(r"\.(?:constprop|isra|part|cold|llvm)(?:\.\d+)*")
_STAMP = re.compile(r"^.*?\[\s*\d+\.\d{6}\](?:\[\s*[TC]\d+\])? ?")
_STAMPS = re.compile(_STAMP.pattern, re.MULTILINE)
# KCSAN's: `write (marked) to 0xffff... of 8 bytes by task 7 on cpu 0:`.
_ACCESS = re.compile(
    r"(?m)^(?:race at unknown origin, with )?"
    r"((?:assert no )?[a-z-]+(?: \([^)]*\))?) to 0x[0-9a-f]+ of (\d+) bytes .*$"
)
# It names the functions there, as two, or as one and its place.
_BETWEEN = re.compile(r"BUG: KCSAN: .* in (?P<first>\S.*?)(?: / (?P<other>\S.*))?$")
_PLACE = re.compile(r"(?:\+0x[0-9a-f]+/0x[0-9a-f]+)?(?: \[[^]]*\])?$")
# Below that it is the stack of what was interrupted, which has no part in it.
_INTERRUPTED = re.compile(r"asm_(?:sysvec_\w+|common_interrupt)")
_LEAK = re.compile(r"^unreferenced object.* \(size (?P<size>\d+)\):$")
# Deep enough to tell two uses of one function apart.
_FRAMES = 3
_LEAK_FRAMES = 5


@dataclass(frozen=True)
class Complaint:
    """A report in a form that can be compared: equal ``signature``, same complaint.

    ``functions`` are all that are on its stacks; ``excerpt`` is what was printed.
    Of a data race, ``accesses`` are the functions that it is between: one only, if
    KCSAN does not know the other.  Of an assertion that did not hold they are those
    and all others, for it is the way to the place that is wrong then.
    """

    kind: str
    signature: str
    functions: frozenset[str]
    excerpt: str
    accesses: frozenset[str] = frozenset()


def complaint(splat: Splat) -> Complaint:
    """The complaint that a console's report is."""
    frames = tuple(_frames(splat.excerpt))
    parts = [splat.kind, _plain(splat.headline)]
    accesses: frozenset[str] = frozenset()
    if splat.kind == "lockdep" and (locks := sorted(set(_locks(splat.excerpt)))):
        parts.append(", ".join(locks))
    elif splat.kind == "kcsan":
        # Another access in the same two functions is another race.
        parts += sorted(_accesses(splat.excerpt))
        accesses = _between(splat.headline)
        if not accesses or "assert: " in splat.headline:
            accesses |= frozenset(frames)
    else:
        parts.append(" < ".join(_telling(frames)[:_FRAMES]))
    signature = ": ".join(part for part in parts if part)
    return Complaint(splat.kind, signature, frozenset(frames), splat.excerpt, accesses)


def leaks(text: str) -> tuple[Complaint, ...]:
    """What ``/sys/kernel/debug/kmemleak`` says, a complaint each object.

    Raises `KstallError` if it says something else.
    """
    found = []
    for block in re.split(r"(?m)^(?=unreferenced object)", text):
        head = _LEAK.match(block.partition("\n")[0])
        if head is None:
            continue
        frames = tuple(_frames(block))
        where = " < ".join(_telling(frames)[:_LEAK_FRAMES]) or "(no stack)"
        signature = f"leak: {head['size']} bytes: {where}"
        found.append(Complaint("leak", signature, frozenset(frames), block.rstrip()))
    if text.strip() and not found:
        raise KstallError(f"kmemleak says what is not understood: {text[:200]}")
    return tuple(found)


def _frames(excerpt: str) -> Iterator[str]:
    """The functions on the stacks, top first."""
    by_interrupt = interrupted = False
    for line in excerpt.splitlines():
        text = _STAMP.sub("", line)
        if access := _ACCESS.match(text):
            interrupted = False
            by_interrupt = " by interrupt on " in access[0]
        elif found := _FRAME.match(text):
            if not interrupted:
                yield _CLONE.sub("", found["name"])
            if by_interrupt and _INTERRUPTED.fullmatch(found["name"]):
                interrupted = True


def _telling(frames: tuple[str, ...]) -> list[str]:
    found = [name for name in frames if not _MACHINERY.fullmatch(name)]
    # A WARN names its function in the line above the stack as well.
    return list(dict.fromkeys(found))


def _accesses(excerpt: str) -> Iterator[str]:
    """The accesses of a race: how, how many bytes, and where."""
    stacks = _ACCESS.split(_STAMPS.sub("", excerpt))
    for how, size, stack in zip(stacks[1::3], stacks[2::3], stacks[3::3], strict=True):
        top = next(iter(_telling(tuple(_frames(stack)))), "nowhere")
        yield f"{how} of {size} bytes in {top}"


def _between(headline: str) -> frozenset[str]:
    """The functions that KCSAN says a race is between."""
    found = _BETWEEN.search(headline)
    if found is None:
        return frozenset()
    names = (found["first"], found["other"])
    return frozenset(_CLONE.sub("", _PLACE.sub("", one)) for one in names if one)


def _locks(excerpt: str) -> Iterator[str]:
    for found in _LOCK.finditer(excerpt.partition(_ELSE)[0]):
        yield found["lock"].partition("#")[0]


def _plain(headline: str) -> str:
    """``headline`` without what differs from boot to boot and from build to build."""
    text = re.sub(r"CPU: \d+ (?:UID: \d+ )?PID: \d+ at ", "at ", headline)
    text = re.sub(r",? CPU#?:? ?\d+.*$", "", text)
    text = re.sub(r"\+0x[0-9a-f]+(?:/0x[0-9a-f]+)?", "", text)
    # `insmod/62/0x00000002` and `sh/77`: a task, and how deep it is in what.
    text = re.sub(r": \S+/\d+(?:/0x[0-9a-f]+)?$", "", text)
    text = _CLONE.sub("", text)
    text = re.sub(r"\b(?:0x)?[0-9a-f]{8,}\b|\b0x[0-9a-f]+\b", "X", text)
    text = re.sub(r"(\.[chS]):\d+(?::\d+)?", r"\1", text)
    return re.sub(r"\b\d+\b", "N", text)
