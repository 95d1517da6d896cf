"""Two nodes and a bucket: a node that was replaced starts from the bucket, the other one from its own disk."""

import shutil
from datetime import timedelta
from pathlib import Path

from ckptstore.api import connect
from ckptstore.core.copy_keys import key_of
from ckptstore.objects.store import Store
from ckptstore.replicate.replicator import Replicator
from ckptstore.retention import in_tier
from ckptstore.retention.policy import Policy
from ckptstore.tiers import facts
from ckptstore.verify import in_tier as verifying
from tests.objects.server.jobs import saved

AT_ONCE = timedelta(0)


def test_a_replaced_node_starts_from_the_bucket(store: Store, tmp_path: Path) -> None:
    catalog = connect(str(tmp_path / "catalog.db"))
    catalog.runs()
    facts.add(catalog.database, facts.tier_of("s3", store.name))
    kept, lost = saved(catalog, tmp_path, 2, 1 << 20)
    content = Path(lost.path).read_bytes()
    assert Replicator(catalog.database).round("run", settled_for=AT_ONCE).files == 4
    store.remove(key_of(kept))  # whoever read it would fail
    shutil.rmtree(tmp_path / "node1")
    ranks = [catalog.join("run", rank=rank, world_size=2, launch_id="L2", layout="stand_alone") for rank in (0, 1)]
    first, second = (launch.resolve() for launch in ranks)
    assert (first.global_step, second.global_step) == (2, 2)
    assert first.ranks[0].source.path == kept.path
    assert Path(second.ranks[1].source.path).read_bytes() == content


def test_gc_undo_purge_and_verify_in_a_bucket(store: Store, tmp_path: Path) -> None:
    catalog = connect(str(tmp_path / "catalog.db"))
    catalog.runs()
    tier = facts.tier_of("s3", store.name)
    facts.add(catalog.database, tier)
    newest = saved(catalog, tmp_path, 3, 1000)
    Replicator(catalog.database).round("run", settled_for=AT_ONCE)
    policy = Policy(keep_last=1, floor=1)
    for _ in range(2):
        assert in_tier.execute(catalog.database, in_tier.plan_tier(catalog.database, "run", tier, policy)).copies == 4
        assert in_tier.undo(catalog.database, "run", tier).copies == 4
    assert verifying.verify(catalog.database, "run", tier, digest=True).checked == 6
    in_tier.execute(catalog.database, in_tier.plan_tier(catalog.database, "run", tier, policy))
    assert in_tier.purge(catalog.database, "run", tier, at_once=True).purged == 4
    left = {each.key for each in store.list() if "/journals/" not in each.key}
    assert left == {key_of(file) for file in newest}
