"""Serve the 70B recipe, or another one by ``--recipe``: the entry point of ``ray job submit``.

Run by path, as a job's entry point is, Python looks for modules in ``launch/`` instead of the
checkout; hence the first statement.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from launch.serve import main

if __name__ == "__main__":
    sys.exit(main(prog="serve70b"))
