"""jobpipe where no PySpark is installed: publishers and subscribers work, and the rest says what is missing."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from jobpipe_registry.embedded.embedded_zookeeper import find_jars
from tests.spark.kit import ROOT

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120)]

PYTHON = ROOT / ".venv" / "compat" / "plain" / "bin" / "python"
USE = """
import sys
import pyarrow as pa
import jobpipe

schema = pa.schema([("id", pa.int64()), ("tags", pa.list_(pa.string()))])
with jobpipe.publisher("orders", schema=schema, name="till", required_subscribers=["billing"]) as orders:
    orders.write([{"id": 1, "tags": ["a"]}, {"id": 2, "tags": None}], batch_id=0)
    orders.close(final=True)


def doubled(batch, context):
    return pa.RecordBatch.from_pylist([{"id": 2 * row["id"]} for row in batch.to_pylist()])


flow = jobpipe.flow(
    subscribe="orders", name="billing", function=doubled, publish="double", starting="earliest",
    schema=pa.schema([("id", pa.int64())]), required_subscribers=["reader"], partitions=1,
)
assert jobpipe.run(flow, final=True) == 0
with jobpipe.subscribe("double", name="reader", starting="earliest") as batches:
    print([row["id"] for batch in batches for row in batch.to_pylist()])
assert "pyspark" not in sys.modules
"""
REFUSED = """
import jobpipe

for name in ("JobPipeSink", "await_end", "register", "session", "stoppable"):
    try:
        getattr(jobpipe, name)
    except jobpipe.errors.UnsupportedSpark as error:
        assert f"jobpipe.{name} needs PySpark" in str(error) and "pip install 'pyspark" in str(error)
    else:
        raise SystemExit(name)
"""


@pytest.fixture(scope="module", autouse=True)
def _plain() -> None:
    if not PYTHON.exists():
        pytest.skip("there is no environment without Spark: make compat")


def run(program: str, settings: dict[str, str], **environ: str) -> str:
    """Run a program; return what it printed."""
    names = {key.removeprefix("jobpipe.").replace(".", "__").upper(): value for key, value in settings.items()}
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("SPARK_", "ZOOKEEPER_"))}
    done = subprocess.run(
        [PYTHON, "-c", program],
        capture_output=True,
        text=True,
        timeout=100,
        env={**clean, **{f"JOBPIPE__{name}": value for name, value in names.items()}, **environ},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_publish_and_subscribe(settings_of_test: dict[str, str]) -> None:
    """With a registry that runs; between the two a flow in threads."""
    assert json.loads(run(USE, settings_of_test)) == [2, 4]


def test_the_others_say_what_is_missing(settings_of_test: dict[str, str]) -> None:
    """In one sentence."""
    run(f"import jobpipe.errors\n{REFUSED}", settings_of_test)


def test_an_embedded_registry_by_zookeeper_home(settings_of_test: dict[str, str], tmp_path: Path) -> None:
    """The jars are in the folder ``lib`` of ZooKeeper's distribution."""
    lib = tmp_path / "zookeeper" / "lib"
    lib.mkdir(parents=True)
    for jar in find_jars().iterdir():
        if jar.name.startswith(("zookeeper", "netty", "slf4j", "log4j", "metrics-core", "snappy")):
            (lib / jar.name).symlink_to(jar)
    home = {"jobpipe.home": str(tmp_path / "home")}
    program = f"{USE}\nfrom jobpipe_registry.embedded.embedded_zookeeper import EmbeddedZooKeeper\n"
    program += "EmbeddedZooKeeper(jobpipe.config.load().home).stop()"
    assert json.loads(run(program, settings_of_test | home, ZOOKEEPER_HOME=str(lib.parent))) == [2, 4]


def test_the_doctor_tells(settings_of_test: dict[str, str], tmp_path: Path) -> None:
    """No Spark, and no jars for an embedded ZooKeeper; both are warnings."""
    done = subprocess.run(
        [PYTHON.with_name("jobpipe"), "doctor", "--json"],
        capture_output=True,
        text=True,
        timeout=100,
        env={**os.environ, "JOBPIPE__HOME": str(tmp_path), "SPARK_HOME": "", "ZOOKEEPER_HOME": ""},
        check=False,
    )
    found: dict[str, Any] = {line["check"]: line for line in json.loads(done.stdout)}
    assert (found["pyspark"]["status"], found["zookeeper"]["status"]) == ("warn", "warn")
    assert "ZOOKEEPER_HOME" in found["zookeeper"]["detail"]
    assert "worker python" not in found
