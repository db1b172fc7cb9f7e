"""Each wrong value of each option of the source gives one error: option, value, and what was expected."""

from __future__ import annotations

import json

import pytest

from jobpipe.config import masked_repr
from jobpipe.config.definitions.source_options import SOURCE_OPTIONS
from jobpipe.errors import ConfigError
from jobpipe.spark.options.read_options import SourceOptions
from tests.config.values.bad_options import BAD, TOGETHER, Bad, Together, beside

NAMES = {about.name: (about.name, *about.also) for about in SOURCE_OPTIONS}
EACH = [(name, bad) for option, values in BAD.items() for bad in values for name in NAMES.get(option, (option,))]


def test_every_option_has_bad_values() -> None:
    """One that is added says what it does not take."""
    assert set(BAD) == set(NAMES)
    assert all(BAD.values())


@pytest.mark.parametrize(("option", "bad"), EACH, ids=[f"{option}={bad.value[:40]!r}" for option, bad in EACH])
def test_a_bad_value(option: str, bad: Bad) -> None:
    """One problem; the name as the user wrote it."""
    with pytest.raises(ConfigError) as caught:
        SourceOptions.parse({option: bad.value, **beside(option, bad)}, {})
    text = str(caught.value)
    (problem,) = caught.value.fields["problems"]
    assert problem["key"] == option, text
    assert f"option: {option} = {masked_repr(bad.value)}: expected " in text
    assert text.startswith("format('jobpipe'): 1 wrong option\n")
    assert bad.phrase in problem["expected"], text
    json.dumps(problem)


@pytest.mark.parametrize("together", TOGETHER, ids=[f"{each.why}: {', '.join(each.options)}" for each in TOGETHER])
def test_options_that_do_not_go_together(together: Together) -> None:
    """All problems at once, each with its option."""
    with pytest.raises(ConfigError) as caught:
        SourceOptions.parse(together.options, {})
    problems = {problem["key"]: problem["expected"] for problem in caught.value.fields["problems"]}
    assert problems.keys() == together.problems.keys(), str(caught.value)
    assert len(problems) == len(caught.value.fields["problems"])
    for option, phrase in together.problems.items():
        assert phrase in problems[option]
        value = together.options.get(option)
        assert f"option: {option}{'' if value is None else f' = {masked_repr(value)}'}: expected " in str(caught.value)


def test_a_configuration_file_that_is_not_there() -> None:
    """The file is named."""
    with pytest.raises(ConfigError, match=r"/nowhere/jobpipe\.yaml"):
        SourceOptions.parse({"subscribe": "some", "config": "/nowhere/jobpipe.yaml"}, {})


@pytest.mark.parametrize(
    "options",
    [
        {"subscribe": "some", "startingOffsets": '{"some": {"epoch": 1, "log": "0123456789abcdef", "n": 4, "r": 2}}'},
        {"subscribe": "some", "startingTimestamp": "2000", "endingTimestamp": "2000"},
        {"subscribe": "some", "startingTimestamp": "5", "startingOffsets": '{"other": 5}'},  # the first one wins
        {"subscribe": "some", "boundaryType": "OFFSET", "lowerBound": "-2", "upperBound": "-1"},
        {
            "subscribe": "some",
            "boundaryType": "TIME",
            "lowerBound": "5",
            "startingOffsetsByTimestampStrategy": "latest",
        },
        {"subscribePattern": "some.*", "maxTopics": "10000", "endingOffsets": '{"some": -1}'},
        {"subscribe": "some", "MAXOFFSETSPERTRIGGER": "5", "minrowspertrigger": "5", "maxTriggerDelay": "0"},
    ],
)
def test_what_is_right_beside_them(options: dict[str, str]) -> None:
    """The bounds of what is refused."""
    SourceOptions.parse(options, {})
