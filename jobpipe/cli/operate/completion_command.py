"""``jobpipe config completion``: a shell's completion of our commands and options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the script by which SHELL completes commands and options.

    \b
    bash  eval "$(jobpipe config completion bash)" in ~/.bashrc
    zsh   eval "$(jobpipe config completion zsh)" in ~/.zshrc
    fish  jobpipe config completion fish >~/.config/fish/completions/jobpipe.fish
    """
    kind = get_completion_class(shell)
    if kind is None:
        raise click.UsageError(f"click has no completion for {shell}")
    click.echo(kind(ctx.find_root().command, {}, "jobpipe", "_JOBPIPE_COMPLETE").source())
