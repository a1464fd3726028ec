# SPDX-License-Identifier: GPL-2.0-or-later
"""What the kernels and the objects of a run are built from, here or on a worker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..base import arch
from ..debian import Root, root
from ..series import Project, projects
from ..tree import Base
from . import kernel
from .kernel import Toolchain


@dataclass(frozen=True)
class Ground:
    """What all kernels of a run are built from.

    ``root`` is the guests'.  If that is of another architecture, ``lending`` is a root
    from which this machine borrows programs.
    """

    project: Project
    base: Base
    root: Root
    tools: Toolchain
    cache: Path
    lending: Root | None = None

    @property
    def lender(self) -> Root:
        """The root from which this machine borrows programs."""
        return self.lending or self.root

    def packed(self) -> tuple[dict[str, Any], tuple[str, ...]]:
        """Itself as a part of the ``spec`` of a `Unit`, which `unpacked` reads, and the
        cache entries that this needs."""
        copied = projects.keep(self.project, self.cache)
        guests, lending = self.root.key, self.lender.key
        spec = {
            "project": copied,
            "base": self.base.as_json(),
            "arch": self.root.arch.name,
            "root": guests,
            "lending": lending,
        }
        roots = (f"roots/{guests}", f"roots/{lending}")
        return spec, (copied, f"trees/{self.base.id}", *roots)

    @classmethod
    def unpacked(cls, spec: Mapping[str, Any], cache_dir: Path) -> Ground:
        """The same for another process, whose cache has these entries."""
        user_space = root.find(spec["root"], cache_dir, arch.named(spec["arch"]))
        lending = root.find(spec["lending"], cache_dir, arch.host())
        return cls(
            projects.find(spec["project"], cache_dir),
            Base.of_json(spec["base"], cache_dir),
            user_space,
            kernel.toolchain(lending.pahole, cache_dir, user_space),
            cache_dir,
            lending,
        )
