"""The demo's private folder: locked while it is used, wiped at the start, with a configuration of its own.

What a demo starts bears its mark, an environment variable that names the folder. So the next demo in the folder finds
and ends what one that was killed has left.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import sys
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from pathlib import Path

import psutil
import yaml

from jobpipe.errors import ConfigError
from jobpipe_registry.embedded.embedded_zookeeper import EmbeddedZooKeeper

MARK = "JOBPIPE_DEMO"  # environment variable that every process of one demo inherits, with its folder as the value
GRACE_SECONDS = 5.0  # from SIGTERM to SIGKILL

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
            f"{work} is not empty, and this demo, which would empty it, did not make it; give another folder",
            folder=str(work),
        )
    with (work / LOCK).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(f"another demo is running in {work}; give another folder", folder=str(work)) from None
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
    # Four JVMs start at once on what may be two cores: a topic may take longer to appear than by default. Dead letters,
    # which no job reads, are counted at the end, however long that takes.
    settings = {
        "jobpipe": {"home": str(work / HOME), "discovery": {"timeout": "5min"}, "retention": {"time": "24h"}},
    }
    return "# written by jobpipe demo\n" + yaml.safe_dump(settings)


def job_environment(work: Path) -> dict[str, str]:
    """Return what the environment of the demo's jobs has besides that of this process."""
    pythons = dict.fromkeys(("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"), sys.executable)
    return {MARK: str(work), "SPARK_LOCAL_IP": "127.0.0.1", **pythons}


@contextmanager
def own_environment(environ: MutableMapping[str, str] = os.environ) -> Iterator[None]:
    """Take this process's settings of jobpipe and Spark away for the time of the demo: its jobs would inherit them."""
    foreign = {
        name: value for name, value in environ.items() if name in FOREIGN or name.upper().startswith("JOBPIPE__")
    }
    for name in foreign:
        del environ[name]
    try:
        yield
    finally:
        environ.update(foreign)


def marked_processes(work: Path) -> list[psutil.Process]:
    """Return the live processes of the demo in ``work``: the jobs and all that they started, detached or not."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get(MARK) == str(work) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return [process for process in found if process.pid != os.getpid()]


def end_processes(processes: list[psutil.Process]) -> None:
    """End these processes and wait for them: SIGTERM, and SIGKILL after :data:`GRACE_SECONDS`."""
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.terminate()
    _, alive = psutil.wait_procs(processes, timeout=GRACE_SECONDS)
    for process in alive:
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(alive, timeout=GRACE_SECONDS)
