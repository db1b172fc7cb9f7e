"""The page docs/options.md, made from the definitions: ``python -m jobpipe.config.options_page > docs/options.md``."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

from jobpipe.config.definitions.config_model import KEYS
from jobpipe.config.definitions.definition import Definition, Key, Option
from jobpipe.config.definitions.sink_arguments import SINK_ARGUMENTS
from jobpipe.config.definitions.source_options import SOURCE_OPTIONS
from jobpipe.config.definitions.writer_options import WRITER_OPTIONS
from jobpipe.config.reading.config_checks import depends_on

_HEAD = """# Options

<!-- made from the definitions in jobpipe/config by `make docs`; do not edit -->

Look up here every setting, with its default and its values. There are four kinds:

    spark.readStream.format("jobpipe").option("startingOffsets", "earliest")   an option of the source
    JobPipeSink("orders", partition_by="customer")                             an argument of the sink
    df.writeStream.format("jobpipe").option("partition_by", "customer")        an option of the writer
    jobpipe.retention.time: 1h                                                 a key of the configuration, in its file

Source, sink and writer also accept the keys of the configuration. All problems are reported at once: when the query or
the sink starts, or, by a writer, with the first rows. `jobpipe config explain NAME` explains one setting. `jobpipe
config check` reports all problems of a file, and `jobpipe config check --option NAME=VALUE` those of a source's
options.
"""
_SOURCE = """
## Source

`spark.readStream.format("jobpipe").option(name, value)`, and the same with `spark.read`. Names are not case-sensitive.
An option that Spark's Kafka source also has means the same here; [kafka.md](kafka.md) compares them all.
"""
_SINK = """
## Sink

`JobPipeSink(topic, *, ...)`, a callable for `foreachBatch`. Every key of the configuration may be given too, with
underscores: `JobPipeSink("orders", retention_time="1h")`.
"""
_WRITER = """
## Writer

`df.writeStream.format("jobpipe").option(name, value)`, and the same with `df.write`. These are the sink's arguments, as
text. Names are not case-sensitive, and `partition_by` may be written `partitionBy`. Every key of the configuration may
be given too: `.option("retention.time", "1h")`.
"""
_KEYS = """
## Configuration

The first of these that is set takes precedence: an option (`retention.time`, in Python also `retention_time`), Spark's
`spark.jobpipe.retention.time`, the environment's `JOBPIPE__RETENTION__TIME`, the file
([conf/jobpipe.yaml](../conf/jobpipe.yaml), in YAML 1.2), the default. Times: `500ms`, `60s`, `10min`, `24h`; sizes:
`64MiB`, `8GB`.
"""


def options_page() -> str:
    """Return the page's text."""
    parts = [
        _HEAD,
        _SOURCE,
        *_groups(SOURCE_OPTIONS),
        _SINK,
        *_table(SINK_ARGUMENTS),
        _WRITER,
        *_table(WRITER_OPTIONS),
        _KEYS,
        *_groups(KEYS),
    ]
    return "\n".join(part.strip("\n") if part.startswith("|") else part for part in parts).rstrip() + "\n"


def _groups(definitions: Iterable[Definition]) -> Iterable[str]:
    for group, members in groupby(definitions, lambda about: about.group):
        yield f"\n### {group[0].upper()}{group[1:]}\n"
        yield from _table(members)


def _table(definitions: Iterable[Definition]) -> Iterable[str]:
    yield "| name | default | value | meaning |"
    yield "|---|---|---|---|"
    for about in definitions:
        cells = (f"`{about.name}`", f"`{about.default_text}`", _cell(about.expected), _cell(_meaning(about)))
        yield f"| {' | '.join(cells)} |"


def _meaning(about: Definition) -> str:
    said = [about.documentation]
    if isinstance(about, Option):
        said += [f"Kafka's name `{name}` works too." for name in about.also]
        if about.needs:
            said.append(f"Needs {_listed(about.needs, 'or')}.")
        if about.excludes:
            said.append(f"Not together with {_listed(about.excludes, 'or')}.")
    if isinstance(about, Key) and (others := depends_on(about.attribute)):
        said.append(f"Checked together with {_listed(others, 'and')}.")
    return " ".join(said)


def _listed(names: Iterable[str], last: str) -> str:
    *most, end = (f"`{name}`" for name in names)
    return f"{', '.join(most)} {last} {end}" if most else end


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")


if __name__ == "__main__":
    print(options_page(), end="")  # noqa: T201 - a program
