# SPDX-License-Identifier: GPL-2.0-or-later
"""The tables of a store: times and durations in ns, NULL for unknown, never 0.

``id`` and ``sid`` are hashes of content, so that a recording has the same ids wherever
and however often it is sealed.  ``t0``, ``t1`` and ``t`` are CLOCK_MONOTONIC of the
node; only `align` compares times of two nodes.  ``unrecorded`` is JSON: for each class
that was not recorded the reason.  ``missing`` lists recordings that should be in the
store and are not, see the module `missing`.

``mark`` has the marks that a job writes.  ``collective`` has a row for each collective
in a rank's Flight Recorder dump: ``t`` is when the host thread enqueued it, up to
``bound`` before or after.  Its end is not known: ``started_by`` and ``ended_by`` are
when a watchdog saw that it had started and ended, ``lasted`` is how long the device was
in it, if that was timed.  ``thread`` is how ``tid`` is known, see `collective.THREADS`.
"""

from __future__ import annotations

#: Version of the store; stores of other versions are refused.
VERSION = 6

TABLES: dict[str, dict[str, str]] = {
    "session": {
        "sid": "VARCHAR",
        "node": "VARCHAR",
        "boot_id": "VARCHAR",
        "kernel": "VARCHAR",
        "instance": "VARCHAR",
        "began": "BIGINT",
        "ended": "BIGINT",
        "pages": "BIGINT",
        "facts": "BIGINT",
        "records": "BIGINT",
        "config": "VARCHAR",
        "unrecorded": "VARCHAR",
    },
    "proc": {
        "sid": "VARCHAR",
        "pid": "INTEGER",
        "starttime": "BIGINT",
        "ended": "BIGINT",
        "tgid": "INTEGER",
        "comm": "VARCHAR",
        "cgroup_id": "UBIGINT",
        "job": "VARCHAR",
        "rank": "INTEGER",
        "local_rank": "INTEGER",
        "world": "INTEGER",
    },
    "cgroup": {
        "sid": "VARCHAR",
        "cgroup_id": "UBIGINT",
        "path": "VARCHAR",
        "cpu_max": "VARCHAR",
        "container": "VARCHAR",
    },
    "stall": {
        "id": "UBIGINT",
        "sid": "VARCHAR",
        "t0": "BIGINT",
        "t1": "BIGINT",
        "tid": "INTEGER",
        "tgid": "INTEGER",
        "starttime": "BIGINT",
        "comm": "VARCHAR",
        "cgroup_id": "UBIGINT",
        "cpu": "INTEGER",
        "device": "VARCHAR",
        "class": "VARCHAR",
        "cause": "VARCHAR",
        "dur": "BIGINT",
        "value1": "BIGINT",
        "value2": "BIGINT",
        "join_key": "VARCHAR",
        "provider": "VARCHAR",
        "stack_id": "BIGINT",
    },
    "mark": {
        "sid": "VARCHAR",
        "t": "BIGINT",
        "tid": "INTEGER",
        "tgid": "INTEGER",
        "job": "VARCHAR",
        "rank": "INTEGER",
        "step": "BIGINT",
        "phase": "VARCHAR",
    },
    "collective": {
        "id": "UBIGINT",
        "sid": "VARCHAR",
        "t": "BIGINT",
        "bound": "BIGINT",
        "tid": "INTEGER",
        "tgid": "INTEGER",
        "thread": "VARCHAR",
        "job": "VARCHAR",
        "rank": "INTEGER",
        "world": "INTEGER",
        "process_group": "VARCHAR",
        "seq": "BIGINT",
        "op": "VARCHAR",
        "started_by": "BIGINT",
        "ended_by": "BIGINT",
        "lasted": "BIGINT",
    },
    "clock": {
        "sid": "VARCHAR",
        "t_mono": "BIGINT",
        "t_real": "BIGINT",
        "peer": "VARCHAR",
        "offset": "BIGINT",
        "bound": "BIGINT",
        "method": "VARCHAR",
    },
    "loss": {
        "sid": "VARCHAR",
        "cpu": "INTEGER",
        "t0": "BIGINT",
        "t1": "BIGINT",
        "n": "BIGINT",
        "reason": "VARCHAR",
    },
    "oracle": {
        "sid": "VARCHAR",
        "provider": "VARCHAR",
        "scope": "VARCHAR",
        "metric": "VARCHAR",
        "ours": "BIGINT",
        "theirs": "BIGINT",
        "verdict": "VARCHAR",
        "until": "BIGINT",
    },
    "missing": {
        "kind": "VARCHAR",
        "place": "VARCHAR",
        "node": "VARCHAR",
        "sid": "VARCHAR",
        "boot_id": "VARCHAR",
        "began": "BIGINT",
        "ended": "BIGINT",
        "reason": "VARCHAR",
    },
}

#: The findings of `explain` as a table for queries.  It is made on demand and not
#: stored, as the rules may change.
FINDING = {
    "id": "VARCHAR",
    "job": "VARCHAR",
    "process_group": "VARCHAR",
    "start": "VARCHAR",
    "rank": "INTEGER",
    "node": "VARCHAR",
    "sid": "VARCHAR",
    "tid": "INTEGER",
    "class": "VARCHAR",
    "cause": "VARCHAR",
    "level": "VARCHAR",
    "severity": "VARCHAR",
    "coverage": "DOUBLE",
    "impact": "DOUBLE",
    "n": "BIGINT",
    "lost_ns": "BIGINT",
    "late": "INTEGER",
    "covered": "INTEGER",
    "p": "DOUBLE",
    "caps": "VARCHAR[]",
    "evidence": "UBIGINT[]",
    "text": "VARCHAR",
}

#: The classes of stalls, each a series of patches and a fallback on stock kernels.
CLASSES = ("throttle", "drm", "rdma", "aer", "iotlb", "io_uring", "mmu")


def ddl() -> str:
    """SQL that makes the tables."""
    statements = [
        f"CREATE TABLE meta(version INTEGER DEFAULT {VERSION})",
        "INSERT INTO meta DEFAULT VALUES",
    ]
    for table, columns in TABLES.items():
        body = ", ".join(f'"{name}" {kind}' for name, kind in columns.items())
        statements.append(f'CREATE TABLE "{table}"({body})')
    return ";\n".join(statements)
