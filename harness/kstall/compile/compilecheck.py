# SPDX-License-Identifier: GPL-2.0-or-later
"""What compilers say of each patch, as checks; pure.

Each patch is held against the state before it, as in `patchcheck`: neither what the
base has already nor what the patch before broke is its fault.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..lint import Finding, patchcheck
from ..series import Series
from ..verdict import Check, Verdict, run_check
from . import compiling, variants
from .compiling import Outcome, Said

_FATAL = (compiling.ERROR, compiling.NO_SOURCE)
_APART = (
    *(*_FATAL, compiling.SPARSE, compiling.ALONE, compiling.UNUSED),
    compiling.DIVISION,
)


@dataclass(frozen=True)
class Tried:
    """A variant of which there are outcomes, one for each state from the base on.

    With ``lacking``, why there are none.
    """

    name: str
    title: str
    outcomes: tuple[Outcome, ...] = ()
    lacking: str | None = None


@dataclass(frozen=True)
class _Check:
    """``variants`` is the name of one, or with "-" at its end how their names begin;
    ``counts`` is what of that which is said counts."""

    claim: str
    variants: str
    counts: Callable[[Said], bool]


def _fatal(one: Said) -> bool:
    return one.kind in _FATAL


def _warning(one: Said) -> bool:
    return one.kind not in _APART


def _either(one: Said) -> bool:
    return _fatal(one) or _warning(one)


def _also_linked(one: Said) -> bool:
    return _either(one) or one.kind == compiling.DIVISION


def _only(kind: str) -> Callable[[Said], bool]:
    return lambda one: one.kind == kind


_TOUCHED = "all touched code compiles after each patch, without a new warning at W=1"
#: The checks, in the order in which a reader would ask; `series.PatchExemption` has
#: the same names.
CHECKS: Mapping[str, _Check] = {
    "compiles_as_configured": _Check(
        "All touched code compiles after each patch, as all series together are "
        "configured.",
        *("modules", _fatal),
    ),
    "no_new_warnings": _Check(
        "No patch makes the compiler, at W=1, or objtool warn of anything new.",
        *("modules", _warning),
    ),
    "sparse_clean": _Check(
        "No patch adds a warning or an error of sparse, at C=1.",
        *("sparse", _only(compiling.SPARSE)),
    ),
    "headers_stand_alone": _Check(
        "Each touched header includes what it uses, and can be included twice.",
        *("modules", _only(compiling.ALONE)),
    ),
    "tracepoints_are_called": _Check(
        "No patch defines a tracepoint that nothing calls, as make UT=1 would tell.",
        *("modules", _only(compiling.UNUSED)),
    ),
    "compiles_without_tracing": _Check(
        f"Without ftrace and tracepoints {_TOUCHED}.", "untraced", _either
    ),
    "compiles_tiny": _Check(
        f"In a kernel without all that can be left out, {_TOUCHED}.", "tiny", _either
    ),
    "compiles_without_options": _Check(
        f"Without any one option that it hangs on, {_TOUCHED}.", "without-", _either
    ),
    "compiles_built_in": _Check(
        f"With all modules built in, {_TOUCHED}.", "builtin", _either
    ),
    "compiles_with_clang": _Check(f"With clang, {_TOUCHED}.", "clang", _either),
    "compiles_for_arm64": _Check(f"For arm64, {_TOUCHED}.", "arm64", _either),
    "compiles_for_i386": _Check(
        f"For 32-bit x86, {_TOUCHED}, or a division that only libgcc has.",
        *("i386", _also_linked),
    ),
    "compiles_at_random": _Check(
        f"In random configurations that have it, by seeds that are named, {_TOUCHED}.",
        *(variants.RANDOM, _either),
    ),
}


#: The check that tells what of the others was not compiled.
LEFT_OUT = "no_source_is_left_out"


def says_more(outcome: Outcome, base: Outcome) -> bool:
    """Whether something is said of it that is not said of ``base``, and that a check of
    a whole configuration counts."""
    return bool(
        patchcheck.new(
            _findings(base, _either, ""),
            _findings(outcome, _either, ""),
        )
    )


def judge(series: Series, tried: Sequence[Tried]) -> tuple[Check, ...]:
    """The checks of which there is a variant in ``tried``.

    What could be compiled is compared, and passes or fails; what could not is for
    `LEFT_OUT`, which is skipped if there is any.
    """
    results = []
    for name, check in CHECKS.items():
        mine = [one for one in tried if _is_one_of(one.name, check.variants)]
        if mine:
            judging = functools.partial(_judge, name, check, mine)
            result = run_check(name, "patch", check.claim, judging, series)
            if result.status in ("pass", "fail"):
                result.detail = "; ".join(_told(mine))
            results.append(result)
    claim = (
        "Each configuration that is to be tried can be had, and each touched source is "
        "compiled in one of them."
    )
    # Sparse reads what is compiled, and what is lacking has a skipped check already.
    real = [one for one in tried if one.outcomes and one.name != compiling.SPARSE]
    if real:
        results.append(run_check(LEFT_OUT, "patch", claim, _left_out, real))
    return tuple(results)


def _left_out(tried: Sequence[Tried]) -> Verdict:
    """That a source goes away with an option, or is of one architecture, is no gap: it
    is one if no configuration has it."""
    verdict = Verdict()
    impossible = {
        one.title: reason
        for one in tried
        for reason in [next(filter(None, (o.impossible for o in one.outcomes)), None)]
        if reason is not None
    }
    last = [one.outcomes[-1] for one in tried if one.title not in impossible]
    compiled = {path for one in last for path in one.compiled}
    nowhere = sorted({path for one in last for path in one.left_out} - compiled)
    reasons = [f"{title}: {reason}" for title, reason in impossible.items()]
    reasons += [f"{path}: in none of the configurations" for path in nowhere]
    if reasons:
        verdict.skip("; ".join(reasons))
        return verdict
    for one in tried:
        outcome = one.outcomes[-1]
        without = ", ".join(outcome.left_out)
        seen = f"{len(outcome.compiled)} sources"
        seen += f", without {without}" if without else ""
        verdict.true(f"{one.title}: can be had", True, seen)
    return verdict


def _told(tried: Sequence[Tried]) -> Iterator[str]:
    """The seeds, where there are any, and what was not compiled."""
    seeds = [one.title for one in tried if one.name.startswith(variants.RANDOM)]
    if seeds:
        yield f"tried {', '.join(seeds)}"
    yield from _limits(tried)


def _limits(tried: Sequence[Tried]) -> Iterator[str]:
    """What was not compiled."""
    for one in tried:
        if reason := _says_nothing(one):
            yield f"{one.title}: {reason}"
        elif out := one.outcomes[-1].left_out:
            yield f"{one.title}: without {', '.join(out)}"


def _why_nothing(tried: Sequence[Tried]) -> str:
    """Why none of the variants says anything.

    Checks that lack the same thing give the same reason, so that views can group them.
    """
    reasons = dict.fromkeys(reason for one in tried if (reason := _says_nothing(one)))
    return next(iter(reasons)) if len(reasons) == 1 else "; ".join(_limits(tried))


def _is_one_of(name: str, wanted: str) -> bool:
    return name.startswith(wanted) if wanted.endswith("-") else name == wanted


def _judge(name: str, check: _Check, tried: Sequence[Tried], series: Series) -> Verdict:
    findings: list[list[Finding]] = [[] for _ in series.patches]
    stray = check.counts is _fatal
    useful = [one for one in tried if _says_nothing(one, stray=stray) is None]
    if not useful:
        skipped = Verdict()
        skipped.skip(_why_nothing(tried))
        return skipped
    for one in useful:
        where = f"{one.title}: " if check.variants.endswith("-") else ""
        told = [_findings(outcome, check.counts, where) for outcome in one.outcomes]
        for number, found in enumerate(findings):
            # What a patch before this one has hidden may be the base's, too.
            before = [*told[number], *patchcheck.new(told[number], told[0])]
            found.extend(patchcheck.new(before, told[number + 1]))
            if stray:
                touches = series.patches[number].touches
                found.extend(_never_compiled(one.outcomes[number + 1], touches))
    return patchcheck.verdict(name, findings, series)


def _says_nothing(tried: Tried, *, stray: bool = False) -> str | None:
    """Why a variant says nothing, if it does not.

    If ``stray`` sources are told of, it does when it compiles none.
    """
    if tried.lacking is not None:
        return tried.lacking
    for outcome in tried.outcomes:
        if outcome.impossible is not None:
            return outcome.impossible
    if any(outcome.compiled for outcome in tried.outcomes):
        return None
    if not any(outcome.left_out for outcome in tried.outcomes):
        return "no code of the kernel is touched"
    return None if stray else "this configuration has none of the touched sources"


def _findings(
    outcome: Outcome, counts: Callable[[Said], bool], where: str
) -> list[Finding]:
    return [
        Finding(one.file, one.line, one.kind, f"{where}{one.text}")
        for one in outcome.said
        if counts(one)
    ]


def _never_compiled(outcome: Outcome, touches: Collection[str]) -> list[Finding]:
    """Touched sources that no series' fragment has compiled."""
    return [
        Finding(path, 0, compiling.NOT_COMPILED, "no fragment has it compiled")
        for path in outcome.left_out
        if path in touches
    ]
