"""Names: those that the distribution takes from its users, which begin with its own, and those within it."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import textwrap
from collections import Counter
from collections.abc import Iterator
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
            import jobpipe, jobpipe.admin, jobpipe.cli.main, jobpipe.coordinator.__main__
            import jobpipe.pipelines.loading.loader, jobpipe.spark.termination.run, pyspark_jobpipe
            import jobpipe.spark.sink.foreach_batch_sink, jobpipe.spark.source.data_source
            from jobpipe_registry import memory
            from jobpipe_registry.embedded import embedded_zookeeper
            from jobpipe_registry.zookeeper import zookeeper_handler
            jobpipe.publisher, jobpipe.subscribe
            print("imported")
            """
        )
    )
    done = subprocess.run([sys.executable, str(job)], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("imported\n", "")


def _modules() -> Iterator[Path]:
    yield from (ROOT / "jobpipe").rglob("*.py")
    yield from (ROOT / "registry").rglob("*.py")


def test_a_file_name_stands_for_one_thing() -> None:
    """A reader who looks for `leases.py` should not have to open several of them."""
    names = Counter(path.name for path in _modules() if not path.name.startswith("__"))
    assert [name for name, count in names.items() if count > 1] == []


def test_a_package_can_be_taken_in_at_a_glance() -> None:
    modules = Counter(path.parent.relative_to(ROOT).as_posix() for path in _modules() if path.name != "__init__.py")
    assert {package: count for package, count in modules.items() if count > 12} == {}


def test_a_folder_of_tests_can_be_taken_in_at_a_glance() -> None:
    """But for the programs that tests start, each by its name."""
    files = Counter(path.parent.relative_to(ROOT).as_posix() for path in (ROOT / "tests").rglob("*.py"))
    crowded = {folder: count for folder, count in files.items() if count > 12}
    assert set(crowded) <= {"tests/spark/jobs"}, crowded


PARTS = {  # parts that every such project has, by the word that its people search for
    "access list": "jobpipe/net/servers/access_list.py",
    "audit log": "jobpipe/net/servers/audit_log.py",
    "batch seal": "jobpipe/store/log/seal.py",
    "circuit breaker": "jobpipe/jobs/supervision/circuit_breaker.py",
    "dead letter": "jobpipe/pipelines/dead_letters/dead_letter_split.py",
    "dispatcher": "jobpipe/jobs/supervision/dispatcher.py",
    "dry run": "jobpipe/jobs/foreground/dry_run.py",
    "exit status": "jobpipe/jobs/supervision/exit_status.py",
    "fence": "jobpipe/jobs/runner/checkpoint_fence.py",
    "foreach batch": "jobpipe/spark/sink/foreach_batch_sink.py",
    "hysteresis": "jobpipe/jobs/monitor/hysteresis.py",
    "job lease": "jobpipe/jobs/runner/job_lease.py",
    "launcher": "jobpipe/jobs/launchers/local_launcher.py",
    "low watermark": "jobpipe/store/subscriptions/low_watermark.py",
    "plug-in discovery": "jobpipe/pipelines/plugins/plugin_discovery.py",
    "reconciler": "jobpipe/jobs/supervision/reconciler.py",
    "redrive": "jobpipe/pipelines/dead_letters/redrive.py",
    "restart policy": "jobpipe/jobs/supervision/restart_policy.py",
    "retention": "jobpipe/store/log/retention.py",
    "retry, back-off": "jobpipe/net/retry.py",
    "schedule": "jobpipe/control/scheduler/scheduler.py",
    "stream reader": "jobpipe/spark/source/stream_reader.py",
    "throughput": "jobpipe/jobs/monitor/throughput.py",
    "topic poller": "jobpipe/jobs/monitor/topic_poller.py",
    "webhook": "jobpipe/jobs/alerts/webhook.py",
}


def test_parts_have_the_words_of_the_field() -> None:
    assert {word for word, module in PARTS.items() if not (ROOT / module).is_file()} == set()
    for word, module in PARTS.items():
        assert re.sub(r"\W", "_", word.partition(",")[0].replace("plug-in", "plugin").split(" ")[-1]) in module


def test_all_is_only_where_names_are_imported_to_be_found_there() -> None:
    """Elsewhere a name without an underscore is for others."""
    found = {path.relative_to(ROOT).as_posix() for path in _modules() if _lists_only_its_own(path)}
    assert found == {"jobpipe/errors.py"}  # which is public


def _lists_only_its_own(path: Path) -> bool:
    tree = ast.parse(path.read_text())
    listed = [
        {element.value for element in node.value.elts if isinstance(element, ast.Constant)}
        for node in tree.body
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.List)
        and ast.unparse(node.targets[0]) == "__all__"
    ]
    imported = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    return bool(listed) and not listed[0] & imported
