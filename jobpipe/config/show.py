"""The configuration for people: what a key means, what is set, and by whom."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from jobpipe.config.definition import Key, Problem, config_error
from jobpipe.config.model import KEYS, Config
from jobpipe.config.names import by_loose_name, suggest

__all__ = ["Row", "explain", "find_key", "keys", "render"]


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
    if about is None:
        raise config_error([Problem("option", name, None, suggest(name, lambda key: key.name), unknown=True)])
    return about


def explain(name: str) -> str:
    """Return all that is known about a key as lines of text.

    Raises:
        ConfigError: as :func:`find_key`.
    """
    about = find_key(name)
    lines = [
        about.name,
        f"  {about.documentation}",
        f"  expected:    {about.expected}",
        f"  default:     {about.default_text}",
    ]
    if about.recommended:
        lines.append(f"  recommended: {', '.join(about.recommended)}")
    lines += [
        f"  option:      {about.short}",
        f"  spark:       {about.spark}",
        f"  environment: {about.environment}",
    ]
    return "\n".join(lines)


def render(config: Config, sources: Mapping[str, str]) -> list[Row]:
    """Return a row for each key; ``sources`` as in :class:`jobpipe.config.Resolved`."""
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
