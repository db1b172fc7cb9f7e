"""Routes: to which topics rows go, by the topic, or table, that they come from. Names are those of the file."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache

from jobpipe.errors import ConfigError, short_repr
from jobpipe.pipelines.file.spec import RouteSpec
from jobpipe.pipelines.model.pipeline import Job
from jobpipe.pipelines.plugins.api import Topics
from jobpipe.store.spool.spool_files import is_topic

_GROUP = re.compile(r"[$\\](\d)")  # of the regular expression, as Flink CDC and Python have it


def fixed_target(route: RouteSpec) -> str | None:
    """Return the one topic that a route leads to; None if that depends on the row."""
    symbol = route.replace_symbol
    depends = (symbol is not None and symbol in route.sink_table) or _GROUP.search(route.sink_table) is not None
    return None if depends else route.sink_table


def target_of(route: RouteSpec, source: str) -> str | None:
    """Return the topic to which a route leads the rows of ``source``; None if it does not match."""
    match = re.fullmatch(route.source_table, source)
    if match is None:
        return None
    if route.replace_symbol is not None:
        return route.sink_table.replace(route.replace_symbol, source)
    return (
        route.sink_table if fixed_target(route) is not None else match.expand(_GROUP.sub(r"\\g<\1>", route.sink_table))
    )


def may_lead_to(route: RouteSpec, source: Topics, topic: str) -> bool:
    """Whether a route may lead to a topic from one of the topics that its job reads."""
    if source.pattern is None:
        return any(target_of(route, name) == topic for name in source.names)
    symbol = route.replace_symbol
    if fixed_target(route) is not None:
        return topic == route.sink_table
    if symbol is None:
        parts = re.split(_GROUP.pattern.replace(r"(\d)", r"\d"), route.sink_table)
        return re.fullmatch(".*".join(map(re.escape, parts)), topic) is not None
    first, *rest = map(re.escape, route.sink_table.split(symbol))
    found = re.fullmatch(f"{first}(?P<name>.*)" + "(?P=name)".join(rest), topic)
    return found is not None and matches(source, found["name"]) and target_of(route, found["name"]) == topic


def problem_of(route: RouteSpec) -> tuple[str, str] | None:
    """Return what is wrong with a route's ``sink-table``, whatever the row, and what to do; None if nothing is."""
    name, symbol = route.sink_table, route.replace_symbol
    numbers = [int(number) for number in _GROUP.findall(name)]
    if symbol is not None and numbers:
        return "groups of the expression have no meaning with replace-symbol", "leave out one of them"
    groups = re.compile(route.source_table).groups
    if numbers and max(numbers) > groups:
        remedy = "put that part of source-table in parentheses, or use another number"
        return f"source-table has {groups} groups, and group {max(numbers)} is named", remedy
    example = _GROUP.sub("x", name if symbol is None else name.replace(symbol, "x"))
    if not is_topic(example):
        return f"{short_repr(name)} cannot name a topic", "use letters, digits, '.', '_' and '-', and groups as $1"
    return None


def matches(source: Topics, topic: str) -> bool:
    """Whether a source's pattern, if it has one, takes a topic in."""
    return source.pattern is not None and re.fullmatch(source.pattern, topic) is not None


def routes_of(job: Job) -> Routes | None:
    """Return the routes of a checked job; None if it has none."""
    if not job.spec.route:
        return None
    (sink,) = job.sinks
    (otherwise,) = sink.plugin.topics().names
    (source,) = job.sources.values()
    return Routes(job.spec.route, otherwise, source.plugin.topics())


class Routes:
    """The routes of a job.

    Args:
        otherwise: the topic for rows that no route matches.
        source: the topics that the job reads.
    """

    def __init__(self, routes: Sequence[RouteSpec], otherwise: str, source: Topics) -> None:
        self._routes = routes
        self._otherwise = otherwise
        self._source = source
        self.targets = lru_cache(maxsize=1000)(self._targets)

    def reads(self, topic: str) -> bool:
        """Whether the job reads a topic."""
        return topic in self._source.names or matches(self._source, topic)

    @property
    def fixed(self) -> tuple[str, ...]:
        """The topics that are known before a row is."""
        found = (fixed_target(route) for route in self._routes)
        return tuple(dict.fromkeys(name for name in (*found, self._otherwise) if name is not None))

    def _targets(self, source: str) -> tuple[str, ...]:
        """Return the topics for the rows of ``source``: those of all routes that match, each once.

        Raises:
            ConfigError: a route makes no name of a topic of it, or the name that it has.
        """
        found = tuple(dict.fromkeys(self._matching(source))) or (self._otherwise,)
        for target in found:
            if target == source:
                raise ConfigError(f"route: rows of {source} would go back to {source}; give another sink-table")
            if matches(self._source, target):
                circle = f"rows of {source} would go to {target}, which the job's subscribePattern matches as well"
                raise ConfigError(f"route: {circle}; give another sink-table, or a narrower pattern", key="route")
            if not is_topic(target):
                raise ConfigError(f"route: of {source} it makes {target!r}, which cannot name a topic", key="route")
        return found

    def _matching(self, source: str) -> Iterator[str]:
        yield from (name for route in self._routes if (name := target_of(route, source)) is not None)
