"""The options of one ``load()``: parsed, checked together, and all problems reported at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jobpipe.config import Config, ConfigProblem, Option, config_error, load, masked_repr, suggest, unknown
from jobpipe.config.definitions.key_names import by_loose_name
from jobpipe.config.definitions.source_options import MAX_TOPICS, MEANT, PLAIN, SOURCE_OPTIONS, WHICH, PlainOptions
from jobpipe.config.types.value_types import BadValueError
from jobpipe.discovery.configured_tls import with_credentials
from jobpipe.errors import ConfigError
from jobpipe.spark.options.starting_ending_offsets import OffsetBounds, ends
from jobpipe.subscribing.topic_patterns import TopicPattern

OF = "format('jobpipe')"
WITHOUT_NAME = (
    "there is no option 'name': spark.read needs none, but a stream is a durable subscription and does not start "
    "without one, as in .option('name', 'billing')"
)
_BY_NAME = {name.lower(): about for about in SOURCE_OPTIONS for name in (about.name, *about.also)}


@dataclass(frozen=True, kw_only=True)
class SourceOptions(PlainOptions):
    """Parsed options of one ``load()``.

    Attributes:
        topics: in name order; none where there is a pattern.
        assigned: by topic, from 1; a topic that is not here: all.
        starts: where each topic begins; unless it says so, committed for a stream, earliest for a batch read.
        ends: where each topic ends; unless it says so, nowhere for a stream, at the newest batch for a batch read.
        given: names of the options that were given.
    """

    topics: tuple[str, ...]
    name: str | None
    config: Config
    pattern: TopicPattern | None = None
    assigned: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    starts: OffsetBounds = field(default_factory=OffsetBounds)
    ends: OffsetBounds = field(default_factory=OffsetBounds)
    given: frozenset[str] = frozenset()

    @classmethod
    def parse(
        cls, given: Mapping[str, str], spark: Mapping[str, str] | None = None, *, credentials: bool = True
    ) -> SourceOptions:
        """Parse the options of ``load()``; names are case-insensitive, as Spark has them.

        Keys of the configuration are settings of it, with or without their ``jobpipe.``.

        Args:
            given: the options.
            spark: Spark's properties; only ``spark.jobpipe.*`` are looked at.
            credentials: make the certificates of an embedded registry, if these are their first use.

        Raises:
            ConfigError: lists everything that is wrong, each with option, value, and what was expected.
        """
        read = _Reading(given)
        values = read.values
        text = values.get("subscribePattern")
        topics = read.topics
        starts, end = _check_together(read)
        config: Config | None = None
        try:
            config = load(read.values.get("config"), overrides=read.overrides, spark=spark)
            if credentials:
                config = with_credentials(config)
        except ConfigError as error:
            if not read.problems and "problems" not in error.fields:  # no wrong value, but what right ones lead to
                raise
            read.problems.extend(ConfigProblem(**problem) for problem in error.fields.get("problems", ()))
        if read.problems or config is None:
            raise config_error(read.problems, of=OF, what="wrong option")
        return cls(
            topics=topics,
            name=values.get("name"),
            config=config,
            pattern=None if text is None else TopicPattern(text, values.get("maxTopics", MAX_TOPICS.default)),
            assigned=values.get("assign", {}),
            starts=starts,
            ends=end,
            given=frozenset(read.given),
            **{attribute: values[about.name] for attribute, about in PLAIN.items() if about.name in values},
        )

    def require_batch(self) -> None:
        """Check what only a batch read must not have.

        Raises:
            ConfigError: it would start at ``latest``, where there is nothing to read, or at the position of a
                subscription without a name.
        """
        kinds = {start.kind for start in (*self.starts.topics.values(), self.starts.others) if start is not None}
        expected = ""
        if "latest" in kinds:
            expected = "another start than latest: a batch read ends where it would begin"
        elif "committed" in kinds and self.name is None:
            expected = "an option 'name' as well: the subscription whose position is meant"
        if expected:
            problem = ConfigProblem("option", self.starts.option, self.starts.said, expected)
            raise config_error([problem], of=OF, what="wrong option")

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

    def assigned_partitions(self, topic: str) -> tuple[int, ...] | None:
        """Return which of a publisher's partitions ``assign`` names, counted from 0; None without it."""
        wanted = self.assigned.get(topic)
        return None if wanted is None else tuple(number - 1 for number in wanted)

    def partitions(self, topic: str, parallelism: int) -> list[int]:
        """Return which of a publisher's partitions are read, counted from 0.

        Raises:
            ConfigError: ``assign`` names one that it does not have; its rows are in others, which would not be read.
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


def find_problems(given: Mapping[str, str]) -> list[ConfigProblem]:
    """Return what is wrong with the options of ``load()``, without a look at the configuration of this host."""
    read = _Reading(given)
    _check_together(read)
    for name, value in read.overrides.items():
        about = by_loose_name(name)
        try:
            if about is None:
                read.problems.append(unknown("option", name, value, _suggest(name)))
            elif name in {key.lower() for key in given}:
                about.parse(value)
        except BadValueError as error:
            expected = str(error) or (about.expected if about is not None else "")
            read.problems.append(ConfigProblem("option", name, masked_repr(value, about), expected))
    return read.problems


def _check_together(read: _Reading) -> tuple[OffsetBounds, OffsetBounds]:
    """Check what is wrong only together; return where the read starts and ends."""
    values = read.values
    starts, end = ends(values, read.topics, values.get("subscribePattern"), read.complain)
    if values.get("minRowsPerTrigger", 0) > values.get("maxRowsPerTrigger", float("inf")):
        read.complain("minRowsPerTrigger", f"at most maxRowsPerTrigger, {values['maxRowsPerTrigger']}")
    if values.get("readAhead"):
        _require_ahead(read)
    return starts, end


class _Reading:
    """Reads the options by their definitions, and collects every problem on the way."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self.problems: list[ConfigProblem] = []
        self.given: dict[str, str] = {}  # by the option's own name
        self.values: dict[str, Any] = {}
        self.overrides: dict[str, Any] = {}  # of the configuration
        self._spelt: dict[str, str] = {}  # as it was given, by its own name
        for key, value in given.items():
            about = _BY_NAME.get(key.lower())
            if about is not None:
                self._take(key, value, about)
            elif key.lower().startswith(("jobpipe.", "security.")) or by_loose_name(key.lower()) is not None:
                self.overrides[key.lower()] = value
            else:
                self.problems.append(unknown("option", key, value, _suggest(key.lower())))
        for about in SOURCE_OPTIONS:
            if about.name in self.given:
                self._require_company(about)
        if not any(name in self.given for name in WHICH):
            expected = "topic, or topic,topic; or else subscribePattern, or assign"
            self.problems.append(ConfigProblem("option", "subscribe", None, expected))
        if "discoveryTimeout" in self.values:
            self.overrides["jobpipe.discovery.timeout"] = self.values["discoveryTimeout"]

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that are named, in name order."""
        return self.values.get("subscribe") or tuple(sorted(self.values.get("assign", ())))

    def complain(self, name: str, expected: str) -> None:
        """Add a problem of an option, by its own name."""
        value = self.given.get(name)
        spelt = self._spelt.get(name, name)
        self.problems.append(ConfigProblem("option", spelt, None if value is None else masked_repr(value), expected))

    def _take(self, key: str, value: str, about: Option) -> None:
        spelt = next(name for name in (about.name, *about.also) if name.lower() == key.lower())
        if about.name in self.given:
            other = self._spelt[about.name]
            self.problems.append(
                ConfigProblem("option", spelt, masked_repr(value), f"it once; {other} is the same option")
            )
            return
        self.given[about.name], self._spelt[about.name] = value, spelt
        try:
            parsed = about.parse(value, Path.cwd())
        except BadValueError as error:
            self.complain(about.name, str(error) or about.expected)
            return
        if parsed is not None:
            self.values[about.name] = parsed

    def _require_company(self, about: Option) -> None:
        if about.needs and not any(name in self.given for name in about.needs):
            self.complain(about.name, f"{' or '.join(about.needs)} as well: without it this has no effect")
        others = [name for name in about.excludes if name in self.given]
        if others and about.name in WHICH:
            self.complain(about.name, f"exactly one of {', '.join(WHICH)}")
        elif others:
            self.complain(about.name, f"it without {', '.join(others)}, which says the same in another way")


def _require_ahead(read: _Reading) -> None:
    """Demand what a slot can be: a range of one topic, without holes, that is read by as many tasks as were planned."""
    topics = read.values.get("subscribe", ())
    if "subscribe" in read.given and len(topics) > 1:
        read.complain("readAhead", "subscribe of one topic only: each would wait for the others")
    elif "subscribePattern" in read.given or "assign" in read.given:
        read.complain("readAhead", "subscribe of one topic as well, not subscribePattern or assign")
    else:
        unusable: list[str] = [
            n for n in ("minRowsPerTrigger", "minPartitions", "maxRowsPerPartition") if n in read.values
        ]
        if read.values.get("failOnDataLoss") is False:
            unusable.append("failOnDataLoss=false")
        if unusable:
            read.complain(
                "readAhead", f"it without {', '.join(unusable)}: what it reads is not known when it is planned"
            )


def _suggest(name: str) -> str:
    if name in MEANT:
        return f"did you mean {MEANT[name]}?"
    if name.startswith("kafka."):
        return "Kafka's clients are not configured here; docs/kafka.md says what to use instead"
    return suggest(name, lambda key: key.name, others=[about.name for about in SOURCE_OPTIONS])
