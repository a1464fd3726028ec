# SPDX-License-Identifier: GPL-2.0-or-later
"""Kernels as Debian has built them: no patch, no configuration and no compiler of ours.

Nearly all of such a kernel is modules, those for the guest's root, too, so it boots by
way of an initramfs, which virtme-ng makes if it is told of what kind the root is.
"""

from __future__ import annotations

import functools
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from kstall.base import cache
from kstall.debian import Root, apt, root
from kstall.guest import guest

#: Upstream's version in one of Debian's; and what the image is called for that.
_ABI = "{}+deb13-amd64"
_PACKAGES = ("linux-image-", "linux-binary-", "linux-modules-", "linux-base-")


@dataclass(frozen=True)
class Stock:
    """A kernel of Debian's, unpacked."""

    release: str
    top: Path

    @property
    def image(self) -> Path:
        """What QEMU boots."""
        old = self.top / f"boot/vmlinuz-{self.release}"
        new = self.top / f"usr/lib/modules/{self.release}/vmlinuz"
        return old if old.exists() else new

    @property
    def modules(self) -> Path:
        """The directory that has ``lib/modules``."""
        return self.top


def guest_root(project: Path, log: Path, *more: str) -> Root:
    """The root that guests boot from, with ``more`` packages."""
    wanted = (*root.packages(project / "scripts/guest-packages.txt"), *more)
    return root.obtain(wanted, cache.default_dir(), print, log=log)


def obtain(version: str, top: Path) -> Stock:
    """The newest ``version`` that Debian has, unpacked in ``top``."""
    if shutil.which("busybox") is None:
        pytest.skip("no busybox for an initramfs; make setup LEVEL=deep installs it")
    store, now = cache.default_dir() / "sources", time.time()
    source = apt.newest(f"linux-source-{version}", store, print, now=now)
    release = _ABI.format(source.version.partition("-")[0])
    for name in _PACKAGES:
        # The image's package of newer versions is empty, and has these as its parts.
        if name == _PACKAGES[0] or not (top / "boot").exists() or version[0] != "6":
            deb = apt.newest(f"{name}{release}", store, print, now=now)
            subprocess.run(["dpkg-deb", "-x", deb.path, top], check=True)
    if not (top / "lib").exists():
        (top / "lib").symlink_to("usr/lib")
    subprocess.run(["depmod", "-b", top, release], check=True)
    return Stock(release, top)


def boot(kernel: Stock, *words: Any, **named: Any) -> guest.GuestRun:
    """As `guest.boot`, whose first parameter is the image."""
    argv = functools.partial(_argv, guest.vng_argv, kernel)
    with mock.patch.object(guest, "vng_argv", argv):
        return guest.boot(kernel.image, *words, **named)


def _argv(old: Any, kernel: Stock, *words: Any, **named: Any) -> tuple[str, ...]:
    argv = list(old(*words, **named))
    # By its own path, beside which virtme-ng looks for modules.
    argv[argv.index("--run") + 1] = str(kernel.image)
    argv.insert(argv.index("--root-disk"), "--root-fstype=erofs")
    return tuple(argv)
