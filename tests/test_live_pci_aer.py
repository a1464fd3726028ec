# SPDX-License-Identifier: GPL-2.0-or-later
"""Mutants of the pci-aer series: each is caught by the check made for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from kstall.series import Project
from live import require_caught

pytestmark = [pytest.mark.live, pytest.mark.deep]

SERIES = "pci-aer"
EVENT = "0002-PCI-trace-Add-a-RAS-tracepoint-for-received-AER-erro.patch"
DROPPED = "0003-PCI-AER-Trace-error-messages-lost-to-FIFO-overflow.patch"
CALL = """\
+	if (trace_pcie_aer_msg_enabled())
+		trace_call__pcie_aer_msg(root, info->severity, info->id,
+					 info->multi_error_valid, false,
+					 info->error_dev_num, logged);
+
"""
HANDLE = "+\tif (found)\n \t\taer_handle_err_devices(info);\n"


@pytest.mark.parametrize(
    ("file", "old", "new", "checks"),
    [
        pytest.param(
            EVENT,
            CALL + HANDLE,
            HANDLE + CALL,
            {"told_before_recovery"},
            id="told when all is over",
        ),
        pytest.param(
            EVENT,
            "+	if (trace_pcie_aer_msg_enabled())\n",
            "+	if (found && trace_pcie_aer_msg_enabled())\n",
            {"unknown_sender_is_told", "messages_are_the_root_ports_totals"},
            id="only of those whose sender is known",
        ),
        pytest.param(
            EVENT,
            "+					 info->error_dev_num, logged);\n",
            "+					 info->error_dev_num, logged ?: found);\n",
            {"merged_messages_are_told", "logged_is_the_aer_events"},
            id="details that nobody has seen",
        ),
        pytest.param(
            EVENT,
            "+		__entry->multi		= multi;\n",
            "+		__entry->multi		= nr_dev > 1;\n",
            {"several_messages_in_one"},
            id="multi means several devices",
        ),
        pytest.param(
            EVENT,
            "PCI_BUS_NUM(__entry->source)",
            "(__entry->source & 0xff)",
            {"text_names_the_sender"},
            id="another bus in the text",
        ),
        pytest.param(
            DROPPED,
            "+					 ERR_COR_ID(e_src.id),\n",
            "+					 ERR_UNCOR_ID(e_src.id),\n",
            {"dropped_messages_are_told"},
            id="the sender of the other kind",
        ),
        pytest.param(
            DROPPED,
            "+					 status & PCI_ERR_ROOT_MULTI_COR_RCV,\n"
            "+					 true, 0, 0);\n",
            "+					 status & PCI_ERR_ROOT_MULTI_COR_RCV,\n"
            "+					 false, 0, 0);\n",
            {
                "dropped_messages_are_told",
                "messages_are_the_root_ports_totals",
                "scripts_add_up",
            },
            id="dropped, but not said so",
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
