"""A job of two nodes, of which one loses its disk: the same for each kind of tier."""

import shutil
from pathlib import Path

from ckptstore.api import connect
from ckptstore.core.copy_keys import key_of
from ckptstore.core.naming import companion_of
from ckptstore.objects.tiers import open_tier
from tests.mindspore.pods import Pods
from tests.tiers.jobs import copied, declared


def goes_on_from(url: str, calm: Pods, rough: Pods) -> None:
    """Bit for bit as without the loss; the node that kept its disk reads nothing from the tier at this URL."""
    calm.ends()
    rough.out.mkdir()
    catalog = connect(rough.url or str(rough.out / "catalog.db"))
    tier = declared(catalog, url, "shared")
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
