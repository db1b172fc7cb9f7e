"""Case P8: users without a home folder, or with one that they cannot write, are told in one sentence what to set."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from jobpipe.cli.main import cli
from jobpipe.config import load
from jobpipe.config.reading.config_loader import find_file
from jobpipe.errors import ConfigError
from jobpipe.jobs.allowed_paths import AllowedPaths
from jobpipe.pipelines.file.file_paths import absolute


@pytest.fixture
def nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> int:
    """Make this user one without HOME and without an entry in passwd; return its number."""

    def unknown(number: int) -> None:
        raise KeyError(f"getpwuid(): uid not found: {number}")

    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr("pwd.getpwuid", unknown)
    monkeypatch.chdir(tmp_path)
    return os.getuid()


def run(*command: str) -> Result:
    return CliRunner().invoke(cli, command)


def sentence(user: int) -> str:
    return (
        f"jobpipe.home is ~/.jobpipe by default, and user {user} has no home folder: HOME is not set, and the passwd "
        "database does not have the user. Set HOME, or jobpipe.home (JOBPIPE__HOME), to a folder of this user"
    )


def test_the_default_is_in_no_home(nobody: int) -> None:
    with pytest.raises(ConfigError) as caught:
        load(environ={})
    assert (caught.value.message, caught.value.fields["key"]) == (sentence(nobody), "jobpipe.home")


@pytest.mark.processes
@pytest.mark.parametrize(
    "command", ["topics", "doctor", "config check", "config show", "registry status", "lag orders"]
)
def test_commands_say_so(nobody: int, command: str) -> None:
    result = run(*command.split())
    assert result.exit_code not in (0, 70)  # 70: a traceback
    assert sentence(nobody) in " ".join(result.output.split())


@pytest.mark.processes
def test_doctor_says_that_spark_needs_more(nobody: int) -> None:
    lines = [line.split() for line in run("doctor").stdout.splitlines()]
    assert ["fail", "user", "user", str(nobody), "has", "no", "name", "in", "the", "passwd"] in [
        line[:10] for line in lines
    ]


def test_a_home_that_is_given_will_do(nobody: int, tmp_path: Path) -> None:
    config = load(environ={"JOBPIPE__HOME": "here"})
    assert config.home == tmp_path / "here"
    assert AllowedPaths.of(config).folders == (tmp_path / "here",)


def test_no_file_of_a_folder_with_that_name_is_read(nobody: int, tmp_path: Path) -> None:
    """``~`` stays as it is where there is no home, and would be a folder of the working folder, of whoever made it."""
    file = tmp_path / "~/.config/jobpipe/jobpipe.yaml"
    file.parent.mkdir(parents=True)
    file.write_text("jobpipe: {home: /elsewhere}\n")
    assert find_file(None, {})[0] in (None, Path("/etc/jobpipe/jobpipe.yaml"))


def test_other_paths(nobody: int) -> None:
    """Of other keys, and of pipelines; also those of users that there are not."""
    reason = f"a path without ~: user {nobody} has no home folder: HOME is not set"
    with pytest.raises(ConfigError, match=r"jobpipe\.spool\.dir") as caught:
        load(overrides={"spool_dir": "~/spool"}, environ={"JOBPIPE__HOME": "here"})
    assert reason in caught.value.message
    with pytest.raises(ConfigError, match="there is no user 'no-such-user'"):
        load(overrides={"spool_dir": "~no-such-user/spool"}, environ={"JOBPIPE__HOME": "here"})
    with pytest.raises(ConfigError) as caught:
        absolute("~/data.csv", Path("/pipelines"))
    assert reason in caught.value.message


def test_a_home_that_is_not_absolute(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be another one in each working folder."""
    monkeypatch.setenv("HOME", "here")
    with pytest.raises(ConfigError, match=r"jobpipe\.spool\.dir.*HOME is 'here', which is not absolute"):
        load(overrides={"spool_dir": "~/spool"}, environ={"JOBPIPE__HOME": "/home"})
    with pytest.raises(ConfigError, match=r"jobpipe\.home is ~/\.jobpipe by default, and HOME is 'here'"):
        load(environ={})


@pytest.mark.parametrize("command", ["topics", "registry start", "lag orders"])
def test_a_home_that_cannot_be_made(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in containers, where it is ``/``, or of users of Debian, where it is not there."""
    monkeypatch.setenv("HOME", "/proc/none")
    result = run(*command.split())
    assert result.exit_code not in (0, 70)
    assert "jobpipe.home: /proc/none/.jobpipe cannot be made (" in result.output
    assert "set HOME, or jobpipe.home (JOBPIPE__HOME), to a folder that this user can write" in result.output


@pytest.mark.slow
@pytest.mark.processes
def test_a_real_user_without_an_entry(tmp_path: Path) -> None:
    """In a namespace, which the kernel of this host may refuse."""
    namespace = ["unshare", "--user", "--map-user=54321", "env", "-u", "HOME"]
    done = subprocess.run([*namespace, "true"], capture_output=True, text=True, timeout=20, check=False)
    if done.returncode:
        pytest.skip(f"NOT TESTED: a user without an entry in passwd; {done.stderr.strip()}")
    command = [*namespace, sys.executable, "-m", "jobpipe.cli.main", "topics"]
    found = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert (found.stdout, found.stderr) == ("", f"jobpipe: {sentence(54321)}\n")
