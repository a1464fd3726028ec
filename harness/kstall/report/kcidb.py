# SPDX-License-Identifier: GPL-2.0-or-later
"""``kcidb.json``: a run as the kernel's common CI database takes it.

kcidb-io has the schema and validates.  A series is a checkout (the base and a
patchset), its kernel a build, each check and each stage beside the build a test.  To
configure a kernel is part of its build.  A build that was not reached, or that an error
of the harness stopped, has the status MISS, so that what was found out before it is not
lost.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kcidb_io

from ..base import KstallError, Status, cache
from .cases import Case, Suite, suites
from .plain import printable
from .report import Report, SeriesReport

#: Whose results these are, until one who submits them puts a name of their own there.
ORIGIN = "kstall"
_SCHEMA = kcidb_io.schema.V5_3
_LONGEST = 16384
_STATUS: dict[Status, str] = {"pass": "PASS", "fail": "FAIL", "skip": "SKIP"}
_STOPPED = ("fail", "error")
_OF_THE_BUILD = ("apply", "base", "fixed", "config", "build")
_WITHOUT_A_GUEST = ("patches", "compile", "binaries", "programs")


def write(report: Report, path: Path) -> None:
    """Write ``kcidb.json``, whole or not at all; `KstallError` if it is not valid."""
    made = data(report)
    validate(made)
    cache.write_text(path, json.dumps(made, indent=2) + "\n")


def validate(made: dict[str, Any]) -> None:
    """Raises `KstallError` with the schema's complaint."""
    if not _SCHEMA.is_valid_exactly(made):
        try:
            _SCHEMA.validate_exactly(made)
        except Exception as error:
            what = getattr(error, "message", str(error))
            where = "/".join(map(str, getattr(error, "absolute_path", ())))
            raise KstallError(
                f"{where}: no KCIDB of schema {_SCHEMA.major}.{_SCHEMA.minor}: {what}"
            ) from error


def data(report: Report) -> dict[str, Any]:
    """The run as the schema's objects."""
    found: dict[str, Any] = {
        "version": {"major": _SCHEMA.major, "minor": _SCHEMA.minor},
        "checkouts": [],
        "builds": [],
        "tests": [],
    }
    if report.tree is None:
        return found
    cases = {suite.name: suite for suite in suites(report)}
    for series in report.series:
        stages = {one.name: one.status for one in series.stages}
        if stages.get("apply") not in ("pass", "fail", "does-not-apply"):
            continue
        identity = _identity(report, series)
        found["checkouts"].append(_checkout(report, series, identity))
        if stages["apply"] == "pass":
            found["builds"].append(_build(report, series, identity))
            found["tests"] += _tests(report, series, cases[series.name], identity)
    return found


def _identity(report: Report, series: SeriesReport) -> str:
    """Of a series in a run: two machines may begin runs of one name."""
    tail = cache.digest(report.started, report.environment.host, series.digest)
    return f"{ORIGIN}:{report.run}-{series.name}-{tail}"


def _checkout(report: Report, series: SeriesReport, identity: str) -> dict[str, Any]:
    tree = report.tree
    assert tree is not None
    hashes = "".join(f"{one.sha256}\n" for one in series.patches)
    made: dict[str, Any] = {
        "id": identity,
        "origin": ORIGIN,
        "comment": f"{series.name}: {series.title}, on {tree.version}",
        "start_time": report.started,
        "patchset_hash": hashlib.sha256(hashes.encode()).hexdigest(),
        "valid": _stage_of(series, "apply").status == "pass",
        "misc": {
            "tree": {"kind": tree.kind, "describe": tree.describe, "id": tree.id},
            "patches": [one.file for one in series.patches],
        },
    }
    if tree.commit is not None and len(tree.commit) == 40:
        made["git_commit_hash"] = tree.commit
        made["git_commit_name"] = tree.describe
    if error := _stage_of(series, "apply").error:
        made["log_excerpt"] = _excerpt(error)
    return made


def _build(report: Report, series: SeriesReport, identity: str) -> dict[str, Any]:
    # If the configuration failed, nothing was built: report that failure instead.
    stages = [one for one in series.stages if one.name in ("config", "build")]
    if not stages:
        # It shares a kernel; the last that was tried is the one.
        shared = [one for one in report.stages if one.name in ("config", "build")]
        stages = shared[-2:] if series.kernel is not None else []
    stage = next(
        (one for one in stages if one.name == "build" or one.status in _STOPPED), None
    )
    made: dict[str, Any] = {
        "id": identity,
        "checkout_id": identity,
        "origin": ORIGIN,
        "architecture": report.environment.arch,
        "config_name": series.name,
        "status": "MISS",
        "comment": "not reached",
    }
    if report.environment.compiler:
        made["compiler"] = report.environment.compiler
    if stage is not None:
        made |= {
            "duration": stage.seconds,
            # What stopped without a fault of the sources says nothing of them.
            "status": _STATUS.get(stage.status, "MISS"),
            "comment": stage.summary,
            # A build of an earlier run that is used again took its time there.
            "misc": {"reused": stage.reused, "kernel": series.kernel or ""},
        }
        if stage.error:
            made["log_excerpt"] = _excerpt(stage.error)
    return made


def _tests(
    report: Report, series: SeriesReport, suite: Suite, identity: str
) -> Iterator[dict[str, Any]]:
    environment = report.environment
    where = {
        "comment": f"QEMU guest, {environment.accelerator or 'not booted'}",
        "misc": {"qemu": environment.qemu or "", "host": environment.host},
    }
    on_the_host = {one.name for one in series.checks if one.kind == "patch"}
    on_the_host |= {*_WITHOUT_A_GUEST}
    for case in suite.cases:
        if case.kind == "stage" and case.name in _OF_THE_BUILD:
            continue
        made: dict[str, Any] = {
            "id": f"{identity}-{case.kind}-{case.name}",
            "build_id": identity,
            "origin": ORIGIN,
            "path": f"kstall.{suite.name}.{case.kind}.{case.name}",
            "status": _status(case),
            "comment": _excerpt(case.message),
        }
        if case.name not in on_the_host:
            made["environment"] = where
        if case.seconds is not None:
            made["duration"] = case.seconds
        if case.text and case.status in ("fail", "error"):
            made["log_excerpt"] = _excerpt(case.text)
        yield made


def _status(case: Case) -> str:
    """A stage that ended in an error is the harness's, a check is the test's own."""
    if case.status == "error":
        return "MISS" if case.kind == "stage" else "ERROR"
    return _STATUS[case.status]


def _stage_of(series: SeriesReport, name: str) -> Any:
    return next(stage for stage in series.stages if stage.name == name)


def _excerpt(text: str) -> str:
    """The end of ``text``, where errors are, as long as the database takes it."""
    return printable(text)[-_LONGEST:]
