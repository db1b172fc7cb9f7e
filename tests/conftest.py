"""Fixtures for all tests: one embedded ZooKeeper a session, a namespace and a spool of its own for each test."""

from __future__ import annotations

import gc
import os
import re
import shlex
import signal
import sys
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from jobpipe.config import Config, load
from jobpipe.publishing.coordinator_launcher import end_coordinators
from jobpipe_registry.embedded.embedded_zookeeper import EmbeddedZooKeeper
from tests.harness.jvm import QUICK, quick_driver, quick_zookeeper
from tests.parts import CORE, ROOT, RUN_AGAIN

if TYPE_CHECKING:
    from tests.databases.mariadb import MariaDb
    from tests.databases.mysql import MySql
    from tests.databases.postgres import Postgres

# The machine is shared and slow at times; a property that hangs is caught by the test's own deadline.
settings.register_profile("jobpipe", deadline=None, print_blob=True)
settings.load_profile("jobpipe")

# A shell's background job ignores Ctrl-C, and so would all programs that the tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The first are of the JVM that Spark starts for a driver, in this or another program; the others of the one before it.
os.environ["SPARK_SUBMIT_OPTS"], os.environ["SPARK_LAUNCHER_OPTS"] = quick_driver(), QUICK
os.environ["SERVER_JVMFLAGS"] = quick_zookeeper()

# Python takes a module that is written twice in a second for the same one, if it has as many bytes. Tests write such.
# What is imported to collect tests is kept compiled: each worker and thousands of programs read it.
os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
sys.dont_write_bytecode = False  # until pytest_collection_finish

# Spark starts its workers with the first python3 of the PATH; ours is the one that has jobpipe.
os.environ["PYSPARK_PYTHON"] = sys.executable


# The files that take longest, longest first: a worker that begins one of them last is alone at the end.
LONG_FILES = (
    # Of make test, with three workers.
    "control_api/test_api.py",
    "bus/subscribing/test_limits.py",
    "cli/topics/test_bus.py",
    "net/servers/test_link_server.py",
    "bus/subscribing/test_schema_evolution.py",
    "cli/topics/test_topics.py",
    "net/links/test_async_link.py",
    "bus/subscribing/test_read_ahead.py",
    "bus/subscribing/test_topics.py",
    # Of those that are slow.
    "model/test_reader_model.py",
    "bus/serving/test_host_servers.py",
    "registry/embedded/test_embedded_tls.py",
    "security/certificates/test_live.py",
    "bus/publishing/test_topic_ownership.py",
    "registry/zookeeper/test_secured.py",
    "registry/embedded/test_embedded.py",
    "bus/serving/test_end.py",
    "faults/flows/test_flows.py",
    "faults/processes/test_seal_killed.py",
    "faults/processes/test_process_stopped.py",
    # Of those with Spark.
    "faults/pipelines/test_pipeline_cut_off.py",
    "faults/spark/test_spark_process.py",
    "examples/test_flights_demo.py",
    "faults/pipelines/test_pipeline_killed.py",
    "spark/pipelines/test_pipeline_run.py",
    "spark/clusters/test_standalone_launcher.py",
    "spark/clusters/test_submit.py",
    "faults/pipelines/test_jdbc_killed.py",
    "faults/spark/test_spark_disk.py",
    "faults/spark/test_spark_flow.py",
    "spark/sink/test_trials.py",
    "faults/spark/test_spark_lost.py",
    "cluster/test_placement_host.py",
)


QUARANTINE = 10  # tests
SEED = re.compile(r"JOBPIPE_SEED=\d+")
MESSAGE = 300  # characters of it in the summary
OUTPUT = 20_000  # characters that are shown of what a test printed before it was run again
FIRST_FAILURE = pytest.StashKey[str]()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the tests of long files first, let those that start processes run twice, and keep the quarantine small."""
    tests = Path(__file__).parent
    places = {tests / name: place for place, name in enumerate(LONG_FILES)}
    items.sort(key=lambda item: places.get(item.path, len(places)))
    quarantined = set()
    for item in items:
        if _starts_processes(item):
            item.add_marker(pytest.mark.flaky(reruns=1))
        if item.get_closest_marker("core") and not any(item.path.is_relative_to(ROOT / folder) for folder in CORE):
            raise pytest.UsageError(f"{item.nodeid}: no part runs core tests here, but only of {', '.join(CORE)}")
        for mark in item.iter_markers("quarantined"):
            if not {"reason", "since"} <= set(mark.kwargs):
                raise pytest.UsageError(f"{item.nodeid}: quarantined(reason=..., since=date)")
            quarantined.add(item.nodeid.partition("[")[0])
    if len(quarantined) > QUARANTINE:
        raise pytest.UsageError(f"{len(quarantined)} tests are quarantined; at most {QUARANTINE} may be")


def pytest_collection_finish() -> None:
    """Leave what has been collected out of all later garbage collections, and keep no compiled modules of tests."""
    sys.dont_write_bytecode = True
    gc.collect()
    gc.freeze()


def _starts_processes(item: pytest.Item) -> bool:
    """Tell whether a test, or a fixture of it, starts programs or a JVM."""
    fixtures = getattr(item, "fixturenames", ())
    return (
        "home" in fixtures
        or "fork_server" in fixtures
        or not {"faults", "cluster"}.isdisjoint(item.path.parts)
        or any(item.get_closest_marker(mark) for mark in ("spark", "zookeeper", "processes"))
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Keep why the first run of a test failed; tests/parts.py names it if the second one passes."""
    report = yield
    if report.failed:
        crash = getattr(report.longrepr, "reprcrash", None)  # none of a group of exceptions
        why = report.longreprtext if crash is None else f"{crash.message}\n{crash.path}:{crash.lineno}"
        item.stash[FIRST_FAILURE] = " ".join([*SEED.findall(report.capstdout), *why.split()])[:MESSAGE]
    return report


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Write into the JUnit XML that this is the second run."""
    if FIRST_FAILURE in item.stash:
        item.user_properties.append((RUN_AGAIN, item.stash[FIRST_FAILURE]))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Show why tests were run again, and say how each failing one is run alone."""
    for report in terminalreporter.stats.get("rerun", ()):
        terminalreporter.section(f"why {report.nodeid} was run again")
        terminalreporter.write_line(report.longreprtext)
        for name, text in report.sections:
            terminalreporter.write_line(f"--- {name}\n{text[-OUTPUT:]}")
    failed = [*terminalreporter.stats.get("failed", ()), *terminalreporter.stats.get("error", ())]
    if not failed:
        return
    terminalreporter.section("to run them alone")
    for report in {report.nodeid: report for report in failed}.values():
        seed = SEED.search(report.capstdout + report.longreprtext)
        command = shlex.join([os.path.relpath(sys.executable), "-m", "pytest", report.nodeid])
        terminalreporter.write_line(command if seed is None else f"{seed[0]} {command}")


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A home with a running embedded ZooKeeper and its own certificates."""
    folder = tmp_path_factory.mktemp("home")
    zookeeper = EmbeddedZooKeeper(folder, linger=1800.0)  # long modules may use it not at all
    zookeeper.ensure()
    yield folder
    zookeeper.stop()
    assert zookeeper.status() is None


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A PostgreSQL; tests take schemas of their own."""
    from tests.databases.postgres import Postgres, missing

    if (what := missing()) is not None:
        pytest.skip(f"a test with a real PostgreSQL needs {what}")
    with Postgres() as server:
        yield server


@pytest.fixture(scope="session")
def mariadb() -> Iterator[MariaDb]:
    """A MariaDB; tests take databases of their own."""
    from tests.databases.mariadb import MariaDb, missing

    if (what := missing()) is not None:
        pytest.skip(f"a test with a real MariaDB needs {what}")
    with MariaDb() as server:
        yield server


@pytest.fixture(scope="session")
def mysql() -> Iterator[MySql]:
    """A MySQL; tests take databases of their own."""
    from tests.databases.mysql import MySql, missing

    if (what := missing()) is not None:
        pytest.skip(f"a test with a real MySQL needs {what}")
    with MySql() as server:
        yield server


@pytest.fixture
def in_memory(tmp_path: Path) -> Iterator[Path]:
    """A folder where fsync costs nothing, for hundreds of logs."""
    shm = Path("/dev/shm")
    if not os.access(shm, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(prefix="jobpipe-test-", dir=shm) as folder:
        yield Path(folder)


def _settings(home: Path, namespace: str, spool: Path) -> dict[str, str]:
    return {
        "jobpipe.home": str(home),
        "jobpipe.registerserver.topic.storage": f"/{namespace}-{uuid.uuid4().hex[:12]}/topics",
        "jobpipe.registerserver.session.timeout": "4s",
        "jobpipe.spool.dir": str(spool),
        "jobpipe.discovery.timeout": "20s",
    }


@pytest.fixture
def settings_of_test(home: Path, tmp_path: Path) -> dict[str, str]:
    """Settings that keep one test's topics and files from those of the others; for other processes too."""
    return _settings(home, "test", tmp_path / "spool")


@pytest.fixture(scope="module")
def module_settings(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Settings whose coordinator serves all tests of a module: starting one costs over a second."""
    yield _settings(home, "module", tmp_path_factory.mktemp("spool"))
    end_coordinators()


@pytest.fixture
def config(settings_of_test: dict[str, str]) -> Iterator[Config]:
    """The configuration of one test; its coordinators end with it."""
    yield load(overrides=settings_of_test, environ={})
    end_coordinators()
