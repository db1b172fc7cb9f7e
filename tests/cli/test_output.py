"""Numbers and tables for people."""

from __future__ import annotations

import json

import click
import pytest
from click.testing import CliRunner

from jobpipe.cli.common.output import count, emit_json, emit_pairs, emit_table, printable, size
from jobpipe.plural import counted, seconds


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (2544, "2.5 KiB"), (8 * 2**30, "8.0 GiB"), (2**60, "1024.0 PiB")],
)
def test_size(number: int, text: str) -> None:
    assert size(number) == text


@pytest.mark.parametrize(
    ("number", "text"),
    [(0.04, "0.0 s"), (119.0, "119.0 s"), (600.0, "10.0 min"), (7200.0, "2.0 h"), (200_000.0, "2.3 d")],
)
def test_seconds(number: float, text: str) -> None:
    assert seconds(number) == text


def test_unknown_numbers_stay_unknown() -> None:
    assert (size(None), seconds(None), count(None)) == (None, None, None)
    assert count(1_234_567) == "1,234,567"


def test_printable_leaves_no_control_character() -> None:
    assert printable("naïve\x1b[31m\r\n\u202e") == "naïve\\x1b[31m\\r\\n\\u202e"


def show(body: object) -> str:
    @click.command()
    def command() -> None:
        body()  # type: ignore[operator]

    result = CliRunner().invoke(command)
    assert result.exit_code == 0
    return result.output


def test_a_table_is_aligned_and_never_cut() -> None:
    long = "x" * 300
    text = show(lambda: emit_table(("NAME", "ROWS"), [("[red]a[/red]", 5), (long, None), ("b", True)], right=("ROWS",)))
    assert text.splitlines() == [
        f"{'NAME':<300}  ROWS",
        f"{'[red]a[/red]':<300}     5",
        f"{long}     -",
        f"{'b':<300}   yes",
    ]


def test_pairs_are_aligned() -> None:
    assert show(lambda: emit_pairs([("a", 1), ("long name", None), ("b", False)])) == (
        "a          1\nlong name  -\nb          no\n"
    )


def test_json_is_one_document() -> None:
    assert json.loads(show(lambda: emit_json({"ü": [1, None]}))) == {"ü": [1, None]}


def test_without_colours_a_table_has_no_styles(monkeypatch: pytest.MonkeyPatch) -> None:
    printed: list[str] = []
    monkeypatch.setattr(click, "echo", printed.append)
    monkeypatch.setenv("FORCE_COLOR", "1")  # as on a terminal
    monkeypatch.setenv("TERM", "xterm-256color")
    for value in ("", "1"):
        monkeypatch.setenv("NO_COLOR", value)
        emit_table(["TOPIC"], [["orders"]])
    assert ["\x1b[1m" in text for text in printed] == [True, False]


def test_one_is_singular() -> None:
    assert [counted(number, "batch") for number in (0, 1, 1000)] == ["0 batches", "1 batch", "1,000 batches"]
