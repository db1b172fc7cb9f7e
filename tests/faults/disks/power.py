"""What a power loss leaves of a spool: the system calls of a publisher are recorded, and played up to some moment.

``python -m tests.faults.disks.power FOLDER BATCHES fsync`` is the publisher: one thread, so that strace's log has one
order. It says on standard output, after each seal and acknowledgement, what may never be lost from now on.

Played strictly: a byte counts from the fsync of its file on, a name from the fsync of its directory on, all else is
gone. Played kindly, each write that was not forced yet may have reached the disk or not, and a name has.
Not covered: blocks torn in the middle, a disk that lies about fsync, and the order of a write and a later one to the
same bytes.
"""

from __future__ import annotations

import random
import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from jobpipe.errors import SpoolError
from jobpipe.store.log.retention import Retention
from jobpipe.store.log.topic_log import TopicLog

TRACED = "openat,open,creat,write,pwrite64,writev,pwritev,fsync,fdatasync,ftruncate,fallocate,rename,unlink,mkdir,link"
CALL = re.compile(r"^(\w+)\((.*)\)\s+= (-?\d+)", re.DOTALL)
SAID = "SAID "


@dataclass
class File:
    """One inode: what a reader of the page cache sees, what is on the disk, and what lies between the two."""

    cached: bytearray = field(default_factory=bytearray)
    disk: bytearray = field(default_factory=bytearray)
    pending: list[tuple[int, bytes | None]] = field(default_factory=list)  # (offset, data), or (length, None)

    def write(self, offset: int, data: bytes) -> None:
        self.pending.append((offset, data))
        apply(self.cached, offset, data)

    def truncate(self, length: int) -> None:
        self.pending.append((length, None))
        apply(self.cached, length, None)

    def sync(self) -> None:
        for offset, data in self.pending:
            apply(self.disk, offset, data)
        self.pending.clear()

    def fail_to_sync(self) -> None:
        """As the kernel does: what was written counts as clean from now on, though it never reached the disk."""
        self.pending = [(length, None) for length, data in self.pending if data is None]


def apply(content: bytearray, offset: int, data: bytes | None) -> None:
    """Change a file's content as a write, or a change of its length, does."""
    end = offset if data is None else offset + len(data)
    if len(content) < end:
        content.extend(bytes(end - len(content)))
    if data is None:
        del content[offset:]
    else:
        content[offset:end] = data


class Disk:
    """A file system that forgets what was not forced, below one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)
        self.said: list[str] = []
        self._names: dict[str, File | None] = {}  # None: a directory
        self._durable: dict[str, File | None] = {}

    def play(self, line: str) -> None:
        """Take one line of strace's log (``-y -xx -s`` large)."""
        match = CALL.match(line)
        if match is None:
            return
        call, text, result = match[1], match[2], int(match[3])
        failed = result < 0
        if failed and call not in ("fsync", "fdatasync"):
            return
        strings = [unescape(found) for found in re.findall(r'"((?:\\x[0-9a-f]{2})*)"', text)]
        path = re.match(r"\d+<([^>]*)>", text)
        target = unescape(path[1]).decode() if path and path[1].startswith("\\x") else path[1] if path else ""
        if call == "write" and text.startswith("1<"):
            self.said += strings[0].decode().splitlines()
        elif call in ("open", "openat", "creat", "mkdir", "rename", "unlink", "link"):
            self._named(call, text, [string.decode() for string in strings if string.startswith(b"/")])
        elif failed and (file := self._names.get(target)) is not None:
            file.fail_to_sync()
        elif target.startswith(self.folder):
            self._filed(call, target, text, strings, result)

    def _named(self, call: str, text: str, paths: list[str]) -> None:
        if not paths or not paths[0].startswith(self.folder):
            return
        if call == "mkdir":
            self._names[paths[0]] = None
        elif call == "rename":
            self._names[paths[1]] = self._names.pop(paths[0])
        elif call == "unlink":
            self._names.pop(paths[0], None)
        elif call == "link":
            raise NotImplementedError(text)
        elif "O_CREAT" in text or call == "creat":
            self._names.setdefault(paths[0], File())
            assert "O_TRUNC" not in text, text

    def _filed(self, call: str, target: str, text: str, strings: list[bytes], result: int) -> None:
        numbers = [int(part) for part in re.findall(r", (\d+)(?=,|$)", text)]
        file = self._names.get(target)
        if call in ("fsync", "fdatasync") and file is None:
            inside = {name: held for name, held in self._names.items() if str(Path(name).parent) == target}
            for name in [name for name in self._durable if str(Path(name).parent) == target]:
                del self._durable[name]
            self._durable.update(inside)
        elif file is None or target.endswith("-shm"):  # the index of the write-ahead log is made anew after a crash
            return
        elif call in ("fsync", "fdatasync"):
            file.sync()
        elif call == "write":
            file.write(len(file.cached), strings[0][:result])  # all of ours write from front to back
        elif call == "pwrite64":
            file.write(numbers[-1], strings[0][:result])
        elif call == "ftruncate":
            file.truncate(numbers[-1])
        elif call == "fallocate":
            file.truncate(max(len(file.cached), numbers[-1] + numbers[-2]))
        else:
            raise NotImplementedError(text[:200])

    def crash(self, folder: Path, kindly: random.Random | None) -> None:
        """Write what is left into another folder."""
        names = self._durable if kindly is None else self._names
        for name, file in sorted(names.items(), key=lambda item: item[0]):
            place = folder / Path(name).relative_to(self.folder)
            if file is None:
                place.mkdir(parents=True, exist_ok=True)
            elif place.parent.is_dir() and not name.endswith("-shm"):
                content = bytearray(file.disk)
                for offset, data in file.pending if kindly else []:
                    if kindly is not None and kindly.random() < 0.5:
                        apply(content, offset, data)
                place.write_bytes(content)


def unescape(text: str) -> bytes:
    """Return the bytes of a string that strace printed with ``-xx``."""
    return bytes.fromhex(text.replace("\\x", ""))


def publish(folder: Path, batches: int, *, fsync: bool) -> None:
    """Seal batches, large and small by turns, acknowledge, and remove; say what is promised."""
    from tests.store.build import TOPIC, seal

    def insist(work: Callable[[], object]) -> None:
        """Do it as a coordinator does: after a commit of unknown outcome, once more with the catalog opened again."""
        for _ in range(20):
            try:
                if broken:
                    log.reopen()
                    broken.clear()
                work()
                return
            except SpoolError as error:
                if not error.fields.get("reopen"):
                    raise
                broken.append(error)
        raise AssertionError("the disk never gets well")

    broken: list[SpoolError] = []
    log = TopicLog.open(folder / TOPIC, TOPIC, fsync=True)
    log.take_over(log.epoch + 1, "power")
    log.subscriptions.subscribe("s")
    grant = log.subscriptions.grant("s", {})
    log.subscriptions.first_position("s", log.batches.tail())
    print(f"{SAID}open 0", flush=True)
    for number in range(batches):
        insist(
            lambda number=number: seal(
                log, number, [[50, 50], [50]], inline=number % 2 == 1, run=str(time.monotonic()), fsync=fsync
            )
        )
        print(f"{SAID}sealed {number + 1}", flush=True)
        if number % 3 == 2:
            log.subscriptions.acknowledge("s", grant, log.batches.at(number))
            insist(log.subscriptions.flush)
            print(f"{SAID}acknowledged {number}", flush=True)
            insist(lambda: log.cleaner.retain(Retention(time=0, bytes=0, ack_grace=0, subscription_expiry=1e9)))
    log.close()


if __name__ == "__main__":
    publish(Path(sys.argv[1]), int(sys.argv[2]), fsync=sys.argv[3] == "fsync")
