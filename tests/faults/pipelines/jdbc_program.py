"""``python -m tests.faults.pipelines.jdbc_program``: a Spark job that writes a stream into a database, to be killed.

Each micro-batch has several rows of a key, of which the highest counts, and some of them delete it. Which rows a
micro-batch has follows from its id, so :func:`expected` can tell what the table must hold.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import jobpipe
from jobpipe.pipelines.file.interpolation import RunValues
from jobpipe.pipelines.file.spec import Mode
from jobpipe.pipelines.plugins.job_context import JobContext
from jobpipe.pipelines.sinks.jdbc.upsert_sink import JdbcUpsertSink
from tests.harness.jvm import QUICK
from tests.spark.jobs.session import session

ROWS = 200  # of a micro-batch
KEYS = 61
STEP = 7919
DELETES = 7
TASKS = 2


@dataclass(frozen=True)
class UpsertOrder:
    """What the application is told.

    Attributes:
        password: a file; None where there are no users.
        folder: of its checkpoint.
    """

    url: str
    user: str | None
    password: str | None
    table: str
    folder: str

    def line(self) -> bytes:
        """Return one line for its standard input."""
        return json.dumps(asdict(self)).encode() + b"\n"


def expected(batches: int) -> tuple[dict[int, int], list[int]]:
    """Return what the table holds after so many micro-batches, and all that was done to it, sorted.

    Done is the value of each row that was written, and, below zero, of each that was deleted.
    """
    table: dict[int, int] = {}
    done: list[int] = []
    for batch in range(batches):
        last = {value * STEP % KEYS: value for value in range(batch * ROWS, (batch + 1) * ROWS)}
        for key, value in last.items():
            if value % DELETES:
                table[key] = value
                done.append(value)
            elif key in table:
                done.append(-table.pop(key))
    return table, sorted(done)


def main() -> int:
    """Obey one order, until SIGTERM."""
    order = UpsertOrder(**json.loads(sys.stdin.buffer.readline()))
    spark = session("local[2]", spark_driver_extraJavaOptions=QUICK)
    rows = (
        spark.readStream.format("rate-micro-batch")
        .options(rowsPerBatch=ROWS, numPartitions=TASKS)
        .load()
        .selectExpr(f"value * {STEP} % {KEYS} AS id", "value", "concat('row ', value) AS text")
    )
    given = {
        "url": order.url,
        "table": order.table,
        "keys": "id",
        "order-by": "value",
        "delete-when": f"value % {DELETES} = 0",
    }
    if order.user is not None:
        given |= {"user": order.user, "password": f"file:{order.password}"}
    folder = Path(order.folder)
    job = JobContext(
        pipeline="faults",
        job="upsert",
        mode=Mode.STREAMING,
        storage=str(folder / "checkpoint"),
        folder=folder,
        run=RunValues("run"),
    )
    sink = JdbcUpsertSink(JdbcUpsertSink.parse(given, folder))
    sink.open(rows, job)
    return jobpipe.run(sink.start(rows, job))


if __name__ == "__main__":
    sys.exit(main())
