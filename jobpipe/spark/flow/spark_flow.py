"""``jobpipe.flow``: a function called with each record batch of a topic, on a cluster or in this process."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from jobpipe.arrow.schema_validation import readable_schema, require_columns
from jobpipe.config import Config, load_given
from jobpipe.errors import ConfigError
from jobpipe.flows.flow_driver import Flow, Runner
from jobpipe.flows.flow_schema import EVOLUTIONS
from jobpipe.flows.flow_settings import FlowOptions
from jobpipe.flows.task_threads import ThreadRunner
from jobpipe.flows.user_function import FlowContext, Function, Setup, call, is_asynchronous, set_up
from jobpipe.store.reading.boundary import Boundary
from jobpipe_registry.names import MAX_PARALLELISM, check_name
from jobpipe_registry.registry_errors import InvalidName

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def flow(
    spark: SparkSession | None = None,
    *,
    subscribe: str,
    name: str,
    function: Function,
    setup: Setup | None = None,
    publish: str | None = None,
    schema: pa.Schema | None = None,
    partitions: int | None = None,
    starting: str | int | datetime | Boundary = "committed",
    fail_on_data_loss: bool = True,
    schema_evolution: str = "compatible",
    required_subscribers: str | Sequence[str] = (),
    config: str | Path | Config | None = None,
    **overrides: Any,
) -> Flow:
    """Call ``function`` with each record batch of a topic, at once when it is published; publish what it returns.

    It returns when the flow runs; give it to :func:`jobpipe.run`. Each row is published once, whatever fails and is
    repeated; what the function does besides is done at least once. Order holds within a partition. See docs/flow.md.

    Args:
        spark: a session: its executors run the function, each task keeps a core. Without one, threads of this process.
        subscribe: the topic to read.
        name: of the flow, and of its subscription: where it goes on after a stop or a crash.
        function: ``(batch: pyarrow.RecordBatch, context: FlowContext)`` to a record batch, several, a table, or None.
        setup: called once in each task, before the first batch; what it returns is ``context.setup``.
        publish: the topic to publish; None for a function that writes elsewhere.
        schema: of what is published; what the function returns is cast to it.
        partitions: of what is published; those of the source by default. Rows of partition *p* go to *p* modulo that.
        starting: where a new name begins: ``committed`` (at latest), ``earliest``, ``latest``, an offset, or a time
            with its zone.
        fail_on_data_loss: fail where rows were removed before they were read; else go on at what is there.
        schema_evolution: what may differ between the schema that the function gets, which the flow learns when it
            starts, and that of a batch: ``compatible`` or ``strict``, as the option of the source.
        required_subscribers: subscriptions of what is published that exist from its log's start: nothing is removed
            before they have read it.
        config: a file, or a loaded configuration; otherwise found as always.
        overrides: single settings, as for :class:`jobpipe.JobPipeSink`.

    Raises:
        ConfigError: a value does not fit; single settings with a loaded configuration.
        UnsupportedType: a column of ``schema`` cannot pass.
        TopicNotFound: ``subscribe`` was never published.
        NameTaken: a flow or subscriber of that name runs.
        TopicOwned: another publisher has ``publish``.
        RegistryUnavailable: the registry does not answer.
    """
    required = _names("required_subscribers", required_subscribers)
    names = [("subscribe", subscribe), ("name", name), *(("required_subscribers", each) for each in required)]
    for what, topic in names if publish is None else [*names, ("publish", publish)]:
        try:
            check_name(topic)
        except InvalidName as error:
            raise ConfigError(f"{what}: {error}", key=what) from error
    if required and publish is None:
        raise ConfigError("required_subscribers are of what a flow publishes: give publish", key="required_subscribers")
    if (publish is None) != (schema is None):
        raise ConfigError("a flow that publishes has publish= and schema=, both; another has neither", key="schema")
    if publish == subscribe:
        raise ConfigError(f"a flow cannot publish the topic that it reads, {subscribe!r}", key="publish")
    if partitions is not None and not (publish and type(partitions) is int and 1 <= partitions <= MAX_PARALLELISM):
        raise ConfigError(
            f"partitions={partitions!r}, of what is published: expected a whole number from 1 to {MAX_PARALLELISM}",
            key="partitions",
        )
    _require_calls(function, setup)
    if type(fail_on_data_loss) is not bool:
        raise ConfigError(f"fail_on_data_loss={fail_on_data_loss!r}, expected True or False", key="fail_on_data_loss")
    if schema_evolution not in EVOLUTIONS:
        raise ConfigError(
            f"schema_evolution={schema_evolution!r}, expected one of {', '.join(EVOLUTIONS)}", key="schema_evolution"
        )
    _require_schema(schema)
    if schema is not None:
        require_columns(str(publish), schema)
        schema = readable_schema(str(publish), schema.remove_metadata())
    settings, runner = _where(spark, function, setup)
    loaded = load_given(config, overrides, spark=settings, caller=flow)
    if publish is not None and loaded.acks == "all":
        raise ConfigError("a flow publishes with acks=stored: many tasks seal at once", key="acks")
    return Flow(
        FlowOptions(
            config=loaded,
            subscribe=subscribe,
            name=name,
            starting=Boundary.of(starting, "starting"),
            publish=publish,
            schema=schema,
            partitions=partitions,
            fail_on_data_loss=fail_on_data_loss,
            schema_evolution=schema_evolution,
            required_subscribers=required,
        ),
        runner,
    )


def _names(what: str, given: object) -> tuple[str, ...]:
    if isinstance(given, str):
        return (given,)
    if not isinstance(given, (list, tuple, set, frozenset)):
        raise ConfigError(f"{what}={given!r}, expected a name, or a list of names", key=what)
    return tuple(given)


def _require_calls(function: object, setup: object) -> None:
    """Check that both can be called, and return something that need not be awaited."""
    for what, called in (("function", function), *([] if setup is None else [("setup", setup)])):
        if not callable(called):
            raise ConfigError(f"{what} must be callable, got {type(called).__name__}", key=what)
        if is_asynchronous(called):
            raise ConfigError(
                f"{what} is asynchronous, and nothing awaits it; let a plain function call asyncio.run", key=what
            )


def _require_schema(schema: object) -> None:
    if not isinstance(schema, (pa.Schema, type(None))):
        raise ConfigError(f"schema={schema!r}, expected a pyarrow.Schema, as pa.schema([...]) makes", key="schema")


def _where(spark: SparkSession | None, function: Function, setup: Setup | None) -> tuple[dict[str, str], Runner]:
    """Return the session's settings, and what runs the tasks."""
    if spark is None:
        return {}, ThreadRunner(function, setup)
    if not hasattr(type(spark), "readStream"):
        raise ConfigError(
            f"the first argument of jobpipe.flow is a Spark session, got {type(spark).__name__}; the topic is "
            "subscribe='orders', and without a session the flow runs in this process",
            key="spark",
        )
    from jobpipe.spark.flow.cluster_tasks import SparkRunner
    from jobpipe.spark.session.classic_session import require_classic, session_settings

    require_classic(spark, "jobpipe.flow")
    return session_settings(spark), SparkRunner(spark.sparkContext, function, setup)


def flow_test(
    function: Function,
    batches: Iterable[pa.RecordBatch | pa.Table],
    *,
    setup: Setup | None = None,
    schema: pa.Schema | None = None,
) -> list[pa.RecordBatch]:
    """Call a flow's function here, without a bus, and return what it would publish; for tests.

    Args:
        function, setup, schema: as for :func:`flow`; without a schema it may return nothing.
        batches: each is a batch of the source: offsets 0, 1 and so on, one partition.

    Raises:
        FlowFailed: the function raised, or returned what it may not; setup raised.
        ConfigError: an argument does not fit.
    """
    _require_calls(function, setup)
    _require_schema(schema)
    schema = None if schema is None else readable_schema("flow_test", schema.remove_metadata())
    made, found = set_up(setup), []
    for offset, given in enumerate(batches):
        if not isinstance(given, (pa.RecordBatch, pa.Table)):
            raise ConfigError(f"batches: expected a list of record batches, got {type(given).__name__}", key="batches")
        row = 0
        for index, batch in enumerate(given.to_batches() if isinstance(given, pa.Table) else [given]):
            now = datetime.now(UTC)
            context = FlowContext("test", "0" * 16, offset, 0, index, row, now, "flow_test", made)
            found += call(function, batch, context, schema)
            row += batch.num_rows
    return found
