"""Topics that no publisher serves, from their spools on this host, for as long as a command reads or adds to them."""

from __future__ import annotations

from contextlib import ExitStack

import click

from jobpipe.admin import Admin
from jobpipe.cli.common.output import printable
from jobpipe.config import Config
from jobpipe.errors import TopicNotFound, TopicOwned
from jobpipe.publishing.coordinator_launcher import end_coordinators
from jobpipe.publishing.serving.spool_server import SpoolServer
from jobpipe.store.log.spool_folders import has_spool
from jobpipe.store.spool.spool_files import check_topic


class Spools:
    """Serves such topics until ``stack`` ends."""

    def __init__(self, stack: ExitStack, config: Config) -> None:
        self._stack = stack
        self._config = config
        self._served: set[str] = set()

    def serve(self, topic: str) -> bool:
        """Serve a topic, if no publisher does and its spool is on this host; return whether we do."""
        config = self._config
        check_topic(topic)
        if topic in self._served:
            return True
        if self.is_served(topic):
            return False
        if not has_spool(config.spool_dir / topic):
            for place in sorted(config.spool_dir.glob(f"*.{topic}")):
                if has_spool(place):
                    there = printable(place.name)
                    click.echo(
                        f"there is no topic {topic} here, but {there}: jobpipe topics tail {there} --from earliest",
                        err=True,
                    )
            return False
        if not self._served:
            self._stack.callback(end_coordinators)
        try:
            self._stack.enter_context(SpoolServer(config, topic))
        except TopicOwned:  # a publisher has come
            return False
        self._served.add(topic)
        click.echo(f"no publisher serves {topic}: reading its spool in {config.spool_dir}", err=True)
        return True

    def is_served(self, topic: str) -> bool:
        """Tell whether a coordinator is registered for a topic."""
        with Admin(self._config) as admin:
            try:
                admin.locate(topic)
            except TopicNotFound:
                return False
        return True
