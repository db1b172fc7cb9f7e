"""Airflow runs job `audit` of pipeline `flights` over each hour: it starts the run by REST, and waits for its end.

The connection `jobpipe` (type HTTP) has the server's address, and as its extra `{"Authorization": "Bearer TOKEN"}`.
The same range is the same run, so a task that is tried again starts nothing twice. To run an interval that has failed
again, clear both of its tasks.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from airflow.exceptions import AirflowFailException
from airflow.providers.http.operators.http import HttpOperator
from airflow.providers.http.sensors.http import HttpSensor
from airflow.sdk import DAG
from airflow.timetables.interval import CronDataIntervalTimetable

if TYPE_CHECKING:
    from requests import Response

RUNS = "/pipelines/flights/jobs/audit/runs"
BOUNDS = {
    "lowerBoundary": "{{ data_interval_start.isoformat() }}",
    "upperBoundary": "{{ data_interval_end.isoformat() }}",
}


def has_finished(response: Response) -> bool:
    """Tell whether a run has succeeded.

    Raises:
        AirflowFailException: it has ended otherwise.
    """
    run = response.json()
    if run["state"] in ("FAILED", "CANCELED", "STOPPED", "LOST"):
        raise AirflowFailException(f"run {run['id']} is {run['state']}: {run['detail']}")
    return bool(run["state"] == "FINISHED")


with DAG(
    "flights_audit",
    # With a crontab alone Airflow 3 makes intervals that begin when they end.
    schedule=CronDataIntervalTimetable("0 * * * *", timezone="UTC"),
    start_date=datetime(2026, 11, 1, tzinfo=UTC),
    catchup=True,
    max_active_runs=1,  # the runs of a job follow each other
):
    start = HttpOperator(
        task_id="start",
        http_conn_id="jobpipe",
        endpoint=RUNS,
        data=json.dumps(BOUNDS),
        headers={"Content-Type": "application/json"},
        retries=10,  # another run has not ended, or the server is away
        retry_delay=timedelta(minutes=1),
    )
    wait = HttpSensor(
        task_id="wait",
        http_conn_id="jobpipe",
        endpoint=RUNS,
        request_params=BOUNDS,
        response_check=has_finished,
        mode="reschedule",
        poke_interval=30.0,
        timeout=6 * 3600.0,
    )
    start >> wait
