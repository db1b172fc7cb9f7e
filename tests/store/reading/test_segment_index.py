from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobpipe.errors import RemoteProtocolError, SegmentCorrupt
from jobpipe.store.spool.segment_index import CHUNK, SegmentIndex, SegmentInfo


@st.composite
def indexes(draw: st.DrawFn) -> SegmentIndex:
    schema = draw(st.integers(1, CHUNK + 10))
    sizes = st.one_of(st.integers(1, 100), st.sampled_from([CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK, 3 * CHUNK + 1]))
    batches = tuple(draw(st.lists(st.tuples(st.integers(0, 2**32 - 1), sizes), max_size=6)))
    count = sum(-(-size // CHUNK) for size in (schema, *(size for _, size in batches)))
    return SegmentIndex(schema, batches, tuple(draw(st.integers(0, 2**32 - 1)) for _ in range(count)))


@given(indexes())
def test_packing_is_inverse(index: SegmentIndex) -> None:
    assert SegmentIndex.unpack(index.pack()) == index


@given(index=indexes(), data=st.data())
def test_chunks_cover_schema_and_batches_exactly(index: SegmentIndex, data: st.DataObject) -> None:
    first = data.draw(st.integers(0, len(index.batches)))
    last = data.draw(st.integers(first, len(index.batches)))
    chunks = index.chunks(first, last)
    covered = [position for c in chunks for position in (c.offset, c.offset + c.length)]
    begin = index.schema_bytes + sum(size for _, size in index.batches[:first])
    end = begin + sum(size for _, size in index.batches[first:last])
    assert sum(c.length for c in chunks) == index.schema_bytes + end - begin
    assert covered == sorted(covered)
    assert all(0 < c.length <= CHUNK for c in chunks)
    assert all(
        c.offset + c.length <= index.schema_bytes or begin <= c.offset < c.offset + c.length <= end for c in chunks
    )
    all_crcs = {c.offset: c.crc for c in index.chunks(0, len(index.batches))}
    assert all(all_crcs[c.offset] == c.crc for c in chunks)


@given(index=indexes(), data=st.data())
def test_damage_raises_the_documented_error_only(index: SegmentIndex, data: st.DataObject) -> None:
    packed = bytearray(index.pack())
    packed[data.draw(st.integers(0, len(packed) - 1))] ^= data.draw(st.integers(1, 255))
    cut = data.draw(st.integers(0, len(packed)))
    for damaged in (bytes(packed), bytes(packed[:cut])):
        try:
            SegmentIndex.unpack(damaged)
        except SegmentCorrupt:
            continue


def test_announced_sizes_are_checked_before_anything_is_built() -> None:
    packed = bytearray(SegmentIndex(8, ((1, 8),), (1, 2)).pack())
    packed[9:13] = b"\xff\xff\xff\xff"
    with pytest.raises(SegmentCorrupt):
        SegmentIndex.unpack(bytes(packed))
    with pytest.raises(SegmentCorrupt):
        SegmentIndex.unpack(b"\x01" * (17 * 1024 * 1024))


@given(index=indexes(), data=st.one_of(st.none(), st.binary(max_size=8)))
def test_info_json_is_inverse(index: SegmentIndex, data: bytes | None) -> None:
    info = SegmentInfo(3, index.rows, index.length, None if data is not None else "f", 7, index.pack(), data)
    assert SegmentInfo.from_json(info.to_json(), data) == info


@pytest.mark.parametrize(
    "change",
    [
        {"partition": -1},
        {"rows": None},
        {"length": "5"},
        {"offset": True},
        {"file": 3},
        {"file": None},
        {"index": "%%"},
        {"index": None},
    ],
)
def test_wrong_info_json_is_refused(change: dict[str, object]) -> None:
    good = SegmentInfo(0, 1, 16, "f", 0, SegmentIndex(8, ((1, 8),), (1, 2)).pack()).to_json()
    with pytest.raises(RemoteProtocolError):
        SegmentInfo.from_json({**good, **change})
