"""``jobpipe``: the program's entry, its global options, and the one place where errors become exit codes."""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import Sequence
from typing import Any

import click

import jobpipe
from jobpipe.cli.common.broken_pipe import drop_output
from jobpipe.cli.common.command_context import Settings, pass_settings
from jobpipe.cli.common.exit_codes import EXIT_CODES, Exit, exit_of
from jobpipe.cli.common.output import printable
from jobpipe.cli.doctor.doctor_command import doctor
from jobpipe.cli.operate.certs_command import certs
from jobpipe.cli.operate.config_command import config
from jobpipe.cli.operate.host_server_command import host_server
from jobpipe.cli.operate.registry_command import registry
from jobpipe.cli.operate.serve_command import serve
from jobpipe.cli.operate.server_command import server
from jobpipe.cli.pipeline.pipeline_command import pipeline
from jobpipe.cli.pipeline.plugins_command import plugins
from jobpipe.cli.pipeline.run_command import run
from jobpipe.cli.pipeline.schedule_command import schedule
from jobpipe.cli.pipeline.submit_command import COMMANDS as PIPELINE_COMMANDS
from jobpipe.cli.topics.dead_letters_command import dead_letters
from jobpipe.cli.topics.describe_command import describe
from jobpipe.cli.topics.flow_command import flow
from jobpipe.cli.topics.holds_command import holds
from jobpipe.cli.topics.lag_command import lag
from jobpipe.cli.topics.leases_command import leases
from jobpipe.cli.topics.replay_command import replay
from jobpipe.cli.topics.subscriptions_command import subscriptions
from jobpipe.cli.topics.tail_command import tail
from jobpipe.cli.topics.topics_command import topics
from jobpipe.errors import JobpipeError
from jobpipe.spark.session.supported_versions import of_pyarrow


class _Program(click.Group):
    """A group that turns every outcome into one message and one exit code."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """Run a command and end the process; without ``standalone_mode`` return its outcome, or raise."""
        settings = extra.setdefault("obj", Settings())
        if not standalone_mode:
            return super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
        code: object = Exit.OK
        try:
            code = super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
        except click.ClickException as error:
            error.show()
            code = error.exit_code
        except click.Abort:
            code = Exit.INTERRUPTED
        except JobpipeError as error:
            _report_error(error, error.message, settings)
            code = exit_of(error)
        except ImportError as error:
            if (told := of_pyarrow(error)) is None:
                raise
            _report_error(error, str(told), settings)
            code = Exit.UNHEALTHY
        except OSError as error:  # a file of the user's: errors of links and of the spool have kinds of their own
            _report_error(error, str(error), settings)
            code = Exit.UNHEALTHY
        sys.exit(code if isinstance(code, int) else Exit.OK)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; when the reader of our output is gone, end as if all of it had been read."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            drop_output()
            return Exit.OK


def _report_error(error: Exception, message: str, settings: Settings) -> None:
    if settings.verbose:
        click.echo("".join(traceback.format_exception(error)), err=True)
    click.echo("jobpipe: " + "\n".join(map(printable, message.splitlines())), err=True)


@click.group(
    cls=_Program,
    epilog=EXIT_CODES,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option("--config", "file", metavar="FILE", help="Configuration file to use instead of searching for one.")
@click.option("-v", "--verbose", count=True, help="Log progress and the tracebacks of errors; -vv for more.")
@click.version_option(jobpipe.__version__, prog_name="jobpipe")
@pass_settings
def cli(settings: Settings, file: str | None, verbose: int) -> None:
    """Chain Spark Structured Streaming jobs directly: inspect topics, follow them, check the installation.

    Most listings take --json. `jobpipe COMMAND --help` explains each command.
    """
    settings.file, settings.verbose = file, verbose
    level = {0: logging.WARNING, 1: logging.INFO}.get(verbose, logging.DEBUG)
    shape = "%(asctime)s %(levelname)s %(name)s: %(message)s" if verbose else "jobpipe: %(message)s"
    logging.basicConfig(level=level, format=shape)
    # kazoo at DEBUG would log passwords; what it warns of, our own errors tell
    logging.getLogger("kazoo").setLevel(logging.INFO if verbose else logging.CRITICAL)


for command in (
    topics,
    describe,
    lag,
    subscriptions,
    flow,
    holds,
    leases,
    tail,
    dead_letters,
    replay,
    serve,
    host_server,
    pipeline,
    run,
    server,
    plugins,
    schedule,
    registry,
    config,
    certs,
    doctor,
):
    cli.add_command(command)
for command in PIPELINE_COMMANDS:
    pipeline.add_command(command)


def main() -> None:
    """Run the program."""
    cli()


if __name__ == "__main__":
    main()
