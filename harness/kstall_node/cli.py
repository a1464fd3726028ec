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
    """The verbs and their options."""
    top = argparse.ArgumentParser(
        prog="kstall-node", description="Record stalls on this node."
    )
    top.add_argument("--version", action="version", version=VERSION)
    top.add_argument("--root", default="/", help=argparse.SUPPRESS)
    verbs = top.add_subparsers(dest="verb", required=True, metavar="VERB")
    command = verbs.add_parser(
        "record",
        help="record until Ctrl-C; needs root",
        description="Record stalls, and the marks of jobs, until Ctrl-C.",
        epilog="Defaults are in brackets.  Afterwards, where you analyse: "
        "kstall fleet pull, or copy DIR and kstall seal.  Exit status: 0 if it was "
        "ended by a signal or --seconds; 1 if it could not record, or could not go on, "
        "as on a full disk; 2 if the options are wrong.",
    )
    command.add_argument(
        "-o", dest="out", default=DIR, metavar="DIR", help=f"recordings go here ({DIR})"
    )
    command.add_argument(
        "--class",
        dest="classes",
        nargs="+",
        action="extend",
        choices=CLASSES,
        metavar="C",
        help=f"record only these, of {', '.join(CLASSES)} (all)",
    )
    command.add_argument(
        "--provider",
        dest="providers",
        action="append",
        choices=[source.name for source in SOURCES],
        metavar="P",
        help="use only this source of records for its class, even if the kernel has "
        "a better source",
    )
    command.add_argument(
        "--marks-alone",
        action="store_true",
        help="record the marks of jobs even if no class can be recorded: they show "
        "which rank was late, and not why",
    )
    command.add_argument(
        "--open-marker",
        action="store_true",
        help="let jobs of all users write marks; else only root's can",
    )
    command.add_argument(
        "--min-ns",
        type=_natural,
        default=0,
        metavar="N",
        help="leave out stalls shorter than N ns, if the event has a duration (0)",
    )
    command.add_argument(
        "--max-rate",
        type=_positive,
        default=20_000,
        metavar="N",
        help="records a second, without marks, above which the busiest event is cut "
        "(%(default)s)",
    )
    command.add_argument(
        "--ring",
        action="store_true",
        help="keep only the newest N MB, counting earlier recordings in DIR that were "
        "made with --ring; else a recording grows until the disk is full",
    )
    command.add_argument(
        "--max-mb",
        type=_positive,
        metavar="N",
        help=f"what --ring keeps ({MAX_MB})",
    )
    command.add_argument(
        "--buffer-kb",
        type=_positive,
        default=2048,
        metavar="N",
        help="KB of the kernel's buffer for each CPU (%(default)s)",
    )
    command.add_argument(
        "--seconds", type=_seconds, metavar="N", help="end after N seconds"
    )
    command = verbs.add_parser(
        "doctor",
        help="what this node lacks",
        description="List what this node lacks, and which providers it would use.",
        epilog="exit status: 0 if everything passes, else 3, also for `unknown`",
    )
    command.add_argument("--json", action="store_true", help="for programs")
    command = verbs.add_parser(
        "agent",
        help="answer a collector",
        description="Send recordings to kstall fleet pull, which starts this.",
    )
    command.add_argument(
        "--stdio", action="store_true", required=True, help="the only transport"
    )
    command.add_argument(
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
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    # NaN would never be reached: no time compares as later.
    if not 0 <= seconds < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds")
    return seconds


def main(argv: Sequence[str] | None = None) -> int:
    """Run a verb: 0, 1 if it failed, 2 if the options contradict each other."""
    top = parser()
    options = top.parse_args(argv)
    if options.verb == "record" and options.max_mb and not options.ring:
        top.error("--max-mb is what --ring keeps: give both, or the disk fills up")
    host = Host(options.root)
    try:
        if options.verb == "doctor":
            return doctor.main(host, as_json=options.json)
        if options.verb == "agent":
            return agent.serve(
                host, Path(options.dir), sys.stdin.buffer, sys.stdout.buffer
            )
        settings = record.Settings(
            out=Path(options.out),
            classes=list(dict.fromkeys(options.classes or CLASSES)),
            min_ns=options.min_ns,
            max_rate=options.max_rate,
            ring=options.ring,
            max_mb=options.max_mb or MAX_MB,
            buffer_kb=options.buffer_kb,
            seconds=options.seconds,
            providers=options.providers or (),
            marks_alone=options.marks_alone,
            open_marker=options.open_marker,
        )
        return record.record(host, settings)
    except BrokenPipeError:
        # The reader has closed the pipe, into which Python would flush at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except NodeError as error:
        print(f"kstall-node: {shown(error)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
