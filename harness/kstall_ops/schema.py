# SPDX-License-Identifier: GPL-2.0-or-later
"""The tables of a store: times and durations in ns, NULL for unknown, never 0.

``id`` and ``sid`` are hashes of content, so that the same recording gets the same ones
wherever and however often it is sealed.  ``t0``, ``t1`` and ``t`` are CLOCK_MONOTONIC
of the node; only `align` compares those of two nodes.  ``unrecorded`` is JSON: why a
class was not recorded, of each that was not.  ``missing`` is what is not in the store,
though it was to be: `missing`.

``mark`` is what a job writes itself.  ``collective`` is what it did not have to: one
row for each that a rank's Flight Recorder dump has, ``t`` being when the host thread
enqueued it, up to ``bound`` before or after.  Its end is not known: ``started_by`` and
``ended_by`` are when somebody saw that it had, ``lasted`` is how long the device was in
it, if that was timed.  ``thread`` says how ``tid`` is known: `collective`.
"""

from __future__ import annotations

#: Of the store; a store of another one is refused.
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

#: What `explain` finds, for queries: made when one asks, and in no store, as the rules
#: for it may change.
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
    made = [
        f"CREATE TABLE meta(version INTEGER DEFAULT {VERSION})",
        "INSERT INTO meta DEFAULT VALUES",
    ]
    for table, columns in TABLES.items():
        body = ", ".join(f'"{name}" {kind}' for name, kind in columns.items())
        made.append(f'CREATE TABLE "{table}"({body})')
    return ";\n".join(made)
