"""The program of docs/cdc-mysql.md, run as it stands there, with the address of the test's own server."""

from __future__ import annotations

import pytest

from jobpipe.config import Config
from tests.cdc.capturing import page_program, published
from tests.databases.mysql_server import PASSWORD, SUPERUSER, MySqlServer
from tests.docs.pages import block

pytestmark = [pytest.mark.zookeeper, pytest.mark.timeout(120)]

PAGE = "docs/cdc-mysql.md"


@pytest.mark.slow
def test_the_program(
    logged: MySqlServer, config: Config, settings_of_test: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A database of the page's own name."""
    logged.query("CREATE DATABASE shop")
    try:
        logged.query("CREATE TABLE orders (id int PRIMARY KEY)", "shop")
        logged.query("CREATE TABLE customers (id int PRIMARY KEY)", "shop")
        logged.query("INSERT INTO orders VALUES (7)", "shop")
        place = {"port": logged.port, "username": SUPERUSER, "required_subscribers": {"shop.orders": ("first",)}}
        with page_program(block(PAGE, "capture"), "mysql", settings_of_test, monkeypatch, PASSWORD, **place):
            assert [row["after"] for row in published("shop.orders", 1, config)] == [{"id": 7}]
    finally:
        logged.query("DROP DATABASE shop")
