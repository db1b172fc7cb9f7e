"""``jobpipe topics ledger``: the rows of each hop that were published, read and committed, and where these differ.

It knows no more than coordinators say; :mod:`jobpipe.ledger` compares.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

import click

from jobpipe.cli.common.command_context import Settings, json_option, pass_settings
from jobpipe.cli.common.exit_codes import Exit
from jobpipe.cli.common.output import count, emit_json, emit_table, printable
from jobpipe.errors import (
    JobpipeError,
    NotAuthorized,
    SubscriptionNotFound,
    TopicAway,
    TopicNotFound,
)
from jobpipe.operations.messages.ledger_messages import MAX_MINUTES

if TYPE_CHECKING:
    from jobpipe.admin import Admin
    from jobpipe.ledger.hop_lines import HopLine, MinuteLine
    from jobpipe.operations.status_operations import TopicStatus
    from jobpipe.status_walk import Answer, LedgerAnswer

MINUTES = 10  # that are shown of one subscription
MOST_OF_EACH = 3  # differences of one hop among others; all that are kept of one that was named
_ROWS = ("PUBLISHED", "READ", "COMMITTED", "OPEN", "UNPROVEN", "MOVED")
_HOP_COLUMNS = ("TOPIC", "SUBSCRIPTION", "POSITION", *_ROWS, "LOST", "DOUBLED", "STATE")
_MINUTE_COLUMNS = ("TOPIC", "SUBSCRIPTION", "MINUTE (UTC)", "OFFSETS", *_ROWS, "STATE")
_AWAY = (TopicAway, TopicNotFound)


@click.command()
@click.argument("topic", required=False)
@click.argument("subscription", required=False)
@click.option(
    "--minutes",
    type=click.IntRange(1, MAX_MINUTES),
    help=f"Also show the newest so many minutes in which rows were published. [default: {MINUTES} of one SUBSCRIPTION]",
)
@click.option(
    "--hours",
    type=click.FloatRange(min=0.0, min_open=True),
    help="Only differences that were found in the last so many hours count; by default all that are kept.",
)
@click.option("--timeout", type=click.FloatRange(min=0.1), default=5.0, show_default=True, help="Seconds to wait.")
@json_option
@pass_settings
def ledger(
    settings: Settings,
    topic: str | None,
    subscription: str | None,
    minutes: int | None,
    hours: float | None,
    timeout: float,
    as_json: bool,
) -> Exit:
    """Compare for each subscription the rows that were published, read and committed.

    All topics of the namespace are shown, those of TOPIC, or SUBSCRIPTION of TOPIC by minute. A minute has the rows
    that were published in it, as they stand now. The state is `equal` (published = read = committed), `open` (not all
    rows are committed yet), `unproven` (it cannot be known whether all were read), `moved` (the position was moved over
    rows), or `different`: rows were lost or doubled. Each difference is named with its offsets. docs/ledger.md says
    where the counts come from, and what to do. `jobpipe ledger` is the same.

    JSON keys: namespace; hops (topic, subscription, state, position, published, read, committed, open, unproven, moved,
    lost, doubled; differences with first, end, partitions, published, read, reason, found, said; minutes with minute,
    first, end, published, read, committed, open, unproven, moved, state), which are empty if they are not asked for.
    Times are seconds since 1970; what is not known is null.

    Exits with 0 if no hop differs, and with 5 if one does. Else with 3 or 4 if a coordinator does not answer, tells no
    ledger, or refuses us; it is named on standard error. A topic that is not served now is named there too.
    """
    from jobpipe.admin import Admin

    if minutes is None and subscription is not None:
        minutes = MINUTES
    since = 0.0 if hours is None else time.time() - 3600.0 * hours
    with Admin(settings.config) as admin:
        answers = _ask(admin, topic, timeout)
        statuses = _known(answers, topic, subscription)
        wanted = [
            name for name, status in statuses.items() if minutes is not None or _needs_ledger(status, subscription)
        ]
        ledgers = admin.ledgers(wanted, timeout, minutes=minutes or 1, name=subscription) if wanted else {}
    code = _report(answers, ledgers)
    lines = _lines(statuses, ledgers, subscription, since)
    if as_json:
        from jobpipe.ledger.ledger_views import hop_view

        hops = [asdict(hop_view(each if minutes is not None else replace(each, minutes=()))) for each in lines]
        emit_json({"namespace": settings.config.namespace, "hops": hops})
    elif lines:
        _print(lines, named=subscription is not None, minutes=minutes)
    else:
        click.echo("no subscriptions" if statuses else "no topic is served")
    return Exit.DIFFERENT if any(_differs(line, hours) for line in lines) else code


def _differs(hop: HopLine, hours: float | None) -> bool:
    """Tell whether a hop is different, or a minute of it; with ``hours`` minutes do not count, which may be older."""
    from jobpipe.ledger.hop_states import HopState

    minutes = hop.minutes if hours is None else ()
    return HopState.DIFFERENT in (hop.state, *(each.state for each in minutes))


def _ask(admin: Admin, topic: str | None, timeout: float) -> Mapping[str, Answer]:
    """Return how topics stand, or why that is not known.

    Raises:
        JobpipeError: a topic that was named is not served, or does not answer; or none is served that answers.
    """
    if topic is not None:
        return {topic: admin.status(topic, timeout)}
    lines = admin.topics()
    away = {line.name: TopicAway(f"topic {line.name!r} is not served now") for line in lines if line.location is None}
    return {**admin.answers([line.name for line in lines if line.location is not None], timeout), **away}


def _known(answers: Mapping[str, Answer], topic: str | None, subscription: str | None) -> dict[str, TopicStatus]:
    """Return the statuses, by topic.

    Raises:
        SubscriptionNotFound: the topic that was named has no such subscription.
    """
    found = {name: answer for name, answer in sorted(answers.items()) if not isinstance(answer, JobpipeError)}
    if topic is not None and subscription is not None:
        names = [line.name for line in found[topic].subscriptions]
        if subscription not in names:
            has = f"it has {', '.join(sorted(names))}" if names else "it has none"
            raise SubscriptionNotFound(
                f"topic {topic!r} has no subscription {subscription!r}; {has}", topic=topic, name=subscription
            )
    return found


def _needs_ledger(status: TopicStatus, subscription: str | None) -> bool:
    """Tell whether the status says too little: there are differences, or perhaps an older coordinator."""
    lines = [line for line in status.subscriptions if subscription in (None, line.name)]
    return any(line.counts is None or line.counts.differences for line in lines)


def _lines(
    statuses: Mapping[str, TopicStatus], ledgers: Mapping[str, LedgerAnswer], subscription: str | None, since: float
) -> list[HopLine]:
    from jobpipe.ledger.hop_lines import hop_lines

    found: list[HopLine] = []
    for name, status in statuses.items():
        answer = ledgers.get(name)
        reply = None if isinstance(answer, JobpipeError) else answer
        found += hop_lines(status, reply, name=subscription, since=since)
    return found


def _report(answers: Mapping[str, Answer], ledgers: Mapping[str, LedgerAnswer]) -> Exit:
    """Say on standard error what is not known, and return the exit code for that.

    Raises:
        JobpipeError: no topic that is served answers.
    """
    from jobpipe.ledger.difference_words import no_ledger_words

    errors = {name: answer for name, answer in answers.items() if isinstance(answer, JobpipeError)}
    silent = {name: error for name, error in errors.items() if not isinstance(error, _AWAY)}
    for name, error in errors.items():
        click.echo(f"topic {printable(name)} {_said(error)}: {printable(str(error))}", err=True)
    if silent and len(errors) == len(answers):
        raise next(iter(silent.values()))
    for name, answer in ledgers.items():
        if isinstance(answer, JobpipeError):
            silent[name] = answer
            click.echo(f"topic {printable(name)} tells no ledger: {printable(no_ledger_words(answer))}", err=True)
    if not silent:
        return Exit.OK
    only_refused = all(isinstance(error, NotAuthorized) for error in silent.values())
    return Exit.NOT_AUTHORIZED if only_refused else Exit.UNREACHABLE


def _said(error: JobpipeError) -> str:
    if isinstance(error, _AWAY):
        return "is away"
    return "refuses us" if isinstance(error, NotAuthorized) else "does not answer"


def _print(lines: Sequence[HopLine], *, named: bool, minutes: int | None) -> None:
    from jobpipe.ledger.difference_words import difference_words, hop_name, remedy_words

    emit_table(_HOP_COLUMNS, map(_row, lines), right=_HOP_COLUMNS[2:-1])
    if minutes is not None:
        click.echo()
        rows = [_minute_row(hop, each) for hop in lines for each in hop.minutes]
        if rows:
            emit_table(_MINUTE_COLUMNS, rows, right=_MINUTE_COLUMNS[3:-1])
        else:
            click.echo("no minutes are known")
    printed, reasons = [], {}
    for hop in lines:
        shown = hop.differences if named else hop.differences[:MOST_OF_EACH]
        printed += [f"{hop_name(hop.topic, hop.name)}: {difference_words(each)}" for each in shown]
        reasons.update(dict.fromkeys(each.reason for each in shown))
        if more := len(hop.differences) - len(shown):
            printed.append(f"  and {more:,} more: jobpipe ledger {hop.topic} {hop.name}")
    if printed:
        printed += ["", *(f"what to do ({reason}): {remedy_words(reason)}" for reason in reasons)]
        click.echo("\n".join(["", *map(printable, printed)]))


def _row(hop: HopLine) -> list[object]:
    from jobpipe.ledger.hop_states import HopState

    counts, at = hop.counts, count(hop.position)
    if counts is None:
        return [hop.topic, hop.name, at, None, None, None, count(hop.open_rows), None, None, None, None, hop.state]
    mark = "DIFFERENT" if hop.state is HopState.DIFFERENT else hop.state
    numbers = (hop.published, counts.read, counts.committed, hop.open_rows, counts.unproven, counts.moved)
    return [hop.topic, hop.name, at, *map(count, numbers), count(counts.lost), count(counts.doubled), mark]


def _minute_row(hop: HopLine, each: MinuteLine) -> list[object]:
    from jobpipe.ledger.difference_words import minute_words
    from jobpipe.ledger.hop_states import HopState

    minute, rows = each.minute, each.rows
    offsets = f"{minute.first:,} to {max(minute.first, minute.end - 1):,}"
    begins = [hop.topic, hop.name, minute_words(minute.minute), offsets]
    if rows is None:
        return [*begins, *[None] * len(_ROWS), each.state]
    mark = "DIFFERENT" if each.state is HopState.DIFFERENT else each.state
    numbers = (rows.published, rows.read, rows.committed, each.open_rows, rows.unproven, rows.moved)
    return [*begins, *map(count, numbers), mark]
