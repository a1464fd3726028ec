# SPDX-License-Identifier: GPL-2.0-or-later
"""The recipes of docs/examples/ci: each does what docs/ci.md says of it."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from fake_kernel import commit, git
from fakeworld import KERNEL, NO_TYPES, World, write
from kstall import cli
from kstall.pipeline import matrixfile
from kstall.series import Project
from kstall.tree import remote

ROOT = Path(__file__).resolve().parents[1]
RECIPES = ROOT / "docs/examples/ci"
GITLAB = RECIPES / "gitlab-ci.yml"


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path, level="quick")


def _kstall(world: World) -> Path:
    """A program that is `kstall` in ``world``."""
    environment = {
        "KSTALL_CACHE": world.cache,
        "KSTALL_ACCEL": "tcg",
        "WORLD": world.root,
        "TMPDIR": world.root / "tmp",
        "PATH": f"{world.root / 'bin'}:{os.environ['PATH']}",
    }
    words = [f"{key}={value}" for key, value in environment.items()]
    inside = (
        f"import sys; sys.executable = {str(world.root / 'bin/python3')!r}; "
        "from kstall import cli; sys.exit(cli.main(sys.argv[1:]))"
    )
    path = world.root / "kstall"
    command = shlex.join(["env", *words, sys.executable, "-c", inside])
    write(
        world.root,
        {"kstall": f'#!/bin/sh\nexec {command} --project {world.project.root} "$@"\n'},
    )
    return path


def _run(
    world: World, recipe: str, *words: str, **more: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [RECIPES / recipe, *words],
        cwd=world.root,
        env={**os.environ, "KSTALL": str(_kstall(world)), **more},
        capture_output=True,
        text=True,
    )


# -- plain shell ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("edit", "status", "says"),
    [
        (("return 9", "return 9"), 0, "ci: proven"),
        (("+\treturn 3;", "+\treturn three;"), 1, "ci: FAILED: see "),
        (("-\treturn 1;", "-\treturn 7;"), 0, "ci: a series does not apply"),
    ],
)
def test_the_shell_recipe_says_and_exits(
    world: World, edit: tuple[str, str], status: int, says: str
) -> None:
    path = world.project.patches / "demo/0001-demo.patch"
    path.write_text(path.read_text().replace(*edit))
    out = world.root / "kept"
    done = _run(world, "shell.sh", TREE=str(world.kernel), SERIES="demo", OUT=str(out))
    assert done.returncode == status, done.stdout + done.stderr
    assert says in done.stdout
    assert (out / "latest/report.html").exists()


def test_the_shell_recipe_tells_a_lack_of_verdict_from_a_failure(world: World) -> None:
    done = _run(world, "shell.sh", TREE="/nowhere", OUT=str(world.root / "o"))
    assert done.returncode == 2
    assert "ci: no verdict: bad input, an interruption or the machine" in done.stdout


def test_the_shell_recipe_leaves_no_link_to_an_earlier_run(world: World) -> None:
    out = world.root / "kept"
    more = {"TREE": str(world.kernel), "OUT": str(out)}
    assert _run(world, "shell.sh", SERIES="demo", **more).returncode == 0
    run = (out / "latest").resolve()
    done = _run(world, "shell.sh", SERIES="typo", **more)
    assert done.returncode == 2 and "no such series: typo" in done.stderr
    assert not (out / "latest").is_symlink() and (run / "junit.xml").exists()
    assert _run(world, "shell.sh", SERIES="demo", **more).returncode == 0
    assert (out / "latest").resolve() != run


@pytest.mark.parametrize("recipe", ["shell.sh", "nightly.sh"])
def test_recipes_use_the_kstall_of_their_checkout(tmp_path: Path, recipe: str) -> None:
    """In whatever directory they are called, such as that of a kernel."""
    kstall = '#!/bin/sh\necho "kstall $1"\n'
    files = {"here/kstall": kstall, "linux/Makefile": "setup: no-such-target\n"}
    write(tmp_path, files)
    setup = "setup:\n\tmkdir -p .venv/bin && cp kstall .venv/bin/\n"
    write(tmp_path, {"here/Makefile": setup})
    if recipe == "nightly.sh":
        write(tmp_path, {"here/.venv/bin/kstall": kstall})
    (tmp_path / "here/docs/examples").mkdir(parents=True)
    (tmp_path / "here/docs/examples/ci").symlink_to(RECIPES)
    done = subprocess.run(
        [tmp_path / "here/docs/examples/ci" / recipe, "a.toml", "nights"],
        cwd=tmp_path / "linux",
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
    )
    assert "kstall validate\n" in done.stdout, done.stdout + done.stderr


# -- by night ------------------------------------------------------------------------


@pytest.fixture
def nights(world: World) -> Path:
    """A matrix of two branches of a repository, for-next and stable."""
    top = world.root / "upstream"
    write(top, KERNEL)
    (top / "btf").write_bytes(NO_TYPES)
    git(world.root, "init", "-q", "-b", "stable", str(top))
    commit(top)
    git(top, "switch", "-q", "-c", "for-next")
    (top / "Kbuild").write_text("# next\n" + KERNEL["Kbuild"])
    commit(top, "next")
    series = world.project.patches / "demo/series.toml"
    series.write_text(series.read_text() + '\n[applies]\ntrees = [">=7.3"]\n')
    path = world.root / "nightly.toml"
    path.write_text(
        '[matrix]\nlevels = ["quick"]\n'
        f'trees = ["file://{top}#stable", "file://{top}#for-next"]\n'
    )
    return path


def _night(world: World, matrix: Path, **more: str) -> tuple[int, str, Path]:
    place = world.root / "nights"
    done = _run(world, "nightly.sh", str(matrix), str(place), **more)
    return done.returncode, done.stdout + done.stderr, place


def test_nights_over_two_branches(world: World, nights: Path) -> None:
    top = world.root / "upstream"
    status, output, place = _night(world, nights)
    assert status == 0, output
    assert "the first night; nothing to compare with" in output
    assert "Nothing changed." in (place / "index.html").read_text()
    # Nothing happened: nothing is told.
    status, output, _ = _night(world, nights)
    assert status == 0 and "NOTHING WORSE" in output, output
    # Somebody else changes the line.
    (top / "demo.c").write_text(KERNEL["demo.c"].replace("return 1;", "return 9;"))
    commit(top, "demo: Return nine")
    status, output, _ = _night(world, nights)
    assert status == 1, output
    assert re.search(
        r"WORSE  demo on upstream#for-next .*: verdict: pass -> fail: apply: "
        r"no longer applies to 7\.3\.4",
        output,
    )
    page = (place / "index.html").read_text()
    assert "no longer applies" in page and "WORSE" in page
    # The other branch did not move, and nothing is said of it.
    changed = json.loads((place / "changed.json").read_text())["changes"]
    assert {change["place"].split()[0] for change in changed} == {"upstream#for-next"}
    links = re.findall(r'href="([^"]+)"', page)
    assert links and all((place / link).exists() for link in links)
    # It is settled.
    (top / "demo.c").write_text(KERNEL["demo.c"])
    commit(top, "Revert")
    status, output, _ = _night(world, nights, KEEP="2")
    assert status == 0 and re.search(r"better  demo on .*fail -> pass", output), output
    assert len([path for path in (place / "runs").glob("2*") if path.is_dir()]) == 2
    assert (place / "runs/latest/changed.html").exists()


def test_a_night_that_was_cut_short_is_no_yardstick(world: World, nights: Path) -> None:
    _, _, place = _night(world, nights)
    (first,) = (place / "runs").glob("2*")
    for state in ("interrupted", "running"):
        later = place / "runs" / f"{first.name[:-1]}Z-{state}"
        shutil.copytree(first, later)
        text = (later / "matrix.json").read_text()
        text = re.sub(r'(?m)^  "status": "\w+"', f'  "status": "{state}"', text)
        (later / "matrix.json").write_text(text)
    status, output, _ = _night(world, nights)
    assert status == 0, output
    assert f"before   {first}  " in output


def test_trees_are_compared_with_the_last_night_that_judged_them(
    world: World, nights: Path
) -> None:
    series = world.project.patches / "demo/series.toml"
    series.write_text(series.read_text().partition("\n[applies]")[0])
    top, moved = world.root / "upstream", world.root / "moved"
    status, output, place = _night(world, nights)
    assert status == 0, output
    (first,) = (place / "runs").glob("2*")
    # One more check than there will be.
    path = first / "upstream-stable/report.json"
    report = json.loads(path.read_text())
    report["series"][0]["checks"].append(
        {**report["series"][0]["checks"][0], "name": "snores", "status": "pass"}
    )
    path.write_text(json.dumps(report))
    # Two nights without the trees; what is known of them outlives KEEP.
    top.rename(moved)
    for _ in range(2):
        status, output, _ = _night(world, nights, KEEP="1")
        assert status == 2, output
        assert len(re.findall(r"LONGER JUDGED  demo on .*: verdict: pass", output)) == 2
    assert f"(since {first.name})" in output and first.exists()
    moved.rename(top)
    # Somebody else changes the line.
    (top / "demo.c").write_text(KERNEL["demo.c"].replace("return 1;", "return 9;"))
    commit(top, "demo: Return nine")
    status, output, _ = _night(world, nights, KEEP="1")
    assert status == 1, output
    worse = re.findall(r"WORSE  demo on upstream#(\S+) [^:]*: (.*)", output)
    assert len(worse) == 2
    for branch, change in worse:
        assert change.endswith(f" (since {first.name})")
        words = {"for-next": "pass -> does not apply", "stable": "snores: pass -> no"}
        assert words[branch] in change
    page = (place / "index.html").read_text()
    assert all((place / link).exists() for link in re.findall(r'href="([^"]+)"', page))
    # Now they are known of a newer night.
    status, output, _ = _night(world, nights, KEEP="1")
    assert status == 0 and "NOTHING WORSE" in output, output
    assert "since" not in output and not first.exists()


def test_a_night_without_a_matrix_is_not_the_one_before(
    world: World, tmp_path: Path
) -> None:
    place = world.root / "nights"
    write(place / "runs/20260101T000000Z", {"matrix.json": '  "status": "interrupted"'})
    (place / "runs/latest").symlink_to("20260101T000000Z")
    path = tmp_path / "bad.toml"
    path.write_text("[matrix]\n")
    status, output, _ = _night(world, path)
    assert status == 4 and "no matrix came of it" in output


def test_two_nights_are_not_at_once(world: World, nights: Path) -> None:
    place = world.root / "nights"
    place.mkdir()
    with subprocess.Popen(
        ["flock", place / "lock", "sh", "-c", "echo held; cat"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as child:
        assert child.stdout is not None and child.stdout.readline() == b"held\n"
        status, output, _ = _night(world, nights)
        child.communicate(b"")
    assert status == 4 and "the night before is not over" in output
    assert not list(place.glob("runs/2*"))


def test_a_night_with_bad_input_has_no_page(world: World, tmp_path: Path) -> None:
    path = tmp_path / "bad.toml"
    path.write_text("[matrix]\n")
    status, output, _ = _night(world, path)
    assert status == 4
    assert f"{path}:1: no tree" in output and "no matrix came of it" in output
    assert _run(world, "nightly.sh").returncode == 4
    assert _run(world, "nightly.sh", str(path), f"{path}/x").returncode == 4


@pytest.mark.parametrize("first", [True, False])
def test_nights_that_cannot_be_compared_have_no_page(
    world: World, nights: Path, first: bool
) -> None:
    place = world.root / "nights"
    if first:
        write(place, {"index.html": "of an earlier night"})
    else:
        assert _night(world, nights)[0] == 0
    real = _kstall(world)
    text = real.read_text()
    write(world.root, {"real": text})
    broken = f'#!/bin/sh\ntest "$1" = validate || exit 2\nexec {world.root}/real "$@"\n'
    write(world.root, {"broken": broken})
    done = subprocess.run(
        [RECIPES / "nightly.sh", str(nights), str(place)],
        cwd=world.root,
        env={**os.environ, "KSTALL": str(world.root / "broken")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 4, done.stdout + done.stderr
    assert not (place / "index.html").exists()


@pytest.mark.parametrize(
    ("more", "words"), [({}, ""), ({"WORKERS": "2"}, " --workers 2")]
)
def test_a_night_has_as_many_workers_as_are_named(
    tmp_path: Path, more: dict[str, str], words: str
) -> None:
    write(tmp_path, {"kstall": '#!/bin/sh\necho "$@"\n'})
    done = subprocess.run(
        [RECIPES / "nightly.sh", "a.toml", "nights", "demo"],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "KSTALL": str(tmp_path / "kstall"), **more},
        capture_output=True,
        text=True,
    )
    out = "validate --matrix a.toml --out nights/runs"
    assert done.stdout == f"{out}{words} -- demo\n", done.stderr


def test_it_mails_nobody() -> None:
    for path in RECIPES.iterdir():
        assert not re.search(r"\b(mail|sendmail|mutt|smtp|curl)\b", path.read_text())


def test_the_trees_of_the_night_are_those_that_series_are_for() -> None:
    project = Project(ROOT)
    subsystems = {series.name: series.spec.subsystem for series in project.load()}
    sent = {series.name for series in project.load() if series.not_sent is None}
    columns = matrixfile.read(RECIPES / "nightly.toml", project)
    seen: list[str] = []
    for column in columns:
        assert column.kernel is not None
        branch = remote.named(column.kernel)
        assert branch is not None and branch.url is not None
        if column.expected:
            seen += column.series
            for name in column.series:
                home = subsystems[name]
                assert branch.branch == home.branch
                assert branch.url.partition("://")[2] == home.tree.partition("://")[2]
        else:
            assert set(column.series) == set(subsystems)
        # Only a run at full measures the costs that nights are compared by.
        assert column.level == ("quick" if column.expected else "full")
    # Others are not to be sent, because maintainers have what makes them needless.
    assert sorted(seen) == sorted(sent) and sent < set(subsystems)


# -- a matrix ------------------------------------------------------------------------


def test_the_example_is_all_series_on_three_trees_for_two_architectures() -> None:
    project = Project(ROOT)
    columns = matrixfile.read(ROOT / "docs/examples/matrix.toml", project)
    assert [(column.tree, column.arch, column.level) for column in columns] == [
        (f"debian:{version}", arch, "quick")
        for version in ("7.3", "7.2", "6.12")
        for arch in ("x86_64", "arm64")
    ]
    for column in columns:
        assert column.kernel == Path(column.tree)
        assert column.series == project.names()
        # Where a series applies, series.toml says.
        assert column.expected is None


# -- GitLab --------------------------------------------------------------------------


def test_gitlab_takes_the_file() -> None:
    """By the schema of GitLab's files, which comes with check-jsonschema."""
    program = Path(sys.executable).parent / "check-jsonschema"
    words = ("--builtin-schema", "vendor.gitlab-ci")
    done = subprocess.run([program, *words, GITLAB], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_schema_would_notice(tmp_path: Path) -> None:
    bad = tmp_path / "gitlab-ci.yml"
    bad.write_text(
        GITLAB.read_text().replace("parallel:\n    matrix:", "parallel:\n    m:")
    )
    program = Path(sys.executable).parent / "check-jsonschema"
    words = ("--builtin-schema", "vendor.gitlab-ci")
    assert subprocess.run([program, *words, bad], capture_output=True).returncode == 1


def _gitlab() -> dict[str, Any]:
    config: dict[str, Any] = YAML(typ="safe").load(GITLAB.read_text())
    return config


def test_what_gitlab_runs_is_there() -> None:
    jobs = {name: job for name, job in _gitlab().items() if "script" in job}
    assert set(jobs) == {"prove", "night"}
    for job in jobs.values():
        assert job["stage"] in _gitlab()["stages"]
        for line in job["script"]:
            command, *words = shlex.split(line.partition(" || ")[0])
            if command == ".venv/bin/kstall":
                # Unknown verbs and options end this.
                words = [re.sub(r"^\$LEVEL$", "quick", word) for word in words]
                assert cli.parser().parse_args(words).verb
            elif "/" in command:
                assert (ROOT / command).is_file() and os.access(ROOT / command, os.X_OK)
                assert all(
                    (ROOT / word).exists() for word in words if "examples" in word
                )
            else:
                assert command in ("status=0", "test", "mkdir", "cp", "exit")
    (trees,) = jobs["prove"]["parallel"]["matrix"]
    assert all(tree.startswith("debian:") for tree in trees["TREE"])
    # 3 is no failure, and nothing else is let pass there.
    assert jobs["prove"]["allow_failure"] == {"exit_codes": 3}
    # Neither is that something got worse, or that there is no page.
    assert jobs["night"]["allow_failure"] == {"exit_codes": [2, 3]}
    assert _gitlab()[".kstall"]["artifacts"]["when"] == "always"


def _gitlab_night(world: World, matrix: Path) -> tuple[int, Path]:
    """Exit status of the night's job, and its directory."""
    job = world.root / "job"
    shutil.rmtree(job, ignore_errors=True)
    (job / "docs/examples").mkdir(parents=True)
    (job / "docs/examples/ci").symlink_to(RECIPES)
    # Each line is one of a script, as GitLab's runner has it.
    lines = "\n".join(_gitlab()["night"]["script"])
    done = subprocess.run(
        ["sh", "-e", "-c", lines.replace("docs/examples/ci/nightly.toml", str(matrix))],
        cwd=job,
        env={
            **os.environ,
            "KSTALL": str(_kstall(world)),
            "NIGHTS": str(world.root / "volume"),
        },
        capture_output=True,
        text=True,
    )
    return done.returncode, job


def test_gitlab_keeps_the_page_of_the_night(world: World, nights: Path) -> None:
    """Of the job's artifacts, the links to tonight's runs lead somewhere."""
    status, job = _gitlab_night(world, nights)
    assert status == 0
    assert "NIGHTS" in _gitlab()["variables"]
    (run,) = (job / "out/runs").iterdir()
    links = re.findall(r'href="([^"]+)"', (job / "out/index.html").read_text())
    assert f"runs/{run.name}/matrix.html" in links
    assert all((job / "out" / link).exists() for link in links)
    paths = _gitlab()[".kstall"]["artifacts"]["reports"]["junit"]
    assert [path for pattern in paths for path in job.glob(pattern)] == [
        run / "junit.xml"
    ]
    # It is of a night that got worse, too.
    top = world.root / "upstream"
    (top / "demo.c").write_text(KERNEL["demo.c"].replace("return 1;", "return 9;"))
    commit(top, "demo: Return nine")
    status, job = _gitlab_night(world, nights)
    assert status == 1 and "WORSE" in (job / "out/index.html").read_text()
    # Not of the night before.
    nights.write_text("[matrix]\n")
    status, job = _gitlab_night(world, nights)
    assert status == 4 and not (job / "out").exists()


def test_the_document_tells_of_gitlab_s_volumes() -> None:
    text = (ROOT / "docs/ci.md").read_text()
    for name in ("KSTALL_CACHE", "NIGHTS"):
        assert f"`{_gitlab()['variables'][name]}`" in text


# -- the document --------------------------------------------------------------------


def _blocks(kind: str) -> list[str]:
    text = (ROOT / "docs/ci.md").read_text()
    return re.findall(rf"(?ms)^```{kind}\n(.*?)^```$", text)


def test_the_commands_of_the_document_run(world: World, nights: Path) -> None:
    """One after the other, as they stand but for names."""
    git(world.root, "init", "-q", "-b", "for-next", str(world.kernel))
    commit(world.kernel)
    write(world.root, {".venv/bin/kstall": _kstall(world).read_text()})
    (world.root / "docs/examples").mkdir(parents=True)
    (world.root / "docs/examples/ci").symlink_to(RECIPES)

    def run(command: str, *names: tuple[str, str]) -> str:
        for name, other in names:
            assert name in command
            command = command.replace(name, other)
        done = subprocess.run(
            ["sh", "-c", command],
            cwd=world.root,
            env={**os.environ, "HOME": str(world.root)},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    shell, nightly, compare = _blocks("sh")
    assert "ci: proven" in run(shell, ("drm-sched rdma-cq", "demo"))
    latest = (world.out / "latest").resolve()
    assert (latest / "junit.xml").exists() and (latest / "report.html").exists()
    run(shell, ("drm-sched rdma-cq", "demo"))
    said = run(compare, ("20261123T160555Z", latest.name))
    assert "NOTHING WORSE" in said
    assert (world.root / "changed.html").exists()
    assert (world.root / "changed.json").exists()
    run(nightly, ("docs/examples/ci/nightly.toml", nights.name), ("/srv/", "srv/"))
    assert (world.root / "srv/www/kstall/index.html").exists()


def test_the_matrix_of_the_document_is_one(tmp_path: Path) -> None:
    (text,) = _blocks("toml")
    path = tmp_path / "in" / "matrix.toml"
    write(tmp_path, {"in/matrix.toml": text})
    columns = matrixfile.read(path, Project(ROOT))
    assert [column.tree for column in columns] == [
        *("debian:7.3", "debian:7.2", "linux#for-next", "rdma")
    ]
    assert columns[2].kernel == tmp_path / "in" / "../linux#for-next"
    assert (columns[3].series, columns[3].expected) == (("rdma-cq",), True)
    assert {column.level for column in columns} == {"quick"}


def test_the_matrix_for_one_branch_is_one(tmp_path: Path) -> None:
    text = (ROOT / "docs/trees.md").read_text()
    blocks = re.findall(r"(?ms)^```toml\n(\[matrix\]\n.*?)^```$", text)
    write(tmp_path, {"matrix.toml": "".join(blocks)})
    columns = matrixfile.read(tmp_path / "matrix.toml", Project(ROOT))
    assert [(column.tree, column.arch, column.level) for column in columns] == [
        ("linux#for-next", "x86_64", "quick"),
        ("linux#for-next", "arm64", "quick"),
    ]
    assert {str(column.kernel) for column in columns} == {"~/linux#for-next"}


def test_documents_quote_no_recipe_that_is_not_there() -> None:
    text = (ROOT / "docs/ci.md").read_text()
    for path in re.findall(r"docs/examples/ci/[\w.-]+", text):
        assert (ROOT / path).is_file(), path
    assert {path.name for path in RECIPES.iterdir()} == {
        Path(path).name for path in re.findall(r"docs/examples/ci/[\w.-]+", text)
    }
