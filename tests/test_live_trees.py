# SPDX-License-Identifier: GPL-2.0-or-later
"""kstall on real kernels of other versions than the one that series are made for.

Each tree is a whole kernel to build when the cache has it not.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from kstall.base import cache
from kstall.build import Toolchain, kconfig, kernel, resolve
from kstall.debian import root
from kstall.series import Project
from kstall.tree import source
from live import validate

pytestmark = [pytest.mark.live, pytest.mark.deep]

DATA = Path(__file__).parent / "data" / "trees"
SERIES = "exec-args"


@pytest.fixture
def project(project_copy: Project) -> Project:
    """This project, with a series that fits kernels of several versions."""
    shutil.copytree(DATA, project_copy.root, dirs_exist_ok=True)
    return project_copy


@pytest.mark.parametrize("version", ["6.12", "7.3"])
def test_a_series_that_fits_both_is_proven_on_both(
    project: Project, tmp_path: Path, version: str
) -> None:
    words = ("--level", "quick", "--kernel", f"debian:{version}", SERIES)
    outcome = validate(project.root, tmp_path / "out", *words)
    assert outcome.exit_code == 0, outcome.output
    assert outcome.report.status == "proven"
    assert outcome.report.tree is not None
    assert outcome.report.tree.version.startswith(f"{version}.")
    judged = {check.name: check.status for check in outcome.report.series[0].checks}
    for name in ("arguments_are_counted", "decoded_by_perf", "decoded_by_trace_cmd"):
        assert judged[name] == "pass"
    if version == "6.12":
        assert "PREEMPT_VOLUNTARY=y instead of" in outcome.stage("config").summary


@pytest.mark.parametrize(
    "series",
    ["drm-sched", "io_uring-sq", "iommu-iotlb", "pci-aer", "rdma-cq", "sched-throttle"],
)
def test_six_series_are_proven_on_the_version_before(
    project_root: Path, tmp_path: Path, series: str
) -> None:
    words = ("--level", "quick", "--kernel", "debian:7.2", series)
    outcome = validate(project_root, tmp_path / "out", *words)
    assert outcome.exit_code == 0, outcome.output
    judged = {check.name: check.status for check in outcome.report.series[0].checks}
    assert judged["checkpatch_tags"] == "skip"
    assert "PROC_SYSCTL=y instead of SYSCTL" in outcome.stage("config").summary


@pytest.mark.parametrize(
    ("series", "place"),
    [
        ("mm-migrate", "0002-mm-mmu_notifier-add-.*, mm/mmu_notifier.c:18: hunk 1 "),
        ("pci-aer-fixes", "0001-PCI-AER-Do-not-clear-.*, drivers/pci/pci.h:875: "),
    ],
)
def test_two_do_not_apply_to_it(
    project_root: Path, tmp_path: Path, series: str, place: str
) -> None:
    words = ("--level", "quick", "--kernel", "debian:7.2", series)
    outcome = validate(project_root, tmp_path / "out", *words)
    assert outcome.exit_code == 3, outcome.output
    assert re.match(place, outcome.stage("apply").error or "")


def test_what_does_not_fit_an_old_tree_is_no_failure(
    project: Project, tmp_path: Path
) -> None:
    words = ("--level", "quick", "--kernel", "debian:6.12", "drm-sched")
    outcome = validate(project.root, tmp_path / "out", *words)
    assert outcome.exit_code == 3, outcome.output
    assert outcome.report.status == "does-not-apply"
    error = outcome.stage("apply").error or ""
    assert error.startswith("0001-drm-sched-Add-a-helper-for-pipelined-dependencies")
    assert ", drivers/gpu/drm/scheduler/" in error.splitlines()[0]


# -- 7.3 with a Kconfig of tomorrow --------------------------------------------------


@pytest.fixture(scope="module")
def tools(project_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Toolchain:
    wanted = root.packages(project_root / "scripts/guest-packages.txt")
    log = tmp_path_factory.mktemp("root") / "log"
    borrowed = root.obtain(wanted, cache.default_dir(), lambda _: None, log=log)
    return kernel.toolchain(borrowed.pahole, cache.default_dir())


@pytest.fixture
def tomorrow(tmp_path: Path) -> Path:
    """A copy of what configuring needs of the default tree, for a test to change."""
    base = source.obtain(None, cache.default_dir(), lambda _: None)
    target = tmp_path / "tomorrow"

    def beside(folder: str, names: list[str]) -> set[str]:
        inside = Path(folder).relative_to(base.path)
        if str(inside) == "scripts" or inside.parts[:1] == ("scripts",):
            return set()
        return {
            name
            for name in names
            if not (Path(folder) / name).is_dir()
            and not name.startswith(("Kconfig", "Makefile", "Kbuild"))
        }

    shutil.copytree(base.path, target, ignore=beside, symlinks=True)
    return target


def _change(tree: Path, file: str, old: str, new: str) -> None:
    path = tree / file
    text = path.read_text()
    assert text.count(old) == 1, f"{old!r} stands {text.count(old)} times in {file}"
    path.write_text(text.replace(old, new))


def _everywhere(tree: Path, change: Callable[[str], str]) -> None:
    for path in tree.rglob("Kconfig*"):
        if path.is_file():
            text = path.read_text(errors="surrogateescape")
            if (new := change(text)) != text:
                path.write_text(new, errors="surrogateescape")


def _renaming(old: str, new: str) -> Callable[[str], str]:
    return lambda text: text.replace(old, new)


def test_a_tree_that_renames_hides_and_removes_what_is_asked_for(
    tomorrow: Path, project: Project, tools: Toolchain, tmp_path: Path
) -> None:
    base = project.kconfigs / "base.config"
    asked = kconfig.combine([base])
    # Renamed, with the old name kept for a while, as kernels do.
    _everywhere(tomorrow, _renaming("KPROBE_EVENTS", "KPROBE_TRACING"))
    new = "config KPROBE_TRACING\n"
    _change(tomorrow, "kernel/trace/Kconfig", new, f"{new}\tdefault KPROBE_EVENTS\n")
    with (tomorrow / "Kconfig").open("a") as top:
        top.write("\nconfig KPROBE_EVENTS\n\tbool\n\ttransitional\n")
    # Hidden, behind one that selects it.
    old = "config KUNIT_DEBUGFS\n\tbool "
    new = "config KUNIT_DEBUGFS\n\tbool\n\nconfig KUNIT_FILES\n\tselect KUNIT_DEBUGFS\n"
    _change(tomorrow, "lib/kunit/Kconfig", old, f"{new}\tbool ")
    # Depended on, where it was there by itself.
    old = "config WQ_WATCHDOG\n"
    new = f'config WATCHDOGS\n\tbool "watchdogs"\n\n{old}\tdepends on WATCHDOGS\n'
    _change(tomorrow, "lib/Kconfig.debug", old, new)
    # Removed: one that is always there from then on, and one that headers test.
    for name in ("EPOLL", "FAILSLAB"):
        _everywhere(tomorrow, _renaming(f"config {name}\n", f"config NO_{name}\n"))
    configuration = resolve.configure(
        tomorrow, tmp_path / "o", [base], tools.make, log=tmp_path / "log"
    )
    for name in ("KPROBE_TRACING", "KUNIT_DEBUGFS", "KUNIT_FILES", "WQ_WATCHDOG"):
        assert configuration.config[name] == "y", name
    assert set(configuration.remarks) == {
        "KPROBE_EVENTS is called KPROBE_TRACING now",
        "KUNIT_DEBUGFS through KUNIT_FILES, as it has no prompt",
        "WQ_WATCHDOG with WATCHDOGS, which it depends on",
        "not available in this tree, and not needed: EPOLL, FAILSLAB",
    }
    # All others are what they were.
    others = set(asked) - {"KPROBE_EVENTS", "EPOLL", "FAILSLAB"}
    assert all(
        configuration.config.get(name, "n") == asked[name].value for name in others
    )
    # The series that needs what is gone is not judged; the next one is not stopped.
    with pytest.raises(resolve.UnmetSymbols) as caught:
        resolve.configure(
            tomorrow,
            tmp_path / "o",
            [base, project.kconfigs / "io_uring-sq.config"],
            tools.make,
            log=tmp_path / "log",
        )
    assert "io_uring-sq.config:8: CONFIG_FAILSLAB=y" in caught.value.what
    assert "no such symbol" in caught.value.what
    fragments = [base, project.kconfigs / "sched-throttle.config"]
    configuration = resolve.configure(
        tomorrow, tmp_path / "o", fragments, tools.make, log=tmp_path / "log"
    )
    assert configuration.config["CFS_BANDWIDTH"] == "y"
