# SPDX-License-Identifier: GPL-2.0-or-later
"""Whether guests run under KVM here, found out by running one.

That `/dev/kvm` opens proves little: there are hosts where it creates a VM and then no
guest gets through its firmware.  Whoever trusts the device waits for ever there.
"""

from __future__ import annotations

import grp
import json
import os
import platform
import pwd
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from ..base import Architecture, KstallError, arch, cache, process
from ..debian import Root
from .guest import Accel, Machine, boot

__all__ = ["Accel", "probe"]

# Before, a processor can go on with the breakpoint that the kernel puts where it
# rewrites code, when another processor has long finished with that: "Oops: int3".
_THREADS_SINCE = (8, 1)
# A guest under KVM has run `true` and powered off after two.
_PATIENCE = 20.0


def probe(
    cache_dir: Path,
    image: Path,
    root: Root,
    say: Callable[[str], None],
    *,
    environment: Mapping[str, str] = os.environ,
    device: Path = Path("/dev/kvm"),
) -> Accel:
    """KVM if a guest runs under it, else TCG; a guest is tried once per machine.

    ``$KSTALL_ACCEL`` overrides.  The answer is kept in ``accel.json`` for as long as
    host kernel, CPU and QEMU stay the same; delete the file to try again.
    """
    whose = root.arch
    if not whose.native:
        return _tcg(f"guests for {whose.name} are emulated on this machine", whose)
    if chosen := environment.get("KSTALL_ACCEL"):
        if chosen == "kvm":
            return Accel("kvm", "KSTALL_ACCEL says so")
        if chosen == "tcg":
            return _tcg("KSTALL_ACCEL says so", whose)
        raise KstallError(f"KSTALL_ACCEL={chosen}: neither kvm nor tcg")
    # Not remembered: a look is free, and permissions change.
    if not device.exists():
        return _tcg(f"there is no {device}", whose)
    if not os.access(device, os.R_OK | os.W_OK):
        return _tcg(f"{device} is not ours to open{_who_may(device)}", whose)
    answers = cache_dir / "accel.json"
    with cache.lock(cache_dir / "accel.lock"):
        key = machine_key(whose)
        known = _read(answers)
        if key not in known:
            say(f"trying a guest under KVM, for {_PATIENCE:g} s at most")
            known = {**known, key: _why_not(cache_dir, image, root)}
            cache.write_json(answers, known)
    if reason := known[key]:
        return _tcg(reason, whose)
    return Accel("kvm", "a guest has run under it")


def _who_may(device: Path) -> str:
    """What gives the user the right to open ``device``, where membership does."""
    status = device.stat()
    try:
        group = grp.getgrgid(status.st_gid).gr_name
        user = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return ""
    if status.st_gid == 0 or status.st_mode & 0o060 != 0o060:
        return ""
    return f" (`sudo usermod -aG {group} {user}`, and a new login, changes that)"


def machine_key(whose: Architecture = arch.X86_64) -> str:
    """Changes with whatever could change the answer."""
    return cache.digest(platform.release(), _cpu(), version_of(whose))


def version_of(whose: Architecture) -> str:
    """What QEMU for guests of ``whose`` says its version is."""
    return process.run([whose.qemu, "--version"]).stdout.splitlines()[0]


def _tcg(why: str, whose: Architecture) -> Accel:
    """Emulation: each processor in a thread of its own where QEMU is up to that."""
    version = re.search(r"version (\d+)\.(\d+)", version_of(whose))
    if version and tuple(map(int, version.groups())) < _THREADS_SINCE:
        old = f"in one thread, as QEMU {version[1]}.{version[2]} needs it"
        return Accel("tcg", f"{why}; {old}", one_thread=True)
    return Accel("tcg", why)


def _cpu() -> str:
    cpuinfo = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    # Model and flags; the clock that is there as well changes all the time.
    kept = ("model name", "microcode", "flags")
    lines = [line for line in cpuinfo.splitlines() if line.startswith(kept)]
    return "\n".join(dict.fromkeys(lines))


def _read(answers: Path) -> dict[str, str]:
    try:
        known = json.loads(answers.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    if not isinstance(known, dict):
        return {}
    return {key: why for key, why in known.items() if isinstance(why, str)}


def _why_not(cache_dir: Path, image: Path, root: Root) -> str:
    """Run ``true`` under KVM; empty if it ran, else what happened instead."""
    out = cache_dir / "accel"
    run = boot(
        image,
        root,
        Accel("kvm", "on trial"),
        Machine(cpus=1, memory="512M"),
        (),
        ("true",),
        out=out,
        deadline=_PATIENCE,
        say=lambda _: None,
    )
    if run.status == "completed" and run.exit_status == 0:
        return ""
    words = {
        "completed": f"`true` exited {run.exit_status} in a guest under KVM",
        "panic": "a guest's kernel panics under KVM",
        "hang": f"a guest under KVM got nowhere in {_PATIENCE:g} s",
        "lost": "QEMU gives up under KVM",
    }
    return f"{words[run.status]}{_last_word(out / 'guest.log')}"


def _last_word(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    said = [line for line in lines if "error" in line.lower()]
    return f" ({said[-1].strip()})" if said else ""
