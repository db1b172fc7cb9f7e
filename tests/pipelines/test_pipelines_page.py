"""The blocks of docs/pipelines.md and of the pages of its parts, run as they stand there."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from jobpipe.pipelines.file.error_messages import field_names
from jobpipe.pipelines.file.spec import JobSpec
from jobpipe.pipelines.loading.loader import load_pipeline
from jobpipe.pipelines.model.graph import dead_letters_of, graph_of
from jobpipe.pipelines.model.routes import routes_of
from jobpipe.pipelines.plugins.api import Transform
from jobpipe.pipelines.plugins.plugin_discovery import Plugins
from tests.docs.pages import ROOT, block, shell
from tests.pipelines.conftest import Write, loaded

PAGE = "docs/pipelines.md"


@pytest.mark.slow
def test_start(tmp_path: Path) -> None:
    """And the line of a wrong file is as the page shows it."""
    done = shell(block("docs/pipelines.md", "start"), tmp_path)
    assert (done.returncode, done.stderr.count("next:")) == (0, 1), done.stderr
    assert "ok: orders/pipeline.yaml: pipeline orders, 3 jobs" in done.stdout
    assert "publish  csv → MaskField → topic example.orders" in done.stdout
    assert "MaskField (transform of jobpipe)" in done.stdout
    file = tmp_path / "orders" / "pipeline.yaml"
    file.write_text(file.read_text().replace("parallelism: 2", "paralelism: 2"))
    wrong = shell("jobpipe pipeline validate orders/pipeline.yaml", tmp_path)
    assert wrong.returncode == 2
    (shown,) = [line.strip() for line in (ROOT / PAGE).read_text().splitlines() if "paralelism" in line]
    assert shown in wrong.stderr


def test_the_file(write: Write) -> None:
    graph = graph_of(loaded(write(block("docs/pipelines.md", "file"))))
    assert [topic.name for topic in graph.topics] == ["dev.large", "dev.orders"]
    assert graph.topics[1].readers == ("large", "daily")


def test_one_job(write: Write) -> None:
    (job,) = graph_of(loaded(write(block("docs/pipelines.md", "one-job")))).jobs
    assert (job.name, job.sources, job.publishes) == ("copy", ("kafka",), ("orders",))


def test_join(write: Write, tmp_path: Path) -> None:
    for name in ("orders", "payments"):
        (tmp_path / name).mkdir()
    (job,) = graph_of(loaded(write(block("docs/pipeline-keys.md", "join")))).jobs
    assert (job.name, job.sources, job.publishes) == ("paid", ("csv", "csv"), ("paid",))


def test_capture(write: Write) -> None:
    graph = graph_of(loaded(write(block("docs/pipeline-keys.md", "capture"))))
    assert [(topic.name, topic.publishers, topic.readers) for topic in graph.topics] == [
        (name, ("changes",), ("totals",)) for name in ("public.orders", "sold-items")
    ]


def test_route(write: Write) -> None:
    (job,) = load_pipeline(write(block("docs/pipeline-keys.md", "route"))).jobs.values()
    routes = routes_of(job)
    assert routes is not None
    assert routes.targets("raw.orders.eu") == ("orders", "eu-orders")
    assert (routes.targets("raw.audit"), routes.targets("raw.x")) == (("all-raw.audit",), ("others",))


@pytest.mark.slow
def test_environments(tmp_path: Path) -> None:
    assert shell("jobpipe pipeline init .", tmp_path).returncode == 0
    done = shell(block("docs/pipelines.md", "environments"), tmp_path)
    assert done.returncode == 0, done.stderr
    pipeline = load_pipeline(
        tmp_path / "pipeline.yaml", overlays=[tmp_path / "prod.yaml"], given={"work": "/tmp/orders"}
    )
    assert pipeline.name == "orders-prod"
    assert (pipeline.spec.topic_prefix, pipeline.spec.storage) == ("prod.", "/tmp/orders/prod")
    assert pipeline.jobs["publish"].definition["source"]["options"]["maxFilesPerTrigger"] == 10


@pytest.mark.slow
def test_preview(write: Write, tmp_path: Path) -> None:
    """The page shows what the command prints for the page's own file."""
    write(block("docs/pipelines.md", "file"))
    done = shell(block("docs/schedules.md", "preview"), tmp_path)
    assert done.returncode == 0, done.stderr
    page = (ROOT / "docs/schedules.md").read_text()
    for line in done.stdout.splitlines():
        assert f"\n    {line}\n" in page


def test_dead_letters(write: Write) -> None:
    pipeline = loaded(write(block("docs/dead-letters.md", "dead-letters")))
    assert dead_letters_of(pipeline, pipeline.jobs["publish"]) == "bad-orders"


def test_upsert(write: Write) -> None:
    (sink,) = load_pipeline(write(block("docs/jdbc-upsert.md", "upsert"))).jobs["shop"].sinks
    assert (sink.plugin.type, sink.plugin.options.keys) == ("jdbc-upsert", ("id",))


def test_on_a_cluster(write: Write) -> None:
    launcher = loaded(write(block("docs/cluster-drivers.md", "on-a-cluster"))).launcher.plugin
    assert (launcher.type, launcher.cluster) == ("spark-rest", True)
    assert launcher.options.environment == {"JOBPIPE_CONFIG": "/etc/jobpipe/jobpipe.yaml"}


def test_on_kubernetes(write: Write) -> None:
    """Its program is where an installed package has it."""
    pipeline = load_pipeline(write(block("docs/cluster-drivers.md", "on-kubernetes")))
    assert (pipeline.launcher.plugin.type, pipeline.launcher.plugin.cluster) == ("spark-submit", True)
    inside = "jobpipe/jobs/runner/spark_submit_entry.py"
    assert pipeline.launcher.plugin.options.program.endswith(f"/site-packages/{inside}")
    assert (ROOT / inside).is_file()


def test_a_plug_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Write) -> None:
    """The class as the page has it, declared as the page says."""
    folder = tmp_path / "acme"
    folder.mkdir()
    (folder / "acme_stamp.py").write_text(block("docs/pipeline-keys.md", "plug-in"))
    about = folder / "acme-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[jobpipe.transforms]\nstamp = acme_stamp:Stamp\n")
    monkeypatch.syspath_prepend(str(folder))
    given = "{type: stamp, column-name: by}"
    text = f"pipeline: {{name: x}}\nsource: {{type: rate}}\ntransform: [{given}]\nsink: {{type: console}}\n"
    (stage,) = loaded(write(text)).jobs["x"].transforms
    assert isinstance(stage.plugin, Transform)
    assert stage.plugin.options.model_dump() == {"column_name": "by"}
    assert sys.modules.pop("acme_stamp") is not None


def test_the_tables_name_what_there_is() -> None:
    """Every key of a job, and every built-in source, transform and sink."""
    text = (ROOT / "docs/pipeline-keys.md").read_text()
    missing = [name for name in field_names(JobSpec) if f"`{name}" not in text]
    assert missing == []
    types = {each.type for each in Plugins().all() if each.distribution == "jobpipe" and each.kind != "launcher"}
    assert [name for name in sorted(types) if f"`{name}`" not in text] == []
