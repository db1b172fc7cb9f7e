"""Each version of Spark publishes, and each that can reads what all of them have published: exactly, by the oracle.

Each runs in an environment of its own: ``make compat``, or ``make compat COMPAT="3.5 4.3"`` for some. The newest one is
that of all other tests.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from jobpipe import subscribe
from jobpipe.publishing.coordinator_launcher import end_coordinators
from jobpipe.spark.session.local_checkpoint_files import LOCAL_FS
from jobpipe.testing import Checker, Journal, NumberedRows
from tests.bus.kit import MARK, kill, marked
from tests.spark.kinds import VALUES, began
from tests.spark.kit import ROOT, Job, Place, forget_commit, start_program, until, write_files

pytestmark = [pytest.mark.processes, pytest.mark.timeout(1800)]

JOBS = Path(__file__).parent / "jobs"
PYTHONS = {v: ROOT / ".venv" / "compat" / v / "bin" / "python" for v in ("3.5", "4.0", "4.1", "4.2")}
PYTHONS["4.3"] = Path(sys.executable)
ASKED = os.environ.get("COMPAT", "").split()
WANTED = [version for version, python in PYTHONS.items() if version in (ASKED or PYTHONS) and python.exists()]
SUBSCRIBERS = [version for version in WANTED if version != "3.5"]
REGISTRY = """
import sys
from pathlib import Path

from jobpipe_registry.embedded.embedded_zookeeper import EmbeddedZooKeeper, find_jars

zookeeper = EmbeddedZooKeeper(Path(sys.argv[1]))
zookeeper.ensure()
zookeeper.stop()
print(*find_jars().glob("zookeeper-3*.jar"))
"""
BATCHES = 6
KILLED_AT = 2  # the micro-batch after which a program is killed
GROUPS = sorted({began(column) for column in VALUES})


def start(place: Place, version: str, job: str, *arguments: object) -> Job:
    """Start ``jobs/JOB.py`` with a version of Spark."""
    return start_program(place, str(PYTHONS[version]), JOBS / f"{job}.py", *arguments)


def killed(job: Job) -> None:
    """Wait until a program has killed itself."""
    code = job.process.wait(240)
    assert code == -signal.SIGKILL, f"{job.name}: exit {code}\n{job.errors[-4000:]}"


@dataclass
class Published:
    """What a version of Spark has published.

    Attributes:
        topic: where its rows are; the topics of its types begin with the same name.
        rows, journal: what the rows are to be.
        counts: of its last sink.
        types: values by column, by the version in which the type began.
        files: the class for files of checkpoints.
    """

    topic: str
    rows: NumberedRows
    journal: Journal
    counts: dict[str, int]
    types: dict[str, dict[str, list[str]]]
    files: str


@pytest.fixture(scope="module")
def place(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """One namespace. What has been published is served on as long as the module runs."""
    folder = tmp_path_factory.mktemp("compat")
    settings = {
        "jobpipe.home": str(home),
        "jobpipe.registerserver.topic.storage": f"/test-{uuid.uuid4().hex[:12]}/topics",
        "jobpipe.registerserver.session.timeout": "4s",
        "jobpipe.spool.dir": str(folder / "spool"),
        "jobpipe.discovery.timeout": "60s",
        "jobpipe.coordinator.linger": "30min",
    }
    mark = uuid.uuid4().hex
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(MARK, mark)  # every process we start inherits it
        yield Place(folder, settings)
    end_coordinators()
    for process in marked(mark):
        kill(process.pid)


def files_of(place: Place, topic: str) -> tuple[Path, NumberedRows, Journal]:
    """Write the files that a job publishes to a topic; return its folder, its rows, and what is to be sealed."""
    rows, journal = NumberedRows(topic, partitions=2, rows=30), Journal()
    folder = place.folder / topic
    write_files(folder / "files", rows, range(BATCHES))
    for batch_id in range(BATCHES):
        with journal.sealing(batch_id, rows.ranges(batch_id)):
            pass
    return folder, rows, journal


@pytest.fixture(scope="module")
def published(place: Place) -> dict[str, Published]:
    """What each version has published: killed in the middle, before that by tasks, then through the driver."""
    found = {}
    for version in WANTED:
        topic = f"from-{version}"
        folder, rows, journal = files_of(place, topic)
        killed(start(place, version, "publish", folder, topic, KILLED_AT))
        done: dict[str, Any] = start(place, version, "publish", folder, topic, -1).result()
        assert done["spark"].startswith(f"{version}."), done
        found[version] = Published(topic, rows, journal, done["sink"], done["types"], done["files"])
    return found


@pytest.fixture(scope="module")
def written(place: Place) -> dict[str, Published]:
    """What each version has published by ``format("jobpipe")``: killed in the middle, and run again to the end."""
    found = {}
    for version in SUBSCRIBERS:
        topic = f"by-format-{version}"
        folder, rows, journal = files_of(place, topic)
        killed(start(place, version, "write", folder, topic, KILLED_AT))
        checkpoint = folder / f"checkpoint-{topic}"
        planned, committed = (
            max(int(p.name) for p in (checkpoint / log).glob("[0-9]*")) for log in ("offsets", "commits")
        )
        if planned == committed:
            forget_commit(checkpoint, committed)  # as if it had been killed a moment before
        done: dict[str, Any] = start(place, version, "write", folder, topic, -1).result()
        assert done["spark"].startswith(f"{version}."), done
        counts = {"head": done["head"], "repeated": len([n for n in done["batches"] if n == planned])}
        found[version] = Published(topic, rows, journal, counts, done["types"], "")
    return found


def check(published: Published, files: list[Path]) -> None:
    """Check that files hold each row that was published once, in order."""
    checker = Checker(published.rows, published.journal)
    for path in sorted(files):
        table = pq.read_table(path)
        checker.take(table.drop_columns(["_jobpipe"]) if "_jobpipe" in table.column_names else table)
    checker.check()


def test_each_version_is_there() -> None:
    """Those that were asked for must be; if all were, those that are not are named."""
    missing = [version for version in ASKED or PYTHONS if version not in WANTED]
    assert not (ASKED and missing), f"there is no environment with Spark {', '.join(missing)}: make compat"
    if missing:
        pytest.skip(f"there is no environment with Spark {', '.join(missing)}: make compat")


@pytest.mark.parametrize("version", WANTED)
def test_the_embedded_registry_has_the_zookeeper_of_each(version: str, tmp_path: Path) -> None:
    """3.5 has ZooKeeper 3.6, the others 3.9."""
    done = subprocess.run(
        [PYTHONS[version], "-c", REGISTRY, tmp_path],
        capture_output=True,
        text=True,
        timeout=120,
        env={name: value for name, value in os.environ.items() if name not in ("SPARK_HOME", "ZOOKEEPER_HOME")},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert re.search(r"zookeeper-3\.[69]\.\d+\.jar", done.stdout), done.stdout


@pytest.mark.parametrize("version", WANTED)
def test_a_version_publishes(published: dict[str, Published], version: str) -> None:
    """The micro-batch that Spark repeats after a kill is recognised: by query id and batch id."""
    counts = published[version].counts
    assert (counts["replayed"], counts["collect"]) == (1, BATCHES - KILLED_AT - 1), counts
    assert (counts["types by tasks"], counts["types by collect"]) == (1, 1), counts
    known = {f"{major}.{minor}" for major, minor in GROUPS if (major, minor) <= tuple(map(int, version.split(".")))}
    assert published[version].types.keys() == known
    assert (published[version].files == LOCAL_FS) == (version != "3.5"), published[version].files


@pytest.mark.parametrize("version", SUBSCRIBERS)
def test_a_version_publishes_by_format(written: dict[str, Published], version: str) -> None:
    """The micro-batch that Spark repeats after a kill is recognised, and takes no offset."""
    assert written[version].counts == {"head": BATCHES, "repeated": 1}


@pytest.mark.parametrize("version", WANTED)
def test_a_signal_ends_a_job_after_a_whole_micro_batch(place: Place, version: str) -> None:
    """``jobpipe.run`` looks into the JVM of each version, to see where it can end the query."""
    topic, read = f"run-{version}", 0
    job = start(place, version, "run", place.folder, topic)
    with subscribe(topic, name="watcher", starting="earliest", config=place.config()) as batches:
        for batch in batches:
            read += batch.num_rows
            if read >= 20:
                break
    job.process.send_signal(signal.SIGTERM)
    assert job.process.wait(60) == 128 + signal.SIGTERM, job.errors[-4000:]
    assert "stopped by SIGTERM after a whole micro-batch" in job.errors, job.errors[-4000:]


@pytest.mark.parametrize("version", SUBSCRIBERS)
def test_a_version_reads_what_all_publish(
    place: Place, published: dict[str, Published], written: dict[str, Published], version: str
) -> None:
    """By a batch read, and by a stream that ends by itself; types that it does not know are refused by name."""
    everything = [*published.values(), *written.values()]
    topics = [each.topic for each in everything]
    found = start(place, version, "read", place.folder, *topics).result()
    for each in everything:
        check(each, [place.folder / f"read-{version}-{each.topic}.parquet"])
        check(each, list((place.folder / f"now-{version}-{each.topic}").glob("*.parquet")))
        for group, columns in each.types.items():
            got = found[each.topic][group]
            if tuple(map(int, group.split("."))) <= tuple(map(int, version.split("."))):
                assert got == columns, (each.topic, group)
            else:
                assert "UnsupportedType" in got, (each.topic, group, got)
                assert any(re.search(rf"column '{name}\W", got) for name in columns), got


@pytest.mark.parametrize("version", SUBSCRIBERS)
def test_a_killed_subscriber_gets_each_row_once(place: Place, version: str) -> None:
    """Spark repeats its last micro-batch with the same rows, and goes on after it, by another trigger."""
    topic, name = f"live-{version}", f"killed-{version}"
    rows, journal = place.rows(topic, partitions=2, rows=30)
    with place.publisher(topic, parallelism=2) as publisher:
        first = start(place, version, "subscribe", place.folder, topic, name, KILLED_AT)
        files = place.folder / name
        for batch_id in range(KILLED_AT + 1):  # one for each micro-batch
            place.seal(publisher, [batch_id])
            until(lambda at=batch_id: (files / f"{at:05}.parquet").exists() or first.process.poll(), "a micro-batch")
        killed(first)
        place.seal(publisher, range(KILLED_AT + 1, BATCHES))
        start(place, version, "subscribe", place.folder, topic, name, -1).result()
        place.seal(publisher, [BATCHES])
        start(place, version, "subscribe", place.folder, topic, name, -1).result()
        (line,) = publisher.status()["subscriptions"]
        # Before 4.2 such a run is one micro-batch, here first the repeated one, and the next run acknowledges it.
        assert line["position"] == (KILLED_AT if version in ("4.0", "4.1") else BATCHES) + 1
    check(Published(topic, rows, journal, {}, {}, ""), list(files.glob("*.parquet")))
