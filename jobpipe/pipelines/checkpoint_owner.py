"""What a checkpoint belongs to: it is noted next to the checkpoint, and compared before a job goes on from it.

A checkpoint says how far a query has read of sources that it does not name. With another source, or in another job, it
would have a query leave out rows without a word.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from jobpipe.errors import CheckpointMismatch
from jobpipe.pipelines.pipeline import Job, Stage
from jobpipe.pipelines.secret_keys import is_secret
from jobpipe.pipelines.spec import Mode

NAME = "owner.json"
MOST_BYTES = 1 << 20
_SHOWN = 200  # characters of a part, in an error
_TUNING = frozenset(
    {
        *("batchsize", "fetchsize", "isolationlevel", "numpartitions", "querytimeout", "sessioninitstatement"),
        *("fetchoffset.numretries", "fetchoffset.retryintervalms", "kafkaconsumer.polltimeoutms", "groupidprefix"),
        *("maxbytespertrigger", "maxfilespertrigger", "maxoffsetspertrigger", "maxrowspertrigger", "maxtriggerdelay"),
        *("minoffsetspertrigger", "minpartitions", "minrowspertrigger", "maxcachedfiles", "discardcachedinputratio"),
        *("rampuptime", "rowsperbatch", "rowspersecond", "failondataloss", "latestfirst", "schema", "at-least-once"),
    }
)
"""Options, in small letters, that say how rows are read or written, and not which: of plug-ins that do not say it."""


class Part(BaseModel):
    """A stage of a job.

    Attributes:
        name: of a source, its view; else "".
        which: the options by which it is this one.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = ""
    type: str
    which: dict[str, Any]

    def __str__(self) -> str:
        said = " ".join(f"{key} {_text(value)}" for key, value in self.which.items())
        return f"{self.name}{': ' if self.name else ''}{self.type} {said}".rstrip()[:_SHOWN]


class Owner(BaseModel):
    """What a checkpoint belongs to.

    Attributes:
        namespace: of the registry.
        state: the stages that keep state.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    namespace: str
    pipeline: str
    job: str
    sources: tuple[Part, ...] = ()
    state: tuple[Part, ...] = ()
    sinks: tuple[Part, ...] = ()

    def require_fit(self, note: str, storage: str, *, begun: bool) -> None:
        """Check that this job may go on from a checkpoint.

        Args:
            note: what :meth:`text` gave of what the checkpoint belongs to.
            storage: folder or URI of the checkpoint.
            begun: a micro-batch has begun; else it does not depend on sources and sinks yet.

        Raises:
            CheckpointMismatch: it belongs to another job, or this one had other sources, state or sinks.
        """
        name = f"{storage}/{NAME}"
        try:
            other = Owner.model_validate_json(note)
        except ValidationError as error:
            raise CheckpointMismatch(
                f"{name} does not say what the checkpoint in {storage} belongs to: {error.error_count()} problems; if "
                "it is this job's, delete the file",
                file=name,
            ) from error
        if (other.namespace, other.pipeline, other.job) != (self.namespace, self.pipeline, self.job):
            raise CheckpointMismatch(
                f"the checkpoint in {storage} belongs to {other.title}, and this is {self.title}: it would leave out "
                "the rows that the other one has read. Give the pipeline another storage; if it is the same job under "
                f"another name, delete {name}",
                file=name,
            )
        for what, before, now in (
            ("sources", other.sources, self.sources),
            ("stages that keep state", other.state, self.state),
            ("sinks", other.sinks, self.sinks),
        ):
            if begun and before != now:
                come = _some(part for part in now if part not in before)
                gone = _some(part for part in before if part not in now)
                raise CheckpointMismatch(
                    f"the checkpoint in {storage} does not fit job {self.job}: among its {what} is now {come}, and was "
                    f"{gone} when the checkpoint was begun. {remedy(self.job)}; if it is to go on from it all the "
                    f"same, delete {name}",
                    file=name,
                )

    @property
    def title(self) -> str:
        """The job with its pipeline and namespace."""
        return f"job {self.job} of pipeline {self.pipeline} (namespace {self.namespace})"

    def text(self) -> str:
        """Return the note."""
        return f"{self.model_dump_json(indent=1)}\n"


def remedy(job: str) -> str:
    """Return what to do where a checkpoint does not fit a job."""
    return f"With --new-checkpoint {job}, of `pipeline run` and `pipeline submit`, the job begins without it"


def owner_of(namespace: str, pipeline: str, job: Job) -> Owner:
    """Return what the checkpoint of a job belongs to; of programs, and jobs without one, no more than their names."""
    if job.spec.application is not None or job.spec.type == "flow" or job.mode is Mode.BATCH:
        return Owner(namespace=namespace, pipeline=pipeline, job=job.name)
    sources, state = parts_of(job)
    sinks = tuple(sorted((_part(stage) for stage in job.sinks), key=str))
    return Owner(namespace=namespace, pipeline=pipeline, job=job.name, sources=sources, state=state, sinks=sinks)


def parts_of(job: Job) -> tuple[tuple[Part, ...], tuple[Part, ...]]:
    """Return the sources of a job, and its stages that keep state."""
    sources = sorted(job.sources.items(), key=lambda item: item[0] or "")
    return tuple(_part(stage, view or "") for view, stage in sources), tuple(
        Part(type=stage.type, which=_plain(stage.given)) for stage in job.transforms if stage.plugin.stateful
    )


def _part(stage: Stage[Any], name: str = "") -> Part:
    which = stage.plugin.identifying
    flat = {**stage.given, **_section(stage.given.get("options"))}
    flat.pop("options", None)
    chosen = {
        key: value
        for key, value in sorted(flat.items())
        if (key.lower() not in _TUNING if which is None else key.lower() in which) and not is_secret(key)
    }
    return Part(name=name, type=stage.type, which=_plain(chosen))


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values as JSON has them, so that they are equal to those that were read."""
    found: dict[str, Any] = json.loads(json.dumps(dict(values), sort_keys=True, default=str))
    return found


def _section(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _some(parts: Iterable[Part]) -> str:
    return ", ".join(map(str, parts)) or "none of these"
