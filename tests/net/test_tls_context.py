"""TLS contexts: who may connect to whom, and what is wrong with files. Handshakes run over memory, without ports."""

from __future__ import annotations

import dataclasses
import os
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from jobpipe.config.types.secrets import Secret
from jobpipe.errors import ConfigError
from jobpipe.net.tls.certificates import ensure_home, init_ca, issue
from jobpipe.net.tls.peer_names import topic_server_name
from jobpipe.net.tls.tls_context import Credentials, client_context, server_context


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Credentials:
    return ensure_home(tmp_path_factory.mktemp("home"))


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Credentials:
    """Credentials of another CA."""
    return ensure_home(tmp_path_factory.mktemp("stranger"))


def handshake(server: ssl.SSLContext, client: ssl.SSLContext, name: str) -> tuple[ssl.SSLObject, ssl.SSLObject]:
    """Return both ends (server, client) after a handshake and one byte each way; raises what either end raises."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (
        server.wrap_bio(to_server, to_client, server_side=True),
        client.wrap_bio(to_client, to_server, server_hostname=name),
    )
    waiting = [ends[1], ends[0]]
    for _ in range(10):
        for end in list(waiting):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
            waiting.remove(end)
        if not waiting:
            break
    else:
        raise AssertionError("the handshake does not end")
    for sender, receiver in (ends, ends[::-1]):  # TLS 1.3 tells a refused client only now
        sender.write(b"x")
        assert receiver.read(1) == b"x"
    return ends


@pytest.mark.parametrize("topic", ["orders", "Orders.with.dots", "a" * 63, "a" * 128, "xn--x", "a-", "x--y", "7"])
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_both_sides_prove_themselves(home: Credentials, topic: str, version: ssl.TLSVersion) -> None:
    client = client_context(home)
    before = client.maximum_version
    client.maximum_version = version
    try:
        server_end, client_end = handshake(server_context(home), client, topic_server_name(topic))
    finally:
        client.maximum_version = before
    assert client_end.version() == {"TLSv1_2": "TLSv1.2", "TLSv1_3": "TLSv1.3"}[version.name]
    for end in (server_end, client_end):
        peer = end.getpeercert()
        assert peer is not None
        assert peer["subjectAltName"] == (("DNS", "*.topic.jobpipe"), ("DNS", "node.jobpipe"))


def test_1_3_is_preferred(home: Credentials) -> None:
    assert handshake(server_context(home), client_context(home), "a.topic.jobpipe")[1].version() == "TLSv1.3"


def test_settings(home: Credentials) -> None:
    server, client = server_context(home), client_context(home)
    for context in (server, client):
        assert context.minimum_version == ssl.TLSVersion.TLSv1_2
        assert context.verify_mode == ssl.CERT_REQUIRED
        assert context.cert_store_stats() == {"x509": 1, "crl": 0, "x509_ca": 1}, "our CA and no other"
        assert context.keylog_filename is None
    assert client.check_hostname
    assert not client.hostname_checks_common_name


def test_our_certificates_pass_strict_verification(home: Credentials, tmp_path: Path) -> None:
    init_ca(tmp_path)
    for files in (home, issue(tmp_path, "x", dns=["*.topic.jobpipe"])):
        contexts = []
        for protocol in (ssl.PROTOCOL_TLS_SERVER, ssl.PROTOCOL_TLS_CLIENT):
            context = ssl.SSLContext(protocol)
            context.verify_mode = ssl.CERT_REQUIRED
            context.verify_flags |= ssl.VERIFY_X509_STRICT
            context.load_verify_locations(files.ca)
            context.load_cert_chain(files.cert, files.key)
            contexts.append(context)
        handshake(contexts[0], contexts[1], "a.topic.jobpipe")


@pytest.mark.parametrize("name", ["orders.jobpipe", "a.b.topic.jobpipe", "topic.jobpipe", "localhost", "127.0.0.1"])
def test_a_server_with_another_name_is_refused(home: Credentials, name: str) -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(server_context(home), client_context(home), name)


def test_a_certificate_for_one_topic_serves_no_other(tmp_path: Path) -> None:
    init_ca(tmp_path)
    orders = issue(tmp_path, "orders", dns=[topic_server_name("orders")])
    handshake(server_context(orders), client_context(orders), topic_server_name("orders"))
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(server_context(orders), client_context(orders), topic_server_name("payments"))


def test_strangers_are_refused_both_ways(home: Credentials, stranger: Credentials) -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(server_context(stranger), client_context(home), "a.topic.jobpipe")
    mixed = Credentials(home.ca, stranger.cert, stranger.key)
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(server_context(home), client_context(mixed), "a.topic.jobpipe")


def test_a_client_without_certificate_is_refused(home: Credentials) -> None:
    bare = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    bare.load_verify_locations(home.ca)
    with pytest.raises(ssl.SSLError, match="PEER_DID_NOT_RETURN_A_CERTIFICATE"):
        handshake(server_context(home), bare, "a.topic.jobpipe")


def test_an_expired_certificate_is_refused(tmp_path: Path) -> None:
    init_ca(tmp_path)
    old = issue(tmp_path, "old", dns=["*.topic.jobpipe"], now=datetime.now(UTC) - timedelta(days=900))
    new = issue(tmp_path, "new", dns=["*.topic.jobpipe"])
    for server, client in ((old, new), (new, old)):
        with pytest.raises(ssl.SSLCertVerificationError) as caught:
            handshake(server_context(server), client_context(client), "a.topic.jobpipe")
        assert caught.value.verify_message == "certificate has expired"


def test_contexts_are_kept_until_a_file_changes(tmp_path: Path) -> None:
    init_ca(tmp_path)
    files = issue(tmp_path, "x", now=datetime.now(UTC) - timedelta(days=10))
    server, client = server_context(files), client_context(files)
    assert server is not client
    assert (server_context(files), client_context(Credentials(files.ca, files.cert, files.key))) == (server, client)
    issue(tmp_path, "x", replace=True)
    renewed = server_context(files)
    assert renewed is not server
    assert client_context(files) is not client
    assert server_context(files) is renewed


@pytest.mark.parametrize("part", ["ca", "cert", "key"])
@pytest.mark.parametrize("make", [server_context, client_context])
@pytest.mark.parametrize("damage", ["missing", "garbage", "empty", "folder"])
def test_a_bad_file_is_named(tmp_path: Path, part: str, make: type, damage: str) -> None:
    init_ca(tmp_path)
    files = issue(tmp_path, "x")
    make(files)
    path: Path = getattr(files, part)
    path.unlink()
    if damage == "garbage":
        path.write_text("-----BEGIN CERTIFICATE-----\nx\n-----END CERTIFICATE-----\n")
    elif damage == "empty":
        path.touch()
    elif damage == "folder":
        path.mkdir(0o700)
    if damage in ("garbage", "empty"):
        path.chmod(0o600)
    with pytest.raises(ConfigError) as caught:
        make(files)
    assert str(path) in caught.value.message
    assert caught.value.fields["file"] in (str(path), str(files.cert))


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o644, 0o610, 0o666])
def test_a_key_others_may_use_is_refused(tmp_path: Path, mode: int) -> None:
    init_ca(tmp_path)
    files = issue(tmp_path, "x")
    server_context(files)
    files.key.chmod(mode)
    for make in (server_context, client_context):
        with pytest.raises(ConfigError) as caught:
            make(files)
        assert caught.value.fields["file"] == str(files.key)
    files.key.chmod(0o400)
    server_context(files)


def test_the_key_of_another_certificate(tmp_path: Path) -> None:
    init_ca(tmp_path)
    one, other = issue(tmp_path, "one"), issue(tmp_path, "other")
    with pytest.raises(ConfigError) as caught:
        server_context(Credentials(one.ca, one.cert, other.key))
    assert caught.value.fields["reason"] == "KEY_VALUES_MISMATCH"


def lock(path: Path, password: bytes) -> None:
    """Encrypt a private key where it lies."""
    key = serialization.load_pem_private_key(path.read_bytes(), None)
    locked = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(password)
    )
    path.write_bytes(locked)


def test_an_encrypted_key_is_refused_and_no_password_asked(tmp_path: Path) -> None:
    init_ca(tmp_path)
    files = issue(tmp_path, "x")
    lock(files.key, b"word")
    with pytest.raises(ConfigError, match=r"ssl\.key\.password") as caught:
        server_context(files)
    assert caught.value.fields["file"] == str(files.key)


def test_an_encrypted_key_is_opened_with_the_password_that_is_referred_to(tmp_path: Path) -> None:
    init_ca(tmp_path)
    plain = issue(tmp_path, "x", dns=[topic_server_name("a")])
    lock(plain.key, b"open sesame")
    word = tmp_path / "word"
    word.touch(0o600)
    files = dataclasses.replace(plain, password=Secret(f"file:{word}"))
    for wrong in ("", "open barley"):
        word.write_text(wrong)
        with pytest.raises(ConfigError) as caught:
            server_context(files)
        assert str(word) in caught.value.message
        assert not wrong or wrong not in str(caught.value) + repr(caught.value.fields)
    word.write_text("open sesame\n")
    handshake(server_context(files), client_context(files), topic_server_name("a"))


def test_the_environments_key_log_is_ignored(
    home: Credentials, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSLKEYLOGFILE", str(tmp_path / "keys"))
    os.utime(home.cert)
    handshake(server_context(home), client_context(home), "a.topic.jobpipe")
    assert not (tmp_path / "keys").exists()
