"""The runner as a program for spark-submit: ``spark_submit_entry.py SNAPSHOT``, as ``python -m jobpipe.jobs.runner``.

spark-submit uploads it, or finds it in an image. It imports nothing of ours before its own folder is off the path.
"""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    own = str(Path(__file__).resolve().parent)
    sys.path[:] = [place for place in sys.path if not place or str(Path(place).resolve()) != own]
    from jobpipe.jobs.runner.__main__ import main

    sys.exit(main())
