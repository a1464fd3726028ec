# SPDX-License-Identifier: GPL-2.0-or-later
"""Modules of ours that measure inside the kernel, one build for each kernel.

Some paths cannot be entered from user space without a device.  What drives them there
is no part of the trees that are compared, so it is compiled outside, against the build
directory of the kernel that it is to be loaded into.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from ..base import FailedCheck, KstallError, cache, process, space
from ..base import sources as ours
from ..tree import AppliedTree
from . import kernel
from .kernel import Configured, Kernel, Toolchain

_BYTES = 10**8


def key_of(built: Kernel, modules: Sequence[Path]) -> str:
    """Changes with the kernel, the sources and the headers beside them."""
    headers = {path for one in modules for path in one.parent.glob("*.h")}
    return cache.digest(
        ours.digest("kstall.build"),
        built.key,
        [(path.name, cache.file_digest(path)) for path in sorted({*modules, *headers})],
    )


def obtain(
    sources: Sequence[Path],
    built: Kernel,
    slot: str,
    config: Configured,
    tools: Toolchain,
    cache_dir: Path,
    checkout: Callable[[], AppliedTree],
    *,
    log: Path,
) -> Path:
    """The directory with a ``.ko`` for each of ``sources``, which are C files.

    ``slot`` is the output directory that ``built`` was built in.  ``checkout`` is
    called only if there is something to compile.  Raises
    `FailedCheck` with the compiler's words.
    """
    target = cache_dir / "extra" / key_of(built, sources)
    if not cache.kept(target):
        with cache.keep(target) as scratch:
            tree = checkout()
            command = kernel.prepare_make(cache_dir, tree, slot, config, tools)
            _compile(sources, tree, command, tools, scratch, log)
        cache.prune(cache_dir / "extra", keep=64)
    return target


def _compile(
    sources: Sequence[Path],
    tree: AppliedTree,
    command: Sequence[str],
    tools: Toolchain,
    scratch: Path,
    log: Path,
) -> None:
    strip = tools.arch.tool("strip")
    work = scratch / "work"
    work.mkdir()
    for folder in {one.parent for one in sources}:
        for header in folder.glob("*.h"):
            shutil.copy2(header, work)
    for one in sources:
        shutil.copy2(one, work)
    objects = " ".join(f"{one.stem}.o" for one in sources)
    (work / "Kbuild").write_text(f"obj-m := {objects}\n", encoding="utf-8")
    env = {**dict(tools.env), "LC_ALL": "C"}
    try:
        with space.guarded(scratch, _BYTES, "a module that measures"):
            # What is built there may be another series, or nothing at all yet.
            process.run([*command, "modules_prepare"], cwd=tree.path, env=env, log=log)
            process.run(
                # Symbols of modules are looked up when ours is loaded.
                [*command, f"M={work}", "KBUILD_MODPOST_WARN=1", "modules"],
                cwd=tree.path,
                env=env,
                log=log,
            )
    except process.CommandError as error:
        failed = FailedCheck if kernel.refused(error) else KstallError
        raise failed(
            f"a module that measures does not compile:\n{error.what}", log=log
        ) from error
    for one in sources:
        built = work / f"{one.stem}.ko"
        # The types of whatever kernel lies in the build directory are not ours.
        process.run([strip, "--strip-debug", "--remove-section=.BTF*", built])
        built.rename(scratch / built.name)
    cache.remove(work)
