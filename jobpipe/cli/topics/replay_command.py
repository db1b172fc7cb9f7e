"""``jobpipe topics replay``: a range of a topic, published into another one."""

from __future__ import annotations

import hashlib
import json
import logging
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

import click

from jobpipe.cli.common.command_context import Settings, json_option, pass_settings
from jobpipe.cli.common.offset_argument import PlaceType
from jobpipe.cli.common.output import emit_json
from jobpipe.errors import ConfigError, DataLoss, RowTooLarge, SchemaMismatch
from jobpipe.plural import counted
from jobpipe.store.reading.boundary import Boundary

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa

    from jobpipe.cli.common.spool_reader import Spools
    from jobpipe.config import Config
    from jobpipe.operations.reader_operations import Bounds
    from jobpipe.publishing.appender import Appender, BatchShape, NewRows
    from jobpipe.store.catalog.position import Position
    from jobpipe.subscribing.topic_reader import TopicReader

log = logging.getLogger(__name__)

PIECES = 2**20  # of one batch: the numbers of what is published
PIECE_BYTES = 2 * 1024 * 1024
PIECE_ROWS = 5000  # in the other topic they may have more columns, and so more bytes


@click.command()
@click.argument("topic")
@click.option(
    "--from",
    "starting",
    type=PlaceType("earliest"),
    required=True,
    metavar="earliest|OFFSET|TIME",
    help="The first batch.",
)
@click.option(
    "--to",
    "ending",
    type=PlaceType("latest"),
    required=True,
    metavar="latest|OFFSET|TIME",
    help="The batch before which to end; latest: after the newest one of now.",
)
@click.option("--into", required=True, metavar="TOPIC", help="Where to publish.")
@click.option("--where", metavar="SQL", help="Only rows for which this condition of Spark SQL holds.")
@click.option("--name", default="", help="Under another name, a range is published again.")
@click.option("--force", is_flag=True, help="Allow a topic to be replayed into itself.")
@json_option
@pass_settings
def replay(
    settings: Settings,
    topic: str,
    starting: Boundary,
    ending: Boundary,
    into: str,
    where: str | None,
    name: str,
    force: bool,
    as_json: bool,
) -> None:
    """Publish the rows of a range of TOPIC into another topic, batch by batch, in their order.

    Each batch is published once, a large one in pieces: which ones were is stored in the other topic, for a week. So a
    replay that was killed may be called again, with the same --from as an offset, --where and --name; with a later
    --to it goes on.

    The other topic gets the rows next to what its publisher publishes. Its schema must have all columns of the rows. If
    it does not exist, it is made, and given up at the end. Where no publisher serves a topic, its spool on this host
    is used; for the other one only if it is the newest. To replay a topic into itself needs --force: its subscriptions
    get the rows twice.

    It needs the right `read` on TOPIC, and `publish` on the other one. Rows that were removed are an error, and nothing
    after them is published.

    JSON keys: from, to (offsets), rows, batches, before (batches that were published by an earlier call).
    """
    if into == topic and not force:
        raise click.UsageError(
            f"{topic} would be replayed into itself, and its subscriptions would get the rows twice; --force does it"
        )
    with ExitStack() as stack:
        work = _Replay(stack, settings.config, topic, into, where)
        start, end = work.range(starting, ending)
        if (starting.kind, ending.kind) != ("offset", "offset"):
            click.echo(f"offsets {start.n} to {end.n}; after a failure, go on with --from {start.n}", err=True)
        done = work.run(start, end, name)
    if as_json:
        emit_json({"from": start.n, "to": end.n, "rows": done.rows, "batches": done.batches, "before": done.before})
        return
    click.echo(f"published {counted(done.rows, 'row')} of {counted(done.batches, 'batch')} of {topic} into {into}")
    if done.before:
        click.echo(f"{counted(done.before, 'batch')} were published before")


def pieces_of(batches: Iterable[tuple[pa.RecordBatch, int]]) -> Iterator[list[tuple[pa.RecordBatch, int]]]:
    """Yield record batches, each with a number, in lists that are small enough to be published next to a publisher."""
    piece: list[tuple[pa.RecordBatch, int]] = []
    rows = size = 0
    for whole, number in batches:
        waiting = [whole]
        while waiting:
            batch = waiting.pop()
            if batch.num_rows > 1 and (batch.nbytes > PIECE_BYTES or batch.num_rows > PIECE_ROWS):
                half = batch.num_rows // 2
                waiting += [batch.slice(half), batch.slice(0, half)]
                continue
            if piece and (size + batch.nbytes > PIECE_BYTES or rows + batch.num_rows > PIECE_ROWS):
                yield piece
                piece, rows, size = [], 0, 0
            if batch.num_rows:
                piece.append((batch, number))
                rows, size = rows + batch.num_rows, size + batch.nbytes
    if piece:
        yield piece


@dataclass
class _Done:
    """How many rows and batches were published, and how many batches an earlier call had published."""

    rows: int = 0
    batches: int = 0
    before: int = 0


class _Replay:
    """One replay; what is opened is closed with ``stack``."""

    def __init__(self, stack: ExitStack, config: Config, topic: str, into: str, where: str | None) -> None:
        from jobpipe.cli.common.row_filter import RowFilter
        from jobpipe.cli.common.spool_reader import Spools
        from jobpipe.subscribing.topic_reader import TopicReader

        self._stack = stack
        self._config = config
        self._topic = topic
        self._into = into
        self._where = where
        self._condition = None if where is None else RowFilter(where)
        self._spools: Spools = Spools(stack, config)
        self._spools.serve(topic)
        self._reader: TopicReader = stack.enter_context(TopicReader(config, topic))

    def range(self, starting: Boundary, ending: Boundary) -> tuple[Position, Position]:
        """Return where the range begins and ends.

        Raises:
            DataLoss: some of it was removed.
            ConfigError: its end is not decided yet.
        """
        bounds = self._reader.bounds(starting, ending)
        if bounds.end is None:
            raise ConfigError(
                f"topic {self._topic!r}: --to lies after the newest batch, at offset {bounds.head.n}, so rows may "
                "still come before it; use --to latest, or wait",
                topic=self._topic,
                key="to",
            )
        if starting.kind == "time" and isinstance(starting.value, int) and starting.value <= bounds.removed_ms:
            raise self._removed(starting.value, bounds)
        return bounds.start, bounds.end

    def _removed(self, since: int, bounds: Bounds) -> DataLoss:
        begin, until = (datetime.fromtimestamp(ms / 1000, UTC).isoformat() for ms in (since, bounds.removed_ms))
        return DataLoss(
            f"topic {self._topic!r}: what was published up to {until} was removed, and the range begins at {begin}; "
            f"nothing was published. Begin at --from earliest, offset {bounds.tail.n}, to replay what is left",
            topic=self._topic,
            reason="removed",
        )

    def run(self, start: Position, end: Position, name: str) -> _Done:
        """Publish what lies between; raises as :meth:`jobpipe.publishing.appender.Appender.append`."""
        done = _Done()
        if start == end:
            return done
        self._open_target(start, end)
        with ExitStack() as opened, self._reader.hold_range(start, end):
            epoch: int | None = None
            for number in range(start.n, end.n):
                bounds = self._reader.bounds(Boundary("offset", number), Boundary("offset", number + 1))
                after = bounds.end or bounds.head
                if epoch != after.epoch:
                    epoch = after.epoch
                    opened.close()
                    appender = opened.enter_context(self._appender(start, epoch, name))
                    last = appender.last_batch()
                if last is not None and last >= (number + 1) * PIECES:
                    done.before += 1
                    continue
                found, rows = 0, 0
                for piece in self._pieces(number, bounds.start, after):
                    key, found = number * PIECES + found, found + 1
                    if (last is None or key > last) and appender.append(key, partial(self._made, number, piece)):
                        rows += sum(batch.num_rows for batch, _ in piece)
                done.rows += rows
                if found and not rows:
                    done.before += 1
                else:
                    done.batches += 1
        return done

    def _appender(self, start: Position, epoch: int, name: str) -> Appender:
        """Return what publishes batches that an epoch sealed.

        An offset may have other rows where another epoch sealed it: in a spool that was restored from a copy.
        """
        from jobpipe.publishing.appender import Appender
        from jobpipe.store.catalog.batches import APPENDERS

        what = json.dumps([self._topic, start.log, start.n, epoch, self._where, name])
        digest = hashlib.sha256(what.encode()).hexdigest()[:32]
        return Appender(self._config, self._into, f"{APPENDERS}replay-{digest}")

    def _pieces(self, number: int, start: Position, end: Position) -> Iterator[list[tuple[pa.RecordBatch, int]]]:
        """Yield the rows of a batch, with their partitions, in pieces that are the same each time."""
        from jobpipe.cli.common.row_filter import filtered

        def wanted() -> Iterator[tuple[pa.RecordBatch, int]]:
            for fetched in self._reader.fetch(start, end, hold=False):
                batch = fetched.batch
                if self._condition is not None:
                    batch = filtered(batch, self._condition.numbers(batch))
                yield batch, fetched.header.partition

        for count, piece in enumerate(pieces_of(wanted())):
            if count >= PIECES:
                raise RowTooLarge(
                    f"topic {self._topic!r}, offset {number}: it has more than {PIECES} pieces of {PIECE_BYTES} bytes, "
                    "too many to be replayed; nothing was published from here on",
                    topic=self._topic,
                    offset=number,
                )
            yield piece

    def _made(self, number: int, piece: list[tuple[pa.RecordBatch, int]], shape: BatchShape) -> NewRows:
        """Return rows of a batch in the schema of the other topic."""
        from jobpipe.arrow.casting import cast_batch
        from jobpipe.arrow.ipc_validation import parse_arrow_schema
        from jobpipe.publishing.appender import NewRows

        schema = parse_arrow_schema(self._into, shape.arrow)
        where = f"topic {self._into!r}, rows of offset {number} of {self._topic}"
        made = []
        for batch, partition in piece:
            self._require_fit(batch.schema, schema, number)
            made.append((cast_batch(batch, schema, where, evolve=True), partition % shape.partitions))
        return NewRows(schema, made)

    def _require_fit(self, rows: pa.Schema, target: pa.Schema, number: int) -> None:
        from jobpipe.arrow.arrow_evolution import left_out, misfits

        unknown = (f"{name}: {self._into} has no such column" for name in left_out(rows, target))
        wrong = [*misfits(rows, target), *unknown]
        if wrong:
            raise SchemaMismatch(
                f"topic {self._topic!r}, offset {number}: its rows do not fit topic {self._into}: {'; '.join(wrong)}. "
                "Nothing was published from here on: replay the range into a new topic",
                topic=self._topic,
                offset=number,
            )

    def _open_target(self, start: Position, end: Position) -> None:
        """Serve the other topic, if nothing does; make it, if it does not exist.

        Raises:
            TopicAway: it was published elsewhere, and is not served now.
        """
        from jobpipe.admin import Admin
        from jobpipe.errors import TopicAway, TopicNotFound
        from jobpipe.store.log.spool_folders import has_spool, is_blank
        from jobpipe.store.spool.spool_files import check_topic

        place = self._config.spool_dir / self._into
        check_topic(self._into)
        if has_spool(place) and not self._spools.is_served(self._into) and is_blank(place, self._into):
            self._make_target(start, end)  # a replay was killed before it had told the schema
            return
        if self._spools.serve(self._into):
            return
        with Admin(self._config) as admin:
            try:
                admin.locate(self._into)
            except TopicAway:
                raise
            except TopicNotFound:
                self._make_target(start, end)

    def _make_target(self, start: Position, end: Position) -> None:
        from jobpipe.arrow.ipc_validation import parse_arrow_schema
        from jobpipe.errors import TopicOwned
        from jobpipe.publishing.coordinator_launcher import end_coordinators
        from jobpipe.publishing.topic_publisher import Publisher

        partitions, arrow, spark = self._reader.shape(start, end)
        schema = parse_arrow_schema(self._topic, arrow)
        self._stack.callback(end_coordinators)
        config = replace(self._config, acks="stored")
        try:
            publisher = Publisher(self._into, config=config, name="jobpipe topics replay", parallelism=partitions)
        except TopicOwned:  # by another replay, which tells the schema
            return
        self._stack.callback(publisher.close)
        publisher.declare(schema, spark)
