"""Errors over HTTP: RFC 9457 problem documents, made of our error tree and turned back into it."""

from __future__ import annotations

import json
import logging
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from jobpipe.errors import (
    ConfigError,
    ControlConflict,
    DataLoss,
    JobpipeError,
    LinkError,
    NameTaken,
    NotAuthorized,
    PipelineNotFound,
    RegistryUnavailable,
    RunNotFound,
    SubscriptionNotFound,
    TopicAway,
    TopicNotFound,
    WaitTimeout,
    from_fault,
    to_fault,
)

log = logging.getLogger(__name__)

PROBLEM = "application/problem+json"
_STATUS: tuple[tuple[type[JobpipeError], int], ...] = (
    (PipelineNotFound, 404),
    (RunNotFound, 404),
    (TopicAway, 503),
    (TopicNotFound, 404),
    (SubscriptionNotFound, 404),
    (ControlConflict, 409),
    (NameTaken, 409),
    (DataLoss, 409),
    (NotAuthorized, 403),
    (ConfigError, 400),
    (RegistryUnavailable, 503),
    (WaitTimeout, 503),
    (LinkError, 503),
)


class ProblemDocument(BaseModel):
    """An error.

    ``error`` is the name of its class in ``jobpipe.errors``, ``fields`` are the facts that its text was made from.
    """

    model_config = ConfigDict(extra="ignore")

    type: str = Field(max_length=200)
    title: str = Field(max_length=200)
    status: int = Field(ge=400, le=599)
    detail: str
    error: str = Field(max_length=100)
    fields: dict[str, Any] = Field(default_factory=dict)


def status_of(error: BaseException) -> int:
    """Return the HTTP status of an error."""
    return next((status for kind, status in _STATUS if isinstance(error, kind)), 500)


def problem_of(error: BaseException, status: int | None = None) -> ProblemDocument:
    """Return the document for an error; of one that is not ours the log says more than the document."""
    if not isinstance(error, JobpipeError):
        log.error("a request failed: %s", type(error).__name__, exc_info=error)
        error = JobpipeError("the server failed at this request; its log says why")
    code, message, fields = to_fault(error)
    title = (type(error).__doc__ or code).partition(".")[0].partition("\n")[0][:200]
    return ProblemDocument(
        type=f"urn:jobpipe:error:{code}",
        title=title,
        status=status_of(error) if status is None else status,
        detail=message,
        error=code,
        fields=json.loads(json.dumps(fields, default=str)),
    )


def error_of(body: bytes, status: int, reason: str) -> JobpipeError:
    """Return the error that a reply with that status is about."""
    try:
        found = ProblemDocument.model_validate_json(body)
    except ValidationError:
        kind = NotAuthorized if status in (401, 403) else JobpipeError
        return kind(f"the server answered {status} {reason[:100]}, which is none of the control server's answers")
    return from_fault(found.error, found.detail, found.fields)
