"""The alert rules: Prometheus takes them, each is raised by what it is about, and none while all is well."""

from __future__ import annotations

import dataclasses
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from jobpipe.errors import RegistryUnavailable
from jobpipe.metrics.alert_rules import RULES, rules_file
from jobpipe.metrics.metric_samples import MetricSamples
from jobpipe.metrics.metric_table import DIFFERENCE_ROWS, NEWEST_DIFFERENCE
from jobpipe.metrics.openmetrics_text import metrics_text
from jobpipe.operations.status_operations import Lag
from jobpipe.pipelines.model.job_states import JobState
from tests.metrics.kit import COUNTS, different, job, reader, samples, schedule, source, topic
from tests.statuses import subscription_status

PROMTOOL = shutil.which("promtool")
needs_promtool = pytest.mark.skipif(
    PROMTOOL is None, reason="NOT TESTED: rules in Prometheus; promtool is not here (apt install prometheus)"
)
MINUTES = 40  # that a series lasts
LATE = dataclasses.replace(subscription_status("billing"), lag=Lag(1, 1, 1, 900.0))
FULL = dataclasses.replace(subscription_status("billing"), lag=Lag(9, 9, 850_000, 10.0))
ABSENT = subscription_status("billing", required=True, state="absent")
CASES: Mapping[str, MetricSamples | None] = {
    "JobpipeMetricsAbsent": None,
    "JobpipeRegistryDown": samples(error=RegistryUnavailable("no answer")),
    "JobpipeJobsUnknown": dataclasses.replace(samples(), jobs=(), jobs_known=False),
    "JobpipeTopicDown": samples(down=("trades",)),
    "JobpipePublisherGone": samples(topic(publishing=False, publisher_gone=30.0)),
    "JobpipePublisherWaits": samples(topic(waiting="acks=all: billing")),
    "JobpipeSpoolNearlyFull": samples(topic(subscriptions=(FULL,))),
    "JobpipeDiskError": samples(topic(disk="it does not answer")),
    "JobpipeSourceLags": samples(topic(source=source(age=400.0))),  # its process is stopped
    "JobpipeSourceRetains": samples(topic(source=source(retained_bytes=20 << 30, safe_bytes=None))),
    "JobpipeSourceLogEnds": samples(topic(source=source(retained_bytes=200 << 20, safe_bytes=56 << 20))),
    "JobpipeSubscriptionLags": samples(topic(subscriptions=(LATE,))),
    "JobpipeRowsDiffer": samples(topic(subscriptions=(reader(counts=different(60.0 * 30)),))),
    "JobpipeRequiredSubscriptionAbsent": samples(topic(subscriptions=(ABSENT,))),
    "JobpipeJobFailed": samples(jobs=(job(state=JobState.FAILED),)),
    "JobpipeJobLost": samples(jobs=(job(state=JobState.LOST),)),
    "JobpipeJobRestarts": samples(jobs=(job(attempts=1, schedule=None),)),  # one more each minute, see _series
    "JobpipeDeadLetters": samples(),  # one more each minute
    "JobpipeIntervalFailed": samples(jobs=(job(schedule=schedule(failed=1)),)),
    "JobpipeScheduleLate": samples(jobs=(job(schedule=schedule(next_due=60.0)),)),
    "JobpipeCertificateExpires": samples(expires=5 * 86_400.0),
}
GROWING = {
    "JobpipeJobRestarts": "jobpipe_job_attempts_total",
    "JobpipeDeadLetters": "jobpipe_job_dead_letters_total",
}
WELL = (
    samples(),
    samples(jobs=(job(schedule=schedule(next_due=None, paused=True)),)),
    samples(topic(stored_bytes=990_000)),  # all of it acknowledged, and kept until there is need of room
    samples(jobs=(job(schedule=schedule(next_due=60.0, running=1)),)),  # a run takes longer than its interval
    samples(topic(subscriptions=(reader(rows=900),))),  # lag alone
    samples(topic(subscriptions=(reader(counts=dataclasses.replace(COUNTS, read=0, unproven=1_000)),))),
    samples(topic(subscriptions=(reader(counts=dataclasses.replace(COUNTS, moved=1_000)),))),
    samples(topic(source=source(behind_seconds=120.0, behind_bytes=1 << 30, retained_bytes=1 << 30, safe_bytes=None))),
    samples(topic(source=source(behind_seconds=None, retained_bytes=None, safe_bytes=None))),  # it has just begun
    samples(topic(source=None)),
    samples(topic(publishing=False)),  # served by a person, or closed by its job
    samples(topic(subscriptions=(subscription_status("billing", state="absent"),))),  # not required
)


def series(given: MetricSamples | None, growing: str = "") -> list[dict[str, str]]:
    """What promtool takes for the samples, at each minute; one of them grows by one."""
    if given is None:
        return [{"series": "up", "values": f"0x{MINUTES}"}]
    text, _ = metrics_text(given, "application/openmetrics-text; version=1.0.0")
    found = []
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            labels = ", ".join(f'{name}="{value}"' for name, value in sample.labels.items())
            step = int(growing == sample.name)
            found.append({"series": f"{sample.name}{{{labels}}}", "values": f"{sample.value:g}+{step}x{MINUTES}"})
    return found


def promtool(folder: Path, tests: list[dict[str, Any]]) -> None:
    assert PROMTOOL is not None
    (folder / "rules.yml").write_text(rules_file())
    test = {"rule_files": ["rules.yml"], "evaluation_interval": "1m", "tests": tests}
    (folder / "test.yml").write_text(yaml.safe_dump(test))
    for command in (["check", "rules", "rules.yml"], ["test", "rules", "test.yml"]):
        done = subprocess.run([PROMTOOL, *command], cwd=folder, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def expected(alert: str, labels: Mapping[str, str] | None) -> dict[str, Any]:
    raised = [] if labels is None else [{"exp_labels": dict(labels)}]
    return {"eval_time": f"{MINUTES - 5}m", "alertname": alert, "exp_alerts": raised}


@needs_promtool
@pytest.mark.processes
@pytest.mark.parametrize(
    ("given", "growing", "alert"),
    [
        pytest.param(
            samples(topic(waiting="acks=all: billing")),
            "jobpipe_topic_batches_total",
            "JobpipePublisherWaits",
            id="acks=all waits for a moment at each batch",
        ),
        pytest.param(samples(), "jobpipe_job_attempts_total", "JobpipeJobRestarts", id="a schedule has many runs"),
    ],
)
def test_what_goes_on_raises_no_alert(tmp_path: Path, given: MetricSamples, growing: str, alert: str) -> None:
    cases = {"input_series": series(given, growing), "alert_rule_test": [expected(alert, None)]}
    promtool(tmp_path, [{"interval": "1m", **cases}])


DIFFER = "JobpipeRowsDiffer"


def differences(newest: str, count: str) -> dict[str, Any]:
    """Series of a subscription, at each minute, in promtool's notation."""
    labels = 'topic="orders", subscription="billing"'
    return {
        "interval": "1m",
        "input_series": [
            {"series": f"{NEWEST_DIFFERENCE.sample}{{{labels}}}", "values": newest},
            {"series": f'{DIFFERENCE_ROWS.sample}{{{labels}, kind="lost"}}', "values": count},
            {"series": f'{DIFFERENCE_ROWS.sample}{{{labels}, kind="doubled"}}', "values": "0x300"},
        ],
    }


@needs_promtool
@pytest.mark.processes
@pytest.mark.parametrize(
    ("newest", "count"),
    [
        pytest.param("_x110 6570x200", "0x109 1x200", id="a series that counts from zero"),
        pytest.param("_x110 6570x200", "_x110 1x200", id="a series that begins with it"),
        pytest.param("_x110 0x200", "0x109 1x200", id="the clock of the coordinator is an hour late"),
    ],
)
def test_a_difference_is_an_alert_within_a_minute_and_for_an_hour(tmp_path: Path, newest: str, count: str) -> None:
    """It names topic and subscription, and the command that names the range; without another one it ends."""
    labels = {"severity": "critical", "topic": "orders", "subscription": "billing"}
    rule = next(rule for rule in RULES if rule.name == DIFFER)
    assert "jobpipe ledger {{ $labels.topic }} {{ $labels.subscription }}" in rule.remedy
    times = [("109m", None), ("110m", labels), ("140m", labels), ("180m", None)]
    tests = [
        {"eval_time": at, "alertname": DIFFER, "exp_alerts": [] if raised is None else [{"exp_labels": raised}]}
        for at, raised in times
    ]
    for test in tests:
        for alert in test["exp_alerts"]:
            said = "subscription billing of topic orders has committed other rows than were published"
            remedy = rule.remedy.replace("{{ $labels.topic }}", "orders").replace(
                "{{ $labels.subscription }}", "billing"
            )
            alert["exp_annotations"] = {"summary": said, "description": remedy}
    promtool(tmp_path, [{**differences(newest, count), "alert_rule_test": tests}])


@needs_promtool
@pytest.mark.processes
def test_a_difference_of_long_ago_is_no_alert(tmp_path: Path) -> None:
    """Also at the first sample, after a restart of what is scraped."""
    raised = {"eval_time": "120m", "alertname": DIFFER, "exp_alerts": []}
    promtool(tmp_path, [{**differences("_x110 600x20", "_x110 7x20"), "alert_rule_test": [raised]}])


def test_there_is_a_case_for_each_rule() -> None:
    assert CASES.keys() == {rule.name for rule in RULES}


@needs_promtool
@pytest.mark.processes
def test_no_alert_is_raised_while_all_is_well(tmp_path: Path) -> None:
    promtool(
        tmp_path,
        [
            {
                "interval": "1m",
                "input_series": series(well),
                "alert_rule_test": [expected(rule.name, None) for rule in RULES],
            }
            for well in WELL
        ],
    )


@needs_promtool
@pytest.mark.processes
@pytest.mark.parametrize("alert", CASES)
def test_each_alert_is_raised_alone(tmp_path: Path, alert: str) -> None:
    """By what a scraper gets, and no other alert comes."""
    promtool(
        tmp_path,
        [
            {
                "interval": "1m",
                "input_series": series(CASES[alert], GROWING.get(alert, "")),
                "promql_expr_test": [
                    {
                        "expr": f'count(ALERTS{{alertname="{alert}", alertstate="firing"}})',
                        "eval_time": f"{MINUTES - 5}m",
                        "exp_samples": [{"labels": "{}", "value": 1}],
                    },
                    {
                        "expr": f'count(ALERTS{{alertname!="{alert}"}})',
                        "eval_time": f"{MINUTES - 5}m",
                        "exp_samples": [],
                    },
                ],
            }
        ],
    )


def test_an_alert_says_what_to_do() -> None:
    rules = yaml.safe_load(rules_file())["groups"][0]["rules"]
    assert [rule["alert"] for rule in rules] == [rule.name for rule in RULES]
    for rule in rules:
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert rule["annotations"]["summary"]
        assert rule["annotations"]["description"]
