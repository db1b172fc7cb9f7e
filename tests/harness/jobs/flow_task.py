"""``python -m tests.harness.jobs.flow_task``: one attempt of one task of :mod:`tests.harness.jobs.flow`."""

from __future__ import annotations

from tests.harness.jobs.flow import attempt

if __name__ == "__main__":
    attempt()
