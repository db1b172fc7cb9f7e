"""Names and records: pure, so checked with everything hypothesis can think of."""

from __future__ import annotations

import json
import pickle
from dataclasses import asdict
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobpipe_registry.names import MAX_PARALLELISM, Paths, check_name, child_index, child_name
from jobpipe_registry.registry_errors import BadRecord, InvalidName, NotStarted, RegistryError, TopicOwned, Unavailable
from jobpipe_registry.topic_records import MAX_EPOCH, MAX_RECORD_BYTES, OwnerRecord, RegisterRecord
from tests.registry.worlds import owner, record

untimed = settings(deadline=None)  # the machine may be busy; the run as a whole has its time-out
printable = st.text(st.characters(codec="utf-8").filter(str.isprintable), min_size=1, max_size=40)
names = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,40}", fullmatch=True)
hosts = names | st.ip_addresses().map(str)
endpoints = st.builds(
    lambda host, port: f"[{host}]:{port}" if ":" in host else f"{host}:{port}", hosts, st.integers(1, 65535)
)
epochs = st.integers(0, MAX_EPOCH)


@st.composite
def register_records(draw: st.DrawFn) -> RegisterRecord:
    parallelism = draw(st.integers(1, MAX_PARALLELISM))
    return RegisterRecord(
        host=draw(hosts),
        port=draw(st.integers(1, 65535)),
        parallelism=parallelism,
        index=draw(st.integers(1, parallelism)),
        coordinator=draw(endpoints),
        data=draw(endpoints),
        epoch=draw(epochs),
        instance=draw(printable),
        ssl=draw(st.booleans()),
    )


owner_records = st.builds(
    OwnerRecord,
    host=printable,
    pid=st.integers(1, 2**31 - 1),
    started=st.floats(0, 1e12),
    endpoint=endpoints,
    epoch=epochs,
    instance=printable,
    name=printable,
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@untimed
@given(register_records() | owner_records)
def test_a_record_survives_its_bytes(any_record: RegisterRecord | OwnerRecord) -> None:
    data = any_record.to_bytes()
    assert len(data) <= MAX_RECORD_BYTES
    assert type(any_record).from_bytes(data) == any_record


@untimed
@given(st.binary(max_size=200) | json_values.map(lambda value: json.dumps(value).encode()))
def test_garbage_raises_only_bad_record(data: bytes) -> None:
    for kind in (RegisterRecord, OwnerRecord):
        with pytest.raises(BadRecord):
            kind.from_bytes(data)


@untimed
@given(st.data(), json_values)
def test_one_strange_value_is_refused_or_obeys_the_rules(data: st.DataObject, value: Any) -> None:
    good = data.draw(st.sampled_from([record(), owner()]))
    fields = {"version": 1, **asdict(good)}
    fields[data.draw(st.sampled_from(sorted(fields)))] = value
    try:
        read = type(good).from_bytes(json.dumps(fields).encode())
    except BadRecord:
        return
    assert type(read).from_bytes(read.to_bytes()) == read
    assert {name: type(held) for name, held in asdict(read).items()} == {
        name: type(held) for name, held in asdict(good).items()
    }


@pytest.mark.parametrize("name", ["version", *asdict(record())])
def test_a_missing_field_is_named(name: str) -> None:
    fields = {"version": 1, **asdict(record())}
    del fields[name]
    with pytest.raises(BadRecord) as caught:
        RegisterRecord.from_bytes(json.dumps(fields).encode())
    assert caught.value.field == name


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("host", ""),
        ("host", "a\nb"),
        ("host", "a" * 256),
        ("host", "a b"),
        ("host", "../etc"),
        ("host", "1::2::3"),
        ("port", 0),
        ("port", 65536),
        ("port", True),
        ("port", 1.0),
        ("parallelism", 4097),
        ("index", 5),
        ("index", 0),
        ("coordinator", "host"),
        ("coordinator", ":1"),
        ("coordinator", "host:0"),
        ("coordinator", "a b:1"),
        ("coordinator", "::1:1"),
        ("coordinator", "[host]:1"),
        ("coordinator", "user@host:1"),
        ("data", "host:70000"),
        ("data", "host:١"),
        ("epoch", -1),
        ("epoch", MAX_EPOCH + 1),
        ("instance", ""),
        ("ssl", 0),
    ],
)
def test_a_wrong_value_is_refused_when_the_record_is_made(name: str, value: Any) -> None:
    with pytest.raises(BadRecord) as caught:
        RegisterRecord(**{**asdict(record()), name: value})
    assert caught.value.field == name


def test_whole_seconds_pass_for_a_start_time() -> None:
    made = OwnerRecord("h", 1, 5, "h:1", 1, "a", "n")
    assert type(made.started) is float


def test_a_large_record_is_refused() -> None:
    wide = "\N{GRINNING FACE}" * 255
    big = OwnerRecord(wide, 1, 1.0, "h:1", 1, wide[:128], wide)
    with pytest.raises(BadRecord):
        big.to_bytes()


@untimed
@given(st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", fullmatch=True))
def test_good_names_make_paths(name: str) -> None:
    paths = Paths("/jobpipe/topics")
    assert check_name(name) == name
    assert paths.topic(name) == f"/jobpipe/topics/{name}"
    assert paths.owner(name) == f"/jobpipe/topics.owners/{name}"
    assert paths.epoch(name) == f"/jobpipe/topics.epochs/{name}"


@untimed
@given(st.text(max_size=140))
def test_no_name_leaves_its_directory(name: str) -> None:
    try:
        path = Paths("/n").topic(name)
    except InvalidName:
        return
    assert path.count("/") == 2
    assert path not in {"/n/.", "/n/.."}
    assert path.isascii()


@untimed
@given(st.integers(-5, 5000))
def test_child_names_and_indexes_are_inverse(index: int) -> None:
    try:
        name = child_name(index)
    except InvalidName:
        assert not 1 <= index <= MAX_PARALLELISM
        return
    assert child_index(name) == index


@untimed
@given(st.text(max_size=14) | st.from_regex(r"parallel-[0-9]{1,6}", fullmatch=True))
def test_only_canonical_child_names_have_an_index(name: str) -> None:
    index = child_index(name)
    assert index is None or child_name(index) == name


@pytest.mark.parametrize(
    "error",
    [
        Unavailable("a:1", "silence"),
        TopicOwned("t", owner()),
        TopicOwned("t", None, record()),
        TopicOwned("t", None),
        BadRecord("port", "a number"),
        InvalidName("/", "a name"),
        NotStarted("no"),
    ],
)
def test_errors_pass_between_processes(error: RegistryError) -> None:
    again = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert vars(again) == vars(error)
