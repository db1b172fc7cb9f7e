"""The schemas that a topic has, or had."""

from __future__ import annotations

import hashlib

from jobpipe.store.catalog.catalog_file import Database


class TopicSchemas:
    """The schemas of one log, each as (id, Arrow schema message, Spark's JSON)."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def add(self, arrow: bytes, spark_json: str | None) -> int:
        """Return the id of a schema, the same for the same one; it is the topic's newest now."""
        fingerprint = hashlib.sha256(len(arrow).to_bytes(8, "big") + arrow + (spark_json or "").encode()).digest()
        newest = self._db.one("SELECT id, fingerprint FROM schemas WHERE id = (SELECT schema_id FROM meta)")
        if newest is not None and newest["fingerprint"] == fingerprint:
            return int(newest["id"])
        with self._db.write():
            self._db.execute(
                "INSERT INTO schemas(fingerprint, arrow, spark) VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
                *(fingerprint, arrow, spark_json),
            )
            number = int(self._db.value("SELECT id FROM schemas WHERE fingerprint = ?", fingerprint))
            self._db.execute("UPDATE meta SET schema_id = ?", number)
        return number

    def newest(self) -> tuple[int, bytes, str | None] | None:
        """Return the newest schema; None while there is none."""
        number = self._db.value("SELECT schema_id FROM meta")
        return None if number is None else self.get(number)

    def get(self, number: int) -> tuple[int, bytes, str | None] | None:
        """Return a schema; None if it is not known."""
        row = self._db.one("SELECT id, arrow, spark FROM schemas WHERE id = ?", number)
        return None if row is None else (row["id"], row["arrow"], row["spark"])
