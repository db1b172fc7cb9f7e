"""``jobpipe config``."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from jobpipe.cli.common.offset_argument import PlaceType
from jobpipe.config import keys
from jobpipe.config.types.secrets import Secret
from tests.cli.conftest import Run
from tests.docs.troubleshooting import on_page

Write = Callable[..., str]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No file is found by itself."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))


def test_check_accepts_a_good_file(run: Run, write: Write) -> None:
    file = write({"jobpipe": {"coordinator.linger": "5s"}})
    assert run("config", "check", file).stdout == f"ok: {file}\n"
    assert json.loads(run("config", "check", "--json", file=file).stdout) == {"ok": True, "file": file, "problems": []}


def test_check_reads_the_access_list(run: Run, write: Write, tmp_path: Path) -> None:
    """It would be found out by the publisher, and only when that starts."""
    (tmp_path / "access.yaml").write_text("orders: {raed: [a.jobpipe]}")
    file = write({"security": {"access": str(tmp_path / "access.yaml")}})
    result = run("config", "check", file)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "access.yaml" in result.stderr
    (problem,) = json.loads(run("config", "check", file, "--json").stdout)["problems"]
    assert problem["key"] == "security.access"


def test_check_looks_for_the_files_that_are_named(run: Run, write: Write, tmp_path: Path) -> None:
    """Doctor told of them, and this command said ok."""
    good = tmp_path / "node.crt"
    good.write_text("")
    ssl = {"ssl.ca": str(tmp_path / "nosuch.crt"), "ssl.cert": str(good), "ssl.key": str(tmp_path)}
    registry = {"registerserver.ssl.ca": str(tmp_path / "zk.crt")}
    file = write({"jobpipe": {**ssl, **registry}, "security": {"access": str(tmp_path / "access.yaml")}})
    result = run("config", "check", file)
    assert (result.exit_code, result.stdout) == (2, "")
    told = [line.partition("jobpipe.yaml:")[2].partition(": ")[2] for line in result.stderr.splitlines()[1:]]
    assert told == [
        f"jobpipe.ssl.ca = {tmp_path}/nosuch.crt: expected a readable file (No such file or directory)",
        f"jobpipe.ssl.key = {tmp_path}: expected a readable file (Is a directory)",
        f"security.access = {tmp_path}/access.yaml: expected a readable file (No such file or directory)",
    ]
    problems = json.loads(run("config", "check", file, "--json").stdout)["problems"]
    assert [problem["key"] for problem in problems] == ["jobpipe.ssl.ca", "jobpipe.ssl.key", "security.access"]


def test_files_that_are_not_used_are_not_looked_for(run: Run, write: Write, tmp_path: Path) -> None:
    """Those of the registry with its TLS on, those of links without TLS."""
    nosuch = str(tmp_path / "nosuch")
    named = dict.fromkeys(("ssl.ca", "ssl.cert", "ssl.key"), nosuch)
    assert run("config", "check", write({"jobpipe": {"ssl.enabled": False, **named}})).exit_code == 0
    registry = {"registerserver.connect": "zk1:2181", "registerserver.ssl.ca": nosuch}
    links = {"ssl.enabled": False, "sinkserver.subnet": "127.0.0.0/8"}
    for enabled, code in ((False, 0), (True, 2)):
        given = {**links, **registry, "registerserver.ssl.enabled": enabled}
        result = run("config", "check", write({"jobpipe": given}))
        assert result.exit_code == code, result.stderr
        assert ("jobpipe.registerserver.ssl.ca" in result.stderr) is enabled


def test_check_names_every_problem(run: Run, write: Write) -> None:
    file = write({"jobpipe": {"coordinator.linger": "soon", "acks": "some", "nosuch": 1}})
    result = run("config", "check", file)
    assert (result.exit_code, result.stdout) == (2, "")
    assert len(result.stderr.splitlines()) == 4
    as_json = run("config", "check", file, "--json")
    assert as_json.exit_code == 2
    problems = json.loads(as_json.stdout)["problems"]
    assert {problem["key"] for problem in problems} == {"jobpipe.coordinator.linger", "jobpipe.acks", "jobpipe.nosuch"}
    assert all(set(problem) == {"source", "key", "value", "expected", "unknown"} for problem in problems)


def test_check_of_a_missing_file(run: Run) -> None:
    assert run("config", "check", "nosuch.yaml").exit_code == 2


def test_check_without_a_file(run: Run) -> None:
    result = run("config", "check")
    assert (result.exit_code, result.stdout[:3]) == (0, "ok:")


def test_show_has_every_key(run: Run, write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOBPIPE__ACKS__TIMEOUT", "1min")
    file = write({"jobpipe": {"coordinator.linger": "5s"}})
    rows = {row["key"]: row for row in json.loads(run("config", "show", "--json", file=file).stdout)}
    assert list(rows) == [key.name for key in keys()]
    assert all(set(row) == {"key", "value", "source", "default", "group"} for row in rows.values())
    assert rows["jobpipe.coordinator.linger"]["value"] == "5s"
    assert rows["jobpipe.coordinator.linger"]["source"].startswith(file)
    assert rows["jobpipe.acks.timeout"]["source"] == "environment"


def test_show_sources(run: Run, write: Write) -> None:
    file = write({"jobpipe": {"coordinator.linger": "5s"}})
    plain = run("config", "show", file=file).stdout.splitlines()
    full = run("config", "show", "--sources", file=file).stdout.splitlines()
    assert plain[0].split() == ["KEY", "VALUE"]
    assert full[0].split() == ["KEY", "VALUE", "SOURCE"]
    assert next(line for line in full if "linger" in line).split()[1] == "5s"


def test_explain(run: Run) -> None:
    result = run("config", "explain", "retention.time")
    assert result.exit_code == 0
    assert result.stdout.startswith("jobpipe.retention.time\n")
    assert "JOBPIPE__RETENTION__TIME" in result.stdout


def test_explain_of_an_unknown_key_suggests(run: Run) -> None:
    result = run("config", "explain", "retention.tiem")
    assert result.exit_code == 2
    assert "retention.tiem is unknown; did you mean jobpipe.retention.time?" in result.stderr
    on_page(result.stderr, "…is unknown; did you")


def test_encrypt_reads_the_secret_and_prints_its_encrypted_form(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From standard input; a secret on the command line would stand in the process list."""
    monkeypatch.delenv("JOBPIPE_SECRET_KEY", raising=False)
    first = run("config", "encrypt", stdin="open sesame\n")
    assert first.exit_code == 2
    assert "--new-key" in first.stderr
    made = run("config", "encrypt", "--new-key", stdin="open sesame\n")
    assert str(tmp_path / ".config/jobpipe/secret.key") in made.stderr
    assert "sesame" not in made.stdout + made.stderr
    assert Secret(made.stdout.strip()).reveal() == "open sesame"
    assert run("config", "encrypt", "--new-key", stdin="x").exit_code == 2
    assert run("config", "encrypt", stdin="").exit_code == 2
    assert run("config", "encrypt", "open sesame").exit_code == 2


def test_check_of_options(run: Run, tmp_path: Path) -> None:
    """What a load() would say, without Spark, and without making anything."""
    good = run("config", "check", "-o", "subscribe=orders", "-o", 'startingOffsets={"orders": 7}')
    assert (good.exit_code, good.stdout[:3]) == (0, "ok:")
    bad = run("config", "check", "--option", "subscribe=a b", "--option", "maxRowsPerTrigger=0", "--option", "zzz=1")
    assert bad.exit_code == 2
    assert "3 wrong options" in bad.stderr
    as_json = json.loads(run("config", "check", "--json", "-o", "subscribe=a", "-o", "maxTopics=5").stdout)
    assert [problem["key"] for problem in as_json["problems"]] == ["maxTopics"]
    assert run("config", "check", "-o", "subscribe").exit_code == 2
    assert not list(tmp_path.iterdir())


def test_explain_of_options(run: Run) -> None:
    """By any of its names; a name that source and sink both have is told twice."""
    assert "maxRowsPerTrigger (option of format('jobpipe'))" in run("config", "explain", "MAXOFFSETSPERTRIGGER").stdout
    both = run("config", "explain", "name").stdout
    assert "name (option of" in both
    assert "name (argument of JobPipeSink)" in both
    assert "needs:       minRowsPerTrigger" in run("config", "explain", "maxTriggerDelay").stdout
    assert "did you mean startingOffsets?" in run("config", "explain", "startingOffset").stderr
    every = run("config", "explain").stdout
    assert "lowerBound" in every
    assert "jobpipe.spool.dir" in every


def test_keys_as_options_of_a_source(run: Run) -> None:
    """As `config explain` names them, with jobpipe. or without."""
    assert run("config", "check", "-o", "subscribe=a", "-o", "retention.time=5min").exit_code == 0
    wrong = run(
        "config", "check", "-o", "subscribe=a", "-o", "retention.time=soon", "-o", "kafka.security.protocol=SSL"
    )
    assert "jobpipe.retention.time = soon: expected" in wrong.stderr
    assert "kafka.security.protocol = SSL is unknown; Kafka's clients are not configured here" in wrong.stderr
    assert "did you mean name?" in run("config", "explain", "kafka.group.id").stderr


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [("12", "offset", 12), ("1795255200000", "time", 1795255200000), ("2026-11-21T10:00:00Z", "time", 1795255200000)],
)
def test_places_on_the_command_line(text: str, kind: str, value: int) -> None:
    """What has twelve digits is no number of batches."""
    place = PlaceType("latest").convert(text, None, None)
    assert (place.kind, place.value) == (kind, value)


def test_a_missing_name_is_told(run: Run) -> None:
    """U6: right for spark.read, and not for a stream: told by the check of options, as a note."""
    found = run("config", "check", "-o", "subscribe=orders")
    assert found.exit_code == 0
    assert "note: there is no option 'name': spark.read needs none, but a stream" in found.stderr
    (note,) = json.loads(run("config", "check", "--json", "-o", "subscribe=orders").stdout)["notes"]
    assert ".option('name', 'billing')" in note
    assert run("config", "check", "-o", "subscribe=orders", "-o", "name=billing").stderr == ""
    assert json.loads(run("config", "check", "--json", "-o", "subscribe=a", "-o", "name=b").stdout)["notes"] == []
