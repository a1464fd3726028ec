# SPDX-License-Identifier: GPL-2.0-or-later
"""A package out of a Debian suite that this machine does not use itself.

It comes through an apt of our own, whose state lies in the cache and which shares
with the system's apt only the way to the network; apt verifies what it fetches.
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ..base import KstallError, cache, process, space
from .debian import APT_ETC, keyring, mirror_for

# Where a linux-source of the wanted version may be; the first that has one is taken.
# A stable release comes last: it has older kernels, some of which only it still has.
_KERNEL_SUITES = ("trixie-backports", "sid", "trixie")
_RECHECK_S = 24 * 3600.0
_RETRY_S = 3600.0  # a network that swallows packets costs half a minute to find out
_KEPT = 2


@dataclass(frozen=True)
class Deb:
    """A package file that apt fetched and verified."""

    package: str
    version: str
    path: Path


class _Unreachable(KstallError):
    """No mirror gave an answer."""


def newest(
    package: str,
    store: Path,
    say: Callable[[str], None],
    *,
    now: float,
    etc: Path = APT_ETC,
) -> Deb:
    """The newest ``package`` that Debian has, kept in ``store`` once fetched.

    The mirror is asked at most once a day (``now`` is seconds since the epoch), and
    whenever what comes out differs from what was used last, ``say`` says so.  Where no
    mirror answers, the last one fetched is used.
    """
    known, checked = _recall(package, store)
    if known is not None and 0 <= now - checked < _RECHECK_S:
        return known
    with cache.lock(store / f"{package}.lock", waiting=_wait(say, package)):
        known, checked = _recall(package, store)
        if known is not None and 0 <= now - checked < _RECHECK_S:
            return known
        try:
            deb = _fetch(package, store, known, say, etc)
        except KstallError as error:
            if known is None:
                raise
            why = error.what.splitlines()[0]
            say(f"using {package} {known.version}, fetched before: {why}")
            _remember(known, store, now - _RECHECK_S + _RETRY_S)
            return known
        if known is not None and deb != known:
            say(
                f"Debian now has {package} {deb.version}: this run uses it instead of "
                f"{known.version} (KERNEL={known.path} stays with the old one)"
            )
        _remember(deb, store, now)
    return deb


def _wait(say: Callable[[str], None], package: str) -> Callable[[str], None]:
    return lambda holder: say(f"waiting for {holder}, which is fetching {package}")


def _recall(package: str, store: Path) -> tuple[Deb | None, float]:
    """The package used last, if it is still there, and when the mirror was asked."""
    try:
        kept = json.loads((store / f"{package}.json").read_text(encoding="utf-8"))
        deb = Deb(package, kept["version"], store / kept["file"])
        size = deb.path.stat().st_size
        if size != kept.get("bytes", size):
            cache.damaged(deb.path, f"{size} bytes, and had {kept['bytes']}")
            return None, 0.0
        return deb, float(kept["checked"])
    except (OSError, ValueError, KeyError, TypeError):
        return None, 0.0


def _remember(deb: Deb, store: Path, now: float) -> None:
    kept = {
        "version": deb.version,
        "file": deb.path.name,
        "bytes": deb.path.stat().st_size,
        "checked": now,
    }
    cache.write_json(store / f"{deb.package}.json", kept)
    older = sorted(store.glob(f"{deb.package}_*.deb"), key=lambda p: p.stat().st_mtime)
    for path in [path for path in older if path != deb.path][: -(_KEPT - 1)]:
        path.unlink()


def _fetch(
    package: str, store: Path, known: Deb | None, say: Callable[[str], None], etc: Path
) -> Deb:
    """Ask each suite in turn, and download unless ``known`` is the answer."""
    if shutil.which("apt-get") is None:
        raise KstallError(
            f"without apt {package} cannot be fetched",
            next="give KERNEL= a kernel checkout, source directory or tarball",
        )
    store.mkdir(parents=True, exist_ok=True)
    for stale in store.glob(".apt-*"):
        cache.remove(stale)
    private = Path(tempfile.mkdtemp(prefix=".apt-", dir=store))
    try:
        for suite in _KERNEL_SUITES:
            apt = _Apt.prepare(private / suite, suite, mirror_for(suite, etc))
            apt.update(patient=known is None)
            if (found := apt.candidate(package)) is None:
                continue
            name, version, bytes_ = found
            if known is not None and known.path.name == name:
                return known
            space.require(store, bytes_, package)
            say(f"fetching {package} {version} from {suite} ({bytes_ / 1e6:.0f} MB)")
            downloaded = apt.download(package)
            target = store / name
            downloaded.rename(target)
            return Deb(package, version, target)
    finally:
        cache.remove(private)
    raise KstallError(
        f"Debian has no {package} in {' or '.join(_KERNEL_SUITES)} now",
        next="give KERNEL= a kernel checkout, source directory or tarball",
    )


@dataclass(frozen=True)
class _Apt:
    """An apt that knows one suite and keeps all its state in ``place``.

    It reads and writes nothing of the system's apt but how to reach the network: the
    Acquire settings (a proxy, say) and the credentials below /etc/apt.
    """

    place: Path
    suite: str

    @classmethod
    def prepare(cls, place: Path, suite: str, uri: str) -> _Apt:
        for name in ("lists/partial", "cache/archives/partial", "download"):
            (place / name).mkdir(parents=True)
        (place / "status").touch()
        line = f"deb [signed-by={keyring()}] {uri} {suite} main\n"
        (place / "sources.list").write_text(line)
        reaching = [
            line
            for line in process.run(["apt-config", "dump"]).stdout.splitlines()
            if line.startswith("Acquire")
        ]
        ours = {
            # Drops the hooks and clean-up commands of the system's own apt.
            "Dir::Etc::Main": "/dev/null",
            "Dir::Etc::Parts": "/dev/null",
            "Dir::Etc::Preferences": "/dev/null",
            "Dir::Etc::PreferencesParts": "/dev/null",
            "Dir::Etc::SourceList": place / "sources.list",
            "Dir::Etc::SourceParts": "/dev/null",
            "Dir::State": place,
            "Dir::State::Lists": place / "lists",
            "Dir::State::status": place / "status",
            "Dir::Cache": place / "cache",
            "Dir::Log": place,
            # The user that apt drops to may not write below the cache.
            "APT::Sandbox::User": "",
            "APT::Update::Error-Mode": "any",
            "Acquire::Languages": "none",
        }
        settings = [f'{key} "{value}";' for key, value in ours.items()]
        config = place / "apt.conf"
        config.touch(mode=0o600)  # a proxy's password may be in it
        config.write_text("\n".join([*reaching, *settings, ""]))
        return cls(place, suite)

    def _run(self, *argv: str, timeout: float) -> str:
        env = {"APT_CONFIG": str(self.place / "apt.conf"), "LC_ALL": "C"}
        cwd = self.place / "download"
        return process.run(argv, cwd=cwd, env=env, timeout=timeout).stdout

    def update(self, *, patient: bool) -> None:
        """Fetch the suite's index; not ``patient``: give up soon, we can do without."""
        seconds, tries = (30, 3) if patient else (5, 0)
        options = (
            *("-o", f"Acquire::http::Timeout={seconds}"),
            *("-o", f"Acquire::https::Timeout={seconds}"),
            *("-o", f"Acquire::Retries={tries}"),
        )
        try:
            self._run("apt-get", *options, "update", timeout=seconds * 6)
        except (process.CommandError, process.Deadline) as error:
            raise _Unreachable(
                f"Debian's {self.suite} cannot be read: {_complaint(error)}",
                next="give KERNEL= a kernel checkout, source directory or tarball",
            ) from error

    def candidate(self, package: str) -> tuple[str, str, int] | None:
        """File name, version and bytes of what `download` would fetch."""
        try:
            said = self._run(
                *("apt-get", "download", "--print-uris", package), timeout=60
            )
        except process.CommandError:
            return None
        match = re.search(r"^'\S+' (\S+_(\S+)_\S+\.deb) (\d+) ", said, re.MULTILINE)
        if match is None:
            return None
        return match[1], match[2].replace("%3a", ":"), int(match[3])

    def download(self, package: str) -> Path:
        """Fetch and verify ``package``; the file that came."""
        try:
            self._run("apt-get", "-q", "download", package, timeout=1800)
        except (process.CommandError, process.Deadline) as error:
            raise _Unreachable(
                f"{package} could not be fetched: {_complaint(error)}",
                next="give KERNEL= a kernel checkout, source directory or tarball",
            ) from error
        (found,) = (self.place / "download").glob("*.deb")
        return found


def _complaint(error: KstallError) -> str:
    """The first line in which apt names an error, else all there is."""
    lines = error.what.splitlines()
    return next((line for line in lines if line.startswith(("E: ", "Err:"))), lines[0])
