"""Where the rows are that a job failed of, as far as Spark tells it: a file, or a micro-batch's ranges of its topics.

Spark names the file of a row that it cannot parse. Of a row that came from a topic, and that a cast or a function
cannot take, it knows the micro-batch alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql.streaming.query import StreamingQuery

from jobpipe.errors import RemoteProtocolError
from jobpipe.pipelines.pipeline import Pipeline, Stage
from jobpipe.pipelines.problems import ProblemList
from jobpipe.pipelines.tree import dotted, find, plain
from jobpipe.pipelines.yaml_files import read_files
from jobpipe.store.position import Position

CAUSES_MOST = 20
REASON_MOST = 500  # characters
TOPICS_MOST = 5

_STAGE = "_jobpipe_stage"  # an attribute of errors
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
        if not stage_of(error):
            with suppress(AttributeError):  # a class without room for it
                setattr(error, _STAGE, stage_place(pipeline, stage))
        raise


def stage_of(error: BaseException) -> str:
    """Return what :func:`at_stage` has noted of an error, "" if nothing."""
    return str(getattr(error, _STAGE, ""))


def stage_place(pipeline: Pipeline, stage: Stage[Any]) -> str:
    """Return where a stage is: ``orders.yaml:7 jobs.report.transform[0]``.

    The line is left out where the file on this host says something else there than the pipeline: it was changed, or
    has overlays or parameters.
    """
    read = read_files(pipeline.file, (), ProblemList())
    line = None
    if read is not None and (node := find(read, stage.path)) is not read:
        same = plain(node) == plain(find(pipeline.tree, stage.path))
        line = node.shown_at.line if same else None
    where = pipeline.file.name if line is None else f"{pipeline.file.name}:{line}"
    return f"{where} {dotted(stage.path)}"


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
    texts: list[str] = []
    while error is not None and len(texts) < CAUSES_MOST:
        texts.append(str(error.getMessage() or ""))
        error = error.getCause()
    return texts


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
