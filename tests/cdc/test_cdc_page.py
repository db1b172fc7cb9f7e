"""The programs of docs/cdc.md, run as they stand there, with the address of the test's own database."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from jobpipe import cdc
from jobpipe.cdc.postgresql.postgres_capture import PostgresCapture
from jobpipe.config import Config
from tests.bus.kit import until
from tests.cdc.capturing import PATIENCE, published
from tests.databases.postgres import PASSWORD, SUPERUSER, Postgres
from tests.docs.pages import block

pytestmark = [pytest.mark.zookeeper, pytest.mark.timeout(120)]

PAGE = "docs/cdc.md"


def run(name: str, known: dict[str, Any]) -> dict[str, Any]:
    exec(compile(block(PAGE, name), f"{PAGE}:{name}", "exec"), known)  # noqa: S102 - our own page
    return known


@pytest.mark.slow
def test_the_program(
    decoded: Postgres, config: Config, settings_of_test: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A database of the page's own name; the program ends by ``stop``."""
    for key, value in settings_of_test.items():
        monkeypatch.setenv(f"JOBPIPE__{key.removeprefix('jobpipe.').replace('.', '__').upper()}", value)
    monkeypatch.setenv("SHOP_PASSWORD", PASSWORD)
    made: list[PostgresCapture] = []
    real = cdc.postgres

    def here(**given: Any) -> PostgresCapture:
        place = {"hostname": "127.0.0.1", "port": decoded.port, "username": SUPERUSER}
        made.append(real(**{**given, **place, "required_subscribers": {"public.orders": ("first",)}}))
        return made[0]

    monkeypatch.setattr(cdc, "postgres", here)
    decoded.query("CREATE DATABASE shop")
    with decoded.connect(database="shop") as shop:
        shop.execute("CREATE TABLE orders (id int PRIMARY KEY)")
        shop.execute("CREATE TABLE customers (id int PRIMARY KEY)")
        shop.execute("INSERT INTO orders VALUES (7)")
    thread = threading.Thread(target=run, args=("capture", {}), daemon=True)
    thread.start()
    try:
        assert [row["after"] for row in published("public.orders", 1, config)] == [{"id": 7}]
    finally:
        made[0].stop()
        thread.join(PATIENCE)
    assert not thread.is_alive()
    until(
        lambda: not decoded.query("SELECT slot_name FROM pg_replication_slots WHERE active"),
        PATIENCE,
        "the stream's end",
    )
    with decoded.connect(database="shop") as shop:
        shop.execute("SELECT pg_drop_replication_slot('jobpipe_shop')")
    decoded.query("DROP DATABASE shop WITH (FORCE)")


def test_the_routes() -> None:
    options = run("route", {"cdc": cdc})["capture"].options
    assert [options.topic_of(*each) for each in (("sales_12", "orders"), ("public", "t"), ("other", "t"))] == [
        *("sales-orders", "t", "other.t")
    ]
