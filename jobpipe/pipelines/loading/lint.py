"""What in a file is probably a mistake, and is known only on the host where it is checked, or to Spark alone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from jobpipe.config.definitions.key_names import closest
from jobpipe.config.reading.file_permissions import distrusted_level
from jobpipe.config.reading.located_values import Path as Place
from jobpipe.errors import ConfigError
from jobpipe.pipelines.file.ddl import TYPES, unknown_types
from jobpipe.pipelines.file.error_messages import problem_at
from jobpipe.pipelines.file.file_paths import literal, local_folder
from jobpipe.pipelines.file.problems import Problem
from jobpipe.pipelines.file_formats.format_options import read_schema
from jobpipe.pipelines.model.pipeline import Job, Pipeline


def inputs_not_here(pipeline: Pipeline) -> Iterator[Problem]:
    """Yield a warning for each source whose path is not there; paths of other hosts, and patterns, are left alone."""
    if pipeline.launcher.plugin.cluster:
        return
    written = [
        place
        for job in pipeline.jobs.values()
        for stage in job.sinks
        if (folder := stage.plugin.folder(pipeline.folder)) is not None and (place := local_folder(folder)) is not None
    ]
    for job in pipeline.jobs.values():
        for stage in job.sources.values():
            read = stage.plugin.folders(pipeline.folder)
            name = None if read is None or "${" in str(stage.given.get("path")) else literal(read.pattern)
            place = None if name is None else local_folder(name)
            if place is not None and not os.path.lexists(place) and not _is_written(place, written):
                what = f"there is nothing at {place}, and the job fails without it"
                remedy = "make the folder before the job starts, or correct the path: it starts from the file's folder"
                yield problem_at(pipeline.tree, (*stage.path, "path"), what, remedy, "warning")


def _is_written(place: Path, written: list[Path]) -> bool:
    """Whether a sink makes a folder, one in it, or one that holds it."""
    here = Path(os.path.normpath(place))
    others = [Path(os.path.normpath(each)) for each in written]
    return any(here.is_relative_to(each) or each.is_relative_to(here) for each in others)


def modules_of_others(pipeline: Pipeline) -> Iterator[Problem]:
    """Yield a warning for the first folder of modules that others can change: its owner is trusted, as the file's is.

    The control server refuses more: it does not accept a pipeline directly in a folder such as /tmp, for instance.
    """
    top = Path(os.path.realpath(pipeline.folder))
    folders: list[tuple[Place, Path]] = [((), top)]
    for each in pipeline.spec.libraries:
        path = os.path.realpath(pipeline.folder / each.glob.include.split("*")[0])
        folders.append((("pipeline", "libraries"), Path(path)))
    for key, folder in folders:
        try:
            found = distrusted_level(folder, top, any_owner=True)
        except OSError as error:
            what, remedy = f"{error.filename} cannot be looked at ({error.strerror})", "see that you can read it"
        else:
            if found is None:
                continue
            what, remedy = f"others could have changed {found.path}: {found.why}", found.remedy
        yield problem_at(pipeline.tree, key, what, remedy, "warning")
        return


def types_of_no_column(pipeline: Pipeline) -> Iterator[Problem]:
    """Yield a warning for each type in a ``schema`` that Spark does not have."""
    for job in pipeline.jobs.values():
        for place, schema in _schemas(job):
            try:
                columns = read_schema(schema, pipeline.folder)
            except ConfigError:  # the job says so where it runs; the file may be there alone
                continue
            for name in dict.fromkeys(unknown_types(columns)):
                meant = closest(name.lower(), TYPES)
                remedy = f"did you mean {meant.upper()}?" if meant else "give one of Spark's, such as BIGINT or STRING"
                what = f"{name} is no type that Spark has"
                yield problem_at(pipeline.tree, place, what, remedy, "warning")


def _schemas(job: Job) -> Iterator[tuple[Place, str]]:
    if job.spec.schema_ is not None:
        yield (*job.path, "schema"), job.spec.schema_
    for stage in job.stages:
        if isinstance(schema := getattr(stage.plugin.options, "schema_", None), str):
            yield (*stage.path, "schema"), schema
