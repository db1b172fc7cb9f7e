"""A flow job to be killed: passes the rows of "source" on to "target" until the source has ended."""

import json
import sys

from jobpipe.config import load
from jobpipe.flows.flow_driver import Flow
from jobpipe.flows.flow_settings import FlowOptions
from jobpipe.flows.task_threads import ThreadRunner
from jobpipe.store.reading.boundary import Boundary
from jobpipe.testing import SCHEMA


def main() -> None:
    config = load(overrides=json.loads(sys.argv[1]), environ={})
    options = FlowOptions(config, "source", "flow", Boundary.of("earliest", "s"), publish="target", schema=SCHEMA)
    with Flow(options, ThreadRunner(lambda batch, _: batch, None, 2)) as flow:
        assert flow._ends.publisher is not None
        print(flow._ends.publisher.coordinator.process.pid, flush=True)
        flow.await_end()


if __name__ == "__main__":
    main()
