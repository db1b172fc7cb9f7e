"""What is known of a topic's publisher while it has none, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobpipe.plural import seconds

if TYPE_CHECKING:
    from jobpipe.operations.status_operations import TopicStatus


def without_publisher(status: TopicStatus) -> str | None:
    """Return None while a topic has a publisher, else what is known of the last one, and how long it is served."""
    if status.publishing and not status.ended:
        return None
    last = f"the last one was {status.publisher}, epoch {status.epoch}"
    left = status.served_for
    served = "sealed batches are served" + ("" if left is None else f" for another {seconds(left)}")
    if status.ended:
        return f"none, the topic has ended; {last}; {served}"
    if (gone := status.publisher_gone) is not None:
        return f"publisher gone for {seconds(gone)}, served for another {seconds(left)}; {last}"
    return f"no publisher now; {last}; {served}"
