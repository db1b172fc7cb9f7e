"""Arrow messages that are hostile and well formed: bombs, extension types, other schemas (cases 64, 65)."""

from __future__ import annotations

import struct
import zlib
from typing import Any, cast

import pyarrow as pa
import pytest

from jobpipe.arrow.ipc_validation import declared_size
from jobpipe.errors import RemoteProtocolError, SchemaMismatch, SegmentCorrupt, UnsupportedType
from jobpipe.operations.data_operations import PartHeader
from jobpipe.store.spool.segment import BOMB_FLOOR, MAX_DEPTH, SegmentWriter, check_schema
from jobpipe.subscribing.fetching.part_fetch import _decode
from tests.net.links.test_part_decoding import Chunks, header_of, source


def sealed(*batches: pa.RecordBatch, codec: Any = None) -> bytes:
    """A stream as any Arrow writer makes it."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batches[0].schema, options=pa.ipc.IpcWriteOptions(compression=codec)) as stream:
        for batch in batches:
            stream.write_batch(batch)
    return bytes(sink.getvalue().to_pybytes()[:-8])  # without the end mark


def read(data: bytes, rows: int, batches: int = 1, accept: Any = None) -> list[pa.RecordBatch]:
    header = header_of(rows=rows, record_batches=batches, length=len(data))
    part = source(Chunks(data, 256 * 1024), header)
    return [fetched.batch for fetched in _decode(part, header, "orders", accept)]


def zeros(size: int) -> pa.RecordBatch:
    return pa.record_batch({"a": pa.Array.from_buffers(pa.int64(), size // 8, [None, pa.py_buffer(bytes(size))])})


@pytest.mark.parametrize("codec", ["zstd", "lz4"])
def test_what_is_declared_is_summed_before_it_is_decoded(codec: str) -> None:
    batch = pa.record_batch({"a": list(range(1000)), "b": ["x" * 20] * 1000, "c": [None, *[[1, 2]] * 999]})
    reader = pa.ipc.MessageReader.open_stream(pa.BufferReader(sealed(batch, codec=codec)))
    reader.read_next_message()
    message = reader.read_next_message()
    declared = declared_size(memoryview(message.metadata), memoryview(cast(pa.Buffer, message.body)))
    assert declared == pytest.approx(batch.nbytes, rel=0.05)


def bomb() -> bytes:
    """12 KiB that would be 64 MiB."""
    data = sealed(zeros(BOMB_FLOOR + 8), codec="zstd")
    assert len(data) < 12_000
    return data


def test_a_bomb_is_refused() -> None:
    """For its ratio."""
    with pytest.raises(SegmentCorrupt, match="declares 67108872 bytes"):
        read(bomb(), BOMB_FLOOR // 8 + 1)


@pytest.mark.slow
def test_a_bomb_is_refused_without_its_memory() -> None:
    """Not a page of it is taken."""
    data = bomb()
    before, pool = pa.total_allocated_bytes(), pa.proxy_memory_pool(pa.default_memory_pool())
    old = pa.default_memory_pool()
    pa.set_memory_pool(pool)
    try:
        with pytest.raises(SegmentCorrupt, match="declares 67108872 bytes"):
            read(data, BOMB_FLOOR // 8 + 1)
    finally:
        pa.set_memory_pool(old)
    assert (pool.max_memory() or 0) < 1 << 20
    assert pa.total_allocated_bytes() - before < 1 << 20


def test_a_claim_beyond_any_batch_is_refused() -> None:
    """A few bytes of metadata that claim 2^40."""
    plain = sealed(pa.record_batch({"a": list(range(1000))}), codec="zstd")
    at = plain.index(struct.pack("<q", 8000))
    with pytest.raises(SegmentCorrupt, match=str(2**40)):
        read(plain[:at] + struct.pack("<q", 2**40) + plain[at + 8 :], 1000)


def test_what_we_write_is_never_taken_for_a_bomb() -> None:
    """A column of one value beyond the floor is written as it is, and comes back."""
    parts: list[bytes] = []
    writer = SegmentWriter(lambda data: parts.append(bytes(data)), zeros(8).schema, "zstd")
    writer.write(zeros(8000))
    writer.write(zeros(BOMB_FLOOR + 8))
    index = writer.finish()
    data = b"".join(parts)
    assert [size < 1000 for _, size in index.batches] == [True, False]
    assert [zlib.crc32(data[c.offset : c.offset + c.length]) for c in index.chunks(0, 2)] == list(index.crcs)
    found = read(data, index.rows, 2)
    assert [batch.num_rows for batch in found] == [1000, BOMB_FLOOR // 8 + 1]


class Secretive(pa.ExtensionType):
    """A type whose owner's code would run on reading a schema."""

    loaded = 0

    def __init__(self) -> None:
        super().__init__(pa.int64(), "jobpipe.test.secretive")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage_type: pa.DataType, serialized: bytes) -> Secretive:
        cls.loaded += 1
        return cls()


def test_an_extension_type_is_refused_before_its_code_runs() -> None:
    """CVE-2023-47248 was one: known to the reader or not, at the top or inside."""
    kind = Secretive()
    storage = pa.ExtensionArray.from_storage(kind, pa.array([1]))
    data = sealed(pa.record_batch({"a": storage}))
    with pytest.raises(SegmentCorrupt, match="extension type"):
        read(data, 1)
    pa.register_extension_type(kind)
    try:
        before = Secretive.loaded
        with pytest.raises(SegmentCorrupt, match="extension type"):
            read(data, 1)
        assert Secretive.loaded == before
    finally:
        pa.unregister_extension_type("jobpipe.test.secretive")
    for bad in (kind, pa.list_(kind), pa.struct([pa.field("x", kind)]), pa.uuid()):
        with pytest.raises(UnsupportedType, match="extension type"):
            check_schema(pa.schema([("a", bad)]))


def test_a_dictionary_is_refused() -> None:
    """It would be a message of its own, without end."""
    data = sealed(pa.record_batch({"a": pa.array(["x", "y", "x"]).dictionary_encode()}))
    with pytest.raises(SegmentCorrupt, match="dictionary"):
        read(data, 3)


def test_deep_nesting_is_refused() -> None:
    kind: pa.DataType = pa.int64()
    for _ in range(MAX_DEPTH - 1):
        kind = pa.list_(kind)
    check_schema(pa.schema([("a", kind)]))
    with pytest.raises(UnsupportedType, match="nested deeper"):
        check_schema(pa.schema([("a", pa.list_(kind))]))


def test_another_schema_is_refused_before_its_data_are_decoded() -> None:
    """What is not what was agreed on."""
    data = sealed(pa.record_batch({"a": [1]}))

    def accept(schema: pa.Schema) -> None:
        raise SchemaMismatch("column 'b' is missing", column="b")

    link = Chunks(data, 256 * 1024)
    header = header_of(rows=1, record_batches=1, length=len(data))
    with pytest.raises(SchemaMismatch):
        list(_decode(source(link, header), header, "orders", accept))


@pytest.mark.parametrize(("rows", "batches"), [(1, 2), (3, 2), (5, 2), (2, 1)])
def test_other_rows_than_announced_are_refused(rows: int, batches: int) -> None:
    batch = pa.record_batch({"a": [1, 2]})
    with pytest.raises((SegmentCorrupt, RemoteProtocolError)):
        read(sealed(batch, batch), rows, batches)
    assert len(read(sealed(batch, batch), 4, 2)) == 2


@pytest.mark.parametrize("value", [None, -1, 1.0, True, "1", 2**63, []])
@pytest.mark.parametrize("name", ["n", "partition", "row0", "rows", "record_batches", "length"])
def test_a_part_that_lies_about_its_numbers_is_refused(name: str, value: object) -> None:
    header = header_of(rows=8, record_batches=2, length=5).to_json()
    PartHeader.from_json(header)
    with pytest.raises(RemoteProtocolError):
        PartHeader.from_json({**header, name: value})
