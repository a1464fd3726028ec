# SPDX-License-Identifier: GPL-2.0-or-later
"""A few objects of a tree compiled in a variant, and all remarks about them.

make prints remarks about an object when it compiles it, and nothing when it is up to
date.  So they are saved beside the objects, in the output directory of the variant; an
object without saved remarks, or one that changed since, is compiled again.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection

from ..base import KstallError, cache, process, space
from ..build import Configured, kconfig, kernel, outputs
from ..lint import Finding
from ..tree import AppliedTree
from . import kbuild
from .variants import Variant

_RECORDS = "kstall-objects.json"
_MAKE_FAILED = 2
_STEP = re.compile(r"^  (?P<what>[A-Z][A-Z0-9_]*)(?: \[M\])? +(?P<name>\S+)$")
_LINE = re.compile(
    r"^(?P<sparse>sparse: )?(?P<file>[^\s:]+):(?P<line>\d+):(?:\d+:)? "
    r"(?P<level>(?:fatal )?[eE]rror|[wW]arning): (?P<text>.*)$"
)
_FAILED = re.compile(r"^make(?:\[\d+\])?: \*\*\* \[(?:[^\]]*: )?(?P<name>[^\]]+)\] ")
_OBJTOOL = re.compile(r"^(?P<file>\S+\.o): (?:warning|error): objtool: (?P<text>.*)$")
_FLAG = re.compile(r" \[-W(?:error[=,])?-?W?(?P<flag>[\w+=-]+)\]$")
# What gcc calls for a 64-bit division where the machine has no instruction for it.  The
# kernel does not have them, which shows only when everything is linked.
_DIVISIONS = (
    *("__divdi3", "__moddi3", "__divmoddi4"),
    *("__udivdi3", "__umoddi3", "__udivmoddi4"),
)
# The section, which older trees do not have.
_CALLED = "__tracepoint_check"
# As delay-objtool in scripts/Makefile.lib.
_OBJTOOL_IS_LATE = ("LTO_CLANG", "X86_KERNEL_IBT", "KLP_BUILD")
_ONLY_READ = ("-w", "-fsyntax-only", "-x", "c", "/dev/null")
_AGAIN = "if a compiler was killed (memory?), run the same command again"
ERROR = "error"
NOT_COMPILED = "not-compiled"
NO_SOURCE = "no-source"
SPARSE = "sparse"
OBJTOOL = "objtool"
DIVISION = "64-bit-division"
ALONE = "not-self-contained"
UNUSED = "unused-tracepoint"
# What is found beside what a build reports.
_APART = (SPARSE, DIVISION, ALONE, UNUSED)


@dataclass(frozen=True)
class CompilerRemark:
    """A remark about a ``file`` of the tree; ``kind`` is ``error``, the name of the
    compiler's warning, or one of the constants above."""

    file: str
    line: int
    kind: str
    text: str


def is_fatal(remark: CompilerRemark) -> bool:
    """Whether a source is not compiled."""
    return remark.kind in (ERROR, NO_SOURCE)


def is_warning(remark: CompilerRemark) -> bool:
    """Whether the compiler or objtool warns of a source, which is compiled."""
    return not is_fatal(remark) and remark.kind not in _APART


def is_fault(remark: CompilerRemark) -> bool:
    """Whether a build would report it."""
    return is_fatal(remark) or is_warning(remark)


@dataclass(frozen=True)
class CompileOutcome:
    """The outcome of a state of a series in a variant.

    ``compiled`` are sources that the series touches or that include what it touches,
    ``left_out`` touched ones that this configuration does not have.  ``impossible``
    says why there is no such configuration, if there is none.
    """

    compiled: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    remarks: tuple[CompilerRemark, ...] = ()
    impossible: str | None = None

    def findings(
        self, counts: Callable[[CompilerRemark], bool], where: str = ""
    ) -> list[Finding]:
        """The remarks that count; ``where`` is put in front of each."""
        return [
            Finding(remark.file, remark.line, remark.kind, f"{where}{remark.text}")
            for remark in self.remarks
            if counts(remark)
        ]

    def as_json(self) -> dict[str, Any]:
        """For a file; `of_json` reads it."""
        return asdict(self)

    @classmethod
    def of_json(cls, raw: Mapping[str, Any]) -> CompileOutcome:
        """The outcome that `as_json` made this of."""
        remarks = tuple(CompilerRemark(**fields) for fields in raw["remarks"])
        lists = {name: tuple(raw[name]) for name in ("compiled", "left_out")}
        return cls(**lists, remarks=remarks, impossible=raw["impossible"])


@dataclass(frozen=True)
class Trial:
    """A variant and its outcomes, one for each state from the base on.

    ``unavailable`` is the reason why there are none.
    """

    name: str
    title: str
    outcomes: tuple[CompileOutcome, ...] = ()
    unavailable: str | None = None


@dataclass(frozen=True)
class CompileJob:
    """The checked-out ``tree``, and what is to be compiled of it into ``output``.

    ``touched`` are all existing files that any patch of the series touches, ``users``
    other sources that include them; ``output`` is from `outputs.apart`, and it is its
    turn.  ``parallel`` is how many compilers run at once.
    """

    tree: AppliedTree
    touched: tuple[str, ...]
    users: kbuild.Users
    variant: Variant
    config: Configured
    output: Path
    scratch: Path
    log: Path
    parallel: int = 1


@dataclass
class _Transcript:
    """What make printed, by object; "" is for what belongs to none.

    ``started`` are the objects that it began to compile, ``failed`` the targets that it
    could not make.
    """

    remarks: dict[str, list[CompilerRemark]] = field(default_factory=dict)
    started: set[str] = field(default_factory=set)
    failed: set[str] = field(default_factory=set)

    def has_error(self, *names: str) -> bool:
        """Whether there is an error among the remarks about ``names``."""
        remarks = (remark for name in names for remark in self.remarks.get(name, ()))
        return any(remark.kind == ERROR for remark in remarks)


@dataclass(frozen=True)
class _Record:
    """A compiled object: its ``digest``, and the remarks when it was compiled."""

    digest: str
    remarks: tuple[CompilerRemark, ...]


def compile(
    job: CompileJob, *, alone: bool = False, keep: Path | None = None
) -> CompileOutcome:
    """Compile what the series touches, and the sources that include it.

    With ``alone``, each touched header also by itself.  ``keep`` is a directory that
    gets a copy of the objects.  Raises `KstallError` if make fails for a reason that is
    not in the sources.
    """
    sources = [path for path in job.touched if kbuild.is_compiled(path)]
    folders = {
        str(folder)
        for path in (*sources, *job.users.all)
        for folder in list(PurePosixPath(path).parents)[:2]
    }
    listed = kbuild.listed(
        job.tree.path, job.config.file, job.variant.folder, folders, job.scratch
    )
    paths = (*sources, *job.users.chosen(listed.objects))
    objects = {path: kbuild.object_of(path) for path in paths}
    targets = {path: name for path, name in objects.items() if name in listed.objects}
    output = job.output
    remarks = [
        CompilerRemark(
            name, 0, NO_SOURCE, "the Makefile lists it, but it has no source"
        )
        for name in sorted(listed.no_source)
    ]
    # make is not asked for what such a Makefile builds, as that is not known.
    remarks += [
        CompilerRemark(file, line, ERROR, text) for file, line, text in listed.broken
    ]
    if targets:
        remarks += _make(job, sorted(targets.values()))
        built = [name for name in targets.values() if (output / name).exists()]
        remarks += _divisions(output, built)
        if _records_calls(job.tree.path):
            remarks += _unused(output, built)
        if alone and built:
            headers = [path for path in job.touched if kbuild.is_header(path)]
            remarks += _headers_alone(job, headers, built)
        if keep is not None:
            _copy(job, built, keep)
    return CompileOutcome(
        compiled=tuple(sorted(targets)),
        left_out=tuple(path for path in sources if not _is_among(job, path, targets)),
        remarks=tuple(dict.fromkeys(remarks)),
    )


def _is_among(job: CompileJob, path: str, targets: Collection[str]) -> bool:
    """Whether ``path`` is compiled, by itself or as part of a file that includes it."""
    if path in targets:
        return True
    return not set(targets).isdisjoint(kbuild.including(job.tree.path, path))


def _copy(job: CompileJob, objects: Iterable[str], target: Path) -> None:
    """Put the objects below ``target``, with static branches as the image has them."""
    symbols = kconfig.parse_config(job.config.file)
    # kbuild then has objtool turn jumps into NOPs only when everything is linked.
    late = any(name in symbols for name in _OBJTOOL_IS_LATE)
    for name in objects:
        path = target / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes((job.output / name).read_bytes())
        if late:
            tool = job.output / "tools/objtool/objtool"
            process.run([tool, "--hacks=jump_label", path], log=job.log)


# -- make ----------------------------------------------------------------------------


def _make(job: CompileJob, targets: Sequence[str]) -> list[CompilerRemark]:
    output = job.output
    store = output / _RECORDS
    records = _read(store)
    for name in targets:
        if name not in records or not _is_unchanged(output / name, records[name]):
            (output / name).unlink(missing_ok=True)
    before = {name: records.pop(name).remarks for name in targets if name in records}
    # Their remarks are unknown until make has ended: if this run is killed, the next
    # one compiles them again.
    _write(store, records)
    transcript = _run(job, targets)
    remarks = list(transcript.remarks.get("", ()))
    for name in targets:
        remade = name in transcript.started
        current = transcript.remarks.get(name, ()) if remade else before.get(name, ())
        if (output / name).exists():
            records[name] = _Record(cache.file_digest(output / name), tuple(current))
        remarks += current
    _write(store, records)
    return remarks


def _is_unchanged(path: Path, record: _Record) -> bool:
    return path.exists() and cache.file_digest(path) == record.digest


def _read(store: Path) -> dict[str, _Record]:
    return {
        name: _Record(
            entry["digest"], tuple(CompilerRemark(**remark) for remark in entry["said"])
        )
        for name, entry in (outputs.read(store, dict) or {}).items()
    }


def _write(store: Path, records: Mapping[str, _Record]) -> None:
    entries = {
        name: {"digest": record.digest, "said": [*map(asdict, record.remarks)]}
        for name, record in records.items()
    }
    cache.write_json(store, entries)


def _run(job: CompileJob, targets: Sequence[str]) -> _Transcript:
    variant, output = job.variant, job.output
    argv = ["make", f"O={output}", *variant.tools.make, "W=1"]
    if variant.checker is not None:
        unlimited = "-fmax-errors=unlimited -fmax-warnings=unlimited"
        argv += ["C=1", f"CHECK={variant.checker.program}", f"CF={unlimited}"]
    # kernel-doc has its own check; W=1 would start it once for each object.
    argv += ["cmd_checkdoc=", "--keep-going", "--output-sync=target"]
    argv += [f"-j{job.parallel}", *targets]
    transcript = _Transcript()
    handle = _line_handler(job.tree, output, set(targets), transcript)
    env = {**dict(variant.tools.env), "LC_ALL": "C"}
    try:
        process.run(argv, cwd=job.tree.path, env=env, log=job.log, on_line=handle)
    except process.CommandError as error:
        failed = [name for name in targets if name in transcript.failed]
        unexplained = [name for name in failed if not transcript.has_error(name, "")]
        # make exits with 2 by itself; killed, its output is incomplete.  A full
        # disk may look like an error in a source, too.
        complete = error.returncode == _MAKE_FAILED and transcript.has_error(
            *transcript.remarks
        )
        if unexplained or space.missed(error, output) or not complete:
            reason = kernel.explain(error, job.log, output)
            if isinstance(reason, kernel.SpoiltOutput):
                outputs.discard(output)
            elif isinstance(reason, kernel.BuildError):
                # No `BuildError`, which blames the patches: what the compiler would
                # have printed about these is unknown.
                names = ", ".join(unexplained[:3]) or "all targets"
                reason = KstallError(
                    f"make did not build {names}, and no error in a source says why",
                    log=job.log,
                    next=_AGAIN,
                )
            raise reason from error
    else:
        if missing := [name for name in targets if not (output / name).exists()]:
            raise KstallError(
                f"make succeeded but produced no {', '.join(missing[:3])}",
                log=job.log,
                next=f"remove {output}, and run again",
            )
    return transcript


def _line_handler(
    tree: AppliedTree, output: Path, targets: Collection[str], transcript: _Transcript
) -> Callable[[str], None]:
    current = ""

    def handle(line: str) -> None:
        nonlocal current
        if step := _STEP.match(line):
            name = step["name"]
            if step["what"] == "CHECK":
                name = kbuild.object_of(name)
            current = name if name in targets else ""
            if current and step["what"] in ("CC", "AS"):
                transcript.started.add(current)
            return
        if failed := _FAILED.match(line):
            transcript.failed.add(failed["name"].removeprefix(f"{output}/"))
            return
        if (remark := _parse(line, tree)) is None:
            return
        # What is built for the build itself repeats only its errors on each run.
        if current or remark.kind == ERROR:
            transcript.remarks.setdefault(current, []).append(remark)

    return handle


def _parse(line: str, tree: AppliedTree) -> CompilerRemark | None:
    if match := _OBJTOOL.match(line):
        return CompilerRemark(match["file"], 0, OBJTOOL, match["text"])
    match = _LINE.match(line)
    if match is None:
        return None
    file = kernel.inside(match["file"], tree)
    text = match["text"]
    if match["sparse"]:
        kind = SPARSE
    elif match["level"].lower().endswith("error"):
        kind = ERROR
    elif flag := _FLAG.search(text):
        kind, text = f"-W{flag['flag']}", text[: flag.start()]
    else:
        kind = "warning"
    return CompilerRemark(file, int(match["line"]), kind, text)


# -- what no compiler reports --------------------------------------------------------


def _divisions(output: Path, objects: Iterable[str]) -> list[CompilerRemark]:
    """Calls of functions for 64-bit division, which only libgcc has."""
    return [
        CompilerRemark(
            name, 0, DIVISION, f"{symbol}() is called, which the kernel does not have"
        )
        for name in objects
        for symbol in sorted(_undefined(output / name))
        if symbol in _DIVISIONS
    ]


def _undefined(path: Path) -> set[str]:
    with path.open("rb") as file:
        tables = ELFFile(file).iter_sections("SHT_SYMTAB")
        return {
            symbol.name
            for table in tables
            if isinstance(table, SymbolTableSection)
            for symbol in table.iter_symbols()
            if symbol["st_shndx"] == "SHN_UNDEF" and symbol.name
        }


def _unused(output: Path, objects: Iterable[str]) -> list[CompilerRemark]:
    """The tracepoints that are defined, and called nowhere in ``objects``.

    As the tree's own ``make UT=1`` reports for a whole kernel: each call leaves the
    name in a section that no image has.  In a tree without that section all look
    unused.
    """
    defined: dict[str, str] = {}
    called: set[str] = set()
    for name in objects:
        with (output / name).open("rb") as file:
            elf = ELFFile(file)
            defined |= dict.fromkeys(_strings(elf, "__tracepoints_strings"), name)
            called |= _strings(elf, _CALLED)
    return [
        CompilerRemark(
            where, 0, UNUSED, f"tracepoint {name} is defined, and nothing calls it"
        )
        for name, where in sorted(defined.items())
        if name not in called
    ]


def _records_calls(tree: Path) -> bool:
    """Whether a call of a tracepoint leaves its name in an object of ``tree``."""
    header = tree / "include/linux/tracepoint.h"
    return header.exists() and _CALLED.encode() in header.read_bytes()


def _strings(elf: ELFFile, section: str) -> set[str]:
    contents = elf.get_section_by_name(section)
    if contents is None:
        return set()
    return {part.decode() for part in contents.data().split(b"\0") if part}


def _headers_alone(
    job: CompileJob, headers: Sequence[str], objects: Sequence[str]
) -> list[CompilerRemark]:
    """The errors of each header when it is the first include of a file."""
    remarks = []
    for header in headers:
        nearest = max(objects, key=lambda name: len(os.path.commonpath([name, header])))
        argv = _flags(job.output / nearest)
        path = job.tree.path / header
        completed = process.run(
            # Twice: including it again must do no harm.
            [*argv, *_ONLY_READ, "-include", path, "-include", path],
            cwd=job.output,
            env={**dict(job.variant.tools.env), "LC_ALL": "C"},
            log=job.log,
            check=False,
        )
        if completed.returncode != 0:
            parsed = (_parse(line, job.tree) for line in completed.stdout.splitlines())
            errors = [
                remark
                for remark in parsed
                if remark is not None and remark.kind == ERROR
            ]
            remarks += [_header_error(header, error) for error in errors]
            if not errors:
                # Such as a killed compiler, which says nothing about the header.
                failure = completed.failure()
                failure.log, failure.next = job.log, _AGAIN
                raise failure
    return remarks


def _header_error(header: str, error: CompilerRemark) -> CompilerRemark:
    """An error in ``header`` or in what it includes, as a fault of ``header``."""
    if error.file == header:
        return CompilerRemark(header, error.line, ALONE, error.text)
    # Without the line, which another patch may move: it would look like a new fault.
    return CompilerRemark(header, 0, ALONE, f"in {error.file}: {error.text}")


def _flags(path: Path) -> list[str]:
    """The compiler's command line for an object, without its input and output."""
    line = path.with_name(f".{path.name}.cmd").read_text().partition("\n")[0]
    command = line.partition(":= ")[2].replace("$$", "$").replace("\\#", "#")
    words = []
    skip = False
    for word in shlex.split(re.split(r" ?; | && ", command)[0])[:-1]:
        if skip:
            skip = False
        elif word == "-o":
            skip = True
        elif word != "-c" and not word.startswith("-Wp,-MMD"):
            words.append(word)
    return words
