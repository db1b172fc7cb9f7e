"""The configuration for people: what a key means, what is set, and by whom."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from jobpipe.config.definitions.config_model import KEYS, Config
from jobpipe.config.definitions.definition import ConfigProblem, Definition, Key, Option, config_error
from jobpipe.config.definitions.key_names import by_loose_name, suggest
from jobpipe.config.definitions.sink_arguments import SINK_ARGUMENTS
from jobpipe.config.definitions.source_options import MEANT, SOURCE_OPTIONS
from jobpipe.config.definitions.writer_options import WRITER_OPTIONS
from jobpipe.config.reading.config_checks import depends_on


@dataclass(frozen=True)
class Row:
    """One line of ``jobpipe config show``; all texts, a secret value hidden."""

    key: str
    value: str
    source: str
    default: str
    group: str


def keys() -> tuple[Key, ...]:
    """Return the definitions of all keys, in the order of conf/jobpipe.yaml."""
    return KEYS


def find_key(name: str) -> Key:
    """Return the definition of a key, named as an option may name it.

    Raises:
        ConfigError: there is no such key; it suggests the nearest.
    """
    about = by_loose_name(name)
    if about is None and name.lower() in MEANT:
        raise config_error([ConfigProblem("option", name, None, f"did you mean {MEANT[name.lower()]}?", unknown=True)])
    if about is None:
        meant = suggest(name, lambda key: key.name, others=[each for each, _ in names()])
        raise config_error([ConfigProblem("option", name, None, meant, unknown=True)])
    return about


def explain(name: str) -> str:
    """Return all that is known about a key, an option of the source, or an argument of the sink, as lines of text.

    Raises:
        ConfigError: there is none of that name; it suggests the nearest.
    """
    lines: list[str] = []
    for title, options in _OPTIONS.items():
        for about in options:
            if name.lower() in (known.lower() for known in (about.name, *about.also)):
                lines += [f"{about.name} ({title})", *_facts(about), *_company(about)]
    if lines and by_loose_name(name) is None:
        return "\n".join(lines)
    key = find_key(name)
    lines += [key.name, *_facts(key)]
    if others := depends_on(key.attribute):
        lines.append(f"  with:        {', '.join(others)}")
    lines += [f"  option:      {key.short}", f"  spark:       {key.spark}", f"  environment: {key.environment}"]
    return "\n".join(lines)


def names() -> list[tuple[str, str]]:
    """Return every name that :func:`explain` knows, and where it is given."""
    options = [(about.name, title) for title, options in _OPTIONS.items() for about in options]
    return [*options, *((about.name, "configuration") for about in KEYS)]


_OPTIONS: dict[str, tuple[Option, ...]] = {
    "option of format('jobpipe')": SOURCE_OPTIONS,
    "argument of JobPipeSink": SINK_ARGUMENTS,
    "option of format('jobpipe') to write": WRITER_OPTIONS,
}


def _facts(about: Definition) -> list[str]:
    lines = [
        f"  {about.documentation}",
        f"  expected:    {about.expected}",
        f"  default:     {about.default_text}",
    ]
    if about.recommended:
        lines.append(f"  recommended: {', '.join(about.recommended)}")
    return lines


def _company(about: Option) -> list[str]:
    lines = []
    if about.also:
        lines.append(f"  also called: {', '.join(about.also)} (in Spark's Kafka source)")
    if about.needs:
        lines.append(f"  needs:       {' or '.join(about.needs)}")
    if about.excludes:
        lines.append(f"  not with:    {', '.join(about.excludes)}")
    return lines


def render(config: Config, sources: Mapping[str, str]) -> list[Row]:
    """Return a row for each key; ``sources`` as in :class:`jobpipe.config.ResolvedConfig`."""
    return [
        Row(
            key=about.name,
            value=about.show(getattr(config, about.attribute)),
            source=sources.get(about.name, "default"),
            default=about.default_text,
            group=about.group,
        )
        for about in KEYS
    ]
