"""``python -m tests.harness.flow_task``: one attempt of one task of :mod:`tests.harness.flow`."""

from __future__ import annotations

from tests.harness.flow import attempt

if __name__ == "__main__":
    attempt()
