"""Checks of a submission before its jobs are compared: for the server, and for a plan without a server."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from jobpipe.config import Config
from jobpipe.control.control_service import Plan, Submission
from jobpipe.control.revisions.planning import Asked, first_plan
from jobpipe.errors import ConfigError, ControlConflict, JobpipeError, PipelineNotFound
from jobpipe.jobs.allowed_paths import AllowedPaths
from jobpipe.jobs.schedules.schedule_rule import Rule
from jobpipe.jobs.storage.file_lock import holder
from jobpipe.pipelines.checkpoints.checkpoint_owner import require_checkpoint
from jobpipe.pipelines.file.problems import Problem, nearest, pipeline_error
from jobpipe.pipelines.loading.loader import load_tree
from jobpipe.pipelines.model.paths import PipelinePaths, require_clearable
from jobpipe.pipelines.model.pipeline import Pipeline
from jobpipe.pipelines.plugins.plugin_discovery import Plugins

MOST_TREE_BYTES = 4 * 1024 * 1024


def load_submission(
    submission: Submission, new_checkpoint: Sequence[str], plugins: Plugins, pipeline: Pipeline | None = None
) -> Pipeline:
    """Return the pipeline of a file that is right here; it is loaded unless the caller has done so.

    Raises:
        ConfigError, PipelineError: it is not.
        PipelineNotFound: a job that is to begin without its checkpoint is not in it.
    """
    _require_absolute(submission)
    if pipeline is None:
        pipeline = load_tree(submission.tree, file=submission.file, folder=submission.folder, plugins=plugins)
    require_jobs(pipeline, new_checkpoint)
    _require_supported(pipeline)
    return pipeline


def require_jobs(pipeline: Pipeline, new_checkpoint: Sequence[str]) -> None:
    """Check that a file has the jobs that are to begin without their checkpoint.

    Raises:
        PipelineNotFound: it has not.
    """
    for job in new_checkpoint:
        if job not in pipeline.jobs:
            what = f"new-checkpoint: there is no job {job!r:.120}; {nearest(job, pipeline.jobs)}"
            raise PipelineNotFound(what, pipeline=pipeline.name, job=job)


def require_trusted(pipeline: Pipeline, roots: AllowedPaths) -> None:
    """Check that all of a pipeline lies in the roots, where no other user can change it.

    Raises:
        PipelineError: it does not, or that cannot be looked at.
    """
    try:
        problems = list(roots.problems(pipeline))
    except OSError as error:
        what = f"{error.filename} cannot be looked at ({error.strerror})"
        remedy = "see that the server's user can reach it, then submit again"
        problems = [Problem(str(pipeline.file), None, "", what, remedy)]
    if problems:
        raise pipeline_error(problems)


def refusals(pipeline: Pipeline, home: Path, new_checkpoint: Sequence[str]) -> Iterator[JobpipeError]:
    """Yield why a file is not taken now, although it is right."""
    places = PipelinePaths.of(home, pipeline.name)
    try:
        require_no_foreground(home, pipeline.name)
    except ControlConflict as error:
        yield error
    for name in new_checkpoint:
        try:
            require_checkpoint(pipeline.jobs[name])
            require_clearable(places.storage(pipeline, name), name)
        except ConfigError as error:
            yield error
    try:
        places.require_prefix(pipeline)
    except ConfigError as error:
        yield error


def require_no_foreground(home: Path, pipeline: str) -> None:
    """Check that no run in the foreground has a pipeline.

    Raises:
        ControlConflict: one has.
    """
    process = holder(PipelinePaths.of(home, pipeline).lock)
    if process is not None:
        raise ControlConflict(
            f"pipeline {pipeline} is run in the foreground by process {process}; stop that first", pipeline=pipeline
        )


def plan_without_server(
    submission: Submission, new_checkpoint: Sequence[str], config: Config, config_file: Path | None
) -> Plan:
    """Return what a server that is started with this configuration would do with a pipeline that is new to it.

    Raises:
        ConfigError, PipelineError, PipelineNotFound: as :func:`load_submission`; or its files are not in the roots.
    """
    roots = AllowedPaths.of(config, config_file)
    roots.folder(submission.folder)
    pipeline = load_submission(submission, new_checkpoint, Plugins())
    require_trusted(pipeline, roots)
    refused = tuple(error.message for error in refusals(pipeline, config.home, new_checkpoint))
    return first_plan(Asked.of(pipeline, config.home, new_checkpoint), refused)


def _require_absolute(submission: Submission) -> None:
    for what, path in (("file", submission.file), ("folder", submission.folder)):
        if not path.is_absolute():
            raise ConfigError(f"{what} {str(path)!r:.200} is not an absolute path", key=what)
    if len(json.dumps(dict(submission.tree))) > MOST_TREE_BYTES:
        raise ConfigError(f"the pipeline has more than {MOST_TREE_BYTES} bytes", key="tree")


def _require_supported(pipeline: Pipeline) -> None:
    file = str(pipeline.file)
    problems = []
    for name, job in pipeline.jobs.items():
        if job.spec.schedule is not None:
            try:
                Rule.of(job.spec.schedule)
            except ConfigError as error:
                what, _, remedy = error.message.partition("; ")
                problems.append(Problem(file, None, f"jobs.{name}.schedule", what, remedy or "mend it"))
    if problems:
        raise pipeline_error(problems)
