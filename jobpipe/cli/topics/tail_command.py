"""``jobpipe topics tail``: the rows of a topic, as they come."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from jobpipe.cli.common.broken_pipe import while_read
from jobpipe.cli.common.command_context import Settings, pass_settings
from jobpipe.cli.common.offset_argument import PlaceType
from jobpipe.store.reading.boundary import COMMITTED, LATEST, Boundary

if TYPE_CHECKING:
    import pyarrow as pa

    from jobpipe.config import Config

LEAST_DISCOVERY_SECONDS = 5.0


@click.command()
@click.argument("topic")
@click.option(
    "--from",
    "starting",
    type=PlaceType("earliest", "latest", "committed"),
    metavar="earliest|latest|committed|OFFSET|TIME",
    help="Where to begin. TIME, such as 2026-11-21T10:00:00Z, means the first batch published then or later.  "
    "[default: latest; with --name: committed]",
)
@click.option("--limit", type=click.IntRange(min=1), metavar="ROWS", help="Stop after this many rows.")
@click.option(
    "--timeout", type=click.FloatRange(min=0), metavar="SECONDS", help="Stop after this many seconds without rows."
)
@click.option("--name", help="Read as this subscription, and keep it.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per row.")
@pass_settings
def tail(
    settings: Settings,
    topic: str,
    starting: Boundary | None,
    limit: int | None,
    timeout: float | None,
    name: str | None,
    as_json: bool,
) -> None:
    """Print the rows of TOPIC and follow it.

    Stops at the topic's end mark, at --limit or --timeout, or on Ctrl-C. Without --name it leaves no trace in the
    topic. With --name it reads as that subscription and moves its durable position. A batch is acknowledged when the
    next one is requested, and batches that are not acknowledged are kept.

    With --from, a topic that no publisher serves is read from its spool on this host, to its present end.

    If the topic does not exist yet, waits for it up to discovery.timeout, or --timeout if that is less (at least 5 s).
    """
    if starting == COMMITTED and name is None:
        raise click.UsageError("--from committed needs --name: only a subscription has a committed position")
    config = settings.config
    if timeout is not None:
        patience = min(config.discovery_timeout, max(timeout, LEAST_DISCOVERY_SECONDS))
        config = replace(config, discovery_timeout=patience)
    from jobpipe.cli.common.row_printer import JsonLines, RowPrinter, TableLines
    from jobpipe.cli.common.spool_reader import Spools

    printer: RowPrinter = JsonLines() if as_json else TableLines()

    def follow() -> None:
        left = limit
        for batch in _batches(stack, config, topic, name, starting, timeout):
            printer.write(batch if left is None else batch.slice(0, left))
            if left is not None and (left := left - batch.num_rows) <= 0:
                return

    with ExitStack() as stack:  # what is open is closed when nothing can interrupt it any more
        if name is None and starting not in (None, LATEST) and Spools(stack, config).serve(topic):
            timeout = 0.0  # nothing follows what is there
        while_read(follow)


def _batches(
    stack: ExitStack, config: Config, topic: str, name: str | None, starting: Boundary | None, timeout: float | None
) -> Iterator[pa.RecordBatch]:
    if name is None:
        from jobpipe.subscribing.topic_reader import TopicReader

        reader = stack.enter_context(TopicReader(config, topic))
        batches = reader.batches(starting or LATEST, timeout)
    else:
        from jobpipe.subscribing.python_client import subscribe

        subscription = stack.enter_context(subscribe(topic, name=name, starting=starting or COMMITTED, config=config))
        batches = subscription.batches(timeout)
    stack.callback(batches.close)  # type: ignore[attr-defined]  # a generator: its streams end before their links
    return batches
