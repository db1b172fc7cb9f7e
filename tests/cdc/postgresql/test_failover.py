"""A standby takes over for a primary that is killed: a capture goes on there, or ends with what the standby lacked."""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import psycopg
import pyarrow as pa
import pytest

import jobpipe
from jobpipe.cdc.postgresql.database.database_catalog import Slot, slots
from jobpipe.cdc.postgresql.database.slot_history import SlotHistory, require_continuous
from jobpipe.cdc.postgresql.postgres_capture import PostgresCapture
from jobpipe.cdc.postgresql.postgres_note import CaptureNote, Chunk, OpenTransaction, Visibility
from jobpipe.cdc.postgresql.postgres_options import PostgresOptions
from jobpipe.cdc.postgresql.stream.pgoutput import lsn_number
from jobpipe.config import Config
from jobpipe.errors import ConfigError, DataLoss
from tests.bus.kit import until
from tests.cdc.capturing import PATIENCE, Copy, Follower, failures, options, rows_of, running
from tests.databases.postgres import Postgres, missing
from tests.databases.postgres_standby import SLOT, Standby, cannot_synchronize
from tests.harness.proxies.proxy import FaultProxy

pytestmark = [pytest.mark.zookeeper, pytest.mark.slow, pytest.mark.timeout(120)]

KEYS = 100  # of each writer
PAUSE = 0.02  # seconds of a writer between two transactions, so that the capture is not ever further back


@dataclass
class Pair:
    """Two servers.

    Attributes:
        address: what captures connect to; it leads to the primary.
        link: by which the standby follows.
    """

    primary: Postgres
    standby: Standby
    address: FaultProxy
    link: FaultProxy

    def options(self, **given: Any) -> PostgresOptions:
        """Return the options of a capture of table t, at the address."""
        port = int(self.address.endpoint.rpartition(":")[2])
        return options(self.primary, "public", ["t"], port=port, **given)

    def cut_off(self) -> None:
        """Let the standby receive nothing more."""
        self.link.refuse()
        self.link.reset()
        until(lambda: not self.standby.follows(), PATIENCE, "the end of the standby's link")

    def move(self) -> None:
        """Let the address lead to the standby; connections that are open are cut."""
        self.address.upstream = f"127.0.0.1:{self.standby.port}"
        self.address.reset()

    def await_slot(self, slot: str) -> None:
        """Wait until the standby has a slot as far as the primary has it now."""
        confirmed = "SELECT failover, confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = %s"
        ((failover, lsn),) = self.primary.query(confirmed, slot)
        assert failover
        there = (
            "SELECT synced AND NOT temporary AND confirmed_flush_lsn >= %s::pg_lsn FROM pg_replication_slots "
            "WHERE slot_name = %s"
        )

        def is_there() -> bool:
            self.standby.synchronize()
            return self.standby.query(there, lsn, slot) == [(True,)]

        until(is_there, PATIENCE, "the slot on the standby")


@contextmanager
def pair(**settings: str) -> Iterator[Pair]:
    """Run a primary with an empty table t, and a standby that synchronizes its slots."""
    if (what := cannot_synchronize()) is not None:
        pytest.skip(f"a standby that synchronizes slots needs {what}")
    with ExitStack() as stack:
        primary = stack.enter_context(Postgres(wal_level="logical", **settings))
        primary.query("CREATE TABLE t (id int PRIMARY KEY, n int)")
        primary.query("ALTER TABLE t REPLICA IDENTITY FULL")  # so that a deletion tells its number
        address, link = (stack.enter_context(FaultProxy(f"127.0.0.1:{primary.port}")) for _ in range(2))
        standby = stack.enter_context(Standby(primary, port=int(link.endpoint.rpartition(":")[2])))
        yield Pair(primary, standby, address, link)


class Writers:
    """Three threads that write to table t, each its own keys; no two changes set the same number.

    Attributes:
        server: to which they write; they connect again when it is gone.
        count: how many transactions were committed.
    """

    def __init__(self, server: Postgres, seed: int) -> None:
        self.server = server
        self.count = 0
        self._numbers = itertools.count(1)
        self._stop = threading.Event()
        self._errors: list[BaseException] = []
        writing = [(place, random.Random(seed + place)) for place in range(3)]
        self._threads = [threading.Thread(target=self._write, args=each, daemon=True) for each in writing]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End them; raise what one of them has met."""
        self._stop.set()
        for thread in self._threads:
            thread.join(PATIENCE)
        if self._errors:
            raise self._errors[0]

    def _write(self, place: int, chance: random.Random) -> None:
        try:
            while not self._stop.is_set():
                try:
                    with self.server.connect() as connection:
                        while not self._stop.is_set():
                            self._transaction(connection, place, chance)
                            self._stop.wait(PAUSE)
                except psycopg.OperationalError:  # the server was killed
                    self._stop.wait(0.1)
        except BaseException as error:
            self._errors.append(error)

    def _transaction(self, connection: psycopg.Connection[Any], place: int, chance: random.Random) -> None:
        with connection.transaction():
            for _ in range(chance.choice([1, 2, 5, 60])):
                key = place * KEYS + chance.randrange(KEYS)
                if chance.random() < 0.3:
                    connection.execute("DELETE FROM t WHERE id = %s", (key,))
                    continue
                connection.execute(
                    "INSERT INTO t VALUES (%s, %s) ON CONFLICT (id) DO UPDATE SET n = excluded.n",
                    (key, next(self._numbers)),
                )
        self.count += 1


class NumberedCopy(Copy):
    """A copy that takes no change twice."""

    def __init__(self) -> None:
        super().__init__("id")
        self._taken: set[tuple[bool, int]] = set()
        self.highest = 0

    def apply(self, change: dict[str, Any]) -> None:
        """See :meth:`Copy.apply`."""
        number = (change["op"] == "d", (change["after"] or change["before"])["n"])
        assert number not in self._taken, f"twice: {change}"
        self._taken.add(number)
        self.highest = max(self.highest, number[1])
        super().apply(change)


def test_a_standby_takes_over_while_writers_write(config: Config, caplog: pytest.LogCaptureFixture) -> None:
    """The capture that runs goes on: its link breaks, its address leads to the standby, and that is promoted."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    with pair(synchronized_standby_slots=SLOT) as servers:
        servers.primary.query("INSERT INTO t SELECT i, -i FROM generate_series(0, 299) i")
        given, copy = servers.options(chunk_size=50, batch_rows=200), NumberedCopy()
        writers = Writers(servers.primary, seed)
        try:
            with running(given, config) as capture:
                follower = Follower("t", copy, config)
                follower.until(lambda: not capture.status().tables, "the end of reading")
                servers.await_slot(given.slot)
                rows = sum(copy.seen.values())
                follower.until(lambda: sum(copy.seen.values()) > rows + 500, "changes")
                servers.primary.crash()
                servers.move()
                until(lambda: failures or "goes on once it is" in caplog.text, PATIENCE, "a look at it")
                servers.standby.promote()
                number = copy.highest
                writers.server, before = servers.standby, writers.count
                until(lambda: writers.count > before + 20, PATIENCE, "transactions of the new primary")
                follower.until(lambda: copy.highest > number, "their changes")
            writers.stop()
            with running(given, config):  # started again, it knows the new history
                want = rows_of(servers.standby, "t", "id")
                follower.until(lambda: copy.rows == want, "the table")
                assert servers.standby.query("SELECT slot_name, failover FROM pg_replication_slots WHERE active") == [
                    (given.slot, True)
                ]
            follower.close()
        finally:
            writers.stop()
    print(f"{writers.count} transactions, {copy.seen}")


@pytest.mark.parametrize(
    ("rows", "lacks"), [(300, False), (300, True), (1001, True)], ids=["has-it", "lacks-a-part", "lacks-all"]
)
def test_a_standby_that_lacks_what_is_published(config: Config, rows: int, lacks: bool) -> None:
    """A transaction of a thousand changes, of which all or a third are published when the primary is killed."""
    ends: AbstractContextManager[pytest.ExceptionInfo[DataLoss] | None] = nullcontext()
    if lacks:
        ends = pytest.raises(DataLoss, match="a standby took over that lacked")
    with pair() as servers:
        given, copy = servers.options(batch_rows=100), NumberedCopy()
        with ends as caught, running(given, config) as capture:
            follower = Follower("t", copy, config)
            servers.primary.query("INSERT INTO t VALUES (0, 0)")
            follower.until(lambda: len(copy.rows) == 1, "the first row")
            servers.await_slot(given.slot)
            if lacks:
                servers.cut_off()
            crashed = _crash_after(rows, servers, capture, lacks)
            servers.primary.query("INSERT INTO t SELECT i, i FROM generate_series(1, 1000) i")
            assert crashed.wait(PATIENCE)
            follower.until(lambda: len(copy.rows) == capture.status().rows, "what was published")
            published = len(copy.rows)
            assert published == rows if rows == 1001 else rows <= published < 1001
            servers.standby.promote()
            servers.move()
            if lacks:
                until(lambda: failures, PATIENCE, "the error")
            else:
                want = rows_of(servers.standby, "t", "id")
                follower.until(lambda: copy.rows == want, "the table")
            follower.close()
        there = servers.standby.query("SELECT count(*) FROM t")
        assert (there, len(copy.rows)) == (([(1,)], published) if lacks else ([(1001,)], 1001))
        assert caught is None or caught.value.fields["reason"] == "timeline"


def _crash_after(rows: int, servers: Pair, capture: PostgresCapture, lacks: bool) -> threading.Event:
    """Kill the primary once a capture has published so many rows; the standby has them, unless it lacks them."""
    crashed, writer = threading.Event(), capture._writers["t"]
    write = writer.write

    def write_and_crash(published: pa.Table, note: bytes) -> None:
        write(published, note)
        if writer.published >= rows:
            if not lacks:
                until(servers.standby.has_all, PATIENCE, "the standby")
            servers.primary.crash()
            crashed.set()
            raise jobpipe.errors.LinkClosed("the primary was killed here")

    writer.write = write_and_crash  # type: ignore[method-assign]
    return crashed


def test_the_end_of_a_history(config: Config) -> None:
    """What is published may reach to the very place at which the standby left it, and no further.

    A capture does not begin at a standby, whose slots can be listed.
    """
    if (what := missing()) is not None:
        pytest.skip(f"a test with a real PostgreSQL needs {what}")
    with Postgres(wal_level="logical") as primary, Standby(primary) as standby:
        primary.query("CREATE TABLE t (id int PRIMARY KEY)")
        until(standby.has_all, PATIENCE, "the standby")
        given = options(standby, "public", ["t"])
        with pytest.raises(ConfigError, match="the server is a standby: give the address of the primary"):
            with running(given, config):
                pass
        standby.query("SELECT pg_create_physical_replication_slot('own', true)")
        with standby.connect() as connection:
            assert [each.retained >= 0 for each in slots(connection, "slot_name = %s", "own")] == [True]
        standby.promote()
        with running(given, config):
            pass
        ((text,),) = standby.query("SELECT pg_read_file('pg_wal/00000002.history')")
        end = lsn_number(text.split()[1])
        slot = Slot(given.slot, "pgoutput", "postgres", None, 0, "reserved", 0, None)
        with given.database_api().connection("jobpipe cdc", replication="database") as replication:
            history = SlotHistory.of(replication)
            assert history.timeline == 2

            def fits(**more: Any) -> bool:
                known = {"system": history.system, "timeline": 1, "database": "postgres", "slot": given.slot, "at": end}
                notes = [CaptureNote(**{**known, "at": end - 8}), CaptureNote(**{**known, "at": end - 16, **more})]
                try:
                    require_continuous(given, history, replication, slot, notes, notes, end + 1000)
                except DataLoss as error:
                    return error.fields["reason"] != "timeline"
                return True

            def chunk(until: int) -> Chunk:
                return Chunk(1, None, None, Visibility(0, 0, frozenset()), until)

            assert fits(at=end)
            assert not fits(at=end + 1)
            assert fits(open=OpenTransaction(end - 1, 0, 5))
            assert not fits(open=OpenTransaction(end, 0, 5))  # its commit begins where the history ends
            assert fits(chunk=chunk(end))
            assert not fits(chunk=chunk(end + 1))
            assert not fits(timeline=3)
