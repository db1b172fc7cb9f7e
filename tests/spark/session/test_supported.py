"""Which versions of Spark are taken, refused, or taken with a warning; and that only one module asks which it is."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from jobpipe.errors import UnsupportedSpark
from jobpipe.spark.session import spark_versions
from jobpipe.spark.session.supported_versions import (
    is_supported,
    none_installed,
    of_pyarrow,
    parse_version,
    require_known,
)
from jobpipe.spark.termination.close import topics_of, written_topics
from tests.docs.troubleshooting import on_page

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("text", "numbers"), [("3.5.9", (3, 5)), ("4.3.0.dev0", (4, 3)), ("4.10.1", (4, 10)), ("unknown", (0, 0))]
)
def test_versions_are_compared_as_numbers(text: str, numbers: tuple[int, int]) -> None:
    assert parse_version(text) == numbers


@pytest.mark.parametrize("text", ["3.5.0", "4.0.5", "4.3.9"])
def test_a_version_that_was_tried(text: str, caplog: pytest.LogCaptureFixture) -> None:
    assert is_supported(text)
    require_known(text)
    assert not caplog.records


def test_an_older_one_is_refused_in_a_sentence() -> None:
    with pytest.raises(UnsupportedSpark, match=r"PySpark 3\.4\.1: PySpark 3\.5 and 4\.0 to 4\.3 publish"):
        require_known("3.4.1")


def test_a_newer_one_is_tried(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert require_known("4.4.0") == (4, 4)
    assert "was not tried with PySpark 4.4.0" in caplog.text
    assert not is_supported("4.4.0")


def test_what_needs_a_newer_spark_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark_versions, "HAS_SOURCES", False)
    with pytest.raises(UnsupportedSpark, match=r"4\.0 or later") as caught:
        spark_versions.require_sources("jobpipe.register(spark)")
    assert "jobpipe.subscribe() reads without Spark" in str(caught.value)
    on_page(caught.value, "UnsupportedSpark:")


def test_no_pyspark_at_all() -> None:
    assert "pip install 'pyspark>=4.0,<4.4'" in str(none_installed("jobpipe.session"))


def test_no_other_module_asks_for_the_version() -> None:
    """What differs stands in spark_versions.py."""
    asks = re.compile(r"pyspark\.__version__|spark\.version\b|\bVERSION\b.*\(\d, \d\)")
    found = {
        path.relative_to(ROOT).as_posix() for path in (ROOT / "jobpipe").rglob("*.py") if asks.search(path.read_text())
    }
    assert found == {"jobpipe/spark/session/spark_versions.py"}


def test_what_was_published_without_pyspark(monkeypatch: pytest.MonkeyPatch) -> None:
    """``jobpipe.run`` and ``jobpipe.close`` ask for the topics of Spark's queries: there are none."""
    monkeypatch.delitem(sys.modules, "pyspark")
    for name in ("pyspark.sql", "jobpipe.spark.session.classic_session", "jobpipe.spark.options.write_options"):
        monkeypatch.setitem(sys.modules, name, None)  # cannot be imported
    assert written_topics() == []
    assert topics_of([]) == []


@pytest.mark.processes
def test_a_pyarrow_that_is_too_new_for_numpy(tmp_path: Path) -> None:
    """`pip install "pyspark[sql]==3.5.9"` brings NumPy 1, and pip lets pyarrow 26 be with it."""
    (tmp_path / "pyarrow").mkdir()
    (tmp_path / "pyarrow" / "__init__.py").write_text(
        'raise ImportError("pyarrow requires NumPy 2.0 or newer, found 1.26.4")\n'
    )
    environ = {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"}
    told = subprocess.run(
        [sys.executable, "-c", "import jobpipe; jobpipe.subscribe"], env=environ, capture_output=True, text=True
    )
    assert told.stderr.splitlines()[-1].startswith("ImportError: pyarrow requires NumPy 2.0 or newer, found 1.26.4: ")
    assert "pip install 'pyarrow<26'" in told.stderr
    assert "During handling" not in told.stderr
    doctor = subprocess.run(
        [Path(sys.executable).parent / "jobpipe", "doctor"], env=environ, capture_output=True, text=True, cwd=tmp_path
    )
    assert "fail" in [line.split()[0] for line in doctor.stdout.splitlines() if line.split()[1:2] == ["pyarrow"]]


def test_other_import_errors_stay() -> None:
    assert of_pyarrow(ImportError("No module named 'pyarrow'")) is None
