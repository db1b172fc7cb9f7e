"""Dispatch: which handler answers a request, and the context that it gets."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from jobpipe.coordinator.topic.served_topic import ServedTopic
from jobpipe.net.links.async_link import Link
from jobpipe.operations.messages.message_fields import Fields, RequestFor


@dataclass(frozen=True)
class Context:
    """Who asks, and of which topic."""

    link: Link
    topic: ServedTopic

    @property
    def name(self) -> str:
        """The subscription's, where a subscriber asks."""
        return self.link.hello.name or ""


Answering: TypeAlias = Callable[[Context, Any], Awaitable[Fields]]
Q = TypeVar("Q", bound=RequestFor[Any])


def pair(kind: type[Q], answer: Callable[[Context, Q], Awaitable[Fields]]) -> tuple[type[Fields], Answering]:
    """Pair a request with the method that answers it; mypy sees that they fit."""
    return kind, answer


Handlers: TypeAlias = dict[type[Fields], Answering]
"""By the type of the request."""
