"""The code blocks of README and docs, each with the test that runs it, or checks its form.

A block is preceded by a comment that names it: ``<!-- block: publish; run by tests/spark/test_readme.py::test_x -->``.
What cannot run here says ``form checked by`` instead, and its section says "not run".
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = (
    *("README.md", "docs/publish.md", "docs/subscribe.md", "docs/end.md", "docs/retention.md", "docs/replay.md"),
    "docs/inspect.md",
    *("docs/flow.md", "docs/pipelines.md", "docs/server.md", "docs/kafka.md"),
    "docs/deploy.md",
    *("docs/pipeline-keys.md", "docs/jdbc-upsert.md", "docs/cluster-drivers.md", "docs/schedules.md"),
    "docs/dead-letters.md",
    "docs/monitoring.md",
    "docs/ledger.md",
    "docs/page.md",
    "docs/lineage.md",
    "docs/cdc.md",
    "docs/cdc-mysql.md",
)
SECONDS = 90.0  # less than a test may take
_BLOCK = re.compile(
    r"<!-- block: (?P<name>[\w-]+); (?P<how>run|form checked) by (?P<test>tests/[\w/]+\.py::test_\w+) -->\n"
    r"```(?P<language>\w*)\n(?P<code>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)


@dataclass(frozen=True)
class Block:
    """One block of a page, as it stands there."""

    page: str
    name: str
    how: str
    test: str
    language: str
    code: str
    section: str


def blocks(page: str) -> dict[str, Block]:
    """Return all blocks of a page by their names."""
    text = (ROOT / page).read_text()
    found = {}
    for match in _BLOCK.finditer(text):
        start, end = text.rfind("\n## ", 0, match.start()), text.find("\n## ", match.end())
        section = text[max(start, 0) : None if end < 0 else end]
        assert match["name"] not in found, f"{page}: two blocks {match['name']}"
        found[match["name"]] = Block(page=page, section=section, **match.groupdict())
    return found


def block(page: str, name: str) -> str:
    """Return the text of one block."""
    return blocks(page)[name].code


def shell(code: str, folder: Path, seconds: float = SECONDS, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run a block as a shell would with the environment activated; it ends at the first command that fails.

    Raises:
        TimeoutExpired: after so many seconds; all that the block has started is killed.
    """
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    with subprocess.Popen(
        ["/bin/bash", "-ec", code],
        cwd=folder,
        env={**os.environ, "PATH": path, **environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            out, err = process.communicate(timeout=seconds)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    return subprocess.CompletedProcess(code, process.returncode, out, err)
