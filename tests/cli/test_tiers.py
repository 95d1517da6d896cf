"""`ckptstore tier` declares, lists and takes back."""

import json
from pathlib import Path
from shutil import rmtree

import pytest
from click.testing import CliRunner

from ckptstore.cli.main import cli
from ckptstore.errors import RefusedError, UsageError
from ckptstore.tiers.facts import tier_of


def test_a_tier_is_declared_listed_and_taken_back(tmp_path: Path) -> None:
    def told(*arguments: str) -> str:
        command = [f"--db={tmp_path / 'c.db'}", "tier", *arguments]
        return CliRunner().invoke(cli, command, catch_exceptions=False, standalone_mode=False).stdout

    assert told("list") == f"no tiers: ckptstore --db {tmp_path}/c.db tier add NAME URL declares one\n"
    added = json.loads(told("add", "shared", str(tmp_path / "there"), "--json"))
    assert added == {"name": "shared", "url": f"file://{tmp_path}/there", "level": 1, "changed": True}
    far = ("add", "far", str(tmp_path / "far"), "--level", "2")
    assert told(*far) == f"tier far is file://{tmp_path}/far, level 2\n"
    rmtree(tmp_path / "far")  # as if its disk were not mounted
    assert told(*far) == f"tier far is file://{tmp_path}/far, level 2, as before\n"
    assert told(*far[:3]) == f"tier far is file://{tmp_path}/far, level 2, as before\n", "without a level it stays"
    assert not (tmp_path / "far").exists()
    assert [each["name"] for each in json.loads(told("list", "--json"))] == ["shared", "far"]
    assert told("list").splitlines()[1] == f"far  level 2  file://{tmp_path}/far  0 copies, 0 B"
    with pytest.raises(RefusedError, match="tier far is file:"):
        told("add", "far", str(tmp_path / "other"))
    assert told("remove", "far") == "tier far is not in use any more\n"
    with pytest.raises(UsageError, match="no tier is named 'far': the tiers are shared"):
        told("remove", "far")


def test_the_scheme_of_a_bucket_may_be_in_capitals() -> None:
    assert tier_of("s3", "S3://bucket/Prefix") == tier_of("s3", "s3://bucket/Prefix")
