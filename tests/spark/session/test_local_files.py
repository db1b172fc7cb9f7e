"""Checkpoints on a local disk without processes: the same files as Hadoop's, and no job that fails for the settings."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jobpipe.spark.session.job_session import recommended_conf
from jobpipe.spark.session.local_checkpoint_files import FILE_IMPL, JAR, LOCAL_FS, hindrance
from tests.docs.troubleshooting import on_page
from tests.spark.kit import JOBS, ROOT, as_a_user

SCRIPTS = Path(sys.executable).parent
SECONDS = 400.0  # of a program with a JVM, on a machine that is shared
MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
PROGRAMS = ("chmod", "readlink")


@pytest.fixture(autouse=True)
def no_jvm(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a program that has not made a session yet."""
    monkeypatch.setitem(sys.modules, "pyspark.core.context", None)
    for name in ("PYSPARK_GATEWAY_PORT", "SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED", "SPARK_CONF_DIR", "SPARK_HOME"):
        monkeypatch.delenv(name, raising=False)


def test_what_is_set() -> None:
    """Only for checkpoints on a local disk: an executor on another host need not have the classes."""
    assert FILE_IMPL not in recommended_conf()
    conf = recommended_conf(checkpoints_local=True)
    assert conf[FILE_IMPL] == LOCAL_FS
    assert conf["spark.driver.defaultExtraClassPath"] == conf["spark.executor.defaultExtraClassPath"] == str(JAR)
    assert MANAGER not in conf
    assert not any("extraClassPath" in key for key in conf)  # the user's


def test_what_an_administrator_has_set_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "spark-defaults.conf").write_text("spark.driver.defaultExtraClassPath /opt/site/*\n")
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    conf = recommended_conf(checkpoints_local=True)
    assert conf["spark.driver.defaultExtraClassPath"] == f"/opt/site/*:{JAR}"
    assert conf["spark.executor.defaultExtraClassPath"] == str(JAR)


def left_out(reason: str, caplog: pytest.LogCaptureFixture) -> bool:
    """Tell whether the settings are left out for this reason, and the log says so."""
    caplog.clear()
    with caplog.at_level("INFO", "jobpipe.spark.session.job_session"):
        conf = recommended_conf(checkpoints_local=True)
    return (
        FILE_IMPL not in conf
        and str(conf[MANAGER]).endswith("SystemBasedCheckpointFileManager")
        and bool(re.search(reason, caplog.text))
    )


def test_where_the_classes_cannot_be_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A session that named them could start no query."""
    assert hindrance() is None
    for name in ("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED"):
        with monkeypatch.context() as here:
            here.setenv(name, "sc://host")
            assert left_out("Spark Connect", caplog)
    with monkeypatch.context() as here:
        here.setenv("PYSPARK_GATEWAY_PORT", "4711")  # spark-submit has started this program
        assert left_out("the JVM runs already, without ", caplog)
    for folder, reason in ((tmp_path, "is loaded from an archive"), (tmp_path / "a:b", "a class path cannot name")):
        if ":" in folder.name:
            folder.mkdir()
            shutil.copy(JAR, folder)
        with monkeypatch.context() as here:
            here.setattr("jobpipe.spark.session.local_checkpoint_files.JAR", folder / JAR.name)
            assert left_out(reason, caplog)


@pytest.mark.parametrize(("found", "fits"), [(f"/a:{JAR}:/jars/*", True), (f"/a:{JAR}s", False), ("", False)])
def test_a_jvm_that_runs_already(monkeypatch: pytest.MonkeyPatch, found: str, fits: bool) -> None:
    """A second session in one process: the JVM is that of the first."""
    system = SimpleNamespace(getProperty={"java.class.path": found}.get)
    jvm = SimpleNamespace(java=SimpleNamespace(lang=SimpleNamespace(System=system)))
    context = SimpleNamespace(SparkContext=SimpleNamespace(_jvm=jvm))
    monkeypatch.setitem(sys.modules, "pyspark.core.context", context)
    assert (hindrance() is None) == fits


@pytest.mark.slow
@pytest.mark.processes
def test_the_classes_are_those_of_the_source(tmp_path: Path) -> None:
    """After a change: make java. Other compilers than that of Java 17 may write other bytes."""
    javac, make = shutil.which("javac"), shutil.which("make")
    assert make is not None
    shown = "there is none"
    if javac is not None:
        shown = subprocess.run([javac, "-version"], capture_output=True, text=True, check=True, timeout=60).stdout
    if not shown.startswith("javac 17."):
        pytest.skip(f"NOT COMPARED: it needs javac 17 (apt install openjdk-17-jdk-headless), and {shown.strip()}")
    subprocess.run(
        [make, "java", f"JAR={tmp_path / JAR.name}", f"BIN={SCRIPTS}"], cwd=ROOT, check=True, timeout=SECONDS
    )
    made, committed = (
        {name: archive.read(name) for name in archive.namelist() if name.endswith(".class")}
        for archive in map(zipfile.ZipFile, (tmp_path / JAR.name, JAR))
    )
    assert len(made) == 4
    assert made == committed


def run(folder: Path, how: str, *command: str) -> Any:
    """Run the job with programs in its PATH that say that they were started; return what it prints."""
    programs = folder / "bin"
    programs.mkdir()
    for name in PROGRAMS:
        program = programs / name
        program.write_text(f'#!/bin/sh\necho {name} "$@" >>{folder}/started\nexec {shutil.which(name)} "$@"\n')
        program.chmod(0o755)
    done = subprocess.run(
        [*command, str(JOBS / "local_files.py"), how, str(folder)],
        env={
            **as_a_user(),
            "PATH": f"{programs}:{SCRIPTS}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "LC_ALL": "C.UTF-8",
        },
        capture_output=True,
        text=True,
        timeout=SECONDS,
        cwd=folder,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return run(tmp_path_factory.mktemp("compared"), "compared", sys.executable)


@pytest.mark.spark
@pytest.mark.timeout(SECONDS)
def test_no_process_is_started(compared: Any) -> None:
    """Without the classes four chmod and more readlink for each micro-batch."""
    for name in ("hadoop's", "hadoop's after ours"):
        batches, started = len(compared[name]["batches"]), compared[name]["started"]
        assert started.count("chmod") >= 4 * (batches - 1)
        assert started.count("readlink") >= 8 * (batches - 1)
    assert compared["ours"]["started"] == compared["ours after hadoop's"]["started"] == []


@pytest.mark.spark
@pytest.mark.timeout(SECONDS)
def test_the_files_are_the_same(compared: Any) -> None:
    """Hadoop's permissions, not those of this process (umask 077); each file has its checksums."""
    assert compared["ours"]["modes"] == compared["hadoop's"]["modes"]
    files = {mode for name, mode in compared["ours"]["modes"].items() if name not in (".", "offsets", "commits")}
    assert files == {"0o100644"}
    assert {compared["ours"]["modes"][name] for name in (".", "offsets", "commits")} == {"0o40755"}


@pytest.mark.spark
@pytest.mark.timeout(SECONDS)
def test_checkpoints_are_continued(compared: Any) -> None:
    """One made without the classes with them, and the other way round."""
    for first, second in (("hadoop's", "ours after hadoop's"), ("ours", "hadoop's after ours")):
        assert compared[first]["batches"] == list(range(len(compared[first]["batches"])))
        assert compared[second]["batches"][0] - compared[first]["batches"][-1] in (0, 1)  # the last may be repeated


@pytest.mark.spark
@pytest.mark.timeout(SECONDS)
def test_it_is_hadoops_file_system(compared: Any) -> None:
    """Permissions with and without special bits, names, links, errors: the same result from the same call."""
    for what, (hadoops, ours) in compared["same"].items():
        assert ours == hadoops, what
    assert compared["same"]["setgid folder"][0] == "0o42755"  # which the system call would drop
    assert compared["same"]["missing"][0] == "org.apache.hadoop.util.Shell$ExitCodeException"
    assert compared["same"]["status of none"][0] == "java.io.FileNotFoundException"
    assert compared["same"]["status of link"][0][2] == "status-target"
    assert compared["file.impl"] == ["", "0o100644", "0o100644"]


@pytest.mark.spark
@pytest.mark.timeout(SECONDS)
def test_other_settings_go_with_it(compared: Any) -> None:
    """The user's own class path stays; state in RocksDB needs the file system that Hadoop's own code expects."""
    places = compared["class path"]
    assert [Path(place).name for place in places[:2]] == ["own", JAR.name]
    assert compared["rocksdb"]["batches"][:4] == [0, 1, 2, 3]


@pytest.mark.spark
@pytest.mark.timeout(SECONDS)
@pytest.mark.parametrize("given", [[], ["--driver-class-path", str(JAR)]], ids=["as it is", "with the class path"])
def test_with_spark_submit(tmp_path: Path, given: list[str]) -> None:
    """Its JVM runs before the program: the classes are named only if they are on its class path."""
    found = run(tmp_path, "submitted", str(SCRIPTS / "spark-submit"), "--master", "local[1]", *given)
    assert len(found["batches"]) > 4
    assert (found["conf"][FILE_IMPL] == LOCAL_FS, found["started"] == []) == (bool(given), bool(given))
    assert (found["conf"][MANAGER] is None) == bool(given)


@pytest.mark.spark
@pytest.mark.timeout(SECONDS)
def test_half_of_the_settings(tmp_path: Path) -> None:
    """What a user sees who names the class, and not where it is."""
    command = (str(SCRIPTS / "spark-submit"), "--master", "local[1]", "--conf", f"{FILE_IMPL}={LOCAL_FS}")
    on_page(run(tmp_path, "bare", *command), "ClassNotFoundException:")
