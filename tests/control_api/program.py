"""The server as a process whose core is in memory: ``python -m tests.control_api.program``."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from jobpipe.cli.operate.server_command import _print_address
from jobpipe.config import Config, load
from jobpipe.control.control_service import Control
from jobpipe.control.process.control_program import serve
from tests.control_api.kit import MemoryControl


@contextlib.contextmanager
def core(config: Config, config_file: Path | None) -> Iterator[Control]:
    """Return a core; say when it ends."""
    yield MemoryControl()
    print("the core has ended", flush=True)


if __name__ == "__main__":
    serve(load(), None, _print_address, make_core=core)
