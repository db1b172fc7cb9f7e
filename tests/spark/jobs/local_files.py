"""Checkpoints with and without our classes: ``local_files.py compared|submitted|bare FOLDER``; its last line is JSON.

``FOLDER/started`` is where the test's ``chmod`` and ``readlink`` say that they were started.
"""

import json
import os
import sys
import time
from pathlib import Path

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from jobpipe.spark.session.job_session import recommended_conf
from jobpipe.spark.session.local_checkpoint_files import FILE_IMPL

BATCHES = 4
FOLDER = Path(sys.argv[2])
STARTED = FOLDER / "started"
HADOOPS = {FILE_IMPL: "org.apache.hadoop.fs.local.LocalFs"}
ROCKSDB = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    )
}


def session(**more):
    conf = {"spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1", "spark.sql.shuffle.partitions": "1"}
    if sys.argv[1] == "compared":
        conf["spark.driver.extraClassPath"] = str(FOLDER / "own")
    if sys.argv[1] != "bare":
        conf |= recommended_conf(checkpoints_local=True)
    conf |= more
    spark = SparkSession.builder.master("local[1]").config(map=conf).getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    return spark


def run(spark, checkpoint, counted=False):
    """Run a query for some micro-batches; return their ids, and which programs were started meanwhile."""
    STARTED.write_text("")
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", "10").load()
    if counted:
        rows = rows.groupBy("value").count()
    done = []
    writer = rows.writeStream.outputMode("update").option("checkpointLocation", (FOLDER / checkpoint).as_uri())
    query = writer.foreachBatch(lambda df, batch_id: (df.collect(), done.append(batch_id))).start()
    while query.isActive and len(done) <= BATCHES:
        time.sleep(0.05)
    query.stop()
    if query.exception() is not None:
        raise query.exception()
    return {"batches": done, "started": [line.split()[0] for line in STARTED.read_text().splitlines()]}


def modes(checkpoint):
    """Return the mode of each file and folder of the first batches."""
    names = [
        f"{log}/{file}" for log in ("offsets", "commits") for n in range(BATCHES) for file in (f"{n}", f".{n}.crc")
    ]
    return {
        name: oct((FOLDER / checkpoint / name).stat().st_mode)
        for name in (".", "metadata", ".metadata.crc", "offsets", "commits", *names)
    }


class Compared:
    """The same calls to Hadoop's file system and to ours."""

    def __init__(self, spark):
        self.jvm = spark._jvm
        self.conf = spark._jsc.hadoopConfiguration()

    def opened(self, made):
        made.initialize(self.jvm.java.net.URI("file:///"), self.conf)
        return made

    def both(self, act):
        """Return what ``act(file system, folder)`` comes to, with each."""
        found = []
        for name, kind in (
            ("hadoop", self.jvm.org.apache.hadoop.fs.RawLocalFileSystem),
            ("ours", self.jvm.jobpipe.hadoop.InProcessRawLocalFileSystem),
        ):
            folder = FOLDER / name
            folder.mkdir(exist_ok=True)
            try:
                found.append(act(self.opened(kind()), folder))
            except Py4JJavaError as error:
                found.append(error.java_exception.getClass().getName())
        return found

    def path(self, path):
        return self.jvm.org.apache.hadoop.fs.Path(str(path))

    def change(self, kind, name, now, wanted):
        def act(fs, folder):
            path = folder / name
            path.mkdir() if kind == "folder" else path.touch()
            path.chmod(now)
            shown = folder / f"{name}-link"
            shown.symlink_to(path)
            permission = self.jvm.org.apache.hadoop.fs.permission.FsPermission(f"{wanted:03o}")
            fs.setPermission(self.path(shown if kind == "link" else path), permission)
            return oct(path.stat().st_mode)

        return self.both(act)

    def missing(self):
        permission = self.jvm.org.apache.hadoop.fs.permission.FsPermission("644")
        return self.both(lambda fs, folder: fs.setPermission(self.path(folder / "missing"), permission))

    def link_status(self, kind):
        def act(fs, folder):
            path = folder / f"status-{kind}"
            if kind == "folder":
                path.mkdir()
            elif kind == "file":
                path.write_text("12345")
            elif kind == "link":
                (folder / "status-target").write_text("123")
                path.symlink_to("status-target")
            elif kind == "dangling":
                path.symlink_to("status-nothing")
            status = fs.getFileLinkStatus(self.path(path))
            link = status.getSymlink().getName() if status.isSymlink() else None
            return [status.isFile(), status.isDirectory(), link, None if kind == "folder" else status.getLen()]

        return self.both(act)


def compare():
    found = {}
    with_ours = session()
    found["class path"] = with_ours._jvm.java.lang.System.getProperty("java.class.path").split(os.pathsep)
    with_ours.stop()
    for name, checkpoint, more in (
        ("hadoop's", "first", HADOOPS),
        ("ours after hadoop's", "first", {}),
        ("ours", "second", {}),
        ("hadoop's after ours", "second", HADOOPS),
    ):
        spark = session(**more)
        found[name] = run(spark, checkpoint)
        found[name]["modes"] = modes(checkpoint)
        spark.stop()
    spark = session(**ROCKSDB)
    found["rocksdb"] = run(spark, "third", counted=True)
    compared = Compared(spark)
    found["same"] = {
        "file": compared.change("file", "plain", 0o600, 0o644),
        "nothing": compared.change("file", "closed", 0o644, 0o000),
        "name": compared.change("file", "größe mit Leerzeichen", 0o600, 0o751),
        "link": compared.change("link", "target", 0o600, 0o640),
        "folder": compared.change("folder", "folder", 0o700, 0o755),
        "setuid file": compared.change("file", "setuid", 0o4755, 0o644),
        "setgid folder": compared.change("folder", "setgid", 0o2770, 0o755),
        "sticky": compared.change("folder", "sticky", 0o755, 0o1777),
        "missing": compared.missing(),
        **{f"status of {kind}": compared.link_status(kind) for kind in ("file", "folder", "link", "dangling", "none")},
    }
    STARTED.write_text("")
    fs = compared.opened(spark._jvm.jobpipe.hadoop.InProcessLocalFileSystem())
    fs.create(compared.path(FOLDER / "written")).close()
    found["file.impl"] = [STARTED.read_text(), *(oct((FOLDER / n).stat().st_mode) for n in ("written", ".written.crc"))]
    spark.stop()
    return found


def submitted():
    spark = session()
    names = (FILE_IMPL, "spark.sql.streaming.checkpointFileManagerClass")
    conf = {name: spark.sparkContext.getConf().get(name) for name in names}
    return {**run(spark, "submitted"), "conf": conf}


def bare():
    try:
        return run(session(), "bare")
    except Exception as error:
        return str(error)


os.umask(0o077)  # what Hadoop does not set itself is seen
print(json.dumps({"compared": compare, "submitted": submitted, "bare": bare}[sys.argv[1]]()))
