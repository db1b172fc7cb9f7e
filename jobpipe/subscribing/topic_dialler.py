"""Opens control links to the server of a topic, wherever the registry says that it is.

A registration is a hint: its server may be dead, silent, a stranger, or of another log. What counts is what a server
proves. Belongs to an event loop; only what the locator tells comes from another thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
import time
from collections.abc import Callable

from jobpipe.discovery.topic_lookup import Location, TopicLocator
from jobpipe.errors import JobpipeError, LinkBroken, LinkTimeout, NotAuthorized, RemoteProtocolError
from jobpipe.net.address import Endpoint
from jobpipe.net.links.async_link import Link, connect
from jobpipe.net.links.event_loop_thread import called_in
from jobpipe.net.retry import TrustRetries
from jobpipe.wire.wire_messages import Hello

log = logging.getLogger(__name__)

WAIT_SECONDS = 1.0  # for a registration, in one attempt
CHALLENGE_SECONDS = 2.0  # for the server of a link to show that it lives, when a newer one was registered


class TopicDialler:
    """Dials one topic's server, one attempt at a time, each given up as soon as the registry has a better one.

    Args:
        tls: Gives the context for an endpoint, again for each attempt: certificates change. Blocking.

    Attributes:
        location: What was dialled last.
    """

    def __init__(self, topic: str, locator: TopicLocator, tls: Callable[[Endpoint], ssl.SSLContext | None]) -> None:
        self._topic = topic
        self._locator = locator
        self._tls = tls
        self._moved = asyncio.Event()
        self._attempt: asyncio.Timeout | None = None
        self._link: Link | None = None
        self._context: ssl.SSLContext | None = None  # of the link
        self._challenge: asyncio.Task[None] | None = None
        self._trust_retries = TrustRetries(locator.session_timeout)
        self.location: Location | None = None

    def begin(self) -> None:
        """Hear of registrations from now on; in the loop."""
        loop = asyncio.get_running_loop()
        self._locator.listen(self._topic, called_in(loop, self._on_change))

    async def dial(self, hello: Hello) -> Link:
        """Return a link to a server that proved the topic, and an epoch not below the one in ``hello``.

        Raises:
            TopicNotFound: none is registered, for a second.
            JobpipeError: as :func:`jobpipe.net.links.async_link.connect`.
        """
        self._moved.clear()
        await asyncio.to_thread(self._locator.follow, self._topic)
        if self._locator.current(self._topic) is None:  # no thread waits: many topics may be away at once
            await self.pause(WAIT_SECONDS)
        location = self.location = await asyncio.to_thread(self._locator.wait, self._topic, 0.0)
        tls = await asyncio.to_thread(self._tls, location.control)
        self._require_same_encryption(location, encrypted=tls is not None)
        try:
            async with asyncio.timeout(None) as self._attempt:
                link = await connect(location.control, hello, tls=tls)
        except BaseException as error:
            self._locator.doubt(location)
            if isinstance(error, TimeoutError):
                raise LinkBroken(f"{location.control} was silent until a newer publisher registered") from error
            raise
        finally:
            self._attempt = None
        # A lower epoch of another log is no older publisher: spool and registry were made again. The next plan says so.
        if link.welcome.epoch < hello.epoch and link.welcome.log == (hello.log or link.welcome.log):
            self._locator.doubt(location)
            await link.close("a newer publisher was here")
            raise RemoteProtocolError(
                f"topic {self._topic!r}: the publisher at {location.control} has epoch {link.welcome.epoch}, but epoch "
                f"{hello.epoch} was here before; stop the outdated one, and start the newest again",
                topic=self._topic,
            )
        self._link, self._context = link, tls
        return link

    async def is_outdated(self) -> bool:
        """Tell whether a link made now would have another context: other CAs, revocation list or certificate."""
        assert self.location is not None  # noqa: S101 - asked of a link
        return await asyncio.to_thread(self._tls, self.location.control) is not self._context

    def _require_same_encryption(self, location: Location, *, encrypted: bool) -> None:
        if location.ssl != encrypted:
            raise NotAuthorized(
                f"topic {self._topic!r}: its publisher has encryption {'on' if location.ssl else 'off'}, this side "
                f"{'on' if encrypted else 'off'}; set security.ssl.enabled and jobpipe.ssl.enabled alike on both",
                topic=self._topic,
            )

    def is_final(self, error: BaseException) -> bool:
        """Tell, after an attempt, whether its PeerNotTrusted is no accident any more."""
        return self._trust_retries.is_final(error, self.location, time.monotonic())

    async def pause(self, seconds: float) -> None:
        """Wait before the next attempt; a new registration ends the wait."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):  # before Python 3.12, wait_for may swallow a cancellation
                await self._moved.wait()

    def _on_change(self) -> None:
        """Neither a silent dial nor a silent link may keep us from the newest publisher."""
        best = self._locator.current(self._topic)
        if best is None:
            return
        self._moved.set()
        if self._attempt is not None:
            if best != self.location and not self._attempt.expired():
                self._attempt.reschedule(asyncio.get_running_loop().time())
        elif (link := self._link) is not None and link.ended is None and best.epoch > link.welcome.epoch:
            self._challenge = asyncio.create_task(_answer_or_end(link), name=f"challenge-{self._topic}")


async def _answer_or_end(link: Link) -> None:
    try:
        await link.ping(CHALLENGE_SECONDS)
    except LinkTimeout:
        log.info("%s is silent, and a newer publisher has registered", link.peer)
        link.abort()
    except JobpipeError as error:
        log.debug("%s: %s", link.peer, error)
