# SPDX-License-Identifier: GPL-2.0-or-later
"""``python3 -m kstall_guest JOB.json``: do a job inside the guest.

The outcome is in ``<results>/agent.json``, which is rewritten after each step: a panic
in the third workload leaves the results of the first two.  The exit status is 0 if
every workload was attempted, with any outcome, and 1 if the job as a whole could not be
done (agent.json has the reason, if it could be written).
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from . import job as jobs
from . import session
from .errors import GuestError, NoModule, TracefsError, WrongKernel
from .files import write_json
from .tracefs import Tracefs

SCHEMA = 1
_TRACEFS = Path("/sys/kernel/tracing")
_DEBUGFS = Path("/sys/kernel/debug")


def main(argv: Sequence[str]) -> int:
    """Do the job of the file in ``argv``; returns the exit status."""
    if len(argv) != 1:
        print("usage: python3 -m kstall_guest JOB.json", file=sys.stderr)
        return 1
    try:
        job = jobs.load(Path(argv[0]))
    except GuestError as error:
        print(f"kstall_guest: {error}", file=sys.stderr)
        return 1
    report = Report(job)
    try:
        _do(job, report)
    except GuestError as error:
        report.update(status="failed", error=error.as_json())
        print(f"kstall_guest: {error}", file=sys.stderr)
        return 1
    report.update(status="completed")
    os.sync()
    return 0


class Report:
    """agent.json, rewritten on every update."""

    def __init__(self, job: jobs.Job) -> None:
        self._path = job.results / "agent.json"
        self._value: dict[str, Any] = {
            "schema": SCHEMA,
            "series": job.series,
            "status": "running",
            "error": None,
            "workloads": [],
        }
        self.update()

    def update(self, **values: Any) -> None:
        """Add or replace ``values``, and write the file."""
        self._value.update(values)
        write_json(self._path, self._value)

    def workload(self, entry: dict[str, Any]) -> None:
        """Add a workload's entry; it replaces an earlier entry of that workload."""
        known = [w for w in self._value["workloads"] if w["name"] != entry["name"]]
        self.update(workloads=[*known, entry])


def _do(job: jobs.Job, report: Report) -> None:
    release = os.uname().release
    build_id = gnu_build_id(Path("/sys/kernel/notes").read_bytes())
    versions = _versions()
    report.update(
        build_id=build_id,
        release=release,
        cmdline=Path("/proc/cmdline").read_text().strip(),
        versions=versions,
    )
    if build_id != job.build_id:
        raise WrongKernel(
            f"the running kernel ({release}) has build id {build_id or 'none'}, "
            f"the job is about {job.build_id}"
        )
    _mount("tracefs", _TRACEFS, "events")
    _mount("debugfs", _DEBUGFS, "")
    unloadable = _modprobe(job)
    report.update(modules={n: unloadable.get(n) for n in job.all_modules()})
    machine = session.Machine(Tracefs(_TRACEFS), bpftrace_version=versions["bpftrace"])
    formats = session.save_formats(machine.tracefs, job.all_formats(), job.results)
    report.update(formats=formats)

    def run(load: jobs.Workload, name: str) -> float:
        report.workload({"name": name, "status": "running"})
        entry = _run(job, machine, unloadable, load, job.results / name)
        report.workload({**entry, "name": name})
        return entry.get("seconds") or 0.0

    if job.stress is None:
        for load in job.workloads:
            run(load, load.name)
    else:
        # Only guests of debug kernels have this module.
        from . import stress  # noqa: PLC0415

        stress.run(
            job,
            job.stress,
            stress.System(machine.tracefs),
            run,
            lambda facts: report.update(stress=facts),
        )


def _run(
    job: jobs.Job,
    machine: session.Machine,
    unloadable: dict[str, str],
    load: jobs.Workload,
    results: Path,
) -> dict[str, Any]:
    """Run a workload, and return its entry in agent.json."""
    broken = [name for name in load.modules if name in unloadable]
    if broken:
        error = NoModule(unloadable[broken[0]]).as_json()
        return {"status": "failed-to-start", "error": error, "errors": [error]}
    return session.run(machine, load, job.scripts, results)


def gnu_build_id(notes: bytes) -> str:
    """The NT_GNU_BUILD_ID in a run of ELF notes, in hex; empty if there is none."""
    position = 0
    while position + 12 <= len(notes):
        sizes = [
            int.from_bytes(notes[position + at : position + at + 4], sys.byteorder)
            for at in (0, 4, 8)
        ]
        name_size, desc_size, kind = sizes
        name_at = position + 12
        desc_at = name_at + (name_size + 3) // 4 * 4
        if kind == 3 and notes[name_at : name_at + name_size] == b"GNU\0":
            return notes[desc_at : desc_at + desc_size].hex()
        position = desc_at + (desc_size + 3) // 4 * 4
    return ""


def _versions() -> dict[str, str]:
    versions = {
        "kernel": Path("/proc/version").read_text().strip(),
        "python": sys.version.split()[0],
    }
    # `bpftrace --version` would load LLVM, which takes seconds under TCG.
    status = Path("/var/lib/dpkg/status")
    text = status.read_text(errors="replace") if status.exists() else ""
    match = re.search(r"^Package: bpftrace\n(?:.+\n)*?Version: (\S+)", text, re.M)
    versions["bpftrace"] = match[1] if match else "unknown"
    return versions


def _mount(kind: str, where: Path, proof: str) -> None:
    if proof and (where / proof).exists():
        return
    if not proof and os.path.ismount(where):
        return
    done = subprocess.run(
        ["mount", "-t", kind, kind, str(where)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise TracefsError(f"cannot mount {kind} on {where}: {done.stdout.strip()}")


def _modprobe(job: jobs.Job) -> dict[str, str]:
    """Load every module; returns modprobe's messages by the modules that failed."""
    failed = {}
    for name in job.all_modules():
        done = subprocess.run(
            ["modprobe", "-d", str(job.modules), name],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            message = done.stdout.strip() or f"exit status {done.returncode}"
            failed[name] = f"modprobe {name}: {message}"
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
