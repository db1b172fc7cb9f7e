"""``jobpipe pipeline logs``: the ends of the logs of jobs of a control server, and what is written later."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from jobpipe.cli.common.command_context import json_option
from jobpipe.cli.common.output import emit_json, printable
from jobpipe.cli.common.server_connection import JobRef, JobRefType, pass_client

if TYPE_CHECKING:
    from jobpipe.control.rest.rest_client import ControlClient

FOLLOW_SECONDS = 1.0
FOLLOW_LINES = 1000
LINES_MOST = 10_000  # of one job, and of all together


@click.command()
@click.argument("ref", metavar="NAME[/JOB]", type=JobRefType())
@click.option(
    "-n", "--lines", type=click.IntRange(1, LINES_MOST), default=100, show_default=True, help="Lines of each job."
)
@click.option("-f", "--follow", is_flag=True, help="Continue with new lines, until Ctrl-C.")
@pass_client
@json_option
def logs(client: ControlClient, ref: JobRef, lines: int, follow: bool, as_json: bool) -> None:
    """Show the end of the log of JOB in pipeline NAME; without JOB of all its jobs, each line after the job's name.

    Of all jobs together at most 10,000 lines are shown, one job after the other. --follow asks the server once a
    second. JSON keys: lines; without JOB: jobs (name, lines). Not with --follow.
    """
    if follow and as_json:
        raise click.UsageError("--follow has no --json")
    names = [ref.job] if ref.job is not None else [job.name for job in client.pipeline(ref.pipeline).jobs]
    share = max(1, LINES_MOST // max(1, len(names)))
    width = max(map(len, names), default=0)
    before = dict.fromkeys(names, "") if ref.job is not None else {name: f"{name:<{width}} | " for name in names}
    seen = {name: client.log(ref.pipeline, name, lines=min(lines, share)) for name in names}
    if as_json:
        every = [{"name": name, "lines": list(found)} for name, found in seen.items()]
        emit_json({"lines": every[0]["lines"]} if ref.job is not None else {"jobs": every})
        return
    for name, found in seen.items():
        _show(before[name], found)
    while follow:
        time.sleep(FOLLOW_SECONDS)
        for name in names:
            found = client.log(ref.pipeline, name, lines=min(max(FOLLOW_LINES, lines), share))
            _show(before[name], new_lines(seen[name], found))
            seen[name] = found


def _show(before: str, lines: tuple[str, ...]) -> None:
    for line in lines:
        click.echo(printable(f"{before}{line}"))


def new_lines(seen: tuple[str, ...], found: tuple[str, ...]) -> tuple[str, ...]:
    """Return the lines of ``found`` that come after those that were seen; all, if it is another log.

    What was seen may begin before what was found: its longest end that is in ``found`` counts, at its last place there.
    Knuth, Morris and Pratt, from the end: the time is proportional to the number of lines.
    """
    pattern, text = seen[::-1], found[::-1]
    shorter = [0] * len(pattern)  # of the first n + 1 lines of the pattern: how many at their end also begin it
    length = 0
    for place in range(1, len(pattern)):
        while length and pattern[place] != pattern[length]:
            length = shorter[length - 1]
        length += pattern[place] == pattern[length]
        shorter[place] = length
    length = longest = new = 0
    for place, line in enumerate(text):
        while length and (length == len(pattern) or line != pattern[length]):
            length = shorter[length - 1]
        length += length < len(pattern) and line == pattern[length]
        if length > longest:
            longest, new = length, place + 1 - length
    return found[len(found) - new :] if longest else found
