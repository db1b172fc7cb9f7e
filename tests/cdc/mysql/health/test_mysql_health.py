"""What a capture of a real MariaDB or MySQL tells of the server: while it keeps up, and while a topic has no room."""

from __future__ import annotations

import os

import pytest

from jobpipe.cdc import capture_health
from jobpipe.config import Config, load
from tests.bus.kit import until
from tests.cdc.capturing import PATIENCE, Copy, Follower, settled
from tests.cdc.health.test_source_health import SMALL, until_source
from tests.cdc.mysql.mysql_capturing import options, running
from tests.databases.mysql_server import MySqlServer

pytestmark = [pytest.mark.zookeeper, pytest.mark.slow, pytest.mark.timeout(120)]


def test_lag_grows_while_the_server_hangs(
    logged: MySqlServer, database: str, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What its log has meanwhile is not known; once it answers, the capture keeps up."""
    monkeypatch.setattr(capture_health, "REPORT_SECONDS", 0.1)
    logged.query("CREATE TABLE t (id int PRIMARY KEY)", database)
    with running(options(logged, database, ["t"]), config):
        until_source("t", config, lambda each: each.behind_seconds == 0, "a capture that keeps up")
        with logged.suspended():
            late = until_source("t", config, lambda each: (each.behind_seconds or 0) > 6, "the lag")
            assert late.age < 5
        until_source("t", config, lambda each: each.behind_seconds == 0, "the lag's end")


def test_lag_grows_while_the_topic_has_no_room(
    logged: MySqlServer, database: str, settings_of_test: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In seconds; once its subscription reads, it ends. What the log has for the capture is what it lags by."""
    monkeypatch.setattr(capture_health, "REPORT_SECONDS", 0.1)
    logged.query("CREATE TABLE t (id int PRIMARY KEY, long_text mediumtext)", database)
    config = load(overrides={**settings_of_test, **SMALL}, environ={})
    given = options(logged, database, ["t"], required_subscribers={"t": ("copy",)}, batch_rows=5)
    with running(given, config) as capture:
        well = until_source("t", config, lambda each: each.behind_seconds == 0, "a capture that keeps up")
        assert well.position.startswith("binlog.")
        assert (well.retained_bytes, well.safe_bytes) == (well.behind_bytes, None)
        for number in range(80):
            logged.query(f"INSERT INTO t VALUES ({number}, '{os.urandom(20_000).hex()}')", database)
        late = until_source("t", config, lambda each: (each.behind_seconds or 0) > 2, "the lag")
        more = until_source("t", config, lambda each: (each.behind_seconds or 0) > 3, "more of it")
        assert late.age < 5
        assert more.position == late.position
        copy = Copy("id")
        follower = Follower("t", copy, config)
        try:
            follower.until(lambda: len(copy.rows) == 80, "all rows")
        finally:
            follower.close()
        until(lambda: settled(capture), PATIENCE, "the end")
        until_source("t", config, lambda each: each.behind_seconds == 0 and not each.behind_bytes, "the lag's end")
