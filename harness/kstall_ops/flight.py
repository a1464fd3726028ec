# SPDX-License-Identifier: GPL-2.0-or-later
"""Dumps of PyTorch's Flight Recorder: what one rank asked of its process groups.

In comes a file, ``nccl_trace_rank_N`` or what ``_dump_fr_trace_json`` returns; out come
its collectives.  The format is that of FlightRecorder.hpp and FlightRecorderDetail.hpp
in torch/csrc/distributed/c10d of PyTorch, of which 2.N only adds to 2.(N-1).

A pickle is a program.  It is read instruction by instruction and never run: those that
build lists, dicts, strings and numbers are followed, and any other is an error.
"""

from __future__ import annotations

import json
import operator
import pickletools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import recording
from .errors import NotADump, shown

#: Of the dump; in another one keys mean something else.
MAJOR = 2
#: A dump of 2000 collectives with their stacks has less than 2 MB.
_LARGEST = 512 << 20
#: In characters; what is longer is no name.
_LONGEST = 500
_FAR = (1 << 63) - 1
_RANK = re.compile(r"(?s)(?:.*\D)?(\d{1,9})(?:\.[A-Za-z]\w*)?")
_VERSION = re.compile(r"(\d{1,9})\.(\d{1,9})")
_RANKS = re.compile(r"\[\s*(?:\d{1,9}(?:\s*,\s*\d{1,9})*)?\s*\]")
#: What nobody leaves before all have entered it, as names of collectives begin once
#: their case, their backend and an underscore in front are gone.
_SHARED = (
    *("all_reduce", "allreduce", "all_gather", "allgather", "reduce_scatter"),
    *("barrier", "sparse_all_reduce"),
)
#: The outermost frames of a process's first thread, and of all others.
_FIRST = ("<module>", "_run_module_as_main", "_start")
_OTHERS = ("_bootstrap", "clone", "clone3", "__clone3", "start_thread")
#: By how much a GPU's clock and rounding may stretch a duration.
_STRETCH, _ROUNDED = 1e-3, 1_000_000


@dataclass(frozen=True)
class Collective:
    """One collective as one rank saw it; times are ns of CLOCK_REALTIME."""

    #: Name and description of its process group.
    group: tuple[str, str]
    #: Its number in the group, the same on all ranks.
    seq: int
    #: As "nccl:all_reduce": the backend, then what was asked.
    op: str
    #: When the host thread handed it over.
    enqueued: int
    #: When it was seen to have started and ended: later than it did, by a watchdog's
    #: interval of 0.1 s or by any time if that was stuck.  None: nobody looked.
    started_by: int | None
    ended_by: int | None
    #: From the one to the other by the device's own events, in ns; None without timing.
    lasted: int | None
    #: What the thread that handed it over is called; None if the dump does not tell.
    thread: str | None
    #: Whether its stack is that of the process's first thread; None without a stack.
    first: bool | None

    @property
    def label(self) -> str:
        """What its group is called; each of a group's backends counts by itself."""
        name, about = self.group
        words = [about] if about and about != "undefined" else []
        return f"{name} ({', '.join([*words, self.op.partition(':')[0]])})"

    @property
    def queued(self) -> bool:
        """Whether a device does it when its queue gets there, and not the host at once.

        Gloo's own threads begin with it, so that all others can wait for nothing else.
        """
        return not self.op.startswith("gloo:")


@dataclass(frozen=True)
class Dump:
    """One file; ``groups`` has the ranks of those process groups that it tells of."""

    path: Path
    rank: int
    version: str
    groups: Mapping[str, tuple[int, ...]]
    collectives: Sequence[Collective]
    #: What was left out, in words.
    remarks: Sequence[str]


def find(path: Path) -> list[Path]:
    """``path``, or of a directory all files that are named after a rank.

    Raises `NotADump`.
    """
    if not path.is_dir():
        return [path]
    parts = (recording.SESSION, recording.FACTS, recording.SEGMENTS)
    if any((path / name).exists() for name in parts):
        raise NotADump(f"{path}: a recording; name it before --flight-recorder")
    found = [one for one in path.iterdir() if _rank(one) is not None and one.is_file()]
    if not found:
        raise NotADump(f"{path}: no file in it ends in a rank, as nccl_trace_rank_0")
    return sorted(found, key=lambda one: (_rank(one) or 0, one.name))


def _rank(path: Path) -> int | None:
    """The number that its name ends in; what else is there does not say whose it is."""
    match = _RANK.fullmatch(path.name)
    return None if match is None else int(match[1])


def load(path: Path) -> Dump:
    """Read the dump of one rank.  Raises `NotADump`."""
    rank = _rank(path)
    if rank is None:
        raise NotADump(
            f"{path}: its name does not end in a rank, as nccl_trace_rank_0 does, and "
            "a dump does not say whose it is"
        )
    try:
        if path.stat().st_size > _LARGEST:
            raise NotADump(f"{path}: larger than {_LARGEST >> 20} MB: not a dump")
        data = path.read_bytes()
    except OSError as error:
        raise NotADump(f"{path}: {error.strerror or error}") from None
    try:
        return _dump(path, rank, _parsed(data))
    except ValueError as error:
        raise NotADump(f"{path}: {shown(error)}") from None


def _dump(path: Path, rank: int, said: object) -> Dump:
    if not isinstance(said, dict) or "version" not in said:
        raise ValueError("not a dump of the Flight Recorder: it has no version")
    version = said["version"]
    match = _VERSION.fullmatch(version) if isinstance(version, str) else None
    if match is None or int(match[1]) != MAJOR:
        what = version if isinstance(version, str) else "none that is text"
        raise ValueError(
            f"a dump of format {shown(what)}; this kstall reads format {MAJOR}.N"
        )
    groups = dict(_groups(said.get("pg_config"), rank))
    remarks: list[str] = []
    collectives = _collectives(said.get("entries"), remarks)
    return Dump(path, rank, version, groups, collectives, remarks)


# -- the two forms -------------------------------------------------------------------


def _parsed(data: bytes) -> object:
    """What a pickle or JSON holds, as far as it is plain.  Raises `ValueError`."""
    if data[:1] == b"\x80":
        return _Pickle().read(data)
    if data.lstrip()[:1] != b"{":
        what = "empty" if not data else "neither a pickle nor JSON"
        raise ValueError(f"not a dump of the Flight Recorder: {what}")
    try:
        return json.loads(data)
    except RecursionError:
        raise ValueError("not a dump of the Flight Recorder: nested too deep") from None
    except ValueError as error:
        raise ValueError(f"truncated, or not JSON: {error}") from None


class _Pickle:
    """The stack that a pickle's instructions work on."""

    def __init__(self) -> None:
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}

    def read(self, data: bytes) -> object:
        """Follow ``data`` to its end.  Raises `ValueError`."""
        steps: dict[str, Callable[[Any], None]] = {
            **dict.fromkeys(_VALUES, self._stack.append),
            **{"MARK": self._mark, "BINPUT": self._put, "LONG_BINPUT": self._put},
            **{"MEMOIZE": self._memoize, "BINGET": self._get, "LONG_BINGET": self._get},
            **{"APPEND": self._append, "APPENDS": self._appends},
            **{"SETITEM": self._set_item, "SETITEMS": self._set_items},
            **{"TUPLE": self._tuple, "PROTO": _nothing, "FRAME": _nothing},
        }
        try:
            for code, argument, _ in pickletools.genops(data):
                if code.name == "STOP":
                    return self._stack.pop()
                if code.name in _CONSTANTS:
                    self._stack.append(_CONSTANTS[code.name]())
                elif code.name in _TUPLES:
                    count = _TUPLES[code.name]
                    self._stack.append(tuple(self._from(len(self._stack) - count)))
                elif code.name in steps:
                    steps[code.name](argument)
                else:
                    what = f"{code.name} {'' if argument is None else argument}"
                    raise _Code(
                        f"it holds {what.strip()}, which no dump has: only lists, "
                        "dicts, strings and numbers are read, and nothing was run"
                    )
        except (IndexError, KeyError, AttributeError, TypeError):
            raise ValueError("not a pickle: its instructions do not fit") from None
        except _Code:
            raise
        except ValueError as error:
            raise ValueError(f"truncated, or not a pickle: {error}") from None
        raise ValueError("truncated: its end is missing")

    def _from(self, at: int) -> list[Any]:
        if at < 0:
            raise IndexError
        taken = self._stack[at:]
        del self._stack[at:]
        return taken

    def _mark(self, _: object) -> None:
        self._marks.append(len(self._stack))

    def _put(self, number: int) -> None:
        self._memo[number] = self._stack[-1]

    def _memoize(self, _: object) -> None:
        self._memo[len(self._memo)] = self._stack[-1]

    def _get(self, number: int) -> None:
        self._stack.append(self._memo[number])

    def _append(self, _: object) -> None:
        (value,) = self._from(len(self._stack) - 1)
        self._stack[-1].append(value)

    def _appends(self, _: object) -> None:
        values = self._from(self._marks.pop())
        self._stack[-1].extend(values)

    def _set_item(self, _: object) -> None:
        self._set(self._from(len(self._stack) - 2))

    def _set_items(self, _: object) -> None:
        self._set(self._from(self._marks.pop()))

    def _set(self, words: Sequence[Any]) -> None:
        held = self._stack[-1]
        for name, value in zip(words[::2], words[1::2], strict=True):
            # A tuple of tuples of tuples would take the stack of who hashes it.
            if not isinstance(name, str | int):
                raise TypeError
            held[name] = value

    def _tuple(self, _: object) -> None:
        self._stack.append(tuple(self._from(self._marks.pop())))


class _Code(ValueError):
    """A pickle has an instruction that a dump has no need of."""


#: Instructions by name: those that are their argument, constants, and short tuples.
_VALUES = (
    *("BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT"),
    *("BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"),
)
_CONSTANTS: dict[str, Callable[[], object]] = {
    **{"NONE": lambda: None, "NEWTRUE": lambda: True, "NEWFALSE": lambda: False},
    **{"EMPTY_LIST": list, "EMPTY_DICT": dict, "EMPTY_TUPLE": tuple},
}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


def _nothing(_: object) -> None:
    """The version of pickle, and how much of it is read at once."""


# -- what is in there ----------------------------------------------------------------


def _groups(said: object, rank: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The ranks of each group that has a name.  Raises `ValueError`.

    Gloo writes all of its groups under one empty name, the last one over the others.
    """
    for name, about in said.items() if isinstance(said, dict) else ():
        text = about.get("ranks") if isinstance(about, dict) else None
        if not name or not isinstance(name, str) or not isinstance(text, str):
            continue
        ranks = tuple(map(int, re.findall(r"\d+", text)))
        if not ranks or not _RANKS.fullmatch(text):
            continue
        # A rank knows the groups only that it is in.
        if rank not in ranks:
            raise ValueError(
                f"named after rank {rank}, but of a rank in the process group "
                f"{shown(name)} of {shown(text)}: not the file of this rank"
            )
        yield name, ranks


def _collectives(said: object, remarks: list[str]) -> list[Collective]:
    """Those that nobody leaves before all have entered them, in order."""
    if not isinstance(said, list) or not said:
        raise ValueError("it holds no collectives")
    # Operations in one go are an entry each, and one more for all that has the times.
    # Sending and receiving in one go is called by the number of the collective before.
    found: dict[tuple[str, str, int, int, int], list[Mapping[str, Any]]] = {}
    newest: dict[tuple[str, str], int] = {}
    for number, entry in enumerate(said):
        try:
            if not isinstance(entry, dict):
                raise ValueError("no dict")
            if entry.get("is_p2p") is True:
                continue
            name, about = _group(entry)
            maker = _whole(entry, "pg_id", 0)
            newest[name, about] = max(maker, newest.get((name, about), 0))
            key = (_whole(entry, "collective_seq_id"), _whole(entry, "p2p_seq_id", 0))
            _whole(entry, "time_created_ns")
            _plain(entry.get("profiling_name"), "profiling_name")
        except ValueError as error:
            raise ValueError(f"entry {number}: {error}") from None
        found.setdefault((name, about, maker, *key), []).append(entry)
    collectives: list[Collective] = []
    others = older = odd = 0
    for (name, about, maker, seq, _), entries in found.items():
        if not any(map(_is_shared, entries)):
            others += 1
        elif maker < newest[name, about]:
            older += 1
        else:
            one = _collective((name, about), seq, entries)
            odd += not _fits(one)
            collectives += [one] if _fits(one) else []
    for count, why in (
        (others, "a rank may leave them before all have entered them"),
        (older, "their process group was made again"),
        (odd, "their times do not fit each other"),
    ):
        if count:
            remarks.append(f"{count} collectives are left out: {why}")
    if not collectives:
        raise ValueError(f"nothing to go by: {'; '.join(remarks) or 'no collectives'}")
    return sorted(collectives, key=operator.attrgetter("enqueued", "group", "seq"))


def _is_shared(entry: Mapping[str, Any]) -> bool:
    name = str(entry["profiling_name"]).partition(":")[2].lower()
    return name.lstrip("_").startswith(_SHARED)


def _collective(
    group: tuple[str, str], seq: int, entries: Sequence[Mapping[str, Any]]
) -> Collective:
    """One, of all that was done in one go; it went to the device with the last."""
    last = max(entries, key=lambda entry: entry["time_created_ns"])
    timed = next((one for one in entries if _seen(one, "completed")), last)
    thread = last.get("thread_name")
    return Collective(
        group=group,
        seq=seq,
        op=_plain(
            next(one["profiling_name"] for one in entries if _is_shared(one)), "op"
        ),
        enqueued=last["time_created_ns"],
        started_by=_seen(timed, "started"),
        ended_by=_seen(timed, "completed"),
        lasted=_lasted(timed.get("duration_ms")),
        thread=thread if isinstance(thread, str) and thread else None,
        first=_is_first(last.get("frames")),
    )


def _fits(one: Collective) -> bool:
    """Whether its times follow on each other as they have to."""
    seen = [one.enqueued, one.started_by, one.ended_by]
    known = [when for when in seen if when is not None]
    if known != sorted(known):
        return False
    if one.lasted is None:
        return True
    if one.ended_by is None or one.lasted < 0:
        return False
    most = (one.ended_by - one.enqueued) * (1 + _STRETCH) + _ROUNDED
    return one.lasted <= most


def _is_first(frames: object) -> bool | None:
    """By its outermost frame: whether it is the thread that the process began with."""
    if not isinstance(frames, list) or not frames:
        return None
    name = frames[-1].get("name") if isinstance(frames[-1], dict) else None
    if name in _FIRST:
        return True
    return False if name in _OTHERS else None


def _group(entry: Mapping[str, Any]) -> tuple[str, str]:
    words = entry.get("process_group")
    if not isinstance(words, list | tuple) or len(words) != 2:
        raise ValueError("process_group is not a name and a description")
    name, about = (_plain(word, "process_group") for word in words)
    return name, about


def _whole(entry: Mapping[str, Any], name: str, default: int | None = None) -> int:
    value = entry.get(name, default)
    if type(value) is not int or not 0 <= value <= _FAR:
        raise ValueError(f"{name} is missing, or is not what it should be")
    return value


def _plain(text: object, what: str) -> str:
    """A name as a store takes it: without half a surrogate pair, and not for ever."""
    if not isinstance(text, str) or len(text) > _LONGEST:
        raise ValueError(f"{what} is missing, or is not what it should be")
    return text.encode("utf-8", "backslashreplace").decode()


def _seen(entry: Mapping[str, Any], what: str) -> int | None:
    """None if nobody saw it, which JSON says as 0."""
    value = entry.get(f"time_discovered_{what}_ns")
    return value if type(value) is int and 0 < value <= _FAR else None


def _lasted(said: object) -> int | None:
    """Milliseconds with a fraction, as ns; None if nobody said, -1 if that is none."""
    if said is None:
        return None
    if isinstance(said, bool) or not isinstance(said, int | float):
        return -1
    return round(said * 1e6) if 0 <= said <= _FAR / 1e6 else -1
