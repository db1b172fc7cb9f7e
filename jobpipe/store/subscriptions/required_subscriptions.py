"""Which subscriptions a publisher requires: what it declared when it opened the topic, and what was changed since.

A change holds until the publisher declares other names than it did before the change. A coordinator or a publisher
that is started again declares the same ones, and so undoes none.
"""

from __future__ import annotations

from collections.abc import Iterable

from jobpipe.store.catalog.catalog_file import Database
from jobpipe.store.subscriptions.positions import Subscriptions


class RequiredSubscriptions:
    """The required subscriptions of one log. Every change is durable at once."""

    def __init__(self, database: Database, subscriptions: Subscriptions) -> None:
        self._db = database
        self._subscriptions = subscriptions

    def names(self) -> frozenset[str]:
        """Return the names that are required now, whether they exist or were dropped."""
        rows = self._db.all("SELECT name FROM required WHERE coalesce(changed, declared) = 1")
        return frozenset(row["name"] for row in rows)

    def declare(self, names: Iterable[str]) -> frozenset[str]:
        """Take what a publisher declares; return the names that are required then. Missing ones are created.

        Names that were changed stay as they are, unless it declared others before.
        """
        wanted = frozenset(names)

        def decide() -> frozenset[str]:
            if wanted != {row["name"] for row in self._db.all("SELECT name FROM required WHERE declared = 1")}:
                self._db.execute("DELETE FROM required")
                self._db.execute_many("INSERT INTO required VALUES (?, 1, NULL)", [(name,) for name in sorted(wanted)])
            return self.names()

        return self._subscriptions.require(decide)

    def change(self, name: str, *, required: bool) -> frozenset[str]:
        """Make a name required, created if it is missing, or not required any more; return those that are."""

        def decide() -> frozenset[str]:
            self._db.execute("INSERT OR IGNORE INTO required VALUES (?, 0, NULL)", name)
            self._db.execute("UPDATE required SET changed = ? WHERE name = ?", int(required), name)
            self._db.execute("DELETE FROM required WHERE declared = 0 AND changed = 0")
            return self.names()

        return self._subscriptions.require(decide, only=name)
