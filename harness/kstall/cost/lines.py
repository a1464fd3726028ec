# SPDX-License-Identifier: GPL-2.0-or-later
"""Where in the sources a kernel's code is from, by its debug information."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Collection
from pathlib import Path

from ..base import Architecture, process
from ..build import Kernel
from ..evidence import races

_PLACE = re.compile(r"(?P<file>.+):(?P<number>\d+|\?)(?: \(discriminator \d+\))?")


def at(
    linked: Path, addresses: Collection[int], arch: Architecture
) -> dict[int, list[races.SourceLine]]:
    """The lines at ``addresses``, each before those that it was inlined into.

    Empty where the file has no debug information, as installed modules have none.  The
    number of a line that is not known is 0.
    """
    chains: dict[int, list[races.SourceLine]] = {}
    if not addresses:
        return chains
    completed = process.run(
        [arch.tool("addr2line"), "-a", "-f", "-i", "-e", linked, *map(hex, addresses)],
        check=False,
    )
    current: list[races.SourceLine] = []
    function = ""
    for text in completed.stdout.splitlines():
        if re.fullmatch(r"0x[0-9a-f]+", text):
            current = chains.setdefault(int(text, 16), [])
        elif place := _PLACE.fullmatch(text):
            known = place["number"].isdigit() and place["file"] != "??"
            current.append(
                races.SourceLine(
                    function,
                    posixpath.normpath(place["file"]),
                    int(place["number"]) if known else 0,
                )
            )
        else:
            function = text
    # Without debug information there is one line, which is unknown.
    return {
        address: chain
        for address, chain in chains.items()
        if any(line.number for line in chain)
    }


def of_frames(kernel: Kernel, frames: Collection[races.Frame]) -> races.Places:
    """The lines of ``frames`` of a guest of ``kernel``.

    Without those in modules, and those of which several symbols have the name or a line
    is not known.
    """
    wanted = {frame.function for frame in frames if not frame.in_module}
    addresses: dict[str, set[int]] = {}
    symbols = (kernel.path / "System.map").read_text(errors="replace")
    for address, name in re.findall(r"(?m)^([0-9a-f]+) \S (\S+)$", symbols):
        if name in wanted:
            addresses.setdefault(name, set()).add(int(address, 16))
    at_frame = {
        # The instruction before the one that it returns to.
        frame: min(addresses[frame.function]) + frame.offset - 1
        for frame in frames
        if not frame.in_module and len(addresses.get(frame.function, ())) == 1
    }
    chains = at(kernel.vmlinux, sorted({*at_frame.values()}), kernel.arch)
    return {
        frame: tuple(chain)
        for frame, address in at_frame.items()
        if (chain := chains.get(address)) and all(line.number for line in chain)
    }
