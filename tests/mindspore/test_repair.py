"""MindSpore goes back in the same process, by its own `_handle_tft`: which states are wrong then, and which are not."""

import random
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import mindspore as ms
import pytest
from mindspore.train import Callback, CheckpointConfig, ModelCheckpoint
from mindspore.train import model as mindspore_model

from ckptstore.api import Catalog, connect
from ckptstore.core.model import Checkpoint, Kind
from ckptstore.mindspore.launch import TrainingLaunch
from ckptstore.training import companions
from ckptstore.training.recorder_thread import RecorderThread
from tests.mindspore.trainings import create_dataset, create_model

WENT_BACK = "MindSpore found a wrong result (TREError) and went back from it to step 4"
WRONG = "MindSpore found a wrong result (TREError)"


class Fault(Callback):
    """An exception after step 9; once training has gone back and done step 6 again, `look` sees what is known then."""

    def __init__(self, error: str, look: Any) -> None:
        super().__init__()
        self.error, self.look, self.is_over = error, look, False

    def on_train_step_end(self, run_context: Any) -> None:
        random.random()  # noqa: S311 — for a companion there must be something to keep
        step = run_context.original_args().cur_step_num
        if step == 9 and not self.is_over:
            self.is_over = True
            raise RuntimeError(self.error)
        if step == 6 and self.is_over:
            self.look()


class Job:
    """A run of 18 steps, 6 an epoch, that saves after each fourth; after its fault MindSpore goes back to step 4."""

    def __init__(self, catalog: Catalog, stand_in: ModuleType, monkeypatch: pytest.MonkeyPatch, out: Path) -> None:
        self.catalog, self.stand_in, self.monkeypatch, self.out = catalog, stand_in, monkeypatch, out
        self.at_6: list[tuple[int, dict[str, str]]] = []
        monkeypatch.setattr(mindspore_model, "clean_tdt_channel", lambda: None)  # only an Ascend has one
        monkeypatch.setattr(stand_in.OnCpu, "_reset_acc_grads", lambda _: None)

    def train(self, error: str, tft: str, *, exception_save: bool = True, **how: Any) -> None:
        self.monkeypatch.setenv("MS_ENABLE_TFT", tft)
        joined = self.catalog.join("run", launch_id="L1")
        launch = TrainingLaunch(joined.database, joined.facts, 0)
        model, dataset = create_model(), create_dataset()
        launch.resume(model, dataset)
        self.network = model.train_network
        config = CheckpointConfig(
            save_checkpoint_steps=4,
            keep_checkpoint_max=100,
            append_info=["epoch_num", "step_num"],
            exception_save=exception_save,
        )
        ckpt_cb = ModelCheckpoint("net", str(self.out), config)
        tft_cb = self.stand_in.install()(
            str(self.out / "ttp"), ckpt_load_fn=lambda: (ms.load_checkpoint(f"{self.out}/net-1_4.ckpt"), False)
        )
        hardware = SimpleNamespace(value="hardware")
        tft_cb.tft.ReportState = SimpleNamespace(RS_UCE=hardware, RS_HCCL_FAILED=hardware, RS_UNKNOWN=hardware)
        tft_cb.tft.Action = SimpleNamespace(EXIT=SimpleNamespace(value="exit"))
        tft_cb.tft.tft_get_repair_step = lambda: 4
        registrar = launch.registrar(ckpt_cb, tft_cb, **how)
        fault = Fault(error, lambda: self.look(registrar._session.recorder))
        model._initial_step = 0
        model.train(3, dataset, callbacks=[fault, ckpt_cb, tft_cb, registrar])
        assert launch.global_step == 18

    def look(self, recorder: RecorderThread) -> None:
        """What the next start would find, by the catalog and by the journals, if this process were killed now."""
        assert recorder.flush(60)
        for known in (self.catalog, self.by_journals()):
            self.at_6.append((known.resolve("run").plan.global_step, quarantined(known.files("run"))))

    def by_journals(self) -> Catalog:
        """A catalog that knows nothing but what the journals tell."""
        rebuilt = connect(f"sqlite:///{self.out}/rebuilt.db")
        rebuilt.sync(self.out)
        return rebuilt


def quarantined(files: list[Checkpoint]) -> dict[str, str]:
    return {Path(file.path).name: file.quarantine for file in files if file.quarantine}


@pytest.fixture
def job(catalog: Catalog, stand_in: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Job:
    return Job(catalog, stand_in, monkeypatch, tmp_path / "ckpt")


@pytest.mark.parametrize("breakpoints", [{}, {"net-2_3_breakpoint.ckpt": WRONG}])
def test_what_came_before_a_wrong_result_is_quarantined_until_it_is_saved_again(
    job: Job, breakpoints: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    job.train("TREError: training result error", "{TRE:1,TTP:1}", exception_save=bool(breakpoints))
    for step, wrong in job.at_6:
        assert step == 4
        assert wrong == {"net-2_2.ckpt": WENT_BACK, **breakpoints}
    assert len(job.at_6) == 2
    assert f"all that this launch saved after step 4 is quarantined: {WENT_BACK}" in caplog.messages
    for known in (job.catalog, job.by_journals()):
        assert [file.quarantine for file in known.show("run", 8)] == [""]
        assert known.resolve("run", step=8).plan.global_step == 8


def test_what_is_saved_again_has_a_companion_of_its_own(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of step 8 was written for the record of the wrong one, and of no use."""
    wrong: list[Checkpoint] = []

    def look(*_: object) -> None:
        wrong.extend(job.catalog.show("run", 8))
        job.network.trainable_params()[0].set_data(job.network.trainable_params()[0] + 1)

    monkeypatch.setattr(job, "look", look)
    job.train("TREError: training result error", "{TRE:1,TTP:1}")
    files = [file for step in (8, 12, 16) for file in job.catalog.show("run", step)]
    assert files[0].digest != wrong[0].digest
    assert [companions.read(file).problem for file in files] == [""] * 3
    assert all(companions.read(file).content for file in files)


def test_the_state_of_a_wrong_result_is_quarantined_where_it_is_saved_all_the_same(job: Job) -> None:
    job.train("TREError: training result error", "{TRE:1,TTP:1}", save_on_exception=True)
    assert [step for step, _ in job.at_6] == [4, 4]
    assert {file.kind: file.quarantine for file in job.catalog.show("run", 9)}[Kind.DYING_GASP] == WRONG


@pytest.mark.parametrize("error", ["UCEError: a bit of the memory", "HCCEError: a link"])
def test_hardware_that_failed_makes_no_saved_state_wrong(job: Job, error: str) -> None:
    job.train(error, "{UCE:1,TTP:1}")
    for step, wrong in job.at_6:
        assert step == 9  # MindSpore's breakpoint
        assert wrong == {}
    assert len(job.at_6) == 2
