"""A job that ends by ``jobpipe.run``: ``runs.py FOLDER TOPIC NAME WHAT``; ``WHAT`` is publish or subscribe.

Each micro-batch leaves ``FOLDER/begun-N`` and, at its end, ``FOLDER/done-N``.
"""

import sys
import time
from pathlib import Path

from session import session, started

import jobpipe

folder, topic, name, what = Path(sys.argv[1]), *sys.argv[2:]
spark = session("local[2]")


def slow(df, batch_id):
    (folder / f"begun-{batch_id}").touch()
    deadline = time.monotonic() + 60
    if what == "subscribe":
        df.count()
        while not (folder / "go").exists() and time.monotonic() < deadline:
            time.sleep(0.02)
    else:
        sink(df, batch_id)
    (folder / f"done-{batch_id}").touch()


if what == "subscribe":
    rows = spark.readStream.format("jobpipe").options(subscribe=topic, name=name, startingOffsets="earliest").load()
else:
    sink = jobpipe.JobPipeSink(topic, parallelism=1, replace=True)
    rows = spark.readStream.format("rate").option("rowsPerSecond", 5).load()
writer = rows.writeStream.queryName(name).foreachBatch(jobpipe.stoppable(slow))
writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
query = started(writer.trigger(processingTime="0 seconds" if what == "subscribe" else "1 hour"))
(folder / "ready").touch()
sys.exit(jobpipe.run(query, final=what == "subscribe"))
