"""Sources, their precedence, and that every problem is reported at once."""

from __future__ import annotations

import contextlib
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobpipe.config import Config, config_from_dict, load, resolve
from jobpipe.config.definitions.definition import Key
from jobpipe.config.reading import config_loader
from jobpipe.config.reading.yaml_document import MAX_BYTES
from jobpipe.config.types.value_types import choice
from jobpipe.errors import ConfigError


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def problems(**arguments: Any) -> list[dict[str, Any]]:
    arguments.setdefault("environ", {})
    with pytest.raises(ConfigError) as caught:
        load(**arguments)
    found: list[dict[str, Any]] = caught.value.fields["problems"]
    assert len(caught.value.message.splitlines()) == len(found) + 1
    return found


def file_problems(folder: Path, text: str) -> list[tuple[int | None, str]]:
    """Return (line, key) of each problem of a file."""
    path = write(folder / "x.yaml", text)
    result = []
    for problem in problems(path=path):
        name, _, line = problem["source"].rpartition(":")
        assert str(path) in (name, problem["source"])
        result.append((int(line) if name == str(path) else None, problem["key"]))
    return result


@pytest.mark.parametrize(
    "text", ["", "# nothing\n", "jobpipe:\n", "jobpipe: {}\n", "jobpipe: {spool: }\n", "---\n", "null"]
)
def test_an_empty_file_holds_the_defaults(lonely: Path, text: str) -> None:
    assert load(write(lonely / "x.yaml", text), environ={}) == Config()


def test_no_file_at_all_holds_the_defaults() -> None:
    resolved = resolve(environ={})
    assert (resolved.config, resolved.file, set(resolved.sources.values())) == (Config(), None, {"default"})
    assert resolved.config.spool_dir == Path.home() / ".jobpipe" / "spool"
    assert (resolved.config.tls, resolved.config.embedded) == (True, True)


@pytest.mark.parametrize(
    "text",
    [
        "jobpipe: {registerserver: {topic.storage: /x}}",
        "jobpipe: {registerserver: {topic: {storage: /x}}}",
        "jobpipe.registerserver.topic.storage: /x",
        "jobpipe: {registerserver.topic: {storage: /x}}",
        "jobpipe.registerserver: {topic.storage: /x}",
        "jobpipe: {<<: {registerserver: {topic.storage: /x}}}",
        "security: &nothing {}\njobpipe: {spool: *nothing, registerserver.topic.storage: /x}",
    ],
)
def test_keys_may_be_nested_or_dotted(lonely: Path, text: str) -> None:
    assert load(write(lonely / "x.yaml", text), environ={}).namespace == "/x"


def test_a_key_may_have_keys_below_it(lonely: Path) -> None:
    text = "jobpipe:\n  acks: stored\n  acks.timeout: 5s\n  registerserver: {connect: {timeout: 3s}}\n"
    config = load(write(lonely / "x.yaml", text), environ={})
    assert (config.acks, config.acks_timeout, config.registry_connect_timeout) == ("stored", 5.0, 3.0)


def test_precedence(lonely: Path) -> None:
    """Options, Spark, environment, file, default: take the highest away and the next one counts."""
    write(lonely / "conf" / "jobpipe.yaml", "jobpipe: {retention.time: 1s}")
    arguments: dict[str, Any] = {
        "overrides": {"retention_time": "4s"},
        "spark": {"spark.jobpipe.retention.time": "3s"},
        "environ": {"JOBPIPE__RETENTION__TIME": "2s"},
    }
    for seconds, source in ((4.0, "overrides"), (3.0, "spark"), (2.0, "environ")):
        assert load(**arguments).retention_time == seconds
        arguments[source] = {}
    assert load(**arguments).retention_time == 1.0
    (lonely / "conf" / "jobpipe.yaml").unlink()
    assert load(**arguments).retention_time == 600.0


def test_sources_are_told(lonely: Path) -> None:
    path = write(lonely / "x.yaml", "jobpipe:\n  home: a\n  acks.timeout: 1s\n")
    resolved = resolve(
        path,
        overrides={"linger": 1},
        spark={"spark.jobpipe.spool.fsync": "false", "spark.app.name": "x"},
        environ={"JOBPIPE__READ__TIMEOUT": "1s"},
    )
    assert {name: source for name, source in resolved.sources.items() if source != "default"} == {
        "jobpipe.home": f"{path}:2",
        "jobpipe.acks.timeout": f"{path}:3",
        "jobpipe.coordinator.linger": "option",
        "jobpipe.spool.fsync": "spark",
        "jobpipe.read.timeout": "environment",
    }
    assert resolved.file == path


@pytest.mark.parametrize(
    "name",
    ["retention_time", "retention.time", "jobpipe.retention.time"],
)
def test_options_by_attribute_or_key(name: str) -> None:
    assert load(overrides={name: "1h"}, environ={}).retention_time == 3600.0


def test_options_take_values_that_are_no_text() -> None:
    config = load(overrides={"port_range": (7, 9), "home": Path("h"), "fsync": False, "parallelism": 2}, environ={})
    assert (config.port_range, config.home, config.fsync, config.parallelism) == ((7, 9), Path.cwd() / "h", False, 2)


def test_an_option_of_none_was_not_given() -> None:
    environ = {"JOBPIPE__ACKS": "all"}
    assert load(overrides={"acks": None}, environ=environ).acks == "all"


def test_null_as_text_is_null() -> None:
    environ = {"JOBPIPE__PARALLELISM": "3"}
    assert load(overrides={"parallelism": "null"}, environ=environ).parallelism is None


@pytest.mark.parametrize(
    ("name", "value", "attribute", "expected"),
    [
        ("JOBPIPE__SINKSERVER__PORT__RANGE", "5-6", "port_range", (5, 6)),
        ("JOBPIPE__SPOOL__MAX_BYTES", "9GiB", "spool_max_bytes", 9 * 2**30),
        ("jobpipe__spool__max_bytes", "9GiB", "spool_max_bytes", 9 * 2**30),
        ("JOBPIPE__SSL__ENABLED", "false", "ssl_enabled", False),
        ("JOBPIPE__SECURITY__SSL__ENABLED", "false", "platform_ssl", False),
        ("JOBPIPE__SECURITY__ALLOW_PLAINTEXT", "true", "allow_plaintext", True),
    ],
)
def test_environment(name: str, value: str, attribute: str, expected: object) -> None:
    assert getattr(load(environ={name: value, "JOBPIPE_OTHER": "x", "PATH": "y"}), attribute) == expected


@pytest.mark.parametrize("name", ["spark.jobpipe.security.ssl.enabled", "spark.jobpipe.ssl.enabled"])
def test_spark(name: str) -> None:
    assert not load(spark={name: "false", "jobpipe.home": "ignored"}, environ={}).tls


def test_places_of_the_file(lonely: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each place hides the ones after it."""
    order = [
        write(lonely / "named.yaml", "jobpipe: {linger: 1}".replace("linger", "coordinator.linger")),
        write(lonely / "environment.yaml", "jobpipe.coordinator.linger: 2"),
        write(lonely / "conf" / "jobpipe.yaml", "jobpipe.coordinator.linger: 3"),
        write(Path.home() / ".config" / "jobpipe" / "jobpipe.yaml", "jobpipe.coordinator.linger: 4"),
        write(config_loader.SYSTEM_FILE, "jobpipe.coordinator.linger: 5"),
    ]
    environ = {"JOBPIPE_CONFIG": str(order[1])}
    assert load(order[0], environ=environ).linger == 1.0
    assert load(environ=environ).linger == 2.0
    monkeypatch.setattr(os, "environ", {**os.environ, **environ})
    assert load().linger == 2.0
    for number, path in enumerate(order[2:], 3):
        assert load(environ={"JOBPIPE_CONFIG": ""}).linger == float(number)
        path.unlink()
    assert load(environ={}).linger == 60.0


def test_a_named_file_must_be_there(lonely: Path) -> None:
    missing = lonely / "missing.yaml"
    write(lonely / "conf" / "jobpipe.yaml", "")
    assert [(p["source"], p["key"], p["value"]) for p in problems(path=missing)] == [("option", "config", str(missing))]
    found = problems(environ={"JOBPIPE_CONFIG": "missing.yaml", "JOBPIPE__ACKS": "x"})
    assert [(p["source"], p["key"]) for p in found] == [("environment", "jobpipe.acks"), ("environment", "config")]


def test_a_folder_is_no_file(lonely: Path) -> None:
    assert [p["key"] for p in problems(path=lonely)] == ["config"]


def test_relative_paths_start_from_the_file(lonely: Path) -> None:
    text = "jobpipe: {home: h, ssl: {ca: certs/ca.crt, cert: ../node.crt, key: /k}}"
    path = write(lonely / "deep" / "er" / "x.yaml", text)
    config = load(path, overrides={"spool.dir": "s"}, environ={})
    assert config.home == lonely / "deep" / "er" / "h"
    assert config.ssl_ca == lonely / "deep" / "er" / "certs" / "ca.crt"
    assert (config.ssl_cert, config.ssl_key) == (lonely / "deep" / "node.crt", Path("/k"))
    assert config.spool_dir == lonely / "s"


def test_spool_follows_home() -> None:
    assert load(overrides={"home": "/h"}, environ={}).spool_dir == Path("/h/spool")


def test_all_problems_of_all_sources_at_once(lonely: Path) -> None:
    text = "jobpipe:\n  acks: some\n  hoem: /x\n  retention: {time: long}\n  spool.max_bytes: 1MiB\n"
    path = write(lonely / "x.yaml", text)
    found = problems(
        path=path,
        overrides={"acks": "nobody", "write_pth": "x"},
        spark={"spark.jobpipe.parallelism": "0"},
        environ={"JOBPIPE__SPOOL__FSYNC": "?"},
    )
    assert [(p["source"], p["key"], p["value"]) for p in found] == [
        ("option", "jobpipe.acks", "nobody"),
        ("option", "write_pth", "x"),
        ("spark", "jobpipe.parallelism", "0"),
        ("environment", "jobpipe.spool.fsync", "?"),
        (f"{path}:2", "jobpipe.acks", "some"),
        (f"{path}:3", "jobpipe.hoem", "/x"),
        (f"{path}:4", "jobpipe.retention.time", "long"),
        (f"{path}:5", "jobpipe.spool.max_bytes", "1MiB"),
    ]
    assert found[1]["expected"] == "did you mean write_path?"
    assert found[5]["expected"] == "did you mean jobpipe.home?"
    assert [p["unknown"] for p in found] == [False, True, False, False, False, True, False, False]


def test_the_error_survives_pickle() -> None:
    with pytest.raises(ConfigError) as caught:
        load(overrides={"acks": "x"}, environ={})
    copy = pickle.loads(pickle.dumps(caught.value))  # noqa: S301  our own bytes
    assert (copy.message, copy.fields) == (caught.value.message, caught.value.fields)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("jobpipe: {home: a}\njobpipe: {acks: all}\njobpipe.home: b", [(2, "jobpipe"), (3, "jobpipe.home")]),
        ("jobpipe:\n  home: a\n  home: a\n", [(3, "jobpipe.home")]),
        ("jobpipe: {spool: {dir: a}, spool.dir: b}", [(1, "jobpipe.spool.dir")]),
        ("home: a", [(1, "home")]),
        ("jobpipe: 5", [(1, "jobpipe")]),
        ("jobpipe: [a]", [(1, "jobpipe")]),
        ("jobpipe:\n  home: [a, b]\n", [(2, "jobpipe.home")]),
        ("jobpipe:\n  acks:\n", [(2, "jobpipe.acks")]),
        ("jobpipe:\n  1: a\n", [(2, "jobpipe.1")]),
        ("jobpipe:\n  ? [a]\n  : b\n", [(2, "jobpipe")]),
        ("- jobpipe", [(1, "config")]),
        ("text", [(1, "config")]),
        (f"jobpipe: {{parallelism: {'9' * 5000}}}", [(1, "jobpipe.parallelism")]),
        ("jobpipe: {'': 1, acks: x}", [(1, "jobpipe"), (1, "jobpipe.acks")]),
        ("jobpipe: {home: a", [(1, "config")]),
        ("a: b: c", [(1, "config")]),
        ("--- {}\n--- {}\n", [(2, "config")]),
        ("jobpipe:\n  home: !!python/object/apply:os.system [x]\n", [(2, "jobpipe.home")]),
        ("jobpipe:\n  home: !!python/name:os.system\n", [(2, "jobpipe.home")]),
        ("jobpipe: &a\n  spool: *a\n", None),
        ("jobpipe:\n  <<: home\n", [(2, "jobpipe")]),
        ("jobpipe:\n  home: *missing\n", [(2, "config")]),
        ("jobpipe: {acks: !!bool x, home: !!timestamp x}", [(1, "jobpipe.acks"), (1, "jobpipe.home")]),
        ("jobpipe: {acks: !!binary x}", [(1, "jobpipe.acks")]),
        ("jobpipe: {retention.time: 2020-99-99}", [(1, "jobpipe.retention.time")]),
        ("jobpipe: {ssl.enabled: no}", [(1, "jobpipe.ssl.enabled")]),
        ("{" * 40 + "}" * 40, None),
        ("[" * 5000, None),
        ("a: \x01", None),
        (f"# {'x' * MAX_BYTES}", None),
    ],
)
def test_wrong_documents(lonely: Path, text: str, expected: list[tuple[int | None, str]] | None) -> None:
    found = file_problems(lonely, text) if len(text) <= MAX_BYTES else problems(path=write(lonely / "x.yaml", text))
    assert found == expected or (expected is None and len(found) == 1)


def test_a_file_that_is_no_text(lonely: Path) -> None:
    (lonely / "x.yaml").write_bytes(b"\xff\xfe\x00")
    assert [p["source"] for p in problems(path=lonely / "x.yaml")] == [f"{lonely / 'x.yaml'}:1"]


@settings(deadline=None)  # the machine may be busy
@given(st.text(max_size=200))
def test_any_text_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = tmp_path_factory.getbasetemp() / "any.yaml"
    path.write_text(text, errors="replace")
    with contextlib.suppress(ConfigError):
        load(path, environ={})


@pytest.mark.parametrize(
    ("overrides", "environ"),
    [
        ({"retention_time": "1s", "retention.time": "1s"}, {}),
        ({}, {"JOBPIPE__RETENTION__TIME": "1s", "jobpipe__retention__time": "1s"}),
    ],
)
def test_a_key_given_twice_by_one_source(overrides: dict[str, str], environ: dict[str, str]) -> None:
    assert [p["key"] for p in problems(overrides=overrides, environ=environ)] == ["jobpipe.retention.time"]


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"overrides": {"retention_tim": "1h"}}, "option: retention_tim = 1h is unknown; did you mean retention_time?"),
        ({"overrides": {"retention.tim": 1}}, "option: retention.tim = 1 is unknown; did you mean retention.time?"),
        (
            {"environ": {"JOBPIPE__SPOOL__MAX_BYTE": "1"}},
            "environment: JOBPIPE__SPOOL__MAX_BYTE = 1 is unknown; did you mean JOBPIPE__SPOOL__MAX_BYTES?",
        ),
        (
            {"spark": {"spark.jobpipe.spool.max_byte": "1"}},
            "spark: spark.jobpipe.spool.max_byte = 1 is unknown; did you mean spark.jobpipe.spool.max_bytes?",
        ),
        (
            {"overrides": {"zzz": "1"}},
            "option: zzz = 1 is unknown; possible names are the keys that `jobpipe config show` lists",
        ),
    ],
)
def test_an_unknown_key_is_named_as_its_source_writes_it(given: dict[str, Any], line: str) -> None:
    """What is unknown, where, its value, and which one may be meant, spelled as there."""
    with pytest.raises(ConfigError) as caught:
        load(**{"environ": {}, **given})
    assert caught.value.message == f"configuration: 1 problem\n  {line}"


def test_an_unknown_key_of_a_file_is_named_with_its_line(lonely: Path) -> None:
    path = write(lonely / "x.yaml", "jobpipe:\n  acks: stored\nacks: all\n")
    (problem,) = problems(path=path)
    assert (problem["source"], problem["key"], problem["value"]) == (f"{path}:3", "acks", "all")
    assert problem["expected"] == "did you mean jobpipe.acks?"


def test_arguments_of_the_caller_are_suggested_too() -> None:
    def subscribe(topic: str, *, starting: str = "committed", **overrides: Any) -> None: ...

    for wrong in ("startng", "start", "startingOffsets"):
        (problem,) = problems(overrides={wrong: "earliest"}, caller=subscribe)
        assert problem["expected"] == "did you mean starting?"
    (problem,) = problems(overrides={"zzz": 1}, caller=subscribe)
    assert problem["expected"].startswith("possible names are topic, starting and the keys that")


def test_the_value_of_what_sounds_secret_is_not_repeated() -> None:
    with pytest.raises(ConfigError) as caught:
        load(overrides={"registry.pasword": "hunter2"}, environ={})
    assert "hunter2" not in caught.value.message + str(caught.value.fields)


def test_the_value_of_a_secret_key_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    secret = Key(
        name="jobpipe.acks",
        attribute="acks",
        value_type=choice("stored"),
        default="stored",
        documentation="A secret.",
        group="x",
        secret=True,
    )
    monkeypatch.setattr(config_loader, "by_loose_name", lambda _name: secret)
    with pytest.raises(ConfigError) as caught:
        load(overrides={"acks": "hunter2"}, environ={})
    assert [p["value"] for p in caught.value.fields["problems"]] == ["***"]
    assert "hunter2" not in caught.value.message
    assert (secret.show("stored"), secret.show(None)) == ("***", "None")


def test_a_long_or_odd_value_stays_on_one_line() -> None:
    (problem,) = problems(overrides={"acks": "a\nb" + "x" * 1000})
    assert "\n" not in problem["value"]
    assert len(problem["value"]) <= 201


def test_round_trip_to_another_process(lonely: Path) -> None:
    config = load(
        overrides={
            "home": "h",
            "registry_connect": "zk:2181/x",
            "port_range": 99,
            "subnet": "10.0.0.0/8",
            "retention_time": 0.1234567,
            "spool.max_bytes": "9GB",
            "parallelism": 3,
            "acks": "all",
            "fsync": "false",
            **{f"ssl_{name}": name for name in ("ca", "cert", "key")},
        },
        environ={},
    )
    texts = config.to_dict()
    assert all(type(text) is str for text in texts.values())
    assert config_from_dict(texts) == config
    assert pickle.loads(pickle.dumps(config)) == config  # noqa: S301  our own bytes
    assert config_from_dict({}) == Config()


def test_an_environment_that_says_the_same_in_another_folder(
    lonely: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {
        "JOBPIPE__HOME": "./home",
        "jobpipe__spool__dir": "spool",
        "JOBPIPE__SSL__CA": "ca.pem",
        "JOBPIPE__SSL__CERT": "cert.pem",
        "JOBPIPE__SSL__KEY": "key.pem",
        "JOBPIPE__SSL__KEY__PASSWORD": "file:password",
        "JOBPIPE__RETENTION__TIME": "7d",
        "PATH": "bin",
    }
    before = load(environ=given)
    settled = config_loader.settled_environment(given)
    assert settled["JOBPIPE__HOME"] == str(lonely / "home")
    assert settled.keys() == given.keys() - {"PATH"}
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    assert load(environ=given) != before
    assert load(environ=settled) == before


def test_from_dict_checks() -> None:
    with pytest.raises(ConfigError) as caught:
        config_from_dict({"jobpipe.acks": "x", "acks": "all"})
    assert [p["key"] for p in caught.value.fields["problems"]] == ["jobpipe.acks", "acks"]
