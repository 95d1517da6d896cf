"""Two nodes without a common disk, and a tier: a node that was replaced starts as if nothing had happened."""

import shutil
from pathlib import Path

import pytest

from ckptstore.api import connect
from ckptstore.core.copy_keys import key_of
from ckptstore.core.naming import companion_of
from ckptstore.objects.tiers import open_tier
from tests.conftest import new_postgres_database
from tests.mindspore.pods import Pods, may_have_nodes
from tests.mindspore.running import Run
from tests.tiers.jobs import copied, declared


@pytest.mark.long
@pytest.mark.msrun
@pytest.mark.skipif(not may_have_nodes(), reason="needs mount namespaces")
def test_a_replaced_node_starts_from_the_tier(tmp_path: Path, postgres: str) -> None:
    """Bit for bit as without the loss; the node that kept its disk reads nothing from the tier."""
    asked = {"nodes": True}
    calm = Pods(tmp_path / "calm", 2, url=new_postgres_database(postgres), asked=asked)
    rough = Pods(tmp_path / "rough", 2, url=new_postgres_database(postgres), asked=asked)
    calm.ends()
    catalog = connect(rough.url)
    tier = declared(catalog, tmp_path / "shared")
    with rough.launch("kill 17") as process:
        process.wait()
    store = open_tier(tier.url)
    for file in catalog.show("run", 15):
        node = rough.out / f"node-{file.rank}"
        copied(catalog, tier, [file], at=node / Path(file.path).relative_to(rough.out / "ckpt"))
        assert any(each.key.endswith(Path(companion_of(file.path)).name) for each in store.list())
        if file.rank == 0:
            store.remove(key_of(file))  # whoever read it would fail
    shutil.rmtree(rough.out / "node-1" / "rank_1")
    assert rough.ends()["global_step"] == 15
    for rank in range(2):
        assert rough.final(rank) == calm.final(rank)


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
