"""What a node has is copied to the tiers that lack it: once, whole, and whatever fails stops nothing else."""

import json
import logging
import os
import subprocess
import sys
import threading
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from ckptstore.api import Catalog, connect
from ckptstore.catalog import copies, copying
from ckptstore.catalog.engine import clock
from ckptstore.catalog.tables import checkpoints
from ckptstore.cli.main import cli
from ckptstore.core.copies import Beside, CopyState
from ckptstore.core.model import Checkpoint, Content, FileState
from ckptstore.disk.owner import this_process
from ckptstore.errors import UnknownRunError, UsageError
from ckptstore.journal.recorder import shared
from ckptstore.objects.directory import DirectoryStore
from ckptstore.objects.errors import DeniedError, UnreachableError
from ckptstore.objects.tiers import open_tier
from ckptstore.outside import utc_now
from ckptstore.replicate import copy_thread, copy_up
from ckptstore.replicate import replicator as replicating
from ckptstore.replicate.copy_thread import CopyThread
from ckptstore.replicate.copy_up import Rate
from ckptstore.replicate.replicator import Done, Replicator, StoppedError
from ckptstore.tiers import facts
from ckptstore.training import companions
from ckptstore.verify import in_tier
from tests import ckpt_bytes
from tests.command_line import no_right_to_pass_by_permissions
from tests.jobs import Job, begun
from tests.replicate.rounds import AT_ONCE, copies_below, files_below, one_round, states
from tests.tiers.jobs import declared


def test_what_a_tier_lacks_is_copied_with_what_belongs_to_it_and_not_again(
    catalog: Catalog, other: Catalog, tmp_path: Path
) -> None:
    far = declared(catalog, tmp_path / "far")
    job, ranks = begun(catalog, tmp_path / "ckpt", 5)
    files = job.save(ranks, 10)
    companions.write(files[0], {"kept": 1}, durable=False)
    assert one_round(catalog).files == 4
    assert states(catalog, files) == [[CopyState.READY]] * 2
    assert one_round(catalog) == Done()
    store = open_tier(far.url)
    for known in (catalog, other):
        known.scan(tmp_path / "ckpt")
        with known.database.read() as connection:
            (copy,) = copies.copies_of(connection, [files[0].id])[files[0].id]
        assert copy.is_of(files[0].digest)
        target = tmp_path / f"fetched-{known is other}"
        store.get(copy.key, str(target / "net.ckpt"), copy.size or 0, copy.digest or "")
        assert (target / "net.ckpt").read_bytes() == Path(files[0].path).read_bytes()
        (beside,) = copy.beside
        store.get(beside.key, str(target / beside.name), beside.size, beside.digest)
        assert json.loads((target / beside.name).read_text())["content"]["kept"] == 1
    assert len(copies_below(tmp_path / "far")) == 3  # both ranks have the same bytes under one name: one object


def test_names_that_are_too_long_for_a_file_system_are_copied(catalog: Catalog, tmp_path: Path) -> None:
    """Escaped, they have more than 255 bytes: the tier counted as unreachable, and no later run was copied."""
    far = declared(catalog, tmp_path / "far")
    job = Job(catalog, tmp_path / "long", 1, run="lr=0.001,bs=32," * 12)
    later = Job(catalog, tmp_path / "z", 1, run="z")
    (rank,) = job.begin()
    file = rank.register(job.write(rank, 10, name="=" * 200 + ".ckpt"), global_step=10, optimizer_step=10)
    content = Path(file.path).read_bytes()
    (other,) = later.save(later.begin(), 10)
    assert one_round(catalog).files == 2
    assert states(catalog, [file, other]) == [[CopyState.READY]] * 2
    Path(file.path).unlink()
    plan = catalog.resolve(job.run).plan
    assert [copy.tier.name for some in plan.copies.values() for copy in some] == [far.name]
    (loaded,) = rank.fetched(plan).ranks
    assert Path(loaded.source.path).read_bytes() == content


@pytest.mark.of_files
def test_a_file_is_copied_to_tiers_that_are_farther_than_where_it_lies(catalog: Catalog, tmp_path: Path) -> None:
    declared(catalog, tmp_path / "ckpt", "near", 1)
    declared(catalog, tmp_path / "nodes", "local", 0)
    declared(catalog, tmp_path / "far", "far", 2)
    begun(catalog, tmp_path / "ckpt", 5)
    assert one_round(catalog).files == 2
    assert files_below(tmp_path / "nodes") == []
    assert len(copies_below(tmp_path / "far")) == 1


def test_files_of_the_last_moments_are_waited_for(catalog: Catalog, tmp_path: Path) -> None:
    """Also where the clock of the node that recorded them is ahead. Files of other nodes take no time."""
    declared(catalog, tmp_path / "far")
    job, ranks = begun(catalog, tmp_path / "ckpt", 5)
    elsewhere, _ = job.save(ranks, 10)
    Path(elsewhere.path).unlink()
    waited: list[float] = []
    agent = Replicator(catalog.database)
    agent.stop = SimpleNamespace(wait=waited.append, is_set=lambda: False)  # type: ignore[assignment]
    done = agent.round(settled_for=timedelta(hours=1))
    assert (done.files, done.elsewhere) == (3, 1)
    assert [round(seconds, -2) for seconds in waited] == [3600] * 3
    ahead = [replace(file, created_at=utc_now() + timedelta(hours=9)) for file in catalog.files("run")]
    assert [*agent._settled(ahead, timedelta(hours=1))] == ahead
    assert max(waited) <= 3600


@pytest.mark.of_files
def test_a_file_that_changed_is_not_copied_and_said_once(
    catalog: Catalog, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    declared(catalog, tmp_path / "far")
    job, ranks = begun(catalog, tmp_path / "ckpt")
    files = job.save(ranks, 5)
    path = Path(files[0].path)
    whole = path.read_bytes()
    path.chmod(0o600)
    path.write_bytes(bytes([whole[0] ^ 1]) + whole[1:])
    agent = Replicator(catalog.database)
    done = agent.round(settled_for=AT_ONCE)
    assert (done.files, [each.path for each in done.troubles]) == (1, [str(path)])
    assert states(catalog, files) == [[CopyState.FAILED], [CopyState.READY]]
    assert agent.round(settled_for=AT_ONCE) == Done()
    assert len([each for each in caplog.records if "is not the file that was recorded" in each.message]) == 1
    path.write_bytes(whole)
    os.utime(path, ns=(files[0].mtime_ns or 0, files[0].mtime_ns or 0))
    assert agent.round(settled_for=AT_ONCE).files == 1
    assert states(catalog, files) == [[CopyState.READY]] * 2


@pytest.mark.of_files
def test_a_companion_that_is_written_anew_meanwhile_is_read_again(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    declared(catalog, tmp_path / "far")
    job, ranks = begun(catalog, tmp_path / "ckpt", world_size=1)
    (file,) = job.save(ranks, 5)
    companions.write(file, {"kept": 1}, durable=False)
    real = copy_up._beside

    def beside(of: Checkpoint) -> list[Beside]:
        found = real(of)
        monkeypatch.setattr(copy_up, "_beside", real)
        companions.write(file, {"kept": 22}, durable=False)
        return found

    monkeypatch.setattr(copy_up, "_beside", beside)
    assert one_round(catalog).files == 1
    (copied,) = (each for each in copies_below(tmp_path / "far") if each.endswith(".companion"))
    assert json.loads((tmp_path / "far" / copied).read_text())["content"]["kept"] == 22


@pytest.mark.of_files
def test_a_tier_that_fails_rests_is_said_once_and_stops_no_other(
    catalog: Catalog, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    declared(catalog, tmp_path / "mnt" / "shared", "shared", 1)
    declared(catalog, tmp_path / "far", "far", 2)
    begun(catalog, tmp_path / "ckpt", 5, 10)
    (tmp_path / "mnt").rename(tmp_path / "not-mounted")
    now = 1000.0
    monkeypatch.setattr(replicating, "time", SimpleNamespace(monotonic=lambda: now))
    agent = Replicator(catalog.database)
    done = agent.round(settled_for=AT_ONCE)
    assert (done.files, [each.path for each in done.troubles]) == (4, ["shared"])
    assert 0.5 <= agent.rests() <= 1
    assert agent.round(settled_for=AT_ONCE) == Done()  # it rests: nothing is tried
    now += 400
    assert len(agent.round(settled_for=AT_ONCE).troubles) == 1
    assert 1 <= agent.rests() <= 2
    (tmp_path / "not-mounted").rename(tmp_path / "mnt")
    now += 400
    assert agent.round(settled_for=AT_ONCE).files == 4
    messages = [each.message for each in caplog.records if "shared" in each.message]
    assert len(messages) == 2
    assert "perhaps it is not mounted" in messages[0]
    assert messages[1] == "tier shared takes copies again"


@pytest.mark.of_files
def test_the_companion_of_another_checkpoint_goes_with_no_file_without_an_ending(
    catalog: Catalog, tmp_path: Path
) -> None:
    """Before, `bert.v1/rank_0/model` was taken to have `bert.companion` beside it, and was not copied."""
    declared(catalog, tmp_path / "far")
    job, (rank,) = begun(catalog, tmp_path / "bert.v1", world_size=1)
    rank.register(job.write(rank, 5, name="model"), global_step=5)
    (tmp_path / "bert.companion").write_text("of bert.ckpt")
    done = one_round(catalog)
    assert (done.files, done.troubles) == (1, [])


@pytest.mark.of_files
def test_a_folder_in_a_tier_that_may_not_be_written_to_keeps_no_other_file_away(
    catalog: Catalog, tmp_path: Path
) -> None:
    """Before, the tier rested at once, and the same file was the first of every later command too."""
    declared(catalog, tmp_path / "far")
    job, ranks = begun(catalog, tmp_path / "ckpt", 5)
    files = job.save(ranks, 10)
    begun(catalog, tmp_path / "other", 5, run="z")
    closed = tmp_path / "far/run/L1/10"
    closed.mkdir(parents=True)
    closed.chmod(0o555)
    url = catalog.database.url.render_as_string(hide_password=False)
    program = (
        "import sys; from ckptstore.api import connect; from tests.replicate.rounds import one_round;"
        "done = one_round(connect(sys.argv[1])); print(done.files, *(each.path for each in done.troubles))"
    )
    command = [*no_right_to_pass_by_permissions(), sys.executable, "-c", program, url]
    told = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2])
    assert told.stdout.split() == ["4", *(file.path for file in files)]


def test_a_file_that_a_tier_refuses_waits_in_training_until_it_takes_it(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Before, training gave it up at once, and its end did not say that it is not copied."""
    far = declared(catalog, tmp_path / "far")
    job, ranks = begun(catalog, tmp_path / "ckpt")
    (file, _) = job.save(ranks, 5)
    monkeypatch.setattr(replicating, "_BAD_SECONDS", 0.0)
    thread, agent = CopyThread(catalog.database, [far]), Replicator(catalog.database)
    with monkeypatch.context() as refuses:
        refuses.setattr(DirectoryStore, "put", lambda *_: _fail(DeniedError("this user may not write there", "")))
        thread.file_registered(file)
        assert thread.finish(60) == 1
        assert agent.copy(file, [far]) == [far]
    assert "1 file is not copied" in caplog.text
    assert agent.copy(file, [far]) == []
    assert states(catalog, [file]) == [[CopyState.READY]]


def test_one_of_several_copies_a_file(catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    far = declared(catalog, tmp_path / "far")
    job, ranks = begun(catalog, tmp_path / "ckpt")
    paths = [ckpt_bytes.write(job.write(rank, 5), 5, 5 + rank.rank) for rank in ranks]  # each has other bytes
    files = [rank.register(path, global_step=5) for rank, path in zip(ranks, paths, strict=True)]
    another, dead = this_process(), "host|1|1|x@"

    def take(process: str, seconds: float, *, is_dead: bool = False) -> bool:
        with catalog.database.write() as connection:
            now = clock(connection)
            until = now + timedelta(seconds=seconds)
            return copying.take(connection, files[0], far, process, now=now, until=until, is_dead=lambda _: is_dead)

    assert take(another, 60)
    assert not take(dead, 60)
    done = one_round(catalog)
    assert (done.files, done.held) == (1, 1)
    assert take(dead, 60, is_dead=True)  # who held it has died
    assert take(another, -60, is_dead=True)
    with catalog.database.write() as connection:
        assert not copying.renew(connection, files[0], far, dead, until=clock(connection))
    assert one_round(catalog).files == 1  # it gave no sign for a while
    assert take(another, 60)  # whoever has ended has let it go
    with catalog.database.write() as connection:
        assert copying.renew(connection, files[0], far, another, until=clock(connection))
        copying.end(connection, files[0], far, another)
    assert states(catalog, files) == [[CopyState.READY]] * 2


@pytest.mark.of_files
def test_a_copy_under_way_gives_signs_and_can_be_stopped(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    declared(catalog, tmp_path / "far")
    job, ranks = begun(catalog, tmp_path / "ckpt")
    files = job.save(ranks, 5)
    renewed: list[str] = []
    real = copying.renew
    monkeypatch.setattr(copying, "renew", lambda *a, **b: renewed.append(a[3]) or real(*a, **b))
    monkeypatch.setattr(replicating, "_RENEW_SECONDS", 0.0)
    agent = Replicator(catalog.database)
    assert agent.round(settled_for=AT_ONCE).files == 2
    assert len(renewed) == 1
    files = job.save(ranks, 10)
    monkeypatch.setattr(agent._rate, "take", lambda _: agent.stop.set())
    with pytest.raises(StoppedError):
        agent.round(settled_for=AT_ONCE)
    assert states(catalog, files) == [[], []]
    assert one_round(catalog).files == 2  # nothing is held any more


def _fail(error: Exception) -> None:
    raise error


def test_without_a_catalog_files_are_copied_and_the_journal_tells(catalog: Catalog, tmp_path: Path) -> None:
    far = declared(catalog, tmp_path / "far")
    job, ranks = begun(catalog, tmp_path / "ckpt")
    files = job.save(ranks, 5)
    agent = Replicator(catalog.database, recorder=ranks[0].recorder)
    with pytest.MonkeyPatch.context() as broken:
        broken.setattr(type(catalog.database), "_transaction", lambda self, **_: _fail(self.unusable("gone")))
        assert agent.copy(files[0], [far]) == []
    assert states(catalog, files) == [[], []]
    assert agent.copy(files[1], [far]) == []  # it is there again
    assert states(catalog, files) == [[CopyState.READY]] * 2


@pytest.mark.of_files
@pytest.mark.parametrize(
    "known", [{"content": Content.PART}, {"format": "directory"}, {"state": FileState.DAMAGED, "digest": None}]
)
def test_what_the_command_never_copies_is_not_copied_in_training_either(
    catalog: Catalog, tmp_path: Path, caplog: pytest.LogCaptureFixture, known: dict[str, Any]
) -> None:
    """Before, it copied parts of iterations, which no start fetches, and recorded a failed copy of the others."""
    far = declared(catalog, tmp_path / "far")
    job, ranks = begun(catalog, tmp_path / "ckpt", world_size=1)
    (file,) = job.save(ranks, 5)
    thread = CopyThread(catalog.database, [far])
    thread.file_registered(replace(file, **known))
    assert thread.finish(60) == 0
    assert states(catalog, [file]) == [[]]
    assert copies_below(tmp_path / "far") == []
    assert caplog.messages == []


def test_of_two_ranks_with_the_same_bytes_one_copies_and_the_other_waits_for_it(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Data-parallel ranks save one state under one name, at once. In a bucket each ended the upload of the other."""
    monkeypatch.setattr(copy_thread, "_LOOK_SECONDS", 0.01)
    far = declared(catalog, tmp_path / "far")
    job, ranks = begun(catalog, tmp_path / "ckpt")
    files = job.save(ranks, 5)
    url = catalog.database.url.render_as_string(hide_password=False)
    first, second = CopyThread(catalog.database, [far]), CopyThread(connect(url).database, [far])
    is_copying, may_end = threading.Event(), threading.Event()
    monkeypatch.setattr(first._replicator._rate, "take", lambda _: (is_copying.set(), may_end.wait(60)))
    copy_one = Replicator._copy_one

    def noted(own: Replicator, *asked: Any) -> bool:
        is_done = copy_one(own, *asked)
        may_end.set()  # the second one has come so far, while the first one copies
        return is_done

    monkeypatch.setattr(Replicator, "_copy_one", noted)
    first.file_registered(files[0])
    ending = threading.Thread(target=first.finish, args=(60,))
    ending.start()
    assert is_copying.wait(60)
    second.file_registered(files[1])
    assert second.finish(60) == 0
    ending.join()
    assert states(catalog, files) == [[CopyState.READY]] * 2
    assert len(copies_below(tmp_path / "far")) == 1
    assert caplog.messages == []


@pytest.mark.of_files
def test_what_could_not_be_copied_in_time_is_left_to_the_command(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    far = declared(catalog, tmp_path / "far")
    job, ranks = begun(catalog, tmp_path / "ckpt")
    files = job.save(ranks, 5)

    def put(*_: object) -> None:
        raise UnreachableError("it is away", "wait")

    with monkeypatch.context() as broken:
        broken.setattr("ckptstore.objects.directory.DirectoryStore.put", put)
        thread = CopyThread(catalog.database, [far])
        for file in files:
            thread.file_registered(file)
        assert thread.finish(60) == 2
    assert "2 files are not copied: ckptstore replicate does it" in caplog.text
    assert one_round(catalog).files == 2


@pytest.mark.of_files
def test_a_tier_that_rests_keeps_no_other_waiting_and_a_second_training_goes_on(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copy_thread, "SETTLED", AT_ONCE)
    monkeypatch.setattr(Replicator, "rests", lambda _: 1000.0)
    far = declared(catalog, tmp_path / "far")
    away = declared(catalog, tmp_path / "mnt" / "away", "away", 2)
    (tmp_path / "mnt").rename(tmp_path / "not-mounted")
    job, ranks = begun(catalog, tmp_path / "ckpt")
    thread = CopyThread(catalog.database, [far, away])
    for step in (5, 10):
        files = job.save(ranks, step)
        for file in files:
            thread.file_registered(file)
        while states(catalog, files) != [[CopyState.READY]] * 2:
            time.sleep(0.01)
    assert thread.finish(60) == 4
    files = job.save(ranks, 15)
    thread.file_registered(files[0])
    while states(catalog, files[:1]) != [[CopyState.READY]]:
        time.sleep(0.01)
    assert thread.finish(60) == 5


def test_a_rate_holds_for_all_that_share_it(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []
    monkeypatch.setattr("ckptstore.replicate.copy_up.time.monotonic", lambda: 100.0)
    rate = Rate(10, waited.append)
    for _ in range(3):
        rate.take(20)
    assert waited == [0, 2, 4]
    Rate(None, waited.append).take(1 << 40)
    assert len(waited) == 3


@pytest.mark.of_files
def test_the_command(catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="there is no tier to copy to"):
        one_round(catalog)
    declared(catalog, tmp_path / "far")
    begun(catalog, tmp_path / "ckpt", 5)
    monkeypatch.setattr(Replicator.round, "__kwdefaults__", {"settled_for": AT_ONCE})
    url = catalog.database.url.render_as_string(hide_password=False)

    def told(*arguments: str) -> str:
        command = [f"--db={url}", "replicate", *arguments]
        return CliRunner().invoke(cli, command, catch_exceptions=False, standalone_mode=False).stdout

    with pytest.raises(UsageError, match="no tier to copy to is named 'other'"):
        told("--tier", "other")
    with pytest.raises(UnknownRunError, match="no run 'rum'"):
        told("rum")
    assert "2 files copied" in told("run", "--tier", "far", "--rate-limit", "100M")
    nothing = {"files": 0, "bytes": 0, "held": 0, "elsewhere": 0, "undigested": 0, "troubles": []}
    assert json.loads(told("--json")) == nothing
    assert "2 files copied" not in told()


@pytest.mark.of_files
def test_files_without_a_digest_are_named__before_replicate_was_silent(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who had adopted a tree took it for copied."""
    declared(catalog, tmp_path / "far")
    begun(catalog, tmp_path / "ckpt", 5)
    catalog.database.in_write(lambda connection: connection.execute(checkpoints.update().values(digest=None)))
    assert Replicator(catalog.database).undigested(None) == 2
    monkeypatch.setattr(Replicator.round, "__kwdefaults__", {"settled_for": AT_ONCE})
    url = catalog.database.url.render_as_string(hide_password=False)
    told = CliRunner().invoke(cli, [f"--db={url}", "replicate", "run"], catch_exceptions=False)
    assert told.exit_code == 0
    assert told.stdout.splitlines()[1:] == [
        f"2 files have no recorded digest, and are not copied: ckptstore --db {url} verify run --digest records it"
    ]


def test_a_copy_that_a_start_found_damaged_is_made_anew(catalog: Catalog, tmp_path: Path) -> None:
    far = declared(catalog, tmp_path / "far")
    job, ranks = begun(catalog, tmp_path / "ckpt", world_size=1)
    (file,) = job.save(ranks, 5)
    assert one_round(catalog).files == 1
    (key,) = copies_below(tmp_path / "far")
    damaged = tmp_path / "far" / key
    whole = damaged.read_bytes()
    damaged.write_bytes(bytes([whole[0] ^ 1]) + whole[1:])
    assert one_round(catalog).files == 0
    facts.record_copy(shared(catalog.database), file, far, CopyState.FAILED, detail="damaged")
    path = Path(file.path)
    path.rename(tmp_path / "kept")
    path.write_bytes(b"!" * (file.size or 0))
    assert len(one_round(catalog).troubles) == 1
    assert damaged.exists()  # nothing is deleted while nothing can take its place
    path.unlink()
    (tmp_path / "kept").rename(path)
    assert one_round(catalog).files == 1
    assert damaged.read_bytes() == whole
    assert states(catalog, [file]) == [[CopyState.READY]]


@pytest.mark.of_files
def test_a_copy_that_another_made_anew_since_is_not_deleted(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It counts by then. A kill before it is sent again would leave a record of a copy that is not there."""
    far = declared(catalog, tmp_path / "far")
    job, ranks = begun(catalog, tmp_path / "ckpt", 5, world_size=1)
    job.save(ranks, 10)
    assert one_round(catalog).files == 2
    for key in copies_below(tmp_path / "far"):
        (tmp_path / "far" / key).write_bytes(b"!")
    for file in catalog.files("run"):
        facts.record_copy(shared(catalog.database), file, far, CopyState.FAILED, detail="damaged")
    removed: list[str] = []
    quick: list[int] = []
    real = DirectoryStore.remove

    def remove(store: DirectoryStore, key: str) -> None:
        removed.append(key)
        if len(removed) == 1:  # this process copies one file: another one copies the other file
            quick.append(one_round(catalog).files)
        real(store, key)

    monkeypatch.setattr(DirectoryStore, "remove", remove)
    assert one_round(catalog).files == 1
    assert quick == [1]
    assert len({*removed}) == len(removed) == 2


@pytest.mark.of_files
def test_of_ranks_that_share_a_copy_one_makes_it_anew__before_each_deleted_what_others_had_made(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It counts from the first on: a kill after the next deletion would leave a record of a copy that is not there."""
    far = declared(catalog, tmp_path / "far")
    job, ranks = begun(catalog, tmp_path / "ckpt", world_size=4)
    files = job.save(ranks, 5)
    assert one_round(catalog).files == 4
    (key,) = copies_below(tmp_path / "far")
    whole = (tmp_path / "far" / key).read_bytes()
    (tmp_path / "far" / key).write_bytes(whole[:-1])
    assert len(in_tier.verify(catalog.database, "run", far).damaged) == 4
    removed: list[str] = []
    real = DirectoryStore.remove

    def remove(store: DirectoryStore, key: str) -> None:
        removed.append(key)
        real(store, key)

    monkeypatch.setattr(DirectoryStore, "remove", remove)
    done = one_round(catalog)
    assert (done.files, done.bytes) == (4, files[0].size)
    assert removed == [key]
    assert (tmp_path / "far" / key).read_bytes() == whole
    assert states(catalog, files) == [[CopyState.READY]] * 4
