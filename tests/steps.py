# SPDX-License-Identifier: GPL-2.0-or-later
"""Series made of steps: what files are after each patch."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kstall.series import Series, Spec, patchfile

MESSAGE = """\
demo: trace naps

A nap is not seen.

    a sample of a trace is as wide as the kernel printed it, and nobody wraps it here

From here on it is.

Assisted-by: LLM
"""
NOBODY = "kstall <noreply@kstall.invalid>"


@dataclass(frozen=True)
class Step:
    """A patch: files as it leaves them, its message, and who wrote it."""

    files: Mapping[str, str]
    message: str = MESSAGE
    author: str = NOBODY


def series(
    root: Path,
    base: Mapping[str, str],
    *steps: Step,
    cover: str = "A nap.\n",
    **spec: Any,
) -> Series:
    """A series of ``steps`` on the files of ``base``, as `git format-patch` writes it.

    ``spec`` are keys of its series.toml.
    """
    work = root / "work"
    place = root / "patches" / "demo"
    place.mkdir(parents=True, exist_ok=True)
    write(work, base)

    def git(*words: str) -> None:
        identity = ("-c", "user.name=t", "-c", "user.email=t@example.org")
        subprocess.run(["git", *identity, *words], cwd=work, check=True)

    git("init", "-q")
    git("add", ".")
    git("commit", "-q", "-m", "base")
    for step in steps:
        write(work, step.files)
        git("add", ".")
        git("commit", "-q", f"--author={step.author}", "-m", step.message)
    git("format-patch", "-q", "-o", str(place), f"-{len(steps)}")
    (place / "cover.txt").write_text(cover)
    patches = tuple(patchfile.parse(path) for path in sorted(place.glob("*.patch")))
    home = dict.fromkeys(("name", "prefix", "tree", "branch", "list"), "x")
    series_spec = Spec.model_validate(
        {
            "schema": 1,
            "title": "demo",
            "patches": [patch.path.name for patch in patches],
            "cover": "cover.txt",
            "kconfig": "demo.config",
            "subsystem": home,
            **spec,
        }
    )
    return Series("demo", place, series_spec, patches)


def write(root: Path, files: Mapping[str, str]) -> None:
    """Write ``files`` below ``root``; scripts can be executed."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755 if text.startswith("#!") else 0o644)
