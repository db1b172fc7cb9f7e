"""``jobpipe topics serve``: a spool without its job."""

from __future__ import annotations

import json
import shlex
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest

from jobpipe.admin import Admin
from jobpipe.config import Config, load
from jobpipe.publishing.coordinator_launcher import end_coordinators
from jobpipe.publishing.topic_publisher import Publisher
from tests.cli.buskit import numbers, publish, until_gone
from tests.cli.conftest import DEADLINE, Program, Run
from tests.docs.pages import block

pytestmark = pytest.mark.zookeeper

Start = Callable[..., Program]


@pytest.fixture
def publisher(config: Config) -> Publisher:
    """Publishes ``orders``; three batches of four rows are there."""
    made = Publisher("orders", config=config, name="shop", parallelism=2)
    publish(made, 0, 1, 2)
    return made


@pytest.fixture
def orphaned(publisher: Publisher, config: Config) -> Publisher:
    """The publisher is gone, its coordinator too; the spool stays."""
    publisher.close()
    end_coordinators()
    until_gone(config, "orders")
    return publisher


@pytest.mark.slow
def test_serve_refuses_beside_a_publisher(run: Run, start: Start, file: str, publisher: Publisher) -> None:
    code, out, err = start("topics", "serve", "orders", file=file).end()
    assert (code, out) == (1, "")
    assert "'shop'" in err
    assert publisher.status()["publishing"] is True


def words(page: str, name: str) -> list[list[str]]:
    """Return the words of each line of a page's block, without `jobpipe`."""
    return [shlex.split(line, comments=True)[1:] for line in block(page, name).splitlines()]


@pytest.mark.slow
def test_the_page(run: Run, start: Start, file: str, orphaned: Publisher) -> None:
    """docs/retention.md: a topic that is not served is listed, served again, and would be removed."""
    listing, serving, removing = words("docs/retention.md", "keep")
    assert "orders" in run(*listing, file=file).stdout
    assert run(*removing, file=file).exit_code == 0
    program = start(*serving, file=file)
    assert program.line().startswith("serving orders at ")
    refused = run(*removing, file=file)
    assert (refused.exit_code, refused.stdout) == (1, "")
    program.process.send_signal(signal.SIGTERM)
    assert program.end()[0] == 0


@pytest.mark.slow
def test_the_page_of_looking(run: Run, file: str, publisher: Publisher) -> None:
    """docs/inspect.md: each command shows something."""
    *topics, doctor = words("docs/inspect.md", "inspect")
    assert [run(*line, file=file).exit_code for line in topics] == [0] * 5
    assert len(run(*topics[-1], "--json", file=file).stdout.splitlines()) == 5
    assert "registry" in run(*doctor, file=file).stdout


def test_serve_refuses_names_that_leave_the_spool(run: Run, file: str) -> None:
    assert run("topics", "serve", "../orders", file=file).exit_code == 2


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_serve_until_told_to_stop(
    run: Run, start: Start, file: str, config: Config, orphaned: Publisher, number: signal.Signals
) -> None:
    program = start("topics", "serve", "orders", file=file)
    assert program.line().startswith("serving orders at ")
    status = json.loads(run("topics", "describe", "orders", "--json", file=file).stdout)
    assert (status["rows"], status["head"], status["publishing"]) == (12, 3, False)
    assert status["parallelism"] == 2
    result = run(
        "topics", "tail", "orders", "--name", "me", "--from", "earliest", "--timeout", "0", "--json", file=file
    )
    assert sorted(numbers(result.stdout)) == list(range(12))
    program.process.send_signal(number)
    code, out, err = program.end()
    assert (code, out, err) == (0, "stopped\n", "")
    until_gone(config, "orders")
    again = Publisher("orders", config=config)
    (line,) = again.status()["subscriptions"]
    assert (line["name"], line["position"]) == ("me", 3)
    again.close()


@pytest.mark.slow
def test_tail_reads_the_spool_of_a_publisher_that_is_gone(
    run: Run, start: Start, file: str, config: Config, publisher: Publisher
) -> None:
    code, out, err = start("topics", "tail", "orders", "--from", "earliest", "--limit", "12", "--json", file=file).end()
    assert (code, sorted(numbers(out)), err) == (0, list(range(12)), "")  # it is served by its publisher
    publisher.close()
    end_coordinators()
    until_gone(config, "orders")
    code, out, err = start("topics", "tail", "orders", "--from", "earliest", "--json", file=file).end()
    assert (code, sorted(numbers(out))) == (0, list(range(12)))
    assert err.startswith("no publisher serves orders: reading its spool in ")
    until_gone(config, "orders")


@pytest.mark.slow
def test_tail_names_the_topic_with_the_prefix(run: Run, file: str, config: Config) -> None:
    made = Publisher("dev.orders", config=config, name="shop", parallelism=2)
    publish(made, 0)
    assert numbers(
        run("topics", "tail", "dev.orders", "--from", "earliest", "--limit", "4", "--json", file=file).stdout
    )
    found = run("topics", "tail", "orders", "--from", "earliest", "--timeout", "0", file=file)
    assert "no topic orders here, but dev.orders: jobpipe topics tail dev.orders --from earliest" in found.stderr
    made.close()


@pytest.mark.slow
def test_serve_gives_way_to_a_publisher(start: Start, file: str, config: Config, orphaned: Publisher) -> None:
    program = start("topics", "serve", "orders", file=file)
    assert program.line().startswith("serving orders at ")
    again = Publisher("orders", config=config, parallelism=2)
    publish(again, 3)
    assert again.status()["rows"] == 16
    code, out, err = program.end()
    assert (code, len(out.splitlines()), err) == (0, 1, "")
    again.close()


@pytest.mark.slow
def test_serve_removes_nothing(
    run: Run, start: Start, write: Callable[..., str], settings_of_test: dict[str, str], orphaned: Publisher
) -> None:
    """Only the publisher knows who must have read: its retention does not hold for a stand-in."""
    retention: dict[str, Any] = {"jobpipe.retention.time": "0s", "jobpipe.retention.bytes": "0"}
    retention["jobpipe.retention.ack_grace"] = "0s"
    file = write({**settings_of_test, **retention})
    program = start("topics", "serve", "orders", file=file)
    assert program.line().startswith("serving orders at ")
    deadline = time.monotonic() + DEADLINE
    with Admin(load(file, environ={})) as admin:
        began = admin.status("orders").uptime
        while (status := admin.status("orders")).uptime < began + 2.0:  # retention was looked at
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert (status.batches, status.tail) == (3, 0)
