"""The stream of a binary log: where it begins, goes on, waits and ends."""

from __future__ import annotations

import contextlib
import os
import threading
import time

import pymysql
import pytest

from jobpipe.cdc.mariadb.binlog.binlog_events import Begin, End, Idle, Rows
from jobpipe.cdc.mariadb.binlog.binlog_position import GtidState, Position
from jobpipe.errors import ConfigError, LinkBroken
from tests.cdc.mysql.binlog.logged_server import LoggedDatabase, images, read_until
from tests.databases.mysql_server import MySqlServer


@pytest.fixture
def table(logged: LoggedDatabase) -> LoggedDatabase:
    """A database with a table."""
    logged.run("CREATE TABLE t (id int PRIMARY KEY, v longtext)")
    return logged


def insert(table: LoggedDatabase, *numbers: int) -> None:
    for number in numbers:
        table.run("INSERT INTO t (id) VALUES (%s)", number)


def numbers(changes: list[Rows]) -> list[int]:
    return [int(row[0] or 0) for row in images(changes, 1)]


def test_from_a_place_or_from_gtids(table: LoggedDatabase) -> None:
    insert(table, 1, 2)
    place, state = table.position(), table.state()
    insert(table, 3, 4)
    assert numbers(table.rows(place)) == [3, 4]
    assert numbers(table.rows(state)) == [3, 4]
    begins = [change for change in table.changes(place) if isinstance(change, Begin)]
    assert numbers(table.rows(begins[1].start)) == [4]
    assert numbers(table.rows(state.adding(begins[0].gtid))) == [4]
    assert [change for change in table.changes(state) if isinstance(change, Begin)] == begins


def test_from_the_first_transaction_of_all(table: LoggedDatabase) -> None:
    insert(table, 1)
    changes = table.changes(GtidState.of("", table.mariadb))
    state = GtidState.of("", table.mariadb)
    for change in changes:
        if isinstance(change, Begin):
            state = state.adding(change.gtid)
    assert state == table.state()
    assert numbers([change for change in changes if isinstance(change, Rows)])[-1:] == [1]


def test_the_file_changes_while_it_is_streamed(table: LoggedDatabase) -> None:
    start = table.position()
    with table.stream(start) as stream:
        for number in range(3):
            insert(table, number)
            changes = read_until(stream, table.position())
            assert numbers([change for change in changes if isinstance(change, Rows)]) == [number]
            table.run("FLUSH BINARY LOGS")
        changes = read_until(stream, table.position())
        assert stream.sent == table.position()
    assert {type(change) for change in changes} == {Idle}
    places = [change.at for change in changes if isinstance(change, Idle)]
    assert places == sorted(places)
    assert table.position().file > start.file
    assert numbers(table.rows(start)) == [0, 1, 2]


def test_places_are_those_of_the_server(table: LoggedDatabase) -> None:
    start = table.position()
    insert(table, 1, 2, 3)
    changes = table.changes(start)
    events = table.run(f"SHOW BINLOG EVENTS IN '{start.file}' FROM {start.offset}")
    begins = [event[1] for event in events if "gtid" in event[2].lower()]
    assert [change.start.offset for change in changes if isinstance(change, Begin)] == begins
    ends = [event[4] for event in events if event[2] == "Xid"]
    assert [change.at.offset for change in changes if isinstance(change, End)] == ends


def test_without_checksums(table: LoggedDatabase) -> None:
    """Files with and without them follow each other."""
    start = table.position()
    insert(table, 1)
    ((before,),) = table.run("SELECT @@GLOBAL.binlog_checksum")
    assert before == "CRC32"
    table.run("SET GLOBAL binlog_checksum = NONE")
    try:
        insert(table, 2)
        middle, state = table.position(), table.state()
        insert(table, 3)
        with table.stream(middle) as stream:
            assert numbers([each for each in read_until(stream, table.position()) if isinstance(each, Rows)]) == [3]
            assert isinstance(stream.read(5), Idle)  # a heartbeat
    finally:
        table.run("SET GLOBAL binlog_checksum = CRC32")
    insert(table, 4)
    assert numbers(table.rows(start)) == [1, 2, 3, 4]
    assert numbers(table.rows(middle)) == numbers(table.rows(state)) == [3, 4]


@pytest.mark.slow
def test_a_row_of_several_packets(table: LoggedDatabase) -> None:
    start = table.position()
    longest = 2**24
    insert(table, 1)
    table.run("UPDATE t SET v = REPEAT('ab', %s)", longest // 2 + 1_000_000)
    table.run("UPDATE t SET v = NULL")
    insert(table, 2)
    _, grown, shrunk, last = table.rows(start)
    value = grown.rows[0][1]
    assert value is not None
    assert value[1] == b"ab" * (longest // 2 + 1_000_000)
    assert shrunk.rows == [(value, (b"1", None))]
    assert numbers([last]) == [2]


@pytest.mark.slow
def test_an_event_as_long_as_a_packet_can_be(table: LoggedDatabase) -> None:
    """Another, empty one follows it."""
    start = table.position()
    table.run("INSERT INTO t VALUES (1, 'x')")
    event = table.run(f"SHOW BINLOG EVENTS IN '{start.file}' FROM {start.offset}")[-2]
    around = event[4] - event[1] - len("x")
    for nth, length in enumerate((-2, -1, 0)):
        table.run("INSERT INTO t VALUES (%s, REPEAT('x', %s))", nth + 2, 2**24 - 1 - around + length)
    lengths = [len(row[1] or b"") for row in images(table.rows(start), 1)]
    assert lengths == [1, *(2**24 - 1 - around + length for length in (-2, -1, 0))]


def test_over_tls(table: LoggedDatabase) -> None:
    """MySQL makes a certificate for itself, and PyMySQL takes it."""
    if table.mariadb:
        pytest.skip("this MariaDB has no certificate")
    start = table.position()
    with table.stream(start) as stream:
        assert "ssl" in type(stream._connection._sock).__module__  # type: ignore[attr-defined]
        table.run("INSERT INTO t VALUES (1, REPEAT('x', 300000))")
        changes = read_until(stream, table.position())
    assert numbers([change for change in changes if isinstance(change, Rows)]) == [1]


def test_a_heartbeat_tells_where_the_log_ends(table: LoggedDatabase) -> None:
    start = table.position()
    with table.stream(start, heartbeat=0.05) as stream:
        found = [stream.read(10) for _ in range(3)]
    assert found == [Idle(start)] * 3


def test_nothing_comes_in_time(table: LoggedDatabase) -> None:
    start = table.position()
    with table.stream(start, heartbeat=60) as stream:
        assert stream.read(0) is None
        assert stream.read(0.05) is None
        insert(table, 1)
        assert isinstance(stream.read(10), Begin)


def test_a_wait_is_woken(table: LoggedDatabase) -> None:
    start = table.position()
    with table.stream(start, heartbeat=1000) as stream:
        assert stream.read(0.05) is None
        timer = threading.Timer(0.1, os.write, (table.wake[1], b"x"))
        timer.start()
        assert stream.read(1000) is None  # the test ends before that
        timer.join()
        assert stream.read(1000) is None  # until what was written is read
        os.read(table.wake[0], 1)
        insert(table, 1)
        assert isinstance(stream.read(10), Begin)


@pytest.mark.parametrize("offset", [-3, 10_000_000])
def test_a_wrong_place(table: LoggedDatabase, offset: int) -> None:
    start = table.position()
    insert(table, 1)
    assert numbers(table.rows(start)) == [1]
    with pytest.raises(pymysql.MySQLError) as caught:
        table.rows(Position(start.file, start.offset + offset))
    assert caught.value.args[0] == 1236


def test_a_file_that_is_not_there(table: LoggedDatabase) -> None:
    start = table.position()
    insert(table, 1)
    assert numbers(table.rows(start)) == [1]
    with pytest.raises(pymysql.MySQLError, match="Could not find first log file") as caught:
        table.rows(Position("binlog.999999", 4))
    assert caught.value.args[0] == 1236


def test_a_file_that_was_purged(table: LoggedDatabase) -> None:
    insert(table, 1)
    state, start = table.state(), table.position()
    insert(table, 2)
    assert numbers(table.rows(state)) == numbers(table.rows(start)) == [2]
    table.run("FLUSH BINARY LOGS")
    insert(table, 3)
    deadline = time.monotonic() + 20
    while any(row[0] == start.file for row in table.run("SHOW BINARY LOGS")):
        assert time.monotonic() < deadline, "a stream that has ended still has the file"
        table.run(f"PURGE BINARY LOGS TO '{table.position().file}'")
    for lost in (start, state):
        with pytest.raises(pymysql.MySQLError) as caught:
            table.rows(lost)
        assert caught.value.args[0] == 1236


def test_gtids_that_the_server_does_not_have(table: LoggedDatabase) -> None:
    insert(table, 1)
    state, start = table.state(), table.position()
    insert(table, 2)
    assert numbers(table.rows(state)) == [2]
    (first,) = (change for change in table.changes(start) if isinstance(change, Begin))
    source, _, number = first.gtid.rpartition("-" if table.mariadb else ":")
    later = state.adding(f"{source}{'-' if table.mariadb else ':'}{int(number) + 1000}")
    with pytest.raises(pymysql.MySQLError) as caught:
        table.rows(later)
    assert caught.value.args[0] == 1236


def test_a_place_that_the_protocol_does_not_have(table: LoggedDatabase) -> None:
    with pytest.raises(ConfigError, match="32 bits"):
        table.rows(Position(table.position().file, 2**32))


def test_the_server_ends_the_connection(table: LoggedDatabase) -> None:
    start = table.position()
    with table.stream(start) as stream:
        assert stream.read(10) == Idle(start)
        table.run(f"KILL {stream._connection.thread_id()}")
        with pytest.raises((LinkBroken, pymysql.MySQLError)):
            while True:
                assert stream.read(10) is not None


@pytest.mark.slow
@pytest.mark.processes
def test_the_server_is_killed(own_server: MySqlServer) -> None:
    """The stream ends with an error; another one goes on over the end of the file that was not closed."""
    with LoggedDatabase.made(own_server) as table:
        table.run("CREATE TABLE t (id int PRIMARY KEY, v longtext)")
        start, state = table.position(), table.state()
        insert(table, 1)
        with table.stream(start) as stream:
            read_until(stream, table.position())
            table.connection.close()
            own_server.kill()
            with pytest.raises(LinkBroken):
                while True:
                    assert stream.read(10) is not None
        own_server.start_again()
        table.connection.connect()
        insert(table, 2)
        assert table.position().file > start.file
        assert numbers(table.rows(start)) == numbers(table.rows(state)) == [1, 2]


def test_another_with_the_same_number_comes(table: LoggedDatabase) -> None:
    start = table.position()
    with table.stream(start) as first, table.stream(start, server_id=7002) as other:
        assert first.read(10) == other.read(10) == Idle(start)
        with table.stream(start) as second:
            with pytest.raises((LinkBroken, pymysql.MySQLError)):
                while True:
                    assert first.read(10) is not None
            assert second.read(10) == Idle(start)
            insert(table, 1)
            for stream in (second, other):
                changes = read_until(stream, table.position())
                assert numbers([change for change in changes if isinstance(change, Rows)]) == [1]


def test_two_domains(on_mariadb: LoggedDatabase) -> None:
    on_mariadb.run("CREATE TABLE t (id int PRIMARY KEY)")
    start, state = on_mariadb.position(), on_mariadb.state()
    for domain, number in [(1, 1), (0, 2), (1, 3), (2, 4)]:
        on_mariadb.run(f"SET SESSION gtid_domain_id = {domain}")
        on_mariadb.run(f"INSERT INTO t VALUES ({number})")
    begins = [change for change in on_mariadb.changes(start) if isinstance(change, Begin)]
    assert [begin.gtid[:2] for begin in begins] == ["1-", "0-", "1-", "2-"]
    assert numbers(on_mariadb.rows(state)) == [1, 2, 3, 4]
    assert numbers(on_mariadb.rows(state.adding(begins[0].gtid))) == [2, 3, 4]
    assert numbers(on_mariadb.rows(state.adding(begins[2].gtid).adding(begins[1].gtid))) == [4]


def test_sequence_numbers_that_go_back(on_mariadb: LoggedDatabase) -> None:
    """Two servers wrote to one domain: a state would not tell what it has."""
    on_mariadb.run("CREATE TABLE t (id int PRIMARY KEY)")
    start = on_mariadb.position()
    on_mariadb.run("SET SESSION gtid_domain_id = 9")
    on_mariadb.run("INSERT INTO t VALUES (1)")
    assert numbers(on_mariadb.rows(start)) == [1]
    on_mariadb.run("SET SESSION server_id = 77")
    on_mariadb.run("SET SESSION gtid_seq_no = 1")
    on_mariadb.run("INSERT INTO t VALUES (2)")
    with pytest.raises(ConfigError, match=r"GTID 9-77-1 at .* gtid_domain_id"):
        on_mariadb.rows(start)


def test_control_is_asked_while_it_streams(table: LoggedDatabase) -> None:
    """Its own connection is not the one of the stream."""
    start = table.position()
    with contextlib.closing(table.server.connect()) as connection:
        with table.stream(start) as stream:
            connection.ping()
            insert(table, 1)
            read_until(stream, table.position())
