"""The CA, certificates, and those a home makes for itself."""

from __future__ import annotations

import multiprocessing
import os
import stat
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID
from hypothesis import given, settings
from hypothesis import strategies as st

from jobpipe.config import Config, load
from jobpipe.errors import ConfigError
from jobpipe.net.tls import certificates, key_files
from jobpipe.net.tls.certificates import credentials, describe, ensure_home, init_ca, issue
from jobpipe.net.tls.peer_names import topic_server_name
from jobpipe.net.tls.tls_context import Credentials

NOW = datetime.now(UTC).replace(microsecond=0)


def read(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture(autouse=True)
def _loose_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.parametrize(
    ("topic", "name"),
    [
        ("orders", "orders.topic.jobpipe"),
        ("orders-2", "orders-2.topic.jobpipe"),
        ("0", "0.topic.jobpipe"),
        ("a" * 63, f"{'a' * 63}.topic.jobpipe"),
    ],
)
def test_a_plain_topic_is_its_own_label(topic: str, name: str) -> None:
    assert topic_server_name(topic) == name


@pytest.mark.parametrize("topic", ["Orders", "a.b", "a_b", "a-", "a" * 64, "xn--a", "h" + "0" * 40])
def test_any_other_topic_is_hashed(topic: str) -> None:
    label, rest = topic_server_name(topic).split(".", 1)
    assert rest == "topic.jobpipe"
    assert len(label) == 41
    assert label[0] == "h"
    assert label != topic


@settings(deadline=None)  # the machine may be busy
@given(st.lists(st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", fullmatch=True), unique=True))
def test_no_two_topics_share_a_name(topics: list[str]) -> None:
    topics += [topic_server_name(topic).removesuffix(".topic.jobpipe") for topic in topics]
    assert len({topic_server_name(topic) for topic in set(topics)}) == len(set(topics))


def test_ca(tmp_path: Path) -> None:
    init_ca(tmp_path / "new" / "ca", now=NOW)
    folder = tmp_path / "new" / "ca"
    assert (mode(folder), mode(folder / "ca.key"), mode(folder / "ca.crt")) == (0o700, 0o600, 0o644)
    ca = read(folder / "ca.crt")
    assert ca.not_valid_after_utc == NOW + timedelta(days=3650)
    basic = ca.extensions.get_extension_for_class(x509.BasicConstraints)
    assert (basic.critical, basic.value.ca, basic.value.path_length) == (True, True, 0)
    usage = ca.extensions.get_extension_for_class(x509.KeyUsage)
    assert (usage.critical, usage.value.key_cert_sign, usage.value.digital_signature) == (True, True, False)
    ca.verify_directly_issued_by(ca)
    assert describe(folder / "ca.crt").is_ca


def test_a_ca_is_never_replaced(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    init_ca(tmp_path, name="ours")
    before = (tmp_path / "ca.crt").read_bytes(), (tmp_path / "ca.key").read_bytes()
    with pytest.raises(ConfigError) as caught:
        init_ca(tmp_path)
    assert caught.value.fields["file"] == str(tmp_path / "ca.crt")
    assert before == ((tmp_path / "ca.crt").read_bytes(), (tmp_path / "ca.key").read_bytes())
    assert describe(tmp_path / "ca.crt").subject == "CN=ours"
    assert mode(tmp_path) == 0o755, "a folder that was there keeps its mode"


def test_issued_certificate(tmp_path: Path) -> None:
    init_ca(tmp_path)
    files = issue(tmp_path, "billing", now=NOW)
    assert files == Credentials(tmp_path / "ca.crt", tmp_path / "billing.crt", tmp_path / "billing.key")
    assert mode(files.key) == 0o600
    leaf, ca = read(files.cert), read(files.ca)
    leaf.verify_directly_issued_by(ca)
    key = leaf.public_key()
    assert isinstance(key, ec.EllipticCurvePublicKey)
    assert key.curve.name == "secp256r1"
    assert leaf.not_valid_after_utc == NOW + timedelta(days=825)
    assert leaf.not_valid_before_utc < NOW
    get = leaf.extensions.get_extension_for_class
    assert get(x509.BasicConstraints).value.ca is False
    assert get(x509.KeyUsage).value.digital_signature is True
    assert list(get(x509.ExtendedKeyUsage).value) == [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    authority = get(x509.AuthorityKeyIdentifier).value.key_identifier
    subject = ca.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value.digest
    assert authority == subject
    assert get(x509.SubjectKeyIdentifier).value.digest != subject
    info = describe(files.cert)
    assert (info.subject, info.names, info.is_ca, info.not_after) == (
        "CN=billing",
        ("billing.jobpipe",),
        False,
        leaf.not_valid_after_utc,
    )
    assert info.issuer == describe(files.ca).subject
    assert timedelta(days=824) < info.not_after - NOW <= timedelta(days=825)


def test_issued_names(tmp_path: Path) -> None:
    init_ca(tmp_path)
    names = (topic_server_name("Orders.x"), "*.topic.jobpipe")
    assert describe(issue(tmp_path, "node", dns=names).cert).names == names
    assert describe(issue(tmp_path, "Big.Name").cert).names[0].startswith("h"), "no plain label: hashed"


@pytest.mark.parametrize("name", ["", "ca", "a/b", "..", "-a", "a b", "a" * 65, "ä"])
def test_bad_names(tmp_path: Path, name: str) -> None:
    init_ca(tmp_path)
    with pytest.raises(ConfigError):
        issue(tmp_path, name)
    assert {path.name for path in tmp_path.iterdir()} == {".lock", "ca.crt", "ca.key"}


@pytest.mark.parametrize(
    "dns", ["", "A", "a..b", "*", "a.*.b", "*a.b", "a b", "-a", "ä", "a" * 64, ".".join(["a"] * 200)]
)
def test_bad_dns_names(tmp_path: Path, dns: str) -> None:
    init_ca(tmp_path)
    with pytest.raises(ConfigError) as caught:
        issue(tmp_path, "x", dns=["good.jobpipe", dns])
    assert caught.value.fields["name"] == dns


def test_issuing_needs_the_ca_and_its_key(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        issue(tmp_path, "x")
    init_ca(tmp_path)
    (tmp_path / "ca.key").rename(tmp_path / "away")
    with pytest.raises(ConfigError) as caught:
        issue(tmp_path, "x")
    assert caught.value.fields["file"] == str(tmp_path / "ca.key")
    init_ca(tmp_path / "other")
    (tmp_path / "other" / "ca.key").rename(tmp_path / "ca.key")
    with pytest.raises(ConfigError):
        issue(tmp_path, "x")
    assert not (tmp_path / "x.crt").exists()


def test_an_issued_certificate_is_replaced_only_on_request(tmp_path: Path) -> None:
    init_ca(tmp_path)
    files = issue(tmp_path, "x", now=NOW)
    with pytest.raises(ConfigError):
        issue(tmp_path, "x")
    before = files.key.read_bytes(), describe(files.cert)
    issue(tmp_path, "x", replace=True, now=NOW + timedelta(days=1))
    after = files.key.read_bytes(), describe(files.cert)
    assert before[0] == after[0]
    assert after[1].not_after == before[1].not_after + timedelta(days=1)
    assert after[1].serial != before[1].serial


def test_no_certificate_outlives_its_ca(tmp_path: Path) -> None:
    init_ca(tmp_path, now=NOW)
    files = issue(tmp_path, "x", now=NOW + timedelta(days=3600))
    assert describe(files.cert).not_after == describe(files.ca).not_after


def snapshot(home: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (home / "certs").iterdir()}


def test_home_is_made_once(tmp_path: Path) -> None:
    home = tmp_path / "a" / "home"
    files = ensure_home(home)
    folder = home / "certs"
    assert files == Credentials(folder / "ca.crt", folder / "node.crt", folder / "node.key")
    assert (mode(home), mode(folder)) == (0o700, 0o700)
    assert [mode(path) for path in (files.key, folder / "ca.key", folder / ".lock")] == [0o600] * 3
    info = describe(files.cert)
    assert info.names == ("*.topic.jobpipe", "node.jobpipe")
    assert timedelta(days=824) < info.not_after - NOW < timedelta(days=826)
    before = snapshot(home)
    assert set(before) == {".lock", "ca.crt", "ca.key", "issued.jsonl", "node.crt", "node.key"}
    assert ensure_home(home) == files
    assert snapshot(home) == before


@pytest.mark.parametrize("days", [796, 824, 900])
def test_a_certificate_near_its_end_is_renewed(tmp_path: Path, days: int) -> None:
    files = ensure_home(tmp_path, now=NOW)
    before = snapshot(tmp_path)
    ensure_home(tmp_path, now=NOW + timedelta(days=790))
    assert snapshot(tmp_path) == before
    ensure_home(tmp_path, now=NOW + timedelta(days=days))
    after = snapshot(tmp_path)
    assert {name for name in after if after[name] != before[name]} == {"node.crt", "issued.jsonl"}
    assert describe(files.cert).not_after == NOW + timedelta(days=days + 825)
    read(files.cert).verify_directly_issued_by(read(files.ca))


def test_a_ca_near_its_end_is_renewed_with_its_key(tmp_path: Path) -> None:
    files = ensure_home(tmp_path, now=NOW)
    old = read(files.ca)
    later = NOW + timedelta(days=3640)
    ensure_home(tmp_path, now=later)
    new = read(files.ca)
    assert (new.public_key(), new.subject) == (old.public_key(), old.subject)
    assert new.not_valid_after_utc == later + timedelta(days=3650)
    read(files.cert).verify_directly_issued_by(old)


@pytest.mark.parametrize(
    "missing", [{"node.crt"}, {"node.key"}, {"node.crt", "node.key"}, {"ca.crt"}, {"ca.crt", "ca.key"}]
)
def test_what_is_missing_is_made_again(tmp_path: Path, missing: set[str]) -> None:
    files = ensure_home(tmp_path)
    for name in missing:
        (tmp_path / "certs" / name).unlink()
    assert ensure_home(tmp_path) == files
    leaf, ca = read(files.cert), read(files.ca)
    leaf.verify_directly_issued_by(ca)
    assert certificates._is_current(files, NOW)


def test_a_home_without_the_cas_key_lasts_as_long_as_its_certificate(tmp_path: Path) -> None:
    files = ensure_home(tmp_path, now=NOW)
    (tmp_path / "certs" / "ca.key").unlink()
    assert ensure_home(tmp_path, now=NOW) == files
    before = snapshot(tmp_path)
    for days in (800, 3640):
        with pytest.raises(ConfigError) as caught:
            ensure_home(tmp_path, now=NOW + timedelta(days=days))
        assert caught.value.fields["file"] == str(tmp_path / "certs" / "ca.key")
    assert snapshot(tmp_path) == before, "the CA is never replaced by one with another key"


@pytest.mark.parametrize("name", ["ca.crt", "node.crt", "node.key"])
def test_a_damaged_file_is_named(tmp_path: Path, name: str) -> None:
    ensure_home(tmp_path)
    path = tmp_path / "certs" / name
    path.write_text("damaged")
    with pytest.raises(ConfigError) as caught:
        ensure_home(tmp_path)
    assert caught.value.fields["file"] == str(path)


def test_a_folder_open_to_others_is_closed(tmp_path: Path) -> None:
    (tmp_path / "certs").mkdir(mode=0o777)
    ensure_home(tmp_path)
    assert mode(tmp_path / "certs") == 0o700


def test_a_home_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("")
    with pytest.raises(ConfigError):
        ensure_home(tmp_path / "home")


def test_no_half_written_file_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(ConfigError):
        init_ca(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]


def test_many_threads_make_one_home(tmp_path: Path) -> None:
    with ThreadPoolExecutor(16) as pool:
        made = list(pool.map(lambda _: (ensure_home(tmp_path), snapshot(tmp_path)), range(32)))
    assert all(one == made[0] for one in made)


def _fingerprint(home: Path) -> str:
    return describe(ensure_home(home).cert).fingerprint


@pytest.mark.slow
def test_many_processes_make_one_home(tmp_path: Path) -> None:
    with ProcessPoolExecutor(4, mp_context=multiprocessing.get_context("spawn")) as pool:
        prints = set(pool.map(_fingerprint, [tmp_path / "home"] * 16, timeout=60))
    assert len(prints) == 1


def test_a_lock_that_is_held_is_an_error_in_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_files, "LOCK_TIMEOUT", 0.05)
    with key_files.locked(tmp_path / "certs"), pytest.raises(ConfigError) as caught:
        ensure_home(tmp_path)
    assert caught.value.fields["file"] == str(tmp_path / "certs" / ".lock")


def test_describe_of_no_certificate(tmp_path: Path) -> None:
    for path in (tmp_path / "missing", tmp_path):
        with pytest.raises(ConfigError) as caught:
            describe(path)
        assert caught.value.fields["file"] == str(path)


def test_credentials_of_a_configuration(tmp_path: Path) -> None:
    home = {"home": str(tmp_path)}
    assert credentials(load(overrides={**home, "ssl_enabled": False}, environ={})) is None
    assert not (tmp_path / "certs").exists()
    assert credentials(load(overrides=home, environ={})) == ensure_home(tmp_path)
    given = {f"ssl_{name}": f"/k/{name}" for name in ("ca", "cert", "key")}
    own: Config = load(overrides={**home, **given}, environ={})
    assert credentials(own) == Credentials(Path("/k/ca"), Path("/k/cert"), Path("/k/key"))
