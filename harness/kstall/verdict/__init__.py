# SPDX-License-Identifier: GPL-2.0-or-later
"""Checks: comparisons, and the verdict that follows from them.

In come a function and its evidence; out comes a `Check`, as it is reported, whatever
the function does.  It knows nothing of what is judged.
"""

from .verdict import (
    Check,
    Comparison,
    EventRecord,
    Excerpt,
    Explanation,
    Kind,
    Model,
    Status,
    Tainted,
    Verdict,
    claim_of,
    described,
    run_check,
    run_checks,
)

__all__ = [
    "Check",
    "Comparison",
    "EventRecord",
    "Excerpt",
    "Explanation",
    "Kind",
    "Model",
    "Status",
    "Tainted",
    "Verdict",
    "claim_of",
    "described",
    "run_check",
    "run_checks",
]
