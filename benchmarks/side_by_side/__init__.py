"""jobpipe and what one would use instead, measured side by side, in the same runs on the same machine.

Two Spark applications, job A and job B, are linked by a *contestant*; everything else is the same for all. See
benchmarks/README.md for the measures, and ``python -m benchmarks.side_by_side --help`` for the commands.
"""
