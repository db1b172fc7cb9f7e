"""What follows is no longer in the log, or the server is another one: it goes on exactly, or says what is lost."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator

import pytest

from jobpipe.config import Config
from jobpipe.errors import DataLoss
from tests.bus.kit import until
from tests.cdc.capturing import PATIENCE, failures
from tests.cdc.mysql.conftest import server_of
from tests.cdc.mysql.mysql_capturing import Followed, followed
from tests.databases.mysql_server import PASSWORD, MySqlServer

pytestmark = [pytest.mark.zookeeper, pytest.mark.slow, pytest.mark.timeout(240)]

PRODUCTS = ["mariadb", "mysql"]


@pytest.fixture(params=PRODUCTS)
def own(request: pytest.FixtureRequest) -> Iterator[MySqlServer]:
    """A server whose log may be broken."""
    from tests.databases import mariadb, mysql

    if (what := (mariadb if request.param == "mariadb" else mysql).missing()) is not None:
        pytest.skip(f"a test with a real {request.param} needs {what}")
    with server_of(request.param) as server:
        server.query("CREATE DATABASE d CHARACTER SET utf8mb4")
        yield server


def lost(follow: Followed, match: str) -> None:
    with pytest.raises(DataLoss, match=match):
        with follow.running():
            until(lambda: failures, PATIENCE, "the error")


@pytest.mark.parametrize("how", ["nothing", "purged", "reset", "reset and more"])
def test_a_log_that_is_gone(own: MySqlServer, config: Config, how: str) -> None:
    """Purged or reset while the capture is stopped."""
    query = own.query
    query("CREATE TABLE d.t (id int PRIMARY KEY)")
    with followed(own, "d", config, t="id") as follow:
        with follow.running():
            query("INSERT INTO d.t VALUES (1)")
            follow.equal()
        query("INSERT INTO d.t VALUES (2)")
        query("FLUSH BINARY LOGS")
        query("INSERT INTO d.t VALUES (3)")
        if how == "purged":
            newest = query("SHOW BINARY LOGS")[-1][0]

            def purged() -> bool:  # not while another session reads it
                query(f"PURGE BINARY LOGS TO '{newest}'")
                return len(query("SHOW BINARY LOGS")) == 1

            until(purged, PATIENCE, "one file")
            lost(follow, "what followed was removed")
        elif how == "nothing":
            with follow.running():
                follow.equal()
        else:
            query("RESET MASTER" if own.name == "MariaDB" else "RESET BINARY LOGS AND GTIDS")
            for key in range(10, 50 if how == "reset and more" else 11):
                query(f"INSERT INTO d.t VALUES ({key}), ({key + 1000}), ({key + 2000})")
            lost(follow, "its log was reset|another database")


@pytest.mark.parametrize(("same", "more"), [(False, 0), (False, 1), (False, 60), (True, 0), (True, 3)])
def test_an_older_copy_is_restored(own: MySqlServer, config: Config, same: bool, more: int) -> None:
    """It has written something else since; ``same``: in a transaction of the same size as the one that is published."""
    query, data = own.query, own.folder / "data"
    query("CREATE TABLE d.t (id int PRIMARY KEY)")
    with followed(own, "d", config, t="id") as follow:
        with follow.running():
            query("INSERT INTO d.t VALUES (1)")
            follow.equal()
        for command in ("keep", "restore"):
            query("SHUTDOWN")
            assert own._server is not None
            own._server.wait(PATIENCE)
            kept = own.folder / "kept"
            if command == "keep":
                shutil.copytree(data, kept)
            else:
                shutil.rmtree(data)
                shutil.move(kept, data)
            stat = own.folder.stat()
            for path in [data, *data.rglob("*")]:
                with contextlib.suppress(FileNotFoundError):
                    shutil.chown(path, stat.st_uid, stat.st_gid)
            own.start_again()
            if command == "keep":
                with follow.running():
                    query("INSERT INTO d.t VALUES (2)")
                    follow.equal()
        if same:
            query("INSERT INTO d.t VALUES (3)")
        for key in range(100, 100 + more):
            query(f"INSERT INTO d.t VALUES ({key}), ({key + 1000})")
        # MySQL's transactions have not always the same size.
        lost(follow, "made at .* older copy" if same and own.name == "MariaDB" else "older copy")


@contextlib.contextmanager
def replica_of(primary: MySqlServer, number: str = "2") -> Iterator[MySqlServer]:
    """Give a server that has what another one has, and follows it by GTID."""
    product = "mariadb" if primary.name == "MariaDB" else "mysql"
    primary.query(f"CREATE USER copier@'%' IDENTIFIED BY '{PASSWORD[:20]}'")
    primary.query("GRANT REPLICATION SLAVE ON *.* TO copier@'%'")
    with server_of(product, server_id=number, log_slave_updates="1") as server:
        if product == "mariadb":
            server.query("RESET MASTER")
            server.query("SET GLOBAL gtid_slave_pos = ''")
            server.query(
                f"CHANGE MASTER TO MASTER_HOST = '127.0.0.1', MASTER_PORT = {primary.port}, MASTER_USER = "
                f"'copier', MASTER_PASSWORD = '{PASSWORD[:20]}', MASTER_USE_GTID = slave_pos"
            )
            server.query("START SLAVE")
        else:
            server.query("RESET BINARY LOGS AND GTIDS")
            server.query(
                f"CHANGE REPLICATION SOURCE TO SOURCE_HOST = '127.0.0.1', SOURCE_PORT = {primary.port}, SOURCE_USER = "
                f"'copier', SOURCE_PASSWORD = '{PASSWORD[:20]}', SOURCE_AUTO_POSITION = 1, SOURCE_SSL = 1"
            )
            server.query("START REPLICA")
        yield server


def state_of(server: MySqlServer) -> str:
    name = "gtid_current_pos" if server.name == "MariaDB" else "gtid_executed"
    return str(server.query(f"SELECT @@GLOBAL.{name}")[0][0])


def has_all(server: MySqlServer, primary: MySqlServer) -> bool:
    if server.name == "MariaDB":
        return state_of(server).split("-")[-1] == state_of(primary).split("-")[-1]
    return server.query(f"SELECT GTID_SUBSET('{state_of(primary)}', @@GLOBAL.gtid_executed)")[0][0] == 1


def stop_replica(server: MySqlServer) -> None:
    server.query("STOP SLAVE" if server.name == "MariaDB" else "STOP REPLICA")


@pytest.mark.parametrize("lacks", [False, True])
@pytest.mark.parametrize("files", [0, 5])
def test_a_replica_takes_over(own: MySqlServer, config: Config, lacks: bool, files: int) -> None:
    """It is asked by GTID what follows; a replica that lacks the newest changes is refused."""
    for _ in range(files):
        own.query("FLUSH BINARY LOGS")
    own.query("CREATE TABLE d.t (id int PRIMARY KEY, n int)")
    own.query("CREATE TABLE d.u (id int PRIMARY KEY, n int)")
    own.query("INSERT INTO d.t VALUES " + ", ".join(f"({key}, 0)" for key in range(200)))
    with replica_of(own) as second, followed(own, "d", config, t="id", u="id") as follow:
        with follow.running(chunk_size=10):
            own.query("UPDATE d.t SET n = 1 WHERE id < 10")
            own.query("INSERT INTO d.u VALUES (1, 1)")
            follow.equal()
            own.query("UPDATE d.t SET n = 2 WHERE id < 10")
            follow.equal()
            until(lambda: has_all(second, own), PATIENCE, "the replica")
            if lacks:
                stop_replica(second)
                own.query("UPDATE d.t SET n = 3 WHERE id < 10")
                follow.equal()
        if not lacks:
            own.query("UPDATE d.u SET n = 3")  # is not captured there
            own.query("DELETE FROM d.t WHERE id = 1")
            until(lambda: has_all(second, own), PATIENCE, "the replica")
            stop_replica(second)
        follow.server = second
        second.query("INSERT INTO d.t VALUES (1000, 1)")
        if lacks:
            lost(follow, "lacked the newest|diverged")
            return
        second.query("CREATE TABLE d.late (id int PRIMARY KEY)")
        for life in range(3):
            with follow.running(chunk_size=10):
                follow.equal()
                second.query(f"INSERT INTO d.t VALUES ({2000 + life}, 1)")
                second.query(f"UPDATE d.u SET n = {life}")
                follow.equal()
        with follow.running(batch_rows=10):
            second.query("UPDATE d.t SET n = 9")
            follow.equal()


def test_a_replica_takes_over_while_tables_are_read(
    own: MySqlServer, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.cdc.mysql.test_mysql_changes import hold_back

    own.query("CREATE TABLE d.t (id int PRIMARY KEY, n int)")
    own.query("INSERT INTO d.t VALUES " + ", ".join(f"({key}, 0)" for key in range(100)))
    free = hold_back(monkeypatch, 3)
    with replica_of(own) as second, followed(own, "d", config, t="id") as follow:
        with follow.running(chunk_size=10, batch_rows=5):
            follow.until(lambda: len(follow.copies["t"].rows) == 30, "a part")
            own.query("UPDATE d.t SET n = 1 WHERE id < 10 OR id > 90")
            follow.until(lambda: follow.copies["t"].rows[(9,)]["n"] == 1, "changes")
        own.query("UPDATE d.t SET n = 2 WHERE id BETWEEN 25 AND 35")
        until(lambda: has_all(second, own), PATIENCE, "the replica")
        stop_replica(second)
        follow.server = second
        second.query("DELETE FROM d.t WHERE id IN (5, 95)")
        free.set()
        for _ in range(2):
            with follow.running(chunk_size=10, batch_rows=5):
                follow.equal()
                second.query("UPDATE d.t SET n = n + 1")
                follow.equal()
