# SPDX-License-Identifier: GPL-2.0-or-later
"""What goes into a guest, when its results are used again, and how it can fail."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from kstall.base import KstallError, NotJudged, arch, elsewhere, process
from kstall.build import Kernel
from kstall.debian import Root
from kstall.evidence import records
from kstall.guest import accel, console, guest, guestrun, hosttime, monitor
from kstall.guest.console import Splat
from kstall.pipeline import Ui
from kstall.series import Context, Project, Series
from kstall_guest import job as jobs

ROOT = Path(__file__).resolve().parents[1]


@dataclasses.dataclass
class Bench:
    """A series, a kernel that is only files, and a guest that is only said to run."""

    project: Project
    series: Series
    where: guestrun.Guest
    home: Path
    boots: int = 0
    kept: bool = True

    def run(self, ran: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Path:
        """Have `guest.boot` answer ``ran``, after writing agent.json and a console."""

        def boot(*args: Any, out: Path, **_: Any) -> guest.GuestRun:
            self.boots += 1
            (share,) = args[4]
            results = share.host / "results"
            (results / "agent.json").write_text(json.dumps(ran.pop("agent", {})))
            console = out / "console.log"
            console.write_text(ran.pop("console", "the console\n"))
            facts: dict[str, Any] = {"status": "completed", "exit_status": 0}
            facts |= {"splats": ()} | ran
            return guest.GuestRun(
                console=console,
                seconds=3.0,
                first_line_seconds=2.0,
                argv=("vng",),
                **facts,
            )

        monkeypatch.setattr(guestrun.guest, "boot", boot)
        out = self.home / f"run{self.boots}-{len(list(self.home.iterdir()))}"
        out.mkdir()
        listener = Ui(Console(file=io.StringIO()))
        self.booted = guestrun.run_guest(
            Context(self.project, self.home / "cache", out, "full", listener),
            self.series,
            self.where,
            out / "guest.log",
            keep=lambda _: self.kept,
        )
        return self.booted.results


@pytest.fixture
def bench(project_copy: Project, tmp_path: Path) -> Bench:
    home = tmp_path / "home"
    (home / "kernel/modules").mkdir(parents=True)
    (series,) = project_copy.load(["drm-sched"])
    kernel = Kernel("k" * 16, home / "kernel", "7.3.4-test", "ab" * 20, reused=False)
    root = Root("r" * 16, home / "root", {}, reused=True)
    where = guestrun.Guest(kernel, root, guest.Accel("tcg", "for the test"))
    return Bench(project_copy, series, where, home)


def test_the_guest_understands_its_job() -> None:
    for series in Project(ROOT).load():
        kernel = Kernel("k", Path("/k"), "7.3.4", "ab" * 20, reused=False)
        job = jobs.parse(guestrun.job_for(series, kernel))
        assert [w.name for w in job.workloads] == [w.name for w in series.spec.workload]
        assert job.build_id == kernel.build_id


def test_qemu_s_last_words_are_reported(tmp_path: Path) -> None:
    log = tmp_path / "guest.log"
    log.write_text("$ vng --run image\nmsix.c:228: Assertion `size' failed.\n\n")
    ran = guest.GuestRun("lost", None, tmp_path / "console.log", 14, None, (), ())
    with pytest.raises(NotJudged, match=r"last words: msix\.c:228: Assertion `size'"):
        guestrun.require_witness(ran)
    log.unlink()
    assert not ran.last_words


@pytest.mark.parametrize(
    ("output", "hint"),
    [
        ("/usr/bin/ld: cannot find -lc: No such file", "install a static C library"),
        ("work.c:1:24: error: expected ';' before '}' token", "mend the program"),
    ],
)
def test_a_program_that_does_not_compile_is_mended_by_who_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: str, hint: str
) -> None:
    def fails(argv: list[str | Path], **_: object) -> None:
        raise process.CommandError([*map(str, argv)], 1, output)

    monkeypatch.setattr(guestrun.process, "run", fails)
    program, log = tmp_path / "scripts/work", tmp_path / "log"
    with pytest.raises(KstallError, match=r"work\.c does not compile") as caught:
        guestrun.compile_program(program, tmp_path / "share/work", log, arch.X86_64)
    assert (caught.value.next or "").startswith(hint)


def test_results_are_used_again(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    first = bench.run({"agent": {"status": "completed"}}, monkeypatch)
    again = bench.run({}, monkeypatch)
    assert bench.boots == 1
    assert bench.booted.reused
    assert (again / "agent.json").read_text() == (first / "agent.json").read_text()
    assert (again / "console.txt").read_text() == "the console\n"
    assert not list(bench.home.glob("run*/*/share"))


@pytest.mark.parametrize(
    "path",
    [
        "harness/kstall_guest/session.py",
        "scripts/drm-sched-wait.bt",
        "scripts/workloads/drm-sched/kunit-suite",
    ],
)
def test_results_of_other_programs_are_not(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    bench.run({}, monkeypatch)
    with (bench.project.root / path).open("a") as file:
        file.write("\n")
    bench.run({}, monkeypatch)
    assert bench.boots == 2


def test_byte_code_of_programs_makes_no_difference(bench: Bench) -> None:
    key = guestrun.key_of(bench.project, bench.series, bench.where)
    (load, *_) = bench.series.spec.workload
    program = bench.project.scripts / load.program
    (program.parent / "__pycache__").mkdir()
    (program.parent / "__pycache__/helper.cpython-311.pyc").write_bytes(b"?")
    assert guestrun.key_of(bench.project, bench.series, bench.where) == key
    (program.parent / "helper.py").touch()
    assert guestrun.key_of(bench.project, bench.series, bench.where) != key


def test_results_of_another_machine_are_not(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = {guestrun.key_of(bench.project, bench.series, bench.where)}
    for machine in (
        guest.Machine(cpus=1),
        guest.Machine(append=("iommu.strict=1",)),
        guest.Machine(devices=("-device", "edu")),
    ):
        other = dataclasses.replace(bench.where, machine=machine)
        keys.add(guestrun.key_of(bench.project, bench.series, other))
    # The harness's own share of the kernel's command line counts as well.
    monkeypatch.setattr(guest, "_KERNEL", (*guest._KERNEL, "loglevel=8"))
    keys.add(guestrun.key_of(bench.project, bench.series, bench.where))
    # And so does what every machine of its architecture has, and who emulates it.
    whose = dataclasses.replace(bench.where.root.arch, hardware=("-cpu", "max"))
    elsewhere = dataclasses.replace(bench.where.root, arch=whose)
    other = dataclasses.replace(bench.where, root=elsewhere)
    keys.add(guestrun.key_of(bench.project, bench.series, other))
    monkeypatch.setattr(accel, "version_of", lambda _: "QEMU emulator version 99.0")
    keys.add(guestrun.key_of(bench.project, bench.series, bench.where))
    assert len(keys) == 7


STEP = """
[[workload.inject]]
step = "hit"
commands = [
    { qmp = "stop" },
    { hmp = "pcie_aer_inject_error -c ep0 0x1", reply = "OK .*" },
    { qmp = "device_del", arguments = { id = "ep0" } },
]
"""


def _kept(
    bench: Bench,
    monkeypatch: pytest.MonkeyPatch,
    report: str = "foo: wedged",
    **ran: Any,
) -> type[KstallError] | None:
    """How it ends when results are used again and a report has become known."""
    known = console._FIRST_LINES
    bench.run({"console": f"[    1.000000] {report}\n", **ran}, monkeypatch)
    new: tuple[Any, ...] = (("warning", "foo: wedged"), ("lockup", "bar: wedged"))
    monkeypatch.setattr(console, "_FIRST_LINES", (*known, *new))
    every = "|".join(pattern for _, pattern in (*known, *new))
    monkeypatch.setattr(console, "_ANY_FIRST_LINE", re.compile(every))
    try:
        bench.run({}, monkeypatch)
    except KstallError as error:
        assert bench.boots == 1 and report in str(error)
        # What nobody would accept of a fresh guest is not kept either.
        bench.run({}, monkeypatch)
        assert bench.boots == 2
        return type(error)
    assert bench.boots == 1
    return None


def test_a_report_that_was_not_known_before_ends_what_was_kept(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert _kept(bench, monkeypatch) is guestrun.GuestFailed


@pytest.mark.parametrize(
    ("share", "verdict"), [(0.8, NotJudged), (0.0, guestrun.GuestFailed)]
)
def test_a_busy_host_excuses_it_also_later(
    bench: Bench,
    monkeypatch: pytest.MonkeyPatch,
    share: float,
    verdict: type[KstallError],
) -> None:
    kept = _kept(bench, monkeypatch, "bar: wedged", host=_busy(share))
    assert kept is verdict


def test_an_expected_report_does_not(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    again = functools.partial(guestrun.run_guest, expected=("foo: wedged",))
    monkeypatch.setattr(guestrun, "run_guest", again)
    assert _kept(bench, monkeypatch) is None


class Stored:
    """An `elsewhere.Elsewhere` that has results of before, until it forgets them."""

    def __init__(self, console: str) -> None:
        self.console: str | None = console

    def do(self, unit: elsewhere.Unit, place: Path) -> elsewhere.UnitOutcome:
        (place / "results").mkdir(parents=True)
        text = "the console\n" if self.console is None else self.console
        (place / "results/console.txt").write_text(text)
        return elsewhere.UnitOutcome("one", 1.0, {"summary": "done"})

    def forget(self, unit: elsewhere.Unit) -> None:
        self.console = None


@pytest.mark.parametrize(
    ("report", "verdict"),
    [
        ("WARNING: at foo.c:3", guestrun.GuestFailed),
        ("INFO: task x blocked", NotJudged),
    ],
)
def test_what_a_store_has_from_before_is_read_again(
    bench: Bench, report: str, verdict: type[KstallError]
) -> None:
    away: Any = Stored(f"[    1.000000] {report} for more than 99 seconds.\n")
    for number, error in enumerate((verdict, None)):
        out = bench.home / f"run{number}"
        ui = Ui(Console(file=io.StringIO()))
        context = Context(bench.project, bench.home / "cache", out, "full", ui)
        with pytest.raises(error) if error else contextlib.nullcontext():
            guestrun.run_guest(
                dataclasses.replace(context, away=away),
                bench.series,
                bench.where,
                out / "guest.log",
                keep=lambda _: True,
            )


def test_a_console_that_was_abridged_is_not_used_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console, "_ABRIDGED", 4)
    for boots in (1, 2):
        bench.run({}, monkeypatch)
        assert bench.boots == boots


def _with_step(bench: Bench) -> None:
    path = bench.series.dir / "series.toml"
    text = path.read_text()
    at = text.index("[[workload]]", text.index("[[workload]]") + 1)
    path.write_text(text[:at] + STEP + "\n" + text[at:])
    (bench.series,) = bench.project.load([bench.series.name])


def test_steps_are_handed_to_the_guest_and_what_was_done_is_kept(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    without = guestrun.key_of(bench.project, bench.series, bench.where)
    _with_step(bench)
    assert guestrun.key_of(bench.project, bench.series, bench.where) != without
    name = bench.series.spec.workload[0].name
    (step,) = guestrun.steps_for(bench.series)
    assert (step.workload, step.name) == (name, "hit")
    assert step.commands == (
        monitor.QemuCommand("stop"),
        monitor.QemuCommand(
            "pcie_aer_inject_error -c ep0 0x1", human=True, reply="OK .*"
        ),
        monitor.QemuCommand("device_del", {"id": "ep0"}),
    )
    answers = (monitor.Answer("stop", {}),)
    performed = (
        monitor.Performed(name, "hit", 1.0, 0.1, answers, None),
        monitor.Performed("../../etc", "hit", 2.0, 0.0, (), "no such step"),
    )
    results = bench.run({"performed": performed}, monkeypatch)
    (injected,) = records.injected((results / name / "injected.json").read_text())
    assert injected == records.Injected("hit", None, (("stop", {}, None),))
    assert not list(bench.home.rglob("etc"))
    # It is part of the evidence, so an old run can be judged by it.
    again = bench.run({}, monkeypatch)
    assert (again / name / "injected.json").exists()


@pytest.mark.parametrize(
    ("ran", "says"),
    [
        ({"status": "panic"}, "the guest panicked in workload credits"),
        ({"status": "lost"}, "the kernel complained, and the guest went away"),
        ({"status": "hang"}, "the guest hung and was ended at its deadline"),
        ({}, "the kernel complained (1 reports)"),
    ],
)
def test_a_kernel_at_fault_is_a_verdict(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, ran: dict[str, Any], says: str
) -> None:
    splat = Splat("warning", 1, "foo", "WARNING: at foo.c:3")
    agent = {"workloads": [{"name": "credits", "status": "running"}]}
    for boots in (1, 2):
        with pytest.raises(guestrun.GuestFailed) as caught:
            bench.run({"splats": (splat,), "agent": agent, **ran}, monkeypatch)
        assert says in str(caught.value)
        assert "WARNING: at foo.c:3" in str(caught.value)
        assert "console.log" in str(caught.value)
        assert bench.boots == boots, "such results must not be kept"
    # What the guest had written until then is there to look at.
    assert list(bench.home.glob("run*/drm-sched/results/agent.json"))


def _busy(share: float) -> hosttime.Host:
    """A host on which each of two processors waits so much of each second."""
    return hosttime.Host(
        tuple(
            hosttime.HostSample(
                float(at),
                {"CPU 0/TCG": at * share, "CPU 1/TCG": at * share},
                console=at if at > 100 else 0,
            )
            for at in range(1, 200)
        )
    )


LOCKUP = Splat("lockup", 1, "BUG: soft lockup - CPU#0 stuck for 22s! [x]", "stuck")
PANIC = "Kernel panic - not syncing: "
NO_ROOT, NO_INIT, KILLED_INIT, FATAL = (
    Splat("panic", 2, PANIC + why, f"console of {why}")
    for why in (
        "VFS: Unable to mount root fs on unknown-block(0,0)",
        "No working init found.  Try passing init= option to kernel.",
        "Attempted to kill init! exitcode=0x00000009",
        "Fatal exception",
    )
)
OOPS = Splat("oops", 1, "BUG: kernel NULL pointer dereference", "no pointer")
LOSS = Splat("warning", 1, "** 3 printk messages dropped **", "dropped")


@pytest.mark.parametrize(
    ("ran", "verdict", "says"),
    [
        *(
            (
                {"splats": (LOCKUP,), "host": _busy(share)},
                guestrun.GuestFailed,
                "complained (1 reports)",
            )
            for share in (0.0, 0.1)
        ),
        (
            {"splats": (LOCKUP,), "host": _busy(0.8)},
            NotJudged,
            "the guest was starved of time in workload credits: it stood still for 22",
        ),
        (
            {"status": "hang", "splats": (LOCKUP,), "host": _busy(0.8)},
            NotJudged,
            "starved of time",
        ),
        (
            {"status": "hang", "splats": (LOCKUP,), "host": _busy(0.0)},
            guestrun.GuestFailed,
            "the guest hung",
        ),
        # Whose time it was nobody knows on a host that does not tell.
        (
            {"splats": (LOCKUP,)},
            NotJudged,
            "may have had no time in workload credits: it stood still for 22 s by its "
            "clock, and this host does not tell",
        ),
        ({"splats": (LOCKUP, OOPS)}, guestrun.GuestFailed, "no pointer"),
        (
            {"status": "hang", "deadline": 2.0},
            NotJudged,
            "did not end in workload credits in the 2 s of its deadline (this host "
            "does not tell how long it kept the guest waiting",
        ),
        # Nothing excuses what time has no part in.
        (
            {"splats": (LOCKUP, OOPS), "host": _busy(0.8)},
            guestrun.GuestFailed,
            "no pointer",
        ),
        (
            {"splats": (OOPS,), "victims": ("doze",)},
            guestrun.GuestFailed,
            "no pointer",
        ),
        ({"status": "panic", "host": _busy(0.9)}, guestrun.GuestFailed, "panicked"),
        # A deadline, with time enough and without.
        (
            {"status": "hang", "deadline": 2.0, "host": _busy(0.0)},
            NotJudged,
            "did not end in workload credits in the 2 s of its deadline (of 3 s it "
            "waited 0 s for a processor or a disk), and its kernel did not say why",
        ),
        (
            {"status": "hang", "deadline": 2.0, "lost": 1.5, "host": _busy(0.5)},
            NotJudged,
            "starved of time in workload credits: of 3 s it waited 2 s for a processor",
        ),
        ({"splats": (LOSS,)}, NotJudged, "log lost messages: ** 3 printk"),
        ({"status": "lost"}, NotJudged, "went away"),
        (
            {"victims": ("doze",), "splats": (Splat("warning", 1, "WARNING", "w"),)},
            NotJudged,
            "ran out of memory, and killed doze",
        ),
        # What was there before the first program, and what memory was left.
        *(
            ({"status": "panic", "splats": (splat,)}, NotJudged, splat.headline)
            for splat in (NO_ROOT, NO_INIT)
        ),
        (
            {"status": "panic", "splats": (KILLED_INIT,), "victims": ("init",)},
            NotJudged,
            "ran out of memory, and killed init",
        ),
        ({"status": "panic", "splats": (KILLED_INIT,)}, guestrun.GuestFailed, "init"),
        # No root was found because something had broken before, and so on.
        *(
            (
                {"status": "panic", "splats": (first, last), "victims": victims},
                guestrun.GuestFailed,
                f"panicked in workload credits: {first.headline}\n{first.excerpt}",
            )
            for first, last, victims in (
                (OOPS, NO_ROOT, ()),
                (Splat("lockdep", 1, "WARNING: possible", "circle"), NO_INIT, ()),
                (Splat("warning", 1, "WARNING: at x.c:1", "warned"), NO_ROOT, ()),
                (OOPS, FATAL, ("doze",)),
                (FATAL, FATAL, ()),
            )
        ),
        ({"exit_status": 1, "agent": {}}, NotJudged, "exited 1"),
    ],
)
def test_whose_fault_the_end_of_a_guest_is(
    bench: Bench,
    monkeypatch: pytest.MonkeyPatch,
    ran: dict[str, Any],
    verdict: type[KstallError],
    says: str,
) -> None:
    agent = {"workloads": [{"name": "credits", "status": "running"}]}
    with pytest.raises(KstallError) as caught:
        bench.run({"agent": agent, **ran}, monkeypatch)
    assert type(caught.value) is verdict
    assert says in str(caught.value)


@pytest.mark.parametrize("kind", ["bad-job", "wrong-kernel"])
def test_a_job_that_is_wrong_is_so_in_another_guest_too(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    agent = {"error": {"kind": kind, "message": "no such job"}}
    with pytest.raises(KstallError, match="no such job") as caught:
        bench.run({"agent": agent, "exit_status": 1}, monkeypatch)
    assert type(caught.value) is KstallError
    assert "job.log" in str(caught.value.next)


def test_what_is_not_to_be_kept(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.kept = False
    for boots in (1, 2):
        bench.run({"agent": {"status": "completed"}}, monkeypatch)
        assert bench.boots == boots


@pytest.mark.parametrize(
    ("ran", "says"),
    [
        ({"status": "lost", "exit_status": None}, "the guest went away"),
        (
            {"exit_status": 1, "agent": {"error": {"message": "no tracefs"}}},
            "exited 1: no tracefs",
        ),
    ],
)
def test_what_is_nobody_s_verdict(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, ran: dict[str, Any], says: str
) -> None:
    with pytest.raises(KstallError, match=says) as caught:
        bench.run(ran, monkeypatch)
    assert not isinstance(caught.value, guestrun.GuestFailed)
