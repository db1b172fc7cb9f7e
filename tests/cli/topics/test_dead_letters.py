"""``jobpipe dead-letters`` with real coordinators: listed, shown, and each row published again once."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml

from jobpipe.cli.common.row_filter import RowFilter
from jobpipe.config import Config
from jobpipe.publishing.coordinator_launcher import end_coordinators
from jobpipe.publishing.topic_publisher import Publisher
from tests.bus.kit import until
from tests.cli.conftest import DEADLINE, Run
from tests.cli.topics.test_bus import Start
from tests.docs.pages import block
from tests.docs.troubleshooting import on_page

pytestmark = pytest.mark.zookeeper

ORDERS = pa.schema([("id", pa.int64()), ("amount", pa.decimal128(10, 2))])
TEXTS = ("row", "error_class", "error_message", "stage", "pipeline", "job", "run", "topic", "file", "source_row")
LETTERS = pa.schema(
    [
        *((name, pa.string()) for name in TEXTS),
        ("offset", pa.int64()),
        ("partition", pa.int32()),
        ("row_number", pa.int64()),
        ("published_ms", pa.int64()),
        ("batch_id", pa.int64()),
        ("at", pa.timestamp("us", tz="UTC")),
    ]
)
DEAD = "shop.bills.dead-letters"
REDRIVE = ("dead-letters", "redrive", "--into", "orders")


def letter(number: int, **values: Any) -> dict[str, Any]:
    """Return the letter of an order."""
    row = {"id": number, "amount": f"{number}.50"}
    found = {"row": json.dumps(row), "error_class": "ValueError", "error_message": "bad", "stage": "python"}
    found |= {
        "topic": "orders",
        "offset": 0,
        "partition": number % 2,
        "row_number": number,
        "published_ms": 1000,
        "source_row": json.dumps(row),
    }
    return {**found, "at": datetime(2026, 11, 1, 10, number, tzinfo=UTC), **values}


def send(publisher: Publisher, batch_id: int, *letters: dict[str, Any]) -> None:
    """Publish letters as one batch."""
    publisher.seal("job", batch_id, [pa.Table.from_pylist(list(letters), LETTERS)], run_id=str(publisher.epoch))


def orders(ids: list[int]) -> pa.Table:
    return pa.Table.from_pylist([{"id": each, "amount": None} for each in ids], ORDERS)


@pytest.fixture
def source(config: Config) -> Iterator[Publisher]:
    """The topic that the job reads, with a batch of orders in two partitions."""
    publisher = Publisher("orders", config=config, name="shop", parallelism=2)
    publisher.seal("shop", 0, [orders([100]), orders([])], run_id="r")
    yield publisher
    publisher.close()


@pytest.fixture
def dead(config: Config, source: Publisher) -> Iterator[Publisher]:
    """Two batches of letters, one of which came from no topic."""
    publisher = Publisher(DEAD, config=config, name="bills")
    send(publisher, 0, letter(1), letter(2))
    send(publisher, 1, letter(3, error_class="KeyError"), letter(4, topic=None, source_row=None, file="file:/in/a.csv"))
    yield publisher
    publisher.close()


def rows(run: Run, file: str, topic: str = "orders") -> list[tuple[int, str | None]]:
    """Return the rows of a topic."""
    result = run("topics", "tail", topic, "--from", "earliest", "--timeout", "0", "--json", file=file)
    assert result.exit_code == 0, result.output
    return [(row["id"], row["amount"]) for row in map(json.loads, result.stdout.splitlines())]


AGAIN = [(100, None), (2, "2.50"), (1, "1.50"), (3, "3.50")]  # by partition


def test_redrive_once(run: Run, file: str, source: Publisher, dead: Publisher) -> None:
    """Next to the publisher, which goes on; the second time nothing is published."""
    first = run(*REDRIVE, "shop/bills", "--json", file=file)
    assert first.exit_code == 1, first.output
    told = json.loads(first.stdout)
    assert (told["published"], told["already"], [each["count"] for each in told["left"]]) == ({"orders": 3}, 0, [1])
    assert sorted(rows(run, file), key=str) == sorted(AGAIN, key=str)
    source.seal("shop", 1, [orders([101]), orders([])], run_id="r")
    second = run(*REDRIVE, "--topic", DEAD, "--skip-left", file=file)
    assert second.exit_code == 0
    assert second.stdout == "published nothing\n3 rows were published again before\n"
    assert "left 1 letter (1:1): its row came from a file" in second.stderr
    assert sorted(rows(run, file), key=str) == sorted([*AGAIN, (101, None)], key=str)


def test_redrive_of_what_is_new(run: Run, file: str, dead: Publisher) -> None:
    assert run(*REDRIVE, "shop/bills", "--to", "1", file=file).exit_code == 0
    assert sorted(rows(run, file))[:2] == [(1, "1.50"), (2, "2.50")]
    send(dead, 2, letter(5))
    result = run(*REDRIVE, "shop/bills", "--skip-left", "--json", file=file)
    assert json.loads(result.stdout)["published"] == {"orders": 2}
    assert sorted(each for each, _ in rows(run, file)) == [1, 2, 3, 5, 100]


def test_a_dry_run(run: Run, file: str, dead: Publisher) -> None:
    result = run(*REDRIVE, "shop/bills", "--dry-run", "--skip-left", file=file)
    assert result.stdout == "would publish 3 rows to orders again\n"
    assert rows(run, file) == [(100, None)]


def test_the_page(run: Run, file: str, dead: Publisher, monkeypatch: pytest.MonkeyPatch) -> None:
    """tests/spark evaluates its condition."""
    asked = []

    def numbers(self: RowFilter, batch: pa.RecordBatch) -> list[int]:
        asked.append(self._condition)
        return [number for number, row in enumerate(batch.to_pylist()) if row["error_class"] == "KeyError"]

    monkeypatch.setattr(RowFilter, "numbers", numbers)
    outputs = []
    for line in block("docs/dead-letters.md", "redrive").splitlines():
        result = run(*shlex.split(line, comments=True)[1:], file=file)
        assert result.exit_code == ("--dry-run" in line), result.output  # where one letter is left
        outputs.append(result.stdout.splitlines())
    assert [len(lines) for lines in outputs] == [3, 5, 1, 1]
    assert outputs[2:] == [["would publish 3 rows to orders again"], ["published 1 row to orders again"]]
    assert len(asked) == 2


def test_list(run: Run, file: str, dead: Publisher) -> None:
    result = run("dead-letters", "list", "--json", file=file)
    told = {(each["stage"], each["error_class"]): each for each in json.loads(result.stdout)}
    assert {key: (each["letters"], each["redriven"], each["left"]) for key, each in told.items()} == {
        ("python", "KeyError"): (1, 0, 0),
        ("python", "ValueError"): (3, 0, 1),
    }
    assert told["python", "ValueError"]["first"] == "2026-11-01T10:01:00+00:00"
    assert told["python", "ValueError"]["last"] == "2026-11-01T10:04:00+00:00"
    run(*REDRIVE, "shop/bills", "--to", "1", file=file)
    table = run("dead-letters", "list", "shop/bills", file=file).stdout.splitlines()
    assert [line.split()[:6] for line in table[1:]] == [
        [DEAD, "python", "KeyError", "1", "0", "0"],
        [DEAD, "python", "ValueError", "3", "2", "1"],
    ]


def test_show(run: Run, file: str, dead: Publisher) -> None:
    lines = run("dead-letters", "show", "shop/bills", "--json", file=file).stdout.splitlines()
    found = [json.loads(line) for line in lines]
    assert [each["letter"] for each in found] == ["0:0", "0:1", "1:0", "1:1"]
    assert json.loads(found[2]["source_row"]) == {"id": 3, "amount": "3.50"}
    limited = run("dead-letters", "show", "shop/bills", "--from", "1", "--limit", "1", file=file).stdout.splitlines()
    assert (len(limited), limited[0].split()[:3], limited[1].split()[0]) == (2, ["letter", "row", "error_class"], "1:0")


def test_what_a_letter_says_is_not_enough(
    run: Run, file: str, tmp_path: Path, config: Config, dead: Publisher, write: Callable[..., str]
) -> None:
    """Rows go to the topics that --into names, or that the job of --file reads."""
    refunds = Publisher("refunds", config=config, name="shop")
    refunds.seal("shop", 0, [orders([200])], run_id="r")
    send(dead, 2, letter(5, topic="refunds"), letter(6, topic="a b"), letter(7, topic="gone"))
    pipeline = tmp_path / "pipeline.yaml"
    job = {"source": {"type": "jobpipe", "subscribe": "orders"}, "sink": {"type": "jobpipe", "topic": "out"}}
    job["errors"] = {"tolerance": "all", "dead-letters": DEAD}
    pipeline.write_text(yaml.safe_dump({"pipeline": {"name": "p"}, "jobs": {"a": job}}))
    bare = run("dead-letters", "redrive", "shop/bills", file=file)
    assert (bare.exit_code, bare.stdout) == (1, "published nothing\n")
    on_page(bare.stderr, "left … (…): rows may not go to its topic …: give --into …")
    by_file = run("dead-letters", "redrive", "a", "--file", str(pipeline), "--json", file=file)
    assert json.loads(by_file.stdout)["published"] == {"orders": 3}
    assert rows(run, file, "refunds") == [(200, None)]
    named = ("--into", "refunds", "--into", "a b", "--into", "gone")
    away = write({**yaml.safe_load(Path(file).read_text()), "jobpipe.discovery.timeout": "0.3s"})
    last = run("dead-letters", "redrive", "shop/bills", *named, "--from", "2", file=away)
    assert (last.exit_code, last.stdout) == (1, "published 1 row to refunds again\n"), last.output
    for why in (
        "not a topic name: 'a b'",
        "topic 'gone'",
    ):  # which keep no other letter back
        assert why in last.stderr
    refunds.close()


def test_a_spool_that_is_not_the_newest(run: Run, file: str, config: Config, source: Publisher, tmp_path: Path) -> None:
    """The topic was published from another host since: what this one gets would never come to its subscribers."""
    source.close()
    end_coordinators()
    dead = Publisher(DEAD, config=config, name="bills")
    send(dead, 0, letter(1))
    assert run(*REDRIVE, "shop/bills", file=file).exit_code == 0
    send(dead, 1, letter(2))
    dead.close()
    end_coordinators()
    there = Publisher("orders", config=replace(config, spool_dir=tmp_path / "there"), name="shop", parallelism=2)
    there.seal("shop", 1, [orders([200]), orders([])], run_id="r2")
    there.close()
    end_coordinators()
    for _ in range(2):  # serving it draws an epoch, and still it is not the newest
        result = run(*REDRIVE, "shop/bills", "--from", "1", file=file)
        assert (result.exit_code, result.stdout) == (1, "published nothing\n")
        on_page(result.stderr, "topic '…': its spool in … is not the newest one")
        end_coordinators()
    Publisher("orders", config=config, name="shop", parallelism=2).close()
    end_coordinators()
    assert run(*REDRIVE, "shop/bills", "--from", "1", file=file).exit_code == 0


def test_two_letters_of_one_row(run: Run, file: str, source: Publisher, dead: Publisher) -> None:
    send(dead, 2, letter(1), letter(5), letter(5))
    result = run(*REDRIVE, "shop/bills", "--from", "2", "--json", file=file)
    assert json.loads(result.stdout) == {"published": {"orders": 2}, "already": 1, "left": [], "dry_run": False}
    again = run(*REDRIVE, "shop/bills", "--to", "2", "--json", file=file)
    assert json.loads(again.stdout)["published"] == {"orders": 2}  # not letter 1
    assert sorted(each for each, _ in rows(run, file)) == [1, 2, 3, 5, 100]


@pytest.mark.slow
def test_from_the_spools_of_this_host(run: Run, file: str, config: Config, source: Publisher, dead: Publisher) -> None:
    """Both jobs have ended; what is published again is there for the next one that publishes."""
    dead.close()
    source.close(final=True)
    end_coordinators()
    result = run(*REDRIVE, "shop/bills", "--skip-left", file=file)
    assert (result.exit_code, result.stdout) == (0, "published 3 rows to orders again\n"), result.output
    assert run("dead-letters", "list", file=file).stdout.splitlines()[2].split()[3:6] == ["3", "2", "1"]
    again = Publisher("orders", config=config, name="shop", parallelism=2)
    again.seal("shop", 1, [orders([101]), orders([])], run_id="r2")
    assert sorted(rows(run, file), key=str) == sorted([*AGAIN, (101, None)], key=str)
    again.close()


@pytest.mark.slow
@pytest.mark.parametrize("after", [1, 2, 4])
def test_kill_9_in_the_middle(
    start: Start, run: Run, file: str, source: Publisher, dead: Publisher, after: int
) -> None:
    """Wherever it was: what it had published is marked, the rest comes with the next call, each row once."""
    send(dead, 2, *(letter(number % 60, row_number=number, source_row=order(number)) for number in range(1000, 7000)))
    program = start(*REDRIVE, "shop/bills", "--from", "2", file=file)
    until(lambda: source.status()["head"] > after, DEADLINE, "published")
    program.process.kill()
    program.end()
    part = source.status()["rows"] - 1
    result = run(*REDRIVE, "shop/bills", "--from", "2", "--json", file=file)
    told = json.loads(result.stdout)
    assert (told["published"].get("orders", 0), told["already"]) == (6000 - part, part)
    assert sorted(each for each, _ in rows(run, file)) == [100, *range(1000, 7000)]


def order(number: int) -> str:
    return json.dumps({"id": number, "amount": None})


def test_letters_after_an_end_mark(run: Run, file: str, config: Config, dead: Publisher) -> None:
    """A job that has ended, and ran again."""
    dead.close(final=True)
    again = Publisher(DEAD, config=config, name="bills")
    send(again, 2, letter(5))
    result = run(*REDRIVE, "shop/bills", "--skip-left", "--json", file=file)
    assert json.loads(result.stdout)["published"] == {"orders": 4}
    again.close()


def test_a_row_that_does_not_fit_any_more(run: Run, file: str, source: Publisher, dead: Publisher) -> None:
    send(dead, 2, letter(6, source_row='{"id":6}'))
    result = run(*REDRIVE, "shop/bills", "--from", "2", file=file)
    assert (result.exit_code, result.stdout) == (1, "published nothing\n")
    on_page(result.stderr, "left … (…): its row does not fit topic")


def test_what_is_no_topic_of_dead_letters(run: Run, file: str, source: Publisher) -> None:
    result = run(*REDRIVE, "--topic", "orders", file=file)
    assert result.exit_code == 2
    on_page(result.stderr, "topic '…' is no topic of dead letters")


@pytest.mark.parametrize(
    "args",
    [
        [],
        ["shop"],
        ["shop/"],
        ["a/b/c"],
        ["shop/bills", "--topic", "x"],
        ["--file", "x.yaml"],
        ["a/b", "--from", "new"],
    ],
)
def test_which_topic_is_not_said(run: Run, file: str, args: list[str]) -> None:
    assert run(*REDRIVE, *args, file=file).exit_code == 2


def test_by_the_pipelines_file(run: Run, file: str, tmp_path: Path, dead: Publisher, write: Callable[..., str]) -> None:
    """Which may name the topic, and has a prefix."""
    pipeline = tmp_path / "pipeline.yaml"
    job = {"source": {"type": "rate"}, "sink": {"type": "jobpipe", "topic": "out"}}
    errors = {"tolerance": "all", "dead-letters": "bills.dead-letters"}
    spec = {"name": "p", "topic-prefix": "shop."}
    other = {**job, "sink": {"type": "jobpipe", "topic": "more"}}
    pipeline.write_text(yaml.safe_dump({"pipeline": spec, "jobs": {"a": {**job, "errors": errors}, "b": other}}))
    result = run("dead-letters", "show", "a", "--file", str(pipeline), "--json", file=file)
    assert len(result.stdout.splitlines()) == 4, result.output
    for args in (["b"], ["c"]):
        assert run("dead-letters", "show", *args, "--file", str(pipeline), file=file).exit_code == 2


def test_next_to_acks_all(run: Run, file: str, config: Config, dead: Publisher, source: Publisher) -> None:
    """It is refused: the job must be stopped for it."""
    source.close()
    changed = config.__class__(**{**config.__dict__, "acks": "all"})
    strict = Publisher("orders", config=changed, name="shop", parallelism=2, required_subscribers=["billing"])
    result = run(*REDRIVE, "shop/bills", file=file)
    assert (result.exit_code, result.stdout) == (1, "published nothing\n")
    on_page(result.stderr, "topic '…': its publisher, '…', has acks=all")
    strict.close()
    assert run(*REDRIVE, "shop/bills", "--skip-left", file=file).exit_code == 0
