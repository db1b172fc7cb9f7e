"""The publishers that are open in this process, so that a notebook can close, or replace, one that it has lost."""

from __future__ import annotations

import os
import threading
from typing import Protocol

from jobpipe.config import Config


class OpenPublisher(Protocol):
    """A sink, or a plain publisher."""

    @property
    def topic(self) -> str: ...

    @property
    def place(self) -> tuple[str, str, str]: ...

    def close(self, final: bool = False) -> None: ...

    def give_way(self) -> None: ...


_lock = threading.Lock()
_open: list[OpenPublisher] = []


def place_of(config: Config) -> tuple[str, str, str]:
    """Return what tells topics of one name apart: home, registry, namespace."""
    return str(config.home), config.registry_connect, config.namespace


def remember(publisher: OpenPublisher) -> None:
    """Note that a publisher was opened."""
    with _lock:
        _open.append(publisher)


def forget(publisher: OpenPublisher) -> None:
    """Note that a publisher was closed."""
    with _lock:
        _open[:] = [other for other in _open if other is not publisher]


def open_publishers(topic: str | None = None) -> list[OpenPublisher]:
    """Return those of one topic, or all, in the order in which they were opened."""
    with _lock:
        return [publisher for publisher in _open if topic in (None, publisher.topic)]


def replace(topic: str, config: Config) -> None:
    """Let this process's own publisher of the topic, if there is one, give way to a new one.

    Queries that publish by it are stopped first; what is sealed stays.
    """
    for publisher in open_publishers(topic):
        if publisher.place == place_of(config):
            publisher.give_way()


def close(topic: str, final: bool = False) -> bool:
    """Close this process's sink, or plain publisher, of ``topic``; with ``final`` seal an end mark.

    For a notebook that made the sink inline, and has nothing left to call ``close()`` of. Queries that publish by it
    are left alone, and fail with their next batch: stop them first.

    Returns:
        False if there was none.
    """
    found = open_publishers(topic)
    for publisher in found:
        publisher.close(final)
    return bool(found)


def _in_child() -> None:
    """A fork has opened none of them, and a thread that it does not have may hold the lock."""
    global _lock
    _lock = threading.Lock()
    _open.clear()


os.register_at_fork(after_in_child=_in_child)
