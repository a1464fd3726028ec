# SPDX-License-Identifier: GPL-2.0-or-later
"""perf and trace-cmd in the guest, replaced by shell scripts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kstall_guest import decoders, tracefs
from kstall_guest.errors import DecoderCrashed, GuestError, LostEvents, TracerFailed

EVENTS = ("demo:demo_nap",)
# Like perf record: its child runs once all events are enabled, and ends the recording.
RECORD = """\
for last; do :; done
case $1 in
record) shift; : >"$HERE/args"
	for word; do
		shift
		case $word in --output=*) echo data >"${word#*=}" ;; --) break ;; esac
		echo "$word" >>"$HERE/args"
	done
	"$@" ;;
script) echo "[000] 1.000000001: demo:demo_nap: nap_ns=5" ;;
list) echo "  $last  [Tracepoint event]" ;;
esac
"""
REPORT = """\
case $1 in
restore) shift 3; cat "$@" >"$HERE/restored"; : >"$HERE/../scratch/trace.dat" ;;
report) echo "cpus=1"; cat "$HERE/restored" ;;
esac
"""


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A scratch directory; ``tool`` puts programs where they are looked for."""
    for name in ("scratch", "bin", "out"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("HERE", str(tmp_path / "bin"))
    return tmp_path / "scratch"


def tool(scratch: Path, name: str, text: str) -> None:
    path = scratch.parent / "bin" / name
    path.write_text(f"#!/bin/sh\n{text}")
    path.chmod(0o755)


def test_perf_records_until_it_is_stopped(scratch: Path) -> None:
    tool(scratch, "perf", RECORD)
    out = scratch.parent / "out"
    perf = decoders.perf(EVENTS, scratch)
    perf.wait_attached(300)
    assert perf.process.poll() is None
    perf.stop()
    decoders.printed_by_perf(perf, EVENTS, out)
    perf.kill()
    arguments = (scratch.parent / "bin/args").read_text().splitlines()
    assert {"--event=demo:demo_nap", "--clockid=mono", "--all-cpus"} <= set(arguments)
    assert (out / decoders.PERF).read_text().endswith("demo:demo_nap: nap_ns=5\n")
    assert (out / decoders.LISTED).read_text().split()[0] == "demo:demo_nap"
    assert list(scratch.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("echo no such event >&2; exit 1", "ended before it was attached:\nno such ev"),
        ("sleep 99", r"not attached after 0.3 s"),
    ],
)
def test_perf_does_not_come_to_record(scratch: Path, text: str, complaint: str) -> None:
    tool(scratch, "perf", f"{text}\n")
    perf = decoders.perf(EVENTS, scratch)
    with pytest.raises(TracerFailed, match=complaint):
        perf.wait_attached(0.3 if "sleep" in text else 300)
    perf.kill()
    assert list(scratch.iterdir()) == []


def test_perf_fails_in_the_end(scratch: Path) -> None:
    tool(scratch, "perf", f"{RECORD}echo disk full >&2; exit 3\n")
    perf = decoders.perf(EVENTS, scratch)
    perf.wait_attached(300)
    with pytest.raises(TracerFailed, match="exit status 3:\ndisk full"):
        perf.stop()
    tool(scratch, "perf", "echo bad file >&2; exit 1\n")
    with pytest.raises(TracerFailed, match="perf script: exit status 1:\nbad file"):
        decoders.printed_by_perf(perf, EVENTS, scratch.parent / "out")
    perf.kill()


@pytest.mark.parametrize(
    ("end", "kind", "says"),
    [
        ("kill -SEGV $$", DecoderCrashed, "exit status -11"),
        ("kill -KILL $$", TracerFailed, "exit status -9"),
        ("echo '   PERF_RECORD_LOST lost 40'", LostEvents, "40 events lost"),
    ],
)
def test_whose_fault_it_is_that_perf_does_not_print_all(
    scratch: Path, end: str, kind: type[GuestError], says: str
) -> None:
    tool(scratch, "perf", RECORD)
    perf = decoders.perf(EVENTS, scratch)
    perf.wait_attached(300)
    perf.stop()
    tool(scratch, "perf", f'test "$1" = list || {{ {end}; }}\n')
    with pytest.raises(GuestError, match=says) as caught:
        decoders.printed_by_perf(perf, EVENTS, scratch.parent / "out")
    assert type(caught.value) is kind
    perf.kill()


def test_trace_cmd_reads_the_pages_in_their_order(
    scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool(scratch, "trace-cmd", REPORT)
    out = scratch.parent / "out"
    pages = [out / "cpu0", out / "cpu1"]
    for path in pages:
        path.write_text(f"{path.name}\n")
    decoders.printed_by_trace_cmd(pages, scratch, out)
    assert (out / decoders.TRACE_CMD).read_text() == "cpus=1\ncpu0\ncpu1\n"
    assert list(scratch.iterdir()) == []
    tool(scratch, "trace-cmd", "echo no header >&2; exit 1\n")
    with pytest.raises(TracerFailed, match="trace-cmd restore: exit status 1:\nno h"):
        decoders.printed_by_trace_cmd(pages, scratch, out)
    monkeypatch.setenv("PATH", str(scratch))
    with pytest.raises(TracerFailed, match="trace-cmd restore: No such file"):
        decoders.printed_by_trace_cmd(pages, scratch, out)
    with pytest.raises(TracerFailed, match="perf: No such file"):
        decoders.perf(EVENTS, scratch)


def test_a_buffer_is_read_to_its_end(tmp_path: Path) -> None:
    for number, pages in ((0, 3), (1, 0), (10, 1)):
        directory = tmp_path / f"per_cpu/cpu{number}"
        directory.mkdir(parents=True)
        (directory / "trace_pipe_raw").write_bytes(bytes([number]) * 4096 * pages)
    buffers = tracefs.Instance(tmp_path).pages()
    assert [(name, len(data)) for name, data in buffers.items()] == [
        ("cpu0", 3 * 4096),
        ("cpu1", 0),
        ("cpu10", 4096),
    ]
