# SPDX-License-Identifier: GPL-2.0-or-later
"""What a cover letter says of the run that proved a series, as sentences and items.

The letter has counts, costs, and what was not covered; all else is in the report of the
run.  `cover` lays the texts out, and shortens lists that are too long for a letter.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePath

from ..base import few
from ..cost import costs
from ..evidence import Evidence, falsity
from ..report import SeriesReport
from ..series import Series
from ..tree import Base
from ..verdict import Check, Kind
from .proof import Proof

#: Checks of patches, in the words of the cover letter.
_PATCH_CHECKS = {
    "checkpatch_strict": "checkpatch --strict",
    "checkpatch_tags": "tags by checkpatch",
    "kernel_doc": "kernel-doc",
    "documents": "well-formed documents",
    "include_order": "order of includes",
    "new_files_are_maintained": "new files in MAINTAINERS",
    "sections_complete": "sections of MAINTAINERS",
    "inlines_are_in_headers": "use of inline",
    "mentioned_documents_exist": "references to documents",
    "event_names_are_new": "unique event names",
    "tags": "form of tags",
    "fixes_are_in_history": "Fixes: tags",
    "spelling_is_right": "codespell",
    "prose_is_wrapped": "wrapped messages",
    "nothing_to_fill_in": "no placeholders in messages",
    "coccinelle_clean": "Coccinelle",
    "sphinx_clean": "Sphinx",
    "compiles_as_configured": "builds patch by patch",
    "no_new_warnings": "no new warnings at W=1",
    "sparse_clean": "sparse",
    "headers_stand_alone": "self-contained headers",
    "tracepoints_are_called": "no unused tracepoints",
    "compiles_without_tracing": "builds without tracing",
    "compiles_without_options": "builds without each option",
    "compiles_built_in": "builds without modules",
    "compiles_with_clang": "builds with clang",
    "compiles_for_arm64": "builds for arm64",
    "compiles_for_i386": "builds for i386",
    "compiles_at_random": "builds of random configurations",
    "compiles_tiny": "builds in a tiny configuration",
    "no_source_is_left_out": "builds of all touched sources",
}
#: Tools and ways to build that a letter names if the patches passed the check.
_TOOLS = {
    "checkpatch_strict": "checkpatch --strict --no-signoff",
    "no_new_warnings": "W=1",
    "sparse_clean": "sparse",
    "coccinelle_clean": "Coccinelle",
}
_BUILDS = {
    "compiles_as_configured": "one by one",
    "compiles_with_clang": "with clang",
    "compiles_for_arm64": "for arm64",
    "compiles_without_tracing": "without tracing",
}
#: Kinds of checks in their order in a letter, and what one is called.
_KINDS: dict[Kind, str] = {
    "positive": "positive control",
    "negative": "negative control",
    "invariant": "invariant",
    "harness": "of the guest and its records",
    "abi": "of existing events",
    "overhead": "of overhead",
    "patch": "of the patches",
    "debug": "under KASAN and lockdep, or KCSAN",
}
#: Programs that trace events in a guest, and their packages; ftrace is the kernel's.
_TRACERS = {
    "ftrace": "",
    "bpftrace": "bpftrace",
    "perf": "linux-perf",
    "trace-cmd": "trace-cmd",
}
#: The check that all others pass on a kernel without other series, too.
_ALONE = "holds_alone"
#: Operations that only an older event is traced in: the row before has their reason.
_COMPARED = re.compile(r".*, while .* (?:is|are) traced$")
#: Names in a sentence, at most.
_FIRST = 3
#: Where most trees are: what follows is enough to recognize one.
_KERNEL_ORG = "git://git.kernel.org/pub/scm/linux/kernel/git/"


def ran(series: Series, proof: Proof, base: Base, applied: str) -> str:
    """When and on what the run was, what ran, and where not; ``applied`` as in
    `cover.render`.  Raises `NoProof` if the guest's results are gone."""
    environment = proof.report.environment
    origin = f"{base.describe}, git tree id {base.id.rpartition('-')[2]}"
    origins = {
        "git": f"{base.commit and base.commit[:12]}, {base.describe}",
        "debian": f"Debian's {base.origin} {origin}, no base-commit",
        "tarball": f"a tarball, {origin}, no base-commit",
        "directory": f"a directory, {origin}, no base-commit",
    }
    compiler = ""
    if environment.compiler is not None:
        compiler = f", built with {_short(environment.compiler)},"
    kvm = "without" if environment.accelerator == "tcg" else "with"
    sentences = [
        f"{proof.report.started[:10]}, Linux {base.version} ({origins[base.kind]}) "
        f"with {patches(proof)}{compiler} ran "
        f"{_counted(len(series.spec.workload), 'workload')} in "
        f"{_short(environment.qemu or 'QEMU')} {kvm} KVM"
        f"{watchers(environment.guest, proof.results())}.",
        untested(series, base),
        applied,
    ]
    return " ".join(filter(None, sentences))


def patches(proof: Proof) -> str:
    """Whose patches the kernel had that was booted."""
    others = _beside(proof)
    if not others:
        return "these patches"
    passed = {check.name for check in proof.entry.checks if check.status == "pass"}
    alone = ", and with these patches alone" if _ALONE in passed else ""
    return (
        f"these patches and those of {len(others)} other series ({few(others, _FIRST)})"
        f"{alone}"
    )


def _beside(proof: Proof) -> list[str]:
    """The other series in the kernel; in a report that does not say so, those that were
    proven on it."""
    kernel = proof.entry.kernel
    if proof.entry.beside is not None or kernel is None:
        return proof.entry.beside or []
    return [
        entry.name
        for entry in proof.report.series
        if entry.kernel == kernel and entry.name != proof.entry.name
    ]


def untested(series: Series, base: Base) -> str:
    """That ``base`` is not the maintainer's tree, or may not be, as a sentence; empty
    if it is."""
    home = series.spec.subsystem
    place = f"{home.tree.removeprefix(_KERNEL_ORG)}, branch {home.branch}"
    if base.kind in ("debian", "tarball"):
        return f"Not tested on {place}."
    if base.kind == "git" and base.origin == f"{home.tree}#{home.branch}":
        return ""
    return f"Whether this is {place}, was not checked."


def _short(version: str) -> str:
    """``version`` of a program without the name of a distribution's package."""
    return re.sub(r" \([^()]*\)", "", version).replace(" emulator version", "")


def _plural(count: int, noun: str) -> str:
    return noun if count == 1 else f"{noun}s"


def _counted(count: int, noun: str) -> str:
    return f"{count} {_plural(count, noun)}"


def watchers(versions: Mapping[str, str], evidence: Evidence) -> str:
    """What traced any workload, with the ``versions`` of packages, as a clause."""
    used: set[str] = set()
    for load in evidence.workloads.values():
        if load.facts.get("trace") is not None:
            used.add("ftrace")
        if load.facts.get("tracers"):
            used.add("bpftrace")
        used.update(load.facts.get("decoded", ()))
    programs = [
        # Without the revision of the package.
        f"{name} {versions.get(package, '').partition('-')[0]}".rstrip()
        for name, package in _TRACERS.items()
        if name in used
    ]
    return f", traced with {_joined(programs)}" if programs else ""


def checked(entry: SeriesReport, *, argued: bool) -> str:
    """The numbers of checks by kind, of their comparisons, and of wrong values.

    If findings in the patches are ``argued``, they follow in the letter.
    """
    passed: dict[Kind, list[Check]] = {}
    for check in entry.checks:
        if check.status == "pass":
            passed.setdefault(check.kind, []).append(check)
    counts = []
    for kind, name in _KINDS.items():
        if checks := passed.get(kind, []):
            is_noun = not name.startswith(("of ", "under "))
            what = _plural(len(checks), name) if is_noun else name
            comparisons = sum(len(check.comparisons) for check in checks)
            counts.append(f"{len(checks)} {what} ({comparisons:,})")
    skips = sum(check.status == "skip" for check in entry.checks)
    sentences = [
        f"Checks that passed, and their comparisons: {', '.join(counts)}.",
        _falsified(entry.mutation),
        f"Skipped: {skips}, see below." if skips else "",
        _named(entry.checks, argued=argued),
    ]
    return " ".join(filter(None, sentences))


def _falsified(mutation: falsity.Mutation | None) -> str:
    if mutation is None or not mutation.mutants:
        return ""
    noticed, idle = mutation.count("caught"), mutation.count("not-applicable")
    missed = len(mutation.mutants) - noticed - idle
    return (
        f"Of {len(mutation.mutants)} wrong values put into copies of the records, they "
        f"noticed {noticed}; not shown by this run: {missed}; without effect: {idle}."
    )


def _named(checks: Sequence[Check], *, argued: bool) -> str:
    """The passed checks of the patches that are worth their names, as a sentence."""
    passed = {check.name for check in checks if check.status == "pass"}
    tools = [tool for name, tool in _TOOLS.items() if name in passed]
    builds = [way for name, way in _BUILDS.items() if name in passed]
    but = " but for the findings below" if argued else ""
    parts = []
    if tools:
        parts.append(f"pass {_joined(tools)}{but}")
    if builds:
        parts.append(f"build {_joined(builds)}")
    return f"The patches {', and '.join(parts)}." if parts else ""


def _joined(words: Sequence[str]) -> str:
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last


def shown(entry: SeriesReport) -> list[str]:
    """How the bugs that the series fixes show on the same workloads without it."""
    items = []
    for bug in entry.shown:
        first = bug.comparisons[0]
        wanted = first.wanted.removeprefix("= ")
        rest = len(bug.comparisons) - 1
        items.append(
            f"{bug.looks} ({first.label}: expected {wanted}, observed {first.seen}"
            + (f"; and {rest} more" if rest else "")
            + ")"
        )
    return items


def argued(series: Series, checks: Sequence[Check]) -> list[str]:
    """Findings in the patches that exemptions of the series cover, one a reason."""
    reasons: dict[tuple[str, str], tuple[dict[str, None], dict[str, None]]] = {}
    for exemption in series.spec.exemption:
        details = " ".join(
            comparison.detail
            for check in checks
            if check.name == exemption.check
            for comparison in check.comparisons
        )
        if exemption.because not in details:
            continue
        tool = exemption.check.replace("_", " ").removesuffix(" strict")
        files, kinds = reasons.setdefault((exemption.because, tool), ({}, {}))
        files |= dict.fromkeys(PurePath(file).name for file in exemption.files)
        kinds |= dict.fromkeys(kind for kind in exemption.kinds if kind in details)
    return [
        f"{', '.join(files)}{': ' * bool(files)}{' '.join(because.split())} "
        f"({tool}: {', '.join(kinds)})"
        for (because, tool), (files, kinds) in reasons.items()
    ]


def uncovered(entry: SeriesReport) -> list[str]:
    """What the run does not show, with reasons, the gravest first."""
    others = [check for check in entry.checks if check.kind != "patch"]
    patches = [check for check in entry.checks if check.kind == "patch"]
    items = _skipped(others)
    if entry.mutation is not None:
        missed = entry.mutation.unproven()
        items += [f"not shown by this run: {line}" for line in missed]
        if idle := unchanged(entry.mutation):
            items.append(f"wrong values without effect: {idle}")
    items += _skipped(patches)
    overhead = entry.overhead
    if overhead is not None and overhead.footprint is not None:
        # The last limit is about any series, so it comes first.
        limits = "; ".join(reversed(overhead.footprint.limits))
        items += [f"overhead: {limits}"] * bool(limits)
    return items


def _skipped(checks: Iterable[Check]) -> list[str]:
    """The claims of skipped checks, or what they are called, joined by reason."""
    reasons: dict[str, list[str]] = {}
    for check in checks:
        if check.status == "skip":
            reasons.setdefault(check.detail, []).append(_claim(check))
    return [f"{'; '.join(claims)}: {reason}" for reason, claims in reasons.items()]


def _claim(check: Check) -> str:
    claim = check.claim.rstrip(".")
    if check.kind == "patch":
        return _PATCH_CHECKS.get(check.name, check.name.replace("_", " "))
    # Their claims speak of "these kernels".
    return f"debug kernels: {claim}" if check.kind == "debug" else claim


def unchanged(mutation: falsity.Mutation) -> str:
    """The fields, by event, of which some wrong value changes nothing in this run."""
    events: dict[str, list[str]] = {}
    for row in mutation.rows():
        if row.idle or row.untried:
            event = row.event.partition(":")[2]
            events.setdefault(event, []).append(row.field.strip("()"))
    return "; ".join(
        f"{event} ({', '.join(fields)})" for event, fields in events.items()
    )


def code(overhead: costs.Overhead, architecture: str) -> str:
    """The sites of the events while they are off, and what grows, as sentences.

    ``architecture`` is that of the kernels.
    """
    footprint = overhead.footprint
    if footprint is None:
        return "the machine code was not compared."
    sentences = []
    if sites := footprint.sites:
        nops = [site.nop for site in sites if site.nop]
        lengths = " or ".join(map(str, sorted(set(nops))))
        cold = max(site.cold_bytes for site in sites)
        sentences.append(
            f"with the events off, {_share(len(nops), len(sites))} a NOP of {lengths} "
            f"bytes ({architecture}); the code behind, up to {cold} bytes a site, runs "
            "only for the enabled event."
        )
    changed = structs(footprint) or ["no existing struct changes"]
    sentences += [_sentence(few(changed, _FIRST)), mitigated(overhead)]
    if grown := growth(footprint):
        sentences.append(f"Growth in bytes, text and rest: {few(grown, _FIRST)}.")
    return " ".join(filter(None, sentences))


def _share(count: int, total: int) -> str:
    """How many of ``total`` sites are something, with the verb."""
    if count == total:
        return "the only site is" if total == 1 else f"each of {total} sites is"
    return f"{count} of {total} sites {'is' if count == 1 else 'are'}"


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def structs(footprint: costs.Footprint) -> list[str]:
    """Existing structs whose size or layout changed."""
    lines = []
    for struct in footprint.structs:
        if struct.record or struct.base is None or struct.patched is None:
            continue
        size = f"{struct.base} to {struct.patched} bytes"
        if struct.base == struct.patched:
            size = f"{struct.base} bytes as before, with a changed layout"
        lines.append(f"struct {struct.name}: {size}")
    return lines


def growth(footprint: costs.Footprint) -> list[str]:
    """The growth of each binary in bytes of text and of all other sections."""
    totals: dict[str, dict[str, int]] = {}
    for section in footprint.sections:
        kind = "text" if "text" in section.section else "data"
        total = totals.setdefault(section.binary, {"text": 0, "data": 0})
        total[kind] += section.patched - section.base
    return [
        f"{binary} {total['text']:+} and {total['data']:+}"
        for binary, total in totals.items()
    ]


def mitigated(overhead: costs.Overhead) -> str:
    """Sites and longer paths in objects compiled with mitigations, as a sentence."""
    if overhead.mitigated is None:
        return ""
    longer = [
        f"{path.name}() {path.cost:+}" for path in overhead.longer_with_mitigations
    ]
    sites = overhead.mitigated.sites
    nops = sum(site.nop in overhead.mitigated.nops for site in sites)
    if not longer and nops == len(sites):
        too = "each site is a NOP, too, and " if sites else ""
        return f"Compiled with mitigations, {too}no path is longer than without them."
    return (
        f"Compiled with mitigations, {_share(nops, len(sites))} a NOP; longer paths "
        f"than without: {few(longer, _FIRST)}."
    )


def paths(overhead: costs.Overhead) -> list[str]:
    """The NOPs and other instructions of each changed function, with the reason.

    They are those of the path that has most while the events are off, by the figure
    that is judged.  What may cost more, but is no such function, comes last.
    """
    footprint = overhead.footprint or costs.Footprint()
    exemptions = {
        exemption.function: exemption
        for exemption in overhead.exemptions
        if exemption.function
    }
    grouped: dict[tuple[str, str], list[str]] = {}
    needed = set()
    for path in sorted(footprint.paths, key=lambda path: -path.cost):
        exemption = exemptions.get(path.name.partition(".")[0])
        because = ""
        if exemption is not None and (path.cost or path.longer_loop):
            because = _because(exemption.because)
            needed.add(exemption.function)
        hot = " (hot)" if path.hot else ""
        functions = grouped.setdefault((_instructions(path), because), [])
        functions.append(f"{path.name}(){hot}")
    items = [
        f"{', '.join(functions)}: {count}{': ' * bool(because)}{because}"
        for (count, because), functions in grouped.items()
    ]
    others = [
        exemption
        for exemption in overhead.exemptions
        if exemption.function not in needed
    ]
    return [*items, *allowances(others)]


def _instructions(path: costs.FunctionPaths) -> str:
    """The NOPs, and how many others more, or fewer."""
    parts = [_counted(path.nops, "NOP")] * bool(path.nops)
    if path.cost or not path.nops:
        parts.append(f"{path.cost:+}")
    where = "" if path.proven else " not reached before"
    if path.longer_loop is not None:
        where = ", with more for each round of a loop"
    return " and ".join(parts) + where


def allowances(exemptions: Iterable[costs.Exemption]) -> list[str]:
    """What may cost more than a NOP, and why; one line a reason."""
    grouped: dict[tuple[str, str], list[str]] = {}
    for exemption in exemptions:
        name = (
            f"{exemption.function}()"
            if exemption.function
            else f"struct {exemption.struct}"
        )
        unit = "instruction" if exemption.function else "byte"
        amount = _counted(exemption.allowed, unit)
        amount = f"{amount} allowed for"
        if exemption.function and not (exemption.allowed or exemption.calls):
            amount = "nothing to compare with for the new"
        grouped.setdefault((amount, _because(exemption.because)), []).append(name)
    return [
        f"{amount} {', '.join(names)}: {because}"
        for (amount, because), names in grouped.items()
    ]


def _because(text: str) -> str:
    return " ".join(text.split()).rstrip(".")


def reasons(overhead: costs.Overhead) -> list[str]:
    """Why measured operations execute more than a NOP, where the series says so."""
    own = [
        f"{measurement.operation}: {measurement.predicted:+g} instructions predicted: "
        + _because(measurement.because)
        for measurement in overhead.measurements
        if measurement.because is not None
        and not _COMPARED.match(measurement.operation)
    ]
    others = [
        f"{measurement.operation}: {measurement.others:+.3g} NOPs of other series in "
        "the same kernel"
        for measurement in overhead.measurements
        if measurement.others
    ]
    return own + others


def table(measurements: Sequence[costs.Measurement]) -> list[tuple[str, str]]:
    """The figures of each operation, in columns, and its name; the first is a head.

    Figures are those of the base, what each mode adds, and what boots of the base
    differ by.
    """
    head = ["base", "off", "ftrace", "bpftrace", "+/-"]
    rows = [head, *map(_figures, measurements)]
    columns = [column for column in zip(*rows, strict=True) if set(column[1:]) != {"-"}]
    widths = [max(map(len, column)) for column in columns]
    names = [
        "(+/-: between boots of the base)",
        *(measurement.operation for measurement in measurements),
    ]
    return [
        (
            " ".join(
                f"{figure:>{width}}" for figure, width in zip(row, widths, strict=True)
            ),
            name,
        )
        for row, name in zip(zip(*columns, strict=True), names, strict=True)
    ]


def _figures(measurement: costs.Measurement) -> list[str]:
    medians = measurement.medians
    base = medians.get("base")
    modes: Sequence[costs.Mode] = ("off", "ftrace", "bpftrace")
    return [
        "-" if base is None else f"{base:,.1f}",
        *(
            "-" if base is None or mode not in medians else _added(medians[mode] - base)
            for mode in modes
        ),
        _added(measurement.resolution).lstrip("+"),
    ]


def _added(value: float) -> str:
    """``value`` with a sign, and no more digits than anybody reads."""
    if abs(value) >= 100:
        return f"{value:+,.0f}"
    return f"{value:+.2f}".rstrip("0").rstrip(".")
