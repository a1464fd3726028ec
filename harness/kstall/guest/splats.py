# SPDX-License-Identifier: GPL-2.0-or-later
"""Signatures of a kernel's reports, by which those of two kernels are compared.

Two boots never print the same bytes: addresses, processors, tasks, line numbers and the
call path differ.  The signature is a report without those.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from ..base import KstallError
from .console import STAMP, Splat

# Functions that print reports, allocate, or are a sanitizer's: they are on every stack.
_MACHINERY = re.compile(
    r"_*(?:dump_stack\w*|show_stack|print_\w+|report_\w+|kasan_\w+|asan_\w+|kcsan_\w+"
    r"|tsan_\w+|ubsan_\w+|might_(?:sleep|resched|fault)|lockdep_\w+|warn_\w+|debug_\w+"
    r"|check_\w+_access|kmemleak_\w+|k[mvz]*alloc\w*|kmem_cache_alloc\w*|kvmalloc\w*"
    r"|kmalloc_\w+|vmalloc\w*|pcpu_alloc\w*|alloc_percpu\w*|alloc_pages\w*)"
)
# A line of a stack; one with a question mark may be stale, and does not match.
_FRAME = re.compile(
    r"\s*(?:RIP: \w+:)?(?P<name>[A-Za-z_][\w.]*)\+0x[0-9a-f]+/0x[0-9a-f]+"
)
# lockdep's locks: `(&rq->__lock){-.-.}-{2:2}`.
_LOCK = re.compile(r"\((?P<lock>(?:[^()]|\([^()]*\))+)\)\{[^}]*\}")
# From here on lockdep lists the other locks that were held.
_OTHER_INFO = "other info that might help us debug this"
_CLONE = re.compile(r"\.(?:constprop|isra|part|cold|llvm)(?:\.\d+)*")
_STAMP = re.compile(rf"^.*?{STAMP} ?")
_STAMPS = re.compile(_STAMP.pattern, re.MULTILINE)
# KCSAN's: `write (marked) to 0xffff... of 8 bytes by task 7 on cpu 0:`.
_ACCESS = re.compile(
    r"(?m)^(?:race at unknown origin, with )?"
    r"((?:assert no )?[a-z-]+(?: \([^)]*\))?) to 0x[0-9a-f]+ of (\d+) bytes .*$"
)
# KCSAN's headline has two functions, or one and its location.
_BETWEEN = re.compile(r"BUG: KCSAN: .* in (?P<first>\S.*?)(?: / (?P<other>\S.*))?$")
_PLACE = re.compile(r"(?:\+0x[0-9a-f]+/0x[0-9a-f]+)?(?: \[[^]]*\])?$")
# Below that is the stack of the interrupted code, which is not involved.
_INTERRUPTED = re.compile(r"asm_(?:sysvec_\w+|common_interrupt)")
_LEAK = re.compile(r"^unreferenced object.* \(size (?P<size>\d+)\):$")
# Deep enough to tell two uses of one function apart.
_FRAMES = 3
_LEAK_FRAMES = 5


@dataclass(frozen=True)
class KernelReport:
    """A report that can be compared: reports with equal ``signature`` are the same.

    ``functions`` are all on its stacks; ``excerpt`` is what was printed.  For a data
    race, ``accesses`` are the functions that race: only one, if KCSAN does not know the
    other.  For a failed assertion they are all functions, because the fault may be
    anywhere on the call path.
    """

    kind: str
    signature: str
    functions: frozenset[str]
    excerpt: str
    accesses: frozenset[str] = frozenset()


def kernel_report(splat: Splat) -> KernelReport:
    """``splat`` with its signature."""
    frames = tuple(_frames(splat.excerpt))
    parts = [splat.kind, _plain(splat.headline)]
    accesses: frozenset[str] = frozenset()
    if splat.kind == "lockdep" and (locks := sorted(set(_locks(splat.excerpt)))):
        parts.append(", ".join(locks))
    elif splat.kind == "kcsan":
        # A different access in the same two functions is a different race.
        parts += sorted(_accesses(splat.excerpt))
        accesses = _between(splat.headline)
        if not accesses or "assert: " in splat.headline:
            accesses |= frozenset(frames)
    else:
        parts.append(" < ".join(_significant(frames)[:_FRAMES]))
    signature = ": ".join(part for part in parts if part)
    return KernelReport(
        splat.kind, signature, frozenset(frames), splat.excerpt, accesses
    )


def leaks(text: str) -> tuple[KernelReport, ...]:
    """The leaks in ``/sys/kernel/debug/kmemleak``, one for each object.

    Raises `KstallError` if it has anything else.
    """
    reports = []
    for block in re.split(r"(?m)^(?=unreferenced object)", text):
        head = _LEAK.match(block.partition("\n")[0])
        if head is None:
            continue
        frames = tuple(_frames(block))
        site = " < ".join(_significant(frames)[:_LEAK_FRAMES]) or "(no stack)"
        signature = f"leak: {head['size']} bytes: {site}"
        reports.append(
            KernelReport("leak", signature, frozenset(frames), block.rstrip())
        )
    if text.strip() and not reports:
        raise KstallError(f"kmemleak's output is not understood: {text[:200]}")
    return tuple(reports)


def _frames(excerpt: str) -> Iterator[str]:
    """The functions on the stacks, top first."""
    by_interrupt = interrupted = False
    for line in excerpt.splitlines():
        text = _STAMP.sub("", line)
        if access := _ACCESS.match(text):
            interrupted = False
            by_interrupt = " by interrupt on " in access[0]
        elif match := _FRAME.match(text):
            if not interrupted:
                yield _CLONE.sub("", match["name"])
            if by_interrupt and _INTERRUPTED.fullmatch(match["name"]):
                interrupted = True


def _significant(frames: tuple[str, ...]) -> list[str]:
    names = [name for name in frames if not _MACHINERY.fullmatch(name)]
    # A WARN has its function also in the line above the stack.
    return list(dict.fromkeys(names))


def _accesses(excerpt: str) -> Iterator[str]:
    """The accesses of a race: kind, size and function."""
    stacks = _ACCESS.split(_STAMPS.sub("", excerpt))
    for kind, size, stack in zip(stacks[1::3], stacks[2::3], stacks[3::3], strict=True):
        top = next(iter(_significant(tuple(_frames(stack)))), "nowhere")
        yield f"{kind} of {size} bytes in {top}"


def _between(headline: str) -> frozenset[str]:
    """The functions that race, from KCSAN's headline."""
    match = _BETWEEN.search(headline)
    if match is None:
        return frozenset()
    names = (match["first"], match["other"])
    return frozenset(_CLONE.sub("", _PLACE.sub("", name)) for name in names if name)


def _locks(excerpt: str) -> Iterator[str]:
    for match in _LOCK.finditer(excerpt.partition(_OTHER_INFO)[0]):
        yield match["lock"].partition("#")[0]


def _plain(headline: str) -> str:
    """``headline`` without the parts that differ between boots or builds."""
    text = re.sub(r"CPU: \d+ (?:UID: \d+ )?PID: \d+ at ", "at ", headline)
    text = re.sub(r",? CPU#?:? ?\d+.*$", "", text)
    text = re.sub(r"\+0x[0-9a-f]+(?:/0x[0-9a-f]+)?", "", text)
    # `insmod/62/0x00000002` and `sh/77`: a task, and its preemption count.
    text = re.sub(r": \S+/\d+(?:/0x[0-9a-f]+)?$", "", text)
    text = _CLONE.sub("", text)
    text = re.sub(r"\b(?:0x)?[0-9a-f]{8,}\b|\b0x[0-9a-f]+\b", "X", text)
    text = re.sub(r"(\.[chS]):\d+(?::\d+)?", r"\1", text)
    return re.sub(r"\b\d+\b", "N", text)
