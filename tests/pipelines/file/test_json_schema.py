"""The JSON Schema is that of the models, fits the good files, and finds what is wrong in others."""

from __future__ import annotations

import json
import re
from importlib.resources import files
from pathlib import Path

import pytest
import yaml
from jsonschema import Draft202012Validator

from jobpipe.errors import PipelineError
from jobpipe.pipelines.loading.loader import load_pipeline
from jobpipe.pipelines.plugins.json_schema import schema_text
from tests.pipelines.conftest import Write
from tests.pipelines.file.test_good_files import FLIGHTS

ROOT = Path(__file__).parents[3]
SHIPPED = (files("jobpipe.pipelines") / "pipeline.schema.json").read_text()
SINGLE = """
pipeline: {name: x, parameters: {a: 1}}
source: {type: csv, path: a, schema: id int, options: {header: true}}
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


TAKEN = """
pipeline:
  name: x
  parameters: {m: append, r: 0.1, n: 2, b: true, e: day, p: on-failure, k: console}
  restart: {policy: "${var.p}"}
jobs:
  a:
    execution: {runtime-mode: BATCH}
    source: {type: jobpipe, subscribe: t}
    sink: {type: json, path: x, mode: "${var.m}"}
    errors: {tolerance: all, max-ratio: "${var.r}", dead-letters: d}
    schedule: {every: "${var.e}", self-depend: "${var.b}"}
  b:
    source: {type: jobpipe, assign: {t: [1]}, read.timeout: 5s, maxRowsPerTrigger: 5}
    transform:
      - {type: TimestampConverter, field: a, target.type: string, format: x}
      - {type: InsertField, static.field: a, static.value: 1}
      - {type: deduplicate, keys: [a], within-watermark: "true"}
    sink: {type: jobpipe, topic: t2, retention.time: 1h, parallelism: "${var.n}"}
    trigger: null
    schedule: null
    execution: null
    configuration: {spark.a.b: 1}
  c: {sources: {x: {type: rate, watermark: {column: a, delay: 1 day}}}, sinks: [{type: "${var.k}"}]}
  d:
    execution: {runtime-mode: BATCH}
    source: {type: jobpipe, subscribe: t, lowerBound: 3, upperBound: {t: 5}, boundaryType: OFFSET}
    sink: {type: json, path: y}
    errors: {tolerance: all, max-ratio: "0.5"}
"""


def test_what_the_loader_takes_fits(validator: Draft202012Validator, write: Write) -> None:
    load_pipeline(write(TAKEN))
    assert [error.message for error in validator.iter_errors(yaml.safe_load(TAKEN))] == []


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("restart: {policy: ", "restart.policy: {x: "),
        ("execution: {runtime-mode: BATCH}", "execution.runtime-mode: BATCH"),
        ("read.timeout: 5s", "read: {timeout: 5s}"),
        ("target.type: string", "target: {type: string}"),
        ("spark.a.b: 1", "spark: {a.b: 1}"),
        ("watermark: {column: a, delay: 1 day}", "watermark.column: a"),
        ("  c: {sources: {", "  c.sources: {x: {"),
        ("{sources: {x: {", "{sources: {x.y: {"),
        ("type: rate, ", "type: rate, name: My Source, "),
    ],
)
def test_another_spelling_does_not(validator: Draft202012Validator, write: Write, right: str, wrong: str) -> None:
    assert right in TAKEN
    text = TAKEN.replace(right, wrong)
    with pytest.raises(PipelineError):
        load_pipeline(write(text))
    assert not validator.is_valid(yaml.safe_load(text))


def test_all_files_of_the_pages_and_examples_fit(validator: Draft202012Validator) -> None:
    pages = [*(ROOT / "docs").glob("*.md"), ROOT / "README.md"]
    texts = [text for page in pages for text in re.findall(r"```yaml\n(.*?)```", page.read_text(), re.DOTALL)]
    texts = [text for text in texts if re.search(r"^pipeline:", text, re.MULTILINE)]
    texts += [path.read_text() for path in (ROOT / "examples").rglob("pipeline*.yaml")]
    texts += re.findall(
        r'write\(\s*r?"""\n(.*?)"""', (ROOT / "tests/pipelines/file/test_good_files.py").read_text(), re.DOTALL
    )
    files = [
        text for text in texts if "pipeline" in text and "source" in text and "%" not in text and "NAME" not in text
    ]
    assert len(files) > 15
    for text in files:
        tree = yaml.load(text, _Texts)  # noqa: S506 - a safe one
        if isinstance(tree, dict) and "source: {options: {numPartitions" not in text:  # which is an overlay
            assert [error.message for error in validator.iter_errors(tree)] == [], text


class _Texts(yaml.SafeLoader):
    """Plain values of YAML 1.2, more or less: as editors read them."""

    yaml_implicit_resolvers = {  # noqa: RUF012 - as PyYAML has it
        first: [(tag, pattern) for tag, pattern in found if tag.endswith((":null", ":int", ":float", ":merge"))]
        for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


_Texts.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile("true|false"), ["t", "f"])


def test_plug_ins_of_others_pass(validator: Draft202012Validator) -> None:
    assert validator.is_valid(yaml.safe_load(SINGLE.replace("type: csv", "type: weather")))


def test_it_is_small_enough_for_an_editor() -> None:
    assert len(SHIPPED) < 300_000
