"""The JSON Schema is that of the models, fits the good files, and finds what is wrong in others."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path

import pytest
import yaml
from jsonschema import Draft202012Validator

from jobpipe.pipelines.json_schema import schema_text
from tests.pipelines.test_good_files import FLIGHTS

ROOT = Path(__file__).parents[2]
SHIPPED = (files("jobpipe.pipelines") / "pipeline.schema.json").read_text()
SINGLE = """
pipeline: {name: x, parameters: {a: 1}}
source: {type: csv, path: a, schema: id int, options.header: true}
transform: [{projection: "*"}]
sink: {type: jobpipe, topic: a, spool.placement: shared, parallelism: 2}
"""


@pytest.fixture(scope="module")
def validator() -> Draft202012Validator:
    schema = json.loads(SHIPPED)
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


def test_it_is_that_of_the_models() -> None:
    """After a change of the models: make docs."""
    assert schema_text() == SHIPPED


@pytest.mark.parametrize(
    "text",
    [FLIGHTS.read_text().replace(" on:", ' "on":'), (ROOT / "examples/pipeline/pipeline.yaml").read_text(), SINGLE],
)
def test_good_files_fit(validator: Draft202012Validator, text: str) -> None:
    assert [error.message for error in validator.iter_errors(yaml.safe_load(text))] == []


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("path: a", "pth: a"),
        ("parallelism: 2", "paralelism: 2"),
        ("topic: a,", ""),
        ("name: x,", ""),
        ("projection", "projektion"),
        ("pipeline:", "pipelin:"),
        ("type: csv", "typ: csv"),
    ],
)
def test_wrong_files_do_not(validator: Draft202012Validator, right: str, wrong: str) -> None:
    assert right in SINGLE
    assert not validator.is_valid(yaml.safe_load(SINGLE.replace(right, wrong)))


def test_plug_ins_of_others_pass(validator: Draft202012Validator) -> None:
    assert validator.is_valid(yaml.safe_load(SINGLE.replace("type: csv", "type: weather")))


def test_it_is_small_enough_for_an_editor() -> None:
    assert len(SHIPPED) < 300_000
