"""The source's options: names as in Spark's Kafka source where it has them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jobpipe.config import Config, Problem, config_error, load, shown, suggest, unknown
from jobpipe.discovery.security import with_credentials
from jobpipe.errors import ConfigError
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
)
STARTING = ("earliest", "latest", "committed")
MEANT = {  # what other sources, or other parts of jobpipe, call it; "path" is the argument of load()
    "topic": "subscribe",
    "topics": "subscribe",
    "path": "subscribe",
    "starting": "startingOffsets",
    "subscription": "name",
    "group": "name",
    "kafka.group.id": "name",
    "group.id": "name",
}


@dataclass(frozen=True)
class SourceOptions:
    """Parsed options of one ``load()``."""

    topics: tuple[str, ...]  # in name order
    name: str | None
    starting: str | None
    max_rows: int | None
    include_metadata: bool
    fail_on_data_loss: bool
    config: Config

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> SourceOptions:
        """Parse the options of ``load()``; names are case-insensitive, as Spark has them.

        Keys that begin with ``jobpipe.`` or ``security.`` are settings of the configuration.

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
        topics = tuple(sorted({topic.strip() for topic in values.get("subscribe", "").split(",") if topic.strip()}))
        if not topics:
            problems.append(_wrong("subscribe", values.get("subscribe"), "topic, or topic,topic"))
        for key, names in (("subscribe", topics), ("name", (values["name"],) if "name" in values else ())):
            for name in names:
                try:
                    check_name(name)
                except RegistryError:
                    problems.append(_wrong(key, name, "letters, digits, . _ - (at most 128)"))
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
            config = with_credentials(load(values.get("config"), overrides=overrides))
        except ConfigError as error:
            if not problems and "problems" not in error.fields:  # no wrong value, but what right ones lead to
                raise
            problems.extend(Problem(**problem) for problem in error.fields.get("problems", ()))
        if problems or config is None:
            raise config_error(problems, of="format('jobpipe')", what="wrong option")
        return cls(topics, values.get("name"), starting, max_rows, include, fail, config)

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
