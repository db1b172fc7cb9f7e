"""Job ``cancelled``: of all changes of orders, those by which one is cancelled."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

import jobpipe


def cancelled(batch: pa.RecordBatch, context: jobpipe.FlowContext) -> pa.RecordBatch:
    """Return the orders that were cancelled by an update."""
    is_update = pc.equal(batch["__op"], "u")
    return batch.filter(pc.and_(is_update, pc.equal(batch["status"], "cancelled"))).select(["id", "customer", "total"])
