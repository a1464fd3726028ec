# SPDX-License-Identifier: GPL-2.0-or-later
"""Checks of each patch that need no build, like those of a maintainer's bot.

Every check compares patch by patch: findings that the base already has do not count
against a patch.  Findings that an ``[[exemption]]`` covers are shown with its reason.
Nothing runs inside a tree: all programs get copies.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from email.parser import BytesHeaderParser
from email.policy import default as mail_policy
from pathlib import Path

from ..base import KstallError, once
from ..series import PatchExemption, PatchFile, Series, patchfile
from ..tree import Base, File, git, tree
from ..verdict import Check, Verdict, claim_of, run_check
from . import (
    checkpatch,
    discover,
    includes,
    inlines,
    kerneldoc,
    maintainers,
    patchtext,
    rst,
    spelling,
)

#: `Finding.file` of a finding that is in no file of the tree.
MESSAGE = "message"
_SHOWN = 3
# Tags whose form differs between kernel versions: checkpatch of 7.3 takes any text,
# that of 7.2 wants NAME:VERSION.
_DISPUTED = ("Assisted-by",)
# Where a hunk begins in the file after the patch.
_HUNK = re.compile(r"@@ -\d+(?:,\d+)? \+(\d+)")
_MENTION = re.compile(r"(?<![\w/.-])Documentation/[\w./+-]*\w\.(?:rst|txt|yaml)\b")
_MAINTAINERS = "MAINTAINERS"
_CODE = (".c", ".h", ".rs", ".S")
# Headers that declare events in the tree so far, by name or by directory.
_TRACE_HEADER = re.compile(
    r"(?:include/trace/.*|include/ras/.*|.*/trace/.*|.*(?:trace|event|ulog)[^/]*"
    r"|drivers/mtd/devices/docg3)\.h"
)


@dataclass(frozen=True)
class Finding:
    """A fault that a check finds in a patch.

    ``file`` is a path in the tree, or `MESSAGE`; ``line`` is the line there, or in the
    patch file if it is about the message; ``kind`` is the word for it in exemptions.
    ``tag`` is the tag of the message that it is about, or "".
    """

    file: str
    line: int
    kind: str
    text: str
    tag: str = ""


@dataclass(frozen=True)
class CheckedSeries:
    """A series on a base, and a directory for copies that the caller removes."""

    series: Series
    plan: tree.Plan
    scratch: Path

    @once
    def checkpatch(self) -> Mapping[str, Sequence[Finding]]:
        """The findings of checkpatch.pl, by the name of the patch file."""
        patches = self.series.patches
        findings: dict[str, list[Finding]] = {patch.path.name: [] for patch in patches}
        for signed in (False, True):
            files = [patch.path for patch in patches if _is_signed(patch) == signed]
            if not files:
                continue
            paths = {path.name: path for path in files}
            for remark in checkpatch.run(
                self.plan.base, files, self.scratch, signed=signed
            ):
                findings[remark.file].append(from_remark(paths[remark.file], remark))
        return findings

    def before(self, number: int) -> dict[str, File | None]:
        """The touched files before the ``number``-th patch (from 0)."""
        return dict(self.plan.states[number])

    def after(self, number: int) -> dict[str, File | None]:
        """The touched files after it."""
        return dict(self.plan.states[number + 1])

    def changed(self, number: int) -> dict[str, tuple[str | None, str]]:
        """Old and new text of the files that it changes or adds."""
        before = self.before(number)
        return {
            path: (old.text if (old := before[path]) else None, file.text)
            for path, file in self.after(number).items()
            if file is not None and file != before[path]
        }


class CannotTell(KstallError):
    """Something that a check needs is missing, which is no fault of a patch."""


class ProgramFailed(CannotTell):
    """As the program that would tell ended with an error, such as lack of memory, that
    it need not have the next time."""


#: A check: its findings for each patch, and at the end for the cover letter if it reads
#: that.
Finder = Callable[[CheckedSeries], Sequence[Sequence[Finding]]]


def judge(series: Series, plan: tree.Plan, scratch: Path) -> tuple[Check, ...]:
    """All checks of the patches; ``plan`` is the series on its base."""
    subject = CheckedSeries(series, plan, scratch)
    return tuple(
        run_check(name, "patch", claim_of(finder), _verdict, name, finder, subject)
        for name, finder in CHECKS.items()
    )


def _verdict(name: str, finder: Finder, subject: CheckedSeries) -> Verdict:
    try:
        findings = finder(subject)
    except CannotTell as error:
        return Verdict().skip(error.what)
    undisputed = [
        [finding for finding in patch_findings if finding.tag not in _DISPUTED]
        for patch_findings in findings
    ]
    judged = verdict(name, undisputed, subject.series)
    disputed = [
        finding
        for patch_findings in findings
        for finding in patch_findings
        if finding.tag in _DISPUTED
    ]
    if disputed and all(comparison.ok for comparison in judged.comparisons):
        texts = "; ".join(dict.fromkeys(finding.text for finding in disputed))
        reason = (
            f"{subject.plan.base.version} wants {_list(disputed)} in another form than "
            f"other versions do: {texts}"
        )
        # Of a received series the other findings are a skip as well.
        return Verdict().skip("; ".join(filter(None, (judged.skipped, reason))))
    return judged


def _list(disputed: Sequence[Finding]) -> str:
    return ", ".join(sorted({finding.tag for finding in disputed}))


def verdict(
    name: str, findings: Sequence[Sequence[Finding]], series: Series
) -> Verdict:
    """One comparison a patch, which holds if exemptions cover all findings.

    ``findings`` are those of each patch, and of the cover letter if it was read.  A
    received series has no exemptions: its findings are reported and the check is
    skipped.
    """
    verdict = Verdict()
    summaries = []
    files = [patch.path.name for patch in series.patches]
    files.append(series.spec.cover)
    exemptions = [
        exemption for exemption in series.spec.exemption if exemption.check == name
    ]
    for file, file_findings in zip(files, findings, strict=False):
        unargued = [
            finding
            for finding in file_findings
            if not any(covers(exemption, finding) for exemption in exemptions)
        ]
        argued = [
            _argued(exemption, file_findings)
            for exemption in exemptions
            if any(covers(exemption, finding) for finding in file_findings)
        ]
        lines = [
            f"{finding.file}:{finding.line}: {finding.kind}: {finding.text}"
            for finding in unargued[:_SHOWN]
        ]
        if len(unargued) > _SHOWN:
            lines.append(f"and {len(unargued) - _SHOWN} more")
        if unargued:
            summaries.append(f"{_short(file)}: {'; '.join(lines)}")
        verdict.true(
            f"{_short(file)}: clean{' apart from exemptions' if argued else ''}",
            not unargued,
            "; ".join([*lines, *argued]),
        )
    if series.spec.discovered and summaries:
        return Verdict().skip(
            f"received series, findings only reported: {'; '.join(summaries)}"
        )
    return verdict


def _short(file: str) -> str:
    """The number of a patch, or the name of another file."""
    number = re.match(r"(\d{4})-", file)
    return number[1] if number else file


def from_remark(patch: Path, remark: checkpatch.CheckpatchRemark) -> Finding:
    """The finding for a remark of checkpatch on the mail ``patch``."""
    place, number, line = _place(patch, remark.line)
    tag = patchtext.tag(line) if place == MESSAGE else ""
    text = f"{remark.level}: {remark.text}"
    return Finding(place, number, remark.kind, text, tag)


def covers(exemption: PatchExemption, finding: Finding) -> bool:
    """Whether ``exemption`` is about ``finding``."""
    return (
        finding.kind in exemption.kinds
        and (not exemption.files or finding.file in exemption.files)
        and (
            exemption.saying is None
            or re.search(exemption.saying, finding.text) is not None
        )
    )


def _argued(exemption: PatchExemption, findings: Sequence[Finding]) -> str:
    kinds = Counter(finding.kind for finding in findings if covers(exemption, finding))
    counts = ", ".join(f"{kind} {count}" for kind, count in kinds.items())
    return f"argued: {counts}: {exemption.because}"


# -- the checks ----------------------------------------------------------------------


def checkpatch_strict(subject: CheckedSeries) -> list[list[Finding]]:
    """checkpatch.pl --strict of the tree has no remarks, except on tags."""
    return [
        [finding for finding in patch_findings if not finding.tag]
        for patch_findings in subject.checkpatch.values()
    ]


def checkpatch_tags(subject: CheckedSeries) -> list[list[Finding]]:
    """checkpatch.pl of the tree has no remarks on tags whose form is the same for all
    kernel versions."""
    return [
        [finding for finding in patch_findings if finding.tag]
        for patch_findings in subject.checkpatch.values()
    ]


def kernel_doc(subject: CheckedSeries) -> list[list[Finding]]:
    """No patch adds a warning of the tree's kernel-doc."""
    script = kerneldoc.KernelDoc(subject.plan.base, subject.scratch)
    findings = []
    for number, state in enumerate(subject.plan.states):
        files = {
            path: file
            for path, file in state
            if file is not None and path.endswith(_CODE) and kerneldoc.has(file.data)
        }
        remarks = script.remarks(files, f"state-{number}")
        findings.append(_findings(remarks, "kernel-doc"))
    return [new(findings[n], findings[n + 1]) for n in _numbers(subject)]


def documents(subject: CheckedSeries) -> list[list[Finding]]:
    """No patch adds a fault to a document that docutils reports."""
    findings = []
    for state in subject.plan.states:
        faults = {
            path: rst.faults(file.text)
            for path, file in state
            if file is not None and path.endswith(".rst")
        }
        findings.append(_findings(faults, "rst"))
    return [new(findings[n], findings[n + 1]) for n in _numbers(subject)]


def include_order(subject: CheckedSeries) -> list[list[Finding]]:
    """An added #include keeps the order of a block that has one."""
    return [
        [
            Finding(path, line, "include-order", f"{name} breaks the order")
            for path, (old, new) in subject.changed(number).items()
            if path.endswith(_CODE)
            for line, name in includes.misplaced(old, new)
        ]
        for number in _numbers(subject)
    ]


def new_files_are_maintained(subject: CheckedSeries) -> list[list[Finding]]:
    """Each file that a patch adds belongs to a section of the patched MAINTAINERS."""
    pristine = tree.pristine(subject.plan.base, [_MAINTAINERS])
    findings = []
    for number in _numbers(subject):
        file = subject.after(number).get(_MAINTAINERS, pristine[_MAINTAINERS])
        sections = maintainers.sections(file.text if file else "")
        findings.append(
            [
                Finding(path, 1, "maintainers", "no section but general ones has it")
                for path, (old, _) in subject.changed(number).items()
                if old is None and not _maintained(path, sections)
            ]
        )
    return findings


def _maintained(path: str, sections: tuple[maintainers.MaintainersEntry, ...]) -> bool:
    """Whether a section has it, other than the one of all event headers."""
    titles = set(maintainers.titles_of(path, sections))
    return bool(titles - {"TRACING"} if path.startswith("include/trace/") else titles)


def sections_complete(subject: CheckedSeries) -> list[list[Finding]]:
    """A section of MAINTAINERS has an address, a status and files, and each pattern
    matches a file, as get_maintainer.pl --self-test checks."""
    base = subject.plan.base
    pristine = tree.pristine(base, [_MAINTAINERS])[_MAINTAINERS]
    old_sections = maintainers.sections(pristine.text if pristine else "")
    gone = _removed(subject.plan)
    if _MAINTAINERS not in subject.plan.files and not gone:
        return [[] for _ in _numbers(subject)]
    paths = frozenset(tree.regular(base))
    # Matching all patterns takes minutes.  Only patterns that patches add, and those
    # that match a file which patches remove, can have become empty.
    old_patterns = {pattern for section in old_sections for pattern in section.patterns}
    affected = {
        pattern
        for pattern in old_patterns
        if any(maintainers.matches(pattern, path) for path in gone)
    }
    findings: list[list[Finding]] = []
    for state in map(dict, subject.plan.states):
        file = state.get(_MAINTAINERS, pristine)
        sections = maintainers.sections(file.text if file else "")
        existing = (paths - state.keys()) | {
            path for path, file in state.items() if file
        }
        faults = [
            *maintainers.faults(sections),
            *(
                (section.title, f"no file matches {pattern}")
                for section in sections
                for pattern in section.patterns
                if pattern not in old_patterns or pattern in affected
                if not any(maintainers.matches(pattern, path) for path in existing)
            ),
        ]
        findings.append(
            [
                Finding(_MAINTAINERS, 0, "maintainers", f"{title}: {fault}")
                for title, fault in faults
            ]
        )
    return [new(findings[n], findings[n + 1]) for n in _numbers(subject)]


def _removed(plan: tree.Plan) -> list[str]:
    """The files that a patch removes."""
    states = [dict(state) for state in plan.states]
    return [
        path
        for path in states[0]
        if any(
            before[path] is not None and after[path] is None
            for before, after in itertools.pairwise(states)
        )
    ]


def inlines_are_in_headers(subject: CheckedSeries) -> list[list[Finding]]:
    """An added function is inline in a header, and not inline in a C file, where the
    compiler decides better."""
    return [
        [
            Finding(path, line, "inline", text)
            for path, (old, text_) in subject.changed(number).items()
            for line, text in inlines.misplaced(path, old or "", text_)
        ]
        for number in _numbers(subject)
    ]


def mentioned_documents_exist(subject: CheckedSeries) -> list[list[Finding]]:
    """A file below Documentation/ that an added line names exists."""
    paths = frozenset(tree.regular(subject.plan.base))
    findings = []
    for number in _numbers(subject):
        state = subject.after(number)
        existing = (paths - state.keys()) | {
            path for path, file in state.items() if file
        }
        findings.append(
            [
                Finding(path, line, "reference", f"there is no {name}")
                for path, (old, text) in subject.changed(number).items()
                for line, name in _added_mentions(old or "", text)
                if name not in existing
            ]
        )
    return findings


def _added_mentions(old: str, text: str) -> Iterator[tuple[int, str]]:
    mentions = Counter(_MENTION.findall(old))
    for number, line in enumerate(text.splitlines(), 1):
        for name in _MENTION.findall(line):
            if mentions[name]:
                mentions[name] -= 1
            else:
                yield number, name


def fixes_are_in_history(subject: CheckedSeries) -> list[list[Finding]]:
    """A commit in a Fixes: tag is an ancestor of the tree, and has the subject that
    the tag gives."""
    fixes = [list(patchtext.fixes(_message(patch))) for patch in subject.series.patches]
    base = subject.plan.base
    if any(fixes) and base.repository is None:
        raise CannotTell(
            f"{base.origin} ({base.kind}) has no history to look up Fixes: tags in; "
            "KERNEL= of a git checkout has one"
        )
    return [
        [
            Finding(MESSAGE, _in_file(patch, line), "fixes", text, "Fixes")
            for line, digits, title in patch_fixes
            for text in _history_faults(base, digits, title)
        ]
        for patch, patch_fixes in zip(subject.series.patches, fixes, strict=True)
    ]


def _history_faults(base: Base, digits: str, subject: str) -> Iterator[str]:
    top = base.repository
    assert top is not None and base.commit is not None
    commit = git.commit(top, digits, base.commit)
    if (commit is None or not commit.ancestor) and git.is_shallow(top):
        raise CannotTell(
            f"{top} is a shallow clone without {digits}; "
            "`git fetch --unshallow` gets the rest of the history"
        )
    if commit is None:
        yield f"{digits} is no commit of {top}"
        return
    if commit.subject != subject:
        yield f'{digits} is "{commit.subject}", not "{subject}"'
    if not commit.ancestor:
        yield f"{digits} is no ancestor of {base.describe}"


def history(series: Series, base: Base) -> list[object]:
    """The facts of the history of ``base`` that findings depend on, for a cache key."""
    names = [
        digits
        for patch in series.patches
        for _, digits, _ in patchtext.fixes(_message(patch))
    ]
    top = base.repository
    if top is None or not names:
        return [base.kind, bool(names)]
    commits = [git.resolve(top, name) for name in names]
    return [base.commit, git.is_shallow(top), commits]


def tags(subject: CheckedSeries) -> list[list[Finding]]:
    """Tags are those that kernel developers use, in the usual form and place, and a
    patch that nobody has signed has no Signed-off-by:."""
    return [
        [
            Finding(MESSAGE, _in_file(patch, line), "tag", text)
            for line, text in patchtext.tag_faults(_message(patch), _author(patch))
        ]
        for patch in subject.series.patches
    ]


def spelling_is_right(subject: CheckedSeries) -> list[list[Finding]]:
    """codespell finds no misspelt word in messages, added lines and the cover
    letter."""
    series = subject.series
    texts = {
        patch.path.name: spelling.written(patch.path.read_text("utf-8", "replace"))
        for patch in series.patches
    }
    cover = series.dir / series.spec.cover
    texts[cover.name] = cover.read_text(encoding="utf-8")
    misspellings = spelling.misspelt(texts, subject.scratch)
    findings = [
        [
            Finding(*_place(patch.path, line)[:2], "spelling", text)
            for line, text in misspellings[patch.path.name]
        ]
        for patch in series.patches
    ]
    cover_findings = [
        Finding(MESSAGE, line, "spelling", text)
        for line, text in misspellings[cover.name]
    ]
    return [*findings, cover_findings]


def prose_is_wrapped(subject: CheckedSeries) -> list[list[Finding]]:
    """Prose of messages and the cover letter is at most 75 columns wide."""
    return _of_texts(subject, "width", patchtext.too_wide)


def nothing_to_fill_in(subject: CheckedSeries) -> list[list[Finding]]:
    """No placeholder of a sample is left in messages and the cover letter."""
    return _of_texts(subject, "placeholder", patchtext.unfilled)


def event_names_are_new(subject: CheckedSeries) -> list[list[Finding]]:
    """No tracepoint of the tree has the name of one that a patch adds."""
    base = subject.plan.base
    touched = dict(subject.plan.states[0])
    headers = [
        path
        for path in tree.regular(base)
        if path not in touched and _TRACE_HEADER.fullmatch(path)
    ]
    untouched: dict[str, str] = {}
    for path, file in tree.pristine(base, headers).items():
        if file is not None:
            untouched |= dict.fromkeys(_events(file.text), path)
    findings = []
    for number in _numbers(subject):
        patch_findings: list[Finding] = []
        events = dict(untouched)
        for path, file in subject.before(number).items():
            if file is not None:
                events |= dict.fromkeys(_events(file.text), path)
        for path, (old, new) in subject.changed(number).items():
            added = Counter(_events(new)) - Counter(_events(old or ""))
            for name in added:
                if name in events:
                    text = f"{name} is in {events[name]} already"
                    patch_findings.append(Finding(path, 1, "event-name", text))
                events[name] = path
        findings.append(patch_findings)
    return findings


#: The checks, in the order of the report; `series.PatchExemption` has the same names.
CHECKS: Mapping[str, Finder] = {
    finder.__name__: finder
    for finder in (
        checkpatch_strict,
        checkpatch_tags,
        kernel_doc,
        documents,
        include_order,
        new_files_are_maintained,
        sections_complete,
        inlines_are_in_headers,
        mentioned_documents_exist,
        event_names_are_new,
        tags,
        fixes_are_in_history,
        spelling_is_right,
        prose_is_wrapped,
        nothing_to_fill_in,
    )
}


# -- helpers -------------------------------------------------------------------------


def _events(text: str) -> list[str]:
    # With those of DEFINE_EVENT_PRINT(), which only have a print format of their own.
    return [name for name, _ in discover.declared(text)]


def _of_texts(
    subject: CheckedSeries, kind: str, find: Callable[[str], Iterator[patchtext.Fault]]
) -> list[list[Finding]]:
    """``find`` in each message with its subject, whose line counts as the first, and in
    the cover letter."""
    findings = [
        [
            *(Finding(MESSAGE, 1, kind, fault) for _, fault in find(patch.subject)),
            *(
                Finding(MESSAGE, _in_file(patch, line), kind, fault)
                for line, fault in find(_message(patch))
            ),
        ]
        for patch in subject.series.patches
    ]
    cover = subject.series.dir / subject.series.spec.cover
    faults = find(cover.read_text(encoding="utf-8"))
    return [*findings, [Finding(MESSAGE, line, kind, fault) for line, fault in faults]]


def _findings(
    faults: Mapping[str, Sequence[tuple[int, str]]], kind: str
) -> list[Finding]:
    return [
        Finding(path, line, kind, text)
        for path, lines in faults.items()
        for line, text in lines
    ]


def new(before: Sequence[Finding], after: Sequence[Finding]) -> list[Finding]:
    """The findings of ``after`` that ``before`` lacks; lines may have moved."""
    counts = Counter((finding.file, finding.kind, finding.text) for finding in before)
    added = []
    for finding in after:
        key = (finding.file, finding.kind, finding.text)
        if counts[key]:
            counts[key] -= 1
        else:
            added.append(finding)
    return added


def _numbers(subject: CheckedSeries) -> range:
    return range(len(subject.series.patches))


def _message(patch: PatchFile) -> str:
    return patchfile.split(patch.path)[0]


def _in_file(patch: PatchFile, line: int) -> int:
    """Where the ``line``-th of `_message` (from 1) is in the patch file."""
    text = patch.path.read_bytes().decode("utf-8")
    start = text.index(_message(patch), text.index("\n\n"))
    return text.count("\n", 0, start) + line


def _author(patch: PatchFile) -> str:
    head = BytesHeaderParser(policy=mail_policy).parsebytes(patch.path.read_bytes())
    return str(head["from"])


def _is_signed(patch: PatchFile) -> bool:
    return not patchtext.is_placeholder(_author(patch))


def _place(patch: Path, line: int) -> tuple[str, int, str]:
    """The file of the tree that a line of a patch is about, its number there, and the
    line itself.  In the message, and above the first hunk, the number is the patch's.
    """
    place, number = MESSAGE, line
    rows = patch.read_text(encoding="utf-8", errors="replace").splitlines()[:line]
    ahead: int | None = None
    for row in rows:
        if row.startswith("diff --git "):
            place, ahead, number = row.rpartition(" b/")[2], None, line
        elif place != MESSAGE and (hunk := _HUNK.match(row)):
            ahead = int(hunk[1])
        elif ahead is not None:
            # A removed line is where the next one is now.
            number = ahead
            ahead += not row.startswith(("-", "\\"))
    return place, number, rows[-1] if rows else ""
