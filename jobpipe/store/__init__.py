"""The spool of a topic: segments, catalog, retention. Synchronous; knows no network, no registry, no Spark.

The names below are loaded on first use, so that a Spark worker that only writes segments never imports SQLite,
and a coordinator that only moves bytes never imports pyarrow.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jobpipe.store.boundary import Boundary
    from jobpipe.store.catalog import TopicLog
    from jobpipe.store.cuts import Cut, Cutter
    from jobpipe.store.files import FileSink, Sink, new_write_id
    from jobpipe.store.index import CHUNK, INLINE_MAX, Chunk, SegmentIndex, SegmentInfo
    from jobpipe.store.locate import Window
    from jobpipe.store.partitioned import PartitionedWriter
    from jobpipe.store.plan import Ahead, Plan
    from jobpipe.store.position import Position
    from jobpipe.store.reader import CatalogReader, Cursor, Piece
    from jobpipe.store.recovery import RecoveryPoint
    from jobpipe.store.retention import Removed, Retention
    from jobpipe.store.seal import Last, NewBatch
    from jobpipe.store.segment import SegmentFile, SegmentWriter
    from jobpipe.store.slots import Slot, slot_id
    from jobpipe.store.subscriptions import Subscription

__all__ = [
    "CHUNK",
    "INLINE_MAX",
    "Ahead",
    "Boundary",
    "CatalogReader",
    "Chunk",
    "Cursor",
    "Cut",
    "Cutter",
    "FileSink",
    "Last",
    "NewBatch",
    "PartitionedWriter",
    "Piece",
    "Plan",
    "Position",
    "RecoveryPoint",
    "Removed",
    "Retention",
    "SegmentFile",
    "SegmentIndex",
    "SegmentInfo",
    "SegmentWriter",
    "Sink",
    "Slot",
    "Subscription",
    "TopicLog",
    "Window",
    "new_write_id",
    "slot_id",
]

_MODULES = {
    "CHUNK": "index",
    "INLINE_MAX": "index",
    "Ahead": "plan",
    "Boundary": "boundary",
    "CatalogReader": "reader",
    "Chunk": "index",
    "Cursor": "reader",
    "Cut": "cuts",
    "Cutter": "cuts",
    "FileSink": "files",
    "Last": "seal",
    "NewBatch": "seal",
    "PartitionedWriter": "partitioned",
    "Piece": "reader",
    "Plan": "plan",
    "Position": "position",
    "RecoveryPoint": "recovery",
    "Removed": "retention",
    "Retention": "retention",
    "SegmentFile": "segment",
    "SegmentIndex": "index",
    "SegmentInfo": "index",
    "SegmentWriter": "segment",
    "Sink": "files",
    "Slot": "slots",
    "Subscription": "subscriptions",
    "TopicLog": "catalog",
    "Window": "locate",
    "new_write_id": "files",
    "slot_id": "slots",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value
