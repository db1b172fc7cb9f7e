"""The graph of a pipeline: which job publishes and reads which topic. Names are those of the bus, prefix included."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from jobpipe.config.reading.located_values import Path, find
from jobpipe.pipelines.file.error_messages import problem_at
from jobpipe.pipelines.file.problems import Problem
from jobpipe.pipelines.file.spec import Mode, RouteSpec
from jobpipe.pipelines.model.captured_topics import (
    all_are_named,
    captured_topics,
    may_publish,
    patterns_without_route,
    tables_of,
)
from jobpipe.pipelines.model.pipeline import Job, Pipeline
from jobpipe.pipelines.model.routes import fixed_target, matches, may_lead_to, problem_of, target_of
from jobpipe.pipelines.plugins.api import Topics
from jobpipe.store.spool.spool_files import is_topic

_ROUTED_DEPTH = 3  # jobs with routes, one after another, of whose topics the names are made
MAX_NAME = 128  # characters of a topic's name, as is_topic has it


@dataclass(frozen=True)
class JobNode:
    """A job.

    Attributes:
        kind: ``query``, ``flow``, ``capture``, or ``application``, which may read and publish anything.
        sources, transforms, sinks: what it is made of, in words: ``csv``, ``topic flights``.
        reads, publishes: topics.
        schedule: its crontab or period.
    """

    name: str
    kind: str
    mode: Mode
    sources: tuple[str, ...]
    transforms: tuple[str, ...]
    sinks: tuple[str, ...]
    reads: tuple[str, ...]
    publishes: tuple[str, ...]
    schedule: str | None


@dataclass(frozen=True)
class TopicNode:
    """A topic: the jobs that publish it and read it; without a publisher it comes from elsewhere."""

    name: str
    publishers: tuple[str, ...]
    readers: tuple[str, ...]


@dataclass(frozen=True)
class Graph:
    """Jobs and topics; ``cycles`` are circles of jobs, each from its first job in name order."""

    pipeline: str
    jobs: tuple[JobNode, ...]
    topics: tuple[TopicNode, ...]
    cycles: tuple[tuple[str, ...], ...]


def graph_of(pipeline: Pipeline) -> Graph:
    """Return the graph of a checked pipeline."""
    routed = _routed(pipeline)
    publishes = {
        job.name: tuple(dict.fromkeys([topic for topic, _ in _published(pipeline, job)] + routed.get(job.name, [])))
        for job in pipeline.jobs.values()
    }
    known = {topic for topics in publishes.values() for topic in topics}
    reads = {job.name: tuple(_read(pipeline, job, known)) for job in pipeline.jobs.values()}
    every = sorted({*known, *(topic for topics in reads.values() for topic in topics)})
    topics = tuple(TopicNode(topic, _having(publishes, topic), _having(reads, topic)) for topic in every)
    nodes = tuple(_node(pipeline, job, reads[job.name], publishes[job.name]) for job in pipeline.jobs.values())
    return Graph(pipeline.name, nodes, topics, _cycles(topics))


def subscriptions_of(pipeline: Pipeline, topic: str) -> tuple[str, ...]:
    """Return the subscriptions by which the pipeline's jobs read a topic (its full name), those on schedules not."""
    found = []
    for job in pipeline.jobs.values():
        if job.mode is Mode.BATCH or job.spec.schedule is not None:
            continue  # it holds back what it has not read in another way
        for view, stage in job.sources.items():
            if topic in _matching(pipeline, stage.plugin.topics(), {topic}):
                name = f"{pipeline.name}.{job.name}"
                found.append(name if view is None else f"{name}.{view}")
    return tuple(found)


def reads_topic(pipeline: Pipeline, job: Job, topic: str) -> bool:
    """Tell whether a job reads a topic, given by its full name."""
    return any(topic in _matching(pipeline, stage.plugin.topics(), {topic}) for stage in job.sources.values())


def subscribers_of(pipeline: Pipeline, job: Job) -> dict[str, tuple[str, ...]]:
    """Return :func:`subscriptions_of` for each topic that a job publishes, by its name without the prefix."""
    prefix = pipeline.spec.topic_prefix
    names = (topic for topic, _ in _published(pipeline, job))
    return {topic.removeprefix(prefix): subscriptions_of(pipeline, topic) for topic in names}


def published_again(pipeline: Pipeline, job: str) -> str:
    """Return, as a sentence, what topics get of a job that begins without its checkpoint; "" if it publishes none."""
    topics = next(node.publishes for node in graph_of(pipeline).jobs if node.name == job)
    if not topics:
        return ""
    begin = f"topic {topics[0]} keeps its rows, and gets"
    if len(topics) > 1:
        begin = f"topics {', '.join(topics)} keep their rows, and get"
    return f"{begin} those once more that job {job} reads again"


def dead_letters_of(pipeline: Pipeline, job: Job) -> str | None:
    """Return the topic of a job's dead letters without the prefix; None if it has none."""
    if job.spec.errors.tolerance == "none":
        return None
    return job.spec.errors.dead_letters or f"{pipeline.name}.{job.name}.dead-letters"


def _having(topics: dict[str, tuple[str, ...]], topic: str) -> tuple[str, ...]:
    return tuple(job for job, names in topics.items() if topic in names)


def _published(pipeline: Pipeline, job: Job) -> Iterator[tuple[str, Path]]:
    """Yield each topic that a job publishes, and where the file says so."""
    prefix = pipeline.spec.topic_prefix
    if job.spec.captures:
        for topic, path in captured_topics(job):
            # What is wrong with the name of a table, capture_checks reports.
            if is_topic(prefix + topic) or path[-1] in ("sink-table", "topic"):
                yield prefix + topic, path
        return
    own = set()
    for stage in job.sinks:
        for name in stage.plugin.topics().names:
            own.add(name)
            yield prefix + name, (*stage.path, "topic")
    for number, route in enumerate(job.spec.route):
        target = fixed_target(route)
        if target is not None and target not in own:  # several routes may lead to one topic
            own.add(target)
            yield prefix + target, (*job.path, "route", number, "sink-table")
    if job.spec.publish is not None:
        yield prefix + job.spec.publish, (*job.path, "publish")
    if (dead := dead_letters_of(pipeline, job)) is not None:
        yield prefix + dead, (*job.path, "errors", *(["dead-letters"] if job.spec.errors.dead_letters else []))


def _routed(pipeline: Pipeline) -> dict[str, list[str]]:
    """Return, by job, the topics that routes make by the names of others, or a capture by the names of tables.

    Those of topics of the file are known. Of other topics, those count that a job of the file reads by name.
    """
    prefix = pipeline.spec.topic_prefix
    known = {topic for job in pipeline.jobs.values() for topic, _ in _published(pipeline, job)}
    found: dict[str, dict[str, None]] = {}
    for _ in range(_ROUTED_DEPTH):
        made = {
            (job.name, prefix + target)
            for job, route, source in _free_routes(pipeline)
            for topic in _matching(pipeline, source, known)
            if (target := target_of(route, topic[len(prefix) :])) is not None and not matches(source, target)
        }
        for job_name, topic in sorted(made):
            found.setdefault(job_name, {})[topic] = None
        known |= {topic for _, topic in made}
    named = {topic for job in pipeline.jobs.values() for topic in _read(pipeline, job, set())}
    for job, route, source in _free_routes(pipeline):
        for topic in sorted(named - known):
            if topic.startswith(prefix) and may_lead_to(route, source, topic[len(prefix) :]):
                found.setdefault(job.name, {})[topic] = None
    for job in pipeline.jobs.values():
        for topic in sorted(named - known) if job.spec.captures else ():
            if topic.startswith(prefix) and may_publish(job, topic[len(prefix) :]):
                found.setdefault(job.name, {})[topic] = None
    return {job_name: list(topics) for job_name, topics in found.items()}


def _free_routes(pipeline: Pipeline) -> Iterator[tuple[Job, RouteSpec, Topics]]:
    """Yield the routes whose topics depend on the rows, each with its job and what that reads."""
    for job in pipeline.jobs.values():
        for route in job.spec.route:
            if fixed_target(route) is None and problem_of(route) is None:
                yield from ((job, route, stage.plugin.topics()) for stage in job.sources.values())


def _read(pipeline: Pipeline, job: Job, known: set[str]) -> list[str]:
    found = [name for stage in job.sources.values() for name in _matching(pipeline, stage.plugin.topics(), known)]
    return list(dict.fromkeys(found))


def _matching(pipeline: Pipeline, topics: Topics, known: set[str]) -> list[str]:
    prefix = pipeline.spec.topic_prefix
    found = [prefix + name for name in topics.names]
    if topics.pattern is not None:
        pattern = re.compile(topics.pattern)
        found += [name for name in sorted(known) if name.startswith(prefix) and pattern.fullmatch(name[len(prefix) :])]
    return found


def _node(pipeline: Pipeline, job: Job, reads: tuple[str, ...], publishes: tuple[str, ...]) -> JobNode:
    kind = "capture" if job.spec.captures else "application" if job.spec.application else job.spec.type or "query"
    schedule = job.spec.schedule
    prefix = pipeline.spec.topic_prefix

    def words(kind_of: str, topics: Topics) -> str:
        names = [f"topic {prefix}{name}" for name in topics.names]
        names += [f"topics {topics.pattern}"] if topics.pattern is not None else []
        return ", ".join(names) or kind_of

    sources = tuple(words(stage.type, stage.plugin.topics()) for stage in job.sources.values())
    own = {prefix + name for stage in job.sinks for name in stage.plugin.topics().names}
    others = [f"topic {topic}" for topic, _ in _published(pipeline, job) if topic not in own]
    others += [f"topics {prefix}{route.sink_table}" for route in job.spec.route if fixed_target(route) is None]
    if kind == "capture":
        sources = (f"tables {', '.join(tables_of(job))}",)
        others += [] if own else [f"topics {prefix}{table}" for table in patterns_without_route(job)]
    return JobNode(
        name=job.name,
        kind=kind,
        mode=job.mode,
        sources=sources,
        transforms=tuple(stage.type for stage in job.transforms)
        if kind in ("query", "capture")
        else (job.spec.application or job.spec.function or "",),
        sinks=tuple(dict.fromkeys((*(words(stage.type, stage.plugin.topics()) for stage in job.sinks), *others))),
        reads=reads,
        publishes=publishes,
        schedule=None if schedule is None else schedule.crontab or schedule.every,
    )


def _cycles(topics: tuple[TopicNode, ...]) -> tuple[tuple[str, ...], ...]:
    """Return the groups of jobs that reach themselves, in the order in which rows pass them."""
    after: dict[str, set[str]] = {}
    for topic in topics:
        for job in topic.publishers:
            after.setdefault(job, set()).update(topic.readers)
    found: dict[frozenset[str], tuple[str, ...]] = {}
    for job in sorted(after):
        way = _way_back(job, after)
        if way is not None:
            found.setdefault(frozenset(way), way)
    return tuple(found.values())


def _way_back(start: str, after: dict[str, set[str]]) -> tuple[str, ...] | None:
    """Return the shortest way from a job to itself, without its end."""
    before: dict[str, str] = {}
    front = [start]
    while front:
        job = front.pop(0)
        for following in sorted(after.get(job, ())):
            if following == start:
                way = [job]
                while way[0] != start:
                    way.insert(0, before[way[0]])
                return tuple(way)
            if following not in before:
                before[following] = job
                front.append(following)
    return None


def check_topics(pipeline: Pipeline, *, complete: bool) -> Iterator[Problem]:
    """Yield what is wrong between the jobs.

    Args:
        complete: all jobs of the file are there; else topics without a publisher are not reported.
    """
    tree, prefix = pipeline.tree, pipeline.spec.topic_prefix
    first: dict[str, tuple[str, Path]] = {}
    for job in pipeline.jobs.values():
        for topic, path in _published(pipeline, job):
            other, place = first.setdefault(topic, (job.name, path))
            if place != path:
                what = f"topic {topic} has two publishers: job {other} publishes it too"
                yield problem_at(tree, path, what, "publish a topic of its own, and let readers subscribe to both")
    yield from _long_names(pipeline)
    routed = _routed(pipeline)
    known = {*first, *(topic for topics in routed.values() for topic in topics)}
    for job in pipeline.jobs.values():
        if not complete:
            break
        more = any(other is not job and source.pattern for other, _, source in _free_routes(pipeline))
        more = more or any(not all_are_named(other) for other in pipeline.jobs.values())
        for stage in job.sources.values():
            topics = stage.plugin.topics()
            for name in topics.names:
                if prefix + name not in known:
                    what = f"no job of this file publishes topic {prefix + name}"
                    remedy = "check its name, unless another pipeline or program publishes it"
                    yield _warning(pipeline, stage.path, what, remedy)
            if topics.pattern is not None and not more and not _matching(pipeline, topics, known):
                what = f"no topic of this file matches {topics.pattern}"
                yield _warning(pipeline, stage.path, what, "check it, unless others publish such topics")
    for cycle in graph_of(pipeline).cycles:
        circle = " → ".join((*cycle, cycle[0]))
        what = f"rows go round in a circle: {circle}"
        path = pipeline.jobs[cycle[0]].path
        yield problem_at(tree, path, what, "make sure that a filter ends it", "warning")


def _long_names(pipeline: Pipeline) -> Iterator[Problem]:
    """Yield a problem for each topic whose name is too long, once the prefix is added."""
    prefix = pipeline.spec.topic_prefix
    for job in pipeline.jobs.values():
        named = list(_published(pipeline, job))
        for stage in job.sources.values():
            named += [(prefix + name, _subscribed_at(pipeline, stage.path)) for name in stage.plugin.topics().names]
        for topic, path in named:
            if not is_topic(topic):
                what = f"with pipeline.topic-prefix the topic's name has {len(topic)} characters: {topic}"
                remedy = f"give a shorter {'errors.dead-letters' if path[-1] == 'errors' else 'name'} or topic-prefix"
                yield problem_at(pipeline.tree, path, what, f"{remedy}: {MAX_NAME} are possible")


def _warning(pipeline: Pipeline, path: Path, what: str, remedy: str) -> Problem:
    return problem_at(pipeline.tree, _subscribed_at(pipeline, path), what, remedy, "warning")


def _subscribed_at(pipeline: Pipeline, path: Path) -> Path:
    """Return where a source names its topics."""
    stage = dict(find(pipeline.tree, path).items())
    return next(((*path, key) for key in ("subscribe", "subscribePattern", "assign") if key in stage), path)
