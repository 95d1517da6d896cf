"""A file of PyTorch that is cut is told from a whole one."""

from pathlib import Path

from ckptstore.formats.inspect import is_cut
from tests.foreign_bytes import legacy_pytorch, pytorch


def test_every_cut_of_a_zip_is_seen_and_none_of_the_older_format(tmp_path: Path) -> None:
    path = pytorch(tmp_path / "a.pt", epoch=5)
    whole = path.read_bytes()
    assert not is_cut(path)
    for end in (0, *range(4, len(whole), 7)):
        path.write_bytes(whole[:end])
        assert is_cut(path)
    assert not is_cut(legacy_pytorch(tmp_path / "b.pth", epoch=5))
