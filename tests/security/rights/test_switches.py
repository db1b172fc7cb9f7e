"""Case 70: encryption needs both switches, and plaintext beyond loopback a word, whoever dials or listens."""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path

import pyarrow as pa
import pytest

from jobpipe.config import load
from jobpipe.discovery.configured_tls import dial_tls
from jobpipe.discovery.topic_lookup import locate
from jobpipe.errors import ConfigError, LinkEnded, LinkError, NotAuthorized
from jobpipe.net.address import Endpoint, is_loopback, require_plaintext_allowed
from jobpipe.net.links.blocking_link import BlockingLink
from jobpipe.publishing.batch_target import WriteTarget
from jobpipe.publishing.coordinator_launcher import end_coordinators
from jobpipe.publishing.topic_publisher import Publisher
from jobpipe.subscribing.python_client import subscribe
from jobpipe.testing import Checker, Journal, NumberedRows
from jobpipe.wire import Hello
from tests.security.kit import TIMING, World, full, settings

FOUR = [(platform, ours) for platform in ("true", "false") for ours in ("true", "false")]
FAR = Endpoint("192.0.2.1", 28444)  # RFC 5737: nowhere


def switched(platform: str, ours: str) -> dict[str, str]:
    return full({"security.ssl.enabled": platform, "ssl.enabled": ours})


@pytest.mark.slow
@pytest.mark.zookeeper
@pytest.mark.parametrize(("platform", "ours"), FOUR)
def test_the_four_combinations(settings_of_test: dict[str, str], platform: str, ours: str) -> None:
    """Rows flow in all of them, on loopback; encrypted only if both are true, and then nobody gets in without."""
    config = load(overrides={**settings_of_test, **switched(platform, ours)}, environ={})
    encrypted = platform == ours == "true"
    assert config.tls is encrypted
    topic = f"t-{uuid.uuid4().hex[:8]}"
    rows, journal = NumberedRows(topic), Journal()
    publisher = Publisher(topic, config=config)
    try:
        with journal.sealing(0, rows.ranges(0)):
            publisher.seal("q", 0, rows.tables(0), run_id="r")
        checker, expected = Checker(rows, journal), sum(table.num_rows for table in rows.tables(0))
        with subscribe(topic, name="all", starting="earliest", config=config) as subscription:
            for batch in subscription.batches(timeout=20.0):
                checker.take(batch)
                if checker.rows == expected:
                    break
        checker.check()
        place = locate(config, topic, 20.0)
        assert place.ssl is encrypted
        hello = Hello(topic, "reader", instance="test")
        for endpoint in (place.control, place.data):
            if encrypted:
                with pytest.raises(LinkError):
                    BlockingLink.connect(endpoint, hello, tls=None, server_hostname=None, timing=TIMING)
            else:
                BlockingLink.connect(endpoint, hello, tls=None, server_hostname=None, timing=TIMING).close()
        other = load(overrides={**settings_of_test, **switched(str(not encrypted).lower(), "true")}, environ={})
        with (
            subscribe(topic, name="other", config=other) as subscription,
            pytest.raises(NotAuthorized, match=r"security\.ssl\.enabled and jobpipe\.ssl\.enabled alike"),
        ):
            next(subscription.batches(timeout=20.0))
    finally:
        publisher.close()
        end_coordinators()


@pytest.mark.parametrize(("platform", "ours"), FOUR)
@pytest.mark.parametrize("allowed", [False, True])
def test_dialling_beyond_loopback(world: World, tmp_path: Path, platform: str, ours: str, allowed: bool) -> None:
    """Whatever a registry names: a configuration for loopback does not send rows in plaintext to another host."""
    given = {"home": str(tmp_path), "sinkserver.subnet": "127.0.0.0/8", "registerserver.connect": "zk1:2181"}
    word = {"security.allow_plaintext": str(allowed).lower()}
    overrides = {**full({**given, **settings(world.billing), **word}), **switched(platform, ours)}
    config = load(overrides=overrides, environ={})
    if config.tls:
        assert dial_tls(config, FAR) is not None
    elif allowed:
        assert dial_tls(config, FAR) is None
    else:
        assert dial_tls(config, Endpoint("127.0.0.1", 28444)) is None
        with pytest.raises(ConfigError) as caught:
            dial_tls(config, FAR)
        assert caught.value.fields["key"] == "security.allow_plaintext"
    assert config.allow_plaintext is allowed


def test_a_tasks_upload_beyond_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = pa.record_batch({"n": [1]})
    dialled: list[Endpoint] = []

    def connect(endpoint: Endpoint, *_: object, **__: object) -> BlockingLink:
        dialled.append(endpoint)
        raise LinkEnded("there is nobody")

    monkeypatch.setattr(BlockingLink, "connect", connect)
    with pytest.raises(ConfigError) as caught:
        target(plaintext=False).write(batch.schema, [(batch, 0)], "0")
    assert caught.value.fields["endpoint"] == str(FAR)
    assert dialled == []
    with pytest.raises(LinkEnded):
        target(plaintext=True).write(batch.schema, [(batch, 0)], "0")
    assert set(dialled) == {FAR}


def target(*, plaintext: bool) -> WriteTarget:
    """A task's way to a coordinator on another host."""
    return WriteTarget(
        topic="orders",
        directory="/nowhere",
        instance="i",
        data=str(FAR),
        tls=None,
        write_id="0123456789abcdef",
        partitions=1,
        segment_max_bytes=1024,
        compression="none",
        fsync=False,
        inline_max=0,
        plaintext=plaintext,
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"registerserver.connect": "zk1:2181"},
        {"sinkserver.subnet": "10.0.0.0/8"},
        {"registerserver.connect": "zk1:2181", "sinkserver.subnet": "192.0.2.0/24"},
    ],
)
@pytest.mark.parametrize(("platform", "ours"), FOUR[1:])
def test_listening_beyond_loopback(tmp_path: Path, changes: dict[str, str], platform: str, ours: str) -> None:
    given = {**full({"home": str(tmp_path), **changes}), **switched(platform, ours)}
    with pytest.raises(ConfigError) as caught:
        load(overrides=given, environ={})
    assert [problem["key"] for problem in caught.value.fields["problems"]] == ["security.allow_plaintext"]
    assert load(overrides={**given, "security.allow_plaintext": "true"}, environ={}).tls is False


def test_the_coordinator_looks_for_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever made its configuration: an interface that is not loopback is not listened on in plaintext."""
    from jobpipe.coordinator import __main__ as coordinator

    def listen(*_: object) -> None:
        raise LinkEnded("it would listen")

    def start(**more: str) -> None:
        config = load(overrides=full({"home": str(tmp_path), "ssl.enabled": "false", **more}), environ={})
        asyncio.run(coordinator.run({"config": config.to_dict(), "instance": "i", "secret": "s"}))

    monkeypatch.setattr(coordinator, "pick_interface", lambda *_, **__: FAR.host)
    monkeypatch.setattr(coordinator, "bind_in_range", listen)
    with pytest.raises(ConfigError) as caught:
        start()
    assert caught.value.fields["key"] == "security.allow_plaintext"
    with pytest.raises(LinkEnded):
        start(**{"security.allow_plaintext": "true"})


def test_an_access_list_needs_identities(tmp_path: Path) -> None:
    given = full({"home": str(tmp_path), "security.access": "access.yaml"})
    assert load(overrides=given, environ={}).access is not None
    given["jobpipe.ssl.enabled"] = "false"
    with pytest.raises(ConfigError) as caught:
        load(overrides=given, environ={})
    assert [problem["key"] for problem in caught.value.fields["problems"]] == ["security.access"]


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.3.2.1", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),  # noqa: S104
        ("::", False),
        ("10.1.2.3", False),
        ("localhost.example", False),
        ("127.0.0.1.example", False),
    ],
)
def test_loopback(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback
    if loopback:
        require_plaintext_allowed(Endpoint(host, 1), allowed=False)
    else:
        with pytest.raises(ConfigError):
            require_plaintext_allowed(Endpoint(host, 1), allowed=False)
        require_plaintext_allowed(Endpoint(host, 1), allowed=True)
