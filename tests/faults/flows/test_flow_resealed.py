"""A flow whose source loses its spool: with ``acks=all`` the batch under way is sealed again, and passes on once."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

import psutil
import pytest

from tests.faults.rig import PAUSE, chance, conclude, gone, later_rows, more, processes_of, running

pytestmark = [pytest.mark.zookeeper, pytest.mark.timeout(300)]

FLOW, FLOWED = "passes", "passed-on"
REQUIRED = {"options": {"required_subscribers": [FLOW]}}


def test_batches_are_sealed_again(tmp_path: Path) -> None:
    """Cases 45, 55: the source's host is killed and its spool deleted, at any moment of a batch that the flow has."""
    moments = chance()
    with running(tmp_path, consumers=(), start=REQUIRED, settings={"acks": "all"}) as rig:
        rig.flow(FLOW, FLOWED).start(config={**rig.subscribers_config.to_dict(), "jobpipe.acks": "stored"})
        rig.consumer("flow", FLOWED).start()
        later_rows(rig, "flow")
        for _ in range(2):
            more(rig, "flow", rows=moments.randrange(1, 200))
            dead = processes_of(rig.publisher)
            for process in dead:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            rig.publisher.kill()
            gone(dead)
            shutil.rmtree(rig.folder / "spool" / rig.topic)
            rig.publisher.start(pause=PAUSE, **REQUIRED)
            later_rows(rig, "flow")
        conclude(rig, "flow")
