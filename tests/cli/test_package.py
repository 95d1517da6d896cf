"""ckptstore as a package and a program like others: its version, its names, how a shell and a logger see it."""

import os
import subprocess
import sys
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

import pytest

import ckptstore
from ckptstore.api import connect
from tests.command_line import COMMAND
from tests.command_line import ckptstore as run
from tests.jobs import started


def test_its_version_and_its_names() -> None:
    assert ckptstore.__version__ == version("ckptstore")
    assert dir(ckptstore) == sorted(ckptstore.__all__)
    assert all(getattr(ckptstore, name) is not None for name in ckptstore.__all__)


def test_it_is_a_module_to_run() -> None:
    done = subprocess.run([sys.executable, "-m", "ckptstore", "--version"], capture_output=True, text=True, check=True)
    assert ckptstore.__version__ in done.stdout


def test_a_catalog_is_closed_at_the_end_of_its_block(sqlite_url: str, tmp_path: Path) -> None:
    def descriptors() -> list[str]:
        """What this process has open of the catalog; the one that lists them is gone by then."""
        found = []
        for entry in list(Path("/proc/self/fd").iterdir()):
            with suppress(FileNotFoundError):
                found.append(str(entry.readlink()))
        return [path for path in found if path.startswith(str(tmp_path / "catalog.db"))]

    with connect(sqlite_url) as catalog:
        started(catalog, tmp_path / "data", 10)
        row = catalog.saves("run")[0]
        assert descriptors()
    assert descriptors() == []
    assert isinstance(row, ckptstore.SaveRow)
    assert (row.run, row.global_step, row.kind, row.ranks, row.restorable) == ("run", 10, "periodic", 2, True)
    assert (row.bytes > 0, row.created_at.tzinfo is not None) == (True, True)
    assert catalog.runs()  # it opens a connection again
    catalog.close()


def test_alembic_is_quiet_where_a_script_shows_what_is_logged(tmp_path: Path) -> None:
    program = (
        "import logging, sys; logging.basicConfig(level=logging.INFO); import ckptstore; ckptstore.connect(sys.argv[1])"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "new.db")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")


@pytest.fixture
def url(sqlite_url: str, tmp_path: Path) -> str:
    with connect(sqlite_url) as catalog:
        for name in ("digits", "digits-2", "other"):
            started(catalog, tmp_path / name, 10, run=name)
        catalog.forget("digits-2")
    return sqlite_url


@pytest.mark.parametrize("command", [["runs"], ["db", "current"], ["list", "digits"], ["doctor", "digits"]])
def test_the_catalog_is_named_after_the_command_too(url: str, tmp_path: Path, command: list[str]) -> None:
    nowhere = str(tmp_path / "nowhere.db")
    assert run(*command, "--db", url).code == 0
    assert (
        run("--db", nowhere, *command, "--db", url).out.splitlines()[:1]
        == run("--db", url, *command).out.splitlines()[:1]
    )
    assert not Path(nowhere).exists()


def test_a_shell_completes_the_names_of_runs(url: str, tmp_path: Path) -> None:
    def completed(words: str, **environment: str) -> list[str]:
        asked = {"_CKPTSTORE_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)}
        done = subprocess.run(
            [COMMAND], env=os.environ | asked | environment, capture_output=True, text=True, check=False
        )
        assert done.stderr == ""
        return [line.partition(",")[2] for line in done.stdout.split()]

    assert completed("ckptstore list di", CKPTSTORE_URL=url) == ["digits"]
    assert completed(f"ckptstore --db {url} resolve o") == ["other"]
    assert completed("ckptstore hist", CKPTSTORE_URL=url) == ["history"]
    assert completed("ckptstore list di", CKPTSTORE_URL=str(tmp_path / "no.db")) == []
    assert not (tmp_path / "no.db").exists()
