"""The text that a scraper gets: by OpenMetrics' rules, with bounded labels, and true."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as prometheus

import jobpipe
from jobpipe.errors import NotAuthorized, RegistryUnavailable
from jobpipe.graph.blockers import KINDS, blockers
from jobpipe.metrics import openmetrics_text
from jobpipe.metrics.metric_samples import MetricSamples, TopicsSnapshot
from jobpipe.metrics.metric_table import METRICS, MetricKind
from jobpipe.metrics.openmetrics_text import metrics_text
from jobpipe.operations.admin_operations import HoldReply, LeaseReply
from jobpipe.operations.status_operations import Lag, TopicStatus
from jobpipe.pipelines.model.job_states import JobState
from jobpipe.store.subscriptions.hop_times import BUCKETS
from tests.metrics.kit import different, job, reader, samples, schedule, source, topic
from tests.statuses import subscription_status, topic_status

ACCEPT = "application/openmetrics-text; version=1.0.0"
Found = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def scraped(given: MetricSamples, accept: str = ACCEPT) -> Found:
    text, media = metrics_text(given, accept)
    parse: Any = openmetrics if "openmetrics" in media else prometheus
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in parse(text.decode())
        for sample in family.samples
    }


def values(found: Found, name: str) -> dict[tuple[str, ...], float]:
    """The samples of a name, by the values of their labels in the order of the labels' names."""
    return {tuple(value for _, value in labels): number for (each, labels), number in found.items() if each == name}


def test_a_topic_and_its_subscription() -> None:
    lag = Lag(2, 30, 4_000, 12.5)
    hops = (0, 2, *[0] * (len(BUCKETS) - 2), 1)
    line = replace(subscription_status("billing", reconnects=3, silent=1.5), lag=lag, hops=hops, hop_seconds=400.5)
    found = scraped(samples(topic(subscriptions=(line,))))
    assert values(found, "jobpipe_topic_up") == {("orders",): 1}
    assert values(found, "jobpipe_topic_rows_total") == {("orders",): 1_000}
    assert values(found, "jobpipe_topic_bytes_total") == {("orders",): 64_000}
    assert values(found, "jobpipe_topic_batches_total") == {("orders",): 10}
    assert values(found, "jobpipe_topic_spool_bytes") == {("orders",): 32_000}
    assert values(found, "jobpipe_topic_spool_limit_bytes") == {("orders",): 1_000_000}
    of = ("billing", "orders")
    assert values(found, "jobpipe_subscription_lag_rows") == {of: 30}
    assert values(found, "jobpipe_subscription_lag_batches") == {of: 2}
    assert values(found, "jobpipe_subscription_lag_bytes") == {of: 4_000}
    assert values(found, "jobpipe_subscription_lag_seconds") == {of: 12.5}
    assert values(found, "jobpipe_subscription_reconnects_total") == {of: 3}
    buckets = values(found, "jobpipe_subscription_hop_seconds_bucket")
    assert {le: buckets[le, *of] for le in ("0.005", "0.01", "300.0", "+Inf")} == {
        "0.005": 0,
        "0.01": 2,
        "300.0": 2,
        "+Inf": 3,
    }
    assert values(found, "jobpipe_subscription_hop_seconds_count") == {of: 3}
    assert values(found, "jobpipe_subscription_hop_seconds_sum") == {of: 400.5}
    states = values(found, "jobpipe_subscription_state")
    assert len(states) == 3
    assert [labels for labels, value in states.items() if value] == [("connected", "billing", "orders")]


def test_a_job_and_its_schedule() -> None:
    found = scraped(samples(jobs=(job(state=JobState.BLOCKED, attempts=4, schedule=schedule(failed=2, paused=True)),)))
    of = ("report", "shop")
    states = values(found, "jobpipe_job_state")
    assert len(states) == len(JobState)
    assert [labels for labels, value in states.items() if value] == [("report", "BLOCKED", "shop")]
    assert values(found, "jobpipe_job_attempts_total") == {of: 4}
    assert values(found, "jobpipe_job_rows_total") == {of: 500}
    assert values(found, "jobpipe_job_schedule_paused") == {of: 1}
    assert values(found, "jobpipe_job_batch_seconds_count") == {of: 5}
    assert values(found, "jobpipe_job_batch_seconds_sum") == {of: 500.0}
    assert values(found, "jobpipe_job_batch_seconds_bucket")["report", "0.01", "shop"] == 4
    assert values(found, "jobpipe_job_dead_letters_total") == {("report", "shop", "letters"): 7}
    assert values(found, "jobpipe_job_schedule_intervals") == {
        ("report", "shop", "WAITING"): 0,
        ("report", "shop", "RUNNING"): 0,
        ("report", "shop", "FAILED"): 2,
    }


def test_the_ledger_of_a_subscription() -> None:
    """Zeros too, so that an increase is seen; nothing of one without an account."""
    counts = replace(different(1_000.0), unproven=20, doubled=3)
    of = ("billing", "orders")
    found = scraped(samples(topic(subscriptions=(reader(counts=counts),))))
    assert values(found, "jobpipe_subscription_committed_rows_total") == {of: 1_000}
    assert values(found, "jobpipe_subscription_read_rows_total") == {of: 999}
    assert values(found, "jobpipe_subscription_unproven_rows_total") == {of: 20}
    kinds = {("lost", *of): 1, ("doubled", *of): 3}
    assert values(found, "jobpipe_subscription_difference_rows_total") == kinds
    assert values(found, "jobpipe_subscription_newest_difference_timestamp_seconds") == {of: 1_000.0}
    found = scraped(samples())
    assert set(values(found, "jobpipe_subscription_difference_rows_total").values()) == {0}
    assert values(found, "jobpipe_subscription_newest_difference_timestamp_seconds") == {}
    found = scraped(samples(topic(subscriptions=(reader(counts=None),))))
    assert values(found, "jobpipe_subscription_lag_rows") == {of: 0}
    assert not [name for name, _ in found if "difference" in name or name.endswith("committed_rows_total")]


def test_what_is_not_known_is_not_shown() -> None:
    """A zero would be a lie."""
    unknown = job(rows=None, dead_letter_rows=None, schedule=schedule(next_due=None))
    found = scraped(samples(topic(spool_limit=None), jobs=(unknown,)))
    assert values(found, "jobpipe_job_dead_letters_total") == {}
    assert values(found, "jobpipe_topic_spool_limit_bytes") == {}
    assert values(found, "jobpipe_job_rows_total") == {}
    assert values(found, "jobpipe_job_schedule_next_due_timestamp_seconds") == {}
    assert values(found, "jobpipe_job_batches_total") == {("report", "shop"): 5}


def test_a_coordinator_or_the_registry_that_does_not_answer() -> None:
    found = scraped(samples(down=("trades",)))
    assert values(found, "jobpipe_topic_up") == {("orders",): 1, ("trades",): 0}
    assert values(found, "jobpipe_topic_rows_total") == {("orders",): 1_000}
    found = scraped(samples(error=RegistryUnavailable("no answer")))
    assert values(found, "jobpipe_registry_up") == {(): 0}
    assert values(found, "jobpipe_topic_up") == {}
    assert values(found, "jobpipe_job_rows_total") == {("report", "shop"): 500}


def test_a_topic_that_we_may_not_see_is_left_out() -> None:
    given = samples()
    answers = {**given.topics.topics, "secret": NotAuthorized("no right")}
    found = scraped(replace(given, topics=TopicsSnapshot(answers, 0.1)))
    assert values(found, "jobpipe_topic_up") == {("orders",): 1}
    assert values(found, "jobpipe_metrics_left_out") == {(): 1}


def test_there_is_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scraper's memory is not for a peer to fill; what is left out is counted."""
    monkeypatch.setattr(openmetrics_text, "MOST_TOPICS", 2)
    monkeypatch.setattr(openmetrics_text, "MOST_SUBSCRIPTIONS", 3)
    lines = tuple(subscription_status(f"s{number}") for number in range(2))
    found = scraped(samples(*(topic(f"t{number}", subscriptions=lines) for number in range(4))))
    assert len(values(found, "jobpipe_topic_up")) == 2
    assert len(values(found, "jobpipe_subscription_lag_rows")) == 3
    assert values(found, "jobpipe_metrics_left_out") == {(): 3}  # two topics, and a subscription


@pytest.mark.parametrize("name", ['a"b', "a\\b", "a\nb", "x" * 10_000, "\u202egnp.exe", "<script>", "{}"])
def test_names_harm_nothing(name: str) -> None:
    found = scraped(samples(topic_status(name, subscriptions=(subscription_status(name),)), jobs=(job(job=name),)))
    assert values(found, "jobpipe_topic_up") == {(name,): 1}
    assert values(found, "jobpipe_subscription_lag_rows") == {(name, name): 0}
    assert values(found, "jobpipe_job_rows_total") == {(name, "shop"): 500}


@pytest.mark.parametrize("accept", ["application/openmetrics-text; version=abc", "text/plain; version=", "\x00", "*/*"])
def test_a_strange_scraper_gets_the_old_format(accept: str) -> None:
    assert values(scraped(samples(), accept), "jobpipe_topic_up") == {("orders",): 1}


def test_a_lag_is_never_below_zero() -> None:
    """The status says so for a moment where the newest batch was taken back."""
    line = replace(subscription_status("billing"), lag=Lag(-1, -5, -100, 0.0))
    found = scraped(samples(topic(subscriptions=(line,))))
    for what in ("rows", "batches", "bytes"):
        assert values(found, f"jobpipe_subscription_lag_{what}") == {("billing", "orders"): 0}


def test_a_source_that_does_not_say_lags_more_and_more() -> None:
    """The time since it was told counts; what is not known has no sample."""
    late = topic(source=source(behind_seconds=2.5, behind_bytes=4096, age=60.0))
    new = topic("new", source=source(behind_seconds=None, retained_bytes=None, safe_bytes=None))
    found = scraped(samples(late, new, topic("other", source=None)))
    assert values(found, "jobpipe_source_lag_seconds") == {("orders",): 62.5}
    assert values(found, "jobpipe_source_lag_bytes") == {("orders",): 4096, ("new",): 0}
    assert values(found, "jobpipe_source_retained_bytes") == {("orders",): 16 << 20}
    assert values(found, "jobpipe_source_safe_bytes") == {("orders",): 240 << 20}


def test_both_formats_say_the_same() -> None:
    """Old scrapers ask for no format; a counter has its suffix in both."""
    given = samples()
    found = scraped(given, accept="")
    assert found == {key: value for key, value in scraped(given).items() if not key[0].endswith("_created")}
    text, media = metrics_text(given, ACCEPT)
    assert media.startswith("application/openmetrics-text")
    assert text.endswith(b"# EOF\n")


def test_every_sample_is_in_the_table() -> None:
    """Names, labels and types are those of the table, which the page and the dashboard are made from."""
    readers = (reader(counts=different(1_000.0)),)
    waiting = topic(waiting="acks=all: billing", publisher_gone=3.0, subscriptions=readers)
    text, _ = metrics_text(samples(waiting), ACCEPT)
    families = {family.name: family for family in openmetrics(text.decode())}
    assert families.keys() == METRICS.keys()
    for name, metric in METRICS.items():
        assert families[name].type == metric.kind
        assert families[name].documentation == metric.about
        labels = set(metric.labels) | ({name} if metric.kind is MetricKind.STATE_SET else set())
        for sample in families[name].samples:
            if metric.kind is MetricKind.HISTOGRAM:
                assert sample.name in {f"{name}_bucket", f"{name}_count", f"{name}_sum"}
                assert set(sample.labels) - {"le"} == labels
            else:
                assert (sample.name, set(sample.labels)) == (metric.sample, labels)
    assert families["jobpipe_build"].samples[0].labels["version"] == jobpipe.__version__


def test_names_follow_the_rules() -> None:
    """Base units, and no suffix that the format adds or keeps for itself."""
    for name, metric in METRICS.items():
        assert not {"job", "instance"} & set(metric.labels), "Prometheus would rename these: they are its own"
        assert name.startswith("jobpipe_")
        assert name.endswith(metric.unit)
        assert not name.endswith(("_total", "_info", "_count", "_sum", "_bucket", "_created"))
        assert not any(word in name.split("_") for word in ("ms", "millis", "minutes", "kb", "mb"))


def lease(name: str, first: int) -> LeaseReply:
    return LeaseReply(id=name, first=first, last=9, left=10.0, connected=True)


def hold(name: str, offset: int, gap: str | None = None) -> HoldReply:
    return HoldReply(name=name, owner="o", offset=offset, max_time=10.0, since=1.0, lost=0, gap=gap)


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        pytest.param(topic(), [], id="nobody"),
        pytest.param(
            topic(waiting="acks=all: billing, 1 more of min_subscribers=2"), [("subscription", "billing")], id="acks"
        ),
        pytest.param(
            topic(waiting="acks=all: gone", required=("gone",)), [("subscription", "gone")], id="dropped but required"
        ),
        pytest.param(
            topic(
                waiting="the spool is full",
                subscriptions=(
                    subscription_status("slow", batches=6, position=4),
                    subscription_status("fast", batches=1, position=9),
                ),
            ),
            [("subscription", "slow")],
            id="the slowest",
        ),
        pytest.param(
            topic(waiting="the spool is full", subscriptions=(subscription_status("new", batches=6, position=None),)),
            [("subscription", "new")],
            id="one without a position holds all",
        ),
        pytest.param(
            topic(
                waiting="the spool is full (9 bytes); lease read of me keeps batches from offset 5 on",
                leases=(lease("read", 5),),
                subscriptions=(subscription_status("slow", batches=6, position=4),),
            ),
            [("lease", "read")],
            id="the one that is named",
        ),
        pytest.param(
            topic(
                waiting=f"acks=all: billing, {'x' * 979}, s",
                subscriptions=tuple(map(subscription_status, ("billing", "s"))),
            ),
            [("subscription", "billing")],
            id="the last name is cut",
        ),
        pytest.param(
            topic(waiting="the spool is full", leases=(lease("read", 4),), holds=(hold("daily", 5),)),
            [("lease", "read")],
            id="a lease",
        ),
        pytest.param(
            topic(
                waiting="the spool is full", leases=(lease("read", 5),), holds=(hold("daily", 4), hold("old", 1, "x"))
            ),
            [("hold", "daily")],
            id="a hold, and no gap of one",
        ),
    ],
)
def test_whom_a_publisher_waits_for(status: TopicStatus, expected: list[tuple[str, str]]) -> None:
    assert blockers(status) == expected
    assert {kind for kind, _ in expected} <= set(KINDS)
    found = values(scraped(samples(status)), "jobpipe_topic_waits_for")
    assert found == {(kind, name, "orders"): 1 for kind, name in expected}
    assert values(scraped(samples(status)), "jobpipe_topic_waiting") == {("orders",): float(status.waiting is not None)}
