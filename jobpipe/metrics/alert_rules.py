"""Alert rules for Prometheus: the conditions under which a person should look, each with what to do first."""

from __future__ import annotations

from dataclasses import dataclass

import yaml

from jobpipe.metrics import metric_table as table
from jobpipe.metrics.metric_table import Metric

LAG_SECONDS = 300
GONE_SECONDS = 20  # a topic without its publisher is served for coordinator.linger, 60 s by default
DAYS_LEFT = 7
RETAINED_BYTES = 10 << 30  # of a database's log
NEWS_SECONDS = 3_600  # for which a difference in the ledger is an alert


@dataclass(frozen=True)
class AlertRule:
    """One rule.

    Attributes:
        name: of the alert.
        condition: PromQL; the alert is raised for each series that it returns.
        lasts: for how long the condition must hold, as Prometheus writes it.
        severity: ``critical``: rows do not flow, or may be lost; ``warning``: they will not flow soon.
        summary: one line, with labels in braces.
        remedy: what to do first.
    """

    name: str
    condition: str
    lasts: str
    severity: str
    summary: str
    remedy: str


def _state(metric: Metric, state: str) -> str:
    return f'{metric.sample}{{{metric.name}="{state}"}} == 1'


def _is(metric: Metric, value: int) -> str:
    return f"{metric.sample} == {value}"


_TOPIC = "topic {{ $labels.topic }}"
_SUBSCRIPTION = "subscription {{ $labels.subscription }} of topic {{ $labels.topic }}"
_JOB = "job {{ $labels.pipeline }}/{{ $labels.job_name }}"

RULES: tuple[AlertRule, ...] = (
    AlertRule(
        "JobpipeMetricsAbsent",
        f"absent({table.BUILD.sample})",
        "5m",
        "critical",
        "nothing answers for jobpipe's metrics",
        "see that `jobpipe server`, or `jobpipe metrics`, runs and that Prometheus may read it",
    ),
    AlertRule(
        "JobpipeRegistryDown",
        _is(table.REGISTRY_UP, 0),
        "1m",
        "critical",
        "the registry does not answer {{ $labels.instance }}",
        "run `jobpipe doctor`; links that are there go on without the registry, new ones do not come",
    ),
    AlertRule(
        "JobpipeJobsUnknown",
        _is(table.JOBS_KNOWN, 0),
        "1m",
        "critical",
        "the control server {{ $labels.instance }} cannot read what it keeps of its jobs",
        "its log says why; see the disk of jobpipe.home. Jobs run on",
    ),
    AlertRule(
        "JobpipeTopicDown",
        _is(table.TOPIC_UP, 0),
        "1m",
        "critical",
        f"the coordinator of {_TOPIC} is registered, and does not answer",
        "run `jobpipe topics describe {{ $labels.topic }}`, and see whether its publisher's host is reachable",
    ),
    AlertRule(
        "JobpipePublisherGone",
        f"{table.TOPIC_GONE.sample} > {GONE_SECONDS}",
        "0m",
        "warning",
        f"the publisher of {_TOPIC} has died",
        "start the job that publishes it; what is sealed is served until it was read",
    ),
    AlertRule(
        "JobpipePublisherWaits",
        f"{_is(table.TOPIC_WAITING, 1)} and increase({table.TOPIC_BATCHES.sample}[5m]) == 0",
        "1m",
        "critical",
        f"the publisher of {_TOPIC} waits for a reader",
        f"{table.TOPIC_WAITS_FOR.sample} names it; start it, make it faster, or drop its subscription",
    ),
    AlertRule(
        "JobpipeSpoolNearlyFull",
        f"max without(subscription) ({table.LAG_BYTES.sample}) / {table.TOPIC_SPOOL_LIMIT.sample} > 0.8",
        "5m",
        "warning",
        f"the spool of {_TOPIC} is nearly full of batches that a subscription has not read",
        "see with `jobpipe topics lag {{ $labels.topic }}` who has not read, or raise jobpipe.spool.max_bytes",
    ),
    AlertRule(
        "JobpipeDiskError",
        _is(table.TOPIC_DISK, 1),
        "1m",
        "critical",
        f"the disk of {_TOPIC} fails, or does not answer",
        "`jobpipe topics describe {{ $labels.topic }}` shows the error; nothing is sealed meanwhile",
    ),
    AlertRule(
        "JobpipeSourceLags",
        f"{table.SOURCE_LAG_SECONDS.sample} > {LAG_SECONDS}",
        "5m",
        "critical",
        f"the capture that publishes {_TOPIC} lags by {{{{ $value | humanizeDuration }}}}",
        "`jobpipe topics describe {{ $labels.topic }}` shows how its source stands, and whom the publisher waits for; "
        "see whether the capture's process runs, and its log. Meanwhile the database keeps its log",
    ),
    AlertRule(
        "JobpipeSourceRetains",
        f"{table.SOURCE_RETAINED.sample} > {RETAINED_BYTES}",
        "5m",
        "warning",
        f"the database keeps {{{{ $value | humanize1024 }}}}B of its log for the capture of {_TOPIC}",
        "see that the capture keeps up, that no transaction of the database is open for long, and how much room its "
        "disk has; a limit is max_slot_wal_keep_size",
    ),
    AlertRule(
        "JobpipeSourceLogEnds",
        f"{table.SOURCE_SAFE.sample} < {table.SOURCE_RETAINED.sample} / 2",
        "1m",
        "critical",
        f"the database will soon remove changes that {_TOPIC} does not have",
        "two thirds of max_slot_wal_keep_size are used: raise it now, and see why the capture does not keep up",
    ),
    AlertRule(
        "JobpipeSubscriptionLags",
        f"{table.LAG_SECONDS.sample} > {LAG_SECONDS}",
        "5m",
        "warning",
        f"{_SUBSCRIPTION} lags by {{{{ $value | humanizeDuration }}}}",
        "see whether its job runs, and whether its micro-batches keep up",
    ),
    AlertRule(
        "JobpipeRowsDiffer",
        # The time is there with the first sample of a new series. The increase needs no clock of the coordinator's.
        f"time() - {table.NEWEST_DIFFERENCE.sample} < {NEWS_SECONDS} "
        f"or sum without(kind) (increase({table.DIFFERENCE_ROWS.sample}[{NEWS_SECONDS // 60}m])) > 0",
        "0m",
        "critical",
        f"{_SUBSCRIPTION} has committed other rows than were published",
        "`jobpipe ledger {{ $labels.topic }} {{ $labels.subscription }}` names the ranges, and what to do; so does the "
        f"page Ledger of the control server. It ends {NEWS_SECONDS // 60} minutes after the newest one was found",
    ),
    AlertRule(
        "JobpipeRequiredSubscriptionAbsent",
        f"{_state(table.LINK_STATE, 'absent')} and ignoring({table.LINK_STATE.name}) {_is(table.REQUIRED, 1)}",
        "10m",
        "warning",
        f"{_SUBSCRIPTION} is required, and not connected",
        "start its job, or drop the subscription: rows are kept for it until the spool is full",
    ),
    AlertRule(
        "JobpipeJobFailed",
        _state(table.JOB_STATE, "FAILED"),
        "0m",
        "critical",
        f"{_JOB} has failed",
        "`jobpipe pipeline logs {{ $labels.pipeline }}/{{ $labels.job_name }}` shows why; then resume it",
    ),
    AlertRule(
        "JobpipeJobLost",
        _state(table.JOB_STATE, "LOST"),
        "5m",
        "critical",
        f"whether {_JOB} runs is unknown",
        "see whether its host, or the cluster's master, is reachable; if it has ended, restart it with --force",
    ),
    AlertRule(
        "JobpipeJobRestarts",
        f"increase({table.JOB_ATTEMPTS.sample}[15m]) > 3 unless {table.SCHEDULE_PAUSED.sample}",
        "0m",
        "warning",
        f"{_JOB} restarts again and again",
        "`jobpipe pipeline logs {{ $labels.pipeline }}/{{ $labels.job_name }}` shows why its attempts fail",
    ),
    AlertRule(
        "JobpipeDeadLetters",
        f"increase({table.DEAD_LETTERS.sample}[15m]) > 0",
        "0m",
        "warning",
        f"{_JOB} has dead letters",
        "`jobpipe dead-letters show {{ $labels.topic }}` shows the rows and why; redrive them when that is mended",
    ),
    AlertRule(
        "JobpipeIntervalFailed",
        f'{table.SCHEDULE_INTERVALS.sample}{{state="FAILED"}} > 0',
        "0m",
        "warning",
        f"intervals of {_JOB} have failed",
        "`jobpipe schedules intervals {{ $labels.pipeline }}/{{ $labels.job_name }}` has them; `jobpipe runs retry`",
    ),
    AlertRule(
        "JobpipeScheduleLate",
        f"time() - {table.SCHEDULE_DUE.sample} > 600 "
        f'unless ignoring(state) {table.SCHEDULE_INTERVALS.sample}{{state="RUNNING"}} > 0',
        "0m",
        "warning",
        f"an interval of {_JOB} was due ten minutes ago",
        "`jobpipe schedules intervals {{ $labels.pipeline }}/{{ $labels.job_name }}` says what it waits for",
    ),
    AlertRule(
        "JobpipeCertificateExpires",
        f"{table.CERTIFICATE_EXPIRY.sample} - time() < {DAYS_LEFT * 86_400}",
        "0m",
        "warning",
        f"the certificate of {{{{ $labels.key }}}} ends within {DAYS_LEFT} days",
        "renew it (`jobpipe certs renew`) and put it in the file's place; it is read without a restart",
    ),
)


def rules_file() -> str:
    """Return the file for ``rule_files`` of ``prometheus.yml``."""
    rules = [
        {
            "alert": rule.name,
            "expr": rule.condition,
            "for": rule.lasts,
            "labels": {"severity": rule.severity},
            "annotations": {"summary": rule.summary, "description": rule.remedy},
        }
        for rule in RULES
    ]
    text: str = yaml.safe_dump({"groups": [{"name": "jobpipe", "rules": rules}]}, sort_keys=False, width=10_000)
    return text
