# SPDX-License-Identifier: GPL-2.0-or-later
"""Each check of patches passes what is right and catches what is wrong."""

from __future__ import annotations

import io
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

import pytest
from rich.console import Console

import kerneltree
from kstall.evidence import compilecheck
from kstall.lint import (
    checkpatch,
    includes,
    kerneldoc,
    maintainers,
    patchcheck,
    patchtext,
    reading,
    rst,
)
from kstall.pipeline import Ui, patches
from kstall.pipeline import run as runs
from kstall.report import report
from kstall.series import PatchExemption, Project, Series
from kstall.tree import Base, tree
from kstall.verdict import Check
from steps import MESSAGE, NOBODY, Step, write
from steps import series as patch_series

# Warns of each line with UNDOCUMENTED, twice, as the real one does for two passes.
KERNEL_DOC = """\
#!/usr/bin/env python3
import sys
for path in sys.argv[3:]:
    for number, line in enumerate(open(path), 1):
        if "UNDOCUMENTED" in line:
            for _ in range(2):
                print(f"Warning: {path}:{number} no description of {line.split()[1]}")
"""
MAINTAINERS = """\
List of maintainers
-------------------

DEMO SUBSYSTEM
M:	Zoë Demo <zoe@example.org>
S:	Maintained
F:	demo*
F:	drivers/demo/
X:	drivers/demo/old/

TRACING
M:	Somebody <somebody@example.org>
S:	Maintained
F:	include/trace/

THE REST
M:	Somebody <somebody@example.org>
S:	Buried alive in reporters
F:	*
F:	*/
"""
SOURCE = """\
/* SPDX */
#include <linux/a.h>
#include <linux/c.h>
/**
 * UNDOCUMENTED_before
 */
int demo;
"""
HEADER = """\
#define TRACE_SYSTEM demo
TRACE_EVENT(demo_nap, TP_PROTO(int a));
"""
OTHER = """\
#define TRACE_SYSTEM other
DEFINE_EVENT(other_class, other_wake, TP_PROTO(int a));
DECLARE_TRACE(other_bare, TP_PROTO(int a));
"""
DOCUMENT = """\
Naps
====

:c:func:`nap` is seen, :unheard:`of` is not.
"""
FILES = {
    **kerneltree.FILES,
    "MAINTAINERS": MAINTAINERS,
    "tools/docs/kernel-doc": KERNEL_DOC,
    "tools/lib/python/kdoc.py": "",
    "demo.c": SOURCE,
    "demo_trace.h": HEADER,
    "include/trace/events/other.h": OTHER,
    "include/ras/ras_event.h": "TRACE_EVENT(ras_nap, TP_PROTO(int a));\n",
    "Documentation/demo.rst": DOCUMENT,
}


def nap(message: str = MESSAGE, author: str = NOBODY) -> Step:
    """A patch that is right, but maybe for how it is told and by whom."""
    return Step({"demo.c": SOURCE + "int nap;\n"}, message, author)


Judged = dict[str, Check]


@dataclass(frozen=True)
class Bench:
    """A kernel tree, and what is said of patches to it."""

    root: Path
    base: Base

    def series(self, *steps: Step, cover: str = "A nap.\n", **spec: Any) -> Series:
        """A series of ``steps``, as `git format-patch` writes it."""
        return patch_series(self.root, FILES, *steps, cover=cover, **spec)

    def plan(self, series: Series) -> tree.Plan:
        """``series`` on the tree."""
        return tree.plan(self.base, series.patches, self.root / "am")

    def judge(self, series: Series) -> Judged:
        """All checks, by name."""
        scratch = self.root / "scratch"
        scratch.mkdir(exist_ok=True)
        checks = patchcheck.judge(series, self.plan(series), scratch)
        return {check.name: check for check in checks}


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    write(tmp_path / "tree", FILES)
    return Bench(tmp_path, kerneltree.base(tmp_path / "tree", tmp_path / "cache"))


def _states(checks: Judged) -> dict[str, str]:
    return {
        name: check.status for name, check in checks.items() if check.status != "pass"
    }


def test_a_series_that_is_right_passes_every_check(bench: Bench) -> None:
    more = {
        "drivers/demo/nap.c": "#include <linux/a.h>\n#include <linux/b.h>\n",
        "demo.c": SOURCE.replace("<linux/c", "<linux/b.h>\n#include <linux/c"),
        "demo_trace.h": HEADER + "TRACE_EVENT(demo_wake, TP_PROTO(int a));\n",
        "Documentation/demo.rst": DOCUMENT + "\n.. kernel-doc:: demo.c\n   :doc: x\n",
    }
    checks = bench.judge(
        bench.series(Step(more), Step({"demo.c": SOURCE + "int a;\n"}))
    )
    assert _states(checks) == {}
    assert set(checks) == set(patchcheck.CHECKS)
    counts = {name: len(check.comparisons) for name, check in checks.items()}
    with_cover = ("spelling_is_right", "prose_is_wrapped", "nothing_to_fill_in")
    assert counts == {name: 2 + (name in with_cover) for name in patchcheck.CHECKS}


MUTANTS: list[tuple[str, Step, str]] = [
    (
        "checkpatch_strict",
        Step({"demo.c": SOURCE + "int nap; \n"}),
        r"demo\.c:\d+: TRAILING_WHITESPACE: WARNING: blank",
    ),
    (
        "spelling_is_right",
        Step({"demo.c": SOURCE + "int a; /* we adress it */\n"}),
        r"demo\.c:\d+: spelling: adress ==> address",
    ),
    (
        "spelling_is_right",
        nap(message=MESSAGE.replace("A nap", "Teh nap")),
        r"message:\d+: spelling: Teh ==> The",
    ),
    (
        "kernel_doc",
        Step({"demo.c": SOURCE + "/**\n * UNDOCUMENTED_now\n */\nint nap;\n"}),
        r"demo\.c:9: kernel-doc: no description of UNDOCUMENTED_now",
    ),
    (
        "documents",
        Step({"Documentation/demo.rst": DOCUMENT + "\nMore naps\n----\n"}),
        r"Documentation/demo\.rst:\d+: rst: .*Title underline too short",
    ),
    (
        "documents",
        Step({"Documentation/demo.rst": DOCUMENT + "\n.. no-such-thing:: y\n"}),
        'Unknown directive type "no-such-thing"',
    ),
    (
        "include_order",
        Step({"demo.c": SOURCE.replace("c.h>\n", "c.h>\n#include <linux/b.h>\n")}),
        r"demo\.c:4: include-order: linux/b\.h breaks the order",
    ),
    (
        "new_files_are_maintained",
        Step({"drivers/demo/old/nap.c": "int a;\n"}),
        r"drivers/demo/old/nap\.c:1: .*no section but general ones",
    ),
    (
        "new_files_are_maintained",
        Step({"include/trace/events/nap.h": "int a;\n"}),
        r"include/trace/events/nap\.h:1: .*no section but general ones",
    ),
    (
        "sections_complete",
        Step({"MAINTAINERS": MAINTAINERS.replace("F:\tdemo*", "F:\tnap*")}),
        r"MAINTAINERS:0: maintainers: DEMO SUBSYSTEM: no file matches nap\*",
    ),
    (
        "sections_complete",
        Step({"MAINTAINERS": MAINTAINERS.replace("TRACING", "THE REST")}),
        "THE REST: the title is a duplicate",
    ),
    (
        "sections_complete",
        Step({"MAINTAINERS": MAINTAINERS.replace("M:\tZ", "W:\tZ")}),
        r"DEMO SUBSYSTEM: no address \(M:, R: or L:\)",
    ),
    (
        "inlines_are_in_headers",
        Step({"demo.c": SOURCE + "static inline int nap(void)\n{\n}\n"}),
        r"demo\.c:8: inline: inline in a C file: static inline int nap\(void\)",
    ),
    (
        "inlines_are_in_headers",
        Step({"drivers/demo/nap.h": "static int nap(int a,\n\t\tint b)\n{\n}\n"}),
        r"nap\.h:1: inline: not inline in a header: static int nap\(int a,",
    ),
    (
        "mentioned_documents_exist",
        Step({"demo.c": SOURCE + "/* See Documentation/naps.rst. */\n"}),
        r"demo\.c:8: reference: there is no Documentation/naps\.rst",
    ),
    (
        "event_names_are_new",
        Step({"demo_trace.h": HEADER + "TRACE_EVENT(other_wake, TP_PROTO(int a));\n"}),
        r"other_wake is in include/trace/events/other\.h already",
    ),
    (
        "event_names_are_new",
        Step(
            {"demo_trace.h": HEADER + "TRACE_EVENT(other_bare,\n\tTP_PROTO(int a));\n"}
        ),
        "other_bare is in",
    ),
    (
        "event_names_are_new",
        Step({"drivers/demo/x_trace.h": HEADER}),
        r"demo_nap is in demo_trace\.h already",
    ),
    (
        "event_names_are_new",
        Step({"demo_trace.h": HEADER + "TRACE_EVENT(ras_nap, TP_PROTO(int a));\n"}),
        r"ras_nap is in include/ras/ras_event\.h already",
    ),
    (
        "tags",
        nap(message=MESSAGE + "Signed-off-by: kstall <noreply@kstall.invalid>\n"),
        "nobody has signed",
    ),
    (
        "tags",
        nap(message=MESSAGE + "Fixes: abc123 (demo: break naps)\n"),
        r"tag: not of the form Fixes: <12 digits>",
    ),
    ("tags", nap(message=MESSAGE + "Change-Id: I123\n"), "Change-Id: is no tag"),
    ("tags", nap(message=MESSAGE + "Link: see below\n"), "without a web address"),
    (
        "tags",
        nap(message=MESSAGE.replace("A nap", "Fixes: a nap")),
        "is not in the last paragraph",
    ),
    (
        "tags",
        nap(author="Zoë Demo <zoe@example.org>"),
        "no Signed-off-by: of its author, Zoë Demo",
    ),
    (
        "prose_is_wrapped",
        nap(message=MESSAGE.replace("From here", "From here and now " * 5 + "here")),
        "columns, more than 75: From here",
    ),
    (
        "nothing_to_fill_in",
        nap(message=MESSAGE.replace("From here", "@@SAMPLE@@")),
        "@@SAMPLE@@ is not filled in",
    ),
]


@pytest.mark.parametrize(("name", "step", "says"), MUTANTS)
def test_what_is_wrong_is_caught_by_its_check(
    bench: Bench, name: str, step: Step, says: str
) -> None:
    checks = bench.judge(bench.series(Step({"demo2.c": "int a;\n"}), step))
    # checkpatch asks for a sign-off of those who could give one.
    signs = {"checkpatch_strict": "fail"} if step.author != NOBODY else {}
    assert _states(checks) == {name: "fail"} | signs
    first, second, *_ = checks[name].comparisons
    assert first.ok, "the fault is in the second patch"
    assert not second.ok
    assert second.label == "0002: clean"
    assert re.search(says, second.detail), second.detail


def test_spelling_of_the_cover_letter(bench: Bench) -> None:
    checks = bench.judge(bench.series(nap(), cover="Teh naps.\n"))
    assert [
        comparison.label
        for comparison in checks["spelling_is_right"].comparisons
        if not comparison.ok
    ] == ["cover.txt: clean"]


@pytest.mark.parametrize("name", ["prose_is_wrapped", "nothing_to_fill_in"])
def test_the_cover_letter_is_read_too(bench: Bench, name: str) -> None:
    checks = bench.judge(bench.series(nap(), cover="A nap " * 20 + "\n\n@@COST@@\n"))
    assert [
        comparison.label for comparison in checks[name].comparisons if not comparison.ok
    ] == ["cover.txt: clean"]


def test_what_the_base_has_already_is_not_held_against_a_patch(bench: Bench) -> None:
    """An unknown role, an undescribed parameter and a block out of order."""
    moved = {
        "demo.c": "\n\n" + SOURCE,
        "Documentation/demo.rst": "\n" + DOCUMENT + "\nMore.\n",
    }
    checks = bench.judge(bench.series(Step(moved)))
    assert _states(checks) == {}


def test_a_second_fault_like_one_of_the_base_is_a_new_one(bench: Bench) -> None:
    text = DOCUMENT + "\n:unheard:`of` again.\n"
    checks = bench.judge(bench.series(Step({"Documentation/demo.rst": text})))
    assert _states(checks) == {"documents": "fail"}


def test_what_one_patch_breaks_another_does_not_mend(bench: Bench) -> None:
    """Each patch is looked at as it leaves the tree, not only the last state."""
    wrong = Step({"demo.c": SOURCE + "/**\n * UNDOCUMENTED_now\n */\nint nap;\n"})
    checks = bench.judge(bench.series(wrong, Step({"demo.c": SOURCE})))
    assert [comparison.ok for comparison in checks["kernel_doc"].comparisons] == [
        False,
        True,
    ]


def test_names_and_what_was_there_need_no_spelling(bench: Bench) -> None:
    text = SOURCE + "int teh;\n"
    write(bench.root / "other", {**FILES, "demo.c": text})
    other = Bench(
        bench.root / "other-bench",
        kerneltree.base(bench.root / "other", bench.root / "other-cache"),
    )
    other.root.mkdir()
    step = Step({"demo.c": f"{text}int nap;\n"}, f"{MESSAGE}Cc: Teh <t@example.org>\n")
    series = patch_series(other.root, {**FILES, "demo.c": text}, step)
    assert other.judge(series)["spelling_is_right"].status == "pass"


def test_a_pattern_loses_its_last_file(bench: Bench) -> None:
    """Also where the patch leaves MAINTAINERS alone."""
    step = nap()
    moved = bench.series(Step({"include/trace/events/other.h": ""}), step)
    path = moved.patches[0].path
    assert "trace/events/other.h" in path.read_text()
    plan = bench.plan(moved)
    gone = tuple(
        tuple((p, None if "other.h" in p and n else f) for p, f in state)
        for n, state in enumerate(plan.states)
    )
    subject = patchcheck.CheckedSeries(moved, replace(plan, states=gone), bench.root)
    first, second = patchcheck.sections_complete(subject)
    assert [finding.text for finding in first] == [
        "TRACING: no file matches include/trace/"
    ]
    assert second == []


@pytest.mark.parametrize("early", [True, False])
def test_a_document_is_mentioned_once_it_is_there(bench: Bench, early: bool) -> None:
    mention = Step({"demo.c": SOURCE + "/* Documentation/nap.rst, tools/x.txt */\n"})
    document = Step({"Documentation/nap.rst": "Naps\n====\n"})
    checks = bench.judge(
        bench.series(*((mention, document) if early else (document, mention)))
    )
    wanted = "fail" if early else "pass"
    assert checks["mentioned_documents_exist"].status == wanted


@pytest.fixture
def history(tmp_path: Path) -> Bench:
    """A checkout of three commits, of which HEAD does not come from the second."""
    top = tmp_path / "tree"
    write(top, FILES)
    _git(top, "init", "-q", "-b", "main")
    _git(top, "add", ".")
    for words in (
        ("commit", "-q", "-m", "demo: add naps"),
        ("checkout", "-q", "-b", "aside"),
        ("commit", "-q", "--allow-empty", "-m", "demo: aside"),
        ("checkout", "-q", "main"),
        ("commit", "-q", "--allow-empty", "-m", "demo: more"),
    ):
        _git(top, *words)
    return Bench(tmp_path, kerneltree.base(top, tmp_path / "cache"))


@pytest.mark.parametrize("elsewhere", [False, True])
def test_what_a_patch_fixes_is_looked_up_in_a_branch(
    history: Bench, elsewhere: bool
) -> None:
    """One that is fetched comes without its history."""
    top = history.root / "tree"
    repository = f"file://{top}" if elsewhere else str(top)
    branch = kerneltree.base(Path(f"{repository}#main"), history.root / "cache")
    digits = _git(top, "rev-parse", "main~1")[:12]
    step = nap(message=f'{MESSAGE}Fixes: {digits} ("demo: add naps")\n')
    bench = Bench(history.root, branch)
    check = bench.judge(bench.series(step))["fixes_are_in_history"]
    assert check.status == ("skip" if elsewhere else "pass")


def _git(top: Path, *words: str) -> str:
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.org")
    argv = ("git", *identity, "-c", "commit.gpgSign=false", *words)
    done = subprocess.run(argv, cwd=top, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def _fixing(bench: Bench, commit: str, subject: str) -> Check:
    digits = _git(bench.root / "tree", "rev-parse", commit)[:12]
    step = nap(message=f'{MESSAGE}Fixes: {digits} ("{subject}")\n')
    return bench.judge(bench.series(step))["fixes_are_in_history"]


@pytest.mark.parametrize(
    ("commit", "subject", "says"),
    [
        ("main~1", "demo: add naps", None),
        ("main~1", "demo: add maps", '"demo: add naps", not "demo: add maps"'),
        ("aside", "demo: aside", "is no ancestor of"),
        ("main:demo.c", "demo: add naps", "is no commit of"),
    ],
)
def test_what_a_patch_fixes_is_looked_up(
    history: Bench, commit: str, subject: str, says: str | None
) -> None:
    check = _fixing(history, commit, subject)
    assert check.status == ("pass" if says is None else "fail")
    if says is not None:
        assert re.search(says, check.comparisons[0].detail)


def test_what_a_cut_history_does_not_have_decides_nothing(history: Bench) -> None:
    top = history.root / "tree"
    whole, head = (_git(top, "rev-parse", name) for name in ("main~1", "main"))
    (top / ".git/shallow").write_text(f"{head}\n")
    step = nap(message=f'{MESSAGE}Fixes: {whole[:12]} ("demo: add naps")\n')
    series = history.series(step)
    check = history.judge(series)["fixes_are_in_history"]
    assert check.status == "skip"
    assert "--unshallow" in check.detail
    before = patchcheck.history(series, history.base)
    (top / ".git/shallow").unlink()
    assert patchcheck.history(series, history.base) != before
    assert history.judge(series)["fixes_are_in_history"].status == "pass"


def test_sources_without_history_decide_nothing(bench: Bench) -> None:
    step = nap(message=f'{MESSAGE}Fixes: {"1" * 12} ("demo: add naps")\n')
    check = bench.judge(bench.series(step))["fixes_are_in_history"]
    assert check.status == "skip"
    assert "has no history" in check.detail


def _argue(series: Series, **changes: Any) -> Series:
    facts = {
        "check": "checkpatch_strict",
        "kinds": ["TRAILING_WHITESPACE"],
        "files": ["demo.c"],
        "because": "a blank\nis wanted",
    }
    exemption = PatchExemption.model_validate(facts | changes)
    return replace(
        series, spec=series.spec.model_copy(update={"exemption": (exemption,)})
    )


BLANK = Step({"demo.c": SOURCE + "int nap; \n"})


def test_what_is_argued_passes_and_is_shown_with_its_reason(bench: Bench) -> None:
    checks = bench.judge(_argue(bench.series(BLANK)))
    assert _states(checks) == {}
    (compared,) = checks["checkpatch_strict"].comparisons
    assert compared.label == "0001: clean apart from exemptions"
    assert compared.detail == "argued: TRAILING_WHITESPACE 1: a blank is wanted"


@pytest.mark.parametrize(
    "changes",
    [
        {"kinds": ["LONG_LINE"]},
        {"files": ["message"]},
        {"check": "kernel_doc"},
        {"saying": "^ERROR"},
    ],
)
def test_an_argument_is_for_its_check_kinds_and_files(
    bench: Bench, changes: dict[str, Any]
) -> None:
    checks = bench.judge(_argue(bench.series(BLANK), **changes))
    assert _states(checks) == {"checkpatch_strict": "fail"}


def test_an_argument_can_be_about_what_is_said(bench: Bench) -> None:
    checks = bench.judge(_argue(bench.series(BLANK), saying="^WARNING: blank"))
    assert _states(checks) == {}
    with pytest.raises(ValueError, match="no regular expression"):
        _argue(bench.series(BLANK), saying="(")


def test_nothing_to_fill_in_cannot_be_argued_away() -> None:
    names = set(get_args(PatchExemption.model_fields["check"].annotation))
    known = {*patchcheck.CHECKS, *compilecheck.CHECKS, *reading.CHECKS}
    assert names == known - {"nothing_to_fill_in"}


def test_of_somebody_else_s_patches_findings_are_reported_and_decide_nothing(
    bench: Bench,
) -> None:
    checks = bench.judge(bench.series(BLANK, discovered=True))
    assert _states(checks) == {"checkpatch_strict": "skip"}
    assert "TRAILING_WHITESPACE" in checks["checkpatch_strict"].detail
    assert checks["checkpatch_strict"].comparisons == []


# Of Assisted-by: 7.2 wants another form than 7.3; nobody has such a rule for Link:.
RULES = """\
		print "$file:", $n + 1, ": WARNING:BAD_SIGN_OFF: Assisted-by expects A:B\\n"
			if $lines[$n] =~ /^Assisted-by: [^:]*$/;
		print "$file:", $n + 1, ": WARNING:BAD_SIGN_OFF: no tag: Link:\\n"
			if $lines[$n] =~ /^Link:/;
"""


@pytest.fixture
def older(tmp_path: Path) -> Bench:
    """A tree whose checkpatch.pl has rules for tags of its own."""
    loop = "\tfor my $n (0 .. $#lines) {\n"
    script = kerneltree.CHECKPATCH.replace(loop, loop + RULES)
    write(tmp_path / "tree", FILES | {"scripts/checkpatch.pl": script})
    return Bench(tmp_path, kerneltree.base(tmp_path / "tree", tmp_path / "cache"))


def test_a_form_of_a_tag_that_this_version_alone_wants_is_no_failure(
    older: Bench,
) -> None:
    checks = older.judge(older.series(nap()))
    assert _states(checks) == {"checkpatch_tags": "skip"}
    check = checks["checkpatch_tags"]
    assert check.comparisons == []
    assert check.detail == (
        "7.3.4 wants Assisted-by in another form than other versions do: WARNING: "
        "Assisted-by expects A:B"
    )


def test_it_hides_no_fault_of_the_code(older: Bench) -> None:
    checks = older.judge(older.series(BLANK))
    assert _states(checks) == {"checkpatch_strict": "fail", "checkpatch_tags": "skip"}
    (compared,) = checks["checkpatch_strict"].comparisons
    assert "Assisted-by" not in compared.detail


def test_nor_of_another_tag(older: Bench) -> None:
    message = MESSAGE + "Link: https://example.org/nap\n"
    checks = older.judge(older.series(nap(message)))
    assert _states(checks) == {"checkpatch_tags": "fail"}
    (compared,) = checks["checkpatch_tags"].comparisons
    assert re.search(r"message:\d+: BAD_SIGN_OFF: .*Link:", compared.detail)
    assert "Assisted-by" not in compared.detail


def test_nor_one_that_is_only_reported(older: Bench) -> None:
    message = MESSAGE + "Link: https://example.org/nap\n"
    checks = older.judge(older.series(nap(message), discovered=True))
    assert _states(checks) == {"checkpatch_tags": "skip"}
    detail = checks["checkpatch_tags"].detail
    assert "BAD_SIGN_OFF: WARNING: no tag: Link:" in detail
    assert "wants Assisted-by in another form" in detail


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("tags", "Change-Id: I123"),
        ("prose_is_wrapped", "wide " * 20 + "line"),
        ("nothing_to_fill_in", "@@SAMPLE@@"),
        ("spelling_is_right", "Teh end."),
    ],
)
def test_a_line_of_a_message_is_that_of_the_patch_file(
    bench: Bench, name: str, line: str
) -> None:
    made = bench.series(nap(f"{MESSAGE}{line}\n"))
    rows = made.patches[0].path.read_text().splitlines()
    compared = bench.judge(made)[name].comparisons[0]
    assert compared.detail.startswith(f"message:{rows.index(line) + 1}: ")


def test_prose_that_begins_like_a_tag_of_nobody_is_no_tag() -> None:
    assert patchtext.tag("Assisted-by: LLM") == "Assisted-by"
    assert patchtext.tag("Note: LLM") == ""
    assert patchtext.tag("+Fixes: a nap") == ""


def test_who_wrote_a_patch_may_sign_it(bench: Bench) -> None:
    author = "Zoë Demo <zoe@example.org>"
    step = nap(author=author, message=f"{MESSAGE}Signed-off-by: {author}\n")
    assert _states(bench.judge(bench.series(step))) == {}


def test_a_name_in_a_tag_is_not_quoted() -> None:
    message = "It naps.\n\nSigned-off-by: Demo, Zoë <zoe@example.org>\n"
    author = '"Demo, Zoë" <zoe@example.org>'
    assert list(patchtext.tag_faults(message, author)) == []
    (fault,) = patchtext.tag_faults(message, "Other <other@example.org>")
    assert fault[1].startswith("no Signed-off-by: of its author, Other")


@pytest.mark.parametrize("missing", ["scripts/checkpatch.pl", "tools/docs/kernel-doc"])
def test_a_tree_without_its_scripts_is_no_pass(tmp_path: Path, missing: str) -> None:
    files = {path: text for path, text in FILES.items() if path != missing}
    write(tmp_path / "tree", files)
    bench = Bench(tmp_path, kerneltree.base(tmp_path / "tree", tmp_path / "cache"))
    states = _states(bench.judge(bench.series(nap())))
    names = {"tools/docs/kernel-doc": ["kernel_doc"]}
    asks = names.get(missing, ["checkpatch_strict", "checkpatch_tags"])
    assert states == dict.fromkeys(asks, "error")


def test_a_checkpatch_that_dies_after_a_remark_is_no_verdict(tmp_path: Path) -> None:
    loop = "\tfor my $n (0 .. $#lines) {\n"
    dies = '\t\tif ($n == 20) { print "$file:1: CHECK:NAP: a\\n"; die "memory"; }\n'
    script = kerneltree.CHECKPATCH.replace(loop, loop + dies)
    write(tmp_path / "tree", FILES | {"scripts/checkpatch.pl": script})
    bench = Bench(tmp_path, kerneltree.base(tmp_path / "tree", tmp_path / "cache"))
    checks = bench.judge(bench.series(nap()))
    asks = ["checkpatch_strict", "checkpatch_tags"]
    assert _states(checks) == dict.fromkeys(asks, "error")
    assert "memory at" in checks["checkpatch_strict"].detail


def test_the_tree_and_the_workspace_are_left_alone(bench: Bench) -> None:
    def listed() -> list[Path]:
        return sorted([*(bench.root / "tree").rglob("*"), *bench.base.path.rglob("*")])

    before = listed()
    bench.judge(bench.series(BLANK))
    assert listed() == before


# -- as a stage ----------------------------------------------------------------------


@pytest.fixture
def run(tmp_path: Path) -> runs.Run:
    ui = Ui(Console(file=io.StringIO(), width=120))
    return runs.begin(tmp_path / "out", ["kstall", "validate"], ui)


def _prove(bench: Bench, run: runs.Run, series: Series) -> report.SeriesReport:
    entry = report.SeriesReport(name="demo", title="demo", digest="d")
    patches.prove(series, bench.plan(series), bench.root / "cache", run, entry)
    return entry


def test_the_stage_goes_on_after_a_failure_and_keeps_what_it_found(
    bench: Bench, run: runs.Run
) -> None:
    series = bench.series(BLANK)
    first, second = (_prove(bench, run, series) for _ in range(2))
    assert [entry.stages[0].status for entry in (first, second)] == ["pass", "pass"]
    assert [entry.stages[0].reused for entry in (first, second)] == [False, True]
    assert first.checks == second.checks
    assert first.stages[0].summary == "14 of 15 checks of 1 patches pass"
    # What was copied is gone.
    assert list((run.dir / "demo").glob("patches-*")) == []


@pytest.mark.parametrize("what", ["patch", "cover", "exemption"])
def test_what_changed_is_looked_at_again(
    bench: Bench, run: runs.Run, what: str
) -> None:
    series = bench.series(BLANK)
    _prove(bench, run, series)
    if what == "patch":
        path = series.patches[0].path
        path.write_text(path.read_text().replace("A nap", "One nap"))
    elif what == "cover":
        (series.dir / "cover.txt").write_text("Two naps.\n")
    else:
        series = _argue(series)
    assert not _prove(bench, run, series).stages[0].reused


def test_an_error_is_not_kept(
    bench: Bench, run: runs.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: patchcheck.CheckedSeries) -> Sequence[Sequence[patchcheck.Finding]]:
        raise OSError("no perl")

    series = bench.series(nap())
    monkeypatch.setattr(patchcheck, "CHECKS", {"broken": broken})
    assert _prove(bench, run, series).checks[0].status == "error"
    monkeypatch.undo()
    assert not _prove(bench, run, series).stages[0].reused


def test_checks_of_patches_alone_prove_nothing(bench: Bench, run: runs.Run) -> None:
    run.report.series = [_prove(bench, run, bench.series(nap()))]
    run.report.settle()
    assert run.report.status == "could-not-run"


# -- the parts -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after", "wrong"),
    [
        ("<a.h> <c.h>", "<a.h> <b.h> <c.h>", []),
        ("<a.h> <c.h>", "<b.h> <a.h> <c.h>", ["b.h"]),
        ("<c.h> <a.h>", "<c.h> <a.h> <b.h>", []),
        (None, "<b.h> <a.h>", ["b.h", "a.h"]),
        (None, '<b.h> "a.h"', []),
        (None, "<b.h>  <a.h>", []),
        ("<a.h>", "<a-b.h> <a.h>", []),
        ("<a.h>", "<a.h> <a-b.h>", []),
        ("<a.h> <c.h>", "<a.h> <c.h>", []),
        ("<c.h> <a.h>", "<c.h> <a.h>", []),
    ],
)
def test_include_order(before: str | None, after: str, wrong: list[str]) -> None:
    def text(words: str) -> str:
        return "".join(
            f"#include {header}\n" if header else "\n" for header in words.split(" ")
        )

    misplaced = includes.misplaced(
        None if before is None else text(before), text(after)
    )
    assert [name for _, name in misplaced] == wrong


@pytest.mark.parametrize(
    ("pattern", "path", "has"),
    [
        ("F:\tdrivers/demo/", "drivers/demo/a/b.c", True),
        ("F:\tdrivers/demo/", "drivers/demo.c", False),
        ("F:\tdrivers/demo", "drivers/demo/a.c", True),
        ("F:\tdrivers/*.c", "drivers/a.c", True),
        ("F:\tdrivers/*.c", "drivers/a/b.c", False),
        ("F:\tdrivers/*/", "drivers/a/b/c.c", True),
        ("N:\tnap[^a-z]", "lib/nap_x.c", True),
        ("N:\tnap[^a-z]", "lib/nappy.c", False),
        ("F:\tlib/\nX:\tlib/old/", "lib/old/a.c", False),
        ("F:\tinclude/?.h", "include/a.h", True),
    ],
)
def test_sections_of_maintainers(pattern: str, path: str, has: bool) -> None:
    known = maintainers.sections(f"A TITLE\nM:\tx\n{pattern}\n\nTHE REST\nF:\t*/\n")
    assert maintainers.titles_of(path, known) == (("A TITLE",) if has else ())


@pytest.mark.parametrize(
    "text",
    [
        "X\n=\n\n.. code-block:: c\n   :caption: a\n\n   **open\n",
        "X\n=\n\n.. toctree::\n   :maxdepth: 1\n\n   a\n   b\n",
        "X\n=\n\n.. only:: html\n\n   Well :ref:`y <z>`.\n",
        "X\n=\n\n.. include:: other.rst\n",
        "X\n=\n\n.. c:function:: int nap(void)\n\n   **open\n",
    ],
)
def test_what_sphinx_adds_is_no_fault(text: str) -> None:
    assert rst.faults(text) == ()


def test_a_fault_in_a_part_that_is_a_document_is_one() -> None:
    ((line, text),) = rst.faults("X\n=\n\n.. only:: html\n\n   An ``open one.\n")
    assert line == 6
    assert "Inline literal start-string" in text


def test_kernel_doc_s_words_are_read() -> None:
    """As Linux 7.3's prints them."""
    output = (
        "Warning: t.h:4 function parameter 'b' not described in 'foo'\n"
        "Warning: t.h:4 No description found for return value of 'foo'\n"
        "Warning: t.h:4 function parameter 'b' not described in 'foo'\n"
        "Warning: u.h:1 what was not asked for\n"
        "t.h:4: something else\n"
    )
    assert kerneldoc.parse(output, ["t.h", "v.h"]) == {
        "t.h": (
            (4, "function parameter 'b' not described in 'foo'"),
            (4, "No description found for return value of 'foo'"),
        ),
        "v.h": (),
    }


def test_the_lines_of_the_older_kernel_doc() -> None:
    output = (
        "t.h:5: warning: Function parameter or struct member 'b' not described in 'f'\n"
        "t.h:9: warning: missing initial short description on line:\n"
        " * broken thing\n"
        "u.h:1: warning: what was not asked for\n"
    )
    assert kerneldoc.parse(output, ["t.h"]) == {
        "t.h": (
            (5, "Function parameter or struct member 'b' not described in 'f'"),
            (9, "missing initial short description on line:"),
        )
    }


def test_a_kernel_doc_whose_words_nobody_knows_is_no_verdict(tmp_path: Path) -> None:
    strange = KERNEL_DOC.replace('f"Warning: {path}:{number} ', 'f"{path} warning: ')
    write(tmp_path / "tree", FILES | {"tools/docs/kernel-doc": strange})
    base = kerneltree.base(tmp_path / "tree", tmp_path / "cache")
    bench = Bench(tmp_path, base)
    wrong = Step({"demo.c": SOURCE + "/**\n * UNDOCUMENTED_now\n */\nint nap;\n"})
    checks = bench.judge(bench.series(wrong))
    assert _states(checks) == {"kernel_doc": "error"}
    assert "cannot be read" in checks["kernel_doc"].detail


@pytest.mark.parametrize(
    ("line", "wide"),
    [
        ("word " * 16, True),
        ("  " + "word " * 16, False),
        ("\t" + "word " * 16, False),
        ("https://example.org/" + "x" * 80, False),
        ('Fixes: 0123456789ab ("' + "word " * 16 + '")', False),
        ("word " * 14 + "12345", False),
        ("word " * 14 + "123456", True),
    ],
)
def test_width_of_prose(line: str, wide: bool) -> None:
    assert bool(list(patchtext.too_wide(line))) == wide


def test_every_series_of_this_checkout_argues_what_it_may(project_root: Path) -> None:
    """An argument about a file that the series does not touch is out of date."""
    for series in Project(project_root).load():
        for exemption in series.spec.exemption:
            assert set(exemption.files) <= {*series.touches, patchcheck.MESSAGE}, (
                series.name
            )


def test_remarks_name_the_line_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "0001-nap.patch"
    rows = [
        "Subject: nap: sleep",
        "",
        "It sleep.",
        "---",
        "diff --git a/nap.c b/nap.c",
        "--- a/nap.c",
        "+++ b/nap.c",
        "@@ -10,3 +20,3 @@ int nap(void)",
        " int cat;",
        "-int dog;",
        "+int  dog;",
        "@@ -40 +50 @@",
        "+int mouse;",
    ]
    path.write_text("\n".join(rows))

    def place(row: int) -> tuple[str, int]:
        remark = checkpatch.CheckpatchRemark(path.name, row, "ERROR", "SPACING", "no")
        finding = patchcheck.from_remark(path, remark)
        return finding.file, finding.line

    assert place(rows.index("It sleep.") + 1) == (patchcheck.MESSAGE, 3)
    assert place(rows.index(" int cat;") + 1) == ("nap.c", 20)
    assert place(rows.index("+int  dog;") + 1) == ("nap.c", 21)
    assert place(rows.index("+int mouse;") + 1) == ("nap.c", 50)
