# SPDX-License-Identifier: GPL-2.0-or-later
"""scripts/setup.sh: what it installs, and what it makes of what it cannot."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

PROGRAMS = {
    # No package is installed that $LACKING names.
    "dpkg-query": 'case " $LACKING " in *" $4 "*) exit 1;; esac\n'
    "printf 'install ok installed'",
    "apt-get": 'echo "$@" >> "$CALLS"\nexit "${APT_FAILS:-0}"',
    "id": 'echo "${USER_ID:-0}"',
    "dpkg": "echo amd64",
    "python3": "exit 0",
    "qemu-system-x86_64": "echo QEMU emulator version 10.0.2",
}


@dataclass(frozen=True)
class Machine:
    """A checkout that is set up, and programs that only say what they are told."""

    top: Path

    def setup(self, *words: str, **environment: str) -> tuple[int, str, list[str]]:
        """Exit status, what was printed, and the packages that apt-get had to get."""
        calls = self.top / "calls"
        calls.unlink(missing_ok=True)
        done = subprocess.run(
            [self.top / "scripts/setup.sh", *words],
            env={
                "PATH": f"{self.top / 'bin'}:{os.environ['PATH']}",
                "CALLS": str(calls),
                **environment,
            },
            capture_output=True,
            text=True,
        )
        lines = calls.read_text().splitlines() if calls.exists() else []
        wanted = [
            word
            for line in lines
            for word in line.partition("--no-install-recommends ")[2].split()
        ]
        return done.returncode, done.stdout + done.stderr, wanted


@pytest.fixture
def machine(project_root: Path, tmp_path: Path) -> Machine:
    # Byte code other tests write meanwhile.
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(project_root / "scripts", tmp_path / "scripts", ignore=ignored)
    shutil.copy(project_root / "pyproject.toml", tmp_path)
    for folder in (tmp_path / "bin", tmp_path / ".venv/bin"):
        folder.mkdir(parents=True)
        for name, text in PROGRAMS.items():
            (folder / name).write_text(f"#!/bin/sh\n{text}\n")
            (folder / name).chmod(0o755)
    shutil.copy(tmp_path / "bin/python3", tmp_path / ".venv/bin/python")
    state = subprocess.run(
        ["cksum", tmp_path / "pyproject.toml"], capture_output=True, text=True
    )
    (tmp_path / ".venv/.kstall-setup").write_text(state.stdout)
    (tmp_path / ".venv/.kstall-no-qemu").touch()
    return Machine(tmp_path)


def test_what_is_there_is_not_installed(machine: Machine) -> None:
    assert machine.setup(LEVEL="deep") == (0, "", [])


def test_what_is_missing_is_installed(machine: Machine) -> None:
    status, _, wanted = machine.setup(LACKING="bison zstd clang-19")
    assert (status, wanted) == (0, ["bison", "zstd"])


def test_who_is_not_root_is_given_one_line(machine: Machine) -> None:
    status, output, wanted = machine.setup(LACKING="bison uidmap", USER_ID="1000")
    assert (status, wanted) == (2, [])
    assert output.splitlines() == [
        "setup: missing bison uidmap; install: "
        "sudo apt-get install --no-install-recommends bison uidmap"
    ]


OLD_QEMU = "#!/bin/sh\necho QEMU emulator version 7.2.17\n"


def test_an_old_qemu_is_named_once_to_who_cannot_change_it(machine: Machine) -> None:
    (machine.top / ".venv/.kstall-no-qemu").unlink()
    (machine.top / "bin/qemu-system-x86_64").write_text(OLD_QEMU)
    status, output, _ = machine.setup(USER_ID="1000")
    assert status == 0
    assert f"sudo {machine.top}/scripts/setup.sh --packages" in output
    assert machine.setup(USER_ID="1000") == (0, "", [])


def test_the_line_that_names_an_old_qemu_replaces_it(machine: Machine) -> None:
    (machine.top / ".venv/.kstall-no-qemu").unlink()
    qemu = machine.top / "bin/qemu-system-x86_64"
    newer = qemu.read_text()
    qemu.write_text(OLD_QEMU)
    indextargets = "echo http://deb.example/debian\n"
    install = f"cat >{qemu} <<'END'\n{newer}END\n"
    (machine.top / "bin/apt-get").write_text(
        f"#!/bin/sh\n{PROGRAMS['apt-get']}\n".replace(
            'exit "',
            f'case " $* " in\n*" indextargets "*) {indextargets};;\n'
            f'*" install "*) {install};;\nesac\nexit "',
        )
    )
    machine.setup(USER_ID="1000")
    # By another user, after the one that could not.
    status, output, wanted = machine.setup("--packages")
    assert (status, wanted) == (0, ["qemu-system-x86"]), output
    assert qemu.read_text() == newer
    # Also where it had failed before, of which a set-up says nothing any more.
    qemu.write_text(OLD_QEMU)
    assert machine.setup() == (0, "", [])
    assert machine.setup("--packages")[2] == ["qemu-system-x86"]


def test_packages_are_installed_without_anything_else(machine: Machine) -> None:
    shutil.rmtree(machine.top / ".venv")
    status, _, wanted = machine.setup("--packages", LACKING="bison")
    assert (status, wanted) == (0, ["bison"])
    assert not (machine.top / ".venv").exists()


def test_without_what_every_level_needs_nothing_goes_on(machine: Machine) -> None:
    status, output, _ = machine.setup(LACKING="bison", APT_FAILS="100")
    assert status == 2
    assert "missing: bison" in output


def test_only_deep_installs_what_only_it_uses(machine: Machine) -> None:
    status, _, wanted = machine.setup(LACKING="clang-19 lld-19", LEVEL="deep")
    assert (status, wanted) == (0, ["clang-19", "lld-19"])
    assert machine.setup(LACKING="clang-19 lld-19", LEVEL="full") == (0, "", [])


@pytest.mark.parametrize("why", [{"APT_FAILS": "100"}, {"USER_ID": "1000"}])
def test_deep_goes_on_without_what_only_it_uses(
    machine: Machine, why: dict[str, str]
) -> None:
    status, output, _ = machine.setup(LACKING="clang-19", LEVEL="deep", **why)
    assert status == 0
    words = "LEVEL=deep skips what needs clang-19; to have it: sudo apt-get install"
    assert words in output


@pytest.mark.parametrize(
    ("variable", "package", "words"),
    [
        ("KSTALL_BUSY", "stress-ng", "a busy host needs stress-ng"),
        ("KSTALL_LINT", "shellcheck", "lint skips what needs shellcheck"),
    ],
)
def test_some_targets_have_packages_of_their_own(
    machine: Machine, variable: str, package: str, words: str
) -> None:
    assert machine.setup(LACKING=package) == (0, "", [])
    status, _, wanted = machine.setup(LACKING=package, **{variable: "1"})
    assert (status, wanted) == (0, [package])
    status, output, _ = machine.setup(
        LACKING=package, USER_ID="1000", **{variable: "1"}
    )
    assert status == 0
    assert f"{words}; to have it: sudo apt-get install {package}" in output


def test_another_architecture_is_installed_when_asked_for(machine: Machine) -> None:
    lacking = "gcc-aarch64-linux-gnu clang-19"
    status, output, wanted = machine.setup(LACKING=lacking, KSTALL_ARCH="arm64")
    assert (status, wanted) == (0, ["gcc-aarch64-linux-gnu"]), output
    assert machine.setup(LACKING=lacking) == (0, "", [])
    assert machine.setup(LACKING=lacking, KSTALL_ARCH="x86_64") == (0, "", [])


def test_without_it_there_is_one_line(machine: Machine) -> None:
    lacking = {"LACKING": "gcc-aarch64-linux-gnu", "KSTALL_ARCH": "arm64"}
    status, output, _ = machine.setup(**lacking, USER_ID="1000")
    assert status == 2
    assert output.splitlines() == [
        "setup: ARCH=arm64 needs gcc-aarch64-linux-gnu; install: "
        "sudo apt-get install --no-install-recommends gcc-aarch64-linux-gnu"
    ]
    status, output, _ = machine.setup(KSTALL_ARCH="mips")
    assert (status, output) == (
        2,
        "setup: ARCH=mips: no scripts/host-packages-mips.txt, so it is not known "
        "here\n",
    )


def test_a_machine_of_it_needs_nothing(machine: Machine) -> None:
    (machine.top / "bin/dpkg").write_text("#!/bin/sh\necho arm64\n")
    lacking = {"LACKING": "gcc-aarch64-linux-gnu", "KSTALL_ARCH": "arm64"}
    assert machine.setup(**lacking) == (0, "", [])


# Of `python -m venv`, what it does to what is there.
VENV = """case "$*" in
*--clear*) rm -rf "$TOP/.venv"; mkdir -p "$TOP/.venv/bin";;
*" venv "*) ;;
*sys.version*) echo "$VERSION";;
esac
"""


@pytest.mark.parametrize(
    ("version", "kept"), [("3.13.5 /usr", True), ("3.12.1 /opt", False)]
)
def test_an_environment_outlives_a_pip_that_fails(
    machine: Machine, version: str, kept: bool
) -> None:
    top = machine.top
    for path, text in (
        (top / "bin/python3", VENV),
        (top / ".venv/bin/python", 'echo "3.13.5 /usr"'),
        (top / ".venv/bin/pip", "echo no network; exit 1"),
    ):
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
    (top / "pyproject.toml").write_text("[project]\n")
    status, output, _ = machine.setup(TOP=str(top), VERSION=version)
    assert status == 2
    assert "setup: pip failed" in output
    assert (top / ".venv/bin/python").exists() == kept
    # The next set-up tries again.
    again = machine.setup(TOP=str(top), VERSION=version)
    assert (again[0], "installing the Python packages" in again[1]) == (2, True)
