"""A control server in a process of its own: ``python -m tests.control.server_program CONFIG FOLDER [RUNNER]``.

It does what stands in lines of its standard input (``submit``, ``stop``), and writes how all stands into
``FOLDER/status.json`` several times a second.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import sys
import threading
import time
from pathlib import Path

import yaml

from jobpipe.config import load
from jobpipe.control.control_server import ControlServer
from jobpipe.control.control_service import Submission
from jobpipe.jobs.launchers import local_launcher

EVERY_SECONDS = 0.2


def main() -> None:
    """Serve until it is killed."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("kazoo").setLevel(logging.WARNING)
    config, folder = Path(sys.argv[1]), Path(sys.argv[2])
    local_launcher.RUNNER = sys.argv[3] if len(sys.argv) > 3 else "tests.control.supervision.cheap_runner"
    file = folder / "pipeline.yaml"
    loaded = load(config, environ={})
    with ControlServer(loaded, config_file=config, stop_seconds=40.0) as server:
        if loaded.server_lineage_file is not None:
            from jobpipe.control.lineage.lineage_reporter import LineageReporter

            LineageReporter(server, loaded, environ={}).start()  # it ends with the process
        threading.Thread(target=obey, args=(server, file), daemon=True).start()
        while True:
            show(server, folder / "status.json")
            time.sleep(EVERY_SECONDS)


def obey(server: ControlServer, file: Path) -> None:
    """Do what is asked for."""
    for line in sys.stdin:
        tree = yaml.safe_load(file.read_text())
        if line.strip() == "submit":
            server.submit(Submission(file=file, folder=file.parent, tree=tree))
        elif line.strip() == "stop":
            server.stop(tree["pipeline"]["name"])


def show(server: ControlServer, path: Path) -> None:
    """Write how all stands."""
    jobs = [job for pipeline in server.pipelines() for job in pipeline.jobs]
    runs = [run for pipeline in server.pipelines() for run in server.runs(pipeline.name, limit=1000)]
    found = {
        "at": time.time(),
        "pid": os.getpid(),
        "jobs": {job.name: dataclasses.asdict(job) for job in jobs},
        "runs": [dataclasses.asdict(run) for run in runs],
    }
    part = path.with_suffix(".part")
    part.write_text(json.dumps(found))
    os.replace(part, path)


if __name__ == "__main__":
    main()
