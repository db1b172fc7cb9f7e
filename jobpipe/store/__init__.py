"""The spool of a topic: segments, catalog, retention. Synchronous; knows no network, no registry, no Spark.

The names below are loaded on first use, so that a Spark worker that only writes segments never imports SQLite,
and a coordinator that only moves bytes never imports pyarrow.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jobpipe.store.catalog import TopicLog
    from jobpipe.store.files import FileSink, Sink, new_write_id
    from jobpipe.store.index import CHUNK, INLINE_MAX, Chunk, SegmentIndex, SegmentInfo
    from jobpipe.store.partitioned import PartitionedWriter
    from jobpipe.store.plan import Plan
    from jobpipe.store.position import Position
    from jobpipe.store.reader import CatalogReader, Cursor, Piece
    from jobpipe.store.recovery import RecoveryPoint
    from jobpipe.store.retention import Removed, Retention
    from jobpipe.store.seal import Last, NewBatch
    from jobpipe.store.segment import SegmentFile, SegmentWriter
    from jobpipe.store.subscriptions import Subscription

__all__ = [
    "CHUNK",
    "INLINE_MAX",
    "CatalogReader",
    "Chunk",
    "Cursor",
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
    "Subscription",
    "TopicLog",
    "new_write_id",
]

_MODULES = {
    "CHUNK": "index",
    "INLINE_MAX": "index",
    "CatalogReader": "reader",
    "Chunk": "index",
    "Cursor": "reader",
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
    "Subscription": "subscriptions",
    "TopicLog": "catalog",
    "new_write_id": "files",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value
