"""A pipeline's graph for people and programs: text, a diagram, JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from jobpipe.graph.diagram import Diagram, DiagramEdge, DiagramNode, Shape
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


def as_diagram(graph: Graph) -> Diagram:
    """Return the graph as a diagram: jobs are boxes, topics ellipses, and what else jobs read or write is text."""
    nodes = [DiagramNode(f"job {job.name}", _label(job), Shape.BOX) for job in graph.jobs]
    nodes += [DiagramNode(f"topic {topic.name}", topic.name, Shape.ELLIPSE) for topic in graph.topics]
    edges = []
    for number, (name, word) in enumerate(_foreign(graph)):
        way, _, thing = word.partition(" ")
        start, end = f"foreign {number}", f"job {name}"
        nodes.append(DiagramNode(start, thing, Shape.TEXT))
        edges.append(DiagramEdge(start, end) if way == "from" else DiagramEdge(end, start))
    for topic in graph.topics:
        edges += [DiagramEdge(f"job {name}", f"topic {topic.name}") for name in topic.publishers]
        edges += [DiagramEdge(f"topic {topic.name}", f"job {name}") for name in topic.readers]
    return Diagram(graph.pipeline, tuple(nodes), tuple(edges))


def _label(job: JobNode) -> str:
    return f"{job.name}\n{job.schedule or job.mode}" if job.mode is Mode.BATCH else job.name


def _foreign(graph: Graph) -> Iterator[tuple[str, str]]:
    """Yield what a job reads or writes that is no topic: ``from csv``, ``to json``."""
    for job in graph.jobs:
        for way, words in (("from", job.sources), ("to", job.sinks)):
            yield from ((job.name, f"{way} {word}") for word in words if not word.startswith(("topic ", "topics ")))


def as_dict(graph: Graph) -> dict[str, Any]:
    """Return the graph as plain values: pipeline, jobs, topics, cycles."""
    found: dict[str, Any] = json.loads(json.dumps(asdict(graph)))
    return found
