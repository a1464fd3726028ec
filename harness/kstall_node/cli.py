# SPDX-License-Identifier: GPL-2.0-or-later
"""The command ``kstall-node``."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from . import VERSION, agent, doctor, record
from .catalogue import CLASSES, SOURCES
from .errors import NodeError, shown
from .host import Host

DIR = "/var/lib/kstall"


def parser() -> argparse.ArgumentParser:
    """All that can be asked."""
    top = argparse.ArgumentParser(
        prog="kstall-node", description="Record stalls on this node."
    )
    top.add_argument("--version", action="version", version=VERSION)
    top.add_argument("--root", default="/", help=argparse.SUPPRESS)
    verbs = top.add_subparsers(dest="verb", required=True, metavar="VERB")
    one = verbs.add_parser("record", help="record until Ctrl-C; needs root")
    one.add_argument("-o", dest="out", default=DIR, metavar="DIR", help=f"({DIR})")
    one.add_argument(
        "--class",
        dest="classes",
        nargs="+",
        action="extend",
        choices=CLASSES,
        metavar="C",
        help=f"of {', '.join(CLASSES)} (all)",
    )
    one.add_argument(
        "--provider",
        dest="providers",
        action="append",
        choices=[source.name for source in SOURCES],
        metavar="P",
        help="of its class only this one, though the kernel has a better one",
    )
    one.add_argument(
        "--min-ns",
        type=_natural,
        default=0,
        metavar="N",
        help="nothing shorter, where the kernel tells how long (0)",
    )
    one.add_argument(
        "--max-rate",
        type=_natural,
        default=20_000,
        metavar="N",
        help="records a second above which thresholds rise (%(default)s)",
    )
    one.add_argument(
        "--ring", action="store_true", help="old segments make room for new ones"
    )
    one.add_argument(
        "--max-mb", type=_natural, default=1024, metavar="N", help="with --ring (1024)"
    )
    one.add_argument(
        "--buffer-kb",
        type=_natural,
        default=2048,
        metavar="N",
        help="of the kernel's buffer of each CPU (%(default)s)",
    )
    one.add_argument("--seconds", type=float, metavar="N", help="end by itself")
    one = verbs.add_parser("doctor", help="what this node lacks")
    one.add_argument("--json", action="store_true")
    one = verbs.add_parser("agent", help="answer a collector")
    one.add_argument("--stdio", action="store_true", required=True)
    one.add_argument("dir", nargs="?", default=DIR, metavar="DIR")
    return top


def _natural(text: str) -> int:
    if not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is no number")
    return int(text)


def main(argv: Sequence[str] | None = None) -> int:
    """Do what was asked: 0, or 1 if that went wrong, or 2 if it made no sense."""
    asked = parser().parse_args(argv)
    host = Host(asked.root)
    try:
        if asked.verb == "doctor":
            return doctor.main(host, as_json=asked.json)
        if asked.verb == "agent":
            return agent.serve(
                host, Path(asked.dir), sys.stdin.buffer, sys.stdout.buffer
            )
        wanted = record.Asked(
            out=Path(asked.out),
            classes=list(dict.fromkeys(asked.classes or CLASSES)),
            min_ns=asked.min_ns,
            max_rate=asked.max_rate,
            ring=asked.ring,
            max_mb=asked.max_mb,
            buffer_kb=asked.buffer_kb,
            seconds=asked.seconds,
            providers=asked.providers or (),
        )
        return record.record(host, wanted)
    except BrokenPipeError:
        # Whoever read has seen enough; at its end Python would try once more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except NodeError as error:
        print(f"kstall-node: {shown(error)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def run() -> None:
    """What the zipapp starts."""
    sys.exit(main())
