# SPDX-License-Identifier: GPL-2.0-or-later
"""Random configurations that include the code touched by a series.

kconfig's own `make randconfig` draws them, by a seed that the report names.  What the
touched code needs is fixed; all else is random.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import kconfiglib  # type: ignore[import-untyped]

from ..base import cache, process, sources
from ..build import Configured, kconfig, kernel
from ..tree import AppliedTree, Plan, tree
from .variants import Variant

#: Configurations of a series at LEVEL=deep; all series together have some dozens.
COUNT = 6
_SEEDS = 2**31
_CONFIG = ".config"
# Warnings stay warnings; and what needs programs that may not be installed, or costs
# compile time and finds nothing, is off.
_OFF = ("WERROR", "GCC_PLUGINS", "RUST", "DEBUG_INFO_BTF", "GENDWARFKSYMS")
_ALWAYS = {"64BIT": "y", "DEBUG_INFO_NONE": "y"}


def of(plan: Plan) -> tuple[int, ...]:
    """The seeds of a series, which change only with the code that it makes of files."""
    files = [
        (path, None if file is None else file.facts())
        for path, file in plan.states[-1]
        if not tree.is_prose(path)
    ]
    return tuple(
        # kconfig takes 0 for none.
        1 + int(cache.digest("seed", files, number)[:12], 16) % (_SEEDS - 1)
        for number in range(COUNT)
    )


def needed(kconf: Any, symbols: Sequence[str]) -> dict[str, str]:
    """The values of ``symbols``, as far as they are on, with what keeps them on.

    That is what they depend on and what selects those that nobody can choose; where
    one of several would do, the first that is on.
    """
    values: dict[str, str] = {}
    waiting = list(symbols)
    while waiting:
        symbol = kconf.syms.get(waiting.pop(0))
        if symbol is None or symbol.is_constant or symbol.name in values:
            continue
        if symbol.type not in (kconfiglib.BOOL, kconfiglib.TRISTATE):
            continue
        if not symbol.tri_value:
            continue
        values[symbol.name] = symbol.str_value
        waiting += _on(symbol.direct_dep)
        if not symbol.visibility:
            terms = kconfiglib.split_expr(symbol.rev_dep, kconfiglib.OR)
            waiting += next((_on(term) for term in terms if _is_on(term)), [])
    return values


def _on(expression: Any) -> list[str]:
    """Symbols that suffice for ``expression``, which is true, to be so."""
    names: list[str] = []
    for part in kconfiglib.split_expr(expression, kconfiglib.AND):
        options = kconfiglib.split_expr(part, kconfiglib.OR)
        if len(options) > 1:
            names += next((_on(option) for option in options if _is_on(option)), [])
        elif isinstance(part, kconfiglib.Symbol):
            names.append(part.name)
    return names


def _is_on(expression: Any) -> bool:
    return bool(kconfiglib.expr_value(expression))


def configure(
    variant: Variant,
    applied: AppliedTree,
    merged: Configured,
    symbols: Sequence[str],
    cache_dir: Path,
    *,
    key: str,
    log: Path,
) -> Configured:
    """The configuration that the seed of ``variant`` draws on ``applied``.

    ``merged`` has ``symbols``, which stay on, and what they need; ``key`` changes with
    all that can change which symbols exist.
    """
    assert variant.seed is not None
    entry = cache_dir / "configs" / _key_of(key, variant.seed, symbols)
    if not cache.is_complete(entry):
        kconf = kconfig.load(applied.path, merged.file, variant.tools.make)
        fixed = needed(kconf, symbols) | _ALWAYS
        with cache.keep(entry) as scratch:
            allconfig = scratch / "asked.config"
            cache.write_text(allconfig, "".join(_lines(fixed)))
            output = scratch / "o"
            output.mkdir()
            process.run(
                (
                    *("make", f"O={output}", *variant.tools.make),
                    *(
                        f"KCONFIG_SEED={variant.seed:#x}",
                        f"KCONFIG_ALLCONFIG={allconfig}",
                    ),
                    "randconfig",
                ),
                cwd=applied.path,
                env=dict(variant.tools.env),
                log=log,
            )
            (output / _CONFIG).rename(scratch / _CONFIG)
            cache.remove(output)
        cache.prune(entry.parent, keep=kernel.CONFIGS)
    return Configured(entry / _CONFIG, reused=True)


def _key_of(key: str, seed: int, symbols: Sequence[str]) -> str:
    code = sources.digest("kstall.compile")
    return cache.digest("random", key, seed, sorted(symbols), code)


def _lines(fixed: Mapping[str, str]) -> Iterator[str]:
    for name, value in sorted(fixed.items()):
        yield f"CONFIG_{name}={value}\n"
    for name in _OFF:
        if name not in fixed:
            yield f"# CONFIG_{name} is not set\n"
