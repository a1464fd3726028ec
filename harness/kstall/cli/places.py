# SPDX-License-Identifier: GPL-2.0-or-later
"""Directories of commands, checked before anything is made in them."""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

from ..base import KstallError, cache
from ..tree import source

CANNOT_RUN = 2
OUT = Path("out")


def project_root() -> Path:
    """The checkout this package was installed from, else the current directory."""
    root = Path(__file__).resolve().parents[3]
    return root if (root / "patches").is_dir() else Path.cwd()


def cache_directory() -> Path:
    """The cache directory, made and checked to be writable before any stage."""
    directory = cache.default_dir()
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if os.statvfs(directory).f_flag & os.ST_NOEXEC:
            reason = "it is mounted noexec, and built programs have to run there"
        elif os.access(directory, os.W_OK | os.X_OK):
            return directory
        else:
            reason = "it is not writable"
    except OSError as error:
        reason = error.strerror or str(error)
    raise KstallError(
        f"{directory} cannot hold the cache: {reason}",
        next="set KSTALL_CACHE to another directory",
    )


def out_directory(arguments: argparse.Namespace, *kernels: Path | None) -> Path:
    """The directory for results, which is part of none of ``kernels``."""
    out: Path = arguments.out.absolute()
    for kernel in kernels:
        source.require_apart(kernel, out)
    return out


def require_temporary() -> None:
    """Raise `KstallError` if nothing runs where temporary files are, before a command
    that boots guests: the program that reads the host's counter for their clocks is
    made there, and without it they measure it, which fails on a busy host."""
    place = tempfile.gettempdir()
    if os.statvfs(place).f_flag & os.ST_NOEXEC:
        raise KstallError(
            f"{place} is mounted noexec, and programs for guests have to run there",
            next="name another directory, say TMPDIR=/var/tmp",
        )
