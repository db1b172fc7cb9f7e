"""The templates of the page, and how numbers and times are written there. Everything is escaped."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from jobpipe.control.page.marks import Mark
from jobpipe.graph.graph_formats import rate_text, span
from jobpipe.plural import counted

FOLDER = Path(__file__).parent
_LIVE = re.compile(r"<!--live:([A-Za-z0-9-]+)-->(.*?)<!--/live-->", re.DOTALL)


@dataclass(frozen=True)
class RenderedPage:
    """A page.

    Attributes:
        title: of the window.
        main: what the page shows, below the bar that all have.
        shape: a hash of ``main`` without its parts.
        parts: the elements of ``main`` that change while the page is open, by their ids.
        is_live: False: it is not made again while it is open.
    """

    title: str
    main: str
    shape: str
    parts: Mapping[str, str]
    status: int = 200
    is_live: bool = True


def render_page(
    template: str, title: str, http_status: int = 200, *, is_live: bool = True, **values: Any
) -> RenderedPage:
    """Return a page made from a template, whose live parts are marked by its macro ``live``."""
    marked = _ENVIRONMENT.get_template(template).render(**values)
    parts = dict(_LIVE.findall(marked))
    shape = hashlib.sha256(_LIVE.sub(r"\1;", marked).encode()).hexdigest()[:16]
    return RenderedPage(title, _LIVE.sub(r"\2", marked), shape, parts, http_status, is_live)


def render(template: str, **values: Any) -> str:
    """Return a whole document made from a template."""
    return _ENVIRONMENT.get_template(template).render(**values)


def part_id(*names: str) -> str:
    """Return the id of an element that belongs to what has these names, which may have any characters."""
    return f"p-{hashlib.sha256(chr(0).join(names).encode()).hexdigest()[:12]}"


def number(value: float | None) -> str:
    """Return a number with its thousands apart; a dash for what is not known."""
    return "–" if value is None else f"{value:,.0f}"


def short_number(value: float) -> str:
    """Return a number in at most six characters: 950, 12.3 k, 4.5 M."""
    for unit in ("", " k", " M", " G", " T"):
        if abs(value) < 999.5 or unit == " T":
            break
        value /= 1000
    return f"{value:.0f}{unit}" if value >= 100 or not unit else f"{value:.1f}{unit}"


def rate(value: float | None) -> str:
    """Return rows a second."""
    return "–" if value is None else rate_text(value)


def seconds(value: float | None) -> str:
    """Return a time that passed."""
    return "–" if value is None else span(max(0.0, value))


def size(value: float | None) -> str:
    """Return bytes, in the unit that fits."""
    if value is None:
        return "–"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(value) < 1024 or unit == "TiB":
            break
        value /= 1024
    return f"{value:,.0f} {unit}" if value >= 10 or unit == "B" else f"{value:.1f} {unit}"


def moment(value: float | str | None) -> Markup:
    """Return a time as an element: in UTC, which a script makes the reader's own."""
    if value is None:
        return Markup("–")
    try:
        at = datetime.fromtimestamp(value, UTC) if isinstance(value, int | float) else datetime.fromisoformat(value)
    except (ValueError, OverflowError, OSError):
        return Markup("–")
    return Markup('<time datetime="{}">{}</time>').format(
        at.astimezone(UTC).isoformat(timespec="seconds"), f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
    )


_ENVIRONMENT = Environment(
    loader=FileSystemLoader(FOLDER / "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    auto_reload=False,
)
_ENVIRONMENT.globals.update(
    calm=Mark("check", "nothing needs attention", "good"), warning=Mark("diamond", "", "warn"), half=Mark("half", "")
)
_ENVIRONMENT.filters.update(
    number=number, rate=rate, seconds=seconds, size=size, moment=moment, counted=counted, part_id=part_id
)
