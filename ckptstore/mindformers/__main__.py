"""`python -m ckptstore.mindformers SCRIPT …`: runs a training script of MindFormers with ckptstore's callback."""

from __future__ import annotations

import runpy
import sys

import ckptstore.mindformers
from ckptstore.outside import os

_USAGE = "usage: python -m ckptstore.mindformers run_mindformer.py --config my.yaml …"


def main() -> None:
    """Run the script as Python itself would."""
    if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help"):  # noqa: PLR2004
        sys.exit(f"{_USAGE}\n{ckptstore.mindformers.__doc__}")
    del sys.argv[0]
    sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
