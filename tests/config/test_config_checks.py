"""Values that are wrong together."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jobpipe.config import Config, check_acks, config_from_dict, load
from jobpipe.errors import ConfigError
from tests.docs.troubleshooting import on_page

REAL = {"registry_connect": "zk:2181"}
FILES = {"ssl_ca": "ca.crt", "ssl_cert": "node.crt", "ssl_key": "node.key"}


def blamed(**overrides: Any) -> list[tuple[str, str]]:
    """Return (source, key) of each problem."""
    try:
        load(overrides=overrides, environ={})
    except ConfigError as error:
        return [(problem["source"], problem["key"]) for problem in error.fields["problems"]]
    return []


def test_acks_all_and_drop_oldest() -> None:
    assert blamed(acks="all", on_full="drop_oldest") == [("option", "jobpipe.acks")]
    assert blamed(acks="all") == blamed(on_full="drop_oldest") == []


def test_the_cap_holds_a_segment() -> None:
    assert blamed(spool_max_bytes="32MiB") == [("option", "jobpipe.spool.max_bytes")]
    assert blamed(spool_max_bytes="32MiB", segment_max_bytes="32MiB") == []
    assert blamed(segment_max_bytes="9GiB") == [("default", "jobpipe.spool.max_bytes")]


def test_lineage_events_go_to_one_place() -> None:
    """And an API key is of a URL."""
    url, file, key = (
        {"server_lineage_url": "https://a/"},
        {"server_lineage_file": "/a"},
        {"server_lineage_api_key": "env:A"},
    )
    assert blamed(**url, **file) == [("option", "jobpipe.server.lineage.file")]
    assert blamed(**file, **key) == [("option", "jobpipe.server.lineage.api_key")]
    assert blamed(**url, **key) == blamed(**file) == []


def test_a_shared_spool_has_a_folder_of_its_own() -> None:
    """The default one lies under home, which each host has for itself."""
    assert blamed(spool_placement="shared") == [("default", "jobpipe.spool.dir")]
    assert blamed(spool_placement="shared", spool_dir="/shared/spool") == blamed(spool_placement="host") == []


@pytest.mark.parametrize(
    "present", [["ssl_ca"], ["ssl_cert"], ["ssl_key"], ["ssl_ca", "ssl_cert"], ["ssl_cert", "ssl_key"]]
)
def test_a_real_registry_needs_all_certificates(present: list[str]) -> None:
    given = {name: FILES[name] for name in present}
    missing = [("default", f"jobpipe.{name.replace('_', '.')}") for name in FILES if name not in present]
    assert blamed(**REAL, **given) == missing
    assert blamed(**given) == missing, "the embedded one makes all of them or none"


@pytest.fixture
def listening() -> Iterator[str]:
    """An address that takes connections."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def test_a_real_registry_alone_lacks_certificates(listening: str) -> None:
    """U7: one problem, of the one key that was given, and none of three that nobody gave."""
    given = {"registry_connect": f"127.0.0.1:1,{listening}/chroot"}
    assert blamed(**given) == [("option", "jobpipe.registerserver.connect")]
    with pytest.raises(ConfigError, match="so each must prove who it is"):
        load(overrides=given, environ={})
    with pytest.raises(ConfigError, match="so each must prove who it is"):
        config_from_dict({**Config().to_dict(), "jobpipe.registerserver.connect": "no.such.host.invalid:2181"})


@pytest.mark.slow
@pytest.mark.processes
def test_the_commands_of_the_error_are_enough(listening: str, tmp_path: Path) -> None:
    """U7: what the error says, typed in as it stands, makes the configuration right."""
    with pytest.raises(ConfigError) as caught:
        load(overrides={"registry_connect": listening}, environ={})
    on_page(caught.value, "…: expected certificates")
    commands = [line.strip() for line in caught.value.message.splitlines()[2:]]
    assert len(commands) == 2
    script = "\n".join(["set -e", *commands, f"{sys.executable} -m jobpipe.cli.main config check"])
    environ = {name: value for name, value in os.environ.items() if not name.startswith("JOBPIPE_")}
    environ["PATH"] = f"{Path(sys.executable).parent}:{environ['PATH']}"
    environ |= {"JOBPIPE__REGISTERSERVER__CONNECT": listening, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(
        ["/bin/sh", "-c", script], cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith("ok: ")


def test_a_host_counts_as_lost_before_acks_all_gives_up() -> None:
    """Whose wait begins anew with each start, as the count of absence does: neither would ever see the other's end."""
    wrong = [("option", "jobpipe.hostserver.lost_after")]
    assert blamed(spool_placement="host", acks="all", hostserver_lost_after="10min") == wrong
    assert blamed(spool_placement="host", acks="all") == []
    assert blamed(spool_placement="host", hostserver_lost_after="10min") == []
    assert blamed(acks="all", hostserver_lost_after="10min") == []


def test_all_certificates_will_do() -> None:
    assert blamed(**REAL, **FILES) == blamed(**FILES) == []


@pytest.mark.parametrize("switch", ["ssl_enabled", "platform_ssl"])
def test_plaintext_beyond_loopback_needs_a_word(switch: str) -> None:
    off = {switch: False}
    wrong = [("default", "security.allow_plaintext")]
    assert blamed(**REAL, **off) == wrong
    assert blamed(**REAL, **off, allow_plaintext=True) == []
    assert blamed(**REAL, **off, subnet="127.0.0.0/8") == []
    assert blamed(**off) == [], "embedded listens on loopback"
    assert blamed(**off, subnet="10.0.0.0/8") == wrong


def test_a_check_is_left_out_where_a_value_is_wrong_by_itself() -> None:
    assert blamed(acks="all", on_full="x") == [("option", "jobpipe.spool.on_full")]
    assert blamed(registry_connect="x:y", ssl_enabled=False) == [("option", "jobpipe.registerserver.connect")]


def test_acks_all_needs_somebody(tmp_path: Path) -> None:
    all_, stored = load(overrides={"acks": "all"}, environ={}), load(environ={})
    for required, least in ((None, None), ([], 0), ((), None)):
        check_acks(stored, required, least)
        with pytest.raises(ConfigError) as caught:
            check_acks(all_, required, least)
        assert [problem["key"] for problem in caught.value.fields["problems"]] == ["jobpipe.acks"]
    check_acks(all_, ["billing"], None)
    check_acks(all_, None, 1)


DIGEST = {"registry_sasl_mechanism": "DIGEST-MD5", "registry_sasl_username": "a", "registry_sasl_password": "env:B"}
TLS = {"registry_ssl_enabled": "true", "registry_ssl_ca": "zk.crt"}


@pytest.mark.parametrize(
    ("given", "wrong"),
    [
        (DIGEST, []),
        ({"registry_sasl_mechanism": "GSSAPI"}, []),
        ({**TLS, **DIGEST}, []),
        ({**TLS, "registry_ssl_cert": "c.crt", "registry_ssl_key": "c.key", "registry_acl": "auth"}, []),
        ({"registry_sasl_mechanism": "DIGEST-MD5"}, ["sasl.username", "sasl.password"]),
        ({"registry_sasl_username": "a"}, ["sasl.mechanism"]),
        ({"registry_sasl_password": "env:B"}, ["sasl.mechanism"]),
        ({"registry_ssl_enabled": "true"}, ["ssl.ca"]),
        ({**TLS, "registry_ssl_cert": "c.crt"}, ["ssl.key"]),
        ({**TLS, "registry_ssl_key": "c.key"}, ["ssl.cert"]),
        ({"registry_acl": "auth"}, ["acl"]),
        ({**TLS, "registry_acl": "world:anyone:r, auth"}, ["acl"]),
        ({"registry_acl": "open"}, []),
    ],
)
def test_what_the_registry_needs_to_know_us(given: dict[str, str], wrong: list[str]) -> None:
    expected = [f"jobpipe.registerserver.{name}" for name in wrong]
    assert [key for _, key in blamed(**REAL, **FILES, **given)] == expected


def test_the_embedded_registry_knows_no_users() -> None:
    assert [key for _, key in blamed(**DIGEST)] == ["jobpipe.registerserver.sasl.mechanism"]
    assert [key for _, key in blamed(**TLS)] == ["jobpipe.registerserver.ssl.enabled"]


def test_no_error_shows_the_password() -> None:
    with pytest.raises(ConfigError) as caught:
        load(overrides={**REAL, **FILES, "registry_sasl_password": "canary-1", "registry_acl": "x"}, environ={})
    assert "canary-1" not in f"{caught.value}{caught.value.fields}"
