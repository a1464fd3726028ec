# SPDX-License-Identifier: GPL-2.0-or-later
"""What becomes of the stage that compiles patch by patch when something goes wrong.

As in `test_faults`, which has the faults that this stage has in common with others.
"""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fakeworld import PATCH, Ran, World, write
from faulty import (
    cut,
    empty,
    forget,
    needs_mounts,
    overwrite,
    require_proven,
    require_stopped,
    restored,
    save,
    settling,
    small_disk,
    tiny_disk,
)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with settling(World(tmp_path / "world")) as sandbox:
        yield sandbox


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> World:
    sandbox = World(tmp_path_factory.mktemp("compiled") / "world")
    require_proven(sandbox.validate())
    return save(sandbox)


@pytest.fixture
def compiled(shared: World) -> Iterator[World]:
    """A world in which the series was proven; what a test breaks, it sees mended."""
    with settling(restored(shared)):
        yield shared


def _outcomes(world: World) -> dict[str, bytes]:
    """All that is kept of this stage, by path."""
    home = world.cache / "compiled"
    files = (path for path in home.rglob("*") if path.is_file())
    return {str(path.relative_to(home)): path.read_bytes() for path in files}


def _objects(world: World) -> list[Path]:
    objects = sorted(world.cache.glob("variants/*/*/demo.o"))
    assert len(objects) == 5
    return objects


# -- killed --------------------------------------------------------------------------

#: When a state is to be compiled, and some are behind it.
_HALFWAY = """
case $* in
*C=1*.o) test "$(ls "$WORLD/cache/compiled" | wc -l)" -ge 3 ;;
*) false ;;
esac
"""


@pytest.mark.fault("killed", "SIGKILL while a patch is compiled")
@pytest.mark.fault("interrupted", "Ctrl-C while a patch is compiled")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_what_was_compiled_is_not_compiled_again(
    world: World, number: signal.Signals
) -> None:
    child = world.held("compile", inside=True, when=_HALFWAY)
    if number == signal.SIGKILL:
        world.kill(child)
    else:
        os.kill(child.pid or 0, number)
        assert "interrupted; what was finished is kept" in world.end(child).output
    assert world.processes() == [] and world.free()
    # What one was just being kept in when the run was killed is none.
    kept = world.cache.glob("compiled/[!.]*/*.json")
    before = {path: path.stat().st_ino for path in kept}
    assert len(before) >= 3
    require_proven(world.validate())
    assert before == {path: path.stat().st_ino for path in before}


def _have_two_errors(world: World) -> None:
    """Have the patch break two sources, by 'three' in one and 'four' in the other."""
    patch = world.project.patches / "demo/0001-demo.patch"
    head, tail = PATCH.split("--\n2", 1)
    other = head[head.index("diff --git") :].replace("demo", "other")
    other = other.replace("return 1", "return 2").replace("return 3", "return four")
    text = head.replace("return 3", "return three") + other
    patch.write_text(f"{text}--\n2{tail}")


def _require_both_reported(ran: Ran, *names: str) -> None:
    """Each of these checks has both errors."""
    assert ran.report is not None
    checks = {check.name: check for check in ran.report.series[0].checks}
    for name in names:
        (told,) = checks[name].comparisons
        assert "'three' undeclared" in told.detail, name
        assert "'four' undeclared" in told.detail, name


@pytest.mark.fault("killed", "a compiler, while another finds an error")
def test_what_was_not_compiled_is_no_finding(world: World) -> None:
    """Else an error that nobody has seen is taken for none, and that is kept."""
    _have_two_errors(world)
    real = "exec /usr/bin/gcc"
    write(
        world.root / "bin",
        {
            "gcc": "#!/bin/sh\n"
            'test "$(cat "$WORLD/stage")" = compile || ' + real + ' "$@"\n'
            "case $* in *other.c*) grep -q four $WORLD/cache/trees/*/src/other.c &&\n"
            "    echo 'gcc: fatal error: Killed signal terminated program cc1' >&2 &&\n"
            "    exit 1 ;;\n"
            "esac\n"
            f'{real} "$@"\n'
        },
    )
    ran = world.validate()
    require_stopped(ran, "compile", "did not build other.o", "compile.log", "killed")
    (world.root / "bin/gcc").unlink()
    after = world.validate()
    assert after.exit_code == 1
    _require_both_reported(after, "compiles_as_configured")


@pytest.mark.fault("killed", "make, as another variant that it runs beside fails")
def test_what_was_ended_for_another_s_fault_is_no_outcome(world: World) -> None:
    """It has told of one error, and not yet of the other."""
    _have_two_errors(world)
    real = "exec /usr/bin/gcc"
    write(
        world.root / "bin",
        {
            "gcc": "#!/bin/sh\n"
            'test "$(cat "$WORLD/stage")" = compile || ' + real + ' "$@"\n'
            f'grep -q four $WORLD/cache/trees/*/src/other.c || {real} "$@"\n'
            "case $* in\n"
            "*/modules/other.o*) sleep 3\n"
            "    echo 'gcc: fatal error: Killed signal terminated program cc1' >&2\n"
            "    exit 1 ;;\n"
            "*/untraced/other.o*) sleep 300 ;;\n"
            "esac\n"
            f'{real} "$@"\n'
        },
    )
    ran = world.validate()
    require_stopped(ran, "compile", "did not build other.o", "compile.log", "killed")
    assert world.free()
    (world.root / "bin/gcc").unlink()
    after = world.validate()
    _require_both_reported(after, "compiles_as_configured", "compiles_without_tracing")


@pytest.mark.fault("killed", "make, as it lists what is configured")
def test_a_list_that_nobody_wrote_is_not_empty(world: World) -> None:
    """Else no touched file would be among it, and nothing be compiled."""
    write(
        world.root / "bin",
        {
            "make": "#!/bin/sh\n"
            "case $* in *objects.mk*) exit 137 ;; esac\n"
            'exec /usr/bin/make "$@"\n'
        },
    )
    ran = world.validate()
    (world.root / "bin/make").unlink()
    require_stopped(ran, "compile", "objects.mk", "make was killed")
    require_proven(world.validate())


@pytest.mark.fault("killed", "sparse, by a fault of its own")
def test_a_checker_that_dies_is_not_content(world: World) -> None:
    sparse = world.root / "bin/sparse"
    before = sparse.read_text()
    dies = "#!/bin/sh\ntest $1 = --version || kill -SEGV $$\n"
    write(world.root / "bin", {"sparse": dies})
    ran = world.validate()
    require_stopped(ran, "compile", "compile.log")
    write(world.root / "bin", {"sparse": before})
    require_proven(world.validate())


# -- damaged -------------------------------------------------------------------------


@pytest.mark.fault("truncated", "what is known of an output directory of few objects")
@pytest.mark.fault("corrupted", "what is known of an output directory of few objects")
@pytest.mark.parametrize("damage", [cut, empty, overwrite])
@pytest.mark.parametrize(
    "file",
    [
        *("kstall-objects.json", "kstall-slot.json", "kstall-sources.json"),
        *(".config", ".demo.o.cmd"),
    ],
)
def test_a_damaged_directory_of_few_objects_is_used_all_the_same(
    compiled: World, file: str, damage: Callable[[Path], None]
) -> None:
    before = _outcomes(compiled)
    for binary in _objects(compiled):
        damage(binary.with_name(file))
    forget(compiled, "compiled")
    require_proven(compiled.validate())
    assert _outcomes(compiled) == before


def _no_sections(path: Path) -> None:
    """Leave the header as it is, and not what it leads to."""
    text = path.read_bytes()
    start = int.from_bytes(text[40:48], "little")
    path.write_bytes(text[:start] + b"\xff" * (len(text) - start))


@pytest.mark.fault("truncated", "an object of an earlier patch")
@pytest.mark.fault("corrupted", "an object of an earlier patch")
@pytest.mark.parametrize("damage", [cut, empty, overwrite, _no_sections])
def test_a_damaged_object_is_compiled_again(
    compiled: World, damage: Callable[[Path], None]
) -> None:
    before = _outcomes(compiled)
    for binary in _objects(compiled):
        when = binary.stat()
        damage(binary)
        os.utime(binary, ns=(when.st_atime_ns, when.st_mtime_ns))
    outcomes = compiled.cache.glob("compiled/*/outcome.json")
    # Of the last state, whose objects are those that lie there.
    for path in sorted(outcomes, key=lambda outcome: outcome.stat().st_mtime_ns)[-3:]:
        shutil.rmtree(path.parent)
    require_proven(compiled.validate())
    assert _outcomes(compiled) == before


# -- a full disk ---------------------------------------------------------------------


@needs_mounts
@pytest.mark.fault("disk full", "where single objects are compiled, and what they say")
@pytest.mark.parametrize("kind", ["variants", "compiled"])
def test_a_full_disk_stops_the_stage_and_is_said(compiled: World, kind: str) -> None:
    before = _outcomes(compiled)
    forget(compiled, "compiled")
    compiled.prepare.append(tiny_disk(compiled.cache / kind))
    ran = compiled.validate()
    compiled.prepare.clear()
    require_stopped(ran, "compile", "KSTALL_CACHE")
    assert "no room for" in ran.output or "no space left" in ran.output
    after = compiled.validate()
    require_proven(after)
    assert {"patches", "base", "build", "guest", "binaries"} <= after.reused
    assert _outcomes(compiled) == before


@needs_mounts
@pytest.mark.fault("disk full", "by what a compiler writes")
@pytest.mark.parametrize("place", ["cache/variants", "tmp"])
def test_a_disk_that_fills_up_is_no_fault_of_a_patch(world: World, place: str) -> None:
    (world.root / place).mkdir(parents=True, exist_ok=True)
    world.prepare.append(small_disk(world.root / place, "1m"))
    write(
        world.root / "bin",
        {
            "make": "#!/bin/sh\n"
            'case "$(cat "$WORLD/stage") $*" in compile*C=1*)\n'
            f'    cat /dev/zero >"$WORLD/{place}/filler" 2>/dev/null ;;\n'
            "esac\n"
            'exec /usr/bin/make "$@"\n'
        },
    )
    ran = world.validate()
    world.prepare.clear()
    (world.root / "bin/make").unlink()
    require_stopped(ran, "compile", "no space left", "KSTALL_CACHE")
    assert ran.report is not None
    assert not [
        check for check in ran.report.series[0].checks if check.status == "fail"
    ]
    require_proven(world.validate())


# -- clocks --------------------------------------------------------------------------


@pytest.mark.fault("clock", "it went back a day since a patch was compiled")
def test_objects_of_the_future_are_not_built_upon(compiled: World) -> None:
    before = _outcomes(compiled)
    tomorrow = time.time() + 24 * 3600
    for path in compiled.cache.glob("variants/*/*/**/*"):
        os.utime(path, (tomorrow, tomorrow), follow_symlinks=False)
    forget(compiled, "compiled")
    ran = compiled.validate()
    require_proven(ran)
    assert "the clock went back since" in ran.stage("compile").summary
    assert _outcomes(compiled) == before
    forget(compiled, "compiled")
    again = compiled.validate()
    require_proven(again)
    assert "the clock" not in again.output
