"""What each identity holds of a server: counted by kind, bounded, shown by ``status``.

An identity is the names of a certificate; in plaintext, where there are none, the peer's host. One peer with many
links counts once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from jobpipe.errors import LinkError

__all__ = ["Budgets", "identity_of"]

LIMITS: Mapping[str, int] = {
    "requests": 16 * 1024 * 1024,
    "answers": 64 * 1024 * 1024,
    "leases": 1000,  # each spark.read leaves one, for read.timeout
}
"""By kind: bytes of unanswered requests as they lie in memory; bytes of answers that the peer has not taken; leases."""

SHOWN = 100
"""Identities that ``status`` lists, those with most first."""


def identity_of(names: Sequence[str], peer: str) -> str:
    """Return the identity behind a link: ``names`` of its certificate, or the host of its address ``peer``."""
    return ", ".join(names)[:300] if names else peer.rpartition(":")[0]


class Budgets:
    """Counts for one serving process.

    Attributes:
        refused: How often something was refused, by identity and kind; of the identities that hold something, or were
            refused last.
    """

    def __init__(self, limits: Mapping[str, int] = LIMITS) -> None:
        self._limits = limits
        self._held: dict[str, Counter[str]] = {}
        self.refused: Counter[tuple[str, str]] = Counter()

    def take(self, identity: str, kind: str, amount: int, *, bounded: bool = True) -> None:
        """Count ``amount`` to an identity, until :meth:`give` takes it back.

        Args:
            identity: see :func:`identity_of`.
            kind: of :data:`LIMITS`.
            amount: bytes or pieces.
            bounded: False counts it whatever the limit is.

        Raises:
            LinkError: it would hold more than the limit; nothing is counted. Another attempt may work later.
        """
        held = self._held.setdefault(identity, Counter())
        if bounded and held[kind] + amount > self._limits[kind]:
            self._note_refusal(identity, kind)
            now = held[kind]
            self.give(identity, kind, 0)
            unit = "" if kind == "leases" else " bytes of"
            raise LinkError(
                f"{identity} holds {now}{unit} {kind} here, and at most {self._limits[kind]} are allowed to one "
                "identity over all its links; let it read its answers, wait for them, or give back what it holds",
                identity=identity,
                kind=kind,
                held=now,
                limit=self._limits[kind],
            )
        held[kind] += amount

    def give(self, identity: str, kind: str, amount: int) -> None:
        """Take back what was counted."""
        held = self._held.get(identity)
        if held is None:
            return
        held[kind] -= amount
        if held[kind] <= 0:
            del held[kind]
        if not held:
            del self._held[identity]

    def held(self, identity: str, kind: str) -> int:
        """Return how much an identity holds."""
        return self._held.get(identity, Counter())[kind]

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
