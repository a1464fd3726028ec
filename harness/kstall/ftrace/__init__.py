# SPDX-License-Identifier: GPL-2.0-or-later
"""The data of ftrace: format files, pages of the ring buffer, records.

In come format files and raw pages of the ring buffer; out come `Event` objects.  The
evidence of a guest and the recording of an operator's node are read by the same code,
so it needs only the standard library.
"""

from . import event, ring
from .event import Event, Member, parse_layout
from .ring import Malformed

__all__ = ["Event", "Malformed", "Member", "event", "parse_layout", "ring"]
