# SPDX-License-Identifier: GPL-2.0-or-later
"""What a program in C reports of a host that gave no time, as the agent reads it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kstall.base import process
from kstall_guest import workload

PROGRAM = """
#define LOST "lost"
#include "excuse.h"
int main(int count, char **arguments)
{
	double before = kept_waiting();
	FILE *file = count > 1 ? fopen(LOST, "w") : NULL;

	if (file) {
		fputs(arguments[1], file);
		fclose(file);
	}
	errno = ETIMEDOUT;
	excuse("no connection", before, 3);
	return errno != ETIMEDOUT;
}
"""


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        ("7.0 9.0\n", "8.4 9.0\n", []),
        (
            *("7.0 9.0\n", "11.0 9.0\n"),
            ["no connection in 3 s, and the host kept the guest waiting for 4 s"],
        ),
        (
            *("", "11.0 9.0\n"),
            ["no connection in 3 s: the host does not tell how much of that it gave"],
        ),
    ],
)
def test_a_program_in_c(
    project_root: Path, tmp_path: Path, before: str, after: str, says: list[str]
) -> None:
    header = project_root / "scripts/workloads/rdma-cq/excuse.h"
    # It waits for the host to write, which has written here.
    text = header.read_text().replace("sleep(2);", "")
    (tmp_path / "excuse.h").write_text(text)
    (tmp_path / "lost").write_text(before)
    (tmp_path / "x.c").write_text(PROGRAM)
    program = tmp_path / "x"
    flags = ("-Wall", "-Wextra", "-Werror")
    process.run(["gcc", *flags, "-o", program, tmp_path / "x.c"])
    place = tmp_path / workload.TROUBLE
    env = {**os.environ, "KSTALL_TROUBLE": str(place)}
    process.run([program, after], cwd=tmp_path, env=env)
    troubles = workload.troubles(tmp_path)
    assert [(trouble.kind, str(trouble)) for trouble in troubles] == [
        ("not-in-time", text) for text in says
    ]
