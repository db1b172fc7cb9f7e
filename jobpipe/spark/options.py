"""The source's options: names as in Spark's Kafka source where it has them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from jobpipe.config import Config, Problem, config_error, load, shown, suggest, unknown
from jobpipe.discovery.security import with_credentials
from jobpipe.errors import ConfigError
from jobpipe.subscriber.matching import MOST, TopicPattern
from registry.errors import RegistryError
from registry.names import check_name

__all__ = ["SourceOptions"]

NAMES = (
    "subscribe",
    "name",
    "startingOffsets",
    "maxRowsPerTrigger",
    "failOnDataLoss",
    "includeMetadata",
    "config",
    "discoveryTimeout",
    "subscribePattern",
    "assign",
    "maxTopics",
)
WHICH = ("subscribe", "subscribePattern", "assign")
STARTING = ("earliest", "latest", "committed")
MEANT = {  # what other sources, or other parts of jobpipe, call it; "path" is the argument of load()
    "topic": "subscribe",
    "topics": "subscribe",
    "path": "subscribe",
    "topicpattern": "subscribePattern",
    "topicspattern": "subscribePattern",
    "pattern": "subscribePattern",
    "starting": "startingOffsets",
    "subscription": "name",
    "group": "name",
    "kafka.group.id": "name",
    "group.id": "name",
}


@dataclass(frozen=True)
class SourceOptions:
    """Parsed options of one ``load()``."""

    topics: tuple[str, ...]  # in name order; none where there is a pattern
    name: str | None
    starting: str | None
    max_rows: int | None
    include_metadata: bool
    fail_on_data_loss: bool
    config: Config
    pattern: TopicPattern | None = None
    assigned: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # by topic, from 1; a topic not here: all

    @classmethod
    def parse(cls, given: Mapping[str, str], spark: Mapping[str, str] | None = None) -> SourceOptions:
        """Parse the options of ``load()``; names are case-insensitive, as Spark has them.

        Keys that begin with ``jobpipe.`` or ``security.`` are settings of the configuration.

        Args:
            given: the options.
            spark: Spark's properties; only ``spark.jobpipe.*`` are looked at.

        Raises:
            ConfigError: lists everything that is wrong, each with option, value, and what was expected.
        """
        known = {name.lower(): name for name in NAMES}
        values: dict[str, str] = {}
        overrides: dict[str, Any] = {}
        problems: list[Problem] = []
        for key, value in given.items():
            lowered = key.lower()
            if lowered in known:
                values[known[lowered]] = value
            elif lowered.startswith(("jobpipe.", "security.")):
                overrides[lowered] = value
            else:
                problems.append(unknown("option", key, value, _suggest(lowered)))
        topics, pattern, assigned = _which(values, problems)
        if "name" in values:
            _check_name("name", values["name"], problems)
        starting = values.get("startingOffsets")
        if starting is not None and starting not in STARTING:
            problems.append(_wrong("startingOffsets", starting, ", ".join(STARTING)))
        max_rows = _number(values, "maxRowsPerTrigger", problems)
        include = _switch(values, "includeMetadata", False, problems)
        fail = _switch(values, "failOnDataLoss", True, problems)
        if "discoveryTimeout" in values:
            overrides["jobpipe.discovery.timeout"] = values["discoveryTimeout"]
        config: Config | None = None
        try:
            config = with_credentials(load(values.get("config"), overrides=overrides, spark=spark))
        except ConfigError as error:
            if not problems and "problems" not in error.fields:  # no wrong value, but what right ones lead to
                raise
            problems.extend(Problem(**problem) for problem in error.fields.get("problems", ()))
        if problems or config is None:
            raise config_error(problems, of="format('jobpipe')", what="wrong option")
        return cls(topics, values.get("name"), starting, max_rows, include, fail, config, pattern, assigned)

    def need_name(self) -> str:
        """Return the subscription's name, which a stream must have.

        Raises:
            ConfigError: it is missing.
        """
        if self.name is None:
            raise ConfigError(
                "format('jobpipe'): option 'name' is missing. A stream is a durable subscription, and its name "
                "tells it from "
                "the others: .option('name', 'billing'), one for each load()",
                problems=[{"key": "name", "value": "", "expected": "a name of its own"}],
            )
        return self.name

    def partitions(self, topic: str, parallelism: int) -> list[int]:
        """Return which of a publisher's partitions are read, counted from 0.

        Raises:
            ConfigError: ``assign`` names one that it does not have; its rows are in others, which nobody would read.
        """
        wanted = self.assigned.get(topic)
        if wanted is None:
            return list(range(parallelism))
        missing = [number for number in wanted if number > parallelism]
        if missing:
            raise ConfigError(
                f"topic {topic!r}: assign names parallel-{missing[0]}, but the publisher has, or had for the batches "
                f"that come next, parallelism {parallelism}: parallel-{parallelism} is the last. Change assign, or the "
                "publisher's parallelism back",
                topic=topic,
                missing=missing,
                parallelism=parallelism,
            )
        return [number - 1 for number in wanted]


def _which(
    values: Mapping[str, str], problems: list[Problem]
) -> tuple[tuple[str, ...], TopicPattern | None, dict[str, tuple[int, ...]]]:
    """Return topics, pattern and assigned partitions, of which exactly one option was to tell."""
    given = [key for key in WHICH if key in values]
    most = _number(values, "maxTopics", problems) or MOST
    if len(given) != 1:
        expected = "topic, or topic,topic; or else subscribePattern, or assign"
        problems.extend(_wrong(key, values[key], f"exactly one of {', '.join(WHICH)}") for key in given)
        if not given:
            problems.append(_wrong("subscribe", None, expected))
        return (), None, {}
    if "subscribePattern" in values:
        text = values["subscribePattern"]
        try:
            re.compile(text)
        except re.error as error:
            problems.append(_wrong("subscribePattern", text, f"a regular expression of Python ({error})"))
        if not text:
            problems.append(_wrong("subscribePattern", text, "a regular expression that a whole topic name matches"))
        return (), TopicPattern(text, most), {}
    assigned = _assigned(values["assign"], problems) if "assign" in values else {}
    listed = values.get("subscribe", "").split(",")
    topics = tuple(sorted({*assigned, *(topic.strip() for topic in listed if topic.strip())}))
    if "subscribe" in values and not topics:
        problems.append(_wrong("subscribe", values["subscribe"], "topic, or topic,topic"))
    for topic in topics:
        _check_name(given[0], topic, problems)
    return topics, None, assigned


def _assigned(text: str, problems: list[Problem]) -> dict[str, tuple[int, ...]]:
    expected = 'JSON such as {"orders": [1, 3]}: of each topic the numbers of parallel-1, parallel-2, ...'
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict) or not value:
        problems.append(_wrong("assign", text, expected))
        return {}
    for topic, numbers in value.items():
        right = isinstance(numbers, list) and numbers and all(type(n) is int and n >= 1 for n in numbers)
        if not right:
            problems.append(_wrong("assign", f"{topic}: {json.dumps(numbers)}", expected + "; they begin at 1"))
            return {}
    return {topic: tuple(sorted(set(numbers))) for topic, numbers in value.items()}


def _check_name(key: str, name: str, problems: list[Problem]) -> None:
    try:
        check_name(name)
    except RegistryError:
        problems.append(_wrong(key, name, "letters, digits, . _ - (at most 128)"))


def _suggest(name: str) -> str:
    if name in MEANT:
        return f"did you mean {MEANT[name]}?"
    return suggest(name, lambda key: key.name, beside=NAMES)


def _wrong(key: str, value: str | None, expected: str) -> Problem:
    return Problem("option", key, None if value is None else shown(value), expected)


def _switch(values: Mapping[str, str], key: str, default: bool, problems: list[Problem]) -> bool:
    text = values.get(key, str(default)).lower()
    if text not in ("true", "false"):
        problems.append(_wrong(key, values[key], "true or false"))
    return text == "true"


def _number(values: Mapping[str, str], key: str, problems: list[Problem]) -> int | None:
    text = values.get(key)
    if text is None:
        return None
    if not text.isdecimal() or int(text) < 1:
        problems.append(_wrong(key, text, "a whole number of at least 1"))
        return None
    return int(text)
