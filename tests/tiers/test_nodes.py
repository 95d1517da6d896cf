"""Two nodes without a common disk, and a tier: a node that was replaced starts as if nothing had happened."""

import shutil
from pathlib import Path

import pytest

from tests.conftest import new_postgres_database
from tests.mindspore.pods import Pods, may_have_nodes
from tests.mindspore.running import Run
from tests.tiers.replaced_node import goes_on_from


@pytest.mark.long
@pytest.mark.msrun
@pytest.mark.skipif(not may_have_nodes(), reason="needs mount namespaces")
def test_a_replaced_node_starts_from_the_tier(tmp_path: Path, postgres: str) -> None:
    """The tier is a shared directory, and the catalog is in PostgreSQL."""
    asked = {"nodes": True}
    calm = Pods(tmp_path / "calm", 2, url=new_postgres_database(postgres), asked=asked)
    rough = Pods(tmp_path / "rough", 2, url=new_postgres_database(postgres), asked=asked)
    goes_on_from(str(tmp_path / "shared"), calm, rough)


@pytest.mark.long
@pytest.mark.parametrize("saves", ["ModelCheckpoint", "launch.saver"])
def test_a_job_copies_what_it_saves_and_goes_on_from_the_copies(tmp_path: Path, saves: str) -> None:
    calm, rough = (Run(tmp_path / name, saves=saves) for name in ("calm", "rough"))
    assert calm.launch().code == 0
    given = {"tiers": {"shared": str(tmp_path / "shared")}}
    asked = {"registrar": given, "saver": given}
    assert rough.launch(epochs=1, **asked).code == 0
    shutil.rmtree(rough.out / "ckpt")
    rough.again(step=10, **asked)
    assert rough.final() == calm.final()
    assert not list((rough.out / "ckpt").rglob("fetched/*"))
