# SPDX-License-Identifier: GPL-2.0-or-later
"""rasdaemon with our patch, built from Debian's source, reads pci:pcie_aer_msg.

It runs in the guest with its own libraries beside it, as it is built for this machine.
What is in its database is held against the errors that were made, not against the
event.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from kstall.debian import debian
from kstall.series import Project
from live import keep_only, validate

pytestmark = [pytest.mark.live, pytest.mark.deep]

VERSION = "0.8.4"
NEEDED = ("autoreconf", "libtoolize", "pkg-config", "apt-get", "patch")
LIBRARIES = ("libtraceevent", "sqlite3", "libpci")
CHECK = '''

def rasdaemon_has_them(ev: Evidence) -> Verdict:
    """Rows by sender, and what the trigger was told: uncorrectable ones alone."""
    import base64
    import sqlite3
    import tempfile

    v = Verdict()
    load = ev.workload("consumer")
    (last,) = load.objects("consumer")
    burst, both = load.objects("turn")
    with tempfile.NamedTemporaryFile() as file:
        file.write(base64.b64decode(last["database"]))
        file.flush()
        rows = sqlite3.connect(file.name).execute(
            "select root_port, root_status, cor_source, uncor_source, dropped "
            "from aer_msg_event order by id"
        ).fetchall()
    sender = burst["addresses"]["ep2"]
    port = burst["addresses"]["root"]
    wanted = [(port, 1, sender, None, 0)] * 128 + [(port, 1, sender, None, 1)] * 2
    there = both["addresses"]
    wanted += [(there["root"], 0x25, there["ep1"], there["ep0"], 0)]
    v.equal("rows", len(rows), len(wanted))
    v.equal("of which others", sum(a != b for a, b in zip(rows, wanted)), 0)
    told = [
        f"{root} 0x{status:08x} {cor or '-'} {uncor or '-'} {full}"
        for root, status, cor, uncor, full in wanted
        if status & 0xC
    ]
    v.equal("triggers", last["triggered"] == told, True)
    return v
'''
SERIES = """
[[workload]]
name = "consumer"
program = "workloads/pci-aer/consumer"
modules = ["aer_inject"]
events = ["pci:pcie_aer_msg"]
deadline-s = 300

[[workload.inject]]
step = "both-kinds"
commands = [
    { qmp = "stop" },
    { hmp = "pcie_aer_inject_error -c ep1 0x1", reply = "OK id: ep1 .*" },
    { hmp = "pcie_aer_inject_error ep0 0x4000", reply = "OK id: ep0 .*" },
    { qmp = "cont" },
]

[[check]]
name = "rasdaemon_has_them"
kind = "positive"
workloads = ["consumer"]
claim = "rasdaemon's table has each record."

"""


def run(*words: str | Path, cwd: Path) -> str:
    done = subprocess.run(
        [*map(str, words)],
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    return done.stdout


def fetched(place: Path) -> Path:
    """The pristine source of Debian's package."""
    for name in ("etc", "lists/partial", "cache/archives/partial"):
        (place / name).mkdir(parents=True)
    (place / "etc/status").touch()
    lines = [
        f"deb-src [signed-by={debian.keyring()}] "
        f"{debian.mirror_for(suite)} {suite} main\n"
        for suite in ("sid", "trixie")
    ]
    (place / "etc/sources.list").write_text("".join(lines))
    settings = {
        "Dir::Etc::SourceList": place / "etc/sources.list",
        "Dir::Etc::SourceParts": "/dev/null",
        "Dir::State::Lists": place / "lists",
        "Dir::State::status": place / "etc/status",
        "Dir::Cache": place / "cache",
        "APT::Sandbox::User": "",
    }
    options = [
        word for key, value in settings.items() for word in ("-o", f"{key}={value}")
    ]
    run("apt-get", *options, "-qq", "update", cwd=place)
    if VERSION not in run("apt-cache", *options, "showsrc", "rasdaemon", cwd=place):
        pytest.skip(f"Debian has no rasdaemon {VERSION} any more")
    run("apt-get", *options, "-qq", "--download-only", "source", "rasdaemon", cwd=place)
    (archive,) = place.glob(f"rasdaemon_{VERSION}.orig.tar.*")
    run("tar", "--no-same-owner", "-xf", archive, cwd=place)
    return place / f"rasdaemon-{VERSION}"


def built(source: Path, patch: Path, target: Path) -> None:
    """The daemon and its libraries in ``target``."""
    run("patch", "-p1", "--fuzz=0", "-i", patch, cwd=source)
    run("autoreconf", "-fi", cwd=source)
    state = "--localstatedir=/tmp/kstall-ras"
    run("./configure", "--enable-sqlite3", "--enable-aer", state, cwd=source)
    output = run("make", "-j2", cwd=source)
    warned = re.findall(r"(?m)^(ras-[\w-]+\.[ch]):\d+.*warning: (.*)$", output)
    # That one it has without the patch, too.
    assert [warning for warning in warned if "use_ipmitool" not in warning[1]] == []
    target.mkdir()
    shutil.copy2(source / "rasdaemon", target)
    linked = run("ldd", source / "rasdaemon", cwd=source)
    for library in re.findall(r"(/\S+) \(0x", linked):
        shutil.copy2(library, target)


def test_rasdaemon_reads_the_event(project_copy: Project, tmp_path: Path) -> None:
    missing = [name for name in NEEDED if shutil.which(name) is None]
    if not missing:
        probes = (
            (name, subprocess.run(["pkg-config", "--exists", name], check=False))
            for name in LIBRARIES
        )
        missing = [name for name, done in probes if done.returncode]
    if missing:
        pytest.skip(f"to build rasdaemon takes {', '.join(missing)}")
    folder = project_copy.patches / "pci-aer"
    (patch,) = (folder / "rasdaemon").glob("*.patch")
    place = tmp_path / "rasdaemon"
    place.mkdir()
    target = project_copy.scripts / "workloads/pci-aer/rasdaemon"
    built(fetched(place), patch, target)
    toml = folder / "series.toml"
    head, tail = toml.read_text().split("[[check]]", 1)
    toml.write_text(f"{head}{SERIES}[[check]]{tail}")
    code = folder / "checks.py"
    code.write_text(code.read_text() + CHECK)
    # rasdaemon 0.8.4 knows tracefs only below debugfs.
    config = project_copy.kconfigs / "pci-aer.config"
    option = "CONFIG_TRACEFS_AUTOMOUNT_DEPRECATED=y\n"
    config.write_text(config.read_text() + option)
    keep_only(folder, ["rasdaemon_has_them", "a_message_a_record"])
    outcome = validate(
        project_copy.root, tmp_path / "out", "--level", "quick", "pci-aer"
    )
    assert outcome.exit_code == 0, outcome.output
