# SPDX-License-Identifier: GPL-2.0-or-later
"""Two versions of a function, held against each other path by path."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from kstall.base import process
from kstall.cost import elf, paths
from kstall.cost.code import Code
from kstall.cost.paths import Comparer, PathsCompared
from kstall.cost.walk import CodeSide


@pytest.fixture(scope="module")
def code(project_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Code:
    """The shapes, assembled."""
    target = tmp_path_factory.mktemp("shapes") / "shapes.o"
    source = project_root / "tests/data/overhead/shapes.S"
    process.run(["gcc", "-c", "-o", target, source])
    return Code(elf.load(target))


def against(code: Code, name: str) -> PathsCompared:
    start = code.binary.symbols
    base = CodeSide(code, frozenset(), lambda _: False)
    patched = CodeSide(code, frozenset(), lambda symbol: symbol.name == "helper")
    return Comparer(base, patched).compare(start["original"], start[name])


def test_the_same_is_the_same(code: Code) -> None:
    comparison = against(code, "original")
    assert comparison.proven
    assert (comparison.most, comparison.least, comparison.differences) == (0, 0, ())


def test_layout_and_registers_do_not_matter(code: Code) -> None:
    comparison = against(code, "rearranged")
    assert comparison.proven
    assert (comparison.most, comparison.work, comparison.least) == (1, 0, 0)
    (difference,) = comparison.differences
    assert [instruction.kind for instruction in difference.added] == ["jump"]


def test_an_instruction_is_found_where_it_is(code: Code) -> None:
    comparison = against(code, "longer")
    assert comparison.proven
    assert (comparison.most, comparison.least) == (1, 0)
    (difference,) = comparison.differences
    assert [instruction.text for instruction in difference.added] == [
        "mov rsi, qword ptr [rdi]"
    ]


def test_a_choice_more_is_counted_on_each_path(code: Code) -> None:
    comparison = against(code, "wonders")
    assert comparison.proven
    assert (comparison.most, comparison.least) == (2, 2)


def test_a_way_out_more_is_counted_where_it_is_not_taken(code: Code) -> None:
    comparison = against(code, "asks")
    assert comparison.proven
    assert comparison.most == 2


def test_what_has_nothing_in_common_is_no_proof(code: Code) -> None:
    comparison = against(code, "unlike")
    assert not comparison.proven
    assert comparison.unmatched
    assert [instruction.form for instruction in comparison.added] == [
        "bt r:q, 3",
        "jmp r:q",
    ]


def test_a_function_of_its_own_is_walked_into(code: Code) -> None:
    comparison = against(code, "outlined")
    assert comparison.proven
    # The call of the helper and its return.
    assert (comparison.most, comparison.least) == (2, 0)


def node(at: int) -> paths._Node:
    return paths._Node((at, ()), (at, ()))


def match(
    at: int, net: int, following: tuple[int, ...], *nops: int
) -> dict[paths._Node, paths._Match]:
    """What is run at a node, by the numbers of those that follow."""
    none: Counter[str] = Counter()
    nodes = tuple(map(node, following))
    return {
        node(at): paths._Match(node(at), net, nops, none, none, (), (), nodes, True)
    }


def test_a_site_behind_a_loop_is_on_the_path() -> None:
    """entry, condition, then the body and back, or on to the end."""
    graph = {
        **match(0, 0, (1,)),
        **match(1, 0, (2, 3)),
        **match(2, 0, (1,), 100),
        **match(3, 0, (), 200),
    }
    assert paths._most_sites(graph, node(0)) == 2


@pytest.mark.parametrize(
    ("nets", "following", "longest"),
    [
        # From before a loop into it, and out of it.
        ((-1, 1, 0), ((1,), (1, 2), ()), (0, 1)),
        ((1, -1, 0), ((1,), (1, 2), ()), (0, None)),
        # To another place in it, through which each round comes, too.
        ((0, 1, -1, 0), ((1,), (2, 3), (1,), ()), (1, None)),
        ((0, -1, 1, 0), ((1,), (2, 3), (1,), ()), (-1, None)),
        # Only one of two ways through the loop is longer.
        ((0, 0, 1, -1, 0), ((1,), (2, 3, 4), (1,), (1,), ()), (1, 2)),
        # In the inner loop, and the outer one makes up for it.
        ((0, -9, 1, 0), ((1,), (2,), (2, 1, 3), ()), (-8, 2)),
        # What makes up for it lies behind the loop, and so does more.
        ((1, 0, 0, -1), ((1,), (2, 3), (1,), ()), (0, None)),
        # It is entered at two places, and left at one.
        ((0, 0, 0, 1, 1), ((1, 4), (2, 3), (1,), (), (2,)), (2, None)),
        # No path of it ends.
        ((0, -1, 1), ((1,), (2,), (1,)), (0, None)),
        ((0, 0, 1), ((1,), (2,), (1,)), (1, 2)),
        # One of them does.
        ((0, 0, 1, 0), ((1, 3), (2,), (1,), ()), (1, 2)),
    ],
)
def test_a_loop_is_run_any_number_of_times(
    nets: tuple[int, ...],
    following: tuple[tuple[int, ...], ...],
    longest: tuple[int, int | None],
) -> None:
    graph: dict[paths._Node, paths._Match] = {}
    for at, (net, nodes) in enumerate(zip(nets, following, strict=True)):
        graph |= match(at, net, nodes)
    assert paths._longest(graph, node(0), lambda part: part.net) == longest
