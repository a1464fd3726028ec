# SPDX-License-Identifier: GPL-2.0-or-later
"""Reading one patch mail, and refusing what is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from kstall.series import Hunk
from kstall.series.patchfile import NotAPatch, parse

HEAD = """\
From a323ac4991ace946ac735a099f135ce74745653a Mon Sep 17 00:00:00 2001
From: =?UTF-8?q?=C3=9Cn=C3=AF?= <someone@example.org>
Date: Sat, 21 Nov 2026 18:01:56 +0000
Subject: [PATCH v2 1/3] drm/sched: {subject}
MIME-Version: 1.0
Content-Type: text/plain; charset=UTF-8
Content-Transfer-Encoding: 8bit

Why.

---
 f | 2 +-

"""
EDIT = """\
diff --git a/f b/f
index 422c2b7..0f7bc76 100644
--- a/f
+++ b/f
@@ -1,2 +1,2 @@
 a
-b
+c
"""
REST = """\
diff --git a/d/n.c b/d/n.c
new file mode 100755
index 0000000..45b983b
--- /dev/null
+++ b/d/n.c
@@ -0,0 +1 @@
+hi\x0cform feed
diff --git a/empty b/empty
new file mode 100644
index 0000000..e69de29
diff --git a/gone b/gone
deleted file mode 100644
index 286c5f5..0000000
--- a/gone
+++ /dev/null
@@ -1 +0,0 @@
-gone
diff --git a/old b/new
similarity index 100%
rename from old
rename to new
diff --git a/run b/run
old mode 100644
new mode 100755
"""
TAIL = "-- \n2.39.5\n\n"


def mail(tmp_path: Path, diff: str, *, head: str = HEAD) -> Path:
    path = tmp_path / "0001-x.patch"
    path.write_text(head.replace("{subject}", "say why") + diff + TAIL)
    return path


def test_every_kind_of_file_change_is_touched(tmp_path: Path) -> None:
    patch = parse(mail(tmp_path, EDIT + REST))
    assert patch.subject == "drm/sched: say why"
    assert patch.touches == ("f", "d/n.c", "empty", "gone", "old", "new", "run")
    assert patch.hunks[0] == Hunk("f", 1, (1, 2), (1, 2))


def test_a_folded_and_encoded_subject(tmp_path: Path) -> None:
    subject = (
        "[PATCH] =?UTF-8?q?t=C3=A4st:=20so=20very=20long=20?=\n"
        " =?UTF-8?q?that=20=E6=97=A5=E6=9C=AC?=\n plain end"
    )
    head = HEAD.replace("[PATCH v2 1/3] drm/sched: {subject}", subject)
    assert parse(mail(tmp_path, EDIT, head=head)).subject == (
        "täst: so very long that 日本 plain end"
    )


def test_a_base64_body(tmp_path: Path) -> None:
    import base64

    head = HEAD.replace("8bit", "base64").partition("\n\n")[0] + "\n\n"
    path = tmp_path / "x.patch"
    path.write_text(head + base64.encodebytes(EDIT.encode()).decode())
    assert parse(path).touches == ("f",)


def test_a_broken_hunk_names_its_line(tmp_path: Path) -> None:
    path = mail(tmp_path, EDIT.replace("-b\n+c\n", "-b\nc\n"))
    with pytest.raises(NotAPatch, match="Hunk diff line expected") as caught:
        parse(path)
    assert caught.value.line is not None
    assert path.read_text().splitlines()[caught.value.line - 1] == "c"


def test_a_truncated_hunk_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.patch"
    path.write_text(HEAD + EDIT.removesuffix("+c\n"))
    with pytest.raises(NotAPatch, match="shorter than expected"):
        parse(path)


@pytest.mark.fault("outside the tree", "each way in which a path is unsafe")
@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("../etc/passwd", "leads out"),
        ("a/../../b", "leads out"),
        ("/etc/passwd", "leads out"),
        (".git/hooks/x", "git's own"),
        ("drivers/.GIT/config", "git's own"),
        ("./f", "not a plain path"),
        ("d//f", "not a plain path"),
    ],
)
def test_an_unsafe_path_is_refused_by_name(tmp_path: Path, name: str, why: str) -> None:
    bad = EDIT.replace("a/f", f"a/{name}").replace("b/f", f"b/{name}")
    with pytest.raises(NotAPatch, match=why) as caught:
        parse(mail(tmp_path, EDIT + bad))
    assert name in str(caught.value)
    text = caught.value.path.read_text().splitlines()
    assert text[caught.value.line - 1].startswith(f"diff --git a/{name}")  # type: ignore[operator]


def test_a_rename_that_hides_its_target_is_refused(tmp_path: Path) -> None:
    bad = REST.replace("rename to new", "rename to ../new")
    with pytest.raises(NotAPatch, match=r"\.\./new: leads out"):
        parse(mail(tmp_path, bad))


@pytest.mark.fault("outside the tree", "a patch that makes a link")
@pytest.mark.parametrize("mode", ["120000", "160000"])
def test_links_are_refused(tmp_path: Path, mode: str) -> None:
    with pytest.raises(NotAPatch, match=mode):
        parse(mail(tmp_path, REST.replace("100755", mode)))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no From: header"),
        ("int main(void) { return 0; }\n", "no From: header"),
        (EDIT, "no From: header"),
        (HEAD.partition("Subject")[0] + "\nx\n", "no Subject: header"),
        (HEAD + "nothing\n", "no `diff --git` line"),
        (HEAD + "diff --git a/x b/x\nGIT binary patch\nliteral 0\n", "binary"),
        (HEAD + EDIT.replace("a/f", "f").replace("b/f", "f"), "no a/ or b/"),
    ],
)
def test_what_is_no_patch_mail_is_said_so(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "x.patch"
    path.write_text(text)
    with pytest.raises(NotAPatch, match=why) as caught:
        parse(path)
    assert str(path) in str(caught.value)


def test_a_missing_file_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(NotAPatch, match="No such file"):
        parse(tmp_path / "x.patch")
