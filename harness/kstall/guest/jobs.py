# SPDX-License-Identifier: GPL-2.0-or-later
"""The job that a guest is given, see ``job.py`` of ``kstall_guest``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .guest import Share

#: The directory of the job in the guest.
GUEST = Path("/run/kstall")
SCRIPTS = GUEST / "scripts"
#: The command that runs the job.
COMMAND = (
    "env",
    f"PYTHONPATH={GUEST / 'harness'}",
    "python3",
    "-m",
    "kstall_guest",
    str(GUEST / "job.json"),
)


def share(host: Path) -> Share:
    """The share of ``host``, the directory with the job and its results."""
    return Share(str(GUEST), host, writable=True)


def job(
    series: str,
    build_id: str,
    workloads: Sequence[dict[str, Any]],
    formats: Sequence[str] = (),
) -> dict[str, Any]:
    """A job for the kernel with ``build_id``, whose events' ``formats`` are kept."""
    return {
        "schema": 1,
        "series": series,
        "build_id": build_id,
        "modules": str(GUEST / "modules"),
        "results": str(GUEST / "results"),
        "scripts": str(SCRIPTS),
        "formats": list(formats),
        "workloads": list(workloads),
    }


def workload(
    name: str,
    argv: Sequence[str],
    deadline_s: float,
    *,
    modules: Sequence[str] = (),
    events: Sequence[str] = (),
    scripts: Sequence[str] = (),
    **more: Any,
) -> dict[str, Any]:
    """A workload of a job; ``more`` has further entries by the agent's names.

    ``events`` are traced by ftrace, and bpftrace runs ``scripts``.
    """
    return {
        "name": name,
        "argv": list(argv),
        "modules": list(modules),
        "events": list(events),
        "record": [],
        "bare": [],
        "bpftrace": [{"name": Path(file).stem, "script": file} for file in scripts],
        "deadline_s": deadline_s,
        **more,
    }
