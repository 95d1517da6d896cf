"""How tests start programs: in forks of a process that has imported what they need, see warm.py."""

import atexit
import os
import shlex
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from zlib import crc32

WARM = Path(__file__).with_name("warm.py")
PACKAGE = Path(__file__).parents[1] / "ckptstore"
LIBRARY = tuple(
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
    for path in sorted(PACKAGE.rglob("*.py"))
    if not {"mindspore", "mindformers", "objects"}.intersection(path.parts) and path.stem != "__init__"
)
"""All of ckptstore but what imports MindSpore, or an extra that is not installed: commands import much of it late."""
TRAINING = ("mindspore.dataset", "mindspore.train", "psutil", "ckptstore.mindspore")
DATABASE = ("alembic.command", "psycopg", "sqlalchemy.dialects.postgresql", "sqlalchemy.dialects.sqlite")


@cache
def warm_python(*modules: str) -> list[str]:
    """What runs a script as Python does, but has these modules imported already, and what any catalog needs."""
    address = os.environ.get(_shared(modules)) or _served(modules)
    return [sys.executable, "-S", "-E", str(WARM), "run", address]


def share() -> None:
    """Have all processes that are started from here on ask one server for what most of them need."""
    for modules in (LIBRARY, TRAINING):
        os.environ[_shared(modules)] = _served(modules)


def _shared(modules: tuple[str, ...]) -> str:
    return f"CKPTSTORE_TESTS_{crc32(' '.join(modules).encode())}"


def _served(modules: tuple[str, ...]) -> str:
    home = tempfile.TemporaryDirectory()
    address = str(Path(home.name) / "warm")
    server = subprocess.Popen(
        [sys.executable, str(WARM), "serve", address, *DATABASE, *modules],
        env=os.environ | {"GLOG_v": "3", "OPENBLAS_NUM_THREADS": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )

    @atexit.register
    def _end() -> None:
        server.communicate()
        home.cleanup()

    assert server.stdout.readline() == b"ready\n"
    return address


@cache
def warm_programs(*modules: str) -> Path:
    """A directory with programs that do so: `python`, and `msrun`, which starts what it finds under that name."""
    home = tempfile.TemporaryDirectory()
    atexit.register(home.cleanup)
    own = Path(sys.executable).with_name("msrun")
    for name, script in (("python", []), (own.name, [str(own)])):
        program = Path(home.name) / name
        program.write_text(f'#!/bin/sh\nexec {shlex.join([*warm_python(*modules), *script])} "$@"\n')
        program.chmod(0o700)
    return Path(home.name)
