"""Kinds of values that say who somebody is, and what he may do: names, ACLs."""

from __future__ import annotations

import re
from pathlib import Path

from jobpipe.config.values import BadValueError, Kind, plain_text

__all__ = ["ACL", "NAME"]

# As registry.identity.parse_acl, which may not be imported here and checks it again.
_GRANT = r"\s*(?:auth|open|[a-z0-9]+:.+?:[crwda]+)\s*"
_ACL = re.compile(rf"{_GRANT}(?:,{_GRANT})*")


def _parse_name(raw: object, _base: Path) -> str:
    text = plain_text(raw)
    if not text.isprintable():
        raise BadValueError
    return text


def _parse_acl(raw: object, _base: Path) -> str:
    text = plain_text(raw)
    if _ACL.fullmatch(text) is None:
        raise BadValueError
    return text


NAME = Kind("name", "a text on one line", _parse_name)
ACL = Kind(
    "ACL", "auth, open, or scheme:id:permissions (of c r w d a), or several of these with commas between", _parse_acl
)
