# SPDX-License-Identifier: GPL-2.0-or-later
"""Whether a document is well-formed reStructuredText, as docutils reads it.

Sphinx and the kernel's extensions are not needed for that: what they add is known by
name, and read as if it had no effect.
"""

from __future__ import annotations

import io
import re
from typing import Any

import docutils.core
import docutils.nodes
import docutils.utils
from docutils.parsers.rst import Directive, directives, roles

# Their bodies are documents themselves, or text of another kind.
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
    """A directive of Sphinx's, whose body is not looked at."""

    optional_arguments = 1
    final_argument_whitespace = True
    has_content = True
    # Whatever it is given.
    option_spec = type("_Any", (dict,), {"__missing__": lambda *_: str})()

    def run(self) -> list[docutils.nodes.Node]:
        return []


class _Read(_Ignored):
    """One whose body is a document: faults in it are faults."""

    def run(self) -> list[docutils.nodes.Node]:
        node = docutils.nodes.container()
        self.state.nested_parse(self.content, self.content_offset, node)
        return [node]


def faults(text: str) -> tuple[tuple[int, str], ...]:
    """Line (from 1; 0: not known) and message of each warning and error."""
    _know()
    said = io.StringIO()
    settings: dict[str, Any] = {
        "warning_stream": said,
        "report_level": 2,
        "halt_level": 5,
        # Nothing is read but the text itself.
        "file_insertion_enabled": False,
        "raw_enabled": False,
        "_disable_config": True,
        "traceback": True,
    }
    docutils.core.publish_doctree(text, settings_overrides=settings)
    return tuple(
        (int(match[1] or 0), line[match.end() :])
        for line in said.getvalue().splitlines()
        if (match := _LINE.match(line))
        # Includes are switched off above, and what they would bring is not looked at.
        if '"include" directive disabled' not in line
    )


def _know() -> None:
    """Tell docutils the names; it keeps them for the process."""
    for name in _VERBATIM:
        directives.register_directive(name, _Ignored)
    for name in _DOCUMENTS:
        directives.register_directive(name, _Read)
    for name in _ROLES:
        roles.register_generic_role(name, docutils.nodes.literal)
