"""Where a job looks for a request to exit, as it was noted; and whether one is there."""

from __future__ import annotations

import os
from datetime import datetime, timezone
from pathlib import Path

import pytest

from ckptstore.storage import exit_flags
from ckptstore.storage.claims import FOLDER
from ckptstore.storage.exit_flags import Flag


def test_a_note_says_what_was_noted(tmp_path: Path) -> None:
    flag = Flag(str(tmp_path / "déjà vu.json"))
    exit_flags.note(str(tmp_path), 3, Flag("/other"))
    exit_flags.note(str(tmp_path), 3, flag)
    exit_flags.note(str(tmp_path), 12, flag)
    notes = exit_flags.notes_in(str(tmp_path / FOLDER))
    assert [Path(note).name for note in notes] == ["exit_flag-rank_12.json", "exit_flag-rank_3.json"]
    assert {exit_flags.noted(note) for note in notes} == {flag}
    assert len(list((tmp_path / FOLDER).iterdir())) == 2


def test_no_note(tmp_path: Path) -> None:
    assert exit_flags.notes_in(str(tmp_path / FOLDER)) == ()
    assert exit_flags.noted(str(tmp_path / "none")) is None
    (tmp_path / "broken").write_text('{"path": "/x"')
    assert exit_flags.noted(str(tmp_path / "broken")) is None
    (tmp_path / "deep").write_text("[" * 60_000)
    assert exit_flags.noted(str(tmp_path / "deep")) is None


@pytest.mark.parametrize(
    ("text", "is_up"),
    [
        ('{"GracefulExit": 1}', True),
        ('{"GracefulExit": true}', True),  # MindSpore compares with ==
        ('{"GracefulExit": 0}', False),
        ('{"GracefulExit": "1"}', False),
        ('{"other": 1}', False),
        ("[1]", False),
        ('{"GracefulExit": 1', False),
        pytest.param("[" * 60_000, False, id="deep"),
        ("", False),
    ],
)
def test_a_flag(tmp_path: Path, text: str, is_up: bool) -> None:  # noqa: FBT001
    path = tmp_path / "exit.json"
    path.write_text(text)
    os.utime(path, (1e9, 1e9))
    moment = datetime.fromtimestamp(1e9, timezone.utc)
    assert exit_flags.up_since(Flag(str(path))) == (moment if is_up else None)


def test_a_flag_that_is_not_there(tmp_path: Path) -> None:
    assert exit_flags.up_since(Flag(str(tmp_path / "none.json"))) is None
    assert exit_flags.flags_in(str(tmp_path / "none")) == []
    (tmp_path / "deep.json").write_text("[" * 60_000)
    assert exit_flags.flags_in(str(tmp_path)) == []
