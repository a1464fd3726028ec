# SPDX-License-Identifier: GPL-2.0-or-later
"""A few objects of a tree compiled in a variant, and all that is said of them.

make says something of an object when it compiles it, and nothing when it is up to date.
So what was said is kept beside the objects, in the output directory of the variant, and
an object of which nobody knows what was said, or which is not as it was then, is
compiled again.
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
from ..tree import AppliedTree
from . import kbuild
from .variants import Variant

_KNOWN = "kstall-objects.json"
_MAKE_FAILED = 2
_STEP = re.compile(r"^  (?P<what>[A-Z][A-Z0-9_]*)(?: \[M\])? +(?P<name>\S+)$")
_LINE = re.compile(
    r"^(?P<sparse>sparse: )?(?P<file>[^\s:]+):(?P<line>\d+):(?:\d+:)? "
    r"(?P<level>(?:fatal )?[eE]rror|[wW]arning): (?P<text>.*)$"
)
_FAILED = re.compile(r"^make(?:\[\d+\])?: \*\*\* \[(?:[^\]]*: )?(?P<name>[^\]]+)\] ")
_OBJTOOL = re.compile(r"^(?P<file>\S+\.o): (?:warning|error): objtool: (?P<text>.*)$")
_FLAG = re.compile(r" \[-W(?:error[=,])?-?W?(?P<flag>[\w+=-]+)\]$")
# What gcc calls for a division of 64 bits where the machine has none of that width, and
# the kernel does not have: it shows when everything is linked.
_DIVISIONS = (
    *("__divdi3", "__moddi3", "__divmoddi4"),
    *("__udivdi3", "__umoddi3", "__udivmoddi4"),
)
# The section, which older trees have not.
_CALLED = "__tracepoint_check"
# As delay-objtool in scripts/Makefile.lib.
_OBJTOOL_IS_LATE = ("LTO_CLANG", "X86_KERNEL_IBT", "KLP_BUILD")
_ONLY_READ = ("-w", "-fsyntax-only", "-x", "c", "/dev/null")
ERROR = "error"
NOT_COMPILED = "not-compiled"
NO_SOURCE = "no-source"
SPARSE = "sparse"
OBJTOOL = "objtool"
DIVISION = "64-bit-division"
ALONE = "not-self-contained"
UNUSED = "unused-tracepoint"


@dataclass(frozen=True)
class Said:
    """A remark about a ``file`` of the tree; ``kind`` is ``error``, the name of the
    compiler's warning, or one of the words above."""

    file: str
    line: int
    kind: str
    text: str


@dataclass(frozen=True)
class Outcome:
    """What came of a state of a series in a variant.

    ``compiled`` are sources that it touches or that include what it touches,
    ``left_out`` those that it touches and this configuration has not.  With
    ``impossible``, there is no such configuration, and why.
    """

    compiled: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    said: tuple[Said, ...] = ()
    impossible: str | None = None

    def as_json(self) -> dict[str, Any]:
        """For a file; `of_json` reads it."""
        return asdict(self)

    @classmethod
    def of_json(cls, raw: Mapping[str, Any]) -> Outcome:
        """What `as_json` gave."""
        said = tuple(Said(**one) for one in raw["said"])
        lists = {name: tuple(raw[name]) for name in ("compiled", "left_out")}
        return cls(**lists, said=said, impossible=raw["impossible"])


@dataclass(frozen=True)
class Job:
    """The checked-out ``tree``, and what is to be compiled of it into ``output``.

    ``touched`` are all files that any patch of the series touches and that there are,
    ``users`` other sources that include them; ``output`` is by `outputs.apart`, and its
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
class _Heard:
    """What make printed, by object; "" is for what belongs to none.

    ``made`` are the objects that it set about to make, ``failed`` what it did not.
    """

    said: dict[str, list[Said]] = field(default_factory=dict)
    made: set[str] = field(default_factory=set)
    failed: set[str] = field(default_factory=set)

    def has_error(self, *names: str) -> bool:
        """Whether an error was told of one of these."""
        said = (one for name in names for one in self.said.get(name, ()))
        return any(one.kind == ERROR for one in said)


@dataclass(frozen=True)
class _Known:
    """An object that was made: its ``digest``, and what was said of it then."""

    digest: str
    said: tuple[Said, ...]


def compile(job: Job, *, alone: bool = False, keep: Path | None = None) -> Outcome:
    """Compile what the series touches, and who includes it.

    With ``alone``, each touched header also by itself.  ``keep`` is a directory that
    gets a copy of the objects.  Raises `KstallError` if make fails without a reason
    that is in the sources.
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
    wanted = (*sources, *job.users.chosen(listed.objects))
    objects = {path: kbuild.object_of(path) for path in wanted}
    targets = {path: one for path, one in objects.items() if one in listed.objects}
    output = job.output
    said = [
        Said(name, 0, NO_SOURCE, "the Makefile wants it, and there is no source of it")
        for name in sorted(listed.no_source)
    ]
    if targets:
        said += _make(job, output, sorted(targets.values()))
        made = [one for one in targets.values() if (output / one).exists()]
        said += _divisions(output, made)
        if _tells_of_calls(job.tree.path):
            said += _unused(output, made)
        if alone and made:
            headers = [path for path in job.touched if kbuild.is_header(path)]
            said += _alone(job, output, headers, made)
        if keep is not None:
            _copy(job, made, keep)
    return Outcome(
        compiled=tuple(sorted(targets)),
        left_out=tuple(one for one in sources if not _is_among(job, one, targets)),
        said=tuple(dict.fromkeys(said)),
    )


def _is_among(job: Job, path: str, targets: Collection[str]) -> bool:
    """Whether ``path`` is compiled, by itself or as part of a file that includes it."""
    if path in targets:
        return True
    return not set(targets).isdisjoint(kbuild.including(job.tree.path, path))


def _copy(job: Job, objects: Iterable[str], target: Path) -> None:
    """Put the objects below ``target``, with static branches as the image has them."""
    symbols = kconfig.parse_config(job.config.file)
    # kbuild then has objtool make NOPs of jumps only when all is linked.
    late = any(name in symbols for name in _OBJTOOL_IS_LATE)
    for name in objects:
        place = target / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes((job.output / name).read_bytes())
        if late:
            tool = job.output / "tools/objtool/objtool"
            process.run([tool, "--hacks=jump_label", place], log=job.log)


# -- make ----------------------------------------------------------------------------


def _make(job: Job, output: Path, targets: Sequence[str]) -> list[Said]:
    store = output / _KNOWN
    known = _read(store)
    for name in targets:
        if name not in known or not _is_as_known(output / name, known[name]):
            (output / name).unlink(missing_ok=True)
    before = {name: known.pop(name).said for name in targets if name in known}
    # Until make has ended nobody knows what is said of them: if we are killed, the next
    # one has them compiled again.
    _write(store, known)
    heard = _run(job, output, targets)
    said = list(heard.said.get("", ()))
    for name in targets:
        remade = name in heard.made
        now = heard.said.get(name, ()) if remade else before.get(name, ())
        if (output / name).exists():
            known[name] = _Known(cache.file_digest(output / name), tuple(now))
        said += now
    _write(store, known)
    return said


def _is_as_known(path: Path, known: _Known) -> bool:
    return path.exists() and cache.file_digest(path) == known.digest


def _read(store: Path) -> dict[str, _Known]:
    return {
        name: _Known(one["digest"], tuple(Said(**said) for said in one["said"]))
        for name, one in (outputs.read(store, dict) or {}).items()
    }


def _write(store: Path, known: Mapping[str, _Known]) -> None:
    cache.write_json(store, {name: asdict(one) for name, one in known.items()})


def _run(job: Job, output: Path, targets: Sequence[str]) -> _Heard:
    variant = job.variant
    argv = ["make", f"O={output}", *variant.tools.make, "W=1"]
    if variant.checker is not None:
        unlimited = "-fmax-errors=unlimited -fmax-warnings=unlimited"
        argv += ["C=1", f"CHECK={variant.checker.program}", f"CF={unlimited}"]
    # A check of its own reads kernel-doc, and W=1 would start it once an object.
    argv += ["cmd_checkdoc=", "--keep-going", "--output-sync=target"]
    argv += [f"-j{job.parallel}", *targets]
    heard = _Heard()
    hear = _hearer(job.tree, output, set(targets), heard)
    env = {**dict(variant.tools.env), "LC_ALL": "C"}
    try:
        process.run(argv, cwd=job.tree.path, env=env, log=job.log, on_line=hear)
    except process.CommandError as error:
        failed = [name for name in targets if name in heard.failed]
        untold = [name for name in failed if not heard.has_error(name, "")]
        # With 2 make ends of itself; killed, it has not told of all.  A full disk
        # shows itself as an error in a source, too.
        whole = error.returncode == _MAKE_FAILED and heard.has_error(*heard.said)
        if untold or space.missed(error, output) or not whole:
            reason = kernel.explain(error, job.log, output)
            if isinstance(reason, kernel.SpoiltOutput):
                outputs.forget(output)
            elif isinstance(reason, kernel.BuildError):
                # Of others: what would have been said of these, nobody knows.
                lacking = ", ".join(untold[:3]) or "end to what make did"
                reason = KstallError(
                    f"there is no {lacking}, and no error in a source tells why",
                    log=job.log,
                    next="if a compiler was killed (memory?), run the same command "
                    "again",
                )
            raise reason from error
    else:
        if missing := [name for name in targets if not (output / name).exists()]:
            raise KstallError(
                f"make is content, but there is no {', '.join(missing[:3])}",
                log=job.log,
                next=f"remove {output}, and run it again",
            )
    return heard


def _hearer(
    tree: AppliedTree, output: Path, targets: Collection[str], heard: _Heard
) -> Callable[[str], None]:
    current = ""

    def hear(line: str) -> None:
        nonlocal current
        if step := _STEP.match(line):
            name = step["name"]
            if step["what"] == "CHECK":
                name = kbuild.object_of(name)
            current = name if name in targets else ""
            if current and step["what"] in ("CC", "AS"):
                heard.made.add(current)
            return
        if failed := _FAILED.match(line):
            heard.failed.add(failed["name"].removeprefix(f"{output}/"))
            return
        if (one := _heard(line, tree)) is None:
            return
        # Of what is compiled for the build itself only errors come again.
        if current or one.kind == ERROR:
            heard.said.setdefault(current, []).append(one)

    return hear


def _heard(line: str, tree: AppliedTree) -> Said | None:
    if match := _OBJTOOL.match(line):
        return Said(match["file"], 0, OBJTOOL, match["text"])
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
    return Said(file, int(match["line"]), kind, text)


# -- what no compiler says -----------------------------------------------------------


def _divisions(output: Path, objects: Iterable[str]) -> list[Said]:
    """The divisions of 64 bits that only a library has."""
    return [
        Said(name, 0, DIVISION, f"{symbol}() is called, which the kernel has not")
        for name in objects
        for symbol in sorted(_undefined(output / name))
        if symbol in _DIVISIONS
    ]


def _undefined(path: Path) -> set[str]:
    with path.open("rb") as file:
        tables = ELFFile(file).iter_sections("SHT_SYMTAB")
        return {
            one.name
            for table in tables
            if isinstance(table, SymbolTableSection)
            for one in table.iter_symbols()
            if one["st_shndx"] == "SHN_UNDEF" and one.name
        }


def _unused(output: Path, objects: Iterable[str]) -> list[Said]:
    """The tracepoints that are defined, and called nowhere in ``objects``.

    As the tree's own ``make UT=1`` tells of a whole kernel: each call leaves the name
    in a section, which no image has.  Of a tree whose calls leave none all are unused.
    """
    defined: dict[str, str] = {}
    called: set[str] = set()
    for name in objects:
        with (output / name).open("rb") as file:
            elf = ELFFile(file)
            defined |= dict.fromkeys(_strings(elf, "__tracepoints_strings"), name)
            called |= _strings(elf, _CALLED)
    return [
        Said(where, 0, UNUSED, f"tracepoint {name} is defined, and nothing calls it")
        for name, where in sorted(defined.items())
        if name not in called
    ]


def _tells_of_calls(tree: Path) -> bool:
    """Whether a call of a tracepoint leaves its name in an object of ``tree``."""
    header = tree / "include/linux/tracepoint.h"
    return header.exists() and _CALLED.encode() in header.read_bytes()


def _strings(elf: ELFFile, section: str) -> set[str]:
    found = elf.get_section_by_name(section)
    if found is None:
        return set()
    return {part.decode() for part in found.data().split(b"\0") if part}


def _alone(
    job: Job, output: Path, headers: Sequence[str], objects: Sequence[str]
) -> list[Said]:
    """What is missing when a header is the first that a file includes."""
    said = []
    for header in headers:
        near = max(objects, key=lambda one: len(os.path.commonpath([one, header])))
        argv = _flags(output, near)
        path = job.tree.path / header
        done = process.run(
            # Twice: a second time has to do no harm.
            [*argv, *_ONLY_READ, "-include", path, "-include", path],
            cwd=output,
            env={**dict(job.variant.tools.env), "LC_ALL": "C"},
            log=job.log,
            check=False,
        )
        if done.returncode != 0:
            heard = (_heard(line, job.tree) for line in done.stdout.splitlines())
            errors = [one for one in heard if one is not None and one.kind == ERROR]
            said += [_told_of(header, one) for one in errors]
            if not errors:
                # Such as one that was killed, which says nothing of the header.
                raise process.CommandError(
                    done.argv,
                    done.returncode,
                    done.stdout,
                    log=job.log,
                    next="if the compiler was killed (memory?), run the same command "
                    "again",
                )
    return said


def _told_of(header: str, error: Said) -> Said:
    """An error in ``header`` or in what it includes, as a fault of ``header``."""
    if error.file == header:
        return Said(header, error.line, ALONE, error.text)
    # Without the line, which another patch may move: it would look like a new fault.
    return Said(header, 0, ALONE, f"in {error.file}: {error.text}")


def _flags(output: Path, name: str) -> list[str]:
    """What the compiler was called with for an object, but for its input and output."""
    place = output / name
    line = place.with_name(f".{place.name}.cmd").read_text().partition("\n")[0]
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
