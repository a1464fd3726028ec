# SPDX-License-Identifier: GPL-2.0-or-later
"""Resolve fragments to a ``.config`` that meets them, on trees of many versions.

Kernel versions name, hide and select an option differently.  A request that is not met
as it is written is tried in other ways, in this order:

* as the alternative that the fragment names (``# or:``);
* by its new name, where the tree keeps the old one for a transition;
* as ``y`` instead of ``m``, where it has become a bool;
* with its dependencies, as far as these leave no choice;
* through the symbol that turns it on, where it has no prompt and there is only one.

A needed symbol that cannot be set in any way is no verdict on a patch: nothing can be
judged on that tree.  Only a symbol that the patches define themselves, and that cannot
be set with them applied, is their fault.
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

# Enough for a symbol, what selects it, the dependencies of that, and so on.
_ROUNDS = 12
_SWITCH = ("y", "m")
Values = tuple[tuple[str, str], ...]


class UnmetSymbols(KstallError):
    """Needed symbols that this tree cannot have: no verdict on a patch."""


class OwnSymbolsUnmet(FailedCheck):
    """Symbols that the patches define, and that cannot be set with them applied."""


@dataclass(frozen=True)
class Resolved:
    """A configuration, as symbol -> value without those that are not set.

    ``added`` are assignments that are in no fragment; ``remarks`` say what differs from
    the requests, and why.
    """

    config: Mapping[str, str]
    added: Values
    remarks: tuple[str, ...]


@dataclass(frozen=True)
class _Step:
    """Assignments to try for a request.

    ``instead``: they replace the request, which need not hold then.
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
    """Merge ``fragments`` into ``build/.config``, and return what it resolved to.

    Symbols that nobody requests are off.  ``make`` holds the variables that the build
    will use, because the toolchain decides which symbols there are.  ``absent`` are
    those that this tree need not have, and for which nothing is tried; ``own`` are
    those that its patches define.  ``lenient``: all are tried and none is needed.
    Raises `UnmetSymbols` or `OwnSymbolsUnmet` with the reason for each symbol.
    """
    requests = kconfig.combine(fragments, whose)
    search = _Search(tree, build, requests, make, log, frozenset(absent))
    search.run()
    spared = [
        request for request in search.unmet() if lenient or not search.needs(request)
    ]
    search.give_up(spared)
    if unmet := [request for request in search.unmet() if request not in spared]:
        raise _error(search, unmet, own, log)
    remarks = search.remarks()
    if spared:
        names = ", ".join(request.symbol for request in spared)
        remarks.append(f"not available in this tree, and not needed: {names}")
    return Resolved(search.config, search.added(), tuple(remarks))


def _error(
    search: _Search, unmet: Sequence[Setting], own: Collection[str], log: Path
) -> KstallError:
    text = "\n".join(
        f"{request} did not stick (is {search.value(request.symbol)}): {reason}"
        for request, reason in zip(unmet, search.explain(unmet), strict=True)
    )
    # If another is unmet as well, the patches' own symbol may only depend on that.
    if all(request.symbol in own for request in unmet):
        return OwnSymbolsUnmet(
            text,
            log=log,
            next="the patches define it: fix its dependencies, or add them to the "
            "fragment",
        )
    return UnmetSymbols(
        f"this tree cannot be configured as needed:\n{text}",
        log=log,
        next="if this version has an alternative, name it above that line: "
        "`# or: CONFIG_OTHER=y (reason)`",
    )


class _Search:
    """A search for assignments that meet all requests, or as many as possible."""

    def __init__(
        self,
        tree: Path,
        build: Path,
        requests: Mapping[str, Setting],
        make: Sequence[str],
        log: Path,
        absent: frozenset[str],
    ) -> None:
        self.config: Mapping[str, str] = {}
        self._tree = tree
        self._build = build
        self._make = make
        self._log = log
        self._settings = requests
        self._requests = {
            name: request
            for name, request in self._settings.items()
            if name not in absent
        }
        self._added: dict[str, Setting] = {}
        # The requests that each added symbol is for.
        self._roots: dict[str, set[str]] = {}
        self._tried: dict[str, list[_Step]] = {}
        self._file = build / ".config"
        self._kconf: Any = None

    def run(self) -> None:
        """Add assignments until the requests are met or nothing is left to try."""
        self._allnoconfig()
        for _ in range(_ROUNDS):
            unmet = [*self._unmet_of({**self._added, **self._requests})]
            if not unmet:
                return
            self._read()
            # All of them, before make is run again.
            if True not in [self._try(request) for request in unmet]:
                return
            self._allnoconfig()

    def value(self, symbol: str) -> str:
        """What ``symbol`` is, with ``n`` for unset."""
        return self.config.get(symbol, "n")

    def unmet(self) -> list[Setting]:
        """The requests that are met in no way."""
        return [*self._unmet_of(self._requests)]

    def needs(self, request: Setting) -> bool:
        """Whether ``request`` has to be met."""
        if request.need == "if-known" and self._kconf is not None:
            return self._symbol(request.symbol) is not None
        return request.need != "optional"

    def give_up(self, requests: Iterable[Setting]) -> None:
        """Remove what was added for nothing but ``requests``."""
        names = {request.symbol for request in requests}
        obsolete = [name for name, roots in self._roots.items() if roots <= names]
        for name in obsolete:
            del self._added[name], self._roots[name]
        if obsolete:
            self._allnoconfig()

    def added(self) -> Values:
        """The assignments that are in no fragment."""
        return tuple(
            (setting.symbol, setting.value) for setting in self._added.values()
        )

    def remarks(self) -> list[str]:
        """How requests were met other than as they are written."""
        requests = {**self._added, **self._requests}
        met = set(requests) - {request.symbol for request in self._unmet_of(requests)}
        remarks = [
            step.remark
            for name, steps in self._tried.items()
            for step in steps
            if name in met and self._holds(step.values)
        ]
        for name, request in self._requests.items():
            if self.value(name) == request.value or name not in met:
                continue
            if alternative := next(filter(self._stands_in, request.alternatives), None):
                remarks.append(_instead(request, alternative))
            elif request.value == "m" and name not in self._added:
                remarks.append(f"{name} is part of the image, not a module")
        return list(dict.fromkeys(remarks))

    def _holds(self, values: Values) -> bool:
        return all(self.value(name) == value for name, value in values)

    def _stands_in(self, alternative: Alternative) -> bool:
        return self._holds(alternative.values)

    def explain(self, requests: Sequence[Setting]) -> Iterator[str]:
        """Why each of ``requests`` did not stick."""
        return kconfig.explain(self._tree, self._file, requests, self._make)

    def _allnoconfig(self) -> None:
        settings = {**self._settings, **self._added}
        self._build.mkdir(parents=True, exist_ok=True)
        merged = self._build / "merged.config"
        merged.write_text(
            "".join(f"{setting.line_of_config}\n" for setting in settings.values())
        )
        # Not olddefconfig: that takes the default of every symbol that the fragments
        # make visible, and CONFIG_NET alone brings IPv6 and wireless with it.
        arguments = (f"KCONFIG_ALLCONFIG={merged}", "allnoconfig")
        process.run(
            ["make", "-s", f"O={self._build}", *self._make, *arguments],
            cwd=self._tree,
            log=self._log,
        )
        self.config = kconfig.parse_config(self._file)

    def _read(self) -> None:
        """Load the tree's Kconfig with the present configuration.

        A later tree may have a syntax that cannot be read; then only the alternatives
        of the fragments are tried.
        """
        try:
            if self._kconf is None:
                self._kconf = kconfig.load(self._tree, self._file, self._make)
            else:
                self._kconf.load_config(str(self._file))
        except Exception:  # `explain` says why
            self._kconf = None

    def _unmet_of(self, requests: Mapping[str, Setting]) -> Iterator[Setting]:
        for request in requests.values():
            value = self.value(request.symbol)
            # What is part of the image need not be loaded.
            if value == request.value or (request.value, value) == ("m", "y"):
                continue
            steps = (
                step for step in self._tried.get(request.symbol, ()) if step.instead
            )
            ways = [step.values for step in steps]
            ways += [alternative.values for alternative in request.alternatives]
            if not any(map(self._holds, ways)):
                yield request

    # -- what can be tried -----------------------------------------------------------

    def _try(self, request: Setting) -> bool:
        """Add what the next step for ``request`` asks for; False if there is none."""
        tried = self._tried.setdefault(request.symbol, [])
        attempts = [step.values for step in tried]
        for step in self._steps(request):
            additions = [
                pair for pair in step.values if not self._is_requested(request, *pair)
            ]
            # What is set already meets it, or never will.
            if (
                not additions
                or step.values in attempts
                or self._contradicts(request, additions)
            ):
                continue
            tried.append(step)
            roots = self._roots.get(request.symbol, {request.symbol})
            for name, value in additions:
                if name not in self._added or value == "y":
                    self._added[name] = Setting(name, value, request.file, request.line)
                self._roots.setdefault(name, set()).update(roots)
            return True
        return False

    def _is_requested(self, request: Setting, name: str, value: str) -> bool:
        setting = self._settings.get(name)
        return setting is not None and setting.value == value and name != request.symbol

    def _contradicts(self, request: Setting, values: Iterable[tuple[str, str]]) -> bool:
        """Whether a fragment, or a step before, asks for something else."""
        return any(
            (
                name != request.symbol
                and name in self._settings
                and self._settings[name].value != value
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
        for alternative in request.alternatives:
            if self._kconf is None or all(
                self._symbol(other) is not None or value == "n"
                for other, value in alternative.values
            ):
                yield _Step(
                    alternative.values, _instead(request, alternative), instead=True
                )
        symbol = self._symbol(name)
        if symbol is None:
            return
        if name in self._kconf.transitional:
            successors = self._successors(symbol)
            if len(successors) == 1:
                (successor,) = successors
                text = f"{name} is called {successor} now"
                yield _Step(((successor, request.value),), text, instead=True)
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
            text = f"{name} through {_names(ways[0])}, as it has no prompt"
            yield _Step(ways[0], text)

    def _successors(self, symbol: Any) -> list[str]:
        """The symbols that take their default from an old name of theirs."""
        return [
            successor.name
            for successor in self._kconf.unique_defined_syms
            if any(
                symbol in kconfiglib.expr_items(value)
                for value, _ in successor.defaults
            )
        ]

    def _lacks(self, symbol: Any, value: str) -> Values | None:
        """What has to be set for ``symbol`` to be visible, if there is one way."""
        lacks = self._missing(symbol.direct_dep, value)
        if lacks != ():
            return lacks
        prompts = [node.prompt[1] for node in symbol.nodes if node.prompt is not None]
        # The condition includes the symbol's dependency, which holds.
        return self._missing(prompts[0], value) if len(prompts) == 1 else None

    def _missing(self, expression: Any, value: str) -> Values | None:
        """Assignments that make ``expression`` at least ``value``.

        None if there is no way, or more than one.
        """
        least = kconfiglib.STR_TO_TRI[value]
        assignments: dict[str, str] = {}
        for part in kconfiglib.split_expr(expression, kconfiglib.AND):
            if kconfiglib.expr_value(part) >= least:
                continue
            values = self._missing_part(part, value)
            if values is None:
                return None
            assignments.update(values)
        return tuple(assignments.items())

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
                for operand in kconfiglib.split_expr(part, kconfiglib.OR)
                if (values := self._missing(operand, value)) is not None
                and not self._requested_off(values)
            ]
            return ways[0] if len(ways) == 1 else None
        if isinstance(part, tuple) and part[0] == kconfiglib.EQUAL:
            left, right = part[1:]
            if right.name in _SWITCH and self._symbol(left.name) is not None:
                return ((left.name, right.name),)
        return None

    def _requested_off(self, values: Values) -> bool:
        settings = {**self._settings, **self._added}
        return any(
            name in settings and settings[name].value == "n" for name, _ in values
        )

    def _ways(self, symbol: Any, value: str) -> list[Values]:
        """What would turn on ``symbol`` without a prompt: a selector, or a default."""
        if symbol.visibility:
            return []
        ways: dict[Values, None] = {}
        for term in kconfiglib.split_expr(symbol.rev_dep, kconfiglib.OR):
            selector, *conditions = kconfiglib.split_expr(term, kconfiglib.AND)
            if (
                isinstance(selector, kconfiglib.Symbol)
                and selector.visibility
                and all(kconfiglib.expr_value(condition) for condition in conditions)
            ):
                selector_value = (
                    value if selector.orig_type == kconfiglib.TRISTATE else "y"
                )
                ways[((selector.name, selector_value),)] = None
        for default, condition in symbol.defaults:
            expression = (kconfiglib.AND, default, condition)
            if values := self._missing(expression, value):
                ways[values] = None
        return [way for way in ways if not self._requested_off(way)]


def _instead(request: Setting, alternative: Alternative) -> str:
    values = " ".join(f"{name}={value}" for name, value in alternative.values)
    return f"{values} instead of {request.symbol}: {alternative.why}"


def _is_switch(symbol: Any) -> bool:
    return symbol.orig_type in (kconfiglib.BOOL, kconfiglib.TRISTATE)


def _names(values: Values) -> str:
    return " and ".join(name for name, _ in values)
