# SPDX-License-Identifier: GPL-2.0-or-later
"""Fragments in, a ``.config`` out that has what they need, on trees of many versions.

Kernels spell, hide and select one option differently.  What a request does not get as
it is written is asked for in other ways, in this order:

* by what the fragment names in its place (``# or:``);
* by its new name, where the tree keeps the old one for a transition;
* as ``y`` instead of ``m``, where it has become a bool;
* with what it depends on, as far as that is no choice between several;
* through what brings it, where it has no prompt and there is one such symbol.

A needed symbol that cannot be had in any way is no verdict on a patch: nothing can be
judged on that tree.  Only a symbol that the patches define themselves, and that the
tree with them does not take, is their fault.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import kconfiglib  # type: ignore[import-untyped]

from ..base import Architecture, FailedCheck, KstallError, arch, process
from . import kconfig
from .kconfig import Alternative, Setting

# Enough for a symbol, what brings that, what this depends on, and so on.
_ROUNDS = 12
_SWITCH = ("y", "m")
Values = tuple[tuple[str, str], ...]


class UnmetSymbols(KstallError):
    """Needed symbols that this tree cannot have: nothing is said of a patch."""


class OwnSymbolsUnmet(FailedCheck):
    """Symbols that the patches define, and that the tree with them does not take."""


@dataclass(frozen=True)
class Resolved:
    """A configuration, as symbol -> value without those that are not set.

    ``added`` are assignments that are in no fragment; ``remarks`` say what is otherwise
    than it was asked for, and why.
    """

    config: Mapping[str, str]
    added: Values
    remarks: tuple[str, ...]


@dataclass(frozen=True)
class _Step:
    """Assignments to try for a request.

    ``instead``: they are as good as the request, which need not hold then.
    """

    values: Values
    remark: str
    instead: bool = False


def configure(
    tree: Path,
    build: Path,
    fragments: Sequence[Path],
    make: Sequence[str],
    *,
    log: Path,
    absent: Collection[str] = (),
    own: Collection[str] = (),
    lenient: bool = False,
    whose: Architecture = arch.X86_64,
) -> Resolved:
    """Merge ``fragments`` into ``build/.config``, and say what came of it.

    What nobody asks for is off.  ``make`` holds the variables that the build will use,
    because the toolchain decides which symbols there are.  ``absent`` are those that
    this tree need not have, and for which nothing is tried; ``own`` are those that its
    patches define.  ``lenient``: all are tried for, and none is needed.  Raises
    `UnmetSymbols` or `OwnSymbolsUnmet` with the reason for each symbol.
    """
    asked = kconfig.combine(fragments, whose)
    search = _Search(tree, build, asked, make, log, frozenset(absent))
    search.run()
    spared = [one for one in search.lost() if lenient or not search.needs(one)]
    search.give_up(spared)
    if left := [one for one in search.lost() if one not in spared]:
        raise _error(search, left, own, log)
    remarks = search.remarks()
    if spared:
        names = ", ".join(one.symbol for one in spared)
        remarks.append(f"cannot be had here, and not needed: {names}")
    return Resolved(search.config, search.added(), tuple(remarks))


def _error(
    search: _Search, left: Sequence[Setting], own: Collection[str], log: Path
) -> KstallError:
    text = "\n".join(
        f"{one} did not stick (is {search.value(one.symbol)}): {why}"
        for one, why in zip(left, search.explain(left), strict=True)
    )
    # If another is lacking as well, one of its own may lack just that.
    if all(one.symbol in own for one in left):
        return OwnSymbolsUnmet(
            text,
            log=log,
            next="the patches define it: mend what it depends on, or add that to the "
            "fragment",
        )
    return UnmetSymbols(
        f"this tree cannot be configured as it is needed:\n{text}",
        log=log,
        next="if this version has something else that does, name it above that line: "
        "`# or: CONFIG_OTHER=y (reason)`",
    )


class _Search:
    """Assignments that are tried until all requests are met, or none is left."""

    def __init__(
        self,
        tree: Path,
        build: Path,
        asked: Mapping[str, Setting],
        make: Sequence[str],
        log: Path,
        absent: frozenset[str],
    ) -> None:
        self.config: Mapping[str, str] = {}
        self._tree = tree
        self._build = build
        self._make = make
        self._log = log
        self._asked = asked
        self._requests = {
            name: one for name, one in self._asked.items() if name not in absent
        }
        self._added: dict[str, Setting] = {}
        # For which of the requests something was added, by its name.
        self._roots: dict[str, set[str]] = {}
        self._tried: dict[str, list[_Step]] = {}
        self._file = build / ".config"
        self._kconf: Any = None

    def run(self) -> None:
        """Add what brings the requests, until they are met or nothing is left."""
        self._allnoconfig()
        for _ in range(_ROUNDS):
            lost = [*self._lost_of({**self._added, **self._requests})]
            if not lost:
                return
            self._read()
            # All of them, before make is run again.
            if True not in [self._try(one) for one in lost]:
                return
            self._allnoconfig()

    def value(self, symbol: str) -> str:
        """What ``symbol`` is, with ``n`` for unset."""
        return self.config.get(symbol, "n")

    def lost(self) -> list[Setting]:
        """The requests that are not met, in no way."""
        return [*self._lost_of(self._requests)]

    def needs(self, request: Setting) -> bool:
        """Whether nothing can be judged without it."""
        if request.need == "if-known" and self._kconf is not None:
            return self._symbol(request.symbol) is not None
        return request.need != "optional"

    def give_up(self, requests: Iterable[Setting]) -> None:
        """Take back what was added for nothing but ``requests``."""
        names = {one.symbol for one in requests}
        vain = [name for name, roots in self._roots.items() if roots <= names]
        for name in vain:
            del self._added[name], self._roots[name]
        if vain:
            self._allnoconfig()

    def added(self) -> Values:
        """What no fragment asks for in this form."""
        return tuple((one.symbol, one.value) for one in self._added.values())

    def remarks(self) -> list[str]:
        """How requests were met that were not met as they are written."""
        every = {**self._added, **self._requests}
        met = set(every) - {one.symbol for one in self._lost_of(every)}
        said = [
            step.remark
            for name, steps in self._tried.items()
            for step in steps
            if name in met and self._holds(step.values)
        ]
        for name, one in self._requests.items():
            if self.value(name) == one.value or name not in met:
                continue
            if alternative := next(filter(self._does, one.alternatives), None):
                said.append(_instead(one, alternative))
            elif one.value == "m" and name not in self._added:
                said.append(f"{name} is part of the image, not a module")
        return list(dict.fromkeys(said))

    def _holds(self, values: Values) -> bool:
        return all(self.value(name) == value for name, value in values)

    def _does(self, alternative: Alternative) -> bool:
        return self._holds(alternative.values)

    def explain(self, requests: Sequence[Setting]) -> Iterator[str]:
        """Why each of ``requests`` did not stick."""
        return kconfig.explain(self._tree, self._file, requests, self._variables())

    def _variables(self) -> dict[str, str]:
        return dict(word.split("=", 1) for word in self._make if "=" in word)

    def _allnoconfig(self) -> None:
        asked = {**self._asked, **self._added}
        self._build.mkdir(parents=True, exist_ok=True)
        merged = self._build / "merged.config"
        merged.write_text("".join(f"{one.line_of_config}\n" for one in asked.values()))
        # Not olddefconfig: that takes the default of every symbol that the fragments
        # make visible, and CONFIG_NET alone brings IPv6 and wireless with it.
        wanted = (f"KCONFIG_ALLCONFIG={merged}", "allnoconfig")
        process.run(
            ["make", "-s", f"O={self._build}", *self._make, *wanted],
            cwd=self._tree,
            log=self._log,
        )
        self.config = kconfig.parse_config(self._file)

    def _read(self) -> None:
        """Have what the tree's Kconfig says of the configuration of now.

        A tree of tomorrow may have a syntax that cannot be read; then only what the
        fragments name is tried.
        """
        try:
            if self._kconf is None:
                self._kconf = kconfig.load(self._tree, self._file, self._variables())
            else:
                self._kconf.load_config(str(self._file))
        except Exception:  # what of, `explain` says
            self._kconf = None

    def _lost_of(self, requests: Mapping[str, Setting]) -> Iterator[Setting]:
        for one in requests.values():
            value = self.value(one.symbol)
            # What is part of the image need not be loaded.
            if value == one.value or (one.value, value) == ("m", "y"):
                continue
            steps = (step for step in self._tried.get(one.symbol, ()) if step.instead)
            ways = [step.values for step in steps]
            ways += [alternative.values for alternative in one.alternatives]
            if not any(map(self._holds, ways)):
                yield one

    # -- what can be tried -----------------------------------------------------------

    def _try(self, request: Setting) -> bool:
        """Add what the next step for ``request`` asks for; False if there is none."""
        tried = self._tried.setdefault(request.symbol, [])
        known = [step.values for step in tried]
        for step in self._steps(request):
            new = [pair for pair in step.values if not self._is_asked(request, *pair)]
            # What is asked for already brings it, or never will.
            if not new or step.values in known or self._contradicts(request, new):
                continue
            tried.append(step)
            roots = self._roots.get(request.symbol, {request.symbol})
            for name, value in new:
                if name not in self._added or value == "y":
                    self._added[name] = Setting(name, value, request.file, request.line)
                self._roots.setdefault(name, set()).update(roots)
            return True
        return False

    def _is_asked(self, request: Setting, name: str, value: str) -> bool:
        one = self._asked.get(name)
        return one is not None and one.value == value and name != request.symbol

    def _contradicts(self, request: Setting, values: Iterable[tuple[str, str]]) -> bool:
        """Whether a fragment, or a step before, asks for something else."""
        return any(
            (
                name != request.symbol
                and name in self._asked
                and self._asked[name].value != value
            )
            or (
                name in self._added
                and {self._added[name].value, value} not in ({value}, {"m", "y"})
            )
            for name, value in values
        )

    def _symbol(self, name: str) -> Any:
        """The symbol of that name, or None if the tree defines none."""
        symbol = self._kconf.syms.get(name) if self._kconf is not None else None
        return symbol if symbol is not None and symbol.nodes else None

    def _steps(self, request: Setting) -> Iterator[_Step]:
        """What could be tried for ``request``, likeliest first."""
        name = request.symbol
        for one in request.alternatives:
            if self._kconf is None or all(
                self._symbol(other) is not None or value == "n"
                for other, value in one.values
            ):
                yield _Step(one.values, _instead(request, one), instead=True)
        symbol = self._symbol(name)
        if symbol is None:
            return
        if name in self._kconf.transitional:
            successors = self._successors(symbol)
            if len(successors) == 1:
                (new,) = successors
                text = f"{name} is called {new} now"
                yield _Step(((new, request.value),), text, instead=True)
            return
        if request.value not in _SWITCH:
            return
        if symbol.orig_type == kconfiglib.BOOL and request.value == "m":
            yield _Step(((name, "y"),), f"{name}=y, as it is no module here")
            return
        if lacks := self._lacks(symbol, request.value):
            yield _Step(lacks, f"{name} with {_names(lacks)}, which it depends on")
        ways = self._ways(symbol, request.value)
        if len(ways) == 1:
            text = f"{name} by {_names(ways[0])}, for it cannot be chosen itself"
            yield _Step(ways[0], text)

    def _successors(self, symbol: Any) -> list[str]:
        """The symbols that take their default from an old name of theirs."""
        return [
            one.name
            for one in self._kconf.unique_defined_syms
            if any(symbol in kconfiglib.expr_items(value) for value, _ in one.defaults)
        ]

    def _lacks(self, symbol: Any, value: str) -> Values | None:
        """What has to be set for ``symbol`` to be visible, if that is one thing."""
        lacks = self._missing(symbol.direct_dep, value)
        if lacks != ():
            return lacks
        prompts = [node.prompt[1] for node in symbol.nodes if node.prompt is not None]
        # The condition has that of the symbol in it, which holds.
        return self._missing(prompts[0], value) if len(prompts) == 1 else None

    def _missing(self, expression: Any, value: str) -> Values | None:
        """Assignments that make ``expression`` at least ``value``.

        None if there is no way, or no way that is the only one.
        """
        least = kconfiglib.STR_TO_TRI[value]
        found: dict[str, str] = {}
        for part in kconfiglib.split_expr(expression, kconfiglib.AND):
            if kconfiglib.expr_value(part) >= least:
                continue
            values = self._missing_part(part, value)
            if values is None:
                return None
            found.update(values)
        return tuple(found.items())

    def _missing_part(self, part: Any, value: str) -> Values | None:
        if isinstance(part, kconfiglib.Symbol):
            symbol = self._symbol(part.name) if not part.is_constant else None
            if symbol is None or not _is_switch(symbol):
                return None
            if symbol.orig_type == kconfiglib.BOOL:
                return ((part.name, "y"),)
            return ((part.name, value),)
        if isinstance(part, tuple) and part[0] == kconfiglib.OR:
            ways = [
                values
                for one in kconfiglib.split_expr(part, kconfiglib.OR)
                if (values := self._missing(one, value)) is not None
                and not self._asked_off(values)
            ]
            return ways[0] if len(ways) == 1 else None
        if isinstance(part, tuple) and part[0] == kconfiglib.EQUAL:
            left, right = part[1:]
            if right.name in _SWITCH and self._symbol(left.name) is not None:
                return ((left.name, right.name),)
        return None

    def _asked_off(self, values: Values) -> bool:
        asked = {**self._asked, **self._added}
        return any(name in asked and asked[name].value == "n" for name, _ in values)

    def _ways(self, symbol: Any, value: str) -> list[Values]:
        """What would bring ``symbol`` without a prompt: a selector, or a default."""
        if symbol.visibility:
            return []
        ways: dict[Values, None] = {}
        for term in kconfiglib.split_expr(symbol.rev_dep, kconfiglib.OR):
            selector, *conditions = kconfiglib.split_expr(term, kconfiglib.AND)
            if (
                isinstance(selector, kconfiglib.Symbol)
                and selector.visibility
                and all(kconfiglib.expr_value(one) for one in conditions)
            ):
                kept = value if selector.orig_type == kconfiglib.TRISTATE else "y"
                ways[((selector.name, kept),)] = None
        for default, condition in symbol.defaults:
            both = (kconfiglib.AND, default, condition)
            if values := self._missing(both, value):
                ways[values] = None
        return [one for one in ways if not self._asked_off(one)]


def _instead(request: Setting, alternative: Alternative) -> str:
    values = " ".join(f"{name}={value}" for name, value in alternative.values)
    return f"{values} instead of {request.symbol}: {alternative.why}"


def _is_switch(symbol: Any) -> bool:
    return symbol.orig_type in (kconfiglib.BOOL, kconfiglib.TRISTATE)


def _names(values: Values) -> str:
    return " and ".join(name for name, _ in values)
