"""Every key, given each type of value that YAML has: it is taken as meant, or refused with file, line and key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from jobpipe.config import Key, keys, load
from jobpipe.errors import ConfigError

LISTS = {
    "paths": (["/srv/shop", "/srv/more"], (Path("/srv/shop"), Path("/srv/more"))),
    "variables": (["HOME", "SHOP_*"], ("HOME", "SHOP_*")),
    "columns": (["card", "orders.iban"], ("card", "orders.iban")),
    "destinations": (["alerts:8443", "127.0.0.1:80"], ("alerts:8443", "127.0.0.1:80")),
    "port range": ([20000, 20999], (20000, 20999)),
    "registry address": (["embedded"], "embedded"),
    "ACL": (["ip:10.0.0.1:cdrwa", "ip:10.0.0.2:r"], "ip:10.0.0.1:cdrwa,ip:10.0.0.2:r"),
}
"""Kinds that take a list, with one and what it means."""
NUMBERS = ("duration", "size", "number", "port range")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    found = tmp_path / "jobpipe.yaml"
    found.touch(mode=0o600)
    return found


def given(file: Path, about: Key, raw: object) -> Any:
    """Return the key's value where a file has this one, in its second line."""
    file.write_text("# the only key\n" + yaml.safe_dump({about.name: raw}, default_flow_style=True, width=1000))
    return getattr(load(file, environ={}), about.attribute)


def require_refused(file: Path, about: Key, raw: object) -> None:
    with pytest.raises(ConfigError) as caught:
        given(file, about, raw)
    problem = caught.value.fields["problems"][0]
    assert (problem["source"], problem["key"]) == (f"{file}:2", about.name)
    assert problem["expected"]


def by_name(about: Key) -> str:
    return about.name


@pytest.mark.parametrize("about", keys(), ids=by_name)
def test_a_list(file: Path, about: Key) -> None:
    if about.value_type.name in LISTS:
        raw, value = LISTS[about.value_type.name]
        assert given(file, about, raw) == value
        require_refused(file, about, [*raw, [raw[0]]])
        require_refused(file, about, raw * 51)
    else:
        require_refused(file, about, ["a", "b"])
        require_refused(file, about, [about.default_text])
    require_refused(file, about, [])
    require_refused(file, about, [None])
    require_refused(file, about, [{"a": "b"}])


@pytest.mark.parametrize("about", keys(), ids=by_name)
def test_a_section(file: Path, about: Key) -> None:
    assert given(file, about, {}) == getattr(load(None, environ={}), about.attribute)  # it sets nothing
    if not any(other.name.startswith(f"{about.name}.") for other in keys()):  # else a key of it is meant
        require_refused(file, about, {"a": "b"})


@pytest.mark.parametrize("about", keys(), ids=by_name)
def test_a_boolean(file: Path, about: Key) -> None:
    if about.value_type.name == "boolean":
        assert given(file, about, about.default) is about.default
    else:
        require_refused(file, about, True)
        require_refused(file, about, False)


@pytest.mark.parametrize("about", keys(), ids=by_name)
def test_a_number(file: Path, about: Key) -> None:
    if about.value_type.name in NUMBERS:
        number = 4 if about.default is None else about.parse(about.default)
        number = number[0] if isinstance(number, tuple) else number
        assert given(file, about, number) == about.parse(str(number))
        require_refused(file, about, -1)
        require_refused(file, about, float("nan"))
    else:
        require_refused(file, about, 7)
        require_refused(file, about, 0.5)


@pytest.mark.parametrize("about", keys(), ids=by_name)
def test_null(file: Path, about: Key) -> None:
    if about.value_type.nullable:
        value = given(file, about, None)
        assert value is None or value == about.default or about.default is None  # a place below jobpipe.home
    else:
        require_refused(file, about, None)


def test_servers_of_an_ensemble_as_a_list(file: Path) -> None:
    file.write_text(
        "jobpipe.registerserver.connect: [zk1:2181, zk2:2181/jobs]\njobpipe.ssl: {enabled: false}\n"
        "security.allow_plaintext: true\njobpipe.registerserver.ssl.enabled: false\n"
    )
    assert load(file, environ={}).registry_connect == "zk1:2181,zk2:2181/jobs"


@pytest.mark.parametrize(
    "section",
    ["{}", "{spool: {}}", "{acks: {}}", "{registerserver.connect: {}}", "{foo: {}}", "{home: {}, foo: {bar: {}}}"],
)
def test_an_empty_section_sets_nothing(file: Path, section: str) -> None:
    """As templates leave it."""
    file.write_text(f"jobpipe: {section}\njobpipe.retention.time: 7s\n")
    assert load(file, environ={}) == load(None, overrides={"retention.time": "7s"}, environ={})
    file.write_text("jobpipe: {foo: {bar: 1}}\n")
    with pytest.raises(ConfigError, match=r"jobpipe.yaml:1: jobpipe.foo.bar = .* is unknown"):
        load(file, environ={})


def test_a_secret_in_a_list_is_not_shown(file: Path) -> None:
    for raw in (["hunter2"], {"value": "hunter2"}):
        with pytest.raises(ConfigError) as caught:
            given(file, next(about for about in keys() if about.name == "jobpipe.ssl.key.password"), raw)
        assert "hunter2" not in caught.value.message
