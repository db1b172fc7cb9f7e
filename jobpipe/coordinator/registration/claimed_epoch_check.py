"""Verifies a higher epoch that a peer claims: only catalog and registry know whether it exists.

The fence itself is in each write of the catalog: ``check_epoch`` in store/catalog/catalog_file.py.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from jobpipe.coordinator.background_tasks import BackgroundTasks
from jobpipe.coordinator.topic.served_topic import ServedTopic
from jobpipe.errors import Fenced, JobpipeError, TopicNotFound
from jobpipe_registry.topic_records import MAX_STEP

log = logging.getLogger(__name__)

ASK_SECONDS = 2.0  # between two requests to the registry, however often peers name one
PATIENCE_SECONDS = 3.0  # that a peer waits for the answer


class ClaimedEpochCheck:
    """Answers for one topic.

    Args:
        topic: As this coordinator serves it.
        registered: Gives the registry's epoch; blocking, for a bounded time.
        background: Owns the request to the registry, which may outlive its caller.
    """

    def __init__(self, topic: ServedTopic, registered: Callable[[], int], background: BackgroundTasks) -> None:
        self.topic = topic
        self._registered = registered
        self._background = background
        self._asking: asyncio.Task[int] | None = None
        self._asked_at = 0.0

    async def exists(self) -> bool:
        """Tell whether another publisher was given an epoch above ours; False while that cannot be known."""
        if self._asking is None or (self._asking.done() and time.monotonic() - self._asked_at >= ASK_SECONDS):
            self._asked_at = time.monotonic()
            self._asking = self._background.start(self._ask())
        done, _ = await asyncio.wait({self._asking}, timeout=PATIENCE_SECONDS)
        return bool(done) and not self._asking.cancelled() and self._asking.result() > self.topic.epoch_drawn

    async def _ask(self) -> int:
        """Return the highest epoch that catalog or registry know; 0 if neither answers."""
        topic, highest = self.topic, 0
        try:
            await topic.run(topic.store.check_epoch)
        except Fenced as error:
            highest = int(error.fields.get("newest", 0))
        except JobpipeError as error:
            log.info("topic %s: its catalog cannot be asked for its epoch: %s", topic.topic, error)
        try:
            registered = await asyncio.to_thread(self._registered)
        except JobpipeError as error:
            log.info("topic %s: the registry cannot be asked for its epoch: %s", topic.topic, error)
            return highest
        if registered > topic.epoch_drawn + MAX_STEP:
            log.warning("topic %s: the registry's epoch %d is none of a publisher", topic.topic, registered)
            return highest
        return max(highest, registered)

    def refusal(self, named: int, *, exists: bool) -> TopicNotFound:
        """Return the reply to a peer that has named a higher epoch than ours."""
        topic = self.topic
        if exists:
            why = f"a publisher with epoch {named} exists, this one has {topic.epoch}"
        else:
            why = (
                f"its publisher here has epoch {topic.epoch}; HELLO names {named}, which neither the catalog nor the "
                "registry confirms. If it was real, spool and registry were set back: begin with a new checkpoint"
            )
        return TopicNotFound(f"topic {topic.topic!r}: {why}", topic=topic.topic, epoch=topic.epoch, named=named)
