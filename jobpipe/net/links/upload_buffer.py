"""Bytes that arrived for a request and wait for its handler, bounded by back-pressure on the link."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable

from jobpipe.errors import JobpipeError
from jobpipe.net.links.socket_options import copy_of

WINDOW = 1024 * 1024
"""Bytes that may wait in all inboxes of a link before it stops reading; one read of the socket may exceed it."""


class UploadBuffer:
    """The upload of one request: filled by the link, emptied by one handler."""

    def __init__(self, total: int, taken: Callable[[int], None]) -> None:
        self._left_to_come = total
        self._chunks: deque[bytes] = deque()
        self._taken = taken
        self._changed = asyncio.Event()
        self._error: JobpipeError | None = None
        self._closed = False

    def put(self, payload: bytes) -> bool:
        """Add a payload; False, if it is not wanted any more."""
        self._left_to_come -= len(payload)
        if self._closed:
            return False
        self._chunks.append(payload)
        self._changed.set()
        return True

    def fail(self, error: JobpipeError) -> None:
        self._error = error
        self._changed.set()

    def close(self) -> None:
        """Throw away what is there and what will come."""
        self._closed = True
        for payload in self._chunks:
            self._taken(len(payload))
        self._chunks.clear()

    @property
    def complete(self) -> bool:
        """All announced bytes have come."""
        return self._left_to_come <= 0

    async def chunks(self) -> AsyncIterator[bytes]:
        """Give the payloads in order, then end. One reader only.

        Raises:
            JobpipeError: why the link ended before all had come.
        """
        while True:
            while self._chunks:
                payload = self._chunks.popleft()
                self._taken(len(payload))
                yield payload
            if self.complete or self._closed:
                return
            if self._error is not None:
                raise copy_of(self._error)
            self._changed.clear()
            await self._changed.wait()


class UploadBuffers:
    """The inboxes of one link; at most one is being filled, others may still be read.

    Args:
        pause: Called with True when more than WINDOW bytes wait: stop reading; with False when half has been taken.
        taken: Called with the number of bytes that no longer wait.

    Attributes:
        waiting: How many bytes wait.
    """

    def __init__(self, pause: Callable[[bool], None], taken: Callable[[int], None]) -> None:
        self._pause = pause
        self._taken = taken
        self._open: dict[int, UploadBuffer] = {}
        self._filling: UploadBuffer | None = None
        self.waiting = 0

    def begin(self, request_id: int, total: int) -> None:
        """An upload of ``total`` bytes begins."""
        self._filling = self._open[request_id] = UploadBuffer(total, self._took)

    def put(self, payload: bytes) -> None:
        """Take the next bytes of the upload that began last."""
        if self._filling is not None and self._filling.put(payload):
            self.waiting += len(payload)
            if self.waiting > WINDOW:
                self._pause(True)

    def of(self, request_id: int) -> UploadBuffer | None:
        """Return the inbox of a request."""
        return self._open.get(request_id)

    def drop(self, request_id: int) -> None:
        """The request has been answered: what waits for it and what still comes is thrown away."""
        upload = self._open.pop(request_id, None)
        if upload is not None:
            upload.close()

    def fail(self, error: JobpipeError) -> None:
        for upload in self._open.values():
            upload.fail(error)

    def _took(self, size: int) -> None:
        self.waiting -= size
        self._taken(size)
        if self.waiting <= WINDOW // 2:
            self._pause(False)
