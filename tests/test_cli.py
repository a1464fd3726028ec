# SPDX-License-Identifier: GPL-2.0-or-later
"""The command's exit status and words, for good and bad arguments."""

from __future__ import annotations

import json
import os
import signal
import tempfile
from pathlib import Path

import pytest
from rich.table import Table

import fake_kernel
from kstall import cli
from kstall.base import process
from kstall.cli import terminal, workers
from kstall.mail import incoming
from kstall.pipeline import stability, validate
from kstall.tree import source


def test_list_and_show(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["list"]) == 0
    assert "drm-sched" in capsys.readouterr().out
    assert cli.main(["show", "drm-sched"]) == 0
    shown = capsys.readouterr().out
    assert "tracepoint gpu_scheduler:drm_sched_job_wait" in shown
    assert "u64 wait_ns" in shown
    assert "not to be sent" not in shown
    assert cli.main(["show", "pci-aer-leaks"]) == 0
    assert "  not to be sent: by their titles, " in capsys.readouterr().out


def test_signals_interrupt_unless_they_are_ignored() -> None:
    """As nohup has it of SIGHUP."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    try:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        assert cli.main(["list"]) == 0
        now = [signal.getsignal(number) for number in numbers]
        assert now == [process.interrupt, process.interrupt, signal.SIG_IGN]
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def test_tables_of_a_log_end_where_their_text_does(
    capsys: pytest.CaptureFixture[str],
) -> None:
    console = terminal.output()
    table = Table("check", "detail", box=None)
    table.add_row("a", "a detail as long as the longest cell")
    table.add_row("b", "short")
    console.print(table)
    console.print("  indented  ")
    assert capsys.readouterr().out == (
        " check  detail\n"
        " a      a detail as long as the longest cell\n"
        " b      short\n"
        "  indented\n"
    )


@pytest.mark.parametrize(
    "verb",
    [
        *("validate", "judge", "mutate", "compare", "rebase", "stability"),
        *("check-thread", "series", "abi"),
    ],
)
def test_help_lists_the_exit_statuses(
    capsys: pytest.CaptureFixture[str], verb: str
) -> None:
    with pytest.raises(SystemExit):
        cli.main([verb, "--help"])
    _, mark, text = " ".join(capsys.readouterr().out.split()).partition("exit status: ")
    assert mark
    for status in ("0", "1", "2", "3") if verb == "validate" else ("0",):
        assert f"{status} " in text


@pytest.mark.parametrize("words", ["", "s", "--html x s"])
def test_options_before_an_operators_verb_are_refused(
    capsys: pytest.CaptureFixture[str], words: str
) -> None:
    argv = ["--project", ".", "explain", *words.split()]
    assert cli.main(argv) == 2
    error, advice = capsys.readouterr().err.splitlines()
    assert error == "kstall: explain is for operators, and takes no option before it"
    assert advice.split() == ["next:", "kstall", "explain", *words.split()]


def test_an_unknown_series_is_two(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["validate", "nope"]) == 2
    stderr = capsys.readouterr().err
    assert "no such series: nope" in stderr
    assert "choose from: " in stderr


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--store=x"], "--store: no effect without --workers N or --on ADDRESS"),
        (["--tls-key=x"], "--tls-key: no effect without --on ADDRESS"),
        (
            ["--tls-cert=x", "--tls-ca-file=x", "--tls-key=x", "--store=x"],
            "--store, --tls-ca-file, --tls-cert, --tls-key: no effect without "
            "--workers N or --on ADDRESS",
        ),
        (
            # The store is used.
            ["--workers=2", "--store=x", "--tls-cert=x"],
            "--tls-cert: no effect without --on ADDRESS",
        ),
        (
            ["--at-once=2", "--workers=2"],
            "--at-once: no effect with workers, which have slots for guests",
        ),
        (
            ["--seed=7", "--level=quick"],
            "--seed: no effect at level quick, which compiles no patch by itself",
        ),
        (
            ["--workers=2", "--on=tcp://127.0.0.1:1"],
            "--workers is for this machine, and --on for others: choose one",
        ),
    ],
)
def test_options_without_an_effect(
    words: list[str],
    says: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KSTALL_CACHE", str(tmp_path / "cache"))
    out = tmp_path / "out"
    kernel = str(tmp_path / "linux")
    argv = ["validate", "drm-sched", "--kernel", kernel, "--out", str(out)]
    assert cli.main([*argv, *words]) == 2
    shown = capsys.readouterr()
    first, *rest = shown.err.splitlines()
    assert first == f"kstall: {says}" and len(rest) == ("effect" in says)
    assert shown.out == "" and not out.exists()


@pytest.mark.parametrize(
    ("text", "processors"),
    [("0", {0}), ("0,2", {0, 2}), ("0-1", {0, 1}), ("4, 0-2,2", {0, 1, 2, 4})],
)
def test_processors_of_a_worker(text: str, processors: set[int]) -> None:
    words = ["worker", "tcp://127.0.0.1:1", "--cpus", text]
    assert cli.parser().parse_args(words).cpus == processors


@pytest.mark.parametrize("text", ["", "a", "0,", "0-", "1-0", "-1", "0..1"])
def test_processors_that_are_none(
    text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["worker", "tcp://127.0.0.1:1", f"--cpus={text}"])
    assert caught.value.code == 2
    assert "argument --cpus: " in capsys.readouterr().err


def test_not_a_kernel_tree_is_two(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KSTALL_CACHE", str(tmp_path / "cache"))
    (tmp_path / "tree").mkdir()
    argv = ["validate", "drm-sched", "--kernel", str(tmp_path / "tree")]
    assert cli.main([*argv, "--out", str(tmp_path / "out")]) == 2
    assert "COULD NOT JUDGE" in capsys.readouterr().out
    saved = json.loads((tmp_path / "out/latest/report.json").read_text())
    assert saved["status"] == "could-not-run"
    assert saved["stages"][0]["name"] == "tree"
    assert str(tmp_path / "tree") in saved["stages"][0]["error"]


def test_schema_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["schema"]) == 0
    assert "report" in json.loads(capsys.readouterr().out)["title"].lower()


@pytest.mark.parametrize(
    ("which", "key"), [("series", "tracepoint"), ("mutants", "mutant")]
)
def test_schemas_of_what_a_series_has(
    capsys: pytest.CaptureFixture[str], which: str, key: str
) -> None:
    assert cli.main(["schema", which]) == 0
    assert key in json.loads(capsys.readouterr().out)["properties"]


def test_judging_what_is_no_run_is_two(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["judge", str(tmp_path)]) == 2
    assert "report.json" in capsys.readouterr().err


def test_make_s_own_variables_stay_outside(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """``make validate KERNEL=x`` exports MAKEFLAGS, which kbuild would obey."""
    monkeypatch.setenv("MAKEFLAGS", " -- KERNEL=x")
    monkeypatch.setenv("KBUILD_OUTPUT", str(tmp_path))
    assert cli.main(["list"]) == 0
    assert not {"MAKEFLAGS", "KBUILD_OUTPUT"} & set(os.environ)


def test_compilers_speak_a_language_that_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("LC_ALL", "LC_MESSAGES", "LANG", "LANGUAGE"):
        monkeypatch.setenv(name, "de_DE.UTF-8")
    assert cli.main(["list"]) == 0
    assert os.environ["LC_MESSAGES"] == os.environ["LANG"] == "C.UTF-8"
    assert not {"LC_ALL", "LANGUAGE"} & set(os.environ)


@pytest.mark.fault("corrupted", "a private copy of sources, named where no run is")
def test_a_damaged_entry_is_named_outside_of_runs(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KSTALL_CACHE", str(tmp_path / "cache"))
    top = fake_kernel.write(tmp_path / "linux")
    argv = ["series", "drm-sched", "--kernel", str(top), "--out", str(tmp_path / "out")]
    cli.main(argv)
    capsys.readouterr()
    (base,) = (tmp_path / "cache/trees").glob("7*")
    os.truncate(base / "files", 10)
    cli.main(argv)
    assert f"{base} is damaged (files is not what it was)" in capsys.readouterr().err


def test_line_numbers_are_not_taken_for_emoji(
    capsys: pytest.CaptureFixture[str],
) -> None:
    terminal.complain("x.c:100:5: warning")
    assert "x.c:100:5: warning" in capsys.readouterr().err


@pytest.mark.parametrize("out", ["file", "proc"])
def test_a_place_that_cannot_hold_runs_is_two(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], out: str
) -> None:
    (tmp_path / "file").touch()
    place = tmp_path / "file" if out == "file" else Path("/proc/foo")
    assert cli.main(["validate", "drm-sched", "--out", str(place)]) == 2
    stderr = capsys.readouterr().err
    assert f"{place} cannot hold run directories" in stderr
    assert "--out" in stderr


def test_a_cache_that_cannot_be_made_is_two(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KSTALL_CACHE", "/proc/foo")
    assert cli.main(["validate", "drm-sched"]) == 2
    assert "set KSTALL_CACHE" in capsys.readouterr().err


def test_a_cache_from_which_nothing_runs_is_two(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Noexec:
        f_flag = os.ST_NOEXEC

    monkeypatch.setenv("KSTALL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(os, "statvfs", lambda _: Noexec)
    assert cli.main(["validate", "drm-sched"]) == 2
    stderr = capsys.readouterr().err
    assert f"{tmp_path}/cache cannot hold the cache: it is mounted noexec" in stderr
    assert "set KSTALL_CACHE" in stderr


class _Reached(BaseException):
    """A command went on."""


@pytest.mark.parametrize(
    ("command", "boots"),
    [
        ("validate drm-sched", True),
        ("validate drm-sched --workers 2", True),
        ("stability drm-sched", True),
        ("check-thread thread.mbox", True),
        ("worker tcp://127.0.0.1:1", True),
        # Guests run elsewhere, or not at all.
        ("validate drm-sched --on tcp://127.0.0.1:1", False),
        ("check-thread thread.mbox --no-validate", False),
        ("rebase debian:7.2 drm-sched", False),
    ],
)
def test_temporary_files_of_which_none_runs_are_two(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    boots: bool,
) -> None:
    """Also where the guests' root is in the cache, so that nothing has to be made."""

    def statvfs(path: str | Path) -> os.statvfs_result:
        facts = list(real(path))
        facts[8] |= os.ST_NOEXEC if str(path) == str(tmp_path / "tmp") else 0
        return os.statvfs_result(facts)

    def go_on(*_: object, **__: object) -> None:
        raise _Reached

    real = os.statvfs
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("KSTALL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    monkeypatch.setattr(os, "statvfs", statvfs)
    monkeypatch.setattr(validate, "validate", go_on)
    monkeypatch.setattr(stability, "measure", go_on)
    monkeypatch.setattr(source, "obtain", go_on)
    monkeypatch.setattr(incoming, "read", go_on)
    monkeypatch.setattr(workers, "package", go_on)
    monkeypatch.chdir(tmp_path)
    if not boots:
        with pytest.raises(_Reached):
            cli.main(command.split())
        return
    assert cli.main(command.split()) == 2
    stderr = capsys.readouterr().err
    assert f"{tmp_path}/tmp is mounted noexec, and programs for guests" in stderr
    assert "TMPDIR=/var/tmp" in stderr


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("check-thread typo.mbox", "typo.mbox: neither a file nor a message-id"),
        ("check-thread empty.mbox", "empty.mbox: not a file of mails"),
        ("check-thread empty.mbox --kernel typo", "typo is no Linux source tree: "),
        ("check-thread empty.mbox --kconfig typo", "typo: there is no such file"),
        ("check-thread empty.mbox --workload typo", "typo: there is no such file"),
        ("rebase typo drm-sched", "typo is no Linux source tree: there is no such"),
        ("rebase typo#branch", "typo#branch: there is no "),
        ("rebase .#typo", "is no git repository"),
        ("rebase debian:7.2 --from debian:7", "debian:7 names no version of Debian's"),
    ],
)
def test_a_typo_is_reported_before_a_kernel_is_fetched(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    says: str,
) -> None:
    def go_on(*_: object, **__: object) -> None:
        raise _Reached

    monkeypatch.setenv("KSTALL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(source, "obtain", go_on)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.mbox").touch()
    assert cli.main(command.split()) == 2
    # Once, however many series there are.
    assert capsys.readouterr().err.count(says) == 1


@pytest.mark.parametrize(
    "command",
    [
        "validate drm-sched --kernel .",
        "validate drm-sched --kernel debian:7.2 --kernel ../linux --out results",
        "validate drm-sched --matrix ../matrix.toml",
        "stability drm-sched --kernel .",
        "rebase . drm-sched",
        "rebase debian:7.2 drm-sched --from .",
        "series drm-sched --kernel .",
        "check-thread ../empty.mbox --kernel .",
    ],
)
def test_results_are_not_written_among_sources(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    command: str,
) -> None:
    def go_on(*_: object, **__: object) -> None:
        raise _Reached

    top = fake_kernel.write(tmp_path / "linux")
    (tmp_path / "empty.mbox").touch()
    (tmp_path / "matrix.toml").write_text('[matrix]\ntrees = ["linux"]\n')
    monkeypatch.setenv("KSTALL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(source, "obtain", go_on)
    monkeypatch.setattr(incoming, "read", go_on)
    monkeypatch.chdir(top)
    before = fake_kernel.snapshot(top)
    assert cli.main(command.split()) == 2
    assert f"lies inside the kernel tree {top}" in capsys.readouterr().err
    assert fake_kernel.snapshot(top) == before
    # In a checkout only what is committed counts.
    fake_kernel.commit(top)
    with pytest.raises(_Reached):
        cli.main(command.split())


def test_a_bug_of_ours_is_two_and_in_the_report(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(*_: object) -> None:
        raise ValueError("no such luck")

    monkeypatch.setenv("KSTALL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("kstall.tree.source.obtain", broken)
    assert cli.main(["validate", "drm-sched", "--out", str(tmp_path / "out")]) == 2
    assert "no such luck" in capsys.readouterr().err
    saved = json.loads((tmp_path / "out/latest/report.json").read_text())
    assert saved["status"] == "could-not-run"
    assert "no such luck" in saved["stages"][0]["error"]


def test_a_project_without_series_is_two(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["--project", str(tmp_path), "list"]) == 2
    assert "no series below" in capsys.readouterr().err
