"""Runs `ckptstore` as a user does, and judges what it prints."""

import fcntl
import json
import os
import struct
import subprocess
import sys
import termios
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.docs import printed_json
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
    """Run the command as a user does; what it imports is imported already.

    CKPTSTORE_URL names the catalog that `--db` does: then commands that are advised need no `--db`.
    """
    program = [*warm_python(*LIBRARY), COMMAND]
    words = [
        word for argument in arguments for word in (argument.split("=", 1) if argument[:5] == "--db=" else [argument])
    ]
    named = {"CKPTSTORE_URL": words[words.index("--db") + 1]} if "--db" in words[:-1] else {}
    done = subprocess.run(
        [*program, *arguments], env=os.environ | named | environment, capture_output=True, text=True, check=False
    )
    if "--json" in arguments and done.stdout:
        printed_json.check(_command_of(words), done.stdout)
    return Result(done.returncode, done.stdout, done.stderr)


def _command_of(words: list[str]) -> str:
    """The command that a command line names, as the page of JSON does."""
    names = (name for pair in pairwise([*words, ""]) for name in (" ".join(pair), pair[0]))
    return next(name for name in names if name in printed_json.COMMANDS)


def on_a_terminal(*arguments: str, width: int = 80, stdout: int | None = None) -> str:
    """What the command shows on a terminal of that width, where its output goes, or its errors alone."""
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, width, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "NO_COLOR")}
    command = [*warm_python(*LIBRARY), COMMAND, *arguments]
    where = theirs if stdout is None else stdout
    process = subprocess.Popen(command, env=environment | {"TERM": "xterm"}, stdout=where, stderr=theirs)
    os.close(theirs)
    shown = b""
    with suppress(OSError):  # how a pseudo-terminal says that nobody writes to it any more
        while piece := os.read(ours, 4096):
            shown += piece
    os.close(ours)
    assert process.wait() == 0
    return shown.decode()


def no_right_to_pass_by_permissions() -> list[str]:
    """What to put before a program that must not have it; skips where nobody can give up that right."""
    rights = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.geteuid() == 0 else []
    if rights and subprocess.run([*rights, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this sandbox lets nobody give up rights")
    return rights


def as_who_is_not_root(*arguments: str) -> Result:
    """Run the command with no right to pass by permissions."""
    rights = no_right_to_pass_by_permissions()
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
