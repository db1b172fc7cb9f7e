"""docs/registry-security.md does what it says: its commands are run, on ports of our own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.registry.zookeeper.secured import free_port

pytestmark = pytest.mark.zookeeper

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "registry-security.md").read_text()
PORTS = [f"{kind}{number}" for kind in ("228", "288", "388") for number in (1, 2, 3)]
MOST_SECONDS = 200.0  # three servers and four programs; 53 s were seen on a machine with ten times its load


def blocks() -> list[str]:
    return re.findall(r"^```sh\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)


def moved(script: str) -> str:
    """Put free ports where the text has fixed ones; ``228$n`` is made from its number by the shell there."""
    ports = {port: str(free_port()) for port in PORTS}
    choose = "; ".join(f"p{number}={ports[f'228{number}']}" for number in (1, 2, 3))
    script = script.replace("secureClientPort=228$n", 'secureClientPort=$(eval echo "\\$p$n")')
    for port, free in ports.items():
        script = re.sub(rf"\b{port}\b", free, script)
    return f"{choose}\n{script}"


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Where the commands run; the servers that they started end with it."""
    yield tmp_path
    for file in tmp_path.glob("zk*/pid"):
        pid = int(file.read_text())
        try:
            if psutil.Process(pid).cwd() == str(file.parent):
                os.kill(pid, signal.SIGKILL)
                psutil.wait_procs([psutil.Process(pid)], timeout=10.0)
        except (psutil.NoSuchProcess, ProcessLookupError):
            pass


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_the_commands_work(folder: Path) -> None:
    script = folder / "commands.sh"
    script.write_text("set -eu\n" + moved("\n".join(blocks())))
    environ = {name: value for name, value in os.environ.items() if not name.startswith("JOBPIPE_")}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environ |= {"HOME": str(folder), "PYTHONPATH": str(ROOT), "PATH": path}
    begun = time.monotonic()
    with (folder / "output").open("wb") as output:  # the servers keep it open: no pipe to wait for
        code = subprocess.run(
            ["/bin/bash", str(script)], cwd=folder, env=environ, stdout=output, stderr=output, timeout=MOST_SECONDS
        ).returncode
    text = (folder / "output").read_text()
    logs = "".join(path.read_text()[-2000:] for path in folder.glob("zk*/zookeeper.out"))
    assert code == 0, f"after {time.monotonic() - begun:.0f} s: {text}\n{logs}"
    assert "none: all nodes are as jobpipe.registerserver.acl says" in text
    assert re.search(r'"registry ACL",\s+"status": "ok"', text)
    for user in ("publisher", "reader"):
        assert (folder / f"{user}.password").read_text().strip() not in text
