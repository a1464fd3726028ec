# SPDX-License-Identifier: GPL-2.0-or-later
"""Our own modules for measurements inside the kernel, built for each kernel.

Some paths cannot be entered from user space without a device.  The module that drives
them is no part of the trees that are compared, so it is compiled out of tree, against
the build directory of the kernel that is to load it.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from ..base import FailedCheck, KstallError, cache, process, space
from ..base import sources as own_sources
from ..tree import AppliedTree
from . import kernel
from .kernel import Configured, Kernel, Toolchain

_BYTES = 10**8


def key_of(built: Kernel, modules: Sequence[Path]) -> str:
    """Changes with the kernel, the sources and the headers beside them."""
    headers = {path for module in modules for path in module.parent.glob("*.h")}
    return cache.digest(
        own_sources.digest("kstall.build"),
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
    called only if there is something to compile.  Raises `FailedCheck` with the
    compiler's messages.
    """
    target = cache_dir / "extra" / key_of(built, sources)
    if not cache.is_complete(target):
        with cache.keep(target) as scratch:
            tree = checkout()
            command = kernel.prepare_make(cache_dir, tree, slot, config, tools)
            _compile(sources, tree, command, tools, scratch, log)
        cache.prune(cache_dir / "extra", keep=200)
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
    for folder in {source.parent for source in sources}:
        for header in folder.glob("*.h"):
            shutil.copy2(header, work)
    for source in sources:
        shutil.copy2(source, work)
    objects = " ".join(f"{source.stem}.o" for source in sources)
    (work / "Kbuild").write_text(f"obj-m := {objects}\n", encoding="utf-8")
    env = {**dict(tools.env), "LC_ALL": "C"}
    try:
        with space.guarded(scratch, _BYTES, "a module for measurements"):
            # The directory may hold another series' build, or none yet.
            process.run([*command, "modules_prepare"], cwd=tree.path, env=env, log=log)
            process.run(
                # Symbols of other modules are resolved when ours is loaded.
                [*command, f"M={work}", "KBUILD_MODPOST_WARN=1", "modules"],
                cwd=tree.path,
                env=env,
                log=log,
            )
    except process.CommandError as error:
        error_type = FailedCheck if kernel.refused(error) else KstallError
        raise error_type(
            f"a module for measurements does not compile:\n{error.what}", log=log
        ) from error
    for source in sources:
        built = work / f"{source.stem}.ko"
        # The build directory may hold another kernel, with other types.
        process.run([strip, "--strip-debug", "--remove-section=.BTF*", built])
        built.rename(scratch / built.name)
    cache.remove(work)
