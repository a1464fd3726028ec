# SPDX-License-Identifier: GPL-2.0-or-later
"""Commands of workers, and how other commands get their help.

Everything else works without the packages that they need.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib
import os
import platform
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from rich.console import Console

from ..base import KstallError, explain
from ..pipeline import Request, Ui, units
from . import terminal
from .places import CANNOT_RUN, cache_directory, require_temporary

if TYPE_CHECKING:
    from .. import farm


def package() -> ModuleType:
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


def tls_files(arguments: argparse.Namespace) -> farm.Tls | None:
    """The three files of TLS, if they were given.  Raises `KstallError`."""
    files = (arguments.tls_ca_file, arguments.tls_cert, arguments.tls_key)
    if not any(files):
        return None
    if not all(files):
        raise KstallError("--tls-ca-file, --tls-cert and --tls-key: give all three")
    tls: farm.Tls = package().Tls(*files)
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


def where_to(arguments: argparse.Namespace) -> farm.Where | None:
    """The workers that were asked for, if any.  Raises `KstallError`."""
    if arguments.on is None:
        _require_effects(arguments)
        if arguments.workers is None:
            return None
    if arguments.workers is not None and arguments.on is not None:
        raise KstallError(
            "--workers is for this machine, and --on for others: choose one"
        )
    where: farm.Where = package().Where(
        arguments.workers, arguments.on, arguments.store, tls_files(arguments)
    )
    return where


@contextlib.contextmanager
def helped(
    request: Request, console: Console, where: farm.Where | None
) -> Iterator[tuple[Request, Ui]]:
    """``request`` with the workers that are to help, for as long as the block lasts."""
    with contextlib.ExitStack() as stack:
        ui = stack.enter_context(Ui(console))
        if where is not None:
            shelf = package().Shelf(request.cache, units.KINDS)
            root = request.project.root
            away = package().opened(where, shelf, root, ui.say)
            request = replace(request, away=stack.enter_context(away))
        yield request, ui


def do_worker(arguments: argparse.Namespace, console: Console) -> int:
    """Be a worker until the scheduler or a signal ends it."""
    require_temporary()
    workers = package()
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
                tls=tls_files(arguments),
                host=arguments.host,
                patience=arguments.death_timeout,
                say=functools.partial(terminal.say, console),
            )
    except (KstallError, OSError) as error:
        terminal.complain(explain(error))
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
    top = (cache_directory() / "workers").absolute()
    with package().reserved(top, arguments.name or host) as place:
        yield arguments.name or place.name, place


def do_scheduler(arguments: argparse.Namespace, console: Console) -> int:
    """Be a scheduler until a signal ends it."""
    say = functools.partial(terminal.say, console)
    package().scheduler(arguments.host, arguments.port, tls_files(arguments), say)
    return 0
