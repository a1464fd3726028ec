# SPDX-License-Identifier: GPL-2.0-or-later
"""A demo series as mails: what they say, who gets them, and what is refused."""

from __future__ import annotations

import dataclasses
import email
import email.policy
import re
import shlex
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from email.message import EmailMessage
from pathlib import Path

import pytest

import kerneltree
import postbox
import synthetic
from kstall import cli
from kstall.base import KstallError, arch
from kstall.cost import costs
from kstall.evidence import falsity
from kstall.lint import checkpatch
from kstall.mail import (
    contributor,
    cover,
    export,
    mail,
    prep,
    proof,
    recipients,
    results,
    summary,
)
from kstall.report import report
from kstall.series import Project, Series
from kstall.tree import Base, tree
from kstall.tree.am import read
from kstall.verdict import Check, Comparison

ALICE = "Alice A. Lice <alice@example.org>"


@dataclass
class Desk:
    """Everything that an export needs, below one directory."""

    root: Path
    project: Project
    base: Base
    request: export.Export

    @property
    def series(self) -> Series:
        """The demo series, as it is on disk."""
        (series,) = self.project.load(["demo"])
        return series

    @property
    def out(self) -> Path:
        """Where runs are."""
        return self.request.out

    def prove(self, **options: object) -> Path:
        """Have a run that proves the series as it is."""
        return synthetic.prove(self.series, self.base, self.out, **options)  # type: ignore[arg-type]

    def export(self, **changes: object) -> export.Exported:
        """Write the mails."""
        request = replace(self.request, **changes)  # type: ignore[arg-type]
        return export.export(request, self.series, self.base)

    def edit(self, name: str, old: str, new: str) -> None:
        """Change a file of the series."""
        path = self.project.patches / "demo" / name
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new, 1))


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with a git identity, and no other configuration."""
    place = tmp_path / "home"
    for key in ("GIT_AUTHOR_NAME", "GIT_AUTHOR_EMAIL", "EMAIL"):
        monkeypatch.delenv(key, raising=False)
    for key, value in postbox.environment(place).items():
        monkeypatch.setenv(key, value)
    # The checkout may have an identity of its own.
    monkeypatch.chdir(place)
    return place


@pytest.fixture
def desk(tmp_path: Path, home: Path) -> Desk:
    """A directory as the kernel, and the demo series."""
    return _desk(tmp_path, kerneltree.directory)


def _desk(root: Path, make: Callable[[Path], Path]) -> Desk:
    project = kerneltree.project(root / "project")
    base = kerneltree.base(make(root / "linux"), root / "cache")
    request = export.Export(project, root / "linux", root / "cache", root / "out")
    return Desk(root, project, base, request)


def _mail(letter: mail.Letter) -> EmailMessage:
    raw = letter.content.partition(b"\n")[2]
    return email.message_from_bytes(raw, EmailMessage, policy=email.policy.default)


def _certified(desk: Desk, **changes: object) -> export.Exported:
    with pytest.raises(contributor.NotCertified) as shown:
        desk.export(sign_off="", **changes)
    key = re.search(r"--sign-off=(\w+)", str(shown.value))
    assert key is not None
    return desk.export(sign_off=key[1], **changes)


# -- only what was proven --------------------------------------------------------


def _full(desk: Desk) -> str:
    return f"kstall validate --level full --kernel {desk.root / 'linux'} demo"


def test_no_run_is_refused_and_the_command_is_named(desk: Desk) -> None:
    with pytest.raises(proof.NoProof, match="no run in") as caught:
        desk.export()
    assert caught.value.next == _full(desk)
    assert not (desk.out / "mail").exists()


def test_a_run_of_other_patches_is_refused(desk: Desk) -> None:
    desk.prove()
    desk.edit("0001-demo.patch", "A nap is not seen.", "A nap is never seen.")
    with pytest.raises(proof.NoProof, match="with other patches"):
        desk.export()


def test_a_run_on_another_base_is_refused(desk: Desk) -> None:
    synthetic.prove(desk.series, replace(desk.base, id="7.3.5-0123"), desk.out)
    with pytest.raises(proof.NoProof, match=r"on another base \(7\.3\.5-0123\)"):
        desk.export()


def test_a_run_on_another_architecture_is_refused(desk: Desk) -> None:
    run = desk.prove()
    run_report = report.read(run / "report.json")
    assert run_report.environment.arch == arch.host().name
    (other,) = {*arch.NAMES} - {run_report.environment.arch}
    run_report.environment.arch = other
    report.write(run_report, run / "report.json")
    with pytest.raises(proof.NoProof, match=f"with kernels for {other}"):
        desk.export()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda r: setattr(r.series[0].checks[2], "status", "fail"), "naps"),
        (lambda r: r.series[0].checks.pop(), "without a verdict on no_naps"),
        (lambda r: setattr(r, "status", "running"), "the run is running"),
        (lambda r: setattr(r, "status", "interrupted"), "the run is interrupted"),
        (lambda r: setattr(r, "tree", None), "stopped before it had a tree"),
    ],
)
def test_a_run_that_proved_nothing_is_refused(
    desk: Desk, change: Callable[[report.Report], None], says: str
) -> None:
    run = desk.prove()
    run_report = report.read(run / "report.json")
    change(run_report)
    if run_report.status == "proven":
        run_report.settle()
    report.write(run_report, run / "report.json")
    with pytest.raises(proof.NoProof, match=says):
        desk.export()


def _without_costs(desk: Desk) -> None:
    """Make of the demo series one that costs nothing, as those that only mend."""
    path = desk.project.patches / "demo/series.toml"
    path.write_text(path.read_text().partition("[overhead]")[0])
    assert desk.series.spec.overhead is None


def test_a_quick_run_is_refused_also_of_a_series_without_costs(desk: Desk) -> None:
    _without_costs(desk)
    desk.prove(overhead=False, level="quick")
    with pytest.raises(
        proof.NoProof, match="quick run, which compiles no pat"
    ) as refusal:
        desk.export()
    assert refusal.value.next == _full(desk)
    desk.prove(overhead=False, name="20260102T030406Z")
    assert desk.export().proof.dir.name == "20260102T030406Z"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda entry: entry.stages.clear(), "which compiles no patch by itself"),
        (
            lambda entry: setattr(_each_patch(entry), "status", "skip"),
            f"without a verdict on {synthetic.EACH_PATCH}",
        ),
        (
            lambda entry: entry.checks.remove(_each_patch(entry)),
            f"without a verdict on {synthetic.EACH_PATCH}",
        ),
    ],
    ids=["no stage", "skipped", "no check"],
)
def test_a_run_that_compiled_no_patch_by_itself_is_refused(
    desk: Desk, change: Callable[[report.SeriesReport], object], says: str
) -> None:
    run = desk.prove()
    run_report = report.read(run / "report.json")
    change(run_report.series[0])
    report.write(run_report, run / "report.json")
    with pytest.raises(proof.NoProof, match=says):
        desk.export()


def _each_patch(entry: report.SeriesReport) -> Check:
    return next(check for check in entry.checks if check.name == synthetic.EACH_PATCH)


def test_a_broken_report_does_not_hide_an_older_proof(desk: Desk) -> None:
    desk.prove()
    (desk.out / "29990101T000000Z").mkdir()
    (desk.out / "29990101T000000Z" / "report.json").write_text("{")
    assert desk.export().proof.dir.name == "20260102T030405Z"


def test_an_older_proof_does_not_outweigh_a_newer_failure(desk: Desk) -> None:
    older, newer = desk.prove(), desk.prove(name="20260102T030406Z")
    run_report = report.read(newer / "report.json")
    run_report.series[0].status = "fail"
    report.write(run_report, newer / "report.json")
    with pytest.raises(proof.NoProof, match="20260102T030406Z: not proven"):
        desk.export()
    # Whoever names the older one knows what they do.
    assert desk.export(run=older).proof.dir == older
    # Of other patches it says nothing.
    run_report.series[0].digest = "other"
    report.write(run_report, newer / "report.json")
    assert desk.export().proof.dir == older


def _stopped(run: Path, status: report.Status) -> report.Report:
    """Have the stage that builds the debug kernel of all series end like that."""
    run_report = report.read(run / "report.json")
    run_report.stages = [
        report.Stage(name="debug-apply", status="pass", seconds=1),
        report.Stage(name="kasan-patched-all", status=status, seconds=1),
    ]
    run_report.settle()
    report.write(run_report, run / "report.json")
    return run_report


@pytest.mark.parametrize("status", ["fail", "error"])
def test_a_run_that_stopped_in_a_shared_stage_is_refused(
    desk: Desk, status: report.Status
) -> None:
    outcome = _stopped(desk.prove(level="deep"), status)
    # As nothing was judged on debug kernels, it looks as if nothing was wrong.
    assert outcome.series[0].status == "pass"
    with pytest.raises(proof.NoProof, match="stopped in kasan-patched-all"):
        desk.export()


def test_an_older_proof_does_not_outweigh_a_shared_failure(desk: Desk) -> None:
    older, newer = desk.prove(), desk.prove(name="20260102T030406Z")
    _stopped(newer, "error")
    assert desk.export().proof.dir == older
    _stopped(newer, "fail")
    with pytest.raises(proof.NoProof, match="stopped in kasan-patched-all"):
        desk.export()


@pytest.mark.parametrize("part", ["stages", "checks"])
def test_an_older_proof_does_not_outweigh_a_failure_before_ctrl_c(
    desk: Desk, part: str
) -> None:
    older, newer = desk.prove(), desk.prove(name="20260102T030406Z")
    run_report = report.read(newer / "report.json")
    run_report.status, run_report.series[0].status = "interrupted", "error"
    report.write(run_report, newer / "report.json")
    assert desk.export().proof.dir == older
    getattr(run_report.series[0], part)[-1].status = "fail"
    report.write(run_report, newer / "report.json")
    with pytest.raises(proof.NoProof, match="the run is interrupted"):
        desk.export()


def test_the_newest_proof_is_quoted_or_the_one_that_is_named(desk: Desk) -> None:
    older, newer = desk.prove(), desk.prove(name="20260102T030406Z")
    assert desk.export().proof.dir == newer
    assert desk.export(run=older).proof.dir == older
    with pytest.raises(proof.NoProof, match="does not prove"):
        desk.export(run=desk.root)


def test_results_that_are_gone_are_refused(desk: Desk) -> None:
    (desk.prove() / "demo/results/agent.json").unlink()
    with pytest.raises(proof.NoProof, match="are gone"):
        desk.export()


@pytest.mark.parametrize("name", ["cover.txt", "0001-demo.patch"])
def test_places_to_fill_in_are_refused(desk: Desk, name: str) -> None:
    desk.edit(name, "nap", "@@SAMPLE@@ nap") if name == "cover.txt" else desk.edit(
        name, "A nap is", "@@SAMPLE@@"
    )
    desk.prove()
    with pytest.raises(cover.Unfinished, match=rf"{name}:\d+: @@SAMPLE@@"):
        desk.export()


# -- the letter ------------------------------------------------------------------


def test_the_letter_quotes_the_run(desk: Desk) -> None:
    desk.prove()
    done = desk.export()
    text = _mail(done.letters[0]).get_content()
    assert "demo_nap: nap_ns=17 who=7" in text
    assert "nap_ns=99" not in text
    flat = " ".join(text.split())
    assert (
        "Checks that passed, and their comparisons: 1 positive control (1), 1 negative "
        "control (1), 1 of the guest and its records (1), 1 of the patches (1)." in flat
    )
    assert "The patches build one by one." in flat
    assert "the only site is a NOP of 5 bytes (x86-64);" in flat
    assert "demo_nap" not in done.unfounded
    assert done.unfounded == ("1234",)
    assert "2,982.5" in text
    assert "  2,982.5  +1 0.25  job that waits for nothing\n" in text
    assert "8 bytes allowed for struct bed: sheets" in text
    assert "change-id: 20260101-demo-" in text
    assert " demo.c       | 3 ++-" in text
    assert "  demo: trace naps\n" in text
    prose = [line for line in text.splitlines() if not line.startswith("  ")]
    assert max(map(len, prose)) <= cover.WIDTH


def test_the_letter_names_the_architecture_of_the_run(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = desk.prove() / "report.json"
    ran = report.read(path)
    ran.environment.arch = "arm64"
    report.write(ran, path)
    monkeypatch.setattr(arch, "host", lambda: arch.ARM64)
    text = _mail(desk.export().letters[0]).get_content()
    assert "(arm64); the code behind" in " ".join(text.split())


def test_messages_quote_the_run_and_their_doubts_are_named(desk: Desk) -> None:
    told = """A nap is not seen.

  doze-9 [000] ..... 1.000000: demo_nap: nap_ns=1 who=2

Nor is a snore, of 4321 ns:

  doze-9 [000] ..... 2.000000: demo_snore: loud=1
"""
    desk.edit("0001-demo.patch", "A nap is not seen.\n", told)
    desk.prove()
    done = desk.export()
    text = _mail(done.letters[1]).get_content()
    assert "\n  load-178 [000] ..... 85.239137: demo_nap: nap_ns=17 who=7\n" in text
    assert "\n  doze-9 [000] ..... 2.000000: demo_snore: loud=1\n" in text
    assert done.unfounded == ("1234", "0001: 4321", "0001: demo_snore: loud=1")
    with pytest.raises(contributor.NotCertified, match="0001: 4321"):
        desk.export(sign_off="")


def test_what_is_argued_is_printed_with_its_reason(desk: Desk) -> None:
    desk.edit("series.toml", "[[mail.cc]]\n", ARGUED)
    run = desk.prove()
    run_report = report.read(run / "report.json")
    why = "argued: TRAILING_WHITESPACE 1: the blank is part of the joke"
    shown = Comparison(
        label="0001",
        relation="holds",
        expected=True,
        observed=True,
        ok=True,
        detail=why,
    )
    run_report.series[0].checks.append(
        Check(
            name="checkpatch_strict",
            kind="patch",
            claim="It is clean.",
            status="pass",
            comparisons=[shown],
        )
    )
    report.write(run_report, run / "report.json")
    text = " ".join(_mail(desk.export().letters[0]).get_content().split())
    assert (
        "The patches pass checkpatch --strict --no-signoff but for the findings below, "
        "and build "
        "one by one." in text
    )
    assert (
        "Findings in the patches that are not followed: - demo.c: the blank is part "
        "of the joke (checkpatch: TRAILING_WHITESPACE)" in text
    )


def test_allowances_of_one_reason_are_one_line() -> None:
    exemption = costs.Exemption(function="a", allowed=1, because="it is cold")
    both = [exemption, exemption.model_copy(update={"function": "b"})]
    other = costs.Exemption(struct="bed", allowed=8, because="sheets")
    assert results.allowances([*both, other]) == [
        "1 instruction allowed for a(), b(): it is cold",
        "8 bytes allowed for struct bed: sheets",
    ]


def test_an_allowance_for_what_is_new_names_no_amount() -> None:
    new = costs.Exemption(function="handler", allowed=0, because="it is rare")
    assert results.allowances([new]) == [
        "nothing to compare with for the new handler(): it is rare"
    ]


def test_a_path_is_reported_by_the_figure_it_is_judged_by() -> None:
    cold = costs.FunctionPaths(
        binary="vmlinux",
        name="doze",
        hot=False,
        proven=True,
        most=3,
        work=1,
        least=0,
        nops=1,
        sites=1,
    )
    hot = cold.model_copy(update={"name": "nap", "hot": True})
    same = cold.model_copy(update={"name": "rest", "work": 0})
    new = cold.model_copy(update={"name": "wake", "nops": 0, "proven": False})
    loop = hot.model_copy(update={"name": "dream", "most": 2, "longer_loop": "dream+8"})
    overhead = costs.Overhead(
        base_kernel="k",
        footprint=costs.Footprint(paths=[same, cold, hot, new, loop]),
        exemptions=[
            costs.Exemption(function="nap", allowed=3, because="it\ndreams."),
            costs.Exemption(function="rest", allowed=2, because="it is not needed"),
        ],
    )
    assert results.paths(overhead) == [
        "nap() (hot): 1 NOP and +3: it dreams",
        "dream() (hot): 1 NOP and +2, with more for each round of a loop",
        "doze(): 1 NOP and +1",
        "wake(): +1 not reached before",
        "rest(): 1 NOP",
        "2 instructions allowed for rest(): it is not needed",
    ]


def test_a_path_that_only_mitigations_make_longer_is_named() -> None:
    doze = costs.FunctionPaths(
        binary="vmlinux",
        name="doze",
        proven=True,
        most=2,
        work=2,
        least=0,
        nops=1,
        sites=1,
    )
    nap = doze.model_copy(update={"name": "nap", "work": 3})
    overhead = costs.Overhead(
        base_kernel="k",
        footprint=costs.Footprint(paths=[doze]),
        mitigated=costs.Footprint(paths=[doze]),
    )
    assert overhead.mitigated is not None
    assert results.mitigated(overhead) == (
        "Compiled with mitigations, no path is longer than without them."
    )
    overhead.mitigated.paths.append(nap)
    assert results.mitigated(overhead).endswith("longer paths than without: nap() +3.")
    # Jumps count in a function that is hot.
    hot = nap.model_copy(update={"most": 4, "hot": True})
    overhead.mitigated.paths[-1] = hot
    assert results.mitigated(overhead).endswith("longer paths than without: nap() +4.")
    site = costs.Site(
        event="e",
        binary="b",
        function="f",
        offset=0,
        nop=0,
        out_of_line=True,
        cold_bytes=0,
    )
    overhead.mitigated = costs.Footprint(
        sites=[site, site.model_copy(update={"nop": 2})]
    )
    assert results.mitigated(overhead) == (
        "Compiled with mitigations, 1 of 2 sites is a NOP; longer paths than without: "
        "none."
    )
    assert results.mitigated(costs.Overhead(base_kernel="k")) == ""


def test_why_an_operation_costs_more_is_said() -> None:
    plain = costs.Measurement(
        workload="doze", operation="doze", resolution=0, samples=[], predicted=1
    )
    nap = plain.model_copy(
        update={"operation": "nap", "predicted": 17.0, "because": "it\ndreams."}
    )
    overhead = costs.Overhead(base_kernel="k", measurements=[nap, plain])
    assert results.reasons(overhead) == ["nap: +17 instructions predicted: it dreams"]
    overhead.measurements[1].others = 2
    assert results.reasons(overhead)[1] == (
        "doze: +2 NOPs of other series in the same kernel"
    )


def test_what_was_not_measured_is_said(desk: Desk) -> None:
    desk.prove(overhead=False)
    text = _mail(desk.export().letters[0]).get_content()
    assert "This run did not measure the overhead of the events." in text


def test_a_skipped_check_is_reported_with_its_reason(desk: Desk) -> None:
    run = desk.prove()
    run_report = report.read(run / "report.json")
    run_report.series[0].checks[2].status = "skip"
    run_report.series[0].checks[2].detail = "needs a bed"
    report.write(run_report, run / "report.json")
    text = _mail(desk.export().letters[0]).get_content()
    assert "Not covered by this run:\n- Each nap is seen: needs a bed\n" in text


def test_wrong_values_that_the_run_cannot_show_are_listed(desk: Desk) -> None:
    run = desk.prove()
    run_report = report.read(run / "report.json")
    outcomes = [
        ("nap_ns", "one more", "argued", "no clock is better"),
        ("nap_ns", "32 bits", "not-applicable", "all naps are short"),
        ("snore_ns", "32 bits", "not-applicable", "all naps are short"),
        ("cat", "empty", "caught", ""),
    ]
    run_report.series[0].mutation = falsity.Mutation(
        digest="",
        seconds=0,
        witnesses=[],
        silent=[],
        mutants=[
            falsity.MutantOutcome(
                event="demo:demo_nap",
                field=field,
                operator=operator,
                outcome=outcome,
                because=because,
            )
            for field, operator, outcome, because in outcomes
        ],
    )
    report.write(run_report, run / "report.json")
    text = _mail(desk.export().letters[0]).get_content()
    assert (
        "\nNot covered by this run:\n"
        "- not shown by this run: demo_nap, nap_ns (one more): no clock is better\n"
        "- wrong values without effect: demo_nap (nap_ns, snore_ns)\n"
    ) in text
    assert (
        "Of 4 wrong values put into copies of the records, they noticed 1; not shown "
        "by this run: 1; without effect: 2." in " ".join(text.split())
    )


def test_what_kernels_showed_that_watch_themselves_is_reported(desk: Desk) -> None:
    run = desk.prove()
    assert "KASAN" not in _mail(desk.export().letters[0]).get_content()
    run_report = report.read(run / "report.json")
    seen = run_report.series[0].checks[2].comparisons[0]
    run_report.series[0].checks += [
        Check(
            name="quiet",
            kind="debug",
            claim="Nobody snores.",
            status="pass",
            comparisons=[seen, seen],
        ),
        Check(
            name="all",
            kind="debug",
            claim="All nap.",
            status="skip",
            detail="one sings",
        ),
    ]
    report.write(run_report, run / "report.json")
    text = " ".join(_mail(desk.export().letters[0]).get_content().split())
    assert "1 under KASAN and lockdep, or KCSAN (2). Skipped: 1, see below." in text
    assert "Not covered by this run: - debug kernels: All nap: one sings" in text


def test_claims_that_one_cause_leaves_out_are_one_item_and_never_hold(
    desk: Desk,
) -> None:
    run = desk.prove()
    run_report = report.read(run / "report.json")
    run_report.series[0].checks += [
        Check(name=name, kind="harness", claim=claim, status="skip", detail="no bed")
        for name, claim in (("a", "All snore."), ("b", "None sings."))
    ]
    report.write(run_report, run / "report.json")
    text = " ".join(_mail(desk.export().letters[0]).get_content().split())
    assert "Not covered by this run: - All snore; None sings: no bed" in text
    assert text.count("All snore") == 1
    assert "1 of the guest and its records (1)" in text
    assert "Skipped: 2, see below." in text


def test_a_directory_has_no_base_commit_and_says_so(desk: Desk) -> None:
    desk.prove()
    text = _mail(desk.export().letters[0]).get_content()
    assert "base-commit: " not in text
    assert (
        f"git tree id {desk.base.id.rpartition('-')[2]}, no base-commit)"
        in " ".join(text.split())
    )


def test_a_branch_by_name_has_a_base_commit(tmp_path: Path, home: Path) -> None:
    def named(root: Path) -> Path:
        kerneltree.checkout(root)
        return Path(f"file:{root}#HEAD")

    desk = _desk(tmp_path, named)
    desk.prove()
    text = _mail(desk.export().letters[0]).get_content()
    assert desk.base.commit is not None
    assert f"\nbase-commit: {desk.base.commit}\n" in text


def test_a_run_of_a_matrix_is_proof_as_any(desk: Desk) -> None:
    run = desk.prove()
    matrix = desk.out / "20990101T000000Z"
    (matrix / "linux").parent.mkdir()
    run.rename(matrix / "linux")
    with pytest.raises(proof.NoProof):
        # A directory of somebody's is none.
        desk.export()
    (matrix / "matrix.json").write_text("{}")
    assert desk.export().letters


def test_a_git_tree_has_a_base_commit(tmp_path: Path, home: Path) -> None:
    desk = _desk(tmp_path, kerneltree.checkout)
    desk.prove()
    text = _mail(desk.export().letters[0]).get_content()
    assert f"\nbase-commit: {desk.base.commit}\n" in text


def test_v2_has_changes_and_a_range_diff(desk: Desk) -> None:
    desk.prove()
    desk.export()
    desk.edit("0002-demo.patch", "+int line_ten;", "+int line_eleven;")
    desk.prove(name="20260103T000000Z")
    done = desk.export(version=2, rfc=True)
    subject = _mail(done.letters[1])["subject"]
    assert subject == "[RFC PATCH v2 1/2] demo: trace naps"
    text = _mail(done.letters[0]).get_content()
    assert "Changes in v2:\n- Naps are counted (Zoë)\n" in text
    diff = text.partition("Range-diff against v1:")[2]
    assert re.search(r"1: +\w+ = 1: +\w+ demo: trace naps", diff)
    assert re.search(r"2: +\w+ ! 2: ", diff)
    assert "++int line_eleven;" in diff.replace(" ", "").replace("int", "int ")
    # Nobody has got a draft.
    assert "Link to v1" not in text
    assert "v2-0-" in _mail(done.letters[0])["message-id"]


def test_mails_that_were_signed_off_are_kept(desk: Desk) -> None:
    desk.prove()
    first = _certified(desk)
    kept = {path: path.read_bytes() for path in first.dir.iterdir()}
    for changes in ({}, {"sign_off": ""}):
        with pytest.raises(KstallError, match="has mails that were signed off") as said:
            desk.export(**changes)
        assert str(said.value.next).startswith("--version 2 writes the next version;")
    desk.edit("0002-demo.patch", "+int line_ten;", "+int line_eleven;")
    desk.prove(name="20260103T000000Z")
    with pytest.raises(KstallError, match="signed off with other patches"):
        desk.export(replace=True)
    assert {path: path.read_bytes() for path in first.dir.iterdir()} == kept
    text = _mail(desk.export(version=2).letters[0]).get_content()
    sent_as = str(_mail(first.letters[0])["message-id"]).strip("<>")
    assert f"- Link to v1: https://lore.kernel.org/r/{sent_as}\n" in text
    assert re.search(r"2: +\w+ ! 2: ", text)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("A nap is not seen.", "A nap is never seen."),
        ("[PATCH 1/2] demo: trace naps", "[PATCH 1/2] demo: trace all naps"),
        (f"From: {ALICE}", "From: Carol <carol@example.org>"),
        (f"Signed-off-by: {ALICE}\n", ""),
    ],
)
def test_only_mails_of_the_same_patches_are_replaced(
    desk: Desk, old: str, new: str
) -> None:
    _from_alice(desk)
    first = _certified(desk)
    again = _certified(desk, replace=True, rfc=True)
    assert again.dir == first.dir
    assert (
        _mail(again.letters[0])["message-id"] != _mail(first.letters[0])["message-id"]
    )
    letter = again.letters[1]
    assert (again.dir / letter.name).read_bytes() == letter.content
    desk.edit("0001-demo.patch", old, new)
    desk.prove(name="20260103T000000Z")
    with pytest.raises(KstallError, match="signed off with other patches"):
        desk.export(replace=True)
    # Nobody has got a draft.
    desk.export(version=2)
    desk.export(version=2, rfc=True)


def test_v2_may_be_compared_with_an_mbox_that_was_sent(desk: Desk) -> None:
    desk.prove()
    first = _certified(desk)
    sent = desk.root / "sent.mbox"
    sent.write_bytes((first.dir / "thread.mbox").read_bytes())
    desk.edit("0002-demo.patch", "+int line_ten;", "+int line_eleven;")
    desk.prove(name="20260103T000000Z")
    text = _mail(desk.export(version=2, previous=sent).letters[0]).get_content()
    sent_as = str(_mail(first.letters[0])["message-id"]).strip("<>")
    assert f"- Link to v1: https://lore.kernel.org/r/{sent_as}\n" in text
    assert "! 2: " in text.partition("Range-diff against v1:")[2]


def test_a_first_version_has_no_previous_one(desk: Desk) -> None:
    desk.prove()
    with pytest.raises(KstallError, match="version 1 has no previous version"):
        desk.export(previous=desk.root / "sent.mbox")


def test_v2_keeps_the_change_id_if_its_first_patch_is_another_one(desk: Desk) -> None:
    desk.prove()
    first = _certified(desk)
    desk.edit("0001-demo.patch", "\nDate: Thu, 1 Jan 2026", "\nDate: Fri, 20 Mar 2026")
    desk.prove(name="20260103T000000Z")
    assert desk.export(version=2).thread.change_id == first.thread.change_id
    # As b4 writes it, which has no header of that name.
    sent = desk.root / "sent.mbox"
    text = (first.dir / "thread.mbox").read_text()
    text = re.sub(r"(?m)^X-Change-ID: .*\n", "", text)
    sent.write_text(text.replace(first.thread.change_id, "20250101-x-0123456789ab"))
    second = desk.export(version=2, previous=sent)
    assert second.thread.change_id == "20250101-x-0123456789ab"
    assert _mail(second.letters[1])["x-change-id"] == "20250101-x-0123456789ab"
    # Mails of others need not have one.
    sent.write_text(re.sub(r"(?m)^change-id: .*\n", "", text))
    second = desk.export(version=2, previous=sent)
    assert second.thread.change_id.startswith("20260320-demo-")


def test_v2_on_a_base_that_v1_does_not_fit_has_no_range_diff(desk: Desk) -> None:
    desk.prove()
    first = _certified(desk)
    linux = desk.root / "linux"
    demo = linux / "demo.c"
    demo.write_text(demo.read_text().replace("int line_9;", "int line_nine;"))
    desk.edit("0002-demo.patch", " int line_9;", " int line_nine;")
    desk.base = kerneltree.base(linux, desk.root / "cache")
    desk.prove(name="20260103T000000Z")
    text = _mail(desk.export(version=2).letters[0]).get_content()
    assert "\nv1 does not apply to this base, so there is no range-diff.\n" in text
    assert "Range-diff against" not in text
    sent_as = str(_mail(first.letters[0])["message-id"]).strip("<>")
    assert f"- Link to v1: https://lore.kernel.org/r/{sent_as}\n" in text


def test_v2_without_v1_or_words_is_refused(desk: Desk) -> None:
    desk.prove()
    with pytest.raises(KstallError, match="no mails of version 1"):
        desk.export(version=2)
    with pytest.raises(cover.Unfinished, match="no changes are listed for version 3"):
        desk.export(version=3)
    with pytest.raises(KstallError, match="the first is 1"):
        desk.export(version=0)


def test_the_change_id_stays(desk: Desk) -> None:
    desk.prove()
    first = desk.export()
    desk.edit("series.toml", "demo: Trace naps", "demo: Trace sleep")
    desk.prove(name="20260103T000000Z")
    assert desk.export(version=2).thread.change_id == first.thread.change_id


def test_a_record_that_no_text_shows_is_in_the_letter(desk: Desk) -> None:
    desk.edit("cover.txt", "  demo_nap: nap_ns=99 who=1\n\n", "")
    desk.prove()
    title = "The first record of each event that no other text shows:\n"
    text = _mail(desk.export().letters[0]).get_content()
    assert f"{title}  demo_nap: nap_ns=17 who=7\n" in text
    message = "A nap is not seen.\n"
    desk.edit("0001-demo.patch", message, f"{message}\n  demo_nap: nap_ns=1 who=2\n")
    desk.prove(name="20260102T030406Z")
    assert title not in _mail(desk.export().letters[0]).get_content()


def test_the_letter_ends_with_the_report_s_address_if_it_has_one(desk: Desk) -> None:
    desk.prove()
    url = "https://example.org/kstall/report.html"
    with_link = desk.export(report_url=url).body
    assert with_link.endswith(
        f"\nEverything else, each check with what it expected and observed:\n{url}"
    )
    without = desk.export().body
    assert "http" not in without.rpartition("\n\n")[2]
    assert without.endswith("It is not published, but available on request.")


def test_prose_is_filled_and_records_are_not() -> None:
    wide = "word " * 30
    text = f"{wide}\n\n  {wide}\n\n1 {wide}\n2 is short\n\nshort\nlines\n"
    first, kept, items, short = cover.wrapped(text).strip("\n").split("\n\n")
    assert max(map(len, first.splitlines())) <= cover.WIDTH
    assert kept == f"  {wide}"
    assert items.splitlines()[1].startswith("  word")
    assert items.splitlines()[-1] == "2 is short"
    assert short == "short\nlines"


# -- the mails -------------------------------------------------------------------


def test_a_draft_is_nobody_s(desk: Desk) -> None:
    desk.prove()
    done = desk.export()
    for letter in done.letters:
        parsed = _mail(letter)
        assert parsed["from"] == "kstall <noreply@kstall.invalid>"
        assert "Signed-off-by" not in letter.content.decode()
    assert "Assisted-by: LLM\n---\n" in _mail(done.letters[1]).get_content()
    (outcome,) = summary.export_all(desk.request, [desk.series], desk.base)
    assert any("sign-off" in text for text in outcome.missing)
    assert not any("MAINTAINERS" in text for text in outcome.missing)


def test_a_section_that_is_called_otherwise_is_missing(desk: Desk) -> None:
    desk.prove()
    home = desk.series.spec.subsystem.model_copy(update={"name": "DEMOX"})
    spec = desk.series.spec.model_copy(update={"subsystem": home})
    series = dataclasses.replace(desk.series, spec=spec)
    (outcome,) = summary.export_all(desk.request, [series], desk.base)
    assert any("MAINTAINERS that is called DEMOX" in text for text in outcome.missing)


def test_a_sign_off_needs_its_statement(desk: Desk) -> None:
    desk.prove()
    with pytest.raises(contributor.NotCertified, match="0123 is not for this text"):
        desk.export(sign_off="0123")
    done = _certified(desk)
    assert done.signed == contributor.Person(postbox.NAME, postbox.ADDRESS)
    text = _mail(done.letters[1]).get_content()
    tag = f"Signed-off-by: {postbox.NAME} <{postbox.ADDRESS}>"
    assert f"\n\nAssisted-by: LLM\n{tag}\n---\n" in text
    assert not done.remarks


def test_a_key_is_for_one_content_only(desk: Desk) -> None:
    desk.prove()
    with pytest.raises(contributor.NotCertified) as shown:
        desk.export(sign_off="")
    message = str(shown.value)
    assert "demo: trace naps (Assisted-by: LLM)" in message
    assert "(a) It is mine." in message
    assert "1234" in message
    key = message.rpartition("--sign-off=")[2]
    desk.edit("0002-demo.patch", "line_ten", "line_11th")
    desk.prove(name="20260103T000000Z")
    with pytest.raises(contributor.NotCertified, match="is not for this text"):
        desk.export(sign_off=key)


def _from_alice(desk: Desk) -> None:
    """Have Alice be the author of the first patch, who signed it off."""
    name = "0001-demo.patch"
    desk.edit(name, "From: kstall <noreply@kstall.invalid>", f"From: {ALICE}")
    desk.edit(name, "Assisted-by: LLM\n", f"Assisted-by: LLM\nSigned-off-by: {ALICE}\n")
    desk.prove()


def test_a_patch_stays_its_author_s(tmp_path: Path, home: Path) -> None:
    desk = _desk(tmp_path, kerneltree.checkout)
    _from_alice(desk)
    with pytest.raises(contributor.NotCertified) as shown:
        desk.export(sign_off="")
    assert f"  demo: trace naps (From: {ALICE}) (Assisted-by: LLM)\n" in str(
        shown.value
    )
    done = _certified(desk)
    cover, first, second = (_mail(letter) for letter in done.letters)
    assert {str(m["from"].addresses[0].addr_spec) for m in (cover, first, second)} == {
        postbox.ADDRESS
    }
    text = first.get_content()
    assert text.startswith(f"From: {ALICE}\n\nA nap is not seen.\n")
    who = f"{postbox.NAME} <{postbox.ADDRESS}>"
    tags = f"LLM\nSigned-off-by: {ALICE}\nSigned-off-by: {who}\n---\n"
    assert tags in text
    assert not second.get_content().startswith("From: ")
    log = f"Alice A. Lice (1):\n  demo: trace naps\n\n{postbox.NAME} (1):\n  demo: say"
    assert log in cover.get_content()
    applied = postbox.checkout(
        dict(tree.plan(desk.base, desk.series.patches, desk.root).states[0]),
        desk.root / "applied",
        home,
    )
    files = [done.dir / letter.name for letter in done.letters[1:]]
    postbox.run(("git", "am", "-q", *files), applied, home)
    linux = desk.root / "linux"
    form = "--format=%an <%ae>, %cn <%ce>"
    for place, branch in ((applied, "HEAD"), (linux, prep.branch(done, linux))):
        words = ("git", "log", form, "-2", branch)
        assert postbox.run(words, place, home) == f"{who}, {who}\n{ALICE}, {who}\n"


def test_whoever_signs_off_their_own_patch_is_named_once(desk: Desk) -> None:
    name = "0001-demo.patch"
    sender = f"From: Aase <{postbox.ADDRESS.upper()}>"
    desk.edit(name, "From: kstall <noreply@kstall.invalid>", sender)
    desk.prove()
    done = _certified(desk)
    assert not _mail(done.letters[1]).get_content().startswith("From: ")
    assert f"\n{postbox.NAME} (2):\n" in _mail(done.letters[0]).get_content()


def test_an_author_above_the_message_is_the_author(desk: Desk) -> None:
    name = "0001-demo.patch"
    # As `git format-patch --from` has it, if the committer is another one.
    author = "Ö, A. <o@example.org>"
    desk.edit(name, "From: kstall <noreply@kstall.invalid>", f"From: {ALICE}")
    desk.edit(name, "A nap is not seen.", f"From: {author}\n\nA nap is not seen.")
    desk.prove()
    done = desk.export()
    text = _mail(done.letters[1]).get_content()
    assert text.startswith(f"From: {author}\n\nA nap is not seen.\n")
    assert done.messages[0].startswith("A nap is not seen.")
    assert "\nkstall (1):\n" in _mail(done.letters[0]).get_content()
    # Nor does it change from one version to the next.
    diff = _mail(desk.export(version=2).letters[0]).get_content()
    assert re.search(r"1: +\w+ = 1: +\w+ demo: trace naps", diff)


def test_an_author_without_an_address_is_one_error(desk: Desk) -> None:
    desk.edit(
        "0001-demo.patch", "kstall <noreply@kstall.invalid>", "Alice <a@localhost>"
    )
    desk.prove()
    with pytest.raises(
        KstallError, match=r"From: of \S+0001-demo\.patch: 'a@localhost' has no domain"
    ):
        desk.export()


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ("", r"no user\.name and user\.email"),
        ('[user]\nname = "X"\n', r"no user\.name and user\.email"),
        ('[user]\nname = "X"\nemail = x@localhost\n', "has no domain"),
        ('[user]\nname = "X"\nemail = x@kstall.invalid\n', "is not a real address"),
        ('[user]\nname = "X"\nemail = x y\n', "is no"),
        ('[user]\nname = "X \\\\ Y"\nemail = x@y.org\n', "no name to sign off with"),
    ],
)
def test_no_identity_is_one_error(
    desk: Desk, home: Path, config: str, says: str
) -> None:
    desk.prove()
    (home / "gitconfig").write_text(config)
    with pytest.raises(KstallError, match=says):
        desk.export(sign_off="")
    assert not (desk.out / "mail").exists()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("Why.", "Why.\n\nS"),
        ("Why.\n\nFixes: 0123 (x)", "Why.\n\nFixes: 0123 (x)\nS"),
        ("W.\n\nAssisted-by: LLM\nCc: a@b.c", "W.\n\nAssisted-by: LLM\nS\nCc: a@b.c"),
        ("W.\n\nReviewed-by: R <r@x.y>", "W.\n\nS\nReviewed-by: R <r@x.y>"),
        (
            "W.\n\nLink: https://x.y/\nFixes: 0123 (x)\nCc: a@b.c # v6.2+\n"
            "Assisted-by: LLM",
            "W.\n\nLink: https://x.y/\nFixes: 0123 (x)\nCc: a@b.c # v6.2+\n"
            "Assisted-by: LLM\nS",
        ),
        (
            "W.\n\nFixes: 0123 (x)\nLink: https://x.y/\nCc: a@b.c\nAssisted-by: LLM",
            "W.\n\nFixes: 0123 (x)\nLink: https://x.y/\nCc: a@b.c\nAssisted-by: LLM\nS",
        ),
        ("W.\n\nAssisted-by: LLM\nS", "W.\n\nAssisted-by: LLM\nS"),
        (
            "W.\n\nSigned-off-by: C <c@x.y>\n[me: mend a typo]",
            "W.\n\nSigned-off-by: C <c@x.y>\n[me: mend a typo]\nS",
        ),
        ("", "S"),
    ],
)
def test_the_sign_off_has_its_place(before: str, after: str) -> None:
    who = contributor.Person("A B", "a@b.org")
    tag = f"Signed-off-by: {who.tag}"
    full = [re.sub(r"(?m)^S$", tag, text) for text in (before, after)]
    assert mail.signed_off(full[0], who) == full[1]


def test_subjects_numbers_and_files() -> None:
    thread = mail.Thread(export.DRAFTER, 3, False, "20260101-x-0", mail.now())
    parts = [mail.MailContent(f"demo: part {n}", "text", ()) for n in range(12)]
    letters = mail.compose(thread, parts)
    assert _mail(letters[0])["subject"] == "[PATCH v3 00/11] demo: part 0"
    assert _mail(letters[11])["subject"] == "[PATCH v3 11/11] demo: part 11"
    assert letters[11].name == "0011-demo-part-11.patch"
    assert len({_mail(letter)["message-id"] for letter in letters}) == 12
    assert "To:" not in letters[0].content.decode()


@pytest.mark.parametrize(
    ("subject", "body", "says"),
    [
        ("a\nBcc: x@y.org", "text", "control characters"),
        ("a", "x" * mail.LARGEST, "at most"),
    ],
)
def test_what_lists_do_not_take_is_refused(subject: str, body: str, says: str) -> None:
    thread = mail.Thread(export.DRAFTER, 1, False, "20260101-x-0", mail.now())
    with pytest.raises(mail.Unmailable, match=says):
        mail.compose(thread, [mail.MailContent(subject, body, ())])


def test_another_charset_is_refused(desk: Desk) -> None:
    path = desk.project.patches / "demo" / "0001-demo.patch"
    path.write_bytes(
        path.read_bytes().replace("Größe".encode(), "Größe".encode("latin1"))
    )
    desk.prove()
    with pytest.raises(KstallError, match=r"0001-demo\.patch: byte \d+ is not UTF-8"):
        desk.export()


# -- who gets them ---------------------------------------------------------------


def test_who_gets_what(desk: Desk) -> None:
    desk.prove()
    done = desk.export()
    by_address = {recipient.address: recipient for recipient in done.recipients.cover}
    assert [recipient.address for recipient in done.recipients.cover][:2] == [
        "zoe@example.org",
        "demo@lists.example.org",
    ]
    assert {a: (x.to, x.is_list) for a, x in by_address.items()} == {
        "zoe@example.org": (True, False),
        "demo@lists.example.org": (True, True),
        "q@example.org": (False, False),
        "carla@example.org": (False, False),
        "linux-kernel@vger.kernel.org": (False, True),
        "linux-trace-kernel@vger.kernel.org": (False, True),
    }
    assert by_address["carla@example.org"].because == ("sleeps a lot",)
    (left,) = done.recipients.omitted
    assert (left.address, left.because) == (
        "nora@example.org",
        ("NOISE: only the word matches",),
    )
    tracing = "linux-trace-kernel@vger.kernel.org"
    second = {recipient.address for recipient in done.recipients.patches[1]}
    assert tracing not in second
    cc = _mail(done.letters[0])["cc"].addresses
    assert "Q. Uote, Jr." in {address.display_name for address in cc}
    page = summary.page([summary.ExportOutcome(desk.series, done)], desk.base, desk.out)
    assert (
        "| Carla Çelik <carla@example.org> | Cc, person | all | sleeps a lot |" in page
    )
    assert f"| {tracing} | Cc, list | 0, 1 | trace events in demo_trace.h |" in page


FIXED = "demo: Invent naps"


def _invented(linux: Path, home: Path, address: str = "old@example.org") -> str:
    """The commit ``FIXED`` in the checkout ``linux``, of an author whose name and
    address have changed."""
    (linux / ".mailmap").write_text("Née Demo <new@example.org> <old@example.org>\n")
    (linux / ".get_maintainer.ignore").write_text(
        "# Do not ask\nTired <tired@example.org> # any more\n"
    )
    postbox.run(("git", "add", "."), linux, home)
    author = f"--author=Old Demo <{address}>"
    postbox.run(("git", "commit", "-q", author, "-m", FIXED), linux, home)
    digits = postbox.run(("git", "rev-parse", "HEAD"), linux, home).strip()
    postbox.run(("git", "commit", "-q", "--allow-empty", "-m", "more"), linux, home)
    return digits[:12]


def _fix(desk: Desk, digits: str, subject: str = FIXED) -> None:
    """Have the second patch fix that commit, and a run that proves it."""
    tag = f'Fixes: {digits} ("{subject}")\nAssisted-by: LLM\n---\n'
    desk.edit("0002-demo.patch", "Assisted-by: LLM\n---\n", tag)
    desk.prove()


def _fixing(root: Path, home: Path, address: str, branch: str, subject: str) -> Desk:
    """A series for a checkout, or a ``branch`` of it, of which a patch is a fix."""
    linux = kerneltree.checkout(root / "linux")
    digits = _invented(linux, home, address)
    kernel = Path(f"{linux}{branch}")
    base = kerneltree.base(kernel, root / "cache")
    project = kerneltree.project(root / "project")
    request = export.Export(project, kernel, root / "cache", root / "out")
    desk = Desk(root, project, base, request)
    _fix(desk, digits, subject)
    return desk


@pytest.mark.parametrize("branch", ["", "#HEAD"])
def test_who_wrote_what_is_fixed_gets_the_fix(
    tmp_path: Path, home: Path, branch: str
) -> None:
    desk = _fixing(tmp_path, home, "old@example.org", branch, FIXED)
    done = desk.export()
    author = recipients.Recipient(
        "Née Demo", "new@example.org", False, False, ("wrote the commit in Fixes:",)
    )
    first, second = done.recipients.patches
    assert author in second
    assert author in done.recipients.cover
    assert author.address not in {recipient.address for recipient in first}
    assert done.recipients.unknown == ()


@pytest.mark.parametrize(
    ("address", "subject", "unknown"),
    [
        ("tired@example.org", FIXED, 0),
        ("nobody@localhost", FIXED, 1),
        ("old@example.org", "demo: Something else", 1),
    ],
    ids=["ignored", "no address", "other commit"],
)
def test_who_cannot_or_will_not_be_asked_is_left_out(
    tmp_path: Path, home: Path, address: str, subject: str, unknown: int
) -> None:
    done = _fixing(tmp_path, home, address, "", subject).export()
    assert not any(
        "Fixes:" in why for to in done.recipients.cover for why in to.because
    )
    assert len(done.recipients.unknown) == unknown


def test_without_a_history_it_is_missing_who_wrote_what_is_fixed(desk: Desk) -> None:
    _fix(desk, "0123456789ab")
    done = desk.export()
    assert done.recipients.unknown == ("0123456789ab",)
    page = summary.page([summary.ExportOutcome(desk.series, done)], desk.base, desk.out)
    assert "- authors of commits in Fixes: as recipients: 0123456789ab; those" in page


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("nobody (maintainer:X)", "is no e-mail address"),
        ("A <a@b> (maintainer:X)", "has no domain"),
        ("A <a..b@c.org> (maintainer:X)", "is no e-mail address"),
        ("A <ä@c.org> (maintainer:X)", "is no (plain )?e-mail address"),
        ("A\x07 <a@c.org> (maintainer:X)", "is no name for a header"),
        ("Use of uninitialized value in line 3", "printed a line that is no recipient"),
    ],
)
def test_what_is_no_recipient_is_one_error(line: str, says: str) -> None:
    with pytest.raises(KstallError, match=says):
        recipients.parse(line + "\n")


@pytest.mark.parametrize(
    "name", ["scripts/get_maintainer.pl", "MAINTAINERS", "scripts/checkpatch.pl"]
)
def test_a_tree_without_its_scripts_is_one_error(
    tmp_path: Path, home: Path, name: str
) -> None:
    def without(root: Path) -> Path:
        kerneltree.directory(root)
        (root / name).unlink()
        return root

    desk = _desk(tmp_path, without)
    desk.prove()
    with pytest.raises(KstallError, match=f"has no {name}"):
        desk.export()
    assert not (desk.out / "mail/demo/v1").exists()


def test_maintainers_are_asked_as_the_series_leaves_them(desk: Desk) -> None:
    path = desk.project.patches / "demo" / "0002-demo.patch"
    lines = kerneltree.NAMED.splitlines()
    path.write_text(
        path.read_text().replace(
            "diff --git a/demo.c",
            "diff --git a/MAINTAINERS b/MAINTAINERS\n--- a/MAINTAINERS\n"
            "+++ b/MAINTAINERS\n@@ -1,2 +1,3 @@\n"
            f" {lines[0]}\n+New One <new@example.org> (reviewer:NEW)\n {lines[1]}\n"
            "diff --git a/demo.c",
            1,
        )
    )
    desk.prove()
    assert "new@example.org" in {x.address for x in desk.export().recipients.cover}


# -- there and back --------------------------------------------------------------


def test_traps_of_mail_survive(desk: Desk, home: Path) -> None:
    desk.prove()
    done = _certified(desk)
    with postbox.server() as (box, port):
        postbox.send(shlex.split(done.send), port, home)
    assert all(b"\r\n" in letter for letter in box.mails)
    assert b"\r\nSubject: [PATCH 2/2] =?utf-8?q?demo" in box.mails[2]
    subject = str(box.parsed()[2]["subject"])
    assert subject.endswith("how wide the Größe of a nap is")
    plan = tree.plan(desk.base, desk.series.patches, desk.root)
    pristine = dict(plan.states[0])
    # As it was sent, with CRLF, and as an archive would have it.
    crlf = desk.root / "crlf.mbox"
    archived = box.mbox(desk.root / "a.mbox").read_bytes()
    crlf.write_bytes(archived.replace(b"\n", b"\r\n"))
    own = done.dir / "thread.mbox"
    for name, mbox in (("a", desk.root / "a.mbox"), ("b", crlf), ("c", own)):
        work = postbox.checkout(pristine, desk.root / f"work-{name}", home)
        postbox.b4(
            "am", "-m", mbox, "-o", desk.root / f"am-{name}", cwd=work, home=home
        )
        (ready,) = (desk.root / f"am-{name}").glob("*.mbx")
        postbox.run(("git", "am", "-q", ready), work, home)
        assert {path: read(work / path) for path in plan.files} == plan.files
        log = postbox.run(("git", "log", "--format=%B", "-2"), work, home)
        assert "From nowhere to nowhere, always\n.\n..dotted\n" in log
        assert ">From quoted\n" in log


@pytest.mark.parametrize("name", ["Christoph Böhmwalder", "José", "Uwe Kleine-König"])
def test_a_sender_with_few_accents_takes_no_patch_over(
    desk: Desk, home: Path, name: str
) -> None:
    config = home / "gitconfig"
    config.write_text(config.read_text().replace(postbox.NAME, name))
    _from_alice(desk)
    done = _certified(desk)
    with postbox.server() as (box, port):
        postbox.send(shlex.split(done.send), port, home)
    cover, first, _ = box.parsed()
    for letter in (cover, first):
        assert letter["from"].addresses[0].display_name == name
    assert not cover.get_content().startswith("From: ")
    work = postbox.checkout(
        dict(tree.plan(desk.base, desk.series.patches, desk.root).states[0]),
        desk.root / "work",
        home,
    )
    (desk.root / "1.eml").write_bytes(box.mails[1].replace(b"\r\n", b"\n"))
    postbox.run(("git", "am", "-q", desk.root / "1.eml"), work, home)
    log = postbox.run(("git", "log", "--format=%an <%ae>%n%B", "-1"), work, home)
    assert log.startswith(f"{ALICE}\ndemo: trace naps\n\nA nap is not seen.\n")


def test_checkpatch_remarks_are_counted() -> None:
    output = (
        "p.patch:9: WARNING:LONG: x\np.patch:1: ERROR:BAD: y\np.patch:2: CHECK:C: z\n"
    )
    remarks = checkpatch.parse("noise\n" + output)
    assert [remark.line for remark in remarks] == [9, 1, 2]
    assert (
        checkpatch.summary(remarks)
        == "1 error, 1 warning, 1 check (LONG 1, BAD 1, C 1)"
    )
    assert checkpatch.summary(()) == "clean"


# -- b4 ---------------------------------------------------------------------------


def test_a_b4_branch_is_made_without_touching_the_work_tree(
    tmp_path: Path, home: Path
) -> None:
    desk = _desk(tmp_path, kerneltree.checkout)
    desk.prove()
    done = _certified(desk)
    linux = desk.root / "linux"
    (linux / "demo.c").write_text("the user's own work\n")
    before = {path: path.read_bytes() for path in _files(linux)}
    head = (linux / ".git/HEAD").read_bytes()
    assert prep.branch(done, linux) == "b4/demo"
    assert {path: path.read_bytes() for path in _files(linux)} == before
    assert (linux / ".git/HEAD").read_bytes() == head
    log = postbox.run(("git", "log", "--format=%an <%ae>%n%s", "b4/demo"), linux, home)
    names = log.splitlines()
    who = f"{postbox.NAME} <{postbox.ADDRESS}>"
    assert [names[n] for n in (0, 2, 4)] == [who] * 3
    assert names[3] == "demo: trace naps"
    assert names[5] == "demo: Trace naps"
    with pytest.raises(KstallError, match="has a branch b4/demo already"):
        prep.branch(done, linux)


ARGUED = """\
[[exemption]]
check = "checkpatch_strict"
kinds = ["TRAILING_WHITESPACE"]
files = ["demo.c"]
because = "the blank is part of the joke"

[[mail.cc]]
"""


def test_b4_passes_over_what_is_argued_on_this_branch_only(
    tmp_path: Path, home: Path
) -> None:
    desk = _desk(tmp_path, kerneltree.checkout)
    desk.edit("0001-demo.patch", "/* Größe */", "/* Größe */ ")
    desk.edit("series.toml", "[[mail.cc]]\n", ARGUED)
    desk.prove()
    done = _certified(desk)
    assert [remark.kind for remark in done.remarks] == ["TRAILING_WHITESPACE"]
    assert set(done.argued) == set(done.remarks)
    again = replace(desk.request, replace=True)
    (outcome,) = summary.export_all(again, [desk.series], desk.base)
    assert not any("checkpatch" in text for text in outcome.missing)
    assert summary.ExportOutcome(desk.series, done).state == "ready"
    page = summary.page([outcome], desk.base, desk.out)
    assert "1 warning (TRAILING_WHITESPACE 1), all argued\n" in page
    assert "  - argued: TRAILING_WHITESPACE: the blank is part of the joke\n" in page
    linux = desk.root / "linux"
    name = prep.branch(done, linux)
    asked = (
        "git",
        "config",
        "--get",
        "--default",
        "none",
        "b4.prep-perpatch-check-cmd",
    )
    assert postbox.run(asked, linux, home) == "none\n"
    postbox.run(("git", "switch", "-q", name), linux, home)
    assert "--ignore TRAILING_WHITESPACE\n" in postbox.run(asked, linux, home)


def test_a_remark_in_another_file_is_not_argued(tmp_path: Path, home: Path) -> None:
    desk = _desk(tmp_path, kerneltree.checkout)
    desk.edit("0001-demo.patch", "/* Größe */", "/* Größe */ ")
    desk.edit("0001-demo.patch", "+TRACE_EVENT(demo_nap,", "+TRACE_EVENT(demo_nap, ")
    desk.edit("series.toml", "[[mail.cc]]\n", ARGUED)
    desk.prove()
    done = _certified(desk)
    assert len(done.remarks) == 2
    assert len(done.argued) == 1
    again = replace(desk.request, replace=True)
    (outcome,) = summary.export_all(again, [desk.series], desk.base)
    assert any(
        text.startswith("an exemption for remarks of checkpatch: 1 warning")
        for text in outcome.missing
    )
    said: list[str] = []
    signed = summary.ExportOutcome(desk.series, done)
    summary.print_outcomes([signed], said.append)
    assert signed.state == "signed"
    assert not any("git send-email" in line for line in said)
    linux = desk.root / "linux"
    name = prep.branch(done, linux)
    postbox.run(("git", "switch", "-q", name), linux, home)
    assert "perpatch" not in postbox.run(("git", "config", "--list"), linux, home)


def _files(linux: Path) -> list[Path]:
    return [p for p in linux.rglob("*") if p.is_file() and ".git" not in p.parts] + [
        linux / ".git/index"
    ]


def test_b4_sends_what_we_do(tmp_path: Path, home: Path) -> None:
    desk = _desk(tmp_path, kerneltree.checkout)
    desk.prove()
    done = _certified(desk, rfc=True)
    linux = desk.root / "linux"
    name = prep.branch(done, linux)
    postbox.run(("git", "switch", "-q", name), linux, home)
    info = postbox.b4("prep", "--show-info", cwd=linux, home=home)
    assert f"change-id: {done.thread.change_id}" in info
    sent = desk.root / "sent"
    postbox.b4("send", "--no-sign", "-o", sent, cwd=linux, home=home)
    mails = [
        email.message_from_bytes(
            p.read_bytes(), EmailMessage, policy=email.policy.default
        )
        for p in sorted(sent.glob("*.eml"))
    ]
    assert [str(letter["subject"]).partition("] ")[2] for letter in mails] == [
        str(_mail(letter)["subject"]).partition("] ")[2] for letter in done.letters
    ]
    cover = mails[0]
    assert "RFC" in str(cover["subject"])
    named = {address.addr_spec for f in ("to", "cc") for address in cover[f].addresses}
    wanted = {recipient.address for recipient in done.recipients.cover}
    assert wanted <= named <= wanted | {postbox.ADDRESS}
    acting = {recipient.address for recipient in done.recipients.cover if recipient.to}
    assert {address.addr_spec for address in cover["to"].addresses} == acting
    text = cover.get_content()
    assert f"base-commit: {desk.base.commit}" in text
    assert f"change-id: {done.thread.change_id}" in text
    assert (
        _mail(done.letters[0]).get_content().splitlines()[:8] == text.splitlines()[:8]
    )
    for letter, theirs in zip(done.letters[1:], mails[1:], strict=True):
        ours = _mail(letter).get_content().partition("diff --git")[2]
        assert _changes(ours) == _changes(
            theirs.get_content().partition("diff --git")[2]
        )


def _changes(text: str) -> list[str]:
    return [
        line for line in text.splitlines() if line[:1] in ("+", "-") and line != "-- "
    ]


def test_a_b4_branch_of_a_draft_or_on_something_else_is_refused(
    tmp_path: Path, home: Path
) -> None:
    desk = _desk(tmp_path, kerneltree.checkout)
    desk.prove()
    linux = desk.root / "linux"
    with pytest.raises(KstallError, match="this is a draft"):
        prep.branch(desk.export(), linux)
    done = _certified(desk)
    postbox.run(("git", "commit", "-q", "--allow-empty", "-m", "x"), linux, home)
    assert prep.branch(done, linux) == "b4/demo"
    (linux / "new.c").write_text("int x;\n")
    postbox.run(("git", "add", "new.c"), linux, home)
    postbox.run(("git", "commit", "-q", "-m", "new"), linux, home)
    with pytest.raises(KstallError, match="is not the source that demo was proven on"):
        prep.branch(done, linux)
    with pytest.raises(KstallError, match="is no git checkout"):
        prep.branch(done, desk.root / "nowhere")
    with pytest.raises(KstallError, match="is no git checkout"):
        prep.branch(done, desk.root / "out")


# -- the command -----------------------------------------------------------------


def _call(desk: Desk, *words: str) -> int:
    return cli.main(
        [
            *("--project", str(desk.project.root), "series"),
            *("--kernel", str(desk.root / "linux"), "--out", str(desk.out), *words),
        ]
    )


def test_the_summary_names_skipped_checks_and_moderated_lists(desk: Desk) -> None:
    run = desk.prove()
    run_report = report.read(run / "report.json")
    run_report.series[0].checks[2].status = "skip"
    run_report.series[0].checks[2].detail = "needs a bed"
    report.write(run_report, run / "report.json")
    done = desk.export()
    open_page = summary.page(
        [summary.ExportOutcome(desk.series, done)], desk.base, desk.out
    )
    assert "moderator" not in open_page
    strict = recipients.Recipient(
        "", "strict@example.org", True, False, ("moderated list:DEMO SUBSYSTEM",)
    )
    cc = replace(done.recipients, cover=(*done.recipients.cover, strict))
    outcome = summary.ExportOutcome(desk.series, replace(done, recipients=cc))
    page = summary.page([outcome], desk.base, desk.out)
    assert "- moderated for non-subscribers: strict@example.org\n" in page
    assert "1 of them skipped\n  - skipped: naps: needs a bed\n" in page


REASON = "others were first"
NOT_SENT = f'not-sent = "{REASON}"\ntitle = '


def test_what_is_not_to_be_sent_is_refused_by_name(
    desk: Desk, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KSTALL_CACHE", str(desk.root / "cache"))
    desk.edit("series.toml", "title = ", NOT_SENT)
    # A proof changes nothing.
    desk.prove()
    assert _call(desk, "demo") == 2
    said = capsys.readouterr()
    assert f"demo is not to be sent: {REASON}\n" in said.err
    assert said.out == ""
    with pytest.raises(export.NotForSending, match=f"demo is .*: {REASON}"):
        desk.export()
    assert not (desk.out / "mail").exists()


def test_what_is_not_to_be_sent_is_left_out_of_all(
    desk: Desk, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KSTALL_CACHE", str(desk.root / "cache"))
    shutil.copytree(desk.project.patches / "demo", desk.project.patches / "kept")
    toml = desk.project.patches / "kept/series.toml"
    toml.write_text(toml.read_text().replace("title = ", NOT_SENT, 1))
    assert _call(desk) == 2
    output = capsys.readouterr().out
    assert "no run in" in output
    assert f"kept: left out, as it is not to be sent: {REASON}\n" in output
    desk.prove()
    assert _call(desk) == 0
    page = (desk.out / "mail/summary.md").read_text()
    assert "| kept | not to be sent | -" in page
    assert page.endswith(f"\nNot to be sent: {REASON}\n")
    assert not (desk.out / "mail/kept").exists()
    # The only one that is sent need not be named.
    assert _call(desk, "--sign-off") == 2
    assert "--sign-off=" in capsys.readouterr().out


def test_of_all_series_only_one_that_was_signed_off_is_kept(
    desk: Desk, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KSTALL_CACHE", str(desk.root / "cache"))
    desk.prove()
    _certified(desk)
    shutil.copytree(desk.project.patches / "demo", desk.project.patches / "other")
    (other,) = desk.project.load(["other"])
    synthetic.prove(other, desk.base, desk.out, name="20260103T000000Z")
    assert _call(desk) == 2
    output = capsys.readouterr().out
    assert output.count("has mails that were signed off") == 1
    assert "other: 3 mails in" in output


def test_the_command_writes_mails_and_a_summary(
    desk: Desk, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KSTALL_CACHE", str(desk.root / "cache"))
    assert _call(desk) == 2
    assert "no run in" in capsys.readouterr().out
    assert "not written" in (desk.out / "mail/summary.md").read_text()
    desk.prove()
    assert _call(desk) == 0
    output = capsys.readouterr().out
    assert "demo: 3 mails in" in output
    assert "git send-email" not in output
    assert (desk.out / "mail/demo/v1/thread.mbox").is_file()
    assert _call(desk, "demo", "--sign-off") == 2
    output = capsys.readouterr().out
    key = output.partition("--sign-off=")[2].split()[0]
    assert _call(desk, "demo", f"--sign-off={key}") == 0
    assert "git send-email --no-thread" in capsys.readouterr().out


def test_the_command_that_signs_off_is_the_one_that_was_given(
    tmp_path: Path,
    home: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KSTALL_CACHE", str(tmp_path / "cache"))
    desk = _desk(tmp_path, kerneltree.checkout)
    run = desk.prove()
    desk.export()
    sent = desk.root / "what was sent"
    (desk.out / "mail/demo/v1").rename(sent)
    desk.prove(name="20260102T030406Z")
    linux = str(desk.root / "linux")
    options = [
        *("--version=2", "--rfc", f"--kernel={linux}", f"--out={desk.out}"),
        *(f"--run={run}", f"--previous={sent}", f"--b4-prep={linux}"),
        "--report-url=https://example.org/r?a=$b",
    ]
    words = [f"--project={desk.project.root}", "series"]
    assert cli.main([*words, "demo", "--sign-off", *options]) == 2
    command = capsys.readouterr().out.partition("if you certify that: ")[2]
    program, *given = shlex.split(command.partition("\n")[0])
    *again, key = given
    assert (program, again[:3]) == ("kstall", [*words, "demo"])
    assert sorted(again[3:]) == sorted(options)
    assert cli.main([*again, key]) == 0
    page = (desk.out / "mail/summary.md").read_text()
    assert f"[RFC PATCH v2 0/2] ready | {run.name} |" in page
    assert postbox.run(("git", "branch", "--list", "b4/demo"), Path(linux), home)


def test_a_key_is_for_one_run_only(desk: Desk) -> None:
    desk.prove()
    with pytest.raises(contributor.NotCertified) as shown:
        desk.export(sign_off="")
    assert "The mails quote the run 20260102T030405Z, started 2026-" in str(shown.value)
    key = str(shown.value).rpartition("--sign-off=")[2]
    desk.prove(name="20260102T030406Z")
    with pytest.raises(contributor.NotCertified, match="is not for this text"):
        desk.export(sign_off=key)


@pytest.mark.parametrize(
    "url", ["", "report.html", "ftp://example.org/", "https://", "https://a b/"]
)
def test_an_address_that_is_none_is_one_error(
    desk: Desk, capsys: pytest.CaptureFixture[str], url: str
) -> None:
    with pytest.raises(SystemExit) as stopped:
        _call(desk, "--report-url", url)
    assert stopped.value.code == 2
    assert capsys.readouterr().err.endswith(
        f"argument --report-url: '{url}' is not like https://example.org/report.html\n"
    )


def test_the_command_hands_the_address_on(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KSTALL_CACHE", str(desk.root / "cache"))
    desk.prove()
    url = "http://example.org/report.html#demo"
    assert _call(desk, "--report-url", url) == 0
    (letter,) = (desk.out / "mail/demo/v1").glob("0000-*")
    assert f"expected and observed:\n{url}\n" in letter.read_text()


def test_one_address_is_for_the_letters_of_one_run(
    desk: Desk, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KSTALL_CACHE", str(desk.root / "cache"))
    patches = desk.project.patches
    shutil.copytree(patches / "demo", patches / "other")
    run = desk.prove()
    url = "https://example.org/report.html"
    assert _call(desk, "--report-url", url) == 2
    assert "--report-url is the report of one run" in capsys.readouterr().err
    for chosen in (["demo"], ["--run", str(run)]):
        _call(desk, *chosen, "--report-url", url)
        assert "the report of one run" not in capsys.readouterr().err
