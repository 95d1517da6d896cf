"""Runs scripts of PyTorch and TensorFlow, and `ckptstore`, as their users do."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
TENSORFLOW = Path(sys.executable)
COMMAND = TENSORFLOW.with_name("ckptstore")


def script(python: Path, name: str, *arguments: object, cwd: Path, **environment: str) -> str:
    """What a script of this folder prints; it must end well."""
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
    command = [python, HERE / name, *map(str, arguments)]
    done = subprocess.run(
        command, cwd=cwd, env=os.environ | quiet | environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def ckptstore(*arguments: object, code: int = 0) -> str:
    """What the command prints; it must end with this exit code."""
    done = subprocess.run([COMMAND, *map(str, arguments)], capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


def last_line(printed: str) -> Any:
    """What a script says at its end, as JSON."""
    return json.loads(printed.splitlines()[-1])
