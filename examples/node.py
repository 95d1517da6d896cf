"""Runs the ranks of one node under msrun, and ends with an exit code that a scheduler can act on.

    node.py --worker_num=16 --local_worker_num=8 --log_dir=log … train.py ARGUMENT …

msrun ends with 1 if a rank fails, whatever the rank's exit code is. It kills the node's other ranks as soon as one rank
ends with another code than 0. So a rank that left on request ends with 0 here, and notes its code 75 in a file. This
script ends with

    0        the training is finished
    75       the training left on request: start it again
    2 to 6   ckptstore refused: `exit_code` of the CkptstoreError that ended the script
    1        anything else
"""

import os
import runpy
import subprocess
import sys
import tempfile
from pathlib import Path

import ckptstore

LEFT = 75
REFUSED = range(2, 7)
CODES = "NODE_CODES"


def node(arguments):
    script = next(place for place, each in enumerate(arguments) if not each.startswith("-"))
    command = ["msrun", "--join=True", *arguments[:script], __file__, *arguments[script:]]
    with tempfile.TemporaryDirectory() as codes:
        ended = subprocess.run(command, env=os.environ | {CODES: codes}, check=False).returncode
        return code_of(ended, [int(told.suffix[1:]) for told in Path(codes).iterdir()])


def code_of(ended, told):
    """The exit code of the node, from the code of msrun and the codes that the ranks noted."""
    if ended == 0:
        return LEFT if LEFT in told else 0
    return max((code for code in told if code != LEFT), default=1)


def rank():
    sys.excepthook = end_with_its_code
    del sys.argv[0]
    sys.path[0] = str(Path(sys.argv[0]).parent)
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as end:
        if end.code == LEFT or end.code in REFUSED:
            tell(end.code)
        if end.code != LEFT:
            raise


def end_with_its_code(kind, error, trace):
    sys.__excepthook__(kind, error, trace)
    if isinstance(error, ckptstore.CkptstoreError):
        tell(error.exit_code)
        sys.exit(error.exit_code)


def tell(code):
    Path(os.environ[CODES], f"{os.getpid()}.{code}").touch()  # in one call: msrun may kill this rank right after it


if __name__ == "__main__":
    rank() if CODES in os.environ else sys.exit(node(sys.argv[1:]))
