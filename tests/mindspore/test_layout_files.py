"""The registrar keeps the files that MindSpore writes when it compiles, and none that was there before."""

from collections.abc import Iterator
from pathlib import Path

import mindspore as ms
import pytest
from mindspore.train import Callback

from ckptstore.api import connect
from ckptstore.mindspore.launch import TrainingLaunch
from tests.formats.layouts import write_group_info, write_spreads
from tests.jobs import known_of
from tests.mindspore.trainings import create_dataset, create_model, saving
from tests.spreads import spread


class Compiler(Callback):
    """Writes, once, what MindSpore writes when it compiles for several devices, which the CPU cannot."""

    def __init__(self, *writes: object) -> None:
        super().__init__()
        self.writes = writes

    def on_train_step_begin(self, run_context: object) -> None:
        for write in self.writes:
            write()
        self.writes = ()


@pytest.fixture
def named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Path, Path]]:
    strategy, group_info = tmp_path / "strategy.ckpt", tmp_path / "group_info.pb"
    ms.set_auto_parallel_context(strategy_ckpt_save_file=str(strategy))
    monkeypatch.setenv("GROUP_INFO_FILE", str(group_info))
    yield strategy, group_info
    ms.reset_auto_parallel_context()


def train(sqlite_url: str, tmp_path: Path, *writes: object) -> TrainingLaunch:
    """Rank 0 of 2, as far as the catalog is told."""
    joined = connect(sqlite_url).join("run", rank=0, world_size=2, launch_id="L1")
    launch = TrainingLaunch(joined.database, joined.facts, 0)
    model, dataset = create_model(), create_dataset(6)
    ckpt_cb = saving(tmp_path / "ckpt")
    model.train(1, dataset, callbacks=[Compiler(*writes), ckpt_cb, launch.registrar(ckpt_cb)])
    launch.facts = known_of(launch)
    return launch


def test_what_was_written_when_the_step_was_compiled(sqlite_url: str, tmp_path: Path, named: tuple[Path, Path]) -> None:
    strategy, group_info = named
    write_group_info(group_info, {}, [0])  # of an earlier launch, and overwritten
    launch = train(
        sqlite_url,
        tmp_path,
        lambda: write_spreads(strategy, 0, [spread(grid=(2,))]),
        lambda: write_group_info(group_info, {}, [0, 1]),
    )
    assert launch.facts.layout.to_json() == {"source": "strategy", "groups": [[0, 1]]}


def test_a_file_of_an_earlier_launch_is_left(sqlite_url: str, tmp_path: Path, named: tuple[Path, Path]) -> None:
    write_spreads(named[0], 0, [spread(grid=(2,))])
    launch = train(sqlite_url, tmp_path)
    assert launch.facts.layout.to_json() == {"source": "stand_alone", "groups": []}
    assert [file.global_step for file in connect(sqlite_url).files("run")] == [2]
