"""Paths of files: what in them is a name, and which folders a pattern matches."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobpipe.pipelines.file.file_paths import (
    InputPattern,
    escaped,
    file_format,
    literal,
    may_match_twice,
    pattern_from,
    reads_folder,
)


@pytest.mark.parametrize("name", ["plain", "a [1]", "*", "what?", "{a,b}", "back\\slash", "[!a]\\*", ""])
def test_a_name_is_matched_by_its_own_pattern_alone(name: str) -> None:
    assert literal(escaped(name)) == name


@pytest.mark.parametrize("pattern", ["a*", "a?", "[ab]", "{a,b}", "a\\\\*", "a/*/b"])
def test_a_pattern_is_no_name(pattern: str) -> None:
    assert literal(pattern) is None


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("in", "/x [1]/in"),
        ("in/*.csv", "/x [1]/in/*.csv"),
        ("../in", "/x [1]/../in"),
        ("/data/*", "/data/*"),
        ("file:/data/*", "file:/data/*"),
        ("hdfs://host/[a]", "hdfs://host/[a]"),
        ("~/in", "/home [2]/in"),
    ],
)
def test_where_a_pattern_begins(path: str, found: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own characters stay; those of the folders are names."""
    monkeypatch.setenv("HOME", "/home [2]")
    expected = found.replace("/x [1]", "/x \\[1\\]").replace("/home [2]", "/home \\[2\\]")
    assert pattern_from(path, Path("/x [1]")) == expected


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("CSV", "csv"),
        ("binaryFile", "binaryfile"),
        ("org.apache.spark.sql.json", "json"),
        ("org.apache.spark.sql.execution.datasources.v2.parquet.ParquetDataSourceV2", "parquet"),
        ("com.databricks.spark.avro", "avro"),
        ("delta", None),
        ("kafka", None),
        ("acme.csv", None),
    ],
)
def test_formats_by_any_name(name: str, found: str | None) -> None:
    assert file_format(name) == found


@pytest.mark.parametrize(
    ("pattern", "recursive", "reads"),
    [
        ("/d/out", False, True),
        ("/d", False, False),
        ("/d", True, True),
        ("/d/other", True, False),
        ("/d/*", False, True),
        ("/d/o?t", False, True),
        ("/d/[a-p]ut", False, True),
        ("/d/[!a-p]ut", False, False),
        ("/d/[^o]ut", False, False),
        ("/d/out/*.json", False, True),
        ("/d/out/*.csv", False, False),
        ("/d/*/*", False, True),
        ("/*", False, False),
        ("/d/\\[x\\]", False, False),
        ("/d/{out,in}", False, False),  # not looked at
    ],
)
def test_what_a_source_reads(pattern: str, recursive: bool, reads: bool) -> None:
    assert reads_folder(InputPattern(pattern, recursive), "/d/out", "part-0.json") is reads


@pytest.mark.parametrize("pattern", ["file:/d/out", "file:///d/x/../out/", "/d/./out", "/d/out/"])
def test_other_spellings_of_a_folder(pattern: str) -> None:
    assert reads_folder(InputPattern(pattern, recursive=False), "/d/out", "part-0.json")


def test_hidden_folders_are_not_read() -> None:
    assert reads_folder(InputPattern("/d", recursive=True), "/d/out", "part-0.json")
    assert not reads_folder(InputPattern("/d", recursive=True), "/d/_out/x", "part-0.json")


def test_a_folder_with_brackets() -> None:
    assert reads_folder(InputPattern("/d/\\[x\\]", recursive=False), "/d/[x]", "part-0.json")
    assert reads_folder(InputPattern("/d/\\[x\\]/*", recursive=False), "/d/[x]", "part-0.json")


@pytest.mark.parametrize(
    ("pattern", "may"), [("{in,in/*}", True), ("in/{a,b}*", False), ("\\{a/b\\}", False), ("{a,b}/{c,d/e}", True)]
)
def test_patterns_whose_alternatives_may_overlap(pattern: str, may: bool) -> None:
    assert may_match_twice(pattern) is may
