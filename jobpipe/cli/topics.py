"""``jobpipe topics``: what the registry knows."""

from __future__ import annotations

from typing import Any

import click

from jobpipe.cli.context import Settings, json_option, pass_settings
from jobpipe.cli.output import emit_json, emit_table

__all__ = ["topics"]


@click.command()
@json_option
@pass_settings
def topics(settings: Settings, as_json: bool) -> None:
    """List the topics of the namespace, served now or not.

    Asks the registry only. JSON keys of each topic: topic, served, endpoint, data, parallelism, epoch, instance, ssl;
    all but the first two are null while nobody serves the topic.
    """
    from jobpipe.admin import Admin

    config = settings.config
    with Admin(config) as admin:
        lines = [_facts(line) for line in admin.topics()]
    if as_json:
        emit_json(lines)
    elif lines:
        emit_table(
            ("TOPIC", "SERVED", "ENDPOINT", "PARALLELISM", "EPOCH", "TLS"),
            ([line[key] for key in ("topic", "served", "endpoint", "parallelism", "epoch", "ssl")] for line in lines),
            right=("PARALLELISM", "EPOCH"),
        )
    else:
        click.echo(f"no topics under {config.namespace} (registry {config.registry_connect})", err=True)


def _facts(line: Any) -> dict[str, Any]:
    place = line.location
    return {
        "topic": line.name,
        "served": place is not None,
        "endpoint": None if place is None else str(place.control),
        "data": None if place is None else str(place.data),
        "parallelism": None if place is None else place.parallelism,
        "epoch": None if place is None else place.epoch,
        "instance": None if place is None else place.instance,
        "ssl": None if place is None else place.ssl,
    }
