"""`make package`: what is in the wheel and the sdist, and whether the wheel alone is enough. Run after they are built.

The wheel goes into an empty environment, which borrows the dependencies of this one: no network is needed. In the same
way the pages' commands that install jobpipe are run, from what the sdist holds.
"""

from __future__ import annotations

import ast
import email.message
import email.parser
import importlib.metadata
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import jobpipe
from jobpipe.config import load
from jobpipe.publishing.coordinator_launcher import end_coordinators
from jobpipe_registry.embedded.embedded_zookeeper import EmbeddedZooKeeper, find_jars
from tests.docs.pages import block, shell
from tests.spark.clusters.standalone import bash, conf, environment, running_cluster

pytestmark = [pytest.mark.timeout(180)]

ROOT = Path(__file__).parents[2]
DIST = ROOT / "dist"
PLUGIN = ROOT / "build" / "plugin"  # the wheel of examples/plugin
SECONDS = 120.0
NAME = f"jobpipe-{jobpipe.__version__}"
DEPLOY = "docs/deploy.md"
WHERE = """
import json
import sys

import pyarrow as pa
from pyspark.sql import SparkSession

import jobpipe


def where(batches):
    import jobpipe

    for batch in batches:
        yield pa.RecordBatch.from_pylist([{"rows": batch.num_rows, "python": sys.executable, "ours": jobpipe.__file__}])


rows = SparkSession.builder.getOrCreate().read.format("jobpipe").option("subscribe", "orders").load()
found = rows.mapInArrow(where, "rows bigint, python string, ours string").collect()
print(json.dumps([each.asDict() for each in found] + [{"rows": 0, "python": sys.executable, "ours": jobpipe.__file__}]))
"""
USE = """
import pyarrow as pa

import jobpipe

schema = pa.schema([("id", pa.int64())])
with jobpipe.publisher("orders", schema=schema, name="till", required_subscribers=["billing"]) as orders:
    sealed: jobpipe.SealedBatch = orders.write([{"id": 1}, {"id": 2}], batch_id=0)
    orders.close(final=True)
with jobpipe.subscribe("orders", name="billing", starting="earliest") as batches:
    print(sealed.rows, [row["id"] for batch in batches for row in batch.to_pylist()])
"""

LAUNCHER = '''
import os, signal, subprocess, sys

from jobpipe.pipelines.plugins.api import Launcher, LaunchState, LaunchStatus, PluginOptions


class PlainLauncher(Launcher):
    """A process of this host, as plain as can be."""

    type = "plain"

    class Options(PluginOptions):
        master: str

    def __init__(self, options):
        super().__init__(options)
        self._processes = {}

    def spark_keys(self):
        return {"spark.master": self.options.master}

    def submit(self, attempt):
        attempt.log.parent.mkdir(parents=True, exist_ok=True)
        with attempt.log.open("ab") as log:
            log.write(b"launched by acme\\n")
            log.flush()
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "jobpipe.jobs.runner", str(attempt.snapshot)],
                cwd=attempt.folder,
                env={**os.environ, **attempt.environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._processes[str(process.pid)] = process
        return str(process.pid)

    def status(self, launched):
        code = self._processes[launched].poll()
        return LaunchStatus(LaunchState.RUNNING) if code is None else LaunchStatus(LaunchState.ENDED, code)

    def cancel(self, launched):
        if self._processes[launched].poll() is None:
            os.killpg(int(launched), signal.SIGKILL)
            self._processes[launched].wait(10)
'''


@pytest.fixture(scope="module")
def wheel() -> Path:
    return DIST / f"{NAME}-py3-none-any.whl"


@pytest.fixture(scope="module")
def metadata(wheel: Path) -> email.message.Message:
    with zipfile.ZipFile(wheel) as archive:
        return email.parser.Parser().parsestr(archive.read(f"{NAME}.dist-info/METADATA").decode())


def test_the_wheel_has_what_users_need(wheel: Path) -> None:
    """All modules; the example of `jobpipe pipeline init`; the marks of typed packages."""
    found = set(zipfile.ZipFile(wheel).namelist())
    tracked = {
        path.relative_to(root).as_posix()
        for root in (ROOT, ROOT / "registry")
        for path in root.glob("jobpipe*/**/*.py")
    }
    examples = {
        f"jobpipe/_{path.relative_to(ROOT).as_posix()}"
        for path in ROOT.glob("examples/pipeline/**/*.*")
        if path.is_file() and not any(part.startswith((".", "__pycache__")) for part in path.relative_to(ROOT).parts)
    }
    about = {
        f"{NAME}.dist-info/{name}" for name in ("METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE")
    }
    marks = {"jobpipe/py.typed", "jobpipe_registry/py.typed"}
    java = {path.relative_to(ROOT).as_posix() for path in (ROOT / "jobpipe/spark/java").rglob("*.*")}
    assert {Path(path).suffix for path in java} == {".md", ".java", ".jar"}
    page = {
        path.relative_to(ROOT).as_posix()
        for folder in ("templates", "static")
        for path in (ROOT / "jobpipe/control/page" / folder).rglob("*.*")
    }
    assert {Path(path).suffix for path in page} == {".html", ".js", ".css", ".svg"}
    others = {"pyspark_jobpipe.py", "jobpipe/pipelines/pipeline.schema.json", "jobpipe/spark/session/log4j2.properties"}
    assert found == tracked | examples | about | marks | java | page | others


def test_its_names_are_our_own(wheel: Path) -> None:
    """A common name would hide a user's module, or be hidden by it (case P3); Spark looks for its own kind of name."""
    top = {path.partition("/")[0].removesuffix(".py") for path in zipfile.ZipFile(wheel).namelist()}
    assert top == {"jobpipe", "jobpipe_registry", "pyspark_jobpipe", f"{NAME}.dist-info"}


def test_nothing_in_the_wheel_needs_what_is_left_out(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        texts = {name: archive.read(name).decode() for name in archive.namelist() if name.endswith(".py")}
    assert [name for name, text in texts.items() if re.search(r"\b(from|import) (tests|benchmarks)\b", text)] == []


def test_its_metadata(metadata: email.message.Message) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == jobpipe.__version__
    assert metadata["License-Expression"] == "Apache-2.0"
    assert "Typing :: Typed" in metadata.get_all("Classifier", [])
    needed = [each for each in metadata.get_all("Requires-Dist", []) if "extra ==" not in each]
    assert len(needed) == len(project["dependencies"])


def test_what_is_imported_is_declared_and_no_more() -> None:
    """By name: what one environment has by accident another may lack."""
    found = {
        name.partition(".")[0]
        for folder in ("jobpipe", "registry")
        for path in (ROOT / folder).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        for name in (
            [each.name for each in node.names]
            if isinstance(node, ast.Import)
            else [str(node.module)]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    foreign = found - sys.stdlib_module_names - {"jobpipe", "jobpipe_registry"}
    made_by = importlib.metadata.packages_distributions()
    imported = {canonicalize_name(made_by[name][0]) for name in foreign if name in made_by}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = {canonicalize_name(Requirement(each).name) for each in project["dependencies"]}
    optional = {
        "cronsim",
        "h11",
        "jinja2",
        "kerberos",
        "markupsafe",
        "numpy",
        "openlineage-python",
        "pandas",
        "prometheus-client",
        "psycopg",
        "pymysql",
        "pyspark",
        "sqlglot",
        "starlette",
        "uvicorn",
    }  # of extras
    needed_by_others = {"pure-sasl"}  # by kazoo
    assert {name for name in foreign if name not in made_by} <= optional
    assert imported - optional - {"py4j", "pydantic-core"} == declared - needed_by_others  # PySpark's and pydantic's


def test_the_sdist_has_what_a_maintainer_needs() -> None:
    """`build` makes the wheel of it, so what the wheel needs is there; so are tests, pages and locks, and no more."""
    with tarfile.open(DIST / f"{NAME}.tar.gz") as archive:
        found = {name.partition("/")[2] for name in archive.getnames()}
    assert {
        *("LICENSE", "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "Makefile", "pyproject.toml"),
        *(
            "docs/publish.md",
            "conf/jobpipe.yaml",
            "requirements/dev.txt",
            "tests/harness/processes.py",
            "jobpipe/spark/java/src/jobpipe/hadoop/InProcessLocalFs.java",
            "jobpipe/spark/java/jobpipe-local-files.jar",
            "tests/conftest.py",
        ),
    } <= found
    hidden = {name.partition("/")[0] for name in found if name.startswith(".")}
    assert hidden <= {".ci", ".dockerignore", ".gitignore"}


@dataclass(frozen=True)
class Environment:
    """An environment with jobpipe and nothing else of its own, and a folder to work in."""

    python: Path
    folder: Path

    @property
    def home(self) -> Path:
        return self.folder / "home"

    def run(self, *command: str) -> str:
        """Run a program of it; return what it prints."""
        ours = {
            name: value for name, value in os.environ.items() if not name.startswith(("JOBPIPE_", "PYTHON", "PYSPARK"))
        }
        done = subprocess.run(
            [str(self.python.parent / command[0]), *command[1:]],
            cwd=self.folder,
            env={**ours, "JOBPIPE__HOME": str(self.home), "JOBPIPE__COORDINATOR__LINGER": "5s"},
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Environment]:
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder / "venv", with_pip=False)
    environment = Environment(folder / "venv" / "bin" / "python", folder)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", f"--python={environment.python}"]
    subprocess.run([*pip, "install", "--no-index", "--no-deps", str(wheel)], check=True, timeout=SECONDS)
    # A folder on the path, and no more: the .pth files in it, as that of our own editable installation, are not read.
    place = environment.run("python", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
    Path(place, "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    yield environment
    EmbeddedZooKeeper(environment.home).stop()


def test_it_is_the_installed_one(installed: Environment) -> None:
    where = installed.run(
        "python",
        "-c",
        "import jobpipe, jobpipe_registry, pyspark_jobpipe; print(jobpipe.__file__, jobpipe_registry.__file__)",
    )
    assert all(path.startswith(str(installed.folder)) for path in where.split())


def test_the_program(installed: Environment) -> None:
    assert installed.run("jobpipe", "--version").split()[-1] == jobpipe.__version__
    assert "Look at topics and rows:" in installed.run("jobpipe", "--help")
    assert installed.run("jobpipe", "config", "check").startswith("ok:")


def test_all_modules_can_be_imported(installed: Environment) -> None:
    """But the programs, which would start."""
    code = (
        "import pkgutil, importlib, jobpipe, jobpipe_registry\n"
        "for package in (jobpipe, jobpipe_registry):\n"
        "    for each in pkgutil.walk_packages(package.__path__, package.__name__ + '.'):\n"
        "        each.name.endswith('__main__') or '._examples' in each.name or importlib.import_module(each.name)\n"
        "print('done')"
    )
    assert installed.run("python", "-c", code) == "done\n"


def test_the_classes_for_the_jvm(installed: Environment) -> None:
    """Where Spark is told to look for them, there they are."""
    code = "from jobpipe.spark.session.local_checkpoint_files import JAR, hindrance; print(JAR, hindrance())"
    place, why = installed.run("python", "-c", code).split()
    assert place.startswith(str(installed.folder))
    assert why == "None"


def test_publish_and_subscribe(installed: Environment) -> None:
    """A registry, a coordinator and a data process of its own, with TLS; the name Spark looks for; the oracle."""
    (installed.folder / "use.py").write_text(USE)
    assert installed.run("python", "use.py") == "2 [1, 2]\n"
    assert "orders" in installed.run("jobpipe", "topics", "--all")
    assert (
        installed.run("python", "-c", "import pyspark_jobpipe; print(pyspark_jobpipe.DefaultSource.name())")
        == "jobpipe\n"
    )
    assert installed.run("python", "-c", "from jobpipe.testing import Checker, Journal, NumberedRows") == ""


def test_a_plug_in_of_another_distribution(installed: Environment) -> None:
    """The sample is installed as a user would, with its dependencies, and found by its entry points alone."""
    file = ROOT / "examples/plugin/pipeline.yaml"
    assert "acme-jobpipe" not in installed.run("jobpipe", "pipeline", "plugins", "list")
    (wheel,) = PLUGIN.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        modules = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert modules == {f"acme_jobpipe/{name}.py" for name in ("__init__", "slug", "sqlite")}
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", f"--python={installed.python}"]
    subprocess.run([*pip, "install", "--no-index", str(wheel)], check=True, timeout=SECONDS)

    listed = [line.split()[:3] for line in installed.run("jobpipe", "pipeline", "plugins", "list").splitlines()]
    assert ["transform", "slug", "acme-jobpipe"] in listed
    assert ["sink", "sqlite", "acme-jobpipe"] in listed
    explained = installed.run("jobpipe", "pipeline", "plugins", "explain", "slug")
    assert explained.startswith("slug (transform of acme-jobpipe)\n  Adds a column")
    assert "  field (required)\n      The column with the text.\n" in explained
    assert "      expected: -, _, ., ~\n      default:  -\n" in explained
    assert "promise: exactly once: the rows of a" in installed.run(
        "jobpipe", "pipeline", "plugins", "explain", "sqlite"
    )
    assert installed.run("jobpipe", "pipeline", "validate", str(file)).startswith("ok: ")


def test_a_pipeline_of_a_plug_in(installed: Environment) -> None:
    """It runs in processes of the environment's own: transform and sink of one distribution, launcher of another."""
    place = installed.run("python", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
    Path(place, "acme_launcher.py").write_text(LAUNCHER)
    about = Path(place, "acme_launcher-1.0.dist-info")
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-launcher\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[jobpipe.launchers]\nplain = acme_launcher:PlainLauncher\n")
    (about / "RECORD").write_text("")
    work = installed.folder / "work"
    file = installed.folder / "articles"
    shutil.copytree(ROOT / "examples/plugin", file, ignore=shutil.ignore_patterns("tests", "acme_jobpipe"))
    (file / "plain.yaml").write_text("pipeline: {launcher: {type: plain, master: 'local[1]'}}\n")
    what = [str(file / "pipeline.yaml"), "--overlay", str(file / "plain.yaml"), "--set", f"work={work}"]
    assert "launcher" in installed.run("jobpipe", "pipeline", "plugins", "explain", "plain").splitlines()[0]
    installed.run("jobpipe", "pipeline", "run", *what, "--plain")
    with closing(sqlite3.connect(work / "articles.db")) as table:
        rows = table.execute("SELECT id, slug FROM articles ORDER BY id").fetchall()
    assert len(rows) == len((file / "data/articles.csv").read_text().splitlines()) - 1
    assert all(slug for _, slug in rows)
    assert (installed.home / "logs/pipelines/articles/slugs.log").read_text().startswith("launched by acme\n")


def test_the_sdist_can_be_installed(wheel: Path, tmp_path: Path) -> None:
    """By the tools that built it, without the network; what comes out is what the wheel has."""
    pip = [str(Path(sys.prefix) / "tools/bin/python"), "-m", "pip", "--quiet", "--disable-pip-version-check", "install"]
    how = ["--no-index", "--no-deps", "--no-build-isolation", "--no-compile", "--target", str(tmp_path / "site")]
    subprocess.run([*pip, *how, str(DIST / f"{NAME}.tar.gz")], check=True, timeout=SECONDS)
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if ".dist-info/" not in name:
                assert (tmp_path / "site" / name).read_bytes() == archive.read(name), name
    code = "import jobpipe.cli.main, jobpipe; print(jobpipe.__file__)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "site")},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=True,
    )
    assert done.stdout == f"{tmp_path / 'site' / 'jobpipe' / '__init__.py'}\n"


def test_its_types_are_seen(installed: Environment) -> None:
    """By a type checker of a user's; a wrong call is an error."""
    (installed.folder / "use.py").write_text(USE)
    (installed.folder / "wrong.py").write_text("import jobpipe\njobpipe.subscribe('orders', nmae='billing')\n")
    (installed.folder / "mypy.ini").write_text(
        "[mypy]\nstrict = true\n[mypy-pyspark.*,py4j.*]\nfollow_imports = skip\n"
        "[mypy-kazoo.*]\nignore_missing_imports = true\n"
    )
    mypy = [sys.executable, "-m", "mypy", "--python-executable", str(installed.python)]
    answers = [
        subprocess.run(
            [*mypy, name], cwd=installed.folder, capture_output=True, text=True, timeout=SECONDS, check=False
        ).stdout
        for name in ("use.py", "wrong.py")
    ]
    assert answers[0].startswith("Success"), answers[0]
    assert "wrong.py:2: error" in answers[1]
    assert 'Missing named argument "name"' in answers[1]


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A folder with what a clone has."""
    with tarfile.open(DIST / f"{NAME}.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    return (tmp_path / NAME).rename(tmp_path / "src")


def offline() -> dict[str, str]:
    """Return the environment in which pip finds all dependencies, those of the build too, without an index."""
    tools = subprocess.run(
        [str(Path(sys.prefix, "tools/bin/python")), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=True,
    )
    return {
        "PYTHONPATH": f"{sysconfig.get_path('purelib')}{os.pathsep}{tools.stdout.strip()}",
        "PIP_NO_INDEX": "1",
        "PIP_NO_BUILD_ISOLATION": "0",  # an option that says no is switched on by 0
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }


def installed_by(code: str, folder: Path, environment: Path) -> None:
    """Run a block that installs; check that its environment has this version, which its program tells."""
    done = shell(code, folder, SECONDS, **offline())
    assert done.returncode == 0, done.stderr
    assert list(environment.glob("lib/python*/site-packages/jobpipe/__init__.py"))
    done = shell(f"{environment}/bin/jobpipe --version", folder, **offline())
    assert done.stdout.split()[-1] == jobpipe.__version__


def test_the_first_commands(clone: Path) -> None:
    """Of README.md, in a clone."""
    installed_by(block("README.md", "install"), clone, clone / ".venv")


def test_the_installation_of_a_node(clone: Path) -> None:
    """Of the page about clusters."""
    text = block(DEPLOY, "install").replace("/opt/jobpipe", str(clone.parent))
    installed_by(text, clone.parent, clone.parent / "venv")


@pytest.mark.timeout(600)
def test_an_archive(clone: Path, tmp_path: Path) -> None:
    """The executors of a cluster have nothing of ours but the archive, and read with what is in it."""
    given = offline()
    place = tmp_path / "driver"
    place.mkdir()
    (place / "subscribe.py").write_text(WHERE)
    home = {"jobpipe.home": str(tmp_path / "home"), "jobpipe.coordinator.linger": "5s"}
    config = load(overrides=home, environ={})
    try:
        with (
            jobpipe.publisher("orders", schema=pa.schema([("id", pa.int64())]), config=config) as orders,
            running_cluster(tmp_path, block(DEPLOY, "standalone"), PYTHONPATH=given["PYTHONPATH"]) as cluster,
        ):
            orders.write([{"id": 1}, {"id": 2}])
            settings = {f"spark.{key}": value for key, value in home.items()} | {"spark.executor.memory": "512m"}
            text = cluster.on(block(DEPLOY, "archive")).replace("/opt/jobpipe/src", str(clone))
            text = text.replace(".../site-packages/pyspark", str(find_jars().parent))
            text = text.replace("--conf spark.jobpipe.…", conf(settings))
            job = bash(text, tmp_path / "archive.out", place, environment(**given))
            try:
                found = job.result(SECONDS * 3)
            finally:
                job.kill()
    finally:
        end_coordinators()
        EmbeddedZooKeeper(tmp_path / "home").stop()
    *tasks, driver = found
    assert sum(each["rows"] for each in tasks) == 2
    assert Path(driver["ours"]).is_relative_to(place / "environment")
    for each in tasks:
        assert "/environment/bin/python" in each["python"]
        for path in (each["python"], each["ours"]):
            assert Path(path).is_relative_to(tmp_path / "work")
