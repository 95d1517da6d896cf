"""Two data-parallel ranks under msrun: the example, its demo, and a fault on one rank that the other profits from."""

from __future__ import annotations

import filecmp
import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from ckptstore.core.model import Kind
from ckptstore.ops.connect import connect

EXAMPLE = Path(__file__).parents[2] / "examples" / "digits"
pytestmark = pytest.mark.msrun


@pytest.fixture(scope="module")
def demo() -> ModuleType:
    """The demo, which knows how to start the example."""
    spec = importlib.util.spec_from_file_location("demo", EXAMPLE / "demo.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_demo_ends_with_identical_weights() -> None:
    done = subprocess.run([sys.executable, str(EXAMPLE / "demo.py")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("bit-identical") == 2
    assert "going on after step 40 (epoch 2, step 12 of 28)" in done.stdout


def test_the_breakpoint_of_one_rank_serves_both(demo: ModuleType, tmp_path: Path) -> None:
    """Rank 1 raises after step 41 and leaves a breakpoint; rank 0 is killed and leaves its save of step 40."""
    calm, rough = tmp_path / "calm", tmp_path / "rough"
    assert demo.train(calm) == 0
    assert demo.train(rough, chaos="raise rank=1 step=41") != 0
    plan = connect(str(rough / "catalog.db")).resolve("digits").plan
    assert plan is not None
    assert plan.global_step == 41
    assert [(item.rank, item.source.rank, item.source.kind) for item in plan.ranks] == [
        (0, 1, Kind.DYING_GASP),
        (1, 1, Kind.DYING_GASP),
    ]
    assert demo.train(rough) == 0
    for rank in range(2):
        assert filecmp.cmp(calm / f"final_{rank}.ckpt", rough / f"final_{rank}.ckpt", shallow=False)
