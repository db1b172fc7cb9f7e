"""The control server's answers: one method for each operation of publishers, subscribers and administrators.

Every operation is legal for some roles only (``OPERATIONS``). Positions travel as JSON objects with the keys
``log``, ``epoch``, ``n`` and ``r``, boundaries with ``kind``, ``value`` and ``otherwise``.
"""

from __future__ import annotations

import base64
import hmac
import logging
from collections.abc import Awaitable
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from jobpipe.coordinator.access import demand_operation, demand_role
from jobpipe.coordinator.slots import Limits
from jobpipe.coordinator.topic import ServedTopic
from jobpipe.discovery.trust import Trust
from jobpipe.errors import DataLoss, Fenced, JobpipeError, LinkEnded, NotAuthorized, RemoteProtocolError, TopicNotFound
from jobpipe.net.audit import audit
from jobpipe.net.link import Link
from jobpipe.store import Boundary, Last, NewBatch, Plan, Position, SegmentInfo, Window, slot_id
from jobpipe.wire.messages import Hello, Request, Welcome

if TYPE_CHECKING:
    from jobpipe.coordinator.host import Host

__all__ = ["ControlService"]

log = logging.getLogger(__name__)

MAX_WAIT_SECONDS = 20.0  # of one long poll; the asker asks again
AUDITED = ("seek", "drop", "handover")
Answer = tuple[dict[str, Any], bytes]


class Operation(Protocol):
    """An operation of the service."""

    def __call__(self, link: Link, topic: ServedTopic, args: dict[str, Any], blob: bytes) -> Awaitable[Answer]: ...


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
        publisher, subscriber, reader, admin = "publisher", "subscriber", "reader", "admin"
        everyone = {publisher, subscriber, reader, admin}
        self._operations: dict[str, tuple[set[str], Operation]] = {
            "begin": ({publisher}, self._begin),
            "seal": ({publisher}, self._seal),
            "acked": ({publisher}, self._acked),
            "drained": ({publisher, admin}, self._drained),
            "close": ({publisher}, self._close),
            "declare": ({publisher}, self._declare),
            "grant": ({subscriber}, self._grant),
            "first": ({subscriber}, self._first),
            "poll": (everyone, self._poll),
            "plan": ({subscriber}, self._plan),
            "ack": ({subscriber}, self._ack),
            "slot": ({subscriber}, self._slot),
            "settle": ({subscriber}, self._settle),
            "bind": ({reader}, self._bind),
            "bounds": ({subscriber, reader}, self._bounds),
            "range": ({subscriber, reader}, self._range),
            "cut": ({subscriber, reader}, self._cut),
            "lease": ({reader}, self._lease),
            "release": ({reader}, self._release),
            "schema": (everyone, self._schema),
            "status": (everyone, self._status),
            "handover": ({admin}, self._handover),
            "seek": ({admin}, self._seek),
            "drop": ({admin}, self._drop),
        }

    # -- jobpipe.net.server.Handler ------------------------------------------------------------------------------------

    async def welcome(self, link: Link, hello: Hello) -> Welcome:
        """Prove topic, log and epoch to a peer; a publisher may come before its topic is open."""
        demand_role(self._trust, link)
        topic = self._host.topics.get(hello.topic)
        if topic is None:
            if hello.role == "publisher":
                return Welcome(version=1, topic=hello.topic, log="", epoch=0, instance=self._host.instance)
            raise TopicNotFound(f"topic {hello.topic!r} is not served here", topic=hello.topic)
        if hello.epoch > topic.epoch and (hello.log or topic.log_id) == topic.log_id:
            await self._host.fence(topic, hello.epoch)
            raise TopicNotFound(
                f"topic {hello.topic!r}: a publisher with epoch {hello.epoch} exists, this one has {topic.epoch}",
                topic=hello.topic,
            )
        return Welcome(version=1, topic=topic.topic, log=topic.log_id, epoch=topic.epoch, instance=self._host.instance)

    async def handle(self, link: Link, request: Request) -> Answer:
        """Answer one request."""
        hello = link.hello
        if hello.role == "publisher":
            self._demand_own_job(link, request)
            self._host.touch()
        if request.op == "open":
            if hello.role != "publisher":
                raise NotAuthorized("operation 'open' is for publishers", op=request.op)
            topic = await self._host.open_topic(hello.topic, request.args)
            return {"log": topic.log_id, "epoch": topic.epoch, "head": topic.head.to_json()}, b""
        try:
            roles, operation = self._operations[request.op]
        except KeyError:
            raise RemoteProtocolError(f"unknown operation {request.op!r}", op=request.op) from None
        if hello.role not in roles:
            raise NotAuthorized(f"operation {request.op!r} is not for the role {hello.role!r}", op=request.op)
        demand_operation(self._trust, link, request.op, request.args)
        served = self._served(link)
        if request.op in AUDITED:
            return await self._audited(operation, link, served, request)
        return await self._answer(operation, link, served, request)

    async def _answer(self, operation: Operation, link: Link, served: ServedTopic, request: Request) -> Answer:
        try:
            return await operation(link, served, request.args, request.blob)
        except (KeyError, TypeError, ValueError) as error:
            raise RemoteProtocolError(
                f"operation {request.op!r}: malformed arguments ({error!r})", op=request.op
            ) from error

    async def _audited(self, operation: Operation, link: Link, served: ServedTopic, request: Request) -> Answer:
        result = "failed"
        try:
            answer = await self._answer(operation, link, served, request)
            result = f"done {answer[0]}" + (" (dry run)" if request.args.get("dry_run") else "")
            return answer
        except JobpipeError as error:
            result = f"failed: {error.message}"
            raise
        finally:
            name = None if request.op == "handover" else str(request.args.get("name"))
            audit(
                link.peer_names,
                link.peer,
                request.op,
                result,
                topic=served.topic,
                subscription=name,
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
        if hmac.compare_digest(str(request.args.get("job", "")).encode(errors="replace"), self._secret):
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

    # -- publisher -----------------------------------------------------------------------------------------------------

    async def _begin(self, link: Link, topic: ServedTopic, args: dict[str, Any], blob: bytes) -> Answer:
        newest: dict[str, Any] | None = None

        def work() -> tuple[Last | None, Position | None, bool]:
            nonlocal newest
            topic.store.check_epoch()  # first: a replaced publisher must hear of that, not of its old checkpoint
            last = topic.store.last_sealed(str(args["query_id"]))
            newest = topic.store.newest_query() if last is None else None
            return last, None if last is None else topic.store.behind(last), topic.has_room()

        if not topic.publishing:
            raise Fenced(f"topic {topic.topic!r}: this publisher was closed or replaced", topic=topic.topic)
        last, position, room = await topic.run(work)
        if last is not None and await self._take_back(topic, last, args):
            last, position, room = await topic.run(work)
        result: dict[str, Any] = {"last": None, "newest": newest, "full": None, "admitted": None, "epoch": topic.epoch}
        if last is not None and position is not None:
            result["last"] = {"batch_id": last.batch_id, "position": position.to_json(), "run_id": last.run_id}
        if last is None or last.batch_id < int(args["batch_id"]):
            result["full"] = await topic.room(_wait(args), known=room)
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

    async def _take_back(self, topic: ServedTopic, last: Last, args: dict[str, Any]) -> bool:
        """Let a batch that Spark repeats be written anew, if host servers were lost that kept some of it."""
        query_id, batch_id = str(args["query_id"]), int(args["batch_id"])
        if last.batch_id != batch_id or last.run_id == args.get("run_id"):
            return False
        if not await topic.must_be_sealed_again(query_id, batch_id):
            return False
        await self._host.renew_epoch(topic)
        await topic.take_back(query_id, batch_id)
        return True

    async def _seal(self, link: Link, topic: ServedTopic, args: dict[str, Any], blob: bytes) -> Answer:
        schema = base64.b64decode(args["schema"]["arrow"]), args["schema"].get("spark")
        segments, used = [], 0
        for item in args["segments"]:
            inline = item.get("inline")
            data = None if inline is None else blob[used : used + int(inline)]
            used += 0 if data is None else len(data)
            segments.append(SegmentInfo.from_json(item, data))
        batch = NewBatch(
            query_id=str(args["query_id"]),
            batch_id=int(args["batch_id"]),
            run_id=str(args["run_id"]),
            write_id=str(args["write_id"]),
            schema_id=None,
            partitions=int(args["partitions"]),
            partitioner=str(args["partitioner"]),
            end=False,
        )
        position, room = await topic.seal(batch, segments, schema)
        admitted = self._admit(topic) if room and topic.publishing else None
        return {"position": position.to_json(), "admitted": admitted}, b""

    async def _declare(self, link: Link, topic: ServedTopic, args: dict[str, Any], blob: bytes) -> Answer:
        number = await topic.run(topic.store.add_schema, blob, args.get("spark"))
        topic.news.ring()
        return {"id": number}, b""

    async def _acked(self, link: Link, topic: ServedTopic, args: dict[str, Any], blob: bytes) -> Answer:
        missing = await topic.missing_acks(int(args["n"]))
        if missing and await topic.acked.wait(_wait(args)):
            missing = await topic.missing_acks(int(args["n"]))
        topic.mark_ack_wait(missing)
        n = int(args["n"])
        gone = {host for batch in await topic.lost(n - 1, n) for host in batch["hosts"]} if missing else set()
        return {"missing": missing, "gone": sorted(gone)}, b""

    async def _drained(self, link: Link, topic: ServedTopic, args: dict[str, Any], blob: bytes) -> Answer:
        lagging = await topic.lagging()
        if lagging and await topic.acked.wait(_wait(args)):
            lagging = await topic.lagging()
        return {"lagging": lagging}, b""

    async def _close(self, link: Link, topic: ServedTopic, args: dict[str, Any], blob: bytes) -> Answer:
        await self._host.close_publisher(topic, final=bool(args["final"]))
        return {"head": topic.head.to_json()}, b""

    # -- subscriber ----------------------------------------------------------------------------------------------------

    async def _grant(self, link: Link, topic: ServedTopic, args: dict[str, Any], blob: bytes) -> Answer:
        where = {"host": str(args.get("host", "")), "pid": int(args.get("pid", 0))}
        holder = await topic.subscribers.grant(_name(link), link.hello.instance, link, where)
        return {"grant": holder.grant, **self._news(topic)}, b""

    async def _first(self, link: Link, topic: ServedTopic, args: dict[str, Any], blob: bytes) -> Answer:
        topic.subscribers.held(_name(link), int(args["grant"]))
        position, lost = await topic.subscribers.first_position(
            _name(link),
            Boundary.from_json(args["start"]),
            _boundary(args, "end"),
            skip_removed=bool(args.get("skip_removed")),
        )
        return {"position": position.to_json(), "lost": lost}, b""

    async def _poll(self, link: Link, topic: ServedTopic, args: dict[str, Any], blob: bytes) -> Answer:
        known = {key: args.get(key) for key in ("head", "ended", "waiting")}
        if known == self._news(topic):
            await topic.news.wait(_wait(args))
        if topic.closed:
            raise TopicNotFound(f"topic {topic.topic!r} is no longer served here", topic=topic.topic)
        return self._news(topic), b""

    def _news(self, topic: ServedTopic) -> dict[str, Any]:
        return {"head": topic.head.to_json(), "ended": topic.ended, "waiting": topic.waiting}

    async def _plan(self, link: Link, topic: ServedTopic, args: dict[str, Any], blob: bytes) -> Answer:
        count = args.get("count", False)
        if type(count) is not bool:
            raise TypeError("count")
        plan, stop, ahead = await topic.subscribers.plan(
            _name(link),
            int(args["grant"]),
            Position.from_json(args["start"]),
            _boundary(args, "end"),
            None if args.get("max_rows") is None else int(args["max_rows"]),
            None if args.get("max_bytes") is None else int(args["max_bytes"]),
            count=count,
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

    async def _ack(self, link: Link, topic: ServedTopic, args: dict[str, Any], blob: bytes) -> Answer:
        await topic.subscribers.acknowledge(_name(link), int(args["grant"]), Position.from_json(args["position"]))
        return {}, b""

    async def _slot(self, link: Link, topic: ServedTopic, args: dict[str, Any], blob: bytes) -> Answer:
        found = await topic.slots.next(
            _name(link),
            int(args["grant"]),
            Position.from_json(args["start"]),
            None if args["last"] is None else slot_id(args["last"]),
            slot_id(args["slot"]),
            _boundary(args, "end"),
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

    async def _settle(self, link: Link, topic: ServedTopic, args: dict[str, Any], blob: bytes) -> Answer:
        start, committed = Position.from_json(args["start"]), args["committed"]
        if type(committed) is not bool:
            raise TypeError("committed")
        end = await topic.slots.settle(
            _name(link), int(args["grant"]), start, slot_id(args["slot"]), committed=committed
        )
        return {"end": end.to_json()}, b""

    # -- readers -------------------------------------------------------------------------------------------------------

    async def _bounds(self, link: Link, topic: ServedTopic, args: dict[str, Any], blob: bytes) -> Answer:
        start, end = _boundary(args, "start"), _boundary(args, "end")

        def work() -> dict[str, Any]:
            known = {s.name: s for s in topic.store.subscriptions()}.get(str(args.get("name", "")))
            acked, tail = None if known is None else known.acked, topic.store.tail()
            if start is None:
                window = Window(tail, None if end is None else topic.store.end_of(end), 0)
            else:
                skip = bool(args.get("skip_removed"))
                window = topic.store.window(start, end, committed=acked or tail, skip_removed=skip)
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

    async def _range(self, link: Link, topic: ServedTopic, args: dict[str, Any], blob: bytes) -> Answer:
        start, end = Position.from_json(args["start"]), Position.from_json(args["end"])

        def work() -> list[Plan]:
            topic.store.check(start)
            topic.store.check(end)
            return topic.store.describe_range(start, end)

        if link.hello.role == "subscriber":  # a replay after a restart
            plans = await topic.subscribers.describe(_name(link), int(args["grant"]), start, end)
        else:
            plans = await topic.run(work)
        lost = await self._lost(topic, plans)
        data = str(self._host.data_endpoint)
        return {"plans": [self._planned(plan) for plan in plans], "data": data, "lost": lost}, b""

    async def _bind(self, link: Link, topic: ServedTopic, args: dict[str, Any], blob: bytes) -> Answer:
        limits = Limits(
            _boundary(args, "end"),
            None if args.get("max_rows") is None else int(args["max_rows"]),
            None if args.get("max_bytes") is None else int(args["max_bytes"]),
            frozenset(int(number) for number in args["schemas"]),
        )
        plans = await topic.slots.bind(
            str(args["name"]), int(args["grant"]), slot_id(args["slot"]), limits, _wait(args)
        )
        if len(plans) > 1:
            raise DataLoss(
                f"topic {topic.topic!r}: slot {args['slot']} crosses a change of partitions or schema that was "
                "not there when it was bound",
                topic=topic.topic,
                slot=str(args["slot"]),
            )
        lost = await self._lost(topic, plans)
        return {**self._planned(plans[0]), "data": str(self._host.data_endpoint), "lost": lost}, b""

    async def _cut(self, link: Link, topic: ServedTopic, args: dict[str, Any], blob: bytes) -> Answer:
        start, end = Position.from_json(args["start"]), Position.from_json(args["end"])
        make = partial(
            topic.store.cutter,
            wanted=[int(k) for k in args["partitions"]],
            max_rows=None if args.get("max_rows") is None else int(args["max_rows"]),
            at_least=int(args.get("at_least", 1)),
        )
        if link.hello.role == "subscriber":
            cutter = await topic.subscribers.cutter(_name(link), int(args["grant"]), start, end, make)
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

    async def _lease(self, link: Link, topic: ServedTopic, args: dict[str, Any], blob: bytes) -> Answer:
        await topic.run(
            topic.store.lease, str(args["id"]), int(args["first"]), int(args["last"]), float(args["seconds"])
        )
        return {}, b""

    async def _release(self, link: Link, topic: ServedTopic, args: dict[str, Any], blob: bytes) -> Answer:
        await topic.run(topic.store.release, str(args["id"]))
        return {}, b""

    async def _schema(self, link: Link, topic: ServedTopic, args: dict[str, Any], blob: bytes) -> Answer:
        wanted = args.get("id")

        def work() -> Any:
            return topic.store.newest_schema() if wanted is None else topic.store.schema(int(wanted))

        found = await topic.run(work)
        if found is None and await topic.news.wait(_wait(args)):
            found = await topic.run(work)
        if found is None:
            return {"id": None}, b""
        number, arrow, spark = found
        return {"id": number, "spark": spark}, arrow

    async def _status(self, link: Link, topic: ServedTopic, args: dict[str, Any], blob: bytes) -> Answer:
        status = await topic.status()
        status.update(endpoint=str(self._host.control_endpoint), data=str(self._host.data_endpoint))
        if topic.uses_hosts:
            status["hosts"] = await self._host.hosts.describe(topic)
        if args.get("served"):
            status["served"] = await self._host.hosts.served(topic)
        return status, b""

    async def _seek(self, link: Link, topic: ServedTopic, args: dict[str, Any], blob: bytes) -> Answer:
        return await topic.subscribers.seek(
            str(args["name"]), Boundary.from_json(args["to"]), dry_run=bool(args["dry_run"])
        ), b""

    async def _drop(self, link: Link, topic: ServedTopic, args: dict[str, Any], blob: bytes) -> Answer:
        return await topic.subscribers.drop(str(args["name"]), dry_run=bool(args["dry_run"])), b""

    async def _handover(self, link: Link, topic: ServedTopic, args: dict[str, Any], blob: bytes) -> Answer:
        released = await self._host.hand_over(topic, to=_name(link))
        return {"released": released, "driver": self._host.driver(topic)}, b""


def _name(link: Link) -> str:
    return link.hello.name or ""


def _boundary(args: dict[str, Any], key: str) -> Boundary | None:
    return None if args.get(key) is None else Boundary.from_json(args[key])


def _wait(args: dict[str, Any]) -> float:
    return min(max(float(args.get("wait", 0.0)), 0.0), MAX_WAIT_SECONDS)
