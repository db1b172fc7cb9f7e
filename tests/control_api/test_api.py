"""REST: each route, its errors, and the document that is made from the same table."""

from __future__ import annotations

import http.client
import json
import re
import threading
from typing import Any

import jsonschema
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from jobpipe.control.control_service import Action
from jobpipe.control.letters.letter_views import LetterJob, RedriveState
from jobpipe.control.positions.move_plan import position_text
from jobpipe.control.rest.rest_app import BODY_BYTES, WAITING
from jobpipe.control.rest.routing_table import ROUTES
from jobpipe.errors import (
    ConfigError,
    ControlConflict,
    LinkBroken,
    NotAuthorized,
    PipelineError,
    PipelineNotFound,
    RegistryUnavailable,
    RunNotFound,
    WaitTimeout,
)
from jobpipe.metrics.metric_samples import TopicsSnapshot
from jobpipe.operations.messages.ledger_messages import HopCounts, HopLedger, HopMinute, LedgerMinute, RowDifference
from jobpipe.operations.status_operations import LedgerReply
from jobpipe.pipelines.model.job_states import JobState
from tests.control.letters.letters_kit import DEAD, ROW
from tests.control.positions.positions_kit import at
from tests.control_api.kit import DEADLINE, SCHEDULE, Served, until
from tests.statuses import subscription_status, topic_status


def test_submit_look_stop_resume_restart_delete(served: Served) -> None:
    """The life of a pipeline through the client: what the core gets, and what comes back."""
    client = served.client
    submission = served.submission()
    submitted = client.submit(submission, new_checkpoint=["report"])
    assert (submitted.created, submitted.version, dict(submitted.runs)) == (
        True,
        1,
        {"publish": "run-1", "report": "run-2"},
    )
    assert served.control.calls[0] == ("submit", submission, ("report",), None, "token", None)
    assert client.pipelines() == served.control.pipelines()
    assert client.pipeline("flights") == served.control.pipeline("flights")
    assert client.job("flights", "report").state is JobState.RUNNING
    assert client.submission("flights") == submission
    assert [job.state for job in client.stop("flights", "report").jobs] == [JobState.RUNNING, JobState.STOPPED]
    assert [job.state for job in client.stop("flights").jobs] == [JobState.STOPPED] * 2
    assert {job.run for job in client.resume("flights").jobs} == {"run-3", "run-4"}
    client.restart("flights", "report", force=True)
    assert ("restart", "flights", "report", True) in served.control.calls
    client.restart("flights")
    assert ("restart", "flights", None, False) in served.control.calls
    assert [run.id for run in client.runs("flights", "report", limit=2)] == ["run-7", "run-5"]
    served.control.calls.clear()
    assert client.runs(limit=1) == client.runs("flights", limit=1)
    asked = [call for call in served.control.calls if call[0] in ("runs", "pipelines")]
    assert asked == [("runs", None, None, 1), ("runs", "flights", None, 1)]  # of all by one, which has the limit
    assert client.run("run-7") == served.control.run("run-7")
    assert client.cancel("run-7").state is JobState.CANCELED
    served.control.lines = ("one", "two \\x1b[31m")
    assert client.log("flights", "report", lines=1) == ("two \\x1b[31m",)
    client.stop("flights")
    client.delete("flights", keep_subscriptions=True)
    assert ("delete", "flights", True) in served.control.calls
    assert client.pipelines() == ()
    index = client.index()
    assert (index.right, index.openapi) == ("operate", "/openapi.json")


def test_a_changed_file_is_put(served: Served) -> None:
    served.client.submit(served.submission())
    body = {"file": str(served.folder / "p.yaml"), "folder": str(served.folder), "tree": served.submission().tree}
    reply = served.ask("PUT", "/pipelines/flights/config", body)
    assert (reply.status, reply.json["created"], reply.json["version"]) == (202, False, 2)
    other = served.ask("PUT", "/pipelines/others/config", body)
    assert (other.status, other.json["error"]) == (400, "ConfigError")
    assert served.ask("GET", "/pipelines").json == ["flights"]


def test_a_plan_changes_nothing_and_its_version_goes_with_the_submission(served: Served) -> None:
    client, submission = served.client, served.submission()
    plan = client.plan(submission, new_checkpoint=["report"])
    assert plan == served.control.plan(submission)
    assert (plan.version, [each.action for each in plan.jobs]) == (0, [Action.STARTED] * 2)
    assert client.pipelines() == ()
    client.submit(submission, base=plan.version, born=plan.born)
    assert served.control.calls[-1] == ("submit", submission, (), 0, "token", 0.0)
    with pytest.raises(NotAuthorized, match="operate"):
        served.viewer.plan(submission)


def test_revisions(served: Served) -> None:
    client = served.client
    client.submit(served.submission())
    client.submit(served.submission(third={"source": {"type": "rate"}, "sink": {"type": "console"}}))
    assert [(each.version, each.by) for each in served.viewer.revisions("flights")] == [(2, "token"), (1, "token")]
    assert client.revision("flights", 1) == served.submission()
    with pytest.raises(ConfigError, match="version 3 of pipeline flights is not kept"):
        client.revision("flights", 3)
    reply = served.ask("GET", "/pipelines/flights/revisions/one")
    assert (reply.status, reply.json["detail"]) == (400, "'one' is not the number of a version")


def test_every_problem_of_a_submission_is_told(served: Served) -> None:
    """As `jobpipe pipeline validate` tells them, as the same error."""
    wrong = served.submission(bad={"source": {"type": "rates"}, "sink": {"type": "consol"}})
    with pytest.raises(PipelineError) as caught:
        served.client.submit(wrong)
    assert {each["key"] for each in caught.value.fields["problems"]} == {"jobs.bad.source.type", "jobs.bad.sink.type"}
    assert "did you mean rate?" in caught.value.message
    assert not any(call[0] == "submit" for call in served.control.calls)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (PipelineNotFound("no pipeline x", pipeline="x"), 404),
        (RunNotFound("no run"), 404),
        (ControlConflict("it runs; stop it first", state="RUNNING"), 409),
        (ConfigError("wrong", problems=[{"key": "a"}]), 400),
        (RegistryUnavailable("the registry does not answer"), 503),
        (WaitTimeout("late"), 503),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else str(value),
)
def test_errors_are_the_same_at_the_client(served: Served, error: Any, status: int) -> None:
    """Class, text and fields, by a problem document of RFC 9457."""
    served.control.raises = error
    with pytest.raises(type(error)) as caught:
        served.client.pipeline("x")
    assert (type(caught.value), caught.value.message, caught.value.fields) == (type(error), error.message, error.fields)
    reply = served.ask("GET", "/pipelines/x/status")
    assert (reply.status, reply.headers["content-type"]) == (status, "application/problem+json")
    assert reply.json["type"] == f"urn:jobpipe:error:{type(error).__name__}"


def test_what_is_no_error_of_ours_is_not_shown(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    """The log has it; the caller gets no text of it."""
    served.control.raises = RuntimeError("hunter2")
    reply = served.ask("GET", "/pipelines")
    assert (reply.status, reply.json["error"]) == (500, "JobpipeError")
    assert b"hunter2" not in reply.body
    assert "hunter2" in caplog.text


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/nothing", None, 404),
        ("DELETE", "/pipelines", None, 405),
        ("GET", "/pipelines?expand=all", None, 400),
        ("GET", "/pipelines?x=1", None, 400),
        ("GET", "/runs?limit=0", None, 400),
        ("GET", "/runs?limit=1001", None, 400),
        ("GET", "/runs?limit=NaN", None, 400),
        ("GET", "/runs?limit=x&limit=5", None, 400),
        ("GET", "/runs?job=report", None, 400),
        ("GET", "/runs?" + "&".join(["limit=1"] * 30), None, 400),
        ("GET", "/events?after=-1", None, 400),
        ("GET", "/pipelines/x/jobs/y/log?lines=10001", None, 400),
        ("POST", "/pipelines", None, 400),
        ("POST", "/pipelines", b"{", 400),
        ("POST", "/pipelines", b'{"file": NaN}', 400),
        ("POST", "/pipelines", b"[" * 100_000, 400),
        ("POST", "/pipelines", {"file": "/a", "folder": "/a"}, 400),
        ("POST", "/pipelines", {"file": "a", "folder": "/a", "tree": {}}, 400),
        ("POST", "/pipelines", {"file": "/a", "folder": "/a", "tree": {}, "more": 1}, 400),
        ("POST", "/pipelines", {"file": "/a", "folder": "/a", "tree": {"x": [0] * 30_000}}, 400),
        ("PUT", "/pipelines/x/stop", {"a": 1}, 400),
        ("GET", "/plugins/rate/config/validate", None, 405),
        ("PUT", "/plugins/rats/config/validate", {"config": {}}, 404),
        ("PUT", "/plugins/json/config/validate", {"config": {}}, 400),
    ],
)
def test_requests_that_are_wrong(served: Served, method: str, path: str, body: Any, status: int) -> None:
    """Refused with a document that says what; the core is not asked."""
    reply = served.ask(method, path, body)
    assert (reply.status, reply.headers["content-type"]) == (status, "application/problem+json"), reply.body
    assert reply.json["detail"]
    assert served.control.calls == []


def test_head_is_answered_as_get_without_the_body(served: Served) -> None:
    got, head = served.ask("GET", "/pipelines"), served.ask("HEAD", "/pipelines")
    assert (head.status, head.body, head.headers["content-length"]) == (200, b"", got.headers["content-length"])
    assert served.ask("HEAD", "/nothing").status == 404


def test_a_refused_method_names_those_of_the_path(served: Served) -> None:
    reply = served.ask("PATCH", "/pipelines/x/status")
    assert (reply.status, set(reply.headers["allow"].split(", "))) == (405, {"GET", "HEAD"})


def test_a_body_that_is_too_large_or_of_another_type(served: Served) -> None:
    assert served.ask("POST", "/pipelines", b" " * (BODY_BYTES + 1)).status == 413
    reply = served.ask("POST", "/pipelines", {"file": "/a"}, headers={"Content-Type": "text/plain"})
    assert reply.status == 415


def test_options_of_a_plug_in_are_checked(served: Served) -> None:
    """Every error with its option, and what each may be."""
    found = served.client.validate("rate", {"rowsPerSecond": "x", "nothing": 1})
    assert (found.kind, found.error_count > 0) == ("source", True)
    good = served.client.validate("jobpipe", {"topic": "rows", "spool.on_full": "explode"}, kind="sink")
    by_name = {each.name: each for each in good.configs}
    assert by_name["topic"].required
    assert by_name["topic"].errors == ()
    assert good.error_count == 1
    assert by_name["spool.on_full"].errors
    assert by_name["spool.on_full"].recommended == ("block", "drop_oldest")
    assert served.client.validate("console", {}).error_count == 0


def test_the_graph_of_all_pipelines(served: Served) -> None:
    """Topics join pipelines; a submission that cannot be read here any more is named."""
    client = served.client
    client.submit(served.submission())
    client.submit(
        served.submission(
            "other", late={"source": {"type": "jobpipe", "subscribe": "flights-rows"}, "sink": {"type": "console"}}
        )
    )
    graph = client.graph()
    (topic,) = [each for each in graph.topics if each.name == "flights-rows"]
    assert topic.publishers == ("flights/publish",)
    assert topic.readers == ("flights/report", "other/late")
    assert {(job.pipeline, job.name) for job in graph.jobs} >= {("flights", "publish"), ("other", "late")}
    broken = served.submission("gone", bad={"source": {"type": "removed"}, "sink": {"type": "console"}})
    served.control.submit(broken)
    assert [each.name for each in client.graph().broken] == ["gone"]


def test_the_graph_of_a_pipeline_that_was_deleted_and_submitted(served: Served) -> None:
    """Its versions begin again with 1."""
    client = served.client
    for job in ("first", "second"):
        client.submit(served.submission(**{job: {"source": {"type": "rate"}, "sink": {"type": "console"}}}))
        assert job in {each.name for each in client.graph().jobs}
        client.stop("flights")
        client.delete("flights")


def test_a_core_that_blocks_blocks_no_other_request_for_ever(served: Served) -> None:
    """Threads are bounded; those above are refused, and /health, /openapi.json and refusals go on."""
    served.control.blocks = threading.Event()
    statuses: list[int] = []
    threads = [
        threading.Thread(target=lambda: statuses.append(served.ask("GET", "/pipelines").status))
        for _ in range(WAITING + 3)
    ]
    for thread in threads:
        thread.start()
    until(lambda: len(statuses) >= 3)
    assert served.ask("GET", "/openapi.json").status == 200
    served.control.blocks.set()
    for thread in threads:
        thread.join(DEADLINE)
    assert sorted(statuses) == [200] * WAITING + [503] * 3


RANGE = "?lowerBoundary=7&upperBoundary=9"


def test_the_document_has_the_routes(served: Served) -> None:
    document = served.ask("GET", "/openapi.json").json
    found = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
    assert found == {(route.method, route.path) for route in ROUTES}
    for path, methods in document["paths"].items():
        for each in methods.values():
            named = [part["name"] for part in each["parameters"] if part["in"] == "path"]
            assert named == re.findall(r"\{(\w+)\}", path)
            assert each["summary"]
    ids = [each["operationId"] for methods in document["paths"].values() for each in methods.values()]
    assert len(set(ids)) == len(ids)


def test_replies_are_as_the_document_says(served: Served) -> None:
    """Every route that has a reply is asked, and its schema holds; errors too."""
    document = served.ask("GET", "/openapi.json").json
    served.control.submit(served.submission())
    body = {"file": str(served.folder / "p.yaml"), "folder": str(served.folder), "tree": served.submission().tree}
    bodies = {
        "submit": body,
        "plan": body,
        "put-config": body,
        "validate-options": {"config": {"rowsPerSecond": "x"}},
        "start-run": {"lowerBoundary": 7, "upperBoundary": "9"},
        "backfill": {"from": "2026-11-21T00:00:00Z", "to": "2026-11-22T00:00:00+01:00"},
        "skip-range": {"from": "2026-11-21T00:00:00Z", "to": "2026-11-22T00:00:00+01:00"},
        "move-subscription": {"to": 8, "expected": position_text(at(7))},
        "undo-move": {"number": 1, "expected": position_text(at(8))},
    }
    served.control.schedule_views[("flights", "report")] = SCHEDULE
    values = {"pipeline": "flights", "job": "report", "run": "run-1", "type": "rate", "version": "1"}
    served.control.letters.jobs.append(LetterJob("flights", "report", DEAD))
    values |= {"topic": "flights", "subscription": "flights.report"}
    put_ledger(served)
    asked = 0
    for route in sorted(ROUTES, key=lambda route: (route.method == "DELETE", route.name == "find-run")):
        if route.name in ("events", "metrics"):  # no JSON
            continue
        if route.method == "DELETE":
            served.control.stop("flights")
        query = {"find-run": RANGE, "plan-move": "?to=latest"}.get(route.name, "")
        topic = {"topic": DEAD} if "dead-letters" in route.path else {}
        reply = served.ask(route.method, route.path.format(**values | topic) + query, bodies.get(route.name))
        assert reply.status == route.status, (route.name, reply.body)
        about = document["paths"][route.path][route.method.lower()]["responses"]
        if route.reply is None:
            assert reply.body == b""
            continue
        schema = about[str(route.status)]["content"]["application/json"]["schema"]
        jsonschema.validate(reply.json, {**schema, "components": document["components"]})
        asked += 1
    assert asked >= 39
    expanded = served.ask("GET", "/nothing").json
    schema = document["paths"]["/"]["get"]["responses"]["404"]["content"]["application/problem+json"]["schema"]
    jsonschema.validate(expanded, {**schema, "components": document["components"]})


def put_ledger(served: Served) -> None:
    """Let subscription flights.report of topic flights have lost a row."""
    found = RowDifference(first=4, end=5, published=10, read=9, found=1_795_943_642.0, reason="counted")
    counts = HopCounts(committed=10, read=9, lost=1, differences=1, newest=found)
    line = subscription_status("flights.report", rows=3, position=5, counts=counts)
    status = topic_status("flights", subscriptions=(line, subscription_status("another")))
    served.control.topics = TopicsSnapshot({"flights": status, "silent": LinkBroken("refused")}, 0.0)
    minutes = (LedgerMinute(29_932_394, 4, 6, 13),)
    hop = HopLedger(
        name="flights.report", position=5, counts=counts, minutes=(HopMinute(13, 10, 9),), differences=(found,)
    )
    served.control.ledgers["flights"] = LedgerReply(topic="flights", at=1.0, minutes=minutes, hops=(hop,))


def test_the_ledger_of_a_topic(served: Served) -> None:
    """A viewer may ask for it, as for the status; the shape is that of the command line."""
    put_ledger(served)
    reply = served.ask("GET", "/topics/flights/ledger", token=served.view)
    assert [(hop["subscription"], hop["state"]) for hop in reply.json] == [
        ("another", "no account"),
        ("flights.report", "different"),
    ]
    assert ("ledger", "flights", 60, None) in served.control.calls
    (hop,) = served.ask("GET", "/topics/flights/ledger?minutes=5&subscription=flights.report").json
    assert ("ledger", "flights", 5, "flights.report") in served.control.calls
    assert (hop["published"], hop["read"], hop["committed"], hop["lost"], hop["open"]) == (10, 9, 10, 1, 3)
    assert hop["differences"][0]["said"].startswith("offset 4: 9 rows read of 10 published")
    assert [(each["minute"], each["state"]) for each in hop["minutes"]] == [(1_795_943_640, "different")]
    for path, status in (
        ("/topics/none/ledger", 404),
        ("/topics/flights/ledger?subscription=none", 404),
        ("/topics/flights/ledger?minutes=0", 400),
        ("/topics/silent/ledger", 503),
    ):
        assert served.ask("GET", path).status == status, path


def test_a_subscription_is_moved_and_back(served: Served) -> None:
    """As planned; a viewer may plan, and neither move nor undo."""
    client, viewer, topic = served.client, served.viewer, served.control.topic
    plan = viewer.plan_move("flights", "flights.report", "latest")
    assert (plan.before, plan.to, plan.rows) == (7, 20, 1300)
    with pytest.raises(NotAuthorized, match="needs the right operate"):
        viewer.move("flights", "flights.report", plan.to, expected=plan.at)
    assert topic.places["flights.report"] == at(7)
    move = client.move("flights", "flights.report", plan.to, expected=plan.at)
    assert (move.before, move.to, move.by) == (7, 20, "token")
    with pytest.raises(ControlConflict, match="the plan saw it at offset 7"):
        client.move("flights", "flights.report", 0, expected=plan.at)
    undo = viewer.plan_undo("flights", "flights.report")
    assert undo.undoes == move
    with pytest.raises(NotAuthorized):
        viewer.undo_move("flights", "flights.report", number=move.number, expected=undo.at)
    with pytest.raises(ControlConflict, match="another move"):
        client.undo_move("flights", "flights.report", number=move.number + 1, expected=undo.at)
    assert topic.places["flights.report"] == at(20)
    assert client.undo_move("flights", "flights.report", number=move.number, expected=undo.at).to == 7
    assert topic.places["flights.report"] == at(7)


@pytest.mark.parametrize(
    ("topic", "name", "to", "status"),
    [
        ("flights", "flights.report", 8, 200),
        ("flights", "flights.report", 21, 409),
        ("flights", "flights.report", "soon", 400),
        ("flights", "flights.report", "", 400),
        ("flights", "other", 8, 404),
        ("others", "flights.report", 8, 404),
        ("..%2Fx", "flights.report", 8, 404),
    ],
)
def test_positions_that_are_not_there(served: Served, topic: str, name: str, to: Any, status: int) -> None:
    reply = served.ask("GET", f"/topics/{topic}/subscriptions/{name}/position/plan?to={to}")
    assert reply.status == status, reply.body


def test_dead_letters_and_a_redrive(served: Served) -> None:
    """A viewer may look, and not redrive; a topic of no job is none."""
    client, viewer, bus = served.client, served.viewer, served.control.letters
    assert viewer.dead_letters() == ()
    bus.jobs.append(LetterJob("flights", "report", DEAD))
    (found,) = viewer.dead_letters()
    assert viewer.dead_letters_of(DEAD) == found
    assert found.counts is not None
    assert found.counts.letters == 3
    assert viewer.dead_letter_rows(DEAD, limit=1).rows == (ROW,)
    assert viewer.plan_redrive(DEAD).published == {"flights": 2}
    with pytest.raises(NotAuthorized, match="needs the right operate"):
        viewer.redrive(DEAD)
    assert bus.asked["redrive"] == 0
    assert client.redrive(DEAD).by == "token"
    until(lambda: (view := client.dead_letters_of(DEAD).redrive) is not None and view.state is RedriveState.DONE)
    assert served.ask("GET", "/dead-letters/orders").status == 404
    assert served.ask("GET", f"/dead-letters/{DEAD}/rows?limit=1001").status == 400


def test_metrics_for_a_scraper(served: Served) -> None:
    """In the format that it reads, with the token that may only look, and not without."""
    served.control.submit(served.submission())
    accept = {"accept": "application/openmetrics-text"}
    opened = served.ask("GET", "/metrics", token=served.view, headers=accept)
    assert (opened.status, opened.headers["content-type"].partition(";")[0]) == (200, "application/openmetrics-text")
    families = {family.name: family for family in text_string_to_metric_families(opened.body.decode())}
    states = {sample.labels["job_name"] for sample in families["jobpipe_job_state"].samples if sample.value}
    assert states == {"publish", "report"}
    plain = served.ask("GET", "/metrics")
    assert (plain.status, plain.headers["content-type"].partition(";")[0]) == (200, "text/plain")
    assert b"# TYPE jobpipe_job_attempts_total counter" in plain.body
    assert served.ask("GET", "/metrics", token=None).status == 401


def lines_of(response: http.client.HTTPResponse, count: int) -> list[dict[str, Any]]:
    """Return so many events of a stream."""
    found: list[dict[str, Any]] = []
    while len(found) < count:
        line = response.readline()
        assert line, "the stream has ended"
        if line.startswith(b"data:"):
            found.append(json.loads(line[5:]))
    return found


def test_events_go_on_where_a_client_stopped(served: Served) -> None:
    """By Last-Event-ID; what a name contains makes no line of the stream."""
    served.control.tell("state", state=JobState.RUNNING)
    served.control.tell("x\ndata: forged\n\n", detail="<script>")
    served.control.tell("state", state=JobState.FAILED)
    connection = http.client.HTTPConnection(served.host, timeout=DEADLINE)
    headers = {"Authorization": f"Bearer {served.address.token}", "Last-Event-ID": "1"}
    connection.request("GET", "/events?after=0", headers=headers)
    response = connection.getresponse()
    assert response.getheader("content-type", "").startswith("text/event-stream")
    found = lines_of(response, 2)
    assert [each["id"] for each in found] == [2, 3]
    assert found[0]["what"] == "x\ndata: forged\n\n"
    served.control.tell("later")
    assert lines_of(response, 1)[0]["what"] == "later"
    connection.close()
    stream = served.client.events(3)
    assert next(stream).what == "later"
    stream.close()


def test_streams_are_bounded_and_their_places_come_back(served: Served) -> None:
    """The server of these tests has two places."""
    open_streams = [served.client.events() for _ in range(2)]
    served.control.tell("first")
    for stream in open_streams:
        assert next(stream).what == "first"
    refused = served.ask("GET", "/events")
    assert (refused.status, refused.headers["retry-after"]) == (503, "1")
    for stream in open_streams:
        stream.close()
    until(lambda: has_place(served))


def has_place(served: Served) -> bool:
    """Whether one more client may follow events."""
    stream = served.client.events()
    try:
        return next(stream).what == "first"
    except WaitTimeout:
        return False
    finally:
        stream.close()
