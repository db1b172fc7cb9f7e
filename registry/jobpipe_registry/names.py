"""Rules for names, and the paths made from them. Pure.

    <namespace>/<topic>/parallel-<index>    registrations, ephemeral
    <namespace>.owners/<topic>              who publishes, ephemeral
    <namespace>.epochs/<topic>              highest epoch given out, persistent
    <namespace>.recovery/<topic>            where the topic goes on if its publisher's disk is lost, persistent
    <namespace>.jobs/<pipeline>/<job>       which attempt may run, and should it, persistent; its children:
        lease                               which attempt runs, ephemeral
        end                                 how the last one ended, persistent

These others lie next to the namespace: a topic node must be empty when its last registration is gone.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from jobpipe_registry.registry_errors import InvalidName

MAX_PARALLELISM = 4096  # a listing of that many nodes stays far below ZooKeeper's 1 MiB packet limit

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
JOB_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,39}")
"""Of a pipeline, a job, or a view of it: the three with dots between are a subscription's name."""
_CHILD = re.compile(r"parallel-([1-9][0-9]{0,3})")


def check_name(name: str) -> str:
    """Return ``name`` if a topic or a subscription may have it.

    Raises:
        InvalidName: it is empty, longer than 128 characters, starts with a character other than a letter or digit, or
            has others than letters, digits, ``.``, ``_`` and ``-``.
    """
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        raise InvalidName(str(name), "1 to 128 of A-Z a-z 0-9 . _ - with a letter or digit first")
    return name


def check_job_name(name: str) -> str:
    """Return ``name`` if a pipeline or a job may have it.

    Raises:
        InvalidName: it is empty, longer than 40 characters, starts with a character other than a letter or digit, or
            has others than letters, digits, ``_`` and ``-``.
    """
    if not isinstance(name, str) or JOB_NAME.fullmatch(name) is None:
        raise InvalidName(str(name), "1 to 40 of A-Z a-z 0-9 _ - with a letter or digit first")
    return name


def child_name(index: int) -> str:
    """Return the node name of a registration.

    >>> child_name(3)
    'parallel-3'
    """
    if not 1 <= index <= MAX_PARALLELISM:
        raise InvalidName(f"parallel-{index}", f"an index from 1 to {MAX_PARALLELISM}")
    return f"parallel-{index}"


def child_index(name: str) -> int | None:
    """Return the index in a node name, None for a node that is no registration.

    >>> child_index("parallel-3"), child_index("parallel-03")
    (3, None)
    """
    match = _CHILD.fullmatch(name)
    if match is None or int(match[1]) > MAX_PARALLELISM:
        return None
    return int(match[1])


@dataclass(frozen=True)
class Paths:
    """Paths below one namespace, e.g. ``/jobpipe/topics``.

    Raises:
        InvalidName: the namespace is not an absolute path of allowed names.
    """

    namespace: str

    def __post_init__(self) -> None:
        parts = self.namespace.split("/")
        if len(parts) < 2 or parts[0] != "" or not all(_NAME.fullmatch(part) for part in parts[1:]):
            raise InvalidName(self.namespace, "a namespace such as /jobpipe/topics")

    @property
    def owners(self) -> str:
        return f"{self.namespace}.owners"

    @property
    def epochs(self) -> str:
        return f"{self.namespace}.epochs"

    @property
    def recoveries(self) -> str:
        return f"{self.namespace}.recovery"

    @property
    def jobs(self) -> str:
        return f"{self.namespace}.jobs"

    def pipeline(self, pipeline: str) -> str:
        return f"{self.jobs}/{check_job_name(pipeline)}"

    def job(self, pipeline: str, job: str) -> str:
        return f"{self.pipeline(pipeline)}/{check_job_name(job)}"

    def topic(self, topic: str) -> str:
        return f"{self.namespace}/{check_name(topic)}"

    def registration(self, topic: str, index: int) -> str:
        return f"{self.topic(topic)}/{child_name(index)}"

    def owner(self, topic: str) -> str:
        return f"{self.owners}/{check_name(topic)}"

    def epoch(self, topic: str) -> str:
        return f"{self.epochs}/{check_name(topic)}"

    def recovery(self, topic: str) -> str:
        return f"{self.recoveries}/{check_name(topic)}"
