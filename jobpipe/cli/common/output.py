"""How commands print: aligned columns, pairs, JSON; numbers for people."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from typing import Any

import click


def emit_json(value: Any) -> None:
    """Print one JSON document."""
    click.echo(json.dumps(value, indent=2, ensure_ascii=False, default=str))


def emit_pairs(pairs: Iterable[tuple[str, object]]) -> None:
    """Print names and values as two aligned columns; None is a dash."""
    listed = [(name, _cell(value)) for name, value in pairs]
    width = max((len(name) for name, _ in listed), default=0)
    for name, text in listed:
        click.echo(f"{name:<{width}}  {text}")


def emit_table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, right: Sequence[str] = ()) -> None:
    """Print rows below their column names; the columns named in ``right`` are aligned to the right."""
    from rich.cells import cell_len

    lines = [list(columns), *([_cell(value) for value in row] for row in rows)]
    plain = is_unstyled()
    widths = [max(map(cell_len, column)) for column in zip(*lines, strict=True)]
    printed = []
    for line in lines:
        padded = []
        for name, text, width in zip(columns, line, widths, strict=True):
            space = " " * (width - cell_len(text))
            padded.append(space + text if name in right else text + space)
        printed.append("  ".join(padded).rstrip())
    head, *rest = printed
    click.echo("\n".join([head if plain else click.style(head, bold=True), *rest]))  # at once: a reader may leave


def is_unstyled() -> bool:
    """Tell whether the user, or the terminal, wants neither colours nor bold letters."""
    return bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM", "").lower() in ("dumb", "unknown")


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return printable(str(value))


def printable(text: str) -> str:
    """Return ``text`` with control characters escaped: names and rows come from others, terminals obey."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def count(number: int | None) -> str | None:
    """Return a whole number with its thousands set apart."""
    return None if number is None else f"{number:,}"


def size(number: int | None) -> str | None:
    """Return a number of bytes in the unit that fits, such as ``2.5 KiB``."""
    if number is None:
        return None
    value, units = float(number), iter(("KiB", "MiB", "GiB", "TiB", "PiB"))
    if value < 1024:
        return f"{number} B"
    unit = ""
    while value >= 1024 and (following := next(units, None)) is not None:
        value, unit = value / 1024, following
    return f"{value:.1f} {unit}"
