"""The oracle of delivery tests: numbered rows, a journal of what was sealed, and a checker of what arrived.

    rows = NumberedRows("orders", partitions=2, rows=100)
    journal = Journal()
    with journal.sealing(0, rows.ranges(0)):            # intended, then sealed: a crash between leaves it open
        publisher.seal("query", 0, rows.tables(0))
    checker = Checker(rows, journal)
    for batch in subscription.batches(timeout=5):
        checker.take(batch)
    checker.check()                                     # no loss, no duplicate, order, no damage, nothing unsealed

It knows neither Spark nor any other part of jobpipe, so it can also check what a user's own job delivered.
"""

from jobpipe.testing.delivery_checker import Checker, Report
from jobpipe.testing.journal import Journal
from jobpipe.testing.numbered_rows import SCHEMA, NumberedRows, Ranges

__all__ = ["SCHEMA", "Checker", "Journal", "NumberedRows", "Ranges", "Report"]
