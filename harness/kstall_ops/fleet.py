# SPDX-License-Identifier: GPL-2.0-or-later
"""Fetch recordings from agents, over the pipe of any command that reaches a node.

No port listens: ``ssh``, ``srun`` or ``kubectl exec`` start the agent, and its standard
input and output are the connection.  A node that is dead, stopped or older does not
delay the others, and is reported.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import selectors
import shlex
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import missing, recording, seal
from .errors import NotARecording, OpsError, shown

#: Version of the protocol, see docs/recording.md.
VERSION = 1
PINGS = 16
ALL, NONE, SOME = seal.ALL, seal.NONE, seal.SOME
_AT_ONCE = 32
_LINE = 1 << 16
_FILE = 1 << 30
_PATHS = re.compile(
    r"[\w][\w.-]{0,200}/(session\.json|facts\.jsonl|formats/[\w-]{1,100}/[\w-]{1,100}|"
    r"segments/cpu\d{1,4}-\d{1,9}\.(pages|json))"
)
_NODE = re.compile(r"[A-Za-z0-9_][\w.:@-]{0,250}")
_RANGE = re.compile(r"([^\[\],]*)\[([\d,-]+)\]([^\[\],]*)")


class AgentError(OpsError):
    """A node from which nothing can be fetched; the text gives the reason."""


@dataclass(frozen=True)
class Node:
    """The result for one node."""

    node: str
    ok: bool
    outcome: str


@dataclass(frozen=True)
class Pulled:
    """The results for all nodes."""

    nodes: tuple[Node, ...]
    summary: str
    #: Whether any of their recordings are in the store.
    came: bool

    @property
    def status(self) -> int:
        """The exit status: all, some or none."""
        if all(node.ok for node in self.nodes):
            return ALL
        return SOME if self.came else NONE


def expand(text: str) -> list[str]:
    """The names in ``n[1-3],m``; ``@group`` is resolved by ClusterShell's ``nodeset``.

    Raises `OpsError` for invalid names, as names become words of a command line.
    """
    names: list[str] = []
    if text.count("[") != text.count("]"):
        raise OpsError(f"{shown(text)}: a bracket that is not closed")
    for part in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", text):
        if part.startswith("@"):
            names += _nodeset(part)
            continue
        match = _RANGE.fullmatch(part)
        if match is None:
            names.append(part)
            continue
        for span in match[2].split(","):
            low, _, high = span.partition("-")
            if not low.isdigit() or not (high or low).isdigit():
                raise OpsError(f"{shown(part)}: not a range of nodes")
            numbers = range(int(low), int(high or low) + 1)
            if not numbers:
                raise OpsError(f"{shown(part)}: not a range of nodes: {span} is empty")
            if len(numbers) > 100_000:
                raise OpsError(f"{shown(part)}: too many nodes")
            names += [f"{match[1]}{n:0{len(low)}d}{match[3]}" for n in numbers]
    for name in names:
        if not _NODE.fullmatch(name):
            raise OpsError(f"{shown(name)}: not the name of a node")
    if not names:
        raise OpsError("no nodes were named")
    return list(dict.fromkeys(names))


def _nodeset(group: str) -> list[str]:
    if shutil.which("nodeset") is None:
        raise OpsError(f"{shown(group)}: groups need `nodeset` (package clustershell)")
    done = subprocess.run(
        ["nodeset", "-e", "--", group], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise OpsError(f"{shown(group)}: {shown(done.stderr.strip())}")
    return done.stdout.split()


def pull(
    nodes: Sequence[str],
    via: str,
    path: Path,
    *,
    timeout: float = 30,
    limit: float = 900,
    keep: Path | None = None,
    last: float | None = None,
) -> Pulled:
    """Fetch from all ``nodes`` at once, and seal what they sent.

    ``via`` is a command line in which ``{node}`` stands for the name; no shell reads
    it.  ``timeout`` is how many seconds an agent may be silent, ``limit`` how many it
    may take in all.  With ``last`` only the last so many seconds are fetched, and kept
    in the directory ``last`` of ``keep``.
    """
    try:
        words = shlex.split(via)
    except ValueError as error:
        raise OpsError(f"--via: {error}") from None
    if not words:
        raise OpsError("--via: an empty command")
    with contextlib.ExitStack() as stack:
        if keep is None:
            name = tempfile.mkdtemp(prefix=".kstall-", dir=path.parent)
            stack.callback(shutil.rmtree, name, ignore_errors=True)
            top = Path(name)
        else:
            # A copy of all may be in ``keep``, and parts never replace it.
            top = keep if last is None else keep / "last"
            top.mkdir(parents=True, exist_ok=True)
        since = None if last is None else time.monotonic() - last
        limits = _Limits(timeout, limit, threading.Event(), since)
        jobs = [
            ([w.replace("{node}", node) for w in words], node, limits, top)
            for node in nodes
        ]
        with ThreadPoolExecutor(max_workers=_AT_ONCE) as pool:
            try:
                results = list(pool.map(lambda job: _pull_node(*job), jobs))
            except BaseException:
                limits.stop.set()
                pool.shutdown(cancel_futures=True)
                raise
        # In a file, so that a later `kstall seal` knows which nodes are missing, too.
        missing.note(top, {n.node: None if n.ok else n.outcome for n, _ in results})
        done, sealed = _sealed(results, path)
        summary = "nothing came, the store is as it was"
        came = bool(sealed.added or sealed.same)
        if came:
            good = sum(node.ok for node in done)
            summary = (
                f"{good} of {len(nodes)} nodes, {len(sealed.added)} recordings sealed, "
                f"{len(sealed.same)} were there already"
                + (f"; {len(sealed.left_out)} left out" if sealed.left_out else "")
            )
    return Pulled(tuple(done), summary, came)


def _sealed(
    results: Sequence[tuple[Node, list[Path]]], path: Path
) -> tuple[list[Node], seal.Sealed]:
    """Seal the recordings; the results for their nodes, and that of sealing."""
    dirs = [dir for _, pulled in results for dir in pulled]
    if not dirs:
        return [node for node, _ in results], seal.Sealed()
    try:
        sealed = seal.seal(dirs, path)
    except seal.NothingSealed as error:
        sealed = seal.Sealed(left_out=error.left_out)
    bad = {damaged.dir: damaged for damaged in sealed.left_out}
    done = []
    for node, pulled in results:
        whys = [
            f"{dir.name.removeprefix(f'{node.node}.')}: {bad[dir].row.reason}"
            for dir in pulled
            if dir in bad
        ]
        text = f"sent what is no recording: {'; '.join(whys)}"
        done.append(Node(node.node, False, text) if whys else node)
    return done, sealed


def _pull_node(
    argv: list[str], node: str, limits: _Limits, top: Path
) -> tuple[Node, list[Path]]:
    draft = Path(tempfile.mkdtemp(prefix=".pull-", dir=top))
    try:
        with _Agent(argv, limits) as agent:
            came = _fetch(agent, draft)
        pulled = []
        for dir in sorted(path for path in draft.iterdir() if path.is_dir()):
            target = top / f"{node}.{dir.name}"
            shutil.rmtree(target, ignore_errors=True)
            pulled.append(dir.rename(target))
        if not pulled:
            return Node(node, False, "has no recording"), []
        return Node(node, True, f"{len(pulled)} recordings, {came}"), pulled
    except AgentError as error:
        return Node(node, False, str(error)), []
    except OSError as error:
        why = error.strerror or str(error)
        return Node(node, False, f"what it sent cannot be kept in {top}: {why}"), []
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _fetch(agent: _Agent, draft: Path) -> str:
    """Fetch all recordings into ``draft``; what came, as text."""
    answer = agent.ask({"op": "hello", "version": VERSION}, "hello")
    if answer.get("version") != VERSION:
        raise AgentError(
            f"its agent speaks version {shown(answer.get('version'))}, this kstall "
            f"{VERSION}; copy the kstall-node that came with it"
        )
    boot = answer.get("boot_id")
    clock = [_ping(agent)]
    agent.pull()
    total = 0
    while True:
        answer = agent.line()
        if answer.get("op") == "end":
            break
        name, size = answer.get("path"), answer.get("size")
        if answer.get("op") != "file" or not isinstance(name, str):
            raise AgentError(f"said {shown(answer)} instead of a file")
        if not _PATHS.fullmatch(name) or ".." in name:
            raise AgentError(f"sent {shown(name)}, which is no file of a recording")
        if not isinstance(size, int) or not 0 <= size <= _FILE:
            raise AgentError(f"sent {shown(name)} of {shown(size)} bytes")
        path = draft / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("xb") as file:
            for piece in agent.raw(size):
                file.write(piece)
        total += size
    clock.append(_ping(agent))
    # In an earlier boot the same time of this clock was another moment.
    for dir in (dir for dir in draft.iterdir() if _is_of(dir, boot)):
        with (dir / recording.FACTS).open("a+b") as file:
            # Only a last line may be torn, as a full disk leaves it.
            file.seek(0)
            file.truncate(file.read().rfind(b"\n") + 1)
            for fact in clock:
                file.write(json.dumps(fact).encode() + b"\n")
    text = f"{total} bytes"
    if boot is None:
        text += "; no pings, as its older kstall-node does not name its boot"
    return text


def _is_of(dir: Path, boot: object) -> bool:
    """Whether a recording is of that boot; one that is damaged counts as of none."""
    try:
        return bool(recording.session_of(dir)["boot_id"] == boot)
    except NotARecording:
        return False


def _ping(agent: _Agent) -> dict[str, Any]:
    """The shortest of several pings: half of its round trip bounds its error."""
    best: tuple[int, int, int] | None = None
    for number in range(PINGS):
        before = time.monotonic_ns()
        answer = agent.ask({"op": "ping", "n": number}, "pong")
        after = time.monotonic_ns()
        there = answer.get("mono")
        if answer.get("n") != number or not isinstance(there, int):
            raise AgentError(f"answered a ping with {shown(answer)}")
        trip = after - before
        if best is None or trip < best[0]:
            best = (trip, (before + after) // 2 - there, there)
    assert best is not None
    trip, offset, there = best
    return {
        "kind": "clock",
        "method": "ping",
        "peer": _collector(),
        "t_mono": there,
        "t_real": None,
        "offset": offset,
        "bound": trip // 2 + 1,
    }


def _collector() -> str:
    """A name for this machine's clock, the reference; it holds for one boot."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        boot = "unknown"
    return f"collector {boot}"


@dataclass(frozen=True)
class _Limits:
    """How long an agent may be silent and may take in all, and an event to stop it."""

    silence: float
    whole: float
    stop: threading.Event
    #: On this machine's clock, what was before is not wanted; None if all is.
    since: float | None = None


def _text(line: bytes, limit: int) -> str:
    """Output before the agent's, such as a login's greeting, in quotes."""
    text = line[:limit].decode(errors="backslashreplace").strip()
    return f'"{shown(text)}"'


class _Agent:
    """A process whose pipes are the connection, read with a time limit."""

    def __init__(self, argv: list[str], limits: _Limits) -> None:
        self._limits, self._buffer = limits, b""
        self._until = time.monotonic() + limits.whole
        self._heard = False
        # In a file, as nothing would read a pipe while ssh -v fills it.
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        try:
            self._process = subprocess.Popen(
                argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                bufsize=0,
                start_new_session=True,
            )
        except OSError as error:
            self._errors.close()
            raise AgentError(f"{shown(argv[0])}: {error.strerror}") from None

    def __enter__(self) -> _Agent:
        return self

    def __exit__(self, *exc: object) -> None:
        process = self._process
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        try:
            process.wait(0.5)
        except subprocess.TimeoutExpired:
            # The whole group, as ssh would survive the shell that started it.
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        self._errors.close()

    def send(self, request: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
        except OSError:
            raise self._gone() from None

    def ask(self, request: dict[str, Any], wanted: str) -> dict[str, Any]:
        self.send(request)
        answer = self.line()
        if answer.get("op") != wanted:
            raise AgentError(f"said {shown(answer)} instead of {wanted}")
        return answer

    def pull(self) -> None:
        """Ask for recordings; each node's last hour ends when the first is asked."""
        if self._limits.since is None:
            self.send({"op": "pull"})
            return
        last = time.monotonic() - self._limits.since
        self.send({"op": "pull", "last": int(last * 1e9)})
        if self.line().get("op") != "since":
            raise AgentError(
                "its kstall-node is older and does not know --last; copy the one that "
                "came with this kstall, or pull all"
            )

    def line(self) -> dict[str, Any]:
        while b"\n" not in self._buffer:
            if len(self._buffer) > _LINE:
                raise AgentError(f"said {_text(self._buffer, 60)}: not an agent")
            self._buffer += self._read()
        line, _, self._buffer = self._buffer.partition(b"\n")
        try:
            content = json.loads(line)
        except (ValueError, RecursionError):
            raise AgentError(f"said {_text(line, 80)}: not an agent") from None
        if not isinstance(content, dict):
            raise AgentError(f"said {shown(content)}: not an agent")
        if content.get("op") == "error":
            raise AgentError(f"its agent says: {shown(content.get('text'))}")
        return content

    def raw(self, size: int) -> Iterator[bytes]:
        while size:
            if not self._buffer:
                self._buffer = self._read()
            piece, self._buffer = self._buffer[:size], self._buffer[size:]
            size -= len(piece)
            yield piece

    def _read(self) -> bytes:
        assert self._process.stdout is not None
        silent = time.monotonic() + self._limits.silence
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while not self._limits.stop.is_set():
                now = time.monotonic()
                if now >= self._until:
                    raise AgentError(f"not done in {self._limits.whole:g} s")
                if now >= silent:
                    raise AgentError(
                        f"silent for {self._limits.silence:g} s: stopped, or far away"
                    )
                if selector.select(min(0.2, silent - now, self._until - now)):
                    break
            else:
                raise AgentError("interrupted")
        piece = os.read(self._process.stdout.fileno(), 1 << 20)
        if not piece:
            raise self._gone()
        self._heard = True
        return piece

    def _gone(self) -> AgentError:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(1)
        self._errors.seek(0)
        lines = self._errors.read(1 << 16).decode(errors="replace").split("\n")
        last = next(itertools.chain((x for x in reversed(lines) if x.strip()), [""]))
        status = self._process.returncode
        text = f": {shown(last.strip())}" if last else ""
        when = "in the middle" if self._heard else "before it answered"
        return AgentError(f"ended {when}, status {status}{text}")
