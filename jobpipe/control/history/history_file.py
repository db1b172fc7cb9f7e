"""The file of the history: one Arrow IPC file, which has each ring as it is in memory."""

from __future__ import annotations

import logging
import os
import stat
from array import array
from collections.abc import Iterable, Iterator, Sequence
from io import BytesIO
from pathlib import Path
from typing import Annotated, Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import BaseModel, ConfigDict, Field

from jobpipe.control.history.history import (
    COARSE_SLOTS,
    FINE_SLOTS,
    MAX_SERIES,
    NEVER,
    StoredHistory,
    StoredSeries,
)
from jobpipe.control.history.series import Measure, SeriesKey
from jobpipe_registry.host.local_files import write_whole

MAX_BYTES = 64 * 1024 * 1024
MAX_NAME = 1000

_BATCH = 500  # series
_METADATA = b"jobpipe.history"
_FIELDS: dict[str, pa.DataType] = {
    "measure": pa.string(),
    "owner": pa.string(),
    "name": pa.string(),
    "age": pa.int32(),
    "fine": pa.list_(pa.field("item", pa.float32(), nullable=False), FINE_SLOTS),
    "coarse": pa.list_(pa.field("item", pa.float32(), nullable=False), COARSE_SLOTS),
}
_SCHEMA = pa.schema([pa.field(name, kind, nullable=False) for name, kind in _FIELDS.items()])

log = logging.getLogger(__name__)

_Slot = Annotated[int, Field(ge=NEVER, lt=2**62)]


class _Slots(BaseModel):
    """The metadata of the file: which slot each cell has."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    version: Literal[1] = 1
    fine: tuple[_Slot, ...] = Field(min_length=FINE_SLOTS, max_length=FINE_SLOTS)
    coarse: tuple[_Slot, ...] = Field(min_length=COARSE_SLOTS, max_length=COARSE_SLOTS)


class DamagedHistory(ValueError):
    """The file is not what this program writes."""


def write_history(path: Path, stored: StoredHistory) -> None:
    """Replace the file.

    Raises:
        OSError: it cannot be written; the one before is still there.
    """
    slots = _Slots(fine=tuple(stored.fine_slots), coarse=tuple(stored.coarse_slots))
    schema = _SCHEMA.with_metadata({_METADATA: slots.model_dump_json().encode()})
    sink = BytesIO()
    with pa.ipc.new_file(sink, schema) as writer:
        for start in range(0, len(stored.series), _BATCH):
            writer.write_batch(_batch(stored.series[start : start + _BATCH], schema))
    write_whole(path, sink.getvalue())


def read_history(path: Path) -> StoredHistory | None:
    """Return what the file has; None if there is none. One that cannot be used is none, too, and a warning says why."""
    try:
        return _read(_content(path))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, pa.ArrowException) as error:
        log.warning("%s cannot be used, so the plots begin again: %s", path, str(error).partition("\n")[0])
        return None


def _batch(series: Sequence[StoredSeries], schema: pa.Schema) -> pa.RecordBatch:
    columns: list[pa.Array[Any]] = [
        pa.array([each.key.measure.value for each in series], pa.string()),
        pa.array([each.key.owner for each in series], pa.string()),
        pa.array([each.key.name for each in series], pa.string()),
        pa.array([each.age for each in series], pa.int32()),
        _rings((each.fine for each in series), _FIELDS["fine"], FINE_SLOTS),
        _rings((each.coarse for each in series), _FIELDS["coarse"], COARSE_SLOTS),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _rings(rings: Iterable[array[float]], kind: pa.DataType, slots: int) -> pa.Array[Any]:
    content = b"".join(each.tobytes() for each in rings)
    values = pa.Array.from_buffers(pa.float32(), len(content) // 4, [None, pa.py_buffer(content)])
    return pa.Array.from_buffers(kind, len(values) // slots, [None], children=[values])


def _content(path: Path) -> bytes:
    with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
        found = os.fstat(file.fileno())
        ours = stat.S_ISREG(found.st_mode) and found.st_uid in (os.geteuid(), 0)
        if not ours or stat.S_IMODE(found.st_mode) & 0o022:
            raise DamagedHistory("expected a file of this user that no other user may write (chmod 600)")
        if found.st_size > MAX_BYTES:
            raise DamagedHistory(f"it has {found.st_size} bytes, more than {MAX_BYTES}")
        return file.read(MAX_BYTES)


def _read(content: bytes) -> StoredHistory:
    with pa.ipc.open_file(pa.py_buffer(content)) as reader:
        metadata = reader.schema.metadata or {}
        if not reader.schema.equals(_SCHEMA) or _METADATA not in metadata:
            raise DamagedHistory("it is not a history")
        if reader.num_record_batches > MAX_SERIES:
            raise DamagedHistory(f"it has {reader.num_record_batches} parts")
        slots = _Slots.model_validate_json(metadata[_METADATA])
        series: dict[SeriesKey, StoredSeries] = {}
        for number in range(reader.num_record_batches):
            for each in _series(reader.get_batch(number)):
                if each.key in series or len(series) >= MAX_SERIES:
                    raise DamagedHistory("it has a series twice, or too many")
                series[each.key] = each
    return StoredHistory(_checked_slots(slots.fine), _checked_slots(slots.coarse), tuple(series.values()))


def _checked_slots(slots: Iterable[int]) -> array[int]:
    made = array("q", slots)
    if any(slot != NEVER and slot % len(made) != cell for cell, slot in enumerate(made)):
        raise DamagedHistory("a slot is not in its cell")
    return made


def _series(batch: pa.RecordBatch) -> Iterator[StoredSeries]:
    batch.validate(full=True)  # offsets that point nowhere would end this process
    if batch.num_rows > MAX_SERIES or any(column.null_count for column in batch.columns):
        raise DamagedHistory("it has too many series, or lacks some values")
    columns: list[list[Any]] = [column.to_pylist() for column in batch.columns[:4]]
    rings = zip(_arrays(batch.column("fine"), FINE_SLOTS), _arrays(batch.column("coarse"), COARSE_SLOTS), strict=True)
    for measure, owner, name, age, (fine, coarse) in zip(*columns, rings, strict=True):
        if not 0 < len(owner) <= MAX_NAME or len(name) > MAX_NAME or age < 0:
            raise DamagedHistory("a name or an age is out of bounds")
        yield StoredSeries(SeriesKey(Measure(measure), owner, name), age, fine, coarse)


def _arrays(column: pa.Array[Any], slots: int) -> Iterator[array[float]]:
    values: pa.Array[Any] = pc.list_flatten(column)
    if values.null_count or len(values) != len(column) * slots:
        raise DamagedHistory("a ring lacks some values")
    wrong = pc.or_(pc.is_inf(values), pc.less(values, pa.scalar(0.0, pa.float32())))  # what is not a number is a gap
    if pc.any(wrong).as_py():
        raise DamagedHistory("a value is out of bounds")
    start = values.offset * 4
    content = memoryview(values.buffers()[1] or b"")[start : start + len(values) * 4]
    for at in range(0, len(content), slots * 4):
        made = array("f")
        made.frombytes(content[at : at + slots * 4])
        yield made
