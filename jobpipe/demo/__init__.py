"""``jobpipe demo``: runs the pipeline of ``examples/flights`` in a folder of its own, and checks its results."""

from jobpipe.demo.demo_run import run_demo

__all__ = ["run_demo"]
