# SPDX-License-Identifier: GPL-2.0-or-later
"""Received patches as a series that can be validated.

A project of their own is written for them.  For a known series it has our workloads and
checks with the received patches.  For any other it has the tracepoints that were found
in the patches, a check that the kernel lists them, and a workload: the program that the
user has named to make them fire, or one that does nothing.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from ..base import KstallError, cache
from ..lint import NewTracepoint, discover
from ..series import Project, Series
from ..tree import tree
from . import discovered
from .compare import Resemblance

#: The name of a received series that is none of this checkout.
UNKNOWN = "arrived"
_IDLE, _NAMED = "idle", "named"
_DEADLINE_S = 120
_OBJECT = re.compile(r"(?m)^[ \t]*[\w-]*obj-\$\((CONFIG_\w+)\)\s*[+:]?=(.*(?:\\\n.*)*)")


def known(project: Project, target: Path, resemblance: Resemblance) -> Series:
    """Our series with the received patches in place of ours."""
    _copy(project, target)
    directory = target / "patches" / resemblance.series.name
    shutil.copytree(resemblance.series.dir, directory)
    for name in resemblance.series.spec.needs:
        shutil.copytree(project.patches / name, target / "patches" / name)
    for pair in resemblance.pairs:
        assert pair.ours is not None and pair.theirs is not None
        shutil.copyfile(pair.theirs.path, directory / pair.ours.path.name)
    (series,) = Project(target).load([resemblance.series.name])
    return series


def unknown(
    project: Project,
    target: Path,
    plan: tree.Plan,
    points: Sequence[NewTracepoint],
    title: str,
    kconfig: Path | None,
    workload: Path | None = None,
) -> Series:
    """A series of ``plan``'s patches that declares ``points``.

    ``kconfig`` is a fragment that enables the touched files; without it, the symbols
    are taken from the Makefiles beside those files.  ``workload`` is a program, or a C
    file, that makes the events fire in the guest.  Raises `KstallError` without
    ``points``.
    """
    if not points:
        raise KstallError(
            "no tracepoint was found in the patches, so there is nothing to validate",
            next="review them; the results of apply and checkpatch are above",
        )
    _copy(project, target)
    directory = target / "patches" / UNKNOWN
    directory.mkdir()
    for patch in plan.patches:
        shutil.copyfile(patch.path, directory / patch.path.name)
    if kconfig is not None:
        fragment = kconfig.read_text(encoding="utf-8")
    else:
        fragment = "".join(f"{symbol}=y\n" for symbol in symbols(plan))
    (target / "kconfigs" / f"{UNKNOWN}.config").write_text(fragment)
    (directory / "cover.txt").write_text(f"{title}\n")
    load = _IDLE if workload is None else _NAMED
    received = discovered.ReceivedEvents(
        events=[point.event for point in points if not point.bare],
        bare=[point.name for point in points if point.bare],
        load=load,
        named=workload is not None,
    )
    shutil.copyfile(discovered.__file__, directory / "checks.py")
    cache.write_json(directory / discovered.FILE, received._asdict())
    (directory / "series.toml").write_text(_metadata(plan, points, title, load))
    program = target / "scripts" / "workloads" / UNKNOWN / load
    program.parent.mkdir(parents=True)
    if workload is None:
        program.write_text("#!/bin/sh\n# No program was named that makes them fire.\n")
    else:
        if workload.suffix == ".c":
            program = program.with_suffix(".c")
        try:
            shutil.copyfile(workload, program)
        except OSError as error:
            raise KstallError(f"{workload}: {error.strerror}") from error
    program.chmod(0o755)
    (series,) = Project(target).load([UNKNOWN])
    return series


def symbols(plan: tree.Plan) -> tuple[str, ...]:
    """Kconfig symbols that the Makefiles of touched C files name for their objects."""
    sources = [path for path in plan.touched if path.endswith(".c")]
    makefiles: dict[str, list[str]] = {}
    for source in sources:
        folder, _, unit = source.rpartition("/")
        makefiles.setdefault(folder, []).append(unit.removesuffix(".c") + ".o")
        # The directory itself may depend on a symbol.
        while "/" in folder:
            folder, _, name = folder.rpartition("/")
            makefiles.setdefault(folder, []).append(f"{name}/")
    texts = tree.pristine(plan.base, [f"{folder}/Makefile" for folder in makefiles])
    names: dict[str, None] = {}
    for folder, objects in makefiles.items():
        makefile = f"{folder}/Makefile"
        file = plan.files.get(makefile, texts[makefile])
        for symbol, members in _OBJECT.findall(file.text if file else ""):
            if set(members.replace("\\\n", " ").split()) & set(objects):
                names[symbol] = None
    return tuple(names)


def _copy(project: Project, target: Path) -> None:
    """Copy what a validation needs of a project, except its series."""
    (target / "patches").mkdir(parents=True)
    for name in ("kconfigs", "scripts", "harness"):
        shutil.copytree(
            project.root / name,
            target / name,
            ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"),
        )


def _metadata(
    plan: tree.Plan, points: Sequence[NewTracepoint], title: str, load: str
) -> str:
    """``series.toml``; JSON's strings and arrays are TOML's as well."""
    quoted = json.dumps
    names = [patch.path.name for patch in plan.patches]
    lines = [
        "schema = 1",
        "discovered = true",
        f"title = {quoted(title)}",
        f"ordered-as = {quoted(title)}",
        f"patches = {quoted(names)}",
        'cover = "cover.txt"',
        f'kconfig = "{UNKNOWN}.config"',
        "[subsystem]",
        'name = "-"\nprefix = "-"\ntree = "-"\nbranch = "-"\nlist = "-"',
        f'trace-system = "{points[0].system}"',
    ]
    for point in points:
        adding = discover.adding(plan, point)
        lines += [
            "[[tracepoint]]",
            f'name = "{point.name}"\nsystem = "{point.system}"',
            f'kind = "{"bare" if point.bare else "event"}"',
            f"patch = {quoted(adding.path.name)}",
            f"header = {quoted(point.header)}",
            'joins = "-"',
        ]
        for file, function in point.sites or [(point.header, "nowhere")]:
            lines += [
                "[[tracepoint.site]]",
                f'file = {quoted(file)}\nfunction = "{function}"',
                'hot = false\ncontext = "-"',
            ]
        lines += ["[tracepoint.fields]"]
    events = [point.event for point in points if not point.bare]
    lines += [
        "[[workload]]",
        f'name = "{load}"',
        f'program = "workloads/{UNKNOWN}/{load}"',
        f"events = {quoted(events)}",
        f"deadline-s = {_DEADLINE_S}",
        "[[check]]",
        'name = "kernel_lists_them"',
        'kind = "positive"',
        f'workloads = ["{load}"]',
        'claim = "The kernel has each event that was found in the patches, with a '
        'record."',
        "[[check]]",
        'name = "they_fire"',
        'kind = "positive"',
        f'workloads = ["{load}"]',
        'claim = "Each event that was found in the patches fires."',
        "[overhead]",
    ]
    return "\n".join(lines) + "\n"
