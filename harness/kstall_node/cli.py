# SPDX-License-Identifier: GPL-2.0-or-later
"""The command ``kstall-node``."""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from . import VERSION, agent, doctor, record
from .catalogue import CLASSES, SOURCES
from .errors import NodeError, shown
from .host import Host

DIR = "/var/lib/kstall"
MAX_MB = 1024


def parser() -> argparse.ArgumentParser:
    """All that can be asked."""
    top = argparse.ArgumentParser(
        prog="kstall-node", description="Record stalls on this node."
    )
    top.add_argument("--version", action="version", version=VERSION)
    top.add_argument("--root", default="/", help=argparse.SUPPRESS)
    verbs = top.add_subparsers(dest="verb", required=True, metavar="VERB")
    one = verbs.add_parser(
        "record",
        help="record until Ctrl-C; needs root",
        description="Record stalls, and the marks of jobs, until Ctrl-C.",
        epilog="In brackets: what is taken if it is not said.  Afterwards: "
        "kstall fleet pull, or copy DIR and kstall seal, where you analyse.",
    )
    one.add_argument(
        "-o", dest="out", default=DIR, metavar="DIR", help=f"recordings go here ({DIR})"
    )
    one.add_argument(
        "--class",
        dest="classes",
        nargs="+",
        action="extend",
        choices=CLASSES,
        metavar="C",
        help=f"record only these, of {', '.join(CLASSES)} (all)",
    )
    one.add_argument(
        "--provider",
        dest="providers",
        action="append",
        choices=[source.name for source in SOURCES],
        metavar="P",
        help="of its class only this source of records, though the kernel has a "
        "better one",
    )
    one.add_argument(
        "--marks-alone",
        action="store_true",
        help="if no class can be recorded, at least the marks of jobs: they tell which "
        "rank was late, and not why",
    )
    one.add_argument(
        "--min-ns",
        type=_natural,
        default=0,
        metavar="N",
        help="no stalls shorter than N ns, where the kernel tells how long (0)",
    )
    one.add_argument(
        "--max-rate",
        type=_positive,
        default=20_000,
        metavar="N",
        help="records a second; above that short stalls are left out (%(default)s)",
    )
    one.add_argument(
        "--ring",
        action="store_true",
        help="keep the newest N MB only; else it grows until the disk is full",
    )
    one.add_argument(
        "--max-mb",
        type=_positive,
        metavar="N",
        help=f"what --ring keeps ({MAX_MB})",
    )
    one.add_argument(
        "--buffer-kb",
        type=_positive,
        default=2048,
        metavar="N",
        help="KB of the kernel's buffer of each CPU (%(default)s)",
    )
    one.add_argument(
        "--seconds", type=_seconds, metavar="N", help="end by itself after so long"
    )
    one = verbs.add_parser(
        "doctor",
        help="what this node lacks",
        description="Say what this node lacks, and which providers it would take.",
        epilog="exit status: 0 if everything passes, else 3; `unknown` is no pass",
    )
    one.add_argument("--json", action="store_true", help="for programs")
    one = verbs.add_parser(
        "agent",
        help="answer a collector",
        description="Send recordings to kstall fleet pull, which starts this.",
    )
    one.add_argument(
        "--stdio", action="store_true", required=True, help="the only way there is"
    )
    one.add_argument(
        "dir", nargs="?", default=DIR, metavar="DIR", help=f"of recordings ({DIR})"
    )
    return top


def _natural(text: str) -> int:
    if not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is no number of 0 or more")
    return int(text)


def _positive(text: str) -> int:
    if not (text.isdigit() and int(text)):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of 1 or more")
    return int(text)


def _seconds(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    # Of what is no number nothing is ever later.
    if not 0 <= found < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds")
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Do what was asked: 0, or 1 if that went wrong, or 2 if it made no sense."""
    top = parser()
    asked = top.parse_args(argv)
    if asked.verb == "record" and asked.max_mb and not asked.ring:
        top.error("--max-mb is what --ring keeps: give both, or the disk fills up")
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
            max_mb=asked.max_mb or MAX_MB,
            buffer_kb=asked.buffer_kb,
            seconds=asked.seconds,
            providers=asked.providers or (),
            marks_alone=asked.marks_alone,
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
