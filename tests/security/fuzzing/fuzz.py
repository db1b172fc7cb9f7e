"""Fuzzes a target: ``python -m tests.security.fuzzing.fuzz TARGET --inputs 1000000 --seed 1 [--atheris]``.

With ``--atheris`` (``pip install atheris``) coverage leads, without it :mod:`tests.security.fuzzing.mutate` draws. What
it finds goes to ``tests/security/fuzzing/corpus/TARGET/``, which the tests try again for ever.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import time
from pathlib import Path

CORPUS = Path(__file__).with_name("corpus")


def corpus(target: str) -> list[bytes]:
    """Return the inputs of a target that once found something, or lead to rare places."""
    return [path.read_bytes() for path in sorted((CORPUS / target).glob("*")) if path.is_file()]


def keep(target: str, data: bytes) -> Path:
    """Write a finding into the corpus."""
    path = CORPUS / target / hashlib.sha256(data).hexdigest()[:16]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def fuzz(target: str, inputs: int, seed: int, *, stop: float = float("inf")) -> int:
    """Try so many inputs, or as many as come before the time ``stop``; return how many that were.

    Raises:
        Exception: what the target must not raise; the input is in the corpus then.
    """
    from tests.security.fuzzing.mutate import Mutator
    from tests.security.fuzzing.targets import TARGETS

    run, mutator = TARGETS[target], Mutator(target, seed, corpus(target))
    for number in range(inputs):
        data = mutator.draw()
        try:
            run(data)
        except BaseException:
            print(f"{target}: input {number} of seed {seed} is in {keep(target, data)}")
            raise
        if number % 256 == 255 and time.monotonic() > stop:
            return number + 1
    return inputs


def with_atheris(target: str, inputs: int, seed: int) -> None:
    """Let libFuzzer lead; it ends the process."""
    import atheris  # not among our dependencies: it has wheels for some platforms only

    with atheris.instrument_imports(
        include=["jobpipe.wire", "jobpipe.store.spool.segment_index", "jobpipe_registry", "jobpipe.subscribing"]
    ):
        from tests.security.fuzzing.mutate import seeds
        from tests.security.fuzzing.targets import TARGETS
    start = CORPUS / target
    start.mkdir(parents=True, exist_ok=True)
    for data in seeds(target):
        keep(target, data)
    atheris.Setup([sys.argv[0], f"-runs={inputs}", f"-seed={seed}", "-max_len=4096", str(start)], TARGETS[target])
    atheris.Fuzz()


def main() -> None:
    """Run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target")
    parser.add_argument("--inputs", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--atheris", action="store_true")
    given = parser.parse_args()
    if given.atheris:
        with_atheris(given.target, given.inputs, given.seed)
        return
    began = time.monotonic()
    done = fuzz(given.target, given.inputs, given.seed)
    print(f"{given.target}: {done} inputs of seed {given.seed} in {time.monotonic() - began:.0f} s, nothing found")


if __name__ == "__main__":
    main()
