# SPDX-License-Identifier: GPL-2.0-or-later
"""Commands that show what series declare and what runs found; `new` begins a series."""

from __future__ import annotations

import argparse
import json
import shlex
import sys

from pydantic import BaseModel
from pydantic.json_schema import JsonSchemaMode
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ..base import KstallError
from ..evidence import traceabi
from ..pipeline import again, matrix, matrixfile
from ..report import comparison, comparisonviews, html, report
from ..report import matrix as matrix_report
from ..series import Project, Series, Spec, mutants, new
from .terminal import say

# What `kstall schema` prints the schema of: what is written, and files that are read.
SCHEMAS: dict[str, tuple[type[BaseModel], JsonSchemaMode]] = {
    "report": (report.Report, "serialization"),
    "series": (Spec, "validation"),
    "mutants": (mutants.MutantsFile, "validation"),
    "matrix": (matrix_report.Matrix, "serialization"),
    "matrix-file": (matrixfile.MatrixFile, "validation"),
    "comparison": (comparison.RunComparison, "serialization"),
}


def do_list(arguments: argparse.Namespace, console: Console) -> int:
    """Print a line for each series."""
    table = Table(box=None, pad_edge=False)
    for title in ("series", "patches", "events", "checks", "list", "title"):
        table.add_column(title)
    for series in Project(arguments.project).load():
        spec = series.spec
        table.add_row(
            series.name,
            str(len(series.patches)),
            str(len(spec.tracepoint)),
            str(len(spec.check)),
            spec.subsystem.list.split("@")[0],
            escape(spec.title),
        )
    console.print(table)
    return 0


def do_show(arguments: argparse.Namespace, console: Console) -> int:
    """Print what a series declares."""
    (series,) = Project(arguments.project).load([arguments.series])
    say(console, "\n".join(_describe(series)))
    return 0


def _describe(series: Series) -> list[str]:
    spec = series.spec
    home = spec.subsystem
    lines = [
        f"{series.name}: {spec.title}",
        *([f"  not to be sent: {series.not_sent}"] if series.not_sent else []),
        *([f"  ordered as  {spec.ordered_as}"] if spec.ordered_as else []),
        *([f"  renamed     {spec.renamed_because}"] if spec.renamed_because else []),
        f"  subsystem   {home.name} ({home.prefix}:), {home.list}",
        f"  tree        {home.tree} {home.branch}",
        f"  kconfig     kconfigs/{spec.kconfig}",
        "patches",
        *(f"  {patch.path.name}: {patch.subject}" for patch in series.patches),
    ]
    for point in spec.tracepoint:
        lines.append(f"tracepoint {point.event}")
        lines += [f"  {kind} {name}" for name, kind in point.fields.items()]
        lines.append(f"  joins {point.joins}")
        for site in point.site:
            heat = "hot" if site.hot else "cold"
            lines.append(
                f"  in {site.function}() of {site.file} ({heat}), {site.context}"
            )
    for script in spec.script:
        lines.append(f"script scripts/{script.file}: {', '.join(script.events)}")
    for workload in spec.workload:
        words = " ".join((workload.program, *workload.args))
        lines.append(f"workload {workload.name}: {words}")
        for step in workload.inject:
            commands = "; ".join(
                command.qmp or command.hmp or "" for command in step.commands
            )
            lines.append(f"  on {step.step} commands to the monitor: {commands}")
    for check in spec.check:
        lines.append(f"check {check.name} ({check.kind}, {', '.join(check.workloads)})")
        lines.append(f"  {check.claim}")
    if spec.needs:
        lines.append(f"needs in debug kernels: {', '.join(spec.needs)}")
    for conflict in spec.conflict:
        lines.append(f"not in one kernel with {conflict.series}: {conflict.because}")
    return lines


def do_new(arguments: argparse.Namespace, console: Console) -> int:
    """Begin a series, and print what comes next."""
    project = Project(arguments.project.absolute())
    written = new.write(project, arguments.name)
    say(console, new.advice(project, arguments.name, written))
    return 0


def do_compare(arguments: argparse.Namespace, console: Console) -> int:
    """Compare two runs or matrices; 1 something got worse, 2 cannot tell."""
    *older, before = arguments.before
    changes = comparison.compare(before, arguments.after, older)
    comparisonviews.terminal(changes, console)
    if arguments.json is not None:
        report.write(changes, arguments.json)
    if arguments.html is not None:
        comparisonviews.write_page(changes, arguments.html)
    return changes.exit_code


def do_abi(arguments: argparse.Namespace, console: Console) -> int:
    """Compare the events of two kernels; 1 programs that read them can break."""
    changes = traceabi.compare(
        traceabi.read(arguments.base), traceabi.read(arguments.patched)
    )
    lines = [f"{changes.same} events are the same"]
    lines += [f"grown     {change.event} {change.what}" for change in changes.grown]
    for layout in changes.new:
        lines += [f"new       {line}" for line in traceabi.describe(layout)]
    for change in (*changes.broken, *changes.clashing):
        lines.append(f"BROKEN    {change.event}: {change.what}")
    say(console, "\n".join(lines))
    return 1 if changes.broken or changes.clashing else 0


def do_html(arguments: argparse.Namespace, console: Console) -> int:
    """Write the page of a run or a matrix again."""
    if (arguments.run / matrix_report.FILE).exists():
        say(console, str(matrix.draw(arguments.run)))
        return 0
    place = arguments.run / "report.html"
    html.write(again.read_run(arguments.run), place)
    say(console, str(place))
    return 0


def do_schema(arguments: argparse.Namespace, console: Console) -> int:
    """Print a JSON Schema."""
    sys.stdout.write(schema_text(arguments.of))
    return 0


def schema_text(name: str) -> str:
    """The JSON Schema ``name``, as ``kstall schema`` prints it."""
    model, mode = SCHEMAS[name]
    return json.dumps(model.model_json_schema(mode=mode), indent=2) + "\n"


def misplaced(arguments: argparse.Namespace, console: Console) -> int:
    """Raise `KstallError` for a verb of operators that options stand before."""
    raise KstallError(
        f"{arguments.name} is for operators, and takes no option before it",
        next=shlex.join(["kstall", arguments.name, *arguments.words]),
    )
