"""A pipeline's graph for people and programs: text, DOT, JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from jobpipe.pipelines.file.spec import Mode
from jobpipe.pipelines.model.graph import Graph, JobNode


def as_text(graph: Graph) -> str:
    """Return a line for each job, as rows pass its stages, and one for each topic, with who publishes and reads it."""
    jobs, topics = len(graph.jobs), len(graph.topics)
    lines = [f"{graph.pipeline}: {jobs} job{'s' * (jobs != 1)}, {topics} topic{'s' * (topics != 1)}", ""]
    width = max((len(job.name) for job in graph.jobs), default=0)
    lines += [f"{job.name:<{width}}  {_chain(job)}{_about(job)}" for job in graph.jobs]
    if graph.topics:
        width = max(len(topic.name) for topic in graph.topics)
        lines += ["", "topics"]
        for topic in graph.topics:
            publishers = ", ".join(topic.publishers) or "(another pipeline)"
            readers = ", ".join(topic.readers) or "(no job of this file)"
            lines.append(f"  {topic.name:<{width}}  {publishers} → {readers}")
    if graph.cycles:
        lines += ["", *(f"circle: {' → '.join((*cycle, cycle[0]))}" for cycle in graph.cycles)]
    return "\n".join(lines)


def _chain(job: JobNode) -> str:
    """Return what rows pass: ``csv → MaskField → topic flights``."""
    parts = [" + ".join(job.sources), *job.transforms, " + ".join(job.sinks)]
    return " → ".join(part for part in parts if part)


def _about(job: JobNode) -> str:
    said = [job.kind] if job.kind != "query" else []
    said += ["BATCH"] if job.mode is Mode.BATCH else []
    said += [job.schedule] if job.schedule is not None else []
    return f"  ({', '.join(said)})" if said else ""


def as_dot(graph: Graph) -> str:
    """Return the graph in the language of Graphviz."""
    return "\n".join(_dot(graph))


def _dot(graph: Graph) -> Iterator[str]:
    yield f"digraph {_quoted(graph.pipeline)} {{"
    yield "  rankdir=LR;"
    for job in graph.jobs:
        label = f"{job.name}\n{job.schedule or job.mode}" if job.mode is Mode.BATCH else job.name
        yield f"  {_quoted(f'job {job.name}')} [shape=box, label={_quoted(label)}];"
    for topic in graph.topics:
        yield f"  {_quoted(f'topic {topic.name}')} [shape=ellipse, label={_quoted(topic.name)}];"
    for number, (name, word) in enumerate(_foreign(graph)):
        yield f"  {_quoted(f'foreign {number}')} [shape=plaintext, label={_quoted(word.split(' ', 1)[1])}];"
        ends = [_quoted(f"foreign {number}"), _quoted(f"job {name}")]
        yield f"  {' -> '.join(ends if word.startswith('from ') else ends[::-1])};"
    for topic in graph.topics:
        for name in topic.publishers:
            yield f"  {_quoted(f'job {name}')} -> {_quoted(f'topic {topic.name}')};"
        for name in topic.readers:
            yield f"  {_quoted(f'topic {topic.name}')} -> {_quoted(f'job {name}')};"
    yield "}"


def _foreign(graph: Graph) -> Iterator[tuple[str, str]]:
    """Yield what a job reads or writes that is no topic: ``from csv``, ``to json``."""
    for job in graph.jobs:
        for way, words in (("from", job.sources), ("to", job.sinks)):
            yield from ((job.name, f"{way} {word}") for word in words if not word.startswith(("topic ", "topics ")))


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def as_dict(graph: Graph) -> dict[str, Any]:
    """Return the graph as plain values: pipeline, jobs, topics, cycles."""
    found: dict[str, Any] = json.loads(json.dumps(asdict(graph)))
    return found
