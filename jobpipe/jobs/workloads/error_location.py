"""Where a job failed: which stage, and which rows, as far as that is certain.

Spark names the file of a row that it cannot parse. Of a row that came from a topic, and that a cast or a function
cannot take, it knows the micro-batch alone. It computes all stages at once, where a sink writes: an error names a
stage only if no other one can have raised it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException
from pyspark.errors.exceptions.captured import CapturedException
from pyspark.sql.streaming.query import StreamingQuery

from jobpipe.config.reading.located_values import dotted, find, plain
from jobpipe.errors import RemoteProtocolError
from jobpipe.pipelines.file.overlays import read_files
from jobpipe.pipelines.file.problems import ProblemList
from jobpipe.pipelines.model.pipeline import Job, Pipeline, Stage
from jobpipe.pipelines.plugins.api import Sink
from jobpipe.pipelines.transforms.code_transforms import PythonTransform
from jobpipe.store.catalog.position import Position

CAUSES_MOST = 20
REASON_MOST = 500  # characters
TOPICS_MOST = 5

_STAGE = "_jobpipe_stage"  # an attribute of errors
_IN_TASKS = "jobpipe/pipelines/transforms/python_udf.py"  # in a trace: a function of the user's was called there
_NONE = re.compile(r"(?<=[\[ ,])-(?=[\],])")  # a source that has no offset yet
_FILE = re.compile(r"(?:error while reading|\[USER_RAISED_EXCEPTION\]) file (\S+?)[.:]?(?:\s|$)")


def file_in(text: str) -> str:
    """Return ``file URI`` of an error's text that names the file in which a row could not be read, else ""."""
    found = _FILE.search(text)
    return "" if found is None else f"file {re.sub('^file:/(?!/)', 'file:///', found[1])}"


@contextmanager
def at_stage(pipeline: Pipeline, stage: Stage[Any]) -> Iterator[None]:
    """Note of an error in this block of which stage it is; the innermost block counts."""
    try:
        yield
    except Exception as error:
        _note(error, pipeline, stage)
        raise


@contextmanager
def at_sink(pipeline: Pipeline, stage: Stage[Sink]) -> Iterator[None]:
    """As :func:`at_stage`, where a sink is given rows: Spark computes them there, so what it fails of may be another's.

    Only an error without one of Spark's computing among its causes is noted as the sink's.
    """
    try:
        yield
    except Exception as error:
        if not _has_computed(error):
            _note(error, pipeline, stage)
        raise


@contextmanager
def at_rows(pipeline: Pipeline, job: Job) -> Iterator[None]:
    """As :func:`at_stage`, where rows are computed: of the transform that Spark's error names, if that is certain."""
    try:
        yield
    except Exception as error:
        origin = getattr(error, "_origin", None) or getattr(error, "java_exception", None)
        if not stage_of(error) and origin is not None and (stage := computing_stage(origin, job)) is not None:
            _note(error, pipeline, stage)
        raise


def computing_stage(error: Any, job: Job) -> Stage[Any] | None:
    """Return the transform whose function or SQL an error of Java's names; None if it may be another one.

    Code of the user's in the driver, and plug-ins of others, may make any SQL.
    """
    with suppress(Py4JError):  # the JVM is gone
        if any(_IN_TASKS in text for text in _messages(error)):
            return _only(stage for stage in job.transforms if _runs_in_tasks(stage))
        if any(_has_code(stage) for stage in job.stages):
            return None
        fragments = [text for each in _causes(error) for text in _fragments(each)]
        if fragments:
            found = _only(stage for stage in job.stages if any(fragments[-1] in text for text in _texts(stage.given)))
            return found if found in job.transforms else None
    return None


def _note(error: Exception, pipeline: Pipeline, stage: Stage[Any]) -> None:
    if not stage_of(error):
        with suppress(AttributeError):  # a class without room for it
            setattr(error, _STAGE, stage_place(pipeline, stage))


def _has_computed(error: BaseException | None, depth: int = 0) -> bool:
    """Whether an error, or one that it followed on, is of Spark's running a query; one of its analysis is not."""
    if error is None or depth > CAUSES_MOST:
        return False
    if isinstance(error, Py4JError) or (
        isinstance(error, CapturedException) and not isinstance(error, AnalysisException)
    ):
        return True
    return any(_has_computed(each, depth + 1) for each in (error.__cause__, error.__context__))


def _only(stages: Iterable[Stage[Any]]) -> Stage[Any] | None:
    """Return the one stage there is; None if there are several."""
    found = list(stages)
    return found[0] if len(found) == 1 else None


def _runs_in_tasks(stage: Stage[Any]) -> bool:
    return isinstance(stage.plugin, PythonTransform) and stage.plugin.options.function is None


def _has_code(stage: Stage[Any]) -> bool:
    """Whether code that is not jobpipe's makes the stage's part of the query."""
    ours = type(stage.plugin).__module__.startswith("jobpipe.")
    return not ours or (any(stage.plugin.imports()) and not _runs_in_tasks(stage))


def _texts(value: Any) -> Iterator[str]:
    """Yield every text in options, however nested."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, (Mapping, list, tuple)):
        for each in value.values() if isinstance(value, Mapping) else value:
            yield from _texts(each)


def _fragments(error: Any) -> Iterator[str]:
    """Yield the parts of SQL that an error of Java's names as what failed; the innermost last."""
    with suppress(Py4JError):  # no error of Spark's own: it has no such method
        for context in error.getQueryContext():
            if str(context.contextType()) == "SQL" and (text := str(context.fragment() or "")):
                yield text


def stage_of(error: BaseException) -> str:
    """Return what :func:`at_stage` has noted of an error, "" if nothing."""
    return str(getattr(error, _STAGE, ""))


def stage_place(pipeline: Pipeline, stage: Stage[Any]) -> str:
    """Return where a stage is: ``orders.yaml:7 jobs.report.transform[0]``.

    The line is left out where the file on this host says something else there than the pipeline: it was changed, or
    has overlays or parameters.
    """
    read = read_files(pipeline.folder / pipeline.file.name, (), ProblemList())  # the file may be named from elsewhere
    line, path = None, stage.path
    if read is not None and path[0] == "jobs" and find(read, path[:1]) is read:
        path = path[2:]  # a file of one job, which has it at the top
    if read is not None and (node := find(read, path)) is not read:
        same = plain(node) == plain(find(pipeline.tree, stage.path))
        line = node.shown_at.line if same else None
    where = pipeline.file.name if line is None else f"{pipeline.file.name}:{line}"
    return f"{where} {dotted(path)}"


def transform_in(query: StreamingQuery, pipeline: Pipeline, job: Job) -> str:
    """Return where the transform is that a failed query failed of; "" if that is not certain.

    Raises:
        Py4JError: the JVM is gone.
    """
    java: Any = query._jsq
    option = java.exception()
    stage = None if option.isEmpty() else computing_stage(option.get(), job)
    return "" if stage is None else stage_place(pipeline, stage)


def place_of(query: StreamingQuery) -> str:
    """Return where a failed query failed: the file, or what its micro-batch read of each topic; "" if that is unknown.

    Raises:
        Py4JError: the JVM is gone.
    """
    java: Any = query._jsq
    option = java.exception()
    if option.isEmpty():
        return ""
    error = option.get()
    found = next((place for text in _messages(error) if (place := file_in(text))), "")
    return found or _ranges(str(error.startOffset()), str(error.endOffset()))


def reason_in(query: StreamingQuery) -> str:
    """Return why a file could not be read of which a query failed; "" if it failed of something else.

    Raises:
        Py4JError: the JVM is gone.
    """
    java: Any = query._jsq
    option = java.exception()
    return "" if option.isEmpty() else _reason(option.get())


def reason_of(error: BaseException) -> str:
    """Return why a file could not be read of which Spark tells with this error; "" if that is unknown."""
    origin = getattr(error, "_origin", None) or getattr(error, "java_exception", None)
    with suppress(Py4JError):  # the JVM is gone
        return "" if origin is None else _reason(origin)
    return ""


def _reason(error: Any) -> str:
    """Return what follows, in the causes of an error of Java's, on that a file could not be read."""
    texts = _messages(error)
    at = next((number for number, text in enumerate(texts) if file_in(text)), len(texts))
    found = next((text for text in texts[at + 1 :] if text and not file_in(text)), "")
    return " ".join(found.split())[:REASON_MOST]


def _messages(error: Any) -> list[str]:
    return [str(each.getMessage() or "") for each in _causes(error)]


def _causes(error: Any) -> Iterator[Any]:
    """Yield an error of Java's and what caused it."""
    for _ in range(CAUSES_MOST):
        if error is None:
            return
        yield error
        error = error.getCause()


def _ranges(start: str, end: str) -> str:
    """Return the ranges between two lists of offsets, one for each source of the query, in Spark's JSON."""
    begin, told = _positions(start), []
    for topic, position in _positions(end).items():
        last = position.n - (position.r == 0)  # the offset of the last batch of which something was read
        if topic not in begin:
            told.append(f"topic {topic}, up to offset {last}")
        elif begin[topic].place < position.place:
            first = begin[topic].n
            told.append(f"topic {topic}, " + (f"offset {first}" if first == last else f"offsets {first} to {last}"))
    more = f"; and {len(told) - TOPICS_MOST} more topics" if len(told) > TOPICS_MOST else ""
    return "; ".join(told[:TOPICS_MOST]) + more


def _positions(text: str) -> dict[str, Position]:
    """Return the positions in a list of offsets; those of sources of other kinds are left out."""
    try:
        offsets = json.loads(_NONE.sub("null", text))
    except ValueError:
        return {}
    found: dict[str, Position] = {}
    for offset in offsets if isinstance(offsets, list) else ():
        for topic, value in offset.items() if isinstance(offset, dict) else ():
            with suppress(RemoteProtocolError):
                found[str(topic)] = Position.from_json(value)
    return found
