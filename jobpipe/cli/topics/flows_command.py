"""``jobpipe topics flows``: how far flow jobs are, and how to let one begin again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from jobpipe.cli.common.command_context import Settings, json_option, pass_settings
from jobpipe.cli.common.output import count, emit_json, emit_table, printable
from jobpipe.cli.common.topic_status import connection, statuses
from jobpipe.errors import FlowNotFound
from jobpipe.plural import seconds

if TYPE_CHECKING:
    from jobpipe.admin import Admin
    from jobpipe.operations.status_operations import CursorStatus, FlowStatus, SubscriptionStatus, TopicStatus

_COLUMNS = ("FLOW", "SOURCE", "PUBLISHES", "STATE", "PARTITION", "OFFSET", "LAG BATCHES", "CLAIM", "IDLE")
_NUMBERS = ("PARTITION", "OFFSET", "LAG BATCHES", "CLAIM", "IDLE")
_timeout = click.option(
    "--timeout", type=click.FloatRange(min=0.1), default=5.0, show_default=True, help="Seconds to wait."
)


@click.group()
def flows() -> None:
    """Inspect or reset flow jobs."""


@flows.command()
@click.argument("name", required=False)
@_timeout
@json_option
@pass_settings
def status(settings: Settings, name: str | None, timeout: float, as_json: bool) -> None:
    """Show how far flow NAME, or each flow, has come in each partition of its source.

    This asks the topics that are served. A flow keeps its cursors in the topic that it publishes, or in its source if
    it publishes nothing. Offset is the next batch to process. Lag is the number of batches still to process; it is
    known only while the source is served. Claim counts the tasks that have held the partition. Idle is the time since
    the cursor last moved. State is the state of the flow's subscription to its source.

    Exits with 1 if no flow NAME has cursors.

    JSON keys of each flow: flow, source, log, publishes, state, since, head, cursors (partition, offset,
    record_batches, lag, claim, idle).
    """
    from jobpipe.admin import Admin

    with Admin(settings.config) as admin:
        found = statuses(admin, (), timeout)
    lines = list(_flows(found))
    if name is not None:
        known, lines = lines, [line for line in lines if line.cursors.flow == name]
        if not lines:
            raise _not_found(name, known)
    if as_json:
        emit_json([line.to_json() for line in lines])
    elif lines:
        emit_table(_COLUMNS, [row for line in lines for row in _rows(line)], right=_NUMBERS)
    else:
        click.echo("no flow has cursors" if found else "no topic is served")


@flows.command()
@click.argument("name")
@click.option("--topic", metavar="TOPIC", help="The topic that keeps the cursors, if several topics do.")
@click.option("--force", is_flag=True, help="Do it while the flow is connected to its source; the flow fails.")
@click.option("--dry-run", is_flag=True, help="Show what would be done; change nothing.")
@_timeout
@json_option
@pass_settings
def reset(
    settings: Settings, name: str, topic: str | None, force: bool, dry_run: bool, timeout: float, as_json: bool
) -> None:
    """Delete the cursors of flow NAME, so that it does not go on at them. Stop the flow first.

    At its next start, the flow begins at the position of its subscription to the source, which is printed.
    `jobpipe subscriptions seek` moves that position. Rows that the flow has published stay, and rows that it reads
    again are published again. All cursors of that name in the topic are deleted, of each source. A flow that is
    connected to its source is refused; with --force it fails. This needs the right `admin` on the topic that keeps the
    cursors. Exits with 1 if no flow NAME has cursors.

    JSON keys: flow, topic (that keeps the cursors), cursors_of (as those of `jobpipe topics flows status`), begins (by
    source: the offset where the next start begins; null if that is not known, or the source has no such subscription),
    dry_run.
    """
    from jobpipe.admin import Admin

    with Admin(settings.config) as admin:
        lines, found = _to_reset(admin, name, topic, timeout)
        (kept_in,) = {line.kept_in for line in lines}
        running = [line.source for line in lines if line.reader is not None and line.reader.state == "connected"]
        if running and not (force or dry_run):
            raise click.UsageError(
                f"flow {name} is connected to topic {printable(running[0])}: stop it first, or give --force; it fails "
                "then"
            )
        admin.reset_flow(kept_in, name, dry_run=dry_run)
    begins = {source: _begins(found.get(source), source, name) for source in sorted({line.source for line in lines})}
    if as_json:
        kept = [line.to_json() for line in lines]
        emit_json({"flow": name, "topic": kept_in, "cursors_of": kept, "begins": begins, "dry_run": dry_run})
        return
    for line in lines:
        cursors = line.cursors.cursors
        click.echo(
            f"{'would delete' if dry_run else 'deleted'} {len(cursors)} cursor{'s' * (len(cursors) != 1)} of flow "
            f"{printable(name)} in topic {printable(kept_in)}: of topic {printable(line.source)}, log "
            f"{printable(line.cursors.log)}, at offset {flow_offsets([each.n for each in cursors])}"
        )
    for source, offset in begins.items():
        if offset is not None:
            click.echo(f"the next start begins at offset {count(offset)} of topic {printable(source)}")


def _begins(source: TopicStatus | None, topic: str, name: str) -> int | None:
    """Return where a flow without cursors begins: at its subscription's position; say on standard error if none."""
    if source is None:
        text = "is not served, or does not answer us: where the next start begins is not known"
        click.echo(f"topic {printable(topic)} {text}", err=True)
        return None
    reader = _reader(source, name)
    position = None if reader is None else reader.position
    if position is None:
        click.echo(
            f"topic {printable(topic)} has no subscription {printable(name)}: the next start begins where starting= "
            "says, by default after all that is published by then",
            err=True,
        )
    return position


def _to_reset(
    admin: Admin, name: str, topic: str | None, timeout: float
) -> tuple[list[_FlowLine], dict[str, TopicStatus]]:
    """Return what one topic keeps of a flow, and the status of each topic that was asked, its sources among them.

    Raises:
        FlowNotFound: no topic that was asked keeps anything.
        click.UsageError: several do.
    """
    found = statuses(admin, () if topic is None else (topic,), timeout)
    if topic is not None:
        sources = {flow.topic for status in found for flow in status.flows if flow.flow == name}
        found += admin.statuses(sorted(sources - {topic}), timeout).values()
    known = [line for line in _flows(found) if topic in (None, line.kept_in)]
    lines = [line for line in known if line.cursors.flow == name]
    if not lines:
        raise _not_found(name, known, topic)
    if len(places := sorted({line.kept_in for line in lines})) > 1:
        raise click.UsageError(f"topics {', '.join(map(printable, places))} keep cursors of flow {name}; give --topic")
    return lines, {status.topic: status for status in found}


@dataclass(frozen=True)
class _FlowLine:
    """The cursors of a flow in one topic, and how their source stands, if that was asked and has the same log."""

    cursors: FlowStatus
    kept_in: str
    source_status: TopicStatus | None

    @property
    def source(self) -> str:
        return self.cursors.topic

    @property
    def publishes(self) -> str | None:
        return None if self.kept_in == self.source else self.kept_in

    @property
    def reader(self) -> SubscriptionStatus | None:
        return None if self.source_status is None else _reader(self.source_status, self.cursors.flow)

    def lag(self, cursor: CursorStatus) -> int | None:
        return None if self.source_status is None else max(0, self.source_status.head - cursor.n)

    def to_json(self) -> dict[str, object]:
        reader = self.reader
        return {
            "flow": self.cursors.flow,
            "source": self.source,
            "log": self.cursors.log,
            "publishes": self.publishes,
            "state": None if reader is None else reader.state,
            "since": None if reader is None else reader.since,
            "head": None if self.source_status is None else self.source_status.head,
            "cursors": [
                {
                    "partition": cursor.partition,
                    "offset": cursor.n,
                    "record_batches": cursor.r,
                    "lag": self.lag(cursor),
                    "claim": cursor.claim,
                    "idle": cursor.idle,
                }
                for cursor in self.cursors.cursors
            ],
        }


def _flows(found: Sequence[TopicStatus]) -> Iterator[_FlowLine]:
    """Yield what topics keep of flows; a source that was asked too tells head and state."""
    sources = {(status.topic, status.log): status for status in found}
    for status in found:
        for flow in status.flows:
            yield _FlowLine(flow, status.topic, sources.get((flow.topic, flow.log)))


def _reader(source: TopicStatus, name: str) -> SubscriptionStatus | None:
    return next((line for line in source.subscriptions if line.name == name), None)


def _rows(line: _FlowLine) -> Iterator[list[object]]:
    state = None if line.reader is None else connection(line.reader)
    for cursor in line.cursors.cursors:
        yield [
            *(line.cursors.flow, line.source, line.publishes, state),
            *(count(cursor.partition), count(cursor.n), count(line.lag(cursor)), count(cursor.claim)),
            seconds(cursor.idle),
        ]


def flow_offsets(offsets: Sequence[int]) -> str:
    """Return the offsets of a flow's cursors for people: the lowest and the highest."""
    low, high = min(offsets), max(offsets)
    return f"{count(low)}" if low == high else f"{count(low)} to {count(high)}"


def _not_found(name: str, known: Sequence[_FlowLine], topic: str | None = None) -> FlowNotFound:
    where = "in the topics that are served" if topic is None else f"in topic {topic!r}"
    names = sorted({line.cursors.flow for line in known})
    others = f"; flows with cursors: {', '.join(names)}" if names else "; no other flow has cursors either"
    return FlowNotFound(f"flow {name!r} has no cursors {where}{others}", flow=name, known=names)
