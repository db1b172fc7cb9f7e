"""The program itself: help, exit codes, messages, what it imports."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from jobpipe.cli.command_tree import HEADINGS, MOVED, paths
from jobpipe.cli.common.exit_codes import Exit, exit_of
from jobpipe.cli.main import cli
from jobpipe.errors import (
    AddressError,
    ConfigError,
    DataLoss,
    JobpipeError,
    LinkBroken,
    LinkTimeout,
    NameTaken,
    NotAuthorized,
    RegistryUnavailable,
    TopicNotFound,
    TopicOwned,
    WaitTimeout,
)
from tests.cli.conftest import DEADLINE, ROOT, Run, environment


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Callable[[BaseException], None]:
    """Add a command ``fail`` that raises a given error."""

    def add(error: BaseException) -> None:
        @click.command()
        def fail() -> None:
            raise error

        monkeypatch.setitem(cli.commands, "fail", fail)

    return add


@pytest.mark.processes
@pytest.mark.parametrize(
    "args",
    [["--help"], ["--version"], ["topics", "tail", "--help"], ["doctor", "--help"], ["topics", "serve", "-h"]],
)
def test_help_imports_nothing_heavy(args: list[str]) -> None:
    """Spark, Arrow and the registry's client are for commands that need them."""
    code = (
        "import sys, json\nfrom jobpipe.cli.main import main\n"
        f"sys.argv = ['jobpipe', *{args!r}]\n"
        "try:\n    main()\nexcept SystemExit as ended:\n"
        "    json.dump([ended.code or 0, sorted({name.partition('.')[0] for name in sys.modules})], sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        cwd=ROOT,
        env=environment(),
        check=True,
    )
    status, modules = json.loads(done.stderr)
    assert status == 0
    assert not {"pyspark", "pyarrow", "kazoo", "py4j", "cryptography", "rich", "pydantic"} & set(modules)


def test_help_tells_the_exit_codes(run: Run) -> None:
    result = run("--help")
    assert result.exit_code == Exit.OK
    assert all(f"\n    {code.value:<3}  " in result.output for code in Exit)


def test_every_command_has_help(run: Run) -> None:
    """Each is found where the tree has it."""
    found = list(paths(click.Context(cli)))
    assert {"topics tail", "pipeline submit", "pipeline plugins explain", "server host", "config completion"} <= set(
        found
    )
    for path in found:
        result = run(*path.split(), "--help")
        assert (result.exit_code, result.stderr) == (Exit.OK, ""), path
        assert f"Usage: cli {path} " in result.stdout


def test_help_lists_at_most_thirteen_words_by_what_one_does(run: Run) -> None:
    """No word is left out."""
    words = [word for each in HEADINGS.values() for word in each]
    assert sorted(words) == cli.list_commands(click.Context(cli))
    assert len(words) <= 13
    text = run("--help").stdout
    places = [text.index(f"\n{heading}:\n") for heading in HEADINGS]
    assert places == sorted(places)


@pytest.mark.parametrize("old", MOVED)
def test_old_names_work_and_say_the_new_one(run: Run, old: str) -> None:
    """Until 0.2; `--help` does not list them."""
    result = run(old, "--help")
    assert result.exit_code == Exit.OK
    assert f"`jobpipe {old}` is `jobpipe {MOVED[old]}` now" in result.stderr
    assert result.stdout.partition("\n\n")[2] == run(*MOVED[old].split(), "--help").stdout.partition("\n\n")[2]
    assert f"\n  {old} " not in run("--help").stdout


@pytest.mark.parametrize(
    ("words", "proposed"),
    [
        ("status", "`jobpipe pipeline status`"),
        ("ps", "`jobpipe pipeline status`"),
        ("logs", "`jobpipe pipeline logs`"),
        ("list", "`jobpipe pipeline list`"),
        ("start", "`jobpipe pipeline submit`"),
        ("pipeline start", "`jobpipe pipeline submit`"),
        ("pipeline lag", "`jobpipe topics lag`"),
        ("topic", "`jobpipe topics`"),
        ("tpics", "`jobpipe topics`"),
        ("server stop", "`jobpipe server --stop`"),
        ("server start", "`jobpipe server`"),
        ("pipeline show", "`jobpipe pipeline status`?"),
        ("pipeline sumbit", "`jobpipe pipeline submit`"),
    ],
)
def test_an_unknown_word_gets_a_proposal(run: Run, words: str, proposed: str) -> None:
    result = run(*words.split())
    assert result.exit_code == Exit.USAGE
    assert proposed in result.stderr
    assert "Did you mean" not in run("zebra").stderr


def test_options_of_the_server_do_not_start_a_host_server(run: Run) -> None:
    result = run("server", "--stop", "host")
    assert (result.exit_code, "do not go with host" in result.stderr) == (Exit.USAGE, True)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_of_a_shell(run: Run, shell: str) -> None:
    assert "_JOBPIPE_COMPLETE" in run("config", "completion", shell).stdout


@pytest.mark.processes
def test_what_a_shell_completes() -> None:
    """The program answers what the script of `jobpipe config completion` asks it; old names are not offered."""
    asked = {"_JOBPIPE_COMPLETE": "bash_complete", "COMP_WORDS": "jobpipe pipeline s", "COMP_CWORD": "2"}
    done = subprocess.run(
        [sys.executable, "-m", "jobpipe.cli.main"],
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        cwd=ROOT,
        env={**environment(), **asked},
        check=False,
    )
    assert done.stdout.split() == ["plain,status", "plain,stop", "plain,submit"], done.stderr


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("x"), 2),
        (AddressError("x"), 2),
        (RegistryUnavailable("x"), 3),
        (LinkBroken("x"), 3),
        (LinkTimeout("x"), 3),
        (WaitTimeout("x"), 3),
        (NotAuthorized("x"), 4),
        (TopicNotFound("x"), 1),
        (TopicOwned("x"), 1),
        (NameTaken("x"), 1),
        (DataLoss("x"), 1),
    ],
)
def test_an_error_is_one_message_and_its_code(
    run: Run, failing: Callable[[BaseException], None], error: JobpipeError, code: int
) -> None:
    error.message = "topic 'a':\n  two lines \x1b[31m"
    failing(error)
    result = run("fail")
    assert (result.exit_code, result.stdout) == (code, "")
    assert result.stderr == "jobpipe: topic 'a':\n  two lines \\x1b[31m\n"
    assert exit_of(error) == code


def test_verbose_adds_the_traceback(run: Run, failing: Callable[[BaseException], None]) -> None:
    failing(TopicNotFound("gone"))
    assert "Traceback" in run("-v", "fail").stderr
    assert "Traceback" not in run("fail").stderr


def test_a_file_that_cannot_be_opened_is_no_traceback(run: Run, failing: Callable[[BaseException], None]) -> None:
    failing(PermissionError(13, "Permission denied", "/x"))
    result = run("fail")
    assert (result.exit_code, result.stderr) == (1, "jobpipe: [Errno 13] Permission denied: '/x'\n")


def test_our_own_bugs_are_not_hidden(run: Run, failing: Callable[[BaseException], None]) -> None:
    failing(ZeroDivisionError())
    assert isinstance(run("fail").exception, ZeroDivisionError)


def test_ctrl_c_is_130(run: Run, failing: Callable[[BaseException], None]) -> None:
    failing(KeyboardInterrupt())
    result = run("fail")
    assert (result.exit_code, result.stdout) == (Exit.INTERRUPTED, "")
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    "args", [["nosuch"], ["topics", "tail"], ["topics", "--nosuch"], ["topics", "tail", "t", "--limit", "0"]]
)
def test_wrong_usage_is_2(run: Run, args: list[str]) -> None:
    result = run(*args)
    assert (result.exit_code, result.stdout) == (Exit.USAGE, "")
    assert result.stderr.startswith("Usage: ")


def test_outcomes_reach_a_caller_that_asks_for_them(failing: Callable[[BaseException], None]) -> None:
    failing(TopicNotFound("gone"))
    with pytest.raises(TopicNotFound):
        cli.main(["fail"], standalone_mode=False)


@pytest.mark.processes
def test_a_reader_that_goes_away_ends_it_silently(tmp_path: Path) -> None:
    """``jobpipe config show | head -0``: the pipe breaks at the first write."""
    program = subprocess.Popen(
        [sys.executable, "-m", "jobpipe.cli.main", "config", "show"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env=environment(),
    )
    assert program.stdout is not None
    assert program.stderr is not None
    with program.stderr:
        program.stdout.close()
        assert (program.wait(DEADLINE), program.stderr.read()) == (0, "")


def test_no_colours_without_a_terminal() -> None:
    assert "\x1b" not in CliRunner().invoke(cli, ["config", "show"]).output
