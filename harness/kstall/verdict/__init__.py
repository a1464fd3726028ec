# SPDX-License-Identifier: GPL-2.0-or-later
"""What a check says: comparisons, and the verdict that follows from them.

In come a function and what it judges; out comes a `Check`, as it is reported, whatever
the function does.  It knows nothing of what is judged.
"""

from .verdict import (
    Check,
    Comparison,
    Excerpt,
    Explanation,
    Kind,
    Status,
    Tainted,
    Verdict,
    run_check,
)

__all__ = [
    "Check",
    "Comparison",
    "Excerpt",
    "Explanation",
    "Kind",
    "Status",
    "Tainted",
    "Verdict",
    "run_check",
]
