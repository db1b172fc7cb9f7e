"""The page docs/commands.md, out of the commands' help: ``python -m jobpipe.cli.commands_page > docs/commands.md``."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

import click

from jobpipe.cli.command_tree import HEADINGS, paths
from jobpipe.cli.common.exit_codes import EXIT_CODES
from jobpipe.cli.main import cli

_HEAD = """# Commands

<!-- made from the help of the commands by `make docs`; do not edit -->

`jobpipe COMMAND --help` shows the same. Most listings take `--json`. `jobpipe --config FILE COMMAND` names the
configuration, and `-v` logs progress and the tracebacks of errors. `jobpipe config completion bash` completes them in a
shell.

"""


def commands_page() -> str:
    """Return the page's text."""
    root = click.Context(cli, info_name="jobpipe")
    found = [(path, _command(path, root)) for path in paths(root)]
    codes = (line.replace("|", "\\|").split(maxsplit=1) for line in EXIT_CODES.splitlines()[2:])
    parts = [_HEAD, "| exit code | |\n|---|---|\n", *(f"| {code} | {about} |\n" for code, about in codes)]
    for heading, words in HEADINGS.items():
        parts.append(f"\n## {heading}\n")
        for word in words:
            parts += [_section(path, command) for path, command in found if path.split()[0] == word]
    return "".join(parts)


def _command(path: str, root: click.Context) -> click.Command:
    command: click.Command = cli
    for word in path.split():
        assert isinstance(command, click.Group)  # noqa: S101 - all but the last word are groups
        found = command.get_command(root, word)
        assert found is not None  # noqa: S101 - the path is one of paths()
        command = found
    return command


def _section(path: str, command: click.Command) -> str:
    context = click.Context(command, info_name=f"jobpipe {path}")
    usage = " ".join(piece for piece in command.collect_usage_pieces(context) if piece != "[OPTIONS]")
    group = command if isinstance(command, click.Group) else None
    lines = [f"\n### `jobpipe {path}`\n"]
    if group is None or group.invoke_without_command:
        lines.append(f"\n    jobpipe {path} {usage if group is None else ''}".rstrip() + "\n")
    lines.append(f"\n{_text(command.help or '')}\n")
    if epilog := _text(command.epilog or ""):
        lines.append(f"\n{epilog}\n")
    if options := list(_options(command, context)):
        lines.append("\n| option | |\n|---|---|\n")
        lines += options
    return "".join(lines)


def _options(command: click.Command, context: click.Context) -> Iterator[str]:
    for option in command.params:
        record = None if isinstance(option, click.Argument) else option.get_help_record(context)
        if record is not None:
            name, about = (" ".join(each.split()).replace("|", "\\|") for each in record)
            yield f"| `{name}` | {about} |\n"


def _text(help_: str) -> str:
    """Return a help text as Markdown: what is not to be wrapped there stands as it is."""
    blocks = []
    for block in re.split(r"\n\s*\n", inspect.cleandoc(help_)):
        kept = block.lstrip().startswith("\b")
        lines = [line for line in block.replace("\b", "").strip("\n").splitlines() if line.strip()]
        blocks.append("\n".join(f"    {line}" for line in lines) if kept and len(lines) > 1 else "\n".join(lines))
    return "\n\n".join(blocks)


if __name__ == "__main__":
    print(commands_page(), end="")  # noqa: T201
