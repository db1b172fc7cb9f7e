"""Which lines of csv are taken: Java and Python agree about these regular expressions."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobpipe.pipelines.sources.csv_lines import CsvFormat

SPARK = CsvFormat(
    separator=",", quote='"', escape="\\", comment="", has_header=False, by_place=True, cuts_blanks=False
)  # its defaults
DOUBLED = replace(SPARK, escape='"')
NO_ESCAPE = replace(SPARK, escape="")
BARS = replace(SPARK, separator="||")
TABS = replace(SPARK, separator="\t", quote="'", cuts_blanks=True)
DOTS = replace(SPARK, separator=".", quote="^", escape="^")

GOOD = [
    (
        SPARK,
        [
            "",
            ",",
            "a",
            "a,b",
            '"a"',
            '"a,b",c',
            'c,"a,b"',
            '""',
            '"",""',
            '"a" ,b',
            "a\\",
            '5" disk,b',
            "\u2028,a",
            "a\u2028",
        ],
    ),
    (SPARK, ['"a\\"b"', '"a\\\\"', '"a\\\\\\"b",c', '"\\n"']),
    (DOUBLED, ['"a""b"', '""""', '"a"",""b",c', '"a\\"', '"a\\",b']),
    (NO_ESCAPE, ['"a\\"', '"a\\",b']),
    (BARS, ["a||b", "a|b", '"a||b"||c']),
    (TABS, ["a\tb", "'a\tb'\tc", " 'a' \t'b'", "\t", " \t ", '"']),
    (DOTS, ["a.b", "^a.b^.c", "^a^^b^", "]^a"]),
]
BAD = [
    (
        SPARK,
        [
            '"',
            '"a',
            'a,"b',
            '"a,b',
            'a"',
            'a",b',
            'a,b"',
            '"a"b',
            '"a"b,c',
            '"a""b"',
            '"a" b',
            '"a"\u2028',
            '"a\\"',
            '"a\\\\\\"',
        ],
    ),
    (SPARK, ['right" ', 'right" ,b', 'a,b"  ', ' "a" ', ' "a"', '"a","b', '"a",b"', '"C:\\dir\\",b']),
    (DOUBLED, ['"a""', '"""', '"a\\"b"', '"a"",b']),
    (NO_ESCAPE, ['"a\\"b"', '"a""b"']),
    (BARS, ['"a||b', 'a||b"', '"a"|b', '|||"a"']),
    (TABS, ["'a\tb", "a\t 'b", "a'\tb", " 'a'b\tc"]),
    (DOTS, ["^a.b", "a^.b"]),
]


@pytest.mark.parametrize(("form", "line"), [(form, line) for form, lines in GOOD for line in lines])
def test_lines_that_are_read(form: CsvFormat, line: str) -> None:
    assert re.search(form.line(), line)


@pytest.mark.parametrize(("form", "line"), [(form, line) for form, lines in BAD for line in lines])
def test_lines_that_are_not_what_they_seem(form: CsvFormat, line: str) -> None:
    assert not re.search(form.line(), line)


@given(
    values=st.lists(st.text('ab",\\ \n|', max_size=6), min_size=1, max_size=4), form=st.sampled_from([SPARK, DOUBLED])
)
def test_what_a_writer_quotes_is_read_and_no_cut_of_it_that_leaves_a_quote_open(
    values: list[str], form: CsvFormat
) -> None:
    """A line break in a value is where a reader of lines cuts it."""
    written = [quoted(value, form) for value in values]
    line = ",".join(written)
    assert re.search(form.line(), line)
    for number, value in enumerate(written):
        for at in range(1, len(value)):
            if value[at - 1] == form.escape != form.quote or at == len(value) - 1 or value[at] == value[at - 1] == '"':
                continue  # not between two characters of the value, or in the middle of an escape
            first, last = ",".join([*written[:number], value[:at]]), ",".join([value[at:], *written[number + 1 :]])
            assert not re.search(form.line(), first), first
            assert not re.search(form.line(), last) or last.startswith('"'), last


def quoted(value: str, form: CsvFormat) -> str:
    """Return a value in quotes."""
    if form.escape == "\\":
        value = value.replace("\\", "\\\\")
    return '"' + value.replace('"', form.escape + '"') + '"'
