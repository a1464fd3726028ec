# SPDX-License-Identifier: GPL-2.0-or-later
"""The ``kstall`` command: arguments in, exit status out."""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib
import io
import itertools
import json
import math
import os
import platform
import re
import shlex
import signal
import sys
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import FrameType, ModuleType
from typing import IO, TYPE_CHECKING, cast, get_args

from pydantic import BaseModel
from pydantic.json_schema import JsonSchemaMode
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from kstall_ops import VERBS

from . import __version__
from .base import (
    Architecture,
    DoesNotApply,
    FailedCheck,
    KstallError,
    arch,
    cache,
    explain,
    program,
    temporary,
)
from .evidence import traceabi
from .mail import export, incoming, prep, summary
from .pipeline import (
    Request,
    Ui,
    command_line,
    matrix,
    matrixfile,
    rebasing,
    stability,
    units,
    validate,
)
from .report import (
    comparison,
    comparisonviews,
    html,
    matrixviews,
    report,
    views,
)
from .report import matrix as matrix_report
from .series import Level, Project, Series, Spec, mutants, new
from .tree import remote, source

if TYPE_CHECKING:
    from . import farm

CANNOT_RUN = 2
_OUT = Path("out")
_STATUS = (
    "exit status: 0 proven; 1 a check failed, or a series no longer applies where it "
    "has to; 2 no verdict, because of bad input, an interruption or a failure of the "
    "test setup: the message says which; 3 nothing failed, but a series does not apply."
    "  Of several series or trees the worst counts, in the order 1, 2, 3, 0"
)
# What `kstall schema` prints the schema of: what is written, and files that are read.
_SCHEMAS: dict[str, tuple[type[BaseModel], JsonSchemaMode]] = {
    "report": (report.Report, "serialization"),
    "series": (Spec, "validation"),
    "mutants": (mutants.MutantsFile, "validation"),
    "matrix": (matrix_report.Matrix, "serialization"),
    "matrix-file": (matrixfile.MatrixFile, "validation"),
    "comparison": (comparison.RunComparison, "serialization"),
}
# Options of `validate` that a command which tries again does not take over: it boots
# once, and the tree, of several, is known to `pipeline`.
_NOT_AGAIN = ("--again", "--repeat", "--kernel", "--matrix", "--arch", "--level")
# `make validate KERNEL=...` exports some of these, and users may have set others for
# builds of their own; the makes that we call would obey them.
_NOT_FOR_KBUILD = (
    "MAKEFLAGS",
    "MFLAGS",
    "MAKEOVERRIDES",
    "MAKELEVEL",
    "ARCH",
    "CROSS_COMPILE",
    "LLVM",
    "KBUILD_OUTPUT",
    "KBUILD_EXTMOD",
    "KCFLAGS",
    "KCPPFLAGS",
    "KCONFIG_CONFIG",
    "KCONFIG_ALLCONFIG",
    "LOCALVERSION",
    "LANGUAGE",
    "LC_ALL",
    "INSTALL_MOD_PATH",
    "O",
    "C",
    "V",
    "W",
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``kstall``; 0 proven, 1 a check failed, 2 no verdict, 3 a series does not
    apply."""
    arguments = _parser().parse_args(argv)
    for name in _NOT_FOR_KBUILD:
        os.environ.pop(name, None)
    # Compiler messages are parsed; kbuild unsets LC_ALL, and uses the others.
    os.environ.update(LANG="C.UTF-8", LC_MESSAGES="C.UTF-8")
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Paths may hold bytes that are not UTF-8, and are printed all the same.
        sys.stdout.reconfigure(errors="backslashreplace")
    console = _console()
    signal.signal(signal.SIGTERM, _as_interrupt)
    signal.signal(signal.SIGHUP, _as_interrupt)
    try:
        with cache.remarked() as remarks:
            try:
                return int(arguments.verb(arguments, console))
            finally:
                # Remarks of a run's stages were printed, and are in its report.
                for remark in remarks:
                    _complain(remark)
    except (KstallError, OSError) as error:
        _complain(explain(error))
    except KeyboardInterrupt:
        _complain(
            "interrupted; what was finished is kept: run the same command again to "
            "continue"
        )
    except Exception:
        # Python's exit status for a crash is 1, which stands for a check that failed.
        _complain(f"a bug in kstall:\n{traceback.format_exc()}")
    return CANNOT_RUN


class _Unpadded(io.TextIOBase):
    """A text stream that drops blanks at the ends of lines, as rich pads tables."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """The encoding of the stream, by which rich chooses its characters."""
        return str(getattr(self._stream, "encoding", None) or "utf-8")

    def write(self, text: str) -> int:
        """Write ``text``, of which rich passes whole lines."""
        self._stream.write(re.sub(r" +$", "", text, flags=re.MULTILINE))
        return len(text)

    def flush(self) -> None:
        """Flush the stream itself."""
        self._stream.flush()


def _console(*, stderr: bool = False) -> Console:
    """The output: not cut to a width where there is no terminal, in colour only where a
    view asks for it, and without emoji, as `x.c:100:5` holds the code of one."""
    console = Console(stderr=stderr, highlight=False, emoji=False)
    if not console.is_terminal:
        console.width = 1000
        console.file = cast("IO[str]", _Unpadded(console.file))
    return console


def _say(console: Console, text: str) -> None:
    """Print ``text`` as it is: no markup, and no line is broken."""
    console.print(text, markup=False, soft_wrap=True)


def _complain(text: str) -> None:
    _console(stderr=True).print(f"[bold red]kstall:[/] {escape(text)}", soft_wrap=True)


def _as_interrupt(number: int, frame: FrameType | None) -> None:
    """Handle SIGTERM and SIGHUP like Ctrl-C, so that the report is written."""
    raise KeyboardInterrupt


def _parser() -> argparse.ArgumentParser:
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
        default=_project_root(),
        help="checkout with patches/, kconfigs/ and scripts/ (default: %(default)s)",
    )
    verbs = parser.add_subparsers(required=True, metavar="VERB")

    listing = verbs.add_parser("list", help="list all series, one line each")
    listing.set_defaults(verb=_list)

    show = verbs.add_parser("show", help="show what a series declares")
    show.add_argument("series")
    show.set_defaults(verb=_show)

    begin = verbs.add_parser(
        "new",
        help="start a series from an example that already validates",
        description="Write patches/NAME/, kconfigs/NAME.config, scripts/NAME.bt and "
        "scripts/workloads/NAME/: a small working series, to be replaced step by step.",
    )
    begin.add_argument("name", metavar="NAME", help="a-z, 0-9, - and _")
    begin.set_defaults(verb=_new)

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
        type=_positive,
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
        type=_positive,
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
        type=_seed,
        action="append",
        default=[],
        metavar="SEED",
        help="compile only this random configuration (KCONFIG_SEED in a report); may "
        "be repeated",
    )
    _add_workers(prove)
    prove.set_defaults(verb=_validate, parsers=(parser, prove))

    _add_worker(verbs)

    _add_stability(verbs)

    judge = verbs.add_parser(
        "judge",
        help="judge a finished run again, by today's checks; boots and writes nothing",
        epilog=_STATUS,
    )
    judge.add_argument("run", type=Path, help="a run directory, such as out/latest")
    judge.set_defaults(verb=_judge)

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
    mutate.set_defaults(verb=_mutate)

    _add_compare(verbs)

    _add_rebase(verbs)

    page = verbs.add_parser(
        "html",
        help="write report.html again from a run's report.json, or matrix.html from a "
        "matrix's matrix.json",
    )
    page.add_argument("run", type=Path, help="a run directory, such as out/latest")
    page.set_defaults(verb=_html)

    _add_abi(verbs)

    _add_series(parser, verbs)

    _add_check_thread(verbs)

    schema = verbs.add_parser("schema", help="print a JSON Schema")
    schema.add_argument(
        "of",
        nargs="?",
        choices=tuple(_SCHEMAS),
        default="report",
        help="of report.json, series.toml, mutants.toml, matrix.json, a file for "
        "`validate --matrix`, or what `compare --json` writes (default: %(default)s)",
    )
    schema.set_defaults(verb=_schema)
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
        operators.set_defaults(verb=_misplaced, name=verb)

    return parser


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
    abi.set_defaults(verb=_abi)


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
    changed.set_defaults(verb=_compare)


def _add_rebase(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
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
    moved.set_defaults(verb=_rebase)


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
        "--version", type=int, default=1, help="2 for v2, and so on (default: 1)"
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
        type=_url,
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
    thread.set_defaults(verb=_series, parsers=(parser, thread))


def _add_out(parser: argparse.ArgumentParser, purpose: str) -> None:
    parser.add_argument(
        "--out",
        type=Path,
        default=_OUT,
        help=f"directory {purpose} (default: %(default)s)",
    )


def _add_workers(prove: argparse.ArgumentParser) -> None:
    prove.add_argument(
        "--workers",
        type=_positive,
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
    worker.add_argument("--name", type=_worker_name, help="default: host name")
    worker.add_argument(
        "--cache",
        type=Path,
        help="its own cache (default: workers/NAME in the cache of this machine, or "
        "NAME-2 and so on if another worker has that)",
    )
    worker.add_argument(
        "--nthreads",
        type=_positive,
        metavar="N",
        help="slots: number of guests at once (default: half the processors)",
    )
    worker.add_argument(
        "--memory-limit", metavar="SIZE", help="such as 16GB (default: free memory)"
    )
    worker.add_argument(
        "--cpus",
        type=_processors,
        metavar="LIST",
        help="run on these processors, such as 0,2 or 0-3",
    )
    worker.add_argument(
        "--host", help="address to listen on (default: the one towards the scheduler)"
    )
    worker.add_argument(
        "--death-timeout",
        type=_seconds,
        default=60.0,
        metavar="SECONDS",
        help="how long to wait for the scheduler (default: %(default)s)",
    )
    # An option of Dask's that dask-jobqueue passes; the address has the protocol.
    worker.add_argument("--protocol", help=argparse.SUPPRESS)
    _add_store(worker)
    worker.set_defaults(verb=_worker)

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
    scheduler.set_defaults(verb=_scheduler)


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
        type=_positive,
        default=20,
        help="guests per load (default: %(default)s)",
    )
    steady.add_argument(
        "--load",
        type=_natural,
        action="append",
        help="stress-ng workers per processor, 0 for none; repeat it for several loads "
        "in turn (default: 2, then 4)",
    )
    steady.add_argument(
        "--at-once",
        type=_positive,
        action="append",
        metavar="GUESTS",
        help="number of guests that run at the same time; repeat it to alternate "
        "(default: 1 and 2)",
    )
    steady.add_argument(
        "--kunit",
        type=_positive,
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
    steady.set_defaults(verb=_stability)


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
    incoming.add_argument("--version", type=int, help="default: the newest")
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
    incoming.set_defaults(verb=_check_thread)


def _seed(text: str) -> int:
    """A value for KCONFIG_SEED: decimal, or hexadecimal with 0x; not 0."""
    value = int(text, 0)
    if not 0 < value < 2**31:
        raise argparse.ArgumentTypeError(f"{text}: not from 1 to {2**31 - 1:#x}")
    return value


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text}: not at least 1")
    return number


def _seconds(text: str) -> float:
    number = float(text)
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text}: not a time")
    return number


def _worker_name(text: str) -> str:
    """A name that is also one of a directory, below which kernels can be built."""
    if not re.fullmatch(r"\w[\w.-]*", text):
        raise argparse.ArgumentTypeError(
            f"{text!r}: not a name of letters, digits, '.', '-' and '_'"
        )
    return text


def _natural(text: str) -> int:
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"{text}: less than 0")
    return number


def _url(text: str) -> str:
    if not re.fullmatch(r"https?://[!-~]+", text):
        raise argparse.ArgumentTypeError(
            f"'{text}' is not like https://example.org/report.html"
        )
    return text


def _processors(text: str) -> frozenset[int]:
    """A list of processors as taskset(1) takes it: numbers, and ranges of them."""
    chosen: set[int] = set()
    for word in text.split(","):
        if not (match := re.fullmatch(r"(\d{1,6})(?:-(\d{1,6}))?", word.strip())):
            raise argparse.ArgumentTypeError(f"{text}: not like 0,2 or 0-3")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise argparse.ArgumentTypeError(f"{text}: {last} is before {first}")
        chosen.update(range(first, last + 1))
    return frozenset(chosen)


def _project_root() -> Path:
    """The checkout this package was installed from, else the current directory."""
    root = Path(__file__).resolve().parents[2]
    return root if (root / "patches").is_dir() else Path.cwd()


def _list(arguments: argparse.Namespace, console: Console) -> int:
    table = Table(box=None, pad_edge=False)
    for title in ("series", "patches", "events", "checks", "list", "title"):
        table.add_column(title)
    for series in Project(arguments.project).load():
        spec = series.spec
        table.add_row(
            series.name,
            str(len(series.patches)),
            str(len(spec.tracepoint)),
            str(len(spec.check)),
            spec.subsystem.list.split("@")[0],
            escape(spec.title),
        )
    console.print(table)
    return 0


def _show(arguments: argparse.Namespace, console: Console) -> int:
    (series,) = Project(arguments.project).load([arguments.series])
    _say(console, "\n".join(_describe(series)))
    return 0


def _describe(series: Series) -> list[str]:
    spec = series.spec
    home = spec.subsystem
    lines = [
        f"{series.name}: {spec.title}",
        *([f"  not to be sent: {series.not_sent}"] if series.not_sent else []),
        *([f"  ordered as  {spec.ordered_as}"] if spec.ordered_as else []),
        *([f"  renamed     {spec.renamed_because}"] if spec.renamed_because else []),
        f"  subsystem   {home.name} ({home.prefix}:), {home.list}",
        f"  tree        {home.tree} {home.branch}",
        f"  kconfig     kconfigs/{spec.kconfig}",
        "patches",
        *(f"  {patch.path.name}: {patch.subject}" for patch in series.patches),
    ]
    for point in spec.tracepoint:
        lines.append(f"tracepoint {point.event}")
        lines += [f"  {kind} {name}" for name, kind in point.fields.items()]
        lines.append(f"  joins {point.joins}")
        for site in point.site:
            heat = "hot" if site.hot else "cold"
            lines.append(
                f"  in {site.function}() of {site.file} ({heat}), {site.context}"
            )
    for script in spec.script:
        lines.append(f"script scripts/{script.file}: {', '.join(script.events)}")
    for workload in spec.workload:
        words = " ".join((workload.program, *workload.args))
        lines.append(f"workload {workload.name}: {words}")
        for step in workload.inject:
            commands = "; ".join(
                command.qmp or command.hmp or "" for command in step.commands
            )
            lines.append(f"  on {step.step} commands to the monitor: {commands}")
    for check in spec.check:
        lines.append(f"check {check.name} ({check.kind}, {', '.join(check.workloads)})")
        lines.append(f"  {check.claim}")
    if spec.needs:
        lines.append(f"needs in debug kernels: {', '.join(spec.needs)}")
    for conflict in spec.conflict:
        lines.append(f"not in one kernel with {conflict.series}: {conflict.because}")
    return lines


def _new(arguments: argparse.Namespace, console: Console) -> int:
    project = Project(arguments.project.absolute())
    written = new.write(project, arguments.name)
    _say(console, new.advice(project, arguments.name, written))
    return 0


def _validate(arguments: argparse.Namespace, console: Console) -> int:
    project = Project(arguments.project)
    columns = _columns(arguments, project)
    names = arguments.series or [name for column in columns for name in column.series]
    kernels = arguments.kernel or [None]
    request = Request(
        project=project,
        series=project.load(names),
        kernel=kernels[0],
        cache=_cache(),
        out=_out(arguments, *kernels, *(column.kernel for column in columns)),
        level=arguments.level or "full",
        again=arguments.again,
        repeat=arguments.repeat,
        alone=arguments.alone,
        at_once=arguments.at_once,
        arch=_architecture(arguments),
        seeds=tuple(arguments.seed),
        options=_options(arguments),
    )
    if arguments.on is None:
        _require_temporary()
    where = _where(arguments)
    if not columns:
        return _prove(request, console, where)
    with _helped(request, console, where) as (helped, ui):
        directory, outcome = matrix.prove(helped, columns, ui, command_line())
    console.print()
    matrixviews.terminal(outcome, directory, console)
    return outcome.exit_code


def _architecture(arguments: argparse.Namespace) -> Architecture:
    return arch.host() if arguments.arch is None else arch.named(arguments.arch)


def _options(arguments: argparse.Namespace) -> dict[str, tuple[str, ...]]:
    """The options that prove the same again, by name, with their values; not those that
    say on what tree."""
    given = _given(arguments)
    return {name: given[name] for name in given if name not in _NOT_AGAIN}


def _given(arguments: argparse.Namespace) -> dict[str, tuple[str, ...]]:
    """The options that were given, by name, with their values, of which flags have
    none."""
    given: dict[str, tuple[str, ...]] = {}
    # argparse has no public list of them.
    actions = [action for parser in arguments.parsers for action in parser._actions]
    for action in actions:
        # What has no default has an effect at once, such as --help.
        if not action.option_strings or action.default == argparse.SUPPRESS:
            continue
        value = getattr(arguments, action.dest)
        if value == action.default:
            continue
        values = value if isinstance(value, list) else [value]
        flag = action.nargs == 0
        given[action.option_strings[-1]] = () if flag else tuple(map(str, values))
    return given


def _columns(
    arguments: argparse.Namespace, project: Project
) -> tuple[matrixfile.ColumnPlan, ...]:
    """A column for each tree, if there are several trees."""
    if arguments.matrix is not None:
        if arguments.kernel:
            raise KstallError("--matrix FILE names the trees: leave out --kernel")
        columns = matrixfile.read(arguments.matrix, project)
        return matrixfile.narrowed(
            columns, arguments.series, arguments.level, arguments.arch
        )
    if len(arguments.kernel or ()) < 2:
        return ()
    return matrixfile.of_kernels(
        arguments.kernel,
        arguments.series or project.names(),
        _architecture(arguments).name,
        arguments.level or "full",
    )


@contextlib.contextmanager
def _helped(
    request: Request, console: Console, where: farm.Where | None
) -> Iterator[tuple[Request, Ui]]:
    """``request`` with the workers that are to help, for as long as the block lasts."""
    with contextlib.ExitStack() as stack:
        ui = stack.enter_context(Ui(console))
        if where is not None:
            shelf = _farm().Shelf(request.cache, units.KINDS)
            root = request.project.root
            away = _farm().opened(where, shelf, root, ui.say)
            request = replace(request, away=stack.enter_context(away))
        yield request, ui


def _prove(request: Request, console: Console, where: farm.Where | None = None) -> int:
    with _helped(request, console, where) as (helped, ui):
        directory, outcome = validate.validate(helped, ui, command_line())
    console.print()
    views.terminal(outcome, directory, console)
    return outcome.exit_code


def _farm() -> ModuleType:
    """The package of workers; everything else works without its dependencies."""
    try:
        return importlib.import_module("kstall.farm")
    except ModuleNotFoundError as error:
        name = (error.name or "").partition(".")[0]
        if name not in ("cloudpickle", "dask", "distributed", "fsspec"):
            raise
        raise KstallError(
            f"workers need {name}, which is not installed",
            next="in a checkout, pip install '.[workers]'; or leave out --workers and "
            "--on, to build and boot on this machine",
        ) from error


def _tls(arguments: argparse.Namespace) -> farm.Tls | None:
    files = (arguments.tls_ca_file, arguments.tls_cert, arguments.tls_key)
    if not any(files):
        return None
    if not all(files):
        raise KstallError("--tls-ca-file, --tls-cert and --tls-key: give all three")
    tls: farm.Tls = _farm().Tls(*files)
    return tls


def _require_effects(arguments: argparse.Namespace) -> None:
    """Raise `KstallError` for options that have no effect without ``--on``, or a store
    without any workers."""
    names = ["tls_ca_file", "tls_cert", "tls_key"]
    if arguments.workers is None:
        names.insert(0, "store")
    given = [name for name in names if getattr(arguments, name) is not None]
    if given:
        options = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        workers = "--workers N or " if "store" in given else ""
        raise KstallError(
            f"{options}: no effect without {workers}--on ADDRESS",
            next="name the workers, or leave it out",
        )


def _where(arguments: argparse.Namespace) -> farm.Where | None:
    if arguments.on is None:
        _require_effects(arguments)
        if arguments.workers is None:
            return None
    if arguments.workers is not None and arguments.on is not None:
        raise KstallError(
            "--workers is for this machine, and --on for others: choose one"
        )
    where: farm.Where = _farm().Where(
        arguments.workers, arguments.on, arguments.store, _tls(arguments)
    )
    return where


def _worker(arguments: argparse.Namespace, console: Console) -> int:
    _require_temporary()
    workers = _farm()
    if arguments.cpus:
        try:
            os.sched_setaffinity(0, arguments.cpus)
        except OSError as error:
            listed = ", ".join(map(str, sorted(arguments.cpus)))
            raise KstallError(
                f"--cpus: not processors of this machine: {listed}"
            ) from error

    status = 0
    try:
        with _place(arguments) as (name, place):
            workers.work(
                arguments.scheduler,
                workers.Shelf(place, units.KINDS),
                units.performers(),
                capacity=workers.offer(
                    place, name, arguments.nthreads, arguments.memory_limit
                ),
                store=arguments.store,
                tls=_tls(arguments),
                host=arguments.host,
                patience=arguments.death_timeout,
                say=functools.partial(_say, console),
            )
    except (KstallError, OSError) as error:
        _complain(explain(error))
        status = CANNOT_RUN
    sys.stdout.flush()
    # sys.exit() would wait for threads of units that are being ended.
    workers.leave(status)
    return status


@contextlib.contextmanager
def _place(arguments: argparse.Namespace) -> Iterator[tuple[str, Path]]:
    """The name and the cache of a worker, both the same at each start."""
    host = platform.node() or "worker"
    if arguments.cache is not None:
        place: Path = arguments.cache.absolute()
        place.mkdir(parents=True, exist_ok=True)
        yield arguments.name or f"{host}-{os.getpid()}", place
        return
    top = (_cache() / "workers").absolute()
    with _farm().reserved(top, arguments.name or host) as place:
        yield arguments.name or place.name, place


def _scheduler(arguments: argparse.Namespace, console: Console) -> int:
    say = functools.partial(_say, console)
    _farm().scheduler(arguments.host, arguments.port, _tls(arguments), say)
    return 0


def _stability(arguments: argparse.Namespace, console: Console) -> int:
    project = Project(arguments.project)
    request = Request(
        project=project,
        series=project.load(arguments.series),
        kernel=arguments.kernel,
        cache=_cache(),
        out=_out(arguments, arguments.kernel),
    )
    _require_temporary()
    loads = tuple(arguments.load or (2, 4))
    at_once = tuple(arguments.at_once or (1, 2))
    plan = stability.StabilityPlan(arguments.runs, loads, arguments.kunit, at_once)
    with Ui(console) as ui:
        outcome = stability.measure(
            request, plan, ui, command_line(), resume=arguments.resume
        )
    _say(console, "\n".join(stability.summary(outcome)))
    if outcome.place is not None:
        _say(console, f"results  {outcome.place / stability.FILE}")
    unseen = {series.name for series in request.series} - outcome.series
    for name in sorted(unseen):
        _complain(f"{name}: its kernel could not be built, see above")
    if why := stability.unmeasured(outcome, plan):
        _complain(why)
    code = stability.exit_code(outcome)
    return code if code == report.EXIT["failed"] or not unseen else CANNOT_RUN


def _cache() -> Path:
    """The cache directory, made and checked to be writable before any stage."""
    directory = cache.default_dir()
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if os.statvfs(directory).f_flag & os.ST_NOEXEC:
            reason = "it is mounted noexec, and built programs have to run there"
        elif os.access(directory, os.W_OK | os.X_OK):
            return directory
        else:
            reason = "it is not writable"
    except OSError as error:
        reason = error.strerror or str(error)
    raise KstallError(
        f"{directory} cannot hold the cache: {reason}",
        next="set KSTALL_CACHE to another directory",
    )


def _out(arguments: argparse.Namespace, *kernels: Path | None) -> Path:
    """The directory for results, which is part of none of ``kernels``."""
    out: Path = arguments.out.absolute()
    for kernel in kernels:
        source.require_apart(kernel, out)
    return out


def _require_temporary() -> None:
    """Raise `KstallError` if nothing runs where temporary files are, before a command
    that boots guests: the program that reads the host's counter for their clocks is
    made there, and without it they measure it, which fails on a busy host."""
    place = tempfile.gettempdir()
    if os.statvfs(place).f_flag & os.ST_NOEXEC:
        raise KstallError(
            f"{place} is mounted noexec, and programs for guests have to run there",
            next="name another directory, say TMPDIR=/var/tmp",
        )


def _judge(arguments: argparse.Namespace, console: Console) -> int:
    directory = arguments.run.resolve()
    outcome = validate.judge_again(Project(arguments.project), directory)
    views.terminal(outcome, directory, console)
    return outcome.exit_code


def _compare(arguments: argparse.Namespace, console: Console) -> int:
    *older, before = arguments.before
    changes = comparison.compare(before, arguments.after, older)
    comparisonviews.terminal(changes, console)
    if arguments.json is not None:
        report.write(changes, arguments.json)
    if arguments.html is not None:
        comparisonviews.write_page(changes, arguments.html)
    return changes.exit_code


def _rebase(arguments: argparse.Namespace, console: Console) -> int:
    project = Project(arguments.project)
    if arguments.write and arguments.no_compile:
        raise KstallError("--write needs a compiled result: leave out --no-compile")
    # Both, before either is fetched.
    for kernel in (arguments.kernel, arguments.origin):
        source.require(kernel)
    out = _out(arguments, arguments.kernel, arguments.origin)
    states = []
    for series in project.load(arguments.series):
        request = Request(
            project=project,
            series=(series,),
            kernel=arguments.kernel,
            cache=_cache(),
            out=out,
        )
        again = [program(), "rebase", remote.written(arguments.kernel), series.name]
        if arguments.origin is not None:
            again.append(f"--from={remote.written(arguments.origin)}")
        if arguments.out != _OUT:
            again.append(f"--out={arguments.out}")
        with Ui(console) as ui:
            outcome = rebasing.port(
                *(request, arguments.origin, ui, again),
                compiled=not arguments.no_compile,
            )
        states.append(outcome.report.status)
        _rebased(outcome, console)
        if arguments.write and outcome.clean:
            for path in rebasing.write(outcome):
                _say(console, f"written  {path}")
    return report.EXIT[report.worst_run(states)]


def _rebased(outcome: rebasing.Rebased, console: Console) -> None:
    """Print the outcome of a series, and where its files are."""
    say = functools.partial(_say, console)
    name, result = outcome.series.name, outcome.result
    console.print()
    if result is not None and result.range_diff:
        say(result.range_diff)
    for _, stage in outcome.report.all_stages():
        if stage.error:
            say(f"{name}: {stage.name}: {stage.error}")
    for check in outcome.report.series[0].checks:
        if check.status in ("fail", "error"):
            say(f"{name}: {check.name}: {views.check_summary(check)}")
    if result is not None:
        if result.patches:
            say(f"patches  {result.directory / 'patches'}")
        say(f"tree     {result.tree}")
        say(f"page     {outcome.dir / 'report.html'}")
    state = outcome.report.series[0].status
    words = {
        "pass": "carried over",
        "fail": "carried over, and does not compile",
        "does-not-apply": "a conflict is left",
    }
    console.print(
        f"verdict  [{views.STYLE.get(state, 'bold')}]{escape(name)}: "
        f"{words.get(state, 'could not be carried over')}[/]",
        soft_wrap=True,
    )


def _mutate(arguments: argparse.Namespace, console: Console) -> int:
    outcome = validate.mutate_again(
        Project(arguments.project),
        arguments.run.resolve(),
        arguments.series,
        _cache(),
    )
    views.mutations(outcome, console, everything=arguments.all)
    statuses = {check.status for series in outcome.series for check in series.checks}
    if "fail" in statuses:
        return 1
    return 0 if outcome.series and statuses <= {"pass"} else CANNOT_RUN


def _abi(arguments: argparse.Namespace, console: Console) -> int:
    changes = traceabi.compare(
        traceabi.read(arguments.base), traceabi.read(arguments.patched)
    )
    lines = [f"{changes.same} events are the same"]
    lines += [f"grown     {change.event} {change.what}" for change in changes.grown]
    for layout in changes.new:
        lines += [f"new       {line}" for line in traceabi.describe(layout)]
    for change in (*changes.broken, *changes.clashing):
        lines.append(f"BROKEN    {change.event}: {change.what}")
    _say(console, "\n".join(lines))
    return 1 if changes.broken or changes.clashing else 0


def _html(arguments: argparse.Namespace, console: Console) -> int:
    if (arguments.run / matrix_report.FILE).exists():
        _say(console, str(matrix.draw(arguments.run)))
        return 0
    place = arguments.run / "report.html"
    html.write(validate.read_run(arguments.run), place)
    _say(console, str(place))
    return 0


def _series(arguments: argparse.Namespace, console: Console) -> int:
    project = Project(arguments.project)
    chosen = project.load(arguments.series)
    if arguments.series:
        export.require_for_sending(chosen)
    to_send = [series for series in chosen if series.not_sent is None]
    if arguments.sign_off is not None and len(to_send) != 1:
        raise KstallError("--sign-off is for one series", next="name that series")
    if arguments.report_url is not None and arguments.run is None and len(to_send) > 1:
        # Each series has the newest run that proved it, which need not be the same.
        raise KstallError(
            "--report-url is the report of one run",
            next="name that run with --run, or one series",
        )
    request = export.Export(
        project=project,
        kernel=arguments.kernel,
        cache=_cache(),
        out=_out(arguments, arguments.kernel),
        version=arguments.version,
        rfc=arguments.rfc,
        run=arguments.run,
        previous=arguments.previous,
        report_url=arguments.report_url,
        sign_off=arguments.sign_off,
        again=_signing(arguments, to_send),
        replace=arguments.replace,
    )
    say = functools.partial(_say, console)
    base = source.obtain(request.kernel, request.cache, say)
    outcomes = summary.export_all(request, chosen, base)
    summary.print_outcomes(outcomes, say)
    if arguments.b4_prep is not None:
        for outcome in outcomes:
            if outcome.exported is not None:
                name = prep.branch(outcome.exported, arguments.b4_prep)
                say(f"  inspect it: git switch {name}; then b4 prep --check, b4 send")
    say(f"summary: {summary.write(outcomes, base, request.out)}")
    written = all(outcome.exported or outcome.left_out for outcome in outcomes)
    return 0 if written else CANNOT_RUN


def _signing(
    arguments: argparse.Namespace, to_send: Sequence[Series]
) -> tuple[str, ...]:
    """The command that was given, to which the key of a sign-off is appended."""
    given = _given(arguments)
    given.pop("--sign-off", None)
    if arguments.kernel is not None:
        given["--kernel"] = (remote.written(arguments.kernel),)
    words = {
        name: [f"{name}={value}" for value in values] or [name]
        for name, values in given.items()
    }
    project = words.pop("--project", [])
    names = [series.name for series in to_send]
    return (program(), *project, "series", *names, *itertools.chain(*words.values()))


def _check_thread(arguments: argparse.Namespace, console: Console) -> int:
    project = Project(arguments.project)
    out = _out(arguments, arguments.kernel)
    say = functools.partial(_say, console)
    if not arguments.no_validate:
        _require_temporary()
    # Mistakes come to light before a kernel is fetched.
    source.require(arguments.kernel)
    for path in (arguments.kconfig, arguments.workload):
        if path is not None and not path.is_file():
            raise KstallError(f"{path}: there is no such file")
    try:
        with temporary.directory("thread") as place:
            posting = incoming.read(arguments.thread, place, arguments.version)
            base = source.obtain(arguments.kernel, _cache(), say)
            received = incoming.receive(posting, project, base, out, place)
    except FailedCheck as error:
        _complain(str(error))
        return report.EXIT["failed"]
    except DoesNotApply as error:
        _complain(f"does not apply: {error}")
        return report.EXIT["does-not-apply"]
    findings = incoming.text(received)
    cache.write_text(received.dir / "found.txt", findings)
    say(findings)
    say(f"patches: {received.dir / 'patches'}")
    if arguments.no_validate:
        return 0
    series = incoming.adopted(
        *(received, project, arguments.kconfig, arguments.workload),
        level=arguments.level,
        trusted=arguments.trusted,
    )
    request = Request(
        project=Project(received.dir / "project"),
        series=(series,),
        kernel=arguments.kernel,
        cache=_cache(),
        out=out,
        level=arguments.level,
    )
    return _prove(request, console)


def _misplaced(arguments: argparse.Namespace, console: Console) -> int:
    raise KstallError(
        f"{arguments.name} is for operators, and takes no option before it",
        next=shlex.join(["kstall", arguments.name, *arguments.words]),
    )


def _schema(arguments: argparse.Namespace, console: Console) -> int:
    sys.stdout.write(schema_text(arguments.of))
    return 0


def schema_text(name: str) -> str:
    """The JSON Schema ``name``, as ``kstall schema`` prints it."""
    model, mode = _SCHEMAS[name]
    return json.dumps(model.model_json_schema(mode=mode), indent=2) + "\n"
