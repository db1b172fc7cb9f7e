"""Options of who we are and what others may do: parsed, checked, and without the password in any text."""

from __future__ import annotations

import pickle

import pytest

from jobpipe_registry.credentials import Grant, Sasl, parse_acl
from jobpipe_registry.registry_errors import BadOption
from jobpipe_registry.registry_options import RegistryOptions
from jobpipe_registry.zookeeper.acl import ExposedNode, exposed, to_kazoo

ALL = "crwda"
DIGEST = {"sasl.mechanism": "DIGEST-MD5", "sasl.username": "alice", "sasl.password": "canary-1"}


@pytest.mark.parametrize(
    ("text", "grants"),
    [
        ("open", [Grant("world", "anyone", ALL)]),
        ("auth", [Grant("auth", "", ALL)]),
        (" auth , sasl:bob:r ", [Grant("auth", "", ALL), Grant("sasl", "bob", "r")]),
        ("x509:CN=a b,O=c,C=d:rw,sasl:a@B.C:r", [Grant("x509", "CN=a b,O=c,C=d", "rw"), Grant("sasl", "a@B.C", "r")]),
        ("digest:bob:hash=:cdrwa", [Grant("digest", "bob:hash=", "cdrwa")]),
    ],
)
def test_acl(text: str, grants: list[Grant]) -> None:
    assert list(parse_acl(text)) == grants


@pytest.mark.parametrize("text", ["", " ", ",", "auth,", "everybody", "sasl:bob", "sasl:bob:x", "sasl::r", "auth;open"])
def test_bad_acl(text: str) -> None:
    with pytest.raises(BadOption) as caught:
        parse_acl(text)
    assert caught.value.option == "acl"


@pytest.mark.parametrize(
    ("options", "grant"),
    [
        ({}, Grant("world", "anyone", ALL)),
        (DIGEST, Grant("auth", "", ALL)),
        ({"sasl.mechanism": "GSSAPI"}, Grant("auth", "", ALL)),
        ({"ssl.enabled": "true", "ssl.ca": "a"}, Grant("world", "anyone", ALL)),
        ({"ssl.enabled": "true", "ssl.ca": "a", "ssl.cert": "b", "ssl.key": "c"}, Grant("auth", "", ALL)),
    ],
)
def test_the_acl_that_none_is_given_for(options: dict[str, str], grant: Grant) -> None:
    assert RegistryOptions.parse(options).acl == (grant,)


@pytest.mark.parametrize(
    ("options", "blamed"),
    [
        ({"sasl.mechanism": "PLAIN"}, "sasl.mechanism"),
        ({**DIGEST, "sasl.username": ""}, "sasl.username"),
        ({"sasl.mechanism": "DIGEST-MD5", "sasl.username": "a"}, "sasl.password"),
        ({"ssl.enabled": "yes"}, "ssl.enabled"),
        ({"ssl.enabled": "true"}, "ssl.ca"),
        ({"ssl.enabled": "true", "ssl.ca": "a", "ssl.cert": "b"}, "ssl.key"),
        ({"ssl.enabled": "true", "ssl.ca": "a", "ssl.key": "b"}, "ssl.cert"),
        ({"connect.timeout": "soon"}, "connect.timeout"),
    ],
)
def test_the_option_is_blamed(options: dict[str, str], blamed: str) -> None:
    with pytest.raises(BadOption) as caught:
        RegistryOptions.parse(options)
    assert caught.value.option == blamed
    again = pickle.loads(pickle.dumps(caught.value))  # noqa: S301 - our own
    assert (again.option, str(again)) == (blamed, str(caught.value))


def test_no_text_has_the_password() -> None:
    options = RegistryOptions.parse(DIGEST)
    assert options.sasl == Sasl("DIGEST-MD5", "alice", "canary-1")
    assert "canary" not in f"{options!r} {options} {options.sasl} {options.identity}"
    assert options.identity == "SASL DIGEST-MD5 as 'alice'"


@pytest.mark.parametrize(
    ("found", "wanted", "letters"),
    [
        ("open", "auth", "crwda"),
        ("world:anyone:r", "auth", "r"),
        ("ip:10.0.0.0/8:cd", "auth", "cd"),
        ("sasl:bob:cdrwa", "auth", ""),
        ("world:anyone:rw", "auth,world:anyone:r", "w"),
        ("open", "open", ""),
    ],
)
def test_what_strangers_may_do_too_much(found: str, wanted: str, letters: str) -> None:
    answer = exposed("/a", to_kazoo(parse_acl(found)), parse_acl(wanted))
    assert answer == (ExposedNode("/a", letters) if letters else None)
