"""Two data-parallel ranks under msrun: the example, its demo, and a fault on one rank that the other profits from."""

import filecmp
import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from ckptstore.api import connect
from ckptstore.core.model import Content, FileState, Kind
from tests.mindspore.running import Run, with_msrun
from tests.mindspore.scanning import scan_and_compare
from tests.postgres_server import free_port

EXAMPLE = Path(__file__).parents[2] / "examples" / "digits"
pytestmark = pytest.mark.msrun


@pytest.fixture(scope="module")
def demo() -> ModuleType:
    """The demo, which knows how to start the example."""
    spec = importlib.util.spec_from_file_location("demo", EXAMPLE / "demo.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.long  # `make demo` is it
def test_the_demo_ends_with_identical_weights(
    demo: ModuleType, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """As `make demo` runs it, but that its ranks have MindSpore imported already."""
    of_demo = demo.environment_of
    path = f"{with_msrun()['PATH']}{os.pathsep}{Path(sys.executable).parent}"
    monkeypatch.setattr(demo, "environment_of", lambda output: of_demo(output) | {"PATH": path})
    code = demo.main()
    shown, _ = capfd.readouterr()
    assert code == 0, shown
    assert shown.count("bit-identical") == 2
    after = (
        r"going on after step (40 \(epoch 2, step 12|35 \(epoch 2, step 7) of 28\)"  # 40 may not have been written yet
    )
    assert re.search(after, shown)


@pytest.mark.long
def test_the_breakpoint_of_one_rank_serves_both(demo: ModuleType, tmp_path: Path) -> None:
    """Rank 1 raises after step 41 and leaves a breakpoint; rank 0 is killed and leaves its save of step 40."""
    calm, rough = tmp_path / "calm", tmp_path / "rough"
    assert demo.train(calm) == 0
    assert demo.train(rough, chaos="raise rank=1 step=41") != 0
    plan = connect(str(rough / "catalog.db")).resolve("digits").plan
    assert plan.global_step == 41
    assert [(item.rank, item.source.rank, item.source.kind) for item in plan.ranks] == [
        (0, 1, Kind.DYING_GASP),
        (1, 1, Kind.DYING_GASP),
    ]
    assert demo.train(rough) == 0
    for rank in range(2):
        assert filecmp.cmp(calm / f"final_{rank}.ckpt", rough / f"final_{rank}.ckpt", shallow=False)


@pytest.mark.long
def test_shares_then_a_graceful_exit_of_both_ranks(tmp_path: Path) -> None:
    """Rank 1 is killed while the state is saved in shares (remove_redundancy); the next launch exits on request."""
    shares = {"remove_redundancy": True, "exception_save": False}
    asked = {"ranks": 2, "exits": True, "config": shares}
    calm, rough = Run(tmp_path / "calm"), Run(tmp_path / "rough")
    assert calm.launch(ranks=2, exits=True, config={**shares, "format": "safetensors"}).code == 0
    assert rough.launch(fault="kill 12", rank=1, **asked).code != 0
    plan = rough.catalog.resolve("run").plan
    assert [(plan.global_step, item.source.rank, item.source.content) for item in plan.ranks] == [
        (10, 0, Content.SHARE),
        (10, 1, Content.SHARE),
    ]
    left = rough.launch(fault="exit-flag 7", rank=0, **asked)
    assert (left.code, left.start["global_step"]) == (0, 10), left.output
    exits = rough.catalog.files("run", kind="graceful_exit")
    kept = [(file.global_step, file.rank) for file in exits if file.state is FileState.COMPLETE]
    step = kept[0][0]  # rank 1 may read the flag one step after rank 0: they leave together then
    assert step in (18, 19)
    assert kept == [(step, 0), (step, 1)]
    again = rough.launch(**asked)
    assert again.code == 0, again.output
    assert again.start["global_step"] == step
    for rank in range(2):
        assert rough.final(rank) == calm.final(rank)
    plan = scan_and_compare(calm.catalog, "run", calm.out, world_size=2).resolve("run").plan
    assert plan.in_shares  # a .safetensors says that it is one
    scan_and_compare(rough.catalog, "run", rough.out, world_size=2)


@pytest.fixture
def ttp(tmp_path: Path) -> Callable[..., int]:
    """Starts the TTP example on 4 ranks: its directory, and what the stand-in for the controller is told."""

    def start(name: str, fault: str = "") -> int:
        out = tmp_path / name
        (out / "log").mkdir(parents=True, exist_ok=True)
        subprocess.run([sys.executable, str(EXAMPLE / "data.py"), str(out / "data")], check=True, capture_output=True)
        environment = {"MS_ENABLE_TFT": "{TTP:1}", "TTP_FAULT": fault, "CKPTSTORE_URL": str(out / "catalog.db")}
        workers = ["--worker_num=4", "--local_worker_num=4", f"--master_port={free_port()}", "--join=True"]
        script = str(EXAMPLE.with_name("ttp") / "train.py")
        return subprocess.run(
            ["msrun", *workers, f"--log_dir={out / 'log'}", script, str(out)],
            env=os.environ | environment | with_msrun(),
            capture_output=True,
            check=False,
        ).returncode

    return start


@pytest.mark.long
def test_ttp_on_four_ranks_of_which_one_is_dead(ttp: Callable[..., int], tmp_path: Path) -> None:
    assert ttp("calm") == 0
    assert ttp("rough", fault="step=37 dead=1 savers=0,2,3") != 0
    plan = connect(str(tmp_path / "rough" / "catalog.db")).resolve("ttp").plan
    assert [(plan.global_step, item.rank, item.source.rank, item.source.kind) for item in plan.ranks] == [
        (37, 0, 0, Kind.TTP),
        (37, 1, 0, Kind.TTP),
        (37, 2, 2, Kind.TTP),
        (37, 3, 3, Kind.TTP),
    ]
    live = connect(str(tmp_path / "rough" / "catalog.db"))
    # A single save is no witness of times: its files are kept apart, and the user's word makes each of them serve all.
    scan_and_compare(live, "ttp", tmp_path / "rough", world_size=4, replicas="dp", same_files=False)
    assert ttp("rough") == 0
    for rank in range(4):
        assert filecmp.cmp(tmp_path / f"calm/final_{rank}.ckpt", tmp_path / f"rough/final_{rank}.ckpt", shallow=False)
