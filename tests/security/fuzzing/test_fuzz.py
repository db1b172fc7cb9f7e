"""Short runs of the fuzzers (cases 33, 63, 65); :mod:`tests.security.fuzzing.fuzz` runs longer ones."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time

import pytest

from jobpipe.wire.frames import GREETING_LIMIT
from tests.bus.kit import ROOT
from tests.security.fuzzing.fuzz import corpus, fuzz
from tests.security.fuzzing.mutate import Mutator, seeds
from tests.security.fuzzing.segments import segment, table
from tests.security.fuzzing.targets import TARGETS, frames

INPUTS = 256
SECONDS = 2.0
SEED = int(os.environ.get("JOBPIPE_SEED", random.randrange(2**32)))


def run(target: str, inputs: int, stop: float = float("inf")) -> int:
    """Fuzz a target, and say how to draw the same again."""
    print(f"JOBPIPE_SEED={SEED}")
    return fuzz(target, inputs, SEED, stop=stop)


@pytest.mark.parametrize("target", TARGETS)
def test_what_was_found_is_not_found_again(target: str) -> None:
    for data in corpus(target) + seeds(target):
        TARGETS[target](data)


@pytest.mark.parametrize("target", TARGETS)
def test_bytes_of_strangers_raise_documented_errors_only(target: str) -> None:
    """A few inputs, of which most differ."""
    assert run(target, INPUTS) == INPUTS
    drawn = Mutator(target, SEED, corpus(target))
    assert len({drawn.draw() for _ in range(INPUTS)}) > INPUTS // 3


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
def test_bytes_of_strangers_for_two_seconds(target: str) -> None:
    """More than in the quick test."""
    assert run(target, 10**9, time.monotonic() + SECONDS) > INPUTS


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("mode", ["wire", "signed", "sealed"])
def test_damaged_segments_are_refused_or_right(mode: str) -> None:
    """In a process of its own, which must not crash."""
    print(f"JOBPIPE_SEED={SEED}")
    done = subprocess.run(
        [sys.executable, "-m", "tests.security.fuzzing.segments", mode, "--mutants", "500", "--seed", str(SEED)],
        cwd=ROOT,
        capture_output=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    outcomes = json.loads(done.stdout)
    print(outcomes)
    assert sum(outcomes.values()) == 500
    assert "WRONG ROWS" not in outcomes
    documented = {"ChecksumMismatch", "RemoteProtocolError", "FrameTooLarge", "LinkBroken", "SegmentCorrupt"}
    assert set(outcomes) <= documented | {"right"} | ({"valid rows"} if mode != "wire" else set())


def test_the_fuzzers_can_find_something(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    """A limit that is not kept would show."""
    monkeypatch.setattr("tests.security.fuzzing.fuzz.CORPUS", tmp_path)
    monkeypatch.setattr("jobpipe.wire.codec.MAX_ID", 2**64)
    monkeypatch.setattr("jobpipe.wire.codec._Body.role", lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        fuzz("frames", 20_000, SEED)
    assert len(corpus("frames")) == 1
    with pytest.raises(ZeroDivisionError):
        frames(corpus("frames")[0])


def test_samples_are_small_enough_to_be_read_before_the_greeting() -> None:
    """Else the fuzzers would stop at the first limit."""
    assert all(len(data) < GREETING_LIMIT for data in seeds("frames"))
    assert all(len(segment(table(1), codec)[0]) < 64 * 1024 for codec in ("none", "lz4", "zstd"))
