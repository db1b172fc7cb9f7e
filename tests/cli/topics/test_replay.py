"""``jobpipe topics replay`` with real coordinators: a range of a topic in another one, in order, each batch once."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Iterator
from dataclasses import replace as replaced
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from jobpipe.cli.topics.replay_command import _Replay, pieces_of
from jobpipe.config import Config
from jobpipe.publishing import appender
from jobpipe.publishing.coordinator_launcher import end_coordinators
from jobpipe.publishing.topic_publisher import Publisher
from tests.bus.kit import until
from tests.cli.conftest import DEADLINE, Run
from tests.cli.topics.test_bus import Start
from tests.docs.pages import block
from tests.docs.troubleshooting import on_page

pytestmark = pytest.mark.zookeeper

SCHEMA = pa.schema([("n", pa.int64()), ("text", pa.string())])


def batch(number: int) -> list[pa.Table]:
    """Two partitions: two rows and one, numbered through."""
    first = 3 * number
    return [
        pa.table({"n": [first, first + 1], "text": ["a", None]}, SCHEMA),
        pa.table({"n": [first + 2], "text": ["c"]}, SCHEMA),
    ]


@pytest.fixture
def source(config: Config) -> Iterator[Publisher]:
    """Topic ``orders`` with four batches of three rows."""
    made = Publisher("orders", config=config, name="shop", parallelism=2)
    for number in range(4):
        made.seal("q", number, batch(number), run_id="r")
    yield made
    made.close()


@pytest.fixture
def target(config: Config) -> Iterator[Publisher]:
    """Topic ``copies``, with one row of its publisher."""
    made = Publisher("copies", config=config, name="copier")
    made.seal("q", 0, [pa.table({"n": [-1], "text": ["own"]}, SCHEMA)], run_id="r")
    yield made
    made.close()


def rows(run: Run, file: str, topic: str = "copies") -> list[int]:
    result = run("topics", "tail", topic, "--from", "earliest", "--timeout", "0", "--json", file=file)
    assert result.exit_code == 0, result.output
    return [json.loads(line)["n"] for line in result.stdout.splitlines()]


def replay(run: Run, file: str, *args: str, code: int = 0) -> Any:
    """Replay ``orders`` into ``copies``; return what it says."""
    result = run("topics", "replay", "orders", "--into", "copies", "--json", *args, file=file)
    assert result.exit_code == code, result.output
    return json.loads(result.stdout) if code == 0 else result.stderr


def test_a_range_once(run: Run, file: str, source: Publisher, target: Publisher) -> None:
    """Next to the publisher of the other topic, which goes on; again it publishes nothing, and then what is new."""
    told = replay(run, file, "--from", "1", "--to", "3")
    assert told == {"from": 1, "to": 3, "rows": 6, "batches": 2, "before": 0}
    target.seal("q", 1, [pa.table({"n": [-2], "text": ["own"]}, SCHEMA)], run_id="r")
    assert replay(run, file, "--from", "1", "--to", "3")["before"] == 2
    assert replay(run, file, "--from", "1", "--to", "latest") == {
        "from": 1,
        "to": 4,
        "rows": 3,
        "batches": 1,
        "before": 2,
    }
    assert rows(run, file) == [-1, *range(3, 9), -2, 9, 10, 11]
    assert replay(run, file, "--from", "1", "--to", "2", "--name", "once more")["rows"] == 3
    assert rows(run, file)[-3:] == [3, 4, 5]


def test_the_page(run: Run, file: str, source: Publisher) -> None:
    line = block("docs/replay.md", "replay").replace('--where "amount > 100" ', "")  # tests/spark evaluates conditions
    result = run(*shlex.split(line)[1:], file=file)
    assert (result.exit_code, result.stdout) == (0, "published 6 rows of 2 batches of orders into orders-again\n")
    assert rows(run, file, "orders-again") == list(range(3, 9))


def test_into_a_topic_that_does_not_exist(run: Run, file: str, source: Publisher) -> None:
    """It is made with the schema and the partitions of the rows; a second call finds it in the spool."""
    assert replay(run, file, "--from", "earliest", "--to", "2")["rows"] == 6
    assert replay(run, file, "--from", "0", "--to", "latest") == {
        "from": 0,
        "to": 4,
        "rows": 6,
        "batches": 2,
        "before": 2,
    }
    assert rows(run, file) == list(range(12))


def test_killed_before_the_schema_was_told(
    run: Run, file: str, source: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The topic was made, and nothing can be published to it: the next call makes it again."""
    with monkeypatch.context() as patch:
        patch.setattr(Publisher, "declare", _fails)
        replay(run, file, "--from", "0", "--to", "2", code=1)
    assert replay(run, file, "--from", "0", "--to", "2")["rows"] == 6
    assert rows(run, file) == list(range(6))


def _fails(*_: object) -> None:
    raise OSError("killed")


def test_next_to_another_replay_that_makes_the_topic(
    run: Run, file: str, source: Publisher, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was quicker, after this one had looked."""
    other: list[Publisher] = []
    make = _Replay._make_target

    def quicker(self: _Replay, start: Any, end: Any) -> None:
        other.append(Publisher("copies", config=config, name="another replay", parallelism=2))
        other[0].declare(SCHEMA)
        make(self, start, end)

    monkeypatch.setattr(_Replay, "_make_target", quicker)
    assert replay(run, file, "--from", "0", "--to", "2")["rows"] == 6
    assert rows(run, file) == list(range(6))
    other[0].close()


def test_a_batch_in_pieces(
    run: Run, file: str, source: Publisher, target: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed between two pieces of one batch, it goes on with the next piece."""
    monkeypatch.setattr("jobpipe.cli.topics.replay_command.PIECE_ROWS", 1)
    append, calls = appender.Appender.append, [0]

    def counted(self: appender.Appender, number: int, make: appender.Make) -> bool:
        calls[0] += 1
        if calls[0] == 5:
            raise OSError("killed")
        return append(self, number, make)

    with monkeypatch.context() as patch:
        patch.setattr(appender.Appender, "append", counted)
        replay(run, file, "--from", "0", "--to", "2", code=1)
    assert sorted(rows(run, file)) == [-1, *range(4)]
    told = replay(run, file, "--from", "0", "--to", "2")
    assert (told["rows"], told["batches"], told["before"]) == (2, 1, 1)
    assert sorted(rows(run, file)) == [-1, *range(6)]


def test_pieces() -> None:
    """All rows, in their order, no piece too large unless one row is."""
    batches = [(pa.record_batch({"n": list(range(first, first + 7))}), first) for first in (0, 7, 14)]
    found = list(pieces_of(batches))
    assert found == [batches]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("jobpipe.cli.topics.replay_command.PIECE_ROWS", 3)
        small = list(pieces_of(batches))
        patch.setattr("jobpipe.cli.topics.replay_command.PIECE_BYTES", 1)
        smallest = list(pieces_of(batches))
    assert max(sum(batch.num_rows for batch, _ in piece) for piece in small) <= 3
    assert [len(piece) for piece in smallest] == [1] * 21
    for pieces in (small, smallest):
        assert [(n, number) for piece in pieces for batch, number in piece for n in batch["n"].to_pylist()] == [
            (n, n // 7 * 7) for n in range(21)
        ]


def _go_on(config: Config, tables: list[pa.Table]) -> None:
    made = Publisher("orders", config=config, name="shop", parallelism=2)
    made.seal("q", 4, tables, run_id=str(made.epoch))
    made.close()
    end_coordinators()


def test_an_offset_that_has_other_rows_now(
    run: Run, file: str, config: Config, source: Publisher, target: Publisher
) -> None:
    """The spool was restored from a copy, and went on from there: what another epoch sealed are other batches."""
    spool = config.spool_dir / "orders"
    source.close()
    target.close()
    end_coordinators()
    shutil.copytree(spool, copy := spool.with_name("copy"))
    _go_on(config, batch(4))
    assert replay(run, file, "--from", "3", "--to", "5")["rows"] == 6
    end_coordinators()
    shutil.rmtree(spool)
    copy.rename(spool)
    _go_on(config, batch(5))
    told = replay(run, file, "--from", "3", "--to", "5")
    assert (told["rows"], told["before"]) == (3, 1)
    assert sorted(rows(run, file)) == [-1, 9, 10, 11, 12, 13, 14, 15, 16, 17]


@pytest.mark.parametrize("killed", ["before", "after"])
def test_killed_and_called_again(
    run: Run, file: str, source: Publisher, target: Publisher, monkeypatch: pytest.MonkeyPatch, killed: str
) -> None:
    """Between any two batches, and where only the answer of the seal was lost."""
    append, calls = appender.Appender.append, [0]

    def counted(self: appender.Appender, number: int, make: appender.Make) -> bool:
        calls[0] += 1
        if calls[0] == 3 and killed == "before":
            raise OSError("killed")
        done = append(self, number, make)
        if calls[0] == 3:
            raise OSError("killed")
        return done

    with monkeypatch.context() as patch:
        patch.setattr(appender.Appender, "append", counted)
        replay(run, file, "--from", "0", "--to", "4", code=1)
    assert replay(run, file, "--from", "0", "--to", "4")["before"] == (2 if killed == "before" else 3)
    assert rows(run, file) == [-1, *range(12)]


@pytest.mark.slow
def test_two_at_once(start: Start, run: Run, file: str, source: Publisher, target: Publisher) -> None:
    programs = [
        start("topics", "replay", "orders", "--from", "0", "--to", "4", "--into", "copies", file=file) for _ in range(2)
    ]
    assert [program.end()[0] for program in programs] == [0, 0]
    assert rows(run, file) == [-1, *range(12)]


def test_rows_that_were_removed(run: Run, file: str, source: Publisher, target: Publisher) -> None:
    assert replay(run, file, "--from", "2999-01-01T00:00:00Z", "--to", "latest", code=2)  # nothing was published since
    told = replay(run, file, "--from", "7", "--to", "9", code=1)
    assert "offset" in told
    on_page(replay(run, file, "--from", "0", "--to", "9", code=2), "topic '…': --to lies after the newest batch")
    assert rows(run, file) == [-1]


@pytest.mark.slow
def test_a_range_of_which_rows_were_removed(run: Run, file: str, config: Config, target: Publisher) -> None:
    """Neither by offsets nor by times is the rest taken for the whole."""
    began = datetime.now(UTC)
    soon = replaced(config, retention_time=0.0, ack_grace=0.0)
    source = Publisher("orders", config=soon, name="shop", parallelism=2, min_subscribers=0)
    for number in range(3):
        source.seal("q", number, batch(number), run_id="r")
    until(lambda: source.status()["tail"] == 3, DEADLINE, "removed")
    source.close()
    source = Publisher("orders", config=config, name="shop", parallelism=2)
    source.seal("q", 3, batch(3), run_id="r2")
    assert "batches 0 to 2 are missing" in replay(run, file, "--from", "0", "--to", "4", code=1)
    told = replay(run, file, "--from", began.isoformat(), "--to", "4", code=1)
    on_page(told, "topic '…': what was published up to … was removed, and the range begins at …")
    assert rows(run, file) == [-1]
    assert replay(run, file, "--from", "3", "--to", "4")["rows"] == 3
    source.close()


def test_over_an_end_mark(run: Run, file: str, config: Config, source: Publisher, target: Publisher) -> None:
    """It has no row, and is not replayed."""
    source.close(final=True)
    again = Publisher("orders", config=config, name="shop", parallelism=3)
    again.seal("q", 4, [*batch(4), pa.table({"n": [15], "text": ["d"]}, SCHEMA)], run_id="r2")
    assert replay(run, file, "--from", "0", "--to", "latest")["rows"] == 16
    assert rows(run, file) == [-1, *range(16)]
    again.close()


def test_into_itself(run: Run, file: str, source: Publisher) -> None:
    asked = ("topics", "replay", "orders", "--from", "1", "--to", "2", "--into", "orders")
    refused = run(*asked, file=file)
    assert (refused.exit_code, rows(run, file, "orders")) == (2, list(range(12)))
    assert "--force" in refused.stderr
    assert run(*asked, "--force", file=file).exit_code == 0
    assert rows(run, file, "orders") == [*range(12), 3, 4, 5]


def test_a_schema_that_does_not_fit(run: Run, file: str, source: Publisher, config: Config) -> None:
    narrow = Publisher("copies", config=config, name="copier")
    narrow.seal("q", 0, [pa.table({"n": [-1]})], run_id="r")
    on_page(replay(run, file, "--from", "0", "--to", "2", code=1), "topic '…', offset …: its rows do not fit topic")
    assert rows(run, file) == [-1]
    wide = pa.schema([("text", pa.string()), ("n", pa.decimal128(20, 0)), ("more", pa.bool_())])
    narrow.seal("q", 1, [pa.table({"text": ["x"], "n": [7], "more": [True]}, wide)], run_id="r")
    assert replay(run, file, "--from", "0", "--to", "2")["rows"] == 6
    narrow.close()


@pytest.mark.slow
def test_from_the_spools_of_this_host(run: Run, file: str, source: Publisher, target: Publisher) -> None:
    source.close()
    target.close(final=True)
    end_coordinators()
    assert replay(run, file, "--from", "0", "--to", "1")["rows"] == 3
    assert rows(run, file) == [-1, 0, 1, 2]
