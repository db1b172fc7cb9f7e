"""The demo of change data: a shop's PostgreSQL, whose orders are copied to MariaDB while customers change them.

    python examples/shop/run.py        # or: make demo-cdc

Starts a PostgreSQL and a MariaDB of its own (Debian's, which must be installed), runs the pipeline of this folder, and
checks that the copy equals the table, row by row. Writes to .demo-cdc, or another folder --work, and leaves nothing
running. Exit code 0 if every fact is right, 2 if a server is not installed.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pymysql
import yaml
from customers import Customers

import jobpipe
from jobpipe.config import load
from jobpipe_registry.embedded.embedded_zookeeper import EmbeddedZooKeeper

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))  # a clone, whose tests start databases as well
from tests.databases import mariadb, mysql_server, postgres  # noqa: E402

JOBPIPE = Path(sys.executable).with_name("jobpipe")
COLUMNS = "id, customer, status, total, changed_at"
BEGIN_SECONDS, END_SECONDS, QUIET_SECONDS = 180.0, 60.0, 5.0


def rows_of_postgres(shop: postgres.Postgres) -> list[tuple[Any, ...]]:
    """Return the orders of the shop."""
    rows = shop.query(f"SELECT {COLUMNS} FROM shop.orders ORDER BY id")  # noqa: S608 - a constant
    return [(*row[:4], row[4].replace(tzinfo=None)) for row in rows]


def rows_of_copy(copy: mariadb.MariaDb) -> list[tuple[Any, ...]]:
    """Return the orders of the copy; none if its table is not there yet."""
    with contextlib.suppress(pymysql.ProgrammingError):
        return copy.query(f"SELECT {COLUMNS} FROM orders ORDER BY id", "shop")  # noqa: S608 - a constant
    return []


def wait(found: Callable[[], bool], seconds: float, jobs: subprocess.Popen[bytes], what: str) -> None:
    """Wait until something is true, while the jobs run."""
    deadline = time.monotonic() + seconds
    while not found():
        if jobs.poll() is not None:
            sys.exit(f"the jobs have ended with {jobs.returncode}, before {what}")
        if time.monotonic() > deadline:
            sys.exit(f"not within {seconds:g} s: {what}")
        time.sleep(0.2)


def run(work: Path, transactions: int, seed: int) -> int:
    """Run it all; return the exit code."""
    shutil.rmtree(work, ignore_errors=True)
    home = work / "home"
    home.mkdir(parents=True, mode=0o700)
    config = work / "jobpipe.yaml"
    settings = {"home": str(home), "discovery": {"timeout": "5min"}, "retention": {"time": "24h"}}
    config.write_text(yaml.safe_dump({"jobpipe": settings}))
    zookeeper = EmbeddedZooKeeper(home)
    with contextlib.ExitStack() as stack:
        stack.callback(zookeeper.stop)
        zookeeper.ensure()
        shop = stack.enter_context(postgres.Postgres(wal_level="logical", max_slot_wal_keep_size="1GB"))
        copy = stack.enter_context(mariadb.MariaDb())
        copy.query("CREATE DATABASE shop CHARACTER SET utf8mb4")
        connection = stack.enter_context(shop.connect())
        for statement in (HERE / "schema.sql").read_text().split(";"):
            if statement.strip():
                connection.execute(statement.encode())
        customers = Customers(connection, seed)
        customers.open_the_shop()
        command = [JOBPIPE, "--config", config, "pipeline", "run", HERE / "pipeline.yaml"]
        command += ["--set", f"port={shop.port}", "--set", f"copy={copy.url('shop')}"]
        environ = {**os.environ, "SHOP_PASSWORD": postgres.PASSWORD, "COPY_PASSWORD": mysql_server.PASSWORD}
        jobs = subprocess.Popen(command, env={**environ, "SPARK_LOCAL_IP": "127.0.0.1"}, start_new_session=True)
        stack.callback(end, jobs)
        wait(lambda: len(rows_of_copy(copy)) > 0, BEGIN_SECONDS, jobs, "the first rows of the copy")
        print(f"The copy has begun; {transactions:,} transactions of customers follow.", flush=True)
        for _ in range(transactions):
            customers.act()
            time.sleep(0.002)
        changed = time.monotonic()
        wait(lambda: rows_of_copy(copy) == rows_of_postgres(shop), END_SECONDS, jobs, "a copy that equals the table")
        late = time.monotonic() - changed
        found = alerts(config)
        facts = [
            ("rows of the copy are those of the shop", len(rows_of_postgres(shop)), len(rows_of_copy(copy))),
            ("orders cancelled, and told by the flow", customers.cancellations, found),
        ]
    for what, expected, seen in facts:
        print(f"{'ok ' if expected == seen else 'NO '} {what}: {expected} = {seen}")
    print(f"The copy equals the table row by row, {late:.1f} s after the last transaction. Seed {seed}.")
    return 0 if all(expected == seen for _, expected, seen in facts) else 1


def alerts(config: Path) -> int:
    """Return how many cancellations the flow has told of, once no more come."""
    with jobpipe.subscribe("cancelled", name="demo", starting="earliest", config=load(config, environ={})) as batches:
        return sum(batch.num_rows for batch in batches.batches(timeout=QUIET_SECONDS))


def end(jobs: subprocess.Popen[bytes]) -> None:
    """End the jobs: as Ctrl-C does, then for good."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        if jobs.poll() is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            jobs.send_signal(number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            jobs.wait(30.0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, default=Path(".demo-cdc"), help="folder, emptied first (.demo-cdc)")
    parser.add_argument("--transactions", type=int, default=5_000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    if missing := [what for what in (postgres.missing(), mariadb.missing()) if what is not None]:
        print(f"The demo needs {' and '.join(missing)}; on Debian: apt install postgresql mariadb-server")
        return 2
    work = args.work.absolute()
    if work.exists() and any(work.iterdir()) and not (work / "jobpipe.yaml").exists():
        print(f"{work} is not empty, and no demo has made it; give another folder: --work")
        return 2
    print(f"A shop's PostgreSQL and a MariaDB are started, and three jobs; this takes a minute. All is in {work}.")
    return run(work, args.transactions, args.seed)


if __name__ == "__main__":
    sys.exit(main())
