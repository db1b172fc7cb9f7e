"""What a wrong file is: its text, and every problem that it must give."""

from __future__ import annotations

from dataclasses import dataclass
from textwrap import dedent

Expected = tuple[int | None, str, str, str]


@dataclass(frozen=True)
class Wrong:
    """A file, and its problems in order; ``W:`` before what is wrong marks a warning."""

    name: str
    text: str
    problems: tuple[Expected, ...]


def whole(name: str, text: str, *problems: Expected) -> Wrong:
    """A whole file."""
    return Wrong(name, dedent(text).lstrip("\n"), problems)


def job(name: str, text: str, *problems: Expected) -> Wrong:
    """A job ``a`` from line 4 on, beside a job that publishes the topic ``orders``; keys below ``jobs.a``."""
    head = (
        "pipeline: {name: shop}\n"
        "jobs:\n  a:\n"
        + "".join(f"    {line}\n" for line in dedent(text).strip("\n").splitlines())
        + "  orders: {source: {type: rate}, sink: {type: jobpipe, topic: orders}}\n"
    )
    told = tuple((line, f"jobs.a.{key}" if key else "jobs.a", what, remedy) for line, key, what, remedy in problems)
    return Wrong(name, head, told)


def pipeline(name: str, line: str, *problems: Expected) -> Wrong:
    """A key of the section ``pipeline``, in line 3."""
    text = f"pipeline:\n  name: shop\n  {line}\njobs: {{a: {{source: {{type: rate}}, sink: {{type: console}}}}}}\n"
    told = tuple((line, f"pipeline.{key}", what, remedy) for line, key, what, remedy in problems)
    return Wrong(name, text, told)


def transform(name: str, stage: str, *problems: Expected) -> Wrong:
    """A transform, in line 5; keys below it."""
    text = f"source: {{type: rate}}\ntransform: [{stage}]\nsink: {{type: console}}"
    told = ((line, f"transform[0]{'.' if key else ''}{key}", what, remedy) for line, key, what, remedy in problems)
    return job(name, text, *told)


RATE = "source: {type: rate}"
CONSOLE = "sink: {type: console}"
ORDERS = "source: {type: jobpipe, subscribe: orders}"
BATCH = "execution: {runtime-mode: BATCH}"
SECRET = "a reference to a secret, never the secret itself"
