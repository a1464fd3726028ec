# SPDX-License-Identifier: GPL-2.0-or-later
"""What keeps mmdebstrap from working for somebody who is not root, and what is said."""

from __future__ import annotations

import os
import pwd
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from kstall.base import KstallError, space
from kstall.debian import bootstrap

USER = pwd.getpwuid(os.getuid()).pw_name
NOBODY = 65534


@pytest.mark.parametrize(
    ("message", "next"),
    [
        ("E: cannot find newuidmap\n", "sudo apt-get install uidmap"),
        ("E: cannot find newgidmap\n", "sudo apt-get install uidmap"),
        (
            "W: /etc/subuid doesn't exist\nE: failed to parse /etc/subuid and …\n",
            f"sudo usermod {USER} --add-subuids 100000-165535 "
            "--add-subgids 100000-165535",
        ),
        ("newuidmap: write to uid_map failed: Operation not permitted\n", "setuid"),
        ("E: unshare syscall failed: Operation not permitted\n", "user namespaces"),
        ("dpkg: error: /x: No space left on device\n", "TMPDIR"),
        ("E: /root/tmp is not accessible by the user mmdebstrap\n", "chmod o+x"),
        (
            "Err:1 http://m trixie InRelease\n  Could not connect to m\n",
            "that apt reaches its mirror",
        ),
        ("E: something else\n", "see its output in the log"),
    ],
)
def test_advice_fits_the_reason(tmp_path: Path, message: str, next: str) -> None:
    assert next in bootstrap.advice(f"I: …\n{message}", proc=tmp_path, etc=tmp_path)


def test_a_range_is_one_that_nobody_has(tmp_path: Path) -> None:
    (tmp_path / "subuid").write_text("ann:100000:65536\nbob:300000:1000\n")
    (tmp_path / "subgid").write_text(f"ann:100000:65536\n{USER}:165536:65536\n")
    advice = bootstrap.advice("W: no entry in /etc/subuid for x", etc=tmp_path)
    assert advice == f"sudo usermod {USER} --add-subuids 301000-366535"


@pytest.mark.parametrize(
    ("switch", "value", "allows"),
    [
        ("kernel/unprivileged_userns_clone", "0", "unprivileged_userns_clone=1"),
        ("user/max_user_namespaces", "0", "max_user_namespaces="),
        (
            "kernel/apparmor_restrict_unprivileged_userns",
            "1",
            "apparmor_restrict_unprivileged_userns=0",
        ),
    ],
)
def test_what_forbids_user_namespaces_is_named(
    tmp_path: Path, switch: str, value: str, allows: str
) -> None:
    for name in ("kernel/unprivileged_userns_clone", "user/max_user_namespaces"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("1\n")
    (tmp_path / switch).write_text(f"{value}\n")
    advice = bootstrap.advice("E: unshare syscall failed: EPERM", proc=tmp_path)
    assert advice.startswith("sudo sysctl -w ") and allows in advice


def test_a_small_disk_for_temporary_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bootstrap.require(tmp_path)
    monkeypatch.setattr(space, "available", lambda _: 64 * 10**6)
    with pytest.raises(KstallError, match=r"has 64\.0 MB free, and .* 1\.1 GB") as e:
        bootstrap.require(tmp_path)
    assert f"{tmp_path} has" in str(e.value) and "TMPDIR=/var/tmp" in str(e.value)


def test_a_disk_for_temporary_files_that_runs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Noexec:
        f_flag = os.ST_NOEXEC | os.ST_NODEV

    monkeypatch.setattr(os, "statvfs", lambda _: Noexec)
    with pytest.raises(KstallError, match="is mounted noexec") as caught:
        bootstrap.require(tmp_path)
    assert "TMPDIR=/var/tmp" in str(caught.value)


AS_NOBODY = """
import sys
from pathlib import Path
from kstall.base import errors
from kstall.debian import root
try:
    root.obtain(["kmod"], Path(sys.argv[1]), print, log=Path(sys.argv[1]) / "log")
except errors.KstallError as error:
    print(errors.explain(error))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_somebody_without_a_range_is_told_so(project_root: Path) -> None:
    """With the mmdebstrap that is installed, which says why and is quoted."""
    if shutil.which("newuidmap") is None:
        pytest.skip("no uidmap is installed")
    # Those of pytest are not for others to enter.
    place = Path(tempfile.mkdtemp(prefix="kstall-nobody-"))
    try:
        os.chown(place, NOBODY, NOBODY)
        # Byte code other tests write meanwhile.
        ignored = shutil.ignore_patterns("__pycache__")
        harness = project_root / "harness/kstall"
        shutil.copytree(harness, place / "kstall", ignore=ignored)
        done = subprocess.run(
            [
                *("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}"),
                *("--clear-groups", sys.executable, "-c", AS_NOBODY, place),
            ],
            cwd=place,
            env={"PATH": os.environ["PATH"], "HOME": str(place)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
    finally:
        shutil.rmtree(place)
    output = done.stdout + done.stderr
    if "No module named" in output or "Permission denied" in output.splitlines()[0]:
        pytest.skip("this Python is not for others to use")
    assert "mmdebstrap made no trixie root" in output
    # Its own reason, and what to do about that; a machine without users has no range.
    assert re.search(r"no entry in /etc/subuid for nobody|/etc/subuid is empty", output)
    assert "next: sudo usermod nobody --add-subuids " in output
