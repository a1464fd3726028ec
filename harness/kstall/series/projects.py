# SPDX-License-Identifier: GPL-2.0-or-later
"""The checkout's parts as an entry of the cache, for processes elsewhere.

The entry is named by its content, so edited files are proven there as they are.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from ..base import cache, sources
from .series import Project

_PARTS = ("patches", "kconfigs", "scripts", "harness/kstall_guest")


def keep(project: Project, cache_dir: Path) -> str:
    """Copy ``project`` as it is now to the cache; returns the entry's name."""
    entry = f"projects/{_digest(project)}"
    target = cache_dir / entry
    with cache.lock(cache_dir / "locks" / "projects"):
        if not cache.is_complete(target):
            with cache.keep(target) as scratch:
                for path in _files(project):
                    to = scratch / path.relative_to(project.root)
                    to.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy2(path, to)
        cache.prune(cache_dir / "projects", keep=20)
    return entry


def find(entry: str, cache_dir: Path) -> Project:
    """The project of an entry that is in the cache."""
    return Project(cache_dir / entry)


def _digest(project: Project) -> str:
    return cache.digest(
        [
            (
                str(path.relative_to(project.root)),
                path.stat().st_mode & 0o111,
                cache.file_digest(path),
            )
            for path in _files(project)
        ]
    )


def _files(project: Project) -> list[Path]:
    return sorted(
        path
        for part in _PARTS
        for path in (project.root / part).rglob("*")
        if path.is_file() and not sources.is_byte_code(path)
    )
