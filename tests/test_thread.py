# SPDX-License-Identifier: GPL-2.0-or-later
"""A series from a list: read, put in order, compared, and made ready to validate."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import kerneltree
import synthetic
from kstall import cli
from kstall.base import KstallError, process
from kstall.evidence import common, evidence
from kstall.lint import discover
from kstall.mail import adopt, compare, export, incoming, mail, thread
from kstall.pipeline import Request, validate
from kstall.report import Report
from kstall.series import Project
from kstall.tree import Base
from kstall.tree.am import ApplyError


@pytest.fixture
def base(tmp_path: Path) -> Base:
    """The demo tree."""
    return kerneltree.base(kerneltree.directory(tmp_path / "linux"), tmp_path / "cache")


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """The demo series, and what else a project has."""
    demo = kerneltree.project(tmp_path / "project")
    (demo.root / "harness").mkdir()
    return demo


@pytest.fixture
def mails(tmp_path: Path, base: Base, project: Project) -> list[bytes]:
    """The demo series as it would come from a list: cover letter and two patches."""
    (series,) = project.load()
    synthetic.prove(series, base, tmp_path / "out")
    request = export.Export(
        project, tmp_path / "linux", tmp_path / "cache", tmp_path / "out"
    )
    done = export.export(request, series, base)
    return [letter.content for letter in done.letters]


def _mbox(path: Path, mails: list[bytes]) -> Path:
    path.write_bytes(b"".join(map(mail.quoted, mails)))
    return path


def _edit(content: bytes, old: str, new: str) -> bytes:
    assert old.encode() in content
    return content.replace(old.encode(), new.encode(), 1)


def _reply(content: bytes, text: str = "Nice.\n") -> bytes:
    head = b"From x Thu Jan  1 00:00:00 1970\nFrom: R <r@example.org>\nSubject: Re: "
    subject = re.search(rb"\nSubject: (.*)\n", content)
    assert subject is not None
    return head + subject[1] + b"\nMessage-ID: <r@example.org>\n\n" + text.encode()


def _attached(content: bytes) -> bytes:
    head, _, body = content.partition(b"\n\n")
    kept = [x for x in head.split(b"\n") if not x.startswith((b"Content", b"MIME"))]
    return (
        b"\n".join(kept)
        + b"\nMIME-Version: 1.0\nContent-Type: multipart/mixed; boundary=b\n\n"
        + b"--b\nContent-Type: text/plain\n\nSee the patch.\n"
        + b"--b\nContent-Type: text/x-patch; name=x.patch\n"
        + b"Content-Disposition: attachment; filename=x.patch\n\n"
        + body
        + b"\n--b--\n"
    )


# -- reading ---------------------------------------------------------------------


def test_a_thread_with_replies_and_an_older_version(
    tmp_path: Path, mails: list[bytes]
) -> None:
    cover, first, second = mails
    newer = [_edit(x, "[PATCH", "[RFC PATCH v2") for x in mails]
    other = _edit(_reply(first), "Subject: Re: [PATCH 1/2]", "Subject: a question,")
    path = _mbox(
        tmp_path / "t",
        [second, *newer[::-1], _reply(second), cover, other, _reply(cover), first],
    )
    posting = thread.read(path, tmp_path / "scratch")
    assert posting.version == 2
    assert [x.number for x in posting.patches] == [1, 2]
    assert posting.title == "demo: Trace naps"
    assert len(posting.ignored) == 6
    assert sum("a reply" in x for x in posting.ignored) == 2
    assert sum("no patch" in x for x in posting.ignored) == 1
    assert sum("version 1" in x for x in posting.ignored) == 3
    older = thread.read(path, tmp_path / "again", version=1)
    assert [x.number for x in older.patches] == [1, 2]


def test_a_patch_without_numbers_is_a_series(
    tmp_path: Path, mails: list[bytes]
) -> None:
    alone = _edit(mails[1], "[PATCH 1/2]", "[PATCH net-next]")
    posting = thread.read(_mbox(tmp_path / "t", [alone]), tmp_path / "scratch")
    assert (posting.cover, len(posting.patches)) == (None, 1)


def test_brackets_of_a_title_are_no_tags(tmp_path: Path, mails: list[bytes]) -> None:
    of_v3 = [
        _edit(content, f"[PATCH {number}/2] ", f"[PATCH {number}/2] Beds of [v3]: ")
        for number, content in enumerate(mails)
    ]
    posting = thread.read(_mbox(tmp_path / "t", of_v3), tmp_path / "scratch")
    assert (posting.version, len(posting.patches)) == (1, 2)
    assert posting.title.startswith("Beds of [v3]: ")


def test_a_directory_of_mails(tmp_path: Path, mails: list[bytes]) -> None:
    (tmp_path / "dir").mkdir()
    for number, content in enumerate(mails):
        (tmp_path / "dir" / f"{number}.eml").write_bytes(
            content.replace(b"\n", b"\r\n")
        )
    posting = thread.read(tmp_path / "dir", tmp_path / "scratch")
    assert len(posting.patches) == 2
    assert b"\r" not in posting.patches[0].content


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda c, a, b: [c, b], r"\[1/2\] missing"),
        (lambda c, a, b: [c, a, b, b], r"\[2/2\] is there twice"),
        (lambda c, a, b: [c, c, a, b], r"\[0/2\] is there twice"),
        (lambda c, a, b: [c, a, _edit(b, "2/2]", "2/3]")], "more than one series"),
        (lambda c, a, b: [c, _attached(a), b], "has an attachment, 'x.patch'"),
        (
            lambda c, a, b: [
                c,
                a,
                _edit(b, "Content-Type: text/plain", "C-T: text/html"),
            ],
            "nothing",
        ),
        (
            lambda c, a, b: [
                c,
                a,
                _edit(b, "Content-Type: text/plain", "Content-Type: t/h"),
            ],
            "has an attachment|no diff",
        ),
        (lambda c, a, b: [c, a, b.partition(b"---\n")[0]], "has no diff"),
        (
            lambda c, a, b: [_reply(a), _reply(b)],
            "2 mails, and none of them is a patch",
        ),
        (lambda c, a, b: [c, a, _edit(b, "2/2]", "3/2]")], r"\[2/2\] missing"),
    ],
)
def test_what_is_not_whole_is_one_error(
    tmp_path: Path,
    mails: list[bytes],
    change: Callable[[bytes, bytes, bytes], list[bytes]],
    says: str,
) -> None:
    path = _mbox(tmp_path / "t", change(*mails))
    if says == "nothing":
        assert len(thread.read(path, tmp_path / "scratch").patches) == 2
        return
    with pytest.raises(thread.BadThread, match=says):
        thread.read(path, tmp_path / "scratch")


def test_no_such_version_and_no_mails_are_one_error(
    tmp_path: Path, mails: list[bytes]
) -> None:
    path = _mbox(tmp_path / "t", mails)
    with pytest.raises(thread.BadThread, match="has no version 7"):
        thread.read(path, tmp_path / "a", version=7)
    (tmp_path / "empty").write_text("")
    with pytest.raises(KstallError, match="empty"):
        thread.read(tmp_path / "empty", tmp_path / "b")
    (tmp_path / "dir").mkdir()
    with pytest.raises(KstallError, match="without mails"):
        thread.read(tmp_path / "dir", tmp_path / "c")
    (tmp_path / "noise").write_bytes(bytes(range(256)) * 9)
    with pytest.raises(KstallError):
        thread.read(tmp_path / "noise", tmp_path / "d")


@pytest.mark.parametrize(
    "header",
    [
        "Subject: [PATCH 1/2] =?utf-8?q?a=0ABcc:_x@y.org?=",
        "Subject: [PATCH 1/2] =?unknown-8bit?q?=FF=FE?=",
        "Subject: [PATCH 1/2] " + "x" * 5000,
        "Subject: [PATCH 1/2] ../../../etc/passwd\x1b[31m",
    ],
)
def test_hostile_headers_stay_in_their_line(
    tmp_path: Path, mails: list[bytes], base: Base, project: Project, header: str
) -> None:
    hostile = re.sub(rb"\nSubject: .*\n", f"\n{header}\n".encode(), mails[1], count=1)
    path = _mbox(tmp_path / "t", [mails[0], hostile, mails[2]])
    posting = thread.read(path, tmp_path / "scratch")
    assert posting.patches[0].subject.isprintable()
    out = tmp_path / "threads-out"
    posting = incoming.read(str(path), tmp_path / "more")
    came = incoming.receive(posting, project, base, out, tmp_path / "more")
    for file in (out / "threads").rglob("*.patch"):
        assert file.parent.parent.parent == out / "threads"
    assert came.dir.parent == out / "threads"


def test_mails_that_were_never_sent_need_a_message_id(
    tmp_path: Path, mails: list[bytes]
) -> None:
    plain = [re.sub(rb"\nMessage-ID: .*", b"", content, count=1) for content in mails]
    path = _mbox(tmp_path / "t", [mails[0], mails[1], plain[2]])
    with pytest.raises(KstallError, match=r"how wide .* has no Message-ID:") as caught:
        incoming.read(str(path), tmp_path / "scratch")
    assert not isinstance(caught.value, thread.BadThread)
    assert caught.value.next is not None
    assert "`git format-patch --thread`" in caught.value.next


# -- comparing -------------------------------------------------------------------


def _receive(
    tmp_path: Path, mails: list[bytes], base: Base, project: Project
) -> incoming.Incoming:
    path = _mbox(tmp_path / "came.mbox", mails)
    out = tmp_path / "came"
    posting = incoming.read(str(path), tmp_path / "scratch")
    return incoming.receive(posting, project, base, out, tmp_path / "scratch")


def test_our_own_series_is_the_same(
    tmp_path: Path, mails: list[bytes], base: Base, project: Project
) -> None:
    came = _receive(tmp_path, mails, base, project)
    assert came.resemblance is not None
    assert [x.relation for x in came.resemblance.pairs] == ["same", "same"]
    assert came.resemblance.same_tree
    assert [(x.event, x.bare, x.sites) for x in came.points] == [
        ("demo:demo_nap", False, ())
    ] or came.points == ()
    assert "it is demo, and results in the same tree" in incoming.text(came)


def test_a_changed_patch_has_a_range_diff(
    tmp_path: Path, mails: list[bytes], base: Base, project: Project
) -> None:
    changed = _edit(mails[2], "+int line_ten;", "+int line_zehn;")
    came = _receive(tmp_path, [mails[0], mails[1], changed], base, project)
    assert came.resemblance is not None
    assert [x.relation for x in came.resemblance.pairs] == ["same", "changed"]
    assert not came.resemblance.same_tree
    assert "line_zehn" in incoming.text(came)
    series = incoming.adopted(came, project, None, level="full", trusted=True)
    assert series.name == "demo"
    assert [workload.name for workload in series.spec.workload] == ["doze"]
    assert "line_zehn" in series.patches[1].path.read_text()


def test_a_patch_more_and_a_patch_less(
    tmp_path: Path, mails: list[bytes], base: Base, project: Project
) -> None:
    alone = _edit(mails[1], "1/2]", "1/1]")
    came = _receive(tmp_path, [alone], base, project)
    assert came.resemblance is not None
    assert [x.relation for x in came.resemblance.pairs] == ["same", "missing"]
    assert not came.resemblance.complete


def test_what_does_not_apply_is_a_verdict_of_its_own(
    tmp_path: Path, mails: list[bytes], base: Base, project: Project
) -> None:
    torn = _edit(mails[2], "-int line_10;", "-int line_11;")
    with pytest.raises(ApplyError, match=r"0002-demo.*, demo\.c:10: hunk 1 does not"):
        _receive(tmp_path, [mails[0], mails[1], torn], base, project)


def test_a_path_that_leaves_the_tree_is_refused(
    tmp_path: Path, mails: list[bytes], base: Base, project: Project
) -> None:
    away = mails[2].replace(b"a/demo.c", b"a/../x.c").replace(b"b/demo.c", b"b/../x.c")
    with pytest.raises(KstallError, match="leads out of the kernel tree"):
        _receive(tmp_path, [mails[0], mails[1], away], base, project)


@pytest.mark.parametrize("what", ["nowhere.mbox", "-h@x.org", "a b@c", "; true@x"])
def test_what_is_neither_file_nor_message_is_one_error(
    tmp_path: Path, what: str
) -> None:
    with pytest.raises(KstallError, match="neither a file nor a message-id"):
        incoming.read(what, tmp_path / "s")


@pytest.mark.parametrize(
    "what", ["<dream@example.net>", "https://lore.kernel.org/all/dream@example.net/"]
)
def test_a_message_id_is_fetched_by_b4(
    tmp_path: Path,
    mails: list[bytes],
    base: Base,
    project: Project,
    monkeypatch: pytest.MonkeyPatch,
    what: str,
) -> None:
    real = process.run

    def fetch(argv: Any, **options: Any) -> process.Completed:
        if "mbox" not in argv:
            return real(argv, **options)
        assert argv[-1] == "dream@example.net"
        assert "--offline-mode" not in argv
        _mbox(argv[argv.index("-o") + 1] / "thread.mbx", mails)
        return process.Completed(tuple(map(str, argv)), 0, "", 0)

    monkeypatch.setattr(process, "run", fetch)
    posting = incoming.read(what, tmp_path / "scratch")
    scratch = tmp_path / "scratch"
    came = incoming.receive(posting, project, base, tmp_path / "o", scratch)
    assert came.resemblance is not None

    def fail(argv: Any, **_: Any) -> process.Completed:
        raise process.CommandError(tuple(map(str, argv)), 1, "no such thread")

    monkeypatch.setattr(process, "run", fail)
    with pytest.raises(KstallError, match="b4 cannot fetch dream@example"):
        incoming.read(what, tmp_path / "again")


# -- a series that nobody here has seen ------------------------------------------

STRANGE = """\
From: Stranger <s@example.net>
Subject: [PATCH] strange: trace dreams
Message-ID: <dream@example.net>

Dreams are not seen.

Signed-off-by: Stranger <s@example.net>
---
diff --git a/kernel/dream.c b/kernel/dream.c
new file mode 100644
--- /dev/null
+++ b/kernel/dream.c
@@ -0,0 +1,15 @@
+#include <trace/events/dream.h>
+
+static noinline void
+dream_traced(int depth)
+{
+\ttrace_call__dream_begin(depth);
+}
+
+/* trace_dream_end() in a comment is none. */
+int dream(int depth)
+{
+\tif (trace_dream_begin_enabled())
+\t\tdream_traced(depth);
+\treturn trace_dream_deep_tp(depth), 0;
+}
diff --git a/include/trace/events/dream.h b/include/trace/events/dream.h
new file mode 100644
--- /dev/null
+++ b/include/trace/events/dream.h
@@ -0,0 +1,13 @@
+#undef TRACE_SYSTEM
+#define TRACE_SYSTEM dream
+
+DECLARE_EVENT_CLASS(dream_class,
+\tTP_PROTO(int depth), TP_ARGS(depth));
+
+DEFINE_EVENT(dream_class, dream_begin, TP_PROTO(int depth));
+TRACE_EVENT(dream_end,
+\tTP_PROTO(int depth)
+);
+DECLARE_TRACE(dream_deep,
+\tTP_PROTO(int depth),
+\tTP_ARGS(depth));
diff --git a/kernel/Makefile b/kernel/Makefile
new file mode 100644
--- /dev/null
+++ b/kernel/Makefile
@@ -0,0 +1,2 @@
+obj-y += nothing.o
+obj-$(CONFIG_DREAM) += dream.o \\
"""


def test_tracepoints_are_found_and_become_a_series(
    tmp_path: Path, base: Base, project: Project
) -> None:
    came = _receive(tmp_path, [STRANGE.encode()], base, project)
    assert came.resemblance is None
    assert came.points == (
        discover.NewTracepoint(
            "dream_begin",
            "dream",
            "include/trace/events/dream.h",
            False,
            (("kernel/dream.c", "dream"),),
        ),
        discover.NewTracepoint(
            "dream_end", "dream", "include/trace/events/dream.h", False, ()
        ),
        discover.NewTracepoint(
            "dream_deep",
            "dream",
            "include/trace/events/dream.h",
            True,
            (("kernel/dream.c", "dream"),),
        ),
    )
    assert "no caller was found" in incoming.text(came)
    with pytest.raises(KstallError, match=r"on this machine.*: kernel/Makefile"):
        incoming.adopted(came, project, None, level="full", trusted=False)
    series = incoming.adopted(came, project, None, level="full", trusted=True)
    assert series.name == adopt.UNKNOWN
    assert series.spec.discovered
    assert {point.event for point in series.spec.tracepoint} == {
        "dream:dream_begin",
        "dream:dream_end",
        "dream:dream_deep",
    }
    fragment = came.dir / "project/kconfigs/arrived.config"
    assert fragment.read_text() == "CONFIG_DREAM=y\n"
    (tmp_path / "my.config").write_text("CONFIG_MINE=m\n")
    incoming.adopted(came, project, tmp_path / "my.config", level="full", trusted=True)
    assert fragment.read_text() == "CONFIG_MINE=m\n"


RUNS_HERE = """\
From: Stranger <s@example.net>
Subject: [PATCH {number}/2] strange: {number}
Message-ID: <{number}@example.net>

Text.

Signed-off-by: Stranger <s@example.net>
---
diff --git a/kernel/gen.sh b/kernel/gen.sh
{mode} file mode 100755
--- {before}
+++ {after}
@@ -{old} +{new} @@
{sign}touch ~/here
"""


def test_a_file_that_a_later_patch_removes_runs_here_all_the_same(
    tmp_path: Path, base: Base, project: Project
) -> None:
    path = "kernel/gen.sh"
    added = {"mode": "new", "before": "/dev/null", "after": f"b/{path}", "sign": "+"}
    gone = {"mode": "deleted", "before": f"a/{path}", "after": "/dev/null", "sign": "-"}
    mails = [
        RUNS_HERE.format(number=1, old="0,0", new="1", **added).encode(),
        RUNS_HERE.format(number=2, old="1", new="0,0", **gone).encode(),
    ]
    came = _receive(tmp_path, mails, base, project)
    assert came.plan.touched == ()
    with pytest.raises(KstallError, match=r"on this machine.*: kernel/gen\.sh"):
        incoming.adopted(came, project, None, level="full", trusted=False)


def test_only_the_same_patches_are_trusted_for_the_same_tree(
    tmp_path: Path, mails: list[bytes], base: Base, project: Project
) -> None:
    came = _receive(tmp_path, mails, base, project)
    assert incoming.runs_here(came, "deep") == ()
    assert came.resemblance is not None
    first, *others = came.resemblance.pairs
    pairs = (replace(first, relation="changed"), *others)
    other = replace(came, resemblance=replace(came.resemblance, pairs=pairs))
    script = (("scripts/x.sh", None),)
    plan = replace(came.plan, states=(script,) * 3)
    assert incoming.runs_here(replace(other, plan=plan), "full") == ("scripts/x.sh",)


FORMAT = """\
name: {name}
ID: 7
format:
\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;
\tfield:unsigned char common_flags;\toffset:2;\tsize:1;\tsigned:0;
\tfield:unsigned char common_preempt_count;\toffset:3;\tsize:1;\tsigned:0;
\tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;

\tfield:int depth;\toffset:8;\tsize:4;\tsigned:1;

print fmt: "depth=%d", REC->depth
"""


def _results(place: Path, load: str, *fired: str) -> evidence.Evidence:
    """What a guest leaves whose kernel has all events of ``STRANGE``."""
    (place / "formats/dream").mkdir(parents=True)
    for name in ("dream_begin", "dream_end"):
        text = FORMAT.format(name=name)
        (place / "formats/dream" / name).write_text(text)
    (place / load).mkdir()
    lines = [
        f"            load-178     [000] .....    85.2391{n:02}: {name}: depth=3\n"
        for n, name in enumerate(fired)
    ]
    (place / load / "trace.txt").write_text("".join(lines))
    facts = {"name": load, "status": "exited", "exit_status": 0, "trace": {"lost": 0}}
    agent = {"status": "completed", "workloads": [facts]}
    (place / "agent.json").write_text(json.dumps(agent))
    return evidence.load(place)


def test_events_that_nobody_knows_how_to_fire_are_skipped(
    tmp_path: Path, base: Base, project: Project
) -> None:
    came = _receive(tmp_path, [STRANGE.encode()], base, project)
    series = incoming.adopted(came, project, None, level="full", trusted=True)
    saved = _results(tmp_path / "idle", "idle", "dream_begin")
    listed, fire = evidence.judge(series, saved)
    assert listed.status == "pass"
    assert "int depth; holes: none" in listed.comparisons[0].detail
    assert fire.status == "skip"
    assert fire.detail.endswith(
        "to make them fire: dream:dream_end; dream:dream_begin fired, 1 times"
    )
    # That nothing asked for it to fire, so that it is no comparison.
    assert fire.comparisons == []
    # Of what nobody knows there is nothing to compare, and no error.
    checks = {check.name: check.status for check in common.judge(series, saved)}
    assert checks == {"booted_kernel": "pass", "nothing_lost": "pass"}


def test_a_workload_that_is_named_has_to_make_them_fire(
    tmp_path: Path, base: Base, project: Project
) -> None:
    came = _receive(tmp_path, [STRANGE.encode()], base, project)
    program = tmp_path / "sleep.c"
    with pytest.raises(KstallError, match=r"sleep\.c: No such file"):
        incoming.adopted(came, project, None, program, level="full", trusted=True)
    program.write_text("int main(void) { return 0; }\n")
    series = incoming.adopted(came, project, None, program, level="full", trusted=True)
    scripts = came.dir / "project/scripts"
    assert (scripts / "workloads/arrived/named.c").read_text() == program.read_text()
    both = _results(tmp_path / "both", "named", "dream_begin", "dream_end")
    assert evidence.judge(series, both)[1].status == "pass"
    half = _results(tmp_path / "one", "named", "dream_begin")
    assert evidence.judge(series, half)[1].status == "fail"


def test_a_kernel_without_the_event_fails(
    tmp_path: Path, base: Base, project: Project
) -> None:
    came = _receive(tmp_path, [STRANGE.encode()], base, project)
    series = incoming.adopted(came, project, None, level="full", trusted=True)
    saved = _results(tmp_path / "idle", "idle")
    (tmp_path / "idle/formats/dream/dream_end").unlink()
    listed = evidence.judge(series, evidence.load(saved.dir))[0]
    assert listed.status == "fail"
    assert listed.comparisons[1].detail == "the kernel has no such event"


def test_nothing_to_look_for_is_one_error(
    tmp_path: Path, base: Base, project: Project
) -> None:
    plain = re.sub(r"TRACE_SYSTEM", "SOMETHING", STRANGE)
    came = _receive(tmp_path, [plain.encode()], base, project)
    with pytest.raises(KstallError, match="no tracepoint was found"):
        incoming.adopted(came, project, None, level="full", trusted=True)


def test_a_comparison_wants_more_than_a_file_in_common(
    tmp_path: Path, mails: list[bytes], base: Base, project: Project
) -> None:
    other = mails[2].replace(b"line_ten", b"line_x")
    other = re.sub(rb"\nSubject: .*\n .*\n", b"\nSubject: [PATCH] other\n", other)
    came = _receive(tmp_path, [other], base, project)
    assert came.resemblance is None
    assert compare.find(came.plan, project.load(), tmp_path / "x") is None


# -- the command -----------------------------------------------------------------


def test_the_command_ends_in_a_validation(
    tmp_path: Path,
    mails: list[bytes],
    project: Project,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KSTALL_CACHE", str(tmp_path / "cache"))
    asked: list[Request] = []

    def prove(request: Request, *_: Any) -> tuple[Path, Report]:
        asked.append(request)
        (series,) = request.series
        base = kerneltree.base(tmp_path / "linux", tmp_path / "cache")
        run = synthetic.prove(series, base, tmp_path / "proved")
        return run, Report.model_validate_json((run / "report.json").read_text())

    monkeypatch.setattr(validate, "validate", prove)
    path = _mbox(tmp_path / "came.mbox", mails)
    words = ["--project", str(project.root), "check-thread", str(path)]
    words += ["--kernel", str(tmp_path / "linux"), "--out", str(tmp_path / "o")]
    assert cli.main([*words, "--no-validate"]) == 0
    assert "results in the same tree" in capsys.readouterr().out
    assert asked == []
    assert cli.main(words) == 0
    (request,) = asked
    assert request.series[0].name == "demo"
    assert request.project.root.parent.parent == tmp_path / "o/threads"
    assert "PROVEN" in capsys.readouterr().out
    _mbox(path, [mails[0], mails[2]])
    assert cli.main(words) == 1
    assert "[1/2] missing" in capsys.readouterr().err
    torn = _edit(mails[2], "-int line_10;", "-int line_11;")
    _mbox(path, [mails[0], mails[1], torn])
    assert cli.main(words) == 3
    output = capsys.readouterr().err
    assert "does not apply: 0002-demo" in output
    assert ", demo.c:10: hunk 1" in output
    assert replace(request, kernel=None).kernel is None
