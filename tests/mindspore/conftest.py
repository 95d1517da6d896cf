"""What tests in this process with a real MindSpore share."""

import importlib.util
import logging
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import mindspore as ms
import pytest
from mindspore.common.api import _pynative_executor
from mindspore.train.callback import _train_fault_tolerance as fault_tolerance

from ckptstore.api import Catalog, connect
from ckptstore.mindspore import resume
from tests.mindspore.job import WAYS
from tests.mindspore.plain_trees import SCRIPTS, Tree, make
from tests.mindspore.running import Run
from tests.mindspore.ttp_ranks import Rank

STAND_IN = Path(__file__).parents[2] / "examples" / "ttp" / "stand_in.py"


@pytest.fixture(autouse=True)
def _same_chance_and_every_word(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    caplog.set_level(logging.INFO, "ckptstore")
    ms.set_seed(1)
    _pynative_executor.set_grad_flag(False)
    _pynative_executor.clear_res()  # an exception in the middle of a step leaves it recording gradients
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)  # a training that has left ignores it, and so do processes begun after that


@pytest.fixture
def set_mode() -> Iterator[Callable[[int], None]]:
    """Sets MindSpore's mode for the rest of the test."""
    before = ms.get_context("mode")
    yield lambda mode: ms.set_context(mode=mode)
    ms.set_context(mode=before)


@pytest.fixture
def catalog(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> Catalog:
    monkeypatch.setenv("CKPTSTORE_URL", sqlite_url)
    return connect()


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The final state of the run that nothing happens to."""
    run = Run(tmp_path_factory.mktemp("undisturbed"))
    outcome = run.launch()
    assert outcome.code == 0, outcome.output
    assert outcome.start["fresh"]
    assert "starting at step 0" in outcome.output
    assert run.steps() == [30, 25, 20, 15, 10, 5]
    return run.final()


@pytest.fixture(params=WAYS)
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Run:
    """A run in a directory of its own, for each way in which a script may save."""
    return Run(tmp_path / "run", saves=request.param)


@pytest.fixture(scope="session")
def plain_tree(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Tree]:
    """Makes the tree of one of the scripts of `plain_trees.py`, by its name, once. Copy it before it is used."""
    made: dict[str, Tree] = {}

    def tree(name: str) -> Tree:
        if name not in made:
            made[name] = make(SCRIPTS[name], tmp_path_factory.mktemp("plain") / "tree")
        return made[name]

    return tree


@pytest.fixture
def exits(monkeypatch: pytest.MonkeyPatch) -> None:
    """MindSpore as a cluster starts it that wants graceful exits."""
    monkeypatch.setenv("MS_ENABLE_GRACEFUL_EXIT", "1")


LOADERS = {"in place": "", "into new memory": "", "by MindSpore": "mindspore"}


@pytest.fixture(params=LOADERS)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each way of loading a file."""
    monkeypatch.setenv("CKPTSTORE_LOADER", LOADERS[request.param])
    if request.param == "into new memory":
        monkeypatch.setattr(resume, "places_of", lambda *_: {})
    return str(request.param)


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setenv("MS_ENABLE_TFT", "{TTP:1}")
    spec = importlib.util.spec_from_file_location("stand_in", STAND_IN)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(fault_tolerance._tft_handler, "tft", None)
    monkeypatch.setattr(fault_tolerance._tft_handler, "unregister_tft", lambda: None)
    return module


@pytest.fixture
def rank(catalog: Catalog, stand_in: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Rank:
    return Rank(catalog, stand_in, monkeypatch)
