"""Passes rows on as a flow job, until its source has ended: ``flow.py MASTER FOLDER SOURCE TARGET SETTINGS``.

Each task notes in FOLDER which process it is. With ``hang`` there, the first attempt hangs in its function, until
another one has been given the same rows, and for a moment more. Prints the claims of the partitions.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
from session import session

import jobpipe
from jobpipe.testing import SCHEMA

COPY_SECONDS = 120.0  # for Spark to start a copy
LATE_SECONDS = 2.0  # for the copy to seal

master, folder, source, target = sys.argv[1], Path(sys.argv[2]), sys.argv[3], sys.argv[4]
spark = session(master, **json.loads(sys.argv[5]))


def setup() -> Path:
    """Note the process."""
    (folder / f"task-{os.getpid()}").touch()
    return folder


def passed_on(batch: pa.RecordBatch, context: jobpipe.FlowContext) -> Any:
    """Return the rows, late where the first attempt is to hang."""
    if (context.setup / "hang").exists():
        copied = context.setup / "copied"
        try:
            (context.setup / "hangs").touch(exist_ok=False)
        except FileExistsError:
            copied.touch()
        else:
            deadline = time.monotonic() + COPY_SECONDS
            while not copied.exists() and time.monotonic() < deadline:
                time.sleep(0.05)
            time.sleep(LATE_SECONDS)
            (context.setup / "late").touch()
    return batch


flow = jobpipe.flow(
    spark,
    subscribe=source,
    name="passes",
    function=passed_on,
    setup=setup,
    publish=target,
    schema=SCHEMA,
    starting="earliest",
)
with flow:
    flow.await_end(300.0)
print(json.dumps([each.claim for each in flow.status().partitions]), flush=True)
spark.stop()
