"""Free keys whose values are secrets, those that only look so, and what becomes of references."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from jobpipe.config.types.secrets import Secret, encrypt, make_key
from jobpipe.jobs.workloads.spark_session import REDACTION, session_keys
from jobpipe.pipelines.file.field_types import revealed
from jobpipe.pipelines.file.secret_keys import holds_secret, is_secret
from jobpipe.pipelines.loading.loader import load_pipeline
from tests.pipelines.conftest import Write, loaded, problems

SECRET = (
    *("password", "db.passwd", "pass", "mail-pass", "pwd", "db_pwd", "ssl.key.passphrase", "client_secret"),
    *(
        "token",
        "refresh_token",
        "id_token",
        "idToken",
        "refreshToken",
        "github.token",
        "apiToken",
        "spark.cosmos.accountKey",
    ),
    *(
        "api-key",
        "private_key",
        "privateKey",
        "fs.gs.auth.service.account.private.key",
        "kafka.ssl.keystore.key",
    ),
    *("credentials", "credential", "catalog.credential", "fs.s3a.secret.key", "aws_secret_access_key"),
    *("kafka.sasl.jaas.config", "KAFKA.SSL.KEYSTORE.KEY", "spark.hadoop.fs.azure.account.key"),
    "spark.hadoop.fs.azure.account.key.shop.dfs.core.windows.net",
    "fs.azure.account.oauth2.client.secret.shop.dfs.core.windows.net",
    "fs.azure.account.oauth2.user.password.shop.dfs.core.windows.net",
    "fs.azure.sas.fixed.token.shop.dfs.core.windows.net",
    *("fs.s3a.encryption.key", "fs.s3a.server-side-encryption.key", "spark.hadoop.fs.s3a.bucket.b.encryption.key"),
    *("connectionString", "eventhubs.connectionString", "connection_string", "connection-string"),  # V12
    *("sharedAccessKey", "shared_access_key", "eventhubs.shared-access-key", "SharedAccessSignature", "sharedKey"),
    *("signature", "X-Amz-Signature", "url_signature", "signingKey", "signing.key", "sasToken", "securityToken"),
    *("Ocp-Apim-Subscription-Key", "auth_key", "authKey"),
    *("basic.auth.user.info", "kafka.schema.registry.basic.auth.user.info", "basicAuthUserInfo"),
    *("csrf_token", "x-token", "maxwell.token.refresh_token", "next_access_token"),
    *("fs.azure.sas.container.account", "spark.hadoop.fs.azure.sas.box.shop.blob.core.windows.net"),
)
INNOCENT = (
    *("key", "partition.key", "primary-key", "sort.key", "keys", "row_key", "max.tokens", "tokens", "tokenizer"),
    *("kafka.ssl.keystore.location", "kafka.ssl.keystore.type", "kafka.ssl.truststore.certificates", "keystore"),
    *("private.key.id", "kafka.sasl.oauthbearer.token.endpoint.url", "token.file", "access.key", "passes", "bypass"),
    *("compass", "credentialsFile", "fs.s3a.aws.credentials.provider", "fs.s3a.security.credential.provider.path"),
    *("fs.azure.account.auth.type.shop.dfs.core.windows.net", "fs.azure.account.keyprovider.shop", "secret.name"),
    *("fs.azure.account.oauth2.refresh.token.endpoint", "fs.azure.sas.token.provider.type", "account.keyspace"),
    *(
        "signature_column",
        "signature.algorithm",
        "signatures",
        "design",
        "sig",
        "sharedAccessKeyName",
        "connectionStrings",
    ),
    *("connection.stringtype", "access_key", "signing.key.id", "author_key", "shared.keyspace", "subscription.keys"),
    *("max_token", "next_token", "next-page-token", "page.token", "continuation_token", "sync.token", "min_token"),
    *("basic.auth.credentials.source", "basic.auth.user.info.file"),
    *("fs.azure.sas.expiry.period", "fs.s3a.encryption.algorithm", "spark.io.encryption.keySizeBits"),
)


@pytest.mark.parametrize("key", SECRET)
def test_secret_keys(key: str) -> None:
    assert is_secret(key)


@pytest.mark.parametrize("key", INNOCENT)
def test_innocent_keys(key: str) -> None:
    assert not is_secret(key)


def test_in_clear_is_told_without_it(write: Write) -> None:
    """Options, arguments of functions and Spark's configuration."""
    text = """
pipeline:
  name: x
  configuration: {spark.hadoop.fs.azure.account.key.shop.dfs.core.windows.net: hunter2}
source: {type: python, function: 'a:b', options: {refresh_token: hunter2, max.tokens: 9}}
sink: {type: console, options: {kafka.ssl.keystore.key: hunter2, kafka.ssl.keystore.location: /x}}
"""
    found = problems(write(text))
    assert [problem.key.rpartition(".options.")[2] for problem in found] == [
        "pipeline.configuration.spark.hadoop.fs.azure.account.key.shop.dfs.core.windows.net",
        "refresh_token",
        "kafka.ssl.keystore.key",
    ]
    assert "hunter2" not in "".join(map(str, found))
    load_pipeline(write(text.replace("hunter2", "env:HUNTER")))


HOLDING = (
    *("jdbc:postgresql://u:pw@h/d", "jdbc:postgresql://h/d?user=u&password=pw", "mongodb://u:pw@h", "redis://:pw@h"),
    *(
        "s3a://KEY:SEC/RET@bucket/x",
        "https://u:8080x@h:1/",
        "jdbc:sqlserver://h:1433;user=u;password=pw",
        "a://u%3Apw@h",
    ),
    *(
        "jdbc:oracle:thin:scott/tiger@//h:1521/x",
        "-Da=b -Djavax.net.ssl.trustStorePassword=abc",
        "https://h/?token=abc",
    ),
    "Endpoint=sb://n.servicebus.windows.net/;SharedAccessKeyName=Root;SharedAccessKey=abc=",  # V12
    *("BlobEndpoint=https://a/;SharedAccessSignature=sv=2020-08-04&sig=abc", "SharedAccessSignature sr=a&sig=abc&se=1"),
    *("https://a.blob.core.windows.net/b?sv=2020-08-04&sig=abc%3D", "https://b.s3.amazonaws.com/x?X-Amz-Signature=abc"),
    *("https://storage.googleapis.com/b/x?X-Goog-Signature=abc", "https://h/?Expires=1&Signature=abc&Key-Pair-Id=k"),
    *("https://h/latest?access_key=abc", "https://h/?a=b&accessKey=abc", "-----BEGIN RSA PRIVATE KEY-----\nMII"),
    *("DefaultEndpointsProtocol=https;AccountName=a;AccountKey=abc", "password=pw", "-Dpass='x'"),
    *("Server=h; Password=abc", "Server=h;  User ID=u;\tPwd=abc;", "https://h/back#access_token=abc&state=1"),
    *("host=h port=5432 password=b", " host=h  password='a b' dbname=d ", "dbname='a b' user=u sslpassword=b"),
)
NOT_HOLDING = (
    *("jdbc:postgresql://u@h:5432/d?sslmode=verify-full", "http://h:80/a@b", "http://h:80?x=a@b", "spark://h:7077"),
    *("mongodb://a:27017,b:27017/d?x=a@b", "abfss://box@shop.dfs.core.windows.net/x", "h:9092,i:9092", "a@b.c"),
    *("https://h/?token=env:TOKEN", "jdbc:x://h?password=${run.id}", "https://h/?token=null", "https://h/?token="),
    *('{"url":"https://h","mail":"a@b"}', "SELECT * FROM a JOIN b ON a.token=b.token", "-Dtoken.type=x", "key=value"),
    *(
        "https://h/?sig=${env.SAS}",
        "https://h/?X-Amz-Signature=$SIGNATURE",
        "https://h/?access_key=env:KEY",
        "a&sig=null",
    ),
    *("https://h/?signature_column=a&sigma=1", "Endpoint=sb://n/;SharedAccessKeyName=Root", "-Dfs.s3a.access.key=AKIA"),
    *("SELECT signature FROM a WHERE sig='x'", "-----BEGIN CERTIFICATE-----", "https://h/?signature_version=4"),
    *("host=h password=env:PW", "host=h passfile=/home/u/.pgpass", "host=h password=''", "Server=h; Password=$PW"),
    *(
        "set a=b where password=c",
        "host=h; SELECT password = x",
        "https://h/#token",
        "https://h/?page_token=a&next_token=b",
    ),
    *("http://[::1]:80/x@y", "enc:abc", "file:///a:b@c", "https://h/?passwordCharacterEncoding=utf8", "-Xmx1g"),
)


@pytest.mark.parametrize("text", HOLDING)
def test_values_that_hold_a_secret(text: str) -> None:
    assert holds_secret(text)


@pytest.mark.parametrize("text", NOT_HOLDING)
def test_innocent_values(text: str) -> None:
    assert not holds_secret(text)


def test_values_in_clear_are_told_without_them(write: Write) -> None:
    """In options, paths, parameters, arguments of functions and of programs, and the environment of a driver."""
    text = """
pipeline:
  name: x
  parameters: {password: hunter2, url: "jdbc:postgresql://u:hunter2@h/d", token: null, pass: true, pin.token: 7}
  configuration: {spark.driver.extraJavaOptions: "-Da=b -Djavax.net.ssl.trustStorePassword=hunter2"}
  storage: s3a://KEY:hunter2@bucket/x
  launcher:
    {type: spark-rest, url: 'http://m:6066', master: 'spark://m:7077', environment: {URL: 'https://u:hunter2@h'}}
jobs:
  a:
    source: {type: csv, path: "s3a://KEY:hunter2@bucket", schema: a int}
    transform: [{type: python, function: 'a:b', options: {url: "mongodb://u:hunter2@h", token: null, pass: false}}]
    sink: {type: spark, format: jdbc, options: {url: "jdbc:postgresql://h/d?user=u&password=hunter2"}}
  b: {application: pipeline.yaml, arguments: ["https://u:hunter2@h", "Endpoint=sb://n/;SharedAccessKey=hunter2"]}
  c:
    source: {type: rate, options: {eventhubs.connectionString: "Endpoint=sb://n/;SharedAccessKey=hunter2"}}
    transform: [{type: sql, filter: "token='x'"}]
    sink: {type: json, path: "https://a.blob.core.windows.net/b?sv=2020-08-04&sig=hunter2"}
"""
    found = problems(write(text))
    assert [problem.key for problem in found if problem.severity == "error"] == [
        "pipeline.parameters.password",
        "pipeline.parameters.url",
        "pipeline.parameters.pin.token",
        "pipeline.configuration.spark.driver.extraJavaOptions",
        "pipeline.storage",
        "pipeline.launcher.environment.URL",
        "jobs.a.source.path",
        "jobs.a.transform[0].options.url",
        "jobs.a.sink.options.url",
        "jobs.b.arguments[0]",
        "jobs.b.arguments[1]",
        "jobs.c.source.options.eventhubs.connectionString",
        "jobs.c.sink.path",
    ]
    assert "hunter2" not in "".join(map(str, found))


def test_a_parameter_may_be_a_reference(write: Write) -> None:
    loaded(
        write("""
pipeline: {name: x, parameters: {password: "env:HUNTER"}}
source: {type: rate, options: {password: "${var.password}"}}
sink: {type: console}
""")
    )


def test_what_is_revealed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """References under secret keys, and what is encrypted under any; another value stays as it is."""
    monkeypatch.setenv("JOBPIPE_SECRET_KEY", f"file:{tmp_path / 'secret.key'}")
    monkeypatch.setenv("HUNTER", "hunter2")
    make_key(Secret(f"file:{tmp_path / 'secret.key'}"))
    encrypted = encrypt("hunter3")
    given = {
        "id_token": "env:HUNTER",
        "sasl.user": encrypted,
        "token": encrypted,
        "home": "env:HUNTER",
        "codec": "enc:utf-8",
        "schema": "file:columns",
        "password": "env:HUNTER",
        "count": 7,
    }
    assert revealed(given, tmp_path) == given | {
        "id_token": "hunter2",
        "sasl.user": "hunter3",
        "token": "hunter3",
        "password": "hunter2",
    }


def redaction(path: Path) -> re.Pattern[str]:
    """What Spark hides in a session of the file's only job; the syntax that Java and Python have in common."""
    pipeline = loaded(path)
    (job,) = pipeline.jobs.values()
    written = session_keys(pipeline, job, "file:///state")[REDACTION]
    return re.compile(written.replace("(?:(?i)", "(?i:"))


@pytest.fixture
def encrypted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("JOBPIPE_SECRET_KEY", f"file:{tmp_path / 'secret.key'}")
    make_key(Secret(f"file:{tmp_path / 'secret.key'}"))
    return encrypt("hunter3")


def test_what_spark_does_not_show(
    write: Write, encrypted: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In its UI and event log: values of secret keys, of keys with an encrypted value, and what is hidden anyway."""
    text = f"""
pipeline: {{name: x, configuration: {{spark.hadoop.fs.box.user: "{encrypted}", spark.app.note: "env:HOME"}}}}
source: {{type: rate, options: {{ramp.Up: "{encrypted}", rowsPerSecond: 5}}}}
sink: {{type: console}}
"""
    hidden = redaction(write(text))
    for key in (
        *SECRET,
        "spark.hadoop.fs.box.user",
        "fs.box.user",
        "ramp.up",
        "spark.ssl.trustStorePassword",
        "tokens",
    ):
        assert hidden.search(key), key
    for key in ("spark.app.note", "spark.app.name", "rowsPerSecond", "fs.box.username", "spark.master", "compass"):
        assert not hidden.search(key), key
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    (tmp_path / "spark-defaults.conf").write_text(f"{REDACTION} note|color\n")
    own = redaction(write(text))
    assert own.search("spark.app.note")
    assert own.search("ramp.up")
    given = redaction(write(text.replace("spark.app.note:", f'{REDACTION}: "(?i)colour", spark.app.note:')))
    assert given.search("spark.app.COLOUR")
    assert given.search("fs.box.user")
    assert not given.search("spark.app.note")
