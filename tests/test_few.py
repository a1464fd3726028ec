# SPDX-License-Identifier: GPL-2.0-or-later
"""Of a long list the beginning is shown, and how much is missing."""

from __future__ import annotations

import pytest

from kstall.base import few


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ([], "none"),
        (["a"], "a"),
        (["a", "b"], "a, b"),
        (["a", "b", "c"], "a, b and 1 more"),
        (["a", "b", "c", "d"], "a, b and 2 more"),
    ],
)
def test_the_first_are_named_and_the_others_counted(
    names: list[str], text: str
) -> None:
    assert few(names, 2) == text
