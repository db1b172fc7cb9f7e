"""Runs the server, or a reader, of one transport."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

from benchmarks.side_by_side.obey import obey

if __name__ == "__main__":
    name, kind, folder = sys.argv[1:]
    module = importlib.import_module(f"benchmarks.side_by_side.transports.{name}")
    obey(lambda: getattr(module, kind)(Path(folder)))
