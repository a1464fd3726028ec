# SPDX-License-Identifier: GPL-2.0-or-later
"""Work handed out to workers, and all that can befall them: Dask is real, kernels not.

The verdict has to be that of one machine, and nothing may be left.
"""

from __future__ import annotations

import contextlib
import contextvars
import copy
import dataclasses
import errno
import importlib
import os
import platform
import re
import shutil
import signal
from collections.abc import Callable, Mapping
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import Any

import pytest
from distributed import Client, Future
from fsspec.implementations.local import LocalFileSystem

from fakeworld import KERNEL, World, write
from farms import Crowd, crowd, until, verdict
from faulty import (
    HANGS,
    PANIC,
    cut,
    forget,
    impatient,
    needs_mounts,
    require_proven,
    tiny_disk,
    without_rights,
)
from kstall import farm
from kstall.base import KstallError, arch, elsewhere, temporary
from kstall.compile import sparse
from kstall.debian import Root
from kstall.farm import client, line
from kstall.farm import worker as workers_module
from kstall.pipeline import units
from kstall.report import matrix
from processes import bury, descendants

#: What a guest does that stands still until it may go on.
WAITS = """
(world / "booted").touch()
while not (world / "go").exists():
    time.sleep(0.05)
"""
#: The same for a kernel that is being linked, and a note of each that was.
LINKS = """
$(O)/vmlinux: $(OBJECTS)
\t@echo linked >>$(WORLD)/links
\t@touch $(WORLD)/building
\t@while test ! -e $(WORLD)/go; do sleep 0.05; done
"""


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "world", level="quick")


def _links(world: World) -> None:
    """Have the kernel of ``world`` stand still as it is linked."""
    text = KERNEL["Makefile"].replace("\n$(O)/vmlinux: $(OBJECTS)\n", LINKS)
    assert "links" in text
    write(world.kernel, {"Makefile": text})


def _linked(world: World) -> int:
    return len((world.root / "links").read_text().split())


def _go(world: World) -> None:
    (world.root / "go").touch()


def _forget_all(world: World) -> None:
    kinds = ("kernels", "configs", "evidence", "instructions", "compiled", "programs")
    forget(world, *kinds)


def _alone(world: World, *words: str) -> str:
    """The verdict of this machine alone, from nothing."""
    _forget_all(world)
    return verdict(world.validate(*words))


def _settled(world: World, *, killed: bool = False) -> None:
    """Nothing runs, and nothing is half made or locked.

    If anything was ``killed``, what that left is deleted by the next one that has a
    temporary directory there.
    """
    assert world.processes() == [] and world.free()
    places = [*world.root.glob("*/tmp"), *world.cache.glob("workers/*/tmp")]
    for place in (world.root / "tmp", *places):
        if killed:
            with temporary.directory("next", place):
                pass
        assert list(place.glob("kstall-*")) == []
    assert list(world.root.glob("**/store/half/*")) == []
    marks = (".tmp-", ".import-", ".removed-")
    left = [
        str(path)
        for path in world.root.rglob(".*")
        if any(m in path.name for m in marks)
    ]
    assert left == []
    bury()


def test_sources_that_were_patched_here_before(world: World) -> None:
    """Files that were, and are no more, have other time stamps than in the records."""
    require_proven(world.validate())
    path = world.project.root / "patches/demo/0001-demo.patch"
    path.write_text(path.read_text().replace("return 3", "return 5"))
    with crowd(world, "one") as workers:
        ran = workers.validate()
    require_proven(ran)
    assert "somebody changed" not in ran.output
    assert (next(world.root.glob("one/trees/*")) / "pristine.json").exists()
    _settled(world)


# -- the verdict -----------------------------------------------------------------------


def test_verdict_is_that_of_one_machine(tmp_path: Path) -> None:
    world = World(tmp_path / "world")
    with crowd(world, "one", "two") as workers:
        ran = workers.validate()
        require_proven(ran)
        guests = world.guests
        assert len(guests) == 7 and ran.reused == set()
        # All that came of it is here, as if it had been made here.
        again = world.validate()
        require_proven(again)
        assert world.guests == guests
        assert {"base", "build", "guest", "instructions", "compile"} <= again.reused
    _forget_all(world)
    here = world.validate()
    require_proven(here)
    assert verdict(ran) == verdict(here)
    assert sorted(guests) == sorted(world.guests[len(guests) :])
    _settled(world)


#: What is otherwise on another architecture, and a second module that measures.
ON_ARM64 = """
[[overhead.workload]]
name = "siesta"
program = "workloads/demo/siesta"
module = "workloads/demo/kstall_siesta.c"
operation = "siesta"

[on.arm64]
append = ["quiet"]

[[on.arm64.skipped]]
measures = ["siesta"]
because = "it is too cold there"
"""


def _deviate(world: World) -> None:
    """Have the series of ``world`` be another one on arm64."""
    toml = world.project.patches / "demo/series.toml"
    toml.write_text(toml.read_text() + ON_ARM64)
    loads = world.project.scripts / "workloads/demo"
    write(loads, {"siesta": "#!/bin/sh\n", "kstall_siesta.c": "int siesta;\n"})
    for name in ("doze", "nap"):
        (loads / name).unlink()
        (loads / f"{name}.c").write_text("int main(void)\n{\n\treturn 0;\n}\n")


def _borrowing() -> None:
    """What runs here is not borrowed from a root of another architecture."""
    obtain = sparse.obtain

    def checked(tree: Path, lender: Root, *words: Any) -> sparse.Checker:
        assert lender.arch.native and lender.pahole.exists()
        return obtain(tree, lender, *words)

    vars(sparse).update(obtain=checked)


def test_another_architecture(tmp_path: Path) -> None:
    """Workers do what it takes, as this machine does it alone."""
    world = World(tmp_path / "world", prepare=[_borrowing])
    _deviate(world)
    with crowd(world, "one", "two") as workers:
        ran = workers.validate("--arch", "arm64")
        require_proven(ran)
        assert ran.report is not None and ran.report.environment.arch == "arm64"
        assert len(world.guests) == 7
    # Nothing was compiled here but a program of the tree.
    assert not (world.cache / "builds-arm64").exists()
    assert not (world.cache / "variants-arm64").exists()
    places = [world.root / name for name in ("one", "two")]
    assert any((place / "builds-arm64").exists() for place in places)
    assert any((place / "variants-arm64").exists() for place in places)
    assert not any((place / "builds").exists() for place in places)
    assert "cannot do it" not in ran.output
    compiled = (world.root / "cross-compiled").read_text()
    # For each guest that has it, and once here.
    assert (compiled.count("/doze.c"), compiled.count("/nap.c")) == (1, 7)
    assert _alone(world, "--arch", "arm64") == verdict(ran)
    _settled(world)


def test_architectures_of_a_matrix(world: World) -> None:
    _own_interpreter(world)
    file = world.root / "matrix.toml"
    file.write_text(
        f'[matrix]\ntrees = ["{world.kernel}"]\narchs = ["x86_64", "arm64"]\n'
    )
    words = ("--level", "quick", "--out", str(world.out), "--matrix", str(file))
    ran = world.run("validate", *words, "--workers", "2")
    assert ran.exit_code == 0, ran.output
    grid = matrix.read(world.out / "latest")
    assert [(column.arch, column.status) for column in grid.columns] == [
        ("x86_64", "proven"),
        ("arm64", "proven"),
    ]
    # Both speak at the same time.
    for column in grid.columns:
        assert re.search(rf"(?m)^ok +{column.name}: .*guest ", ran.output)
    assert not list(world.cache.glob("builds*"))
    _settled(world)


def test_compiler_for_another_architecture_is_named(world: World) -> None:
    """The error for a worker without the cross compiler names that compiler."""

    def without() -> None:
        names = workers_module._programs()
        few = tuple(name for name in names if name != arch.ARM64.tool("gcc"))
        vars(workers_module).update(_programs=lambda: few)

    with crowd(world) as workers:
        workers.hire("odd", odd=without)
        workers.gather()
        ran = workers.validate("--arch", "arm64")
        assert ran.exit_code == 2, ran.output
        error = ran.stage("workers").error or ""
        assert "odd has no aarch64-linux-gnu-gcc: aarch64 gcc version 99.0.0" in error
        assert "and not" not in error
        workers.hire("two")
        workers.gather()
        ran = workers.validate("--arch", "arm64")
        require_proven(ran)
        assert "cannot do it" not in ran.output


def test_panic_on_a_worker_is_a_panic(world: World) -> None:
    world.guest(PANIC)
    with crowd(world, "one", "two") as workers:
        ran = workers.validate()
        # It failed, and nobody asks again until it does not.
        assert ran.exit_code == 1 and world.guests == ["doze"]
        log = ran.dir / "demo/console.log"
        assert "out of ideas" in log.read_text()
        assert str(log) in (ran.stage("guest").error or "")
        # Nor is it found again.
        world.guest(None)
        require_proven(workers.validate())
        assert len(world.guests) == 2
    world.guest(PANIC)
    assert _alone(world) == verdict(ran)


def test_kernel_that_no_worker_can_build_tells_why_here(world: World) -> None:
    patch = world.project.patches / "demo/0001-demo.patch"
    patch.write_text(patch.read_text().replace("return 3", "return three"))
    with crowd(world, "one") as workers:
        ran = workers.validate()
    assert ran.exit_code == 1 and "one says the tree does not build" in ran.output
    log = (ran.dir / "demo/build.log").read_text()
    assert "three" in log and "three" in (ran.stage("build").error or "")
    assert _alone(world) == verdict(ran)


def _own_interpreter(world: World) -> None:
    """Workers of this machine are started with our interpreter, and look for virtme-ng
    beside it: have them believe that it is the world's."""
    here = world.root / "bin/python3"
    real = here.read_text().split()[2]
    code = "import runpy, sys; sys.executable = sys.argv.pop(1); del sys.argv[1]; "
    code += "runpy.run_module('kstall', run_name='__main__', alter_sys=True)"
    here.write_text(
        f'#!/bin/sh\nif test "$2" = kstall; then shift; exec {real} -c "{code}" "$0" '
        f'"$@"; fi\nexec {real} "$@"\n'
    )


def _two_processors() -> None:
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])


def test_workers_of_this_machine(world: World) -> None:
    _own_interpreter(world)
    world.prepare.append(_two_processors)
    ran = world.validate("--workers", "2")
    require_proven(ran)
    assert "2 workers: worker-1, 1 slots and worker-2, 1 slots" in ran.output
    said = (world.cache / "workers/worker-1/worker.log").read_text()
    # Other users of this machine could connect without certificates.
    assert "worker-1 works for tls://127.0.0.1:" in said
    assert _alone(world) == verdict(ran)
    _settled(world)


def test_workers_of_another_run_keep_their_directory(world: World) -> None:
    _own_interpreter(world)
    places = world.cache / "workers"
    with farm.reserved(places, "worker-1") as other:
        (other / "worker.log").write_text("of another run")
        require_proven(world.validate("--workers", "1"))
        assert (other / "worker.log").read_text() == "of another run"
    assert "worker-1 works for" in (places / "worker-1-2/worker.log").read_text()
    _settled(world)


#: A queue that begins each job at once, here.
SLURM = {
    "sbatch": """\
#!/bin/sh
cp "$1" "$WORLD/job-$$"
setsid sh "$WORLD/job-$$" >"$WORLD/job-$$.out" 2>&1 &
echo $! >>"$WORLD/submitted"
echo "sbatch: warning: 0 is no number of a job" >&2
echo "Submitted batch job $!"
""",
    "scancel": '#!/bin/sh\necho "$1" >>"$WORLD/cancelled"\nkill -- "-$1"\n',
}


def test_workers_in_jobs(world: World) -> None:
    _own_interpreter(world)
    write(world.root / "bin", SLURM)
    store = ("--store", str(world.root / "store"))
    ran = world.validate("--on", "slurm:cores=4,memory=8GB,jobs=2", *store)
    require_proven(ran)
    names = ("submitted", "cancelled")
    jobs = [sorted((world.root / name).read_text().split()) for name in names]
    assert jobs[0] == jobs[1] and len(jobs[0]) == 2
    assert _alone(world) == verdict(ran)
    until("they have ended", lambda: not world.processes())
    _settled(world)


def test_interrupted_with_workers_of_this_machine(world: World) -> None:
    _own_interpreter(world)
    world.guest(WAITS)
    child = world.start("--workers", "1")
    until("a guest", (world.root / "booted").exists)
    assert child.pid is not None
    os.kill(child.pid, signal.SIGINT)
    ran = world.end(child)
    assert ran.exit_code == 2 and "interrupted" in ran.output, ran.output
    assert ran.report is not None and ran.report.status == "interrupted"
    until("they have ended", lambda: not world.processes())
    _go(world)
    again = world.validate("--workers", "1")
    require_proven(again)
    # The kernel was finished, and the guest was not.
    assert "build" in again.reused and len(world.guests) == 2
    _settled(world)


def test_killed_with_workers_of_this_machine(world: World) -> None:
    """Nothing of it goes on, and the next run has its workers' caches."""
    _own_interpreter(world)
    world.guest(WAITS)
    child = world.start("--workers", "1")
    until("a guest", (world.root / "booted").exists)
    # When it returns, no process is left.
    world.kill(child)
    _go(world)
    again = world.validate("--workers", "1")
    require_proven(again)
    assert "build" in again.reused and len(world.guests) == 2
    assert [path.name for path in (world.cache / "workers").iterdir()] == ["worker-1"]
    assert _alone(world) == verdict(again)
    _settled(world, killed=True)


# -- workers ---------------------------------------------------------------------------


def _killed_when(
    workers: Crowd, sign: str, begin: Callable[[], int], *, again: int = 1
) -> None:
    """Kill the worker that made ``sign`` appear; the other one does its work, and
    ``begin`` counts so many more."""
    world = workers.world
    child = workers.ask()
    until(sign, (world.root / sign).exists)
    before = begin()
    assert before == 1
    # Only one can have begun it.
    busy = [name for name in workers.workers if (world.root / name / "tmp").exists()]
    victim = next(
        name for name in busy if any((world.root / name / "tmp").glob("kstall-unit-*"))
    )
    survivors = descendants(workers.workers[victim].pid)
    assert survivors or not again
    workers.kill(workers.workers[victim])
    # By themselves they would end only when they may go on.
    until("its children end", lambda: survivors.isdisjoint(world.processes()))
    _go(world)
    ran = world.end(child)
    require_proven(ran)
    assert begin() == before + again
    assert _alone(world) == verdict(ran)


def test_worker_killed_as_it_builds(world: World) -> None:
    _links(world)
    with crowd(world, "one", "two") as workers:
        _killed_when(workers, "building", lambda: _linked(world))
    _settled(world, killed=True)


def test_worker_killed_as_its_guest_runs(world: World) -> None:
    world.guest(WAITS)
    with crowd(world, "one", "two") as workers:
        _killed_when(workers, "booted", lambda: len(world.guests))
    _settled(world, killed=True)


def _stalling(world: World) -> None:
    """The first archive of a kernel is half written until the test lets it go on."""
    put = LocalFileSystem.put_file

    def put_file(self: Any, source: str, target: str, *words: Any, **how: Any) -> None:
        with contextlib.suppress(FileExistsError):
            (world.root / "sending").mkdir()
            data = Path(source).read_bytes()
            Path(target).write_bytes(data[: len(data) // 2])
            until("it may go on", (world.root / "go").exists)
        put(self, source, target, *words, **how)

    LocalFileSystem.put_file = put_file


def test_worker_killed_as_it_sends(world: World) -> None:
    half = world.cache / "store/half"
    with crowd(world) as workers:
        world.prepare.append(lambda: _stalling(world))
        for name in ("one", "two"):
            workers.hire(name)
        workers.gather()
        world.prepare.clear()
        _killed_when(workers, "sending", lambda: len(list(half.iterdir())), again=0)
    (left,) = half.iterdir()
    # It is not taken for anything, and goes when it is old.
    os.utime(left, (0, 0))
    with crowd(world, "one") as workers:
        require_proven(workers.validate())
    _settled(world, killed=True)


def _unpacking(world: World) -> None:
    """The first entry is half unpacked until the test lets it go on."""
    get = farm.Store.get

    def half(self: farm.Store, artifact: farm.Artifact, target: Path) -> None:
        with contextlib.suppress(FileExistsError):
            (world.root / "unpacking").mkdir()
            (target / "half").touch()
            write(world.root, {"victim": target.relative_to(world.root).parts[0]})
            until("it may go on", (world.root / "go").exists)
        get(self, artifact, target)

    setattr(farm.Store, "get", half)  # noqa: B010


def test_worker_killed_as_it_unpacks(world: World) -> None:
    with crowd(world) as workers:
        world.prepare.append(lambda: _unpacking(world))
        for name in ("one", "two"):
            workers.hire(name)
        workers.gather()
        world.prepare.clear()
        child = workers.ask()
        named = world.root / "victim"
        until("it unpacks", lambda: named.exists() and named.read_text())
        victim = named.read_text()
        workers.kill(workers.workers[victim])
        _go(world)
        ran = world.end(child)
        require_proven(ran)
    assert list(world.root.glob(f"{victim}/*/.*.tmp-*/half"))
    # The next worker that has this cache.
    with farm.reserved(world.root, victim):
        pass
    assert _alone(world) == verdict(ran)
    _settled(world, killed=True)


def test_last_worker_killed(world: World) -> None:
    """Nobody is left: that is said, and who comes later goes on with it."""
    world.guest(WAITS)
    world.prepare.append(_with_patience(2.0))
    with crowd(world, "one") as workers:
        child = workers.ask()
        until("a guest", (world.root / "booted").exists)
        workers.kill(workers.workers["one"])
        ran = world.end(child)
        assert ran.exit_code == 2, ran.output
        assert "no worker can do this: guest of demo" in ran.output
        _go(world)
        workers.hire("two")
        workers.gather()
        ran = workers.validate()
        require_proven(ran)
    assert _alone(world) == verdict(ran)
    _settled(world, killed=True)


def _second_killed(workers: Crowd) -> ForkProcess:
    """A client whose guest one worker could not boot; the next one was killed as it
    did."""
    world = workers.world
    world.guest(WAITS)
    world.prepare.append(lambda: _first_is_faulty(world))
    for name in ("one", "two"):
        workers.hire(name)
    workers.gather()
    world.prepare.pop()
    child = workers.ask()
    until("a guest", (world.root / "booted").exists)
    first = (world.root / "faulty/name").read_text()
    assert f"guest of demo: {first} cannot do it: it is broken" in world._output(child)
    (victim,) = workers.workers.keys() - {first}
    workers.kill(workers.workers[victim])
    return child


def _first_is_faulty(world: World) -> None:
    """The first worker that is to boot a guest cannot."""

    def wrap(kind: str, perform: elsewhere.Performer) -> elsewhere.Performer:
        def once(
            cache_dir: Path, out: Path, spec: Mapping[str, Any]
        ) -> elsewhere.WorkerResult:
            with contextlib.suppress(FileExistsError):
                (world.root / "faulty").mkdir()
                (world.root / "faulty/name").write_text(cache_dir.name)
                raise KstallError("it is broken")
            return perform(cache_dir, out, spec)

        return once if kind == "guest" else perform

    _wrapped(wrap)


def test_worker_killed_after_another_one_was_faulty(world: World) -> None:
    """Only the faulty one is left, which is not asked again."""
    world.prepare.append(_with_patience(2.0))
    with crowd(world) as workers:
        child = _second_killed(workers)
        first = (world.root / "faulty/name").read_text()
        ran = world.end(child)
        assert ran.exit_code == 2, ran.output
        error = ran.stage("guest").error or ""
        assert f"it is broken (on {first}; no worker can do this: " in error, error
        assert "guest of demo: there is no other worker)" in error
        _go(world)
    _settled(world, killed=True)


def test_worker_that_comes_after_both(world: World) -> None:
    world.prepare.append(_with_patience(300.0))
    with crowd(world) as workers:
        child = _second_killed(workers)
        _go(world)
        workers.hire("three")
        require_proven(world.end(child))
        assert len(world.guests) == 2
    assert _alone(world) == verdict(world.outcome(child))
    _settled(world, killed=True)


def _with_patience(seconds: float) -> Callable[[], None]:
    """How long clients wait for a worker that can do what they ask for."""
    return lambda: setattr(client.Farm.__init__, "__defaults__", (seconds,))


@needs_mounts
def test_full_disk_on_one_worker(world: World) -> None:
    def full() -> None:
        """It fills up only when the worker has said that it is empty."""
        empty = farm.offer
        vars(farm).update(
            offer=lambda *words: dataclasses.replace(empty(*words), disk=100.0)
        )

    with crowd(world) as workers:
        world.prepare += [tiny_disk(world.root / "one"), full]
        workers.hire("one")
        workers.gather()
        world.prepare.clear()
        # Alone it is asked, and says so.
        ran = workers.validate()
        assert ran.exit_code == 2 and "no space left" in ran.output, ran.output
        assert "(on one; " in ran.output
        workers.hire("two")
        workers.gather()
        world.prepare.append(lambda: _prefer("one"))
        ran = workers.validate()
        world.prepare.clear()
        require_proven(ran)
        # The full one was asked first, and the other one did it.
        refusals = re.findall(
            r"(\w+) .*: (\w+) cannot do it: (no space left)", ran.output
        )
        assert refusals == [
            (kind, "one", "no space left") for kind in ("kernels", "guest")
        ], refusals
    for name in ("config", "guest"):
        figures = [figure.name for figure in ran.stage(name).figures]
        assert [text for text in figures if "work of " in text] == ["work of two"]
    assert (world.root / "two/builds").exists()
    assert _alone(world) == verdict(ran)


def _prefer(name: str) -> None:
    """Have Dask, which may begin with any worker, begin with this one."""
    submit = Client.submit

    def first(
        self: Client, *words: Any, workers: list[str] | None, **how: Any
    ) -> Future[Any]:
        return submit(self, *words, workers=workers or [name], **how)

    setattr(Client, "submit", first)  # noqa: B010


def test_worker_with_another_compiler_is_not_asked(world: World) -> None:
    other = world.root / "other"
    write(other, {"gcc": "#!/bin/sh\ncase $1 in --version) echo gcc 3; exit;; esac\n"})
    with (other / "gcc").open("a") as file:
        file.write(f'exec {shutil.which("gcc")} "$@"\n')

    def mine() -> None:
        os.environ["PATH"] = f"{other}:{os.environ['PATH']}"

    with crowd(world) as workers:
        workers.hire("odd", odd=mine)
        workers.gather()
        ran = workers.validate()
        assert ran.exit_code == 2, ran.output
        error = ran.stage("workers").error or ""
        assert "odd has gcc: gcc 3 and not gcc: gcc " in error and "next: " in error
        workers.hire("two")
        workers.gather()
        ran = workers.validate()
        require_proven(ran)
    # It has compiled nothing, and booted what the other one has built.
    assert not (world.root / "odd/builds").exists()
    assert _alone(world) == verdict(ran)


def test_worker_with_another_linker_is_not_asked(world: World) -> None:
    other = world.root / "other"
    write(other, {"ld": "#!/bin/sh\necho GNU ld 2\n"})
    with crowd(world) as workers:
        workers.hire(
            "odd", odd=lambda: os.environ.update(PATH=f"{other}:{os.environ['PATH']}")
        )
        workers.gather()
        ran = workers.validate()
    assert ran.exit_code == 2, ran.output
    first, *_ = (ran.stage("workers").error or "").splitlines()
    # That is all it lacks.
    assert re.search(r": odd has ld: GNU ld 2 and not ld: GNU ld \(.*\) \S+$", first)


def test_worker_with_another_virtme_ng_boots_nothing(world: World) -> None:
    def other() -> None:
        vars(workers_module).update(virtme=lambda: {"virtme-ng": "0.1"})

    with crowd(world) as workers:
        workers.hire("odd", odd=other)
        workers.gather()
        ran = workers.validate()
        assert ran.exit_code == 2, ran.output
        error = ran.stage("guest").error or ""
        assert "odd has virtme-ng: 0.1 and not virtme-ng: " in error, error
        # It has built the kernel.
        assert (world.root / "odd/builds").exists() and world.guests == []
        workers.hire("two")
        workers.gather()
        require_proven(workers.validate())


def test_worker_of_another_architecture_compiles_nothing(world: World) -> None:
    """Its compiler has the same version, but is another one."""
    with crowd(world) as workers:
        workers.hire("odd", odd=lambda: setattr(platform, "machine", lambda: "aarch64"))
        workers.gather()
        ran = workers.validate()
        assert ran.exit_code == 2, ran.output
        first, *_ = (ran.stage("workers").error or "").splitlines()
        # That is all it lacks.
        assert first.endswith(": odd has arch: aarch64 and not arch: x86_64")
        workers.hire("two")
        workers.gather()
        require_proven(workers.validate())
    assert not (world.root / "odd/builds").exists()


def test_worker_of_another_version_is_refused_by_name(world: World) -> None:
    with crowd(world) as workers:
        workers.hire(
            "old",
            odd=lambda: vars(workers_module).update(version=lambda: "0.0.9 abcdef"),
        )
        workers.gather()
        ran = workers.validate()
        assert ran.exit_code == 2
        assert "old has kstall: 0.0.9 abcdef and not kstall: " in ran.output
        workers.hire("new")
        workers.gather()
        ran = workers.validate()
        require_proven(ran)
        assert (
            "old is not asked: it has kstall 0.0.9 abcdef"
            in ran.stage("workers").summary
        )
    assert not (world.root / "old/kernels").exists()


def _wrapped(wrap: Callable[[str, elsewhere.Performer], elsewhere.Performer]) -> None:
    """Have workers do units of each kind as ``wrap`` says."""
    performers = units.performers

    def others() -> dict[str, elsewhere.Performer]:
        return {kind: wrap(kind, perform) for kind, perform in performers().items()}

    vars(units).update(performers=others)


def test_unit_of_another_key_is_refused(tmp_path: Path) -> None:
    """Whatever a worker would make, if it is not what it was asked for, it is not."""
    world = World(tmp_path / "world")

    def wrap(kind: str, perform: elsewhere.Performer) -> elsewhere.Performer:
        def first_another(
            cache_dir: Path, out: Path, spec: Mapping[str, Any]
        ) -> elsewhere.WorkerResult:
            other = {"keys": ["x"]} if "keys" in spec else {"key": "x"}
            assert other.keys() < spec.keys()
            (out / "other").mkdir()
            try:
                perform(cache_dir, out / "other", {**spec, **other})
            except elsewhere.WrongWorker as error:
                (world.root / f"refused-{kind}").write_text(error.what)
            return perform(cache_dir, out, spec)

        return first_another

    with crowd(world) as workers:
        workers.hire("one", odd=lambda: _wrapped(wrap))
        workers.gather()
        require_proven(workers.validate())
    said = {path.name: path.read_text() for path in world.root.glob("refused-*")}
    assert said == {
        "refused-kernels": "this worker would build another kernel than the one asked "
        "for",
        "refused-compile": "this worker would compile with another compiler or checker "
        "than requested",
        "refused-guest": "this worker would boot a different guest",
        "refused-counting": "this worker would count in a different guest",
    }


def test_unit_of_another_version_is_refused(tmp_path: Path) -> None:
    context = contextvars.copy_context()
    bench = workers_module._Bench("one", farm.Shelf(tmp_path), {}, None, context)
    answer = bench.perform({"kstall": "0.0.9 abcdef"})
    error = elsewhere.of_json(answer["fault"], tmp_path)
    assert type(error) is elsewhere.WrongWorker and answer["worker"] == "one"
    ours = workers_module.version()
    assert error.what == (
        f"this worker has kstall {ours}, and the client has 0.0.9 abcdef"
    )


def test_work_that_kills_each_worker(world: World) -> None:
    def die(kind: str, perform: elsewhere.Performer) -> elsewhere.Performer:
        def act(*words: Any) -> elsewhere.WorkerResult:
            if kind == "guest":
                os.kill(os.getpid(), signal.SIGKILL)
            return perform(*words)

        return act

    # The scheduler's, which would want four of them.
    allowed = {"distributed.scheduler.allowed-failures": 1}
    world.prepare.append(lambda: workers_module.SETTINGS.update(allowed))
    with crowd(world) as workers:
        world.prepare.append(lambda: _wrapped(die))
        for name in ("one", "two", "three"):
            workers.hire(name)
        workers.gather()
        world.prepare.pop()
        ran = workers.validate()
        assert ran.exit_code == 2, ran.output
        error = ran.stage("guest").error or ""
        assert "guest of demo: every worker that began it died" in error, error
        assert "next: look at their machines" in error
        # The others may go on.
        (left,) = (one for one in workers.workers.values() if one.exitcode is None)
        workers.kill(left)
        workers.hire("four")
        workers.gather()
        require_proven(workers.validate())
    _settled(world, killed=True)


def test_long_work_is_reported(world: World) -> None:
    world.guest(WAITS)
    world.prepare.append(lambda: vars(client).update(_TELL=0.5))
    with crowd(world, "one") as workers:
        child = workers.ask()
        message = "guest of demo: still running after "
        until("the message", lambda: message in world._output(child))
        _go(world)
        require_proven(world.end(child))
    _settled(world)


def test_work_in_line_is_not_said_to_run(world: World) -> None:
    go = world.root / "go"

    def hold() -> None:
        advance = line.TicketQueue.advance

        def held(queue: line.TicketQueue) -> None:
            if go.exists():
                advance(queue)

        vars(client).update(_TELL=0.5)
        setattr(line.TicketQueue, "advance", held)  # noqa: B010

    world.prepare.append(hold)
    with crowd(world, "one") as workers:
        child = workers.ask()
        message = ": waiting for a free worker for "
        until("the message", lambda: message in world._output(child))
        assert "still running" not in world._output(child)
        go.touch()
        require_proven(world.end(child))
    _settled(world)


def test_workers_of_this_machine_that_do_not_start(world: World) -> None:
    here = world.root / "bin/python3"
    here.write_text("#!/bin/sh\necho nobody is here\nexit 7\n")
    # The package has a function of that name.
    opened = importlib.import_module("kstall.farm.opened")
    places = [world.cache / "workers" / name for name in ("worker-1", "worker-2")]

    def heard() -> bool:
        return all("here" in (place / "worker.log").read_text() for place in places)

    def hasty() -> None:
        wait = opened._wait

        def later(*words: Any) -> None:
            until("both have said it", heard)
            wait(*words)

        vars(opened).update(_START_S=2.0, _wait=later)

    world.prepare.append(hasty)
    ran = world.validate("--workers", "2")
    assert ran.exit_code == 2 and "Traceback" not in ran.output, ran.output
    assert (
        "fewer than 2 workers started within 2 s: worker-1: nobody is here; worker-2: "
        "nobody is here" in ran.output
    )
    _settled(world)


def test_what_nobody_has_is_said_at_once(world: World) -> None:
    with crowd(world) as workers:
        workers.hire("small", "--memory-limit", "1GB")
        workers.gather()
        ran = workers.validate()
    assert ran.exit_code == 2
    assert "small has 0.9 of 4 memory" in ran.output
    assert world.guests == []


# -- the others ------------------------------------------------------------------------


def test_scheduler_gone_and_there_again(world: World) -> None:
    world.guest(WAITS)
    with crowd(world, "one") as workers:
        child = workers.ask()
        until("a guest", (world.root / "booted").exists)
        assert workers.scheduler is not None
        workers.kill(workers.scheduler)
        ran = world.end(child)
        assert ran.exit_code == 2 and "the scheduler is gone" in ran.output, ran.output
        worker = workers.workers["one"]
        # Dask gives its thread half a minute, which waits for the guest.
        until("it ends, too", lambda: worker.exitcode is not None)
        assert worker.exitcode == 2 and "is gone" in workers.output(worker)
    _go(world)
    with crowd(world, "one") as workers:
        ran = workers.validate()
        require_proven(ran)
        assert "build" in ran.reused
    assert _alone(world) == verdict(ran)
    _settled(world, killed=True)


def test_client_gone_and_back(world: World) -> None:
    """What was under way is finished, and found by the next one."""
    world.guest(WAITS)
    with crowd(world, "one") as workers:
        child = workers.ask()
        until("a guest", (world.root / "booted").exists)
        world_processes = set(world.processes())
        child.kill()
        child.join()
        assert world_processes - {child.pid}
        _go(world)
        until("it is done", lambda: any(world.cache.glob("store/units/guest/*.json")))
        ran = workers.validate()
        require_proven(ran)
        assert world.guests == ["doze"]
    assert _alone(world) == verdict(ran)
    _settled(world, killed=True)


def test_what_an_earlier_run_made_is_not_made_by_this_one(world: World) -> None:
    with crowd(world, "one") as workers:
        first = workers.validate()
        _forget_all(world)
        second = workers.validate()
    require_proven(second)
    assert second.reused - first.reused >= {"config", "build"}


def test_two_clients_that_want_the_same_kernel(world: World) -> None:
    _links(world)
    with crowd(world, "one", "two") as workers:
        first = workers.ask()
        until("a build", (world.root / "building").exists)
        # Another machine, but for the store and the sources.
        another = copy.copy(world)
        another.prepare = []
        shutil.copytree(world.cache / "trees", world.root / "cache2/trees")
        shutil.copytree(world.cache / "roots", world.root / "cache2/roots")
        shutil.copytree(world.cache / "sources", world.root / "cache2/sources")
        another.prepare.append(
            lambda: os.environ.update(KSTALL_CACHE=str(world.root / "cache2"))
        )
        store = ("--store", str(world.cache / "store"), "--out", str(world.root / "o2"))
        second = another.start("--on", workers.address, *store)
        workers.until_shared("kernels", 2)
        _go(world)
        both = (world.end(first), another.end(second))
    for ran in both:
        require_proven(ran)
    assert _linked(world) == 1
    assert world.guests == ["doze"]
    assert [_alone(world)] * 2 == [verdict(ran) for ran in both]


def test_hung_guest_of_a_worker(world: World) -> None:
    world.guest(HANGS)
    world.prepare.append(impatient)
    with crowd(world, "one", "two") as workers:
        ran = workers.validate()
        assert ran.exit_code == 2, ran.output
        assert "did not end" in (ran.stage("guest").error or "")
        # Once more, as it would be here.
        assert len(world.guests) == 2
    assert _alone(world) == verdict(ran)
    world.prepare.clear()
    _settled(world)


def test_trees_at_the_same_time(world: World) -> None:
    other = world.root / "linux-other"
    shutil.copytree(world.kernel, other)
    with (other / "other.c").open("a") as file:
        file.write("int another;\n")
    world.guest(WAITS)
    with crowd(world, "one", "two") as workers:
        child = workers.ask("--kernel", str(other))
        until("both are booted", lambda: len(world.guests) == 2)
        _go(world)
        ran = world.end(child)
    assert ran.exit_code == 0, ran.output
    assert len(world.guests) == 2
    _settled(world)


# -- the store -------------------------------------------------------------------------


def test_archives_that_are_cut_short(world: World) -> None:
    with crowd(world, "one", "two") as workers:
        require_proven(workers.validate())
        _forget_all(world)
        for path in (world.cache / "store/objects").iterdir():
            cut(path)
        ran = workers.validate()
        require_proven(ran)
        _forget_all(world)
        # As large as they were, but other bytes.
        for path in (world.cache / "store/objects").iterdir():
            path.write_bytes(path.read_bytes()[:-8] + b"damaged!")
        ran = workers.validate()
        require_proven(ran)
        assert "is not what it was" in ran.output
    assert _alone(world) == verdict(ran)


def test_store_that_a_worker_does_not_share(world: World) -> None:
    """Say so, instead of that archives are damaged, and ask others."""
    with crowd(world) as workers:
        workers.hire("one", "--store", str(world.root / "another"))
        workers.gather()
        ran = workers.validate()
        assert ran.exit_code == 2, ran.output
        says = "worker one sees another store than this machine, at "
        says += str(world.cache / "store")
        assert f"{says} (on one; no worker can do this: " in ran.output, ran.output
        assert f"kernels with demo: one cannot do it: {says}\n" in ran.output
        assert "both share" in ran.output and "is not there" not in ran.output
        # It has what it needs from another run.
        shutil.copytree(world.cache / "store", world.root / "another")
        workers.validate()
        for name in ("objects", "units"):
            shutil.rmtree(world.root / "another" / name)
        _forget_all(world)
        ran = workers.validate()
        assert ran.exit_code == 2 and says in ran.output, ran.output
        workers.hire("two")
        workers.gather()
        require_proven(workers.validate())
    _settled(world)


def test_store_named_by_a_relative_path(world: World) -> None:
    (world.root / "elsewhere").mkdir()
    with crowd(world, "one") as workers:
        world.prepare.append(lambda: os.chdir(world.root / "elsewhere"))
        ran = workers.validate("--store", "../shared")
    require_proven(ran)
    assert (world.root / "shared/objects").is_dir()
    assert ran.output.count("cannot do it") == 0


def test_store_without_rights(world: World) -> None:
    (world.root / "file").touch()
    with crowd(world, "one") as workers:
        ran = workers.validate("--store", str(world.root / "file/store"))
    assert ran.exit_code == 2 and "Traceback" not in ran.output
    assert "cannot be written: Not a directory" in ran.output
    assert "--store" in ran.output


def test_store_that_others_may_write(world: World) -> None:
    place = world.root / "others"
    place.mkdir(0o555)
    world.prepare.append(without_rights)
    with crowd(world) as workers:
        ran = workers.validate("--store", str(place))
    assert ran.exit_code == 2 and "Traceback" not in ran.output
    assert "cannot be written: Permission denied" in ran.output, ran.output
    assert "give it room and rights, or name another one with --store" in ran.output
    assert not list(place.iterdir())


def _filling(world: World) -> None:
    """A store that is ``full`` half way through the next file."""
    put = LocalFileSystem.put_file

    def put_file(self: Any, source: str, target: str, *words: Any, **how: Any) -> None:
        if not (world.root / "full").exists():
            put(self, source, target, *words, **how)
            return
        data = Path(source).read_bytes()
        Path(target).write_bytes(data[: len(data) // 2])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), target)

    LocalFileSystem.put_file = put_file


def test_store_that_fills_up_as_workers_write(world: World) -> None:
    full = world.root / "full"
    full.touch()
    with crowd(world) as workers:
        world.prepare.append(lambda: _filling(world))
        for name in ("one", "two"):
            workers.hire(name)
        workers.gather()
        world.prepare.clear()
        ran = workers.validate()
        assert ran.exit_code == 2 and "Traceback" not in ran.output, ran.output
        assert "cannot be written: No space left on device" in ran.output, ran.output
        # It is the store of both.
        for name in ("one", "two"):
            assert f"kernels with demo: {name} cannot do it: " in ran.output
        # Nothing is half written.
        assert not list((world.cache / "store/half").iterdir())
        full.unlink()
        ran = workers.validate()
        require_proven(ran)
    assert _alone(world) == verdict(ran)
    _settled(world)


@needs_mounts
def test_store_without_room(world: World) -> None:
    with crowd(world, "one") as workers:
        world.prepare.append(tiny_disk(world.root / "tiny"))
        ran = workers.validate("--store", str(world.root / "tiny"))
        world.prepare.clear()
    assert ran.exit_code == 2 and "Traceback" not in ran.output
    assert "cannot be written: No space left" in ran.output, ran.output


def test_store_of_an_unknown_kind(world: World) -> None:
    ran = world.validate("--workers", "1", "--store", "nothing://x")
    assert ran.exit_code == 2 and "the artifact store nothing://x" in ran.output
