"""What an explorer has done and found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass
class Found:
    """The sum of many runs.

    Attributes:
        steps: places at which an explorer could have acted.
        faults: cancellations, failed calls, take-overs.
        rows: that arrived, and were judged.
        failures: by seed, what did not hold, with the case that shows it again.
    """

    steps: int = 0
    faults: int = 0
    rows: int = 0
    failures: dict[int, str] = field(default_factory=dict)


def run_seeds(
    name: str, seeds: int, first: int, say: Callable[[str], object], run: Callable[[int, Found], None]
) -> Found:
    """Run a seed after the other; ``run`` adds to what was found, and raises AssertionError for what does not hold."""
    found = Found()
    for seed in range(first, first + seeds):
        try:
            run(seed, found)
        except AssertionError as error:
            found.failures[seed] = str(error)
            say(f"{name}: seed {seed}: {error}")
            say(f"  again: python -m tests.explore {name} --case '{str(error).partition(': ')[0]}'")
    return found


def run_again(run: Callable[[], object]) -> str | None:
    """Run one case; return what does not hold."""
    try:
        run()
    except AssertionError as error:
        return str(error)
    return None
