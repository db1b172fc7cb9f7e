"""The definitions of options and arguments: whole, as others rely on them, and as docs/options.md says."""

from __future__ import annotations

import inspect
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobpipe import JobPipeSink
from jobpipe.config import Option, explain, keys, names
from jobpipe.config.definitions.sink_arguments import SINK_ARGUMENTS
from jobpipe.config.definitions.source_options import MEANT, SOURCE_OPTIONS
from jobpipe.config.definitions.writer_options import WRITER_OPTIONS
from jobpipe.config.options_page import options_page
from jobpipe.config.types.source_types import ASSIGN, ENDING, NAME, STARTING, TIMES, TOPICS, one_time
from jobpipe.config.types.value_types import BadValueError
from jobpipe_registry.names import check_name
from jobpipe_registry.registry_errors import InvalidName

PAGE = Path(__file__).parents[3] / "docs" / "options.md"
HERE = Path()


def by_name(about: Option) -> str:
    return about.name


def test_the_page_is_what_the_definitions_say() -> None:
    assert PAGE.read_text() == options_page(), "run: make docs"


def test_the_page_names_everything() -> None:
    cells = {line.split("|")[1].strip() for line in PAGE.read_text().splitlines() if line.startswith("| `")}
    assert cells == {f"`{about.name}`" for about in (*SOURCE_OPTIONS, *SINK_ARGUMENTS, *WRITER_OPTIONS, *keys())}


@pytest.mark.parametrize("about", [*SOURCE_OPTIONS, *SINK_ARGUMENTS, *WRITER_OPTIONS], ids=by_name)
def test_definition_is_whole(about: Option) -> None:
    assert about.documentation.endswith(".")
    assert about.expected
    assert about.group
    known = {other.name for other in (*SOURCE_OPTIONS, *WRITER_OPTIONS)}
    assert known.issuperset((*about.needs, *about.excludes))
    if about.default is not None or about.value_type.nullable:
        assert about.parse(about.default_text) == about.parse(about.default)
    assert all(about.parse(text) is not None for text in about.recommended)
    for name in (about.name, *about.also):
        assert f"{about.name} (" in explain(name)


def test_no_name_means_two_options() -> None:
    every = [name.lower() for about in SOURCE_OPTIONS for name in (about.name, *about.also)]
    assert len(set(every)) == len(every)
    assert not set(every) & set(MEANT)
    assert set(MEANT.values()) <= {name for name, _ in names()}


def test_the_sink_has_these_arguments() -> None:
    arguments = [name for name in inspect.signature(JobPipeSink).parameters if name != "overrides"]
    assert [about.name for about in SINK_ARGUMENTS] == arguments


@pytest.mark.slow
@given(st.text(st.sampled_from("aZ0._-/ \n"), max_size=4) | st.text() | st.sampled_from(["a" * 128, "a" * 129]))
def test_names_are_those_of_the_registry(name: str) -> None:
    """The rule is written twice, since this package may not import the registry's."""
    try:
        check_name(name)
        right = True
    except InvalidName:
        right = False
    try:
        right_here = NAME.parse(name, HERE) == name
    except BadValueError:
        right_here = False
    assert right is right_here


@given(st.datetimes(datetime(1970, 1, 1), datetime(3000, 1, 1), timezones=st.just(UTC)))  # noqa: DTZ001 - it asks so
def test_a_time_is_the_same_as_text_and_as_number(when: datetime) -> None:
    """A fraction of a millisecond counts up: nothing that was published before that time is meant."""
    ms = -((datetime(1970, 1, 1, tzinfo=UTC) - when) // timedelta(milliseconds=1))
    assert one_time(when.isoformat()) == one_time(ms) == one_time(str(ms)) == ms


@pytest.mark.parametrize(
    "raw",
    ["", "soon", "2026-11-21", "2026-11-21T10:00:00", "-1", "1.5", True, 2**63, "9" * 30, None, {}, "1969-01-01Z"],
)
def test_what_is_no_time(raw: object) -> None:
    with pytest.raises(BadValueError):
        one_time(raw)


def test_zones_are_times() -> None:
    assert one_time("2026-11-21T11:00:00+01:00") == one_time("2026-11-21T10:00:00Z") == 1795255200000


def test_json_of_topics() -> None:
    position = {"epoch": 1, "log": "0123456789abcdef", "n": 4, "r": 2}
    text = '{"a": -2, "b": -1, "c": 7, "d": {"epoch": 1, "log": "0123456789abcdef", "n": 4, "r": 2}}'
    assert STARTING.parse(text, HERE) == {"a": -2, "b": -1, "c": 7, "d": position}
    assert STARTING.parse(STARTING.format(STARTING.parse(text, HERE)), HERE) == STARTING.parse(text, HERE)
    assert STARTING.parse("EARLIEST", HERE) == "earliest"  # as Kafka's source takes it
    assert TIMES.parse('{"a": 5, "b": "1970-01-01T00:00:01Z"}', HERE) == {"a": 5, "b": 1000}
    assert ASSIGN.parse('{"a": [3, 1]}', HERE) == {"a": (1, 3)}
    assert TOPICS.parse(" b, a ,b", HERE) == ("a", "b")


@pytest.mark.parametrize(
    ("kind", "raw"),
    [
        (STARTING, "oldest"),
        (STARTING, "{}"),
        (STARTING, "[1]"),
        (STARTING, '{"a": "1"}'),
        (STARTING, '{"a": true}'),
        (STARTING, '{"a": 1.0}'),
        (STARTING, '{"a": -3}'),
        (STARTING, '{"a": 1, "a": 2}'),
        (STARTING, '{"a/b": 1}'),
        (STARTING, '{"a": {"0": 1}}'),
        (STARTING, '{"a": {}}'),
        (STARTING, '{"a": 9223372036854775808}'),
        (STARTING, "{" * 100_000),
        (ENDING, "earliest"),
        (ENDING, '{"a": -2}'),
        (TIMES, '{"a": {"0": 5}}'),
        (TIMES, "5"),
        (ASSIGN, '{"a": [1, 1]}'),
        (ASSIGN, '{"a": ["1"]}'),
        (ASSIGN, '{"a": 1}'),
    ],
)
def test_what_is_no_json_of_topics(kind: object, raw: str) -> None:
    with pytest.raises(BadValueError):
        kind.parse(raw, HERE)  # type: ignore[attr-defined]
