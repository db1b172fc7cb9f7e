"""A capture that prints how many rows it has published: ``capture.py ORDER``, JSON with the options."""

from __future__ import annotations

import json
import sys
import threading

from jobpipe import cdc
from jobpipe.config import load
from jobpipe.jobs.captures.open_capture import collect_rarely


def main() -> None:
    order = json.loads(sys.argv[1])
    config = load(overrides={"home": order["home"], "jobpipe.retention.time": "1h"}, environ={})
    collect_rarely()  # as jobpipe cdc run does
    make = cdc.postgres if order["product"] == "postgres" else cdc.mysql
    with make(config=config, **order["options"]) as capture:
        ended = threading.Event()

        def report() -> None:
            while not ended.wait(0.05):
                print(capture.status().rows, flush=True)

        capture.run(threading.Thread(target=report, daemon=True).start)
        ended.set()


if __name__ == "__main__":
    main()
