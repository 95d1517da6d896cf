"""`ckptstore verify`: what it prints, its JSON, its exit codes."""

import subprocess
from pathlib import Path

import pytest

from ckptstore.api import Catalog
from tests import command_line
from tests.command_line import ckptstore, on_a_terminal
from tests.jobs import Job, started


@pytest.fixture
def job(catalog: Catalog, tmp_path: Path) -> Job:
    return started(catalog, tmp_path / "ckpt", 5, 10, 15)[0]


def test_each_of_several_processes_has_its_shard(job: Job, database_url: str) -> None:
    found = [ckptstore("--db", database_url, "verify", "run", "--shard", f"{number}/2", "--json") for number in (1, 2)]
    assert [each.code for each in found] == [0, 0]
    assert sum(each.json["checked"] for each in found) == 6
    shown = ckptstore("--db", database_url, "verify", "run", "--shard", "2/2")
    checked = found[1].json["checked"]
    assert shown.out.startswith(f"{checked} file{'' if checked == 1 else 's'} of 1 run verified")
    assert "sizes and headers, shard 2 of 2\n" in shown.out


def test_a_loss_that_was_noticed_before_is_counted_in_the_last_line(job: Job, database_url: str) -> None:
    job.save(job.begin(), 20)
    (job.folder(1) / "net_1-2_10.ckpt").unlink()
    ckptstore("--db", database_url, "resolve", "run")
    found = ckptstore("--db", database_url, "verify", "run")
    last = "no damage was found; 1 file was recorded as missing before, deleted or lost: ckptstore list run --files"
    assert (found.code, found.out.splitlines()[-1]) == (0, last)
    assert ckptstore("--db", database_url, "verify", "--json").json["missing_before"] == 1


def test_a_bar_is_shown_on_a_terminal_and_nowhere_else(
    job: Job, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After two seconds; here at once."""
    command = ("--db", database_url, "verify", "run", "--digest", "--json")
    assert on_a_terminal(*command, stdout=subprocess.DEVNULL) == ""
    at_once = tmp_path / "at_once.py"
    at_once.write_text(
        "from ckptstore import progress\n"
        "from ckptstore.cli import main\n"
        "progress.SHOWN_AFTER_SECONDS = 0.0\n"
        "main.main()\n"
    )
    monkeypatch.setattr(command_line, "COMMAND", at_once)
    shown = on_a_terminal(*command, stdout=subprocess.DEVNULL)
    assert "verified" in shown
    assert "636/636 bytes" in shown
    assert ckptstore(*command).err == ""
