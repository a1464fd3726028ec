# SPDX-License-Identifier: GPL-2.0-or-later
"""A second reader of the same records, generated from their format files.

ftrace prints an event by its TP_printk; this reads the raw members by BPF.  Values on
which both agree do not depend on one piece of printing code.  Of bare tracepoints,
which ftrace does not know, it is the only reader.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from .bare import Bare
from .errors import NotRecordable
from .layout import Field, Layout

# These precede the event's own members in each tuple.  bpftrace's plain `nsecs` is
# CLOCK_BOOTTIME, but ftrace uses `mono` here.  Its `tid` and `pid` do not compile
# (before 0.23.4) on a kernel without PID namespaces.
_TASK = "((struct task_struct *)curtask)"
_HEAD = (
    "nsecs(monotonic)",
    "cpu",
    f"(int64){_TASK}->pid",
    f"(int64){_TASK}->tgid",
    "comm",
)


def script(layouts: Iterable[Layout | Bare]) -> str:
    """The bpftrace program that prints each record as one tuple.

    Integers, booleans and pointers are widened to 64 bits, so that no small type is
    printed as a character.  Raises `NotRecordable` for members that bpftrace 0.23 does
    not print correctly (dynamic arrays other than strings, structures, enums).
    """
    probes = []
    for layout in layouts:
        if isinstance(layout, Bare):
            probe = layout.probe
            own = layout.expressions()
        else:
            probe = f"tracepoint:{layout.event}"
            own = tuple(_expression(layout, field) for field in layout.fields)
        listed = ",\n        ".join([f'"{layout.event}"', *_HEAD, *own])
        probes.append(f"{probe}\n{{\n    print((\n        {listed}\n    ));\n}}")
    return "\n\n".join(probes) + "\n"


def _expression(layout: Layout, field: Field) -> str:
    member = f"args.{field.name}"
    ctype = field.ctype.removeprefix("const ")
    if ctype in ("__data_loc char[]", "__data_loc const char[]"):
        return f"str({member})"
    if ctype.startswith(("__data_loc", "__rel_loc")):
        raise _unsupported(layout, field, "bpftrace cannot tell its length")
    if "[" in ctype:
        # A char array is a string already, any other array is printed as a list.
        return member
    if ctype.endswith("*"):
        return f"(uint64){member}"
    if ctype.startswith("enum "):
        # bpftrace before 0.24.2 does not compile some enum types (its PR 4714).
        raise _unsupported(layout, field, "an enum: the event should record an int")
    if ctype.startswith(("struct ", "union ")) or field.size not in (1, 2, 4, 8):
        raise _unsupported(layout, field, "not a scalar and not a string")
    return f"({'int64' if field.signed else 'uint64'}){member}"


def _unsupported(layout: Layout, field: Field, why: str) -> NotRecordable:
    return NotRecordable(
        f"{layout.event}: member {field.ctype} {field.name}: {why}, "
        "so no recorder can be generated"
    )


def lines(output: str, layouts: Iterable[Layout | Bare]) -> str:
    """bpftrace's JSON output as one JSON object per record, in time order.

    Keys: event ("system:name"), ts (ns, CLOCK_MONOTONIC), cpu, pid (the thread, as
    ftrace prints it), tgid, comm, fields.  A last line that is cut off is left out, as
    `bpftrace.stop` reports it.  Raises `ValueError` if a line has other values.
    """
    members = {
        layout.event: layout.names
        if isinstance(layout, Bare)
        else tuple(field.name for field in layout.fields)
        for layout in layouts
    }
    records: list[dict[str, Any]] = []
    for line in output.split("\n")[:-1]:
        if not line.startswith('{"type": "value"'):
            continue
        event, when, cpu, tid, pid, comm, *values = json.loads(line)["data"]
        records.append(
            {
                "event": event,
                "ts": when,
                "cpu": cpu,
                "pid": tid,
                "tgid": pid,
                "comm": comm,
                "fields": dict(zip(members[event], values, strict=True)),
            }
        )
    # CPUs reserve ring space after they read the clock, so neighbours can be swapped.
    records.sort(key=lambda record: record["ts"])
    return "".join(json.dumps(record) + "\n" for record in records)
