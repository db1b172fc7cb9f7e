"""What a reader makes of a part whose checksums are right and whose content is not: an error of ours, or whole rows."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import cast

import pyarrow as pa
import pytest

from jobpipe.errors import JobpipeError, LinkBroken, SegmentCorrupt
from jobpipe.net.links.blocking_link import BlockingLink
from jobpipe.operations.data_operations import PartHeader
from jobpipe.subscribing.fetching.part_fetch import _decode
from jobpipe.subscribing.fetching.part_stream import PartSource

SEED = random.randrange(2**32)
ROWS = pa.table({"a": [1, None, 3, 4], "b": ["x", "größer", None, ""], "c": [[1], [], None, [2, 3]]})


class Chunks:
    """A link that has only the bytes of one part to give, and then an error."""

    def __init__(self, data: bytes, size: int = 100) -> None:
        self._chunks = [data[start : start + size] for start in range(0, len(data), size)]

    def next_chunk_length(self) -> int:
        if not self._chunks:
            raise LinkBroken("cut")
        return len(self._chunks[0])

    def read_chunk_into(self, view: memoryview) -> None:
        view[:] = self._chunks.pop(0)


def stream(codec: str | None) -> bytes:
    """A segment: an IPC stream without its end mark."""
    sink = pa.BufferOutputStream()
    writer = pa.ipc.new_stream(sink, ROWS.schema, options=pa.ipc.IpcWriteOptions(compression=codec))
    writer.write_batch(ROWS.to_batches()[0])
    writer.write_batch(ROWS.to_batches()[0])
    return cast(bytes, sink.getvalue().to_pybytes())


def header_of(*, rows: int, record_batches: int, length: int) -> PartHeader:
    """The header of a part at offset 7."""
    return PartHeader(
        n=7,
        partition=3,
        partitions=4,
        schema_id=1,
        sealed_ms=0,
        epoch=1,
        publisher="orders",
        row0=0,
        rows=rows,
        record_batches=record_batches,
        length=length,
    )


def source(link: Chunks, header: PartHeader) -> PartSource:
    where = {"offset": header.n, "partition": header.partition}
    return PartSource(cast(BlockingLink, link), header.length, where)


def decoded(data: bytes, announced: int | None = None) -> list[pa.RecordBatch]:
    header = header_of(rows=8, record_batches=2, length=len(data) if announced is None else announced)
    return [fetched.batch for fetched in _decode(source(Chunks(data), header), header, "orders")]


def damaged(data: bytes) -> Iterator[bytes]:
    """Each byte changed, in a way chosen by chance; then the stream cut at each byte."""
    print(f"JOBPIPE_SEED={SEED}")
    pick = random.Random(SEED)
    for place in range(len(data)):
        copy = bytearray(data)
        copy[place] ^= pick.randrange(1, 256)
        yield bytes(copy)
    for length in range(len(data)):
        yield data[:length]


@pytest.mark.parametrize("codec", [None, "zstd"])
def test_a_damaged_segment_is_never_a_foreign_error(codec: str | None) -> None:
    """Case 33: below the checksums, as a broken disk or writer leaves it; pyarrow's own errors do not come through."""
    data = stream(codec)
    assert len(decoded(data)) == 2
    refused = 0
    for copy in damaged(data):
        try:
            decoded(copy)
        except JobpipeError as error:
            refused += isinstance(error, SegmentCorrupt) and error.fields["offset"] == 7
    assert refused > len(data)


def test_a_cut_inside_a_part_is_a_cut() -> None:
    """Case 14: the error of the link comes through pyarrow as it is; another attempt may work."""
    data = stream(None)
    for length in range(0, len(data), 7):
        with pytest.raises(LinkBroken):
            decoded(data[:length], announced=len(data))
