"""Whether a process lives: only where its id means something."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from jobpipe_registry.host import process_identity
from jobpipe_registry.host.process_identity import PidScope, lives, start_ticks
from jobpipe_registry.topic_records import OwnerRecord

HERE = PidScope.here()
STARTED = psutil.Process().create_time()
TICKS = start_ticks(os.getpid())


@pytest.fixture
def dead() -> tuple[int, float, int]:
    """Pid and start times of a process that has ended."""
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    known = child.pid, psutil.Process(child.pid).create_time(), start_ticks(child.pid)
    child.communicate(b"\n", 10)
    return known


@pytest.mark.processes
def test_in_the_same_place(dead: tuple[int, float, int]) -> None:
    assert HERE.is_certain
    assert lives(os.getpid(), STARTED, TICKS, HERE) is True
    assert lives(*dead, HERE) is False
    assert lives(os.getpid(), STARTED - 60, TICKS - 6000, HERE) is False  # the pid was given away again


@pytest.mark.processes
@pytest.mark.parametrize(
    "place",
    [
        replace(HERE, host="another"),
        replace(HERE, boot="another"),
        replace(HERE, pid_namespace=HERE.pid_namespace + 1),
        replace(HERE, boot="", pid_namespace=0),
    ],
)
def test_elsewhere_nobody_knows(place: PidScope, dead: tuple[int, float, int]) -> None:
    """R3: containers with one host name have pids of their own."""
    assert lives(*dead, place) is None
    assert lives(os.getpid(), STARTED, TICKS, place) is None


@pytest.mark.processes
def test_without_boot_id_nothing_is_certain(
    dead: tuple[int, float, int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """R3: as on macOS; two places that are equally unknown are not the same one."""
    monkeypatch.setattr(process_identity, "BOOT_ID", tmp_path / "missing")
    assert lives(*dead, PidScope.here()) is None


def test_a_clock_that_is_set_kills_nobody() -> None:
    """R3: start times in seconds since 1970 move with the clock, ticks since the boot do not."""
    assert lives(os.getpid(), STARTED - 3600, TICKS, HERE) is True
    assert lives(os.getpid(), STARTED, 0, HERE) is True


def test_a_process_that_is_hidden_may_live(monkeypatch: pytest.MonkeyPatch) -> None:
    """R3: with hidepid /proc does not show the processes of other users."""

    def hidden(pid: int) -> psutil.Process:
        raise psutil.NoSuchProcess(pid)

    monkeypatch.setattr(process_identity.psutil, "Process", hidden)
    assert lives(os.getpid(), STARTED, TICKS, HERE) is None


def test_a_record_of_an_earlier_version_has_no_place() -> None:
    """R3: it is read, and nothing follows from its pid."""
    old = b'{"version":1,"host":"h","pid":1,"started":1.0,"endpoint":"h:1","epoch":1,"instance":"a","name":"n"}'
    record = OwnerRecord.from_bytes(old)
    assert (record.boot, record.pid_namespace, record.ticks) == ("", 0, 0)
    assert not record.place.is_certain
    assert OwnerRecord.from_bytes(record.to_bytes()) == record
