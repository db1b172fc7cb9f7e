"""``jobpipe topics serve``: serves a spool without its job, and gives way to a publisher that returns."""

from __future__ import annotations

from contextlib import ExitStack

import click

from jobpipe.cli.common.command_context import Settings, pass_settings
from jobpipe.signal_handlers import stop_event

POLL_SECONDS = 0.5  # between two looks at whether we were told to stop


@click.command()
@click.argument("topic")
@pass_settings
def serve(settings: Settings, topic: str) -> None:
    """Serve TOPIC while its publisher is away.

    Serves TOPIC from the spool on this host, without Spark, so that subscribers can continue to read. A publisher that
    returns takes the topic over at once, and this command ends. It also ends on Ctrl-C or SIGTERM. It removes no rows
    and no subscription, whatever the retention settings say. Exits with 1 if there is no spool, or if a publisher is
    running.
    """
    config = settings.config
    from jobpipe.publishing.coordinator_launcher import end_coordinators
    from jobpipe.publishing.serving.spool_server import SpoolServer, check_spool

    check_spool(config, topic)
    with ExitStack() as stack:
        stack.callback(end_coordinators)
        stand_in = stack.enter_context(SpoolServer(config, topic))
        stopped = stack.enter_context(stop_event())
        click.echo(f"serving {topic} at {stand_in.endpoint}; Ctrl-C stops it")
        while not stopped.is_set():
            if not stand_in.serves(POLL_SECONDS):
                click.echo(f"a publisher has taken over {topic}")
                return
        click.echo("stopped")
