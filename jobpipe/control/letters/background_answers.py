"""Answers that take seconds: made in threads of their own, and given to all who ask until they are out of date."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotDone
from dataclasses import dataclass
from typing import Generic, TypeVar

from jobpipe.errors import JobpipeError

log = logging.getLogger(__name__)
T = TypeVar("T")

FRESH_SECONDS = 5.0  # for which an answer is given whatever has changed
STALE_SECONDS = 60.0  # after which it is made again although nothing is known to have changed, if no page says else
LOG_TEXT = "it cannot be read; the server's log says why"


@dataclass
class _Kept(Generic[T]):
    version: Hashable
    made_at: float  # when making it began
    done_at: float
    answer: T | JobpipeError


class BackgroundAnswers(Generic[T]):
    """The newest answers by key. Thread safe; each is made by one thread at a time. :meth:`close` ends the threads.

    Args:
        most: answers that are kept; the oldest go.
        holds: seconds after which an answer is made again although nothing is known to have changed.
        expires: seconds after which it is not given any more, also while it is made again.
        ticks: monotonic seconds.
    """

    def __init__(
        self,
        name: str,
        *,
        most: int = 256,
        threads: int = 2,
        holds: float = STALE_SECONDS,
        expires: float = float("inf"),
        ticks: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._most = most
        self._holds = holds
        self._expires = expires
        self._ticks = ticks
        self._lock = threading.Lock()
        self._kept: dict[Hashable, _Kept[T]] = {}
        self._making: dict[Hashable, Future[T | JobpipeError]] = {}
        self._forgotten: set[Hashable] = set()  # while they were made
        self._closed = False

    def get(
        self, key: Hashable, version: Hashable, make: Callable[[], T], *, wait: float = 0.0
    ) -> T | JobpipeError | None:
        """Return an answer, or the error that there was instead; None if there is none yet.

        Args:
            version: of what the answer is about: another one lets it be made again soon.
            wait: seconds, if there is no answer yet; an older one is returned at once, and the next look has a newer.
        """
        with self._lock:
            known = self._kept.get(key)
            if known is not None and self._ticks() - known.done_at > self._expires:
                known = None
            if known is not None and self._is_fresh(known, version):
                return known.answer
            making = self._making.get(key)
            if making is None:
                if self._closed:
                    return None if known is None else known.answer
                making = self._making[key] = self._pool.submit(self._make, key, version, make)
        if known is not None:
            return known.answer
        try:
            return making.result(wait)
        except NotDone:
            return None

    def forget(self, key: Hashable) -> None:
        """Let an answer be made again at the next look; until then the old one is given."""
        with self._lock:
            if key in self._making:
                self._forgotten.add(key)
            if (known := self._kept.get(key)) is not None:
                known.made_at = float("-inf")

    def known(self, key: Hashable) -> T | None:
        """Return the newest answer, however old; None if there is none."""
        with self._lock:
            kept = self._kept.get(key)
        return None if kept is None or isinstance(kept.answer, JobpipeError) else kept.answer

    def close(self) -> None:
        """End; work that has begun ends by itself."""
        with self._lock:
            self._closed = True
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _is_fresh(self, known: _Kept[T], version: Hashable) -> bool:
        age = self._ticks() - known.made_at
        holds = known.version == version and not isinstance(known.answer, JobpipeError)
        return age <= (self._holds if holds else FRESH_SECONDS)

    def _make(self, key: Hashable, version: Hashable, make: Callable[[], T]) -> T | JobpipeError:
        began = self._ticks()  # what happens while it is made may not be in it
        found: T | JobpipeError
        try:
            found = make()
        except JobpipeError as error:
            found = error
        except Exception:
            log.exception("dead letters: %s", key)
            found = JobpipeError(LOG_TEXT)
        with self._lock:
            del self._making[key]
            if key in self._forgotten:
                self._forgotten.discard(key)
                began = float("-inf")
            self._kept.pop(key, None)
            self._kept[key] = _Kept(version, began, self._ticks(), found)
            while len(self._kept) > self._most:
                del self._kept[next(iter(self._kept))]
        return found
