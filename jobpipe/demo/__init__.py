"""``jobpipe demo``: the four jobs of ``examples/flights`` as four processes, watched live, their results checked."""

from jobpipe.demo.run import run_demo

__all__ = ["run_demo"]
