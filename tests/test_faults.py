# SPDX-License-Identifier: GPL-2.0-or-later
"""What becomes of a run when something goes wrong that is no fault of the series.

Each test breaks one thing, and looks at three: what is said, what state it leaves, and
whether the next run gets where this one should have got.  `CLASSES` are those that
have to be covered; tests elsewhere count as well if they are marked as a fault.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fakeworld import Ran, World

#: Kinds of faults, each with at least one test.
CLASSES = frozenset(
    (
        *("disk full", "killed", "guest panics", "guest hangs", "guest out of memory"),
        *("QEMU killed", "truncated", "corrupted", "no mirror", "clock", "two runs"),
        *("read-only", "hostile name", "outside the tree", "endless console"),
    )
)
_NEW_MOUNTS = 0x00020000  # CLONE_NEWNS of <sched.h>


def _mounts() -> str:
    return Path("/proc/self/mountinfo").read_text()


def _settled(world: World) -> None:
    """Nothing of any run is left but what the next one uses."""
    assert world.processes() == []
    assert world.free()
    assert world.leftovers() == []


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    before = _mounts()
    made = World(tmp_path / "world")
    yield made
    _settled(made)
    assert _mounts() == before


@pytest.fixture(scope="module")
def proven(tmp_path_factory: pytest.TempPathFactory) -> World:
    """A world in which the series was proven, and all that this makes is kept."""
    made = World(tmp_path_factory.mktemp("proven") / "world")
    ran = made.validate()
    assert ran.exit_code == 0, ran.said
    return made


def _require_proven(ran: Ran) -> None:
    assert ran.exit_code == 0, ran.said
    assert "verdict  PROVEN" in ran.said
    assert "a bug in kstall" not in ran.said


def _require_stopped(ran: Ran, stage: str, *says: str) -> None:
    """It could not run: ``stage`` says why and what to do, and is no traceback."""
    assert ran.exit_code == 2, ran.said
    assert "Traceback" not in ran.said and "a bug in kstall" not in ran.said, ran.said
    found = ran.stage(stage)
    assert found.status == "error"
    error = found.error or ""
    for text in (*says, "next: "):
        assert text in error, error


# -- killed --------------------------------------------------------------------------

#: In their order; of the last ones nothing is kept.
STAGES = (
    *("tree", "root", "toolchain", "apply", "patches", "base", "config", "build"),
    *("programs", "accelerator", "guest", "judge", "binaries", "instructions"),
    *("time", "events", "gate"),
)
#: Those that run a program which takes its time.
_PROGRAMS = (
    *("tree", "root", "toolchain", "apply", "patches", "base", "build", "programs"),
    *("guest", "instructions"),
)
#: Those whose result is found again.
_KEPT = (
    *("root", "patches", "base", "config", "build", "programs", "guest", "binaries"),
    "instructions",
)


@pytest.fixture(scope="module")
def stumbling(tmp_path_factory: pytest.TempPathFactory) -> World:
    """A world whose runs are killed, one after the other, each a stage later."""
    return World(tmp_path_factory.mktemp("stumbling") / "world")


@pytest.mark.fault("killed", "SIGKILL in each stage")
@pytest.mark.parametrize("stage", STAGES)
def test_a_run_that_is_killed_leaves_nothing_running(
    stumbling: World, stage: str
) -> None:
    before = _mounts()
    child = stumbling.held(stage, inside=stage in _PROGRAMS)
    stumbling.kill(child)
    assert stumbling.processes() == []
    assert stumbling.free()
    assert _mounts() == before
    killed = stumbling.outcome(child)
    assert killed.report is not None and killed.report.status == "running"
    series = killed.report.series[:1]
    done = [*killed.report.stages, *(s for one in series for s in one.stages)]
    assert [one.status for one in done[:-1] if one.status == "error"] == []


@pytest.mark.fault("killed", "the run after the killed ones")
def test_the_run_after_a_killed_one_goes_on_where_that_stopped(
    stumbling: World,
) -> None:
    guests = len(stumbling.guests)
    after = stumbling.validate()
    _require_proven(after)
    _settled(stumbling)
    if guests:  # of tests that ran before
        assert set(_KEPT) <= after.reused
        assert len(stumbling.guests) == guests


# -- damaged entries -----------------------------------------------------------------


def _cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def _empty(path: Path) -> None:
    os.truncate(path, 0)


def _overwrite(path: Path) -> None:
    path.write_bytes(b"\0" * path.stat().st_size)


@pytest.mark.fault("truncated", "a file of each kind of cache entry is cut short")
@pytest.mark.fault("corrupted", "a file of each kind of cache entry is overwritten")
@pytest.mark.parametrize(
    ("file", "damage", "stage"),
    [
        ("trees/*/base.json", _cut, "tree"),
        ("trees/*/files", _empty, "tree"),
        ("roots/*/root.json", _empty, "root"),
        ("roots/*/root.erofs", _overwrite, "root"),
        ("patchchecks/*/checks.json", _cut, "patches"),
        ("configs/*/.config", _cut, "base"),
        ("kernels/*/vmlinux", _cut, "build"),
        ("kernels/*/kernel.json", _empty, "build"),
        ("kernels/*/kstall-entry.json", _cut, "build"),
        ("extra/*/kstall_nap.ko", _overwrite, "build"),
        ("programs/*/program", _cut, "programs"),
        ("evidence/*/doze/stdout", _empty, "guest"),
        ("footprints/*/footprint.json", _cut, "binaries"),
        ("instructions/*/counts.json", _overwrite, "instructions"),
    ],
)
def test_a_damaged_entry_is_named_and_made_anew(
    proven: World, file: str, damage: Callable[[Path], None], stage: str
) -> None:
    paths = sorted(proven.cache.glob(file))
    before = [path.read_bytes() for path in paths]
    for path in paths:
        damage(path)
    ran = proven.validate()
    _require_proven(ran)
    said = ran.stage(stage).summary
    entries = {path.relative_to(proven.cache).parts[:2] for path in paths}
    assert "made anew" in said
    assert any(f"{proven.cache.joinpath(*e)} is damaged (" in said for e in entries)
    # The tree's own are not the same to the byte: they have the time of the copy.
    if not file.startswith("trees/"):
        assert [path.read_bytes() for path in sorted(proven.cache.glob(file))] == before
    assert "is damaged" not in proven.validate().said
    _settled(proven)


@pytest.mark.fault("truncated", "what is known of an output directory")
@pytest.mark.parametrize(
    "file",
    ["kstall-steps.json", "kstall-slot.json", "kstall-sources.json", ".config"],
)
@pytest.mark.parametrize("damage", [_cut, _empty, _overwrite])
def test_a_damaged_output_directory_is_built_in_all_the_same(
    proven: World, file: str, damage: Callable[[Path], None]
) -> None:
    (output,) = proven.cache.glob("builds/7*")
    kernels = sorted(proven.cache.glob("kernels/*/vmlinux"))
    before = [path.read_bytes() for path in kernels]
    damage(output / file)
    shutil.rmtree(proven.cache / "kernels")
    _require_proven(proven.validate())
    assert [path.read_bytes() for path in kernels] == before
    _settled(proven)


@pytest.mark.fault("truncated", "an object of an earlier build")
@pytest.mark.parametrize("damage", [_cut, _empty, _overwrite])
def test_a_damaged_object_is_not_linked(
    proven: World, damage: Callable[[Path], None]
) -> None:
    """Neither is the series blamed for it, nor does the linker take it for nothing."""
    (output,) = proven.cache.glob("builds/7*")
    kernels = sorted(proven.cache.glob("kernels/*/vmlinux"))
    before = [path.read_bytes() for path in kernels]
    when = (output / "other.o").stat()
    damage(output / "other.o")
    os.utime(output / "other.o", ns=(when.st_atime_ns, when.st_mtime_ns))
    (output / "vmlinux").unlink()
    shutil.rmtree(proven.cache / "kernels")
    _require_proven(proven.validate())
    assert [path.read_bytes() for path in kernels] == before
    _settled(proven)


@pytest.mark.fault("corrupted", "an object whose headers look right")
def test_an_object_that_the_linker_refuses_is_no_fault_of_the_series(
    proven: World,
) -> None:
    (output,) = proven.cache.glob("builds/7*")
    when = (output / "other.o").stat()
    text = bytearray((output / "other.o").read_bytes())
    text[18:20] = b"\xff\x7f"  # a machine that there is not
    (output / "other.o").write_bytes(text)
    os.utime(output / "other.o", ns=(when.st_atime_ns, when.st_mtime_ns))
    (output / "vmlinux").unlink()
    shutil.rmtree(proven.cache / "kernels")
    ran = proven.validate()
    _require_stopped(ran, "base", "is damaged", "other.o", "base.log", "run the same")
    _require_proven(proven.validate())
    _settled(proven)


@pytest.mark.fault("corrupted", "what a run remembers of sources")
def test_a_damaged_memory_of_sources_costs_a_copy_at_most(proven: World) -> None:
    memories = list(proven.cache.glob("sources/seen/*.json"))
    assert memories
    for path in memories:
        _cut(path)
    ran = proven.validate()
    _require_proven(ran)
    assert set(_KEPT) <= ran.reused
    _settled(proven)


@pytest.mark.fault("corrupted", "the pristine copy of a file that a series touches")
def test_a_damaged_pristine_file_does_not_get_into_a_kernel(world: World) -> None:
    world.validate()
    (home,) = world.cache.glob("trees/7*")
    _overwrite(home / "pristine/demo.c")
    shutil.rmtree(world.cache / "kernels")
    ran = world.validate()
    _require_stopped(ran, "apply", "demo.c", f"remove {home}")
    shutil.rmtree(home)
    _require_proven(world.validate())


# -- a full disk ---------------------------------------------------------------------


def _tiny_disk(place: Path) -> Callable[[], None]:
    """What gives a process a full disk at ``place``, which nobody else sees."""

    def mount() -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        assert libc.unshare(_NEW_MOUNTS) == 0, os.strerror(ctypes.get_errno())
        place.mkdir(parents=True, exist_ok=True)
        for words in (
            ["--make-rprivate", "/"],
            ["-t", "tmpfs", "-o", "size=64k", "tmpfs", str(place)],
        ):
            subprocess.run(["mount", *words], check=True)
        with (place / "filler").open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError:
                pass

    return mount


needs_mounts = pytest.mark.skipif(
    os.geteuid() != 0, reason="only root can mount a small disk"
)


@needs_mounts
@pytest.mark.fault("disk full", "in each cache whose entries a run needs")
@pytest.mark.parametrize(
    ("cache", "stage"),
    [
        ("trees", "tree"),
        ("roots", "root"),
        ("configs", "base"),
        ("builds", "base"),
        ("kernels", "base"),
        ("extra", "base"),
        ("programs", "programs"),
    ],
)
def test_a_full_disk_stops_a_run_and_is_said(
    world: World, cache: str, stage: str
) -> None:
    world.prepare.append(_tiny_disk(world.cache / cache))
    ran = world.validate()
    world.prepare.clear()
    _require_stopped(ran, stage, "KSTALL_CACHE")
    assert "no room for" in ran.said or "no space left" in ran.said
    assert ran.report is not None and ran.report.status == "could-not-run"
    done = {one.name for one in ran.report.stages} | {
        one.name for one in ran.report.series[0].stages if one.status == "pass"
    }
    after = world.validate()
    _require_proven(after)
    # Nothing that had been done is done again.
    assert set(_KEPT) & done - {stage} <= after.reused


@needs_mounts
@pytest.mark.fault("disk full", "in each cache whose entries a run can do without")
@pytest.mark.parametrize(
    ("cache", "stage"),
    [
        ("patchchecks", "patches"),
        ("evidence", "guest"),
        ("footprints", "binaries"),
        ("instructions", "instructions"),
    ],
)
def test_a_full_disk_costs_no_result_that_is_there(
    world: World, cache: str, stage: str
) -> None:
    world.prepare.append(_tiny_disk(world.cache / cache))
    ran = world.validate()
    world.prepare.clear()
    _require_proven(ran)
    said = ran.stage(stage).summary
    assert "could not be kept (No space left on device)" in said, said
    after = world.validate()
    _require_proven(after)
    assert stage not in after.reused
