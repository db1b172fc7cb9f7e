"""The names that the distribution takes from its users: those that begin with its own, and no other."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.processes
def test_modules_of_common_names_beside_a_job(tmp_path: Path) -> None:
    """Those next to the script come first in Python's path; ours must not be among them (case P3)."""
    ours = {path.stem for package in ("jobpipe", "registry/jobpipe_registry") for path in (ROOT / package).rglob("*")}
    common = ours | {"registry", "store", "examples", "tests", "conf", "benchmarks"}
    taken = {*sys.stdlib_module_names, "jobpipe", "jobpipe_registry", "__init__", "__main__", "py4j"}
    for name in sorted(common - taken):
        if name.isidentifier():
            (tmp_path / f"{name}.py").write_text("raise AssertionError(f'{__name__} of the job was imported')\n")
    job = tmp_path / "the_job.py"
    job.write_text(
        textwrap.dedent(
            """
            import sys
            import jobpipe, jobpipe.admin, jobpipe.cli.main, jobpipe.coordinator.__main__, jobpipe.pipelines.loading
            import jobpipe.spark.run, jobpipe.spark.sink, jobpipe.spark.source, pyspark_jobpipe
            from jobpipe_registry import zookeeper, memory, embedded
            jobpipe.publisher, jobpipe.subscriber
            print("imported")
            """
        )
    )
    done = subprocess.run([sys.executable, str(job)], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("imported\n", "")
