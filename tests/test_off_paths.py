# SPDX-License-Identifier: GPL-2.0-or-later
"""Changes of a small function, and what the verdict on its paths while off is."""

from __future__ import annotations

from pathlib import Path

import pytest

from kstall.base import arch, process
from kstall.cost import costs, footprint, gate
from kstall.series import Series
from test_footprint import DECLARATION, Machine, machine
from test_gate import exempting, faults, series

__all__ = ["machine", "series"]

COMMON = """
#include "event.h"
struct job { u64 id, credits, slow, time; unsigned int count; };
u64 ktime_get(void);
void run(struct job *job);
void fail(struct job *job);
void finish(struct job *job);
void __SCT__tp_func_job_wait(struct job *job, u64 value);

static inline void trace_job_wait(struct job *job, u64 value)
{
	if (__builtin_expect(enabled(), 0))
		__SCT__tp_func_job_wait(job, value);
}

/* As an event should be added. */
#ifdef PATCHED
#define EVENT(job) trace_job_wait(job, 0)
#else
#define EVENT(job) do { } while (0)
#endif
"""


@pytest.fixture
def sources(project_root: Path, tmp_path: Path) -> Path:
    """An empty directory beside which the header of the event is found."""
    header = project_root / "tests/data/overhead/event.h"
    (tmp_path / "event.h").write_text(header.read_text())
    return tmp_path


def compare(sources: Path, machine: Machine, body: str, *flags: str) -> costs.Footprint:
    """``body`` compiled without and with PATCHED, compared."""
    source = sources / "sample.c"
    source.write_text(COMMON + body)
    objects = []
    for macro in ("BASE", "PATCHED"):
        objects.append(sources / f"{macro}.o")
        process.run(
            [
                *(machine.arch.tool("gcc"), "-O2", "-c", "-fno-pic", "-w"),
                *machine.flags,
                *("-fno-asynchronous-unwind-tables", "-fno-tree-vectorize", *flags),
                *(f"-D{macro}", "-o", objects[-1], source),
            ]
        )
    return footprint.binaries("vmlinux", objects[0], objects[1], DECLARATION)


def wrong(series: Series, comparison: costs.Footprint) -> str:
    """What the check of paths finds, a line each; "" if it passes."""
    overhead = costs.Overhead(base_kernel="base", footprint=comparison)
    checks = {check.name: check for check in gate.judge(series, overhead)}
    return faults(checks["disabled_path_unchanged"])


def test_a_string_may_begin_with_the_level_of_printk(
    series: Series, sources: Path, machine: Machine
) -> None:
    comparison = compare(
        sources,
        machine,
        r"""
void log_it(const char *format, ...);
int submit(struct job *job)
{
	run(job);
	EVENT(job);
	log_it("\0014job %d\n", job->count);
	return 0;
}
""",
    )
    assert wrong(series, comparison) == ""


CHOOSES_DIFFERENTLY = """
int submit(struct job *job)
{
#ifdef PATCHED
	job->time = ktime_get();
	if (job->slow <= 3) {
#else
	if (job->slow == 3) {
#endif
		for (unsigned int i = 0; i < job->count; i++)
			run(job);
		EVENT(job);
		finish(job);
		return 0;
	}
#ifndef PATCHED
	job->time = ktime_get();
#endif
	while (job->id & 1)
		fail(job);
	return -1;
}
"""


def test_paths_without_counterparts_are_no_proof(
    series: Series, sources: Path, machine: Machine
) -> None:
    """What moved to all paths is not among what was not reached before."""
    comparison = compare(sources, machine, CHOOSES_DIFFERENTLY)
    (paths,) = comparison.paths
    assert (paths.proven, paths.clock_reads) == (False, [])
    assert "submit: every path has its counterpart" in wrong(series, comparison)
    argued = exempting(series, function="submit", instructions=2)
    assert wrong(argued, comparison) == ""
    called = exempting(series, function="submit", calls=["ktime_get"])
    assert "every path has its counterpart" in wrong(called, comparison)


def test_a_function_may_be_long(
    monkeypatch: pytest.MonkeyPatch, series: Series, sources: Path, machine: Machine
) -> None:
    """Too long for each path to be compared, but all of it is walked."""
    monkeypatch.setattr("kstall.cost.paths._LIMIT", 30)
    choices = "".join(f"\tif (*count & {bit}) *seen = {bit};\n" for bit in range(40))
    body = f"""
int submit(struct job *job)
{{
	volatile u64 *seen = &job->time;
	volatile unsigned int *count = &job->count;
{choices}
#ifdef PATCHED
	*seen = ktime_get();
#endif
	EVENT(job);
	run(job);
}}
"""
    comparison = compare(sources, machine, body)
    found = wrong(series, comparison)
    assert "submit: every path has its counterpart" in found
    assert "submit: reads a clock while off" in found
    assert comparison.limits == []


def test_what_is_not_walked_is_said(
    monkeypatch: pytest.MonkeyPatch, sources: Path, machine: Machine
) -> None:
    monkeypatch.setattr("kstall.cost.walk._REACHED", 3)
    comparison = compare(sources, machine, CHOOSES_DIFFERENTLY)
    assert comparison.limits == ["submit+0x0 is too long: not all of it was walked"]


def test_what_follows_a_call_that_never_returns_is_another_function(
    series: Series, sources: Path, machine: Machine
) -> None:
    """The compiler finds out which do not; the patches change only what follows."""
    comparison = compare(
        sources,
        machine,
        """
static __attribute__((noinline)) void dead(struct job *job)
{
	fail(job);
	for (;;)
		run(job);
}

int submit(struct job *job)
{
	run(job);
	EVENT(job);
	if (job->slow)
		dead(job);
	finish(job);
	return 0;
}

int after(struct job *job)
{
#ifdef PATCHED
	job->time = ktime_get();
#endif
	run(job);
	return 3;
}
""",
    )
    found = wrong(series, comparison)
    assert "after: reads a clock while off" in found
    assert "submit: " not in found


COLD = """
void __attribute__((cold)) warn_about(struct job *job);

int submit(struct job *job)
{
	run(job);
	EVENT(job);
	if (job->slow) {
		warn_about(job);
#ifdef MORE
		*(volatile u64 *)&job->time = 1;
#endif
		job->credits = 0;
	}
	finish(job);
	return job->count;
}
"""


def test_the_cold_part_of_a_global_function_leads_back_to_it(
    series: Series, sources: Path, machine: Machine
) -> None:
    comparison = compare(sources, machine, COLD, "-freorder-blocks-and-partition")
    assert {size.part for size in comparison.functions} == {"code"}
    assert wrong(series, comparison) == ""
    assert comparison.paths[0].proven


def test_a_change_in_the_cold_part_only_is_compared(
    series: Series, sources: Path, machine: Machine
) -> None:
    body = COLD.replace("EVENT(job);", "").replace("MORE", "PATCHED")
    comparison = compare(sources, machine, body, "-freorder-blocks-and-partition")
    assert {size.part for size in comparison.functions} == {"cold"}
    assert "submit: instructions more on a path" in wrong(series, comparison)


@pytest.mark.parametrize("before", range(4))
def test_nops_that_align_a_loop_are_no_work(
    series: Series, sources: Path, machine: Machine, before: int
) -> None:
    """How many there are depends on what is ``before``, such as the NOP of a site."""
    stores = "".join(f"\t*(volatile u64 *)&job->id = {at};\n" for at in range(before))
    body = f"""
int submit(struct job *job)
{{
	run(job);
	EVENT(job);
{stores}
	for (unsigned int i = 0; i < job->count; i++)
		fail(job);
	finish(job);
	return 0;
}}
"""
    aligned = [] if machine.arch is arch.ARM64 else ["-falign-loops=16"]
    assert wrong(series, compare(sources, machine, body, *aligned)) == ""


@pytest.mark.parametrize(("replaced", "more"), [(0, 0), (1, 1)])
def test_nops_that_are_replaced_at_boot_are_work(
    sources: Path, machine: Machine, replaced: int, more: int
) -> None:
    flags = ".hword 0" if machine.arch is arch.ARM64 else ".long 0"
    table = f"""
".pushsection .altinstructions, \\"a\\"\\n"
".long 1b - ., 1b - .\\n"
"{flags}\\n"
".byte 2b - 1b, 2b - 1b\\n"
".popsection\\n"
"""
    body = f"""
int submit(struct job *job)
{{
	run(job);
#ifdef PATCHED
	asm volatile("1: nop\\n2:\\n" {table if replaced else ""});
#endif
	EVENT(job);
	finish(job);
	return 0;
}}
"""
    comparison = compare(sources, machine, body)
    assert [paths.cost for paths in comparison.paths] == [more]


def switch(in_case: str, after: str) -> str:
    """A function with so many cases that compilers make a table of them."""
    cases = "".join(
        f"case {at}: {in_case if at == 5 else ''} job->time = f{at}(job); break;\n"
        for at in range(24)
    )
    declared = "".join(f"u64 f{at}(struct job *job);\n" for at in range(24))
    return f"""
{declared}
int submit(struct job *job)
{{
	run(job);
	switch (job->slow) {{
{cases}
	default:
		run(job);
	}}
	{after}
	finish(job);
	return 0;
}}
"""


CLOCK = """
#ifdef PATCHED
	job->time = ktime_get();
#endif
"""


def test_paths_go_on_behind_a_jump_by_a_table(
    series: Series, sources: Path, machine: Machine
) -> None:
    comparison = compare(sources, machine, switch("", "EVENT(job);"))
    assert wrong(series, comparison) == ""
    comparison = compare(sources, machine, switch(f"\n{CLOCK}", "EVENT(job);"))
    assert "submit: reads a clock while off" in wrong(series, comparison)


def test_where_a_jump_s_table_is_not_known_code_is_compared_as_a_set(
    monkeypatch: pytest.MonkeyPatch, series: Series, sources: Path, machine: Machine
) -> None:
    monkeypatch.setattr("kstall.cost.code.Code.cases", lambda *_: ())
    comparison = compare(sources, machine, switch("", "EVENT(job);"))
    assert wrong(series, comparison) == ""
    comparison = compare(sources, machine, switch(f"\n{CLOCK}", "EVENT(job);"))
    assert "submit: every path has its counterpart" in wrong(series, comparison)
    assert "submit: reads a clock while off" in wrong(series, comparison)


def test_a_site_in_a_case_is_seen_to_be_out_of_line(
    series: Series, sources: Path, machine: Machine
) -> None:
    if machine.arch is not arch.X86_64:
        pytest.skip("tables are only read for x86-64")
    comparison = compare(sources, machine, switch("EVENT(job);", ""))
    assert wrong(series, comparison) == ""
    (site,) = comparison.sites
    assert site.out_of_line
    assert [paths.nops for paths in comparison.paths] == [1]


OPERATIONS = """
struct operations { int (*submit)(struct job *job); };
static int NAME(struct job *job)
{
	run(job);
	EVENT(job);
	finish(job);
	return 0;
}
const struct operations operations = { .submit = NAME };
"""


def test_a_callback_has_nothing_to_be_compared_with(
    series: Series, sources: Path, machine: Machine
) -> None:
    renamed = f"""
#ifdef PATCHED
#define NAME job_submit
#else
#define NAME submit
#endif
{OPERATIONS}
"""
    comparison = compare(sources, machine, renamed)
    assert [new.name for new in comparison.new] == ["job_submit"]
    assert "new function job_submit() [vmlinux]" in wrong(series, comparison)
    assert wrong(exempting(series, function="job_submit"), comparison) == ""
    kept = compare(sources, machine, "#define NAME submit\n" + OPERATIONS)
    assert (kept.new, wrong(series, kept)) == ([], "")


def test_what_only_events_and_compared_functions_call_is_no_callback(
    series: Series, sources: Path, machine: Machine
) -> None:
    comparison = compare(
        sources,
        machine,
        """
#ifdef PATCHED
static __attribute__((noinline)) u64 inner(struct job *job)
{
	run(job);
	return job->slow;
}

static __attribute__((noinline)) u64 value(struct job *job)
{
	run(job);
	return inner(job) + 1;
}

static __attribute__((noinline)) void start(struct job *job)
{
	run(job);
}
#else
#define start run
#endif

int submit(struct job *job)
{
	start(job);
#ifdef PATCHED
	if (__builtin_expect(enabled(), 0))
		__SCT__tp_func_job_wait(job, value(job));
#endif
	finish(job);
	return 0;
}
""",
    )
    assert comparison.new == []


@pytest.mark.parametrize("binary", ["test-hmm", "lib/test-hmm.o"])
def test_an_exemption_may_name_a_module(series: Series, binary: str) -> None:
    new = [
        costs.NewFunction(binary=binary, name=name, size=64) for name in ("begin", "")
    ]
    comparison = costs.Footprint(new=new)
    assert f"new function begin() [{binary}]" in wrong(series, comparison)
    assert f"new module [{binary}]" in wrong(series, comparison)
    assert wrong(exempting(series, function="test_hmm"), comparison) == ""
    assert wrong(exempting(series, function="hmm"), comparison) != ""


def test_tests_are_no_callbacks(
    series: Series, sources: Path, machine: Machine
) -> None:
    body = f"""
#ifdef PATCHED
#define NAME job_submit
#else
#define NAME submit
#endif
{OPERATIONS}
__attribute__((used, section(".kunit_test_suites"))) int suites;
"""
    assert compare(sources, machine, body).new == []


def test_a_clock_read_that_moves_to_another_path_is_one_more_there(
    series: Series, sources: Path, machine: Machine
) -> None:
    body = """
u64 cheap(void);

int submit(struct job *job)
{
	if (job->slow) {
		job->id = RARELY();
		fail(job);
		return -1;
	}
	job->time = OFTEN();
	run(job);
	EVENT(job);
	finish(job);
	return 0;
}
"""
    moved = """
#ifdef PATCHED
#define RARELY cheap
#define OFTEN ktime_get
#else
#define RARELY ktime_get
#define OFTEN cheap
#endif
"""
    found = wrong(series, compare(sources, machine, moved + body))
    assert "submit: reads a clock while off" in found
    kept = "#define RARELY ktime_get\n#define OFTEN cheap\n"
    assert wrong(series, compare(sources, machine, kept + body)) == ""
