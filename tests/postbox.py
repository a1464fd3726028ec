# SPDX-License-Identifier: GPL-2.0-or-later
"""A contributor, a mail server of our own, and what sends to it and applies what came.

Nothing here reaches a network: git is told of this server only, and b4 is offline.
"""

from __future__ import annotations

import email
import email.policy
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from email.message import EmailMessage
from pathlib import Path

import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import SMTP, Envelope, Session

import ports
from kstall.mail import contributor, export
from kstall.tree import Base, File

NAME = "Ünïcode-O'Toole, Åse"
ADDRESS = "ase@example.org"
#: Seconds for anything that a busy machine may be slow at.
_PATIENCE = 300


class Postbox:
    """What aiosmtpd calls for each mail that came; ``mails`` are their bytes."""

    def __init__(self) -> None:
        self.mails: list[bytes] = []
        self.receivers: list[list[str]] = []

    async def handle_DATA(
        self, server: SMTP, session: Session, envelope: Envelope
    ) -> str:
        """Keep a mail as it came, with CRLF at line ends."""
        assert isinstance(envelope.original_content, bytes)
        self.mails.append(envelope.original_content)
        self.receivers.append(list(envelope.rcpt_tos))
        return "250 OK"

    def parsed(self) -> list[EmailMessage]:
        """The mails, read by Python's own parser."""
        return [
            email.message_from_bytes(mail, EmailMessage, policy=email.policy.default)
            for mail in self.mails
        ]

    def mbox(self, path: Path) -> Path:
        """All of them as an archive would give them out (mboxrd)."""
        with path.open("wb") as file:
            for mail in self.mails:
                file.write(b"From mboxrd@z Thu Jan  1 00:00:00 1970\n")
                for line in mail.replace(b"\r\n", b"\n").split(b"\n"):
                    quote = b">" if line.lstrip(b">").startswith(b"From ") else b""
                    file.write(quote + line + b"\n")
                file.write(b"\n")
        return path


@contextmanager
def server() -> Iterator[tuple[Postbox, int]]:
    """A running server on a free port of this machine."""
    box = Postbox()
    # It connects to itself once it has started, so that it has to be told a port.
    with ports.held() as port:
        controller = Controller(
            box, hostname="127.0.0.1", port=port, ready_timeout=_PATIENCE
        )
        controller.start()
        try:
            yield box, port
        finally:
            controller.stop()


def environment(home: Path) -> dict[str, str]:
    """Ours, with a home and a git configuration of the test."""
    home.mkdir(parents=True, exist_ok=True)
    config = home / "gitconfig"
    if not config.exists():
        config.write_text(
            f'[user]\nname = "{NAME}"\nemail = {ADDRESS}\n[init]\n'
            "defaultBranch = main\n[commit]\ngpgSign = false\n"
        )
    kept = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    tools = str(Path(sys.executable).parent)
    return {
        **kept,
        "PATH": f"{tools}:{kept['PATH']}",
        "HOME": str(home),
        "XDG_CONFIG_HOME": str(home / "config"),
        "XDG_CACHE_HOME": str(home / "cache"),
        "XDG_DATA_HOME": str(home / "data"),
        "GIT_CONFIG_GLOBAL": str(config),
        "GIT_CONFIG_NOSYSTEM": "1",
        "LC_ALL": "C.UTF-8",
        "EDITOR": "false",
    }


def run(argv: Sequence[str | Path], cwd: Path, home: Path) -> str:
    """Run a program to its end; what it said on both channels, or an assertion."""
    done = subprocess.run(
        [*map(str, argv)],
        cwd=cwd,
        env=environment(home),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_PATIENCE,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def b4(*words: str | Path, cwd: Path, home: Path) -> str:
    """Run b4 without network and without questions."""
    argv = ("b4", "--offline-mode", "--no-interactive", "--no-stdin", *words)
    return run(argv, cwd, home)


def send(command: Sequence[str], port: int, home: Path) -> str:
    """Run a `git send-email` that was printed, to the server on ``port``."""
    git, verb, *rest = command
    assert (git, verb) == ("git", "send-email")
    rest = [word for word in rest if not word.startswith("--confirm")]
    server = (
        *("--smtp-server=127.0.0.1", f"--smtp-server-port={port}"),
        *("--smtp-encryption=none", "--smtp-auth=none", "--confirm=never"),
    )
    return run((git, verb, *server, *rest), home, home)


def checkout(files: dict[str, File | None], path: Path, home: Path) -> Path:
    """A git work tree of just ``files``."""
    path.mkdir(parents=True)
    run(("git", "init", "-q"), path, home)
    for name, file in files.items():
        if file is not None:
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            (path / name).write_bytes(file.data)
            (path / name).chmod(0o755 if file.executable else 0o644)
    run(("git", "add", "--all", "--force", "."), path, home)
    run(("git", "commit", "-q", "--allow-empty", "-m", "base"), path, home)
    return path


def tracked(path: Path, home: Path) -> set[str]:
    """The files that git tracks there."""
    listing = run(("git", "ls-files", "-z"), path, home)
    return set(listing.split("\0")[:-1])


def sign_off(request: export.Export, name: str, base: Base) -> export.Exported:
    """Export what a contributor sends: look at what a sign-off means, and sign off."""
    (series,) = request.project.load([name])
    with pytest.raises(contributor.NotCertified) as shown:
        export.export(replace(request, sign_off=""), series, base)
    assert "Developer's Certificate of Origin 1.1" in str(shown.value)
    assert "Assisted-by: LLM" in str(shown.value)
    match = re.search(r"--sign-off=(\w+)", str(shown.value))
    assert match is not None
    return export.export(replace(request, sign_off=match[1]), series, base)
