# SPDX-License-Identifier: GPL-2.0-or-later
"""TOML files with a schema, whose mistakes are reported with file and line."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from ..base import KstallError

#: Where a mistake is, by keys and indices into arrays of tables; and what it is.
Fault = tuple[tuple[int | str, ...], str]
_Model = TypeVar("_Model", bound=BaseModel)


class Table(BaseModel):
    """A TOML table: kebab-case keys, nothing unknown, never changed."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        alias_generator=lambda name: name.strip("_").replace("_", "-"),
        validate_by_name=False,
    )


class TableError(KstallError):
    """A file that is malformed, or that contradicts itself or the files beside it."""


def read(
    path: Path, model: type[_Model], error: type[TableError], schema: str
) -> tuple[_Model, str]:
    """The file at ``path`` as ``model``, and its text.

    Raises ``error``, with every mistake as ``file:line: message``; ``schema`` is what
    `kstall schema` calls it.  `FileNotFoundError` is left to the caller.
    """
    try:
        text = path.read_text(encoding="utf-8")
        raw = tomllib.loads(text)
    except UnicodeDecodeError as cause:
        raise error(f"{path}: not UTF-8 ({cause.reason})") from cause
    except tomllib.TOMLDecodeError as cause:
        match = re.search(r"line (\d+)", str(cause))
        line = int(match[1]) if match else len(text.splitlines())
        raise error(f"{path}:{line}: {cause}", next="fix the TOML") from cause
    try:
        return model.model_validate(raw), text
    except ValidationError as cause:
        details = [*cause.errors()]
        faults = [
            (detail["loc"], _plain(detail))
            for detail in details
            if not _follows(detail, details)
        ]
        raise mistakes(path, text, faults, error, schema) from cause


def mistakes(
    path: Path,
    text: str,
    faults: Iterable[Fault],
    error: type[TableError],
    schema: str,
) -> TableError:
    """An ``error`` that lists ``faults`` of the file at ``path``, with their lines."""
    lines = [
        f"{path}:{locate(text, location)}: {message}" for location, message in faults
    ]
    advice = f"fix it; `kstall schema {schema}` lists the keys"
    return error("\n".join(lines), next=advice)


def _follows(error: Any, others: Iterable[Any]) -> bool:
    """Whether a list is too short only because of ``others``, in its entries."""
    place = error["loc"]
    return error["type"] == "too_short" and any(
        len(other["loc"]) > len(place) and other["loc"][: len(place)] == place
        for other in others
    )


def _plain(error: Any) -> str:
    key = str(error["loc"][-1]) if error["loc"] else ""
    if error["type"] == "missing":
        return f"missing key `{key}`"
    if error["type"] == "extra_forbidden":
        return f"unknown key `{key}`"
    return f"`{key}`: {error['msg']}"


def locate(text: str, location: tuple[int | str, ...]) -> int:
    """The line (from 1) of the key or table at ``location``, or of the nearest one
    above it that exists.

    ``location`` is pydantic's: keys, and indices into arrays of tables.  `tomllib`
    keeps no positions, so the header lines are counted again here.
    """
    best, line_of_best = 0, 1
    table: list[int | str] = []
    seen: dict[tuple[str, ...], int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if header := re.match(r"\s*(\[\[?)\s*([\w.-]+)\s*\]", line):
            keys = header[2].split(".")
            if header[1] == "[[":
                seen[tuple(keys)] = seen.get(tuple(keys), -1) + 1
                # Arrays of tables below this one begin anew.
                for array in list(seen):
                    if len(array) > len(keys) and array[: len(keys)] == (*keys,):
                        del seen[array]
            table = []
            for depth in range(len(keys)):
                table.append(keys[depth])
                if (index := seen.get(tuple(keys[: depth + 1]))) is not None:
                    table.append(index)
            current = tuple(table)
        elif key := re.match(r"\s*([\w-]+)\s*=", line):
            current = (*table, key[1])
        else:
            continue
        shared = 0
        for ours, theirs in zip(current, location, strict=False):
            if ours != theirs:
                break
            shared += 1
        # The longest key that ``location`` begins with wins.
        if shared == len(current) and shared > best:
            best, line_of_best = shared, number
    return line_of_best
