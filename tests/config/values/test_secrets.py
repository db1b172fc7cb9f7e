"""References to secrets: read late, shown never."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobpipe.config import config_from_dict, keys, load, render, resolve
from jobpipe.config.types.secrets import KEY_VARIABLE, Secret, encrypt, key_reference, make_key, parse_secret
from jobpipe.errors import ConfigError

CANARY = "canary-7f3a9b-do-not-show"
SECRET_KEYS = [about for about in keys() if about.secret]
by_name = pytest.mark.parametrize("about", SECRET_KEYS, ids=lambda about: about.name)


@pytest.fixture
def key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A key for enc: values, found by the environment."""
    path = tmp_path / "keys" / "secret.key"
    monkeypatch.setenv(KEY_VARIABLE, f"file:{path}")
    return make_key(key_reference())


def secret_file(folder: Path, text: str = CANARY, mode: int = 0o600) -> Path:
    path = folder / "secret"
    path.write_text(text)
    path.chmod(mode)
    return path


def test_there_are_secret_keys() -> None:
    assert SECRET_KEYS
    assert all(about.value_type.name == "secret" and about.default is None for about in SECRET_KEYS)


@pytest.mark.parametrize("text", [CANARY, CANARY + "\n", CANARY + "\r\n"])
def test_a_file_is_read_when_it_is_asked_for(tmp_path: Path, text: str) -> None:
    secret = parse_secret("file:secret", tmp_path)
    assert secret == Secret(f"file:{tmp_path}/secret")
    secret_file(tmp_path, text)
    assert secret.reveal() == CANARY
    secret_file(tmp_path, "another")
    assert secret.reveal() == "another"


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644])
def test_a_file_that_others_may_read_is_refused(tmp_path: Path, mode: int) -> None:
    """Case 72."""
    path = secret_file(tmp_path, mode=mode)
    with pytest.raises(ConfigError, match="chmod 600") as caught:
        Secret(f"file:{path}").reveal()
    assert CANARY not in caught.value.message
    path.chmod(0o400)
    assert Secret(f"file:{path}").reveal() == CANARY


def test_what_is_no_secret_in_a_file(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo, 0o600)
    wrong = [tmp_path / "nothing", tmp_path, fifo, secret_file(tmp_path, "")]
    for path in wrong:
        with pytest.raises(ConfigError) as caught:
            Secret(f"file:{path}").reveal()
        assert caught.value.fields["file"] == str(path)
    secret_file(tmp_path).write_bytes(b"x" * 70_000)
    with pytest.raises(ConfigError, match="at most"):
        Secret(f"file:{tmp_path}/secret").reveal()


def test_the_environment_is_read_when_it_is_asked_for() -> None:
    secret = parse_secret("env:MY_WORD", Path())
    assert secret is not None
    assert secret.reveal({"MY_WORD": CANARY}) == CANARY
    for environ in ({}, {"MY_WORD": ""}):
        with pytest.raises(ConfigError, match="MY_WORD"):
            secret.reveal(environ)


@pytest.mark.slow
@given(st.text(min_size=1, max_size=300))
def test_what_is_encrypted_comes_back(text: str) -> None:
    environ = {KEY_VARIABLE: "env:THE_KEY", "THE_KEY": "x" * 43 + "="}
    try:
        text.encode()
    except UnicodeEncodeError:
        return
    value = encrypt(text, environ)
    secret = parse_secret(value, Path())
    assert secret is not None
    assert secret.reveal(environ) == text
    assert repr(secret) == "Secret('enc:***')"


def test_another_key_and_a_changed_value_are_refused(key: Path) -> None:
    value = encrypt(CANARY)
    assert Secret(value).reveal() == CANARY
    for changed in (value[:-9] + "AAAAAAAA=", value[:50] + ("A" if value[50] != "A" else "B") + value[51:]):
        with pytest.raises(ConfigError, match="cannot be decrypted"):
            Secret(changed).reveal()
    key.unlink()
    with pytest.raises(ConfigError, match="--new-key"):
        Secret(value).reveal()
    make_key(key_reference())
    assert key.stat().st_mode & 0o777 == 0o600
    with pytest.raises(ConfigError, match="another one"):
        Secret(value).reveal()
    with pytest.raises(ConfigError, match="a key cannot be made"):
        make_key(key_reference())


def test_the_key_itself_is_not_taken_from_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    for wrong in ("x" * 43 + "=", "enc:" + "x" * 80):
        monkeypatch.setenv(KEY_VARIABLE, wrong)
        with pytest.raises(ConfigError) as caught:
            encrypt("x")
        assert wrong not in str(caught.value)


@by_name
@pytest.mark.parametrize("source", ["option", "spark", "environment", "file"])
def test_a_literal_secret_is_refused_and_not_repeated(about: object, source: str, tmp_path: Path) -> None:
    """Case 72: the error shows how to do it."""
    assert hasattr(about, "name")
    file = tmp_path / "jobpipe.yaml"
    file.write_text(f"{about.name}: {CANARY}\n" if source == "file" else "")
    with pytest.raises(ConfigError) as caught:
        load(
            file,
            overrides={about.name: CANARY} if source == "option" else None,
            spark={about.spark: CANARY} if source == "spark" else None,
            environ={about.environment: CANARY} if source == "environment" else {},
        )
    told = str(caught.value) + repr(caught.value.fields) + repr(caught.value)
    assert CANARY not in told
    assert "file:PATH" in told
    assert about.name in told


@pytest.mark.parametrize(
    "url", [f"https://ann:{CANARY}@host/x", f"https://host/x?k={CANARY}", f"https://a:?{CANARY}@h"]
)
def test_a_url_that_is_refused_is_shown_without_its_secrets(url: str) -> None:
    """A key of a backend that was put into its address, for instance."""
    with pytest.raises(ConfigError) as caught:
        load(overrides={"jobpipe.server.lineage.url": url}, environ={})
    told = str(caught.value) + repr(caught.value.fields)
    assert CANARY not in told
    assert "***" in told


BESIDE = {  # what a secret alone would contradict
    "jobpipe.registerserver.sasl.password": {
        "registerserver.connect": "zk:2181",
        "registerserver.sasl.mechanism": "DIGEST-MD5",
        "registerserver.sasl.username": "alice",
        "ssl.enabled": "false",
        "security.allow_plaintext": "true",
    },
    "jobpipe.server.lineage.api_key": {"server.lineage.url": "https://lineage.example.org/"},
}


@by_name
def test_a_configuration_carries_where_a_secret_is(about: object, tmp_path: Path, key: Path) -> None:
    """Case 72: and nothing of it shows the secret, nor what decrypts to it where people look."""
    assert hasattr(about, "name")
    path, value = secret_file(tmp_path), encrypt(CANARY)
    for reference in (f"file:{path}", "env:WORD", value):
        resolved = resolve(None, overrides={about.name: reference, **BESIDE.get(about.name, {})}, environ={})
        config = resolved.config
        shown = repr(config) + str(config) + json.dumps([row.value for row in render(config, resolved.sources)])
        carried = json.dumps(config.to_dict()) + repr(pickle.dumps(config))
        for text in (shown, carried):
            assert CANARY not in text
        assert value not in shown
        assert config_from_dict(config.to_dict()) == config
        again = pickle.loads(pickle.dumps(config))  # noqa: S301 - our own bytes
        assert again == config
        assert getattr(again, about.attribute).reveal({"WORD": CANARY, **os.environ}) == CANARY
