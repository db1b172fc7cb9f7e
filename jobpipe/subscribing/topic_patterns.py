"""Topics by pattern: which there are, what schemas they have, and those that come while a session lives."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from jobpipe.config import Config
from jobpipe.discovery.registry_handler import map_registry_errors
from jobpipe.discovery.topic_lookup import TopicLocator, from_records
from jobpipe.errors import ConfigError, JobpipeError, RegistryUnavailable, TopicNotFound
from jobpipe.net.retry import RETRYABLE, Deadline
from jobpipe.store.catalog.position import Position
from jobpipe.store.reading.boundary import EARLIEST, Boundary
from jobpipe.subscribing.one_off_requests import ask_schema, control_link
from jobpipe.subscribing.subscriber_session import SubscriberSession
from jobpipe.subscribing.wait_logging import log_while_waiting

log = logging.getLogger(__name__)

LOOK_SECONDS = 2.0  # between two looks at what the registry has told
EAGER_SECONDS = 0.3  # between two questions to those that were found; and two looks at the start
START_SECONDS = 5.0  # at the start, for the other topics that are registered, once one is connected
CLOSE_SECONDS = 5.0
SHOWN = 5  # names in an error
MOST = 100  # each topic has a control link of its own

Fits = Callable[[str, bytes, str | None], None]
"""(topic, Arrow's schema, Spark's JSON or None): raises if the topic does not fit what its reader reads."""
Between = Callable[[str], tuple[Boundary, Boundary | None]]
"""Returns where the reading of a topic is to begin and to end."""


@dataclass(frozen=True)
class TopicPattern:
    """Topics whose whole name matches a regular expression of Python.

    Attributes:
        most: The limit; a pattern that matches more by mistake must not open a link to each.
    """

    text: str
    most: int = MOST

    def served(self, locator: TopicLocator) -> list[str]:
        """Return those that have a publisher now, in name order.

        Raises:
            ConfigError: they are too many.
            RegistryUnavailable: the registry does not answer.
        """
        with map_registry_errors():
            names = self.matching(locator.handler.topics())
            records = locator.handler.records_of(names)
        return [name for name in names if from_records(name, records[name])]

    def matching(self, names: Iterable[str], known: Collection[str] = ()) -> list[str]:
        """Return those of the names that match, in name order, without those ``known``, which count for the limit.

        Raises:
            ConfigError: they are too many.
        """
        expression = re.compile(self.text)
        every = sorted({*(name for name in names if expression.fullmatch(name)), *known})
        if len(every) > self.most:
            raise ConfigError(
                f"subscribePattern={self.text!r}: {len(every)} topics match, or are in this checkpoint, and "
                f"maxTopics={self.most} allows no more: {', '.join(every[:SHOWN])}"
                f"{', ...' if len(every) > SHOWN else ''}. Make the pattern narrower, or raise maxTopics",
                pattern=self.text,
                count=len(every),
                most=self.most,
            )
        return [name for name in every if name not in known]

    def none_found(self, config: Config, missing: str) -> TopicNotFound:
        """Return the error of a wait that ended."""
        return TopicNotFound(
            f"subscribePattern={self.text!r}: {missing} under {config.namespace} within "
            f"{config.discovery_timeout:.3g} s (registry {config.registry_connect}); the whole name must match. Start "
            "a publisher, see `jobpipe topics` for what is served, or raise discoveryTimeout",
            pattern=self.text,
            timeout=config.discovery_timeout,
        )


def matching_schemas(config: Config, pattern: TopicPattern) -> dict[str, tuple[bytes, str | None]]:
    """Return the newest schema of each topic that matches and has one, as Arrow and Spark have it.

    Waits up to ``discovery.timeout`` for the first of them.

    Raises:
        TopicNotFound: none came.
    """
    deadline = Deadline(config.discovery_timeout)
    locator = TopicLocator(config)
    try:
        with log_while_waiting(pattern.text, config, "a topic that matches, with a schema", lambda: "there is none"):
            while True:
                found = {}
                for topic in pattern.served(locator):
                    try:
                        with control_link(config, locator, topic, Deadline(START_SECONDS)) as link:
                            schema = ask_schema(link)
                    except RETRYABLE as error:  # a registration that outlived its publisher
                        log.info("topic %s: %s", topic, error)
                        continue
                    if schema is not None:
                        found[topic] = schema
                if found:
                    return found
                if deadline.passed:
                    raise pattern.none_found(config, "no topic that has a schema was found")
                time.sleep(EAGER_SECONDS)
    finally:
        locator.close()


class TopicFinder:
    """Takes the topics that match a pattern into a session, those of its start and those that come later.

    A topic is reported once its coordinator has stored where this name begins there: the answer is the same after a
    restart. Until then it holds up nothing. Methods are for one thread; looking is done in another.
    """

    def __init__(self, session: SubscriberSession, pattern: TopicPattern, fits: Fits) -> None:
        self._session = session
        self._pattern = pattern
        self._fits = fits
        self._known: frozenset[str] = frozenset()  # what the reader has
        self._ready: dict[str, Position] = {}  # the topics found; never changed in place
        self._failure: JobpipeError | None = None
        self._names: list[str] | None = None  # all of the namespace, as the registry told them last
        self._candidates: set[str] = set()  # followed in the registry, to hear when they are served
        self._begun = False
        self._wake = threading.Event()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def connect(self) -> list[str]:
        """Return the topics that can be read now: waits for the first, and then shortly for all that are registered.

        Raises:
            TopicNotFound: there is none within ``discovery.timeout``.
            JobpipeError: what ended the link to one of them for good: the name is taken, for example.
        """
        config = self._session.config
        deadline = Deadline(config.discovery_timeout)
        with log_while_waiting(self._pattern.text, config, "a topic that matches", lambda: "none is served"):
            while True:
                self._wake.clear()
                known = False
                try:
                    known = self._follow_new()
                except RegistryUnavailable as error:
                    log.info("%s", error)
                followed = self._session.topics
                connected = [topic for topic in followed if self._session.is_connected(topic)]
                if connected:
                    deadline = Deadline(deadline.left(START_SECONDS))
                if connected and ((known and connected == followed) or deadline.passed):
                    return connected
                if deadline.passed:
                    raise self._pattern.none_found(config, "no topic was reached")
                self._wake.wait(EAGER_SECONDS)

    def first_positions(self, topics: Iterable[str], between: Between) -> dict[str, Position]:
        """Return where a new checkpoint begins in those of ``topics`` that can say so now.

        If some of them were asked before, and nothing was acknowledged since in any, this is the same query, started
        again before its first batch was committed: those that were not asked then were found later.

        Raises:
            SchemaMismatch: one has another schema.
        """
        states: dict[str, str | None] = {}
        for topic in topics:
            try:
                states[topic] = self._session.position_state(topic)
            except RETRYABLE as error:
                log.info("topic %s: taken in later (%s)", topic, error)
        again = "first" in states.values() and "moved" not in states.values()
        found = {
            topic: self.first_position(topic, *((EARLIEST, None) if again and stands is None else between(topic)))
            for topic, stands in states.items()
        }
        return {topic: position for topic, position in found.items() if position is not None}

    def first_position(self, topic: str, start: Boundary, end: Boundary | None = None) -> Position | None:
        """Return where this name begins, stored by now; None if ``topic`` cannot say so yet.

        Raises:
            SchemaMismatch: it has another schema than its reader reads.
        """
        try:
            schema = self._session.schema(topic)
            if schema is None:  # nothing was published, so that nothing is passed over
                return None
            self._fits(topic, *schema)
            return self._session.first_position_now(topic, start, end)
        except RETRYABLE as error:
            log.info("topic %s: taken in later (%s)", topic, error)
            return None

    def new_topics(self, known: Collection[str]) -> dict[str, Position]:
        """Return the topics found besides ``known``, and where each begins; the first call begins to look for them.

        Raises:
            JobpipeError: a topic that was found may not be read: another schema, a name taken, one too many.
        """
        self._known = frozenset(known)
        if self._thread is None:
            self._thread = threading.Thread(target=self._follow_topics, name="jobpipe-topics", daemon=True)
            self._thread.start()
        if self._failure is not None:
            raise self._failure
        return {topic: position for topic, position in self._ready.items() if topic not in self._known}

    def close(self) -> None:
        self._closed.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(CLOSE_SECONDS)

    def _follow_topics(self) -> None:
        while not self._closed.is_set():
            self._wake.clear()
            try:
                self._follow_new()
                self._take_in()
            except RETRYABLE as error:
                log.info("subscribePattern=%r: %s", self._pattern.text, error)
            except JobpipeError as error:
                self._failure = error
                return
            except Exception as error:
                log.exception("subscribePattern=%r", self._pattern.text)
                self._failure = JobpipeError(f"subscribePattern={self._pattern.text!r}: {error!r}")
                return
            if not self._closed.is_set():
                self._wake.wait(EAGER_SECONDS if self._expected() else LOOK_SECONDS)

    def _expected(self) -> list[str]:
        """Return the topics that are followed, and not told of."""
        return [topic for topic in self._session.topics if topic not in self._known and topic not in self._ready]

    def _take_in(self) -> None:
        for topic in self._expected():
            if not self._session.is_connected(topic):
                continue
            position = self.first_position(topic, EARLIEST)
            if position is not None:
                log.info("topic %s: found, begins at offset %d", topic, position.n)
                self._ready = {**self._ready, topic: position}

    def _follow_new(self) -> bool:
        """Take the topics that are served into the session; tell whether it is known of all which those are."""
        locator = self._session.locator
        if not self._begun:
            locator.follow_names(self._on_names)
            self._begun = True
        if self._names is None:
            return False
        matching = self._pattern.matching(self._names, self._session.topics)
        for topic in matching:
            if topic not in self._candidates:
                locator.follow(topic)
                locator.listen(topic, self._wake.set)
                self._candidates.add(topic)
            if locator.current(topic) is not None:
                self._session.follow(topic)
        for topic in self._candidates.difference(matching, self._session.topics):
            self._candidates.discard(topic)
            locator.unfollow(topic)
        return all(locator.has_looked_at(topic) for topic in matching)

    def _on_names(self, names: list[str]) -> None:
        self._names = names
        self._wake.set()
