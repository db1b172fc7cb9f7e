"""Fixtures for all tests: one embedded ZooKeeper a session, a namespace and a spool of its own for each test."""

from __future__ import annotations

import os
import signal
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from jobpipe.config import Config, load
from jobpipe.publisher.attach import end_coordinators
from registry.embedded import EmbeddedZooKeeper

# The machine is shared and slow at times; a property that hangs is caught by the test's own deadline.
settings.register_profile("jobpipe", deadline=None, print_blob=True)
settings.load_profile("jobpipe")

# A shell's background job ignores Ctrl-C, and so would all programs that the tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Spark starts its workers with the first python3 of the PATH; ours is the one that has jobpipe.
os.environ["PYSPARK_PYTHON"] = sys.executable


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A home with a running embedded ZooKeeper and its own certificates."""
    folder = tmp_path_factory.mktemp("home")
    zookeeper = EmbeddedZooKeeper(folder, linger=1800.0)  # long modules may use it not at all
    zookeeper.ensure()
    yield folder
    zookeeper.stop()
    assert zookeeper.status() is None


@pytest.fixture
def settings_of_test(home: Path, tmp_path: Path) -> dict[str, str]:
    """Settings that keep one test's topics and files from those of the others; for other processes too."""
    return {
        "jobpipe.home": str(home),
        "jobpipe.registerserver.topic.storage": f"/test-{uuid.uuid4().hex[:12]}/topics",
        "jobpipe.registerserver.session.timeout": "4s",
        "jobpipe.spool.dir": str(tmp_path / "spool"),
        "jobpipe.discovery.timeout": "20s",
    }


@pytest.fixture
def config(settings_of_test: dict[str, str]) -> Iterator[Config]:
    """The configuration of one test; its coordinators end with it."""
    yield load(overrides=settings_of_test, environ={})
    end_coordinators()
