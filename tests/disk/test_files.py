"""What a path is written down as."""

from pathlib import Path

import pytest

from ckptstore.disk import files


def test_a_path_has_one_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the system goes it: behind a link, ".." leads to where the link leads. A file that is a link stays one."""
    (tmp_path / "elsewhere" / "deep").mkdir(parents=True)
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "link").symlink_to(tmp_path / "elsewhere" / "deep")
    monkeypatch.chdir(tmp_path / "here")
    for given, meant in (
        ("a.ckpt", "here/a.ckpt"),
        ("./x//a.ckpt", "here/x/a.ckpt"),
        ("../a.ckpt", "a.ckpt"),
        ("not/there/../a.ckpt", "here/not/a.ckpt"),
        ("link/a.ckpt", "elsewhere/deep/a.ckpt"),
        ("link/x/../a.ckpt", "elsewhere/deep/a.ckpt"),
        ("link/../a.ckpt", "elsewhere/a.ckpt"),
        ("link/../../here/link/a.ckpt", "elsewhere/deep/a.ckpt"),
        (tmp_path / "here" / ".." / "a.ckpt", "a.ckpt"),
        ("link", "here/link"),
        ("link/", "elsewhere/deep"),
        (".", "here"),
    ):
        assert files.absolute(given) == str(tmp_path / meant), given
