"""The programs of docs/cdc.md, run as they stand there, with the address of the test's own database."""

from __future__ import annotations

from typing import Any

import pytest

from jobpipe import cdc
from jobpipe.config import Config
from tests.bus.kit import until
from tests.cdc.capturing import PATIENCE, page_program, published
from tests.databases.postgres import PASSWORD, SUPERUSER, Postgres
from tests.docs.pages import block

pytestmark = [pytest.mark.zookeeper, pytest.mark.timeout(120)]

PAGE = "docs/cdc.md"


@pytest.mark.slow
def test_the_program(
    decoded: Postgres, config: Config, settings_of_test: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A database of the page's own name."""
    decoded.query("CREATE DATABASE shop")
    with decoded.connect(database="shop") as shop:
        shop.execute("CREATE TABLE orders (id int PRIMARY KEY)")
        shop.execute("CREATE TABLE customers (id int PRIMARY KEY)")
        shop.execute("INSERT INTO orders VALUES (7)")
    place = {"port": decoded.port, "username": SUPERUSER, "required_subscribers": {"public.orders": ("first",)}}
    with page_program(block(PAGE, "capture"), "postgres", settings_of_test, monkeypatch, PASSWORD, **place):
        assert [row["after"] for row in published("public.orders", 1, config)] == [{"id": 7}]
    until(
        lambda: not decoded.query("SELECT slot_name FROM pg_replication_slots WHERE active"),
        PATIENCE,
        "the stream's end",
    )
    with decoded.connect(database="shop") as shop:
        shop.execute("SELECT pg_drop_replication_slot('jobpipe_shop')")
    decoded.query("DROP DATABASE shop WITH (FORCE)")


def test_the_routes() -> None:
    known: dict[str, Any] = {"cdc": cdc}
    exec(compile(block(PAGE, "route"), f"{PAGE}:route", "exec"), known)  # noqa: S102 - our own page
    options = known["capture"].options
    assert [options.topic_of(*each) for each in (("sales_12", "orders"), ("public", "t"), ("other", "t"))] == [
        *("sales-orders", "t", "other.t")
    ]
