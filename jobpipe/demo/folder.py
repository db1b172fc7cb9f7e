"""The demo's private folder: locked while it is used, wiped at the start, with a configuration of its own."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import yaml

from jobpipe.demo.jobs import MARK, end_processes, marked_processes
from jobpipe.errors import ConfigError
from registry.embedded import EmbeddedZooKeeper

__all__ = ["CONFIG", "HOME", "LOCK", "job_environment", "private_folder"]

LOCK = "demo.lock"  # also the sign that the folder is ours to wipe
CONFIG = "jobpipe.yaml"
HOME = "home"

# Names the environment may hold that would lead the jobs away from this demo.
FOREIGN = ("JOBPIPE_CONFIG", "SPARK_HOME", "SPARK_CONF_DIR", "PYSPARK_SUBMIT_ARGS")


@contextmanager
def private_folder(work: Path) -> Iterator[None]:
    """Make, lock and wipe ``work``, and write its configuration.

    What an earlier demo in this folder left running, after a SIGKILL for instance, is ended first.

    Raises:
        ConfigError: it holds other things, or another demo runs in it.
    """
    work.mkdir(parents=True, exist_ok=True)
    if any(work.iterdir()) and not (work / LOCK).exists():
        raise ConfigError(
            f"{work} is not empty and no folder of this demo, which wipes it; name another", folder=str(work)
        )
    with (work / LOCK).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(f"another demo runs in {work}; name another folder", folder=str(work)) from None
        _wipe(work)
        (work / HOME).mkdir(mode=0o700)
        (work / CONFIG).write_text(_configuration(work))
        yield


def _wipe(work: Path) -> None:
    end_processes(marked_processes(work))
    if (work / HOME).is_dir():
        EmbeddedZooKeeper(work / HOME).stop()
    for entry in work.iterdir():
        if entry.name == LOCK:
            continue
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def _configuration(work: Path) -> str:
    # Four JVMs start at once on what may be two cores: a topic may take longer to appear than by default.
    settings = {"jobpipe": {"home": str(work / HOME), "discovery": {"timeout": "5min"}}}
    return "# written by jobpipe demo\n" + yaml.safe_dump(settings)


def job_environment(work: Path, environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment of the jobs: that of this process, without its settings of jobpipe and Spark."""
    environ = os.environ if environ is None else environ
    kept = {
        name: value
        for name, value in environ.items()
        if name not in FOREIGN and not name.upper().startswith("JOBPIPE__")
    }
    return {**kept, "JOBPIPE_CONFIG": str(work / CONFIG), "SPARK_LOCAL_IP": "127.0.0.1", MARK: str(work)}
