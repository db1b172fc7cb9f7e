"""The table of routes: routing, the check of requests, and the OpenAPI document are all made from it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from pydantic import BaseModel

from jobpipe.control.control_service import (
    BackfillView,
    IntervalView,
    JobStatus,
    PipelineStatus,
    Plan,
    RevisionView,
    RunView,
    ScheduleView,
    SkippedView,
    Submission,
    Submitted,
)
from jobpipe.control.letters.dead_letters import MOST_ROWS
from jobpipe.control.letters.letter_views import LetterRows, LetterTopic, RedriveView
from jobpipe.control.permissions import Right
from jobpipe.control.positions.move_plan import Move, MovePlan
from jobpipe.control.rest.rest_handlers import OPENAPI, Call, Handlers
from jobpipe.control.rest.rest_models import (
    BackfillBody,
    Expanded,
    GraphView,
    HealthView,
    IndexView,
    LogView,
    MoveBody,
    PlanBody,
    RangeBody,
    RunBody,
    SignInCodeView,
    SubmissionBody,
    UndoBody,
    ValidateBody,
    ValidatedView,
)
from jobpipe.ledger.ledger_views import HopView
from jobpipe.operations.messages.ledger_messages import MAX_MINUTES

Answer = Callable[[Handlers, Call], Any]


class QueryKind(StrEnum):
    """What a value of the query is."""

    TEXT = "string"
    WHOLE = "integer"
    FLAG = "boolean"  # alone, as in ?force, it is true


@dataclass(frozen=True)
class Query:
    """A parameter of the query; numbers have bounds, texts may have choices."""

    name: str
    kind: QueryKind
    about: str
    default: str | int | bool | None = None
    least: int = 0
    most: int = 0
    choices: tuple[str, ...] = ()


@dataclass(frozen=True)
class Route:
    """One thing that can be asked.

    Attributes:
        path: with its variable parts in braces.
        answer: a method of :class:`Handlers`; its docstring is what the document says. None: answered by the
            application itself.
        reply: the type of the reply; None: there is no content.
        right: what it needs; None: nothing.
    """

    method: str
    path: str
    name: str
    answer: Answer | None
    reply: Any
    status: int = 200
    right: Right | None = Right.VIEW
    body: type[BaseModel] | None = None
    query: tuple[Query, ...] = ()
    about: str = ""
    media: str = "application/json"

    @property
    def summary(self) -> str:
        """What it does."""
        return self.about or (self.answer.__doc__ or "").strip()


_OF = {"": "pipeline", "/jobs/{job}": "job"}
_FORCE = Query("force", QueryKind.FLAG, "Also jobs that are LOST: the caller knows that they have ended.", False)


def _operations(below: str) -> tuple[Route, ...]:
    """Return what can be done with a pipeline, and alike with a job."""
    path, what = f"/pipelines/{{pipeline}}{below}", _OF[below]
    reply, operate = PipelineStatus, Right.OPERATE
    return (
        Route("PUT", f"{path}/stop", f"stop-{what}", Handlers.stop, reply, 202, operate),
        Route("PUT", f"{path}/resume", f"resume-{what}", Handlers.resume, reply, 202, operate),
        Route("POST", f"{path}/restart", f"restart-{what}", Handlers.restart, reply, 202, operate, query=(_FORCE,)),
    )


EVENTS = Route(
    "GET",
    "/events",
    "events",
    None,
    None,
    media="text/event-stream",
    about="Follow events as server-sent events; each has its number as id, and an object like Event as data.",
    query=(Query("after", QueryKind.WHOLE, "Begin after this event; Last-Event-ID takes precedence.", 0, 0, 2**62),),
)
METRICS = Route(
    "GET",
    "/metrics",
    "metrics",
    None,
    None,
    media="application/openmetrics-text",
    about="Metrics of topics, subscriptions and jobs, in the format that the scraper accepts: OpenMetrics, or "
    "Prometheus's own.",
)
INDEX = Route("GET", "/", "index", Handlers.index, IndexView)
DOCUMENT = Route("GET", OPENAPI, "openapi", None, dict[str, Any], about="This document.")

_LETTERS = "/dead-letters/{topic}"
_POSITION = "/topics/{topic}/subscriptions/{subscription}/position"
_SCHEDULE = "/pipelines/{pipeline}/jobs/{job}/schedule"

ROUTES: tuple[Route, ...] = (
    INDEX,
    Route("POST", "/sign-in-codes", "make-sign-in-code", Handlers.sign_in_code, SignInCodeView, 201),
    Route("GET", "/health", "health", Handlers.health, HealthView, right=None),
    METRICS,
    DOCUMENT,
    Route(
        "GET",
        "/pipelines",
        "list-pipelines",
        Handlers.pipelines,
        list[str] | dict[str, Expanded],
        query=(Query("expand", QueryKind.TEXT, "status: with the state of each.", None, choices=("status",)),),
    ),
    Route("POST", "/pipelines", "submit", Handlers.submit, Submitted, 202, Right.OPERATE, SubmissionBody),
    Route("POST", "/pipelines/plan", "plan", Handlers.plan, Plan, 200, Right.OPERATE, PlanBody),
    Route(
        "DELETE",
        "/pipelines/{pipeline}",
        "delete-pipeline",
        Handlers.delete,
        None,
        204,
        Right.OPERATE,
        query=(Query("keep-subscriptions", QueryKind.FLAG, "Keep its subscriptions.", False),),
    ),
    Route("GET", "/pipelines/{pipeline}/config", "show-config", Handlers.config, Submission),
    Route(
        "PUT",
        "/pipelines/{pipeline}/config",
        "put-config",
        Handlers.put_config,
        Submitted,
        202,
        Right.OPERATE,
        SubmissionBody,
    ),
    Route("GET", "/pipelines/{pipeline}/revisions", "list-revisions", Handlers.revisions, tuple[RevisionView, ...]),
    Route("GET", "/pipelines/{pipeline}/revisions/{version}", "show-revision", Handlers.revision, Submission),
    Route("GET", "/pipelines/{pipeline}/status", "show-pipeline", Handlers.status, PipelineStatus),
    *_operations(""),
    Route("GET", "/pipelines/{pipeline}/jobs/{job}/status", "show-job", Handlers.job_status, JobStatus),
    *_operations("/jobs/{job}"),
    Route(
        "GET",
        "/pipelines/{pipeline}/jobs/{job}/log",
        "show-log",
        Handlers.log,
        LogView,
        query=(Query("lines", QueryKind.WHOLE, "Number of lines, from the end.", 100, 1, 10_000),),
    ),
    Route(
        "GET",
        "/runs",
        "list-runs",
        Handlers.runs,
        tuple[RunView, ...],
        query=(
            Query("pipeline", QueryKind.TEXT, "Only of this pipeline."),
            Query("job", QueryKind.TEXT, "Only of this job of the pipeline."),
            Query("limit", QueryKind.WHOLE, "Maximum number.", 100, 1, 1000),
        ),
    ),
    Route(
        "GET",
        "/pipelines/{pipeline}/jobs/{job}/runs",
        "find-run",
        Handlers.run_over,
        RunView,
        query=(
            Query("lowerBoundary", QueryKind.TEXT, "A time in ISO 8601, or an offset; must be given."),
            Query("upperBoundary", QueryKind.TEXT, "As lowerBoundary; must be given."),
        ),
    ),
    Route(
        "POST",
        "/pipelines/{pipeline}/jobs/{job}/runs",
        "start-run",
        Handlers.start_run,
        RunView,
        202,
        Right.OPERATE,
        RunBody,
    ),
    Route("GET", "/runs/{run}", "show-run", Handlers.run, RunView),
    Route("POST", "/runs/{run}/cancel", "cancel-run", Handlers.cancel, RunView, 202, Right.OPERATE),
    Route("POST", "/runs/{run}/skip", "skip-run", Handlers.skip, IntervalView, 202, Right.OPERATE),
    Route(
        "POST",
        "/runs/{run}/retry",
        "retry-run",
        Handlers.retry,
        IntervalView,
        202,
        Right.OPERATE,
        query=(Query("force", QueryKind.FLAG, "Also a run that has succeeded.", False),),
    ),
    Route(
        "GET",
        "/schedules",
        "list-schedules",
        Handlers.schedules,
        tuple[ScheduleView, ...],
        query=(Query("pipeline", QueryKind.TEXT, "Only of this pipeline."),),
    ),
    Route("GET", f"{_SCHEDULE}", "show-schedule", Handlers.schedule, ScheduleView),
    Route(
        "GET",
        f"{_SCHEDULE}/intervals",
        "list-intervals",
        Handlers.intervals,
        tuple[IntervalView, ...],
        query=(Query("limit", QueryKind.WHOLE, "Maximum number.", 100, 1, 1000),),
    ),
    Route("PUT", f"{_SCHEDULE}/pause", "pause-schedule", Handlers.pause, ScheduleView, 202, Right.OPERATE),
    Route("PUT", f"{_SCHEDULE}/resume", "resume-schedule", Handlers.unpause, ScheduleView, 202, Right.OPERATE),
    Route("POST", f"{_SCHEDULE}/trigger", "trigger-schedule", Handlers.trigger, ScheduleView, 202, Right.OPERATE),
    Route(
        "POST", f"{_SCHEDULE}/backfill", "backfill", Handlers.backfill, BackfillView, 202, Right.OPERATE, BackfillBody
    ),
    Route("POST", f"{_SCHEDULE}/skip", "skip-range", Handlers.skip_range, SkippedView, 202, Right.OPERATE, RangeBody),
    Route(
        "GET",
        f"{_POSITION}/plan",
        "plan-move",
        Handlers.plan_move,
        MovePlan,
        query=(Query("to", QueryKind.TEXT, "earliest, latest, an offset, or a time in ISO 8601; must be given."),),
    ),
    Route("POST", _POSITION, "move-subscription", Handlers.move, Move, 200, Right.OPERATE, MoveBody),
    Route("GET", f"{_POSITION}/undo", "plan-undo", Handlers.plan_undo, MovePlan),
    Route("POST", f"{_POSITION}/undo", "undo-move", Handlers.undo, Move, 200, Right.OPERATE, UndoBody),
    Route(
        "GET",
        "/topics/{topic}/ledger",
        "show-ledger",
        Handlers.ledger,
        tuple[HopView, ...],
        query=(
            Query("minutes", QueryKind.WHOLE, "The newest ones in which rows were published.", 60, 1, MAX_MINUTES),
            Query("subscription", QueryKind.TEXT, "The only one to show."),
        ),
    ),
    Route("GET", "/dead-letters", "list-dead-letters", Handlers.dead_letters, tuple[LetterTopic, ...]),
    Route("GET", _LETTERS, "show-dead-letters", Handlers.dead_letters_of, LetterTopic),
    Route(
        "GET",
        f"{_LETTERS}/rows",
        "show-dead-letter-rows",
        Handlers.dead_letter_rows,
        LetterRows,
        query=(Query("limit", QueryKind.WHOLE, "Maximum number.", 50, 1, MOST_ROWS),),
    ),
    Route("GET", f"{_LETTERS}/redrive", "plan-redrive", Handlers.plan_redrive, RedriveView),
    Route("POST", f"{_LETTERS}/redrive", "redrive", Handlers.redrive, RedriveView, 202, Right.OPERATE),
    Route("GET", "/graph", "graph", Handlers.graph, GraphView),
    EVENTS,
    Route(
        "PUT",
        "/plugins/{type}/config/validate",
        "validate-options",
        Handlers.validate,
        ValidatedView,
        right=Right.OPERATE,
        body=ValidateBody,
    ),
)
