# SPDX-License-Identifier: GPL-2.0-or-later
"""Archives under their SHA-256, and notes that lead to them, wherever fsspec can write.

::

    objects/<sha256>.tar.zst    an entry of the cache, or the files of a run, or .tar.gz
    entries/<kind>/<key>.json   which archive an entry is
    units/<kind>/<key>.json     what came of a unit

All but the archives is small, and each thing may be deleted at any time: it is made
again.  Nobody reads what is half written.
"""

from __future__ import annotations

import contextlib
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
# A disk full of archives of before is no help; those of a day may be of a run.
_KEEP_S = 24 * 3600.0


class Damaged(KstallError):
    """An archive is not what its digest says."""


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
    """The store at ``url``, a path or what fsspec takes for one."""

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
        """Archive what is below ``top``; an archive that is there is not sent again."""
        form = _ZSTD if shutil.which("zstd") else _GZIP
        with temporary.directory("archive") as place:
            archive = place / f"archive.tar.{form}"
            through = f"--use-compress-program={_PROGRAMS[form]}"
            tar = ("tar", "--create", "--format=posix", "--sort=name")
            what = (f"--file={archive}", f"--directory={top}", "--", *names)
            process.run([*tar, "--numeric-owner", through, *what], env={"LC_ALL": "C"})
            made = Artifact(cache.file_digest(archive), archive.stat().st_size, form)
            with self._guarded("written"):
                if not self._is_whole(made):
                    self._send(archive, made.path)
        return made

    def get(self, artifact: Artifact, target: Path) -> None:
        """Unpack an archive to ``target``, a directory, if it is what it should be.

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
        """Remove an archive that is not what it should be."""
        with contextlib.suppress(Damaged), temporary.directory("archive") as place:
            self._fetch(artifact, place / "archive")

    def _fetch(self, artifact: Artifact, archive: Path) -> None:
        with self._guarded("read"):
            try:
                self._fs.get_file(self._at(artifact.path), os.fspath(archive))
            except FileNotFoundError as error:
                raise self._damaged(artifact, "is not there") from error
        if cache.file_digest(archive) != artifact.sha256:
            with contextlib.suppress(OSError):
                self._fs.rm_file(self._at(artifact.path))
            raise self._damaged(artifact, "is not what it was")

    def _damaged(self, artifact: Artifact, how: str) -> Damaged:
        return Damaged(
            f"archive {artifact.sha256[:12]} in {self.url} {how}",
            next="run the same command again: what is damaged is made anew",
        )

    def has(self, artifact: Artifact) -> bool:
        """Whether an archive is there, and not cut short."""
        with self._guarded("read"):
            return self._is_whole(artifact)

    def _is_whole(self, artifact: Artifact) -> bool:
        """Whether it is there, and not cut short; what is in it `get` looks at."""
        try:
            size = self._fs.info(self._at(artifact.path))["size"]
        except FileNotFoundError:
            return False
        return bool(size == artifact.size)

    # -- notes -------------------------------------------------------------------------

    def note(self, name: str, value: Mapping[str, Any]) -> None:
        """Have ``value`` found under ``name``."""
        with self._guarded("written"):
            self._write(f"{name}.json", json.dumps(value).encode())

    def noted(self, name: str) -> dict[str, Any] | None:
        """What `note` was given; None if that is not there, or no longer readable."""
        with self._guarded("read"):
            try:
                found = json.loads(self._fs.cat_file(self._at(f"{name}.json")))
            except (FileNotFoundError, ValueError):
                return None
        return found if isinstance(found, dict) else None

    def forget(self, name: str) -> None:
        """Have nothing found under ``name``."""
        with self._guarded("written"), contextlib.suppress(FileNotFoundError):
            self._fs.rm_file(self._at(f"{name}.json"))

    def entry(self, name: str) -> Artifact | None:
        """The archive of an entry of the cache, if it is here and not cut short."""
        raw = self.noted(f"entries/{name}")
        try:
            found = None if raw is None else Artifact(**raw)
        except TypeError:
            return None
        with self._guarded("read"):
            return found if found is not None and self._is_whole(found) else None

    def put_entry(self, name: str, top: Path, names: Sequence[str]) -> Artifact:
        """Have the entry ``name`` of the cache here, which is at ``top``."""
        made = self.put(top, names)
        self.note(f"entries/{name}", asdict(made))
        return made

    def prune(self) -> None:
        """Delete archives that were not written for a day, if this is a directory."""
        if not isinstance(self._fs, fsspec.get_filesystem_class("file")):
            return
        for path in Path(self._top).glob("objects/*"):
            with contextlib.suppress(OSError):
                if time.time() - path.stat().st_mtime > _KEEP_S:
                    path.unlink()

    # ----------------------------------------------------------------------------------

    def _at(self, name: str) -> str:
        return f"{self._top.rstrip('/')}/{name}"

    def _write(self, name: str, text: bytes) -> None:
        with temporary.directory("note") as place:
            (place / "note").write_bytes(text)
            self._send(place / "note", name)

    def _send(self, file: Path, name: str) -> None:
        """Put ``file`` there under another name, and then under its own."""
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
    def _guarded(self, what: str) -> Iterator[None]:
        try:
            yield
        except KstallError:
            raise
        except Exception as error:
            # Each backend has errors of its own.
            why = getattr(error, "strerror", None) or str(error) or repr(error)
            raise Unusable(
                f"the artifact store {self.url} cannot be {what}: {why}",
                next="give it room and rights, or name another one with --store",
            ) from error
