"""What the customers of the shop do: they sign up, buy, change their minds and cancel, in transactions."""

from __future__ import annotations

import random
from typing import Any, TypeAlias

import psycopg

Connection: TypeAlias = "psycopg.Connection[tuple[Any, ...]]"
CUSTOMERS, PRODUCTS, ORDERS = 200, 50, 2_000


class Customers:
    """Changes the shop's tables, one transaction after the other.

    Attributes:
        cancellations: orders that were cancelled.
    """

    def __init__(self, connection: Connection, seed: int) -> None:
        self.cancellations = 0
        self._connection = connection
        self._chance = random.Random(seed)  # noqa: S311 - what people do, no secret
        self._next = ORDERS + 1

    def open_the_shop(self) -> None:
        """Fill the tables: what the capture reads before it follows changes."""
        run = self._connection.execute
        run(
            "INSERT INTO shop.customers SELECT n, 'customer ' || n, 'city ' || n %% 7 FROM generate_series(1, %s) n",
            (CUSTOMERS,),
        )
        run("INSERT INTO shop.products SELECT n, 'product ' || n, n FROM generate_series(1, %s) n", (PRODUCTS,))
        run(
            "INSERT INTO shop.orders SELECT n, 1 + n %% %s, 'paid', n, now() FROM generate_series(1, %s) n",
            (CUSTOMERS, ORDERS),
        )
        run("INSERT INTO shop.order_items SELECT id, 1 + id %% %s, 1 FROM shop.orders", (PRODUCTS,))

    def act(self) -> None:
        """Do one thing, as one transaction."""
        with self._connection.transaction():
            self._chance.choices([self._buy, self._change_mind, self._cancel, self._forget], [5, 3, 1, 1])[0]()

    def _buy(self) -> None:
        order, self._next = self._next, self._next + 1
        products = self._chance.sample(range(1, PRODUCTS + 1), self._chance.randint(1, 4))
        self._connection.execute(
            "INSERT INTO shop.orders SELECT %s, %s, 'new', sum(price), clock_timestamp() FROM shop.products "
            "WHERE id = ANY (%s)",
            (order, self._chance.randint(1, CUSTOMERS), products),
        )
        for product in products:
            self._connection.execute("INSERT INTO shop.order_items VALUES (%s, %s, 1)", (order, product))

    def _change_mind(self) -> None:
        self._connection.execute(
            "UPDATE shop.orders SET total = total + 1, changed_at = clock_timestamp() WHERE id = %s "
            "AND status <> 'cancelled'",
            (self._order(),),
        )

    def _cancel(self) -> None:
        done = self._connection.execute(
            "UPDATE shop.orders SET status = 'cancelled', changed_at = clock_timestamp() WHERE id = %s "
            "AND status <> 'cancelled'",
            (self._order(),),
        )
        self.cancellations += done.rowcount

    def _forget(self) -> None:
        """A customer wants an order forgotten: it is deleted with its items."""
        order = self._order()
        self._connection.execute("DELETE FROM shop.order_items WHERE order_id = %s", (order,))
        self._connection.execute("DELETE FROM shop.orders WHERE id = %s", (order,))

    def _order(self) -> int:
        return self._chance.randrange(1, self._next)
