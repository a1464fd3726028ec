# SPDX-License-Identifier: GPL-2.0-or-later
"""What mmdebstrap needs of the machine, and what to do where it is missing.

Run by root it needs nothing.  For any other user it works in a user namespace with a
range of subordinate ids: /etc/subuid says whose they are, and a program that is setuid
root (uidmap) maps them.
"""

from __future__ import annotations

import os
import pwd
import re
from pathlib import Path

from ..base import KstallError, space

# Besides the finished archive: the root as a directory, and its packages.
_ROOM = 2**30
# With fewer ids there is none for nobody (65534).
_RANGE = 65536
_FIRST = 100000
#: What forbids user namespaces: file below /proc/sys, forbidding value, what allows.
_SWITCHES = (
    ("kernel/unprivileged_userns_clone", "0", "kernel.unprivileged_userns_clone=1"),
    ("user/max_user_namespaces", "0", "user.max_user_namespaces=10000"),
    (
        "kernel/apparmor_restrict_unprivileged_userns",
        "1",
        "kernel.apparmor_restrict_unprivileged_userns=0",
    ),
)


def mode() -> str:
    """The mode for mmdebstrap; left to choose, it does not say what is missing."""
    return "root" if os.geteuid() == 0 else "unshare"


def require(temporary: Path) -> None:
    """Raise `KstallError` unless a root can be made below ``temporary``."""
    elsewhere = "name another directory, say TMPDIR=/var/tmp"
    if os.statvfs(temporary).f_flag & os.ST_NOEXEC:
        raise KstallError(
            f"{temporary} is mounted noexec, and programs of the guest's root have to "
            "run there while it is made",
            next=elsewhere,
        )
    if (free := space.available(temporary)) < _ROOM:
        raise KstallError(
            f"{temporary} has {space.size(free)} free, and the guest's root needs "
            f"{space.size(_ROOM)} there while it is made",
            next=elsewhere,
        )


def advice(
    output: str, *, proc: Path = Path("/proc/sys"), etc: Path = Path("/etc")
) -> str:
    """What to do about a failure of mmdebstrap with that ``output``."""
    if re.search(r"cannot find new[ug]idmap", output):
        return "sudo apt-get install uidmap"
    if re.search(r"\bsub[ug]id\b", output):
        return _give_range(etc)
    if re.search(r"unshare syscall failed|unshare the user namespace", output):
        return _allow_namespaces(proc)
    if re.search(r"new[ug]idmap|[ug]id_map", output):
        return (
            "have newuidmap and newgidmap setuid root, as uidmap installs them, on a "
            "file system that is not mounted nosuid, and run this without "
            "no_new_privs; or run this as root"
        )
    if "No space left on device" in output or "Disk quota exceeded" in output:
        return "free some space where KSTALL_CACHE and TMPDIR are, or use other disks"
    if re.search(r"not accessible|[Pp]ermission denied", output):
        return "let others enter TMPDIR (chmod o+x), or name another, say /var/tmp"
    if re.search(
        r"apt-get update|Failed to fetch|Could not (connect|resolve)|\bErr:", output
    ):
        return "check that apt reaches its mirror (`apt-get update`)"
    return "see its output in the log"


def _give_range(etc: Path) -> str:
    """The command that gives the user an unused range of ids."""
    user = _user()
    words = [f"sudo usermod {user}"]
    for option, name in (("uid", "subuid"), ("gid", "subgid")):
        first = _FIRST
        try:
            lines = (etc / name).read_text(encoding="utf-8").splitlines()
        except OSError:
            lines = []
        entries = [line.split(":") for line in lines if line.count(":") == 2]
        if any(user == owner for owner, _, _ in entries):
            continue
        for _, begin, count in entries:
            if begin.isdigit() and count.isdigit():
                first = max(first, int(begin) + int(count))
        words.append(f"--add-sub{option}s {first}-{first + _RANGE - 1}")
    if len(words) == 1:
        return f"check the ranges of {user}: grep {user} /etc/subuid /etc/subgid"
    return " ".join(words)


def _user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def _allow_namespaces(proc: Path) -> str:
    for name, forbids, allows in _SWITCHES:
        try:
            value = (proc / name).read_text(encoding="ascii").strip()
        except OSError:
            continue
        if value == forbids:
            return (
                f"sudo sysctl -w {allows} (it is {value}, which forbids user "
                "namespaces), or run this as root"
            )
    return (
        "allow user namespaces: in a container, by its seccomp profile; or run this as "
        "root"
    )
