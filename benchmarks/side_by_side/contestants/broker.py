"""An Apache Kafka broker of one run: KRaft, loopback, ports and data folder of its own; and its jars.

The jars come from Maven Central by the two poms in ``kafka_jars/``, into an ignored folder, once.
"""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.side_by_side.processes import Processes, RunFailed
from jobpipe_registry.embedded.embedded_zookeeper import find_java

POMS = Path(__file__).parents[1] / "kafka_jars"
START_SECONDS = 60.0
FETCH_SECONDS = 900.0
HEAP = "1g"  # Kafka's own default
MESSAGE_MAX = 16 * 1024 * 1024

# What is not said here is Kafka's default. So it does not fsync a message before it acknowledges it: Kafka relies on
# replicas for that, and one broker has none.
PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
log.dirs={data}
auto.create.topics.enable=false
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
message.max.bytes={message_max}
"""


def fetch_jars(cache: Path) -> None:
    """Fetch the jars that are not there yet, by Maven.

    Raises:
        RunFailed: Maven is missing, or finds them not; with what it says.
    """
    for part in ("broker", "connector"):
        pom, folder = POMS / f"{part}.xml", cache / part
        stamp = folder / pom.name
        if stamp.exists() and stamp.read_bytes() == pom.read_bytes():
            continue
        for old in folder.glob("*.jar"):
            old.unlink()
        command = ["mvn", "--batch-mode", "--quiet", "--file", str(pom), "dependency:copy-dependencies"]
        command += ["-DincludeScope=runtime", f"-DoutputDirectory={folder.absolute()}"]
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=FETCH_SECONDS, check=False
            )
        except FileNotFoundError:
            raise RunFailed("the jars of Kafka come by Maven, and there is no program mvn: install it") from None
        if done.returncode:
            raise RunFailed(f"Maven does not fetch what {pom} names: {(done.stdout + done.stderr)[-2000:]}")
        stamp.write_bytes(pom.read_bytes())


@contextmanager
def broker(run: Processes, cache: Path) -> Iterator[str]:
    """Run a broker; yield its address. It ends with the run.

    Raises:
        RunFailed: the jars are missing, or it does not answer in time.
    """
    jars = cache / "broker"
    if not (jars / "broker.xml").exists():
        raise RunFailed(f"no jars of Kafka in {jars}: make bench-kafka fetches them")
    port, controller = _free_ports(2)
    settings = run.folder / "broker.properties"
    data = run.folder / "broker-data"
    settings.write_text(PROPERTIES.format(port=port, controller=controller, data=data, message_max=MESSAGE_MAX))
    java = [find_java(), "-cp", f"{jars}/*", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]
    form = [*java, "kafka.tools.StorageTool", "format", "-t", "AAAAAAAAAAAAAAAAAAAAAQ", "-c", str(settings)]
    done = subprocess.run(form, capture_output=True, text=True, timeout=START_SECONDS, check=False)
    if done.returncode:
        raise RunFailed(f"the broker's folder cannot be formatted: {done.stdout}{done.stderr}")
    server = [*java, f"-Xmx{HEAP}", f"-Xms{HEAP}", "-XX:+UseG1GC", "kafka.Kafka", str(settings)]
    child = run.start(server, "carrier", log="broker")
    assert child.stdin is not None
    child.stdin.close()
    deadline = time.monotonic() + START_SECONDS
    while not _answers(port):
        if child.poll() is not None or time.monotonic() > deadline:
            raise RunFailed(f"the broker does not answer; its log is {run.folder / 'broker.log'}")
        time.sleep(0.1)
    yield f"127.0.0.1:{port}"


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1.0).close()
    except OSError:
        return False
    return True


def _free_ports(count: int) -> list[int]:
    """Return ports that were free just now; Kafka wants to be told."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(each.getsockname()[1]) for each in sockets]
    for each in sockets:
        each.close()
    return ports
