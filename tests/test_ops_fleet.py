# SPDX-License-Identifier: GPL-2.0-or-later
"""Recordings of a fleet of agents, some of which are not well."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kstall_ops import cli, errors, explain, fleet, seal, store, wording
from processes import descendants
from recordings import BEGAN, SECOND, Node, Training, culprit

AGENT = Path(__file__).with_name("fake_agent.py")


def via(
    tmp_path: Path, hows: dict[str, str], ahead: dict[str, int] | None = None
) -> str:
    """A command line that starts an agent for ``{node}``, as ssh would."""
    for node, how in hows.items():
        script = tmp_path / f"reach-{node}"
        script.write_text(
            f"#!/bin/sh\nAHEAD={(ahead or {}).get(node, 0)} exec {sys.executable} "
            f"{AGENT} {tmp_path}/rec/{node} {how}\n"
        )
        script.chmod(0o755)
    return f"{tmp_path}/reach-{{node}}"


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Nodes for which a limit, ``silence`` or ``whole``, is as short as asked for.

    All other limits are long: a busy machine takes its time to start an agent.
    """
    nodes: dict[str, str] = {}
    pull_node = fleet._pull_node

    def pull(argv: list[str], node: str, limits: Any, top: Path) -> Any:
        long = {name: 600.0 for name in ("silence", "whole") if name != nodes.get(node)}
        return pull_node(argv, node, replace(limits, **long), top)

    monkeypatch.setattr(fleet, "_pull_node", pull)
    return nodes


def write(tmp_path: Path, job: Training) -> None:
    job.write(tmp_path / "rec")


def test_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, culprit())
    reach = via(tmp_path, dict.fromkeys(("node0", "node1", "node2"), "ok"))
    words = ["fleet", "pull", "-w", "node[0-2]", "--via", reach]
    made = tmp_path / "s.duckdb"
    assert cli.main([*words, "-o", str(made)]) == 0
    said = capsys.readouterr().out
    assert "3 of 3 nodes, 3 recordings sealed" in said
    (late,) = explain.report(made).verdicts[0].stragglers
    assert (late.rank, late.explained) == (1, True)
    # Again: nothing is new, and nothing was left behind.
    before = made.read_bytes()
    assert cli.main([*words, "-o", str(made)]) == 0
    assert "0 recordings sealed, 3 were there already" in capsys.readouterr().out
    assert made.read_bytes() == before
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_some(tmp_path: Path, short: dict[str, str]) -> None:
    write(tmp_path, culprit())
    short |= {"stopped": "silence", "slow": "whole"}
    hows = {
        "node1": "ok",
        "dead": "dead",
        "stopped": "stopped",
        "old": "old",
        "node0": "killed",
        "motd": "garbage",
        "evil": "escape",
        "none": "error",
        "slow": "slow",
        "deep": "deep",
        "node2": "ok",
    }
    with (tmp_path / "rec/node2/facts.jsonl").open("a") as file:
        file.write('{"kind": "proc", "pid": "forty"}\n')
    reach = via(tmp_path, hows)
    pulled = fleet.pull(list(hows), reach, tmp_path / "s.duckdb", timeout=2, limit=5)
    assert pulled.status == fleet.SOME == 3
    assert pulled.summary.startswith("1 of 11 nodes, 1 recordings sealed")
    said = {one.node: one.outcome for one in pulled.nodes}
    assert {one.node for one in pulled.nodes if one.ok} == {"node1"}
    assert said["dead"] == (
        "ended before it answered, status 255: ssh: connect to host: No route to host"
    )
    assert said["stopped"] == "silent for 2 s: stopped, or far away"
    assert said["old"].startswith("its agent speaks version 0, this kstall 1")
    assert said["node0"] == "ended in the middle, status -9"
    assert said["motd"] == (r'said "\x1b[1mWelcome to \xfcber-node7!": not an agent')
    assert "which is no file of a recording" in said["evil"]
    assert said["slow"] == "not done in 5 s"
    assert said["deep"].endswith("[': not an agent") or "[[" in said["deep"]
    assert "its facts do not fit" in said["node2"]
    assert said["none"] == (r"its agent says: no recording\x1b[31m in /var/lib/kstall")
    _, rows, _ = store.query(tmp_path / "s.duckdb", "SELECT node FROM session")
    assert rows == [("node1",)]


def test_of_a_node_one_recording_is_damaged(tmp_path: Path) -> None:
    """What else it sent is sealed, though no node is without a fault."""
    top = tmp_path / "rec/node1"
    culprit().nodes()[1].write(top / "good")
    culprit().nodes()[0].write(top / "bad")
    (top / "bad/session.json").write_text("{")
    made = tmp_path / "s.duckdb"
    reach = via(tmp_path, {"node1": "many"})
    pulled = fleet.pull(["node1"], reach, made)
    (said,) = pulled.nodes
    assert said.outcome.startswith(
        "sent what is no recording: bad: session.json: cannot be read: "
    )
    assert (pulled.status, said.ok) == (fleet.SOME, False)
    assert pulled.summary == (
        "0 of 1 nodes, 1 recordings sealed, 0 were there already; 1 left out"
    )
    (row,) = store.query(made, "SELECT node, place FROM missing")[1]
    assert row == (None, "node1.bad")
    # A whole one comes from there the next time.
    (top / "bad").rename(tmp_path / "away")
    culprit().nodes()[0].write(top / "bad")
    assert fleet.pull(["node1"], reach, made).status == fleet.ALL
    assert store.query(made, "FROM missing")[1] == []


@pytest.mark.parametrize("later", [False, True])
def test_who_was_not_reached_stays_known(
    tmp_path: Path,
    later: bool,
    short: dict[str, str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """In the store, and beside recordings that are kept and sealed another time."""
    write(tmp_path, culprit())
    short["node2"] = "silence"
    hows = {"node0": "ok", "node1": "ok", "node2": "stopped"}
    made, kept = tmp_path / "s.duckdb", tmp_path / "kept"
    pulled = fleet.pull(list(hows), via(tmp_path, hows), made, timeout=1, keep=kept)
    assert pulled.status == fleet.SOME
    if later:
        made = tmp_path / "t.duckdb"
        paths = [str(path) for path in sorted(kept.iterdir())]
        assert cli.main(["seal", *paths, "-o", str(made)]) == 0
        assert (
            "  ! node2: its recordings are missing: silent" in capsys.readouterr().out
        )
    told = explain.report(made)
    said = wording.as_text(told)
    assert (
        "  - node2: its recordings are missing, as `kstall fleet pull` got none: "
        "silent for 1 s: stopped, or far away; pull from it again\n"
    ) in said
    (late,) = told.verdicts[0].stragglers
    assert (late.rank, late.explained) == (1, False)
    assert "of which nothing came (node2)" in late.findings[0].caps[0]
    # It answers the next time, alone; it is another start of the same pull.
    short.clear()
    hows = {"node2": "ok"}
    assert fleet.pull(["node2"], via(tmp_path, hows), made).status == fleet.ALL
    told = explain.report(made)
    assert told.missing == []
    assert told.verdicts[0].stragglers[0].explained
    if later:
        # Here it was not asked again, and is missing as before.
        seal.seal([kept / "node0.rec"], tmp_path / "u")
        assert [one.node for one in explain.report(tmp_path / "u").missing] == ["node2"]


def test_a_rank_that_can_be_nowhere_else_is_not_missed(tmp_path: Path) -> None:
    """All ranks came, so that whoever was not reached has none of them."""
    write(tmp_path, culprit())
    hows = {**dict.fromkeys(("node0", "node1", "node2"), "ok"), "spare": "dead"}
    made = tmp_path / "s.duckdb"
    assert fleet.pull(list(hows), via(tmp_path, hows), made).status == fleet.SOME
    told = explain.report(made)
    assert told.verdicts[0].stragglers[0].explained
    assert "  - spare: its recordings are missing" in wording.as_text(told)


def test_what_is_written_beside_recordings_is_damaged(tmp_path: Path) -> None:
    write(tmp_path, culprit())
    (tmp_path / "rec/kstall-pull.json").write_text('{"format": 1, "nodes": {"a": 1}}')
    seal.seal([tmp_path / "rec"], tmp_path / "s")
    (row,) = explain.report(tmp_path / "s").missing
    assert (row.kind, row.place) == ("pull", f"{tmp_path}/rec/kstall-pull.json")
    assert "cannot be read" in row.reason
    (tmp_path / "rec/kstall-pull.json").write_text(
        '{"format": 1, "nodes": {"a": null}}'
    )
    seal.seal([tmp_path / "rec"], tmp_path / "s")
    assert explain.report(tmp_path / "s").missing == []


def test_a_full_disk_here_is_not_the_nodes_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(agent: object, draft: Path) -> int:
        raise OSError(errno.ENOSPC, "No space left on device", str(draft / "x"))

    monkeypatch.setattr(fleet, "_fetch", full)
    write(tmp_path, culprit())
    words = ["fleet", "pull", "-w", "node0", "--via", via(tmp_path, {"node0": "ok"})]
    assert cli.main([*words, "-o", str(tmp_path / "s.duckdb")]) == 2
    said = capsys.readouterr().out
    assert "node0: what it sent cannot be kept in" in said
    assert "No space left on device" in said


def test_none_leaves_the_store_as_it_was(tmp_path: Path) -> None:
    write(tmp_path, culprit())
    made = tmp_path / "s.duckdb"
    assert fleet.pull(["node0"], via(tmp_path, {"node0": "ok"}), made).status == 0
    before = made.read_bytes()
    pulled = fleet.pull(["x"], via(tmp_path, {"x": "dead"}), made)
    assert pulled.status == fleet.NONE == 2
    assert made.read_bytes() == before
    gone = fleet.pull(["x"], "/no/such/program {node}", made)
    assert gone.nodes[0].outcome == "/no/such/program: No such file or directory"


def test_an_interrupt_ends_it_at_once(tmp_path: Path) -> None:
    write(tmp_path, Training(ranks=1))
    reach = via(tmp_path, {"a": "stopped", "b": "stopped"})
    words = ["fleet", "pull", "-w", "a,b", "--via", reach, "-o", f"{tmp_path}/s.duckdb"]
    words += ["--timeout", "900"]
    running = subprocess.Popen(
        [sys.executable, "-m", "kstall", *words], stderr=subprocess.PIPE, text=True
    )
    own = f"{tmp_path}/rec/"
    while len(_running(own)) < 2:
        assert running.poll() is None
        time.sleep(0.05)
    running.send_signal(signal.SIGINT)
    # Both agents sleep for longer, and may be silent for longer.
    _, said = running.communicate(timeout=300)
    assert (running.returncode, said) == (
        2,
        "kstall: interrupted; the command was not finished\n",
    )
    assert _running(own) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "reach-a",
        "reach-b",
        "rec",
    ]


def _running(word: str) -> list[int]:
    """Processes of ours that have ``word`` on their command line."""
    found = []
    for number in descendants():
        with contextlib.suppress(OSError):
            text = Path(f"/proc/{number}/cmdline").read_text(errors="replace")
            if word in text.replace("\0", " "):
                found.append(number)
    return found


def test_clocks_that_differ(tmp_path: Path) -> None:
    ahead = {"node0": 37_000_000_000, "node1": -2_500_000_000}
    write(tmp_path, Training(ranks=2))
    reach = via(tmp_path, dict.fromkeys(ahead, "ok"), ahead)
    made = tmp_path / "s.duckdb"
    assert fleet.pull(list(ahead), reach, made, keep=tmp_path / "kept").status == 0
    with store.reading(made) as opened:
        rows = opened.execute(
            'SELECT node, "offset", bound FROM clock JOIN session USING (sid)'
        ).fetchall()
    assert len(rows) == 4
    for node, offset, bound in rows:
        assert abs(offset + ahead[node]) <= bound
    assert sorted(path.name for path in (tmp_path / "kept").iterdir()) == [
        "kstall-pull.json",
        "node0.rec",
        "node1.rec",
    ]


@pytest.mark.parametrize(
    ("how", "count"), [("ok", 2), ("rebooted", 0), ("bootless", 0)]
)
def test_a_clock_is_compared_only_in_the_boot_of_the_recording(
    tmp_path: Path, how: str, count: int
) -> None:
    """CLOCK_MONOTONIC begins anew with each boot, and tells nothing of the last one."""
    write(tmp_path, Training(ranks=1))
    made = tmp_path / "s.duckdb"
    pulled = fleet.pull(["node0"], via(tmp_path, {"node0": how}), made)
    (node,) = pulled.nodes
    assert node.ok
    assert ("older kstall-node does not name its boot" in node.outcome) is (
        how == "bootless"
    )
    (row,) = store.query(made, "SELECT count(*) FROM clock WHERE method = 'ping'")[1]
    assert row == (count,)


@pytest.mark.parametrize("last", [None, 2])
def test_a_torn_last_fact_is_no_damage(
    tmp_path: Path, last: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a full disk leaves it."""
    # How long a node waits for its turn is added to the time that is asked for.
    clock = SimpleNamespace(monotonic=lambda: 7.0, monotonic_ns=lambda: 7 * SECOND)
    monkeypatch.setattr(fleet, "time", clock)
    (node,) = Training(ranks=1).nodes()
    node.ended = None
    rec = node.write(tmp_path / "rec/node0/r", per_page=2, per_segment=2)
    _booted(tmp_path, node)
    with (rec / "facts.jsonl").open("a") as file:
        file.write('{"kind": "clo')
    made = tmp_path / "s.duckdb"
    reach = _real(tmp_path, BEGAN + 5 * SECOND)
    assert fleet.pull(["node0"], reach, made, last=last).status == 0
    (row,) = store.query(made, "SELECT count(*) FROM clock WHERE method = 'ping'")[1]
    assert row == (2,)
    rows = store.query(made, "FROM loss WHERE reason = 'left out'")[1]
    assert len(rows) == (1 if last else 0)


def test_the_last_minutes_leave_the_copy_of_all_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be the only one, as --ring deletes on the node."""
    clock = SimpleNamespace(monotonic=lambda: 7.0, monotonic_ns=lambda: 7 * SECOND)
    monkeypatch.setattr(fleet, "time", clock)
    (node,) = Training(ranks=1).nodes()
    node.ended = None
    node.write(tmp_path / "rec/node0/r", per_page=2, per_segment=2)
    _booted(tmp_path, node)
    reach, kept = _real(tmp_path, BEGAN + 5 * SECOND), tmp_path / "kept"
    for last in (None, 2, 2):
        made = tmp_path / "s.duckdb"
        pulled = fleet.pull(["node0"], reach, made, keep=kept, last=last)
        assert pulled.status == fleet.ALL
    for dir, losses in ((kept, 0), (kept / "last", 1)):
        made = tmp_path / f"{losses}.duckdb"
        seal.seal([dir], made)
        rows = store.query(made, "FROM loss WHERE reason = 'left out'")[1]
        assert len(rows) == losses


def _booted(tmp_path: Path, node: Node) -> None:
    """Have a node of `_real` run in the boot of its recording."""
    boot = tmp_path / "root" / node.name / "proc/sys/kernel/random/boot_id"
    boot.parent.mkdir(parents=True)
    boot.write_text(f"{node.boot_id}\n")


def _real(tmp_path: Path, now: int) -> str:
    """A command line for agents as they are, on nodes of which it is that time."""
    script = tmp_path / "real"
    script.write_text(
        f"#!{sys.executable}\n"
        "import sys, time\n"
        f"time.monotonic_ns = lambda: {now}\n"
        "from kstall_node.cli import main\n"
        f"root = '{tmp_path}/root/' + sys.argv[1]\n"
        f"top = '{tmp_path}/rec/' + sys.argv[1]\n"
        "sys.exit(main(['--root', root, 'agent', '--stdio', top]))\n"
    )
    script.chmod(0o755)
    return f"{script} {{node}}"


def test_the_last_minutes_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """That there is nothing from before is no loss, and no oracle misses it."""
    # How long a node waits for its turn is added to the time that is asked for.
    clock = SimpleNamespace(monotonic=lambda: 7.0, monotonic_ns=lambda: 7 * SECOND)
    monkeypatch.setattr(fleet, "time", clock)
    job = culprit(begin=300, end=320)
    job.steps = 400
    for node in job.nodes():
        # Its end is on another CPU, in a segment that is left out.
        node.event(BEGAN + SECOND, 5, 7, "throttle_in", cgroup=77, task=7)
        node.ended = None
        node.fact("clock", t_mono=BEGAN, t_real=BEGAN, bound=1, method="adjtimex")
        judged = {"metric": "count", "ours": 400, "theirs": 400, "verdict": "agrees"}
        node.fact("oracle", provider="throttle/fprobe", scope="all", **judged)
        node.fact("complete", until=BEGAN + 1000 * SECOND, segments={"0": 1})
        node.write(tmp_path / "rec" / node.name / "r", per_segment=2)
        _booted(tmp_path, node)
    made = tmp_path / "s.duckdb"
    words = ["fleet", "pull", "-w", "node[0-2]", "-o", str(made)]
    words += ["--keep", str(tmp_path / "kept"), "--last"]
    # It had recorded for 45 s.
    reach = _real(tmp_path, BEGAN + 45 * SECOND)
    assert cli.main([*words, "20s", "--via", reach]) == 0
    assert "3 of 3 nodes, 3 recordings sealed" in capsys.readouterr().out
    sent = sum(1 for path in (tmp_path / "kept").rglob("*.pages"))
    assert 0 < sent < sum(1 for path in (tmp_path / "rec").rglob("*.pages")) - 20
    told = explain.report(made)
    assert told.open == []
    (late,) = told.verdicts[0].stragglers
    assert (late.rank, late.steps, late.explained) == (1, tuple(range(300, 320)), True)
    assert 100 < len(told.verdicts[0].job.steps) < 200
    said = wording.as_text(told)
    assert (
        "node0, node1, node2: known from 1970-01-01 00:02:05 UTC on: what was before "
        "was not fetched (`--last`)\n"
    ) in said
    assert "is refused" not in said
    reasons = store.query(made, "SELECT DISTINCT reason FROM loss ORDER BY ALL")[1]
    assert reasons == [("left out",), ("recorder gone",)]
    ((first,),) = store.query(made, "SELECT min(t) FROM mark")[1]
    assert 0 <= first - (BEGAN + 25 * SECOND) < SECOND


def test_an_agent_that_does_not_know_the_last_minutes(tmp_path: Path) -> None:
    """It would send everything, for which there may be no room."""
    write(tmp_path, culprit())
    pulled = fleet.pull(
        ["node0"], via(tmp_path, {"node0": "ok"}), tmp_path / "s", last=60
    )
    assert (pulled.status, pulled.nodes[0].outcome) == (
        fleet.NONE,
        "its kstall-node is older and does not know --last; copy the one that came "
        "with this kstall, or pull all",
    )


def test_names_of_nodes(tmp_path: Path) -> None:
    assert fleet.expand("n[08-10,12],m,n08") == ["n08", "n09", "n10", "n12", "m"]
    assert fleet.expand("a[1-2].example.org") == ["a1.example.org", "a2.example.org"]
    for text in ("-oProxyCommand=id", "a;b", "", "n[a-b]", "n[1-999999]", "n[", "a b"):
        with pytest.raises(errors.OpsError):
            fleet.expand(text)
    with pytest.raises(errors.OpsError, match="not a range of nodes: 10-1 is empty"):
        fleet.expand("n[10-1],m")


def test_no_shell_reads_a_name(tmp_path: Path) -> None:
    pulled = fleet.pull(["a"], f"echo $(touch {tmp_path}/x) {{node}}", tmp_path / "s")
    assert pulled.status == 2
    assert os.listdir(tmp_path) == []  # noqa: PTH208


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--via", "ssh 'x"), "--via: No closing quotation"),
        (("--timeout", "-1"), "'-1' is no number of seconds above 0"),
        (("--limit", "nan"), "'nan' is no number of seconds above 0"),
        *(
            (
                ("--last", text),
                f"'{text}' is no length of time, such as 90s, 30m, 2h or 1d",
            )
            for text in ("30", "0m", "half an hour", "1.5h", "", "9999999d")
        ),
    ],
)
def test_what_makes_no_sense_is_said_in_one_line(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    said: str,
) -> None:
    argv = ["fleet", "pull", "-w", "n1", "-o", str(tmp_path / "s"), *words]
    try:
        status: object = cli.main(argv)
    except SystemExit as ended:
        status = ended.code
    assert status == 2
    assert capsys.readouterr().err.splitlines()[-1].endswith(said)
