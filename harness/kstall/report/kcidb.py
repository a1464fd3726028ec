# SPDX-License-Identifier: GPL-2.0-or-later
"""``kcidb.json``: a run in the format of the kernel's common CI database.

kcidb-io has the schema and validates.  A series is a checkout (the base and a
patchset), its kernel a build, each check and each other stage a test.  Configuring a
kernel is part of its build.  A build that was not reached, or that an error of the
harness stopped, has the status MISS, so that earlier results are not lost.
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

#: The origin of the results; whoever submits them replaces it.
ORIGIN = "kstall"
_SCHEMA = kcidb_io.schema.V5_3
_LONGEST = 16384
_STATUS: dict[Status, str] = {"pass": "PASS", "fail": "FAIL", "skip": "SKIP"}
_STOPPED = ("fail", "error")
_OF_THE_BUILD = ("apply", "base", "fixed", "config", "build")
_WITHOUT_A_GUEST = ("patches", "compile", "binaries", "programs")


def write(report: Report, path: Path) -> None:
    """Write ``kcidb.json`` atomically; `KstallError` if it is not valid."""
    objects = data(report)
    validate(objects)
    cache.write_text(path, json.dumps(objects, indent=2) + "\n")


def validate(objects: dict[str, Any]) -> None:
    """Raise `KstallError` with the error of the schema, if there is one."""
    if not _SCHEMA.is_valid_exactly(objects):
        try:
            _SCHEMA.validate_exactly(objects)
        except Exception as error:
            message = getattr(error, "message", str(error))
            where = "/".join(map(str, getattr(error, "absolute_path", ())))
            raise KstallError(
                f"{where}: no KCIDB of schema {_SCHEMA.major}.{_SCHEMA.minor}: "
                f"{message}"
            ) from error


def data(report: Report) -> dict[str, Any]:
    """The run as the schema's objects."""
    objects: dict[str, Any] = {
        "version": {"major": _SCHEMA.major, "minor": _SCHEMA.minor},
        "checkouts": [],
        "builds": [],
        "tests": [],
    }
    if report.tree is None:
        return objects
    cases = {suite.name: suite for suite in suites(report)}
    for series in report.series:
        stages = {stage.name: stage.status for stage in series.stages}
        if stages.get("apply") not in ("pass", "fail", "does-not-apply"):
            continue
        identity = _identity(report, series)
        objects["checkouts"].append(_checkout(report, series, identity))
        if series.applies:
            objects["builds"].append(_build(report, series, identity))
            objects["tests"] += _tests(report, series, cases[series.name], identity)
    return objects


def _identity(report: Report, series: SeriesReport) -> str:
    """The id of a series in a run; two machines may start runs of the same name."""
    tail = cache.digest(report.started, report.environment.host, series.digest)
    return f"{ORIGIN}:{report.run}-{series.name}-{tail}"


def _checkout(report: Report, series: SeriesReport, identity: str) -> dict[str, Any]:
    tree = report.tree
    assert tree is not None
    hashes = "".join(f"{patch.sha256}\n" for patch in series.patches)
    checkout: dict[str, Any] = {
        "id": identity,
        "origin": ORIGIN,
        "comment": f"{series.name}: {series.title}, on {tree.version}",
        "start_time": report.started,
        "patchset_hash": hashlib.sha256(hashes.encode()).hexdigest(),
        "valid": series.applies,
        "misc": {
            "tree": {"kind": tree.kind, "describe": tree.describe, "id": tree.id},
            "patches": [patch.file for patch in series.patches],
        },
    }
    if tree.commit is not None and len(tree.commit) == 40:
        checkout["git_commit_hash"] = tree.commit
        checkout["git_commit_name"] = tree.describe
    if error := series.stage("apply").error:
        checkout["log_excerpt"] = _excerpt(error)
    return checkout


def _build(report: Report, series: SeriesReport, identity: str) -> dict[str, Any]:
    # If the configuration failed, nothing was built: report that failure.
    stages = [stage for stage in series.stages if stage.name in ("config", "build")]
    if not stages:
        # It shares a kernel: the last one that was tried.
        shared = [stage for stage in report.stages if stage.name in ("config", "build")]
        stages = shared[-2:] if series.kernel is not None else []
    stage = next(
        (
            stage
            for stage in stages
            if stage.name == "build" or stage.status in _STOPPED
        ),
        None,
    )
    build: dict[str, Any] = {
        "id": identity,
        "checkout_id": identity,
        "origin": ORIGIN,
        "architecture": report.environment.arch,
        "config_name": series.name,
        "status": "MISS",
        "comment": "not reached",
    }
    if report.environment.compiler:
        build["compiler"] = report.environment.compiler
    if stage is not None:
        build |= {
            "duration": stage.seconds,
            # An error of the harness says nothing about the sources.
            "status": _STATUS.get(stage.status, "MISS"),
            "comment": stage.summary,
            # A reused build took its time in an earlier run.
            "misc": {"reused": stage.reused, "kernel": series.kernel or ""},
        }
        if stage.error:
            build["log_excerpt"] = _excerpt(stage.error)
    return build


def _tests(
    report: Report, series: SeriesReport, suite: Suite, identity: str
) -> Iterator[dict[str, Any]]:
    environment = report.environment
    where = {
        "comment": f"QEMU guest, {environment.accelerator or 'not booted'}",
        "misc": {"qemu": environment.qemu or "", "host": environment.host},
    }
    on_the_host = {check.name for check in series.checks if check.kind == "patch"}
    on_the_host |= {*_WITHOUT_A_GUEST}
    for case in suite.cases:
        if case.kind == "stage" and case.name in _OF_THE_BUILD:
            continue
        test: dict[str, Any] = {
            "id": f"{identity}-{case.kind}-{case.name}",
            "build_id": identity,
            "origin": ORIGIN,
            "path": f"kstall.{suite.name}.{case.kind}.{case.name}",
            "status": _status(case),
            "comment": _excerpt(case.message),
        }
        if case.name not in on_the_host:
            test["environment"] = where
        if case.seconds is not None:
            test["duration"] = case.seconds
        if case.text and case.status in ("fail", "error"):
            test["log_excerpt"] = _excerpt(case.text)
        yield test


def _status(case: Case) -> str:
    """An error in a check is the test's (ERROR), any other the harness's (MISS)."""
    if case.status == "error":
        return "ERROR" if case.kind == "check" else "MISS"
    return _STATUS[case.status]


def _excerpt(text: str) -> str:
    """The end of ``text``, where errors are, as long as the database accepts."""
    return printable(text)[-_LONGEST:]
