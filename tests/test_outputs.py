# SPDX-License-Identifier: GPL-2.0-or-later
"""Output directories: what make would compile again, and what goes to make room."""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kstall.base import cache, space
from kstall.build import outputs
from kstall.tree import TouchedFile, listing

PRISTINE = "the base's\n"
BOTH = {"include/a.h", "b.c"}
#: The head of a 64-bit ELF file with one section header of 64 bytes right behind it.
OBJECT = b"\x7fELF\2".ljust(40, b"\0") + struct.pack("<Q10xHH2x", 64, 64, 1) + bytes(64)


class Lab:
    """A workspace of two files, and a make that compiles what is newer than its object.

    ``a.h`` stands for a header that everything includes.
    """

    def __init__(self, root: Path) -> None:
        self.cache = root / "cache"
        self.home = self.cache / "trees/base"
        self.src = self.home / "src"
        (self.src / "include").mkdir(parents=True)
        (self.home / "files").touch()
        self.config = root / "config"
        self.config.write_text("CONFIG_A=y\n")
        self.base: dict[str, tuple[str, int]] = {}
        for name in ("include/a.h", "b.c"):
            path = self.src / name
            path.write_text(PRISTINE)
            os.utime(path, (1000, 1000))
            self.base[name] = (blob(PRISTINE), 1000 * 10**9)
        self.known: set[str] = set()

    def checkout(self, **files: str) -> Any:
        """Put ``files`` into the workspace, and the base's into what else was touched.

        They are named by their first letter.
        """
        names = {"a": "include/a.h", "b": "b.c"}
        wanted = dict.fromkeys(self.known, PRISTINE)
        wanted |= {names[letter]: text for letter, text in files.items()}
        self.known |= wanted.keys()
        for name, text in wanted.items():
            if (self.src / name).read_text() != text:
                (self.src / name).write_text(text)
        return SimpleNamespace(
            base=SimpleNamespace(id="base"),
            path=self.src,
            touched=tuple(wanted),
            ever_touched={
                name: TouchedFile(blob(text), *self.base[name])
                for name, text in wanted.items()
            },
        )

    def use(self, slot: str, applied: Any) -> Path:
        (self.home / "base.json").touch()  # as every run does with a tree that it uses
        return outputs.use(applied, slot, self.config, self.cache)

    def make(self, slot: str, applied: Any) -> set[str]:
        """The files that had to be compiled."""
        return self._compiled(self.use(slot, applied))

    def _compiled(self, output: Path, only: str = "") -> set[str]:
        compiled = set()
        for name in [only] if only else self.base:
            source, target = self.src / name, output / Path(name).name
            if (
                not target.exists()
                or source.stat().st_mtime_ns > target.stat().st_mtime_ns
            ):
                target.write_text(source.read_text())
                compiled.add(name)
            assert target.read_text() == source.read_text(), "make skipped a change"
        return compiled

    def apart(
        self, *names: str, files: Mapping[str, str], only: str = ""
    ) -> list[dict[str, set[str]]]:
        """What had to be compiled in each of ``names``, turn by turn."""
        applied = self.checkout(**files)
        (self.home / "base.json").touch()
        configs = {
            outputs.apart(applied, name, self.cache): self.config for name in names
        }
        return [
            {output.name: self._compiled(output, only) for output in turn}
            for turn in outputs.turns(applied, configs)
        ]

    @property
    def slots(self) -> set[str]:
        aside = self.cache / "builds/.aside/base"
        return {path.name for path in aside.iterdir()} if aside.exists() else set()


def blob(text: str) -> str:
    return listing.blob_id(text.encode())


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path)


def test_two_series_do_not_undo_each_others_work(lab: Lab) -> None:
    assert lab.make("one", lab.checkout(a="one's")) == {"include/a.h", "b.c"}
    assert lab.make("two", lab.checkout(b="two's")) == {"include/a.h", "b.c"}
    for _ in range(3):
        assert lab.make("one", lab.checkout(a="one's")) == set()
        assert lab.make("two", lab.checkout(b="two's")) == set()


def test_a_new_directory_begins_with_its_neighbours_objects(lab: Lab) -> None:
    lab.make("one", lab.checkout())
    assert lab.make("two", lab.checkout(b="two's")) == {"b.c"}


def test_the_nearest_neighbour_has_the_fewest_objects_to_compile_again(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many symbols that nothing depends on are nearer than a header of everything."""
    monkeypatch.setattr(outputs, "_KEEP", 10)

    def objects(output: Path, needs: str, count: int) -> None:
        for number in range(count):
            command = output / f"fs/.{number}.o.cmd"
            command.parent.mkdir(exist_ok=True)
            command.write_text(f"deps := \\\n  {needs} \\\n  /usr/include/x.h\n")

    header = f"{lab.src}/include/a.h"
    for slot, symbols, needs, count, files in (
        ("wide", "A", header, 3, {"a": "wide"}),
        ("other", "AB", "$(wildcard include/config/B)", 2, {}),
        ("idle", "ABCDE", f"$(wildcard include/config/B) \\\n  {header}", 1, {}),
    ):
        lab.config.write_text("".join(f"CONFIG_{symbol}=y\n" for symbol in symbols))
        output = lab.use(slot, lab.checkout(**files))
        cache.remove(output / "fs")  # of the neighbour that it began with
        objects(output, needs, count)
        (output / "mark").write_text(slot)
    lab.config.write_text("CONFIG_A=y\n")
    for gone, nearest in (("", "idle"), ("idle", "other"), ("other", "wide")):
        if gone:
            cache.remove(lab.cache / "builds/.aside/base" / gone)
        assert (lab.use("new", lab.checkout()) / "mark").read_text() == nearest
        lab.use("wide", lab.checkout(a="wide"))
        cache.remove(lab.cache / "builds/.aside/base/new")


def test_a_file_that_was_pristine_when_a_directory_last_saw_it(lab: Lab) -> None:
    """Another series touched it since; here it is as it was, with its old time."""
    lab.make("one", lab.checkout())
    lab.make("two", lab.checkout(b="two's"))
    assert lab.make("one", lab.checkout()) == set()
    assert lab.make("one", lab.checkout(b="one's")) == {"b.c"}
    assert lab.make("one", lab.checkout()) == {"b.c"}


def test_content_that_comes_back_is_compiled_again(lab: Lab) -> None:
    """The objects are those of what came between, not of what was once before."""
    lab.make("one", lab.checkout(b="first"))
    lab.make("one", lab.checkout(b="second"))
    assert lab.make("one", lab.checkout(b="first")) == {"b.c"}


def test_a_change_in_the_tick_of_the_last_build_is_seen(lab: Lab) -> None:
    for number in range(30):
        assert "b.c" in lab.make("one", lab.checkout(b=str(number)))


def test_a_build_that_was_not_judged_is_compiled_again(lab: Lab) -> None:
    applied = lab.checkout(b="warns")
    lab.make("one", applied)
    outputs.mark_unread(lab.use("one", applied), applied)
    assert lab.make("one", applied) == {"b.c"}
    outputs.mark_read(lab.use("one", applied))
    assert lab.make("one", applied) == {"b.c"}, "the judgement came before this use"
    assert lab.make("one", applied) == set()


def test_a_file_of_another_series_is_not_a_source(lab: Lab) -> None:
    applied = lab.checkout()
    applied.ever_touched["new.c"] = TouchedFile(None, None, 0)
    lab.make("one", applied)
    assert not (lab.src / "new.c").exists()
    (lab.src / "new.c").write_text("new")
    os.utime(lab.src / "new.c", (1, 1))
    applied.ever_touched["new.c"] = TouchedFile(blob("new"), None, 0)
    before = (lab.cache / "builds/base/b.c").stat().st_mtime_ns
    lab.use("one", applied)
    assert (lab.src / "new.c").stat().st_mtime_ns > before


def test_the_config_is_written_only_when_it_differs(lab: Lab) -> None:
    config = lab.use("one", lab.checkout()) / ".config"
    os.utime(config, (5, 5))
    lab.use("one", lab.checkout())
    assert config.stat().st_mtime == 5
    lab.config.write_text("CONFIG_A=m\n")
    lab.use("one", lab.checkout())
    assert config.read_text() == "CONFIG_A=m\n"


def test_the_path_in_use_is_the_same_for_all(lab: Lab) -> None:
    assert lab.use("one", lab.checkout()) == lab.use("two", lab.checkout())
    assert lab.slots == {"one"}


def test_a_tree_that_was_made_anew_starts_anew(lab: Lab) -> None:
    """Its files have other time stamps than those that the objects were made after."""
    lab.make("one", lab.checkout())
    lab.make("two", lab.checkout())
    (lab.home / "files").unlink()
    (lab.home / "files").write_text("")
    for slot in ("two", "one"):
        assert not (lab.use(slot, lab.checkout()) / "b.c").exists()


def test_what_a_killed_run_left_is_taken_away(lab: Lab) -> None:
    lab.use("one", lab.checkout())
    half = lab.cache / "builds/.aside/base/.two.tmp-x"
    half.mkdir(parents=True)
    (lab.cache / "builds/base/kstall-slot.json").unlink()
    lab.use("two", lab.checkout())
    assert not half.exists()
    assert lab.slots == set()


@pytest.mark.parametrize("slot", ["one", "three"])
def test_what_is_left_of_a_removed_directory_is_nobody_s(lab: Lab, slot: str) -> None:
    """Neither its own slot nor a new one that looks for a neighbour may go on in it."""
    lab.make("one", lab.checkout(a="one's"))
    lab.make("two", lab.checkout(b="two's"))
    (lab.cache / "builds/.aside/base/one/kstall-sources.json").unlink()
    cache.remove(lab.cache / "builds/base")
    assert lab.make(slot, lab.checkout()) == {"include/a.h", "b.c"}


@pytest.mark.parametrize("file", ["kstall-slot.json", "kstall-sources.json"])
def test_half_a_record_is_none(lab: Lab, file: str) -> None:
    lab.make("one", lab.checkout())
    (lab.cache / "builds/base" / file).write_text('{"slot": "o')
    assert lab.make("one", lab.checkout()) == {"include/a.h", "b.c"}


def test_half_a_record_of_what_was_not_judged_is_all(lab: Lab) -> None:
    lab.make("one", lab.checkout(b="warns"))
    (lab.cache / "builds/base/kstall-unjudged.json").write_text("")
    assert lab.make("one", lab.checkout(b="warns")) == {"b.c"}


def test_what_a_killed_make_left_half_made_is_made_again(lab: Lab) -> None:
    """An object is there before objtool has seen it, and its .cmd after that."""
    output = lab.use("one", lab.checkout())
    for name, target, command in (
        ("torn.o", 20, 10),
        ("whole.o", 10, 10),
        ("module.ko", 20, 10),
    ):
        for path, when in ((output / name, target), (output / f".{name}.cmd", command)):
            path.write_bytes(OBJECT)
            os.utime(path, (when, when))
    lab.use("one", lab.checkout())
    assert {path.name for path in output.glob("*.*o")} == {"whole.o", "module.ko"}
    applied = lab.checkout()
    outputs.mark_unread(output, applied)
    lab.use("one", applied)
    assert {path.name for path in output.glob("*.*o")} == {"whole.o"}


def test_a_copy_that_was_cut_short_does_not_stay(lab: Lab) -> None:
    lab.use("one", lab.checkout())
    half = lab.cache / "builds/.aside/base/.nine.tmp-abc"
    half.mkdir(parents=True)
    lab.use("one", lab.checkout())
    assert not half.exists()


def test_the_ones_used_longest_ago_make_room(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(4):
        lab.use(f"s{number}", lab.checkout())
        os.utime(lab.cache / "builds/base", (number, number))
    free = {0: 0, 1: 0}  # enough only after two are gone
    monkeypatch.setattr(
        space, "available", lambda _: free.get(3 - len(lab.slots), 1 << 40)
    )
    lab.use("s3", lab.checkout())
    assert lab.slots == {"s2"}


def test_no_more_than_a_few_are_kept(lab: Lab) -> None:
    for number in range(14):
        lab.use(f"s{number}", lab.checkout())
    assert len(lab.slots) == outputs._KEEP - 1, "beside the one in use"


def test_a_full_disk_is_said_before_the_build(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.use("one", lab.checkout())
    lab.use("two", lab.checkout())
    monkeypatch.setattr(space, "available", lambda _: 1 << 20)
    with pytest.raises(space.NoSpace, match="no room for a build"):
        lab.use("two", lab.checkout())
    assert lab.slots == set(), "what could go is gone, and it was not enough"
    assert (lab.cache / "builds/base").exists(), "the directory in use stays"


def test_those_that_saw_the_same_are_made_at_once(lab: Lab) -> None:
    """And none has compiled again what only another one has not seen."""
    first = lab.apart("one", "two", "late", files={})
    assert first == [{"one": BOTH, "two": BOTH, "late": BOTH}]
    second = lab.apart("one", "two", files={"a": "new"})
    assert second == [{"one": {"include/a.h"}, "two": {"include/a.h"}}]
    third = lab.apart("one", "late", "two", files={"a": "new", "b": "newer"})
    assert third == [{"one": {"b.c"}, "two": {"b.c"}}, {"late": BOTH}]


def test_an_edit_of_one_file_after_all_was_made_in_turns(lab: Lab) -> None:
    """Those that were in different turns have different stamps, and stay apart."""
    every = ("one", "two", "late")
    lab.apart(*every, files={})
    lab.apart("one", "two", files={"a": "new"})
    lab.apart(*every, files={"a": "new", "b": "newer"})
    for text in ("newest", "even newer"):
        turns = lab.apart(*every, files={"a": "new", "b": text})
        assert turns == [{"one": {"b.c"}, "two": {"b.c"}}, {"late": {"b.c"}}]


def test_a_clock_that_goes_back_between_two_turns(lab: Lab) -> None:
    lab.apart("one", "late", files={})
    lab.apart("one", files={"b": "new"})
    applied = lab.checkout(b="newer")
    configs = {
        outputs.apart(applied, name, lab.cache): lab.config for name in ("one", "late")
    }
    turns = outputs.turns(applied, configs)
    next(turns)
    late = lab.cache / "variants/base/late"
    ahead = time.time() + 60
    for path in (late / "b.c", late / ".b.c.cmd"):
        path.touch()
        os.utime(path, (ahead, ahead))
    assert next(turns) == [late]
    assert not (late / "b.c").exists(), "else make would not see that it is old"


def test_those_of_a_base_that_is_gone_go_as_well(lab: Lab) -> None:
    for old in ("builds/old", "builds/.aside/old/one"):
        (lab.cache / old).mkdir(parents=True)
    lab.use("one", lab.checkout())
    assert {path.name for path in lab.cache.glob("builds/*")} == {".aside", "base"}
    assert not (lab.cache / "builds/.aside/old").exists()
