"""The contract of a registry: what publishers and subscribers may ask of it.

Another implementation (``package.module:Class``) derives from :class:`RegisterServerHandler`, can be made without
arguments, and passes the contract suite of the tests. Methods may be called from any thread, but only in the process
that started the handler: connections do not survive a fork.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from jobpipe_registry.node_watch import PolledWatch, Watch
from jobpipe_registry.registry_errors import RegistryError
from jobpipe_registry.registry_jobs import Jobs
from jobpipe_registry.topic_records import OwnerRecord, RegisterRecord

WatchCallback = Callable[[list[RegisterRecord]], None]
TopicsCallback = Callable[[list[str]], None]


class RegisterServerHandler(ABC):
    """One session with the registry.

    Whatever this handler registered or claimed belongs to its session: it disappears when the process dies. When the
    session expires although the process lives, the handler re-creates all of it by itself, in a new session.

    Every method but :meth:`start` and :meth:`shutdown` raises

    * ``NotStarted`` before ``start``, after ``shutdown``, and in a forked process,
    * ``InvalidName`` for a topic or an index that is not allowed,
    * ``Unavailable`` when the registry does not answer within ``connect.timeout`` seconds, or refuses us.
    """

    on_lost: Callable[[str], None] | None = None
    """Called with the topic, from a thread of the handler, when another handler has taken one of our claims or
    registrations after we lost our session. This handler has given the topic up by then: it must not be published."""

    @abstractmethod
    def start(self, options: Mapping[str, str]) -> None:
        """Connect. Returns once the registry answered an authenticated read.

        Args:
            options: ``connect`` (hosts), ``topic.storage`` (namespace), ``session.timeout`` and ``connect.timeout`` in
                seconds; authentication and TLS: ``sasl.mechanism``, ``sasl.username``, ``sasl.password``,
                ``sasl.principal``, ``sasl.service``, ``ssl.enabled``, ``ssl.ca``, ``ssl.cert``, ``ssl.key``; ``acl``,
                for all nodes that are created. Unknown keys are ignored. See :mod:`.credentials`.

        Raises:
            Unavailable: no answer within ``connect.timeout``, or only refusals until then; names the hosts and the
                reason. ``start`` may be called again.
            BadOption: an option, or a file that it names, is wrong.
            InvalidName: the namespace is not an absolute path.
            RegistryError: the handler was started or shut down before.
        """

    @abstractmethod
    def create_topic_node(self, topic: str) -> None:
        """Create the topic's node, unless it exists; ``shutdown`` tries to delete it in either case."""

    @abstractmethod
    def register(self, topic: str, record: RegisterRecord) -> None:
        """Publish the record as ``parallel-<record.index>`` until it is unregistered or the session ends for good.

        Creates the topic's node too. Replaces a registration that is of the same instance, has a lower epoch or cannot
        be read; while we hold the topic's claim, any other too. Registering the same index again replaces the record.

        Raises:
            TopicOwned: another instance with the same or a higher epoch has that index, and we have no claim.
            BadRecord: the record is larger than 4 KiB.
            TooManyTopics: for one session, with the other topics of this handler.
            Unavailable: nothing was registered, and it will not be tried again.
        """

    def register_all(self, topic: str, records: Sequence[RegisterRecord]) -> None:
        """Do :meth:`register` for several records of a topic, if possible in one step: readers hear of it once.

        Raises:
            RegistryError: as :meth:`register`; some may be registered.
        """
        for record in records:
            self.register(topic, record)

    def withdraw(self, topic: str, parallelism: int) -> None:
        """Do :meth:`release`, :meth:`unregister` of each index, and :meth:`delete_topic_node`, if possible in one step.

        The claim goes first, or with all: it alone keeps others out.

        Raises:
            Unavailable: what is left is removed as soon as the registry answers again.
        """
        calls: list[Callable[[], object]] = [
            partial(self.release, topic),
            *(partial(self.unregister, topic, index) for index in range(1, parallelism + 1)),
            partial(self.delete_topic_node, topic),
        ]
        errors = []
        for call in calls:
            try:
                call()
            except RegistryError as error:
                errors.append(error)
        if errors:
            raise errors[0]

    @abstractmethod
    def delete_topic_node(self, topic: str) -> bool:
        """Remove the topic and our own registrations in it; True if it no longer exists.

        Return False, with nothing changed, when others are still registered in it.
        """

    @abstractmethod
    def unregister(self, topic: str, index: int) -> None:
        """Remove a registration of ours; nothing happens if there is none.

        Raises:
            Unavailable: it is removed as soon as the registry answers again.
        """

    @abstractmethod
    def query(self, topic: str, index: int) -> RegisterRecord | None:
        """Return one registration; None if there is none or it cannot be read (logged)."""

    @abstractmethod
    def is_exist(self, topic: str) -> bool:
        """Say whether the topic exists, with or without registrations."""

    @abstractmethod
    def shutdown(self) -> None:
        """Remove our registrations and claims, then topics that we created or registered in; end all threads.

        Topics in which others are registered stay. Returns within 10 s, even if the registry is unreachable: then the
        session expires by itself. Idempotent; the handler cannot be started again. Raises nothing.
        """

    @abstractmethod
    def topics(self) -> list[str]:
        """Return the names of all topics, sorted."""

    def known_topics(self) -> list[str]:
        """Return, sorted, the names of :meth:`topics` and of all topics that were ever published."""
        return self.topics()

    @abstractmethod
    def records(self, topic: str) -> list[RegisterRecord]:
        """Return the registrations, sorted by index; [] for a missing topic. Skips nodes it cannot read (logged)."""

    def records_of(self, topics: Sequence[str]) -> dict[str, list[RegisterRecord]]:
        """Return what :meth:`records` does, of many topics, if possible all at once."""
        return {topic: self.records(topic) for topic in topics}

    def watch_topics(self, callback: TopicsCallback) -> Watch:
        """Call ``callback`` with what :meth:`topics` returns: once soon, then after each change, as :meth:`watch` does.

        A registry that cannot tell is asked every two seconds.
        """
        return PolledWatch("the topics", self.topics, callback)

    @abstractmethod
    def watch(self, topic: str, callback: WatchCallback) -> Watch:
        """Call ``callback`` with the registrations: once soon, then after each change, from a thread of the handler.

        Those of a publisher are equal but for their index, so a handler need not read all of them.


        Calls of one watch never overlap. States in quick succession may be skipped; the last one never is. The topic
        need not exist yet. The watch outlives the topic's deletion and re-creation, and the loss of the session. No
        calls are made while the registry is unreachable, so the last list may be out of date. Everything is listed
        again about every 30 s; less often in a handler with more than 40 watches. What the callback raises is logged.
        """

    @abstractmethod
    def claim(self, topic: str, owner: OwnerRecord) -> None:
        """Become the one publisher of the topic until ``release``. A claim of the same instance is replaced.

        Raises:
            TopicOwned: another instance has it; ``owner`` of the error is its record.
            BadRecord: the record is larger than 4 KiB.
            Unavailable: nothing was claimed, and it will not be tried again.
        """

    @abstractmethod
    def owner(self, topic: str) -> OwnerRecord | None:
        """Return who has claimed the topic; None if it is not claimed, or the record cannot be read (logged)."""

    def is_claimed(self, topic: str) -> bool:
        """Say whether any session has claimed the topic, even if its record cannot be read."""
        return self.owner(topic) is not None

    def notify_of_owner(self, topic: str, notify: Callable[[object], None]) -> None:
        """Call ``notify`` once, from a thread of the handler, when the topic is claimed, or its claim changes or ends.

        It must return at once, and may not be called at all: a registry that cannot tell does nothing.
        """
        return

    @abstractmethod
    def evict(self, topic: str, instance: str) -> None:
        """Remove the claim and the registrations of an instance that the caller has proved to be dead.

        Claims and registrations of any other instance stay, even if made during the call.
        """

    @abstractmethod
    def release(self, topic: str) -> None:
        """Give up our claim; nothing happens if we have none.

        Raises:
            Unavailable: it is removed as soon as the registry answers again.
        """

    def forget(self, topic: str) -> None:
        """Remove all that is kept of a topic: our claim, its recovery point, its epoch; as if it had never existed.

        For a topic whose log is gone for good: the epochs of its next publisher begin at 1.

        Raises:
            TopicOwned: another handler has claimed it, or is registered in it; nothing is changed.
        """
        raise RegistryError(f"{type(self).__name__} cannot forget topics")

    @abstractmethod
    def next_epoch(self, topic: str, at_least: int) -> int:
        """Raise the stored epoch to max(stored + 1, ``at_least``), atomically, and return it.

        No two calls, in any process, get the same number. Numbers may be skipped.

        Raises:
            BadRecord: the stored epoch cannot be read: guessing would break fencing.
        """

    @abstractmethod
    def set_recovery_point(self, topic: str, epoch: int, text: str | None) -> None:
        """Keep a text, at most 4 KiB, that tells the topic's next publisher where to continue; None removes it.

        The registry does not interpret it. It outlives sessions.

        Raises:
            TopicOwned: an epoch higher than ``epoch`` was given out; nothing is changed.
            BadRecord: the text is too long.
        """

    @abstractmethod
    def recovery_point(self, topic: str) -> str | None:
        """Return the text, None if there is none."""

    @abstractmethod
    def epoch(self, topic: str) -> int:
        """Return the highest epoch given out, 0 if none.

        Raises:
            BadRecord: the stored epoch cannot be read.
        """

    @property
    def jobs(self) -> Jobs:
        """The registry's store for pipeline jobs.

        Raises:
            RegistryError: this registry keeps none: pipelines cannot be run with it.
        """
        raise RegistryError(
            f"{type(self).__name__} keeps no jobs: pipelines need a registry that has the property `jobs`, as the "
            "one on ZooKeeper has"
        )
