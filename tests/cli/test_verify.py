"""`ckptstore verify`: what it prints, its JSON, its exit codes."""

import os
import subprocess
from pathlib import Path

import pytest

from ckptstore.api import Catalog
from tests import ckpt_bytes
from tests.command_line import assert_one_line, ckptstore, on_a_terminal
from tests.jobs import Job


@pytest.fixture
def job(catalog: Catalog, tmp_path: Path) -> Job:
    made = Job(catalog, tmp_path / "ckpt")
    made.save(made.start(), 5, 10, 15)
    return made


def test_nothing_damaged(job: Job, database_url: str) -> None:
    shown = ckptstore("--db", database_url, "verify", "run")
    assert (shown.code, shown.err) == (0, "")
    assert shown.out == "6 files of 1 run verified, 636 B: sizes and headers\nno damage was found\n"


def test_damage_is_listed_and_exit_code_6(job: Job, database_url: str) -> None:
    flipped, gone = job.folder(0) / "net-1_10.ckpt", job.folder(1) / "net-1_5.ckpt"
    content = bytearray(flipped.read_bytes())
    content[40] ^= 1
    flipped.write_bytes(content)
    os.utime(flipped, ns=(job.catalog.files("run")[2].mtime_ns or 0,) * 2)
    gone.unlink()
    strange = ckpt_bytes.write(job.folder(0) / "other-1_1.ckpt", 1)
    os.utime(strange, (1_700_000_000, 1_700_000_000))
    found = ckptstore("--db", database_url, "verify", "run", "--digest", "--json")
    assert (found.code, found.err) == (6, "")
    assert found.json["damaged"] == [
        {"path": str(flipped), "rule": "digest_mismatch", "detail": "has other bytes than those recorded"},
        {"path": str(gone), "rule": "missing_file", "detail": "is gone"},
    ]
    assert [each["path"] for each in found.json["unknown"]] == [str(strange)]
    shown = ckptstore("--db", database_url, "verify", "run")
    assert shown.code == 6
    assert shown.out.splitlines() == [
        "5 files of 1 run verified, 530 B: sizes and headers",
        f"damaged: {flipped}: digest_mismatch: has other bytes than those recorded",
        f"unknown: {strange}: the catalog does not know it; ckptstore scan DIRECTORY takes in what can be proven of it",
        "1 file is damaged",
    ]
    assert "damaged (digest_mismatch)" in ckptstore("--db", database_url, "show", "run", "10").out
    assert ckptstore("--db", database_url, "resolve", "run", "--json").json["global_step"] == 15


def test_what_cannot_be_looked_at_is_exit_code_1(job: Job, database_url: str) -> None:
    job.folder(1).rename(job.directory / "away")
    shown = ckptstore("--db", database_url, "verify", "run")
    assert shown.code == 1
    assert (
        f"not looked at: {job.folder(1)}/net-1_5.ckpt: its directory is not there: it may not be mounted\n" in shown.out
    )


def test_each_of_several_processes_has_its_shard(job: Job, database_url: str) -> None:
    found = [ckptstore("--db", database_url, "verify", "run", "--shard", f"{number}/2", "--json") for number in (1, 2)]
    assert [each.code for each in found] == [0, 0]
    assert sum(each.json["checked"] for each in found) == 6
    shown = ckptstore("--db", database_url, "verify", "run", "--shard", "2/2")
    checked = found[1].json["checked"]
    assert shown.out.startswith(f"{checked} file{'' if checked == 1 else 's'} of 1 run verified")
    assert "sizes and headers, shard 2 of 2\n" in shown.out


def test_a_bar_is_shown_on_a_terminal_and_nowhere_else(job: Job, database_url: str) -> None:
    command = ("--db", database_url, "verify", "run", "--digest", "--json")
    shown = on_a_terminal(*command, stdout=subprocess.DEVNULL)
    assert "verified" in shown
    assert "636/636 bytes" in shown
    assert ckptstore(*command).err == ""
