# SPDX-License-Identifier: GPL-2.0-or-later
"""What becomes of a run when something goes wrong that is no fault of the series.

Each test breaks one thing, and looks at three: what is said, what state it leaves, and
whether the next run gets where this one should have got.  `CLASSES` are those that
have to be covered; tests elsewhere count as well if they are marked as a fault.
"""

from __future__ import annotations

import ast
import itertools
import mmap
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import indent

import pytest

from fake_kernel import commit, git, snapshot
from fakeworld import World, write
from faulty import (
    HANGS,
    KILLED,
    PANIC,
    ROOTLESS,
    RUNNING,
    STARVED,
    cut,
    empty,
    forget,
    impatient,
    little,
    mounts,
    needs_mounts,
    overwrite,
    own_mounts,
    require_proven,
    require_stopped,
    restored,
    save,
    settled,
    settling,
    small_disk,
    tiny_disk,
)
from kstall.base import cache

#: Kinds of faults, each with at least one test.
CLASSES = frozenset(
    (
        *(
            "disk full",
            "killed",
            "interrupted",
            "guest panics",
            "guest hangs",
            "guest out of memory",
        ),
        *("QEMU killed", "truncated", "corrupted", "no mirror", "clock", "two runs"),
        *("read-only", "hostile name", "outside the tree", "endless console"),
        "program fails",
    )
)

#: Another user than root.
NOBODY = 65534


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with settling(World(tmp_path / "world")) as sandbox:
        yield sandbox


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> World:
    sandbox = World(tmp_path_factory.mktemp("proven") / "world")
    require_proven(sandbox.validate())
    return save(sandbox)


@pytest.fixture
def proven(shared: World) -> Iterator[World]:
    """A world in which the series was proven, and all that this makes is kept.

    It is that of other tests, too: what a test breaks, it has to see mended.
    """
    with settling(restored(shared)):
        yield shared


needs_ccache = pytest.mark.skipif(
    shutil.which("ccache") is None, reason="no ccache is installed"
)

# -- killed --------------------------------------------------------------------------

#: In their order; of the last ones nothing is kept.
STAGES = (
    *("tree", "root", "toolchain", "apply", "patches", "compile", "base", "config"),
    *("build", "programs", "accelerator", "guest", "judge", "binaries"),
    *("instructions", "events", "gate"),
)
#: Those that run a program which takes its time.
_PROGRAMS = (
    *("tree", "root", "toolchain", "apply", "patches", "compile", "base", "build"),
    *("programs", "guest", "instructions"),
)
#: Those whose result is found again.
_KEPT = (
    *("root", "patches", "compile", "base", "config", "build", "programs", "guest"),
    *("binaries", "instructions"),
)


@pytest.mark.fault("killed", "SIGKILL in each stage")
@pytest.mark.fault("killed", "the run after the killed ones")
def test_runs_that_are_killed_leave_nothing_running_and_are_gone_on_with(
    world: World,
) -> None:
    """Each is killed a stage later than the one before."""
    for stage in STAGES:
        child = world.held(stage, inside=stage in _PROGRAMS)
        world.kill(child)
        assert world.processes() == [], stage
        assert world.free(), stage
        assert mounts(world) == [], stage
        killed = world.outcome(child)
        assert killed.report is not None and killed.report.status == "running"
        series = killed.report.series[:1]
        done = [*killed.report.stages, *(s for entry in series for s in entry.stages)]
        assert [stage.name for stage in done[:-1] if stage.status == "error"] == []
    guests = len(world.guests)
    after = world.validate()
    require_proven(after)
    settled(world)
    assert set(_KEPT) <= after.reused
    assert len(world.guests) == guests


@pytest.mark.fault("killed", "while mmdebstrap makes a root, half of it in $TMPDIR")
def test_half_a_root_is_removed_by_the_next_run(world: World) -> None:
    # Python asks for $TMPDIR only once, and did so before there was this world.
    world.prepare.append(lambda: setattr(tempfile, "tempdir", None))
    # What it does in its directory, when it is held.
    half = 'mkdir -p "$TMPDIR/mmdebstrap.x/etc" && chmod 500 "$TMPDIR/mmdebstrap.x"'
    when = f"case $0 in *mmdebstrap) {half} ;; *) false ;; esac"
    child = world.held("root", inside=True, when=when)
    world.kill(child)
    assert len(list(world.root.glob("tmp/kstall-root-*/mmdebstrap.x/etc"))) == 1
    require_proven(world.validate())
    settled(world)


@pytest.mark.fault("interrupted", "Ctrl-C or SIGTERM in each stage that runs a program")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_runs_that_are_interrupted_end_at_once(
    world: World, number: signal.Signals
) -> None:
    """Each is interrupted a stage later than the one before."""
    for stage in _PROGRAMS:
        child = world.held(stage, inside=True)
        # The program stands still, so that nothing can end but by being ended.
        os.kill(child.pid or 0, number)
        ran = world.end(child)
        assert ran.exit_code == 2, stage
        assert "interrupted; what was finished is kept" in ran.output, stage
        assert "Traceback" not in ran.output
        assert ran.report is not None and ran.report.status == "interrupted"
        assert ran.stage(stage).error == "interrupted"
        settled(world)


# -- damaged entries -----------------------------------------------------------------


@pytest.mark.fault("truncated", "a file of each kind of cache entry is cut short")
@pytest.mark.fault("corrupted", "a file of each kind of cache entry is overwritten")
@pytest.mark.parametrize(
    ("file", "damage", "stage"),
    [
        ("trees/*/base.json", cut, "tree"),
        ("trees/*/files", empty, "tree"),
        ("roots/*/root.json", empty, "root"),
        ("roots/*/root.erofs", overwrite, "root"),
        ("patchchecks/*", cut, "patches"),
        ("compiled/*/outcome.json", cut, "compile"),
        ("compiled/*/objects/demo.o", overwrite, "compile"),
        ("configs/*/.config", cut, "compile"),
        ("kernels/*/vmlinux", cut, "build"),
        ("kernels/*/kernel.json", empty, "build"),
        ("kernels/*/kstall-entry.json", cut, "build"),
        ("extra/*/kstall_nap.ko", overwrite, "build"),
        ("programs/*/program", cut, "programs"),
        ("evidence/*/doze/stdout", empty, "guest"),
        ("judgements/*", empty, "judge"),
        ("footprints/*", overwrite, "binaries"),
        ("instructions/*/counts.json", overwrite, "instructions"),
    ],
)
def test_a_damaged_entry_is_named_and_made_anew(
    proven: World, file: str, damage: Callable[[Path], None], stage: str
) -> None:
    if file.startswith("configs/"):
        forget(proven, "compiled")  # Most of them are looked at for nothing else.
    paths = sorted(proven.cache.glob(file))
    before = [path.read_bytes() for path in paths]
    for path in paths:
        damage(path)
    ran = proven.validate()
    require_proven(ran)
    summary = ran.stage(stage).summary
    entries = {path.relative_to(proven.cache).parts[:2] for path in paths}
    assert "made anew" in summary
    assert any(f"{proven.cache.joinpath(*e)} is damaged (" in summary for e in entries)
    # The tree's own are not the same to the byte: they have the time of the copy.
    if not file.startswith("trees/"):
        assert [path.read_bytes() for path in sorted(proven.cache.glob(file))] == before
        with cache.remarked() as said_now:
            places = [proven.cache.joinpath(*entry) for entry in entries]
            assert all(
                cache.is_complete(place)
                if place.is_dir()
                else cache.recall(place, lambda _: True)
                for place in places
            )
        assert said_now == []


@pytest.mark.fault("truncated", "what is known of an output directory")
@pytest.mark.parametrize(
    ("file", "damage"),
    [
        ("kstall-steps.json", empty),
        ("kstall-slot.json", cut),
        ("kstall-sources.json", overwrite),
        (".config", cut),
    ],
)
def test_a_damaged_output_directory_is_built_in_all_the_same(
    proven: World, file: str, damage: Callable[[Path], None]
) -> None:
    (output,) = proven.cache.glob("builds/7*")
    kernels = sorted(proven.cache.glob("kernels/*/vmlinux"))
    before = [path.read_bytes() for path in kernels]
    damage(output / file)
    forget(proven, "kernels")
    require_proven(proven.validate())
    assert [path.read_bytes() for path in kernels] == before
    settled(proven)


@pytest.mark.fault("truncated", "an object of an earlier build")
@pytest.mark.parametrize("damage", [cut, empty, overwrite])
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
    forget(proven, "kernels")
    require_proven(proven.validate())
    assert [path.read_bytes() for path in kernels] == before
    settled(proven)


@pytest.mark.fault("corrupted", "an object whose headers look right")
def test_an_object_that_the_linker_refuses_is_no_fault_of_the_series(
    proven: World,
) -> None:
    # What others did here, a directory that was copied too, is behind us.
    forget(proven, "kernels")
    require_proven(proven.validate())
    (output,) = proven.cache.glob("builds/7*")
    when = (output / "other.o").stat()
    text = bytearray((output / "other.o").read_bytes())
    text[18:20] = b"\xff\x7f"  # a machine that there is not
    (output / "other.o").write_bytes(text)
    os.utime(output / "other.o", ns=(when.st_atime_ns, when.st_mtime_ns))
    (output / "vmlinux").unlink()
    forget(proven, "kernels")
    ran = proven.validate()
    require_stopped(ran, "base", "is damaged", "other.o", "base.log", "run the same")
    require_proven(proven.validate())
    settled(proven)


@needs_ccache
@pytest.mark.fault("truncated", "the compiler's cache")
@pytest.mark.fault("corrupted", "the compiler's cache")
@pytest.mark.parametrize("damage", [cut, overwrite])
def test_a_damaged_compiler_cache_gets_into_no_kernel(
    proven: World, damage: Callable[[Path], None]
) -> None:
    kernels = sorted(proven.cache.glob("kernels/*/vmlinux"))
    before = [path.read_bytes() for path in kernels]
    for path in (proven.cache / "ccache").rglob("*"):
        if path.is_file() and not path.name.startswith("inode-cache"):
            damage(path)
    forget(proven, "kernels", "builds")
    require_proven(proven.validate())
    assert [path.read_bytes() for path in kernels] == before


@needs_ccache
@pytest.mark.fault("truncated", "what the compiler's cache maps into memory")
def test_a_compiler_cache_that_dies_of_its_own_files_loses_them(proven: World) -> None:
    # So that it knows every file, as it is now.
    forget(proven, "kernels", "builds")
    require_proven(proven.validate())
    (index,) = (proven.cache / "ccache").rglob("inode-cache*")
    os.truncate(index, mmap.PAGESIZE)
    # It looks up no file that changed in the last two seconds: on a fast machine
    # that were all of a source tree made afresh. So compile again in the same.
    time.sleep(2.5)
    objects = list((proven.cache / "builds").rglob("*.o"))
    assert objects
    for path in objects:
        path.unlink()
    forget(proven, "kernels")
    ran = proven.validate()
    require_stopped(ran, "base", f"{index}, is damaged", "base.log", "run the same")
    assert not index.exists()
    require_proven(proven.validate())


@pytest.mark.fault("corrupted", "what a run remembers of sources")
def test_a_damaged_memory_of_sources_costs_a_copy_at_most(proven: World) -> None:
    memories = list(proven.cache.glob("sources/seen/*.json"))
    assert memories
    for path in memories:
        cut(path)
    ran = proven.validate()
    require_proven(ran)
    assert set(_KEPT) <= ran.reused
    settled(proven)


@pytest.mark.fault("corrupted", "the pristine copy of a file that a series touches")
def test_a_damaged_pristine_file_does_not_get_into_a_kernel(world: World) -> None:
    world.validate()
    (home,) = world.cache.glob("trees/7*")
    overwrite(home / "pristine/demo.c")
    shutil.rmtree(world.cache / "kernels")
    ran = world.validate()
    require_stopped(ran, "apply", "demo.c", f"remove {home}")
    shutil.rmtree(home)
    require_proven(world.validate())


# -- a full disk ---------------------------------------------------------------------


@needs_mounts
@pytest.mark.fault("disk full", "in each cache whose entries a run needs")
@pytest.mark.parametrize(
    ("kind", "stage"),
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
    proven: World, kind: str, stage: str
) -> None:
    if kind == "builds":  # where nothing is done for a kernel that is there
        forget(proven, "kernels")
    proven.prepare.append(tiny_disk(proven.cache / kind))
    ran = proven.validate()
    proven.prepare.clear()
    require_stopped(ran, stage, "KSTALL_CACHE")
    assert "no room for" in ran.output or "no space left" in ran.output
    assert ran.report is not None and ran.report.status == "could-not-run"
    after = proven.validate()
    require_proven(after)
    # Nothing that had been done is done again.
    assert set(_KEPT) - {"base", "build"} <= after.reused
    assert kind == "builds" or {"base", "build"} <= after.reused


@needs_mounts
@pytest.mark.fault("disk full", "in each cache whose entries a run can do without")
@pytest.mark.parametrize(
    ("kind", "stage"),
    [
        ("patchchecks", "patches"),
        ("evidence", "guest"),
        ("judgements", "judge"),
        ("footprints", "binaries"),
        ("instructions", "instructions"),
    ],
)
def test_a_full_disk_costs_no_result_that_is_there(
    proven: World, kind: str, stage: str
) -> None:
    forget(proven, kind)
    proven.prepare.append(tiny_disk(proven.cache / kind))
    ran = proven.validate()
    proven.prepare.clear()
    require_proven(ran)
    summary = ran.stage(stage).summary
    assert "could not be kept (No space left on device)" in summary, summary
    assert ran.stage("events").status == "pass"
    after = proven.validate()
    require_proven(after)
    assert set(_KEPT) - {stage} == after.reused & set(_KEPT)


@needs_ccache
@needs_mounts
@pytest.mark.fault("disk full", "in the compiler's cache")
def test_a_full_compiler_cache_costs_only_time(proven: World) -> None:
    kernels = sorted(proven.cache.glob("kernels/*/vmlinux"))
    before = [path.read_bytes() for path in kernels]
    forget(proven, "kernels", "builds", "ccache")
    proven.prepare.append(tiny_disk(proven.cache / "ccache"))
    require_proven(proven.validate())
    assert [path.read_bytes() for path in kernels] == before


@needs_mounts
@pytest.mark.fault("disk full", "where the run directories are, from the start")
def test_a_place_for_runs_that_is_full(world: World) -> None:
    world.prepare.append(tiny_disk(world.out))
    ran = world.validate()
    world.prepare.clear()
    assert ran.exit_code == 2
    assert f"{world.out} cannot hold run directories: No space left" in ran.output
    assert "next: name another directory with --out" in ran.output
    assert "Traceback" not in ran.output
    require_proven(world.validate())


@needs_mounts
@pytest.mark.fault("disk full", "where the run directories are, by what a guest writes")
def test_a_guest_that_fills_the_disk(world: World) -> None:
    world.prepare += [small_disk(world.out, "2m")]
    world.guest(
        """
        with (results / "huge").open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError:
                pass
        """
    )
    ran = world.validate()
    world.prepare.clear()
    assert ran.exit_code == 2, ran.output
    assert "Traceback" not in ran.output, ran.output
    assert "no room for what the guest writes" in ran.output
    # Another guest would find the disk just as full.
    assert world.guests.count("doze") == 1
    assert "next: free some" in ran.output and "--out" in ran.output
    world.guest(None)
    after = world.validate()
    require_proven(after)
    assert {"root", "base", "build", "programs"} <= after.reused


# -- read-only -----------------------------------------------------------------------


def _read_only(place: Path) -> Callable[[], None]:
    def mount() -> None:
        own_mounts()
        words = ["mount", "--bind", str(place), str(place)]
        subprocess.run(words, check=True)
        subprocess.run(["mount", "-o", "remount,bind,ro", str(place)], check=True)

    return mount


@needs_mounts
@pytest.mark.fault("read-only", "the kernel tree and the checkout of kstall")
def test_what_is_only_read_may_be_read_only(world: World) -> None:
    world.prepare += [_read_only(world.kernel), _read_only(world.project.root)]
    require_proven(world.validate())


@needs_mounts
@pytest.mark.fault("read-only", "the cache")
def test_a_read_only_cache_is_said_before_any_stage(world: World) -> None:
    require_proven(world.validate())
    world.prepare.append(_read_only(world.cache))
    ran = world.validate()
    world.prepare.clear()
    assert ran.exit_code == 2
    assert f"{world.cache} cannot hold the cache" in ran.output
    assert "next: set KSTALL_CACHE" in ran.output and "Traceback" not in ran.output


@needs_mounts
@pytest.mark.fault("read-only", "a part of the cache")
@pytest.mark.parametrize(
    ("part", "stage"),
    [
        ("kernels", "base"),
        ("trees", "tree"),
        ("variants", "compile"),
        ("compiled", "compile"),
    ],
)
def test_a_read_only_part_of_the_cache_is_said(
    world: World, part: str, stage: str
) -> None:
    (world.cache / part).mkdir(parents=True)
    world.prepare.append(_read_only(world.cache / part))
    ran = world.validate()
    world.prepare.clear()
    require_stopped(ran, stage, "Read-only file system", f"{world.cache / part}")
    require_proven(world.validate())


@needs_mounts
@pytest.mark.fault("read-only", "where the run directories are")
def test_a_read_only_place_for_runs(world: World) -> None:
    world.out.mkdir()
    world.prepare.append(_read_only(world.out))
    ran = world.validate()
    world.prepare.clear()
    assert ran.exit_code == 2
    assert f"{world.out} cannot hold run directories: Read-only" in ran.output
    assert "--out" in ran.output and "Traceback" not in ran.output


# -- guests --------------------------------------------------------------------------


@pytest.mark.fault("guest panics", "in a workload")
@pytest.mark.fault("guest panics", "its root cannot be mounted")
@pytest.mark.fault("guest hangs", "in a workload")
@pytest.mark.fault("guest out of memory", "the agent is killed")
@pytest.mark.fault("QEMU killed", "while a workload runs")
@pytest.mark.parametrize(
    ("what", "code", "says"),
    [
        (
            PANIC,
            1,
            ("the guest panicked in workload doze", "out of ideas", "console.log"),
        ),
        (
            # The deadline is the harness's own, and this kernel said nothing.
            HANGS,
            2,
            (
                "the guest did not end in workload doze",
                "console.log",
                "in the first try",
            ),
        ),
        (
            STARVED,
            2,
            ("the guest ran out of memory", "python3", "[machine]", "console.log"),
        ),
        (
            KILLED,
            2,
            ("the guest went away", "run the same command again", "console.log"),
        ),
        (
            ROOTLESS,
            2,
            ("the guest found nothing to start", "VFS: Unable", "without the patches"),
        ),
    ],
    ids=["panic", "hang", "memory", "killed", "no root"],
)
def test_a_guest_that_does_not_end_well(
    proven: World, what: str, code: int, says: tuple[str, ...]
) -> None:
    forget(proven, "evidence")
    proven.guest(RUNNING + what)
    proven.prepare.append(impatient)
    ran = proven.validate()
    proven.guest(None)
    proven.prepare.clear()
    assert ran.exit_code == code, ran.output
    stage = ran.stage("guest")
    assert stage.status == ("fail" if code == 1 else "error")
    for text in says:
        assert text in (stage.error or ""), stage.error
    # What it had brought until then is there, and is not taken for a result.
    assert (ran.dir / "demo/results/doze/stdout").read_text() == "dozed\n"
    tries = ran.report.series[0].tries if ran.report is not None else []
    assert len(tries) == code
    assert not list(proven.cache.glob("evidence/*"))
    after = proven.validate()
    require_proven(after)
    assert set(_KEPT) - {"guest"} == after.reused & set(_KEPT)


@pytest.mark.fault("QEMU killed", "while instructions are counted")
def test_a_guest_that_is_killed_while_it_is_measured(proven: World) -> None:
    forget(proven, "instructions")
    proven.guest(f"if load['name'].startswith('nap'):\n{indent(KILLED, '    ')}")
    ran = proven.validate()
    proven.guest(None)
    require_stopped(ran, "instructions", "boot ", "went away", "console.log")
    after = proven.validate()
    require_proven(after)
    assert set(_KEPT) - {"instructions"} == after.reused & set(_KEPT)


@pytest.mark.fault("program fails", "that prints the formats of events, once")
def test_formats_that_were_not_printed_are_no_result(proven: World) -> None:
    forget(proven, "instructions")
    proven.guest(
        "if load['name'] == 'all-trace-events':\n"
        "    agent['workloads'][-1]['exit_status'] = 1\n"
    )
    ran = proven.validate()
    proven.guest(None)
    require_stopped(ran, "instructions", "boot ", "all-trace-events exited, exit 1")
    after = proven.validate()
    require_proven(after)
    assert after.stage("events").status == "pass"


@pytest.mark.fault("endless console", "100 MB of it, with a panic at the end")
@pytest.mark.parametrize(
    "line",
    ["x" * 79 + "\n", "[    1.000000] WARNING: at y\n", "[    1.000000] z"],
    ids=["lines", "reports", "one line"],
)
def test_a_guest_that_prints_without_end(proven: World, line: str) -> None:
    forget(proven, "evidence")
    proven.guest(
        RUNNING
        + f"""
with console.open("a") as file:
    for _ in range(100):
        file.write({line!r} * (10**6 // {len(line)}))
    file.write("\\n")
"""
        + PANIC
    )
    proven.prepare.append(little)
    ran = proven.validate()
    proven.guest(None)
    proven.prepare.clear()
    assert ran.exit_code == 1, ran.output
    stage = ran.stage("guest")
    assert "the guest panicked" in (stage.error or "")
    assert "console.log" in (stage.error or "")
    assert (ran.dir / "demo/console.log").stat().st_size > 99 * 10**6
    assert (ran.dir / "demo/results/console.txt").stat().st_size < 10**7
    for name in ("report.json", "report.html", "junit.xml", "results.ktap"):
        assert (ran.dir / name).stat().st_size < 10**6, name
    shutil.rmtree(ran.dir)
    require_proven(proven.validate())


# -- two runs at once ----------------------------------------------------------------


@pytest.mark.fault("two runs", "both need what is made only once")
@pytest.mark.parametrize(
    ("stage", "gone"),
    [
        ("tree", ("trees", "sources")),
        ("root", ("roots",)),
        ("compile", ("compiled", "variants")),
        ("base", ("kernels", "configs")),
        ("guest", ("evidence",)),
        ("instructions", ("instructions",)),
    ],
)
def test_of_two_runs_one_waits_and_takes_what_the_other_made(
    proven: World, stage: str, gone: tuple[str, ...]
) -> None:
    forget(proven, *gone)
    guests = len(proven.guests)
    first = proven.held(stage, inside=True)
    second = proven.held("waiting")
    assert first.is_alive() and second.is_alive()
    proven.release()
    run, other = proven.end(first), proven.end(second)
    require_proven(run)
    require_proven(other)
    assert run.dir != other.dir
    assert f"waiting for process {first.pid}" in other.output or (
        f"waiting: process {first.pid}" in other.output
    )
    if stage in _KEPT:
        assert stage not in run.reused and stage in other.reused
    assert len(proven.guests) - guests == {"guest": 1, "instructions": 6}.get(stage, 0)


def _give_away(world: World) -> None:
    """Have ``world`` belong to another user, who also runs what is run in it."""
    for path in (world.root, *world.root.rglob("*")):
        os.chown(path, NOBODY, NOBODY, follow_symlinks=False)

    def become() -> None:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        os.environ["HOME"] = str(world.root)

    world.prepare.append(become)


@pytest.fixture
def two_users() -> Iterator[tuple[World, World, Path]]:
    """A world of ours and one of theirs, and where both have temporary files."""
    words = (f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")
    files = (sys.executable, os.__file__, pytest.__file__, cache.__file__)
    if subprocess.run(
        ["setpriv", *words, "cat", *files], capture_output=True
    ).returncode:
        pytest.skip("this Python is not for others to use")
    # Directories of pytest are not for others to enter.
    with tempfile.TemporaryDirectory(prefix="kstall-two-") as name:
        top = Path(name)
        top.chmod(0o755)
        shared = top / "tmp"
        shared.mkdir()
        shared.chmod(0o1777)
        ours, theirs = worlds = [World(top / name) for name in ("ours", "theirs")]
        for world in worlds:
            # Python asks for $TMPDIR only once, and did so before there was this one.
            world.prepare.append(lambda: setattr(tempfile, "tempdir", str(shared)))
            world.prepare.append(lambda: os.environ.update(TMPDIR=str(shared)))
        _give_away(theirs)
        with settling(ours), settling(theirs):
            yield ours, theirs, shared


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
@pytest.mark.fault("two runs", "of two users, each with a cache")
def test_runs_of_two_users_at_once_do_not_meet(
    two_users: tuple[World, World, Path],
) -> None:
    ours, theirs, shared = two_users
    child = ours.start()
    require_proven(theirs.validate())
    require_proven(ours.end(child))
    # One is killed and the other goes on, each with a guest.
    for world in (ours, theirs):
        forget(world, "evidence")
    child = ours.held("guest", inside=True)
    try:
        theirs.kill(theirs.held("guest", inside=True))
        left = {path for path in shared.iterdir() if path.stat().st_uid == NOBODY}
        assert left
        ours.release()
        require_proven(ours.end(child))
    finally:
        ours.kill(child)
    # What is left even root leaves alone: it is for their next run to remove.
    require_proven(ours.validate("--again"))
    assert {*shared.iterdir()} == left
    require_proven(theirs.validate())
    assert [*shared.iterdir()] == []
    made = (*theirs.cache.rglob("*"), *theirs.out.rglob("*"))
    assert {path.lstat().st_uid for path in made} == {NOBODY}


# -- clocks --------------------------------------------------------------------------


@pytest.mark.fault("clock", "it went back a day since the last build")
def test_what_was_built_in_the_future_is_not_built_upon(proven: World) -> None:
    kernels = sorted(proven.cache.glob("kernels/*/vmlinux"))
    before = [path.read_bytes() for path in kernels]
    forget(proven, "kernels")
    require_proven(proven.validate())  # so that there is something to build upon
    (output,) = proven.cache.glob("builds/7*")
    tomorrow = time.time() + 24 * 3600
    for path in output.rglob("*"):
        os.utime(path, (tomorrow, tomorrow), follow_symlinks=False)
    forget(proven, "kernels")
    ran = proven.validate()
    require_proven(ran)
    assert f"the clock went back since {output} was last built in" in ran.output
    # Of the base nothing was left, and the series has only its own file to compile.
    assert [path.read_bytes() for path in kernels] == before
    forget(proven, "kernels")
    again = proven.validate()
    require_proven(again)
    assert "the clock" not in again.output


@pytest.mark.fault("clock", "it goes back during a build")
def test_a_build_during_which_the_clock_goes_back_is_not_used(proven: World) -> None:
    forget(proven, "kernels")
    # As make meets it: a file that another step has just written is of the future.
    real = shutil.which("make")
    write(
        proven.root / "bin",
        {
            "make": "#!/bin/sh\n"
            "for word; do case $word in O=*builds*) o=${word#O=} ;; esac; done\n"
            'test -z "$o" || touch -d tomorrow "$o/.config"\n'
            f'exec {real} "$@"\n'
        },
    )
    ran = proven.validate()
    (proven.root / "bin/make").unlink()
    require_stopped(ran, "base", "the clock went back", "base.log", "set the clock")
    assert not list(proven.cache.glob("kernels/*"))
    require_proven(proven.validate())


@pytest.mark.fault("clock", "it goes back and forth during a run")
def test_a_run_measures_by_a_clock_that_nobody_sets(proven: World) -> None:
    def erratic() -> None:
        days = itertools.cycle((0, -4000, 4000, -1))
        real = time.time
        time.time = lambda: real() + 86400 * next(days)

    proven.prepare.append(erratic)
    forget(proven, "evidence")
    ran = proven.validate()
    require_proven(ran)
    assert ran.report is not None
    stages = [*ran.report.stages, *ran.report.series[0].stages]
    times = [ran.report.seconds, *(stage.seconds for stage in stages)]
    times += [figure.value for stage in stages for figure in stage.figures]
    assert min(times) >= 0 and max(times) < 86400


@pytest.mark.fault("clock", "the tree has files of the future")
def test_files_of_the_future_in_a_tree(world: World) -> None:
    """As where a tree was unpacked by a machine whose clock is ahead."""
    tomorrow = time.time() + 24 * 3600
    os.utime(world.kernel / "other.c", (tomorrow, tomorrow))
    before = snapshot(world.kernel)
    require_proven(world.validate())
    assert snapshot(world.kernel) == before


# -- what only looks like a name, or a path ------------------------------------------

_NAMES = ["-rf", "a\nb", 'it\'s; $(false) `x` "y"', "latin-\udce9", "%s{}[b]\\ "]


@pytest.mark.fault("hostile name", "of the kernel tree and of files in it")
@pytest.mark.parametrize("name", _NAMES)
def test_a_tree_and_its_files_may_be_called_anything(world: World, name: str) -> None:
    top = world.root / "trees of mine" / name
    top.parent.mkdir()
    world.kernel.rename(top)
    (top / name).write_text("text\n")
    (top / "-n").symlink_to(name)
    before = snapshot(top)
    ran = world.validate(kernel=top)
    require_proven(ran)
    assert snapshot(top) == before
    (copied,) = world.cache.glob("trees/7*/src")
    assert (copied / name).read_text() == "text\n"


@pytest.mark.fault("hostile name", "of branches, tags and files of a checkout")
def test_a_checkout_may_have_branches_of_any_name(world: World) -> None:
    top = world.kernel
    commit(top)
    for name in ("-f", 'it\'s;$(false)`x`"y"', "latin-\udce9", "HEAD", "7.3.4"):
        git(top, "update-ref", f"refs/heads/{name}", "HEAD")
        git(top, "update-ref", f"refs/tags/{name}", "HEAD")
    git(top, "symbolic-ref", "HEAD", "refs/heads/latin-\udce9")
    for name in _NAMES:
        (top / name).write_text("text\n")
    commit(top)
    for name in _NAMES:
        (top / name).write_text("changed\n")
    before = snapshot(top)
    ran = world.validate()
    require_proven(ran)
    assert snapshot(top) == before
    assert ran.report is not None and ran.report.tree is not None
    assert len(ran.report.tree.dirty) == len(_NAMES)


@pytest.mark.fault("hostile name", "of the place for runs")
@pytest.mark.parametrize("name", _NAMES)
def test_a_place_for_runs_may_be_called_anything(proven: World, name: str) -> None:
    forget(proven, "evidence")
    ran = proven.validate("--out", str(proven.root / "runs" / name))
    require_proven(ran)
    assert ran.dir.parent == proven.root / "runs" / name
    assert "guest" not in ran.reused


@pytest.mark.fault("outside the tree", "a patch that names a path beyond it")
@pytest.mark.parametrize(
    "path", ["../evil.c", "a/../../../evil.c", "/tmp/evil.c", ".git/hooks/evil"]
)
def test_a_patch_that_leads_out_of_the_tree_is_refused(world: World, path: str) -> None:
    patch = world.project.patches / "demo/0001-demo.patch"
    patch.write_text(
        patch.read_text()
        .replace("demo.c b", f"{path} b", 1)
        .replace("b/demo.c", f"b/{path}")
        .replace("a/demo.c", f"a/{path}")
    )
    before = _paths(world.root)
    ran = world.validate()
    assert ran.exit_code == 2
    assert f"{patch}:" in ran.output and path in ran.output, ran.output
    assert "leads out of the kernel tree" in ran.output or "git's own" in ran.output
    assert "next: " in ran.output and "Traceback" not in ran.output
    assert {path for path in _paths(world.root) - before if "evil" in path} == set()
    assert not Path("/tmp/evil.c").exists()


@pytest.mark.fault("outside the tree", "a patch through a link that leads beyond it")
def test_a_patch_through_a_link_is_refused(world: World) -> None:
    target = world.root / "precious"
    target.mkdir()
    (target / "demo.c").write_text((world.kernel / "demo.c").read_text())
    (world.kernel / "away").symlink_to(target)
    patch = world.project.patches / "demo/0001-demo.patch"
    patch.write_text(patch.read_text().replace("/demo.c", "/away/demo.c"))
    before = snapshot(target)
    ran = world.validate()
    assert ran.exit_code == 3, ran.output
    assert "0001-demo.patch, away/demo.c: away is a symbolic link" in ran.output
    assert snapshot(target) == before


def _paths(top: Path) -> set[str]:
    return {str(path) for path in top.rglob("*")}


# -- no mirror -----------------------------------------------------------------------


@pytest.mark.fault("no mirror", "for the guest's packages")
def test_without_a_mirror_there_is_no_root(world: World) -> None:
    (world.root / "no-mirror").touch()
    ran = world.validate()
    require_stopped(ran, "root", "Could not connect to the mirror", "root.log", "apt")
    assert not [path for path in world.cache.glob("roots/*") if path.is_dir()]
    (world.root / "no-mirror").unlink()
    require_proven(world.validate())
    # Now that it is there, nobody is asked.
    (world.root / "no-mirror").touch()
    require_proven(world.validate())


# -- the catalogue -------------------------------------------------------------------


def _catalogue() -> dict[tuple[str, str], str]:
    """Every fault that some test injects, by kind and what, with the test's name."""
    catalogue = {}
    for path in sorted(Path(__file__).parent.glob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.FunctionDef):
                continue
            for decorator in node.decorator_list:
                if ast.unparse(decorator).startswith("pytest.mark.fault("):
                    assert isinstance(decorator, ast.Call)
                    kind, what = (ast.literal_eval(word) for word in decorator.args)
                    catalogue[kind, what] = f"{path.name}::{node.name}"
    return catalogue


def test_every_kind_of_fault_is_injected_by_a_test() -> None:
    faults = _catalogue()
    assert {kind for kind, _ in faults} == CLASSES
    assert len(faults) >= 20
