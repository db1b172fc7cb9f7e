"""Imports what a pipeline names of the user's, in a process of its own with a deadline: ``validate --import``.

The child (``python -m jobpipe.pipelines.loading.import_check``) reads names from standard input and writes what is
wrong with them to standard output, both as JSON; what the user's code prints goes to standard error.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path as FilePath

from jobpipe.config.reading.located_values import Path
from jobpipe.errors import ConfigError
from jobpipe.pipelines.file.error_messages import problem_at
from jobpipe.pipelines.file.problems import Problem
from jobpipe.pipelines.model.pipeline import Pipeline
from jobpipe.pipelines.plugins.object_loader import import_object

SECONDS = 60.0


def check_imports(pipeline: Pipeline, *, seconds: float = SECONDS) -> list[Problem]:
    """Return a problem for each of the user's objects that cannot be imported; all are imported in one child."""
    named = list(_named(pipeline))
    if not named:
        return []
    names = sorted({name for _, name in named})
    wrong, why = _ask(pipeline.folder, names, seconds)
    if why is not None:
        path, _ = named[0]
        what = f"the imports {why}"
        remedy = f"modules should only define things when they are imported; these were imported: {', '.join(names)}"
        return [problem_at(pipeline.tree, path, what, remedy)]
    remedy = f"correct the name or the module; modules are looked for in {pipeline.folder} first"
    return [problem_at(pipeline.tree, path, wrong[name], remedy) for path, name in named if name in wrong]


def _named(pipeline: Pipeline) -> Iterator[tuple[Path, str]]:
    for job in pipeline.jobs.values():
        for stage in job.stages:
            for name in stage.plugin.imports():
                key = next((key for key, value in stage.given.items() if value == name), None)
                yield (stage.path if key is None else (*stage.path, key)), name
        for key, named in (("function", job.spec.function), ("setup", job.spec.setup)):
            if named is not None:
                yield (*job.path, key), named


def _ask(folder: FilePath, names: list[str], seconds: float) -> tuple[dict[str, str], str | None]:
    """Return what is wrong with each name, or why there is no answer."""
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "jobpipe.pipelines.loading.import_check"],  # -P: no module of that folder is ours
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=folder,
        start_new_session=True,
    )
    try:
        answer, _ = process.communicate(json.dumps({"folder": str(folder), "names": names}).encode(), timeout=seconds)
    except subprocess.TimeoutExpired:
        return {}, f"were not done after {seconds:g} s"
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)  # it, and what it started
        process.communicate()
    try:
        found = json.loads(answer.splitlines()[-1])
    except (ValueError, IndexError):
        return {}, f"ended the process, with exit code {process.returncode}"
    return {str(name): str(text) for name, text in found.items()}, None


def main() -> None:
    """Import what standard input names."""
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    asked = json.load(sys.stdin)
    sys.path.insert(0, asked["folder"])
    found = {}
    for name in asked["names"]:
        try:
            import_object(name)
        except ConfigError as error:
            found[name] = error.message[:1000]
    answer.write(json.dumps(found) + "\n")
    answer.flush()
    os._exit(0)  # threads that a module started do not hold it


if __name__ == "__main__":
    main()
