# SPDX-License-Identifier: GPL-2.0-or-later
"""A kernel tree of a handful of files, and a series of one event for it.

The scripts are stand-ins that do what the real ones do with the options that kstall
gives them; tests that need the source of a real kernel have the real ones.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from kstall.series import Project
from kstall.tree import Base, source

MAINTAINERS = """\
DEMO SUBSYSTEM
"""
#: Prints what lies beside it, once it has been told where to look and for what.
GET_MAINTAINER = """\
#!/usr/bin/perl
die "usage" unless grep { $_ eq '--no-tree' } @ARGV and -e $ARGV[-1];
open(my $f, '<', 'MAINTAINERS') or die; print <$f>;
"""
CHECKPATCH = """\
#!/usr/bin/perl
my $signed = !grep { $_ eq '--no-signoff' } @ARGV;
for my $file (grep { /\\.patch$/ } @ARGV) {
	open(my $f, '<', $file) or die; my @lines = <$f>;
	print "$file:1: ERROR:MISSING_SIGN_OFF: Missing Signed-off-by\\n"
		if $signed and !grep { /^Signed-off-by:/ } @lines;
	for my $n (0 .. $#lines) {
		print "$file:", $n + 1, ": WARNING:TRAILING_WHITESPACE: blank\\n"
			if $lines[$n] =~ /^\\+.*[ \\t]$/;
	}
}
"""
NAMED = """\
Zoë Demo <zoe@example.org> (maintainer:DEMO SUBSYSTEM)
"Q. Uote, Jr." <q@example.org> (reviewer:DEMO SUBSYSTEM)
Noisy Nora <nora@example.org> (maintainer:NOISE:Keyword:nap)
demo@lists.example.org (open list:DEMO SUBSYSTEM)
linux-kernel@vger.kernel.org (open list)
"""
DCO = """\
Sign your work
--------------

        Developer's Certificate of Origin 1.1

        By making a contribution to this project, I certify that:

        (a) It is mine.

then you just add a line
"""
DEMO_C = "int demo;\n" + "".join(f"int line_{n};\n" for n in range(20)) + "/* äöü */\n"
FILES = {
    "Makefile": "VERSION = 7\nPATCHLEVEL = 3\nSUBLEVEL = 4\n",
    "Kbuild": "obj-y += demo.o\n",
    "MAINTAINERS": NAMED,
    "scripts/get_maintainer.pl": GET_MAINTAINER,
    "scripts/checkpatch.pl": CHECKPATCH,
    "Documentation/process/submitting-patches.rst": DCO,
    "Documentation/process/coding-assistants.rst": "Only humans sign off.\n",
    "demo.c": DEMO_C,
    "demo_trace.h": "/* events */\n",
}
PATCH = """\
From 0000000000000000000000000000000000000000 Mon Sep 17 00:00:00 2001
From: kstall <noreply@kstall.invalid>
Date: Thu, 1 Jan 2026 00:00:00 +0000
Subject: [PATCH 1/2] demo: trace naps

A nap is not seen.

From here on it is.  The next lines are traps of mail.
From nowhere to nowhere, always
.
..dotted
>From quoted

Assisted-by: LLM
---
 demo.c       | 1 +
 demo_trace.h | 1 +
 2 files changed, 2 insertions(+)

diff --git a/demo.c b/demo.c
--- a/demo.c
+++ b/demo.c
@@ -1,3 +1,4 @@
 int demo;
+int traced; /* Größe */
 int line_0;
 int line_1;
diff --git a/demo_trace.h b/demo_trace.h
--- a/demo_trace.h
+++ b/demo_trace.h
@@ -1 +1,5 @@
 /* events */
+TRACE_EVENT(demo_nap,
+From the top of a line
+.
+)
--
2.39.5

"""
SECOND = """\
From 0000000000000000000000000000000000000000 Mon Sep 17 00:00:00 2001
From: kstall <noreply@kstall.invalid>
Date: Thu, 1 Jan 2026 00:00:01 +0000
Subject: [PATCH 2/2] demo: say in a subject that is much longer than anyone would
 want to read how wide the Größe of a nap is

Assisted-by: LLM
---
 demo.c | 2 +-
 1 file changed, 1 insertion(+), 1 deletion(-)

diff --git a/demo.c b/demo.c
--- a/demo.c
+++ b/demo.c
@@ -10,7 +10,7 @@
 int line_7;
 int line_8;
 int line_9;
-int line_10;
+int line_ten;
 int line_11;
 int line_12;
 int line_13;
--
2.39.5

"""
COVER = """\
A nap of a job is invisible today, and this paragraph is written so that \
it is wider than the mail may be.

- an item of a list whose second line
  hangs

  demo_nap: nap_ns=99 who=1

A nap costs 1234 bytes.
"""
TOML = """\
schema = 1
title = "demo: Trace naps"
ordered-as = "demo nap"
patches = ["0001-demo.patch", "0002-demo.patch"]
cover = "cover.txt"
kconfig = "demo.config"

[subsystem]
name = "DEMO SUBSYSTEM"
prefix = "demo"
tree = "https://example.org/demo.git"
branch = "next"
list = "demo@lists.example.org"
trace-system = "demo"

[[tracepoint]]
name = "demo_nap"
system = "demo"
patch = "0001-demo.patch"
header = "demo_trace.h"
joins = "nothing"
[[tracepoint.site]]
file = "demo.c"
function = "nap"
hot = false
context = "process"
[tracepoint.fields]
nap_ns = "u64"
who = "u32"

[[workload]]
name = "doze"
program = "workloads/demo/doze"
deadline-s = 5

[[check]]
name = "naps"
kind = "positive"
workloads = ["doze"]
claim = "Each nap is seen."

[[check]]
name = "no_naps"
kind = "negative"
workloads = ["doze"]
claim = "Without a nap nothing is."

[[mail.cc]]
name = "Carla Çelik"
address = "carla@example.org"
because = "sleeps a lot"

[[mail.omit]]
section = "NOISE"
because = "only the word matches"

[[mail.change]]
version = 2
items = ["Naps are   counted (Zoë)"]
"""


def project(root: Path) -> Project:
    """A project with the series ``demo``."""
    files = {
        "patches/demo/series.toml": TOML,
        "patches/demo/0001-demo.patch": PATCH,
        "patches/demo/0002-demo.patch": SECOND,
        "patches/demo/cover.txt": COVER,
        "patches/demo/checks.py": "def naps(ev): ...\ndef no_naps(ev): ...\n",
        "kconfigs/base.config": "",
        "kconfigs/demo.config": "CONFIG_DEMO=y\n",
        "scripts/workloads/demo/doze": "",
    }
    _write(root, files)
    (root / "scripts/workloads/demo/doze").chmod(0o755)
    return Project(root)


def directory(root: Path) -> Path:
    """The tree, as a plain directory."""
    _write(root, FILES)
    return root


def checkout(root: Path) -> Path:
    """The tree, as a git checkout of one commit."""
    _write(root, FILES)
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.org")
    for words in (
        ("init", "-q"),
        ("add", "."),
        (*identity, "-c", "commit.gpgSign=false", "commit", "-q", "-m", "base"),
    ):
        subprocess.run(["git", *words], cwd=root, check=True)
    return root


def base(tree: Path, cache_dir: Path) -> Base:
    """The tree as `kstall` takes it."""
    return source.obtain(tree, cache_dir, lambda _: None)


def _write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
