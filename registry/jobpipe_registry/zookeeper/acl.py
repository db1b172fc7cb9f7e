"""ACLs of ZooKeeper: ours for kazoo, and those of other nodes compared with it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from kazoo.security import ACL, Id, Permissions

from jobpipe_registry.credentials import Grant

_BITS = {
    "c": Permissions.CREATE,
    "r": Permissions.READ,
    "w": Permissions.WRITE,
    "d": Permissions.DELETE,
    "a": Permissions.ADMIN,
}


@dataclass(frozen=True)
class ExposedNode:
    """A node with which strangers may do more than our ACL says: ``permissions`` are the letters too many."""

    path: str
    permissions: str

    @property
    def writable(self) -> bool:
        """Whether strangers may change it, or what is below it."""
        return self.permissions != "r"


def to_kazoo(grants: Iterable[Grant]) -> list[Any]:
    """Return the ACL for kazoo's calls."""
    return [
        ACL(sum(_BITS[letter] for letter in set(grant.permissions)), Id(grant.scheme, grant.id)) for grant in grants
    ]


def exposed(path: str, found: Iterable[Any], wanted: Sequence[Grant]) -> ExposedNode | None:
    """Compare a node's ACL with ours, as far as it lets in those who prove nothing: ``world`` and ``ip``."""
    allowed = _bits_of_strangers(to_kazoo(wanted))
    more = _bits_of_strangers(found) & ~allowed
    letters = "".join(letter for letter, bit in _BITS.items() if more & bit)
    return ExposedNode(path, letters) if letters else None


def _bits_of_strangers(acl: Iterable[Any]) -> int:
    bits = 0
    for entry in acl:
        if entry.id.scheme in ("world", "ip"):
            bits |= entry.perms
    return bits
