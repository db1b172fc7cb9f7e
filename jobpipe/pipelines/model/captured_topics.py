"""The topics of a capture's tables, by its routes and its sink. Names are those of the file."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from jobpipe.config.reading.located_values import Path
from jobpipe.pipelines.file.spec import RouteSpec
from jobpipe.pipelines.model.pipeline import Job
from jobpipe.pipelines.model.routes import fixed_target, may_lead_to, problem_of, target_of
from jobpipe.pipelines.plugins.api import Topics
from jobpipe.pipelines.plugins.capture_source import CaptureSource

_NAMED = re.compile(r"[\w-]+\\?\.[\w-]+")  # a regular expression that one table alone matches
_SYMBOL = "<>"  # no topic's name, nor a prefix, has it


def tables_of(job: Job) -> tuple[str, ...]:
    """Return the tables of a capture, as regular expressions, or by their names; of another job ()."""
    return tuple(_plain(table) for source in _sources(job) for table in source.tables)


def named_tables(job: Job) -> Iterator[tuple[str, Path]]:
    """Yield the tables of a capture that are known by name, and where the file says so."""
    for stage in job.sources.values():
        if isinstance(stage.plugin, CaptureSource):
            for number, table in enumerate(stage.plugin.tables):
                if _NAMED.fullmatch(table):
                    yield _plain(table), (*stage.path, "tables", number)


def names_among(tables: Sequence[str]) -> tuple[str, ...]:
    """Return the names of tables that are given by name, of regular expressions of tables."""
    return tuple(_plain(table) for table in tables if _NAMED.fullmatch(table))


def all_are_named(job: Job) -> bool:
    """Whether all tables of a capture are known by name."""
    return all(_NAMED.fullmatch(table) for table in tables_of(job))


def patterns_without_route(job: Job) -> tuple[str, ...]:
    """Return the tables of a capture that are not known by name, without those that a route names in the same way."""
    routed = {route.source_table for route in job.spec.route}
    return tuple(table for table in tables_of(job) if not (_NAMED.fullmatch(table) or table in routed))


def routes_of_capture(job: Job, prefix: str = "") -> tuple[RouteSpec, ...]:
    """Return the routes of a capture, and a last one for all tables that they leave: each table is matched.

    Args:
        prefix: of topics; their names are whole ones with it.
    """
    found = [_with_prefix(route, prefix) for route in job.spec.route if problem_of(route) is None]
    names = [name for sink in job.sinks for name in sink.plugin.topics().names]
    return (*found, _route("(?s).*", prefix + (names[0] if names else _SYMBOL)))


def topic_of(job: Job, table: str) -> str:
    """Return the topic of a table."""
    return next(topic for route in routes_of_capture(job) if (topic := target_of(route, table)) is not None)


def captured_topics(job: Job) -> Iterator[tuple[str, Path]]:
    """Yield each topic of a capture that is known by name, once, and where the file says so."""
    found: dict[str, Path] = {}
    for number, route in enumerate(job.spec.route):
        if (target := fixed_target(route)) is not None and _may_match(job, route):
            found.setdefault(target, (*job.path, "route", number, "sink-table"))
    for stage in job.sinks:
        for name in stage.plugin.topics().names:
            found.setdefault(name, (*stage.path, "topic"))
    for table, path in named_tables(job):
        found.setdefault(topic_of(job, table), path)
    yield from found.items()


def may_publish(job: Job, topic: str) -> bool:
    """Whether a capture may publish a topic: one of its tables may be so named that it goes there."""
    *routes, last = routes_of_capture(job)
    tables = [Topics(pattern=table) for table in tables_of(job)]
    if any(may_lead_to(route, table, topic) for route in routes for table in tables):
        return True
    return topic_of(job, topic) == topic and any(may_lead_to(last, table, topic) for table in tables)


def matches_none(job: Job, route: RouteSpec) -> bool:
    """Whether no table of a capture is matched by a route, as far as they are known by name."""
    return all_are_named(job) and not _may_match(job, route)


def _may_match(job: Job, route: RouteSpec) -> bool:
    if not all_are_named(job):
        return True
    return any(target_of(route, table) is not None for table, _ in named_tables(job))


def _plain(table: str) -> str:
    return table.replace("\\", "") if _NAMED.fullmatch(table) else table


def _sources(job: Job) -> Iterator[CaptureSource]:
    return (stage.plugin for stage in job.sources.values() if isinstance(stage.plugin, CaptureSource))


def _with_prefix(route: RouteSpec, prefix: str) -> RouteSpec:
    """Return a route to the whole name; the symbol for the table's name is one that the prefix cannot have."""
    if route.replace_symbol is None:
        return _route(route.source_table, prefix + route.sink_table)
    return _route(route.source_table, prefix + route.sink_table.replace(route.replace_symbol, _SYMBOL))


def _route(tables: str, topic: str) -> RouteSpec:
    symbol = {"replace-symbol": _SYMBOL} if _SYMBOL in topic else {}
    return RouteSpec.model_validate({"source-table": tables, "sink-table": topic, **symbol})
