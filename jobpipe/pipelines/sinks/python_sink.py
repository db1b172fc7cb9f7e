"""Sink ``python``: a callback of the user's."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from pydantic import Field

from jobpipe.errors import ConfigError
from jobpipe.pipelines.file.field_types import Arguments, ObjectName, revealed
from jobpipe.pipelines.plugins.api import DeliveryGuarantee, PluginOptions, Sink
from jobpipe.pipelines.plugins.job_context import JobContext
from jobpipe.pipelines.plugins.object_loader import import_object

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class PythonSink(Sink):
    """Calls a function or an object of yours with each micro-batch and its id; with the rows of a run, and 0.

    A class is made once, with the options; a function is given them with each call.
    """

    type = "python"
    promise = DeliveryGuarantee(
        False, "a repeated micro-batch is passed again with the same id: use the id to write it once"
    )

    class Options(PluginOptions):
        """Which callback."""

        foreach_batch: ObjectName = Field(
            description="(batch, batch_id, **options), or a class: made with the options, called with the rest."
        )
        options: Arguments = Field(default_factory=dict, description="Its keyword arguments.")

    options: Options

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self._call: Callable[[DataFrame, int], object] | None = None

    def imports(self) -> Iterable[str]:
        yield self.options.foreach_batch

    def open(self, frame: DataFrame, job: JobContext) -> None:
        """Import the callback; make it, if it is a class."""
        name, options = self.options.foreach_batch, revealed(self.options.options, job.folder)
        found = import_object(name)
        if inspect.isclass(found):
            found, options = found(**options), {}
        if not callable(found):
            raise ConfigError(f"{name} cannot be called with a micro-batch and its id", key="foreach-batch")
        self._call = lambda batch, batch_id: found(batch, batch_id, **options)

    def write(self, batch: DataFrame, batch_id: int, job: JobContext) -> None:
        if self._call is None:
            self.open(batch, job)
        assert self._call is not None  # noqa: S101 - open made it
        self._call(batch, batch_id)
