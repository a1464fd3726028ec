# SPDX-License-Identifier: GPL-2.0-or-later
"""rdma-cq's checks of what is linked to what: each notices what is not so."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from kstall.evidence import Evidence, WorkloadResult

Fact = dict[str, Any]
SHARED, OWN = 3, 4
MAKER, PROCESS = 12, 11
RTS, ERR = 3, 6


@pytest.fixture(scope="module")
def checks(project_root: Path) -> ModuleType:
    path = project_root / "patches/rdma-cq/checks.py"
    spec = importlib.util.spec_from_file_location("rdma_cq_checks", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _cq(name: str, number: int, depth: int, posted: int, polled: int) -> Fact:
    return {
        "what": "cq",
        "cq": name,
        "device": "rxe0",
        "id": number,
        "depth": depth,
        "users": 2,
        "posted": posted,
        "polled": polled,
        "maker": MAKER,
        "process": PROCESS,
        "comm": "cq-maker",
    }


def _events() -> list[Fact]:
    fields = {
        "cq_id": SHARED,
        "event": 0,
        "cqe": 3,
        "usecnt": 2,
        "pid": MAKER,
        "tgid": PROCESS,
        "device": "rxe0",
        "owner": "cq-maker",
    }
    who = {"cpu": 0, "pid": 9, "tgid": 9, "comm": "kworker/0:1"}
    name = "rdma_core:cq_async_event"
    return [{"event": name, "ts": ts, "fields": {**fields}, **who} for ts in _TIMES]


#: Nanoseconds: each event, and when the queue pair was seen to be dead.
_TIMES = (10_000, 50_000)
_DIED = {"what": "died", "first": 20_000, "second": 60_000}


def _evidence(place: Path, spoil: Callable[[list[Fact], list[Fact]], None]) -> Evidence:
    folder = place / "follow"
    folder.mkdir()
    facts = [
        _cq("shared", SHARED, 3, 5, 3),
        _cq("own", OWN, 7, 1, 1),
        {"what": "qp", "qp": "first", "state": ERR},
        {"what": "qp", "qp": "second", "state": ERR},
        {"what": "qp", "qp": "third", "state": RTS},
        dict(_DIED),
    ]
    told = _events()
    spoil(facts, told)
    (folder / "stdout").write_text("".join(json.dumps(s) + "\n" for s in facts))
    (folder / "record.jsonl").write_text("".join(json.dumps(t) + "\n" for t in told))
    load = WorkloadResult("follow", folder, {}, {})
    return Evidence(place, {}, {"follow": load}, {})


def _set(number: int, key: str, value: object) -> Callable[..., None]:
    def spoil(facts: list[Fact], told: list[Fact]) -> None:
        facts[number][key] = value

    return spoil


def _tell(number: int, key: str, value: object) -> Callable[..., None]:
    def spoil(facts: list[Fact], told: list[Fact]) -> None:
        told[number]["fields"][key] = value

    return spoil


def _at(number: int, ts: int) -> Callable[..., None]:
    def spoil(facts: list[Fact], told: list[Fact]) -> None:
        told[number]["ts"] = ts

    return spoil


def _one_event(facts: list[Fact], told: list[Fact]) -> None:
    told.pop()


def _qp_event(facts: list[Fact], told: list[Fact]) -> None:
    told.append({**told[0], "ts": 60_000, "event": "rdma_core:qp_async_event"})


def _as_it_was(facts: list[Fact], told: list[Fact]) -> None:
    pass


AGAIN = "again after that, and before the second was"


@pytest.mark.parametrize(
    ("spoil", "wrong"),
    [
        pytest.param(_as_it_was, set(), id="as it was"),
        pytest.param(_set(2, "state", RTS), {"first target"}, id="first lives"),
        pytest.param(_set(3, "state", RTS), {"second target"}, id="second lives"),
        pytest.param(_set(4, "state", ERR), {"third target"}, id="third dies"),
        pytest.param(_set(1, "polled", 0), {"completions in the third's"}, id="no use"),
        pytest.param(_set(0, "posted", 6), {"lost"}, id="one more lost"),
        pytest.param(_one_event, {"events"}, id="an event is missing"),
        pytest.param(_tell(1, "usecnt", 1), {"events"}, id="another user count"),
        pytest.param(
            _tell(1, "cq_id", OWN),
            {"events", "cq_async_event of other queues"},
            id="the other queue",
        ),
        pytest.param(_qp_event, {"qp_async_event"}, id="a queue pair's event"),
        pytest.param(
            _at(0, 30_000), {"failed before the first was seen to be dead"}, id="late"
        ),
        pytest.param(_at(1, 70_000), {AGAIN}, id="after the second"),
        pytest.param(_at(1, 15_000), {AGAIN}, id="before the first"),
    ],
)
def test_queue_pairs_follow_their_queue(
    checks: ModuleType,
    tmp_path: Path,
    spoil: Callable[[list[Fact], list[Fact]], None],
    wrong: set[str],
) -> None:
    verdict = checks.queue_pairs_follow_their_queue(_evidence(tmp_path, spoil))
    assert {
        comparison.label for comparison in verdict.comparisons if not comparison.ok
    } == wrong
