"""What a checkpoint belongs to: it is noted next to the checkpoint, and compared before a job goes on from it.

A checkpoint says how far a query has read of sources that it does not name. With another source, or in another job, it
would have a query leave out rows without a word.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from jobpipe.errors import CheckpointMismatch, ConfigError
from jobpipe.pipelines.file.file_paths import expanded, is_uri, local_folder
from jobpipe.pipelines.file.secret_keys import is_secret
from jobpipe.pipelines.file.spec import Mode, RouteSpec, is_capture
from jobpipe.pipelines.model.pipeline import Job, Stage
from jobpipe.pipelines.plugins.api import Plugin
from jobpipe.pipelines.plugins.job_context import name_of_source

NAME = "owner.json"
VERSION = 3
MOST_BYTES = 16 << 20
_COMPARED = 2  # the first version of the note that says sources, state and sinks
_SYMBOLS = 3  # the first one that has one symbol for the table's name in topics of routes, whichever the file has
_SHOWN = 200  # characters of a part, in an error
_TUNING = frozenset(
    {
        *("batchsize", "fetchsize", "isolationlevel", "numpartitions", "querytimeout"),
        *("fetchoffset.numretries", "fetchoffset.retryintervalms", "kafkaconsumer.polltimeoutms", "groupidprefix"),
        *("maxbytespertrigger", "maxfilespertrigger", "maxoffsetspertrigger", "maxrowspertrigger", "maxtriggerdelay"),
        *("minoffsetspertrigger", "minpartitions", "minrowspertrigger", "maxcachedfiles", "discardcachedinputratio"),
        *("rampuptime", "rowsperbatch", "rowspersecond", "failondataloss", "latestfirst", "at-least-once"),
        *("kafka.max.poll.records", "kafka.fetch.min.bytes", "kafka.fetch.max.wait.ms", "compression"),
    }
)
"""Options, in small letters, that say how rows are read or written, and not which: of plug-ins that do not say it."""
_CLEAR = frozenset(
    {
        *("path", "format", "table", "dbtable", "topic", "subscribe", "function", "foreach-batch"),
        *("database", "schema", "collection", "catalog", "branch", "kafka.bootstrap.servers"),
    }
)
"""Options whose values are noted as they are; of a plug-in that does not say what identifies it, others as a hash."""
_SETS = frozenset({"subscribe", "topic", "kafka.bootstrap.servers"})
"""Options that are lists, in a text or as one, in any order."""
_BROKERS = "kafka.bootstrap.servers"
_REFERENCE = re.compile(r"(?:env|file):.*", re.DOTALL)
_PORTS = re.compile(r"(?<=://)([^/?;]*):(?:5432|3306)(?=[/?;]|\Z)")


class Part(BaseModel):
    """A stage of a job.

    Attributes:
        which: the options by which it is this one, in small letters, in one of the ways in which each can be written.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    type: str
    which: dict[str, Any]

    def __str__(self) -> str:
        said = " ".join(f"{key} {_text(value)}" for key, value in self.which.items())
        return f"{self.type} {said}".rstrip()[:_SHOWN]

    def is_same(self, other: Part) -> bool:
        """Tell whether it is the same source or sink; Kafka's brokers are, if one of them is."""
        mine, others = dict(self.which), dict(other.which)
        brokers = _names(mine.pop(_BROKERS, None)), _names(others.pop(_BROKERS, None))
        together = brokers[0] == brokers[1] or bool(set(brokers[0]) & set(brokers[1]))
        return together and (self.type, mine) == (other.type, others)


@dataclass(frozen=True)
class KnownSources:
    """Named sources of a query that has begun, as Spark knows them.

    Attributes:
        read: it knows how far they were read.
        begun: it has noted anything of them.
    """

    read: Collection[str] = ()
    begun: Collection[str] = ()


_UNKNOWN = KnownSources()


class Owner(BaseModel):
    """What a checkpoint belongs to.

    Attributes:
        namespace: of the registry.
        names: of the sources, by which Spark knows them, also of those that the job had before; (): by their order.
        gone: the names of those.
        state: the stages that keep state, and are known to.
        old_sinks: the sinks as notes of version 2 say them, with the symbols of routes as the file has them; not noted.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    version: int = VERSION
    namespace: str
    pipeline: str
    job: str
    sources: tuple[Part, ...] = ()
    names: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()
    state: tuple[Part, ...] = ()
    sinks: tuple[Part, ...] = ()
    old_sinks: tuple[Part, ...] = Field(default=(), exclude=True)

    @model_validator(mode="after")
    def _same_length(self) -> Owner:
        if self.names and len(self.names) != len(self.sources):
            raise ValueError("names are not those of the sources")
        return self

    def resumed_from(self, note: str, storage: str, *, begun: bool, known: KnownSources = _UNKNOWN) -> Owner:
        """Return what the checkpoint belongs to from now on, if this job may go on from it.

        Args:
            note: what :meth:`text` gave of what the checkpoint belongs to.
            storage: folder or URI of the checkpoint.
            begun: a micro-batch has begun; else it does not depend on sources and sinks yet.
            known: what Spark knows of its named sources.

        Raises:
            CheckpointMismatch: it belongs to another job, or this one had other sources, state or sinks.
        """
        other = _read(note, storage)
        if (other.namespace, other.pipeline, other.job) != (self.namespace, self.pipeline, self.job):
            raise CheckpointMismatch(
                f"the checkpoint in {storage} belongs to {other.title}, and this is {self.title}: it would leave out "
                "the rows that the other one has read. Give the pipeline another storage; if it is the same job under "
                f"another name, delete {storage}/{NAME}",
                file=f"{storage}/{NAME}",
            )
        if not begun or not self.sources or other.version < _COMPARED:
            return self
        named = bool(self.names and other.names)
        merged = self._with_former(other, storage, known) if named else self
        raw = other.version < _SYMBOLS and not (
            _without(self.old_sinks, other.sinks) or _without(other.sinks, self.old_sinks)
        )
        for what, before, now in (
            ("sources", () if named else other.sources, () if named else self.sources),
            ("stages that keep state", other.state, self.state),
            ("sinks", other.sinks, self.old_sinks if raw else self.sinks),
        ):
            come, gone = _without(now, before), _without(before, now)
            if come or gone:
                raise CheckpointMismatch(
                    f"the checkpoint in {storage} does not fit job {self.job}: among its {what} is now {_some(come)}, "
                    f"and was {_some(gone)} when the checkpoint was begun. {remedy(self.job, storage)}; if it is to go "
                    f"on from it all the same, delete {storage}/{NAME}",
                    file=f"{storage}/{NAME}",
                )
        return merged

    def _with_former(self, before: Owner, storage: str, known: KnownSources) -> Owner:
        """Return it with the sources that the job had before: their names are taken.

        Spark forgets how far a source was read with the first micro-batch without it: one that came back would be read
        from its start. What it knows is in its newest offsets alone (seen in 4.3.0).

        Raises:
            CheckpointMismatch: one of the same name is another one now, or comes back.
        """
        former = {
            name: part
            for name, part in zip(before.names, before.sources, strict=True)
            if name in before.gone or name_of_source(name) in known.begun  # else it was added, and not begun yet
        }
        for name, part in zip(self.names, self.sources, strict=True):
            was = former.pop(name, None)
            if was is None:
                continue
            if not part.is_same(was):
                what = f"is now {part}, and was {was}"
            elif name in before.gone and name_of_source(name) not in known.read:
                what = "was left out before, and how far it was read is not known any more"
            else:
                continue
            raise CheckpointMismatch(
                f"the checkpoint in {storage} does not fit job {self.job}: its source {name} {what}. Give it another "
                f"name, under which it is read from its start; or {_lowered(remedy(self.job, storage))}",
                file=f"{storage}/{NAME}",
            )
        return self.model_copy(
            update={
                "names": (*self.names, *former),
                "sources": (*self.sources, *former.values()),
                "gone": tuple(former),
            }
        )

    def by_order(self) -> Owner:
        """Return it for a checkpoint that knows sources by their order."""
        return self.model_copy(update={"names": (), "gone": ()})

    def require_names(self, storage: str) -> None:
        """Check that the job's sources have names, as a checkpoint needs that knows sources by them.

        Raises:
            CheckpointMismatch: they have none.
        """
        if self.sources and not self.names:
            raise CheckpointMismatch(
                f"the checkpoint in {storage} does not fit job {self.job}: it knows the sources by their names, and "
                "now they have none: a single source has no name, nor has one of a Python function. Undo that change. "
                f"{remedy(self.job, storage)}",
                file=f"{storage}/{NAME}",
            )

    @property
    def title(self) -> str:
        """The job with its pipeline and namespace."""
        return f"job {self.job} of pipeline {self.pipeline} (namespace {self.namespace})"

    def text(self) -> str:
        return f"{json.dumps(self.model_dump(), indent=1)}\n"


def namespace_of(note: str, storage: str) -> str:
    """Return the namespace that a note says; raises as :meth:`Owner.require_fit`."""
    return _read(note, storage).namespace


def _read(note: str, storage: str) -> Owner:
    name = f"{storage}/{NAME}"
    try:
        said = json.loads(note)
        version = said.get("version", 1) if isinstance(said, dict) else 0
        if isinstance(version, int) and version > VERSION:
            raise CheckpointMismatch(
                f"{name} is of version {version}, and this jobpipe knows {VERSION}: run the job with the jobpipe that "
                "wrote it, or a newer one",
                file=name,
            )
        if version == 1:
            return Owner(version=1, **{key: said[key] for key in ("namespace", "pipeline", "job")})
        return Owner.model_validate(said)
    except (ValueError, KeyError) as error:
        problems = error.error_count() if isinstance(error, ValidationError) else 1
        raise CheckpointMismatch(
            f"{name} does not say what the checkpoint in {storage} belongs to: {problems} problems; if it is this "
            "job's, delete the file",
            file=name,
        ) from error


def _lowered(text: str) -> str:
    return text[:1].lower() + text[1:]


def remedy(job: str, storage: str) -> str:
    """Return what to do where a checkpoint does not fit a job."""
    if local_folder(storage) is None:
        return f"To begin without it, move {storage} away"
    return f"With --new-checkpoint {job}, of `pipeline run` and `pipeline submit`, the job begins without it"


def owner_of(namespace: str, pipeline: str, job: Job) -> Owner:
    """Return what the checkpoint of a job belongs to; of programs, and jobs without one, no more than their names."""
    if not has_checkpoint(job):
        return Owner(namespace=namespace, pipeline=pipeline, job=job.name)
    sinks = tuple(part_of(stage) for stage in job.sinks)
    return Owner(
        namespace=namespace,
        pipeline=pipeline,
        job=job.name,
        sources=tuple(part_of(stage) for stage in job.sources.values()),
        names=_names_of(job),
        state=tuple(_state(stage) for stage in job.transforms if stage.plugin.stateful),
        sinks=(*sinks, *(_route(_topic_of(route)) for route in job.spec.route)),
        old_sinks=(*sinks, *(_route(route.sink_table) for route in job.spec.route)),
    )


def _names_of(job: Job) -> tuple[str, ...]:
    """Return the names of a job's sources; () unless all have one, as Spark wants it."""
    names = tuple(view for view, stage in job.sources.items() if view is not None and stage.plugin.has_name)
    return names if len(names) == len(job.sources) else ()


def _route(topic: str) -> Part:
    return Part(type="route", which={"topic": topic})


def _topic_of(route: RouteSpec) -> str:
    """Return the topic of a route, with one symbol for the table's name, whichever the file has."""
    return route.sink_table if route.replace_symbol is None else route.sink_table.replace(route.replace_symbol, "<>")


def has_checkpoint(job: Job) -> bool:
    """Tell whether a job is a query of ours that goes on from a checkpoint."""
    spec = job.spec
    return spec.application is None and spec.type != "flow" and not spec.captures and job.mode is Mode.STREAMING


def require_checkpoint(job: Job) -> None:
    """Check that a job has a checkpoint that can be left out.

    Raises:
        ConfigError: it is a flow, a capture, a program, or a BATCH job.
    """
    if not has_checkpoint(job):
        raise ConfigError(
            f"--new-checkpoint {job.name}: BATCH jobs, flows, captures and programs have no checkpoint; "
            "leave the option out. `jobpipe topics flows reset` lets a flow start over",
            key="new-checkpoint",
        )


def keeps_checkpoint(definition: Mapping[str, Any]) -> bool:
    """As :func:`has_checkpoint`, by the section of a job that was valid: also if it can no longer be loaded here."""
    mode = (definition.get("execution") or {}).get("runtime-mode")
    source = definition.get("source")
    captures = isinstance(source, Mapping) and is_capture(source.get("type"))
    is_query = definition.get("application") is None and definition.get("type") != "flow" and not captures
    return is_query and mode != Mode.BATCH


def part_of(stage: Stage[Any]) -> Part:
    """Return which source or sink a stage is."""
    which = stage.plugin.identifying
    chosen: dict[str, Any] = {}
    for key, value, is_own in _given(stage):
        if not identifies_data(stage.plugin, key, is_own=is_own):
            continue
        if is_secret(key) and not (isinstance(value, str) and _REFERENCE.match(value)):
            continue  # a reference may name a place
        told = _normal(key, value, stage)
        if which is None and key not in _CLEAR and not is_secret(key):
            told = f"(hash {hashlib.sha256(_text(told).encode(errors='replace')).hexdigest()[:12]})"
        chosen[f"options.{key}" if key in chosen else key] = told
    return Part(type=stage.type, which=dict(sorted(chosen.items())))


def identifies_data(plugin: Plugin | type[Plugin], key: str, *, is_own: bool) -> bool:
    """Whether an option of a source or sink says which rows it reads or where they go: with another it is another one.

    Args:
        key: in small letters.
        is_own: it is the stage's own; False: it is in its ``options``.
    """
    if plugin.identifying is not None:
        return key in plugin.identifying
    return key not in _TUNING and not (is_own and key == "schema")


def _given(stage: Stage[Any]) -> Iterator[tuple[str, Any, bool]]:
    """Yield the names of a stage's options in small letters, their values, and whether they are the stage's own."""
    options = stage.given.get("options")
    for values, is_own in ((stage.given, True), (options if isinstance(options, Mapping) else {}, False)):
        for key, value in values.items():
            if not (is_own and key == "options"):
                yield key.lower(), value, is_own


def _state(stage: Stage[Any]) -> Part:
    said = stage.plugin.options.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    return Part(type=stage.type, which=_plain({key: value for key, value in said.items() if not is_secret(key)}))


def _normal(key: str, value: Any, stage: Stage[Any]) -> Any:
    """Return a value in the one of its spellings that is noted."""
    if key in _SETS:
        return ",".join(sorted(_names(value)))
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return [_normal(key, each, stage) for each in value]
    if isinstance(value, (dict, Mapping)):
        return _plain(value)
    text = str(value)
    if key == "path" and not (stage.type == "iceberg" and "/" not in text):
        return _place(text, stage.folder)
    if key == "url":
        return _database(text, stage.folder)
    return text


def _place(path: str, folder: Path) -> str:
    if path.startswith("file:"):
        path = "/" + path.removeprefix("file:").lstrip("/")
    if is_uri(path):
        return path.rstrip("/")
    home, slash, rest = path.partition("/")
    return os.path.normpath(folder / (str(expanded(home, "path")) + slash + rest if home.startswith("~") else path))


def _database(url: str, folder: Path) -> str:
    """Return a URL of a database without what only tunes the connection."""
    bare = url.removeprefix("jdbc:").partition("?")[0]
    scheme, _, path = bare.partition(":")
    if scheme == "sqlite":
        return f"sqlite:{_place(path, folder)}" if path and path != ":memory:" else bare
    return _PORTS.sub(r"\1", bare)


def _names(value: Any) -> list[str]:
    """Return the names of a list, or of a text with commas; those of a mapping as JSON."""
    if isinstance(value, Mapping):
        return [json.dumps(dict(value), sort_keys=True, default=str)]
    given = value if isinstance(value, (list, tuple)) else () if value is None else str(value).split(",")
    return [str(name).strip() for name in given]


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values as JSON has them, so that they are equal to those that were read."""
    found: dict[str, Any] = json.loads(json.dumps(dict(values), sort_keys=True, default=str))
    return found


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _without(parts: Iterable[Part], others: Iterable[Part]) -> list[Part]:
    """Return the parts that are not among the others; each of these stands for one."""
    left, found = list(others), []
    for part in parts:
        same = next((other for other in left if part.is_same(other)), None)
        if same is None:
            found.append(part)
        else:
            left.remove(same)
    return found


def is_another_order(parts: Sequence[Part], before: Sequence[Part]) -> bool:
    """Tell whether these are the parts of before, and another one is at some place."""
    if len(parts) != len(before) or all(part.is_same(other) for part, other in zip(parts, before, strict=True)):
        return False
    return not _without(parts, before)


def _some(parts: Iterable[Part]) -> str:
    return ", ".join(map(str, parts)) or "none of these"
