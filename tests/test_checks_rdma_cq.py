# SPDX-License-Identifier: GPL-2.0-or-later
"""rdma-cq's checks of what is linked to what: each notices what is not so."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from kstall.evidence import Evidence, WorkloadResult
from kstall.verdict import run_check

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
    return _saved(place, "follow", facts, told)


def _saved(place: Path, name: str, facts: list[Fact], told: list[Fact]) -> Evidence:
    folder = place / name
    folder.mkdir()
    (folder / "stdout").write_text("".join(json.dumps(s) + "\n" for s in facts))
    (folder / "record.jsonl").write_text("".join(json.dumps(t) + "\n" for t in told))
    return Evidence(place, {}, {name: WorkloadResult(name, folder, {}, {})}, {})


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


# -- writes with a wrong key -----------------------------------------------------------

QP_MAKER = 13
FIGURES = "of these with other figures"
#: Ids of the send and receive queue and numbers of the queue pairs, by run.
RUNS = {
    "plain": (15, 16, 27, 28),
    "immediate": (17, 18, 29, 30),
    "overrun": (19, 20, 31, 32),
}


def _badkey() -> tuple[list[Fact], dict[str, Fact]]:
    """What the program prints, and the events by what they are about."""
    facts: list[Fact] = []
    told: dict[str, Fact] = {}
    name = "rdma_core:qp_async_event"
    for at, (run, (send, receive, writer, target)) in enumerate(RUNS.items(), 1):
        lost = 4 if run == "overrun" else 0
        failed = {"send": 1 - bool(lost), "receive": int(run == "immediate")}
        for queue in (
            _cq("send", send, 7, 7 + lost, 7),
            _cq("receive", receive, 31, 0, 0),
        ):
            errors = lost if queue["cq"] == "send" else 0
            more = {"errors": errors, "failed": failed[queue["cq"]]}
            facts.append({**queue, "run": run, **more})
        common = {"device": "rxe0", "scq_id": send, "rcq_id": receive, "qp_type": 2}
        owner = {"maker": QP_MAKER, "process": PROCESS, "comm": "qp-maker"}
        for pair, number in (("writer", writer), ("target", target)):
            errors = int(pair == "target" and run != "immediate")
            fact = {"what": "qp", "run": run, "qp": pair, "number": number}
            fact |= {"device": "rxe0", "scq": send, "rcq": receive, "state": ERR}
            facts.append({**fact, **owner, "access_errors": errors, "others": 0})
            if errors:
                fields = {**common, "qp_num": number, "event": 3}
                fields |= {"pid": QP_MAKER, "tgid": PROCESS, "owner": "qp-maker"}
                base = {**_events()[0], "event": name, "ts": at * 10_000}
                told[run] = {**base, "fields": fields}
    for turn in range(4):
        event = _events()[0]
        event["fields"] |= {"cq_id": RUNS["overrun"][0], "cqe": 7}
        # The last one is that of the wrong key, after the queue pair's event.
        event["ts"] = 25_000 + turn + (turn == 3) * 10_000
        told[f"lost {turn}"] = event
    return facts, told


@pytest.mark.parametrize(
    ("event", "fields", "wrong"),
    [
        ("plain", {}, set()),
        ("plain", {"pid": PROCESS}, {"plain: target: event"}),
        ("overrun", {"tgid": QP_MAKER}, {"overrun: target: event"}),
        # Who created its queues is not who created the queue pair.
        ("overrun", {"owner": "cq-maker", "pid": MAKER}, {"overrun: target: event"}),
    ],
)
def test_the_owner_of_a_queue_pair(
    checks: ModuleType,
    tmp_path: Path,
    event: str,
    fields: Fact,
    wrong: set[str],
) -> None:
    facts, told = _badkey()
    told[event]["fields"] |= fields
    saved = _saved(tmp_path, "badkey", facts, [*told.values()])
    assert _wrong(checks.bad_key_is_an_event_of_the_target(saved)) == wrong


@pytest.mark.parametrize(
    ("fields", "wrong"),
    [
        ({}, set()),
        ({"cqe": 31}, {FIGURES}),
        ({"usecnt": 1}, {FIGURES}),
        ({"pid": PROCESS}, {FIGURES}),
        ({"tgid": MAKER}, {FIGURES}),
        ({"owner": "badkey"}, {FIGURES}),
        ({"event": 1}, {FIGURES}),
    ],
)
def test_figures_of_a_queue_that_nobody_polls(
    checks: ModuleType, tmp_path: Path, fields: Fact, wrong: set[str]
) -> None:
    facts, told = _badkey()
    told["lost 3"]["fields"] |= fields
    saved = _saved(tmp_path, "badkey", facts, [*told.values()])
    assert _wrong(checks.qp_event_names_its_queues(saved)) == wrong


RXE = "rdma_rxe: rxe0: queue full\n"


@pytest.mark.parametrize(
    ("kmsg", "told", "status"),
    [
        (RXE * 2, 2, "pass"),
        (RXE * 2, 1, "fail"),
        # What other kernels may log.
        (RXE * 2 + "siw: siw0: CQ overflow\n", 2, "skip"),
        (RXE, 2, "skip"),
        (RXE + "rdma_rxe: rxe0: queue full of cq-maker\n", 2, "skip"),
    ],
)
def test_a_kernel_that_logs_more_is_not_at_fault(
    checks: ModuleType, kmsg: str, told: int, status: str
) -> None:
    events = [SimpleNamespace(fields={"device": "siw0"})] * told
    load = SimpleNamespace(kmsg=kmsg, events=lambda name: events)
    saved = SimpleNamespace(workload=lambda name: load)
    judge = checks.soft_iwarp_logs_nothing
    assert run_check("it", "invariant", "", judge, saved).status == status


def _wrong(verdict: Any) -> set[str]:
    return {comparison.label for comparison in verdict.comparisons if not comparison.ok}
