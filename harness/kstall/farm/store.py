# SPDX-License-Identifier: GPL-2.0-or-later
"""Archives under their SHA-256, and notes that lead to them, wherever fsspec can write.

::

    objects/<sha256>.tar.zst    an entry of the cache, or the files of a run, or .tar.gz
    entries/<kind>/<key>.json   which archive an entry is
    units/<kind>/<key>.json     what came of a unit
    half/<uuid>                 a file that is being written

All but the archives is small, and everything may be deleted at any time: it is made
again.  Files are written under another name first, so none is read half written.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import fsspec

from ..base import KstallError, cache, process, temporary

_ZSTD = "zst"
_GZIP = "gz"
_PROGRAMS = {_ZSTD: "zstd -3 -T0 -q", _GZIP: "gzip -1"}
_UNPACK = {_ZSTD: "zstd -d -q", _GZIP: "gzip -d"}
# Old files only fill the disk; those used within a day may belong to a run in progress.
_KEEP_S = 24 * 3600.0
# All that there is, and what killed processes left: parts of files, and probes.
_FILES = ("objects/*", "entries/*/*", "units/*/*", "half/*", "probe-*")


class Damaged(KstallError):
    """An archive is not what its digest says."""


class Missing(Damaged):
    """An archive is not there."""


class Unusable(KstallError):
    """The store cannot be read or written."""


@dataclass(frozen=True)
class Artifact:
    """An archive in a store: ``size`` in bytes, ``form`` is how it is compressed."""

    sha256: str
    size: int
    form: str

    @property
    def path(self) -> str:
        """Where it is below a store."""
        return f"objects/{self.sha256}.tar.{self.form}"


class Store:
    """The store at ``url``, a path or what fsspec takes for one; of a directory,
    ``url`` is then its absolute path."""

    def __init__(self, url: str) -> None:
        self.url = url
        try:
            self._fs, self._top = fsspec.core.url_to_fs(url)
        except (ImportError, ValueError, OSError) as error:
            raise Unusable(
                f"the artifact store {url}: {error}",
                next="name a directory, or a URL for which fsspec's backend is "
                "installed (sshfs for sftp://, s3fs for s3://)",
            ) from error
        self._is_local = isinstance(self._fs, fsspec.get_filesystem_class("file"))
        if self._is_local:
            # Workers have it in their messages, and another working directory.
            self.url = self._top

    def probe(self) -> None:
        """Raise `Unusable` unless something can be written, read and removed."""
        name = f"probe-{uuid.uuid4().hex}"
        with self._guarded("written"):
            self._write(name, b"kstall")
            if self._fs.cat_file(self._at(name)) != b"kstall":
                raise Unusable(f"the artifact store {self.url} gives back other bytes")
            self._fs.rm_file(self._at(name))

    # -- archives ----------------------------------------------------------------------

    def put(self, top: Path, names: Sequence[str]) -> Artifact:
        """Archive ``names`` below ``top``, and send it unless the store has it."""
        form = _ZSTD if shutil.which("zstd") else _GZIP
        with temporary.directory("archive") as place:
            archive = place / f"archive.tar.{form}"
            through = f"--use-compress-program={_PROGRAMS[form]}"
            tar = ("tar", "--create", "--format=posix", "--sort=name")
            arguments = (f"--file={archive}", f"--directory={top}", "--", *names)
            process.run(
                [*tar, "--numeric-owner", through, *arguments], env={"LC_ALL": "C"}
            )
            artifact = Artifact(
                cache.file_digest(archive), archive.stat().st_size, form
            )
            with self._guarded("written"):
                if not self._is_whole(artifact):
                    self._send(archive, artifact.path)
        return artifact

    def get(self, artifact: Artifact, target: Path) -> None:
        """Unpack an archive to ``target``, a directory, if its digest is right.

        Raises `Damaged`, and removes it, if it is not.
        """
        if artifact.form == _ZSTD and shutil.which("zstd") is None:
            raise process.NotInstalled("zstd: command not found", next="install zstd")
        with temporary.directory("archive") as place:
            archive = place / f"archive.tar.{artifact.form}"
            self._fetch(artifact, archive)
            target.mkdir(parents=True, exist_ok=True)
            process.run(
                [
                    *(
                        "tar",
                        "--extract",
                        "--no-same-owner",
                        "--delay-directory-restore",
                    ),
                    f"--use-compress-program={_UNPACK[artifact.form]}",
                    *("--file", archive, "--directory", target),
                ],
                env={"LC_ALL": "C"},
            )

    def check(self, artifact: Artifact) -> None:
        """Remove an archive if its digest is wrong."""
        with contextlib.suppress(Damaged), temporary.directory("archive") as place:
            self._fetch(artifact, place / "archive")

    def _fetch(self, artifact: Artifact, archive: Path) -> None:
        with self._guarded("read"):
            try:
                self._fs.get_file(self._at(artifact.path), os.fspath(archive))
            except FileNotFoundError as error:
                raise self._missing(artifact) from error
        if cache.file_digest(archive) != artifact.sha256:
            with contextlib.suppress(OSError):
                self._fs.rm_file(self._at(artifact.path))
            raise Damaged(
                f"archive {artifact.sha256[:12]} in {self.url} is not what it was",
                next="run the same command again: what is damaged is made anew",
            )

    def _missing(self, artifact: Artifact) -> Missing:
        return Missing(
            f"archive {artifact.sha256[:12]} in {self.url} is not there",
            next="run the same command again: it is made anew",
        )

    def require(self, artifact: Artifact) -> None:
        """Raise `Missing` unless an archive is there, and not cut short."""
        if not self.has(artifact):
            raise self._missing(artifact)

    def has(self, artifact: Artifact) -> bool:
        """Whether an archive is there, and not cut short."""
        with self._guarded("read"):
            return self._is_whole(artifact)

    def _is_whole(self, artifact: Artifact) -> bool:
        """Whether it is there, and not cut short; `get` verifies the content."""
        try:
            size = self._fs.info(self._at(artifact.path))["size"]
        except FileNotFoundError:
            return False
        if size != artifact.size:
            return False
        self._used(artifact.path)
        return True

    # -- notes -------------------------------------------------------------------------

    def note(self, name: str, value: Mapping[str, Any]) -> None:
        """Store ``value`` under ``name``."""
        with self._guarded("written"):
            self._write(f"{name}.json", json.dumps(value).encode())

    def noted(self, name: str) -> dict[str, Any] | None:
        """The value that `note` stored; None if it is missing or unreadable."""
        with self._guarded("read"):
            try:
                value = json.loads(self._fs.cat_file(self._at(f"{name}.json")))
            except (FileNotFoundError, ValueError):
                return None
        self._used(f"{name}.json")
        return value if isinstance(value, dict) else None

    def forget(self, name: str) -> None:
        """Remove the value under ``name``, if there is one."""
        with self._guarded("written"), contextlib.suppress(FileNotFoundError):
            self._fs.rm_file(self._at(f"{name}.json"))

    def entry(self, name: str) -> Artifact | None:
        """The archive of an entry of the cache, if the store has it, not cut short."""
        raw = self.noted(f"entries/{name}")
        try:
            artifact = None if raw is None else Artifact(**raw)
        except TypeError:
            return None
        with self._guarded("read"):
            return (
                artifact if artifact is not None and self._is_whole(artifact) else None
            )

    def put_entry(self, name: str, top: Path, names: Sequence[str]) -> Artifact:
        """Store the entry ``name`` of the cache, the ``names`` below ``top``."""
        artifact = self.put(top, names)
        self.note(f"entries/{name}", asdict(artifact))
        return artifact

    def prune(self) -> None:
        """Delete files that were not used for a day, if this is a directory."""
        if not self._is_local:
            return
        top = Path(self._top)
        for path in itertools.chain.from_iterable(map(top.glob, _FILES)):
            with contextlib.suppress(OSError):
                if time.time() - path.stat().st_mtime > _KEEP_S:
                    path.unlink()

    # ----------------------------------------------------------------------------------

    def _used(self, name: str) -> None:
        """Have `prune` leave a file for a day from now on."""
        if self._is_local:
            # Of another user's file, only the owner may change the time.
            with contextlib.suppress(OSError):
                os.utime(self._at(name))

    def _at(self, name: str) -> str:
        return f"{self._top.rstrip('/')}/{name}"

    def _write(self, name: str, text: bytes) -> None:
        with temporary.directory("note") as place:
            (place / "note").write_bytes(text)
            self._send(place / "note", name)

    def _send(self, file: Path, name: str) -> None:
        """Write ``file`` under another name, then rename it."""
        target = self._at(name)
        half = self._at(f"half/{uuid.uuid4().hex}")
        for place in (target, half):
            self._fs.makedirs(place.rpartition("/")[0], exist_ok=True)
        try:
            self._fs.put_file(os.fspath(file), half)
            self._fs.mv(half, target)
        except BaseException:
            with contextlib.suppress(Exception):
                self._fs.rm_file(half)
            raise

    @contextlib.contextmanager
    def _guarded(self, action: str) -> Iterator[None]:
        try:
            yield
        except KstallError:
            raise
        except Exception as error:
            # Each backend has errors of its own.
            why = getattr(error, "strerror", None) or str(error) or repr(error)
            raise Unusable(
                f"the artifact store {self.url} cannot be {action}: {why}",
                next="give it room and rights, or name another one with --store",
            ) from error
