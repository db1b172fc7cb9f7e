"""The report of the example: the newest totals of each customer, as a CSV file."""

from __future__ import annotations

import csv
import os
from pathlib import Path

from pyspark.sql import DataFrame

COLUMNS = ("customer", "orders", "amount")


class Report:
    """Keeps one line for each customer. A micro-batch that is repeated writes the same lines again."""

    def __init__(self, file: str) -> None:
        self.file = Path(file)

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """Write the file again, with the totals that changed."""
        lines = self.read()
        for row in batch.toLocalIterator():
            known = lines.get(row.customer)
            if known is None or int(known["orders"]) < row.orders:  # a count only grows
                lines[row.customer] = {name: str(row[name]) for name in COLUMNS}
        self.file.parent.mkdir(parents=True, exist_ok=True)
        unfinished = self.file.with_suffix(".unfinished")
        with unfinished.open("w", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS)
            writer.writeheader()
            writer.writerows(lines[customer] for customer in sorted(lines))
        os.replace(unfinished, self.file)

    def read(self) -> dict[str, dict[str, str]]:
        """Return the lines by customer."""
        if not self.file.exists():
            return {}
        with self.file.open(newline="") as file:
            return {line["customer"]: line for line in csv.DictReader(file)}
