"""The sink's partitioners: which of the topic's partitions each row goes to.

``hash``, ``fixed`` and ``round-robin`` are Spark expressions. To add one, Spark must analyse and plan the rows again,
which costs more than all else that the sink does with a small batch. So hashes of small batches are computed in the
driver, by :mod:`jobpipe.arrow.hash_partitioner`, with the same result. A user's own function is called where the rows
are
written: in the driver, or in the executors' tasks.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.serializers import CloudPickleSerializer
from pyspark.sql import DataFrame
from pyspark.sql.types import StringType, StructType

from jobpipe.arrow.hash_partitioner import PartitionFunction, checked_numbers, described_hash, hash_numbers, is_hashable
from jobpipe.errors import ConfigError
from jobpipe.spark.session.spark_versions import is_collated

NUMBER = "__jobpipe_partition"  # known by its place: a column of the user's own may have this name
ROW_BITS = 33  # monotonically_increasing_id() has the row's number within its task in these, and the task above


@dataclass(frozen=True)
class Partitioner:
    """How rows are divided. Travels to tasks.

    Attributes:
        kind: ``hash``, ``fixed``, ``round-robin`` or ``function``.
        columns: What ``hash`` hashes.
        function: The user's own.
    """

    kind: str
    columns: tuple[str, ...] = ()
    function: PartitionFunction | None = None

    @classmethod
    def choose(
        cls, topic: str, partitioner: str | PartitionFunction | None, partition_by: Sequence[str] | str | None
    ) -> Partitioner:
        """Return what the sink's two arguments ask for; each by itself is as its definition says.

        Raises:
            ConfigError: they do not fit each other; the function takes other arguments, or cannot be sent to the
                executors.
        """
        columns = (partition_by,) if isinstance(partition_by, str) else tuple(partition_by or ())
        if partitioner is None:
            return cls("hash", columns) if columns else cls("fixed")
        if callable(partitioner):
            chosen = cls("function", function=partitioner)
            _check_function(topic, chosen, partitioner)
        else:
            chosen = cls(partitioner, columns if partitioner == "hash" else ())
        if columns and chosen.kind != "hash":
            raise ConfigError(
                f"topic {topic!r}: partition_by={', '.join(columns)} is for partitioner='hash', and the partitioner is "
                f"{chosen}: leave one of the two out",
                topic=topic,
                key="partition_by",
            )
        if chosen.kind == "hash" and not columns:
            raise ConfigError(
                f"topic {topic!r}: partitioner='hash' needs partition_by, the columns to hash, such as ['customer']",
                topic=topic,
                key="partition_by",
            )
        return chosen

    def __str__(self) -> str:
        """Return what the spool keeps of it: batches that were divided in another way are not planned together."""
        if self.kind == "hash":
            return described_hash(self.columns)
        if self.function is None:
            return self.kind
        named: Any = self.function if hasattr(self.function, "__qualname__") else type(self.function)
        return f"function {named.__module__}.{named.__qualname__}"

    def places(self, names: Sequence[str], *, case_sensitive: bool) -> tuple[int, ...]:
        """Return where the columns that ``hash`` hashes are among ``names``, found as Spark finds them.

        A column of exactly that name comes first, where Spark's own answer would be that others have it too.

        Raises:
            LookupError: the argument is the list of columns that do not exist, or that are several.
        """
        found, missing = [], []
        for wanted in self.columns:
            same = [at for at, name in enumerate(names) if name == wanted]
            if not same and not case_sensitive:
                same = [at for at, name in enumerate(names) if name.lower() == wanted.lower()]
            found += same
            if len(same) != 1:
                missing.append(wanted)
        if missing:
            raise LookupError(missing)
        return tuple(found)

    def hashes_here(self, schema: StructType, arrow: pa.Schema, places: Sequence[int]) -> bool:
        """Tell whether :meth:`numbers` can hash rows of a schema, and of its Arrow form, as Spark would.

        Spark hashes a string with a collation by its sort key, which is not known here.
        """
        if self.kind != "hash":
            return False
        kinds = [schema.fields[at].dataType for at in places]
        collated = any(isinstance(kind, StringType) and is_collated(kind) for kind in kinds)
        return not collated and all(is_hashable(arrow.field(at).type) for at in places)

    def number_rows(self, df: DataFrame, partitions: int, batch_id: int, places: Sequence[int]) -> DataFrame:
        """Let Spark add the partition number of each row as last column.

        With one partition none is needed, and with a function :meth:`numbers` gives them.

        Args:
            places: as :meth:`places` says. If two names differ only by case, the columns lose their names.
        """
        if partitions == 1 or self.function is not None:
            return df
        if places and len({name.lower() for name in df.columns}) < len(df.columns):
            df = unnamed(df)
        hashed = [f"`{df.columns[at].replace('`', '``')}`" for at in places]  # a dot is no path
        number = self._number(hashed, partitions, batch_id)
        return df.selectExpr("*", f"CAST(pmod({number}, {partitions}) AS INT) AS {NUMBER}")

    def _number(self, hashed: Sequence[str], partitions: int, batch_id: int) -> str:
        if self.kind == "hash":  # Murmur3 with seed 42, the same in every version of Spark
            return f"hash({', '.join(hashed)})"
        if self.kind == "fixed":
            return "spark_partition_id()"
        # Tasks, and batches, of few rows would all begin with partition 0: each begins one further.
        row = f"(monotonically_increasing_id() & {(1 << ROW_BITS) - 1})"
        return f"{row} + spark_partition_id() + {batch_id % partitions}"

    def numbers(self, batch: pa.RecordBatch, partitions: int, where: str, places: Sequence[int] = ()) -> pa.Int32Array:
        """Return the partition of each row: what the user's function says, once it is found to be right, or the hash.

        Args:
            batch: the rows; for ``hash`` as Spark has them.
            partitions: their number.
            where: the topic, for errors.
            places: of the columns to hash, which :meth:`hashes_here` has allowed.

        Raises:
            ConfigError: the function raised, or did not give one number of 0..partitions-1 for each row.
        """
        if self.function is None:
            return hash_numbers(batch, places, partitions)
        return checked_numbers(self.function, batch, partitions, where=where, called=str(self))


def unnamed(df: DataFrame) -> DataFrame:
    """Return the rows with columns that are called by their places."""
    return df.toDF(*(f"c{at}" for at in range(len(df.columns))))


def _check_function(topic: str, chosen: Partitioner, function: PartitionFunction) -> None:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # of a builtin, which does not tell
        signature = None
    if signature is not None:
        try:
            signature.bind(None, 1)
        except TypeError as error:
            raise ConfigError(
                f"topic {topic!r}: partitioner={chosen} cannot be called with a pyarrow.RecordBatch and the number of "
                f"partitions: {error}",
                topic=topic,
                key="partitioner",
            ) from error
    try:
        CloudPickleSerializer().dumps(function)  # type: ignore[no-untyped-call]  # as Spark will
    except Exception as error:
        raise ConfigError(
            f"topic {topic!r}: partitioner={chosen} cannot be sent to the executors: {error}",
            topic=topic,
            key="partitioner",
        ) from error
