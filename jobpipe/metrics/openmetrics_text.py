"""Samples as text that Prometheus scrapes: OpenMetrics, or its older format, as the scraper asks."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, islice
from typing import TypeVar

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    StateSetMetricFamily,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector, CollectorRegistry
from prometheus_client.utils import floatToGoString

import jobpipe
from jobpipe.errors import NotAuthorized
from jobpipe.graph.blockers import blockers
from jobpipe.metrics import metric_table as table
from jobpipe.metrics.metric_samples import JobSample, MetricSamples
from jobpipe.metrics.metric_table import Metric, MetricKind
from jobpipe.operations.messages.ledger_messages import HopCounts
from jobpipe.operations.status_operations import SubscriptionStatus, TopicStatus
from jobpipe.store.subscriptions.hop_times import BUCKETS

F = TypeVar("F", CounterMetricFamily | GaugeMetricFamily, StateSetMetricFamily, HistogramMetricFamily)
MOST_TOPICS = 5_000
MOST_SUBSCRIPTIONS = 10_000  # together: some 335,000 samples, 28 MB

_BOUNDS = (*map(floatToGoString, BUCKETS), "+Inf")
_NUMBERS = {MetricKind.COUNTER: CounterMetricFamily, MetricKind.GAUGE: GaugeMetricFamily}


def metrics_text(samples: MetricSamples, accept: str = "") -> tuple[bytes, str]:
    """Return the text, and its media type.

    Args:
        samples: what is known.
        accept: the header of the request, which says what formats the scraper reads.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Samples(samples))
    try:
        encode, media = choose_encoder(accept)
    except (ValueError, TypeError):  # what it says of versions is wrong
        encode, media = choose_encoder("")
    return encode(registry), media


class _Samples(Collector):
    def __init__(self, samples: MetricSamples) -> None:
        self._samples = samples

    def collect(self) -> Iterator[Family]:
        return iter(families(self._samples))


class _Families:
    """Families by metric, made when the first sample comes."""

    def __init__(self) -> None:
        self._numbers: dict[str, CounterMetricFamily | GaugeMetricFamily] = {}
        self._states: dict[str, StateSetMetricFamily] = {}
        self._histograms: dict[str, HistogramMetricFamily] = {}

    def add(self, metric: Metric, labels: Sequence[str], value: float | bool | None) -> None:
        """Add a sample; None is none."""
        if value is None:
            return
        _family(self._numbers, _NUMBERS[metric.kind], metric).add_metric(labels, float(value))

    def add_state(self, metric: Metric, labels: Sequence[str], state: str) -> None:
        """Add a sample for each state."""
        family = _family(self._states, StateSetMetricFamily, metric)
        family.add_metric(labels, {each: each == state for each in metric.states})

    def add_histogram(self, metric: Metric, labels: Sequence[str], counts: Sequence[int], total: float) -> None:
        """Add a histogram: counts of each bucket without those before it, and the sum of all values.

        None of a peer that has none, or has other buckets.
        """
        if len(counts) == len(_BOUNDS):
            buckets = list(zip(_BOUNDS, accumulate(counts), strict=True))
            _family(self._histograms, HistogramMetricFamily, metric).add_metric(labels, buckets, total)

    def all(self) -> list[Family]:
        """Return those with samples, in the order of the table."""
        made: dict[str, Family] = {**self._numbers, **self._states, **self._histograms}
        return [made[name] for name in table.METRICS if name in made]


def _family(made: dict[str, F], kind: Callable[..., F], metric: Metric) -> F:
    """Return the family of a metric, made if it is the first sample's."""
    if metric.name not in made:
        made[metric.name] = kind(metric.name, metric.about, labels=metric.labels)
    return made[metric.name]


def families(samples: MetricSamples) -> list[Family]:
    """Return the metric families of samples."""
    made = _Families()
    snapshot = samples.topics
    made.add(table.REGISTRY_UP, (), snapshot.error is None)
    made.add(table.COLLECT_SECONDS, (), snapshot.seconds)
    made.add(table.JOBS_KNOWN, (), samples.jobs_known)
    if samples.lineage is not None:
        made.add(table.LINEAGE_WAITING, (), samples.lineage.waiting)
        made.add(table.LINEAGE_SENT, (), samples.lineage.sent)
        made.add(table.LINEAGE_DROPPED, (), samples.lineage.dropped)
    for certificate in samples.certificates:
        made.add(table.CERTIFICATE_EXPIRY, (certificate.key,), certificate.expires)
    left_out, room = max(0, len(snapshot.topics) - MOST_TOPICS), MOST_SUBSCRIPTIONS
    for name, answer in islice(sorted(snapshot.topics.items()), MOST_TOPICS):
        if isinstance(answer, NotAuthorized):  # it may be well: we may not know
            left_out += 1
            continue
        made.add(table.TOPIC_UP, (name,), isinstance(answer, TopicStatus))
        if isinstance(answer, TopicStatus):
            _add_topic(made, answer)
            shown = answer.subscriptions[:room]
            for line in shown:
                _add_subscription(made, name, line)
            left_out += len(answer.subscriptions) - len(shown)
            room -= len(shown)
    made.add(table.LEFT_OUT, (), left_out)
    for job in samples.jobs:
        _add_job(made, job)
        if job.dead_letters is not None:
            made.add(table.DEAD_LETTERS, (job.pipeline, job.job, job.dead_letters), job.dead_letter_rows)
    return [_build(), *made.all()]


def _build() -> Family:
    about = {"version": jobpipe.__version__, "python": platform.python_version()}
    return InfoMetricFamily(table.BUILD.name, table.BUILD.about, value=about)


def _add_topic(made: _Families, status: TopicStatus) -> None:
    of = (status.topic,)
    made.add(table.TOPIC_PUBLISHING, of, status.publishing)
    made.add(table.TOPIC_GONE, of, status.publisher_gone)
    made.add(table.TOPIC_ROWS, of, status.rows)
    made.add(table.TOPIC_BATCHES, of, status.head)
    made.add(table.TOPIC_BYTES, of, status.bytes)
    made.add(table.TOPIC_SPOOL, of, status.stored_bytes)
    made.add(table.TOPIC_SPOOL_LIMIT, of, status.spool_limit)
    made.add(table.TOPIC_CATALOG, of, status.catalog_bytes)
    made.add(table.TOPIC_PARTITIONS, of, status.parallelism)
    made.add(table.TOPIC_EPOCH, of, status.epoch)
    made.add(table.TOPIC_ENDED, of, status.ended)
    made.add(table.TOPIC_WAITING, of, status.waiting is not None)
    for kind, name in blockers(status):
        made.add(table.TOPIC_WAITS_FOR, (*of, kind, name), 1)
    made.add(table.TOPIC_DISK, of, status.disk is not None)
    made.add(table.TOPIC_LEASES, of, status.lease_count)
    made.add(table.TOPIC_HOLDS, of, len(status.holds))
    if (source := status.source) is not None:
        made.add(table.SOURCE_LAG_SECONDS, of, source.lag_seconds)
        made.add(table.SOURCE_LAG_BYTES, of, source.behind_bytes)
        made.add(table.SOURCE_RETAINED, of, source.retained_bytes)
        made.add(table.SOURCE_SAFE, of, source.safe_bytes)


def _add_subscription(made: _Families, topic: str, line: SubscriptionStatus) -> None:
    of = (topic, line.name)
    made.add(table.LAG_ROWS, of, max(0, line.lag.rows))  # below zero where the newest batch was taken back
    made.add(table.LAG_BATCHES, of, max(0, line.lag.batches))
    made.add(table.LAG_BYTES, of, max(0, line.lag.bytes))
    made.add(table.LAG_SECONDS, of, line.lag.seconds)
    made.add_histogram(table.HOP_SECONDS, of, line.hops, line.hop_seconds)
    made.add_state(table.LINK_STATE, of, line.state)
    made.add(table.RECONNECTS, of, line.reconnects)
    made.add(table.REQUIRED, of, line.required)
    made.add(table.SILENT_SECONDS, of, line.silent)
    if line.counts is not None:
        _add_counts(made, of, line.counts)


def _add_counts(made: _Families, of: tuple[str, str], counts: HopCounts) -> None:
    """Add what the ledger says: also each zero, so that an increase from it is seen."""
    made.add(table.COMMITTED_ROWS, of, counts.committed)
    made.add(table.READ_ROWS, of, counts.read)
    made.add(table.UNPROVEN_ROWS, of, counts.unproven)
    for kind, rows in zip(table.DIFFERENCE_KINDS, (counts.lost, counts.doubled), strict=True):
        made.add(table.DIFFERENCE_ROWS, (*of, kind), rows)
    made.add(table.NEWEST_DIFFERENCE, of, None if counts.newest is None else counts.newest.found)


def _add_job(made: _Families, sample: JobSample) -> None:
    of = (sample.pipeline, sample.job)
    made.add_state(table.JOB_STATE, of, sample.state)
    made.add(table.JOB_SINCE, of, sample.since)
    made.add(table.JOB_WANTED, of, sample.wanted)
    made.add(table.JOB_ATTEMPTS, of, sample.attempts)
    made.add(table.JOB_ROWS, of, sample.rows)
    made.add(table.JOB_BATCHES, of, sample.batches)
    made.add_histogram(table.BATCH_SECONDS, of, sample.durations, sample.duration_seconds)
    schedule = sample.schedule
    if schedule is not None:
        made.add(table.SCHEDULE_DUE, of, schedule.next_due)
        for state, count in _intervals(schedule.waiting, schedule.running, schedule.failed):
            made.add(table.SCHEDULE_INTERVALS, (*of, state), count)
        made.add(table.SCHEDULE_PAUSED, of, schedule.paused)
        made.add(table.SCHEDULE_PROBLEM, of, schedule.problem)


def _intervals(waiting: int, running: int, failed: int) -> Iterable[tuple[str, int]]:
    return (("WAITING", waiting), ("RUNNING", running), ("FAILED", failed))
