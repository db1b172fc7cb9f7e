"""Requests for rows: read by threads of their own, so that others need not wait; and exports, sent piece by piece."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from jobpipe.control.control_service import Control
from jobpipe.control.page.rows.rows_page import KINDS, RowsForm
from jobpipe.control.rows.rows_export import csv_lines, file_name, parquet_file
from jobpipe.control.rows.rows_query import Ended, RowsFound
from jobpipe.control.rows.topic_rows import MOST_READS
from jobpipe.errors import PipelineNotFound, WaitTimeout

T = TypeVar("T")

MOST_ASKED = 8  # requests that have, or wait for, a thread
MOST_SENT = 4  # at a time, each of which holds its rows
PIECE_BYTES = 1 << 18
_MEDIA = {"csv": "text/csv; charset=utf-8", "parquet": "application/vnd.apache.parquet"}


class RowsRequests:
    """Those of a server; for one event loop, but :meth:`read`."""

    def __init__(self, control: Control) -> None:
        self._control = control
        self._asked = 0
        self._sent = 0
        self._pool = ThreadPoolExecutor(MOST_READS, thread_name_prefix="rows")

    def close(self) -> None:
        """End the threads; what is being read is read first, which takes at most some seconds."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    async def run(self, work: Callable[[], T]) -> T:
        """Return what ``work``, which reads rows, returns.

        Raises:
            WaitTimeout: too many wait.
        """
        if self._asked >= MOST_ASKED:
            raise WaitTimeout("too many ask for rows of topics now; try again in a moment")
        self._asked += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, work)
        finally:
            self._asked -= 1

    def take(self) -> None:
        """Take a place for an export.

        Raises:
            WaitTimeout: there is none.
        """
        if self._sent >= MOST_SENT:
            raise WaitTimeout(f"{MOST_SENT} exports are under way; try again in a moment")
        self._sent += 1

    def give_back(self) -> None:
        """Give it back."""
        self._sent -= 1

    def read(self, topic: str, kind: str, query: Mapping[str, str]) -> RowsFile:
        """Return a file of rows. Blocks.

        Raises:
            PipelineNotFound: there is no such kind of file.
            JobpipeError: as :meth:`Control.topic_rows`.
        """
        if kind not in KINDS:
            raise PipelineNotFound("there is no such page", job="")
        asked = RowsForm.of(topic, query).query(for_export=True)
        found = self._control.topic_rows(asked)
        is_end = found.ended is Ended.ALL or (found.ended is Ended.LIMIT and len(found.places) >= found.there)
        is_whole = is_end and not found.notes  # which say what is not there any more, or was never there
        pieces = csv_lines(found) if kind == "csv" else _cut(parquet_file(found))
        return RowsFile(pieces, self.give_back, _headers(found, topic, kind, is_whole=is_whole))


def _headers(found: RowsFound, topic: str, kind: str, *, is_whole: bool) -> dict[str, str]:
    return {
        "content-type": _MEDIA[kind],
        "content-disposition": f'attachment; filename="{file_name(topic, kind, is_whole=is_whole)}"',
        "x-jobpipe-rows": str(len(found.places)),
        "x-jobpipe-complete": "true" if is_whole else "false",
        "x-jobpipe-ended": found.ended.value,
    }


class RowsFile(StreamingResponse):
    """A file that is being sent; ``done`` is called when it is, or its reader has gone."""

    def __init__(self, pieces: Iterator[bytes], done: Callable[[], None], headers: Mapping[str, str]) -> None:
        super().__init__(pieces, headers=headers)
        self._done = done

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._done()


def _cut(content: bytes) -> Iterator[bytes]:
    for start in range(0, len(content), PIECE_BYTES):
        yield content[start : start + PIECE_BYTES]
