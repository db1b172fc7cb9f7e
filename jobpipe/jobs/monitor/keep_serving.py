"""Keeps serving topics after their publishing jobs have ended, as long as other jobs read them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack

from jobpipe.admin import Admin
from jobpipe.config import Config
from jobpipe.errors import JobpipeError, TopicNotFound
from jobpipe.pipelines.model.graph import TopicNode
from jobpipe.publishing.coordinator_launcher import end_coordinators
from jobpipe.publishing.serving.spool_server import SpoolServer, check_spool

log = logging.getLogger(__name__)

POLL_SECONDS = 1.0
CLOSE_SECONDS = 10.0


class KeepServing:
    """Looks every second, in a thread of its own; a context manager.

    A coordinator of a job that has ended serves its topic until it was read, or nothing was read for
    ``jobpipe.coordinator.linger``. A job that starts late, or again, would wait for the topic without end.

    Args:
        topics: returns those that are looked at, before each look.
        active: whether a job, as a topic names it, has not ended.
    """

    def __init__(
        self,
        config: Config,
        admin: Admin,
        topics: Callable[[], Sequence[TopicNode]],
        active: Callable[[str], bool],
    ) -> None:
        self._config = config
        self._admin = admin
        self._topics = topics
        self._active = active
        self._missed: set[str] = set()
        self._serving: dict[str, SpoolServer] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="serving-on", daemon=True)

    def __enter__(self) -> KeepServing:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(CLOSE_SECONDS)

    def _serve(self) -> None:
        with ExitStack() as stack:
            stack.callback(self._close)
            while not self._ended.wait(POLL_SECONDS):
                try:
                    topics = self._topics()
                except JobpipeError as error:
                    log.info("topics to be served on: %s", error)
                    continue
                except Exception:
                    log.exception("topics to be served on")
                    continue
                self._stop_serving_others(topics)
                for topic in topics:
                    try:
                        self._check_topic(topic)
                    except (JobpipeError, OSError) as error:
                        log.info("topic %s: %s", topic.name, error)
                    except Exception:  # no thread can be started now, for instance
                        log.exception("topic %s", topic.name)

    def _stop_serving_others(self, topics: Sequence[TopicNode]) -> None:
        """Serve no topic any more that is not looked at."""
        names = {topic.name for topic in topics}
        self._missed &= names
        for name in self._serving.keys() - names:
            self._serving.pop(name).close()

    def _check_topic(self, topic: TopicNode) -> None:
        name = topic.name
        server = self._serving.get(name)
        if server is not None:
            serves = False
            try:
                serves = server.serves(0.0) and self._is_wanted(topic)
            finally:  # one whose coordinator no longer answers is replaced
                if not serves:
                    del self._serving[name]
                    server.close()
            return
        if not self._is_wanted(topic):
            return
        try:
            self._admin.locate(name)
        except TopicNotFound:
            if name in self._missed:  # twice: not in the moment in which one coordinator follows another
                check_spool(self._config, name)
                self._serving[name] = SpoolServer(self._config, name)
                self._missed.discard(name)
                log.info("topic %s is served on for the jobs that read it", name)
            else:
                self._missed.add(name)
        else:
            self._missed.discard(name)

    def _is_wanted(self, topic: TopicNode) -> bool:
        """Whether a job reads it, and none publishes it."""
        return any(map(self._active, topic.readers)) and not any(map(self._active, topic.publishers))

    def _close(self) -> None:
        for server in self._serving.values():
            server.close()
        end_coordinators()
