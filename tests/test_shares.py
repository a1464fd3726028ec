# SPDX-License-Identifier: GPL-2.0-or-later
"""Whose a change is, in a kernel that has the patches of several series."""

from __future__ import annotations

from typing import Any

import pytest

from kstall.cost import costs
from kstall.cost.shares import SeriesPart, Shares

SHARES = Shares(
    (
        SeriesPart(
            "nap",
            {"nap_begin": ("doze",)},
            functions=frozenset({"doze", "both"}),
            words=frozenset({"dozing"}),
        ),
        SeriesPart(
            "run",
            {"run_end": ("walk",)},
            hot=frozenset({"walk"}),
            functions=frozenset({"both"}),
            words=frozenset({"walking"}),
            exempt=frozenset({"stumble", "shoe"}),
        ),
        SeriesPart("fix", {}),
    )
)
NAMES = ("nap", "run", "fix")


def path(name: str) -> costs.FunctionPaths:
    return costs.FunctionPaths(
        binary="vmlinux",
        name=name,
        proven=True,
        most=1,
        work=1,
        least=0,
        nops=0,
        sites=0,
    )


def size(name: str, binary: str = "vmlinux", **more: Any) -> costs.FunctionSize:
    facts = {"section": ".text", "part": "code", "base": 10, "patched": 14} | more
    return costs.FunctionSize(binary=binary, name=name, **facts)


def site(event: str, function: str) -> costs.Site:
    return costs.Site(
        event=event,
        binary="vmlinux",
        function=function,
        offset=3,
        nop=5,
        out_of_line=True,
        cold_bytes=9,
    )


def struct(name: str, *members: str, record: bool = False) -> costs.StructChange:
    return costs.StructChange(
        binary="vmlinux",
        name=name,
        base=None if record else 8,
        patched=16,
        base_holes=0,
        patched_holes=0,
        members=list(members),
        record=record,
    )


def owners(whole: costs.Footprint, part: str) -> list[str]:
    return [name for name in NAMES if getattr(SHARES.of(name, whole), part)]


@pytest.mark.parametrize(
    ("function", "whose"),
    [
        # Its source is another by that series, also where the compiler split it.
        ("doze", ["nap"]),
        ("doze.isra.0", ["nap"]),
        ("both", ["nap", "run"]),
        # It has a site of the series' event, from a header for all we know.
        ("inlines", ["run"]),
        # Nobody's source, and one argues for it.
        ("stumble", ["run"]),
        # Nobody knows: then it is judged as everybody's.
        ("far", ["nap", "run", "fix"]),
    ],
)
def test_a_function_is_whose_patches_made_it_another(
    function: str, whose: list[str]
) -> None:
    whole = costs.Footprint(paths=[path(function)], sites=[site("run_end", "inlines")])
    assert owners(whole, "paths") == whose


def test_what_nobody_names_is_of_those_who_change_its_module() -> None:
    """A module's last function has another name in the source."""
    odd = path("cleanup_module").model_copy(update={"binary": "nap"})
    known = path("doze").model_copy(update={"binary": "nap"})
    assert owners(costs.Footprint(paths=[odd, known]), "paths") == ["nap"]
    assert [
        function.name
        for function in SHARES.of("run", costs.Footprint(paths=[odd])).paths
    ]


def test_an_exemption_is_no_claim_on_what_another_series_changes() -> None:
    nap, _, fix = SHARES.parts
    greedy = SeriesPart("run", {}, exempt=frozenset({"doze"}))
    whole = costs.Footprint(paths=[path("doze")])
    assert Shares((nap, greedy, fix)).of("nap", whole).paths
    assert not Shares((nap, greedy, fix)).of("run", whole).paths


def test_sites_are_those_of_the_events_that_a_series_declares() -> None:
    whole = costs.Footprint(sites=[site("nap_begin", "doze"), site("run_end", "walk")])
    assert [point.event for point in SHARES.of("run", whole).sites] == ["run_end"]
    assert SHARES.of("fix", whole).sites == []


@pytest.mark.parametrize(
    ("change", "whose"),
    [
        (struct("trace_event_raw_nap_begin", record=True), ["nap"]),
        (struct("trace_event_raw_other", record=True), ["nap", "run", "fix"]),
        (struct("job", "+dozing"), ["nap"]),
        (struct("job", "-walking"), ["run"]),
        (struct("shoe", "+lace"), ["run"]),
        # What one series exempts, another one may not enlarge.
        (struct("shoe", "+dozing"), ["nap", "run"]),
        (struct("shoe", "+walking"), ["run"]),
        (struct("shoe", "+walking", "+dozing"), ["nap", "run"]),
        # It holds one that grew, say.
        (struct("box"), ["nap", "run", "fix"]),
    ],
)
def test_a_struct_is_whose_lines_name_what_came(
    change: costs.StructChange, whose: list[str]
) -> None:
    assert owners(costs.Footprint(structs=[change]), "structs") == whose


def test_what_trace_event_makes_is_its_events() -> None:
    whole = costs.Footprint(
        functions=[size("trace_event_raw_event_nap_begin", part="event")]
    )
    assert owners(whole, "functions") == ["nap"]


def test_a_binary_of_one_series_is_told_whole_and_of_others_what_is_its() -> None:
    sections = [
        costs.SectionSize(binary=name, section=section, base=100, patched=150)
        for name in ("vmlinux", "nap.ko")
        for section in (".text", ".data")
    ]
    whole = costs.Footprint(
        functions=[size("doze"), size("walk", patched=30), size("doze", "nap.ko")],
        sections=sections,
        sites=[site("run_end", "walk")],
    )
    told = {
        name: {
            (section.binary, section.section): section.patched - section.base
            for section in SHARES.of(name, whole).sections
        }
        for name in NAMES
    }
    nap = {("vmlinux", ".text"): 4, ("nap.ko", ".text"): 50, ("nap.ko", ".data"): 50}
    assert told == {"nap": nap, "run": {("vmlinux", ".text"): 20}, "fix": {}}


def test_what_could_not_be_looked_at_is_told_to_whom_it_concerns() -> None:
    whole = costs.Footprint(
        limits=["no site of nap_begin in any binary", "x is only in the base kernel"]
    )
    nap, run = (SHARES.of(name, whole).limits for name in ("nap", "run"))
    assert nap[:2] == whole.limits
    assert run[:1] == ["x is only in the base kernel"]
    assert "nap, fix are in the same kernel" in run[1]


def test_what_a_nop_is_on_this_architecture_is_told_to_all() -> None:
    whole = costs.Footprint(nops=[4])
    assert [SHARES.of(name, whole).nops for name in ("run", "nap")] == [[4], [4]]


def test_all_are_looked_for_at_once() -> None:
    assert SHARES.events == {"nap_begin": ("doze",), "run_end": ("walk",)}
    assert SHARES.hot == {"walk"}


def test_a_new_prototype_is_whose_event_it_is_and_a_changed_one_everybodys() -> None:
    def prototype(event: str, base: list[str] | None) -> costs.Prototype:
        return costs.Prototype(binary="b", event=event, base=base, patched=["u32"])

    whole = costs.Footprint(
        same_prototypes=7,
        prototypes=[
            prototype("nap_begin", None),
            prototype("run_end", None),
            prototype("nobodys", None),
            prototype("old", ["u64"]),
        ],
    )
    parts = {name: SHARES.of(name, whole) for name in NAMES}
    events = {name: [p.event for p in part.prototypes] for name, part in parts.items()}
    assert events == {
        "nap": ["nap_begin", "nobodys", "old"],
        "run": ["run_end", "nobodys", "old"],
        "fix": ["nobodys", "old"],
    }
    assert {part.same_prototypes for part in parts.values()} == {7}
