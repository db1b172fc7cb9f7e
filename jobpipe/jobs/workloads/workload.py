"""What an attempt does, whatever kind of job it is."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Protocol

from jobpipe.errors import CheckpointMismatch, JobpipeError
from jobpipe.jobs.workloads.error_location import file_in, reason_of, stage_of
from jobpipe.jobs.workloads.stop_request import StopRequest
from jobpipe.pipelines.checkpoints.checkpoint_owner import has_checkpoint, remedy
from jobpipe.pipelines.model.pipeline import Job
from jobpipe.spark.termination.query_job import with_remedy

_CLASS = re.compile(r"((?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*)(?:: |$)")
_OF_CHECKPOINT = re.compile(
    r"""There\ are\ \[\d+\]\ sources\ in\ the\ checkpoint\ offsets
    |\[(?:STATE_STORE_(?:KEY|VALUE)_(?:SCHEMA_NOT_COMPATIBLE|ROW_FORMAT_VALIDATION_FAILURE)
    |STATE_STORE_(?:COLUMN_FAMILY_SCHEMA_INCOMPATIBLE|CHECKPOINT_LOCATION_NOT_EMPTY)
    |STATE_STORE_INVALID_(?:CONFIG_AFTER_RESTART|VALUE_SCHEMA_EVOLUTION|VARIABLE_TYPE_CHANGE)
    |STREAMING_STATEFUL_OPERATOR_(?:NOT_MATCH_IN_STATE_METADATA|MISSING_STATE_DIRECTORY)
    |STREAMING_CHECKPOINT_MISSING_METADATA_FILE|STREAM_STREAM_JOIN_INCOMPATIBLE_STATE_STORE_CONFIGS)\]""",
    re.VERBOSE,
)
_OF_FIRST_BATCH = re.compile(r"""For input string: "\{|Wrong basePath """)
"""What Spark says of a checkpoint of another query; seen in 4.3.0, and in its list of error conditions. The second is
said where it reads the checkpoint's offsets, before the first micro-batch; later it may be said of a row."""
_KNOWN = ("builtins", "jobpipe", "py4j", "pyspark")  # packages whose errors go by their names alone
_PLACE = ("topic", "offset", "partition", "stage", "key", "file")  # fields of errors that say where; no row's values


@dataclass(frozen=True)
class WorkloadOutcome:
    """How the work ended.

    Attributes:
        error: the class of what it failed of, with its module if it is of other code; "" if it did not fail.
        message: for the log; it may hold values of rows.
        place: where it happened; it holds none.
        stopped: it was stopped before its end.
        batches, rows: how many it has done.
    """

    error: str = ""
    message: str = ""
    place: str = ""
    stopped: bool = False
    batches: int = 0
    rows: int = 0

    @property
    def cause(self) -> str:
        """The error and what it says, for people; "" if it did not fail."""
        return self.message if self.message.startswith(self.error) else f"{self.error}: {self.message}"


class Workload(Protocol):
    """A job's work."""

    def run(self, stop: StopRequest) -> WorkloadOutcome:
        """Do it to its end, or until a stop is asked for; its failure is returned. In the main thread."""


def failure(error: BaseException | str, *, place: str = "", batches: int = 0, rows: int = 0) -> WorkloadOutcome:
    """Return the end by an error, or by a failure in the words of :class:`.query_job.QueryJob`.

    Args:
        place: where, if that is known; an error of ours, or of Spark's, may say it itself.
    """
    if isinstance(error, JobpipeError):
        place = place or ", ".join(f"{name} {error.fields[name]}" for name in _PLACE if name in error.fields)
        place = ", ".join(filter(None, (stage_of(error), place)))
        return WorkloadOutcome(type(error).__name__, str(error), place, batches=batches, rows=rows)
    if isinstance(error, str):
        named = _CLASS.match(error)
        name = _named(*named[1].rpartition(".")[::2]) if named else "StreamingQueryException"
        return WorkloadOutcome(name, error, place, batches=batches, rows=rows)
    lines = str(error).strip().splitlines() or [""]
    said = next((line.removeprefix(": ") for line in lines if line.startswith(": ")), lines[0])  # Java's, by py4j
    name = _named(type(error).__module__, type(error).__name__)
    if reason := reason_of(error):
        said = f"{said}: {reason}"
    place = ", ".join(filter(None, (stage_of(error), place or file_in(str(error)))))
    return WorkloadOutcome(name, with_remedy(said), place, batches=batches, rows=rows)


def with_checkpoint_error(done: WorkloadOutcome, storage: str, job: Job) -> WorkloadOutcome:
    """Return the end of a job's work; if Spark says that the checkpoint does not fit, as that error, with a remedy."""
    if not has_checkpoint(job) or done.error == CheckpointMismatch.__name__:
        return done
    early = done.batches == 0 and _OF_FIRST_BATCH.search(done.message)
    if not early and not _OF_CHECKPOINT.search(done.message):
        return done
    said = f"the checkpoint in {storage} does not fit job {job.name}: {done.message}. {remedy(job.name, storage)}"
    return replace(done, error=CheckpointMismatch.__name__, message=said)


def _named(module: str, name: str) -> str:
    """Return how an error is called; a class of the user's may have the name of one of ours, and is another one."""
    return name if not module or module.partition(".")[0] in _KNOWN else f"{module}.{name}"
