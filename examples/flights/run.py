"""The demo: run the pipeline of this folder over an embedded ZooKeeper of its own, and check what its jobs found.

    python examples/flights/run.py     # or: make demo

Writes to .demo, or another folder --work, and leaves nothing running. Exit code 0 if every fact is right.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import yaml
from check import AUDIT, BROKEN, Fact, all_facts, show
from prepare import flights_zip, split

from jobpipe.config import load
from jobpipe.control.rest.rest_client import ControlClient, ServerAddress
from jobpipe.errors import JobpipeError
from jobpipe.plural import counted
from jobpipe_registry.embedded.embedded_zookeeper import EmbeddedZooKeeper

PIPELINE = Path(__file__).resolve().with_name("pipeline.yaml")
JOBPIPE = Path(sys.executable).with_name("jobpipe")
LOCK = "demo.lock"  # also the sign that the folder is ours to empty
CONFIG = "jobpipe.yaml"
MARK = "JOBPIPE_DEMO"  # environment variable that all processes of the jobs inherit, with the folder as the value
FOREIGN = ("JOBPIPE_CONFIG", "SPARK_HOME", "SPARK_CONF_DIR", "PYSPARK_SUBMIT_ARGS")  # would lead away from this demo
TIMEOUT = "600"
SERVER_SECONDS = 30.0  # until the control server serves its page
COORDINATOR_SECONDS = 30.0  # from the end of the last job to the end of the last coordinator
GRACE_SECONDS = 5.0  # from SIGTERM to SIGKILL


@contextmanager
def private_folder(work: Path) -> Iterator[None]:
    """Lock and empty the folder, end what a demo that was killed has left running there, write a configuration."""
    work.mkdir(parents=True, exist_ok=True)
    if any(work.iterdir()) and not (work / LOCK).exists():
        sys.exit(f"{work} is not empty, and no demo has made it; give another folder: --work")
    with (work / LOCK).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            sys.exit(f"another demo is running in {work}; give another folder: --work")
        end(running(work))
        if (work / "home").is_dir():
            EmbeddedZooKeeper(work / "home").stop()
        for entry in work.iterdir():
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            elif entry.name != LOCK:
                entry.unlink()
        (work / "home").mkdir(mode=0o700)
        # Four JVMs start at once on what may be two cores: a topic may take longer to appear than by default. Dead
        # letters, which no job reads, are counted at the end, however long that takes.
        settings = {"home": str(work / "home"), "discovery": {"timeout": "5min"}, "retention": {"time": "24h"}}
        (work / CONFIG).write_text(yaml.safe_dump({"jobpipe": settings}))
        yield


def running(work: Path) -> list[psutil.Process]:
    """Return the live processes of the jobs in ``work``, and all that they started, detached or not."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get(MARK) == str(work) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def end(processes: list[psutil.Process]) -> None:
    """End them and wait for them: SIGTERM, and SIGKILL for those that still live after a while."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        for process in processes:
            with contextlib.suppress(psutil.Error):
                process.send_signal(number)
        _, processes = psutil.wait_procs(processes, timeout=GRACE_SECONDS)


def own_environment(work: Path) -> dict[str, str]:
    """Return the environment of all that the demo starts."""
    ours = {
        name: value
        for name, value in os.environ.items()
        if name not in FOREIGN and not name.upper().startswith("JOBPIPE__")
    }
    pythons = dict.fromkeys(("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"), sys.executable)
    return {**ours, **pythons, "SPARK_LOCAL_IP": "127.0.0.1", MARK: str(work)}


@contextmanager
def control_server(work: Path) -> Iterator[str]:
    """Run a control server, for its page alone; yield where a browser sees it, or why it does not."""
    command = [sys.executable, "-m", "jobpipe.cli.main", "--config", work / CONFIG, "server", "--detached"]
    with (work / "server.out").open("w") as out:
        server = subprocess.Popen(command, env=own_environment(work), stdout=out, stderr=out)
    try:
        yield page_address(work, server)
    finally:
        end([psutil.Process(server.pid)] if server.poll() is None else [])
        server.wait()


def page_address(work: Path, server: subprocess.Popen[bytes]) -> str:
    """Return the address of the page once it is served, for the first browser that opens it."""
    config = load(work / CONFIG, environ={})
    until = time.monotonic() + SERVER_SECONDS
    while server.poll() is None and time.monotonic() < until:
        try:
            if (address := ServerAddress.local(config)) is not None:
                if not sys.stdout.isatty():  # a log may be read by others
                    return f"{address.url} ({JOBPIPE} --config {work / CONFIG} server --sign-in prints how to sign in)"
                return f"{address.url}{ControlClient(address).sign_in_code().path}"
        except JobpipeError:  # it comes just now
            pass
        time.sleep(0.1)
    return f"none: the control server does not serve it; {work / 'server.out'} says why"


def run_jobs(work: Path) -> int:
    """Run the pipeline in its folder until its jobs and their coordinators have ended; return its exit code."""
    command = [JOBPIPE, "--config", work / CONFIG, "pipeline", "run", PIPELINE, "--set", f"work={work}"]
    jobs = subprocess.Popen([*command, "--timeout", TIMEOUT], env=own_environment(work))
    try:
        code = jobs.wait()
    except KeyboardInterrupt:
        jobs.terminate()
        jobs.wait()  # each job ends after its micro-batch, or, after a second Ctrl-C, at once
        raise
    return code


def wait_ended(work: Path) -> None:
    """Wait for the coordinators to end, for a while; what is left then is a fact."""
    until = time.monotonic() + COORDINATOR_SECONDS
    while running(work) and time.monotonic() < until:
        time.sleep(0.2)


def run(work: Path, files: int) -> int:
    """Prepare the input, run the jobs, and check their results; end all that was started, whatever happens."""
    started = time.monotonic()
    zookeeper = EmbeddedZooKeeper(work / "home")
    try:
        split(flights_zip(), work / "input", files, BROKEN)
        zookeeper.ensure()
        with control_server(work) as page:
            print(f"See the jobs move, in a browser: {page}", flush=True)
            code = run_jobs(work)
        if code:
            print(f"the logs are in {work / 'home' / 'logs'}")
            return code
        wait_ended(work)
        facts = all_facts(work, work / "home" / "spool")
        facts.append(Fact("jobs and coordinators left running", 0, len(running(work))))
    finally:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)  # each step has a deadline
        end(running(work))
        zookeeper.stop()
    facts.append(Fact("ZooKeeper left running", False, zookeeper.status() is not None))
    show(facts, f"facts, after {time.monotonic() - started:.0f} s")
    if not all(fact.ok for fact in facts):
        print(f"the logs are in {work / 'home' / 'logs'}")
        return 1
    program = "jobpipe" if shutil.which("jobpipe") else JOBPIPE
    print(
        f"All {len(facts)} facts hold. The report of the job `report` is {work / 'report.csv'}.\n"
        f"Next, a pipeline of your own: {program} pipeline init orders && {program} pipeline run orders/pipeline.yaml"
    )
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, default=Path(".demo"), help="folder, emptied first (default .demo)")
    parser.add_argument("--files", type=int, default=120, help="micro-batches of the first job (default 120)")
    args = parser.parse_args()

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)  # as Ctrl-C
    work = args.work.absolute()
    print(
        f"Four Spark jobs pass {AUDIT['rows']:,} flights to each other, in {counted(args.files, 'micro-batch')}. "
        "This takes two to three minutes on two idle cores.\n"
        "The first minute shows no rows: each job starts its own Spark.\n"
        f"Everything is written to {work}, and nothing is left running.",
        flush=True,
    )
    try:
        with private_folder(work):
            return run(work, args.files)
    except KeyboardInterrupt:
        print("interrupted; everything that the demo started was stopped")
        return 130


if __name__ == "__main__":
    sys.exit(main())
