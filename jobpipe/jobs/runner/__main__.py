"""``python -m jobpipe.jobs.runner SNAPSHOT``: run one attempt of a job.

SNAPSHOT is a file, of a launcher on this host; or the snapshot itself, where a cluster has started this process.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path

from jobpipe.errors import ConfigError
from jobpipe.jobs.runner.attempt import run_attempt
from jobpipe.jobs.runner.driver_jvm import DriverJvm
from jobpipe.pipelines.loading.snapshot import Snapshot
from jobpipe.pipelines.model.job_states import MISCONFIGURED


def main() -> int:
    """Run it; return the exit code."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("kazoo").setLevel(logging.WARNING)  # at DEBUG it would log passwords
    logging.getLogger("py4j").setLevel(logging.WARNING)
    try:
        given = sys.argv[1]
        by_cluster = Snapshot.is_argument(given)
        snapshot = Snapshot.from_argument(given) if by_cluster else Snapshot.read(Path(given))
    except (IndexError, ConfigError) as error:
        sys.stderr.write(f"usage: python -m jobpipe.jobs.runner SNAPSHOT ({error})\n")
        return MISCONFIGURED
    return run_attempt(snapshot, DriverJvm() if by_cluster else None)


if __name__ == "__main__":
    sys.exit(main())
