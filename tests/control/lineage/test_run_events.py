"""Events are as OpenLineage's client makes and checks them; what is too large is left out of them."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest
from openlineage.client.event_v2 import RunState

import jobpipe
from jobpipe.control.lineage import run_events
from jobpipe.control.lineage.column_frames import Origin, Use
from jobpipe.control.lineage.dataset_names import DatasetName
from jobpipe.control.lineage.job_lineage import DatasetLineage, JobLineage
from jobpipe.control.lineage.run_events import LineageRun, RunStatistics, run_event, run_id
from tests.control.lineage.lineage_kit import as_client_has_it

AT = 1.8e9
IN, OUT = DatasetName("file", "/in"), DatasetName("jobpipe://zk:2181/jobpipe/topics", "orders")
RUN = LineageRun(id=run_id("r-1", AT), run="r-1", pipeline="shop", job="publish")
LINEAGE = JobLineage(
    is_stream=False,
    sql="SELECT id FROM input",
    inputs=(DatasetLineage(dataset=IN, columns=(("id", "bigint"),)),),
    outputs=(
        DatasetLineage(
            dataset=OUT,
            topic="orders",
            columns=(("id", "bigint"), ("more", None)),
            made_of={"id": frozenset({Origin(IN, "id"), Origin(IN, "key", Use.CONDITIONAL)})},
            influences=frozenset({Origin(IN, "key", Use.FILTER)}),
        ),
    ),
)


def event(state: RunState = RunState.START, run: LineageRun = RUN, **more: Any) -> dict[str, Any]:
    found = json.loads(run_event(state, run, AT, namespace="tests", **{"lineage": LINEAGE, **more}))
    assert isinstance(found, dict)
    assert as_client_has_it(found).eventType is state
    return found


def test_the_id_of_a_run_is_the_same_for_the_same_run_and_moment() -> None:
    assert uuid.UUID(run_id("r-1", AT)).version == 7
    assert run_id("r-1", AT) == RUN.id
    assert len({run_id("r-1", AT), run_id("r-1", AT + 1), run_id("r-2", AT)}) == 3


def test_an_event_says_job_run_and_who_made_it() -> None:
    found = event(RunState.COMPLETE)
    assert (found["eventType"], found["eventTime"]) == ("COMPLETE", "2027-01-15T08:00:00.000Z")
    assert found["schemaURL"].startswith("https://openlineage.io/spec/2-")
    assert found["producer"] == f"pkg:generic/jobpipe@{jobpipe.__version__}"
    assert (found["job"]["namespace"], found["job"]["name"]) == ("tests", "shop.publish")
    kind = found["job"]["facets"]["jobType"]
    assert (kind["processingType"], kind["integration"], kind["jobType"]) == ("BATCH", "JOBPIPE", "JOB")
    assert found["job"]["facets"]["sql"]["dialect"] == "spark"
    assert found["run"]["runId"] == RUN.id
    for facet in (*found["job"]["facets"].values(), *found["run"]["facets"].values()):
        assert facet["_producer"] == found["producer"]
        assert facet["_schemaURL"].startswith("https://openlineage.io/spec/facets/")


def test_columns_are_told_with_all_ways_in_which_they_are_used() -> None:
    (output,) = event()["outputs"]
    assert [(each["name"], each.get("type")) for each in output["facets"]["schema"]["fields"]] == [
        ("id", "bigint"),
        ("more", None),
    ]
    lineage = output["facets"]["columnLineage"]
    place = {"namespace": IN.namespace, "name": IN.name}
    assert lineage["fields"] == {
        "id": {
            "inputFields": [
                {
                    **place,
                    "field": "id",
                    "transformations": [{"type": "DIRECT", "subtype": "IDENTITY", "masking": False}],
                },
                {
                    **place,
                    "field": "key",
                    "transformations": [{"type": "INDIRECT", "subtype": "CONDITIONAL", "masking": False}],
                },
            ]
        }
    }
    assert [(each["field"], each["transformations"][0]["subtype"]) for each in lineage["dataset"]] == [
        ("key", "FILTER")
    ]


def test_a_function_that_is_not_known_has_no_subtype() -> None:
    made = {"id": frozenset({Origin(IN, "id", Use.FUNCTION)})}
    (output,) = event(lineage=JobLineage(is_stream=True, outputs=(DatasetLineage(dataset=OUT, made_of=made),)))[
        "outputs"
    ]
    (field,) = output["facets"]["columnLineage"]["fields"]["id"]["inputFields"]
    assert field["transformations"] == [{"type": "DIRECT", "masking": False}]


@pytest.mark.parametrize(
    ("lower", "upper", "expected"),
    [
        (None, None, None),
        ("2026-11-21T00:00:00Z", "2026-11-22T00:00:00Z", ("2026-11-21T00:00:00Z", "2026-11-22T00:00:00Z")),
        ("7", "9", None),
    ],
)
def test_the_nominal_time_is_the_interval_of_a_schedule(
    lower: str | None, upper: str | None, expected: tuple[str, str] | None
) -> None:
    run = LineageRun(id=RUN.id, run="r-1", pipeline="shop", job="publish", lower=lower, upper=upper)
    facet = event(run=run)["run"]["facets"].get("nominalTime")
    assert (None if facet is None else (facet["nominalStartTime"], facet["nominalEndTime"])) == expected


def test_an_error_is_told_of_a_failure_alone() -> None:
    assert event(RunState.FAIL, error="it is gone")["run"]["facets"]["errorMessage"]["message"] == "it is gone"
    assert "errorMessage" not in event(RunState.COMPLETE)["run"]["facets"]


def test_statistics_are_of_the_dataset_that_they_are_of() -> None:
    found = event(statistics=RunStatistics(rows_read=5, published={"orders": (4, 40)}))
    assert found["inputs"][0]["inputFacets"]["inputStatistics"]["rowCount"] == 5
    written = found["outputs"][0]["outputFacets"]["outputStatistics"]
    assert (written["rowCount"], written["size"]) == (4, 40)
    assert not event(statistics=RunStatistics())["inputs"][0].get("inputFacets")
    both = JobLineage(is_stream=True, inputs=(DatasetLineage(dataset=IN), DatasetLineage(dataset=OUT)))
    for dataset in event(lineage=both, statistics=RunStatistics(rows_read=5))["inputs"]:
        assert not dataset.get("inputFacets"), "of which one they were read is not known"


def test_of_a_job_of_which_nothing_is_known_the_run_is_told() -> None:
    found = event(lineage=None)
    assert (found["inputs"], found["outputs"]) == ([], [])
    assert found["job"]["name"] == "shop.publish"


def test_an_event_that_is_too_large_is_told_without_columns_and_sql(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = event()
    assert "sql" in whole["job"]["facets"]
    monkeypatch.setattr(run_events, "MOST_EVENT_BYTES", len(json.dumps(whole)) // 2)
    found = event()
    assert "sql" not in found["job"]["facets"]
    assert [each["name"] for each in (*found["inputs"], *found["outputs"])] == ["/in", "orders"]
    assert not found["outputs"][0]["facets"]
