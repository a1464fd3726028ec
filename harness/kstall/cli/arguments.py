# SPDX-License-Identifier: GPL-2.0-or-later
"""The arguments of each verb, and the function that carries it out."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import get_args

from kstall_ops import VERBS

from .. import __version__
from ..base import arch
from ..series import Level
from . import values
from .mails import do_check_thread, do_series
from .places import OUT, project_root
from .proofs import do_judge, do_mutate, do_rebase, do_stability, do_validate
from .views import (
    SCHEMAS,
    do_abi,
    do_compare,
    do_html,
    do_list,
    do_new,
    do_schema,
    do_show,
    misplaced,
)
from .workers import do_scheduler, do_worker

_STATUS = (
    "exit status: 0 proven; 1 a check failed, or a series no longer applies where it "
    "has to; 2 no verdict, because of bad input, an interruption or a failure of the "
    "test setup: the message says which; 3 nothing failed, but a series does not apply."
    "  Of several series or trees the worst counts, in the order 1, 2, 3, 0"
)


def parser() -> argparse.ArgumentParser:
    """The parser of all verbs; arguments have the function of theirs as ``verb``."""
    parser = argparse.ArgumentParser(
        prog="kstall",
        description="Prove tracepoint patch series on a real, booted kernel.",
        epilog="exit status: 0 done, 2 not done because of bad input, an interruption "
        "or a failure: the message says which; `VERB --help` lists those that a verb "
        "has besides",
    )
    parser.add_argument("--version", action="version", version=__version__)
    parser.add_argument(
        "--project",
        type=Path,
        default=project_root(),
        help="checkout with patches/, kconfigs/ and scripts/ (default: %(default)s)",
    )
    verbs = parser.add_subparsers(required=True, metavar="VERB")

    listing = verbs.add_parser("list", help="list all series, one line each")
    listing.set_defaults(verb=do_list)

    show = verbs.add_parser("show", help="show what a series declares")
    show.add_argument("series")
    show.set_defaults(verb=do_show)

    begin = verbs.add_parser(
        "new",
        help="start a series from an example that already validates",
        description="Write patches/NAME/, kconfigs/NAME.config, scripts/NAME.bt and "
        "scripts/workloads/NAME/: a small working series, to be replaced step by step.",
    )
    begin.add_argument("name", metavar="NAME", help="a-z, 0-9, - and _")
    begin.set_defaults(verb=do_new)

    _add_validate(parser, verbs)

    _add_worker(verbs)

    _add_stability(verbs)

    judge = verbs.add_parser(
        "judge",
        help="judge a finished run again, by today's checks; boots and writes nothing",
        epilog=_STATUS,
    )
    judge.add_argument("run", type=Path, help="a run directory, such as out/latest")
    judge.set_defaults(verb=do_judge)

    mutate = verbs.add_parser(
        "mutate",
        help="falsify the evidence of a finished run, value by value, and see which "
        "check notices; boots nothing",
        description="Test whether the checks of series notice wrong values of events: "
        "every value of a run's evidence is falsified in each way that a wrong patch "
        "could, and judged.",
        epilog="exit status: 0 every wrong value is noticed or argued in series.toml, "
        "1 some are not, 2 there is no such evidence, or it cannot show some of them",
    )
    mutate.add_argument("run", type=Path, help="a run directory, such as out/latest")
    mutate.add_argument("series", nargs="*", help="default: all of the run")
    mutate.add_argument(
        "--all",
        action="store_true",
        help="also print what is noticed, and by what, and why the rest is not",
    )
    mutate.set_defaults(verb=do_mutate)

    _add_compare(verbs)

    _add_rebase(parser, verbs)

    page = verbs.add_parser(
        "html",
        help="write report.html again from a run's report.json, or matrix.html from a "
        "matrix's matrix.json",
    )
    page.add_argument("run", type=Path, help="a run directory, such as out/latest")
    page.set_defaults(verb=do_html)

    _add_abi(verbs)

    _add_series(parser, verbs)

    _add_check_thread(verbs)

    schema = verbs.add_parser("schema", help="print a JSON Schema")
    schema.add_argument(
        "of",
        nargs="?",
        choices=tuple(SCHEMAS),
        default="report",
        help="of report.json, series.toml, mutants.toml, matrix.json, a file for "
        "`validate --matrix`, or what `compare --json` writes (default: %(default)s)",
    )
    schema.set_defaults(verb=do_schema)
    # Their arguments are parsed by kstall_ops.cli if they come first, see entry.py.
    for verb, purpose in VERBS.items():
        operators = verbs.add_parser(
            verb,
            help=f"(operators) {purpose}",
            add_help=False,
            # No word begins with that, so none is taken for an option.
            prefix_chars="\0",
        )
        operators.add_argument("words", nargs="*")
        operators.set_defaults(verb=misplaced, name=verb)

    return parser


def _add_validate(
    parser: argparse.ArgumentParser,
    verbs: argparse._SubParsersAction[argparse.ArgumentParser],
) -> None:
    prove = verbs.add_parser(
        "validate",
        help="apply, build, boot, run and judge series",
        description="Prove series on a booted kernel, from patches to verdict.",
        epilog=f"{_STATUS}.  Environment: KSTALL_CACHE is the cache directory "
        "(default: ~/.cache/kstall); KSTALL_ACCEL=kvm|tcg overrides the probe for KVM",
    )
    prove.add_argument("series", nargs="*", help="default: every series")
    prove.add_argument(
        "--kernel",
        type=Path,
        action="append",
        help="kernel tree, which is only read: a git checkout, source directory or "
        "tarball; REPO#BRANCH, where REPO is a path or URL; or debian:7.2 for Debian's "
        "newest linux-source-7.2 (default: debian:7.3).  Repeat it to prove on several "
        "trees and get a table",
    )
    prove.add_argument(
        "--matrix",
        type=Path,
        metavar="FILE",
        help="read trees, series, architectures and levels from FILE (see `kstall "
        "schema matrix-file`); series and --arch on the command line select from it, "
        "and --level overrides it",
    )
    _add_out(prove, "for run directories")
    prove.add_argument(
        "--level",
        choices=get_args(Level),
        default=None,
        help="quick: the series builds and boots, and its events fire with correct "
        "values; full: also each patch by itself, and the cost of disabled events, as "
        "mails need; deep: also more compilers and architectures, and kernels with "
        "sanitizers, which takes hours (default: full)",
    )
    prove.add_argument(
        "--again",
        action="store_true",
        help="boot each series' guests again instead of reusing earlier results; "
        "kernels and instruction counts are still reused",
    )
    prove.add_argument(
        "--repeat",
        type=values.positive,
        metavar="N",
        help="boot each series' guest N times, and that of the base kernel as often if "
        "it fixes a bug, and report how often each check passed, failed, or could not "
        "be judged; one failure is a failure",
    )
    prove.add_argument(
        "--alone",
        action="store_true",
        help="also build and boot each series on a kernel of its own, as --level deep "
        "does; otherwise series that are proven together share a kernel",
    )
    prove.add_argument(
        "--at-once",
        type=values.positive,
        metavar="N",
        help="number of guests that run at the same time (default: as many as "
        "processors and memory allow; 1 with --repeat)",
    )
    prove.add_argument(
        "--arch",
        choices=arch.NAMES,
        help="architecture of kernels and guests; if it is not this machine's, they "
        f"are cross-compiled and emulated (default: {arch.host().name}; with --matrix, "
        "all that FILE names)",
    )
    prove.add_argument(
        "--seed",
        type=values.seed,
        action="append",
        default=[],
        metavar="SEED",
        help="compile only this random configuration (KCONFIG_SEED in a report); may "
        "be repeated",
    )
    _add_workers(prove)
    prove.set_defaults(verb=do_validate, parsers=(parser, prove))


def _add_abi(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    abi = verbs.add_parser(
        "abi",
        help="compare trace events of two kernels by their format files",
        description="Compare the trace events of two kernels: existing events may only "
        "grow at their end.",
        epilog="each directory is a copy of /sys/kernel/tracing/events; exit status: 0 "
        "nothing can break, 1 programs that read the events of BASE can break on those "
        "of PATCHED, 2 they cannot be compared",
    )
    abi.add_argument("base", type=Path)
    abi.add_argument("patched", type=Path)
    abi.set_defaults(verb=do_abi)


def _add_compare(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    changed = verbs.add_parser(
        "compare",
        help="compare two runs, or two matrices: what changed, and is it worse?",
        description="Compare verdicts, checks, costs, formats of events and durations "
        "of two runs, or of two matrices, tree by tree.  With several earlier runs, "
        "each result is compared with the newest run that has it.",
        epilog="exit status: 0 nothing got worse, 1 something got worse, 2 something "
        "judged before was not judged this time, or they cannot be compared",
    )
    changed.add_argument(
        "before",
        type=Path,
        nargs="+",
        metavar="BEFORE",
        help="an earlier run, or several, the newest last",
    )
    changed.add_argument("after", type=Path, metavar="AFTER", help="the later run")
    changed.add_argument("--json", type=Path, metavar="FILE", help="also write JSON")
    changed.add_argument("--html", type=Path, metavar="FILE", help="also write HTML")
    changed.set_defaults(verb=do_compare)


def _add_rebase(
    parser: argparse.ArgumentParser,
    verbs: argparse._SubParsersAction[argparse.ArgumentParser],
) -> None:
    moved = verbs.add_parser(
        "rebase",
        help="carry series over to another tree, by three-way merges",
        description="Commit series to the tree that they apply to, cherry-pick the "
        "commits onto another tree, compile the result patch by patch, and show it by "
        "`git range-diff`.  Conflicts are left in a work tree below --out, with the "
        "commands to resolve them; the same command then continues from there.",
        epilog="exit status: 0 all carried over and compiled, 1 it does not compile, 2 "
        "could not judge, 3 a conflict is left",
    )
    moved.add_argument("kernel", type=Path, metavar="KERNEL", help="as for validate")
    moved.add_argument("series", nargs="*", help="default: every series")
    moved.add_argument(
        "--from",
        dest="origin",
        type=Path,
        metavar="KERNEL",
        help="the tree that the series apply to (default: debian:7.3)",
    )
    moved.add_argument(
        "--write",
        action="store_true",
        help="replace the patches in patches/ if all are carried over and compile",
    )
    moved.add_argument(
        "--no-compile", action="store_true", help="do not compile the result"
    )
    _add_out(moved, "for rebase/")
    moved.set_defaults(verb=do_rebase, parsers=(parser, moved))


def _add_series(
    parser: argparse.ArgumentParser,
    verbs: argparse._SubParsersAction[argparse.ArgumentParser],
) -> None:
    thread = verbs.add_parser(
        "series",
        help="write proven series as mails",
        description="Write proven series as mails, with their recipients; sends "
        "nothing.",
        epilog="exit status: 0 all are written, except those marked as not to be sent; "
        "2 one is not, such as without a proof, or for want of the KEY of --sign-off",
    )
    thread.add_argument(
        "series", nargs="*", help="default: every series that is to be sent"
    )
    thread.add_argument(
        "--version",
        type=values.positive,
        default=1,
        help="2 for v2, and so on (default: 1)",
    )
    thread.add_argument("--rfc", action="store_true", help="request for comments")
    thread.add_argument(
        "--kernel",
        type=Path,
        help="as for validate; has to be the tree of the proving run",
    )
    _add_out(thread, "of runs, and for mail/")
    thread.add_argument(
        "--run", type=Path, help="quote this run instead of the newest one"
    )
    thread.add_argument(
        "--previous", type=Path, help="mails of the previous version, for a range-diff"
    )
    thread.add_argument(
        "--report-url",
        type=values.url,
        metavar="URL",
        help="where you have published report.html and report.json of the proving run; "
        "the letter ends with it",
    )
    thread.add_argument(
        "--sign-off",
        nargs="?",
        const="",
        metavar="KEY",
        help="sign off, and be the author of patches that have none; without KEY, show "
        "what that certifies",
    )
    thread.add_argument(
        "--replace",
        action="store_true",
        help="write mails again that were signed off, with the same patches and new "
        "Message-IDs; only if nobody has got them",
    )
    thread.add_argument(
        "--b4-prep",
        type=Path,
        metavar="TREE",
        help="also make a b4 prep branch in TREE, a git checkout of the tree of the "
        "proving run",
    )
    thread.set_defaults(verb=do_series, parsers=(parser, thread))


def _add_out(parser: argparse.ArgumentParser, purpose: str) -> None:
    parser.add_argument(
        "--out",
        type=Path,
        default=OUT,
        help=f"directory {purpose} (default: %(default)s)",
    )


def _add_workers(prove: argparse.ArgumentParser) -> None:
    prove.add_argument(
        "--workers",
        type=values.positive,
        metavar="N",
        help="build and boot in N workers on this machine, which share the processors",
    )
    prove.add_argument(
        "--on",
        metavar="ADDRESS",
        help="build and boot in the workers of this scheduler: tcp://127.0.0.1:8786, "
        "tls://host:8786, or slurm:cores=8,memory=32GB,jobs=4",
    )
    _add_store(prove)


def _add_store(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--store",
        metavar="URL",
        help="where workers store their results: a directory, or a URL for fsspec, "
        "such as sftp://host/dir or s3://bucket/dir (default: below the cache, if all "
        "are on this machine)",
    )
    _add_tls(parser)


def _add_tls(parser: argparse.ArgumentParser) -> None:
    for name, purpose in (
        ("ca-file", "the CA that signs all certificates"),
        ("cert", "our certificate"),
        ("key", "our private key"),
    ):
        parser.add_argument(
            f"--tls-{name}", type=Path, metavar="PEM", help=f"for tls://: {purpose}"
        )


def _add_worker(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    worker = verbs.add_parser(
        "worker",
        help="build and boot for other machines, see docs/workers.md",
        description="Build and boot what clients of a scheduler ask for.  Anyone who "
        "can connect to that scheduler can run programs as this user.",
    )
    worker.add_argument("scheduler", help="tcp://127.0.0.1:8786 or tls://host:8786")
    worker.add_argument("--name", type=values.worker_name, help="default: host name")
    worker.add_argument(
        "--cache",
        type=Path,
        help="its own cache (default: workers/NAME in the cache of this machine, or "
        "NAME-2 and so on if another worker has that)",
    )
    worker.add_argument(
        "--nthreads",
        type=values.positive,
        metavar="N",
        help="slots: number of guests at once (default: half the processors)",
    )
    worker.add_argument(
        "--memory-limit", metavar="SIZE", help="such as 16GB (default: free memory)"
    )
    worker.add_argument(
        "--cpus",
        type=values.processors,
        metavar="LIST",
        help="run on these processors, such as 0,2 or 0-3",
    )
    worker.add_argument(
        "--host", help="address to listen on (default: the one towards the scheduler)"
    )
    worker.add_argument(
        "--death-timeout",
        type=values.seconds,
        default=60.0,
        metavar="SECONDS",
        help="how long to wait for the scheduler (default: %(default)s)",
    )
    # An option of Dask's that dask-jobqueue passes; the address has the protocol.
    worker.add_argument("--protocol", help=argparse.SUPPRESS)
    _add_store(worker)
    worker.set_defaults(verb=do_worker)

    scheduler = verbs.add_parser(
        "scheduler", help="connect clients and workers, see docs/workers.md"
    )
    scheduler.add_argument(
        "--host",
        default="127.0.0.1",
        help="address to listen on; all but loopback need certificates (default: "
        "%(default)s)",
    )
    scheduler.add_argument("--port", type=int, default=8786)
    _add_tls(scheduler)
    scheduler.set_defaults(verb=do_scheduler)


def _add_stability(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    steady = verbs.add_parser(
        "stability",
        help="boot guests many times on a busy host: is the verdict always the same?",
        description="Boot the guest of each series many times, alone and several at "
        "once, while stress-ng keeps the host busy; falsify the evidence of each, and "
        "report checks whose verdict changes.",
        epilog="exit status: 0 all proven, except one in fifty without a verdict, in "
        "all and (rounded up) of each series; 1 a guest was FAILED; 2 more had no "
        "verdict, or nothing was measured",
    )
    steady.add_argument("series", nargs="*", help="default: every series")
    steady.add_argument(
        "--runs",
        type=values.positive,
        default=20,
        help="guests per load (default: %(default)s)",
    )
    steady.add_argument(
        "--load",
        type=values.natural,
        action="append",
        help="stress-ng workers per processor, 0 for none; repeat it for several loads "
        "in turn (default: 2, then 4)",
    )
    steady.add_argument(
        "--at-once",
        type=values.positive,
        action="append",
        metavar="GUESTS",
        help="number of guests that run at the same time; repeat it to alternate "
        "(default: 1 and 2)",
    )
    steady.add_argument(
        "--kunit",
        type=values.positive,
        default=0,
        metavar="TIMES",
        help="instead, run each KUnit suite that the patches add, or if they add none "
        "the workloads run, TIMES times, in a guest with one processor and in one with "
        "four",
    )
    steady.add_argument("--kernel", type=Path, help="as for validate")
    _add_out(steady, "for stability/")
    steady.add_argument(
        "--resume",
        action="store_true",
        help="do not boot again what the newest run below OUT counts, as far as "
        "kernels and checks are the same",
    )
    steady.set_defaults(verb=do_stability)


def _add_check_thread(
    verbs: argparse._SubParsersAction[argparse.ArgumentParser],
) -> None:
    incoming = verbs.add_parser(
        "check-thread",
        help="apply, compare and validate a series that was sent to a list",
        description="Apply a series that was sent to a list, compare it with those in "
        "patches/, and validate it.",
        epilog="exit status: that of `kstall validate`; before that 1 the thread is at "
        "fault, as where a mail is missing, 2 it cannot be read, 3 it does not apply; "
        "with --no-validate 0 it applies",
    )
    incoming.add_argument(
        "thread", help="an mbox, a directory of mails, or a message-id for b4"
    )
    incoming.add_argument("--kernel", type=Path, help="as for validate")
    incoming.add_argument("--version", type=values.positive, help="default: the newest")
    incoming.add_argument(
        "--kconfig",
        type=Path,
        help="fragment that enables its code; the series is then taken for unknown",
    )
    incoming.add_argument(
        "--workload",
        type=Path,
        help="script or C program that makes its events fire; as with --kconfig, the "
        "series is taken for unknown",
    )
    incoming.add_argument(
        "--trusted",
        action="store_true",
        help="allow it to change files that may run code on this machine, such as "
        "Makefiles, Kconfig and scripts",
    )
    incoming.add_argument(
        "--no-validate", action="store_true", help="do not build or boot"
    )
    incoming.add_argument(
        "--level",
        choices=get_args(Level),
        default="full",
        help="as for validate (default: %(default)s)",
    )
    _add_out(incoming, "for threads/ and run directories")
    incoming.set_defaults(verb=do_check_thread)
