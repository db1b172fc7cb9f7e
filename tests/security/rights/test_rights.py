"""Case 76, and what a certificate with some right must not reach: others' subscriptions, and this job's publisher."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from zlib import crc32

import pyarrow as pa
import pytest

from jobpipe.admin import Admin
from jobpipe.discovery.topic_lookup import Location
from jobpipe.errors import (
    Fenced,
    FlowNotFound,
    FrameTooLarge,
    JobpipeError,
    LinkBroken,
    NotAuthorized,
    PeerNotTrusted,
    RemoteProtocolError,
    SubscriptionNotFound,
    TopicNotFound,
    TopicOwned,
)
from jobpipe.net.links.blocking_link import BlockingLink
from jobpipe.net.links.event_loop_thread import EventLoopThread
from jobpipe.net.servers.write_tokens import log_place
from jobpipe.net.tls.certificates import issue
from jobpipe.net.tls.peer_names import topic_server_name
from jobpipe.net.tls.tls_context import Credentials, client_context
from jobpipe.operations.data_operations import FetchRequest
from jobpipe.operations.host_operations import ReadRequest
from jobpipe.operations.messages.message_fields import Fields
from jobpipe.operations.reader_operations import lease_name
from jobpipe.operations.status_operations import TopicStatus
from jobpipe.publishing.topic_publisher import Publisher
from jobpipe.status_walk import StatusWalk
from jobpipe.store.catalog.position import Position
from jobpipe.store.reading.boundary import EARLIEST, LATEST, Boundary
from jobpipe.store.spool.segment import SegmentFile
from jobpipe.store.spool.segment_index import Chunk
from jobpipe.store.spool.spool_files import FileSegmentSink
from jobpipe.testing import NumberedRows
from jobpipe.wire import Hello
from tests.security.conftest import Served
from tests.security.kit import TIMING, TOPIC, settings

pytestmark = pytest.mark.zookeeper


def dial(
    served: Served, files: Credentials, role: str, name: str | None = None, port: str = "control", proof: str = ""
) -> BlockingLink:
    """Open a link with a certificate."""
    return BlockingLink.connect(
        getattr(served, port),
        Hello(TOPIC, role, name, instance=f"{role}-test", proof=proof),
        tls=client_context(files),
        server_hostname=topic_server_name(TOPIC),
        timing=TIMING,
    )


def ask(link: BlockingLink, op: str, args: dict[str, Any]) -> dict[str, Any]:
    """Ask, and close the link."""
    with link:
        return link.call(op, args, timeout=20.0).result


def stand(served: Served, files: Credentials, name: str, start: Boundary = EARLIEST) -> tuple[int, dict[str, Any]]:
    """Take a subscription's name and its first position; return the grant and the position."""
    with dial(served, files, "subscriber", name) as link:
        granted = int(link.call("grant", {"host": "h", "pid": 1}, timeout=20).result["grant"])
        return granted, link.call("first", {"start": start.to_json(), "grant": granted}, timeout=20).result["position"]


def test_acknowledgements_are_of_the_holder(served: Served) -> None:
    """Under one's own name, and with the grant that was given for it; an admin's link, or a reader's, has neither."""
    world = served.world
    granted, first = stand(served, world.audit, "audit", LATEST)
    for op, args in (("ack", {"position": first}), ("first", {"start": LATEST.to_json()}), ("plan", {"start": first})):
        ask(dial(served, world.audit, "subscriber", "audit"), op, {**args, "grant": granted})
        with pytest.raises(Fenced):
            ask(dial(served, world.audit, "subscriber", "audit"), op, {**args, "grant": granted + 5})
    granted, first = stand(served, world.billing, "billing", LATEST)
    own = {"position": first, "grant": granted, "name": "audit"}
    ask(dial(served, world.billing, "subscriber", "billing"), "ack", own)
    for role in ("reader", "admin"):
        with pytest.raises(NotAuthorized, match=f"not for the role '{role}'"):
            ask(dial(served, world.billing, role), "ack", own)


def test_who_may_publish_next_to_the_publisher(served: Served) -> None:
    """With the right to publish, without the job's secret; that is all that it gives, and it is in the audit log."""
    world = served.world
    query = {"query_id": "once:append:x", "batch_id": 0}
    schema = ask(dial(served, world.successor, "appender"), "schema", {})
    with dial(served, world.successor, "appender") as link:
        begun = link.call("begin", query, timeout=20.0).result
        arrow = link.call("schema", {}, timeout=20.0).blob
        assert begun["admitted"] is None
        schema_of = pa.ipc.read_schema(pa.py_buffer(arrow))
        file = SegmentFile("", FileSegmentSink, inline_max=1000)  # type: ignore[arg-type]
        file.begin(0, schema_of).write(pa.RecordBatch.from_pylist([dict.fromkeys(schema_of.names)], schema_of))
        (row,) = file.finish()
        sealing = {
            **query,
            "run_id": "",
            "write_id": "a",
            "segments": [{**row.to_json(), "inline": row.length}],
            **{name: begun["appending"][name] for name in ("partitions", "partitioner")},
            "schema": {"arrow": base64.b64encode(arrow).decode(), "spark": schema["spark"]},
        }
        assert link.call("seal", sealing, row.data or b"", timeout=20.0).result["admitted"] is None
    for op in ("open", "status", "poll", "close", "declare", "drained", "handover", "prepare"):
        with pytest.raises(NotAuthorized, match="not for the role 'appender'"):
            ask(dial(served, world.successor, "appender"), op, {})
    with pytest.raises(NotAuthorized, match="publishes for the job that started it"):
        ask(dial(served, world.successor, "publisher"), "seal", sealing)
    with pytest.raises(NotAuthorized, match="not for the role 'appender'"):
        ask(dial(served, world.successor, "appender", port="data"), "fetch", {})
    for role in ("reader", "admin"):
        with pytest.raises(NotAuthorized):
            ask(dial(served, world.billing, role), "begin", query)
    rows = [{"offset": 0, "published_ms": 1, "partition": 0, "row": 0}]
    assert ask(dial(served, world.billing, "reader"), "redriven", {"rows": rows}) == {"rows": []}
    log = (Path(served.base["jobpipe.home"]) / "logs" / "coordinator.log").read_text()
    assert 'what="append" topic="orders" instance="appender-test" result="done: 1 rows' in log


@pytest.mark.parametrize("op", ["seek", "drop"])
def test_subscriptions_of_others_stay(served: Served, op: str) -> None:
    world = served.world
    for name, files in (("billing-2", world.billing), ("audit", world.audit)):
        stand(served, files, name)
    args = {"to": LATEST.to_json(), "dry_run": False}
    with pytest.raises(NotAuthorized) as caught:
        ask(dial(served, world.billing, "admin"), op, {**args, "name": "audit"})
    assert caught.value.fields["right"] == "admin"
    assert ask(dial(served, world.billing, "admin"), op, {**args, "name": "billing-2"})["name"] == "billing-2"
    assert ask(dial(served, world.operations, "admin"), op, {**args, "name": "audit"})["name"] == "audit"
    log = (Path(served.base["jobpipe.home"]) / "logs" / "coordinator.log").read_text()
    assert f'what="{op}" topic="orders" subscription="audit" instance="admin-test" result="done' in log


def test_holds_of_others_are_theirs(served: Served) -> None:
    """One may be had by who may read under its name; it is of who took it, or of an administrator who moved it."""
    world, args = served.world, {"name": "billing-night", "to": EARLIEST.to_json(), "max_time": 60.0}
    release = {"name": "billing-night", "dry_run": False}
    for role in ("reader", "admin"):
        with pytest.raises(NotAuthorized) as caught:
            ask(dial(served, world.audit, role), "hold", args)
        assert caught.value.fields["right"] in ("read", "admin")
    for role in ("reader", "admin"):
        assert ask(dial(served, world.billing, role), "hold", args)["owner"].startswith("billing")
    with pytest.raises(NotAuthorized) as caught:
        ask(dial(served, world.audit, "admin"), "release_hold", release)
    assert caught.value.fields["right"] == "admin", "it may not name it; that it is another's is not asked"
    with pytest.raises(NotAuthorized, match="not for the role 'subscriber'"):
        ask(dial(served, world.billing, "subscriber", "billing-night"), "hold", args)
    taken = ask(dial(served, world.operations, "admin"), "hold", {**args, "to": LATEST.to_json()})
    with pytest.raises(NotAuthorized, match=f"belongs to {taken['owner']}, not to billing"):
        ask(dial(served, world.billing, "admin"), "release_hold", release)
    assert ask(dial(served, world.operations, "admin"), "release_hold", release)["offset"] == taken["offset"]
    log = (Path(served.base["jobpipe.home"]) / "logs" / "coordinator.log").read_text()
    for op in ("hold", "release_hold"):
        assert f'what="{op}" topic="orders" subscription="billing-night" instance="admin-test" result="done' in log


def test_a_lease_is_renewed_by_whoever_knows_its_secret(served: Served) -> None:
    """T3: tasks of a read run under the certificates of their nodes, which are not that of the driver."""
    world, args = served.world, {"secret": "5ec2e7" * 6, "first": 0, "last": 0, "seconds": 100.0}
    name = lease_name(str(args["secret"]))
    with dial(served, world.billing, "reader") as driver, dial(served, world.audit, "reader") as executor:
        driver.call("lease", args, timeout=20)
        executor.call("lease", {**args, "seconds": 500.0}, timeout=20)
        (line,) = ask(dial(served, world.operations, "admin"), "status", {})["leases"]
        assert (line["id"], line["owner"].split(".")[0]) == (name, "billing")
        assert line["left"] > 400
        drop = {"id": name, "dry_run": False}
        with pytest.raises(NotAuthorized) as caught:
            ask(dial(served, world.audit, "admin"), "drop_lease", drop)
        assert caught.value.fields["right"] == "admin"
        assert ask(dial(served, world.operations, "admin"), "drop_lease", drop)["id"] == name
        driver.call("lease", args, timeout=20)
        assert len(ask(dial(served, world.operations, "admin"), "status", {})["leases"]) == 1
        executor.call("release", {"secret": args["secret"]}, timeout=20)
        assert ask(dial(served, world.operations, "admin"), "status", {})["leases"] == []


def test_who_may_say_which_names_are_required(served: Served) -> None:
    """The publisher would wait for them: readers may not, not even under their own name."""
    args = {"name": "billing-2", "required": True, "dry_run": True}
    with pytest.raises(NotAuthorized) as caught:
        ask(dial(served, served.world.billing, "admin"), "require", args)
    assert caught.value.fields["right"] == "admin"
    for files in (served.world.operations, served.world.successor):
        assert ask(dial(served, files, "admin"), "require", args) == {"before": False, "required": ["billing-2"]}


@pytest.mark.slow
def test_counts_of_others_are_not_taken(served: Served) -> None:
    """A worker that may not read under a name proves nothing of it, and makes nothing of it look lost."""
    world = served.world
    _, start = stand(served, world.billing, "billing")
    at = Position.from_json(start)
    end = Position(at.log, 1, at.n + 1).to_json()
    told = {"name": "billing", "start": start, "end": end, "reading": "0" * 32}
    rows = ask(dial(served, world.billing, "reader"), "range", {"start": start, "end": end})["plans"][0]["rows"]
    assert rows > 0

    def hop(files: Credentials, counted: int) -> dict[str, Any]:
        back = {"name": "billing", "to": EARLIEST.to_json(), "dry_run": False}
        ask(dial(served, world.operations, "admin"), "seek", back)
        with dial(served, world.billing, "subscriber", "billing") as link:
            held = {"grant": int(link.call("grant", {"host": "h", "pid": 1}, timeout=20).result["grant"])}
            link.call("plan", {**held, "start": start, "counts": True}, timeout=20)
            piece = {"number": 0, "partition": 0, "rows": counted}
            assert ask(dial(served, files, "reader", port="data"), "count", {**told, "pieces": [piece]}) == {}
            link.call("ack", {**held, "position": end}, timeout=20)
        (found,) = ask(dial(served, world.operations, "admin"), "ledger", {"name": "billing"})["hops"]
        return dict(found["counts"])

    def counts(files: Credentials, counted: int, **found: int) -> bool:
        """Wait until what was committed is judged."""
        last = hop(files, counted)
        deadline = time.monotonic() + 60.0
        while any(last[name] != value for name, value in found.items()):
            if time.monotonic() > deadline:
                raise AssertionError(f"not within 60 s: {last}")
            time.sleep(0.2)
            (line,) = ask(dial(served, world.operations, "admin"), "ledger", {"name": "billing"})["hops"]
            last = line["counts"]
        return True

    assert counts(world.billing, rows, committed=rows, read=rows, unproven=0, differences=0)
    assert counts(world.audit, rows, committed=2 * rows, read=rows, unproven=rows, differences=0)


def test_slots_of_others_are_theirs(served: Served) -> None:
    """A worker binds under a name that it may read under, and not by the role of an administrator."""
    world, binds = served.world, {}
    for name, files in (("billing", world.billing), ("audit", world.audit)):
        granted, start = stand(served, files, name)
        made = {"grant": granted, "slot": "0" * 32}
        ask(dial(served, files, "subscriber", name), "slot", {**made, "start": start, "witnessed": False})
        binds[name] = {**made, "name": name, "schemas": [], "wait": 0}
        assert ask(dial(served, files, "reader"), "bind", binds[name])["start"] == start
    with pytest.raises(NotAuthorized) as caught:
        ask(dial(served, world.billing, "reader"), "bind", binds["audit"])
    assert caught.value.fields["right"] == "read"
    with pytest.raises(NotAuthorized, match="not for the role 'admin'"):
        ask(dial(served, world.billing, "admin"), "bind", binds["billing"])
    with pytest.raises(Fenced):  # it may, but has no grant
        ask(dial(served, world.billing, "reader"), "bind", {**binds["billing"], "grant": 999})


def test_bounds_of_others_are_theirs(served: Served) -> None:
    world, audit = served.world, {"name": "audit"}
    assert ask(dial(served, world.audit, "reader"), "bounds", audit)["head"]["n"] >= 2
    with pytest.raises(NotAuthorized) as caught:
        ask(dial(served, world.billing, "reader"), "bounds", audit)
    assert caught.value.fields["right"] == "read"
    assert ask(dial(served, world.billing, "reader"), "bounds", {"name": ""})["head"]["n"] >= 2


def a_fetch(served: Served) -> Fields:
    """Return what asks the data process for the first batch."""
    log = served.publisher.log_id
    return FetchRequest(Position(log, 0, 0), Position(log, served.publisher.epoch, 1), 0)


def a_read(served: Served) -> Fields:
    """Return what asks the host server for a file, which it has."""
    log, token, file = served.publisher.log_id, "0" * 64, f"{'0' * 16}-0.seg"
    with dial(served, served.world.orders, "publisher", "p", port="host") as link:
        link.start_upload("put", {"log": log, "token": token, "file": file, "length": 3}, length=3, timeout=20)
        link.send_data(b"abc")
        link.end_upload(timeout=20)
    return ReadRequest(log_place(TOPIC, log, token), file, 0, (Chunk(0, 3, crc32(b"abc")),))


@pytest.mark.parametrize(("port", "op", "asked"), [("data", "fetch", a_fetch), ("host", "read", a_read)])
def test_administrators_do_not_read(served: Served, port: str, op: str, asked: Callable[[Served], Fields]) -> None:
    with pytest.raises(NotAuthorized):
        dial(served, served.world.operations, "reader", port=port)
    args = asked(served).to_json()
    with dial(served, served.world.billing, "admin", port=port) as link:
        link.start_stream(op, args, timeout=20)
        assert link.next_part() is not None
    with dial(served, served.world.operations, "admin", port=port) as link:
        link.start_stream(op, args, timeout=20)
        with pytest.raises(NotAuthorized) as caught:
            link.next_part()
    assert caught.value.fields["right"] == "read"


def test_handover_is_for_publishers(served: Served) -> None:
    for files in (served.world.operations, served.world.billing):
        with pytest.raises(NotAuthorized) as caught:
            ask(dial(served, files, "admin"), "handover", {"topic": TOPIC})
        assert caught.value.fields["right"] == "publish"
    answer = ask(dial(served, served.world.successor, "admin", "successor"), "handover", {"topic": TOPIC})
    assert answer["released"] is False, "our publisher lives"


@pytest.mark.parametrize("op", ["status", "poll", "schema", "drained"])
def test_the_right_to_publish_does_not_show_how_a_topic_stands(served: Served, op: str) -> None:
    """That is for who may read or administer it, and for the job itself; who may publish can ask for a handover."""
    with pytest.raises(NotAuthorized) as caught:
        ask(dial(served, served.world.successor, "admin"), op, {})
    assert caught.value.fields["right"] == "admin"
    for files in (served.world.billing, served.world.operations, served.world.orders):
        assert ask(dial(served, files, "admin"), op, {})


def test_how_another_topic_stands_needs_the_right_there(served: Served) -> None:
    """One link for many topics: the right is that of the topic in the request, not of the one in HELLO."""
    names = ["billing.subscription.jobpipe", "payments.subscription.jobpipe"]
    both = issue(served.world.folder, "both", dns=names, usages=["client"], replace=True)
    for role in ("admin", "reader"):
        assert ask(dial(served, both, role), "status", {"topic": TOPIC})["topic"] == TOPIC
        with pytest.raises(TopicNotFound, match="'payments' is not served here"):
            ask(dial(served, both, role), "status", {"topic": "payments"})
        with pytest.raises(NotAuthorized) as caught:
            ask(dial(served, served.world.billing, role), "status", {"topic": "payments"})
        assert (caught.value.fields["right"], caught.value.fields["topic"]) == ("admin", "payments")


def test_a_coordinator_is_not_believed_about_topics_that_its_certificate_does_not_bear(served: Served) -> None:
    walk = StatusWalk(served.config(**settings(served.world.billing)))
    place = Location(TOPIC, served.control, served.data, 1, "i", 1, ssl=True)
    found = walk.ask([place, replace(place, topic="payments")], 20.0)
    walk.close()
    assert isinstance(found[TOPIC], TopicStatus)
    assert isinstance(found["payments"], PeerNotTrusted)


@pytest.mark.parametrize("op", ["open", "begin", "seal", "close", "declare", "acked", "poll", "nonsense"])
@pytest.mark.parametrize("job", [None, "", "0" * 64, 7, "\ud800"])
def test_a_coordinator_publishes_for_its_own_job(served: Served, tmp_path: Path, op: str, job: object) -> None:
    """The right to publish a topic is none to use another job's coordinator: it would say where files are written."""
    args: dict[str, Any] = {
        "name": "mallory",
        "parallelism": 1,
        "config": served.config(**settings(served.world.orders), **{"spool.dir": str(tmp_path / "spool")}).to_dict(),
        "query_id": "q",
        "batch_id": 99,
        "run_id": "r1",
        "final": True,
        "n": 1,
    }
    own = {**args, "job": served.publisher.coordinator.secret}
    if op in ("begin", "acked", "poll"):  # the others would end this publisher, or seal
        ask(dial(served, served.world.successor, "publisher", "mallory"), op, own)
    for files in (served.world.successor, served.world.orders):
        with pytest.raises(NotAuthorized, match="the job that started it"):
            ask(dial(served, files, "publisher", "mallory"), op, args if job is None else {**args, "job": job})
    assert list(tmp_path.iterdir()) == []
    served.publisher.status()


LARGE = bytes(3 * 1024 * 1024)  # of a request; a small one has one MiB at most


def test_only_the_own_job_sends_large_requests(served: Served) -> None:
    """S2: each holder of the right to publish may call itself a publisher; that gives it no more memory here."""
    secret = served.publisher.coordinator.secret
    link = dial(served, served.world.orders, "publisher", "driver", proof=secret)
    with link, pytest.raises(RemoteProtocolError, match="field 'query_id'"):  # it was read whole
        link.call("seal", {"job": secret}, LARGE, timeout=20.0)
    for files in (served.world.successor, served.world.orders):
        with pytest.raises((FrameTooLarge, LinkBroken)):  # its header was enough
            dial(served, files, "publisher", "standby").call("seal", {"job": secret}, LARGE, timeout=20.0)
        with pytest.raises(FlowNotFound, match="has not begun"):
            dial(served, files, "publisher", "standby", proof="0" * 64)
    with pytest.raises(RemoteProtocolError, match="field 'proof'"):
        dial(served, served.world.orders, "publisher", "driver", proof="0" * 65)


def test_status_tells_whose_the_names_are(served: Served) -> None:
    """Of others than the publisher's own identity, which may take them all."""
    for files, name in ((served.world.billing, "billing-8"), (served.world.orders, "own-8")):
        stand(served, files, name)
    told = ask(dial(served, served.world.operations, "admin"), "status", {})["identities"]
    assert told["billing.subscription.jobpipe"]["names"] >= 1
    assert not any("names" in held for identity, held in told.items() if identity.startswith("orders"))


def test_the_publisher_shows_its_secret_with_each_link(served: Served) -> None:
    """Its first request over a new link may be a large seal."""
    channel = served.publisher._channel
    for _ in range(2):
        link = channel._link
        assert link is not None
        asking = partial(link.call, "nonsense", {"job": channel._secret()}, LARGE, timeout=20.0)
        with pytest.raises(RemoteProtocolError, match="nonsense"):
            EventLoopThread.get().run(asking, 25.0, doing="asking")
        EventLoopThread.get().run(link.close, 5.0, doing="closing")
        served.publisher.status()
        assert channel._link is not link


def test_the_command_line_with_a_readers_certificate(served: Served) -> None:
    """Who reads a topic may see how it stands, and no more."""
    with Admin(served.config(**settings(served.world.billing))) as admin:
        assert admin.status(TOPIC).topic == TOPIC
        with pytest.raises(NotAuthorized):
            admin.drop(TOPIC, "nobody")
        with pytest.raises(SubscriptionNotFound):
            admin.drop(TOPIC, "billing-9")
    with Admin(served.config(**settings(served.world.operations))) as admin, pytest.raises(SubscriptionNotFound):
        admin.drop(TOPIC, "nobody")
    with Admin(served.config(**settings(served.world.elsewhere))) as admin, pytest.raises(JobpipeError) as caught:
        admin.status(TOPIC)
    assert type(caught.value) is NotAuthorized


@pytest.mark.slow
def test_a_publisher_without_the_right_takes_nothing_over(served: Served) -> None:
    """A certificate that may serve the topic, of another job: the present publisher's list does not know it."""
    names = [topic_server_name(TOPIC), "intruder.jobpipe"]
    files = issue(served.world.folder, "intruder", dns=names, replace=True)
    began = time.monotonic()
    with pytest.raises(NotAuthorized, match="take the topic over") as caught:
        Publisher(TOPIC, config=served.config(**settings(files)))
    assert caught.value.fields["principal"] == names
    assert time.monotonic() - began < 30.0
    heir = issue(served.world.folder, "heir", dns=[topic_server_name(TOPIC), "successor.jobpipe"], replace=True)
    with pytest.raises(TopicOwned):  # it may, once our publisher is gone
        Publisher(TOPIC, config=served.config(**settings(heir)))
    rows = NumberedRows(TOPIC)
    assert served.publisher.seal("q", 2, rows.tables(2), run_id="r1").position.n >= 3
