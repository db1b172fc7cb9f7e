"""``jobpipe metrics``: metrics for Prometheus, and what Prometheus and Grafana are given for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from jobpipe.cli.common.command_context import Settings
from jobpipe.errors import ConfigError

if TYPE_CHECKING:
    from jobpipe.control.rest.rest_server import GuardedServer

PORT = 9478


@click.group(invoke_without_command=True)
@click.option("--host", metavar="HOST", default="127.0.0.1", show_default=True, help="Listen at this address.")
@click.option("--port", type=click.IntRange(1, 65535), default=PORT, show_default=True, help="Listen on this port.")
@click.pass_context
def metrics(ctx: click.Context, host: str, port: int) -> None:
    """Serve the metrics of all topics of the namespace at /metrics, for Prometheus.

    `jobpipe server` serves the same at its own address, with the metrics of its jobs; this is for those who do not run
    it. It stays in the foreground until SIGTERM or Ctrl-C. On loopback a request shows the token in server/view-token
    under jobpipe.home. Elsewhere it accepts only TLS with certificates (jobpipe.server.access), as the server does.
    """
    if ctx.invoked_subcommand is not None:
        return
    try:
        from jobpipe.control.monitoring.metrics_server import serve_metrics
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("starlette", "uvicorn", "h11", "prometheus_client"):
            raise
        raise ConfigError(
            "metrics need Starlette, uvicorn and prometheus-client: "
            "pip install 'starlette>=0.46' 'uvicorn>=0.34' 'prometheus-client>=0.22'"
        ) from error
    serve_metrics(ctx.ensure_object(Settings).config, host, port, _print_address)


def _print_address(server: GuardedServer) -> None:
    known = "certificates as jobpipe.server.access says" if server.token is None else "the token in server/view-token"
    click.echo(f"metrics at {server.url}/metrics, for {known}; SIGTERM or Ctrl-C ends it")


@metrics.command("alert-rules")
def alert_rules() -> None:
    """Print alert rules for Prometheus, for rule_files in prometheus.yml."""
    from jobpipe.metrics.alert_rules import rules_file

    click.echo(rules_file(), nl=False)


@metrics.command("grafana-dashboard")
def grafana_dashboard() -> None:
    """Print a dashboard for Grafana, to be imported there; it asks for the data source."""
    from jobpipe.metrics.grafana_dashboard import dashboard_file

    click.echo(dashboard_file(), nl=False)
