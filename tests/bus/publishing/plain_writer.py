"""A plain publisher to be killed: publishes numbered batches by id, from where its name stopped, and says each."""

import json
import sys
from pathlib import Path

import pyarrow as pa

import jobpipe
from jobpipe.config import load
from jobpipe.testing import Journal, NumberedRows


def main() -> None:
    order = json.loads(sys.argv[1])
    rows, journal = NumberedRows(order["topic"], partitions=2, rows=50), Journal(Path(order["journal"]))
    config = load(overrides=order["settings"], environ={})
    with jobpipe.publisher(
        order["topic"],
        name="importer",
        parallelism=2,
        partitioner=lambda batch, partitions: batch["partition"],
        config=config,
    ) as orders:
        last = orders.last_batch_id
        coordinator = orders._publisher.coordinator.process.pid
        note = None if orders.last_note is None else orders.last_note.decode()
        print(json.dumps({"last_batch_id": last, "last_note": note, "coordinator": coordinator}), flush=True)
        for batch_id in range(0 if last is None else last + 1, order["batches"]):
            with journal.sealing(batch_id, rows.ranges(batch_id)):
                note = f"after {batch_id}".encode()
                orders.write(pa.concat_tables(rows.tables(batch_id)), batch_id=batch_id, note=note)
            print(batch_id, flush=True)
        orders.close(final=True)


if __name__ == "__main__":
    main()
