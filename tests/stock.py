# SPDX-License-Identifier: GPL-2.0-or-later
"""Kernels as Debian has their sources, configured for what operators' tests need."""

from __future__ import annotations

from pathlib import Path

from kstall.base import cache
from kstall.build import Kernel, kernel
from kstall.debian import Root, root
from kstall.tree import Plan, source, tree

_FRAGMENTS = ("base", "sched-throttle", "io_uring-sq", "pci-aer", "iommu-iotlb")


def guest_root(project: Path, log: Path, *more: str) -> Root:
    """The root that guests boot from, with ``more`` packages."""
    wanted = (*root.packages(project / "scripts/guest-packages.txt"), *more)
    return root.obtain(wanted, cache.default_dir(), print, log=log)


def obtain(project: Path, version: str, out: Path) -> Kernel:
    """Linux ``version`` without a patch; it is built if the cache has it not.

    What that version has no symbol for is left out: its events then are not there, and
    the test that wants them fails.
    """
    out.mkdir(parents=True, exist_ok=True)
    home = cache.default_dir()
    tools = kernel.toolchain(guest_root(project, out / "root.log").pahole, home)
    base = source.obtain(Path(f"debian:{version}"), home, print)
    nothing = Plan(base, (), ((),), ())
    fragments = [project / f"kconfigs/{name}.config" for name in _FRAGMENTS]
    with tree.workspace(base, print) as put:
        config = kernel.configured(
            nothing,
            lambda: put(nothing),
            fragments,
            tools,
            home,
            log=out / "config.log",
            lenient=True,
        )
        return kernel.built(
            nothing,
            lambda: put(nothing),
            "stock",
            config,
            tools,
            home,
            log=out / "build.log",
            progress=lambda _: None,
        )
