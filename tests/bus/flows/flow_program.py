"""A flow job as a program: ``flow_program.py FOLDER``.

Its function leaves ``FOLDER/begun-OFFSET`` and waits for the file ``FOLDER/go``.
"""

import sys
import time
from pathlib import Path

import pyarrow as pa

import jobpipe

folder = Path(sys.argv[1])


def slow(batch, context):
    deadline = time.monotonic() + 60
    (folder / f"begun-{context.offset}").touch()
    while not (folder / "go").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    return batch


schema = pa.schema([("n", pa.int64())])
flow = jobpipe.flow(
    subscribe="orders",
    name="slow",
    function=slow,
    publish="passed",
    schema=schema,
    starting="earliest",
    required_subscribers=["reader"],
)
code = jobpipe.run(flow)
print("pyspark" in sys.modules, flush=True)
sys.exit(code)
