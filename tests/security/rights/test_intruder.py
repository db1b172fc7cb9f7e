"""A holder of the right to read, who sends every operation with random fields while rows flow, takes nothing.

``make chaos`` has him too, for longer, and with faults beside him.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.chaos_faults import FLOW, FLOWED
from tests.faults.conftest import shared_zookeeper as shared_zookeeper
from tests.faults.rig import SHARED, chance, conclude
from tests.harness.intruder import Intruder, admitted, as_intruder
from tests.harness.processes import Harness
from tests.security.kit import TOPIC

pytestmark = [pytest.mark.zookeeper, pytest.mark.timeout(240)]

NAMES = ["intruder-1", "intruder-2"]
TOPICS = {TOPIC: NAMES, FLOWED: [*NAMES, FLOW]}
REQUESTS = 4000
OWN = {
    "grant",
    "first",
    "plan",
    "ack",
    "begin_flow",
    "claim",
    "seal_parts",
    "follow",
    "hold",
    "lease",
    "drop",
    "status",
}
"""What he may do, too: else he asks in a way that nothing is allowed in."""


@pytest.mark.slow
def test_a_reader_with_random_requests_takes_nothing(tmp_path: Path) -> None:
    """V1: above all, no cursor of the flow that publishes what he may read, under that flow's name."""
    seed = chance().randrange(2**32)
    given, files = admitted(tmp_path / "ca", TOPICS)
    with Harness(tmp_path / "rig", settings=given, zookeeper=SHARED.zookeeper) as rig:
        rig.publisher.start(pause=0.02)
        rig.flow(FLOW, FLOWED).start()
        rig.consumer().start()
        rig.consumer("flow", FLOWED).start()
        with Intruder(as_intruder(rig.config, files), TOPICS, seed=seed) as intruder:
            rig.wait_until(
                lambda: (
                    intruder.sent.total() >= REQUESTS
                    and set(intruder.answered) >= OWN
                    and not intruder.never_sent  # which requests come first is by chance
                ),
                "his requests",
                timeout=180.0,  # they take 20 s alone, and a minute where four processes share two cores
            )
            before = rig.journal.rows
            rig.wait_until(lambda: rig.received("flow") > before, "rows of the flow")
        print(intruder.summary())
        assert intruder.taken == []
        assert intruder.stumbled == []
        conclude(rig, "all", "flow")
