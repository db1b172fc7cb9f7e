"""One task of a flow job: reads some partitions, calls the function, publishes the result. Runs until stopped."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa

from jobpipe.arrow.ipc_validation import parse_arrow_schema
from jobpipe.config import Config
from jobpipe.errors import Fenced, FlowFailed, FlowNotFound, JobpipeError, SchemaMismatch, UnsupportedType
from jobpipe.flows.flow_schema import SchemaAdapter
from jobpipe.flows.flow_source import EndOfStream, Flush, Prefetch, Repartitioned, SourceReader
from jobpipe.flows.part_committer import ClaimLost, PartCommitter, PublishedTopic
from jobpipe.flows.task_links import ControlLink
from jobpipe.flows.user_function import Function, Setup, call, context_of, set_up
from jobpipe.operations.reader_operations import SchemaRequest
from jobpipe.store.catalog.position import Position
from jobpipe.store.log.flow_cursors import FlowKey

log = logging.getLogger(__name__)

SUPERSEDED_SECONDS = 0.2


@dataclass(frozen=True)
class TaskOrder:
    """The order to a task. It travels to Spark's workers: paths and numbers, and the flow's own token.

    Attributes:
        config: the driver's.
        key: the flow, its source, and the log of that.
        grant: of the subscription.
        lane: the partitions of this task.
        partitions: how many the source has.
        publishes: what is published; None for nothing.
        skip_removed: begin at what is there where something of the source is removed.
        schema: in which the function gets its batches; None if the source had none yet.
        schema_evolution: what may differ between that and a batch.
    """

    config: Config
    key: FlowKey
    grant: int
    lane: tuple[int, ...]
    partitions: int
    publishes: PublishedTopic | None
    skip_removed: bool = False
    schema: pa.Schema | None = None
    schema_evolution: str = "compatible"


@dataclass(frozen=True)
class TaskEnd:
    """Why a task ended: the flow is stopped, its source has more partitions, or something failed.

    Attributes:
        partitions: of the source, if there are more than the task was told.
        error: what failed; None otherwise.
        partition, at: where, if it was the function, or a schema that does not fit.
        is_lost: it was ended from outside, or the function has ended its process.
    """

    partitions: int | None = None
    error: JobpipeError | None = None
    is_lost: bool = False
    partition: int | None = None
    at: Position | None = None


def run_task(order: TaskOrder, function: Function, setup: Setup | None, stopped: Callable[[], bool]) -> TaskEnd:
    """Run a task until the flow is stopped, or something fails.

    What the function has returned before is published; what it has not is given to the next task again.
    """
    publishes = order.publishes
    try:
        made = set_up(setup)
    except FlowFailed as error:
        return TaskEnd(error=error)
    if publishes is None:
        link = ControlLink(order.config, order.key.topic, "reader", stopped, patient=_is_for_now)
    else:
        link = ControlLink(
            *(order.config, publishes.target.topic, "publisher", stopped),
            patient=_is_for_now,
            flow=order.key.flow,
            token=publishes.token,
        )
    sealer = PartCommitter(link, order.key, order.grant, publishes, stopped)
    try:
        places = sealer.claim(order.lane)
        return _run(order, function, made, places, sealer, stopped)
    except ClaimLost as error:
        log.info("flow %s: %s; waiting for the end", order.key.flow, error)
        _wait_for_end(order, stopped)
        return TaskEnd()
    except JobpipeError as error:
        return TaskEnd() if stopped() else TaskEnd(error=error)
    except Exception as error:
        log.exception("flow %s: partitions %s", order.key.flow, order.lane)
        return TaskEnd(error=JobpipeError(f"flow {order.key.flow!r}: {type(error).__name__}: {error}"))
    finally:
        sealer.close()
        link.close()


def _is_for_now(error: JobpipeError) -> bool:
    """Tell whether the driver, or the coordinator that it starts after the last one's death, may mend an error.

    Not: that another task has the partition, or that the flow was reset.
    """
    return isinstance(error, (Fenced, FlowNotFound)) and not error.fields.keys() & {"claim", "partition", "grant"}


def _run(
    order: TaskOrder,
    function: Function,
    made: Any,
    places: dict[int, Position],
    sealer: PartCommitter,
    stopped: Callable[[], bool],
) -> TaskEnd:
    key = order.key
    reader = SourceReader(order.config, key.topic, key.flow, order.grant, order.partitions, order.skip_removed)
    schema = None if order.publishes is None else order.publishes.schema
    fitter = SchemaAdapter(key.topic, order.schema, order.schema_evolution, partial(_newest_schema, order, stopped))
    # What keeps it from sealing is raised by the flush.
    with Prefetch(partial(reader.items, places), f"read-{key.flow}", lambda: stopped() or sealer.failed) as items:
        for item in items:
            if stopped() or isinstance(item, EndOfStream):
                break
            if isinstance(item, Flush):
                sealer.hurry(item.on)
                continue
            if isinstance(item, Repartitioned):
                sealer.flush()
                return TaskEnd(partitions=item.partitions)
            rows, read = [], 0
            if item.fetched is not None:
                read = item.fetched.batch.num_rows
                context = context_of(key.topic, key.log, item.fetched, item.index, made)
                try:
                    rows = call(function, fitter.fitted(item.fetched), context, schema)
                except (FlowFailed, SchemaMismatch, UnsupportedType) as error:
                    sealer.flush()
                    return TaskEnd(error=error, partition=item.partition, at=item.to)
            sealer.done(item.partition, item.to, rows, read)
    sealer.flush()
    return TaskEnd()


def _newest_schema(order: TaskOrder, stopped: Callable[[], bool]) -> pa.Schema | None:
    """Return the source's newest schema."""
    topic = order.key.topic
    link = ControlLink(order.config, topic, "reader", stopped)
    try:
        found = link.ask(SchemaRequest(), timeout=order.config.read_timeout).schema
    finally:
        link.close()
    return None if found is None else parse_arrow_schema(topic, found[0])


def _wait_for_end(order: TaskOrder, stopped: Callable[[], bool]) -> None:
    """Wait until the flow is stopped, as its source says, or this process is killed."""
    reader = SourceReader(order.config, order.key.topic, order.key.flow, order.grant, order.partitions)
    try:
        for item in reader.items({}, stopped):
            if not isinstance(item, Flush):
                return
    except JobpipeError as error:
        log.info("flow %s: %s", order.key.flow, error)
    while not stopped():
        time.sleep(SUPERSEDED_SECONDS)
