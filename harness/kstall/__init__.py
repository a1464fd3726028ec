# SPDX-License-Identifier: GPL-2.0-or-later
"""Prove tracepoint patch series on a real, booted kernel.

Data flows one way: a package imports only packages before it, by public names::

    base -> debian -> verdict -> ftrace -> farm -> series -> tree -> build -> lint
         -> compile -> guest -> evidence -> cost -> report -> mail -> pipeline -> cli
"""

__version__ = "0.1.0"
