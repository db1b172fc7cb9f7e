"""``jobpipe pipeline plugins``: what pipelines are made of."""

from __future__ import annotations

import click

from jobpipe.cli.common.command_context import json_option
from jobpipe.cli.common.output import emit_json, emit_table, printable


@click.group()
def plugins() -> None:
    """List and explain sources, transforms, sinks and launchers of pipelines, and engines of schedules."""


@plugins.command("list")
@json_option
def list_all(as_json: bool) -> None:
    """List the installed plugins. For one that cannot be loaded, the list says why.

    JSON keys of each: kind, type, distribution, about.
    """
    from jobpipe.pipelines.plugins.plugin_discovery import Plugins
    from jobpipe.pipelines.plugins.plugin_help import about

    rows = [(str(each.kind), each.type, each.distribution, about(each)) for each in Plugins().all()]
    if as_json:
        emit_json([dict(zip(("kind", "type", "distribution", "about"), row, strict=True)) for row in rows])
    else:
        emit_table(("KIND", "TYPE", "DISTRIBUTION", "ABOUT"), rows)


@plugins.command()
@click.argument("type_", metavar="TYPE")
def explain(type_: str) -> None:
    """Explain TYPE: what it does, what it promises, and its options. Explains both a source and a sink of TYPE."""
    from jobpipe.pipelines.plugins.plugin_discovery import Plugins
    from jobpipe.pipelines.plugins.plugin_help import explain as explained

    text = explained(Plugins(), type_)
    click.echo("\n".join(map(printable, text.splitlines())))
