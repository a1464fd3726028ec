# SPDX-License-Identifier: GPL-2.0-or-later
"""A kernel tree of a few files, and what it takes to see whether one was touched."""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path

MAKEFILE = """\
# SPDX-License-Identifier: GPL-2.0
VERSION = 7
PATCHLEVEL = 3
SUBLEVEL = 4
EXTRAVERSION =
NAME = Fake

mrproper:
\trm -rf .config include/config include/generated
\tfind . -name '*.o' -delete
"""
LINES = "".join(f"line {n}\n" for n in range(1, 41))
FILES = {
    "Makefile": MAKEFILE,
    "Kbuild": "obj-y += drivers/\n",
    ".gitignore": "*.o\n.config\n/include/generated/\n",
    "drivers/sched.c": LINES,
    "drivers/sched_trace.h": LINES.replace("line", "header"),
    "include/linux/sched.h": "struct task_struct;\n",
    "net/xt_mark.c": "lower case\n",
    "net/xt_MARK.c": "upper case\n",
    "net/only/gone.c": "to be deleted\n",
    "scripts/run.sh": "#!/bin/sh\n",
}


def write(top: Path, **changed: str) -> Path:
    """A fake kernel at ``top``; ``changed`` replaces a file, / spelt as __."""
    top.mkdir(parents=True, exist_ok=True)
    files = {**FILES, **{k.replace("__", "/"): v for k, v in changed.items()}}
    for name, text in files.items():
        path = top / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (top / "scripts" / "run.sh").chmod(0o755)
    link = top / "Documentation" / "Changes"
    link.parent.mkdir(exist_ok=True)
    if not link.is_symlink():
        link.symlink_to("process/changes.rst")
    return top


def build_in_place(top: Path) -> None:
    """What `make` without O= leaves behind."""
    (top / ".config").write_text("CONFIG_USERS_OWN=y\n")
    for name in ("include/generated/autoconf.h", "drivers/sched.o", "vmlinux"):
        path = top / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("built\n")


def git(top: Path, *words: str) -> str:
    """Run git as a user would, but to its end.

    Since 2.47 commits leave a process that looks whether a repository needs tidying
    up, with a lock in it that goes when it does.
    """
    identity = {
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": "maintenance.auto",
        "GIT_CONFIG_VALUE_0": "false",
        "GIT_AUTHOR_NAME": "A User",
        "GIT_AUTHOR_EMAIL": "user@example.org",
        "GIT_COMMITTER_NAME": "A User",
        "GIT_COMMITTER_EMAIL": "user@example.org",
        "GIT_CONFIG_GLOBAL": "/dev/null",
    }
    return subprocess.run(
        ["git", *words],
        cwd=top,
        env={**os.environ, **identity},
        check=True,
        capture_output=True,
        text=True,
    ).stdout


def commit(top: Path, message: str = "kernel") -> str:
    """Make ``top`` a repository if it is none, and commit all that is there."""
    if not (top / ".git").exists():
        git(top, "init", "-q", "-b", "master")
    git(top, "add", "-A")
    git(top, "commit", "-q", "-m", message)
    return git(top, "rev-parse", "HEAD").strip()


def snapshot(top: Path) -> dict[str, tuple[object, ...]]:
    """Everything about everything below ``top``, but for the time it was last read."""
    entries: dict[str, tuple[object, ...]] = {}
    for folder, folders, files in os.walk(top):
        for name in [".", *folders, *files]:
            path = Path(folder) / name
            stat = path.lstat()
            content: object = None
            if path.is_symlink():
                content = path.readlink()
            elif path.is_file():
                content = hashlib.sha256(path.read_bytes()).hexdigest()
            entries[str(path.relative_to(top))] = (
                *(stat.st_mode, stat.st_ino, stat.st_uid, stat.st_gid, stat.st_size),
                *(stat.st_mtime_ns, stat.st_ctime_ns, stat.st_nlink, content),
            )
    return entries


def contents(top: Path) -> dict[str, tuple[object, ...]]:
    """What a build sees of the files below ``top``: content, links, exec bits."""
    entries: dict[str, tuple[object, ...]] = {}
    for path in sorted(top.rglob("*")):
        name = str(path.relative_to(top))
        if path.is_symlink():
            entries[name] = ("link", str(path.readlink()))
        elif path.is_dir():
            entries[name] = ("directory",)
        else:
            entries[name] = (path.read_bytes(), bool(path.stat().st_mode & 0o100))
    return entries
