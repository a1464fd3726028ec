# SPDX-License-Identifier: GPL-2.0-or-later
"""Programs of scripts/workloads/ as modules, for tests of what they do."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest


def program(
    project_root: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> ModuleType:
    """A program, or a module, of the workloads."""
    path = project_root / "scripts/workloads" / name
    monkeypatch.syspath_prepend(str(path.parent))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    module_name = path.stem.replace("-", "_")
    loader = importlib.machinery.SourceFileLoader(module_name, str(path))
    spec = importlib.util.spec_from_loader(module_name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    # Its dataclasses look for it there.
    monkeypatch.setitem(sys.modules, module_name, module)
    loader.exec_module(module)
    return module
