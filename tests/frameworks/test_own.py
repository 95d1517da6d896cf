"""Scripts of other frameworks with a launch: `launch.save` writes a checkpoint, or `launch.register` is told of one."""

from pathlib import Path

import pytest

from tests.frameworks.running import TENSORFLOW, ckptstore, last_line, script


@pytest.mark.parametrize("framework", ["tensorflow", "pytorch"])
def test_a_script_goes_on_where_it_was(framework: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    python = TENSORFLOW if framework == "tensorflow" else request.getfixturevalue("torch")
    first = last_line(script(python, f"own_{framework}.py", 2, cwd=tmp_path))
    assert first == [0, 2, [2.25, 4.5]]
    assert last_line(script(python, f"own_{framework}.py", 1, cwd=tmp_path)) == [2, 3, [3.375, 6.75]]
    (newest,) = ckptstore("resolve", "own", "--format", "paths").splitlines()
    assert Path(newest).name.removesuffix(".pt") == "at3"
    shown = ckptstore("verify", "own", "--digest")
    assert "3 files" in shown
    for lost in tmp_path.glob("saved/at3*"):
        lost.write_bytes(b"")
    assert last_line(script(python, f"own_{framework}.py", 1, cwd=tmp_path)) == [2, 3, [3.375, 6.75]]
