"""The tree of commands: in which module each is, under which heading `--help` lists it, and old names, until 0.2."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any

import click

HEADINGS: Mapping[str, tuple[str, ...]] = {
    "Look at topics and rows": ("topics", "subscriptions", "dead-letters"),
    "Run jobs": ("pipeline", "cdc", "runs", "schedules"),
    "Operate": ("server", "registry", "metrics", "doctor"),
    "Secure and configure": ("certs", "config"),
}
_AT_THE_TOP = {
    "topics": "topics.topics_command:topics",
    "subscriptions": "topics.subscriptions_command:subscriptions",
    "dead-letters": "topics.dead_letters_command:dead_letters",
    "pipeline": "pipeline.pipeline_command:pipeline",
    "cdc": "cdc.cdc_command:cdc",
    "runs": "pipeline.runs_command:runs",
    "schedules": "pipeline.schedules_command:schedules",
    "server": "operate.server_command:server",
    "registry": "operate.registry_command:registry",
    "metrics": "operate.metrics_command:metrics",
    "doctor": "doctor.doctor_command:doctor",
    "certs": "operate.certs_command:certs",
    "config": "operate.config_command:config",
}
TREE: Mapping[str, Mapping[str, str]] = {
    "cli": _AT_THE_TOP,
    "topics": {
        "describe": "topics.describe_command:describe",
        "graph": "topics.graph_command:graph",
        "lag": "topics.lag_command:lag",
        "ledger": "operate.ledger_command:ledger",
        "tail": "topics.tail_command:tail",
        "replay": "topics.replay_command:replay",
        "serve": "topics.serve_command:serve",
        "flows": "topics.flows_command:flows",
        "holds": "topics.holds_command:holds",
        "leases": "topics.leases_command:leases",
    },
    "pipeline": {
        **{name: f"pipeline.submit_command:{name}" for name in ("submit", "rollback", "status", "stop", "resume")},
        **{name: f"pipeline.submit_command:{name}" for name in ("restart", "delete")},
        "list": "pipeline.submit_command:list_all",
        "plan": "pipeline.plan_command:plan",
        "history": "pipeline.plan_command:history",
        "logs": "pipeline.logs_command:logs",
        "plugins": "pipeline.plugins_command:plugins",
    },
    "server": {"host": "operate.host_server_command:host"},
    "config": {"completion": "operate.completion_command:completion"},
}
"""The words of each group whose commands are in other modules: the module below this package, and its attribute."""
MOVED: Mapping[str, str] = {
    **{name: f"topics {name}" for name in ("describe", "lag", "tail", "replay", "serve", "holds", "leases")},
    "flow": "topics flows",
    "completion": "config completion",
    "host-server": "server host",
    "plugins": "pipeline plugins",
    "run": "runs",
    "schedule": "schedules",
}
"""Old words of ``jobpipe``, which work until 0.2, and their places now."""
SHORT: Mapping[str, str] = {"graph": "topics graph", "ledger": "topics ledger"}
"""Words of ``jobpipe`` that are short for others; `--help` does not list them."""
_OTHER_WORDS = {"ps": "status", "start": "submit", "show": "status", "describe": "status", "log": "logs"}
"""Words of other programs, and what we call that."""
_OF_THE_SERVER = {"start": "`jobpipe server`", "stop": "`jobpipe server --stop`", "status": "`jobpipe pipeline list`"}


class CommandGroup(click.Group):
    """A group whose commands are imported when they are used, and that proposes another one for an unknown word."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._places = TREE.get(self.name or "", {})

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the words, by name."""
        return sorted({*super().list_commands(ctx), *self._places})

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """Return a command, None if there is none of that name."""
        place = self._places.get(name)
        if place is None:
            return super().get_command(ctx, name)
        module, _, attribute = place.partition(":")
        found: click.Command = getattr(importlib.import_module(f"jobpipe.cli.{module}"), attribute)
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that the arguments begin with; an unknown word gets a proposal."""
        word = args[0]
        if self.get_command(ctx, word) is None and not ctx.resilient_parsing and not word.startswith("-"):
            wanted = {word, f"{word}s", word.removesuffix("s"), _OTHER_WORDS.get(word, word)}
            if self.name == "server" and word in _OF_THE_SERVER:
                ctx.fail(f"No such command {word!r}. Did you mean {_OF_THE_SERVER[word]}?")
            here = " ".join(ctx.command_path.split()[1:])
            near = [path for path in paths(ctx.find_root()) if path.rpartition(" ")[2] in wanted]
            near = [path for path in near if here and path.startswith(f"{here} ")] or near
            if not near:
                near = [f"{here} {each}".strip() for each in get_close_matches(word, self.list_commands(ctx), n=1)]
            if near:
                ctx.fail(f"No such command {word!r}. Did you mean {' or '.join(f'`jobpipe {path}`' for path in near)}?")
        return super().resolve_command(ctx, args)


def paths(ctx: click.Context, above: str = "") -> Iterator[str]:
    """Yield all commands below that of ``ctx`` that are not hidden, each with the words before it."""
    group = ctx.command
    if not isinstance(group, click.Group):
        return
    for name in group.list_commands(ctx):
        command = group.get_command(ctx, name)
        if command is not None and not command.hidden:
            path = f"{above} {name}".strip()
            yield path
            yield from paths(click.Context(command, parent=ctx, info_name=name), path)
