"""Case 67: revocation lists: made, checked before use, taken in by contexts that live; and warnings before an end."""

from __future__ import annotations

import logging
import os
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509

from jobpipe.errors import ConfigError
from jobpipe.net.tls.certificates import NODE_LIFE, describe, ensure_home, init_ca, issue, renew
from jobpipe.net.tls.expiry_warnings import ExpiryWatch, expiries
from jobpipe.net.tls.revocation import CRL_LIFE, describe_crls, revoke
from jobpipe.net.tls.tls_context import Credentials, ServerTls, client_context, latest_context, server_context
from tests.net.test_tls_context import handshake

NOW = datetime.now(UTC).replace(microsecond=0)
NAME = "orders.topic.jobpipe"


@pytest.fixture
def files(tmp_path: Path) -> Credentials:
    init_ca(tmp_path)
    return issue(tmp_path, "job", dns=[NAME])


def test_a_list_grows_and_keeps_its_mode(files: Credentials) -> None:
    folder = files.ca.parent
    issue(folder, "two")
    path = revoke(folder, ["job"], now=NOW)
    revoke(folder, ["two", "job"], now=NOW + timedelta(days=1))
    crl = x509.load_pem_x509_crl(path.read_bytes())
    assert len(list(crl)) == 2
    assert crl.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number == 2
    assert crl.next_update_utc == NOW + timedelta(days=1) + CRL_LIFE
    assert path.stat().st_mode & 0o777 == 0o644
    revoke(folder, now=NOW + timedelta(days=2))
    assert len(describe_crls(path)[0].revoked) == 2, "dated anew, and as long as before"


def test_all_that_was_issued_under_a_name_goes(files: Credentials, tmp_path: Path) -> None:
    """A renewal keeps the key, so that whoever has it may show the certificate before."""
    folder = files.ca.parent
    before = Credentials(files.ca, tmp_path / "before.crt", files.key)
    before.cert.write_bytes(files.cert.read_bytes())
    renew(folder, "job")
    path = revoke(folder, ["job"])
    (info,) = describe_crls(path)
    assert set(info.revoked) == {describe(file).serial for file in (files.cert, before.cert)}
    other = issue(folder, "other", dns=[NAME])
    for client in (files, before):
        with pytest.raises(ssl.SSLCertVerificationError, match="certificate revoked"):
            handshake(server_context(other), client_context(client), NAME)
    files.cert.unlink()
    issue(folder, "two").cert.unlink()
    assert len(describe_crls(revoke(folder, ["job", "two"]))[0].revoked) == 3, "the files need not be there"


def test_without_a_list_nothing_is_checked_and_with_one_everything(files: Credentials) -> None:
    assert not server_context(files).verify_flags & ssl.VERIFY_CRL_CHECK_LEAF
    revoke(files.ca.parent)
    for context in (server_context(files), client_context(files)):
        assert context.verify_flags & ssl.VERIFY_CRL_CHECK_LEAF
        assert context.cert_store_stats()["crl"] == 1
    handshake(server_context(files), client_context(files), NAME)


def test_both_sides_refuse_who_is_on_it(files: Credentials) -> None:
    folder = files.ca.parent
    other = issue(folder, "other", dns=[NAME])
    revoke(folder, ["job"])
    for server, client in ((files, other), (other, files)):
        with pytest.raises(ssl.SSLCertVerificationError, match="certificate revoked"):
            handshake(server_context(server), client_context(client), NAME)


@pytest.mark.parametrize("damage", ["expired", "garbage", "empty", "stranger", "one of two", "folder", "missing"])
def test_a_list_that_cannot_be_used_is_an_error(files: Credentials, tmp_path: Path, damage: str) -> None:
    """Never passed over in silence: the error names the file and what to do."""
    folder = files.ca.parent
    path = folder / "ca.crl"
    given = files
    if damage == "expired":
        revoke(folder, now=NOW - CRL_LIFE - timedelta(days=1))
    elif damage == "garbage":
        path.write_text("-----BEGIN X509 CRL-----\nx\n-----END X509 CRL-----\n")
    elif damage == "empty":
        path.touch()
    elif damage == "folder":
        path.mkdir()
    elif damage == "missing":
        path = folder / "named.crl"
        given = Credentials(files.ca, files.cert, files.key, crl=path)
    else:
        init_ca(tmp_path / "other")
        other = revoke(tmp_path / "other").read_bytes()
        path.write_bytes(other)
        if damage == "one of two":
            files.ca.write_bytes(files.ca.read_bytes() + (tmp_path / "other" / "ca.crt").read_bytes())
    for make in (server_context, client_context):
        with pytest.raises(ConfigError) as caught:
            make(given)
        assert caught.value.fields["file"] == str(path)
        if damage != "missing":
            assert "jobpipe certs revoke" in caught.value.message


def test_a_bundle_with_a_list_of_each(files: Credentials, tmp_path: Path) -> None:
    folder = files.ca.parent
    init_ca(tmp_path / "other")
    both = [revoke(folder), revoke(tmp_path / "other")]
    (folder / "ca.crl").write_bytes(b"".join(path.read_bytes() for path in both))
    files.ca.write_bytes(files.ca.read_bytes() + (tmp_path / "other" / "ca.crt").read_bytes())
    theirs = issue(tmp_path / "other", "theirs", dns=[NAME])
    server = server_context(files)
    assert server.cert_store_stats() == {"x509": 2, "crl": 2, "x509_ca": 2}
    handshake(server, client_context(Credentials(files.ca, theirs.cert, theirs.key)), NAME)


def test_a_running_server_follows_its_files(files: Credentials, caplog: pytest.LogCaptureFixture) -> None:
    folder = files.ca.parent
    tls = ServerTls(files)
    first = tls.context
    assert not tls.refresh()
    assert tls.context is first
    issue(folder, "job", dns=[NAME], replace=True)
    assert not tls.refresh(), "another certificate of ours is no other trust"
    assert tls.context is not first
    revoke(folder)
    assert tls.refresh(), "links there are must prove themselves anew"
    assert not tls.refresh()
    good = tls.context
    os.rename(files.key, folder / "away")
    for _ in range(3):
        assert not tls.refresh()
    assert tls.context is good
    assert len([record for record in caplog.records if str(files.key) in record.message]) == 1
    os.rename(folder / "away", files.key)
    revoke(folder, now=NOW - CRL_LIFE - timedelta(days=1))
    assert not tls.refresh(), "a list that is out of date takes no place of a good one"
    assert tls.context is good
    revoke(folder)
    assert tls.refresh()


def test_clients_bridge_the_change_of_two_files(files: Credentials) -> None:
    folder = files.ca.parent
    other = issue(folder, "other", dns=[NAME])
    before = latest_context(files)
    files.key.write_bytes(other.key.read_bytes())
    with pytest.raises(ConfigError):
        client_context(files)
    assert latest_context(files) is before
    files.cert.write_bytes(other.cert.read_bytes())
    assert latest_context(files) not in (before, None)
    fresh = issue(folder, "fresh")
    fresh.key.write_bytes(other.key.read_bytes())
    with pytest.raises(ConfigError):  # nothing was good before
        latest_context(fresh)


def test_the_home_dates_its_list_anew(tmp_path: Path) -> None:
    """The embedded mode needs no certificate commands."""
    files = ensure_home(tmp_path)
    issue(files.ca.parent, "old")
    path = revoke(files.ca.parent, ["old"], now=NOW - CRL_LIFE + timedelta(days=5))
    server_context(files)
    ensure_home(tmp_path, now=NOW + NODE_LIFE)
    (info,) = describe_crls(path)
    assert info.not_after > NOW + NODE_LIFE
    assert len(info.revoked) == 1


@pytest.mark.parametrize(
    ("left", "days"),
    [(31, None), (30, 30), (8, 30), (7, 7), (1.5, 7), (1, 1), (0.01, 1), (0, 0), (-1, 0)],
)
def test_thresholds(files: Credentials, left: float, days: int | None) -> None:
    item = next(item for item in expiries(files) if item.path == files.cert)
    assert item.threshold(item.end - timedelta(days=left)) == days


def test_each_warning_once(files: Credentials, caplog: pytest.LogCaptureFixture) -> None:
    """Case 71: 30, 7 and 1 days ahead; what is looked at each second is read once an hour."""
    caplog.set_level(logging.WARNING)
    revoke(files.ca.parent, now=NOW - CRL_LIFE + timedelta(days=20))
    clock = [0.0]
    watch = ExpiryWatch(files, clock=lambda: clock[0])

    def look(at: datetime) -> list[str]:
        caplog.clear()
        clock[0] += 3600.0
        for _ in range(5):
            watch.log_due(at)
        return [Path(record.args[0]).name for record in caplog.records]  # type: ignore[index, arg-type]

    end = next(item.end for item in expiries(files) if item.path == files.cert)
    assert look(NOW) == ["ca.crl"]
    assert look(NOW) == []
    assert look(NOW + timedelta(days=14)) == ["ca.crl"]
    assert look(end - timedelta(days=3)) == ["job.crt", "ca.crl"]
    assert look(end - timedelta(hours=3)) == ["job.crt"]
    issue(files.ca.parent, "job", dns=[NAME], replace=True)
    revoke(files.ca.parent)
    assert look(NOW) == []
    files.cert.unlink()
    look(NOW)
    assert "expected a certificate in PEM" in caplog.text
