"""The definition of the keys, and conf/jobpipe.yaml beside it."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest
import yaml

from jobpipe.config import Config, Key, keys, load, resolve
from jobpipe.config.definitions.key_names import by_loose_name, closest
from jobpipe.errors import ConfigError

REFERENCE = Path(__file__).parents[3] / "conf" / "jobpipe.yaml"

BAD: dict[str, object] = {
    "jobpipe.home": "",
    "jobpipe.registerserver.connect": "zk1",
    "jobpipe.registerserver.handler": "kafka",
    "jobpipe.registerserver.topic.storage": "topics",
    "jobpipe.registerserver.session.timeout": "999ms",
    "jobpipe.registerserver.connect.timeout": "0s",
    "jobpipe.registerserver.sasl.mechanism": "PLAIN",
    "jobpipe.registerserver.sasl.username": 5,
    "jobpipe.registerserver.sasl.password": 5,
    "jobpipe.registerserver.sasl.principal": 5,
    "jobpipe.registerserver.sasl.service": "",
    "jobpipe.registerserver.ssl.enabled": "yes",
    "jobpipe.registerserver.ssl.ca": 1,
    "jobpipe.registerserver.ssl.cert": 1,
    "jobpipe.registerserver.ssl.key": 1,
    "jobpipe.registerserver.acl": "sasl:bob:x",
    "jobpipe.sinkserver.port.range": "2-1",
    "jobpipe.sinkserver.subnet": "10.0.0.0/99",
    "jobpipe.sinkserver.advertise": "host:1",
    "jobpipe.sinkserver.max_connections": 7,
    "jobpipe.sinkserver.max_connections_per_address": 0,
    "jobpipe.sinkserver.max_connections_per_identity": 0,
    "jobpipe.sinkserver.connection_rate": 0,
    "jobpipe.discovery.timeout": "0",
    "jobpipe.spool.dir": 5,
    "jobpipe.spool.placement": "everywhere",
    "jobpipe.spool.fsync": "sometimes",
    "jobpipe.spool.max_bytes": "1023",
    "jobpipe.spool.on_full": "explode",
    "jobpipe.hostserver.dir": 5,
    "jobpipe.hostserver.port": "0-5",
    "jobpipe.hostserver.lost_after": "0s",
    "jobpipe.coordinator.linger": "-1s",
    "jobpipe.write_path": "files",
    "jobpipe.parallelism": 0,
    "jobpipe.acks": "none",
    "jobpipe.acks.timeout": "soon",
    "jobpipe.segment.max_bytes": "64 megs",
    "jobpipe.segment.compression": "gzip",
    "jobpipe.retention.time": "10 minutes",
    "jobpipe.retention.bytes": "-1",
    "jobpipe.retention.ack_grace": True,
    "jobpipe.subscription.expiry": "0s",
    "jobpipe.subscription.max": "0",
    "jobpipe.hold.max_time": "0s",
    "jobpipe.read.timeout": "never",
    "jobpipe.server.host": "host:1",
    "jobpipe.server.port": "0",
    "jobpipe.server.access": 5,
    "jobpipe.server.roots": 5,
    "jobpipe.server.environment": "A-B",
    "jobpipe.server.masked_columns": "card,,iban",
    "jobpipe.server.lineage.url": "http://marquez.example.org:5000",
    "jobpipe.server.lineage.api_key": "hunter2",
    "jobpipe.server.lineage.file": 5,
    "jobpipe.server.lineage.namespace": "",
    "jobpipe.ssl.enabled": "on",
    "jobpipe.ssl.ca": 1,
    "jobpipe.ssl.cert": 1,
    "jobpipe.ssl.key": 1,
    "jobpipe.ssl.key.password": "hunter2",
    "jobpipe.ssl.crl": 1,
    "jobpipe.ssl.max_connection_age": "0s",
    "security.ssl.enabled": "maybe",
    "security.allow_plaintext": 1,
    "security.access": 1,
}


def by_name(about: Key) -> str:
    return about.name


def test_every_key_has_a_bad_value() -> None:
    assert set(BAD) == {about.name for about in keys()}


@pytest.mark.parametrize("about", keys(), ids=by_name)
def test_a_bad_value_is_reported_with_its_key(about: Key) -> None:
    with pytest.raises(ConfigError) as caught:
        load(overrides={about.name: BAD[about.name]}, environ={})
    (problem,) = caught.value.fields["problems"]
    assert (problem["source"], problem["key"]) == ("option", about.name)
    bad = BAD[about.name]
    if about.secret:
        assert (problem["value"], str(bad) in caught.value.message) == ("***", False)
        return
    assert problem["value"] == (str(bad).lower() if bad is True else str(bad) if bad != "" else "''")
    assert problem["expected"]
    assert about.name in caught.value.message


# any text at all is a path, a name or a password, but for the empty one where there must be one
ANY_TEXT = ("path", "paths", "name", "password")
TEXTS = [about for about in keys() if isinstance(BAD[about.name], str) or about.value_type.name not in ANY_TEXT]


@pytest.mark.parametrize("about", TEXTS, ids=by_name)
def test_a_bad_value_of_the_environment_is_reported(about: Key) -> None:
    with pytest.raises(ConfigError) as caught:
        load(environ={about.environment: str(BAD[about.name])})
    assert [(p["source"], p["key"]) for p in caught.value.fields["problems"]] == [("environment", about.name)]


@pytest.mark.parametrize("about", keys(), ids=by_name)
def test_definition_is_whole(about: Key) -> None:
    assert about.attribute in {field.name for field in fields(Config)}
    assert about.documentation.endswith(".")
    assert about.group
    default = about.parse(about.default)
    assert about.parse(about.default_text) == default
    assert about.parse(about.format(default)) == default
    assert all(about.parse(text) is not None for text in about.recommended)
    for name in (about.name, about.short, about.attribute, about.spark.removeprefix("spark.")):
        assert by_loose_name(name) is about


def test_the_same_name_is_never_suggested() -> None:
    assert closest("tick", ["ticks"]) == "ticks"
    assert closest("ticks", ["ticks"]) is None
    assert closest("ticks", ["ticks", "tricks"]) == "tricks"


def test_every_attribute_has_one_key() -> None:
    assert [about.attribute for about in keys()] == [each.name for each in fields(Config) if each.name != "pinned"]
    for names in (
        [about.name for about in keys()],
        [about.environment for about in keys()],
        [about.spark for about in keys()],
    ):
        assert len(set(names)) == len(names)


def test_reference_file_has_the_keys_and_defaults() -> None:
    flat: dict[str, object] = {}

    def walk(section: dict[str, object], prefix: str) -> None:
        for name, value in section.items():
            if isinstance(value, dict):
                walk(value, f"{prefix}{name}.")
            else:
                flat[prefix + name] = value

    walk(yaml.safe_load(REFERENCE.read_text()), "")
    assert flat == {about.name: about.default for about in keys()}
    assert list(flat) == [about.name for about in keys()]


def test_reference_file_documents_every_key() -> None:
    comments: dict[str, str] = {}
    above: list[str] = []
    for line in REFERENCE.read_text().splitlines():
        text = line.strip()
        if text.startswith("#"):
            above.append(text.lstrip("# "))
        elif text:
            comments.setdefault(" ".join(above), text)
            above = []
        else:
            above = []
    for about in keys():
        assert about.documentation in comments, about.name
        assert comments[about.documentation].endswith(f": {about.default_text}"), about.name


def test_reference_file_changes_nothing() -> None:
    resolved = resolve(REFERENCE, environ={})
    assert resolved.config == Config()
    assert {source.rpartition(":")[0] for source in resolved.sources.values()} == {str(REFERENCE)}
