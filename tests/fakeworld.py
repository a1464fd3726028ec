# SPDX-License-Identifier: GPL-2.0-or-later
"""All that a run needs, small and false: only kstall, make, gcc and git are real.

The kernel is a Makefile and a few files, Debian a shell script, and QEMU a program
that writes what a guest would.  So a whole run, from a tree to a verdict, takes a
second or two, and can be broken at any point.
"""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import os
import signal
import struct
import sys
import textwrap
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import Any

from kbuildtree import MAKEFILE_BUILD
from kstall import cli
from kstall.base import arch, space
from kstall.cli import proofs, workers
from kstall.compile import variants
from kstall.pipeline import Ui
from kstall.pipeline import run as runs
from kstall.report import Report, Stage, html
from kstall.report.report import read
from kstall.series import Project
from processes import descendants, is_killed

ROOT = Path(__file__).resolve().parents[1]
# Compiled once, and not in each of the processes that are forked for runs.
html.environment().get_template("report.html.j2")
# How long, in seconds, a test waits for what takes none or a few: only one that fails
# gets there, on however busy a machine.
_PATIENCE = 300.0
# Bytes of memory that a new program can have: false guests need none of what others on
# this machine have left.
_MEMORY = 64 * 2**30
MAKEFILE = """\
VERSION = 7
PATCHLEVEL = 3
SUBLEVEL = 4
S := $(dir $(abspath $(firstword $(MAKEFILE_LIST))))
B := $(O)/arch/x86/boot
OBJECTS := $(O)/demo.o $(O)/other.o
SINGLE := $(filter %.o,$(MAKECMDGOALS))
$(SINGLE): %.o: $(O)/%.o ;
ifdef M
modules: $(patsubst %.c,%.ko,$(wildcard $(M)/*.c))
$(M)/%.ko: $(M)/%.c
\t@gcc -c -o $@ $<
else
modules: ;
endif
bzImage: $(O)/vmlinux
\t@mkdir -p $(B)/compressed && cp $(O)/vmlinux $(B)/compressed/vmlinux.bin
\t@cp $(B)/compressed/vmlinux.bin $(B)/compressed/vmlinux.bin.lz4
\t@cp $(B)/compressed/vmlinux.bin.lz4 $(B)/bzImage
\t@touch $(O)/System.map
Image: $(O)/vmlinux
\t@mkdir -p $(O)/arch/arm64/boot && cp $(O)/vmlinux $(O)/arch/arm64/boot/Image
\t@touch $(O)/System.map
$(O)/vmlinux: $(OBJECTS)
\t@echo "  LD      vmlinux"
\t@gcc -nostdlib -shared -Wl,--build-id -o $@ $^
\t@objcopy --add-section .BTF=$(S)btf $@
\t@echo "cmd" >$(O)/.vmlinux.cmd
$(O)/tools/objtool/objtool:
\t@mkdir -p $(@D) && echo '#!/bin/sh' >$@ && chmod +x $@
$(O)/%.o: $(S)%.c $(O)/.config | $(O)/tools/objtool/objtool
\t@echo "  CC      $*.o"
\t@$(CC) -Wall -O1 -fPIC -c -o $@ $<
\t@$(if $(C),echo "  CHECK   $*.c"; $(CHECK) $<)
\t@echo "cmd" >$(O)/.$*.o.cmd
allnoconfig randconfig:
\t@cp $(KCONFIG_ALLCONFIG) $(O)/.config
modules_prepare:
\t@mkdir -p $(O)
kernelrelease:
\t@echo 7.3.4-fake
modules_install:
\t@mkdir -p $(INSTALL_MOD_PATH)/lib/modules/7.3.4-fake
\t@echo module >$(INSTALL_MOD_PATH)/lib/modules/7.3.4-fake/modules.order
"""
KERNEL = {
    "Makefile": MAKEFILE,
    "Kbuild": "obj-y += demo.o other.o\n",
    "Kconfig": "config DEMO\n\tbool demo\n",
    "scripts/Makefile.build": MAKEFILE_BUILD,
    "MAINTAINERS": "DEMO\nF:\t*\n",
    "scripts/checkpatch.pl": "#!/usr/bin/perl\n",
    "scripts/kernel-doc": "#!/bin/sh\n",
    "demo.c": "int demo(void)\n{\n\treturn 1;\n}\n",
    "other.c": "int other(void)\n{\n\treturn 2;\n}\n",
    "selftest.c": "int main(void)\n{\n\treturn 0;\n}\n",
}
#: Types of a kernel that has none: magic, version, flags, and empty sections.
NO_TYPES = struct.pack("<HBBIIIII", 0xEB9F, 1, 0, 24, 0, 0, 0, 1) + b"\0"
PATCH = """\
From 0000000000000000000000000000000000000000 Mon Sep 17 00:00:00 2001
From: kstall <noreply@kstall.invalid>
Date: Thu, 1 Jan 2026 00:00:00 +0000
Subject: [PATCH] demo: Return what was asked for

Nobody asked for one.

Assisted-by: LLM
---
 demo.c | 2 +-
 1 file changed, 1 insertion(+), 1 deletion(-)

diff --git a/demo.c b/demo.c
--- a/demo.c
+++ b/demo.c
@@ -1,4 +1,4 @@
 int demo(void)
 {
-\treturn 1;
+\treturn 3;
 }
--
2.39.5

"""
TOML = """\
schema = 1
title = "demo: Return what was asked for"
patches = ["0001-demo.patch"]
cover = "cover.txt"
kconfig = "demo.config"

[subsystem]
name = "DEMO"
prefix = "demo"
tree = "https://example.org/demo.git"
branch = "next"
list = "demo@lists.example.org"

[[workload]]
name = "doze"
program = "workloads/demo/doze"
deadline-s = 5

[[workload]]
name = "selftest"
program = "workloads/demo/selftest"
deadline-s = 5
[workload.from-tree]
sources = ["selftest.c"]

[[check]]
name = "dozes"
kind = "positive"
workloads = ["doze", "selftest"]
claim = "It dozes."

[overhead]
[[overhead.workload]]
name = "nap"
program = "workloads/demo/nap"
module = "workloads/demo/kstall_nap.c"
operation = "nap"
"""
CHECKS = """\
from kstall.evidence import Evidence, Verdict


def dozes(ev: Evidence) -> Verdict:
    verdict = Verdict()
    verdict.equal("said", ev.workload("doze").stdout, "dozed\\n")
    return verdict
"""
PROJECT = {
    "patches/demo/series.toml": TOML,
    "patches/demo/0001-demo.patch": PATCH,
    "patches/demo/cover.txt": "What was asked for is returned.\n",
    "patches/demo/checks.py": CHECKS,
    "kconfigs/base.config": "CONFIG_BASE=y\n",
    "kconfigs/demo.config": "CONFIG_DEMO=y\n",
    "scripts/guest-packages.txt": "bpftrace\ndwarves\n",
    "scripts/guest-packages-arm64.txt": "",
    "scripts/workloads/demo/doze": "#!/bin/sh\necho dozed\n",
    "scripts/workloads/demo/nap": "#!/bin/sh\n",
    "scripts/workloads/demo/kstall_nap.c": "int nap;\n",
    "scripts/workloads/overhead/trace-events": "#!/bin/sh\n",
    "harness/kstall_guest/agent.py": "",
    "harness/kstall_guest/stress.py": "",
}
#: What ``LEVEL=deep`` asks for, and a second series, which costs nothing to measure.
DEEP = {
    "patches/other/series.toml": TOML[: TOML.index('[[workload]]\nname = "selftest"')]
    .replace("demo", "other")
    .replace("deadline-s = 5", "deadline-s = 10")
    + """
[[check]]
name = "dozes"
kind = "positive"
workloads = ["doze"]
claim = "It dozes."
""",
    "patches/other/0001-other.patch": PATCH.replace("demo", "other")
    .replace("return 1", "return 2")
    .replace("return 3", "return 4"),
    "patches/other/cover.txt": "What was asked for is returned.\n",
    "patches/other/checks.py": CHECKS,
    "kconfigs/other.config": "CONFIG_OTHER=y\n",
    "kconfigs/debug.config": "CONFIG_KASAN=y\n",
    "kconfigs/kcsan.config": "CONFIG_KCSAN=y\n",
    "scripts/workloads/other/doze": "#!/bin/sh\necho dozed\n",
    "scripts/workloads/debug/toggle.c": "int main(void)\n{\n\treturn 0;\n}\n",
}
MMDEBSTRAP = """\
#!/bin/sh -e
for word; do case $word in *root.tar) archive=$word ;; esac; done
echo "I: installing packages"
test ! -e "$WORLD/no-mirror" || {
    echo "E: apt-get update failed: Could not connect to the mirror"; exit 100; }
cd "$WORLD" && rm -rf debian && mkdir debian && cd debian
mkdir -p usr/bin var/lib/dpkg lib64 usr/lib etc usr/share/base-passwd
touch usr/share/base-passwd/passwd.master usr/share/base-passwd/group.master
for package in bpftrace dwarves; do
    printf 'Package: %s\\nStatus: install ok installed\\nVersion: 1\\n\\n' $package
done >var/lib/dpkg/status
# It is run as `ld.so --library-path PATH pahole --version`.
printf '#!/bin/sh\\necho v1.30\\n' >lib64/ld-linux-x86-64.so.2
chmod +x lib64/ld-linux-x86-64.so.2
touch usr/bin/pahole
tar -cf "$archive" .
"""
#: QEMU, virtme-ng and the guest's agent.
VNG = """\
#!{python} -IS
import json, os, pathlib, signal, sys, time
words = dict(
    word.split("=", 1) if word.count("=") == 1 else
    ("=".join(word.split("=")[:2]), word.split("=")[2])
    for word in sys.argv[1:] if word.startswith("--rwdir=")
)
control = pathlib.Path(words["--rwdir=/run/kstall-control"])
share = pathlib.Path(words.get("--rwdir=/run/kstall", "/nowhere"))
(qemu,) = [word for word in sys.argv if word.startswith("--qemu-opts=")]
console = pathlib.Path(qemu.split("chardev.console.logfile=")[1].split()[0])
world = pathlib.Path(os.environ["WORLD"])
job = json.loads((share / "job.json").read_text())
name = job["workloads"][0]["name"]
if "stress" in job:
    # Such as "demo/debug-patched".
    name = "/".join(console.parent.resolve().parts[-2:])
with (world / "guests").open("a") as log:
    log.write(name + "\\n")
fault = world / "guest-fault.py"
text = "[    0.000000] Linux version 7.3.4-fake\\n"
console.write_text(text)
(control / "began").touch()
results = share / "results"
agent = {{"status": "completed", "versions": {{"kernel": "7.3.4-fake"}}}}
agent["workloads"] = []
for load in job["workloads"]:
    place = results / load["name"]
    place.mkdir(parents=True)
    output = "dozed\\n"
    if load["name"].startswith("nap"):
        output = "operations 10\\n" + "1000\\n" * 5
    if load["name"] == "all-trace-events":
        output = "==> sched/nap/format <==\\nname: nap\\nID: 1\\nformat:\\n"
        output += "\\tfield:unsigned short common_type;\\toffset:0;\\tsize:2;"
        output += "\\tsigned:0;\\n\\nprint fmt: \\"x\\"\\n"
    (place / "stdout").write_text(output)
    (place / "stderr").write_text("")
    (place / "kmsg.txt").write_text("")
    agent["workloads"].append(
        {{"name": load["name"], "status": "exited", "exit_status": 0, "seconds": 1}})
    if fault.exists():
        exec(fault.read_text())
if "stress" in job:
    tally = {{"rounds": 3, "seen": {{}}, "errors": []}}
    agent["stress"] = {{"readers": {{}}, "bpftrace": tally, "lockdep": True,
        "cpus": {{"cycles": {{"1": 20}}, "runs": 1, "errors": []}},
        "counters": {{"dma-errors": 0, "dma-disabled": 0, "object-warnings": 0,
            "kcsan-enabled": 1, "kcsan-watchpoints": 1}}}}
    (results / "kmemleak.txt").write_text("")
(results / "agent.json").write_text(json.dumps(agent))
(control / "output").write_text("")
(control / "status").write_text("0\\n")
"""
#: What LEVEL=deep compiles with, installed or not; make runs gcc all the same.
COMPILERS = {
    name: f"#!/bin/sh\necho {name} version 99.0.0\n"
    for name in ("clang-99", *(f"{tool}-99" for tool in variants._LLVM))
}
#: What another architecture takes: its compiler makes what this machine's makes, and
#: writes down what of.
CROSS = {
    arch.ARM64.qemu: "#!/bin/sh\necho QEMU emulator version 10.0.3\n",
    arch.ARM64.tool("strip"): '#!/bin/sh\nexec strip "$@"\n',
    arch.ARM64.tool("gcc"): """\
#!/bin/sh
case $1 in --version) echo aarch64 gcc version 99.0.0; exit ;; esac
echo "$@" >>"$WORLD/cross-compiled"
exec gcc "$@"
""",
}
#: Programs that can be held while they run.
HELD = ("cp", "gcc", "git", "make", "mmdebstrap", "perl", "tar", "vng")
HOLD = """\
#!/bin/sh
if test -e "$STAGES/$HOLD_AT" && eval "$HOLD_IF" &&
    mkdir "$HELD-taken" 2>/dev/null
then  # the first of this run
    echo held >"$HELD"
    cat "$WORLD/release"
fi
PATH=${PATH#*"$WORLD/hold":}
exec {program} "$@"
"""


@dataclass(frozen=True)
class Ran:
    """A ``kstall validate`` that ended, and what it left; ``report`` if any."""

    exit_code: int | None
    output: str
    dir: Path
    report: Report | None

    def stage(self, name: str) -> Stage:
        """A stage that all series share, or one of the first series."""
        assert self.report is not None, self.output
        stages = [*self.report.stages, *self.report.series[0].stages]
        return next(stage for stage in stages if stage.name == name)

    def every(self, name: str) -> list[Stage]:
        """As `stage`, of all series."""
        assert self.report is not None, self.output
        own = [stage for series in self.report.series for stage in series.stages]
        return [stage for stage in (*self.report.stages, *own) if stage.name == name]

    @property
    def reused(self) -> set[str]:
        """The stages whose result was there."""
        assert self.report is not None, self.output
        stages = [*self.report.stages, *self.report.series[0].stages]
        return {stage.name for stage in stages if stage.reused}


@dataclass
class World:
    """A place below ``root`` with a project, a kernel tree, a cache and ``out``."""

    root: Path
    prepare: list[Callable[[], None]] = field(default_factory=list)
    level: str = "full"
    # One after the other, so that a stage can be told by what runs; None: as many as
    # this machine has room for.
    at_once: int | None = 1

    def __post_init__(self) -> None:
        write(self.root / "project", PROJECT)
        if self.level == "deep":
            write(self.root / "project", DEEP)
        write(self.kernel, KERNEL)
        (self.kernel / "btf").write_bytes(NO_TYPES)
        write(
            self.root / "bin",
            {
                "mmdebstrap": MMDEBSTRAP,
                "mkfs.erofs": '#!/bin/sh\necho image >"$3"\n',
                "qemu-system-x86_64": "#!/bin/sh\necho QEMU emulator version 10.0.2\n",
                "python3": f'#!/bin/sh\nexec {sys.executable} "$@"\n',
                "vng": VNG.format(python=Path(sys.executable).resolve()),
                "depmod": "#!/bin/sh\n",
                "sparse": "#!/bin/sh\n",
                **COMPILERS,
                **CROSS,
            },
        )
        write(
            self.root / "hold",
            {name: HOLD.replace("{program}", name) for name in HELD},
        )
        (self.root / "tmp").mkdir(exist_ok=True)

    @property
    def project(self) -> Project:
        return Project(self.root / "project")

    @property
    def kernel(self) -> Path:
        return self.root / "linux"

    @property
    def cache(self) -> Path:
        return self.root / "cache"

    @property
    def out(self) -> Path:
        return self.root / "out"

    @property
    def guests(self) -> list[str]:
        """The guests that were started, by their first workload, or by their place."""
        log = self.root / "guests"
        return log.read_text().split() if log.exists() else []

    def guest(self, fault: str | None) -> None:
        """What guests do after each workload, as a program; see `VNG`."""
        path = self.root / "guest-fault.py"
        if fault is None:
            path.unlink()
        else:
            path.write_text(textwrap.dedent(fault))

    def argv(self, words: Sequence[str]) -> list[str]:
        """The beginning of ``kstall validate``, which ends with ``words``; with
        workers, their slots say how many guests run at once."""
        project = ["--project", str(self.project.root)]
        out = ["--out", str(self.out)]
        how = ["--level", self.level]
        helped = any(word.startswith(("--on", "--workers")) for word in words)
        if self.at_once is not None and not helped:
            how += ["--at-once", str(self.at_once)]
        return [*project, "validate", *how, *out, "--kernel"]

    def validate(self, *words: str, kernel: Path | None = None) -> Ran:
        """Run ``kstall validate`` to its end, in a process of its own."""
        return self.end(self.start(*words, kernel=kernel))

    def run(self, *words: str) -> Ran:
        """Run ``kstall`` with these words to its end; ``dir`` is that of `latest`."""
        argv = ["--project", str(self.project.root), *words]
        none = (None, "true", Path("/nowhere"))
        child = ForkProcess(target=self._main, args=(argv, *none))
        child.start()
        return self.end(child)

    def end(self, child: ForkProcess) -> Ran:
        """Wait for a run to end."""
        child.join(_PATIENCE)
        if child.exitcode is None:
            os.kill(child.pid or 0, signal.SIGABRT)
            child.join()
            raise AssertionError(f"it does not end: {self._output(child)}")
        return self.outcome(child)

    def start(
        self,
        *words: str,
        kernel: Path | None = None,
        hold: str | None = None,
        when: str = "true",
        held: Path = Path("/nowhere"),
    ) -> ForkProcess:
        """Begin ``kstall validate``; ``hold`` is the stage in which it stands still,
        ``when`` that of `held`, and ``held`` a FIFO that tells of it."""
        argv = [*self.argv(words), str(kernel or self.kernel), *words]
        child = ForkProcess(target=self._main, args=(argv, hold, when, held))
        child.start()
        return child

    def outcome(self, child: ForkProcess) -> Ran:
        """What a process that has ended left."""
        output = (self.root / f"said-{child.pid}").read_text(errors="replace")
        begun = self.root / f"run-{child.pid}"
        latest = self.out / "latest"
        if begun.exists():
            latest = Path(os.fsdecode(begun.read_bytes()))
        try:
            report = read(latest / "report.json")
        except OSError:
            report = None
        return Ran(child.exitcode, output, latest, report)

    def held(
        self, stage: str, *, inside: bool = False, when: str = "true"
    ) -> ForkProcess:
        """A run that stands still in ``stage``, or ``inside`` of it in a program.

        That is the first one of `HELD` for which the shell finds that ``when`` holds.
        "waiting" is no stage: that one has said that it waits for another run.
        """
        fifo = self.root / f"held-{time.monotonic_ns()}"
        os.mkfifo(fifo)
        # Another user may run what is held.
        fifo.chmod(0o666)
        with contextlib.suppress(FileExistsError):
            os.mkfifo(self.root / "release")
        reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
        try:
            hold = f"{stage}{' inside' if inside else ''}"
            child = self.start(hold=hold, when=when, held=fifo)
            ready = wait([reader, child.sentinel], _PATIENCE)
            assert reader in ready, f"never held: {self._output(child)}"
        finally:
            fifo.unlink()
            os.close(reader)
        return child

    def release(self) -> None:
        """Let the program go on that `held` holds."""
        (self.root / "release").write_text("go on")

    def kill(self, child: ForkProcess) -> None:
        """SIGKILL to kstall alone; returns when all that it started is gone."""
        child.kill()
        child.join()
        # Also what it started as it was killed, for it can do two things at once; a
        # process that is about to become another program has no environment to show.
        limit = time.monotonic() + _PATIENCE
        quiet = 0
        while quiet < 5:
            left = self.processes()
            assert time.monotonic() < limit, f"processes outlived us: {left}"
            quiet = 0 if left else quiet + 1
            time.sleep(0.02)

    def processes(self) -> list[int]:
        """Descendants of ours that have this world in their environment.

        Without those that are being killed: on a busy machine they may not have had
        their turn to die.
        """
        mark = f"WORLD={self.root}\0".encode()
        pids = []
        for number in descendants():
            with contextlib.suppress(OSError):
                # A forked child has the environment of its parent there.
                if mark in Path(f"/proc/{number}/environ").read_bytes():
                    pids.append(number)
        return [number for number in pids if not is_killed(number)]

    def free(self) -> bool:
        """Whether nobody holds a lock in the cache."""
        for path in self.cache.rglob("*lock*"):
            if path.is_file():
                with path.open() as file:
                    try:
                        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    except BlockingIOError:
                        return False
        return True

    def leftovers(self) -> list[str]:
        """What only a run that is under way may have in the cache, or in $TMPDIR."""
        marks = (".tmp-", ".import-", ".removed-")
        return [
            str(path.relative_to(self.root))
            for path in (
                *self.cache.rglob(".*"),
                *self.cache.rglob("kstall-apt-*"),
                *(self.root / "tmp").iterdir(),
            )
            if path.name.startswith("kstall-")
            or any(mark in path.name for mark in marks)
        ]

    def _output(self, child: ForkProcess) -> str:
        path = self.root / f"said-{child.pid}"
        return path.read_text() if path.exists() else "nothing"

    def _main(self, argv: list[str], hold: str | None, when: str, held: Path) -> None:
        """What the child does; it never returns."""
        status = 99
        try:
            os.setsid()
            output = (self.root / f"said-{os.getpid()}").open("w", buffering=1)
            for number in (1, 2):
                os.dup2(output.fileno(), number)
            sys.stdout = sys.stderr = output
            # So that one that has to be aborted says where it stood.
            faulthandler.enable(output)
            path = f"{self.root / 'bin'}:{os.environ['PATH']}"
            if hold is not None and hold.endswith(" inside"):
                path = f"{self.root / 'hold'}:{path}"
            stages = self.root / f"stages-{time.monotonic_ns()}"
            os.environ.update(
                KSTALL_CACHE=str(self.cache),
                KSTALL_ACCEL="tcg",
                WORLD=str(self.root),
                TMPDIR=str(self.root / "tmp"),
                HELD=str(held),
                HOLD_AT=(hold or "").removesuffix(" inside"),
                HOLD_IF=when,
                STAGES=str(stages),
                PATH=path,
            )
            # virtme-ng is looked for beside the interpreter.
            guests = ("guest", "instructions", "debug-guests", "debug-base-guests")
            inside = hold in [f"{stage} inside" for stage in guests]
            sys.executable = str(self.root / ("hold" if inside else "bin") / "python3")
            for module in (proofs, workers):
                vars(module)["Ui"] = _ui(self.root, stages, hold, held)
            runs.begin = _begin(self.root, runs.begin)
            vars(space)["memory"] = lambda: _MEMORY
            for act in self.prepare:
                act()
            status = cli.main(argv)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(status)


def _begin(world: Path, begin: Callable[..., runs.Run]) -> Callable[..., runs.Run]:
    """`run.begin` that writes down where the run directory of this process is."""

    def written_down(*words: Any, **how: Any) -> runs.Run:
        run = begin(*words, **how)
        (world / f"run-{os.getpid()}").write_bytes(os.fsencode(run.dir))
        return run

    return written_down


def _ui(world: Path, stages: Path, hold: str | None, fifo: Path) -> type[Ui]:
    """A Ui that writes down the stage, and stops in the one that is to be held.

    ``stages`` gets a file for each that is under way: series have theirs at once.
    """
    under_way: Counter[str] = Counter()
    counting = threading.Lock()

    class Holding(Ui):
        def begin(self, series: str | None, stage: str) -> None:
            super().begin(series, stage)
            (world / "stage").write_text(stage, errors="backslashreplace")
            if "/" not in stage:  # as the trees of a matrix have it
                with counting:
                    under_way[stage] += 1
                    stages.mkdir(exist_ok=True)
                    (stages / stage).touch()
            if hold == stage:
                fifo.write_text("held")
                while True:
                    signal.pause()

        def end(self, stage: Stage) -> None:
            with counting:
                under_way[stage.name] -= 1
                if not under_way[stage.name]:
                    (stages / stage.name).unlink()
            super().end(stage)

        def say(self, text: str) -> None:
            super().say(text)
            if hold == "waiting" and text.startswith("waiting"):
                # Nobody looks at it any more when another message comes.
                with contextlib.suppress(OSError):
                    number = os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
                    os.write(number, b"held")
                    os.close(number)

    return Holding


def write(top: Path, files: dict[str, str]) -> None:
    """Write ``files`` below ``top``; those that begin with #! can be run."""
    for name, text in files.items():
        path = top / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        if text.startswith("#!"):
            path.chmod(0o755)
