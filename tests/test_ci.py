# SPDX-License-Identifier: GPL-2.0-or-later
"""What .ci/run runs, where, how often and beside what, and what it says of that."""

from __future__ import annotations

import contextlib
import os
import re
import select
import shutil
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

#: A root of what ``inside`` of .ci/run needs, with the make that `_root` puts there.
MMDEBSTRAP = r"""
for word; do case $word in */root) root=$word ;; esac; done
cd ${root%/*} && mkdir -p root && cd root
mkdir -p usr/bin usr/lib usr/lib64 proc sys dev root
for link in bin sbin lib lib64; do
    test $link = sbin && ln -s usr/bin $root/sbin || ln -s usr/$link $root/$link
done
for program in bash sh env mkdir mount umount pivot_root rm sleep; do
    path=$(command -v $program || echo /usr/sbin/$program)
    cp -L $path $root/usr/bin/
    ldd $path | grep -o '/[^ ]*'
done | sort -u | while read -r library; do
    mkdir -p $root/usr/lib64 $root$(dirname $library)
    cp -L $library $root$library
done
cat >$root/usr/bin/make <<'END'
#!/bin/sh
@MAKE@
END
chmod 755 $root/usr/bin/make
"""
#: It stays until it is ended.
MAKE = """
exec 3>"$KSTALL_CACHE/fifo"
echo begun >&3
sleep 1000 &
sleep 1000
"""
#: As much of stress-ng, which has the fifo open for as long as it runs.
STRESS_NG = """
echo "$*" >>"$KSTALL_CACHE/load"
exec 3>"$KSTALL_CACHE/fifo"
echo 'stress-ng: info:  [7] dispatching hogs: 1 cpu'
exec sleep 1000
"""
REFUSED = "unshare: unshare failed: Operation not permitted"


def prepare(
    project_root: Path, place: Path, programs: dict[str, str]
) -> tuple[list[Path], dict[str, str]]:
    """Command and environment in which ``programs`` come before all others."""
    (place / "bin").mkdir()
    (place / ".ci").mkdir()
    shutil.copy2(project_root / ".ci/run", place / ".ci/run")
    for name, text in programs.items():
        program = place / "bin" / name.replace("_", "-")
        program.write_text(f"#!/bin/sh\n{text}\n")
        program.chmod(0o755)
    path = f"{place / 'bin'}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "TMPDIR": str(place)}
    return [place / ".ci/run"], environment


def run(
    project_root: Path, place: Path, arguments: Sequence[str] = (), **programs: str
) -> tuple[int, str, str]:
    """Exit status and both outputs of .ci/run, with ``place`` as its cache."""
    argv, environment = prepare(project_root, place, programs)
    done = subprocess.run(
        [*argv, *arguments],
        env={**environment, "KSTALL_CACHE": str(place)},
        capture_output=True,
        text=True,
    )
    return done.returncode, done.stdout, done.stderr


def _anywhere(text: str) -> str:
    """``text`` without what differs from run to run: seconds."""
    return re.sub(r"\b\d+ s\b", "N s", text)


NO_CLEAN_ROOT = [
    ({"id": "echo 1000"}, "only root can make one"),
    (
        {
            "id": "echo 0",
            "apt_get": "exit 9",
            "unshare": f"echo '{REFUSED}' >&2; exit 1",
        },
        REFUSED,
    ),
]


@pytest.mark.parametrize(
    ("programs", "why"), NO_CLEAN_ROOT, ids=["not root", "no namespaces"]
)
def test_without_a_clean_root_the_tests_run_on_the_machine(
    project_root: Path, tmp_path: Path, programs: dict[str, str], why: str
) -> None:
    status, stdout, remarks = run(
        project_root, tmp_path, make='echo "make $* in $PWD"; exit 7', **programs
    )
    # The exit status is that of the tests, and their last line the last one.
    assert (status, stdout) == (7, f"make test in {tmp_path}\n")
    assert _anywhere(remarks) == (
        f"ci: no clean root ({why}): the tests run on this machine as it is\n"
        "ci: exit status 7 after N s\n"
        "ci: they ran on this machine as it is: nothing was shown of a clean one\n"
    )


@pytest.mark.parametrize(
    ("programs", "why"), NO_CLEAN_ROOT, ids=["not root", "no namespaces"]
)
def test_where_a_clean_root_is_asked_for_nothing_else_will_do(
    project_root: Path, tmp_path: Path, programs: dict[str, str], why: str
) -> None:
    status, stdout, remarks = run(
        project_root, tmp_path, ["--clean"], make="echo 5 passed", **programs
    )
    assert (status, stdout) == (2, "")
    assert remarks == f"ci: no clean root ({why}): nothing was run\n"


def test_a_command_is_run_several_times_until_it_fails(
    project_root: Path, tmp_path: Path
) -> None:
    make = 'echo "$*" >>calls; test "$(wc -l <calls)" -lt 4 || exit 7'
    both = "make validate SERIES=drm-sched && make test"
    argv = ["--times", "2", both]
    outcome = run(project_root, tmp_path, argv, id="echo 1000", make="echo $*")
    assert outcome[:2] == (0, "validate SERIES=drm-sched\ntest\n" * 2)
    assert _anywhere(outcome[2]).splitlines()[1:] == [
        "ci: run 1 of 2: passed in N s",
        "ci: run 2 of 2: passed in N s",
        "ci: passed 2 times in a row: N s, N s",
        "ci: they ran on this machine as it is: nothing was shown of a clean one",
    ]
    place = tmp_path / "other"
    place.mkdir()
    argv = ["--times", "9", both]
    status, _, remarks = run(project_root, place, argv, id="echo 1000", make=make)
    assert status == 7
    assert _anywhere(remarks).splitlines()[1:-1] == [
        "ci: run 1 of 9: passed in N s",
        "ci: run 2 of 9: exit status 7 after N s",
    ]
    assert (place / "calls").read_text().splitlines()[2:] == [
        "validate SERIES=drm-sched",
        "test",
    ]


def test_a_command_that_passes_too_late_is_no_success(
    project_root: Path, tmp_path: Path
) -> None:
    argv = ["--times", "2", "--within"]
    outcome = run(project_root, tmp_path, [*argv, "5"], id="echo 1000", make="exit 0")
    assert outcome[0] == 0 and "passed 2 times in a row" in outcome[2]
    place = tmp_path / "other"
    place.mkdir()
    status, _, remarks = run(
        project_root, place, [*argv, "0"], id="echo 1000", make="sleep 1.1"
    )
    assert status == 1
    assert _anywhere(remarks).splitlines()[1:-1] == [
        "ci: run 1 of 2: passed, but in N s: longer than 0 minutes"
    ]
    # What failed has failed, however long it took.
    place = tmp_path / "third"
    place.mkdir()
    status, _, remarks = run(
        project_root, place, [*argv, "0"], id="echo 1000", make="sleep 1.1; exit 7"
    )
    assert status == 7 and "longer than" not in remarks


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--load"], "--load: not a number: "),
        (["--load", "much"], "--load: not a number: much"),
        (["--times", "0"], "--times: at least 1"),
        (["--within", "1.5"], "--within: not a number: 1.5"),
        (["--time", "3"], "no such option: --time"),
        (["make", "test"], "COMMAND is one word: quote it"),
    ],
)
def test_options_that_are_not_understood(
    project_root: Path, tmp_path: Path, arguments: list[str], complaint: str
) -> None:
    status, stdout, remarks = run(
        project_root, tmp_path, arguments, make="echo 5 passed"
    )
    assert (status, stdout) == (2, "")
    assert remarks.startswith(f"ci: {complaint}\nusage: .ci/run ")


def test_a_load_runs_beside_the_tests_and_ends_with_them(
    project_root: Path, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "fifo")
    fifo = os.open(tmp_path / "fifo", os.O_RDONLY | os.O_NONBLOCK)
    status, stdout, remarks = run(
        project_root,
        tmp_path,
        ["--load", "2", "--times", "2"],
        id="echo 1000",
        nproc="echo 4",
        stress_ng=STRESS_NG,
        make="wc -l <load",
    )
    assert (status, stdout) == (0, "8\n16\n"), remarks
    # Nobody has it open any more.
    assert os.read(fifo, 1) == b""
    os.close(fifo)
    lines = (tmp_path / "load").read_text().splitlines()
    kinds = sorted(line.split()[0] for line in lines[:8])
    assert kinds == ["--cpu"] * 4 + ["--hdd"] * 2 + ["--vm"] * 2
    assert all("--timeout 0 " in line and "--oomable" in line for line in lines)
    # Two that use one directory use the same names there.
    assert len({re.sub(".*--temp-path ", "", line) for line in lines[:8]}) == 8
    assert remarks.count("ci: the machine is busy: 8 workers on 4 processors\n") == 2
    assert "in a row, with 2 workers of stress-ng a processor: " in remarks
    # bash would say so of each worker that it killed.
    assert "Killed" not in remarks and "Terminated" not in remarks
    assert not list(tmp_path.glob("kstall-ci-*"))


@pytest.mark.fault("killed", "the load beside the tests, which then prove less")
@pytest.mark.parametrize(
    ("stress_ng", "ran"),
    [
        ("echo dispatching hogs; sleep 1; echo no more; exit 3", True),
        ("echo no more; exit 3", False),
    ],
    ids=["later", "at once"],
)
def test_a_load_that_ends_by_itself_is_no_success(
    project_root: Path, tmp_path: Path, stress_ng: str, ran: bool
) -> None:
    status, stdout, remarks = run(
        project_root,
        tmp_path,
        ["--load", "1"],
        id="echo 1000",
        stress_ng=stress_ng,
        make="sleep 3; echo 5 passed",
    )
    assert (status, stdout) == (2, "5 passed\n" if ran else "")
    assert "ci: the load ended by itself:\n" in remarks and "no more\n" in remarks
    assert "passed" not in remarks


def test_a_load_needs_its_program(project_root: Path, tmp_path: Path) -> None:
    argv, environment = prepare(project_root, tmp_path, {"id": "echo 1000"})
    for program in ("bash", "dirname", "mktemp", "flock", "rm"):
        path = shutil.which(program)
        assert path is not None
        (tmp_path / "bin" / program).symlink_to(path)
    done = subprocess.run(
        [tmp_path / "bin/bash", *argv, "--load", "2"],
        env={**environment, "PATH": str(tmp_path / "bin")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert "missing: stress-ng; to have it: sudo apt-get install" in done.stderr


def test_a_root_that_cannot_be_made_is_no_success(
    project_root: Path, tmp_path: Path
) -> None:
    programs = dict.fromkeys(("unshare", "apt_get", "git", "python3"), "exit 0")
    status, stdout, _ = run(
        project_root,
        tmp_path,
        **programs,
        id="echo 0",
        mmdebstrap="echo 'E: no mirror' >&2; exit 100",
        make="echo 5 passed",
    )
    assert status == 100 and stdout == ""
    assert not list(tmp_path.glob("kstall-ci-*"))


def _may_mount() -> bool:
    argv = ["unshare", "--mount", "--pid", "--fork", "mount", "-t", "tmpfs", "x"]
    with contextlib.suppress(OSError):
        return subprocess.run([*argv, "/mnt"], capture_output=True).returncode == 0
    return False


def _clean_root(project_root: Path, place: Path, make: str) -> dict[str, str]:
    """The programs by which .ci/run makes a root with ``make``; ``place`` is ready."""
    if os.geteuid() != 0 or not _may_mount():
        pytest.skip("only root can make a clean root, and only where it may mount")
    subprocess.run(["git", "init", "-q"], cwd=place, check=True)
    ignored = ("/bin", "/cache", "/fifo", "/kstall-ci-*")
    (place / ".gitignore").write_text("".join(f"{path}\n" for path in ignored))
    programs = dict.fromkeys(("apt_get", "apt_config"), "exit 0")
    return programs | {
        "mmdebstrap": MMDEBSTRAP.replace("@MAKE@", make),
        "python3": "echo http://m/debian",
    }


def test_each_of_several_runs_has_a_new_root(
    project_root: Path, tmp_path: Path
) -> None:
    make = 'test ! -e /used || exit 9; echo "$*" >/used; echo "$*"'
    programs = _clean_root(project_root, tmp_path, make)
    status, stdout, remarks = run(
        project_root, tmp_path, ["--clean", "--times", "2", "make -s lint"], **programs
    )
    assert (status, stdout) == (0, "-s lint\n" * 2), remarks
    lines = _anywhere(remarks).splitlines()
    assert lines.count("ci: made in N s; make -s lint") == 2
    assert lines[-1] == "ci: passed 2 times in a row: N s, N s"
    assert not list(tmp_path.glob("kstall-ci-*"))


#: It is set up once the package is there, which only root can install.
USER_MAKE = """
case $1 in
setup)
    echo "set up as $(id -u), lint: $KSTALL_LINT" >&2
    test -e /installed && exit
    echo "setup: missing bison; install: sudo apt-get install bison flex" >&2
    exit 2 ;;
test)
    echo "$(id -u) $(id -G) $PWD $HOME $KSTALL_CACHE"
    touch mine "$KSTALL_CACHE/mine" && echo written
    test -w /installed || echo not root ;;
esac
"""
USER_PROGRAMS = {
    "useradd": "echo kstall:x:1000:1000::$4: >/etc/passwd",
    # It asks before it installs.
    "apt-get": "case $1 in install) read -r answer && test $answer = y"
    ' && echo "$*" >>/installed ;; esac',
}


def _user_root(project_root: Path, place: Path, **others: str) -> dict[str, str]:
    """As `_clean_root`, with what --user needs in the root."""
    programs = _clean_root(project_root, place, USER_MAKE)
    tools = "setpriv sed tee yes id touch"
    text = programs["mmdebstrap"].replace("pivot_root rm", f"pivot_root rm {tools}")
    assert text != programs["mmdebstrap"]
    for name, program in {**USER_PROGRAMS, **others}.items():
        text += f"cat >$root/usr/bin/{name} <<'END'\n#!/bin/sh\n{program}\nEND\n"
        text += f"chmod 755 $root/usr/bin/{name}\n"
    text += "mkdir -p $root/etc $root/tmp $root/home\n"
    return programs | {"mmdebstrap": text}


def test_an_ordinary_user_runs_it_and_root_what_setup_prints(
    project_root: Path, tmp_path: Path
) -> None:
    programs = _user_root(project_root, tmp_path)
    cache = tmp_path / "cache"
    cache.mkdir()
    argv, environment = prepare(project_root, tmp_path, programs)
    environment["KSTALL_CACHE"] = str(cache)

    def asked() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*argv, "--user"], env=environment, capture_output=True, text=True
        )

    done = asked()
    home = "/home/kstall"
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        f"1000 1000 {home}/kstall {home} {home}/.cache/kstall",
        "written",
        "not root",
    ]
    assert (cache / "mine").stat().st_uid == 1000
    lines = done.stderr.splitlines()
    assert lines.count("set up as 1000, lint: 1") == 2
    assert lines.count("ci: as root: apt-get install bison flex") == 1
    # What it may not write is refused at once, not in the middle of a test.
    os.chown(cache, 0, 0)
    done = asked()
    assert (done.returncode, done.stdout) == (2, "")
    assert f"ci: {cache} is not that of user 1000: set KSTALL_CACHE" in done.stderr


def test_a_line_for_root_that_does_nothing_is_no_success(
    project_root: Path, tmp_path: Path
) -> None:
    programs = _user_root(project_root, tmp_path, **{"apt-get": "exit 0"})
    cache = tmp_path / "cache"
    cache.mkdir()
    argv, environment = prepare(project_root, tmp_path, programs)
    done = subprocess.run(
        [*argv, "--user"],
        env={**environment, "KSTALL_CACHE": str(cache)},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert "what make setup shows to be run as root does not help" in done.stderr


def test_without_a_clean_root_nobody_is_an_ordinary_user(
    project_root: Path, tmp_path: Path
) -> None:
    status, stdout, remarks = run(
        project_root, tmp_path, ["--user"], id="echo 1000", make="echo 5 passed"
    )
    assert (status, stdout) == (2, "")
    assert "nothing was run" in remarks


@pytest.mark.fault("killed", "the script that runs all tests, and its clean root")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("clean", [True, False], ids=["clean", "as it is"])
def test_nothing_is_left_of_a_run_that_is_ended(
    project_root: Path, tmp_path: Path, number: signal.Signals, clean: bool
) -> None:
    programs = {"id": "echo 1000", "make": MAKE}
    if clean:
        programs = _clean_root(project_root, tmp_path, MAKE)
    cache = tmp_path / "cache"
    cache.mkdir()
    os.mkfifo(cache / "fifo")
    fifo = os.open(cache / "fifo", os.O_RDONLY | os.O_NONBLOCK)
    programs["stress_ng"] = STRESS_NG
    argv, environment = prepare(project_root, tmp_path, programs)
    with subprocess.Popen(
        [*argv, "--load", "1"],
        env={**environment, "KSTALL_CACHE": str(cache)},
        stderr=subprocess.PIPE,
    ) as child:
        ready = select.select([fifo], [], [], 300)[0]
        assert ready and os.read(fifo, 6) == b"begun\n", child.communicate()[1]
        child.send_signal(number)
        child.wait()
        # Who has it open is in the namespaces, and the mounts are with the last one.
        # So is the load.
        assert select.select([fifo], [], [], 300)[0] and os.read(fifo, 1) == b""
    os.close(fifo)
    left = list(tmp_path.glob("kstall-ci-*"))
    assert len(left) == (number == signal.SIGKILL)
    # That is what the next run begins with.
    name = "mmdebstrap" if clean else "make"
    (tmp_path / "bin" / name).write_text("#!/bin/sh\nexit 100\n")
    assert subprocess.run(argv, env=environment, capture_output=True).returncode == 100
    assert not list(tmp_path.glob("kstall-ci-*"))
