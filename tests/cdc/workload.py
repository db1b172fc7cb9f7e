"""Random transactions: inserts, updates, deletes, changed keys, truncates, savepoints, rollbacks, long values."""

from __future__ import annotations

import random
import threading
from abc import ABC, abstractmethod
from typing import Any

import psycopg

from tests.databases.postgres import Postgres

COLUMNS = (
    "id int PRIMARY KEY, n bigint, name text, amount numeric(12,2), at timestamptz, raw bytea, ok boolean, long text"
)


class Writers(ABC):
    """Threads that write, each on a connection of its own.

    Args:
        seed: the first one's; the others' follow.

    Attributes:
        transactions: that were committed.
    """

    def __init__(self, seed: int, writers: int) -> None:
        self.transactions = 0
        self._errors: list[BaseException] = []
        self._stop = threading.Event()
        chances = [random.Random(seed + number) for number in range(writers)]
        self._threads = [threading.Thread(target=self._write, args=(chance,), daemon=True) for chance in chances]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End the writers; raise what one of them has met."""
        self._stop.set()
        for thread in self._threads:
            thread.join(60)
        if self._errors:
            raise self._errors[0]

    def _write(self, chance: random.Random) -> None:
        try:
            while not self._stop.is_set():
                self._write_on(chance)
        except BaseException as error:
            self._errors.append(error)

    @abstractmethod
    def _write_on(self, chance: random.Random) -> None:
        """Write on one connection until a stop, or until it is lost."""


class Workload(Writers):
    """Writers of one table.

    Args:
        table: with :data:`COLUMNS`.
        keys: so many different ones.
        truncates: whether the table is emptied now and then.
    """

    def __init__(
        self, server: Postgres, table: str, seed: int, *, writers: int = 3, keys: int = 2000, truncates: bool = True
    ) -> None:
        self._server = server
        self._table = table
        self._keys = keys
        self._truncates = truncates
        super().__init__(seed, writers)

    def _write_on(self, chance: random.Random) -> None:
        try:
            with self._server.connect() as connection:
                while not self._stop.is_set():
                    self._transaction(connection, chance)
        except (psycopg.errors.DeadlockDetected, psycopg.errors.UniqueViolation):
            pass
        except psycopg.OperationalError:  # the server was killed
            self._stop.wait(0.2)

    def _transaction(self, connection: psycopg.Connection[Any], chance: random.Random) -> None:
        class Undone(Exception):
            pass

        try:
            with connection.transaction():
                for _ in range(chance.choice([1, 1, 2, 5, 40])):
                    if chance.random() < 0.15:
                        try:
                            with connection.transaction():  # a savepoint
                                self._change(connection, chance)
                                if chance.random() < 0.4:
                                    raise Undone
                        except Undone:
                            pass
                    else:
                        self._change(connection, chance)
                if chance.random() < 0.1:
                    raise Undone
        except Undone:
            return
        self.transactions += 1

    def _change(self, connection: psycopg.Connection[Any], chance: random.Random) -> None:
        key, other = chance.randrange(self._keys), chance.randrange(self._keys)
        table, kind = self._table, chance.random()
        if kind < 0.4:
            long = "".join(chance.choices("abcdefghij", k=3000)) if chance.random() < 0.1 else None
            connection.execute(
                f"INSERT INTO {table} VALUES (%s, %s, %s, %s, clock_timestamp(), %s, %s, %s) ON CONFLICT (id) DO "
                "UPDATE SET n = excluded.n, name = excluded.name",
                (
                    *(key, chance.randrange(1 << 60), chance.choice([None, "", "a,b", 'q"\n', "é€\\", f"n{key}"])),
                    *(chance.randrange(10**8) / 100, bytes([key % 256]) * 3, chance.random() < 0.5, long),
                ),
            )
        elif kind < 0.7:
            connection.execute(f"UPDATE {table} SET n = n + 1, name = %s WHERE id = %s", (f"u{other}", key))
        elif kind < 0.75:
            connection.execute(f"UPDATE {table} SET amount = amount + 1 WHERE id BETWEEN %s AND %s", (key, key + 20))
        elif kind < 0.85:
            connection.execute(
                f"UPDATE {table} SET id = %s WHERE id = %s AND NOT EXISTS (SELECT FROM {table} WHERE id = %s)",
                (other + self._keys, key, other + self._keys),
            ) if chance.random() < 0.3 else connection.execute(f"DELETE FROM {table} WHERE id = %s", (key,))
        elif kind < 0.9999 or not self._truncates:
            connection.execute(f"DELETE FROM {table} WHERE id = %s", (key + self._keys,))
        else:
            connection.execute(f"TRUNCATE {table}")
