"""Two nodes without a common disk that train with MindSpore, and a bucket."""

from pathlib import Path

import pytest

from ckptstore.objects.store import Store
from tests.mindspore.pods import Pods, may_have_nodes
from tests.tiers.replaced_node import goes_on_from


@pytest.mark.long
@pytest.mark.skipif(not may_have_nodes(), reason="needs mount namespaces")
def test_a_replaced_node_starts_from_the_bucket(store: Store, tmp_path: Path) -> None:
    goes_on_from(store.name, *(Pods(tmp_path / name, 2, asked={"nodes": True}) for name in ("calm", "rough")))
