"""The bytes of one part of a stream, as a file for pyarrow."""

from __future__ import annotations

from collections import deque
from typing import Any

import pyarrow as pa

from jobpipe.errors import ChecksumMismatch, JobpipeError, RemoteProtocolError
from jobpipe.net.links.blocking_link import BlockingLink


class PartSource:
    """A part's bytes as a file for pyarrow; each chunk's checksum is verified before pyarrow sees a byte of it.

    Args:
        link: where the part comes in.
        length: bytes of the part.
        where: its topic's offset and partition, for errors.
        expected: length and CRC-32 of each of its chunks by the catalog, where another server sends the bytes.
    """

    def __init__(
        self, link: BlockingLink, length: int, where: dict[str, Any], expected: deque[tuple[int, int]] | None = None
    ) -> None:
        self._expected = expected
        self._link = link
        self._where = where
        self._unannounced = length  # bytes of the part in chunks not yet begun
        self._carry = memoryview(b"")  # verified, not yet asked for
        self.failure: JobpipeError | None = None
        self.closed = False

    def read_buffer(self, size: int) -> pa.Buffer:
        """Return ``size`` bytes, fewer only at the end of the part."""
        try:
            return self._read(size)
        except JobpipeError as error:
            self.failure = error
            if isinstance(error, ChecksumMismatch):
                error.fields.update(self._where)
            raise

    def _read(self, size: int) -> pa.Buffer:
        size = min(size, len(self._carry) + self._unannounced)
        buffer = pa.allocate_buffer(size)
        view, filled = memoryview(buffer).cast("B"), 0
        while filled < size:
            if len(self._carry):
                taken = min(len(self._carry), size - filled)
                view[filled : filled + taken] = self._carry[:taken]
                self._carry = self._carry[taken:]
                filled += taken
                continue
            length = self._link.next_chunk_length()
            if length > self._unannounced:
                raise RemoteProtocolError("more data came than the part announced")
            self._unannounced -= length
            if self._expected is not None and (length, self._link.chunk_crc) != self._expected.popleft():
                raise ChecksumMismatch(f"{self._link.peer} sent other bytes than the catalog knows", **self._where)
            if length <= size - filled:
                self._link.read_chunk_into(view[filled : filled + length])
                filled += length
            else:
                carry = memoryview(bytearray(length))
                self._link.read_chunk_into(carry)
                self._carry = carry
        return buffer

    def read(self, size: int = -1) -> bytes:
        """Return bytes; pyarrow asks so for small pieces."""
        if size < 0:
            size = len(self._carry) + self._unannounced
        return self.read_buffer(size).to_pybytes()

    def finish(self) -> None:
        """Take what pyarrow left unread; nothing may be left in a sound part."""
        if len(self._carry) or self._unannounced:
            raise RemoteProtocolError("a part holds more bytes than its record batches")

    def close(self) -> None:
        """Nothing to close: the link is pooled."""
        self.closed = True

    def readable(self) -> bool:
        """Always."""
        return True


class BytesSource:
    """The same of a part whose bytes are here, and verified."""

    failure: JobpipeError | None = None

    def __init__(self, data: bytes) -> None:
        self._buffer = pa.py_buffer(data)
        self._at = 0
        self.closed = False

    def read_buffer(self, size: int) -> pa.Buffer:
        """Return ``size`` bytes, fewer only at the end."""
        found = self._buffer.slice(self._at, min(size, self._buffer.size - self._at))
        self._at += found.size
        return found

    def read(self, size: int = -1) -> bytes:
        """Return bytes; pyarrow asks so for small pieces."""
        return self.read_buffer(self._buffer.size if size < 0 else size).to_pybytes()

    def finish(self) -> None:
        """Nothing may be left in a sound part."""
        if self._at < self._buffer.size:
            raise RemoteProtocolError("a part holds more bytes than its record batches")

    def close(self) -> None:
        self.closed = True

    def readable(self) -> bool:
        """Always."""
        return True
