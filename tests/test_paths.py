# SPDX-License-Identifier: GPL-2.0-or-later
"""Two versions of a function, held against each other path by path."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from kstall.base import process
from kstall.cost import elf, paths
from kstall.cost.code import Code
from kstall.cost.paths import Comparer, PathsCompared, Side


@pytest.fixture(scope="module")
def code(project_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Code:
    """The shapes, assembled."""
    target = tmp_path_factory.mktemp("shapes") / "shapes.o"
    source = project_root / "tests/data/overhead/shapes.S"
    process.run(["gcc", "-c", "-o", target, source])
    return Code(elf.load(target))


def against(code: Code, name: str) -> PathsCompared:
    start = code.binary.symbols
    base = Side(code, frozenset(), lambda _: False)
    patched = Side(code, frozenset(), lambda one: one.name == "helper")
    return Comparer(base, patched).compare(start["original"], start[name])


def test_the_same_is_the_same(code: Code) -> None:
    found = against(code, "original")
    assert found.proven
    assert (found.most, found.least, found.differences) == (0, 0, ())


def test_layout_and_registers_do_not_matter(code: Code) -> None:
    found = against(code, "rearranged")
    assert found.proven
    assert (found.most, found.work, found.least) == (1, 0, 0)
    (difference,) = found.differences
    assert [one.kind for one in difference.added] == ["jump"]


def test_an_instruction_is_found_where_it_is(code: Code) -> None:
    found = against(code, "longer")
    assert found.proven
    assert (found.most, found.least) == (1, 0)
    (difference,) = found.differences
    assert [one.text for one in difference.added] == ["mov rsi, qword ptr [rdi]"]


def test_a_choice_more_is_counted_on_each_path(code: Code) -> None:
    found = against(code, "wonders")
    assert found.proven
    assert (found.most, found.least) == (2, 2)


def test_a_way_out_more_is_counted_where_it_is_not_taken(code: Code) -> None:
    found = against(code, "asks")
    assert found.proven
    assert found.most == 2


def test_what_has_nothing_in_common_is_no_proof(code: Code) -> None:
    found = against(code, "unlike")
    assert not found.proven
    assert found.unmatched
    assert [one.form for one in found.added] == ["bt r:q, 3", "jmp r:q"]


def test_a_function_of_its_own_is_walked_into(code: Code) -> None:
    found = against(code, "outlined")
    assert found.proven
    # The call of the helper and its return.
    assert (found.most, found.least) == (2, 0)


def test_a_site_behind_a_loop_is_on_the_path() -> None:
    """entry, condition, then the body and back, or on to the end."""

    def found(nops: tuple[int, ...], *following: paths._Node) -> paths._Match:
        none: Counter[str] = Counter()
        return paths._Match(entry, 0, nops, none, none, (), (), following, True)

    entry, condition, body, end = (paths._Node((at, ()), (at, ())) for at in range(4))
    graph = {
        entry: found((), condition),
        condition: found((), body, end),
        body: found((100,), condition),
        end: found((200,)),
    }
    assert paths._most_sites(graph, entry) == 2
