# SPDX-License-Identifier: GPL-2.0-or-later
"""Values of arguments; each raises `argparse.ArgumentTypeError` or `ValueError`."""

from __future__ import annotations

import argparse
import math
import re


def seed(text: str) -> int:
    """A value for KCONFIG_SEED: decimal, or hexadecimal with 0x; not 0."""
    value = int(text, 0)
    if not 0 < value < 2**31:
        raise argparse.ArgumentTypeError(f"{text}: not from 1 to {2**31 - 1:#x}")
    return value


def positive(text: str) -> int:
    """A number that is at least 1."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text}: not at least 1")
    return number


def seconds(text: str) -> float:
    """A time in seconds, more than 0."""
    number = float(text)
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text}: not a time")
    return number


def worker_name(text: str) -> str:
    """A name that is also one of a directory, below which kernels can be built."""
    if not re.fullmatch(r"\w[\w.-]*", text):
        raise argparse.ArgumentTypeError(
            f"{text!r}: not a name of letters, digits, '.', '-' and '_'"
        )
    return text


def natural(text: str) -> int:
    """A number that is at least 0."""
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"{text}: less than 0")
    return number


def url(text: str) -> str:
    """An address for http or https, without blanks."""
    if not re.fullmatch(r"https?://[!-~]+", text):
        raise argparse.ArgumentTypeError(
            f"'{text}' is not like https://example.org/report.html"
        )
    return text


def processors(text: str) -> frozenset[int]:
    """A list of processors as taskset(1) takes it: numbers, and ranges of them."""
    chosen: set[int] = set()
    for word in text.split(","):
        if not (match := re.fullmatch(r"(\d{1,6})(?:-(\d{1,6}))?", word.strip())):
            raise argparse.ArgumentTypeError(f"{text}: not like 0,2 or 0-3")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise argparse.ArgumentTypeError(f"{text}: {last} is before {first}")
        chosen.update(range(first, last + 1))
    return frozenset(chosen)
