"""What ``jobpipe doctor`` finds: one line a check, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Verdict = Literal["ok", "warn", "fail"]


@dataclass(frozen=True)
class Finding:
    """The outcome of one check; ``remedy`` is empty when all is well."""

    check: str
    status: Verdict
    detail: str
    remedy: str = ""


def ok(check: str, detail: str) -> Finding:
    """All is well."""
    return Finding(check, "ok", detail)


def warn(check: str, detail: str, remedy: str) -> Finding:
    """It works, but not as well as it could, or not for long."""
    return Finding(check, "warn", detail, remedy)


def fail(check: str, detail: str, remedy: str) -> Finding:
    """It will not work."""
    return Finding(check, "fail", detail, remedy)
