"""Two calls of one registry handler, interleaved at each call of the registry and each lock: what was asked last holds.

Real are the handler, its keeper and what keeps its leases; the tree of nodes is in memory. A call whose caller does not
wait for it any more, as of a request that was cancelled, still runs to its end, whatever was asked since.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any
from unittest import mock

import jobpipe_registry.tree.registration_keeper
import jobpipe_registry.tree.tree_jobs
from jobpipe_registry.job_records import EndRecord, Lease, Order
from jobpipe_registry.memory import MemoryRegisterServerHandler, MemoryTree, _MemoryNodes
from jobpipe_registry.topic_records import OwnerRecord, RegisterRecord
from tests.explore.interleaving.interleave_steps import Actor, Changed, Policy, acting, run

TOPIC = "orders"
OWNER = OwnerRecord(endpoint="127.0.0.1:1", epoch=1, instance="i", name="n", host="h", pid=1, started=0.0)
RECORD = RegisterRecord(
    host="127.0.0.1",
    port=1,
    parallelism=1,
    index=1,
    coordinator="127.0.0.1:1",
    data="127.0.0.1:2",
    epoch=1,
    instance="i",
    ssl=False,
)
JOB = ("pipeline", "job")
LEASE = Lease("r1", 1, "h", 1, 0.0, "i")
END = EndRecord("r1", 1, "FINISHED", 1.5e9)
CALLS: dict[str, Callable[[Any], object]] = {
    "claim": lambda handler: handler.claim(TOPIC, OWNER),
    "release": lambda handler: handler.release(TOPIC),
    "register": lambda handler: handler.register(TOPIC, RECORD),
    "unregister": lambda handler: handler.unregister(TOPIC, 1),
    "take lease": lambda handler: handler.jobs.take_lease(*JOB, LEASE, lambda _: None),
    "release lease": lambda handler: handler.jobs.release_lease(*JOB, END),
}
PAIRS = [
    *(("claim", "release"), ("release", "claim"), ("register", "unregister"), ("unregister", "register")),
    *(("take lease", "release lease"), ("release lease", "take lease")),
]
"""What is asked first, and what is asked last."""

WANTED = ("claim", "register", "take lease")
"""After which there is something."""


class _Nodes(_MemoryNodes):
    """Nodes at each of whose calls an actor stops."""

    def get(self, path: str, notify: Any = None) -> Any:
        _stop(f"get {path}")
        return super().get(path, notify)

    def commit(self, operations: Any) -> None:
        _stop("commit")
        super().commit(operations)


class _Handler(MemoryRegisterServerHandler):
    def _open(self, options: Any) -> Any:
        self._memory_nodes = _Nodes(self._tree)
        return self._memory_nodes


class _Lock:
    """The keeper's lock, between actors."""

    def __init__(self) -> None:
        self._owner: object = None
        self._depth = 0

    def acquire(self, timeout: float = -1) -> bool:
        actor = acting()
        if actor is not None:
            actor.step("lock")
            while self._owner not in (None, actor):
                actor.locked = True
                actor.step("locked")
        self._owner, self._depth = actor or self, self._depth + 1
        return True

    def release(self) -> None:
        self._depth -= 1
        self._owner = self._owner if self._depth else None

    __enter__ = acquire

    def __exit__(self, *exc: object) -> None:
        self.release()


def _stop(what: str) -> None:
    if (actor := acting()) is not None:
        actor.step(what)


def explore_pair(first: str, last: str) -> dict[int, str]:
    """Let ``last`` be asked after each step of ``first``; return what is wrong, by step."""
    found: dict[int, str] = {}
    after, steps = 1, 1
    while after <= steps:
        steps, wrong = _run(first, last, after)
        if wrong is not None:
            found[after] = wrong
        after += 1
    return found


def _run(first: str, last: str, after: int) -> tuple[int, str | None]:
    quiet = Changed(threading, RLock=_Lock, Thread=mock.Mock())
    modules = [
        mock.patch.object(module, "threading", quiet)
        for module in (jobpipe_registry.tree.registration_keeper, jobpipe_registry.tree.tree_jobs)
    ]
    with modules[0], modules[1]:
        tree = MemoryTree()
        handler = _Handler(tree)
        handler.start({"connect": "memory", "topic.storage": "/jobpipe/topics"})
        handler.jobs.set_order(*JOB, Order("r1", 1, "run"), -1)
    handler.create_topic_node(TOPIC)
    if last in WANTED:
        CALLS[last](handler)
    early, late = (Actor(name, lambda name=name: CALLS[name](handler)) for name in (first, last))  # type: ignore[misc]
    run([early, late], _once(early, late, after))
    handler._parts().keeper._repair(set())
    handler._parts().jobs._repair([])
    paths = [path for path, node in tree._nodes.items() if node.session]
    wanted = last in WANTED
    errors = [actor.error for actor in (early, late) if actor.error is not None]
    wrong = None
    if errors:
        wrong = f"{first}, then {last}: {errors}"
    elif bool(paths) != wanted:
        wrong = f"{first}, and {last} after its step {after}: there is {paths}"
    return early.steps, wrong


def _once(early: Actor, late: Actor, after: int) -> Policy:
    """``early`` takes so many steps, then ``late`` goes as far as it can."""

    def choose(able: list[Actor]) -> Actor:
        if early in able and (early.steps < after or late not in able):
            return early
        return late if late in able else early

    return choose
