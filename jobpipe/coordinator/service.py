"""The control server's answers: one method for each operation of publishers, subscribers and administrators.

What may be asked, by which roles, is in :mod:`jobpipe.operations.control`: what comes in here has been checked there.
Positions travel as JSON objects with the keys ``log``, ``epoch``, ``n`` and ``r``, boundaries with ``kind``, ``value``
and ``otherwise``.
"""

from __future__ import annotations

import hmac
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from jobpipe.coordinator.access import demand_operation, demand_role
from jobpipe.coordinator.slots import Limits
from jobpipe.coordinator.topic import ServedTopic
from jobpipe.discovery.trust import Trust
from jobpipe.errors import DataLoss, Fenced, JobpipeError, LinkEnded, NotAuthorized, TopicNotFound
from jobpipe.net.audit import audit
from jobpipe.net.link import Link
from jobpipe.operations import control as ops
from jobpipe.operations.fields import Fields
from jobpipe.operations.hello import check_hello
from jobpipe.operations.table import Operation, read_request
from jobpipe.store import Last, NewBatch, Plan, Position, Window
from jobpipe.wire.messages import Hello, Request, Welcome

if TYPE_CHECKING:
    from jobpipe.coordinator.host import Host

__all__ = ["ControlService"]

log = logging.getLogger(__name__)

Answer: TypeAlias = tuple[dict[str, Any], bytes]
Answering: TypeAlias = Callable[[Link, ServedTopic, Any], Awaitable[Answer]]
R = TypeVar("R", bound=Fields)


def _for(kind: type[R], answer: Callable[[Link, ServedTopic, R], Awaitable[Answer]]) -> tuple[type[Fields], Answering]:
    """Pair a request with the method that answers it; mypy sees that they fit."""
    return kind, answer


class ControlService:
    """Implements :class:`jobpipe.net.server.Handler` for control links.

    Args:
        host: the topics.
        trust: who may do what.
        secret: what the job that started this coordinator knows; nobody else publishes here, since whoever opens a
            topic says where on this host its files are.
    """

    def __init__(self, host: Host, trust: Trust, secret: str) -> None:
        self._host = host
        self._trust = trust
        self._secret = secret.encode()
        self._answers: dict[type[Fields], Answering] = dict(
            (
                _for(ops.BeginRequest, self._begin),
                _for(ops.SealRequest, self._seal),
                _for(ops.AckedRequest, self._acked),
                _for(ops.DrainedRequest, self._drained),
                _for(ops.CloseRequest, self._close),
                _for(ops.DeclareRequest, self._declare),
                _for(ops.GrantRequest, self._grant),
                _for(ops.FirstRequest, self._first),
                _for(ops.PollRequest, self._poll),
                _for(ops.PlanRequest, self._plan),
                _for(ops.AckRequest, self._ack),
                _for(ops.SlotRequest, self._slot),
                _for(ops.SettleRequest, self._settle),
                _for(ops.BindRequest, self._bind),
                _for(ops.BoundsRequest, self._bounds),
                _for(ops.RangeRequest, self._range),
                _for(ops.CutRequest, self._cut),
                _for(ops.LeaseRequest, self._lease),
                _for(ops.ReleaseRequest, self._release),
                _for(ops.SchemaRequest, self._schema),
                _for(ops.StatusRequest, self._status),
                _for(ops.HandoverRequest, self._handover),
                _for(ops.SeekRequest, self._seek),
                _for(ops.DropRequest, self._drop),
                _for(ops.DropLeaseRequest, self._drop_lease),
            )
        )

    # -- jobpipe.net.server.Handler ------------------------------------------------------------------------------------

    async def welcome(self, link: Link, hello: Hello) -> Welcome:
        """Prove topic, log and epoch to a peer; a publisher may come before its topic is open."""
        check_hello(hello)
        demand_role(self._trust, link)
        topic = self._host.topics.get(hello.topic)
        if topic is None:
            if hello.role == "publisher":
                return Welcome(version=1, topic=hello.topic, log="", epoch=0, instance=self._host.instance)
            raise TopicNotFound(f"topic {hello.topic!r} is not served here", topic=hello.topic)
        if hello.epoch > topic.epoch and (hello.log or topic.log_id) == topic.log_id:
            raise await self._host.refuse_epoch(topic, hello.epoch)
        return Welcome(version=1, topic=topic.topic, log=topic.log_id, epoch=topic.epoch, instance=self._host.instance)

    async def handle(self, link: Link, request: Request) -> Answer:
        """Answer one request."""
        hello = link.hello
        if hello.role == "publisher":
            self._demand_own_job(link, request)
            self._host.touch()
        operation, asked = read_request(ops.CONTROL, request, hello.role)
        demand_operation(self._trust, link, asked)
        if isinstance(asked, ops.OpenRequest):
            topic = await self._host.open_topic(hello.topic, asked)
            token = topic.store.write_token
            return {"log": topic.log_id, "epoch": topic.epoch, "head": topic.head.to_json(), "token": token}, b""
        answer, served = self._answers[operation.request], self._served(link)
        if operation.audited:
            return await self._audited(operation, answer, link, served, asked)
        return await answer(link, served, asked)

    async def _audited(
        self, operation: Operation, answering: Answering, link: Link, served: ServedTopic, asked: Fields
    ) -> Answer:
        result = "failed"
        named = asked if isinstance(asked, (ops.SeekRequest, ops.DropRequest, ops.DropLeaseRequest)) else None
        try:
            answer = await answering(link, served, asked)
            result = f"done {answer[0]}" + (" (dry run)" if named is not None and named.dry_run else "")
            return answer
        except JobpipeError as error:
            result = f"failed: {error.message}"
            raise
        finally:
            audit(
                link.peer_names,
                link.peer,
                operation.name,
                result,
                topic=served.topic,
                subscription=named.name if isinstance(named, (ops.SeekRequest, ops.DropRequest)) else None,
                instance=link.hello.instance,
            )

    def _served(self, link: Link) -> ServedTopic:
        hello = link.hello
        served = self._host.topics.get(hello.topic)
        if served is None and hello.role == "publisher" and self._host.finished.is_set():
            raise LinkEnded("this coordinator is ending", instance=self._host.instance)
        if served is None and hello.role == "publisher":
            raise Fenced(
                f"topic {hello.topic!r}: another publisher has taken it over; this one must end", topic=hello.topic
            )
        if served is None:
            raise TopicNotFound(f"topic {hello.topic!r} is no longer served here", topic=hello.topic)
        return served

    def _demand_own_job(self, link: Link, request: Request) -> None:
        if hmac.compare_digest(ops.job_secret(request.args).encode(), self._secret):
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
        served = self._host.topics.get(link.hello.topic)
        if served is not None:
            served.subscribers.disconnected(link, why)
            served.leases.disconnected(link)

    # -- publisher -----------------------------------------------------------------------------------------------------

    async def _begin(self, link: Link, topic: ServedTopic, asked: ops.BeginRequest) -> Answer:
        newest: dict[str, Any] | None = None

        def work() -> tuple[Last | None, Position | None, bool]:
            nonlocal newest
            topic.store.check_epoch()  # first: a replaced publisher must hear of that, not of its old checkpoint
            last = topic.store.last_sealed(asked.query_id)
            newest = topic.store.newest_query() if last is None else None
            return last, None if last is None else topic.store.behind(last), topic.has_room()

        if not topic.publishing:
            raise Fenced(f"topic {topic.topic!r}: this publisher was closed or replaced", topic=topic.topic)
        last, position, room = await topic.run(work)
        if last is not None and await self._take_back(topic, last, asked):
            last, position, room = await topic.run(work)
        result: dict[str, Any] = {"last": None, "newest": newest, "full": None, "admitted": None, "epoch": topic.epoch}
        if last is not None and position is not None:
            result["last"] = {"batch_id": last.batch_id, "position": position.to_json(), "run_id": last.run_id}
        if last is None or last.batch_id < asked.batch_id:
            result["full"] = await topic.room(asked.wait, known=room)
            if result["full"] is None:
                result["admitted"] = self._admit(topic)
        return result, b""

    def _admit(self, topic: ServedTopic) -> dict[str, Any]:
        """Return what a publisher must know to write its next batch."""
        return {
            "write_id": topic.begin_write(),
            "data": str(self._host.data_endpoint),
            "hosts": self._host.hosts.registered if topic.config.spool_placement == "host" else [],
            "instance": self._host.instance,
        }

    async def _take_back(self, topic: ServedTopic, last: Last, asked: ops.BeginRequest) -> bool:
        """Let a batch that Spark repeats be written anew, if host servers were lost that kept some of it."""
        if last.batch_id != asked.batch_id or last.run_id == asked.run_id:
            return False
        if not await topic.must_be_sealed_again(asked.query_id, asked.batch_id):
            return False
        await self._host.take_back(topic, asked.query_id, asked.batch_id)
        return True

    async def _seal(self, link: Link, topic: ServedTopic, asked: ops.SealRequest) -> Answer:
        batch = NewBatch(
            query_id=asked.query_id,
            batch_id=asked.batch_id,
            run_id=asked.run_id,
            write_id=asked.write_id,
            schema_id=None,
            partitions=asked.partitions,
            partitioner=asked.partitioner,
            end=False,
        )
        schema = asked.schema.arrow, asked.schema.spark
        position, room = await topic.seal(batch, list(asked.segments), schema)
        admitted = self._admit(topic) if room and topic.publishing else None
        return {"position": position.to_json(), "admitted": admitted}, b""

    async def _declare(self, link: Link, topic: ServedTopic, asked: ops.DeclareRequest) -> Answer:
        add = partial(topic.store.add_schema, asked.arrow, asked.spark)
        number = await topic.run_then(add, lambda _: topic.news.ring())
        return {"id": number}, b""

    async def _acked(self, link: Link, topic: ServedTopic, asked: ops.AckedRequest) -> Answer:
        missing = await topic.missing_acks(asked.n)
        if missing and await topic.acked.wait(asked.wait):
            missing = await topic.missing_acks(asked.n)
        topic.mark_ack_wait(missing)
        gone = (
            {host for batch in await topic.lost(asked.n - 1, asked.n) for host in batch["hosts"]} if missing else set()
        )
        return {"missing": missing, "gone": sorted(gone)}, b""

    async def _drained(self, link: Link, topic: ServedTopic, asked: ops.DrainedRequest) -> Answer:
        lagging = await topic.lagging()
        if lagging and await topic.acked.wait(asked.wait):
            lagging = await topic.lagging()
        return {"lagging": lagging}, b""

    async def _close(self, link: Link, topic: ServedTopic, asked: ops.CloseRequest) -> Answer:
        await self._host.close_publisher(topic, final=asked.final)
        return {"head": topic.head.to_json(), **await self._left_to_read(topic)}, b""

    async def _left_to_read(self, topic: ServedTopic) -> dict[str, Any]:
        """Return what a publisher that closes tells its user; a disk that fails does not keep it from closing."""
        try:
            status = await topic.status()
        except JobpipeError:
            return {}
        lagging = {line["name"]: line["lag"]["batches"] for line in status["subscriptions"]}
        return {"kept": status["batches"], "lagging": lagging}

    # -- subscriber ----------------------------------------------------------------------------------------------------

    async def _grant(self, link: Link, topic: ServedTopic, asked: ops.GrantRequest) -> Answer:
        where = {"host": asked.host, "pid": asked.pid}
        holder = await topic.subscribers.grant(_name(link), link.hello.instance, link, where)
        return {"grant": holder.grant, **self._news(topic)}, b""

    async def _first(self, link: Link, topic: ServedTopic, asked: ops.FirstRequest) -> Answer:
        topic.subscribers.held(_name(link), asked.grant)
        position, lost = await topic.subscribers.first_position(
            _name(link), asked.start, asked.end, skip_removed=asked.skip_removed
        )
        return {"position": position.to_json(), "lost": lost}, b""

    async def _poll(self, link: Link, topic: ServedTopic, asked: ops.PollRequest) -> Answer:
        if (asked.head, asked.ended, asked.waiting) == (topic.head, topic.ended, topic.waiting):
            await topic.news.wait(asked.wait)
        if topic.closed:
            raise TopicNotFound(f"topic {topic.topic!r} is no longer served here", topic=topic.topic)
        return self._news(topic), b""

    def _news(self, topic: ServedTopic) -> dict[str, Any]:
        return {"head": topic.head.to_json(), "ended": topic.ended, "waiting": topic.waiting}

    async def _plan(self, link: Link, topic: ServedTopic, asked: ops.PlanRequest) -> Answer:
        plan, stop, ahead = await topic.subscribers.plan(
            _name(link), asked.grant, asked.start, asked.end, asked.max_rows, asked.max_bytes, count=asked.count
        )
        answer = {**self._planned(plan), "stop": None if stop is None else stop.to_json()}
        if ahead is not None:
            answer["ahead"] = {
                "rows": ahead.rows,
                "bytes": ahead.bytes,
                "end": ahead.end.to_json(),
                "final": ahead.final,
                "waiting": topic.waiting is not None,
            }
        return {**answer, "lost": await self._lost(topic, [plan])}, b""

    async def _lost(self, topic: ServedTopic, plans: list[Plan]) -> list[dict[str, Any]]:
        if not plans or plans[0].start.place == plans[-1].end.place:
            return []
        end = plans[-1].end
        return await topic.lost(plans[0].start.n, end.n + (1 if end.r else 0))

    async def _ack(self, link: Link, topic: ServedTopic, asked: ops.AckRequest) -> Answer:
        await topic.subscribers.acknowledge(_name(link), asked.grant, asked.position)
        return {}, b""

    async def _slot(self, link: Link, topic: ServedTopic, asked: ops.SlotRequest) -> Answer:
        found = await topic.slots.next(
            *(_name(link), asked.grant, asked.start, asked.last, asked.slot, asked.end), witnessed=asked.witnessed
        )
        here = found.plan.start
        return {
            **self._planned(found.plan),
            "made": found.made,
            "stop": None if found.stop is None else found.stop.to_json(),
            "over": found.over,
            "newest": found.schema_id,
            "lost": [] if found.plan.end.place == here.place else await topic.lost(here.n, here.n + 1),
        }, b""

    async def _settle(self, link: Link, topic: ServedTopic, asked: ops.SettleRequest) -> Answer:
        end = await topic.slots.settle(_name(link), asked.grant, asked.start, asked.slot, committed=asked.committed)
        return {"end": end.to_json()}, b""

    # -- readers -------------------------------------------------------------------------------------------------------

    async def _bounds(self, link: Link, topic: ServedTopic, asked: ops.BoundsRequest) -> Answer:
        start, end = asked.start, asked.end

        def work() -> dict[str, Any]:
            known = {s.name: s for s in topic.store.subscriptions()}.get(asked.name)
            acked, tail = None if known is None else known.acked, topic.store.tail()
            if start is None:
                window = Window(tail, None if end is None else topic.store.end_of(end), 0)
            else:
                window = topic.store.window(start, end, committed=acked or tail, skip_removed=asked.skip_removed)
            return {
                "standing": None if known is None or acked is None else "first" if known.holds_first else "moved",
                "tail": tail.to_json(),
                "head": topic.store.head().to_json(),
                "ended": topic.store.ended(),
                "start": window.start.to_json(),
                "end": None if window.end is None else window.end.to_json(),
                "lost": window.lost,
            }

        return await topic.run(work), b""

    async def _range(self, link: Link, topic: ServedTopic, asked: ops.RangeRequest) -> Answer:
        start, end = asked.start, asked.end

        def work() -> list[Plan]:
            topic.store.check(start)
            topic.store.check(end)
            return topic.store.describe_range(start, end)

        if link.hello.role == "subscriber":  # a replay after a restart
            plans = await topic.subscribers.describe(_name(link), _grant(asked), start, end)
        else:
            plans = await topic.run(work)
        lost = await self._lost(topic, plans)
        data = str(self._host.data_endpoint)
        return {"plans": [self._planned(plan) for plan in plans], "data": data, "lost": lost}, b""

    async def _bind(self, link: Link, topic: ServedTopic, asked: ops.BindRequest) -> Answer:
        limits = Limits(asked.end, asked.max_rows, asked.max_bytes, frozenset(asked.schemas))
        plans = await topic.slots.bind(asked.name, asked.grant, asked.slot, limits, asked.wait)
        if len(plans) > 1:
            raise DataLoss(
                f"topic {topic.topic!r}: slot {asked.slot} crosses a change of partitions or schema that was "
                "not there when it was bound",
                topic=topic.topic,
                slot=asked.slot,
            )
        lost = await self._lost(topic, plans)
        return {**self._planned(plans[0]), "data": str(self._host.data_endpoint), "lost": lost}, b""

    async def _cut(self, link: Link, topic: ServedTopic, asked: ops.CutRequest) -> Answer:
        start, end = asked.start, asked.end
        make = partial(topic.store.cutter, wanted=asked.partitions, max_rows=asked.max_rows, at_least=asked.at_least)
        if link.hello.role == "subscriber":
            cutter = await topic.subscribers.cutter(_name(link), _grant(asked), start, end, make)
        else:
            cutter = await topic.run(make, start, end)
        while (cuts := await topic.run(cutter.step)) is None:
            pass  # what else the log's thread is to do comes in between
        return {"pieces": [{"end": cut.end.to_json(), "partitions": cut.partitions} for cut in cuts]}, b""

    def _planned(self, plan: Plan) -> dict[str, Any]:
        return {
            "start": plan.start.to_json(),
            "end": plan.end.to_json(),
            "rows": plan.rows,
            "bytes": plan.bytes,
            "partitions": plan.partitions,
            "schema_id": plan.schema_id,
            "ends": plan.ends,
        }

    async def _lease(self, link: Link, topic: ServedTopic, asked: ops.LeaseRequest) -> Answer:
        await topic.leases.take(link, asked)
        return {}, b""

    async def _release(self, link: Link, topic: ServedTopic, asked: ops.ReleaseRequest) -> Answer:
        await topic.leases.release(link, asked.id)
        return {}, b""

    async def _schema(self, link: Link, topic: ServedTopic, asked: ops.SchemaRequest) -> Answer:
        wanted = asked.id

        def work() -> Any:
            return topic.store.newest_schema() if wanted is None else topic.store.schema(wanted)

        found = await topic.run(work)
        if found is None and await topic.news.wait(asked.wait):
            found = await topic.run(work)
        if found is None:
            return {"id": None}, b""
        number, arrow, spark = found
        return {"id": number, "spark": spark}, arrow

    async def _status(self, link: Link, topic: ServedTopic, asked: ops.StatusRequest) -> Answer:
        status = await topic.status()
        status.update(endpoint=str(self._host.control_endpoint), data=str(self._host.data_endpoint))
        status["identities"] = self._trust.budgets.describe()
        lagging = any(line["lag"]["batches"] for line in status["subscriptions"])
        status.update(self._host.parent_watch.presence(topic, lagging=lagging).to_json())
        if topic.uses_hosts:
            status["hosts"] = await self._host.hosts.describe(topic)
        if asked.served:
            status["served"] = await self._host.hosts.served(topic)
        return status, b""

    async def _seek(self, link: Link, topic: ServedTopic, asked: ops.SeekRequest) -> Answer:
        return await topic.subscribers.seek(asked.name, asked.to, dry_run=asked.dry_run), b""

    async def _drop(self, link: Link, topic: ServedTopic, asked: ops.DropRequest) -> Answer:
        return await topic.subscribers.drop(asked.name, dry_run=asked.dry_run), b""

    async def _drop_lease(self, link: Link, topic: ServedTopic, asked: ops.DropLeaseRequest) -> Answer:
        return await topic.leases.drop(asked.id, dry_run=asked.dry_run), b""

    async def _handover(self, link: Link, topic: ServedTopic, asked: ops.HandoverRequest) -> Answer:
        released = await self._host.hand_over(topic, to=_name(link))
        return {"released": released, "driver": self._host.driver(topic)}, b""


def _name(link: Link) -> str:
    return link.hello.name or ""


def _grant(asked: ops.RangeRequest | ops.CutRequest) -> int:
    """Return the grant that a subscriber shows; one that shows none holds no name."""
    return -1 if asked.grant is None else asked.grant
