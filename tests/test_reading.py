# SPDX-License-Identifier: GPL-2.0-or-later
"""What slow readers say of each state: what is new fails, what was there does not.

The tree is a few files.  Coccinelle and Sphinx are stand-ins that do what the real ones
do with the options that they are given; where the real ones are, they are asked too.
"""

from __future__ import annotations

import io
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

import kerneltree
from kstall.lint import reading
from kstall.lint.reading import CHECKS
from kstall.pipeline import Ui, patches
from kstall.pipeline import run as runs
from kstall.report import report
from kstall.series import Level, PatchExemption, Series
from kstall.tree import Base, tree
from kstall.verdict import Check
from steps import Step, series, write

COCCI, SPHINX = CHECKS
# A semantic patch of each kind: one that finds, one of a newer version, one of another
# mode, and one that this program cannot run.
SCRIPTS = {
    "free.cocci": """\
/// Free of NULL is fine.
// Options: --no-includes
virtual report
@r@
expression e;
position p;
@@
* if (e) kfree@p(e);

@script:python depends on report@
p << r.p;
@@
coccilib.report.print_report(p[0], "WARNING: NULL check before kfree")
""",
    "newer.cocci": "// Requires: 99.0\nvirtual report\n",
    "other.cocci": "virtual patch\n",
    "ocaml.cocci": "virtual report\n@initialize:ocaml@\n@@\n",
}
CODE = """\
void nap(void *bed)
{
	if (bed)
		kfree(bed);
}
"""
CONF = """\
master_doc = "index"
extensions = []
"""
INDEX = """\
Index
=====

.. toctree::

   demo/index
"""
DEMO_INDEX = """\
Demo
====

.. toctree::

   naps
   beds <beds>
"""
NAPS = """\
Naps
====

.. _how-to-nap:

See :doc:`beds`, :ref:`beds-label` and :doc:`/index`.
"""
BEDS = ".. _beds-label:\n\nBeds\n====\n\nText.\n"
FILES = {
    **kerneltree.FILES,
    **{f"scripts/coccinelle/{name}": text for name, text in SCRIPTS.items()},
    "include/linux/kconfig.h": "",
    "nap.c": CODE,
    "Documentation/conf.py": CONF,
    "Documentation/index.rst": INDEX,
    "Documentation/demo/index.rst": DEMO_INDEX,
    "Documentation/demo/naps.rst": NAPS,
    "Documentation/demo/beds.rst": BEDS,
}
# Finds each kfree() behind a test, one group of files after the other.
SPATCH = """\
#!/usr/bin/env python3
import re, sys
if "--version" in sys.argv:
    print("spatch version 1.1.1 compiled with OCaml version 4.13.1")
    sys.exit()
open("{log}", "a").write(" ".join(sys.argv[1:]) + "\\n")
cocci = open(sys.argv[sys.argv.index("--cocci-file") + 1]).read()
if "ocaml" in cocci:
    print("No OCaml compiler found! Install either ocamlopt or ocamlopt.opt")
    sys.exit(255)
for group in open(sys.argv[sys.argv.index("--file-groups") + 1]).read().split("\\n\\n"):
    path = group.strip()
    for number, line in enumerate(open(path), 1):
        if "kfree(" in line:
            print(f"{path}:{number}:2-7: WARNING: NULL check, see line {number - 1}")
"""


@dataclass(frozen=True)
class Bench:
    """A tree, and what is read of patches to it."""

    root: Path
    base: Base

    def prove(self, candidate: Series, level: Level = "deep") -> report.SeriesReport:
        """The stage."""
        run = runs.begin(self.root / "out", ["test"], Ui(Console(file=io.StringIO())))
        entry = report.SeriesReport(name="demo", title="t", digest="d")
        run.report.series = [entry]
        plan = tree.plan(self.base, candidate.patches, self.root / "am")
        context = run.context(
            SimpleNamespace(),  # type: ignore[arg-type]
            self.root / "cache",
            level,
        )
        with tree.workspace(self.base, lambda _: None) as put:
            patches.read(context, candidate, plan, put, run, entry)
        return entry

    def judge(self, *steps: Step) -> dict[str, Check]:
        """Both checks of ``steps``, by name."""
        entry = self.prove(series(self.root, FILES, *steps))
        return {check.name: check for check in entry.checks}

    def asked(self) -> int:
        """How often the stand-in for Coccinelle was called."""
        log = self.root / "spatch.log"
        return len(log.read_text().splitlines()) if log.exists() else 0


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    write(tmp_path / "tree", FILES)
    spatch = SPATCH.replace("{log}", str(tmp_path / "spatch.log"))
    write(tmp_path / "bin", {"spatch": spatch})
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")
    return Bench(tmp_path, kerneltree.base(tmp_path / "tree", tmp_path / "cache"))


def _code(text: str) -> Step:
    return Step({"nap.c": text})


def _faults(check: Check) -> dict[str, str]:
    return {
        comparison.label[:4]: comparison.detail
        for comparison in check.comparisons
        if not comparison.ok
    }


MORE = CODE + "\nvoid wake(void *bed)\n{\n\tif (bed)\n\t\tkfree(bed);\n}\n"


def test_what_the_base_has_is_not_held_against_a_patch(bench: Bench) -> None:
    """Nor is what has moved, with the line that it names."""
    check = bench.judge(_code("int nap_s;\n\n" + CODE))[COCCI]
    assert check.status == "pass"


def test_a_mutant_of_code(bench: Bench) -> None:
    check = bench.judge(_code(CODE + "int nap_s;\n"), _code(MORE))[COCCI]
    assert check.status == "fail"
    assert _faults(check) == {
        "0002": "nap.c:10: free: WARNING: NULL check, see line N",
    }


def test_what_could_not_be_asked_is_named(bench: Bench) -> None:
    check = bench.judge(_code(CODE + "int nap_s;\n"))[COCCI]
    assert check.detail == (
        "spatch version 1.1.1 compiled with OCaml version 4.13.1; "
        "newer: needs version 99.0; ocaml: needs an OCaml compiler"
    )


def test_only_what_changed_is_read_again(bench: Bench) -> None:
    steps = [Step({"nap.c": CODE + "int a;\n"}), Step({"bed.c": "int b;\n"})]
    first = bench.prove(series(bench.root, FILES, *steps))
    assert not first.stages[0].reused
    # Three contents of files, of the base and the two patches, by two scripts.
    assert bench.asked() == 6
    again = bench.prove(series(bench.root / "again", FILES, *steps))
    assert again.stages[0].reused
    assert again.checks == first.checks
    assert bench.asked() == 6


def test_a_finding_that_is_argued_passes_and_is_shown(bench: Bench) -> None:
    candidate = series(bench.root, FILES, _code(MORE))
    argued = PatchExemption.model_validate(
        {"check": COCCI, "kinds": ["free"], "because": "it is on purpose"}
    )
    spec = candidate.spec.model_copy(update={"exemption": (argued,)})
    check = bench.prove(
        Series(candidate.name, candidate.dir, spec, candidate.patches)
    ).checks[0]
    assert check.status == "pass"
    assert "argued: free 1: it is on purpose" in check.comparisons[0].detail


@pytest.mark.parametrize("level", ["full", "deep"])
def test_what_is_not_asked_is_skipped(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, level: Level
) -> None:
    for reader, _ in CHECKS.values():
        monkeypatch.setattr(reader, "program", "no-such-program")
    entry = bench.prove(series(bench.root, FILES, _code(MORE)), level)
    assert {check.name: check.status for check in entry.checks} == dict.fromkeys(
        CHECKS, "skip"
    )
    reason = (
        reading.DEEP
        if level == "full"
        else "no-such-program is not installed; apt-get install"
    )
    assert entry.checks[0].detail.startswith(reason)


def test_a_reader_that_is_killed_says_nothing(bench: Bench) -> None:
    write(
        bench.root / "bin",
        {
            "spatch": "#!/bin/sh\n"
            '[ "$1" != --version ] || { echo spatch version 1.1; exit; }\n'
            "exit 137\n"
        },
    )
    assert bench.judge(_code(MORE))[COCCI].status == "error"


def test_a_reader_that_failed_is_asked_again(bench: Bench) -> None:
    naps = {"Documentation/demo/naps.rst": NAPS + "\nMore.\n"}
    steps = [_code(CODE + "int nap_s;\n"), Step(naps)]
    well = bench.root / "well"
    spatch = (bench.root / "bin/spatch").read_text()
    fail = f'import os\nos.path.exists("{well}") or sys.exit("out of memory")\n'
    sphinx = (
        '#!/bin/sh\n[ "$1" != --version ] || { echo sphinx-build 7.2.6; exit; }\n'
        f"[ -e {well} ] || {{ echo MemoryError; exit 2; }}\n"
    )
    programs = {
        "spatch": spatch.replace("cocci =", f"{fail}cocci =", 1),
        "sphinx-build": sphinx,
    }
    write(bench.root / "bin", programs)
    entry = bench.prove(series(bench.root, FILES, *steps))
    failed = {check.name: check.detail for check in entry.checks}
    assert "free: spatch exits with 1: out of memory" in failed[COCCI]
    assert failed[SPHINX] == "sphinx-build exits with 2: MemoryError"
    well.touch()
    entry = bench.prove(series(bench.root / "again", FILES, *steps))
    checks = {check.name: check for check in entry.checks}
    assert "exits with" not in checks[COCCI].detail
    assert checks[SPHINX].status == "pass"
    again = bench.prove(series(bench.root / "third", FILES, *steps))
    assert again.stages[0].reused


@pytest.mark.skipif(not shutil.which("sphinx-build"), reason="no Sphinx here")
@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({"demo/naps.rst": NAPS + "\nMore.\n"}, None),
        ({"demo/naps.rst": NAPS + "\n:doc:`pillows`\n"}, "unknown document"),
        ({"demo/naps.rst": NAPS + "\n:ref:`no-label`\n"}, "undefined label"),
        ({"demo/index.rst": DEMO_INDEX + "   pillows\n"}, "nonexisting document"),
        ({"demo/pillows.rst": "Pillows\n=======\n"}, "isn't included in any toctree"),
        (
            {
                "demo/pillows.rst": "Pillows\n=======\n",
                "demo/index.rst": DEMO_INDEX + "   pillows\n",
            },
            None,
        ),
        ({"demo/naps.rst": NAPS + "\n.. no-directive::\n"}, "no-directive"),
        ({"demo/naps.rst": NAPS + "\n.. include:: no.txt\n"}, "include"),
    ],
)
def test_mutants_of_documents(
    bench: Bench, files: Mapping[str, str], says: str | None
) -> None:
    step = Step({f"Documentation/{name}": text for name, text in files.items()})
    check = bench.judge(_code(CODE + "int a;\n"), step)[SPHINX]
    assert check.status == ("pass" if says is None else "fail"), check
    if says is not None:
        assert set(_faults(check)) == {"0002"}
        assert says in _faults(check)["0002"]
    # The tree has got nothing.
    assert not list(bench.base.path.rglob("__pycache__"))


@pytest.mark.skipif(not shutil.which("sphinx-build"), reason="no Sphinx here")
def test_a_tree_that_sphinx_cannot_read_is_no_fault_of_a_patch(bench: Bench) -> None:
    conf = {"Documentation/conf.py": CONF.replace("[]", '["no_such_extension"]')}
    write(bench.root / "other", {**FILES, **conf})
    other = Bench(
        bench.root, kerneltree.base(bench.root / "other", bench.root / "cache-2")
    )
    step = Step({"Documentation/demo/naps.rst": NAPS + "\n:doc:`pillows`\n"})
    check = other.judge(step)[SPHINX]
    assert check.status == "skip"
    assert "no_such_extension" in check.detail


@pytest.mark.skipif(not shutil.which("sphinx-build"), reason="no Sphinx here")
def test_a_patch_that_has_sphinx_fail_is_at_fault(bench: Bench) -> None:
    naps = {"Documentation/demo/naps.rst": NAPS + "\nMore.\n"}
    conf = {"Documentation/conf.py": CONF.replace("[]", '["no_such_extension"]')}
    check = bench.judge(Step(naps), Step(conf))[SPHINX]
    assert "unreadable" in _faults(check)["0002"]
