"""The table of all metrics. The text that is scraped, docs/monitoring.md and the dashboard are made from it.

Names follow OpenMetrics and Prometheus: base units, ``_total`` of counters (added by the text), ``_info``.
https://github.com/prometheus/OpenMetrics/blob/v1.0.0/specification/OpenMetrics.md
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from jobpipe.pipelines.model.job_states import JobState


class MetricKind(StrEnum):
    """The types of OpenMetrics that are used here."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"
    STATE_SET = "stateset"
    INFO = "info"


@dataclass(frozen=True)
class Metric:
    """One metric family.

    Attributes:
        name: without the suffix that its kind has in the text.
        labels: their names; a state set has one more, of its own name.
        states: all of a state set, in order.
        unit: the base unit that ends its name, "" for a number without one.
    """

    name: str
    kind: MetricKind
    about: str
    labels: tuple[str, ...] = ()
    states: tuple[str, ...] = ()
    unit: str = ""

    @property
    def sample(self) -> str:
        """The name of its samples, as queries have it; of a histogram that of its buckets."""
        suffixes = {MetricKind.COUNTER: "_total", MetricKind.INFO: "_info", MetricKind.HISTOGRAM: "_bucket"}
        return self.name + suffixes.get(self.kind, "")


_TOPIC = ("topic",)
_SUBSCRIPTION = ("topic", "subscription")
_JOB = ("pipeline", "job_name")  # a label `job` is Prometheus's own: the name of what it scrapes
LINK_STATES = ("connected", "reconnecting", "absent")
JOB_STATES = tuple(JobState)


def _topic(name: str, kind: MetricKind, about: str, *labels: str, unit: str = "") -> Metric:
    return Metric(f"jobpipe_topic_{name}", kind, about, (*_TOPIC, *labels), unit=unit)


def _subscription(name: str, kind: MetricKind, about: str, unit: str = "", labels: tuple[str, ...] = ()) -> Metric:
    return Metric(f"jobpipe_subscription_{name}", kind, about, (*_SUBSCRIPTION, *labels), unit=unit)


def _source(name: str, about: str, unit: str) -> Metric:
    return Metric(f"jobpipe_source_{name}", MetricKind.GAUGE, about, _TOPIC, unit=unit)


def _job(name: str, kind: MetricKind, about: str, *labels: str, unit: str = "") -> Metric:
    return Metric(f"jobpipe_job_{name}", kind, about, (*_JOB, *labels), unit=unit)


# -- the process that answers ------------------------------------------------------------------------------------------

BUILD = Metric("jobpipe_build", MetricKind.INFO, "The version that answers.", ("version", "python"))
CERTIFICATE_EXPIRY = Metric(
    "jobpipe_certificate_expiry_timestamp_seconds",
    MetricKind.GAUGE,
    "When a certificate of the configuration ends, in seconds since 1970.",
    ("key",),
    unit="seconds",
)
COLLECT_SECONDS = Metric(
    "jobpipe_collect_duration_seconds",
    MetricKind.GAUGE,
    "How long it took to ask the registry and all coordinators.",
    unit="seconds",
)
REGISTRY_UP = Metric(
    "jobpipe_registry_up", MetricKind.GAUGE, "1 if the registry answers. Without it no topic is known."
)
JOBS_KNOWN = Metric(
    "jobpipe_jobs_known", MetricKind.GAUGE, "1 if the control server can read what it keeps of its jobs."
)
LEFT_OUT = Metric(
    "jobpipe_metrics_left_out",
    MetricKind.GAUGE,
    "Topics and subscriptions that are not shown: we may not see them, or there are too many.",
)
LINEAGE_WAITING = Metric("jobpipe_lineage_waiting_events", MetricKind.GAUGE, "Lineage events that wait to be sent.")
LINEAGE_SENT = Metric("jobpipe_lineage_sent_events", MetricKind.COUNTER, "Lineage events that were sent.")
LINEAGE_DROPPED = Metric(
    "jobpipe_lineage_dropped_events",
    MetricKind.COUNTER,
    "Lineage events that were dropped: too many or too old ones, and those that the backend refuses.",
)

# -- topics ------------------------------------------------------------------------------------------------------------

TOPIC_UP = _topic("up", MetricKind.GAUGE, "1 if the topic's coordinator answers; only topics that are served are here.")
TOPIC_PUBLISHING = _topic("publishing", MetricKind.GAUGE, "1 if a publisher has the topic, and its process lives.")
TOPIC_GONE = _topic(
    "publisher_gone_seconds",
    MetricKind.GAUGE,
    "Since its publisher's process was found dead, without having closed the topic.",
    unit="seconds",
)
TOPIC_ROWS = _topic("rows", MetricKind.COUNTER, "Rows that were ever published.")
TOPIC_BATCHES = _topic("batches", MetricKind.COUNTER, "Batches that were ever published: the offset of the next one.")
TOPIC_BYTES = _topic("bytes", MetricKind.COUNTER, "Bytes of rows that were ever published.", unit="bytes")
TOPIC_SPOOL = _topic("spool_bytes", MetricKind.GAUGE, "Bytes of rows that the spool keeps.", unit="bytes")
TOPIC_SPOOL_LIMIT = _topic(
    "spool_limit_bytes", MetricKind.GAUGE, "Bytes at which the publisher waits (spool.max_bytes).", unit="bytes"
)
TOPIC_CATALOG = _topic("catalog_bytes", MetricKind.GAUGE, "Bytes of the catalog.", unit="bytes")
TOPIC_PARTITIONS = _topic("partitions", MetricKind.GAUGE, "Partitions of the topic.")
TOPIC_EPOCH = _topic("epoch", MetricKind.GAUGE, "The publisher's epoch: it rises with each publisher.")
TOPIC_ENDED = _topic("ended", MetricKind.GAUGE, "1 if the newest batch is an end mark.")
TOPIC_WAITING = _topic("waiting", MetricKind.GAUGE, "1 while the publisher waits for a reader.")
TOPIC_WAITS_FOR = _topic(
    "waits_for", MetricKind.GAUGE, "1 for each one that the publisher waits for now.", "kind", "name"
)
TOPIC_DISK = _topic("disk_error", MetricKind.GAUGE, "1 if the disk of the spool fails or does not answer.")
TOPIC_LEASES = _topic("leases", MetricKind.GAUGE, "Leases of bounded reads.")
TOPIC_HOLDS = _topic("holds", MetricKind.GAUGE, "Holds of scheduled jobs.")

# -- the databases whose changes topics have ---------------------------------------------------------------------------

SOURCE_LAG_SECONDS = _source(
    "lag_seconds",
    "All that was committed longer ago is published. It grows while the capture is stopped or hangs.",
    "seconds",
)
SOURCE_LAG_BYTES = _source("lag_bytes", "Bytes of the database's log that are not published yet.", "bytes")
SOURCE_RETAINED = _source("retained_bytes", "Bytes of its log that the database keeps for the capture.", "bytes")
SOURCE_SAFE = _source(
    "safe_bytes", "Bytes that the database may still write before it removes changes that are not published.", "bytes"
)

# -- subscriptions -----------------------------------------------------------------------------------------------------

LAG_ROWS = _subscription("lag_rows", MetricKind.GAUGE, "Rows that it has not acknowledged.")
LAG_BATCHES = _subscription("lag_batches", MetricKind.GAUGE, "Batches that it has not acknowledged.")
LAG_BYTES = _subscription("lag_bytes", MetricKind.GAUGE, "Bytes that it has not acknowledged.", "bytes")
LAG_SECONDS = _subscription(
    "lag_seconds", MetricKind.GAUGE, "Since the first batch that it has not acknowledged was published.", "seconds"
)
HOP_SECONDS = _subscription(
    "hop_seconds",
    MetricKind.HISTOGRAM,
    "Batches by the time from their seal to their acknowledgement, since the coordinator began. A batch that is read "
    "again counts again; of the 1,000 newest seals the time is known, and older ones count as longer than 300 s.",
    "seconds",
)
LINK_STATE = Metric(
    "jobpipe_subscription_state", MetricKind.STATE_SET, "The state of its link.", _SUBSCRIPTION, LINK_STATES
)
RECONNECTS = _subscription("reconnects", MetricKind.COUNTER, "How often its link came back.")
REQUIRED = _subscription("required", MetricKind.GAUGE, "1 if the publisher requires it.")
SILENT_SECONDS = _subscription(
    "silent_seconds", MetricKind.GAUGE, "Uptime of the log since the subscription was heard of.", "seconds"
)

# -- the ledger of subscriptions ---------------------------------------------------------------------------------------

COMMITTED_ROWS = _subscription(
    "committed_rows", MetricKind.COUNTER, "Rows that it has acknowledged, since its account in the ledger began."
)
READ_ROWS = _subscription("read_rows", MetricKind.COUNTER, "Rows of these that its readers have counted.")
UNPROVEN_ROWS = _subscription(
    "unproven_rows",
    MetricKind.COUNTER,
    "Rows of these of which it cannot be known whether they were read: a coordinator ended meanwhile, or the reader is "
    "an older one.",
)
DIFFERENCE_ROWS = _subscription(
    "difference_rows", MetricKind.COUNTER, "Rows that it has lost, or got twice.", labels=("kind",)
)
NEWEST_DIFFERENCE = _subscription(
    "newest_difference_timestamp_seconds",
    MetricKind.GAUGE,
    "When the newest range was found of which it has committed other rows than were published, in seconds since 1970.",
    "seconds",
)
DIFFERENCE_KINDS = ("lost", "doubled")

# -- jobs of the control server ----------------------------------------------------------------------------------------

JOB_STATE = Metric("jobpipe_job_state", MetricKind.STATE_SET, "The state of a job.", _JOB, JOB_STATES)
JOB_SINCE = _job(
    "state_since_timestamp_seconds",
    MetricKind.GAUGE,
    "Since when the job is in its state, in seconds since 1970.",
    unit="seconds",
)
JOB_WANTED = _job("wanted", MetricKind.GAUGE, "1 if the job is to run, 0 if it is to be stopped.")
JOB_ATTEMPTS = _job("attempts", MetricKind.COUNTER, "Attempts of all its runs; a restart is one more.")
JOB_ROWS = _job("rows", MetricKind.COUNTER, "Rows that its newest run has processed; a new run begins at 0.")
JOB_BATCHES = _job("batches", MetricKind.COUNTER, "Micro-batches of its newest run; a new run begins at 0.")
BATCH_SECONDS = _job(
    "batch_seconds",
    MetricKind.HISTOGRAM,
    "Micro-batches with rows by how long each took; a new attempt begins at 0. Of queries on the server's host.",
    unit="seconds",
)
DEAD_LETTERS = _job(
    "dead_letters",
    MetricKind.COUNTER,
    "Rows that were ever published to the topic of its dead letters, as last seen.",
    "topic",
)
SCHEDULE_DUE = _job(
    "schedule_next_due_timestamp_seconds",
    MetricKind.GAUGE,
    "When the next interval of its schedule is due, in seconds since 1970.",
    unit="seconds",
)
SCHEDULE_INTERVALS = _job("schedule_intervals", MetricKind.GAUGE, "Intervals of its schedule, by state.", "state")
SCHEDULE_PAUSED = _job("schedule_paused", MetricKind.GAUGE, "1 if its schedule is paused.")
SCHEDULE_PROBLEM = _job("schedule_problem", MetricKind.GAUGE, "1 if its schedule cannot go on now.")

METRICS: Mapping[str, Metric] = {
    metric.name: metric for metric in list(globals().values()) if isinstance(metric, Metric)
}
"""All of them by name, in the order in which they are defined."""
