"""What of a query its checkpoint depends on, and only Spark's plan tells: the order of its sources, and its state.

Spark numbers the sources of a query by their order in the plan, and the stages that keep state, and notes no names. So
a query whose sources have changed places reads each from where the other one was; one with another aggregate goes on
from the values of the one before; one with another column of event times goes on from the other one's watermark.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError
from pyspark.sql import DataFrame, SparkSession

from jobpipe.errors import CheckpointMismatch
from jobpipe.pipelines.checkpoints.checkpoint_owner import Part, is_another_order, part_of, remedy
from jobpipe.pipelines.checkpoints.checkpoint_storage import keep_note
from jobpipe.pipelines.model.pipeline import Job

NAME = "query.json"
VERSION = 2
MOST_NODES = 10_000  # of a plan
_SHOWN = 300  # characters of a stage, in an error
_STATE = frozenset(
    {
        *("Aggregate", "Deduplicate", "DeduplicateWithinWatermark", "Distinct", "GlobalLimit"),
        *("FlatMapGroupsWithState", "FlatMapGroupsInPandasWithState", "TransformWithState"),
        *("TransformWithStateInPySpark", "TransformWithStateInPandas"),
    }
)
"""Spark's nodes that keep state in a stream; a join of two streams does, too."""
_WATERMARK = "EventTimeWatermark"
_ID = re.compile(r"#\d+L?(-T\d+ms)?|@[0-9a-f]{4,}|-?\d{12,}")
"""The ids of columns, with the delays of their watermarks, and of objects; the seeds of random functions."""


class QueryShape(BaseModel):
    """What is noted of a query.

    Attributes:
        version: of the note; one of another version is not compared.
        spark: the version of Spark: another one may write plans in another way, and is not compared.
        sources: which they are, in the plan's order; and their views, for messages.
        named: Spark knows the sources by their names, in any order.
        state: the nodes of the plan that keep state, and the columns with watermarks, in its order.
        output_mode: of a query that keeps state; else "".
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    version: int = VERSION
    spark: str
    sources: tuple[Part, ...]
    views: tuple[str, ...] = ()
    named: bool = False
    state: tuple[str, ...]
    output_mode: str = ""

    def difference(self, before: QueryShape) -> str:
        """Return, as a phrase, what is another than before; "" if nothing is."""
        if before.spark != self.spark:
            return ""
        if not self.named and is_another_order(self.sources, before.sources):
            now, then = ", then ".join(self.views), ", then ".join(before.views)
            return f"Spark knows its sources by their order, which is now {now}, and was {then}"
        if self.state != before.state:
            now, then = (_some(shape, other) for shape, other in ((self, before), (before, self)))
            return f"among what keeps state is now {now}, and was {then}"
        if self.output_mode != before.output_mode:
            return f"its output-mode is {self.output_mode}, and was {before.output_mode}"
        return ""


def _some(shape: QueryShape, other: QueryShape) -> str:
    found = [stage[:_SHOWN] for stage in shape.state if stage not in other.state]
    return ", ".join(found) or ("another order" if len(shape.state) == len(other.state) else "none of these")


def shape_of(
    frame: DataFrame, job: Job, frames: Mapping[str | None, DataFrame], output_mode: str, *, named: bool = False
) -> QueryShape:
    """Return the shape of a stream.

    Args:
        frames: its sources, by their views.
        output_mode: as it is given to Spark.
        named: Spark knows the sources by their names.
    """
    reads = [(_leaf(each), part_of(job.sources[view]), view or "") for view, each in frames.items()]
    sources: list[tuple[Part, str]] = []  # in the order in which Spark counts them: which, and its view
    counted: list[Any] = []
    state: list[str] = []
    for node, kind in _nodes(frame):
        if not node.isStreaming():
            continue
        if node.children().isEmpty():
            if node not in counted:  # Spark counts a relation that is there twice, once
                counted.append(node)
                same = ((part, view) for leaf, part, view in reads if leaf is not None and leaf.sameResult(node))
                sources.append(next(same, (Part(type=kind, which={}), kind)))
        elif kind == _WATERMARK:
            state.append(f"the watermark of {node.eventTime().name()}")
        elif kind in _STATE or (kind == "Join" and node.left().isStreaming() and node.right().isStreaming()):
            state.append(_ID.sub("", str(node.simpleString(MOST_NODES))))
    version = frame.sparkSession.version
    return QueryShape(
        spark=version,
        sources=tuple(part for part, _ in sources),
        views=tuple(view for _, view in sources),
        named=named,
        state=tuple(state),
        output_mode=output_mode if state else "",
    )


def _nodes(frame: DataFrame) -> Iterator[tuple[Any, str]]:
    """Yield the nodes of a frame's plan, and the names of their classes, in the order in which Spark looks at them."""
    left = [frame._jdf.queryExecution().analyzed()]
    for _ in range(MOST_NODES):
        if not left:
            return
        node = left.pop()
        yield node, str(node.nodeName())
        children = node.children()
        left += [children.apply(number) for number in reversed(range(children.size()))]


def _leaf(frame: DataFrame) -> Any:
    """Return the node of a source's plan that reads; None if it has several, as a plug-in may make it."""
    leaves = [node for node, _ in _nodes(frame) if node.children().isEmpty()]
    return leaves[0] if len(leaves) == 1 else None


def claim_shape(storage: str, shape: QueryShape, job: str, spark: SparkSession) -> None:
    """Make sure that a query may go on from its checkpoint, and note its shape. One without a note may.

    Raises:
        CheckpointMismatch: it was begun with its sources in another order, or with other state.
    """

    text = f"{json.dumps(shape.model_dump(), indent=1)}\n"

    def fit(said: str, begun: bool) -> str:
        before = _read(said, f"{storage}/{NAME}") if begun else None
        if before is not None and (differs := shape.difference(before)):
            raise CheckpointMismatch(
                f"the checkpoint in {storage} does not fit the query of job {job}: {differs}. Undo that change. "
                f"{remedy(job, storage)}",
                file=f"{storage}/{NAME}",
            )
        return text

    keep_note(storage, NAME, text, fit, spark)


def _read(said: str, name: str) -> QueryShape | None:
    """Return what a note says; None if it is of another version."""
    try:
        noted = json.loads(said)
        if isinstance(noted, dict) and noted.get("version", VERSION) != VERSION:
            return None
        return QueryShape.model_validate(noted)
    except ValueError as error:  # ValidationError is one
        problems = error.error_count() if isinstance(error, ValidationError) else 1
        raise CheckpointMismatch(
            f"{name} does not say how the query of the checkpoint was: {problems} problems; if it is this job's, "
            "delete the file",
            file=name,
        ) from error
