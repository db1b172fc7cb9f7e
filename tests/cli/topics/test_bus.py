"""topics, describe and tail against real publishers."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from jobpipe.config import Config, load
from jobpipe.errors import JobpipeError
from jobpipe.net.tls.certificates import init_ca, issue
from jobpipe.publishing.coordinator_launcher import end_coordinators
from jobpipe.publishing.topic_publisher import Publisher
from jobpipe.subscribing.python_client import subscribe
from tests.cli.buskit import numbers, publish, until_gone
from tests.cli.conftest import DEADLINE, Program, Run
from tests.docs.troubleshooting import on_page

pytestmark = pytest.mark.zookeeper

Start = Callable[..., Program]
STATUS_KEYS = {
    *("topic", "log", "epoch", "publisher", "endpoint", "data", "parallelism", "head", "tail", "rows", "bytes"),
    *("batches", "stored_bytes", "ended", "waiting", "subscriptions", "publishing", "publisher_gone", "served_for"),
}
TOPIC_KEYS = {"topic", "head", "publishing", "publisher_gone", "served_for"}  # of a listing of subscriptions
SUBSCRIPTION_KEYS = {
    *("name", "state", "since", "position", "epoch", "lag", "reconnects", "last_seen", "required", "where"),
}


@pytest.fixture
def config(module_settings: dict[str, str]) -> Config:
    return load(overrides=module_settings, environ={})


@pytest.fixture
def file(module_settings: dict[str, str], write: Callable[..., str]) -> str:
    return write(module_settings)


@pytest.fixture
def topic() -> str:
    return f"orders-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def publisher(config: Config, topic: str) -> Iterator[Publisher]:
    """Publishes ``topic``; three batches of four rows are there."""
    made = Publisher(topic, config=config, name="shop", parallelism=2)
    publish(made, 0, 1, 2)
    yield made
    with contextlib.suppress(JobpipeError):  # a test may have killed its coordinator
        made.close()


# -- topics, describe ----------------------------------------------------------------------------------------------


def test_no_topics(run: Run, write: Callable[..., str], settings_of_test: dict[str, str]) -> None:
    file = write(settings_of_test)
    result = run("topics", file=file)
    assert (result.exit_code, result.stdout) == (0, "")
    assert json.loads(run("topics", "--json", file=file).stdout) == []


def test_topics(run: Run, file: str, topic: str, publisher: Publisher) -> None:
    (line,) = (line for line in json.loads(run("topics", "--json", file=file).stdout) if line["topic"] == topic)
    place = {"topic", "served", "endpoint", "data", "parallelism", "epoch", "instance", "ssl"}
    assert set(line) == place | {"publisher", "publishing", "publisher_gone", "served_for"}
    assert (line["publisher"], line["publishing"], line["publisher_gone"]) == ("shop", True, None)
    assert (line["topic"], line["served"], line["parallelism"], line["ssl"]) == (topic, True, 2, True)
    header, *rows = run("topics", file=file).stdout.splitlines()
    assert header.split()[:2] == ["TOPIC", "SERVED"]
    assert [topic, "yes", line["endpoint"]] in [row.split()[:3] for row in rows]


def test_describe(run: Run, file: str, topic: str, publisher: Publisher) -> None:
    run("topics", "tail", topic, "--name", "billing", "--from", "earliest", "--timeout", "0", file=file)
    publish(publisher, 3)
    status = json.loads(run("topics", "describe", topic, "--json", file=file).stdout)
    assert set(status) >= STATUS_KEYS
    assert (status["topic"], status["publisher"], status["parallelism"]) == (topic, "shop", 2)
    assert (status["head"], status["tail"], status["rows"], status["ended"]) == (4, 0, 16, False)
    (line,) = status["subscriptions"]
    assert set(line) >= SUBSCRIPTION_KEYS
    assert (line["name"], line["position"], line["lag"]["batches"], line["lag"]["rows"]) == (
        "billing",
        3,
        1,
        4,
    )
    text = run("topics", "describe", topic, file=file).stdout
    assert "published last  publisher query, batch 3, offset 4" in text  # U2
    facts, *_, table = text.split("\n\n")
    assert dict(line.split("  ", 1) for line in facts.splitlines())["topic"].strip() == topic
    position = rf"3 \(epoch {publisher.epoch}\)"
    assert re.fullmatch(
        rf"billing +absent for [\d.]+ s +{position} +1 +4 +[\d.]+ B .* 0 +[\d.]+ s ago .*", table.splitlines()[1]
    )


def test_lag(run: Run, file: str, topic: str, publisher: Publisher) -> None:
    run("topics", "tail", topic, "--name", "billing", "--from", "earliest", "--timeout", "0", file=file)
    publish(publisher, 3)
    (line,) = json.loads(run("topics", "lag", topic, "--json", file=file).stdout)
    assert (line["topic"], line["name"], line["state"], line["position"], line["head"]) == (
        *(topic, "billing", "absent"),
        *(3, 4),
    )
    assert (line["lag"]["batches"], line["lag"]["rows"]) == (1, 4)
    assert line["lag"]["bytes"] > 0
    assert set(line) == TOPIC_KEYS | SUBSCRIPTION_KEYS
    header, row = run("topics", "lag", topic, file=file).stdout.splitlines()
    assert header.split()[:3] == ["TOPIC", "SUBSCRIPTION", "STATE"]
    assert re.search(rf" 3 \(epoch {publisher.epoch}\) +4 +1 +4 ", row)  # position, head, batches, rows


def test_lag_of_a_live_reader(run: Run, file: str, topic: str, publisher: Publisher, config: Config) -> None:
    with subscribe(topic, name="billing", starting="earliest", config=config) as live:
        live.position()
        (line,) = json.loads(run("topics", "lag", topic, "--json", file=file).stdout)
        assert (line["state"], line["reconnects"], line["where"]["pid"]) == ("connected", 0, os.getpid())
        assert "connected for " in run("topics", "lag", topic, file=file).stdout


def test_subscriptions_list(run: Run, file: str, topic: str, publisher: Publisher) -> None:
    none = run("subscriptions", "list", topic, file=file)
    assert (none.exit_code, none.stdout) == (0, "no subscriptions\n")
    for name in ("billing", "audit"):
        run("topics", "tail", topic, "--name", name, "--from", "earliest", "--timeout", "0", file=file)
    lines = json.loads(run("subscriptions", "list", topic, "--json", file=file).stdout)
    assert {line["name"]: line["position"] for line in lines} == {"billing": 3, "audit": 3}
    assert all(set(line) == TOPIC_KEYS | SUBSCRIPTION_KEYS for line in lines)
    header, *rows = run("subscriptions", "list", file=file).stdout.splitlines()
    assert header.split()[:4] == ["TOPIC", "SUBSCRIPTION", "STATE", "POSITION"]
    assert {tuple(row.split()[:2]) for row in rows} >= {(topic, "billing"), (topic, "audit")}


# -- nobody publishes ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [["topics", "describe"], ["topics", "lag"], ["subscriptions", "list"]])
def test_a_topic_never_heard_of(run: Run, file: str, config: Config, publisher: Publisher, command: list[str]) -> None:
    result = run(*command, "nosuch", file=file)
    assert (result.exit_code, result.stdout) == (1, "")
    assert f"nobody has ever published it under {config.namespace}" in result.stderr


@pytest.mark.slow
def test_a_topic_whose_publisher_is_gone(run: Run, file: str, topic: str, config: Config, publisher: Publisher) -> None:
    """The registry remembers its epoch; the message says how its spool can be read."""
    publisher.close()
    end_coordinators()
    until_gone(config, topic)
    for command in (["topics", "describe", topic], ["topics", "lag", topic]):
        result = run(*command, file=file)
        assert (result.exit_code, result.stdout) == (1, "")
        for part in (
            f"the last one had epoch {publisher.epoch}",
            f"`jobpipe topics serve {topic}`",
            str(config.spool_dir / topic),
        ):
            assert part in result.stderr
    assert (
        f"the last one had epoch {publisher.epoch}" in run("topics", "tail", topic, "--timeout", "0", file=file).stderr
    )


@pytest.mark.slow
def test_a_closed_topic_that_is_served(
    run: Run, start: Start, file: str, topic: str, config: Config, publisher: Publisher
) -> None:
    """Its coordinator goes on until all have read: every command says that nobody publishes, and who did last."""
    run("topics", "tail", topic, "--name", "billing", "--from", "earliest", "--limit", "1", file=file)
    publisher.close()
    gone = f"no publisher now; the last one was shop, epoch {publisher.epoch}"
    assert gone in run("topics", "describe", topic, file=file).stdout
    for command in (["topics", "lag", topic], ["subscriptions", "list", topic]):
        result = run(*command, file=file)
        assert gone in result.stderr
        assert "billing" in result.stdout
    program = start("topics", "tail", topic, "--from", "earliest", "--limit", "12", "--json", file=file)
    code, out, err = program.end()
    assert (code, len(numbers(out))) == (0, 12)
    assert gone in err


def test_an_ended_topic(run: Run, file: str, topic: str, publisher: Publisher) -> None:
    run("topics", "tail", topic, "--name", "billing", "--from", "earliest", "--limit", "1", file=file)
    publisher.close(final=True)
    assert "none, the topic has ended; the last one was shop" in run("topics", "describe", topic, file=file).stdout


def test_seek(run: Run, file: str, topic: str, publisher: Publisher) -> None:
    tail = ("tail", topic, "--name", "billing", "--from", "committed", "--timeout", "0", "--json")
    run("topics", "tail", topic, "--name", "billing", "--from", "earliest", "--timeout", "0", file=file)
    dry = run("subscriptions", "seek", topic, "billing", "--to", "1", "--dry-run", "--json", file=file)
    assert json.loads(dry.stdout) == {"name": "billing", "from": 3, "to": 1, "dry_run": True}
    assert numbers(run(*tail, file=file).stdout) == []
    assert run("subscriptions", "seek", topic, "billing", "--to", "1", file=file).exit_code == 0
    assert sorted(numbers(run(*tail, file=file).stdout)) == list(range(4, 12))
    beyond = run("subscriptions", "seek", topic, "billing", "--to", "9", file=file)
    assert (beyond.exit_code, beyond.stdout) == (1, "")
    assert run("subscriptions", "seek", topic, "billing", "--to", "2020-01-01T00:00:00Z", file=file).exit_code == 0
    assert sorted(numbers(run(*tail, file=file).stdout)) == list(range(12))
    later = run("subscriptions", "seek", topic, "billing", "--to", "2999-01-01T00:00:00Z", file=file)
    assert (later.exit_code, later.stdout) == (2, "")
    assert "nothing was published at 2999-01-01T00:00:00" in later.stderr
    for wrong in ("first", "-1", "2020-01-01T00:00:00", "committed"):
        assert run("subscriptions", "seek", topic, "billing", "--to", wrong, file=file).exit_code == 2


def test_tail_from_an_offset_and_from_a_time(run: Run, file: str, topic: str, publisher: Publisher) -> None:
    """With a subscription and without: both begin alike."""
    for name in ([], ["--name", "billing"]):
        tail = ("tail", topic, *name, "--timeout", "0", "--json", "--from")
        assert sorted(numbers(run(*tail, "2", file=file).stdout)) == list(range(8, 12))
        assert sorted(numbers(run(*tail, "2020-01-01T01:00:00+01:00", file=file).stdout)) == list(range(12))
        assert run(*tail, "7", file=file).exit_code == 1
        assert run(*tail, "2999-01-01T00:00:00Z", file=file).exit_code == 2
        assert run(*tail, "newest", file=file).exit_code == 2


def test_drop(run: Run, file: str, topic: str, publisher: Publisher) -> None:
    run("topics", "tail", topic, "--name", "billing", "--from", "earliest", "--timeout", "0", file=file)
    assert run("subscriptions", "drop", topic, "billing", "--dry-run", file=file).exit_code == 0
    assert len(publisher.status()["subscriptions"]) == 1
    assert run("subscriptions", "drop", topic, "billing", file=file).exit_code == 0
    assert publisher.status()["subscriptions"] == []
    assert run("subscriptions", "drop", topic, "billing", file=file).exit_code == 1


def test_a_live_subscription_is_not_moved(
    run: Run, file: str, topic: str, publisher: Publisher, config: Config
) -> None:
    with subscribe(topic, name="billing", starting="earliest", config=config) as live:
        live.position()
        for command in (["seek", topic, "billing", "--to", "latest"], ["drop", topic, "billing"]):
            result = run("subscriptions", *command, file=file)
            assert (result.exit_code, result.stdout) == (1, "")
            assert f"pid {os.getpid()}" in result.stderr
    assert publisher.status()["subscriptions"][0]["position"] == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [["topics", "describe", "nosuch"], ["topics", "tail", "nosuch", "--timeout", "0"], ["topics", "serve", "nosuch"]],
)
def test_a_topic_that_is_not_there_is_1(run: Run, file: str, publisher: Publisher, command: list[str]) -> None:
    result = run(*command, file=file)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "'nosuch'" in result.stderr


@pytest.mark.slow
def test_a_dead_coordinator_is_3(run: Run, file: str, topic: str, publisher: Publisher) -> None:
    """Its registration outlives it for the length of its session."""
    os.kill(publisher.coordinator.process.pid, signal.SIGKILL)
    publisher.coordinator.process.wait(DEADLINE)
    assert run("topics", "describe", topic, file=file).exit_code == 3


@pytest.mark.slow
@pytest.mark.parametrize("command", [["topics", "describe"], ["topics", "tail", "--timeout", "0"]])
def test_foreign_certificates_are_4(
    run: Run,
    write: Callable[..., str],
    module_settings: dict[str, str],
    topic: str,
    publisher: Publisher,
    tmp_path: Path,
    command: list[str],
) -> None:
    init_ca(tmp_path / "foreign")
    mine = issue(tmp_path / "foreign", "mallory")
    ssl = {"jobpipe.ssl.ca": str(mine.ca), "jobpipe.ssl.cert": str(mine.cert), "jobpipe.ssl.key": str(mine.key)}
    result = run(*command, topic, file=write({**module_settings, **ssl}))
    assert (result.exit_code, result.stdout) == (4, "")


# -- tail ----------------------------------------------------------------------------------------------------------


def test_tail_reads_batch_after_batch(run: Run, file: str, topic: str, publisher: Publisher) -> None:
    result = run("topics", "tail", topic, "--from", "earliest", "--timeout", "0", "--json", file=file)
    assert result.exit_code == 0
    assert numbers(result.stdout) == list(range(12))


def test_tail_as_table(run: Run, file: str, topic: str, publisher: Publisher) -> None:
    result = run("topics", "tail", topic, "--from", "earliest", "--timeout", "0", "--limit", "4", file=file)
    assert result.stdout.splitlines() == ["n  text", "0  a", "1  null", "2  c", "3  d"]


@pytest.mark.parametrize("limit", [1, 3, 4, 5, 12])
def test_tail_ends_at_the_limit(run: Run, file: str, topic: str, publisher: Publisher, limit: int) -> None:
    result = run("topics", "tail", topic, "--from", "earliest", "--limit", str(limit), "--json", file=file)
    assert numbers(result.stdout) == list(range(limit))


def test_tail_leaves_no_trace(run: Run, file: str, topic: str, publisher: Publisher) -> None:
    run("topics", "tail", topic, "--from", "earliest", "--limit", "5", file=file)
    assert json.loads(run("topics", "describe", topic, "--json", file=file).stdout)["subscriptions"] == []


@pytest.mark.slow
def test_tail_follows_to_the_end_mark(start: Start, file: str, topic: str, publisher: Publisher) -> None:
    program = start("topics", "tail", topic, "--from", "earliest", "--json", file=file)
    assert [json.loads(program.line())["n"] for _ in range(12)] == list(range(12))
    publish(publisher, 3)
    assert [json.loads(program.line())["n"] for _ in range(4)] == [12, 13, 14, 15]
    publisher.close(final=True)
    assert program.end() == (0, "", "")


def test_tail_of_what_comes(run: Run, file: str, topic: str, publisher: Publisher) -> None:
    """``latest`` is the default: nothing that is there already."""
    assert run("topics", "tail", topic, "--timeout", "0.2", file=file).stdout == ""


@pytest.mark.slow
def test_tail_follows_a_publisher_that_returns(
    start: Start, file: str, topic: str, config: Config, publisher: Publisher
) -> None:
    program = start("topics", "tail", topic, "--from", "earliest", "--json", file=file)
    assert [json.loads(program.line())["n"] for _ in range(12)] == list(range(12))
    publisher.close()
    end_coordinators()
    again = Publisher(topic, config=config, name="shop", parallelism=2)
    publish(again, 3)
    again.close(final=True)
    code, out, _ = program.end()
    assert (code, numbers(out)) == (0, [12, 13, 14, 15])


@pytest.mark.slow
def test_tail_waits_for_its_publisher(start: Start, file: str, config: Config, topic: str) -> None:
    program = start("topics", "tail", topic, "--from", "earliest", "--limit", "4", "--json", file=file)
    publisher = Publisher(topic, config=config, parallelism=2)
    publish(publisher, 0)
    assert numbers(program.end()[1]) == [0, 1, 2, 3]
    publisher.close()


@pytest.mark.slow
@pytest.mark.parametrize("options", [[], ["--name", "me"]])
def test_tail_says_what_it_waits_for(start: Start, file: str, config: Config, topic: str, options: list[str]) -> None:
    """On standard error, after two seconds; its rows are not disturbed."""
    program = start("topics", "tail", topic, "--from", "earliest", "--limit", "4", "--json", *options, file=file)
    assert program.process.stderr is not None
    notice = program.process.stderr.readline()
    on_page(notice, "topic '…': waiting")
    for part in (f"topic {topic!r}: waiting for a publisher", config.namespace, "jobpipe topics", "jobpipe doctor"):
        assert part in notice
    publisher = Publisher(topic, config=config, parallelism=2)
    publish(publisher, 0)
    code, out, err = program.end()
    assert (code, numbers(out), err) == (0, [0, 1, 2, 3], "")
    publisher.close()


def test_tail_with_a_name_is_a_subscription(run: Run, file: str, topic: str, publisher: Publisher) -> None:
    first = run("topics", "tail", topic, "--name", "me", "--from", "earliest", "--timeout", "0", "--json", file=file)
    assert len(numbers(first.stdout)) == 12
    publish(publisher, 3)
    second = run("topics", "tail", topic, "--name", "me", "--timeout", "0", "--json", file=file)
    assert numbers(second.stdout) == [12, 13, 14, 15]
    assert run("topics", "tail", topic, "--name", "me", "--timeout", "0", file=file).stdout == ""


@pytest.mark.slow
def test_tail_refuses_a_name_in_use(start: Start, run: Run, file: str, topic: str, publisher: Publisher) -> None:
    holder = start("topics", "tail", topic, "--name", "me", "--from", "earliest", file=file)
    assert holder.line() == "n  text\n"
    assert run("topics", "tail", topic, "--name", "me", "--timeout", "0", file=file).exit_code == 1


def test_committed_needs_a_name(run: Run, file: str) -> None:
    assert run("topics", "tail", "orders", "--from", "committed", file=file).exit_code == 2


@pytest.mark.slow
@pytest.mark.parametrize("options", [[], ["--name", "me"]])
def test_tail_ends_silently_with_its_reader(
    start: Start, file: str, topic: str, publisher: Publisher, options: list[str]
) -> None:
    """``jobpipe topics tail orders | head -1``, while nothing new comes."""
    program = start("topics", "tail", topic, "--from", "earliest", *options, file=file)
    assert program.line() == "n  text\n"
    program.out.close()
    assert program.process.wait(DEADLINE) == 0
    assert program.process.stderr is not None
    assert program.process.stderr.read() == ""


@pytest.mark.slow
@pytest.mark.parametrize("options", [[], ["--name", "me"]])
def test_ctrl_c_ends_tail(start: Start, file: str, topic: str, publisher: Publisher, options: list[str]) -> None:
    program = start("topics", "tail", topic, "--from", "earliest", *options, file=file)
    assert program.line() == "n  text\n"
    program.process.send_signal(signal.SIGINT)
    code, _, err = program.end()
    assert (code, err.strip()) == (130, "")
