# SPDX-License-Identifier: GPL-2.0-or-later
"""Dumps of PyTorch's Flight Recorder: the collectives of one rank.

In comes a file, ``nccl_trace_rank_N`` or what ``_dump_fr_trace_json`` returns; out come
its collectives.  The format is that of FlightRecorder.hpp and FlightRecorderDetail.hpp
in torch/csrc/distributed/c10d of PyTorch, of which 2.N only adds to 2.(N-1).

A pickle is a program.  It is read instruction by instruction and never run:
instructions that build lists, dicts, strings and numbers are followed, and any other is
an error.  As a dump may be malicious, everything that is read has a limit.
"""

from __future__ import annotations

import json
import operator
import pickletools
import re
import stat
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import recording
from .errors import NotADump, shown
from .straggler import ranks_named

#: The description of the process group of all ranks.
WHOLE = "default_pg"
#: Major version of the format; in others keys have other meanings.
MAJOR = 2
#: A dump of 2000 collectives with their stacks has less than 2 MB, and 200,000
#: instructions.  One of these may make an object of 100 bytes.
_LARGEST, _INSTRUCTIONS = 64 << 20, 16_000_000
#: The longest name, in characters.
_LONGEST = 500
_FAR = (1 << 63) - 1
_RANK = re.compile(r"(?s)(?:.*\D)?(\d{1,9})(?:\.[A-Za-z]\w*)?")
_VERSION = re.compile(r"(\d{1,9})\.(\d{1,9})")
_RANKS = re.compile(r"\[\d{1,9}(?:, ?\d{1,9})*\]")
#: The longest list of ranks, in characters: a process group of 100,000.
_MANY = 1_000_000
#: Collectives that no rank leaves before all have entered: how their names begin, in
#: lower case, without backend and leading underscore.
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

    #: Name and description of its process group, and its ranks, empty if not known.
    group: tuple[str, str]
    ranks: tuple[int, ...]
    #: Its number in the group, the same on all ranks.
    seq: int
    #: As "nccl:all_reduce": the backend, then the operation.
    op: str
    #: When the host thread handed it over.
    enqueued: int
    #: When a watchdog saw that it had started and ended: later than it did, by 0.1 s,
    #: or by any time if the watchdog was stuck.  None if that was not seen.
    started_by: int | None
    ended_by: int | None
    #: From start to end by the device's own events, in ns; None without timing.
    lasted: int | None
    #: The name of the thread that handed it over; None if it is not in the dump.
    thread: str | None
    #: Whether its stack is that of the process's first thread; None without a stack.
    first: bool | None

    @property
    def label(self) -> str:
        """The name of its group; each backend of a group is a group by itself.

        It includes the ranks, as groups that were split from one may share a name.
        """
        name, about = self.group
        words = [about] if about and about != "undefined" else []
        if self.ranks and about != WHOLE:
            words.append(ranks_named(self.ranks))
        return f"{name} ({', '.join([*words, self.op.partition(':')[0]])})"


@dataclass(frozen=True)
class Dump:
    """One file."""

    path: Path
    rank: int
    version: str
    collectives: Sequence[Collective]
    #: What was left out, as text.
    remarks: Sequence[str]


def find(path: Path) -> list[Path]:
    """``path``, or in a directory all files whose names end in a rank.

    Raises `NotADump`.
    """
    if not path.is_dir():
        return [path]
    parts = (recording.SESSION, recording.FACTS, recording.SEGMENTS)
    if any((path / name).exists() for name in parts):
        raise NotADump(f"{path}: a recording; name it before --flight-recorder")
    files = [
        file for file in path.iterdir() if _rank(file) is not None and file.is_file()
    ]
    if not files:
        raise NotADump(f"{path}: no file in it ends in a rank, as nccl_trace_rank_0")
    return sorted(files, key=lambda file: (_rank(file) or 0, file.name))


def _rank(path: Path) -> int | None:
    """The rank that a file's name ends in; a dump itself does not contain it."""
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
        return _dump(path, rank, _parsed(_content(path)))
    except OSError as error:
        raise NotADump(f"{path}: {error.strerror or error}") from None
    except ValueError as error:
        raise NotADump(f"{path}: {shown(error)}") from None


def _content(path: Path) -> bytes:
    """The content of a plain file; a pipe or a device may never end."""
    about = path.stat()
    if not stat.S_ISREG(about.st_mode):
        raise ValueError("not a dump of the Flight Recorder: no plain file")
    if about.st_size > _LARGEST:
        raise ValueError(f"larger than {_LARGEST >> 20} MB: not a dump")
    with path.open("rb") as file:
        return file.read(about.st_size)


def _dump(path: Path, rank: int, content: object) -> Dump:
    if not isinstance(content, dict) or "version" not in content:
        raise ValueError("not a dump of the Flight Recorder: it has no version")
    version = content["version"]
    match = _VERSION.fullmatch(version) if isinstance(version, str) else None
    if match is None or int(match[1]) != MAJOR:
        what = version if isinstance(version, str) else "none that is text"
        raise ValueError(
            f"a dump of format {shown(what, 40)}; this kstall reads format {MAJOR}.N"
        )
    groups = _groups(content.get("pg_config"), rank)
    remarks: list[str] = []
    collectives = _collectives(content.get("entries"), groups, remarks)
    return Dump(path, rank, version, collectives, remarks)


# -- the two forms -------------------------------------------------------------------


def _parsed(data: bytes) -> object:
    """The plain data in a pickle or JSON.  Raises `ValueError`."""
    if data[:1] == b"\x80":
        return _Pickle(data).read()
    if data.lstrip()[:1] != b"{":
        what = "empty" if not data else "neither a pickle nor JSON"
        raise ValueError(f"not a dump of the Flight Recorder: {what}")
    try:
        return json.loads(data)
    except RecursionError:
        raise ValueError("not a dump of the Flight Recorder: nested too deep") from None
    except ValueError as error:
        raise ValueError(f"truncated, or not JSON: {error}; copy it again") from None


_CUT = "truncated: its end is missing; copy it again"
#: Executes an instruction: from the position of its argument to that of the next one.
_Step = Callable[[int], int]


class _Pickle:
    """The stack that a pickle's instructions work on."""

    def __init__(self, data: bytes) -> None:
        # Padding, so that numbers can be read at the end; 0 is no instruction.
        self._data, self._size = data + bytes(16), len(data)
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}

    def read(self) -> object:
        """Follow the instructions to their end.  Raises `ValueError`."""
        steps, data, at = self._steps(), self._data, 0
        try:
            for _ in range(_INSTRUCTIONS):
                code = data[at]
                step = steps.get(code)
                if step is not None:
                    at = step(at + 1)
                elif at >= self._size:
                    raise _Refused(_CUT)
                elif code == _STOP:
                    return self._stack.pop()
                else:
                    raise _Refused(_unknown(data[at : min(at + 200, self._size)]))
        except _Refused:
            raise
        except (IndexError, KeyError, AttributeError, TypeError):
            what = "its instructions do not fit"
            raise ValueError(f"truncated, or not a pickle: {what}") from None
        except ValueError as error:
            raise ValueError(f"truncated, or not a pickle: {error}") from None
        raise ValueError(f"more than {_INSTRUCTIONS} instructions: not a dump")

    def _steps(self) -> dict[int, _Step]:
        """What to do for each instruction, by its code."""
        named = {
            "PROTO": lambda at: at + 1,
            "FRAME": lambda at: at + 8,
            "BINGET": self._get,
            "LONG_BINGET": self._long_get,
            "LONG1": self._long,
            "MARK": self._mark,
            "MEMOIZE": self._memoize,
            **{name: self._number(form) for name, form in _NUMBERS.items()},
            **{name: self._text(form) for name, form in _TEXTS.items()},
            **{name: self._put(form) for name, form in _PUTS.items()},
            **{name: self._new(make) for name, make in _NEW.items()},
            **{name: self._of_last(*what) for name, what in _OF_LAST.items()},
            **{name: self._of_marked(do) for name, do in _OF_MARKED.items()},
        }
        return {_CODES[name]: step for name, step in named.items()}

    def _number(self, form: struct.Struct) -> _Step:
        data, push = self._data, self._stack.append

        def step(at: int) -> int:
            push(form.unpack_from(data, at)[0])
            return at + form.size

        return step

    def _long(self, at: int) -> int:
        end = at + 1 + self._data[at]
        self._stack.append(
            int.from_bytes(self._slice(at + 1, end), "little", signed=True)
        )
        return end

    def _text(self, form: struct.Struct) -> _Step:
        def step(at: int) -> int:
            begin = at + form.size
            end = begin + form.unpack_from(self._data, at)[0]
            text = self._slice(begin, end).decode("utf-8", "surrogatepass")
            self._stack.append(text)
            return int(end)

        return step

    def _slice(self, begin: int, end: int) -> bytes:
        if end > self._size:
            raise _Refused(_CUT)
        return self._data[begin:end]

    def _put(self, form: struct.Struct) -> _Step:
        def step(at: int) -> int:
            self._memo[form.unpack_from(self._data, at)[0]] = self._stack[-1]
            return at + form.size

        return step

    def _memoize(self, at: int) -> int:
        self._memo[len(self._memo)] = self._stack[-1]
        return at

    def _get(self, at: int) -> int:
        self._stack.append(self._memo[self._data[at]])
        return at + 1

    def _long_get(self, at: int) -> int:
        self._stack.append(self._memo[_UINT.unpack_from(self._data, at)[0]])
        return at + _UINT.size

    def _mark(self, at: int) -> int:
        self._marks.append(len(self._stack))
        return at

    def _new(self, make: Callable[[], object]) -> _Step:
        push = self._stack.append

        def step(at: int) -> int:
            push(make())
            return at

        return step

    def _of_last(self, count: int, do: _Do) -> _Step:
        def step(at: int) -> int:
            if len(self._stack) < count:
                raise IndexError
            self._do(do, len(self._stack) - count)
            return at

        return step

    def _of_marked(self, do: _Do) -> _Step:
        def step(at: int) -> int:
            self._do(do, self._marks.pop())
            return at

        return step

    def _do(self, do: _Do, begin: int) -> None:
        stack = self._stack
        words = stack[begin:]
        del stack[begin:]
        do(stack, words)


#: Changes a stack, given the last words of it, which were removed from it.
_Do = Callable[[list[Any], list[Any]], None]


def _tuple(stack: list[Any], words: list[Any]) -> None:
    stack.append(tuple(words))


def _extend(stack: list[Any], words: list[Any]) -> None:
    stack[-1].extend(words)


def _set(stack: list[Any], words: list[Any]) -> None:
    held = stack[-1]
    for name, value in zip(words[::2], words[1::2], strict=True):
        # A dump has only such keys.  Numbers may be chosen to share a hash, which makes
        # each lookup slow; nested tuples may exhaust the stack.
        if not isinstance(name, str):
            raise TypeError
        held[name] = value


class _Refused(ValueError):
    """Why reading a pickle is refused, as text for the user."""


def _unknown(data: bytes) -> str:
    """The reason to refuse the instruction at the beginning of ``data``."""
    try:
        code, argument, _ = next(pickletools.genops(data))
    except (ValueError, IndexError):
        known = _NAMES.get(data[0])
        if known is None:
            return f"truncated, or not a pickle: 0x{data[0]:02x} is no instruction"
        what = known
    else:
        what = f"{code.name} {'' if argument is None else argument}".strip()
    return (
        f"it holds {what}, which no dump has: only lists, dicts, strings and numbers "
        "are read, and nothing was run"
    )


_NAMES = {ord(opcode.code): opcode.name for opcode in pickletools.opcodes}
_CODES = {name: code for code, name in _NAMES.items()}
_STOP = _CODES["STOP"]
_BYTE, _UINT, _ULONG = struct.Struct("<B"), struct.Struct("<I"), struct.Struct("<Q")
#: Instructions by name, with the form of the number after them, and what they do.
_NUMBERS = {
    "BININT1": _BYTE,
    "BININT2": struct.Struct("<H"),
    "BININT": struct.Struct("<i"),
    "BINFLOAT": struct.Struct(">d"),
}
_TEXTS = {"SHORT_BINUNICODE": _BYTE, "BINUNICODE": _UINT, "BINUNICODE8": _ULONG}
_PUTS = {"BINPUT": _BYTE, "LONG_BINPUT": _UINT}
_NEW: dict[str, Callable[[], object]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_LIST": list,
    "EMPTY_DICT": dict,
    "EMPTY_TUPLE": tuple,
}
_OF_LAST: dict[str, tuple[int, _Do]] = {
    "TUPLE1": (1, _tuple),
    "TUPLE2": (2, _tuple),
    "TUPLE3": (3, _tuple),
    "APPEND": (1, _extend),
    "SETITEM": (2, _set),
}
_OF_MARKED: dict[str, _Do] = {"TUPLE": _tuple, "APPENDS": _extend, "SETITEMS": _set}


# -- what is in there ----------------------------------------------------------------


def _groups(config: object, rank: int) -> dict[tuple[str, str], tuple[int, ...]]:
    """The ranks of each group, by its name and description.  Raises `ValueError`.

    Gloo writes all of its groups under one empty name, so only the last is there.
    """
    groups: dict[tuple[str, str], tuple[int, ...]] = {}
    # A pickle can refer to one text any number of times: parse it only once.
    read: dict[str, tuple[int, ...]] = {}
    for name, about in config.items() if isinstance(config, dict) else ():
        if not isinstance(about, dict) or not name:
            continue
        text, desc = about.get("ranks"), about.get("desc")
        if not isinstance(text, str) or not isinstance(desc, str):
            continue
        if text not in read:
            known = len(text) <= _MANY and _RANKS.fullmatch(text)
            read[text] = tuple(map(int, text[1:-1].split(","))) if known else ()
            # A rank knows only the groups that it is in.
            if known and rank not in read[text]:
                raise ValueError(
                    f"named after rank {rank}, but of a rank in the process group "
                    f"{shown(name)} of {shown(text)}: not the file of this rank"
                )
        groups[_plain(name, "pg_config"), _plain(desc, "pg_config")] = read[text]
    return groups


def _collectives(
    entries: object,
    groups: Mapping[tuple[str, str], tuple[int, ...]],
    remarks: list[str],
) -> list[Collective]:
    """The collectives that no rank leaves before all have entered them, in order."""
    if not isinstance(entries, list) or not entries:
        raise ValueError("it holds no collectives")
    # Coalesced operations have an entry each, and one for all of them with the times.
    # Coalesced sends and receives have the number of the collective before them.
    grouped: dict[tuple[str, str, int, int, int], list[Mapping[str, Any]]] = {}
    newest: dict[tuple[str, str], int] = {}
    for number, entry in enumerate(entries):
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
        grouped.setdefault((name, about, maker, *key), []).append(entry)
    collectives: list[Collective] = []
    others = older = odd = 0
    for (name, about, maker, seq, _), members in grouped.items():
        if not any(map(_is_shared, members)):
            others += 1
        elif maker < newest[name, about]:
            older += 1
        else:
            group = (name, about)
            collective = _collective(group, groups.get(group, ()), seq, members)
            odd += not _fits(collective)
            collectives += [collective] if _fits(collective) else []
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
    group: tuple[str, str],
    ranks: tuple[int, ...],
    seq: int,
    entries: Sequence[Mapping[str, Any]],
) -> Collective:
    """One collective, of all its coalesced entries; the last hands it to the device."""
    last = max(entries, key=lambda entry: entry["time_created_ns"])
    timed = next((entry for entry in entries if _seen(entry, "completed")), last)
    thread = last.get("thread_name")
    return Collective(
        group=group,
        ranks=ranks,
        seq=seq,
        op=_plain(
            next(entry["profiling_name"] for entry in entries if _is_shared(entry)),
            "op",
        ),
        enqueued=last["time_created_ns"],
        started_by=_seen(timed, "started"),
        ended_by=_seen(timed, "completed"),
        lasted=_lasted(timed.get("duration_ms")),
        thread=thread if isinstance(thread, str) and thread else None,
        first=_is_first(last.get("frames")),
    )


def _fits(collective: Collective) -> bool:
    """Whether its times are in a possible order."""
    seen = [collective.enqueued, collective.started_by, collective.ended_by]
    known = [when for when in seen if when is not None]
    if known != sorted(known):
        return False
    if collective.lasted is None:
        return True
    if collective.ended_by is None or collective.lasted < 0:
        return False
    most = (collective.ended_by - collective.enqueued) * (1 + _STRETCH) + _ROUNDED
    return collective.lasted <= most


def _is_first(frames: object) -> bool | None:
    """Whether the outermost frame is that of the process's first thread."""
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
    """A name that a store accepts: not too long, and without lone surrogates."""
    if not isinstance(text, str) or len(text) > _LONGEST:
        raise ValueError(f"{what} is missing, or is not what it should be")
    return text.encode("utf-8", "backslashreplace").decode()


def _seen(entry: Mapping[str, Any], what: str) -> int | None:
    """When it was seen; None if it was not, for which JSON has 0."""
    value = entry.get(f"time_discovered_{what}_ns")
    return value if type(value) is int and 0 < value <= _FAR else None


def _lasted(milliseconds: object) -> int | None:
    """Milliseconds with a fraction, as ns; None if absent, -1 if no such number."""
    if milliseconds is None:
        return None
    if isinstance(milliseconds, bool) or not isinstance(milliseconds, int | float):
        return -1
    return round(milliseconds * 1e6) if 0 <= milliseconds <= _FAR / 1e6 else -1
