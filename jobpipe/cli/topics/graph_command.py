"""``jobpipe topics graph``: who publishes and reads which topic of the namespace, how fast, and who waits for whom."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

import click

from jobpipe.cli.common.command_context import Settings, graph_format_option, pass_settings
from jobpipe.cli.common.exit_codes import Exit
from jobpipe.cli.common.output import emit_json, is_unstyled, printable
from jobpipe.errors import JobpipeError, LinkError, NotAuthorized, TopicAway, TopicNotFound
from jobpipe.graph.diagram import LANGUAGES, MERMAID_CHARACTERS, MERMAID_EDGES

if TYPE_CHECKING:
    from jobpipe.admin import Admin
    from jobpipe.graph.namespace_graph import Answers, NamespaceGraph


@click.command()
@graph_format_option
@click.option(
    "--interval",
    type=click.FloatRange(min=0.0, max=3600.0),
    default=3.0,
    show_default=True,
    help="Seconds over which rates are measured; 0 shows none, and asks once.",
)
@click.option("--timeout", type=click.FloatRange(min=0.1), default=5.0, show_default=True, help="Seconds to wait.")
@pass_settings
def graph(settings: Settings, shape: str, interval: float, timeout: float) -> int:
    """Show which application publishes and reads which topic of the namespace.

    An application is a job of a pipeline, a Spark application, or a program; `[...]` is one, a name without brackets a
    topic. Each reader has its rate, its lag, and whether a publisher waits for it. It is all from the
    registry and the coordinators of topics, so it works without a control server, and for jobs started by hand.
    `jobpipe graph` is the same. `--format dot | dot -Tsvg` draws it with Graphviz; `--format mermaid` is for Markdown.

    JSON keys: namespace; applications (key, name, id, pipeline, job, run, state); topics (name, state, partitions,
    rows, rows_per_second, waiting, error); edges (application, topic, kind, name, state, rows_per_second, lag_rows,
    lag_seconds, lost_batches, blocks), whose kind is publishes, reads, leases or holds; blocks (blocked, topic, by).
    What is not known is null. Topics that are away, refuse us, or do not answer are named on standard error; if some do
    not answer, it ends with 3.
    """
    from jobpipe.admin import Admin
    from jobpipe.graph.graph_formats import as_diagram, as_dict
    from jobpipe.graph.namespace_graph import namespace_graph

    with Admin(settings.config) as admin:
        answers, before = _ask(admin, timeout), None
        if interval and answers:
            time.sleep(interval)
            answers, before = _ask(admin, timeout), answers
    made = namespace_graph(settings.config.namespace, answers, before)
    if shape == "json":
        emit_json(as_dict(made))
    elif shape == "text":
        _print(made)
    else:
        text = LANGUAGES[shape](as_diagram(made))
        click.echo("\n".join(map(printable, text.splitlines())))
        if shape == "mermaid" and (len(made.edges) > MERMAID_EDGES or len(text) > MERMAID_CHARACTERS):
            click.echo(_TOO_LARGE.format(len(made.edges), len(text)), err=True)
    return _report(answers, before)


def _report(answers: Answers, before: Answers | None) -> Exit:
    """Say on standard error what is not known, and return the exit code.

    Raises:
        JobpipeError: no topic that is served answers.
    """
    errors = {name: answer for name, answer in answers.items() if isinstance(answer, JobpipeError)}
    for name, error in errors.items():
        click.echo(f"topic {printable(name)} {_said(error)}: {printable(str(error))}", err=True)
    for name, answer in (before or {}).items():
        if isinstance(answer, LinkError) and name not in errors:
            click.echo(f"topic {printable(name)} has no rates: {printable(str(answer))}", err=True)
    silent = [error for error in errors.values() if not isinstance(error, (*AWAY, NotAuthorized))]
    refused = [error for error in errors.values() if isinstance(error, NotAuthorized)]
    if len(errors) == len(answers) and (silent or refused):
        raise (silent or refused)[0]
    return Exit.UNREACHABLE if silent else Exit.OK


AWAY = (TopicAway, TopicNotFound)


def _said(error: JobpipeError) -> str:
    if isinstance(error, AWAY):
        return "is away"
    return "refuses us" if isinstance(error, NotAuthorized) else "does not answer"


_TOO_LARGE = (
    f"{{}} edges, {{}} characters: Mermaid draws at most {MERMAID_EDGES} edges and {MERMAID_CHARACTERS} characters "
    "unless its maxEdges and maxTextSize are raised; --format dot has no limit"
)


def _ask(admin: Admin, timeout: float) -> Answers:
    """Return how all topics of the namespace stand."""
    lines = admin.topics()
    away = {line.name: TopicAway(f"topic {line.name!r} is not served now") for line in lines if line.location is None}
    return {**admin.answers([line.name for line in lines if line.location is not None], timeout), **away}


def _print(made: NamespaceGraph) -> None:
    from jobpipe.graph.graph_formats import as_text

    plain = "utf" not in (sys.stdout.encoding or "").lower()
    if not made.topics:
        click.echo(f"namespace {printable(made.namespace)} has no topics")
        return
    lines = []
    for text, warns in as_text(made, plain=plain):
        line = printable(text)
        lines.append(click.style(line, fg="yellow") if warns and not is_unstyled() else line)
    click.echo("\n".join(lines))  # at once: a reader may leave
