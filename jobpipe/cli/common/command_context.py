"""What all commands share: the global options, and the configuration they lead to."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from jobpipe.config import Config, ResolvedConfig


class Settings:
    """The global options; the configuration is read when a command first asks for it."""

    def __init__(self) -> None:
        self.file: str | None = None
        self.verbose = 0

    @cached_property
    def resolved(self) -> ResolvedConfig:
        """The configuration and its sources.

        Raises:
            ConfigError: it is wrong; names every problem.
        """
        from jobpipe.config import resolve

        return resolve(self.file)

    @property
    def config(self) -> Config:
        """The configuration; raises as :attr:`resolved`."""
        return self.resolved.config


pass_settings = click.make_pass_decorator(Settings)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, with stable keys.")
graph_format_option = click.option(
    "--format",
    "shape",
    type=click.Choice(("text", "mermaid", "dot", "json")),
    default="text",
    show_default=True,
    help="Output format.",
)
