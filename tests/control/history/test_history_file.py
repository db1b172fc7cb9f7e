"""The file: what is written is read again, and what is not ours is a warning and nothing more."""

from __future__ import annotations

import logging
import os
import stat
from array import array
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from jobpipe.control.history import history_file
from jobpipe.control.history.history import COARSE_SLOTS, FINE_SLOTS, History, StoredHistory, StoredSeries
from jobpipe.control.history.history_file import MAX_NAME, read_history, write_history
from jobpipe.control.history.series import SeriesKey
from tests.control.history.history_kit import Clock, bits

RATE = SeriesKey.published("orders")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "history.arrow"


def stored() -> StoredHistory:
    """Return what is kept of some series with names of any characters."""
    clock = Clock()
    history = History(clock)
    keys = [RATE, SeriesKey.lag_rows("a/b.ü", "😀"), SeriesKey.read("p", "j")]
    for number in range(200):
        history.feed(dict.fromkeys(keys[: 1 + number % 3], number / 3))
        clock.now += 10.0
    return history.stored()


def with_series(**changes: Any) -> StoredHistory:
    """Return it with a first series that is changed."""
    kept = stored()
    return replace(kept, series=(replace(kept.series[0], **changes), *kept.series[1:]))


def test_what_is_written_is_read(path: Path) -> None:
    kept = stored()
    write_history(path, kept)
    found = read_history(path)
    assert found is not None
    assert bits(found) == bits(kept)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_a_history_of_more_than_one_part_and_an_empty_one(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_file, "_BATCH", 2)
    for kept in (stored(), History(Clock()).stored()):
        write_history(path, kept)
        found = read_history(path)
        assert found is not None
        assert bits(found) == bits(kept)


def test_no_file_is_no_warning(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert read_history(path) is None
    assert caplog.records == []


def refused(path: Path, caplog: pytest.LogCaptureFixture, why: str = "") -> bool:
    """Whether the file is none, and a warning of one line says why."""
    caplog.clear()
    found = read_history(path)
    (record,) = caplog.records
    text = record.getMessage()
    return found is None and record.levelno == logging.WARNING and why in text and "\n" not in text


def _foreign(path: Path) -> None:
    with pa.ipc.new_file(str(path), pa.schema([("x", pa.int64())])) as writer:
        writer.write_batch(pa.record_batch({"x": pa.array([1])}))


def _no_slots(path: Path) -> None:
    with pa.ipc.new_file(str(path), history_file._SCHEMA):
        pass


def _strange_slots(path: Path) -> None:
    metadata = {b"jobpipe.history": b'{"version":2,"fine":[1],"coarse":[2]}'}
    with pa.ipc.new_file(str(path), history_file._SCHEMA.with_metadata(metadata)):
        pass


@pytest.mark.parametrize(
    "make",
    [
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(b"ARROW1\0\0 and no more"),
        lambda path: path.write_text("{}"),
        lambda path: path.mkdir(),
        lambda path: os.mkfifo(path),
        lambda path: path.symlink_to(path.parent / "elsewhere"),
        _foreign,
        _no_slots,
        _strange_slots,
    ],
)
def test_what_is_no_history(path: Path, caplog: pytest.LogCaptureFixture, make: Callable[[Path], object]) -> None:
    make(path)
    assert refused(path, caplog)


def test_a_file_that_is_damaged_anywhere_is_read_or_refused(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_history(path, stored())
    whole = path.read_bytes()
    for end in range(0, len(whole), len(whole) // 40):
        path.write_bytes(whole[:end])
        assert refused(path, caplog)
    for at in range(0, len(whole), 131):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :])
        if (found := read_history(path)) is not None:
            History(Clock()).restore(found)


def test_a_file_that_is_too_large(
    path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_history(path, stored())
    monkeypatch.setattr(history_file, "MAX_BYTES", path.stat().st_size - 1)
    assert refused(path, caplog, "more than")


def test_a_file_that_others_may_write(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_history(path, stored())
    path.chmod(0o620)
    assert refused(path, caplog, "chmod 600")


@pytest.mark.parametrize(
    ("kept", "why"),
    [
        (with_series(key=SeriesKey.published(""), fine=stored().series[0].fine), "a name"),
        (with_series(key=SeriesKey.published("x" * (MAX_NAME + 1))), "a name"),
        (with_series(key=SeriesKey.read("p", "x" * (MAX_NAME + 1))), "a name"),
        (with_series(age=-1), "an age"),
        (with_series(fine=array("f", [float("inf")]) * FINE_SLOTS), "a value"),
        (with_series(coarse=array("f", [-1.0]) * COARSE_SLOTS), "a value"),
        (with_series(key=stored().series[1].key), "twice"),
        (replace(stored(), fine_slots=array("q", [7]) * FINE_SLOTS), "not in its cell"),
        (replace(stored(), coarse_slots=array("q", [7]) * COARSE_SLOTS), "not in its cell"),
    ],
)
def test_what_is_out_of_bounds(path: Path, caplog: pytest.LogCaptureFixture, kept: StoredHistory, why: str) -> None:
    write_history(path, kept)
    assert refused(path, caplog, why)


def test_too_many_series(path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    write_history(path, stored())
    monkeypatch.setattr(history_file, "MAX_SERIES", 2)
    assert refused(path, caplog, "too many")


def test_a_measure_that_is_not_known(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Newer:
        value = "newer"

    series: StoredSeries = replace(stored().series[0], key=SeriesKey(Newer(), "t"))  # type: ignore[arg-type]
    write_history(path, replace(stored(), series=(series,)))
    assert refused(path, caplog, "newer")


def test_names_that_lie_nowhere(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Arrow would read them from memory that is not the file's."""
    write_history(path, stored())
    with pa.ipc.open_file(str(path)) as reader:
        batch, schema = reader.get_batch(0), reader.schema
    offsets = pa.py_buffer(array("i", [0, 9000, 4, 4]).tobytes())
    owners = pa.Array.from_buffers(pa.string(), 3, [None, offsets, pa.py_buffer(b"abcd")])
    with pa.ipc.new_file(str(path), schema) as writer:
        columns = [batch.column(0), owners, *batch.columns[2:]]
        writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))
    path.chmod(0o600)
    assert refused(path, caplog, "ffset")
