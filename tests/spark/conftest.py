"""Fixtures of the Spark tests: one session, warmed up, and a namespace with one coordinator for each module."""

from __future__ import annotations

import os
import uuid
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import SparkSession

from jobpipe.publishing.coordinator_launcher import end_coordinators
from jobpipe.publishing.serving.shared_coordinator import end_shared
from jobpipe.spark.session.job_session import recommended_conf
from tests.spark.kit import Place, as_a_user, until

if TYPE_CHECKING:
    from tests.databases.mariadb import MariaDb
    from tests.databases.postgres import Postgres
    from tests.spark.jdbc.tables import MariaDbTables, PostgresTables, SqliteTables


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The session of all tests in this process; Java is started once."""
    builder = SparkSession.builder.master("local[2]").appName("tests")
    conf = {
        **recommended_conf(checkpoints_local=True),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.codegen.wholeStage": "true",  # these two as by default; see tests/harness/jvm.py
        "spark.sql.codegen.factoryMode": "FALLBACK",
        "spark.driver.memory": "1g",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
        "spark.sql.timeType.enabled": "true",
        "spark.sql.geospatial.enabled": "true",
    }
    for key, value in conf.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")  # errors that tests ask for; they come back as exceptions
    session.range(2).mapInArrow(lambda batches: batches, "id long").collect()  # a cold worker costs most of a second
    yield session
    session.stop()


@pytest.fixture(scope="module")
def place(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """The module's namespace; tests take topics of different names. Its coordinator lives to the module's end."""
    folder = tmp_path_factory.mktemp("place")
    place = Place(
        folder,
        {
            "jobpipe.home": str(home),
            "jobpipe.registerserver.topic.storage": f"/test-{uuid.uuid4().hex[:12]}/topics",
            "jobpipe.registerserver.session.timeout": "4s",
            "jobpipe.spool.dir": str(folder / "spool"),
            "jobpipe.discovery.timeout": "60s",
            "jobpipe.coordinator.linger": "3s",
        },
    )
    with place.publisher("keeper"):
        yield place
    end_coordinators()
    end_shared(place.config())


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose python3 has no package at all."""
    folder = tmp_path_factory.mktemp("stranger")
    venv.create(folder, with_pip=False, symlinks=True)
    return folder / "bin"


@pytest.fixture
def environ(stranger: Path) -> dict[str, str]:
    """The environment of somebody who has activated nothing and set nothing."""
    clean = as_a_user("PYTHON", "VIRTUAL_ENV", "MASTER")
    return {**clean, "PATH": f"{stranger}:{os.environ['PATH']}", "SPARK_LOCAL_IP": "127.0.0.1"}


@pytest.fixture(autouse=True)
def only_our_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the machine's own jobpipe settings out of the tests."""
    for name in list(os.environ):
        if name.startswith("JOBPIPE_"):
            monkeypatch.delenv(name)


@pytest.fixture
def maria(spark: SparkSession, mariadb: MariaDb, tmp_path: Path) -> Iterator[MariaDbTables]:
    """A database of the test's own; in the end no connection is left."""
    from tests.spark.jdbc.tables import MariaDbTables

    with mariadb.database() as name:
        yield MariaDbTables(spark, tmp_path, mariadb, name)
        until(lambda: not mariadb.sessions(), "the end of all sessions")


@pytest.fixture
def post(spark: SparkSession, postgres: Postgres, tmp_path: Path) -> Iterator[PostgresTables]:
    """A schema of the test's own; in the end no connection is left."""
    from tests.spark.jdbc.tables import PostgresTables

    with postgres.schema() as schema:
        yield PostgresTables(spark, tmp_path, postgres, schema)
        until(lambda: not postgres.sessions(), "the end of all sessions")


@pytest.fixture
def lite(spark: SparkSession, tmp_path: Path) -> SqliteTables:
    """A file of the test's own."""
    from tests.spark.jdbc.tables import SqliteTables

    return SqliteTables(spark, tmp_path)
