# SPDX-License-Identifier: GPL-2.0-or-later
"""Whether a document is well-formed reStructuredText, as docutils reads it.

Sphinx and the kernel's extensions are not needed: the names of their directives and
roles are registered, without effect.
"""

from __future__ import annotations

import io
import re
from typing import Any

import docutils.core
import docutils.nodes
import docutils.utils
from docutils.parsers.rst import Directive, directives, roles

# Directives whose bodies are documents, and those whose bodies are other text.
_DOCUMENTS = ("only", "versionadded", "versionchanged", "deprecated", "seealso")
_VERBATIM = (
    *("toctree", "code-block", "sourcecode", "literalinclude", "highlight", "index"),
    *("kernel-doc", "kernel-include", "kernel-figure", "kernel-image"),
    *("kernel-render", "kernel-abi", "kernel-feat", "maintainers-include"),
    *("flat-table", "cssclass", "tabularcolumns", "glossary", "default-domain"),
    *("c:function", "c:macro", "c:type", "c:struct", "c:union", "c:enum"),
    *("c:enumerator", "c:member", "c:var", "c:expr", "c:namespace", "graphviz"),
    *("c:namespace-push", "c:namespace-pop", "automodule", "autoclass", "mermaid"),
)
_ROLES = (
    *("ref", "doc", "term", "abbr", "command", "file", "envvar", "manpage", "option"),
    *("menuselection", "guilabel", "kbd", "program", "samp", "token", "download"),
    *("c:func", "c:type", "c:struct", "c:union", "c:enum", "c:macro", "c:member"),
    *("c:data", "c:expr", "c:var", "c:texpr", "py:mod", "py:class", "py:func"),
    *("func", "git", "cspan", "rspan", "numref"),
)
_LINE = re.compile(r"^<string>:(\d*): ")


class _Ignored(Directive):
    """A directive of Sphinx whose body is ignored."""

    optional_arguments = 1
    final_argument_whitespace = True
    has_content = True
    # Accepts any option.
    option_spec = type("_Any", (dict,), {"__missing__": lambda *_: str})()

    def run(self) -> list[docutils.nodes.Node]:
        return []


class _Parsed(_Ignored):
    """A directive of Sphinx whose body is a document, with faults of its own."""

    def run(self) -> list[docutils.nodes.Node]:
        node = docutils.nodes.container()
        self.state.nested_parse(self.content, self.content_offset, node)
        return [node]


def faults(text: str) -> tuple[tuple[int, str], ...]:
    """Line (from 1; 0: not known) and message of each warning and error."""
    _register()
    stream = io.StringIO()
    settings: dict[str, Any] = {
        "warning_stream": stream,
        "report_level": 2,
        "halt_level": 5,
        # Only the text itself is read.
        "file_insertion_enabled": False,
        "raw_enabled": False,
        "_disable_config": True,
        "traceback": True,
    }
    docutils.core.publish_doctree(text, settings_overrides=settings)
    return tuple(
        (int(match[1] or 0), line[match.end() :])
        for line in stream.getvalue().splitlines()
        if (match := _LINE.match(line))
        # Includes are switched off above.
        if '"include" directive disabled' not in line
    )


def _register() -> None:
    """Register the names with docutils, for the whole process."""
    for name in _VERBATIM:
        directives.register_directive(name, _Ignored)
    for name in _DOCUMENTS:
        directives.register_directive(name, _Parsed)
    for name in _ROLES:
        roles.register_generic_role(name, docutils.nodes.literal)
