# SPDX-License-Identifier: GPL-2.0-or-later
"""Prove tracepoint patch series on a real, booted kernel.

Data flows one way and a module imports only what stands before it::

    series -> tree -> kernel -> guest -> evidence -> report
"""

__version__ = "0.1.0"
