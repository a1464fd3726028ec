# SPDX-License-Identifier: GPL-2.0-or-later
"""What can be said of each patch without building it, as a maintainer's bot would.

Every check compares patch by patch, and what the base has already is not held against
a patch.  What a series argues in ``[[exemption]]`` is shown with its reason.  Nothing
runs inside of a tree: all programs get copies.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from email.parser import BytesHeaderParser
from email.policy import default as mail_policy
from pathlib import Path

from ..base import KstallError
from ..series import Patch, PatchExemption, Series, patchfile
from ..tree import Base, File, git, tree
from ..verdict import Check, Verdict, run_check
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

#: Where a finding is that is in no file of the tree.
MESSAGE = "message"
_SHOWN = 3
# Tags whose value versions of the kernel want in different forms: for this one 7.3
# takes any text, and 7.2 a name and a version with a colon between them.
_DISPUTED = ("Assisted-by",)
_MENTION = re.compile(r"(?<![\w/.-])Documentation/[\w./+-]*\w\.(?:rst|txt|yaml)\b")
_MAINTAINERS = "MAINTAINERS"
_CODE = (".c", ".h", ".rs", ".S")
# Wherever somebody has declared an event so far: by name, or by directory.
_TRACE_HEADER = re.compile(
    r"(?:include/trace/.*|include/ras/.*|.*/trace/.*|.*(?:trace|event|ulog)[^/]*"
    r"|drivers/mtd/devices/docg3)\.h"
)


@dataclass(frozen=True)
class Finding:
    """Something that a check does not like about a patch.

    ``file`` is in the tree, or `MESSAGE`; ``line`` is the line there, or in the patch
    file, whichever the check knows; ``kind`` is a word to argue about.  ``tag`` is the
    tag of the message that it is about, or "".
    """

    file: str
    line: int
    kind: str
    text: str
    tag: str = ""


@dataclass(frozen=True)
class Subject:
    """A series on a base, and a directory for copies that the caller removes."""

    series: Series
    plan: tree.Plan
    scratch: Path

    @functools.cached_property
    def checkpatch(self) -> Mapping[str, Sequence[Finding]]:
        """What checkpatch.pl says of each patch, by the name of its file."""
        patches = self.series.patches
        found: dict[str, list[Finding]] = {patch.path.name: [] for patch in patches}
        for signed in (False, True):
            files = [one.path for one in patches if _is_signed(one) == signed]
            if not files:
                continue
            paths = {path.name: path for path in files}
            for one in checkpatch.run(
                self.plan.base, files, self.scratch, signed=signed
            ):
                found[one.file].append(finding(paths[one.file], one))
        return found

    def before(self, number: int) -> dict[str, File | None]:
        """The touched files that the ``number``-th patch (from 0) meets."""
        return dict(self.plan.states[number])

    def after(self, number: int) -> dict[str, File | None]:
        """What it leaves of them."""
        return dict(self.plan.states[number + 1])

    def changed(self, number: int) -> dict[str, tuple[str | None, str]]:
        """Old and new text of the files that it changes or adds."""
        before = self.before(number)
        return {
            path: (None if (old := before[path]) is None else _text(old), _text(file))
            for path, file in self.after(number).items()
            if file is not None and file != before[path]
        }


class CannotTell(KstallError):
    """What a check would ask is not here; that is no fault of a patch."""


#: A check: what it finds of each patch, and at the end of the cover letter if it
#: reads that.
Finder = Callable[[Subject], Sequence[Sequence[Finding]]]


def judge(series: Series, plan: tree.Plan, scratch: Path) -> tuple[Check, ...]:
    """All checks of the patches; ``plan`` is the series on its base."""
    subject = Subject(series, plan, scratch)
    return tuple(
        run_check(
            name,
            "patch",
            " ".join((finder.__doc__ or "").split()),
            functools.partial(_verdict, name, finder),
            subject,
        )
        for name, finder in CHECKS.items()
    )


def _verdict(name: str, finder: Finder, subject: Subject) -> Verdict:
    try:
        findings = finder(subject)
    except CannotTell as error:
        nothing = Verdict()
        nothing.skip(error.what)
        return nothing
    decided = [[one for one in many if one.tag not in _DISPUTED] for many in findings]
    judged = verdict(name, decided, subject.series)
    disputed = [one for many in findings for one in many if one.tag in _DISPUTED]
    if disputed and all(one.ok for one in judged.comparisons):
        said = "; ".join(dict.fromkeys(one.text for one in disputed))
        judged = Verdict()
        judged.skip(
            f"{subject.plan.base.version} wants {_list(disputed)} in another form than "
            f"other versions do: {said}"
        )
    return judged


def _list(disputed: Sequence[Finding]) -> str:
    return ", ".join(sorted({one.tag for one in disputed}))


def verdict(
    name: str, findings: Sequence[Sequence[Finding]], series: Series
) -> Verdict:
    """One comparison a patch: it holds if all that was found is argued.

    ``findings`` are those of each patch, and of the cover letter if it was read.  Who
    only receives a series cannot argue for it: there, findings are told as the reason
    why the check decides nothing.
    """
    verdict = Verdict()
    told = []
    files = [patch.path.name for patch in series.patches]
    files.append(series.spec.cover)
    exempt = [one for one in series.spec.exemption if one.check == name]
    for file, found in zip(files, findings, strict=False):
        left = [one for one in found if not any(covers(e, one) for e in exempt)]
        argued = [_argued(e, found) for e in exempt if any(covers(e, f) for f in found)]
        shown = [
            f"{one.file}:{one.line}: {one.kind}: {one.text}" for one in left[:_SHOWN]
        ]
        if len(left) > _SHOWN:
            shown.append(f"and {len(left) - _SHOWN} more")
        if left:
            told.append(f"{_short(file)}: {'; '.join(shown)}")
        verdict.true(
            f"{_short(file)}: clean{' but for what is argued' if argued else ''}",
            not left,
            "; ".join([*shown, *argued]),
        )
    if series.spec.discovered and told:
        skipped = Verdict()
        skipped.skip(f"somebody else's patches: {'; '.join(told)}")
        return skipped
    return verdict


def _short(file: str) -> str:
    """A patch by its number, as people call it."""
    number = re.match(r"(\d{4})-", file)
    return number[1] if number else file


def finding(patch: Path, remark: checkpatch.Remark) -> Finding:
    """A remark of checkpatch on the mail ``patch``, by the file that it is about."""
    place, line = _place(patch, remark.line)
    tag = patchtext.tag(line) if place == MESSAGE else ""
    text = f"{remark.level}: {remark.text}"
    return Finding(place, remark.line, remark.kind, text, tag)


def covers(exempt: PatchExemption, found: Finding) -> bool:
    """Whether ``found`` is what ``exempt`` argues about."""
    return (
        found.kind in exempt.kinds
        and (not exempt.files or found.file in exempt.files)
        and (exempt.saying is None or re.search(exempt.saying, found.text) is not None)
    )


def _argued(exempt: PatchExemption, found: Sequence[Finding]) -> str:
    kinds = Counter(one.kind for one in found if covers(exempt, one))
    what = ", ".join(f"{kind} {count}" for kind, count in kinds.items())
    return f"argued: {what}: {' '.join(exempt.because.split())}"


# -- what is found -------------------------------------------------------------------


def checkpatch_strict(subject: Subject) -> list[list[Finding]]:
    """checkpatch.pl --strict of the tree has nothing to say, but of tags."""
    return [
        [one for one in many if not one.tag] for many in subject.checkpatch.values()
    ]


def checkpatch_tags(subject: Subject) -> list[list[Finding]]:
    """checkpatch.pl of the tree has nothing to say of tags in the form that all
    versions of the kernel want."""
    return [[one for one in many if one.tag] for many in subject.checkpatch.values()]


def kernel_doc(subject: Subject) -> list[list[Finding]]:
    """kernel-doc of the tree warns of nothing that it did not warn of before."""
    script = kerneldoc.KernelDoc(subject.plan.base, subject.scratch)
    told = []
    for number, state in enumerate(subject.plan.states):
        files = {
            path: file.data
            for path, file in state
            if file is not None and path.endswith(_CODE) and kerneldoc.has(file.data)
        }
        said = script.remarks(files, f"state-{number}")
        told.append(_findings(said, "kernel-doc"))
    return [new(told[n], told[n + 1]) for n in _numbers(subject)]


def documents(subject: Subject) -> list[list[Finding]]:
    """docutils finds no fault in a document that was not there before."""
    told = []
    for state in subject.plan.states:
        said = {
            path: rst.faults(_text(file))
            for path, file in state
            if file is not None and path.endswith(".rst")
        }
        told.append(_findings(said, "rst"))
    return [new(told[n], told[n + 1]) for n in _numbers(subject)]


def include_order(subject: Subject) -> list[list[Finding]]:
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


def new_files_are_maintained(subject: Subject) -> list[list[Finding]]:
    """A section of MAINTAINERS, as the patch leaves it, has each file that it adds."""
    pristine = tree.pristine(subject.plan.base, [_MAINTAINERS])
    found = []
    for number in _numbers(subject):
        file = subject.after(number).get(_MAINTAINERS, pristine[_MAINTAINERS])
        known = maintainers.sections(_text(file) if file else "")
        found.append(
            [
                Finding(path, 1, "maintainers", "no section but general ones has it")
                for path, (old, _) in subject.changed(number).items()
                if old is None and not _maintained(path, known)
            ]
        )
    return found


def _maintained(path: str, known: tuple[maintainers.Section, ...]) -> bool:
    """Whether somebody has it, other than who has all headers of events."""
    found = set(maintainers.of(path, known))
    return bool(found - {"TRACING"} if path.startswith("include/trace/") else found)


def sections_are_whole(subject: Subject) -> list[list[Finding]]:
    """A section of MAINTAINERS has an address, a status and files, and no pattern
    names none, as get_maintainer.pl --self-test has it."""
    base = subject.plan.base
    pristine = tree.pristine(base, [_MAINTAINERS])[_MAINTAINERS]
    old = maintainers.sections(_text(pristine) if pristine else "")
    gone = _removed(subject.plan)
    if _MAINTAINERS not in subject.plan.files and not gone:
        return [[] for _ in _numbers(subject)]
    paths = frozenset(tree.regular(base))
    # To look for the files of all patterns takes minutes: patches may have emptied
    # those that they add, and those that have a file which they take away.
    known = {pattern for one in old for pattern in one.patterns}
    asked = {one for one in known if any(maintainers.matches(one, p) for p in gone)}
    told: list[list[Finding]] = []
    for state in map(dict, subject.plan.states):
        file = state.get(_MAINTAINERS, pristine)
        found = maintainers.sections(_text(file) if file else "")
        there = (paths - state.keys()) | {path for path, file in state.items() if file}
        faults = [
            *maintainers.faults(found),
            *(
                (one.title, f"no file matches {pattern}")
                for one in found
                for pattern in one.patterns
                if pattern not in known or pattern in asked
                if not any(maintainers.matches(pattern, path) for path in there)
            ),
        ]
        told.append(
            [
                Finding(_MAINTAINERS, 0, "maintainers", f"{title}: {fault}")
                for title, fault in faults
            ]
        )
    return [new(told[n], told[n + 1]) for n in _numbers(subject)]


def _removed(plan: tree.Plan) -> list[str]:
    """The files that a patch takes away."""
    states = [dict(state) for state in plan.states]
    return [
        path
        for path in states[0]
        if any(
            before[path] is not None and after[path] is None
            for before, after in itertools.pairwise(states)
        )
    ]


def inlines_are_in_headers(subject: Subject) -> list[list[Finding]]:
    """An added function is inline in a header, and is not in a C file, where the
    compiler knows better."""
    return [
        [
            Finding(path, line, "inline", text)
            for path, (old, text_) in subject.changed(number).items()
            for line, text in inlines.misplaced(path, old or "", text_)
        ]
        for number in _numbers(subject)
    ]


def mentioned_documents_exist(subject: Subject) -> list[list[Finding]]:
    """A file below Documentation/ that an added line names is there."""
    paths = frozenset(tree.regular(subject.plan.base))
    found = []
    for number in _numbers(subject):
        state = subject.after(number)
        there = (paths - state.keys()) | {p for p, file in state.items() if file}
        found.append(
            [
                Finding(path, line, "reference", f"there is no {name}")
                for path, (old, text) in subject.changed(number).items()
                for line, name in _added_mentions(old or "", text)
                if name not in there
            ]
        )
    return found


def _added_mentions(old: str, text: str) -> Iterator[tuple[int, str]]:
    known = Counter(_MENTION.findall(old))
    for number, line in enumerate(text.splitlines(), 1):
        for name in _MENTION.findall(line):
            if known[name]:
                known[name] -= 1
            else:
                yield number, name


def fixes_are_in_history(subject: Subject) -> list[list[Finding]]:
    """A commit that a patch says it fixes is one that the tree comes from, and has the
    subject that the patch gives it."""
    named = [list(patchtext.fixes(_message(one))) for one in subject.series.patches]
    base = subject.plan.base
    if any(named) and base.commit is None:
        raise CannotTell(
            f"{base.origin} ({base.kind}) has no history in which to look for what "
            "patches fix; KERNEL= of a git checkout has one"
        )
    return [
        [
            Finding(MESSAGE, line, "fixes", text, "Fixes")
            for line, digits, told in names
            for text in _history_faults(base, digits, told)
        ]
        for names in named
    ]


def _history_faults(base: Base, digits: str, told: str) -> Iterator[str]:
    assert base.commit is not None
    top = Path(base.origin)
    commit = git.commit(top, digits, base.commit)
    if (commit is None or not commit.ancestor) and git.is_shallow(top):
        raise CannotTell(
            f"the history of {top} is cut off, and {digits} is not in what there is; "
            "`git fetch --unshallow` gets the rest"
        )
    if commit is None:
        yield f"{digits} is no commit of {top}"
        return
    if commit.subject != told:
        yield f'{digits} is "{commit.subject}", not "{told}"'
    if not commit.ancestor:
        yield f"{digits} is none that {base.describe} comes from"


def history(series: Series, base: Base) -> list[object]:
    """What of the history of ``base`` has a say in what is found, for a key."""
    names = [
        digits
        for patch in series.patches
        for _, digits, _ in patchtext.fixes(_message(patch))
    ]
    if base.commit is None or not names:
        return [base.kind, bool(names)]
    top = Path(base.origin)
    found = [git.resolve(top, name) for name in names]
    return [base.commit, git.is_shallow(top), found]


def tags(subject: Subject) -> list[list[Finding]]:
    """Tags are those that the kernel's developers use, in their form and place, and
    nobody is said to have signed what nobody has."""
    return [
        [
            Finding(MESSAGE, line, "tag", text)
            for line, text in patchtext.tag_faults(
                patchfile.split(patch.path)[0], _author(patch)
            )
        ]
        for patch in subject.series.patches
    ]


def spelling_is_right(subject: Subject) -> list[list[Finding]]:
    """codespell knows no misspelt word in messages, added lines and the cover
    letter."""
    series = subject.series
    texts = {
        patch.path.name: spelling.written(patch.path.read_text("utf-8", "replace"))
        for patch in series.patches
    }
    cover = series.dir / series.spec.cover
    texts[cover.name] = cover.read_text(encoding="utf-8")
    said = spelling.misspelt(texts, subject.scratch)
    found = [
        [
            Finding(_place(patch.path, line)[0], line, "spelling", text)
            for line, text in said[patch.path.name]
        ]
        for patch in series.patches
    ]
    told = [Finding(MESSAGE, line, "spelling", text) for line, text in said[cover.name]]
    return [*found, told]


def prose_is_wrapped(subject: Subject) -> list[list[Finding]]:
    """Prose of messages and the cover letter is at most 75 columns wide."""
    return _of_texts(subject, "width", patchtext.too_wide)


def nothing_to_fill_in(subject: Subject) -> list[list[Finding]]:
    """No place is left in messages and the cover letter where a sample belongs."""
    return _of_texts(subject, "placeholder", patchtext.unfilled)


def event_names_are_new(subject: Subject) -> list[list[Finding]]:
    """No tracepoint of the tree has the name of one that a patch adds."""
    base = subject.plan.base
    touched = dict(subject.plan.states[0])
    headers = [
        path
        for path in tree.regular(base)
        if path not in touched and _TRACE_HEADER.fullmatch(path)
    ]
    others: dict[str, str] = {}
    for path, file in tree.pristine(base, headers).items():
        if file is not None:
            others |= dict.fromkeys(_events(_text(file)), path)
    found = []
    for number in _numbers(subject):
        mine: list[Finding] = []
        known = dict(others)
        for path, file in subject.before(number).items():
            if file is not None:
                known |= dict.fromkeys(_events(_text(file)), path)
        for path, (old, new) in subject.changed(number).items():
            added = Counter(_events(new)) - Counter(_events(old or ""))
            for name in added:
                if name in known:
                    text = f"{name} is in {known[name]} already"
                    mine.append(Finding(path, 1, "event-name", text))
                known[name] = path
        found.append(mine)
    return found


#: The checks, in the order in which a reader would ask; `series.PatchExemption` has
#: the same names.
CHECKS: Mapping[str, Finder] = {
    finder.__name__: finder
    for finder in (
        checkpatch_strict,
        checkpatch_tags,
        kernel_doc,
        documents,
        include_order,
        new_files_are_maintained,
        sections_are_whole,
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


# -- how it is found -----------------------------------------------------------------


def _events(text: str) -> list[str]:
    # DEFINE_EVENT_PRINT() gives an event that is there another text.
    return [name for name, _ in discover.declared(text)]


def _of_texts(
    subject: Subject, kind: str, find: Callable[[str], Iterator[patchtext.Fault]]
) -> list[list[Finding]]:
    """``find`` in each message with its subject, and in the cover letter."""
    texts = [
        f"{patch.subject}\n\n{patchfile.split(patch.path)[0]}"
        for patch in subject.series.patches
    ]
    cover = subject.series.dir / subject.series.spec.cover
    texts.append(cover.read_text(encoding="utf-8"))
    return [
        [Finding(MESSAGE, line, kind, said) for line, said in find(text)]
        for text in texts
    ]


def _findings(
    said: Mapping[str, Sequence[tuple[int, str]]], kind: str
) -> list[Finding]:
    return [
        Finding(path, line, kind, text)
        for path, lines in said.items()
        for line, text in lines
    ]


def new(before: Sequence[Finding], after: Sequence[Finding]) -> list[Finding]:
    """What is said now and was not said before; lines may have moved."""
    old = Counter((one.file, one.kind, one.text) for one in before)
    found = []
    for one in after:
        what = (one.file, one.kind, one.text)
        if old[what]:
            old[what] -= 1
        else:
            found.append(one)
    return found


def _numbers(subject: Subject) -> range:
    return range(len(subject.series.patches))


def _text(file: File) -> str:
    return file.data.decode("utf-8", "replace")


def _message(patch: Patch) -> str:
    return patchfile.split(patch.path)[0]


def _author(patch: Patch) -> str:
    head = BytesHeaderParser(policy=mail_policy).parsebytes(patch.path.read_bytes())
    return str(head["from"])


def _is_signed(patch: Patch) -> bool:
    return not patchtext.nobody(_author(patch))


def _place(patch: Path, line: int) -> tuple[str, str]:
    """The file of the tree that a line of a patch is about, and the line itself."""
    place = MESSAGE
    rows = patch.read_text(encoding="utf-8", errors="replace").splitlines()[:line]
    for row in rows:
        if row.startswith("diff --git "):
            place = row.rpartition(" b/")[2]
    return place, rows[-1] if rows else ""
