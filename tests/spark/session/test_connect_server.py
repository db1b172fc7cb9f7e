"""A client publishes and subscribes over a real server of Spark Connect. Only the server has jobpipe."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pyspark
import pytest

from jobpipe.publishing.serving.shared_coordinator import end_shared
from jobpipe.testing import Checker
from tests.spark.kit import PATIENCE, Place, start_program, write_files

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"
JOBS = Path(__file__).parents[1] / "jobs"


def free_port() -> int:
    """Return a port of loopback that nobody has now."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def wait_for(port: int, server: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until the server takes connections."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1.0).close()
            return
        except OSError:
            assert server.poll() is None, log.read_text()[-3000:]
            assert time.monotonic() < deadline, log.read_text()[-3000:]
            time.sleep(0.1)


@pytest.fixture
def url(place: Place) -> Iterator[str]:
    """Where a server answers whose settings name the registry."""
    port, log = free_port(), place.folder / "connect-server.log"
    conf = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.ui.enabled": "false",
        "spark.driver.memory": "1g",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        **{f"spark.{key}": value for key, value in place.settings.items()},
    }
    command = [str(Path(pyspark.__file__).parent / "bin" / "spark-submit"), "--class", SERVER, "--master", "local[2]"]
    command += [word for key, value in conf.items() for word in ("--conf", f"{key}={value}")]
    with log.open("wb") as file:
        environ = {**os.environ, "PYSPARK_PYTHON": sys.executable}
        server = subprocess.Popen([*command, "spark-internal"], stdout=file, stderr=subprocess.STDOUT, env=environ)
    try:
        wait_for(port, server, log)
        yield f"sc://127.0.0.1:{port}"
    finally:
        server.terminate()
        try:
            server.wait(30)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
        end_shared(place.config())


def test_a_client_publishes_and_subscribes(place: Place, url: str) -> None:
    """Each row once, by the oracle, over two hops; another run of the client goes on where the first one ended."""
    rows, journal = place.rows("numbered", partitions=2, rows=30)
    folder = place.folder / "connect"
    for batches, run in ((range(3), 1), (range(3, 5), 2)):
        write_files(folder / "files", rows, batches)
        for batch_id in batches:
            with journal.sealing(batch_id, rows.ranges(batch_id)):
                pass
        client = start_program(place, sys.executable, JOBS / "connect_client.py", url, folder, PYTHONPATH="")
        assert client.result() == sorted([*range(5)] * run)
        for topic in ("first", "second"):
            checker = Checker(rows, journal)
            checker.take(
                pq.read_table(folder / f"read-{topic}").sort_by([("partition", "ascending"), ("number", "ascending")])
            )
            checker.check()
