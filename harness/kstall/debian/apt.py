# SPDX-License-Identifier: GPL-2.0-or-later
"""Fetch a package from a Debian suite that this machine does not use itself.

That takes a private apt, whose state is in the cache and which shares with the system's
apt only the way to the network; apt verifies what it fetches.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ..base import KstallError, cache, process, space, temporary
from .debian import APT_ETC, keyring, mirror_for

# Where a linux-source of some version may be; the first suite that has one is used.
# The stable release is last: it has older kernels, some of which only it still has.
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
    ``say`` reports a version other than the one used last.  If no mirror answers, the
    last one fetched is used.
    """
    previous, checked = _recall(package, store)
    if previous is not None and 0 <= now - checked < _RECHECK_S:
        return previous
    with cache.lock(store / f"{package}.lock", waiting=_wait(say, package)):
        previous, checked = _recall(package, store)
        if previous is not None and 0 <= now - checked < _RECHECK_S:
            return previous
        try:
            deb = _fetch(package, store, previous, say, etc)
        except KstallError as error:
            if previous is None:
                raise
            reason = error.headline
            say(f"using {package} {previous.version}, fetched before: {reason}")
            _remember(previous, store, now - _RECHECK_S + _RETRY_S)
            return previous
        if previous is not None and deb != previous:
            say(
                f"Debian now has {package} {deb.version}: this run uses it instead of "
                f"{previous.version}, which is still there: {previous.path}"
            )
        _remember(deb, store, now)
    return deb


def _wait(say: Callable[[str], None], package: str) -> Callable[[str], None]:
    return lambda holder: say(f"waiting for {holder}, which is fetching {package}")


def _recall(package: str, store: Path) -> tuple[Deb | None, float]:
    """The package used last, if it is still there, and when the mirror was asked."""
    try:
        record = json.loads((store / f"{package}.json").read_text(encoding="utf-8"))
        deb = Deb(package, record["version"], store / record["file"])
        size = deb.path.stat().st_size
        if size != record.get("bytes", size):
            cache.damaged(deb.path, f"{size} bytes instead of {record['bytes']}")
            return None, 0.0
        return deb, float(record["checked"])
    except (OSError, ValueError, KeyError, TypeError):
        return None, 0.0


def _remember(deb: Deb, store: Path, now: float) -> None:
    record = {
        "version": deb.version,
        "file": deb.path.name,
        "bytes": deb.path.stat().st_size,
        "checked": now,
    }
    cache.write_json(store / f"{deb.package}.json", record)
    older = sorted(store.glob(f"{deb.package}_*.deb"), key=lambda p: p.stat().st_mtime)
    for path in [path for path in older if path != deb.path][: -(_KEPT - 1)]:
        path.unlink()


def _fetch(
    package: str,
    store: Path,
    previous: Deb | None,
    say: Callable[[str], None],
    etc: Path,
) -> Deb:
    """Ask each suite in turn, and download unless ``previous`` is the answer."""
    if shutil.which("apt-get") is None:
        raise KstallError(
            f"{package} cannot be fetched without apt",
            next="give KERNEL= a kernel checkout, source directory or tarball",
        )
    store.mkdir(parents=True, exist_ok=True)
    with temporary.directory("apt", store) as private:
        for suite in _KERNEL_SUITES:
            apt = _Apt.prepare(private / suite, suite, mirror_for(suite, etc))
            apt.update(patient=previous is None)
            if (candidate := apt.candidate(package)) is None:
                continue
            name, version, bytes_ = candidate
            if previous is not None and previous.path.name == name:
                return previous
            space.require(store, bytes_, package)
            say(f"fetching {package} {version} from {suite} ({bytes_ / 1e6:.0f} MB)")
            downloaded = apt.download(package)
            target = store / name
            downloaded.rename(target)
            return Deb(package, version, target)
    raise KstallError(
        f"Debian has no {package} in {' or '.join(_KERNEL_SUITES)} now",
        next="give KERNEL= a kernel checkout, source directory or tarball",
    )


@dataclass(frozen=True)
class _Apt:
    """An apt that knows one suite and keeps all its state in ``place``.

    Of the system's apt it uses only how to reach the network: the Acquire settings (a
    proxy, say) and the credentials below /etc/apt.
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
        acquire = [
            line
            for line in process.run(["apt-config", "dump"]).stdout.splitlines()
            if line.startswith("Acquire")
        ]
        options = {
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
        settings = [f'{key} "{value}";' for key, value in options.items()]
        config = place / "apt.conf"
        config.touch(mode=0o600)  # a proxy's password may be in it
        config.write_text("\n".join([*acquire, *settings, ""]))
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
            raise KstallError(
                f"Debian's {self.suite} cannot be read: {_complaint(error)}",
                next="give KERNEL= a kernel checkout, source directory or tarball",
            ) from error

    def candidate(self, package: str) -> tuple[str, str, int] | None:
        """File name, version and bytes of what `download` would fetch."""
        try:
            output = self._run(
                *("apt-get", "download", "--print-uris", package), timeout=60
            )
        except process.CommandError:
            return None
        match = re.search(r"^'\S+' (\S+_(\S+)_\S+\.deb) (\d+) ", output, re.MULTILINE)
        if match is None:
            return None
        return match[1], match[2].replace("%3a", ":"), int(match[3])

    def download(self, package: str) -> Path:
        """Fetch and verify ``package``; returns its file."""
        try:
            self._run("apt-get", "-q", "download", package, timeout=1800)
        except (process.CommandError, process.Deadline) as error:
            raise KstallError(
                f"{package} could not be fetched: {_complaint(error)}",
                next="give KERNEL= a kernel checkout, source directory or tarball",
            ) from error
        (path,) = (self.place / "download").glob("*.deb")
        return path


def _complaint(error: KstallError) -> str:
    """The first line in which apt names an error, else all there is."""
    lines = error.what.splitlines()
    return next((line for line in lines if line.startswith(("E: ", "Err:"))), lines[0])
