"""`ckptstore tier` declares, lists and takes back."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from ckptstore.cli.main import cli
from ckptstore.errors import RefusedError, UsageError


def test_a_tier_is_declared_listed_and_taken_back(tmp_path: Path) -> None:
    def told(*arguments: str) -> str:
        command = [f"--db={tmp_path / 'c.db'}", "tier", *arguments]
        return CliRunner().invoke(cli, command, catch_exceptions=False, standalone_mode=False).stdout

    assert told("list") == "no tiers: ckptstore tier add NAME URL declares one\n"
    added = json.loads(told("add", "shared", str(tmp_path / "there"), "--json"))
    assert added == {"name": "shared", "url": f"file://{tmp_path}/there", "level": 1, "changed": True}
    assert told("add", "s3", "s3://bucket/prefix") == "tier s3 is s3://bucket/prefix, level 2\n"
    assert told("add", "s3", "s3://bucket/prefix") == "tier s3 is s3://bucket/prefix, level 2, as before\n"
    assert [each["name"] for each in json.loads(told("list", "--json"))] == ["shared", "s3"]
    assert told("list").splitlines()[1] == "s3  level 2  s3://bucket/prefix  0 copies, 0 B"
    with pytest.raises(RefusedError, match="tier s3 is s3://bucket/prefix"):
        told("add", "s3", "s3://other")
    assert told("remove", "s3") == "tier s3 is not in use any more\n"
    with pytest.raises(UsageError, match="no tier is named 's3': shared"):
        told("remove", "s3")
