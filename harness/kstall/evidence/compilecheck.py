# SPDX-License-Identifier: GPL-2.0-or-later
"""What compilers report of each patch, as checks; pure.

Each patch is compared with the state before it, as in `patchcheck`: findings of the
base or of an earlier patch do not count against it.  It is not in package `compile`, as
outcomes are cached by the source of that: to judge them otherwise, nothing has to be
compiled again.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..compile import CompileOutcome, CompilerRemark, Trial, compiling, variants
from ..lint import Finding, patchcheck
from ..series import Series
from ..verdict import Check, Verdict, run_check


@dataclass(frozen=True)
class _Check:
    """``variants`` is the name of a variant, or a prefix of names that ends in "-";
    ``counts`` selects the remarks that count."""

    claim: str
    variants: str
    counts: Callable[[CompilerRemark], bool]


def _also_linked(remark: CompilerRemark) -> bool:
    return compiling.is_fault(remark) or remark.kind == compiling.DIVISION


def _only(kind: str) -> Callable[[CompilerRemark], bool]:
    return lambda remark: remark.kind == kind


_TOUCHED = "all touched code compiles after each patch, without a new warning at W=1"
#: The checks, in the order in which a reader would ask; `series.PatchExemption` has
#: the same names.
CHECKS: Mapping[str, _Check] = {
    "compiles_as_configured": _Check(
        "All touched code compiles after each patch, as all series together are "
        "configured.",
        "modules",
        compiling.is_fatal,
    ),
    "no_new_warnings": _Check(
        "No patch adds a warning of the compiler, at W=1, or of objtool.",
        "modules",
        compiling.is_warning,
    ),
    "sparse_clean": _Check(
        "No patch adds a warning or an error of sparse, at C=1.",
        "sparse",
        _only(compiling.SPARSE),
    ),
    "headers_stand_alone": _Check(
        "Each touched header includes what it uses, and can be included twice.",
        "modules",
        _only(compiling.ALONE),
    ),
    "tracepoints_are_called": _Check(
        "No patch defines a tracepoint that nothing calls, as make UT=1 reports.",
        "modules",
        _only(compiling.UNUSED),
    ),
    "compiles_without_tracing": _Check(
        f"Without ftrace and tracepoints {_TOUCHED}.",
        "untraced",
        compiling.is_fault,
    ),
    "compiles_tiny": _Check(
        f"In a kernel without all that can be disabled, {_TOUCHED}.",
        "tiny",
        compiling.is_fault,
    ),
    "compiles_without_options": _Check(
        f"Without any one option that it depends on, {_TOUCHED}.",
        "without-",
        compiling.is_fault,
    ),
    "compiles_built_in": _Check(
        f"With all modules built in, {_TOUCHED}.", "builtin", compiling.is_fault
    ),
    "compiles_with_clang": _Check(
        f"With clang, {_TOUCHED}.", "clang", compiling.is_fault
    ),
    "compiles_for_arm64": _Check(
        f"For arm64, {_TOUCHED}.", "arm64", compiling.is_fault
    ),
    "compiles_for_i386": _Check(
        f"For 32-bit x86, {_TOUCHED} or a 64-bit division that needs libgcc.",
        "i386",
        _also_linked,
    ),
    "compiles_at_random": _Check(
        f"In random configurations that include it, with named seeds, {_TOUCHED}.",
        variants.RANDOM,
        compiling.is_fault,
    ),
}


#: The check that reports what none of the others compiled.
LEFT_OUT = "no_source_is_left_out"


def judge(series: Series, trials: Sequence[Trial]) -> tuple[Check, ...]:
    """The checks that have a variant in ``trials``.

    What was compiled is compared, and passes or fails; what was not is reported by
    `LEFT_OUT`, which is then skipped.
    """
    results = []
    for name, check in CHECKS.items():
        relevant = [trial for trial in trials if _matches(trial.name, check.variants)]
        if relevant:
            judging = functools.partial(_judge, name, check, relevant)
            result = run_check(name, "patch", check.claim, judging, series)
            if result.status in ("pass", "fail"):
                result.detail = "; ".join(_details(relevant))
            results.append(result)
    claim = (
        "Each configuration that is tried is possible, and each touched source is "
        "compiled in one of them."
    )
    # Sparse reads the same sources; a variant without outcomes has a skipped check.
    configurations = [
        trial for trial in trials if trial.outcomes and trial.name != compiling.SPARSE
    ]
    if configurations:
        results.append(run_check(LEFT_OUT, "patch", claim, _left_out, configurations))
    return tuple(results)


def _left_out(trials: Sequence[Trial]) -> Verdict:
    """A source that one configuration or architecture leaves out is no gap; one that
    all leave out is."""
    verdict = Verdict()
    impossible = {
        trial.title: reason
        for trial in trials
        for reason in [
            next(filter(None, (outcome.impossible for outcome in trial.outcomes)), None)
        ]
        if reason is not None
    }
    outcomes = [trial.outcomes[-1] for trial in trials if trial.title not in impossible]
    compiled = {path for outcome in outcomes for path in outcome.compiled}
    uncompiled = sorted(
        {path for outcome in outcomes for path in outcome.left_out} - compiled
    )
    reasons = [f"{title}: {reason}" for title, reason in impossible.items()]
    reasons += [f"{path}: in none of the configurations" for path in uncompiled]
    if reasons:
        return verdict.skip("; ".join(reasons))
    for trial in trials:
        outcome = trial.outcomes[-1]
        without = ", ".join(outcome.left_out)
        summary = f"{len(outcome.compiled)} sources"
        summary += f", without {without}" if without else ""
        verdict.true(f"{trial.title}: is possible", True, summary)
    return verdict


def _details(trials: Sequence[Trial]) -> Iterator[str]:
    """The seeds, where there are any, and what was not compiled."""
    seeds = [trial.title for trial in trials if trial.name.startswith(variants.RANDOM)]
    if seeds:
        yield f"tried {', '.join(seeds)}"
    yield from _limits(trials)


def _limits(trials: Sequence[Trial]) -> Iterator[str]:
    """What was not compiled."""
    for trial in trials:
        if reason := _no_verdict(trial):
            yield f"{trial.title}: {reason}"
        elif out := trial.outcomes[-1].left_out:
            yield f"{trial.title}: without {', '.join(out)}"


def _skip_reason(trials: Sequence[Trial]) -> str:
    """Why none of the variants gives a verdict.

    Checks that lack the same thing give the same reason, so that views can group them.
    """
    reasons = dict.fromkeys(
        reason for trial in trials if (reason := _no_verdict(trial))
    )
    return next(iter(reasons)) if len(reasons) == 1 else "; ".join(_limits(trials))


def _matches(name: str, pattern: str) -> bool:
    return name.startswith(pattern) if pattern.endswith("-") else name == pattern


def _judge(
    name: str, check: _Check, trials: Sequence[Trial], series: Series
) -> Verdict:
    findings: list[list[Finding]] = [[] for _ in series.patches]
    stray = check.counts is compiling.is_fatal
    useful = [trial for trial in trials if _no_verdict(trial, stray=stray) is None]
    if not useful:
        return Verdict().skip(_skip_reason(trials))
    for trial in useful:
        where = f"{trial.title}: " if check.variants.endswith("-") else ""
        by_state = [outcome.findings(check.counts, where) for outcome in trial.outcomes]
        for number, patch_findings in enumerate(findings):
            # A finding of the base that an earlier patch hid is not new either.
            before = [*by_state[number], *patchcheck.new(by_state[number], by_state[0])]
            patch_findings.extend(patchcheck.new(before, by_state[number + 1]))
            if stray:
                touches = series.patches[number].touches
                patch_findings.extend(
                    _never_compiled(trial.outcomes[number + 1], touches)
                )
    return patchcheck.verdict(name, findings, series)


def _no_verdict(trial: Trial, *, stray: bool = False) -> str | None:
    """Why this variant gives no verdict, or None.

    With ``stray``, sources that are not compiled are findings, so it gives one even if
    it compiles none.
    """
    if trial.unavailable is not None:
        return trial.unavailable
    for outcome in trial.outcomes:
        if outcome.impossible is not None:
            return outcome.impossible
    if any(outcome.compiled for outcome in trial.outcomes):
        return None
    if not any(outcome.left_out for outcome in trial.outcomes):
        return "no code of the kernel is touched"
    return None if stray else "this configuration has none of the touched sources"


def _never_compiled(outcome: CompileOutcome, touches: Collection[str]) -> list[Finding]:
    """Touched sources that no series' fragment enables."""
    return [
        Finding(path, 0, compiling.NOT_COMPILED, "no fragment enables it")
        for path in outcome.left_out
        if path in touches
    ]
