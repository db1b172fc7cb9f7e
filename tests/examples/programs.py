"""Loads programs of ``examples``."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def load(path: Path) -> ModuleType:
    """Import an example from its file, as a program would not be; it may import its neighbours."""
    spec = importlib.util.spec_from_file_location(f"example_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(path.parent)
        patch.setitem(sys.modules, spec.name, module)
        spec.loader.exec_module(module)
        for neighbour in path.parent.glob("*.py"):
            sys.modules.pop(neighbour.stem, None)
    return module
