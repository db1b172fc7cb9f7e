"""``jobpipe serve``: serves a spool without its job, and gives way to a publisher that returns."""

from __future__ import annotations

from contextlib import ExitStack

import click

from jobpipe.cli.context import Settings, pass_settings
from jobpipe.interrupts import stop_event

LOOK_SECONDS = 0.5  # between two looks at whether we were told to stop


@click.command()
@click.argument("topic")
@pass_settings
def serve(settings: Settings, topic: str) -> None:
    """Serve TOPIC while its publisher is away.

    Serves it from the spool on this host, without Spark, so that subscribers can go on reading. Stops when a publisher
    of the topic returns, which takes it over at once, or on Ctrl-C or SIGTERM. Removes no rows and no subscription,
    whatever the retention settings say. Exits with 1 if there is no spool, or a publisher is alive.
    """
    config = settings.config
    from jobpipe.publisher.attach import end_coordinators
    from jobpipe.publisher.stand_in import StandIn, check_spool

    check_spool(config, topic)
    with ExitStack() as stack:
        stack.callback(end_coordinators)
        stand_in = stack.enter_context(StandIn(config, topic))
        stopped = stack.enter_context(stop_event())
        click.echo(f"serving {topic} at {stand_in.endpoint}; Ctrl-C ends it")
        while not stopped.is_set():
            if not stand_in.serves(LOOK_SECONDS):
                click.echo(f"a publisher of {topic} has taken it over")
                return
        click.echo("stopped")
