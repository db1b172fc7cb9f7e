"""The demo's private folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobpipe.config import load
from jobpipe.demo.folder import CONFIG, HOME, LOCK, job_environment, private_folder
from jobpipe.demo.jobs import MARK
from jobpipe.errors import ConfigError


def test_a_folder_with_other_things_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(ConfigError) as refused, private_folder(tmp_path):
        pass
    assert refused.value.fields["folder"] == str(tmp_path)
    assert (tmp_path / "thesis.txt").read_text() == "years of work"


def test_a_folder_of_an_earlier_demo_is_wiped(tmp_path: Path) -> None:
    work = tmp_path / "demo"
    with private_folder(work):
        (work / "old").mkdir()
        (work / "old" / "file").touch()
        (work / "link").symlink_to(tmp_path)
    with private_folder(work):
        assert {entry.name for entry in work.iterdir()} == {LOCK, CONFIG, HOME}
    assert tmp_path.is_dir()


def test_two_demos_do_not_share_a_folder(tmp_path: Path) -> None:
    with private_folder(tmp_path):
        (tmp_path / "mine").touch()
        with pytest.raises(ConfigError), private_folder(tmp_path):
            pass
        assert (tmp_path / "mine").exists()


def test_jobs_see_this_demo_and_no_other_settings(tmp_path: Path) -> None:
    foreign = {"JOBPIPE__HOME": "/elsewhere", "jobpipe__acks": "all", "JOBPIPE_CONFIG": "/other", "SPARK_HOME": "/opt"}
    with private_folder(tmp_path):
        environ = job_environment(tmp_path, {**foreign, "PATH": "/bin"})
        config = load(environ=environ)
    assert config.home == tmp_path / HOME
    assert config.embedded
    assert config.acks == "stored"
    assert environ[MARK] == str(tmp_path)
    assert environ["PATH"] == "/bin"
    assert "SPARK_HOME" not in environ
