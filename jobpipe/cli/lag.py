"""``jobpipe lag``: how far each subscription is behind."""

from __future__ import annotations

from typing import Any

import click

from jobpipe.cli.context import Settings, json_option, pass_settings
from jobpipe.cli.output import count, emit_json, emit_table, seconds, size

__all__ = ["lag"]

_NUMBERS = ("POSITION", "HEAD", "BATCHES", "ROWS", "BYTES", "TIME")


@click.command()
@click.argument("topics", nargs=-1, metavar="[TOPIC]...")
@click.option("--timeout", type=click.FloatRange(min=0.1), default=5.0, show_default=True, help="Seconds to wait.")
@json_option
@pass_settings
def lag(settings: Settings, topics: tuple[str, ...], timeout: float, as_json: bool) -> None:
    """Show what each subscription has not acknowledged, of all topics that are served or of the given ones."""
    from jobpipe.admin import Admin

    with Admin(settings.config) as admin:
        names = topics or [line.name for line in admin.topics() if line.location is not None]
        statuses = [admin.status(topic, timeout) for topic in names]
    lines = [_line(status, each) for status in statuses for each in status["subscriptions"]]
    if as_json:
        emit_json(lines)
    elif not lines:
        click.echo("no subscriptions")
    else:
        emit_table(("TOPIC", "SUBSCRIPTION", "STATE", *_NUMBERS, "LAST SEEN"), map(_row, lines), right=_NUMBERS)


def _line(status: dict[str, Any], each: dict[str, Any]) -> dict[str, Any]:
    kept = ("name", "state", "position", "lag", "reconnects", "last_seen")
    return {"topic": status["topic"], "head": status["head"], **{key: each[key] for key in kept}}


def _row(line: dict[str, Any]) -> list[object]:
    behind, seen = line["lag"], seconds(line["last_seen"])
    return [
        line["topic"],
        line["name"],
        line["state"],
        count(line["position"]),
        count(line["head"]),
        count(behind["batches"]),
        count(behind["rows"]),
        size(behind["bytes"]),
        seconds(behind["seconds"]),
        None if seen is None else f"{seen} ago",
    ]
