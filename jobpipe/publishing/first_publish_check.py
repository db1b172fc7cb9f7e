"""Who published what; a query that is new to a topic where another one published: its checkpoint may be gone."""

from __future__ import annotations

import logging
import uuid

from jobpipe.errors import NewCheckpoint
from jobpipe.operations.publisher_operations import NewestQuery
from jobpipe.store.catalog.batches import ONCE

log = logging.getLogger(__name__)

APPENDED = "batch-"  # begins the query ids of batches that were appended outside of a query: these have no checkpoint


def is_appended(query_id: str) -> bool:
    """Tell whether an id is of batches outside of Spark's queries and plain publishers with ids of their own."""
    return query_id.startswith((APPENDED, ONCE))


def series_id(series: str, *, once: bool) -> str:
    """Return the query id of a series of batches outside of a query; ``once``: it never comes again after days."""
    return f"{ONCE if once else APPENDED}{series}"


def series_of(query_id: str) -> str:
    """Return the series that an id is of."""
    return query_id.removeprefix(APPENDED).removeprefix(ONCE)


def author(query_id: str) -> str:
    """Return who published under an id, for messages: Spark's queries have a UUID, plain publishers their name."""
    if is_appended(query_id):
        return "an unnamed publisher"
    try:
        uuid.UUID(query_id)
    except ValueError:
        return f"publisher {query_id}"
    return f"query {query_id}"


class FirstPublishCheck:
    """Says once for each query that its id is new to a topic that has batches, or refuses it.

    Args:
        topic: what is published.
        policy: ``publish`` or ``refuse``.
    """

    def __init__(self, topic: str, policy: str) -> None:
        self._topic = topic
        self._policy = policy
        self._warned = ""

    def check(self, query_id: str, newest: NewestQuery | None) -> None:
        """Judge a query of which nothing is sealed; ``newest`` is the last batch of any query, None if there is none.

        Raises:
            NewCheckpoint: the policy is ``refuse``.
        """
        if newest is None or not newest.n or query_id == self._warned or is_appended(query_id):
            return
        before = newest.query_id
        said = (
            f"topic {self._topic!r}: {author(query_id)} publishes here for the first time, after {author(before)}, "
            f"whose last batch is {newest.batch_id} (up to offset {newest.n})"
        )
        if not author(query_id).startswith("query "):
            self._warned = query_id
            log.warning(
                "%s. Batch ids belong to a name: if it is the same program under another name, what it writes again is "
                "published again",
                said,
            )
            return
        why = "If it is the same job with a new or deleted checkpoint, it publishes the rows of its source again"
        if self._policy == "refuse":
            raise NewCheckpoint(
                f"{said}. {why}; on_new_checkpoint='refuse' forbids that, and nothing was published. Start it with the "
                "checkpoint of that query, or, if the rows are to follow, with on_new_checkpoint='publish'",
                topic=self._topic,
                query_id=query_id,
                before=before,
                batch_id=newest.batch_id,
                offset=newest.n,
            )
        self._warned = query_id
        log.warning("%s. %s. on_new_checkpoint='refuse' forbids that", said, why)
