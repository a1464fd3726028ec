# SPDX-License-Identifier: GPL-2.0-or-later
"""Mutants of the pci-aer series: each is caught by the check made for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from kstall.series import Project
from live import require_caught

pytestmark = [pytest.mark.live, pytest.mark.deep]

SERIES = "pci-aer"
EVENT = "0001-PCI-trace-Add-a-tracepoint-for-AER-messages-that-Root.patch"
CALL = "+\ttrace_call__pcie_aer_msg(root, e_src->status, e_src->id, dropped);\n"
DROPPED = "+\t\t\taer_trace_msg(rp, &e_src, true);\n"


@pytest.mark.parametrize(
    ("file", "old", "new", "checks"),
    [
        pytest.param(
            EVENT,
            DROPPED,
            "+\t\t\t;\n",
            {"dropped_messages_are_told", "told_by_the_interrupt"},
            id="nothing of what is dropped",
        ),
        pytest.param(
            EVENT,
            DROPPED,
            DROPPED.replace("true", "false"),
            {
                "dropped_messages_are_told",
                "messages_are_the_root_ports_totals",
                "scripts_add_up",
            },
            id="dropped, but not said so",
        ),
        pytest.param(
            EVENT,
            CALL,
            CALL.replace("->status,", "->status & PCI_ERR_ROOT_COR_RCV,"),
            {"several_messages_in_one", "kinds_are_told_apart"},
            id="no bit but one",
        ),
        pytest.param(
            EVENT,
            CALL,
            CALL.replace("e_src->id", "ERR_COR_ID(e_src->id)"),
            {"kinds_are_told_apart", "registers_are_the_ports"},
            id="the sender of one kind only",
        ),
        pytest.param(
            EVENT,
            "+		PCI_BUS_NUM(__entry->err_src),\n",
            "+		PCI_BUS_NUM(__entry->err_src >> 16),\n",
            {"text_names_the_sender"},
            id="another bus in the text",
        ),
        pytest.param(
            EVENT,
            '+	{ PCI_ERR_ROOT_MULTI_COR_RCV,	"MULTI_COR"},		\\\n',
            '+	{ PCI_ERR_ROOT_MULTI_COR_RCV,	"COR"},		\\\n',
            {"text_names_the_sender"},
            id="another name of a bit",
        ),
    ],
)
def test_a_mutant_is_caught_by_name(
    project_copy: Project,
    tmp_path: Path,
    file: str,
    old: str,
    new: str,
    checks: set[str],
) -> None:
    require_caught(project_copy, tmp_path / "out", SERIES, file, old, new, *checks)
