"""The coordinator's handlers: one method for each operation of publishers, subscribers and administrators.

What may be asked, by which roles, is in :mod:`jobpipe.operations.coordinator_operations`: what comes in here has been
checked there. Positions travel as JSON objects with the keys ``log``, ``epoch``, ``n`` and ``r``, boundaries with
``kind``, ``value`` and ``otherwise``.
"""

from __future__ import annotations

import hmac
import logging
import weakref
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from jobpipe.coordinator.handlers.dispatch import Answering, Context, Handlers, pair
from jobpipe.coordinator.handlers.flow_handlers import FlowHandlers
from jobpipe.coordinator.handlers.operation_rights import may_have_holds_of_others, require_operation
from jobpipe.coordinator.handlers.publisher_handlers import PublisherHandlers
from jobpipe.coordinator.handlers.reader_handlers import ReaderHandlers
from jobpipe.coordinator.ledger_replies import LEDGER_STEP, ledger_reply, most_minutes
from jobpipe.coordinator.topic.served_topic import ServedTopic
from jobpipe.discovery.peer_authentication import PeerAuthentication
from jobpipe.errors import Fenced, JobpipeError, LinkEnded, NotAuthorized, TopicNotFound
from jobpipe.net.links.async_link import Link
from jobpipe.net.servers.audit_log import LEFT_OUT, audit, lines_left_out
from jobpipe.net.servers.identity_quota import SHOWN, identity_of
from jobpipe.operations import admin_operations, publisher_operations
from jobpipe.operations.coordinator_operations import CONTROL
from jobpipe.operations.data_operations import DATA
from jobpipe.operations.flow_operations import FLOW_TASKS, ResetFlowRequest
from jobpipe.operations.hello import check_hello
from jobpipe.operations.host_operations import HOSTSERVER
from jobpipe.operations.messages.message_fields import Fields
from jobpipe.operations.messages.operation import Operation, read_request
from jobpipe.operations.status_operations import (
    LedgerReply,
    LedgerRequest,
    StatusRequest,
    SubscriptionStatus,
    TopicStatus,
)
from jobpipe.store.ledger.topic_ledger import AccountReport
from jobpipe.wire.wire_messages import Hello, Request, Welcome

if TYPE_CHECKING:
    from jobpipe.coordinator.coordinator import Coordinator

log = logging.getLogger(__name__)

_OTHERS = DATA.keys() | HOSTSERVER.keys()
TASKS = FLOW_TASKS | {publisher_operations.RoomRequest.op}
_OF_A_NAME = (
    admin_operations.SeekRequest,
    admin_operations.DropRequest,
    admin_operations.HoldRequest,
    admin_operations.ReleaseHoldRequest,
    admin_operations.RequireRequest,
)
_WITH_DRY_RUN = (
    admin_operations.SeekRequest,
    admin_operations.DropRequest,
    admin_operations.DropLeaseRequest,
    admin_operations.ReleaseHoldRequest,
    admin_operations.RequireRequest,
    ResetFlowRequest,
)


class AdminHandlers:
    """Implements :class:`jobpipe.net.servers.served_link.LinkHandler` for control links.

    Args:
        coordinator: the topics.
        trust: who may do what.
        secret: what the job that started this coordinator knows; no other job publishes here, since the one that opens
            a topic says where on this host its files are.
    """

    def __init__(self, coordinator: Coordinator, trust: PeerAuthentication, secret: str) -> None:
        self._coordinator = coordinator
        self._trust = trust
        self._secret = secret.encode()
        self._welcomed: weakref.WeakKeyDictionary[Link, ServedTopic] = weakref.WeakKeyDictionary()
        own = (
            pair(StatusRequest, self._status),
            pair(LedgerRequest, self._ledger),
            pair(admin_operations.SeekRequest, self._seek),
            pair(admin_operations.DropRequest, self._drop),
            pair(admin_operations.DropLeaseRequest, self._drop_lease),
            pair(admin_operations.HandoverRequest, self._handover),
            pair(admin_operations.HoldRequest, self._hold),
            pair(admin_operations.ReleaseHoldRequest, self._release_hold),
            pair(admin_operations.RequireRequest, self._require),
        )
        self._answers: Handlers = {
            **PublisherHandlers(coordinator, secret).answers(),
            **ReaderHandlers(coordinator, self._owner_of).answers(),
            **FlowHandlers(coordinator, secret).answers(),
            **dict(own),
        }

    # -- jobpipe.net.servers.served_link.LinkHandler ------------------------------------------------------------------

    async def welcome(self, link: Link, hello: Hello) -> Welcome:
        """Prove topic, log and epoch to a peer; a publisher may come before its topic is open."""
        check_hello(hello)
        self._trust.require_role(link)
        if hello.role == "publisher" and hello.proof:
            self._check_proof(link, hello)
        topic = self._coordinator.topics.get(hello.topic)
        if topic is None:
            if hello.role == "publisher":
                return Welcome(version=1, topic=hello.topic, log="", epoch=0, instance=self._coordinator.instance)
            raise TopicNotFound(f"topic {hello.topic!r} is not served here", topic=hello.topic)
        if hello.epoch > topic.epoch and (hello.log or topic.log_id) == topic.log_id:
            raise await self._coordinator.refuse_epoch(topic, hello.epoch)
        self._welcomed[link] = topic
        if hello.role == publisher_operations.APPENDER:  # it may publish, and its batches come with the request alone
            link.allow_blobs(publisher_operations.MAX_APPENDED)
        return Welcome(
            version=1, topic=topic.topic, log=topic.log_id, epoch=topic.epoch, instance=self._coordinator.instance
        )

    async def handle(self, link: Link, request: Request) -> tuple[dict[str, Any], bytes]:
        hello = link.hello
        if hello.role == "publisher" and request.op not in TASKS:  # which show a token of their own, not checked yet
            self._require_own_job(link, request)
            self._coordinator.touch()
        operation, asked = read_request(CONTROL, request, hello.role, others=_OTHERS)
        require_operation(self._trust, link, asked)
        if isinstance(asked, publisher_operations.OpenRequest):
            opened = await self._coordinator.open_topic(hello.topic, asked)
            token = opened.store.write_token
            reply: Fields = publisher_operations.OpenReply(
                log=opened.log_id, epoch=opened.epoch, head=opened.head, token=token
            )
        else:
            reply = await self._answer(operation, Context(link, self._asked_topic(link, asked)), asked)
        return reply.to_json(), reply.blob

    async def _answer(self, operation: Operation[Any], at: Context, asked: Fields) -> Fields:
        answer = self._answers[operation.request]
        if operation.audited:
            return await self._audited(operation, answer, at, asked)
        if operation.expensive:
            identity = identity_of(at.link.peer_names, at.link.peer)
            async with self._trust.quotas.expensive(identity, at.topic.topic, operation.name):
                return await answer(at, asked)
        return await answer(at, asked)

    async def _audited(self, operation: Operation[Any], answering: Answering, at: Context, asked: Fields) -> Fields:
        result, changed = "failed", False
        named = asked if isinstance(asked, _OF_A_NAME) else None
        changing = asked if isinstance(asked, _WITH_DRY_RUN) else None
        try:
            reply = await answering(at, asked)
            changed = changing is None or not changing.dry_run
            result = f"done {reply.to_json()}" + ("" if changed else " (dry run)")
            return reply
        except JobpipeError as error:
            result = f"failed: {error.message}"
            raise
        finally:
            audit(
                at.link.peer_names,
                at.link.peer,
                operation.name,
                result,
                topic=at.topic.topic,
                subscription=None if named is None else named.name,
                instance=at.link.hello.instance,
                changed=changed,
            )

    def _asked_topic(self, link: Link, asked: Fields) -> ServedTopic:
        if not isinstance(asked, StatusRequest | LedgerRequest) or asked.topic is None:
            return self._served(link)
        served = self._coordinator.topics.get(asked.topic)
        if served is None:
            raise TopicNotFound(f"topic {asked.topic!r} is not served here", topic=asked.topic)
        return served

    def _served(self, link: Link) -> ServedTopic:
        hello = link.hello
        served = self._coordinator.topics.get(hello.topic)
        if served is None and hello.role == "publisher" and self._coordinator.finished.is_set():
            raise LinkEnded("this coordinator is ending", instance=self._coordinator.instance)
        if served is None and hello.role == "publisher":
            raise Fenced(
                f"topic {hello.topic!r}: another publisher has taken it over; this one must end", topic=hello.topic
            )
        if served is None or (hello.role == "subscriber" and self._welcomed.get(link, served) is not served):
            # Opened again since, it knows no holder of a name; a new link gets the name before it asks.
            raise TopicNotFound(f"topic {hello.topic!r} is no longer served here", topic=hello.topic)
        return served

    def _check_proof(self, link: Link, hello: Hello) -> None:
        """Let the requests of the job's own publishers be large, and those of its flows' tasks.

        Every holder of a certificate with the right ``publish`` may say that it is a publisher, so that is no reason.

        Raises:
            Fenced, LinkEnded: the topic is not served here.
            FlowNotFound, NotAuthorized: as :meth:`jobpipe.coordinator.topic.topic_flows.TopicFlows.publishing`.
        """
        if not hmac.compare_digest(hello.proof.encode(), self._secret):
            self._served(link).flows.publishing(hello.name or "", hello.proof)
        link.note_proof()

    def _require_own_job(self, link: Link, request: Request) -> None:
        if hmac.compare_digest(publisher_operations.job_secret(request.args).encode(), self._secret):
            return
        audit(
            link.peer_names,
            link.peer,
            request.op,
            "refused",
            topic=link.hello.topic,
            instance=link.hello.instance,
        )
        raise NotAuthorized(
            f"topic {link.hello.topic!r}: this coordinator publishes for the job that started it, and for no other; "
            "start a publisher of your own",
            op=request.op,
            topic=link.hello.topic,
        )

    def disconnected(self, link: Link, why: JobpipeError) -> None:
        """A link ended; its names and positions stay."""
        served = self._coordinator.topics.get(link.hello.topic)
        if served is not None:
            served.subscribers.disconnected(link, why)
            served.leases.disconnected(link)

    def _owner_of(self, link: Link) -> str:
        return self._trust.shared_with(link)

    # -- everybody, and administrators ---------------------------------------------------------------------------------

    async def _status(self, at: Context, asked: StatusRequest) -> TopicStatus:
        topic, host_servers = at.topic, self._coordinator.host_servers
        status = await topic.status()
        lagging = any(line.lag.batches for line in status.subscriptions)
        liveness = self._coordinator.parent_watch.liveness(topic, lagging=lagging)
        return replace(
            status,
            endpoint=str(self._coordinator.control_endpoint),
            data=str(self._coordinator.data_endpoint),
            identities=self._identities(status.subscriptions),
            publishing=liveness.publishing,
            publisher_gone=_rounded(liveness.gone),
            served_for=_rounded(liveness.served_for),
            hosts=host_servers.describe(topic.kept_by_hosts) if topic.uses_hosts else None,
            served=await host_servers.served(topic) if asked.served else None,
        )

    async def _ledger(self, at: Context, asked: LedgerRequest) -> LedgerReply:
        topic, store = at.topic, at.topic.store
        names = await topic.run(store.ledger.names)
        names = names if asked.name is None else [name for name in names if name == asked.name]
        minutes = await topic.run(store.ledger.minutes, most_minutes(asked.minutes, len(names)))
        reports: list[AccountReport] = []
        for first in range(0, len(names), LEDGER_STEP):  # what else the log's thread is to do comes in between
            reports += await topic.run(store.ledger.reports, names[first : first + LEDGER_STEP], minutes)
        known = await topic.run(store.subscriptions.all)
        positions = {each.name: None if each.acked is None else each.acked.n for each in known}
        return ledger_reply(topic.topic, minutes, reports, positions)

    def _identities(self, subscriptions: Sequence[SubscriptionStatus]) -> dict[str, dict[str, int]]:
        """Return what each identity holds of this process, its names in the topic, and its lines left out of logs.

        Asks no disk: the names are counted from the lines of the status, which may be old.
        """
        told = self._trust.quotas.describe()
        names = Counter(line.holder.owner for line in subscriptions if line.holder and line.holder.owner is not None)
        for kind, counts in (("names", names), (LEFT_OUT, lines_left_out())):
            for identity, count in counts.most_common(SHOWN):
                told.setdefault(identity, {})[kind] = count
        return told

    async def _seek(self, at: Context, asked: admin_operations.SeekRequest) -> admin_operations.MovedReply:
        return await at.topic.subscribers.seek(asked.name, asked.to, dry_run=asked.dry_run)

    async def _drop(self, at: Context, asked: admin_operations.DropRequest) -> admin_operations.MovedReply:
        return await at.topic.subscribers.drop(asked.name, dry_run=asked.dry_run)

    async def _drop_lease(self, at: Context, asked: admin_operations.DropLeaseRequest) -> admin_operations.LeaseReply:
        return await at.topic.leases.drop(asked.id, dry_run=asked.dry_run)

    async def _hold(self, at: Context, asked: admin_operations.HoldRequest) -> admin_operations.HoldReply:
        owner = identity_of(at.link.peer_names, at.link.peer)
        return await at.topic.holds.take(owner, asked, others=may_have_holds_of_others(self._trust, at.link))

    async def _release_hold(
        self, at: Context, asked: admin_operations.ReleaseHoldRequest
    ) -> admin_operations.HoldReply:
        owner, others = identity_of(at.link.peer_names, at.link.peer), may_have_holds_of_others(self._trust, at.link)
        return await at.topic.holds.release(asked.name, owner, others=others, dry_run=asked.dry_run)

    async def _require(self, at: Context, asked: admin_operations.RequireRequest) -> admin_operations.RequiredReply:
        return await at.topic.subscribers.require(asked.name, required=asked.required, dry_run=asked.dry_run)

    async def _handover(self, at: Context, asked: admin_operations.HandoverRequest) -> admin_operations.HandoverReply:
        released = await self._coordinator.hand_over(at.topic, to=at.name)
        return admin_operations.HandoverReply(released=released, driver=self._coordinator.driver(at.topic))


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)
