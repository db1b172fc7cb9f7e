"""``python -m jobpipe.testing.flow_task``: one attempt of one task of :mod:`jobpipe.testing.flow`."""

from __future__ import annotations

from jobpipe.testing.flow import attempt

if __name__ == "__main__":
    attempt()
