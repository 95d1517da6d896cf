"""Agents that copy to a real server: they share the work, outlive its failures, and what they copied is enough."""

import logging
import shutil
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from ckptstore.api import Catalog, connect
from ckptstore.objects.store import PIECE, Store
from ckptstore.replicate import replicator as replicating
from ckptstore.replicate.replicator import Replicator
from ckptstore.tiers import facts
from ckptstore.tiers.fetch import Fetched
from tests.objects.server.faults import Faults
from tests.objects.server.jobs import saved
from tests.objects.server.swift import Swift

AT_ONCE = timedelta(0)
AGENT = """
import sys
from datetime import timedelta
from ckptstore.api import connect
from ckptstore.replicate.replicator import Replicator

print("ready", flush=True)
sys.stdin.readline()
done = Replicator(connect(sys.argv[1]).database).round("run", settled_for=timedelta(0))
print(done.files, done.held)
"""


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    return connect(str(tmp_path / "catalog.db"))


def test_what_was_copied_is_enough_without_the_nodes_and_the_catalog(
    catalog: Catalog, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replicating, "_RENEW_SECONDS", 0)  # a sign with each piece, on the thread that asks for it
    catalog.runs()
    facts.add(catalog.database, facts.tier_of("s3", store.name))
    files = saved(catalog, tmp_path / "nodes", 2, PIECE + 2)
    assert Replicator(catalog.database).round(settled_for=AT_ONCE).files == 4
    kept = {file.rank: Path(file.path).read_bytes() for file in files}
    shutil.rmtree(tmp_path / "nodes")
    again = connect(str(tmp_path / "again.db"))
    again.scan(store.name, into=tmp_path / "back")
    plan = again.resolve("run").plan
    assert plan.global_step == 2
    here = Fetched().local(again.database, plan, [each.source for each in plan.ranks])
    assert {each.rank: Path(each.source.path).read_bytes() for each in here.ranks} == kept


def test_several_agents_share_the_work(
    catalog: Catalog, faults: Faults, use: Callable[[str], Store], tmp_path: Path
) -> None:
    store = use(faults.endpoint)
    catalog.runs()
    facts.add(catalog.database, facts.tier_of("s3", store.name))
    saved(catalog, tmp_path / "nodes", 4, 1 << 20)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    command = [sys.executable, "-c", AGENT, str(tmp_path / "catalog.db")]
    agents = [subprocess.Popen(command, **pipes) for _ in range(3)]  # type: ignore[call-overload]
    for agent in agents:
        assert agent.stdout.readline() == b"ready\n"
    before = faults.sent
    for agent in agents:
        agent.stdin.write(b"\n")
        agent.stdin.flush()
    told = [tuple(map(int, agent.communicate()[0].split())) for agent in agents]
    assert sum(files for files, _ in told) >= 8
    assert facts.lacking(catalog.database, "run", facts.named(catalog.database, "s3")) == []
    assert faults.sent - before < 8 * (1 << 20) * 1.2  # each file went up once


def test_a_server_that_goes_away_and_comes_back(
    catalog: Catalog, own: Swift, use: Callable[[str], Store], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "ckptstore")
    store = use(own.endpoint)
    catalog.runs()
    facts.add(catalog.database, facts.tier_of("s3", store.name))
    saved(catalog, tmp_path / "nodes", 2, 1000)
    agent = Replicator(catalog.database)
    own.kill()
    for _ in range(2):
        assert agent.round(settled_for=AT_ONCE).files == 0
        agent.stop.wait(agent.rests())
    own.start()
    agent.stop.wait(agent.rests())
    assert agent.round(settled_for=AT_ONCE).files == 4
    said = [each.message for each in caplog.records if "s3" in each.message]
    assert len(said) == 2
    assert "no connection" in said[0]
    assert said[1] == "tier s3 takes copies again"
