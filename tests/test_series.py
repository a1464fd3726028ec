# SPDX-License-Identifier: GPL-2.0-or-later
"""Metadata that is wrong is one clear error, with file and line."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from kstall.base import arch
from kstall.evidence import Evidence, evidence
from kstall.guest import machine_for
from kstall.guest.guest import Machine
from kstall.series import Project, SeriesError
from kstall.series.series import load
from kstall.series.tables import locate

NAME = "demo"
PATCH = """\
From 0000000000000000000000000000000000000000 Mon Sep 17 00:00:00 2001
From: kstall <noreply@kstall.invalid>
Date: Thu, 1 Jan 2026 00:00:00 +0000
Subject: [PATCH 1/1] demo: trace naps

Why.
---
 demo.c | 1 +
 demo_trace.h | 1 +
 2 files changed, 2 insertions(+)

diff --git a/demo.c b/demo.c
--- a/demo.c
+++ b/demo.c
@@ -1 +1,2 @@
 int demo;
+int traced;
diff --git a/demo_trace.h b/demo_trace.h
--- a/demo_trace.h
+++ b/demo_trace.h
@@ -1 +1,2 @@
 /* events */
+TRACE_EVENT(demo_nap)
--
2.39
"""
TOML = """\
schema = 1
title = "demo: trace naps"
ordered-as = "demo nap"
patches = ["0001-demo.patch"]
cover = "cover.txt"
kconfig = "demo.config"

[subsystem]
name = "DEMO"
prefix = "demo"
tree = "https://example.org/demo.git"
branch = "next"
list = "demo@example.org"
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

[[script]]
file = "nap.bt"
events = ["demo:demo_nap"]

[[workload]]
name = "doze"
program = "workloads/demo/doze"
scripts = ["nap.bt"]
deadline-s = 5

[[check]]
name = "naps"
kind = "positive"
workloads = ["doze"]
claim = "each nap is seen"
"""


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A project with one small, consistent series."""
    files = {
        f"patches/{NAME}/series.toml": TOML,
        f"patches/{NAME}/0001-demo.patch": PATCH,
        f"patches/{NAME}/cover.txt": "Naps.\n",
        f"patches/{NAME}/checks.py": "def naps(ev):\n    return None\n",
        "kconfigs/demo.config": "CONFIG_DEMO=y\n",
        "scripts/nap.bt": "",
        "scripts/workloads/demo/doze": "",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        if "/workloads/" in name:
            path.chmod(0o755)
    return Project(tmp_path)


UNPROVEN = """\
[[unproven]]
event = "demo:demo_nap"
fields = ["nap_ns"]
operators = ["one more", "one less"]
because = "no clock is better"

"""


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('fields = ["nap_ns"]', 'fields = ["nap_ns", "cat"]', "has no field cat"),
        ('"one less"', '"one more"', "one more is argued twice"),
        ('event = "demo:demo_nap"', 'event = "demo:doze"', "is not one of the new"),
        ("operators", 'part = "nap"\noperators', "has no part nap"),
    ],
)
def test_an_argument_has_to_be_about_what_is_there(
    project: Project, old: str, new: str, message: str
) -> None:
    _edit(project, "[[script]]", f"{UNPROVEN}[[script]]")
    (argument,) = load(project, NAME).spec.unproven
    assert [*argument.keys] == [
        ("demo:demo_nap", "nap_ns", "one more"),
        ("demo:demo_nap", "nap_ns", "one less"),
    ]
    _edit(project, UNPROVEN, UNPROVEN.replace(old, new))
    with pytest.raises(SeriesError, match=rf"series\.toml:\d+: .*{message}"):
        load(project, NAME)


def test_a_list_of_wrong_entries_is_not_called_empty(project: Project) -> None:
    _edit(project, "hot = false", "hott = false")
    with pytest.raises(SeriesError) as caught:
        project.load([NAME])
    assert "unknown key `hott`" in caught.value.what
    assert "should have at least" not in caught.value.what


def test_a_script_has_to_be_executable(project: Project) -> None:
    """What the guest said of it would be reused once it no longer is."""
    (project.scripts / "workloads/demo/doze").chmod(0o644)
    with pytest.raises(SeriesError, match="not executable: scripts/workloads"):
        project.load([NAME])
    (project.scripts / "workloads/demo/doze").rename(
        project.scripts / "workloads/demo/doze.c"
    )
    project.load([NAME])


def _edit(project: Project, old: str, new: str) -> int:
    """Replace ``old`` in series.toml; the line where it stood comes back."""
    path = project.patches / NAME / "series.toml"
    text = path.read_text()
    assert text.count(old) >= 1
    path.write_text(text.replace(old, new, 1))
    return text[: text.index(old)].count("\n") + 1


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("{ reply = 'OK' }", "either qmp or hmp"),
        ("{ qmp = 'stop', hmp = 'stop' }", "either qmp or hmp"),
        ("{ hmp = 'stop', arguments = { a = 1 } }", "only qmp takes arguments"),
        ("{ qmp = 'stop', reply = 'OK' }", "only to hmp the reply is text"),
        ("{ hmp = 'stop', reply = '(' }", "no regular expression: missing )"),
        ("{ qmp = 'stop; quit' }", "should match pattern"),
    ],
)
def test_steps_for_the_monitor_are_checked(
    project: Project, command: str, says: str
) -> None:
    step = "[[workload.inject]]\nstep = 'a'\ncommands = [%s]\n\n"
    _edit(project, "[[check]]", step % "{ qmp = 'stop' }" + "[[check]]")
    assert [s.step for load in load(project, NAME).spec.workload for s in load.inject]
    line = _edit(project, "[[check]]", f"{step % command}[[check]]")
    with pytest.raises(SeriesError, match=re.escape(says)) as caught:
        load(project, NAME)
    # Any line of the table will do to find it.
    (number,) = {int(n) for n in re.findall(r"series.toml:(\d+)", str(caught.value))}
    assert line <= number <= line + 2


def test_second_step_of_a_name(project: Project) -> None:
    step = "[[workload.inject]]\nstep = 'a'\ncommands = [{ qmp = 'stop' }]\n\n"
    _edit(project, "[[check]]", f"{step}{step}[[check]]")
    with pytest.raises(SeriesError, match="second step called a"):
        load(project, NAME)


def test_a_series_of_fixes_was_not_ordered(project: Project) -> None:
    tracepoint = TOML[TOML.index("[[tracepoint]]") : TOML.index("[[script]]")]
    _edit(project, 'ordered-as = "demo nap"\n', "")
    _edit(project, 'trace-system = "demo"\n', "")
    with pytest.raises(SeriesError) as caught:
        load(project, NAME)
    assert "tracepoints, but no ordered-as" in str(caught.value)
    assert "tracepoints, but no trace-system" in str(caught.value)
    _edit(project, tracepoint, "")
    _edit(project, 'events = ["demo:demo_nap"]', "events = []")
    spec = load(project, NAME).spec
    assert (spec.ordered_as, spec.subsystem.trace_system) == (None, None)


def test_a_series_may_be_kept_without_being_sent(project: Project) -> None:
    assert load(project, NAME).not_sent is None
    line = _edit(
        project, "title = ", 'not-sent = """\nothers\nwere first\n"""\ntitle = '
    )
    assert load(project, NAME).not_sent == "others were first"
    _edit(project, "\nothers\nwere first\n", "")
    with pytest.raises(SeriesError, match=rf"series.toml:{line}: `not-sent`: "):
        load(project, NAME)


def test_a_series_may_ask_for_its_machine(project: Project) -> None:
    assert machine_for(load(project, NAME)) == Machine()
    _edit(
        project,
        "[subsystem]",
        '[machine]\ncpus = 4\nappend = ["numa=fake=2"]\n'
        'devices = ["-device", "edu"]\n\n[subsystem]',
    )
    assert machine_for(load(project, NAME)) == Machine(
        4, "2G", ("numa=fake=2",), ("-device", "edu")
    )
    line = _edit(project, "cpus = 4", "cpus = 0")
    with pytest.raises(SeriesError, match=rf"series.toml:{line}: `cpus`"):
        load(project, NAME)


ON = """\
[machine]
cpus = 4
append = ["intel_iommu=on"]
devices = ["-device", "intel-iommu"]

[on.arm64]
devices = ["-machine", "iommu=smmuv3"]

[[on.arm64.skipped]]
workloads = ["doze"]
because = "nobody naps there"

[subsystem]"""


def test_another_architecture_has_another_machine(project: Project) -> None:
    _edit(project, "[subsystem]", ON)
    series = load(project, NAME)
    assert series.on(arch.X86_64) is series
    assert machine_for(series).devices == ("-device", "intel-iommu")
    other = series.on(arch.ARM64)
    # What is not named is as it was.
    assert machine_for(other) == Machine(
        4, "2G", ("intel_iommu=on",), ("-machine", "iommu=smmuv3")
    )


def test_what_it_cannot_have_is_skipped_and_says_why(project: Project) -> None:
    _edit(project, "[subsystem]", ON)
    series = load(project, NAME)
    other = series.on(arch.ARM64)
    assert (other.spec.workload, other.spec.check) == ((), ())
    assert [(check.name, why) for check, why in other.skipped] == [
        (check.name, "nobody naps there") for check in series.spec.check
    ]
    nothing = Evidence(project.root, {}, {}, {})
    for check in evidence.judge(other, nothing):
        # Skipped is neither passed nor failed, and holds nothing that could be ticked.
        assert (check.status, check.comparisons) == ("skip", [])
        assert check.detail == "nobody naps there"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('workloads = ["doze"]\nb', 'workloads = ["nup"]\nb', "no workload called nup"),
        ('workloads = ["doze"]\nb', 'measures = ["m"]\nb', "no measure called m"),
        ('workloads = ["doze"]\nb', "b", "it names nothing that is skipped"),
        ("[on.arm64]", "[on.mips]", "should be .arm64"),
    ],
)
def test_a_mistake_there_has_its_line(
    project: Project, old: str, new: str, message: str
) -> None:
    _edit(project, "[subsystem]", ON)
    _edit(project, old, new)
    with pytest.raises(SeriesError, match=rf"series.toml:\d+: .*{message}"):
        load(project, NAME)


def test_a_consistent_series_loads(project: Project) -> None:
    series = load(project, NAME)
    assert [patch.subject for patch in series.patches] == ["demo: trace naps"]
    assert series.touches == {"demo.c", "demo_trace.h"}
    assert series.spec.tracepoint[0].event == "demo:demo_nap"
    assert list(series.spec.tracepoint[0].fields) == ["nap_ns"]


def test_the_project_s_own_series_load(project_root: Path) -> None:
    assert Project(project_root).load()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('title = "demo: trace naps"\n', "", "missing key `title`"),
        ("hot = false", "hot = false\nheat = 3", "unknown key `heat`"),
        ("hot = false", 'hot = "lukewarm"', "`hot`: Input should be a valid boolean"),
        ("deadline-s = 5", "deadline-s = -5", "`deadline-s`: Input should be greater"),
        ('kind = "positive"', 'kind = "lucky"', "`kind`: Input should be"),
        ('header = "demo_trace.h"', 'header = "x.h"', "does not touch x.h"),
        ('file = "demo.c"', 'file = "other.c"', "no patch touches other.c"),
        ('name = "demo_nap"', 'name = "demo_doze"', "does not add demo_doze"),
        ('program = "workloads/demo/doze"', 'program = "gone"', "no such file"),
        ('scripts = ["nap.bt"]', 'scripts = ["x.bt"]', "x.bt is not declared"),
        ('scripts = ["nap.bt"]', "decode = true", "none of its events is new"),
        ('workloads = ["doze"]', 'workloads = ["walk"]', "no workload called walk"),
        ('name = "naps"', 'name = "snores"', "checks.py has no function snores"),
        ('cover = "cover.txt"', 'cover = "gone.txt"', "no such file: gone.txt"),
        ('kconfig = "demo.config"', 'kconfig = "gone"', "no such file: kconfigs/gone"),
        ('\nsystem = "demo"', '\nsystem = "D"', "`system`: String should match"),
    ],
)
def test_faults_have_file_and_line(
    project: Project, old: str, new: str, message: str
) -> None:
    line = _edit(project, old, new)
    with pytest.raises(SeriesError) as caught:
        load(project, NAME)
    shown = str(caught.value)
    assert message in shown
    path = project.patches / NAME / "series.toml"
    match = re.search(
        rf"{re.escape(str(path))}:(\d+): [^\n]*{re.escape(message)}", shown
    )
    assert match is not None, shown
    if message.startswith("missing"):
        line = 1
    if "unknown" in message or old.startswith("\n"):
        line += 1
    assert int(match[1]) == line, shown


def test_two_measures_of_a_name_would_share_their_results(project: Project) -> None:
    measure = (
        '[[overhead.workload]]\nname = "nap"\nprogram = "workloads/demo/doze"\n'
        'operation = "nap"\n'
    )
    path = project.patches / NAME / "series.toml"
    path.write_text(f"{TOML}\n{measure}\n")
    load(project, NAME)
    path.write_text(f"{TOML}\n{measure}\n{measure}")
    with pytest.raises(SeriesError, match=r"second overhead\.workload called nap"):
        load(project, NAME)


def test_a_conflict_is_with_a_series_that_there_is(project: Project) -> None:
    conflict = f'[[conflict]]\nseries = "{NAME}"\nbecause = "so"\n'
    path = project.patches / NAME / "series.toml"
    path.write_text(f"{TOML}\n{conflict}")
    load(project, NAME)
    path.write_text(f"{TOML}\n{conflict.replace(NAME, 'dmeo')}")
    with pytest.raises(SeriesError, match="no such series: dmeo"):
        load(project, NAME)


def test_bare_events_have_no_record(project: Project) -> None:
    _edit(project, 'nap_ns = "u64"', 'cat = "struct cat *"')
    _edit(project, "[[script]]", '[tracepoint.reads]\nlives = "cat->lives"\n[[script]]')
    with pytest.raises(SeriesError, match="only bare tracepoints have reads"):
        load(project, NAME)
    _edit(project, 'joins = "nothing"', 'kind = "bare"\njoins = "nothing"')
    assert load(project, NAME).spec.tracepoint[0].reads == {"lives": "cat->lives"}
    _edit(project, "deadline-s = 5", 'events = ["demo:demo_nap"]\ndeadline-s = 5')
    with pytest.raises(SeriesError, match="demo_nap is bare"):
        load(project, NAME)


PART = """\
[[tracepoint.part]]
name = "nap"
workloads = ["doze"]
where = { nap_ns = [1] }

"""


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("nap_ns", "bed", "has no field bed"),
        ('"doze"', '"dream"', "dream does not record demo:demo_nap"),
        ("\n\n", f"\n\n{PART}", "second part called nap"),
    ],
)
def test_a_part_is_of_records_that_there_are(
    project: Project, old: str, new: str, message: str
) -> None:
    _edit(project, "deadline-s = 5", 'events = ["demo:demo_nap"]\ndeadline-s = 5')
    _edit(project, "[[script]]", f"{PART}[[script]]")
    (part,) = load(project, NAME).spec.tracepoint[0].part
    assert (part.workloads, part.where) == (("doze",), {"nap_ns": (1,)})
    _edit(project, PART, PART.replace(old, new))
    with pytest.raises(SeriesError, match=message):
        load(project, NAME)
    _edit(project, PART.replace(old, new), '[[tracepoint.part]]\nname = "nap"\n')
    with pytest.raises(SeriesError, match="either workloads or where"):
        load(project, NAME)


def test_values_are_those_of_a_field(project: Project) -> None:
    _edit(
        *(project, "[[script]]"),
        "[tracepoint.values]\nnap_ns = [0, 1]\nbed = [0, 1]\n[[script]]",
    )
    with pytest.raises(SeriesError, match="has no field bed"):
        load(project, NAME)
    _edit(project, "bed = [0, 1]\n", "")
    assert load(project, NAME).spec.tracepoint[0].values == {"nap_ns": (0, 1)}
    _edit(project, "nap_ns = [0, 1]", "nap_ns = [0, 1, 0]")
    with pytest.raises(SeriesError, match="nap_ns: a value is there twice"):
        load(project, NAME)
    _edit(project, "nap_ns = [0, 1, 0]", "nap_ns = [1]")
    with pytest.raises(SeriesError, match="at least 2"):
        load(project, NAME)
    _edit(project, "nap_ns = [1]", "nap_ns = [0, 1]")
    for ctype in ("bool", "void *", "__data_loc char[]"):
        before = load(project, NAME).spec.tracepoint[0].fields["nap_ns"]
        _edit(project, f'nap_ns = "{before}"', f'nap_ns = "{ctype}"')
        with pytest.raises(SeriesError, match="nap_ns is no number"):
            load(project, NAME)
        _edit(project, f'nap_ns = "{ctype}"', f'nap_ns = "{before}"')


def test_broken_toml_has_its_line(project: Project) -> None:
    line = _edit(project, 'branch = "next"', "branch = ")
    with pytest.raises(SeriesError, match=rf"series\.toml:{line}: "):
        load(project, NAME)


def test_a_patch_that_is_not_listed(project: Project) -> None:
    folder = project.patches / NAME
    shutil.copy(folder / "0001-demo.patch", folder / "0002-more.patch")
    with pytest.raises(SeriesError, match=r"0002-more\.patch lies in demo/ but"):
        load(project, NAME)


def test_a_patch_that_is_none_is_one_of_the_faults(project: Project) -> None:
    """So that callers who can do without the series see one kind of error."""
    patch = project.patches / NAME / "0001-demo.patch"
    patch.write_text(PATCH.partition("diff --git")[0])
    with pytest.raises(SeriesError) as caught:
        load(project, NAME)
    place = patch.with_name("series.toml")
    assert f"{place}:4: {patch}:" in caught.value.what
    assert "the mail has no diff" in caught.value.what


def test_every_fault_is_listed_at_once(project: Project) -> None:
    _edit(project, 'cover = "cover.txt"', 'cover = "gone"')
    _edit(project, 'kconfig = "demo.config"', 'kconfig = "gone"')
    with pytest.raises(SeriesError) as caught:
        load(project, NAME)
    assert str(caught.value).count("no such file") == 2


def test_an_unknown_series_names_the_known(project: Project) -> None:
    with pytest.raises(SeriesError, match="no such series: nope") as caught:
        project.load(["nope"])
    assert "choose from: demo" in str(caught.value)


def test_locate_counts_nested_tables() -> None:
    text = "[[a]]\nx = 1\n[[a.b]]\ny = 1\n[[a]]\n[[a.b]]\ny = 1\n[[a.b]]\ny = 2\n"
    assert locate(text, ("a", 1, "b", 1, "y")) == 9
    assert locate(text, ("a", 1, "b", 0)) == 6
    assert locate(text, ("a", 0, "missing")) == 1


def test_patches_that_nothing_describes_are_an_error(project: Project) -> None:
    (project.patches / NAME / "series.toml").unlink()
    assert project.names() == (NAME,)
    with pytest.raises(SeriesError, match=r"series\.toml does not exist"):
        project.load()


MAIL = """
# Whoever wants to know.
[[mail.cc]]
name = "Ännchen O'Toole, Jr."
address = "a.b+c@lists.example.org"
because = "wrote it"

[[mail.omit]]
section = "NOISE"
because = "only the word matches"
"""


def _say(project: Project, more: str) -> None:
    path = project.patches / NAME / "series.toml"
    path.write_text(path.read_text() + more)


def test_who_gets_the_mails_is_no_part_of_the_digest(project: Project) -> None:
    before = load(project, NAME).digest
    _say(project, MAIL)
    after = load(project, NAME)
    assert after.spec.mail.cc[0].address == "a.b+c@lists.example.org"
    assert after.digest == before
    _edit(project, "each nap is seen", "each nap is felt")
    assert load(project, NAME).digest != before


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("a.b+c@lists.example.org", "a.b", "no e-mail address"),
        ("a.b+c@", "a@b@", "no e-mail address"),
        ("a.b+c@", "a\\nBcc: x@", "no e-mail address"),
        ("a.b+c@", "ä@", "no e-mail address"),
        ("Jr.", "Jr.\\nBcc: x@y.org", "should match pattern"),
        ("Jr.", "Jr. <x@y.org>", "should match pattern"),
        ('because = "wrote it"', "", "missing key `because`"),
        ('"wrote it"', '"x"\\npatches = ["no.patch"]', "no such patch: no.patch"),
    ],
)
def test_no_header_is_broken_by_who_gets_the_mails(
    project: Project, old: str, new: str, says: str
) -> None:
    _say(project, MAIL)
    line = _edit(project, old, new.replace("\\npatches", "\npatches"))
    with pytest.raises(SeriesError, match=re.escape(says)) as caught:
        load(project, NAME)
    first = int(str(caught.value).split(":")[1])
    assert line - 3 <= first <= line + 1


@pytest.mark.parametrize(
    ("condition", "on", "off"),
    [
        (">=7.3", ("7.3.0", "7.3.4-1-test", "7.4.0-rc1"), ("7.2.13", "7.3.0-rc4")),
        ("==7.2.*", ("7.2.0", "7.2.13"), ("7.3.4", "6.12.107")),
        (">=7.3rc2", ("7.3.0-rc2", "7.3.0-rc3-next", "7.3.1"), ("7.3.0-rc1",)),
        (">=6.12,<6.15", ("6.12.107", "6.14.2"), ("6.15.0-rc1", "6.15.1", "6.6.1")),
    ],
)
def test_trees_are_told_apart_by_their_version(
    project: Project, condition: str, on: tuple[str, ...], off: tuple[str, ...]
) -> None:
    _say(project, f'[applies]\ntrees = ["{condition}", "==5.10.*"]\n')
    applies = load(project, NAME).spec.applies
    assert applies is not None
    assert [applies.to(version) for version in on] == [True] * len(on)
    assert [applies.to(version) for version in off] == [False] * len(off)
    assert applies.to("5.10.7")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('trees = ["7.3 and later"]', "is no condition on a version"),
        ('trees = ["linux-next"]', "is no condition on a version"),
        ('trees = [" "]', "an empty condition"),
        ("trees = []", "at least 1 item"),
        ('tree = [">=7.3"]', "unknown key `tree`"),
    ],
)
def test_a_condition_that_is_none_has_file_and_line(
    project: Project, text: str, says: str
) -> None:
    _say(project, f"[applies]\n{text}\n")
    lines = (project.patches / NAME / "series.toml").read_text().splitlines()
    place = lines.index("[applies]") + 1
    with pytest.raises(SeriesError, match=re.escape(says)) as caught:
        load(project, NAME)
    numbers = {int(n) for n in re.findall(r"series.toml:(\d+): ", str(caught.value))}
    assert numbers and numbers <= {place, place + 1}


def test_where_it_applies_is_no_part_of_the_digest(project: Project) -> None:
    before = load(project, NAME).digest
    _say(project, '[applies]\ntrees = [">=7.3"]\n\n' + MAIL)
    assert load(project, NAME).digest == before
    _say(project, '\n[machine]\nmemory = "3G"\n')
    with pytest.raises(SeriesError, match="has to be the last"):
        load(project, NAME)


def test_mail_tables_come_last(project: Project) -> None:
    _say(project, MAIL + '\n[machine]\nmemory = "3G"\n')
    with pytest.raises(SeriesError, match="has to be the last"):
        load(project, NAME)


@pytest.mark.parametrize(
    ("needs", "workload", "says"),
    [
        ('["other"]', "", ""),
        ('["other"]', 'not-debugged = "so"\ndebugged-with = "other"\n', ""),
        ('["none"]', "", "no such series: none"),
        ('["events"]', "", "events is no series of fixes (kind)"),
        (f'["{NAME}"]', "", f"{NAME} is the series itself, or named twice"),
        ('["other", "other"]', "", "other is the series itself, or named twice"),
        (
            "[]",
            'not-debugged = "so"\ndebugged-with = "other"\n',
            "other is not among what the series needs",
        ),
        (
            '["other"]',
            'debugged-with = "other"\n',
            "it has no effect without not-debugged",
        ),
    ],
)
def test_what_a_series_needs_are_fixes(
    project: Project, needs: str, workload: str, says: str
) -> None:
    for name, kind in (("other", "fix"), ("events", "events")):
        (project.patches / name).mkdir()
        (project.patches / name / "series.toml").write_text(f'kind = "{kind}"\n')
    _edit(project, "[subsystem]", f"needs = {needs}\n\n[subsystem]")
    _edit(project, "[[workload]]\n", f"[[workload]]\n{workload}")
    if says:
        with pytest.raises(SeriesError, match=re.escape(says)):
            load(project, NAME)
    else:
        assert load(project, NAME).spec.needs == ("other",)
