# SPDX-License-Identifier: GPL-2.0-or-later
"""What two workers are worth, and what one more of anything costs, by real runs.

    .venv/bin/python tests/farm_measured.py pinned DIRECTORY [--level LEVEL]
    .venv/bin/python tests/farm_measured.py more DIRECTORY [--level LEVEL]

Hours, on two processors with nothing else to do.  ``DIRECTORY`` is new, gets the caches
and the runs, and needs 60 GB.  Nothing is taken over but what was downloaded, and the
roots of guests, so that compilers start with no object.  Without workers, a run on one
processor and one on two differ in more than that, so ``pinned`` compares one worker on
one processor with two workers on one each.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from kstall.base import cache
from live import kstall

ROOT = Path(__file__).parents[1]
#: As no kernel is waited for if there is one for each worker to build.
PINNED_TREES = ("debian:7.3", "debian:7.2")
PINNED_SERIES = ("drm-sched", "io_uring-sq", "rdma-cq")
_DOWNLOADED = ("roots", "sources")
# Proven, and where a series does not apply: no other end says how long a proof takes.
_ENDED = (0, 3)


@dataclass(frozen=True)
class Matrix:
    """What is proven: each series on each tree for each architecture."""

    trees: tuple[str, ...]
    series: tuple[str, ...]
    archs: tuple[str, ...]
    level: str

    def text(self) -> str:
        """The matrix file."""

        def words(values: Sequence[str]) -> str:
            return "[" + ", ".join(f'"{value}"' for value in values) + "]"

        return (
            f"[matrix]\ntrees = {words(self.trees)}\nseries = {words(self.series)}\n"
            f'archs = {words(self.archs)}\nlevels = ["{self.level}"]\n'
        )


#: Runs a matrix in a cache and gives the seconds: directory, name, matrix, number of
#: workers, processors.
Run = Callable[[Path, str, Matrix, int, Sequence[int]], float]


def run(
    directory: Path, name: str, what: Matrix, workers: int, processors: Sequence[int]
) -> float:
    """Seconds of a run in the cache ``directory/cache``, on these processors only.

    Raises:
        SystemExit: it did not end with a proof; the log is named.
    """
    directory.mkdir(parents=True, exist_ok=True)
    place = directory / "cache"
    if not place.exists():
        place.mkdir()
        for part in _DOWNLOADED:
            (place / part).symlink_to(cache.default_dir() / part)
    file = directory / f"{name}.toml"
    file.write_text(what.text(), encoding="utf-8")
    log = directory / f"{name}.log"
    words = ("--matrix", str(file), "--workers", str(workers))
    began = time.monotonic()
    with log.open("wb") as output:
        done = subprocess.run(
            [
                *("taskset", "-c", ",".join(map(str, processors))),
                *(*kstall(ROOT), "validate", *words, "--out", str(directory / "out")),
            ],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=os.environ | {"KSTALL_CACHE": str(place)},
        )
    took = time.monotonic() - began
    if done.returncode not in _ENDED:
        raise SystemExit(f"{name} ended with status {done.returncode}: see {log}")
    return took


def pinned(
    directory: Path, level: str, processors: Sequence[int], measure: Run = run
) -> Iterator[str]:
    """Lines on one worker and on two, each with a processor to itself."""
    first, second = processors[:2]
    what = Matrix(PINNED_TREES, PINNED_SERIES, ("x86_64",), level)
    one = measure(directory / "one", "one", what, 1, (first,))
    yield f"one worker    {one:7.0f} s"
    two = measure(directory / "two", "two", what, 2, (first, second))
    yield f"two workers   {two:7.0f} s"
    yield f"efficiency    {one / 2 / two:7.2f}"


def more(
    directory: Path, level: str, processors: Sequence[int], measure: Run = run
) -> Iterator[str]:
    """Lines on what a series, a tree and an architecture add to a matrix that was
    proven before: cold, and when it is run again with nothing changed."""
    what = Matrix(("debian:7.3",), ("drm-sched",), ("x86_64",), level)
    steps = (
        ("a series", what),
        ("one more series", what := replace(what, series=(*what.series, "rdma-cq"))),
        ("one more tree", what := replace(what, trees=(*what.trees, "debian:7.2"))),
        ("one more architecture", replace(what, archs=("x86_64", "arm64"))),
    )
    yield f"{'':22}  cold, s  again, s"
    before = 0.0
    for name, matrix in steps:
        file = name.replace(" ", "-")
        cold = measure(directory, f"{file}-cold", matrix, 2, processors[:2])
        again = measure(directory, f"{file}-again", matrix, 2, processors[:2])
        yield f"{name:22}  {cold - before:7.0f}  {again - before:8.0f}"
        before = again


def main() -> None:
    """Print a table, line by line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("pinned", "more"))
    parser.add_argument("directory", type=Path)
    parser.add_argument("--level", default="quick")
    words = parser.parse_args()
    if words.directory.exists():
        parser.error(f"{words.directory} exists")
    processors = sorted(os.sched_getaffinity(0))
    if len(processors) < 2:
        parser.error("this takes two processors")
    measured = pinned if words.what == "pinned" else more
    for line in measured(words.directory.absolute(), words.level, processors):
        print(line, flush=True)


if __name__ == "__main__":
    main()
