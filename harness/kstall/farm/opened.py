# SPDX-License-Identifier: GPL-2.0-or-later
"""Workers as the command line names them: here, at a scheduler, or by Slurm."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
import shlex
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dask
from distributed import Client, LocalCluster
from distributed.deploy.spec import ProcessInterface

from ..base import KstallError, cache, process, space
from .client import Farm
from .place import reserved
from .shelf import Shelf
from .store import Store
from .transport import (
    NO_PAGE,
    Tls,
    is_loopback,
    reason,
    require_private,
    temporary_certificates,
    written,
)
from .worker import quiet

_SLURM = "slurm:"
_CONNECT_S = 20.0
_START_S = 120.0
# How long workers have to end by themselves.
_END_S = 15.0
# How long a job of Slurm may take to be submitted, and all jobs to be cancelled: what
# is left then ends by itself, as its scheduler is gone.
_SUBMIT_S = 300.0
_CANCEL_S = 60.0
_POLL_S = 0.5
# What jobs are submitted and cancelled with.
_SLURM_PROGRAMS = ("sbatch", "scancel")


@dataclass(frozen=True)
class Where:
    """``workers`` on this machine, or those of the scheduler ``on``; see `opened`."""

    workers: int | None = None
    on: str | None = None
    store: str | None = None
    tls: Tls | None = None


@contextlib.contextmanager
def opened(
    where: Where, shelf: Shelf, project: Path, say: Callable[[str], None]
) -> Iterator[Farm]:
    """The workers that ``where`` names, for as long as the block lasts.

    ``project`` is a checkout, from which workers on this machine are started.  Raises
    `KstallError` if they cannot be reached or started.
    """
    quiet()
    security = None
    if where.on is not None and not where.on.startswith(_SLURM):
        security = require_private(where.on, where.tls)
    store = Store(where.store or str(_own_store(where, shelf.cache)))
    store.probe()
    with contextlib.ExitStack() as stack:
        if where.workers is not None:
            client = stack.enter_context(_here(where.workers, shelf.cache, store))
        elif where.on is not None and where.on.startswith(_SLURM):
            place = shelf.cache / "slurm"
            jobs = _by_slurm(where.on, store, where.tls, place, say)
            client = stack.enter_context(jobs)
        else:
            assert where.on is not None
            client = stack.enter_context(_client(where.on, security))
        farm = Farm(client, store, shelf, say)
        stack.callback(farm.close)
        yield farm
        if where.store is None:
            store.prune()


def _own_store(where: Where, cache_dir: Path) -> Path:
    """The store, if all workers are on this machine."""
    if where.workers is None:
        host = (where.on or "").partition("://")[2].rpartition(":")[0].strip("[]")
        if not host or not is_loopback(host):
            raise KstallError(
                f"{where.on}: its workers need a store to exchange what they make",
                next="name a directory that all of them share, or a URL for fsspec, "
                "with --store",
            )
    return cache_dir / "store"


@contextlib.contextmanager
def _client(address: Any, security: Any) -> Iterator[Client]:
    try:
        client = Client(
            address,
            security=security,
            name="kstall",
            set_as_default=False,
            timeout=_CONNECT_S,
        )
    except Exception as error:
        raise KstallError(
            f"no scheduler answers at {address}: {reason(error)}",
            next="start one with `kstall scheduler`, and look at the certificates",
        ) from error
    try:
        yield client
    finally:
        with contextlib.suppress(Exception):
            client.close(timeout=5)


def _wait(client: Client, count: int, seconds: float | None) -> None:
    try:
        client.wait_for_workers(count, timeout=seconds)
    except TimeoutError as error:
        raise KstallError(
            f"fewer than {count} workers started within {seconds:g} s"
        ) from error


# -- this machine ----------------------------------------------------------------------


@contextlib.contextmanager
def _here(count: int, cache_dir: Path, store: Store) -> Iterator[Client]:
    """A scheduler in this process and ``count`` workers, each with its part of the
    processors and of the memory.

    With certificates of their own: other users can connect to loopback, too.
    """
    security = temporary_certificates()
    memory = space.memory() / 2**30 / count
    processors = sorted(os.sched_getaffinity(0))
    with contextlib.ExitStack() as stack:
        tls = stack.enter_context(written(security))
        cluster = stack.enter_context(
            LocalCluster(
                n_workers=0,
                processes=False,
                host="127.0.0.1",
                protocol="tls://",
                security=security,
                dashboard_address=NO_PAGE,
                scheduler_kwargs={"dashboard": False},
                silence_logs=False,
            )
        )
        address = cluster.scheduler_address
        children = []
        for number in range(count):
            name = f"worker-{number + 1}"
            cpus = processors[number::count] or [processors[number % len(processors)]]
            # Another run may have one of that name, with its log.
            place = stack.enter_context(reserved(cache_dir / "workers", name))
            log = stack.enter_context((place / "worker.log").open("w"))
            argv = [
                *(sys.executable, "-m", "kstall", "worker", address),
                *("--name", name, "--cache", str(place), "--store", store.url),
                *("--cpus", ",".join(map(str, cpus))),
                *("--nthreads", str(max(1, len(cpus) // 2))),
                *("--memory-limit", f"{memory:.1f}GiB", "--death-timeout", "60"),
                *("--tls-ca-file", str(tls.ca)),
                *("--tls-cert", str(tls.cert), "--tls-key", str(tls.key)),
            ]
            child = stack.enter_context(process.start(argv, stdout=log.fileno()))
            children.append((child, place / "worker.log"))
        client = stack.enter_context(_client(cluster, None))
        try:
            _wait(client, count, _START_S)
        except KstallError as error:
            last = [
                f"{path.parent.name}: {' '.join(path.read_text().splitlines()[-1:])}"
                for _, path in children
            ]
            raise KstallError(f"{error.what}: {'; '.join(last)}") from error
        yield client
        with contextlib.suppress(Exception):
            client.close(timeout=5)
            cluster.close()
        for child, _ in children:
            with contextlib.suppress(Exception):
                child.wait(_END_S)


# -- Slurm -----------------------------------------------------------------------------


def _jobqueue() -> Any:
    """The module `dask_jobqueue`, imported without its handler of SIGINT.

    dask-jobqueue 0.9 installs one that ends the process by SystemExit, which a run
    would report as a bug in kstall, instead of keeping what was finished.
    """
    handler = signal.getsignal(signal.SIGINT)
    try:
        return importlib.import_module("dask_jobqueue")
    except ImportError as error:
        raise KstallError(
            "--on slurm: needs dask-jobqueue, which is not installed",
            next="in a checkout, pip install '.[slurm]'",
        ) from error
    finally:
        if (
            handler is not None
            and threading.current_thread() is threading.main_thread()
        ):
            signal.signal(signal.SIGINT, handler)


@dataclass
class _Submissions:
    """How many ``jobs`` are to be submitted, and what became of them.

    Dask submits them in a thread of its own, where nobody waits for an error.  The
    first ``failure`` counts; all that is known of it is in ``log``.
    """

    log: Path
    jobs: int = 1
    submitted: int = 0
    failure: KstallError | None = None

    def failed(self, error: Exception, script: str) -> None:
        """Keep why a job could not be submitted, unless another one could not."""
        if self.failure is not None:
            return
        reason = error.what if isinstance(error, KstallError) else str(error)
        log: Path | None = self.log
        try:
            cache.write_text(self.log, f"{reason}\n\nThe script of the job:\n{script}")
        except OSError:
            log = None
        # Without its cause, which would keep the job alive that Dask is to close.
        self.failure = KstallError(
            f"--on slurm: a job could not be submitted: {reason}",
            log=log,
            next="if it is due to what stands after slurm:, change that, see `man "
            "sbatch`; then run the same command again",
        )

    def wait(self) -> None:
        """Wait until all are submitted.  Raises the failure."""
        while self.submitted < self.jobs:
            if self.failure is not None:
                raise self.failure
            time.sleep(_POLL_S)


@contextlib.contextmanager
def _by_slurm(
    text: str, store: Store, tls: Tls | None, place: Path, say: Callable[[str], None]
) -> Iterator[Client]:
    """A scheduler in this process and workers in jobs of Slurm, which are cancelled in
    the end.  ``place`` is a directory that all nodes see."""
    for program in _SLURM_PROGRAMS:
        if shutil.which(program) is None:
            raise KstallError(
                f"--on slurm: needs {program}, which is not installed here",
                next="run this command on a machine that jobs are submitted from, or "
                "leave out --on",
            )
    submissions = _Submissions(place / "sbatch.log")
    cluster = slurm_cluster(text, store.url, tls, place, submissions=submissions)
    try:
        say(f"waiting for Slurm: {text}")
        # A client would connect only then, and could not be interrupted before.
        submissions.wait()
        with _client(cluster, None) as client:
            _wait(client, 1, None)
            yield client
    finally:
        with contextlib.suppress(Exception):
            cluster.close(timeout=_CANCEL_S)


def _job_class(base: Any, submissions: _Submissions) -> Any:
    """The class of jobs ``base``, of dask-jobqueue, with errors that are kept.

    Dask would print a traceback, and wait for the workers all the same.
    """

    async def submit(self: Any, script: str) -> str:
        argv = (_SLURM_PROGRAMS[0], script)
        child = await asyncio.create_subprocess_exec(
            *argv, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        try:
            streams = await asyncio.wait_for(child.communicate(), _SUBMIT_S)
        except TimeoutError as error:
            child.kill()
            raise process.Deadline(
                f"`{shlex.join(argv)}` ran longer than {_SUBMIT_S:g} s"
            ) from error
        answer, errors = (stream.decode(errors="replace") for stream in streams)
        if child.returncode:
            raise process.CommandError(argv, child.returncode, answer + errors)
        return answer

    async def start(self: Any) -> None:
        try:
            await base.start(self)
        except Exception as error:
            submissions.failed(error, self.job_script())
            # It has no number, and is not cancelled.
            await ProcessInterface.start(self)
        else:
            submissions.submitted += 1

    return type(base.__name__, (base,), {"_submit_job": submit, "start": start})


def slurm_cluster(
    text: str,
    store: str,
    tls: Tls | None,
    secrets: Path,
    scale: Callable[[Any, int], None] = lambda cluster, jobs: cluster.scale(jobs=jobs),
    submissions: _Submissions | None = None,
) -> Any:
    """Workers in jobs of Slurm, as ``slurm:queue=X,cores=8,memory=32GB,jobs=4`` says.

    Other words are those of `dask_jobqueue.SLURMCluster`.  Without ``tls``, temporary
    certificates are written to ``secrets``, which all nodes see; ``scale`` submits so
    many jobs, and ``submissions`` keeps what became of them.  Raises `KstallError` for
    an unknown word, and without dask-jobqueue.
    """
    cluster_class = _jobqueue().SLURMCluster
    words = [word for word in text.removeprefix(_SLURM).split(",") if word]
    pairs = dict(word.split("=", 1) for word in words if "=" in word)
    if len(pairs) != len(words) or not {"cores", "memory"} <= pairs.keys():
        raise KstallError(
            f"{text}: not understood",
            next="it looks like slurm:cores=8,memory=32GB,walltime=04:00:00,jobs=4",
        )
    try:
        cores, jobs = int(pairs.pop("cores")), int(pairs.pop("jobs", "1"))
    except ValueError as error:
        raise KstallError(f"{text}: {error}") from error
    if min(cores, jobs) < 1:
        raise KstallError(f"{text}: at least one job, of at least one core")
    submissions = submissions or _Submissions(secrets / "sbatch.log")
    submissions.jobs = jobs
    secrets.mkdir(mode=0o700, parents=True, exist_ok=True)
    security = temporary_certificates() if tls is None else tls.security()
    # Slurm reports killed jobs, so workers need no nanny.
    dask.config.set({"distributed.worker.daemon": False})
    try:
        cluster = cluster_class(
            job_cls=_job_class(cluster_class.job_cls, submissions),
            cores=cores,
            processes=1,
            worker_command="kstall worker",
            worker_extra_args=["--store", shlex.quote(store)],
            nanny=False,
            security=security,
            protocol="tls://",
            scheduler_options={"dashboard": False, "dashboard_address": NO_PAGE},
            shared_temp_directory=str(secrets),
            **pairs,
        )
    except (TypeError, ValueError) as error:
        raise KstallError(f"{text}: {error}") from error
    scale(cluster, jobs)
    return cluster
