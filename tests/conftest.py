# SPDX-License-Identifier: GPL-2.0-or-later
"""Fixtures that more than one module uses."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections import Counter, defaultdict
from collections.abc import Generator, Iterable, Iterator
from pathlib import Path

import pytest

import processes
from kstall.base import cache
from kstall.build import kernel
from kstall.cost import Kernels
from kstall.debian import Root, root
from kstall.series import Project
from live import Outcome, validate

ROOT = Path(__file__).resolve().parents[1]

# What a unit test sees of the environment that pytest was started in.
_KEPT = ("PATH", "TMPDIR", "LD_LIBRARY_PATH", "VIRTUAL_ENV")
_KEPT_PREFIXES = ("PYTEST_", "PYTHON", "COV_")
_USERS = dict(os.environ)
_HOME = pytest.StashKey[Path]()
#: The steps of a test run, and the marker that puts a test there; the last one wins.
_STEPS = {"unit": None, "faults": "fault", "live": "live", "deep": "deep"}


def pytest_configure() -> None:
    """Whatever started us: a shell in the background, say, or a service."""
    processes.expect_signals()
    processes.adopt()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What boots comes last, in whatever order the rest is."""
    items.sort(key=_boots)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Of all that run these tests one boots at a time: the processors are its.

    A group of pytest-xdist would do, but with pytest 9.2 xdist 3.8 makes none.
    """
    with Path(__file__).open() as file:
        if _boots(item):
            fcntl.flock(file, fcntl.LOCK_EX)
        return (yield)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """A unit test has a home of its own and none of the user's settings.

    Before any fixture is made, lest one of a module or of all tests sees others.
    """
    wanted = dict(_USERS)
    if not _boots(item):
        wanted = {
            name: value
            for name, value in _USERS.items()
            if name in _KEPT or name.startswith(_KEPT_PREFIXES)
        }
        home = _home(item.config)
        wanted |= {"HOME": str(home), "LANG": "C.UTF-8", "TERM": "dumb"}
    for name in [name for name in os.environ if not name.startswith("PYTEST_")]:
        if name not in wanted:
            del os.environ[name]
    os.environ.update(wanted)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Each test belongs to one step, which its reports tell across processes."""
    item.user_properties.append(("step", _step(item)))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Each step with a status of its own: a red one says where to look first."""
    reports = [
        report
        for reports in terminalreporter.stats.values()
        for report in reports
        if isinstance(report, pytest.TestReport)
    ]
    terminalreporter.section("steps")
    for line, bad in step_lines(reports):
        terminalreporter.line(line, red=bad)


def step_lines(reports: Iterable[pytest.TestReport]) -> Iterator[tuple[str, bool]]:
    """Lines on the steps, in their order, and whether each is bad."""
    steps: dict[str, Counter[str]] = {}
    seconds: defaultdict[str, float] = defaultdict(float)
    for report in reports:
        step = str(dict(report.user_properties).get("step"))
        seconds[step] += report.duration
        if report.when == "call" or not report.passed:
            outcome = report.outcome if report.when == "call" else "error"
            if report.skipped:
                outcome = "skipped"
            steps.setdefault(step, Counter())[outcome] += 1
    for step in _STEPS:
        if step in steps:
            bad = bool(steps[step]["failed"] or steps[step]["error"])
            counts = [f"{number} {name}" for name, number in steps[step].items()]
            text = f"{', '.join(counts)} ({seconds[step]:.0f} s)"
            yield f"{step:<8}{'FAIL' if bad else 'ok':<6}{text}", bad
    if missing := [step for step in _STEPS if step not in steps]:
        yield f"not run: {', '.join(missing)}", False


def _step(item: pytest.Item) -> str:
    return [
        step
        for step, marker in _STEPS.items()
        if marker is None or item.get_closest_marker(marker)
    ][-1]


def _home(config: pytest.Config) -> Path:
    if (home := config.stash.get(_HOME, None)) is None:
        home = Path(tempfile.mkdtemp(prefix="kstall-tests-home-"))
        config.stash[_HOME] = home
        config.add_cleanup(lambda: shutil.rmtree(home, ignore_errors=True))
    return home


def _boots(item: pytest.Item) -> bool:
    return any(item.get_closest_marker(name) for name in ("live", "deep"))


@pytest.fixture(scope="session")
def project_root() -> Path:
    """This checkout."""
    return ROOT


@pytest.fixture
def project_copy(tmp_path: Path) -> Project:
    """A private copy of patches/, kconfigs/, scripts/ and harness/, to break."""
    for name in ("patches", "kconfigs", "scripts", "harness"):
        shutil.copytree(
            ROOT / name,
            tmp_path / "project" / name,
            ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"),
        )
    return Project(tmp_path / "project")


@pytest.fixture
def kernels(tmp_path: Path) -> Kernels:
    """Two that are compared, without a byte of theirs."""
    base, patched = (
        kernel.Kernel(name, tmp_path / name, "7.3.4", "ab" * 20, reused=True)
        for name in ("base", "patched")
    )
    return Kernels(base, patched, Root("root", tmp_path, {}, True))


@pytest.fixture(scope="session")
def proven(project_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """The drm-sched series as it is, validated on the default tree."""
    return validate(project_root, tmp_path_factory.mktemp("out"), "drm-sched")


@pytest.fixture(scope="session")
def kernel_image(proven: Outcome) -> Generator[Path, None, None]:
    """A kernel that boots: the one that the series was validated on."""
    key = proven.report.series[0].kernel
    assert key is not None, proven.output
    entry = cache.default_dir() / "kernels" / key
    with cache.held(entry):
        yield entry / "bzImage"


@pytest.fixture(scope="session")
def guest_root(
    proven: Outcome, project_root: Path, tmp_path_factory: pytest.TempPathFactory
) -> Root:
    """The guest's root, which the validation has made."""
    return root.obtain(
        root.packages(project_root / "scripts/guest-packages.txt"),
        cache.default_dir(),
        lambda _: None,
        log=tmp_path_factory.mktemp("root") / "log",
    )
