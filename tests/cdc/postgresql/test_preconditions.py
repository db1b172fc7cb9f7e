"""What PostgreSQL lacks is told at once, each with the statement that mends it; the statements do."""

from __future__ import annotations

import datetime
import ipaddress
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from jobpipe.cdc.postgresql.database.database_catalog import FAILOVER_SINCE, SCHEMAS_SINCE
from jobpipe.config import Config
from jobpipe.errors import ConfigError, LinkError
from tests.bus.kit import until
from tests.cdc.capturing import PATIENCE, options, routes, running, settled
from tests.databases.postgres import PASSWORD, Postgres, missing

pytestmark = [pytest.mark.zookeeper, pytest.mark.timeout(120)]


@pytest.fixture
def role(decoded: Postgres, schema: str) -> Iterator[str]:
    """A role without rights."""
    name = f"r{schema}"
    decoded.query(f"CREATE ROLE {name} LOGIN PASSWORD '{PASSWORD}'")
    yield name
    decoded.query(f"DROP OWNED BY {name} CASCADE")
    decoded.query(f"DROP ROLE {name}")


def problems(given: object, config: Config) -> list[tuple[str, str]]:
    """Return what a capture misses, each with its remedy."""
    with pytest.raises(ConfigError, match="is not ready for a capture") as caught:
        with running(given, config):
            pass
    lines = str(caught.value).splitlines()[1:]
    return [(what.strip(), remedy) for what, _, remedy in (line.partition(": ") for line in lines)]


def test_all_at_once_and_each_statement_mends(decoded: Postgres, schema: str, config: Config, role: str) -> None:
    query = decoded.query
    query(f"CREATE TABLE {schema}.t (id int PRIMARY KEY)")
    query(f'CREATE TABLE {schema}."No Key" (a int)')
    query(f"CREATE UNLOGGED TABLE {schema}.unlogged (id int PRIMARY KEY)")
    query(f"CREATE VIEW {schema}.v AS SELECT 1 AS id")
    given = options(decoded, schema, ["t", "No Key", "unlogged", "v", "typo"], username=role)
    found = problems(given, config)
    assert [re.sub(schema, "S", what) for what, _ in found] == [
        "role rS may not replicate",
        "table S.No Key cannot be read",
        "table S.No Key has no replica identity, and updates of it would fail once it is published",
        "table S.t cannot be read",
        "table S.unlogged is not logged",
        "table S.unlogged cannot be read",
        "S.v is a view",
        "there is no table S.typo",
        "there is no publication jobpipe_cS, and this role cannot make it, as it does not own S.No Key, S.t, "
        "S.unlogged, S.v",
    ]
    given = options(
        decoded,
        schema,
        ["t", "No Key", "unlogged"],
        username=role,
        route=routes({r".*\.No Key": "no-key", r".*\.(.*)": "$1"}),
    )
    for _, remedy in problems(given, config):
        statement = re.sub(r"ALTER TABLE .* ADD PRIMARY KEY \(\.\.\.\); or |as the owner: ", "", remedy)
        query(statement)
    with running(given, config) as capture:
        until(lambda: settled(capture), PATIENCE, "the end of reading")


@pytest.mark.slow
def test_publications_that_leave_something_out(decoded: Postgres, schema: str, config: Config, role: str) -> None:
    query, table = decoded.query, f"{schema}.t"
    query(f"CREATE TABLE {table} (id int PRIMARY KEY, n int)")
    query(f"CREATE TABLE {schema}.more (id int PRIMARY KEY)")
    query(f"ALTER ROLE {role} REPLICATION")
    query(f"GRANT USAGE ON SCHEMA {schema} TO {role}")
    query(f"GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO {role}")
    query(f"CREATE PUBLICATION p{schema} FOR TABLE {table} (id) WHERE (id > 5) WITH (publish = 'insert')")
    given = options(decoded, schema, ["t", "more"], username=role, publication_name=f"p{schema}")
    found = problems(given, config)
    assert [re.sub(schema, "S", what) for what, _ in found] == [
        "publication pS leaves out some operations",
        "publication pS leaves out rows or columns of S.t",
        "publication pS lacks S.more, which this role does not own",
    ]
    for _, remedy in found:
        for statement in remedy.removeprefix("as the owner: ").rstrip(";").split("; "):
            query(statement)
    with running(given, config) as capture:
        until(lambda: settled(capture), PATIENCE, "the end of reading")


def test_partitions_without_a_replica_identity(decoded: Postgres, schema: str, config: Config) -> None:
    """PostgreSQL passes it on to none; what is published then could not be updated any more."""
    query = decoded.query
    query(f"CREATE TABLE {schema}.p (id int, v text) PARTITION BY RANGE (id)")
    query(f"ALTER TABLE {schema}.p REPLICA IDENTITY FULL")
    query(f"CREATE TABLE {schema}.p1 PARTITION OF {schema}.p DEFAULT")
    query(f"INSERT INTO {schema}.p VALUES (1, 'x')")
    given = options(decoded, schema, ["p"])
    ((what, remedy),) = problems(given, config)
    assert what.startswith(f"partition {schema}.p1 of table {schema}.p has no replica identity")
    query(remedy)
    with running(given, config):
        query(f"UPDATE {schema}.p SET v = 'y'")


def test_a_wrong_password_ends_it(decoded: Postgres, schema: str, config: Config, role: str) -> None:
    query = decoded.query
    query(f"CREATE TABLE {schema}.t (id int PRIMARY KEY)")
    query(f"ALTER ROLE {role} PASSWORD 'another'")
    with pytest.raises(LinkError, match="password authentication failed"):
        with running(options(decoded, schema, ["t"], username=role), config):
            pass


@pytest.mark.slow
def test_a_server_that_does_not_decode(config: Config) -> None:
    """wal_level, and no free slot."""
    if (what := missing()) is not None:
        pytest.skip(f"a test with a real PostgreSQL needs {what}")
    with Postgres(wal_level="replica", max_replication_slots="0", max_wal_senders="0") as server:
        server.query("CREATE TABLE t (id int PRIMARY KEY)")
        assert [what for what, _ in problems(options(server, "public", ["t"]), config)] == [
            "wal_level is replica",
            "all 0 replication slots are taken",
            "max_wal_senders is 0",
        ]


def _certificate(folder: Path, name: str) -> tuple[Path, Path]:
    """Make a certificate of 127.0.0.1 that signs itself, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False)
        .sign(key, hashes.SHA256())
    )
    paths = folder / f"{name}.crt", folder / f"{name}.key"
    paths[0].write_bytes(made.public_bytes(serialization.Encoding.PEM))
    form = serialization.PrivateFormat.PKCS8
    paths[1].write_bytes(key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))
    return paths


@pytest.mark.parametrize("scope", ["TABLES IN SCHEMA", "ALL TABLES"])
def test_a_publication_of_more_than_tables(decoded: Postgres, schema: str, config: Config, scope: str) -> None:
    """Of a schema, or of everything: nothing is added to it."""
    query = decoded.query
    if scope != "ALL TABLES" and int(query("SHOW server_version_num")[0][0]) < SCHEMAS_SINCE:
        pytest.skip("a publication of a schema needs PostgreSQL 15")
    given = options(decoded, schema, ["t", "u"])
    query(f"CREATE TABLE {schema}.t (id int PRIMARY KEY) PARTITION BY RANGE (id)")
    query(f"CREATE TABLE {schema}.u (id int PRIMARY KEY)")
    of = scope if scope == "ALL TABLES" else f"{scope} {schema}"
    query(f"CREATE PUBLICATION {given.publication} FOR {of} WITH (publish_via_partition_root)")
    with running(given, config) as capture:
        until(lambda: settled(capture), PATIENCE, "the end of reading")
    assert (
        query(
            "SELECT prrelid FROM pg_publication_rel r JOIN pg_publication p ON p.oid = prpubid WHERE pubname = %s",
            given.publication,
        )
        == []
    )


@pytest.mark.slow
def test_a_slot_goes_on_at_a_standby(
    decoded: Postgres, schema: str, config: Config, caplog: pytest.LogCaptureFixture
) -> None:
    """From 17 on; a warning if a standby may be less far than the topics."""
    query = decoded.query
    if int(query("SHOW server_version_num")[0][0]) < FAILOVER_SINCE:
        pytest.skip("slots that fail over need PostgreSQL 17; POSTGRES_BIN is the folder of its programs")
    query(f"CREATE TABLE {schema}.t (id int PRIMARY KEY)")
    given = options(decoded, schema, ["t"])
    with running(given, config):
        assert query("SELECT failover FROM pg_replication_slots WHERE slot_name = %s", given.slot) == [(True,)]
    assert "synchronized_standby_slots" not in caplog.text
    query("SELECT pg_create_physical_replication_slot('standby')")
    try:
        with running(given, config):
            assert "there are 1 slots of standbys, and synchronized_standby_slots is empty" in caplog.text
    finally:
        query("SELECT pg_drop_replication_slot('standby')")


@pytest.mark.slow
def test_the_database_shows_a_certificate(tmp_path: Path, config: Config) -> None:
    """All connections, that of the stream too, are encrypted, and its certificate is verified."""
    if (what := missing()) is not None:
        pytest.skip(f"a test with a real PostgreSQL needs {what}")
    server = Postgres(wal_level="logical", ssl="on", ssl_cert_file="server.crt", ssl_key_file="server.key")
    certificate, key = _certificate(tmp_path, "server")
    make = server.make

    def with_certificate() -> None:
        make()
        for path in (certificate, key):
            target = server.folder / "data" / path.name
            shutil.copy(path, target)
            target.chmod(0o600)
            stat = target.parent.stat()
            os.chown(target, stat.st_uid, stat.st_gid)

    server.make = with_certificate  # type: ignore[method-assign]
    with server:
        server.query("CREATE TABLE t (id int PRIMARY KEY)")
        verified = {"ssl_mode": "verify-full", "ssl_root_cert": str(certificate)}
        with running(options(server, "public", ["t"], **verified), config) as capture:
            until(lambda: settled(capture), PATIENCE, "the end of reading")
            found = server.query(
                "SELECT ssl FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) "
                "WHERE application_name LIKE 'jobpipe cdc%'"
            )
            assert (set(found), len(found)) == ({(True,)}, 3)
        other, _ = _certificate(tmp_path, "other")
        with pytest.raises(LinkError, match="certificate verify failed"):
            with running(options(server, "public", ["t"], **{**verified, "ssl_root_cert": str(other)}), config):
                pass
