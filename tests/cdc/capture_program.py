"""A capture to be killed: ``capture_program.py ORDER``, JSON; says when it streams."""

import json
import sys

from jobpipe import cdc
from jobpipe.config import load


def main() -> None:
    order = json.loads(sys.argv[1])
    config = load(overrides=order["settings"], environ={})
    make = {"postgres": cdc.postgres, "mysql": cdc.mysql}[order["product"]]
    with make(config=config, **order["options"]) as capture:
        capture.run(lambda: print("streams", flush=True))


if __name__ == "__main__":
    main()
