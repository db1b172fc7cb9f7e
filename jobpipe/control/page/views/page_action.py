"""What a person may do on a page."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class PageAction:
    """What a person may do: a request to REST, after a question that says what will happen.

    Attributes:
        body: of the request, as JSON; "" for none.
    """

    label: str
    method: str
    path: str
    question: str
    dangerous: bool = False
    body: str = ""


def body_of(values: Mapping[str, str | int | bool]) -> str:
    """Return the body of a request."""
    return json.dumps(dict(values))
