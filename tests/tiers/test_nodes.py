"""Two nodes without a common disk, and a tier: a node that was replaced starts as if nothing had happened."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ckptstore.api import connect
from tests.conftest import new_postgres_database
from tests.mindspore.pods import Pods, may_have_nodes
from tests.mindspore.running import Run
from tests.tiers.jobs import declared
from tests.tiers.replaced_node import goes_on_from


def on_two_nodes(out: Path, postgres: str) -> Pods:
    """A job on two nodes without a common disk, with a catalog in PostgreSQL."""
    return Pods(out, 2, url=new_postgres_database(postgres), asked={"nodes": True})


@pytest.mark.long
@pytest.mark.msrun
@pytest.mark.skipif(not may_have_nodes(), reason="needs mount namespaces")
def test_a_replaced_node_starts_from_the_tier(tmp_path: Path, postgres: str) -> None:
    """The tier is a shared directory."""
    calm, rough = (on_two_nodes(tmp_path / name, postgres) for name in ("calm", "rough"))
    goes_on_from(str(tmp_path / "shared"), calm, rough)


def on_node(job: Pods, rank: int, *words: str) -> str:
    """What a command prints on the node of a rank, which has its own name, and sees its own disk only."""
    mount = 'hostname node-"$2"; mount --bind "$1/node-$2" "$1/ckpt"; shift 2; exec "$@"'
    command = [sys.executable, "-m", "ckptstore", "--db", job.url, *words]
    told = ["unshare", "-mu", "sh", "-ec", mount, "sh", str(job.out), str(rank), *command]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    return subprocess.run(told, env=environment, capture_output=True, text=True, check=True).stdout


@pytest.mark.long
@pytest.mark.msrun
@pytest.mark.skipif(not may_have_nodes(), reason="needs mount namespaces")
def test_each_node_frees_its_disk_and_the_job_goes_on(tmp_path: Path, postgres: str) -> None:
    calm, rough = (on_two_nodes(tmp_path / name, postgres) for name in ("calm", "rough"))
    calm.ends()
    rough.out.mkdir()
    declared(connect(rough.url), tmp_path / "shared")
    declared(connect(rough.url), rough.out / "ckpt", "local", 0)
    with rough.launch("kill 17") as process:
        process.wait()
    for rank in (0, 1):
        assert "3 files copied" in on_node(rough, rank, "replicate", "run")
    rules = ("--keep-last", "1", "--floor", "1", "--apply")
    for rank in (0, 1):
        assert "of 2 states deleted" in on_node(rough, rank, "gc", "run", "--tier", "local", *rules, "--now")
        assert [path.name for path in (rough.out / f"node-{rank}").rglob("CKP*.safetensors")] == ["CKP-2_5.safetensors"]
    assert "1 state stays, 2 go" in on_node(rough, 0, "gc", "run", "--tier", "shared", *rules)
    assert rough.ends()["global_step"] == 15
    for rank in (0, 1):
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
