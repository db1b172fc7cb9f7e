"""``jobpipe config``: check, show and explain the configuration."""

from __future__ import annotations

import sys
from dataclasses import asdict

import click

from jobpipe.cli.command_tree import CommandGroup
from jobpipe.cli.common.command_context import Settings, json_option, pass_settings
from jobpipe.cli.common.exit_codes import Exit
from jobpipe.cli.common.output import emit_json, emit_table, printable
from jobpipe.config import ConfigProblem, config_error
from jobpipe.config.reading.config_checks import check_files
from jobpipe.errors import ConfigError
from jobpipe.net.servers.access_list import read_access


@click.group(cls=CommandGroup)
def config() -> None:
    """Check, show and explain the configuration."""


@config.command()
@click.argument("file", required=False)
@click.option(
    "-o",
    "--option",
    "options",
    multiple=True,
    metavar="NAME=VALUE",
    help="Also check this option of format('jobpipe').",
)
@json_option
@pass_settings
def check(settings: Settings, file: str | None, options: tuple[str, ...], as_json: bool) -> int:
    """Check FILE, or the file in use, and report every problem.

    The environment and the files that the configuration names are checked too. Certificates, keys, CAs and lists must
    exist and be readable. `jobpipe doctor` also checks that they fit together.

    --option checks one option of a load(). Repeat it for each: `-o subscribe=orders -o maxRowsPerTrigger=1000`.
    Exits with 2 if there is a problem. JSON keys: ok, file, problems (source, key, value, expected, unknown); with
    --option also notes: what is valid for spark.read but not for a stream.
    """
    settings.file = file or settings.file
    try:
        found = settings.resolved.file
        if missing := check_files(settings.config, settings.resolved.sources):
            raise config_error(missing)
        if settings.config.access is not None:
            read_access(settings.config.access)
        notes = _check_options(settings.file, options) if options else []
    except ConfigError as error:
        if not as_json:
            raise
        wrong = asdict(ConfigProblem(str(error.fields.get("file")), "security.access", None, error.message))
        emit_json({"ok": False, "file": settings.file, "problems": error.fields.get("problems", [wrong])})
        return Exit.USAGE
    if as_json:
        emit_json(
            {
                "ok": True,
                "file": None if found is None else str(found),
                "problems": [],
                **({"notes": notes} if options else {}),
            }
        )
    else:
        for note in notes:
            click.echo(f"note: {note}", err=True)
        where = " (found in the working folder)" if settings.resolved.in_working_folder else ""
        click.echo(f"ok: {found or 'no file found; `jobpipe config show --sources` shows the values in use'}{where}")
    return Exit.OK


def _check_options(file: str | None, options: tuple[str, ...]) -> list[str]:
    """Check the options of a load(); return what is right for a batch read only."""
    from jobpipe.spark.options.read_options import WITHOUT_NAME, SourceOptions

    given = {}
    for option in options:
        name, equals, value = option.partition("=")
        if not equals:
            raise click.BadParameter(f"{option!r} is not NAME=VALUE", param_hint="--option")
        given[name.strip()] = value
    parsed = SourceOptions.parse(given if file is None else {"config": file, **given}, credentials=False)
    return [WITHOUT_NAME] if parsed.name is None else []


@config.command()
@click.option("--sources", is_flag=True, help="Show where each value was set.")
@json_option
@pass_settings
def show(settings: Settings, sources: bool, as_json: bool) -> None:
    """Show every key and the value that is in use.

    JSON keys of each: key, value, source, default, group; all are strings, as they would appear in the file.
    """
    from jobpipe.config import render

    rows = render(settings.config, settings.resolved.sources)
    if settings.resolved.in_working_folder:
        click.echo(f"the working folder's {settings.resolved.file} is in use", err=True)
    if as_json:
        emit_json([asdict(row) for row in rows])
    elif sources:
        emit_table(("KEY", "VALUE", "SOURCE"), ((row.key, row.value, row.source) for row in rows))
    else:
        emit_table(("KEY", "VALUE"), ((row.key, row.value) for row in rows))


@config.command()
@click.option("--new-key", is_flag=True, help="Make the key first; its file must not exist yet.")
def encrypt(new_key: bool) -> None:
    """Encrypt a secret for the configuration. Asks for the secret, or reads it from standard input.

    The encryption key is where JOBPIPE_SECRET_KEY says (file:PATH or env:NAME), otherwise in
    ~/.config/jobpipe/secret.key. Prints one line, enc:..., to use as a value in the configuration. Programs that read
    this configuration need the same encryption key.
    """
    from jobpipe.config.types import secrets

    reference = secrets.key_reference()
    if new_key:
        click.echo(f"the key is in {secrets.make_key(reference)}; anyone who has it can decrypt", err=True)
    if sys.stdin.isatty():
        text: str = click.prompt("Secret", hide_input=True, confirmation_prompt=True, err=True)
    else:
        text = sys.stdin.read().removesuffix("\n")
    if not text:
        raise ConfigError("standard input held no secret")
    click.echo(secrets.encrypt(text))


@config.command()
@click.argument("name", required=False)
def explain(name: str | None) -> None:
    """Explain NAME: its meaning, its values, its default, and how to set it. Without NAME, list all names.

    NAME is a key of the configuration, an option of format('jobpipe'), or an argument of JobPipeSink.
    """
    from jobpipe.config import explain as explained
    from jobpipe.config import names

    if name is None:
        emit_table(("NAME", "GIVEN AS"), names())
        return
    click.echo("\n".join(map(printable, explained(name).splitlines())))
