# SPDX-License-Identifier: GPL-2.0-or-later
"""The options that a command was given, for commands that try or sign again."""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Sequence

from ..base import program
from ..series import Series
from ..tree import remote

# Options of `validate` that a command which tries again does not take over: it boots
# once, and the tree, of several, is known to `pipeline`.
_NOT_AGAIN = ("--again", "--repeat", "--kernel", "--matrix", "--arch", "--level")


def options(arguments: argparse.Namespace) -> dict[str, tuple[str, ...]]:
    """The options that prove the same again, by name, with their values; not those that
    say on what tree."""
    given = _given(arguments)
    return {name: given[name] for name in given if name not in _NOT_AGAIN}


def _given(arguments: argparse.Namespace) -> dict[str, tuple[str, ...]]:
    """The options that were given, by name, with their values, of which flags have
    none."""
    given: dict[str, tuple[str, ...]] = {}
    # argparse has no public list of them.
    actions = [action for parser in arguments.parsers for action in parser._actions]
    for action in actions:
        # What has no default has an effect at once, such as --help.
        if not action.option_strings or action.default == argparse.SUPPRESS:
            continue
        value = getattr(arguments, action.dest)
        if value == action.default:
            continue
        values = value if isinstance(value, list) else [value]
        flag = action.nargs == 0
        given[action.option_strings[-1]] = () if flag else tuple(map(str, values))
    return given


def signing(
    arguments: argparse.Namespace, to_send: Sequence[Series]
) -> tuple[str, ...]:
    """The command that was given, to which the key of a sign-off is appended."""
    given = _given(arguments)
    given.pop("--sign-off", None)
    if arguments.kernel is not None:
        given["--kernel"] = (remote.written(arguments.kernel),)
    names = [series.name for series in to_send]
    return _command(given, "series", *names)


def rebasing(arguments: argparse.Namespace, series: Series) -> tuple[str, ...]:
    """The command that was given, for ``series`` alone."""
    given = _given(arguments)
    if arguments.origin is not None:
        given["--from"] = (remote.written(arguments.origin),)
    return _command(given, "rebase", remote.written(arguments.kernel), series.name)


def _command(given: dict[str, tuple[str, ...]], *words: str) -> tuple[str, ...]:
    options = {
        name: [f"{name}={value}" for value in values] or [name]
        for name, values in given.items()
    }
    project = options.pop("--project", [])
    return (program(), *project, *words, *itertools.chain(*options.values()))
