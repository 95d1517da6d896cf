"""Runs `ckptstore` as a user does, and judges what it prints."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.starting import LIBRARY, warm_python

COMMAND = Path(sys.executable).with_name("ckptstore")
HEAVY = ("mindspore", "numpy", "psycopg", "alembic")


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def ckptstore(*arguments: str, **environment: str) -> Result:
    """Run the command as a user does; what it imports is imported already."""
    program = [*warm_python(*LIBRARY), COMMAND]
    done = subprocess.run(
        [*program, *arguments], env=os.environ | environment, capture_output=True, text=True, check=False
    )
    return Result(done.returncode, done.stdout, done.stderr)


def as_who_is_not_root(*arguments: str) -> Result:
    """Run the command with no right to pass by permissions; skips where nobody can give up that right."""
    rights = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.geteuid() == 0 else []
    if rights and subprocess.run([*rights, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this sandbox lets nobody give up rights")
    done = subprocess.run([*rights, COMMAND, *arguments], capture_output=True, text=True, check=False)
    return Result(done.returncode, done.stdout, done.stderr)


def assert_one_line(result: Result, code: int, message: str) -> None:
    assert result.code == code, result
    assert result.out == ""
    assert message in result.err
    assert result.err.startswith("ckptstore: ")
    assert result.err.count("\n") == 1


def loaded(arguments: list[str], *modules: str) -> set[str]:
    """Which of these modules a command imports."""
    program = f"""
import sys
from ckptstore.cli.main import main
sys.argv = ["ckptstore", *{arguments!r}]
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
print("LOADED", *(name for name in {modules!r} if name in sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split()[1:])
