# SPDX-License-Identifier: GPL-2.0-or-later
"""Whether guests run under KVM on this host, found out by running one.

That `/dev/kvm` opens proves little: there are hosts where it creates a VM and then no
guest gets through its firmware, so that waiting for it never ends.
"""

from __future__ import annotations

import grp
import os
import platform
import pwd
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from ..base import Architecture, KstallError, cache, process
from ..build import outputs
from ..debian import Root
from .console import STAMP
from .guest import Accel, Machine, boot

__all__ = ["Accel", "probe"]

# Before, a processor can still hit the breakpoint that the kernel sets while it
# rewrites code, when another processor has long finished that: "Oops: int3".
_THREADS_SINCE = (8, 1)
# Seconds; a guest under KVM has run `true` and powered off after two.
_PATIENCE = 20.0
# In QEMU's own words, which follow its command line.
_KVM_ERROR = re.compile(r"(?im)^(?!\$ ).*\bkvm")


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

    ``$KSTALL_ACCEL`` overrides; raises `KstallError` if that is neither.  The answer is
    cached in ``accel.json`` for as long as host kernel, CPU and QEMU stay the same;
    delete the file to try again.  It is not if the guest's kernel, which may be a
    patched one, can be to blame.
    """
    architecture = root.arch
    if not architecture.native:
        return _tcg(
            f"guests for {architecture.name} are emulated on this machine", architecture
        )
    if chosen := environment.get("KSTALL_ACCEL"):
        if chosen == "kvm":
            return Accel("kvm", "KSTALL_ACCEL is set")
        if chosen == "tcg":
            return _tcg("KSTALL_ACCEL is set", architecture)
        raise KstallError(
            f"KSTALL_ACCEL={chosen}: neither kvm nor tcg",
            next="set it to one of these, or unset it to have a guest tried under KVM",
        )
    # Not cached: checking is free, and permissions change.
    if not device.exists():
        return _tcg(f"there is no {device}", architecture)
    if not os.access(device, os.R_OK | os.W_OK):
        return _tcg(
            f"{device} cannot be opened{_permission_hint(device)}", architecture
        )
    answers = cache_dir / "accel.json"
    with cache.lock(cache_dir / "accel.lock"):
        key = machine_key(architecture)
        reasons = _read(answers)
        if key not in reasons:
            say(f"trying a guest under KVM, for {_PATIENCE:g} s at most")
            reason, certain = _trial(cache_dir, image, root)
            reasons = {**reasons, key: reason}
            if certain:
                cache.write_json(answers, reasons)
    if reason := reasons[key]:
        return _tcg(reason, architecture)
    return Accel("kvm", "a guest has run under it")


def _permission_hint(device: Path) -> str:
    """How the user can get access to ``device``, if membership in a group gives it."""
    status = device.stat()
    try:
        group = grp.getgrgid(status.st_gid).gr_name
        user = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return ""
    if status.st_gid == 0 or status.st_mode & 0o060 != 0o060:
        return ""
    return f" (`sudo usermod -aG {group} {user}`, and a new login, changes that)"


def machine_key(architecture: Architecture) -> str:
    """A digest of all that the answer depends on."""
    return cache.digest(platform.release(), _cpu(), version_of(architecture))


def version_of(architecture: Architecture) -> str:
    """The version that QEMU for guests of ``architecture`` prints."""
    return process.run([architecture.qemu, "--version"]).stdout.splitlines()[0]


def _tcg(reason: str, architecture: Architecture) -> Accel:
    """Emulation, with a thread for each processor where QEMU supports that."""
    version = re.search(r"version (\d+)\.(\d+)", version_of(architecture))
    if version and tuple(map(int, version.groups())) < _THREADS_SINCE:
        old = f"in one thread, which QEMU {version[1]}.{version[2]} requires"
        return Accel("tcg", f"{reason}; {old}", one_thread=True)
    return Accel("tcg", reason)


def _cpu() -> str:
    cpuinfo = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    # Model and flags; the clock rate, which is there as well, changes all the time.
    prefixes = ("model name", "microcode", "flags")
    lines = [line for line in cpuinfo.splitlines() if line.startswith(prefixes)]
    return "\n".join(dict.fromkeys(lines))


def _read(answers: Path) -> dict[str, str]:
    reasons = outputs.read(answers, dict) or {}
    return {key: reason for key, reason in reasons.items() if isinstance(reason, str)}


def _trial(cache_dir: Path, image: Path, root: Root) -> tuple[str, bool]:
    """Run ``true`` under KVM; empty if it ran, else what happened instead.

    The second value is whether that is due to the machine: QEMU says so, or the kernel
    printed nothing.
    """
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
        return "", True
    words = {
        "completed": f"`true` exited {run.exit_status} in a guest under KVM",
        "panic": "a guest's kernel panics under KVM",
        "hang": f"a guest under KVM did not finish in {_PATIENCE:g} s",
        "lost": "QEMU exits under KVM",
    }
    log = (out / "guest.log").read_text(encoding="utf-8", errors="replace")
    certain = {
        "lost": _KVM_ERROR.search(log) is not None,
        "hang": not _has_messages(run.console),
    }.get(run.status, False)
    return f"{words[run.status]}{_last_error(log)}", certain


def _has_messages(console: Path) -> bool:
    text = console.read_text(encoding="utf-8", errors="replace")
    return re.search(STAMP, text) is not None


def _last_error(log: str) -> str:
    errors = [line for line in log.splitlines() if "error" in line.lower()]
    return f" ({errors[-1].strip()})" if errors else ""
