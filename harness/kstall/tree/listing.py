# SPDX-License-Identifier: GPL-2.0-or-later
"""The files of a source tree: by stat, cheaply, and by content, as git names it.

A kernel has 95,000 files, so their stat data, a second's work, decide whether a tree is
known: only one that looks different is read.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from ..base import KstallError

_BLOCK = 4096


class Entry(NamedTuple):
    """A file or link, with its path relative to the top of its tree."""

    path: str
    mode: int
    size: int
    mtime_ns: int
    ctime_ns: int

    @property
    def git_mode(self) -> str:
        """As git writes it: 100644, 100755 or 120000."""
        if stat.S_ISLNK(self.mode):
            return "120000"
        return "100755" if self.mode & stat.S_IXUSR else "100644"


def scan(top: Path) -> tuple[Entry, ...]:
    """Every file and link below ``top``, sorted by path; links are not followed.

    Raises `KstallError` for what no source tree has (a socket, a device) and for a
    directory that may not be read.
    """
    try:
        return tuple(sorted(_walk(os.fspath(top))))
    except PermissionError as error:
        raise KstallError(f"{error.filename}: may not be read") from error


def _walk(top: str) -> Iterator[Entry]:
    pending = [top]
    start = len(top.rstrip("/")) + 1
    while pending:
        with os.scandir(pending.pop()) as items:
            for item in items:
                if item.is_dir(follow_symlinks=False):
                    pending.append(item.path)
                    continue
                status = item.stat(follow_symlinks=False)
                if not (stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode)):
                    raise KstallError(f"{item.path}: neither a file nor a link")
                yield Entry(
                    item.path[start:],
                    status.st_mode,
                    status.st_size,
                    status.st_mtime_ns,
                    status.st_ctime_ns,
                )


def fingerprint(entries: Iterable[Entry]) -> str:
    """A digest of the stat data; ctime is in it, because nobody can set that back."""
    return hashlib.sha256(repr(list(entries)).encode("utf-8", "replace")).hexdigest()


def disk_bytes(entries: Iterable[Entry]) -> int:
    """What a copy of ``entries`` takes on disk, in whole blocks."""
    return sum(-(-entry.size // _BLOCK) * _BLOCK for entry in entries)


def blobs(top: Path, entries: Iterable[Entry]) -> dict[str, str]:
    """The git blob id (SHA-1) of each of ``entries``, read from below ``top``."""
    ids = {}
    for entry in entries:
        path = os.path.join(top, entry.path)  # noqa: PTH118 - 95,000 times
        if stat.S_ISLNK(entry.mode):
            content = os.fsencode(os.readlink(path))  # noqa: PTH115
        else:
            with open(path, "rb") as file:  # noqa: PTH123
                content = file.read()
        ids[entry.path] = blob_id(content)
    return ids


def _sha1(content: bytes) -> str:
    return hashlib.sha1(content, usedforsecurity=False).hexdigest()


def blob_id(content: bytes) -> str:
    """The id that git gives a file of this ``content``."""
    return _sha1(b"blob %d\0" % len(content) + content)


def tree_id(entries: Iterable[Entry], ids: Mapping[str, str]) -> str:
    """The id that git gives the tree of ``entries`` with these blob ``ids``.

    The same sources get the same id whether they came as a checkout, a directory or a
    tarball, so what was built for one is found again for the other.
    """
    root: dict[bytes, object] = {}
    for entry in entries:
        *folders, name = os.fsencode(entry.path).split(b"/")
        node = root
        for folder in folders:
            child = node.setdefault(folder, {})
            assert isinstance(child, dict)
            node = child
        node[name] = (entry.git_mode, ids[entry.path])
    return _hash_tree(root)


def _hash_tree(node: Mapping[bytes, object]) -> str:
    lines = []
    for name, child in node.items():
        if isinstance(child, tuple):
            mode, blob = child
            line = b"%s %s\0%s" % (mode.encode(), name, bytes.fromhex(blob))
            lines.append((name, line))
        elif isinstance(child, dict):
            line = b"40000 %s\0%s" % (name, bytes.fromhex(_hash_tree(child)))
            # Git sorts a directory as if its name ended in a slash.
            lines.append((name + b"/", line))
    body = b"".join(line for _, line in sorted(lines))
    return _sha1(b"tree %d\0" % len(body) + body)


class Record(NamedTuple):
    """What one file of a private copy was when the copy was made."""

    git_mode: str
    blob: str
    size: int
    mtime_ns: int


def save(path: Path, entries: Iterable[Entry], ids: Mapping[str, str]) -> None:
    """Write down ``entries`` so that `load` gives them back as records."""
    text = "".join(
        f"{entry.git_mode} {ids[entry.path]} {entry.size} {entry.mtime_ns} "
        f"{entry.path}\0"
        for entry in entries
    )
    path.write_bytes(os.fsencode(text))


def load(path: Path) -> dict[str, Record]:
    """The records that `save` wrote, by path."""
    records = {}
    for line in os.fsdecode(path.read_bytes()).split("\0")[:-1]:
        mode, blob, size, mtime_ns, name = line.split(" ", 4)
        records[name] = Record(mode, blob, int(size), int(mtime_ns))
    return records


def differing(entries: Iterable[Entry], records: Mapping[str, Record]) -> list[str]:
    """Paths that were added, removed or written to since the records were made."""
    removed = dict(records)
    changed = []
    for entry in entries:
        record = removed.pop(entry.path, None)
        if record is None or (entry.git_mode, entry.size, entry.mtime_ns) != (
            record.git_mode,
            record.size,
            record.mtime_ns,
        ):
            changed.append(entry.path)
    return sorted([*changed, *removed])
