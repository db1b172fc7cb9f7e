"""Publishes by ``format("jobpipe")`` with the Spark that runs it: ``write.py FOLDER TOPIC KILLED_AT``.

The files of ``FOLDER/files`` become micro-batches of TOPIC. With KILLED_AT the program kills itself as soon as it sees
that micro-batch published. With -1 it goes on to the end, and publishes the types that this Spark knows, each group to
a topic of its own, by a batch write. It prints the values as JSON.
"""

import json
import os
import signal
import sys
import threading
import time

from jobpipe.admin import Admin
from jobpipe.config import load
from jobpipe.errors import LinkError, TopicNotFound
from tests.compat.jobs.common import SECONDS, groups, session, values

folder, topic, killed_at = sys.argv[1], sys.argv[2], int(sys.argv[3])


def end_when_sealed() -> None:
    """Kill this program when the micro-batch is published."""
    with Admin(load()) as admin:
        while True:
            try:
                if admin.status(topic).head > killed_at:
                    os.kill(os.getpid(), signal.SIGKILL)
            except (LinkError, TopicNotFound):  # not published yet
                pass
            time.sleep(0.05)  # nothing tells


spark = session()
if killed_at >= 0:
    threading.Thread(target=end_when_sealed, daemon=True).start()
kept = {"required_subscribers": "kept", "parallelism": "2"}  # others read it later
stream = (
    spark.readStream.schema("partition int, number bigint, payload string, digest bigint")
    .option("maxFilesPerTrigger", 1)
    .parquet(f"{folder}/files")
)
writer = (
    stream.repartition(2 if killed_at >= 0 else 3, "partition")  # it need not have the same tasks when it is repeated
    .writeStream.format("jobpipe")
    .options(topic=topic, partitionBy="partition", **kept)
    .option("checkpointLocation", f"{folder}/checkpoint-{topic}")
)
if killed_at >= 0:
    query = writer.trigger(processingTime="2 seconds").start()
    query.awaitTermination(SECONDS)
    sys.exit(f"not killed within {SECONDS} s: {query.exception()}")
query = writer.trigger(availableNow=True).start()
if not query.awaitTermination(SECONDS):
    sys.exit(f"not at the end within {SECONDS} s")
with Admin(load()) as admin:
    head = admin.status(topic).head
published = {}
for group, selected in groups().items():
    df = spark.range(0, 3, 1, 2).selectExpr("id", *selected)
    to = {"topic": f"{topic}-types-{group}", "series": "types", "batch_id": "0", **kept}
    for final in ("false", "true"):  # the second one publishes nothing more but the end mark
        df.write.format("jobpipe").options(final=final, **to).mode("append").save()
    published[group] = values(df)
progress = [each["batchId"] if isinstance(each, dict) else each.batchId for each in query.recentProgress]
print(json.dumps({"spark": spark.version, "head": head, "batches": progress, "types": published}))
spark.stop()
