"""Random logs of one seed, and the one coordinator that serves them all."""

from __future__ import annotations

import os
import random
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from jobpipe.config import load
from tests.model.logs import Log, write_log
from tests.model.serving import Served, serving

GROUPS = 12
TOPICS = 3  # of each group


@dataclass
class World:
    """The logs by group, and who serves them."""

    seed: int
    settings: dict[str, str]
    groups: list[list[Log]]
    served: Served


@pytest.fixture(scope="module")
def world(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """The world of ``JOBPIPE_SEED``, which every failure shows; ``make model`` draws others than the usual one."""
    seed = int(os.environ.get("JOBPIPE_SEED") or 1)
    empty = tmp_path_factory.mktemp("conf") / "empty.yaml"  # the one in this repository takes long to read
    empty.touch()
    settings = {
        "config": str(empty),
        "jobpipe.home": str(home),
        "jobpipe.registerserver.topic.storage": f"/model-{uuid.uuid4().hex[:12]}/topics",
        "jobpipe.spool.dir": str(tmp_path_factory.mktemp("spool")),
        "jobpipe.discovery.timeout": "20s",
    }
    config = load(overrides={key: value for key, value in settings.items() if key != "config"}, environ={})
    rng = random.Random(seed)
    names = [[f"g{group}.{topic}" for topic in "abc"[:TOPICS]] for group in range(GROUPS)]
    groups = [[write_log(name, config.spool_dir, rng) for name in group] for group in names]
    with serving(config, [name for group in names for name in group]) as served:
        yield World(seed, settings, groups, served)
