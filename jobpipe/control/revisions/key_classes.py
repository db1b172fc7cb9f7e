"""What a change of each key of a pipeline's file does: the class of every key, and of every option of a plug-in.

The table says what :mod:`jobpipe.control.revisions.planning` does; a test changes each key and compares. A key that is
missing here is an error of that test. The class of an option follows from what a checkpoint is compared by.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Any, get_args

from pydantic import BaseModel

from jobpipe.pipelines.checkpoints.checkpoint_owner import identifies_data
from jobpipe.pipelines.file.spec import PipelineFile
from jobpipe.pipelines.plugins.api import Plugin, Transform
from jobpipe.pipelines.plugins.capture_source import CaptureSource
from jobpipe.pipelines.plugins.plugin_discovery import PlugInKind


class ChangeClass(StrEnum):
    """What a change does."""

    TAKEN = "taken at once, without a restart"
    NEXT_RUN = "holds from the next run on"
    RESTART = "restart from the checkpoint"
    READS_AGAIN = "restart, and reads again what is there, as the job keeps a checkpoint from then on, or none any more"
    COMPARED = "restart from the checkpoint, if Spark's plan still fits it"
    NEW_CHECKPOINT = "needs a new checkpoint"
    REFUSED = "refused"
    ANOTHER_PIPELINE = "another pipeline"


_WATERMARK = ChangeClass.COMPARED
CLASSES: dict[str, ChangeClass] = {
    "pipeline.name": ChangeClass.ANOTHER_PIPELINE,
    "pipeline.parameters": ChangeClass.TAKEN,
    "pipeline.topic-prefix": ChangeClass.REFUSED,
    "pipeline.storage": ChangeClass.NEW_CHECKPOINT,
    "pipeline.configuration": ChangeClass.RESTART,
    "pipeline.libraries[].glob.include": ChangeClass.RESTART,
    "pipeline.launcher.type": ChangeClass.RESTART,
    "pipeline.restart.policy": ChangeClass.TAKEN,
    "pipeline.restart.max-attempts": ChangeClass.TAKEN,
    "pipeline.restart.delay": ChangeClass.TAKEN,
    "pipeline.restart.max-delay": ChangeClass.TAKEN,
    "pipeline.restart.reset-after": ChangeClass.TAKEN,
    "pipeline.alerts[].type": ChangeClass.TAKEN,
    "pipeline.alerts[].url": ChangeClass.TAKEN,
    "pipeline.alerts[].on": ChangeClass.TAKEN,
    "pipeline.alerts[].lag-rows": ChangeClass.TAKEN,
    "pipeline.alerts[].lag-time": ChangeClass.TAKEN,
    "jobs.JOB.type": ChangeClass.READS_AGAIN,
    "jobs.JOB.source.type": ChangeClass.NEW_CHECKPOINT,
    "jobs.JOB.source.watermark.column": _WATERMARK,
    "jobs.JOB.source.watermark.delay": _WATERMARK,
    "jobs.JOB.sources.VIEW.type": ChangeClass.NEW_CHECKPOINT,
    "jobs.JOB.sources.VIEW.watermark.column": _WATERMARK,
    "jobs.JOB.sources.VIEW.watermark.delay": _WATERMARK,
    "jobs.JOB.transform[].type": ChangeClass.COMPARED,
    "jobs.JOB.transform[].source-table": ChangeClass.RESTART,
    "jobs.JOB.route[].source-table": ChangeClass.RESTART,
    "jobs.JOB.route[].sink-table": ChangeClass.NEW_CHECKPOINT,
    "jobs.JOB.route[].replace-symbol": ChangeClass.NEW_CHECKPOINT,
    "jobs.JOB.route[].description": ChangeClass.TAKEN,
    "jobs.JOB.sink.type": ChangeClass.NEW_CHECKPOINT,
    "jobs.JOB.sink.output-mode": ChangeClass.COMPARED,
    "jobs.JOB.sink.at-least-once": ChangeClass.RESTART,
    "jobs.JOB.sinks[].type": ChangeClass.NEW_CHECKPOINT,
    "jobs.JOB.sinks[].output-mode": ChangeClass.COMPARED,
    "jobs.JOB.sinks[].at-least-once": ChangeClass.RESTART,
    "jobs.JOB.trigger.available-now": ChangeClass.RESTART,
    "jobs.JOB.trigger.processing-time": ChangeClass.RESTART,
    "jobs.JOB.execution.runtime-mode": ChangeClass.READS_AGAIN,
    "jobs.JOB.configuration": ChangeClass.RESTART,
    "jobs.JOB.schedule.crontab": ChangeClass.NEXT_RUN,
    "jobs.JOB.schedule.every": ChangeClass.NEXT_RUN,
    "jobs.JOB.schedule.timezone": ChangeClass.NEXT_RUN,
    "jobs.JOB.schedule.delay": ChangeClass.NEXT_RUN,
    "jobs.JOB.schedule.start": ChangeClass.NEXT_RUN,
    "jobs.JOB.schedule.end": ChangeClass.NEXT_RUN,
    "jobs.JOB.schedule.boundaryType": ChangeClass.REFUSED,
    "jobs.JOB.schedule.catchup": ChangeClass.NEXT_RUN,
    "jobs.JOB.schedule.self-depend": ChangeClass.NEXT_RUN,
    "jobs.JOB.schedule.mode": ChangeClass.NEXT_RUN,
    "jobs.JOB.schedule.engine.type": ChangeClass.NEXT_RUN,
    "jobs.JOB.errors.tolerance": ChangeClass.RESTART,
    "jobs.JOB.errors.dead-letters": ChangeClass.RESTART,
    "jobs.JOB.errors.retention": ChangeClass.RESTART,
    "jobs.JOB.errors.max-ratio": ChangeClass.RESTART,
    "jobs.JOB.application": ChangeClass.RESTART,
    "jobs.JOB.arguments": ChangeClass.RESTART,
    "jobs.JOB.secrets": ChangeClass.RESTART,
    "jobs.JOB.function": ChangeClass.RESTART,
    "jobs.JOB.setup": ChangeClass.RESTART,
    "jobs.JOB.publish": ChangeClass.RESTART,
    "jobs.JOB.schema": ChangeClass.RESTART,
    "jobs.JOB.partitions": ChangeClass.RESTART,
}
"""The class of each key, of a job that runs by itself and whose checkpoint was begun.

Of a job that is stopped, or whose runs others make, what restarts holds from the next run on.
"""
_NAMES = {"jobs": "JOB", "sources": "VIEW"}  # what stands for a name in a key


def keys() -> list[str]:
    """Return all keys that a file may have, but for the options of plug-ins."""
    return list(_keys(PipelineFile, ""))


def class_of_option(kind: PlugInKind, plugin: type[Plugin], option: str, *, is_own: bool = True) -> ChangeClass:
    """Return what a change of an option of a stage does.

    Args:
        is_own: the option is the stage's own; False: it is in its ``options``.
    """
    if kind is PlugInKind.LAUNCHER or issubclass(plugin, CaptureSource):
        return ChangeClass.RESTART
    if kind is PlugInKind.TRANSFORM:
        return ChangeClass.NEW_CHECKPOINT if keeps_state(plugin) else ChangeClass.COMPARED
    return ChangeClass.NEW_CHECKPOINT if identifies_data(plugin, option.lower(), is_own=is_own) else ChangeClass.RESTART


def keeps_state(plugin: type[Plugin]) -> bool:
    """Whether a transform keeps state whatever its options are."""
    if not issubclass(plugin, Transform) or plugin.stateful is Transform.stateful:
        return False
    return plugin(plugin.Options.model_construct()).stateful is True


def _keys(model: type[BaseModel], path: str) -> Iterator[str]:
    for name, field in model.model_fields.items():
        key = f"{path}{field.validation_alias or name}"
        inside = _model_in(field.annotation)
        if inside is None:
            yield key
        else:
            yield from _keys(inside, f"{key}{_of_many(name, field.annotation)}.")


def _of_many(name: str, annotation: Any) -> str:
    """Return what stands in a key for one of several: a name, or a place in a list."""
    text = str(annotation)
    if "dict[" in text:
        return f".{_NAMES[name]}"
    return "[]" if "tuple[" in text else ""


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """Return the section that a field holds, or holds several of; None: it holds values."""
    if isinstance(annotation, type):
        return annotation if issubclass(annotation, BaseModel) else None
    return next((found for each in get_args(annotation) if (found := _model_in(each)) is not None), None)
