"""The wheel carries all that it needs: built, installed into an empty environment, and used there."""

import os
import subprocess
import sys
import venv
from pathlib import Path

from ckptstore.catalog.schema import REVISION

ROOT = Path(__file__).parents[2]


def run(*command: str | Path, cwd: Path) -> str:
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "CKPTSTORE_URL")}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_wheel_works_in_an_empty_environment(tmp_path: Path) -> None:
    run(sys.executable, "-m", "build", "--wheel", "--outdir", tmp_path, ROOT, cwd=tmp_path)
    (wheel,) = tmp_path.glob("ckptstore-*.whl")
    venv.create(tmp_path / "env")
    binaries = tmp_path / "env" / "bin"
    constraints = ROOT / "constraints.txt"
    pip = (sys.executable, "-m", "pip", "--python", binaries / "python")
    run(*pip, "install", "--quiet", "--no-compile", "--constraint", constraints, wheel, cwd=tmp_path)
    upgraded = run(binaries / "ckptstore", "--db", tmp_path / "c.db", "db", "upgrade", cwd=tmp_path)
    assert upgraded == f"sqlite:///{tmp_path}/c.db: schema {REVISION}, this program works with {REVISION}\n"
    assert run(binaries / "ckptstore", "--db", tmp_path / "c.db", "list", "--json", cwd=tmp_path) == "[]\n"
    program = "import ckptstore, pathlib; print(pathlib.Path(ckptstore.__file__).parent)"
    assert run(binaries / "python", "-c", program, cwd=tmp_path).startswith(str(tmp_path))
    assert (Path(run(binaries / "python", "-c", program, cwd=tmp_path).strip()) / "py.typed").is_file()
