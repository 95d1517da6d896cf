"""The wheel and the sdist: what is in them, and that they work in an empty environment, on each Python there is."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest
import yaml

import ckptstore
from ckptstore.catalog.schema import REVISION

ROOT = Path(__file__).parents[2]
SHARED = (
    "bash-completion/completions/ckptstore",
    "fish/vendor_completions.d/ckptstore.fish",
    "man/man1/ckptstore.1",
    "zsh/site-functions/_ckptstore",
)
PYTHONS = ("3.10", "3.11", "3.12", "3.13")
ROUND_TRIP = """
import ckptstore, pathlib
with ckptstore.connect("c.db") as catalog:
    launch = catalog.join("run", rank=0, world_size=1)
    launch.resolve()
    path = pathlib.Path("data/net-1_5.ckpt")
    path.parent.mkdir()
    path.write_bytes(b"1")
    launch.register(path, global_step=5)
    assert catalog.resolve("run").plan.global_step == 5
print(ckptstore.__version__)
"""


def run(*command: str | Path, cwd: Path) -> str:
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "CKPTSTORE_URL")}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "build", "--wheel", "--outdir", folder, ROOT, cwd=folder)
    (built,) = folder.glob("ckptstore-*.whl")
    return built


def tree(*folders: str) -> set[str]:
    """The files of these folders, without what Python made of them."""
    files = (path for folder in folders for path in (ROOT / folder).rglob("*") if path.is_file())
    return {str(path.relative_to(ROOT)) for path in files if "__pycache__" not in path.parts}


def test_what_is_in_the_wheel(wheel: Path) -> None:
    """The package, its migrations, the man page and the completions; no tests, nothing of this machine."""
    names = set(zipfile.ZipFile(wheel).namelist())
    package = tree("ckptstore")
    migrations = {f"ckptstore/catalog/{name}" for name in tree("migrations")}
    data = f"ckptstore-{ckptstore.__version__}.data/data/share/"
    shared = {f"{data}{name}" for name in SHARED}
    information = {f"ckptstore-{ckptstore.__version__}.dist-info/{name}" for name in ("METADATA", "RECORD", "WHEEL")}
    information.add(f"ckptstore-{ckptstore.__version__}.dist-info/entry_points.txt")
    assert names == package | migrations | shared | information
    assert {f"share/{name}" for name in SHARED} == tree("share")


def test_the_wheel_works_in_an_empty_environment(wheel: Path, tmp_path: Path) -> None:
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
    assert all((tmp_path / "env" / "share" / name).is_file() for name in SHARED)


@pytest.mark.long
def test_the_sdist_has_what_the_wheel_is_built_from(wheel: Path, tmp_path: Path) -> None:
    run(sys.executable, "-m", "build", "--outdir", tmp_path, ROOT, cwd=tmp_path)
    (sdist,) = tmp_path.glob("ckptstore-*.tar.gz")
    (from_sdist,) = tmp_path.glob("ckptstore-*.whl")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    pages = {"README.md", "CHANGELOG.md", "CITATION.cff", "pyproject.toml", "alembic.ini", "PKG-INFO", ".gitignore"}
    assert names == tree("ckptstore", "migrations", "share") | pages
    assert set(zipfile.ZipFile(from_sdist).namelist()) == set(zipfile.ZipFile(wheel).namelist())


@pytest.mark.long
@pytest.mark.parametrize("version", PYTHONS)
def test_each_python_that_is_here(wheel: Path, tmp_path: Path, version: str) -> None:
    python = _python(version)
    if python is None:
        pytest.skip(f"there is no Python {version}")
    run(python, "-m", "venv", tmp_path / "env", cwd=tmp_path)
    binaries = tmp_path / "env" / "bin"
    run(binaries / "python", "-m", "pip", "install", "--quiet", f"{wheel}[postgres,serve]", cwd=tmp_path)
    assert run(binaries / "python", "-W", "error", "-c", ROUND_TRIP, cwd=tmp_path) == f"{ckptstore.__version__}\n"
    assert "step 5" in run(binaries / "ckptstore", "--db", "c.db", "runs", cwd=tmp_path)
    assert "ckptstore_build_info" in run(binaries / "ckptstore", "--db", "c.db", "metrics", cwd=tmp_path)


def _python(version: str) -> Path | None:
    """That Python, on the path or of pyenv; not a shim that finds none."""
    found = [shutil.which(f"python{version}"), *Path("~/.pyenv/versions").expanduser().glob(f"{version}.*/bin/python")]
    for python in filter(None, found):
        done = subprocess.run([python, "--version"], capture_output=True, text=True, check=False)
        if done.returncode == 0 and done.stdout.startswith(f"Python {version}."):
            return Path(python)
    return None


def test_the_pythons_are_those_that_the_package_names() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    named = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', text)
    assert tuple(named) == PYTHONS
    least, beyond = re.search(r'requires-python = ">=3\.(\d+),<3\.(\d+)"', text).groups()  # type: ignore[union-attr]
    assert (f"3.{least}", f"3.{int(beyond) - 1}") == (PYTHONS[0], PYTHONS[-1])


def test_how_to_cite_it() -> None:
    """What the format asks for, and the version of the package. No licence is named: none was chosen."""
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert {"cff-version", "message", "title", "authors"} <= cited.keys()
    assert cited["version"] == ckptstore.__version__
    assert "license" not in cited


def test_issue_templates_have_a_head() -> None:
    for path in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.md"):
        _, head, text = path.read_text().split("---\n", 2)
        assert {"name", "about"} <= yaml.safe_load(head).keys()
        assert text.strip()
