# SPDX-License-Identifier: GPL-2.0-or-later
"""Where .ci/run can make no clean root it says so, and the tests run all the same."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

#: A root of what ``inside`` of .ci/run needs, with a make that stays until it is ended.
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
cat >$root/usr/bin/make <<END
#!/bin/sh
exec 3>"\$KSTALL_CACHE/fifo"
echo begun >&3
sleep 1000 &
sleep 1000
END
chmod 755 $root/usr/bin/make
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


def run(project_root: Path, place: Path, **programs: str) -> tuple[int, str, str]:
    """Exit status and both outputs of .ci/run."""
    argv, environment = prepare(project_root, place, programs)
    done = subprocess.run(argv, env=environment, capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    ("programs", "why"),
    [
        ({"id": "echo 1000"}, "only root can make one"),
        (
            {
                "id": "echo 0",
                "apt_get": "exit 9",
                "unshare": f"echo '{REFUSED}' >&2; exit 1",
            },
            REFUSED,
        ),
    ],
    ids=["not root", "no namespaces"],
)
def test_without_a_clean_root_the_tests_run_on_the_machine(
    project_root: Path, tmp_path: Path, programs: dict[str, str], why: str
) -> None:
    status, stdout, remarks = run(
        project_root, tmp_path, make='echo "make $* in $PWD"; exit 7', **programs
    )
    # The exit status is that of the tests, and their last line the last one.
    assert (status, stdout) == (7, f"make test in {tmp_path}\n")
    assert remarks == (
        f"ci: no clean root ({why}): the tests run on this machine as it is\n"
    )


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


@pytest.mark.fault("killed", "the script that runs all tests, and its clean root")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_of_a_run_that_is_ended(
    project_root: Path, tmp_path: Path, number: signal.Signals
) -> None:
    if os.geteuid() != 0 or not _may_mount():
        pytest.skip("only root can make a clean root, and only where it may mount")
    cache = tmp_path / "cache"
    cache.mkdir()
    os.mkfifo(cache / "fifo")
    fifo = os.open(cache / "fifo", os.O_RDONLY | os.O_NONBLOCK)
    programs = dict.fromkeys(("apt_get", "apt_config"), "exit 0")
    programs |= {"mmdebstrap": MMDEBSTRAP, "python3": "echo http://m/debian"}
    argv, environment = prepare(project_root, tmp_path, programs)
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    (tmp_path / ".gitignore").write_text("/bin\n/cache\n/kstall-ci-*\n")
    with subprocess.Popen(
        argv, env={**environment, "KSTALL_CACHE": str(cache)}, stderr=subprocess.PIPE
    ) as child:
        ready = select.select([fifo], [], [], 300)[0]
        assert ready and os.read(fifo, 6) == b"begun\n", child.communicate()[1]
        child.send_signal(number)
        child.wait()
        # Who has it open is in the namespaces, and the mounts are with the last one.
        assert select.select([fifo], [], [], 300)[0] and os.read(fifo, 1) == b""
    os.close(fifo)
    left = list(tmp_path.glob("kstall-ci-*"))
    assert len(left) == (number == signal.SIGKILL)
    # That is what the next run begins with.
    (tmp_path / "bin/mmdebstrap").write_text("#!/bin/sh\nexit 100\n")
    assert subprocess.run(argv, env=environment, capture_output=True).returncode == 100
    assert not list(tmp_path.glob("kstall-ci-*"))
