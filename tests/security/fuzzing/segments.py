"""Damaged and forged segments, read as a subscriber reads them; a process of its own, since the fault may be a crash.

``python -m tests.security.fuzzing.segments MODE --mutants 10000 --seed 1`` prints JSON: how often what came of it.

    wire     bytes changed below right checksums: an error of ours, or exactly the rows that were published
    signed   bytes changed and all checksums made right for them: an error of ours, or valid rows of the agreed schema
    sealed   the description of segments, and their bytes, changed on the way to the seal: refused, or the rows that
             were published, or an error of ours when they are read
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import itertools
import json
import random
import resource
import socket
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pyarrow as pa

from jobpipe.errors import JobpipeError
from jobpipe.net.links.blocking_link import BlockingLink
from jobpipe.net.links.link_timeouts import LinkTimeouts
from jobpipe.store.catalog.position import Position
from jobpipe.store.log.seal import NewBatch
from jobpipe.store.reading.catalog_reader import CatalogReader
from jobpipe.store.spool.segment import SegmentWriter
from jobpipe.store.spool.segment_index import SegmentIndex, SegmentInfo
from jobpipe.store.spool.spool_files import file_name, new_write_id
from jobpipe.subscribing.fetching import part_fetch
from jobpipe.wire import Connection, Part, Reply, Request, Side
from tests.security.fuzzing.mutate import Mutator
from tests.store.build import SCHEMA, open_log
from tests.wire.kit import HELLO, WELCOME

MEMORY = 4 * 2**30  # address space of the process: a bomb that is taken ends it
TIMING = LinkTimeouts()
WANTED = part_fetch.FetchRange("orders", Position("log-1", 1, 0), Position("log-1", 1, 1), 0, "127.0.0.1:1")
NESTED = pa.schema(
    [
        ("id", pa.int64()),
        ("text", pa.string()),
        ("items", pa.list_(pa.struct([("a", pa.int32()), ("b", pa.string())]))),
        ("at", pa.timestamp("us", "UTC")),
        ("price", pa.decimal128(12, 2)),
        ("tags", pa.map_(pa.string(), pa.float64())),
    ]
)


def table(seed: int) -> list[pa.RecordBatch]:
    """Return two record batches with every kind of buffer."""
    pick = random.Random(seed)

    def row(number: int) -> dict[str, Any]:
        return {
            "id": number,
            "text": pick.choice((None, "", "größer", f"row {number}")),
            "items": pick.choice((None, [], [{"a": number, "b": "x"}, {"a": None, "b": None}])),
            "at": pick.choice((None, number * 1000)),
            "price": pick.choice((None, number)),
            "tags": pick.choice((None, [], [("k", 0.5), ("l", None)])),
        }

    return [pa.RecordBatch.from_pylist([row(n) for n in range(start, start + 20)], NESTED) for start in (0, 20)]


def segment(batches: list[pa.RecordBatch], compression: str) -> tuple[bytes, SegmentIndex]:
    """Return a segment's bytes and its index."""
    parts: list[bytes] = []
    writer = SegmentWriter(lambda data: parts.append(bytes(data)), batches[0].schema, compression)
    for batch in batches:
        writer.write(batch)
    return b"".join(parts), writer.finish()


def stream(header: dict[str, Any], chunks: list[tuple[bytes, int]], batches: int) -> bytes:
    """Return what a data server says to one request."""
    server = Connection(Side.SERVER)
    server.state.apply(Side.CLIENT, HELLO)
    server.send(WELCOME)
    server.state.apply(Side.CLIENT, Request(1, "fetch", {}))
    server.send(Part(1, header))
    said = server.data_to_send()
    for payload, crc in chunks:
        server.send_data_header(len(payload), crc)
        said += [*server.data_to_send(), payload]
    server.send(Reply(1, {"record_batches": batches, "rows": 0}))
    return b"".join(said + server.data_to_send())


def read(said: bytes) -> list[pa.RecordBatch]:
    """Return what a subscriber makes of it, through the code that subscribers use."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        theirs.sendall(said)
        theirs.shutdown(socket.SHUT_WR)
        link = BlockingLink(ours, "a forger", TIMING)
        link._greet(HELLO)
        part_fetch.pooled = lambda *_: contextlib.nullcontext(link)  # type: ignore[assignment]

        def accept(schema: pa.Schema) -> None:
            if not schema.equals(NESTED):
                raise pa.ArrowInvalid("another schema")

        return [fetched.batch for fetched in part_fetch._stream(WANTED, cast(Any, None), None, 0, accept)]


def values(batch: pa.RecordBatch) -> list[Any]:
    """Touch every value; Python has no dates for all timestamps that Arrow has."""
    at = batch.schema.get_field_index("at")
    numbers = batch.set_column(at, "at", batch.column(at).cast(pa.int64()))
    return cast(list[Any], numbers.to_pylist())


def chunks_of(data: bytes, index: SegmentIndex) -> Iterator[tuple[bytes, int]]:
    for chunk in index.chunks(0, len(index.batches)):
        yield data[chunk.offset : chunk.offset + chunk.length], chunk.crc


def part(rows: int, batches: int, length: int) -> dict[str, Any]:
    whose = {"partitions": 1, "schema_id": 1, "sealed_ms": 0, "epoch": 1, "publisher": "orders"}
    return {**whose, "n": 0, "partition": 0, "row0": 0, "rows": rows, "record_batches": batches, "length": length}


class Trial:
    """One mode: draws a mutant, tries it, and says what came of it."""

    def __init__(self, seed: int) -> None:
        self.pick = random.Random(seed)
        self._mutator = Mutator("metadata", seed)
        self.batches = table(seed)
        self.truth = [values(batch) for batch in self.batches]
        self.segments = {codec: segment(self.batches, codec) for codec in ("none", "lz4", "zstd")}

    def bytes(self, data: bytes) -> bytes:
        """Return ``data`` with something changed: in half of the cases only values, never lengths."""
        if self.pick.random() < 0.5:
            copy = bytearray(data)
            for _ in range(self.pick.choice((1, 1, 2, 6))):
                copy[self.pick.randrange(len(copy))] ^= self.pick.randrange(1, 256)
            return bytes(copy)
        return self._mutator._bytes(data)

    def wire(self) -> str:
        data, index = self.segments[self.pick.choice(("none", "lz4", "zstd"))]
        said = stream(part(40, 2, len(data)), list(chunks_of(data, index)), 2)
        start = len(stream(part(40, 2, len(data)), [], 2)) - 80
        if self.pick.random() < 0.8:  # inside the data
            damaged = said[:start] + self.bytes(said[start:])
        else:
            damaged = said[:60] + self.bytes(said[60:])
        found = [values(batch) for batch in read(damaged)]
        return "right" if found == self.truth else "WRONG ROWS"

    def signed(self) -> str:
        data, index = self.segments[self.pick.choice(("none", "lz4", "zstd"))]
        forged = self.bytes(data)
        ends = [0]
        for payload, _ in chunks_of(data, index):
            ends.append(min(len(forged), ends[-1] + len(payload)))
        ends[-1] = len(forged)
        pieces = [forged[a:b] for a, b in itertools.pairwise(ends) if b > a]
        said = stream(part(40, 2, len(forged)), [(each, zlib.crc32(each)) for each in pieces], 2)
        found = read(said)
        for batch in found:
            values(batch)
        right = [batch.num_rows for batch in found]
        return "valid rows" if sum(right) == 40 and all(b.schema.equals(NESTED) for b in found) else "WRONG ROWS"

    def sealed(self) -> str:
        with tempfile.TemporaryDirectory(prefix="jobpipe-") as folder:
            log = open_log(Path(folder))
            try:
                return self._sealed(log, Path(folder))
            finally:
                log.close()

    def _sealed(self, log: Any, folder: Path) -> str:
        data, index = self.segments["none"]
        inline = self.pick.random() < 0.5
        write_id = new_write_id()
        name = file_name(write_id, "0")
        info = SegmentInfo(0, 40, len(data), None if inline else name, 0, index.pack(), data if inline else None)
        described = json.dumps(info.to_json()).encode()
        what = self.pick.randrange(4)
        if what == 0:
            described = self._json(described)
        if what == 1:
            described = json.dumps({**info.to_json(), "index": _base64(self.bytes(index.pack()))}).encode()
        stored = self.bytes(data) if what >= 2 else data
        if not inline:
            (log.segments / name).write_bytes(stored)
        value = json.loads(described)
        claimed = SegmentInfo.from_json(value, stored if inline else None)
        if what == 3:  # a forger makes the lengths and checksums right, too
            sizes = (index.schema_bytes, tuple(index.batches[:-1]))
            last = len(stored) - sizes[0] - sum(size for _, size in sizes[1])
            batches = (*sizes[1], (index.batches[-1][0], max(last, 1)))
            new = SegmentIndex(sizes[0], batches, ())
            ends = [sizes[0]]
            for _, size in batches:
                ends.append(ends[-1] + size)
            crcs = [zlib.crc32(stored[a:b]) for a, b in zip([0, *ends], ends, strict=False)]
            claimed = replace(claimed, length=ends[-1], index=replace(new, crcs=tuple(crcs)).pack())
        schema_id = log.schemas.add(SCHEMA.serialize().to_pybytes(), None)
        end = log.seal(NewBatch("q", 0, "run", write_id, schema_id, 1, "rr"), [claimed])
        reader = CatalogReader.open(folder / "orders", "orders")
        try:
            start = log.batches.tail()
            pieces, _ = reader.segments(start, end, 0, skip=0, limit=64, cursor=None)
            found: list[Any] = []
            for piece in pieces:
                if piece.data is not None:
                    raw = piece.data
                else:
                    assert piece.path is not None
                    raw = piece.path.read_bytes()[piece.offset :]
                payloads = [(raw[c.offset : c.offset + c.length], c.crc) for c in piece.chunks]
                if any(len(payload) != c.length for (payload, _), c in zip(payloads, piece.chunks, strict=True)):
                    return "SegmentCorrupt"  # as the data process says of a file that is too short
                header = part(piece.rows, piece.record_batches, sum(c.length for c in piece.chunks))
                said = stream({**header, "row0": piece.row0}, payloads, piece.record_batches)
                found += [values(batch) for batch in read(said)]
        finally:
            reader.close()
        if found == self.truth:
            return "right"
        return "valid rows" if what == 3 and sum(map(len, found)) == 40 else "WRONG ROWS"

    def _json(self, described: bytes) -> bytes:
        mutator = Mutator("described", self.pick.randrange(2**32))
        while True:
            data = mutator._json(described)
            if data != described:
                return data


def _base64(data: bytes) -> str:
    import base64

    return base64.b64encode(data).decode()


def main() -> None:
    """Run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("mode", choices=("wire", "signed", "sealed"))
    parser.add_argument("--mutants", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    trial = Trial(given.seed)
    run: Callable[[], str] = getattr(trial, given.mode)
    outcomes: collections.Counter[str] = collections.Counter()
    for number in range(given.mutants):
        try:
            outcome = run()
        except JobpipeError as error:
            outcome = type(error).__name__
        except BaseException:
            print(f"mutant {number} of seed {given.seed}", file=sys.stderr)
            raise
        if outcome.isupper():
            print(f"mutant {number} of seed {given.seed}: {outcome}", file=sys.stderr)
        outcomes[outcome] += 1
    print(json.dumps(outcomes))


if __name__ == "__main__":
    main()
