# SPDX-License-Identifier: GPL-2.0-or-later
"""Another version of what makes a thing is another key of it, and nothing else is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kstall.base import sources
from kstall.build import Kernel, extra, kernel, programs
from kstall.compile import builds, seeds
from kstall.cost import counting, footprint
from kstall.debian import Root, root
from kstall.evidence import mutate
from kstall.guest import Guest, accel, debugguest, guest, guestrun
from kstall.lint import patches, reading
from kstall.pipeline import kernels, stability, trials
from kstall.series import Project, projects
from test_layers import FLOW

PACKAGES = {name: f"kstall/{name}" for name in FLOW} | {"agent": "kstall_guest"}
BASE = SimpleNamespace(id="base", commit=None, repository=None, kind="directory")
PLAN: Any = SimpleNamespace(files={}, states=[()], base=BASE)
TOOLS: Any = SimpleNamespace(id="tools")
KERNEL: Any = SimpleNamespace(key="kernel")
NOTHING: Any = None


def _kernel(project: Project) -> str:
    config = kernel.Configured(project.kconfigs / "base.config", reused=True)
    return kernel.key_of("content", config, TOOLS)


def _configuration(_: Project) -> str:
    return kernel.config_key(PLAN, [], TOOLS)


def _module(_: Project) -> str:
    return extra.key_of(KERNEL, [])


def _compiled(_: Project) -> str:
    work: Any = SimpleNamespace(plan=PLAN)
    variant: Any = SimpleNamespace(id="variant", seed=None)
    return builds._key_of(work, 0, variant, [])


def _random_configuration(_: Project) -> str:
    return seeds._key_of("configuration", 7, ["DEMO"])


def _checks(project: Project) -> str:
    (series,) = project.load(["drm-sched"])
    return patches.key_of(series, PLAN)


def _footprint(_: Project) -> str:
    return footprint.key_of(KERNEL, KERNEL, footprint.Declaration({}, frozenset()))


def _guest_of(project: Project) -> Guest:
    built = Kernel("kernel", project.root, "7.3.4", "ab" * 20, reused=True)
    user_space = Root("root", project.root, {}, reused=True)
    return Guest(built, user_space, guest.Accel("tcg", "for the test"))


def _counts(project: Project) -> str:
    (series,) = project.load(["drm-sched"])
    vm = _guest_of(project)
    kernels = counting.Kernels(vm.kernel, vm.kernel, vm.root)
    return counting.key_of(project, series, kernels, "patched")


def _root(_: Project) -> str:
    return root.key_of(["kmod"])


def _evidence(project: Project) -> str:
    (series,) = project.load(["drm-sched"])
    return guestrun.key_of(project, series, _guest_of(project))


def _watched(project: Project) -> str:
    (series,) = project.load(["drm-sched"])
    return debugguest._key(project, series, _guest_of(project), {})


def _judgement(project: Project) -> str:
    (series,) = project.load(["drm-sched"])
    return trials._key_of(series, project.root / "results")


def _stability(project: Project) -> str:
    (series,) = project.load(["drm-sched"])
    return stability._tested(project, series, _guest_of(project))


def _program(project: Project) -> str:
    load: Any = SimpleNamespace(program="program")
    load.from_tree = SimpleNamespace(model_dump=dict)
    series: Any = SimpleNamespace(spec=SimpleNamespace(workload=[load]))
    place = project.root / "cache"
    tools: Any = SimpleNamespace(id="tools", libraries=())
    plan: Any = SimpleNamespace(compiled="content")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(programs.cache, "is_complete", lambda _: True)
        (program,) = programs.obtain(
            series, plan, tools, place, NOTHING, log=place / "log"
        )
    return program.file.parent.name


def _reading(project: Project) -> str:
    file = SimpleNamespace(facts=list)
    plan: Any = SimpleNamespace(base=BASE, states=[[("file.c", file)]])
    context: Any = SimpleNamespace(cache=project.root / "cache", out=project.root)
    series: Any = SimpleNamespace(name="series")
    reader: Any = SimpleNamespace(title="reader", apart=True, reads=bool, version=str)
    (unit,) = reading._Reading(context, series, plan, reader, NOTHING)._units(0)
    return unit.entry.name


def _kernels(project: Project) -> str:
    plan: Any = SimpleNamespace(compiled="content")
    group: Any = SimpleNamespace(plan=plan, series=[])
    ground: Any = SimpleNamespace(project=project, tools=TOOLS)
    maker = kernels._Maker(ground, group, "quick", NOTHING, None, 0)
    vars(maker)["_config_keys"] = ()
    return maker.key()


def _mutants(project: Project) -> str:
    (series,) = project.load(["drm-sched"])
    return mutate.digest(series, project.root / "results")


@pytest.fixture
def project(project_copy: Project, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A project whose harness is ours."""
    monkeypatch.setattr(sources, "_HARNESS", project_copy.harness)
    monkeypatch.setattr(accel, "version_of", lambda _: "QEMU emulator version 9.2")
    return project_copy


def _touch(path: Path) -> None:
    with path.open("a") as file:
        file.write("# another version\n")
    sources._digest.cache_clear()


@pytest.mark.parametrize(
    ("key", "makers"),
    [
        # What make is told stands in the recipe, and takes hours to be done again.
        (_kernel, ""),
        (_configuration, "build"),
        (_module, "build"),
        # What compilers report is judged anew, and not compiled again for that.
        (_compiled, "build compile"),
        (_random_configuration, "compile"),
        (_checks, "base verdict series tree lint"),
        (_footprint, "evidence cost"),
        # Counting takes an hour again: what runs is in the key by its job.
        (_counts, "agent"),
        # So do guests, whose results are judged anew, and their consoles read again.
        (_evidence, "agent"),
        (_watched, "agent"),
        # The recipe has a number, which is changed by hand.
        (_root, ""),
        (_program, "build"),
        (_kernels, "build"),
        (_reading, "lint"),
        (
            _judgement,
            "base verdict ftrace series evidence agent report pipeline",
        ),
        (_stability, "base verdict ftrace series guest evidence agent"),
        (_mutants, "base verdict ftrace series evidence agent"),
    ],
)
def test_a_key_changes_with_what_makes_the_thing(
    project: Project, key: Callable[[Project], str], makers: str
) -> None:
    sources._digest.cache_clear()
    changed = []
    for package, folder in PACKAGES.items():
        before = key(project)
        _touch(project.harness / folder / "__init__.py")
        if key(project) != before:
            changed.append(package)
    assert sorted(changed) == sorted(makers.split())


def test_data_files_and_new_modules_count(project: Project) -> None:
    listing = project.harness / "kstall/compile/objects.mk"
    before = _compiled(project)
    _touch(listing)
    after = _compiled(project)
    _touch(listing.with_name("another.py"))
    assert len({before, after, _compiled(project)}) == 3


@pytest.mark.parametrize("name", ["_job", "_runs", "_boots"])
def test_counts_are_those_of_what_runs(
    project: Project, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    before = _counts(project)
    function = getattr(counting, name)
    # Another order of runs or boots, and another member of a job.
    changed: Callable[..., Any] = (
        (lambda *given: {**function(*given), "more": 1})
        if name == "_job"
        else lambda *given: list(function(*given))[::-1]
    )
    monkeypatch.setattr(counting, name, changed)
    assert _counts(project) != before


def test_byte_code_does_not_count_while_it_is_written(project: Project) -> None:
    """Python writes it under a name with another ending, and then renames that."""
    before = _compiled(project), projects._digest(project)
    for folder in ("kstall/compile", "kstall_guest"):
        place = project.harness / folder / "__pycache__"
        place.mkdir()
        (place / "objects.cpython-311.pyc.140234184312368").touch()
    sources._digest.cache_clear()
    assert (_compiled(project), projects._digest(project)) == before


@pytest.mark.parametrize(
    ("line", "changes"),
    [
        ("# Prose.\n", False),
        ("CONFIG_B=y\n", True),
        ("# or: CONFIG_B=y (there is no A)\nCONFIG_C=y\n", True),
        ("# optional: a reason\nCONFIG_C=y\n", True),
    ],
)
def test_prose_of_a_fragment_compiles_nothing_again(
    tmp_path: Path, line: str, changes: bool
) -> None:
    work: Any = SimpleNamespace(plan=PLAN)
    variant: Any = SimpleNamespace(id="variant", seed=None)
    fragment = tmp_path / "a.config"

    def key(text: str) -> str:
        fragment.write_text(text)
        return builds._key_of(work, 0, variant, [fragment])

    plain = key("CONFIG_A=y\n\nCONFIG_C=y\n" if "CONFIG_C" in line else "CONFIG_A=y\n")
    assert (key(f"CONFIG_A=y\n\n{line}") != plain) == changes
