"""``jobpipe``: the program's entry, its global options, and the one place where errors become exit codes."""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import Sequence
from typing import Any

import click

import jobpipe
from jobpipe.cli.command_tree import HEADINGS, MOVED, SHORT, CommandGroup
from jobpipe.cli.common.broken_pipe import drop_output
from jobpipe.cli.common.command_context import Settings, pass_settings
from jobpipe.cli.common.exit_codes import EXIT_CODES, Exit, exit_of
from jobpipe.cli.common.output import printable
from jobpipe.errors import JobpipeError
from jobpipe.spark.session.supported_versions import of_pyarrow


class _Program(CommandGroup):
    """The program: it turns every outcome into one message and one exit code, and knows old names of commands."""

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

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """Return a command, also by the name that it had before 0.1, or a short one."""
        found: click.Command | None = None
        for word in MOVED.get(name, SHORT.get(name, name)).split():
            group: click.Command = self if found is None else found
            assert isinstance(group, click.Group)  # noqa: S101 - all but the last word of a place are groups
            found = super().get_command(ctx, word) if group is self else group.get_command(ctx, word)
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command, and say where one of an old name is now."""
        place = MOVED.get(args[0])
        if place is not None and not ctx.resilient_parsing:
            click.echo(f"jobpipe: `jobpipe {args[0]}` is `jobpipe {place}` now; the old name goes with 0.2", err=True)
        name, command, rest = super().resolve_command(ctx, args)
        return place or SHORT.get(args[0]) or name, command, rest

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands by what one does with them."""
        width = max(map(len, self.list_commands(ctx)))
        for heading, words in HEADINGS.items():
            with formatter.section(heading):
                commands = [(word, self.get_command(ctx, word)) for word in words]
                formatter.write_dl(
                    [
                        (word.ljust(width), command.get_short_help_str(formatter.width - 6 - width))
                        for word, command in commands
                        if command is not None
                    ]
                )

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


def main() -> None:
    """Run the program."""
    cli(prog_name="jobpipe")


if __name__ == "__main__":
    main()
