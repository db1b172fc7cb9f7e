"""The rows of the transports: as wide as those of a log, and the same for all."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

_ROWS = 65_536
_GENERATOR = np.random.default_rng(7)
BIG = pa.record_batch(
    {
        "id": pa.array(np.arange(_ROWS)),
        "amount": pa.array(_GENERATOR.random(_ROWS)),
        "text": pa.array([f"{number:0100x}" for number in _GENERATOR.integers(0, 2**63, _ROWS)]),
    }
)
SMALL = pa.record_batch({"id": pa.array(np.arange(10))})


def copies(gigabytes: float) -> int:
    """Return how many of :data:`BIG` make so many gigabytes."""
    return max(1, round(gigabytes * 1e9 / BIG.nbytes))
