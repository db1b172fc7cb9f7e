"""Process 1 of a host: ``host_init.py`` names the host, makes its mounts, says so, and reaps what is left to it.

Runs in namespaces of its own; its end is the end of all the host's processes. It ends with its standard input, so that
hosts vanish with the tests that made them, however those end. Started as a file, with nothing of the project imported.
"""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys


def main() -> None:
    """Obey one order: ``{"name": ..., "binds": [[source, target], ...]}``."""
    order = json.loads(sys.stdin.readline())
    socket.sethostname(order["name"])
    for source, target in order["binds"]:
        subprocess.run(["mount", "--bind", source, target], check=True)  # noqa: S607 - of the system, as is its place
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps the orphans of the host
    print("ready", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
