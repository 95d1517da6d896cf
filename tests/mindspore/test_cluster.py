"""A node is drained: the preStop hook asks, SIGTERM follows, then SIGKILL. Each rank is a pod."""

from pathlib import Path

import psutil
import pytest

from tests.conftest import new_postgres_database
from tests.mindspore.pods import Pods, may_have_nodes, until


@pytest.mark.long
@pytest.mark.msrun
@pytest.mark.parametrize("ranks", [2, 4])
def test_a_drained_pod(tmp_path: Path, ranks: int) -> None:
    """First the grace is too short for the step that the ranks are in, then it is long enough."""
    calm, rough = Pods(tmp_path / "calm", ranks), Pods(tmp_path / "rough", ranks)
    calm.ends()
    drained = ranks - 1
    with rough.launch("waits 17") as process:
        pids = rough.all_in_step()
        said = rough.pre_stop(drained, grace=1)
        assert said.code == 8, said
        assert said.out.splitlines()[-1].startswith(f"run run has not left in time: ranks 0-{drained} saved nothing")
        assert said.out.endswith("a restart goes on after step 15\n")
        (rough.out / "go").touch()
        said = rough.pre_stop(drained)
        assert said.code == 0, said
        rough.evict(pids[drained])
        until(lambda: not any(map(psutil.pid_exists, pids.values())) or process.poll() is not None)
    lines = said.out.splitlines()
    assert f"asked to save and leave, by a request in {ranks} directories and in the catalog" in lines[0]
    step = int(lines[-1].removeprefix("run run has left: a restart goes on after step "))
    assert 17 <= step < 60
    again = rough.pre_stop(drained)
    assert (again.code, "there is nothing to stop" in again.out) == (0, True)
    assert rough.ends()["global_step"] == step
    for rank in range(ranks):
        assert rough.final(rank) == calm.final(rank)


@pytest.mark.long
@pytest.mark.msrun
@pytest.mark.skipif(not may_have_nodes(), reason="needs mount namespaces")
def test_nodes_that_share_no_disk(tmp_path: Path, postgres: str) -> None:
    """Two mount namespaces, one path: each rank restores from its own disk, and what one has lost is not mixed."""
    asked = {"nodes": True}
    calm = Pods(tmp_path / "calm", 2, url=new_postgres_database(postgres), asked=asked)
    rough = Pods(tmp_path / "rough", 2, url=new_postgres_database(postgres), asked=asked)
    calm.ends()
    with rough.launch("kill 17") as process:
        process.wait()
    assert [path.name for path in (rough.out / "ckpt").iterdir()] == []
    assert [path.name for path in sorted((rough.out / "node-1").iterdir())] == ["rank_1"]
    with rough.launch("kill 7") as process:
        process.wait()
    log = (rough.out / "log" / "worker_0.log").read_text(errors="replace")
    assert '"global_step": 15' in log
    assert "each loads one that its own host has (2 of 2 said what they see)" in log
    (lost,) = (rough.out / "node-1" / "rank_1").glob("CKP*-2_10.safetensors")
    lost.unlink()
    assert rough.ends()["global_step"] == 15
    path = rough.out / "ckpt" / "rank_0" / lost.name
    assert f"on node-1: rsync -a --mkpath 'node-0:{path.with_suffix('.*')}' {path.parent}/" in rough.output
    for rank in range(2):
        assert rough.final(rank) == calm.final(rank)
