# SPDX-License-Identifier: GPL-2.0-or-later
"""Verbs of ``kstall`` that are for operators: arguments in, exit status out."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from kstall.base import KstallError

from . import VERBS, collective, missing, store, wording
from . import explain as explaining
from . import seal as sealing
from .errors import NotARecording, OpsError, Refused, shown
from .window import Window, moment

CANNOT = 2
#: How many dumps are named in one line if none can be imported.
_NAMED = 4
#: How many that cannot be imported have a line of their own if others can.
_LISTED = 20
#: Units of `--last` in seconds, and how many of one are too many.
_UNITS, _SPANS = {"s": 1, "m": 60, "h": 3600, "d": 86400}, 1_000_000
_TABLES = "SHOW TABLES and DESCRIBE stall list what can be queried"


def main(argv: Sequence[str] | None = None) -> int:
    """Run a verb: 0 done, 2 failed, 3 done only in part (``seal``, ``fleet pull``)."""
    arguments = _parser().parse_args(argv)
    try:
        status = int(arguments.verb(arguments))
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        # The reader has closed the pipe, into which Python would flush at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KstallError as error:
        print(f"kstall: {error}", file=sys.stderr)
    except OSError as error:
        where = f"{shown(error.filename)}: " if error.filename else ""
        print(f"kstall: {where}{error.strerror or error}", file=sys.stderr)
    except KeyboardInterrupt:
        # Recordings may be sealed and dumps not yet, or directories of --keep be there.
        print("kstall: interrupted; the command was not finished", file=sys.stderr)
    return CANNOT


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="kstall",
        description="Say which rank was late, and what it waited for.",
        epilog="Verbs that prove patches need more: in a checkout, "
        "pip install '.[harness]'.  On nodes it is kstall-node that records.",
    )
    version = f"kstall {metadata.version('kstall')}"
    parser.add_argument("--version", action="version", version=version)
    verbs = parser.add_subparsers(required=True, metavar="VERB")

    seal = verbs.add_parser(
        "seal",
        help=VERBS["seal"],
        description="Decode recordings of nodes into a store, beside what it has; "
        "sealing the same again changes nothing.",
        epilog="Damaged recordings are left out.  Exit status: 0 all, 3 some, 2 none",
    )
    seal.add_argument(
        "dirs", nargs="*", type=Path, metavar="DIR", help="a recording, or many below"
    )
    _store(seal, "-o", dest="store", required=True)
    seal.add_argument(
        "--flight-recorder",
        dest="dumps",
        nargs="+",
        action="extend",
        default=[],
        type=Path,
        metavar="DUMP",
        help="a dump of PyTorch's Flight Recorder, whose name ends in the rank, as "
        "nccl_trace_rank_0, or a directory of dumps: they replace a job's marks",
    )
    seal.add_argument(
        "--job",
        metavar="J",
        help="the job of these dumps, if several ran at that time",
    )
    seal.set_defaults(verb=_seal)

    query = verbs.add_parser(
        "query",
        help=VERBS["query"],
        description="Run read-only SQL (DuckDB's) on a store.",
        epilog=f"{_TABLES}; times are ns, NULL and - are unknown",
    )
    _store(query)
    query.add_argument("sql", nargs="?", metavar="SQL", help="in quotes")
    query.add_argument(
        "--named",
        choices=sorted(store.NAMED),
        help="a ready-made query instead of SQL",
    )
    query.add_argument("--json", action="store_true", help="an object a row")
    query.set_defaults(verb=_query)

    explain = verbs.add_parser(
        "explain",
        help=VERBS["explain"],
        description="Name the rank that was late, the cause, and how sure that is.",
    )
    _store(explain)
    explain.add_argument("--job", metavar="J", help="only this job")
    for name, text in (
        ("--from", "from this time on"),
        ("--until", "before this time"),
    ):
        explain.add_argument(
            name,
            dest=name[2:] + "_",
            type=_moment,
            metavar="T",
            help=f"only what was {text}, UTC, as '2026-11-27 03:00'",
        )
    explain.add_argument("--json", action="store_true", help="for programs")
    explain.add_argument("--html", type=Path, metavar="FILE", help="also write a page")
    explain.set_defaults(verb=_explain)

    line = verbs.add_parser(
        "timeline",
        help=VERBS["timeline"],
        description="Write a store as a trace; https://ui.perfetto.dev opens it.",
    )
    _store(line)
    line.add_argument(
        "-o",
        dest="output",
        type=Path,
        required=True,
        metavar="FILE",
        help="the trace, as t.pftrace",
    )
    line.add_argument("--job", metavar="J", help="only this job")
    line.set_defaults(verb=_timeline)

    fleet = verbs.add_parser("fleet", help=VERBS["fleet"])
    pull = fleet.add_subparsers(required=True, metavar="VERB").add_parser(
        "pull",
        help=VERBS["fleet"],
        description="Fetch recordings from agents on nodes into a store.",
        epilog="exit status: 0 all, 3 some, 2 none",
    )
    pull.add_argument(
        "-w",
        dest="nodes",
        required=True,
        metavar="NODES",
        help="as root@n[1-3],m, or @group of ClusterShell",
    )
    _store(pull, "-o", dest="store", required=True)
    pull.add_argument(
        "--last",
        type=_span,
        metavar="TIME",
        help="fetch only what was recorded in the last TIME, as 90s, 30m, 2h or 1d",
    )
    pull.add_argument(
        "--timeout",
        type=_seconds,
        default=30,
        metavar="S",
        help="give up on a node that is silent for S seconds (%(default)s)",
    )
    pull.add_argument(
        "--limit",
        type=_seconds,
        default=900,
        metavar="S",
        help="give up on a node that is not done after S seconds (%(default)s)",
    )
    pull.add_argument(
        "--via",
        default="ssh -oBatchMode=yes {node} kstall-node agent --stdio",
        metavar="COMMAND",
        help="how to reach an agent (%(default)s)",
    )
    pull.add_argument(
        "--keep",
        type=Path,
        metavar="DIR",
        help="keep the recordings here as well, those of --last in DIR/last",
    )
    pull.set_defaults(verb=_pull)

    mcp = verbs.add_parser(
        "mcp",
        help=VERBS["mcp"],
        description="Answer a model's questions about a store, read-only, on stdio.",
    )
    _store(mcp)
    mcp.set_defaults(verb=_mcp)
    return parser


def _store(parser: argparse.ArgumentParser, *names: str, **more: Any) -> None:
    text = "the file that kstall seal or fleet pull makes"
    parser.add_argument(
        *(names or ["store"]), type=Path, metavar="STORE", help=text, **more
    )


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds above 0")
    return seconds


def _moment(text: str) -> int:
    try:
        return moment(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no time, such as '2026-11-27 03:00' or '2026-11-27 03:00:20'"
        ) from None


def _span(text: str) -> float:
    """Seconds of a time with its unit."""
    number, unit = text[:-1], text[-1:]
    if not (unit in _UNITS and number.isdecimal() and 0 < int(number) < _SPANS):
        raise argparse.ArgumentTypeError(
            f"{text!r} is no length of time, such as 90s, 30m, 2h or 1d"
        )
    return float(int(number) * _UNITS[unit])


def _seal(arguments: argparse.Namespace) -> int:
    if not (arguments.dirs or arguments.dumps):
        raise OpsError("seal: give a DIR, or --flight-recorder DUMP, or both")
    statuses = [_seal_dirs(arguments)] if arguments.dirs else []
    if arguments.dumps:
        statuses.append(_import(arguments, alone=not arguments.dirs))
    return max(statuses)


def _seal_dirs(arguments: argparse.Namespace) -> int:
    try:
        done = sealing.seal(arguments.dirs, arguments.store)
    except NotARecording as error:
        # The other recordings that were given are not sealed either: say so.
        raise OpsError(
            f"{error}; nothing was sealed: leave it out, or copy it again if that "
            "damaged it"
        ) from None
    for bad in done.left_out:
        print(f"  ! {shown(bad, 400)}; left out: {missing.NEXT}")
    for text in done.remarks:
        print(f"  ! {shown(text, 400)}")
    print(
        f"{arguments.store}: {len(done.added)} recordings sealed, {done.records} "
        f"records; {len(done.same)} were there already"
        + (f"; {len(done.left_out)} left out" if done.left_out else "")
    )
    return sealing.SOME if done.left_out else sealing.ALL


def _import(arguments: argparse.Namespace, *, alone: bool) -> int:
    done = collective.add(arguments.dumps, arguments.store, arguments.job)
    if alone and not (done.added or done.same):
        listed = "; ".join(shown(text, 400) for text in done.left_out[:_NAMED])
        more = len(done.left_out) - _NAMED
        listed += f"; and {more} more" if more > 0 else ""
        raise OpsError(f"{listed}; nothing was imported, the store is as it was")
    for text in done.left_out[:_LISTED]:
        print(f"  ! {shown(text, 400)}; left out")
    if len(done.left_out) > _LISTED:
        print(f"  ! … {len(done.left_out) - _LISTED} more; left out")
    for text in done.remarks:
        print(f"  ! {shown(text, 400)}")
    print(
        f"{arguments.store}: {len(done.added)} dumps imported, {done.collectives} "
        f"collectives; {len(done.same)} were there already"
        + (f"; {len(done.left_out)} left out" if done.left_out else "")
    )
    return sealing.SOME if done.left_out else sealing.ALL


def _query(arguments: argparse.Namespace) -> int:
    if (not arguments.sql) == (arguments.named is None):
        raise OpsError(
            "query: give either SQL or --named; known are "
            f"{', '.join(sorted(store.NAMED))}"
        )
    sql = arguments.sql or store.NAMED[arguments.named]
    try:
        names, rows, _ = explaining.query(arguments.store, sql)
    except Refused as error:
        raise OpsError(f"{error}; {_TABLES}") from None
    if arguments.json:
        for row in rows:
            print(json.dumps(dict(zip(names, row, strict=True)), default=str))
    else:
        print(store.table(names, rows))
    return 0


def _explain(arguments: argparse.Namespace) -> int:
    asked = Window(arguments.from_, arguments.until_)
    report = explaining.report(arguments.store, arguments.job, asked)
    if arguments.html:
        from . import page  # noqa: PLC0415

        page.write(arguments.store, report, arguments.html)
    if arguments.json:
        print(json.dumps(explaining.as_json(report), indent=2, default=str))
    else:
        print(wording.as_text(report))
    return 0


def _timeline(arguments: argparse.Namespace) -> int:
    from . import timeline  # noqa: PLC0415

    count = timeline.write(arguments.store, arguments.output, arguments.job)
    print(f"{arguments.output}: {count} packets; open it at https://ui.perfetto.dev")
    return 0


def _pull(arguments: argparse.Namespace) -> int:
    from . import fleet  # noqa: PLC0415

    done = fleet.pull(
        fleet.expand(arguments.nodes),
        arguments.via,
        arguments.store,
        timeout=arguments.timeout,
        limit=arguments.limit,
        keep=arguments.keep,
        last=arguments.last,
    )
    for node in done.nodes:
        print(f"  {shown(node.node)}: {shown(node.outcome)}")
    print(f"{arguments.store}: {done.summary}")
    return done.status


def _mcp(arguments: argparse.Namespace) -> int:
    from . import mcp  # noqa: PLC0415

    return mcp.serve(arguments.store)
