"""MindFormers of `.venv-mindformers`, and jobs that train with it."""

from pathlib import Path

import pytest

from tests.mindformers.running import TEXT, Job, run


@pytest.fixture(autouse=True)
def _a_user_of_its_own(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """No catalog and no memory of runs but those of the test."""
    home = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("XDG_STATE_HOME", str(home / "state"))
    monkeypatch.setenv("CKPTSTORE_URL", f"sqlite:///{home}/catalog.db")


@pytest.fixture(scope="session")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the text that all jobs train on."""
    directory = tmp_path_factory.mktemp("text")
    run([str(TEXT), str(directory / "text.mindrecord")])
    return directory


@pytest.fixture
def job(tmp_path: Path, text: Path) -> Job:
    """A job that nothing has been saved of."""
    return Job(tmp_path, text)


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, text: Path) -> dict[tuple[int, bool], Job]:
    """Jobs that nothing happens to, by how many ranks they have and whether they save in the newer format."""

    class Jobs(dict[tuple[int, bool], Job]):
        def __missing__(self, key: tuple[int, bool]) -> Job:
            ranks, newer = key
            home = tmp_path_factory.mktemp("undisturbed")
            made = self[key] = Job(home, text, ranks=ranks, newer=newer, url=f"sqlite:///{home}/catalog.db")
            made.trains()
            return made

    return Jobs()
