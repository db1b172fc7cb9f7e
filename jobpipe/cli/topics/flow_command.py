"""``jobpipe flow``: how far flow jobs are, and how to let one begin again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from jobpipe.cli.common.command_context import Settings, json_option, pass_settings
from jobpipe.cli.common.output import count, emit_json, emit_table, printable, seconds
from jobpipe.cli.common.topic_status import connection, statuses
from jobpipe.errors import FlowNotFound

if TYPE_CHECKING:
    from jobpipe.admin import Admin

FLOWS_SECONDS = 5.0  # for each topic that is asked whether it keeps cursors
_COLUMNS = ("FLOW", "SOURCE", "PUBLISHES", "STATE", "PARTITION", "OFFSET", "LAG BATCHES", "CLAIM", "IDLE")
_NUMBERS = ("PARTITION", "OFFSET", "LAG BATCHES", "CLAIM", "IDLE")
_timeout = click.option(
    "--timeout", type=click.FloatRange(min=0.1), default=5.0, show_default=True, help="Seconds to wait."
)


@click.group()
def flow() -> None:
    """Inspect or reset flow jobs."""


@flow.command()
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
        known, lines = lines, [line for line in lines if line["flow"] == name]
        if not lines:
            raise _not_found(name, known)
    if as_json:
        emit_json(lines)
    elif lines:
        emit_table(_COLUMNS, [row for line in lines for row in _rows(line)], right=_NUMBERS)
    else:
        click.echo("no flow has cursors" if found else "no topic is served")


@flow.command()
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

    JSON keys: flow, topic (that keeps the cursors), cursors_of (as those of `jobpipe flow status`), begins (by source:
    the offset where the next start begins; null if that is not known, or the source has no such subscription), dry_run.
    """
    from jobpipe.admin import Admin

    with Admin(settings.config) as admin:
        lines, found = _to_reset(admin, name, topic, timeout)
        (kept_in,) = {_kept_in(line) for line in lines}
        running = [str(line["source"]) for line in lines if line["state"] == "connected"]
        if running and not (force or dry_run):
            raise click.UsageError(
                f"flow {name} is connected to topic {printable(running[0])}: stop it first, or give --force; it fails "
                "then"
            )
        admin.reset_flow(kept_in, name, dry_run=dry_run)
    begins = {source: _begins(found.get(source), source, name) for source in sorted({line["source"] for line in lines})}
    if as_json:
        emit_json({"flow": name, "topic": kept_in, "cursors_of": lines, "begins": begins, "dry_run": dry_run})
        return
    for line in lines:
        cursors = line["cursors"]
        click.echo(
            f"{'would delete' if dry_run else 'deleted'} {len(cursors)} cursor{'s' * (len(cursors) != 1)} of flow "
            f"{printable(name)} in topic {printable(kept_in)}: of topic {printable(line['source'])}, log "
            f"{printable(line['log'])}, at offset {flow_offsets([each['offset'] for each in cursors])}"
        )
    for source, offset in begins.items():
        if offset is not None:
            click.echo(f"the next start begins at offset {count(offset)} of topic {printable(source)}")


def _begins(source: dict[str, Any] | None, topic: str, name: str) -> int | None:
    """Return where a flow without cursors begins: at its subscription's position; say on standard error if none."""
    if source is None:
        text = "is not served, or does not answer us: where the next start begins is not known"
        click.echo(f"topic {printable(topic)} {text}", err=True)
        return None
    position: int | None = _reader(source, name).get("position")
    if position is None:
        click.echo(
            f"topic {printable(topic)} has no subscription {printable(name)}: the next start begins where starting= "
            "says, by default after all that is published by then",
            err=True,
        )
    return position


def _to_reset(
    admin: Admin, name: str, topic: str | None, timeout: float
) -> tuple[list[dict[str, Any]], dict[str, dict[str, Any]]]:
    """Return what one topic keeps of a flow, and the status of each topic that was asked, its sources among them.

    Raises:
        FlowNotFound: no topic that was asked keeps anything.
        click.UsageError: several do.
    """
    found = statuses(admin, () if topic is None else (topic,), timeout)
    if topic is not None:
        sources = {line["topic"] for status in found for line in status.get("flows", ()) if line["flow"] == name}
        found += admin.statuses(sorted(sources - {topic}), timeout).values()
    known = [line for line in _flows(found) if topic in (None, _kept_in(line))]
    lines = [line for line in known if line["flow"] == name]
    if not lines:
        raise _not_found(name, known, topic)
    if len(places := sorted({_kept_in(line) for line in lines})) > 1:
        raise click.UsageError(f"topics {', '.join(map(printable, places))} keep cursors of flow {name}; give --topic")
    return lines, {status["topic"]: status for status in found}


def find_flow_keeper(admin: Admin, topic: str, name: str) -> str | None:
    """Return which topic that is served keeps cursors of flow ``name`` for the log of ``topic``; None if none does."""
    served = [line.name for line in admin.topics() if line.location is not None]
    lines = list(_flows(list(admin.statuses(served, FLOWS_SECONDS).values())))
    return next(
        (
            _kept_in(line)
            for line in lines
            if (line["flow"], line["source"]) == (name, topic) and line["head"] is not None
        ),
        None,
    )


def _flows(found: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield what topics keep of flows; a source that was asked too tells head and state."""
    sources = {(status["topic"], status["log"]): status for status in found}
    for status in found:
        for line in status.get("flows", ()):
            source = sources.get((line["topic"], line["log"]))
            head = None if source is None else source["head"]
            reader = _reader(source, line["flow"])
            yield {
                "flow": line["flow"],
                "source": line["topic"],
                "log": line["log"],
                "publishes": None if status["topic"] == line["topic"] else status["topic"],
                "state": reader.get("state"),
                "since": reader.get("since"),
                "head": head,
                "cursors": [_cursor(each, head) for each in line["cursors"]],
            }


def _reader(source: dict[str, Any] | None, name: str) -> dict[str, Any]:
    return {} if source is None else next((line for line in source["subscriptions"] if line["name"] == name), {})


def _cursor(cursor: dict[str, Any], head: int | None) -> dict[str, Any]:
    return {
        "partition": cursor["partition"],
        "offset": cursor["n"],
        "record_batches": cursor["r"],
        "lag": None if head is None else max(0, head - cursor["n"]),
        "claim": cursor["claim"],
        "idle": cursor["idle"],
    }


def _rows(line: dict[str, Any]) -> Iterator[list[object]]:
    state = None if line["state"] is None else connection(line)
    for cursor in line["cursors"]:
        yield [
            *(line["flow"], line["source"], line["publishes"], state),
            *(count(cursor["partition"]), count(cursor["offset"]), count(cursor["lag"]), count(cursor["claim"])),
            seconds(cursor["idle"]),
        ]


def flow_offsets(offsets: Sequence[int]) -> str:
    """Return the offsets of a flow's cursors for people: the lowest and the highest."""
    low, high = min(offsets), max(offsets)
    return f"{count(low)}" if low == high else f"{count(low)} to {count(high)}"


def _kept_in(line: dict[str, Any]) -> str:
    return str(line["publishes"] or line["source"])


def _not_found(name: str, known: Sequence[dict[str, Any]], topic: str | None = None) -> FlowNotFound:
    where = "in the topics that are served" if topic is None else f"in topic {topic!r}"
    names = sorted({str(line["flow"]) for line in known})
    others = f"; flows with cursors: {', '.join(names)}" if names else "; no other flow has cursors either"
    return FlowNotFound(f"flow {name!r} has no cursors {where}{others}", flow=name, known=names)
