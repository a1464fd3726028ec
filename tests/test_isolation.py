# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests see neither who started them nor what else the machine does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from processes import descendants

SAYS = """
import processes, signal, subprocess, sys
processes.expect_signals()
print(signal.getsignal(signal.SIGINT).__name__)
child = subprocess.Popen(["sleep", "1000"])
child.send_signal(signal.SIGINT)
print(child.wait())
"""


def test_an_interrupt_is_heard_where_a_shell_in_the_background_started_us() -> None:
    words = [sys.executable, "-c", SAYS]
    done = subprocess.run(
        ["sh", "-c", 'trap "" INT TERM; exec "$@"', "sh", *words],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
    )
    assert done.stdout.split() == ["default_int_handler", str(-signal.SIGINT)]


def test_nothing_of_the_user_is_seen() -> None:
    home = Path(os.environ["HOME"])
    assert home.name.startswith("kstall-tests-home-")
    assert not [name for name in os.environ if name.startswith(("KSTALL_", "XDG_"))]
    assert not {"MAKEFLAGS", "GIT_DIR", "CCACHE_DIR"} & set(os.environ)


def test_an_orphan_is_still_ours_and_of_others_none_is() -> None:
    script = "setsid sleep 1000 >/dev/null 2>&1 & echo $!"
    orphan = int(subprocess.check_output(["sh", "-c", script]))
    try:
        assert orphan in descendants()
    finally:
        os.kill(orphan, signal.SIGKILL)
    assert not {1, os.getpid(), os.getppid()} & descendants()
