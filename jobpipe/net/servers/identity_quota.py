"""What each identity holds of a server: counted by kind, bounded, shown by ``status``.

An identity is the names of a certificate; in plaintext, where there are none, the peer's host. One peer with many
links counts once.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextvars import ContextVar
from weakref import WeakValueDictionary

from jobpipe.errors import LinkError

LIMITS: Mapping[str, int] = {
    "requests": 16 * 1024 * 1024,
    "uploads": 256 * 1024 * 1024,  # 200 tasks at once, each with a full window
    "answers": 64 * 1024 * 1024,
    "leases": 1000,  # each spark.read leaves one, for read.timeout
    "expensive requests": 1024,  # more than a job has tasks that start again in the middle of a range
}
"""By kind: bytes of requests as they lie in memory, from their first byte until they are answered; of a peer that may
publish, bytes of uploads and of requests that have not come whole; bytes of answers that the peer has not taken;
leases; requests that run or wait for their turn, see :meth:`IdentityQuotas.expensive`.

There is one more kind without a limit, ``the job's uploads``: those of links that have shown that they are of the job.
"""

asking: ContextVar[str] = ContextVar("asking", default="")
"""The identity whose request the current task answers; "" for the server's own work."""

LONGEST = 300
"""Characters of an identity."""

SHOWN = 100
"""Identities that ``status`` lists, those with most first."""


def identity_of(names: Sequence[str], peer: str) -> str:
    """Return the identity of a link's peer: ``names`` of its certificate in any order, or the host of its ``peer``.

    At most LONGEST characters. Of longer names it has the beginning, and the SHA-256 of all of them.
    """
    if not names:
        return peer.rpartition(":")[0]
    whole = ", ".join(sorted(names))
    if len(whole) <= LONGEST:
        return whole
    return f"{whole[: LONGEST - 66]}, {hashlib.sha256(whole.encode()).hexdigest()}"


class IdentityQuotas:
    """Counts for one serving process.

    Attributes:
        refused: How often something was refused, by identity and kind; of the identities that hold something, or were
            refused last.
    """

    def __init__(self, limits: Mapping[str, int] = LIMITS) -> None:
        self._limits = limits
        self._held: dict[str, dict[str, int]] = {}
        self._locks: WeakValueDictionary[tuple[str, str, str], asyncio.Lock] = WeakValueDictionary()
        self.refused: Counter[tuple[str, str]] = Counter()

    def acquire(self, identity: str, kind: str, amount: int, *, bounded: bool = True) -> None:
        """Count ``amount`` to an identity, until :meth:`release` takes it back.

        Args:
            identity: see :func:`identity_of`.
            kind: of :data:`LIMITS`.
            amount: bytes or pieces.
            bounded: False counts it whatever the limit is.

        Raises:
            LinkError: it would hold more than the limit; nothing is counted. Another attempt may work later.
        """
        held = self._held.get(identity)
        if held is None:
            held = self._held[identity] = {}
        now = held.get(kind, 0)
        if bounded and now + amount > self._limits[kind]:
            self._note_refusal(identity, kind)
            self.release(identity, kind, 0)
            unit = " bytes of" if kind in ("requests", "uploads", "answers") else ""
            raise LinkError(
                f"{identity} holds {now}{unit} {kind} here, and at most {self._limits[kind]} are allowed to one "
                "identity over all its links; let it read its answers, wait for them, or give back what it holds",
                identity=identity,
                kind=kind,
                held=now,
                limit=self._limits[kind],
            )
        held[kind] = now + amount

    def release(self, identity: str, kind: str, amount: int) -> None:
        """Take back what was counted."""
        held = self._held.get(identity)
        if held is None:
            return
        left = held.get(kind, 0) - amount
        if left > 0:
            held[kind] = left
            return
        held.pop(kind, None)
        if not held:
            del self._held[identity]

    @contextlib.asynccontextmanager
    async def expensive(self, identity: str, topic: str, op: str) -> AsyncIterator[None]:
        """Wait until an expensive request may run: of an identity, a topic and an operation one at once, in order.

        A disk that hangs keeps the turns of its own topic alone, and does not keep `status` from saying so.

        Raises:
            LinkError: too many run or wait.
        """
        self.acquire(identity, "expensive requests", 1)
        try:
            turn = self._locks.get((identity, topic, op))
            if turn is None:
                turn = self._locks[identity, topic, op] = asyncio.Lock()
            async with turn:
                yield
        finally:
            self.release(identity, "expensive requests", 1)

    def held(self, identity: str, kind: str) -> int:
        """Return how much an identity holds."""
        return self._held.get(identity, {}).get(kind, 0)

    def describe(self) -> dict[str, dict[str, int]]:
        """Return what each identity holds and was refused, as JSON; of the first hundred."""
        found = sorted(self._held, key=lambda name: -sum(self._held[name].values()))[:SHOWN]
        told = {name: dict(self._held[name]) for name in found}
        for (identity, kind), count in self.refused.items():
            told.setdefault(identity, {})[f"{kind} refused"] = count
        return told

    def _note_refusal(self, identity: str, kind: str) -> None:
        if len(self.refused) >= SHOWN and (identity, kind) not in self.refused:
            self.refused.clear()
        self.refused[identity, kind] += 1
