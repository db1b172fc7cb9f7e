"""The program of docs/cdc-mysql.md, run as it stands there, with the address of the test's own server."""

from __future__ import annotations

import threading

import pytest

from jobpipe import cdc
from jobpipe.cdc.mariadb.mysql_capture import MysqlCapture
from jobpipe.config import Config
from tests.cdc.capturing import PATIENCE, published
from tests.databases.mysql_server import PASSWORD, SUPERUSER, MySqlServer
from tests.docs.pages import block

pytestmark = [pytest.mark.zookeeper, pytest.mark.timeout(120)]

PAGE = "docs/cdc-mysql.md"


@pytest.mark.slow
def test_the_program(
    logged: MySqlServer, config: Config, settings_of_test: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A database of the page's own name; the program ends by ``stop``."""
    for key, value in settings_of_test.items():
        monkeypatch.setenv(f"JOBPIPE__{key.removeprefix('jobpipe.').replace('.', '__').upper()}", value)
    monkeypatch.setenv("SHOP_PASSWORD", PASSWORD)
    made: list[MysqlCapture] = []
    real = cdc.mysql

    def here(**given: object) -> MysqlCapture:
        place = {"hostname": "127.0.0.1", "port": logged.port, "username": SUPERUSER}
        made.append(real(**{**given, **place, "required_subscribers": {"shop.orders": ("first",)}}))
        return made[0]

    monkeypatch.setattr(cdc, "mysql", here)
    logged.query("CREATE DATABASE shop")
    try:
        logged.query("CREATE TABLE orders (id int PRIMARY KEY)", "shop")
        logged.query("CREATE TABLE customers (id int PRIMARY KEY)", "shop")
        logged.query("INSERT INTO orders VALUES (7)", "shop")
        code = compile(block(PAGE, "capture"), f"{PAGE}:capture", "exec")
        thread = threading.Thread(target=exec, args=(code, {}), daemon=True)
        thread.start()
        try:
            assert [row["after"] for row in published("shop.orders", 1, config)] == [{"id": 7}]
        finally:
            made[0].stop()
            thread.join(PATIENCE)
        assert not thread.is_alive()
    finally:
        logged.query("DROP DATABASE shop")
