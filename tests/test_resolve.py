# SPDX-License-Identifier: GPL-2.0-or-later
"""What other trees rename, hide, select otherwise or lack, and whose fault that is.

The trees are a Kconfig file and a make that does what kconfig's own allnoconfig does,
by kconfiglib.
"""

from __future__ import annotations

import sys
from collections.abc import Collection
from pathlib import Path

import pytest

from kstall.base import FailedCheck, KstallError
from kstall.build import kconfig, resolve
from kstall.build.resolve import OwnSymbolsUnmet, Resolved, UnmetSymbols

_ALLNO = """\
import os, sys
from pathlib import Path
from kstall.build import kconfig
kconf = kconfig.load(Path.cwd(), Path(os.devnull), ())
for symbol in kconf.unique_defined_syms:
    symbol.set_value(0)
kconf.load_allconfig("")
lines = (symbol.config_string for symbol in kconf.unique_defined_syms)
Path(sys.argv[1]).write_text("".join(lines))
print("configured")
"""
_HEAD = """\
mainmenu "demo"
config MODULES
	bool "modules"
	modules
"""
#: A symbol as each kind of tree has it, all of which are asked for CONFIG_NAP=y.
_PLAIN = """\
config NAP
	bool "naps"
"""


class Tree:
    """A tree, and what came of configuring it."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.source = place / "tree"
        self.source.mkdir(parents=True)
        (self.source / "allno.py").write_text(_ALLNO)
        (self.source / "Makefile").write_text(
            f"allnoconfig:\n\t@{sys.executable} allno.py $(O)/.config\n"
        )

    def configure(
        self,
        text: str,
        *fragments: str,
        absent: Collection[str] = (),
        own: Collection[str] = (),
        lenient: bool = False,
    ) -> Resolved:
        (self.source / "Kconfig").write_text(_HEAD + text)
        paths = []
        for number, fragment in enumerate(("CONFIG_MODULES=y\n", *fragments)):
            path = self.place / f"{number or 'base'}.config"
            path.write_text(fragment)
            paths.append(path)
        return resolve.configure(
            self.source,
            self.place / "o",
            paths,
            (),
            log=self.place / "log",
            absent=absent,
            own=own,
            lenient=lenient,
        )

    @property
    def times(self) -> int:
        """How often make was run."""
        return (self.place / "log").read_text().count("configured\n")


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def _is_no_verdict(error: KstallError, *texts: str) -> None:
    """It stops a stage with the status error, which is: could not judge."""
    assert isinstance(error, UnmetSymbols)
    assert not isinstance(error, FailedCheck)
    assert error.log is not None
    assert error.next is not None
    assert "# or:" in error.next
    for text in texts:
        assert text in error.what


def test_what_a_tree_has_as_it_is_written_is_asked_for_once(tree: Tree) -> None:
    resolved = tree.configure(_PLAIN, "CONFIG_NAP=y\n")
    assert resolved == Resolved({"MODULES": "y", "NAP": "y"}, (), ())
    assert tree.times == 1


# -- renamed -------------------------------------------------------------------------

_RENAMED = """\
config DOZE
	bool "naps"
"""
_OR = "# or: CONFIG_DOZE=y (before 7.3: it had this name)\nCONFIG_NAP=y\n"


def test_a_fragment_names_what_an_older_tree_calls_it(tree: Tree) -> None:
    resolved = tree.configure(_RENAMED, _OR)
    assert resolved.config["DOZE"] == "y"
    assert resolved.added == (("DOZE", "y"),)
    (remark,) = resolved.remarks
    assert remark == "DOZE=y instead of NAP: before 7.3: it had this name"


def test_the_alternative_is_for_trees_that_lack_the_symbol_only(tree: Tree) -> None:
    resolved = tree.configure(_PLAIN + _RENAMED, _OR)
    assert "DOZE" not in resolved.config
    assert resolved.remarks == ()


def test_an_alternative_that_is_asked_for_anyway(tree: Tree) -> None:
    resolved = tree.configure(_RENAMED, "CONFIG_DOZE=y\n", _OR)
    assert resolved.added == ()
    assert resolved.remarks == ("DOZE=y instead of NAP: before 7.3: it had this name",)
    assert tree.times == 1


def test_one_of_several_alternatives_which_the_tree_knows(tree: Tree) -> None:
    text = "# or: CONFIG_REST=y (5.0)\n# or: CONFIG_DOZE=y CONFIG_BED=y (6.0)\n"
    known = _RENAMED + 'config BED\n\tbool "beds"\n'
    resolved = tree.configure(known, f"{text}CONFIG_NAP=y\n")
    assert resolved.added == (("DOZE", "y"), ("BED", "y"))
    with pytest.raises(UnmetSymbols) as caught:
        tree.configure(_RENAMED, f"{text}CONFIG_NAP=y\n")
    _is_no_verdict(caught.value, "1.config:3: CONFIG_NAP=y", "no such symbol")


def test_an_alternative_may_be_that_something_is_off(tree: Tree) -> None:
    text = 'config LOUD\n\tbool "noise"\n\tdefault y\n'
    either = "# or: CONFIG_LOUD=n (a tree without noise has naps)\nCONFIG_NAP=y\n"
    assert tree.configure(text, either).config.get("LOUD", "n") == "n"
    with pytest.raises(UnmetSymbols):
        tree.configure(text, either, "CONFIG_LOUD=y\n")


def test_a_tree_that_keeps_the_old_name_says_the_new_one(tree: Tree) -> None:
    text = """\
config NAP
	bool
	transitional
	help
		It is called DOZE now.

config OTHER
	bool "another"

config DOZE
	bool "naps"
	default NAP
"""
    resolved = tree.configure(text, "CONFIG_NAP=y\n")
    assert resolved.config["DOZE"] == "y"
    assert resolved.remarks == ("NAP is called DOZE now",)


# -- hidden, and selected otherwise --------------------------------------------------


def test_a_hidden_symbol_comes_by_the_one_that_selects_it(tree: Tree) -> None:
    text = """\
config NAP
	bool
config BED
	bool "beds"
	select NAP
"""
    resolved = tree.configure(text, "CONFIG_NAP=y\n")
    assert (resolved.config["NAP"], resolved.config["BED"]) == ("y", "y")
    assert resolved.remarks == ("NAP through BED, as it has no prompt",)


def test_a_hidden_symbol_comes_by_the_condition_of_its_default(tree: Tree) -> None:
    text = """\
config NAP
	def_bool y if BED
config BED
	bool "beds"
"""
    assert tree.configure(text, "CONFIG_NAP=y\n").config["NAP"] == "y"


def test_nobody_chooses_between_two_that_select_it(tree: Tree) -> None:
    text = """\
config NAP
	bool
config BED
	bool "beds"
	select NAP
config SOFA
	bool "sofas"
	select NAP
"""
    with pytest.raises(UnmetSymbols) as caught:
        tree.configure(text, "CONFIG_NAP=y\n")
    _is_no_verdict(caught.value, "it is selected by one of BED", "SOFA")
    # One that the fragments do not want is none.
    resolved = tree.configure(text, "# CONFIG_SOFA is not set\nCONFIG_NAP=y\n")
    assert "SOFA" not in resolved.config
    assert resolved.config["BED"] == "y"


def test_what_was_selected_once_is_depended_on_now(tree: Tree) -> None:
    text = """\
config NAP
	bool "naps"
	depends on BED && MODULES
config BED
	tristate "beds"
	depends on ROOM != n
config ROOM
	tristate "rooms"
"""
    resolved = tree.configure(text.replace("ROOM != n", "ROOM"), "CONFIG_NAP=y\n")
    assert (
        resolved.config["ROOM"]
        == resolved.config["BED"]
        == resolved.config["NAP"]
        == "y"
    )
    assert resolved.remarks == (
        "NAP with BED, which it depends on",
        "BED with ROOM, which it depends on",
    )
    # A condition that is no list of symbols is left to who reads the error.
    with pytest.raises(UnmetSymbols) as caught:
        tree.configure(text, "CONFIG_NAP=y\n")
    _is_no_verdict(caught.value, "unmet dependency BED [=n]")


def test_a_module_may_depend_on_modules(tree: Tree) -> None:
    text = """\
config NAP
	tristate "naps"
	depends on BED
config SNORE
	tristate "noise"
	depends on BED
config BED
	tristate "beds"
"""
    resolved = tree.configure(text, "CONFIG_NAP=m\n")
    assert (resolved.config["NAP"], resolved.config["BED"]) == ("m", "m")
    # What is part of the image needs all of it there.
    resolved = tree.configure(text, "CONFIG_NAP=m\nCONFIG_SNORE=y\n")
    assert (resolved.config["SNORE"], resolved.config["BED"]) == ("y", "y")
    assert resolved.config["NAP"] == "m"


def test_of_alternatives_in_a_dependency_the_only_one_there_is(tree: Tree) -> None:
    text = """\
config NAP
	bool "naps"
	depends on BED || SOFA
config BED
	bool "beds"
"""
    assert tree.configure(text, "CONFIG_NAP=y\n").config["BED"] == "y"
    both = text + 'config SOFA\n\tbool "sofas"\n'
    with pytest.raises(UnmetSymbols) as caught:
        tree.configure(both, "CONFIG_NAP=y\n")
    _is_no_verdict(caught.value, "BED [=n] || SOFA [=n]")


def test_a_prompt_that_has_to_be_asked_for(tree: Tree) -> None:
    text = """\
config NAP
	bool "naps" if EXPERT
config EXPERT
	bool "experts"
"""
    resolved = tree.configure(text, "CONFIG_NAP=y\n")
    assert resolved.config["NAP"] == "y"
    assert resolved.added == (("EXPERT", "y"),)


def test_nothing_is_added_that_a_fragment_does_not_want(tree: Tree) -> None:
    text = """\
config NAP
	bool "naps"
	depends on BED
config BED
	bool "beds"
"""
    with pytest.raises(UnmetSymbols) as caught:
        tree.configure(text, "# CONFIG_BED is not set\n", "CONFIG_NAP=y\n")
    _is_no_verdict(caught.value, "unmet dependency BED [=n]")


def test_a_module_that_is_a_bool_here(tree: Tree) -> None:
    resolved = tree.configure(_PLAIN, "CONFIG_NAP=m\n")
    assert resolved.config["NAP"] == "y"
    assert resolved.remarks == ("NAP=y, as it is no module here",)


def test_a_module_that_something_else_has_in_the_image(tree: Tree) -> None:
    text = """\
config NAP
	tristate "naps"
config BED
	bool "beds"
	select NAP
"""
    resolved = tree.configure(text, "CONFIG_NAP=m\nCONFIG_BED=y\n")
    assert resolved.remarks == ("NAP is part of the image, not a module",)


# -- not to be had -------------------------------------------------------------------


def test_a_needed_symbol_that_is_not_there_is_no_verdict(tree: Tree) -> None:
    with pytest.raises(UnmetSymbols) as caught:
        tree.configure("", "CONFIG_NAP=y\n")
    _is_no_verdict(caught.value, "1.config:1: CONFIG_NAP=y", "no such symbol")


def test_it_stops_only_the_series_that_needs_it(tree: Tree) -> None:
    base = "# optional: tested by a header\nCONFIG_NAP=y\n"
    text = 'config BED\n\tbool "beds"\n'
    resolved = tree.configure(text, base, "CONFIG_BED=y\n")
    assert resolved.config["BED"] == "y"
    assert resolved.remarks == ("not available in this tree, and not needed: NAP",)
    with pytest.raises(UnmetSymbols) as caught:
        tree.configure(text, base, "# why\nCONFIG_NAP=y\n")
    # And names the fragment of that series, not the one that could do without.
    _is_no_verdict(caught.value, "2.config:2: CONFIG_NAP=y")


def test_a_symbol_that_is_needed_where_it_is_known(tree: Tree) -> None:
    asked = "# if known: always there, else\nCONFIG_NAP=y\nCONFIG_BED=y\n"
    resolved = tree.configure(_PLAIN, asked)
    assert resolved.config["NAP"] == "y"
    assert resolved.remarks == ("not available in this tree, and not needed: BED",)
    text = "config NAP\n\tbool\n" + 'config BED\n\tbool "beds"\n'
    with pytest.raises(UnmetSymbols) as caught:
        tree.configure(text, asked)
    _is_no_verdict(caught.value, "CONFIG_NAP=y did not stick", "has no prompt")


def test_what_did_not_help_is_taken_back(tree: Tree) -> None:
    text = """\
config NAP
	bool "naps"
	depends on BED && NEVER
config BED
	bool "beds"
config DREAM
	bool "dreams"
	depends on SLEEP
config SLEEP
	bool "sleep"
	depends on NEVER
config NEVER
	bool
"""
    resolved = tree.configure(
        text, "# optional: nice to have\nCONFIG_NAP=y\nCONFIG_DREAM=y\n"
    )
    assert resolved.added == ()
    assert resolved.config == {"MODULES": "y"}
    assert resolved.remarks == (
        "not available in this tree, and not needed: NAP, DREAM",
    )


def test_a_number_is_not_made_up(tree: Tree) -> None:
    text = 'config NAPS\n\tint "naps"\n\trange 1 9\n\tdefault 3\n'
    with pytest.raises(UnmetSymbols) as caught:
        tree.configure(text, "CONFIG_NAPS=20\n")
    _is_no_verdict(caught.value, "CONFIG_NAPS=20 did not stick")


def test_what_has_to_be_off_and_is_selected(tree: Tree) -> None:
    text = """\
config NAP
	bool "naps"
config BED
	bool "beds"
	select NAP
"""
    with pytest.raises(UnmetSymbols) as caught:
        tree.configure(text, "CONFIG_BED=y\n# CONFIG_NAP is not set\n")
    _is_no_verdict(caught.value, "selected by BED [=y]")


# -- whose fault it is ---------------------------------------------------------------


def test_a_symbol_of_the_patches_that_does_not_stick_is_their_failure(
    tree: Tree,
) -> None:
    text = "config NAP_TEST\n\tbool\n"
    with pytest.raises(OwnSymbolsUnmet) as caught:
        tree.configure(text, "CONFIG_NAP_TEST=y\n", own={"NAP_TEST"})
    assert isinstance(caught.value, FailedCheck)
    assert "CONFIG_NAP_TEST=y did not stick" in str(caught.value)
    assert caught.value.log is not None


def test_it_is_not_if_something_else_is_lacking_as_well(tree: Tree) -> None:
    text = """\
config NAP_TEST
	tristate "tests of naps"
	depends on NAP
"""
    with pytest.raises(UnmetSymbols) as caught:
        tree.configure(text, "CONFIG_NAP=y\nCONFIG_NAP_TEST=m\n", own={"NAP_TEST"})
    _is_no_verdict(caught.value, "CONFIG_NAP=y", "CONFIG_NAP_TEST=m")


def test_a_symbol_that_the_patches_add_is_not_missed_in_their_base(tree: Tree) -> None:
    asked = "CONFIG_NAP=y\nCONFIG_NAP_TEST=m\n"
    resolved = tree.configure(_PLAIN, asked, absent={"NAP_TEST"})
    assert resolved == Resolved({"MODULES": "y", "NAP": "y"}, (), ())
    assert tree.times == 1


def test_nothing_is_needed_by_who_says_so(tree: Tree) -> None:
    text = """\
config NAP
	bool "naps"
	depends on BED
config BED
	bool "beds"
"""
    resolved = tree.configure(text, "CONFIG_NAP=y\nCONFIG_GONE=y\n", lenient=True)
    assert resolved.added == (("BED", "y"),)
    assert resolved.remarks[-1] == "not available in this tree, and not needed: GONE"


# -- a tree of tomorrow --------------------------------------------------------------


def test_of_a_tree_that_cannot_be_read_only_what_is_named_is_tried(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(*_: object) -> None:
        raise ValueError("Kconfig:3: what is this?")

    monkeypatch.setattr(kconfig, "load", load)
    assert tree.configure(_RENAMED, _OR).config["DOZE"] == "y"
    with pytest.raises(UnmetSymbols) as caught:
        tree.configure(_RENAMED, "CONFIG_NAP=y\n")
    _is_no_verdict(caught.value, "Kconfig:3: what is this?")


# -- fragments -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("# or: CONFIG_B=y\nCONFIG_A=y\n", "f:1: not of the form"),
        ("# or: B=y (named so once)\nCONFIG_A=y\n", "f:1: not of the form"),
        ("# or: CONFIG_B=y ( )\nCONFIG_A=y\n", "f:1: not of the form"),
        ("# or: CONFIG_B=y (once)\n\nCONFIG_A=y\n", "f:2: `# or:` has no assignment"),
        ("# or: CONFIG_B=y (once)\n", "f: the last `# or:` has no"),
    ],
)
def test_an_alternative_is_read_strictly(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "f"
    path.write_text(text)
    with pytest.raises(kconfig.KconfigError, match=why):
        kconfig.parse_fragment(path)


def test_how_far_comments_reach(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_text(
        "# optional: of a header,\n# and of another\nCONFIG_A=y\nCONFIG_B=y\n"
        "# a comment\nCONFIG_C=y\n"
        "# if known: always there\nCONFIG_D=y\n\nCONFIG_E=y\n"
        "# optional: as well\n# or: CONFIG_G=y (once)\nCONFIG_F=y\nCONFIG_H=y\n"
    )
    asked = {setting.symbol: setting for setting in kconfig.parse_fragment(path)}
    needs = {name: setting.need for name, setting in asked.items()}
    assert needs == {
        "A": "optional",
        "B": "optional",
        "C": "needed",
        "D": "if-known",
        "E": "needed",
        "F": "optional",
        "H": "optional",
    }
    assert [alternative.values for alternative in asked["F"].alternatives] == [
        (("G", "y"),)
    ]
    assert asked["H"].alternatives == ()


def test_what_one_fragment_needs_is_needed(tmp_path: Path) -> None:
    base, demo = tmp_path / "base", tmp_path / "demo"
    base.write_text("# optional: tested by a header\nCONFIG_A=y\n")
    demo.write_text("# or: CONFIG_B=y (once)\nCONFIG_A=y\n")
    for order in ([base, demo], [demo, base]):
        setting = kconfig.combine(order)["A"]
        assert (setting.need, setting.file) == ("needed", demo)
        assert len(setting.alternatives) == 1
