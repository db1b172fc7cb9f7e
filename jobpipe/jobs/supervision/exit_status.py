"""How an attempt ended: judged by its end record, else by its exit code, else by what its launcher says."""

from __future__ import annotations

from dataclasses import dataclass

from jobpipe.pipelines.model.job_states import MISCONFIGURED, REPLACED, JobState
from jobpipe.pipelines.plugins.api import LaunchState, LaunchStatus
from jobpipe_registry.job_records import EndRecord

REPLACED_DETAIL = "another run of this pipeline has taken its place"
KILLED_DETAIL = "it was ended in the middle; its last micro-batch is repeated"
MISCONFIGURED_TEXT = "it cannot begin: its file or configuration is wrong"


@dataclass(frozen=True)
class ExitStatus:
    """How an attempt ended: FINISHED, STOPPED, FAILED or CANCELED; LOST if that is unknown."""

    state: JobState
    error: str = ""
    detail: str = ""


REPLACED_END = ExitStatus(JobState.CANCELED, "Replaced", REPLACED_DETAIL)
_CANCELED = ExitStatus(JobState.CANCELED, "", KILLED_DETAIL)


def end_by_code(code: int | None, cause: str = "") -> ExitStatus | None:
    """Return the end of an attempt that leaves no end record, and says so by its exit code.

    Args:
        cause: the error as it has reported it, "" if it has not.
    """
    if code == REPLACED:
        return REPLACED_END
    if code == MISCONFIGURED:
        return ExitStatus(
            JobState.FAILED, "ConfigError", f"{MISCONFIGURED_TEXT}: {cause}" if cause else MISCONFIGURED_TEXT
        )
    return None


def end_by_record(record: EndRecord, *, stopped: bool, canceled: bool, cause: str = "") -> ExitStatus:
    """Return the end that a record tells.

    Args:
        stopped: the attempt was told to stop.
        canceled: its launcher was told to end it. Clusters end Spark first, of which Python may still tell.
        cause: the error as it has reported it, with what it says; "" if only its class is known.
    """
    if record.state == "STOPPED" and not stopped:
        return ExitStatus(JobState.FAILED, "", "it was stopped from outside")
    if record.state == "FAILED" and canceled:
        return _CANCELED
    where = f" ({record.place})" if record.place else ""
    return ExitStatus(JobState(record.state), record.error, f"{cause or record.error}{where}" if record.error else "")


def end_without_record(status: LaunchStatus, *, stopped: bool, stopping: bool) -> ExitStatus:
    """Return the end of an attempt that left no record.

    Args:
        stopped: it was told to stop.
        stopping: by this program.
    """
    code = status.exit_code
    if status.state is LaunchState.UNKNOWN:
        return ExitStatus(JobState.LOST, "", f"it is not known whether it has ended: {status.detail}")
    if code == 0 and stopped:  # before it had the lease
        return ExitStatus(JobState.STOPPED)
    if stopping:
        return _CANCELED
    where = f"; {status.detail}" if status.detail else ""
    return ExitStatus(JobState.FAILED, "", f"{unrecorded(code)}{where}")


def unrecorded(code: int | None) -> str:
    """Return how a process without an end record ended; ``code``: None if it is not known, negative for a signal."""
    how = "ended" if code is None else f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
    return f"its process {how}, without an end record"
