"""U10: ``jobpipe.run``, the last line of a job: signals, ends, exit codes, and what stands on the terminal."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest

from tests.spark.kit import JOBS, PATIENCE, ROOT, Place, until

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]

NOISE = ("\tat ", "Traceback", "KeyboardInterrupt", "py4j", " ERROR ", "Exception")


class Running:
    """A job in a process group of its own, as a shell starts it."""

    def __init__(self, place: Place, topic: str, what: str, command: list[str]) -> None:
        self.folder = place.folder / f"runs-{topic}-{what}-{len(list(place.folder.iterdir()))}"
        self.folder.mkdir()
        self._output = self.folder / "output"
        arguments = [str(JOBS / "runs.py"), str(self.folder), topic, what + "-name", what]
        with self._output.open("wb") as output:
            self.process = subprocess.Popen(
                [*command, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, **place.environ(), "PYTHONPATH": f"{ROOT}{os.pathsep}{JOBS}"},
            )

    def wait_for(self, file: str) -> None:
        """Wait until the job has left this file."""
        until(lambda: (self.folder / file).exists() or self.process.poll() is not None, file)
        assert (self.folder / file).exists(), self.output

    def signal(self, number: signal.Signals) -> None:
        """Signal the whole group, as a terminal does at Ctrl-C."""
        os.killpg(self.process.pid, number)

    @property
    def output(self) -> str:
        """All that stands on the terminal."""
        return self._output.read_text()

    def ours(self) -> list[str]:
        """Return our lines; there are no others that tell of an end."""
        noise = [line for line in self.output.splitlines() if any(each in line for each in NOISE)]
        assert not noise, self.output
        return [line for line in self.output.splitlines() if line.startswith("jobpipe: ")]

    def half_done(self) -> set[str]:
        """Return the micro-batches that were begun and not ended."""
        begun, done = (
            {each.name.partition("-")[2] for each in self.folder.glob(f"{what}-*")} for what in ("begun", "done")
        )
        return begun - done


@contextmanager
def running(place: Place, topic: str, what: str, *command: str) -> Iterator[Running]:
    job = Running(place, topic, what, list(command) or [sys.executable])
    try:
        yield job
    finally:
        if job.process.poll() is None:
            os.killpg(job.process.pid, signal.SIGKILL)
        job.process.wait()


def test_ctrl_c_ends_after_the_micro_batch(place: Place) -> None:
    """One line for the signal, one for the end, exit code 130, no trace; what the callback began is ended."""
    with place.publisher("slow") as publisher, running(place, "slow", "subscribe") as job:
        publisher.seal("q", 0, [pa.table({"a": [1, 2]})])
        job.wait_for("begun-1" if (job.folder / "begun-1").exists() else "begun-0")
        job.signal(signal.SIGINT)
        until(lambda: "SIGINT: each query ends after the micro-batch" in job.output, "it says that it ends")
        assert job.half_done()
        (job.folder / "go").touch()
        assert job.process.wait(PATIENCE) == 130
        assert not job.half_done()
        assert [line.partition(",")[0] for line in job.ours()][-1] == (
            "jobpipe: subscribe-name stopped by SIGINT after a whole micro-batch"
        )


def test_a_second_signal_ends_at_once(place: Place) -> None:
    """In the middle of a callback that does not return."""
    with place.publisher("slower") as publisher, running(place, "slower", "subscribe") as job:
        publisher.seal("q", 0, [pa.table({"a": [1, 2]})])
        job.wait_for("begun-0")
        job.signal(signal.SIGTERM)
        until(lambda: "SIGTERM: each query" in job.output, "it says that it ends")
        until(lambda: job.signal(signal.SIGTERM) or "stopped at once" in job.output, "it ends at once")
        assert job.process.wait(PATIENCE) == 143
        assert job.half_done()


def test_the_end_of_the_topic(place: Place) -> None:
    """It returns when the end mark is committed, with 0 and one line."""
    with place.publisher("ending") as publisher:
        publisher.seal("q", 0, [pa.table({"a": [1, 2]})])
        publisher.close(final=True)
        with running(place, "ending", "subscribe") as job:
            (job.folder / "go").touch()
            assert job.process.wait(PATIENCE) == 0
            (line,) = job.ours()
            assert line.startswith("jobpipe: subscribe-name came to its end, after ")


def test_spark_submit_leaves_the_end_to_us(place: Place) -> None:
    """Its JVM gets the signal too, and is the one that a supervisor knows; a publisher between two batches ends now."""
    submit = str(Path(sys.executable).with_name("spark-submit"))
    with running(place, "submitted", "publish", submit, "--master", "local[2]") as job:
        job.wait_for("done-0")
        os.kill(job.process.pid, signal.SIGTERM)
        assert job.process.wait(PATIENCE) == 143
        assert "stopped by SIGTERM after a whole micro-batch" in job.ours()[-1]


def test_a_failure_is_one_line_and_exit_code_one(place: Place) -> None:
    with running(place, "failing", "fail") as job:
        assert job.process.wait(PATIENCE) == 1
        (line,) = [line for line in job.output.splitlines() if line.startswith("jobpipe: ")]
        assert line.startswith("jobpipe: fail-name failed: ")
        assert "the test wants this batch to fail" in line
