"""The options of ``writeStream.format("jobpipe")`` and ``write.format("jobpipe")``, parsed and checked together."""

from __future__ import annotations

import hashlib
import json
import pkgutil
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql.types import StructType

from jobpipe.config import Config, ConfigProblem, config_error, load, masked_repr, suggest, unknown
from jobpipe.config.definitions.key_names import by_loose_name
from jobpipe.config.definitions.writer_options import REFUSED, SPARKS_OWN, WRITER_OPTIONS
from jobpipe.config.types.value_types import BadValueError
from jobpipe.errors import ConfigError
from jobpipe.spark.options.partitioner import Partitioner
from jobpipe.spark.schema.spark_arrow_schema import as_rows_have_it
from jobpipe.spark.session.launch_settings import LaunchSettings

OF = "format('jobpipe') to write"


def _plain(name: str) -> str:
    """Return a name without what Spark, and the two ways of writing it, do not keep."""
    return name.lower().replace("_", "")


_BY_NAME = {_plain(about.name): about for about in WRITER_OPTIONS}


@dataclass(frozen=True, kw_only=True)
class WriterOptions:
    """Parsed options of one ``start()`` or ``save()``.

    Attributes:
        topic: where rows go.
        config: what the other settings lead to.
        name: the publisher's, for listings; None for topic and host.
        parallelism: partitions of the topic.
        partitioner: how rows are divided.
        declared: the schema that was given.
        required_subscribers, min_subscribers, on_new_checkpoint: as the sink has them.
        series, batch_id: of a batch write that may be repeated.
        final: nothing follows this batch write.
        application: the application's name, for errors.
        case_sensitive: Spark tells columns apart by case, as far as that was settled at the start.
        writer: tells this query, or batch write, from others of the application; hexadecimal.
    """

    topic: str
    config: Config
    name: str | None
    parallelism: int
    partitioner: Partitioner
    declared: StructType | None
    required_subscribers: tuple[str, ...]
    min_subscribers: int
    on_new_checkpoint: str
    series: str | None
    batch_id: int | None
    final: bool
    application: str
    case_sensitive: bool
    writer: str

    @property
    def settings(self) -> dict[str, Any]:
        """What the topic is opened with: arguments of :class:`jobpipe.publishing.topic_publisher.Publisher`."""
        return {
            "config": self.config,
            "name": self.name,
            "parallelism": self.parallelism,
            "partitioner": str(self.partitioner),
            "required_subscribers": self.required_subscribers,
            "min_subscribers": self.min_subscribers,
            "application": self.application,
            "on_new_checkpoint": self.on_new_checkpoint,
        }

    @classmethod
    def parse(
        cls, given: Mapping[str, str], launch: LaunchSettings, settings: Mapping[str, str], *, streaming: bool
    ) -> WriterOptions:
        """Parse the options; names are case-insensitive, with or without underscores.

        Args:
            given: the options.
            launch: how Spark was started.
            settings: Spark's properties; only ``spark.jobpipe.*`` are looked at.
            streaming: of a query, which has batch ids of its own.

        Raises:
            ConfigError: lists everything that is wrong, each with option, value, and what was expected.
        """
        values, overrides, problems = _read(given)
        _check_together(values, problems, streaming=streaming)
        declared = _schema_of(values, problems)
        partitioner: Any = values["partitioner"]
        if partitioner is not None and ":" in partitioner:
            partitioner = _function_of(partitioner, problems)
        config: Config | None = None
        try:
            config = load(values["config"], overrides=overrides, spark=settings)
        except ConfigError as error:
            if not problems and "problems" not in error.fields:  # no wrong value, but what right ones lead to
                raise
            problems += [ConfigProblem(**problem) for problem in error.fields.get("problems", ())]
        if problems or config is None:
            raise config_error(problems, of=OF, what="wrong option")
        topic = values["topic"]
        who = json.dumps(sorted(given.items())) if streaming else uuid.uuid4().hex
        return cls(
            topic=topic,
            config=config,
            name=values["name"],
            parallelism=config.parallelism or launch.parallelism,
            partitioner=Partitioner.choose(topic, partitioner, values["partition_by"]),
            declared=declared,
            required_subscribers=values["required_subscribers"] or (),
            min_subscribers=values["min_subscribers"] or 0,
            on_new_checkpoint=values["on_new_checkpoint"],
            series=values["series"],
            batch_id=values["batch_id"],
            final=values["final"],
            application=launch.name,
            case_sensitive=launch.conf.get("spark.sql.caseSensitive", "").lower() == "true",
            writer=hashlib.sha256(who.encode()).hexdigest()[:32],
        )


def _read(given: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, Any], list[ConfigProblem]]:
    """Return the options' values, the keys of the configuration among them, and what is wrong."""
    values: dict[str, Any] = {about.name: about.default for about in WRITER_OPTIONS}
    overrides: dict[str, Any] = {}
    problems: list[ConfigProblem] = []
    seen: set[str] = set()
    for key, value in given.items():
        about = _BY_NAME.get(_plain(key))
        known = by_loose_name(key.lower())
        if about is not None and about.name in seen:
            problems.append(
                ConfigProblem("option", key, masked_repr(value), f"it once; {about.name} is the same option")
            )
        elif about is not None:
            seen.add(about.name)
            try:
                values[about.name] = about.parse(value)
            except BadValueError as error:
                problems.append(ConfigProblem("option", about.name, masked_repr(value), str(error) or about.expected))
                continue
            if known is not None and values[about.name] is not None:  # acks, parallelism, write_path
                overrides[about.name] = value
        elif known is not None or key.lower().startswith(("jobpipe.", "security.")):
            overrides[key.lower()] = value
        elif key.lower() in REFUSED:
            problems.append(ConfigProblem("option", key, masked_repr(value), REFUSED[key.lower()], unknown=True))
        elif key.lower() not in SPARKS_OWN:
            names = [about.name for about in WRITER_OPTIONS]
            problems.append(unknown("option", key, value, suggest(key.lower(), lambda each: each.name, others=names)))
    if values["topic"] is None and not any(problem.key == "topic" for problem in problems):
        problems.append(ConfigProblem("option", "topic", None, "the topic's name"))
    return values, overrides, problems


def _check_together(values: Mapping[str, Any], problems: list[ConfigProblem], *, streaming: bool) -> None:
    for name, other in (("series", "batch_id"), ("batch_id", "series"), ("final", "")):
        value = values[name]
        if value is None or value is False:
            continue
        if streaming:
            expected = "it for batch writes only: a query has an id, and ids of its batches, and no last one"
            problems.append(ConfigProblem("option", name, masked_repr(value), expected))
        elif other and values[other] is None:
            problems.append(ConfigProblem("option", name, masked_repr(value), f"{other} as well"))


def _schema_of(values: Mapping[str, Any], problems: list[ConfigProblem]) -> StructType | None:
    text = values["schema"]
    if text is None:
        return None
    try:
        found = as_rows_have_it(StructType.fromJson(json.loads(text)))
        if isinstance(found, StructType):
            return found
    except Exception:  # noqa: BLE001 - PySpark says what is wrong by errors of all kinds
        found = None
    problems.append(ConfigProblem("option", "schema", masked_repr(text), "the JSON that StructType.json() returns"))
    return None


def _function_of(text: str, problems: list[ConfigProblem]) -> Any:
    try:
        found = pkgutil.resolve_name(text)
    except Exception as error:  # noqa: BLE001 - a module of the user's raises what it likes
        why = f"a function that can be imported where Spark's Python is ({error})"
        problems.append(ConfigProblem("option", "partitioner", text, why))
        return None
    if callable(found):
        return found
    problems.append(ConfigProblem("option", "partitioner", text, "a function"))
    return None
