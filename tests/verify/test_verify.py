"""`verify`: what is damaged is found, whatever it is, marked, and taken back once it is whole again."""

import os
import random
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ckptstore.api import Catalog, connect
from ckptstore.core.model import Checkpoint, FileState, Rule
from ckptstore.errors import CatalogUnavailableError, UsageError
from ckptstore.formats.safetensors import head_of
from ckptstore.resume.examine import examine
from ckptstore.resume.register import describe, measured
from ckptstore.retention.policy import Policy
from ckptstore.verify import verify
from tests import ckpt_bytes
from tests.jobs import Job, begun
from tests.projecting import put_files

pytestmark = pytest.mark.of_files

FLIPS = 1000
RANKS = 50


def saved(catalog: Catalog, directory: Path, *steps: int, world_size: int = 2) -> Job:
    return begun(catalog, directory, *steps or (5, 10, 15), world_size=world_size)[0]


def flip(path: Path, place: int) -> None:
    """Flip a bit of a file in place, as a disk does that forgets: its time stays."""
    status = path.stat()
    content = bytearray(path.read_bytes())
    content[place] ^= 1 << place % 8
    path.write_bytes(content)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def states(catalog: Catalog) -> dict[str, tuple[FileState, Rule | None]]:
    return {Path(file.path).name: (file.state, file.problem) for file in catalog.files("run")}


def listened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files that a verification looks at from now on."""
    looked_at: list[str] = []

    def listen(file: Checkpoint, **how: Any) -> object:
        looked_at.append(file.path)
        return examine(file, **how)

    monkeypatch.setattr(verify, "examine", listen)
    return looked_at


def test_every_one_of_many_flipped_bits_is_found(sqlite_url: str, tmp_path: Path) -> None:
    """In random places: names, shapes, weights, the counter. Without digests those in the header are found."""
    catalog = connect(sqlite_url)
    job = Job(catalog, tmp_path / "ckpt", world_size=RANKS)
    for launch in job.start(resume=False):
        written = {step: job.write(launch, step) for step in range(1, FLIPS // RANKS + 2)}
        described = [
            describe(launch.facts, rank=launch.rank, path=path, kind="periodic", global_step=step, optimizer_step=step)
            for step, path in written.items()
        ]
        launch.record_files([file for each in described if (file := measured(each)) is not None])
    chance = random.Random(7)  # noqa: S311 — places, not secrets
    paths = sorted(job.directory.rglob("*.ckpt"))
    flipped = chance.sample(paths, FLIPS)
    size = paths[0].stat().st_size
    places = [place % size if place < size else chance.randrange(size) for place in range(FLIPS)]  # each at least once
    for path, place in zip(flipped, places, strict=True):
        flip(path, place)
    by_header = {damage.path for damage in catalog.verify("run").damaged}
    assert by_header <= set(map(str, flipped))
    assert len(by_header) > FLIPS // 4  # lengths, the end, the counter; not a letter of a name, nor a weight
    done = catalog.verify("run", digest=True)
    assert {damage.path for damage in done.damaged} == set(map(str, flipped))
    assert {damage.rule for damage in done.damaged} == {Rule.UNREADABLE, Rule.DIGEST_MISMATCH}
    assert done.checked == len(paths)
    marked = {file.path for file in catalog.files("run") if file.state is FileState.DAMAGED}
    assert marked == set(map(str, flipped))


def test_what_is_found_is_marked_and_passed_over(catalog: Catalog, tmp_path: Path) -> None:
    job = saved(catalog, tmp_path)
    cut, flipped, gone = (job.folder(0) / name for name in ("net-2_5.ckpt", "net-1_10.ckpt", "net-1_5.ckpt"))
    os.truncate(cut, 50)
    flip(flipped, 40)
    gone.unlink()
    done = catalog.verify("run", digest=True)
    assert [(damage.path, damage.rule, damage.detail) for damage in done.damaged] == [
        (str(flipped), Rule.DIGEST_MISMATCH, "has other bytes than those recorded"),
        (str(gone), Rule.MISSING_FILE, "is gone"),
        (str(cut), Rule.SIZE_MISMATCH, "has 50 bytes, 106 were recorded"),
    ]
    assert done.bytes == sum(path.stat().st_size for path in job.directory.rglob("*.ckpt"))
    by_path = {file.path: (file.state, file.problem) for file in catalog.files("run")}
    assert by_path[str(cut)] == (FileState.DAMAGED, Rule.SIZE_MISMATCH)
    assert by_path[str(flipped)] == (FileState.DAMAGED, Rule.DIGEST_MISMATCH)
    assert by_path[str(gone)] == (FileState.MISSING, None)
    resolution = catalog.resolve("run")
    assert resolution.plan is None
    rules = {each.global_step: each.reasons[0].rule for each in resolution.rejections}
    assert rules == {15: Rule.SIZE_MISMATCH, 10: Rule.DIGEST_MISMATCH, 5: Rule.MISSING_FILE}
    again = catalog.verify("run")
    told_again = [each.rule for each in again.damaged]
    assert told_again == [Rule.DIGEST_MISMATCH, Rule.SIZE_MISMATCH], "until it is repaired; what is gone is told once"
    assert (done.missing_before, again.missing_before) == (0, 1), "and counted from then on"


def test_what_gc_deleted_is_not_counted_as_missing(catalog: Catalog, tmp_path: Path) -> None:
    """Nor what is in the trash. What a rank or a person deleted is."""
    job = saved(catalog, tmp_path, 5, 10, 15, 20)
    catalog.execute(catalog.plan_gc("run", Policy(keep_last=3)))
    (job.folder(0) / "net-1_10.ckpt").unlink()
    catalog.resolve("run")
    assert states(catalog)["net-1_5.ckpt"][0] is FileState.TRASHED
    assert catalog.verify("run").missing_before == 1
    catalog.purge("run", now=True)
    assert states(catalog)["net-1_5.ckpt"][0] is FileState.MISSING
    assert catalog.verify("run").missing_before == 1


def test_a_file_of_another_step_under_the_same_name_is_damage(catalog: Catalog, tmp_path: Path) -> None:
    """Same size, another state: by the counter inside, also without digests and with the recorded time."""
    job = saved(catalog, tmp_path, 5)
    path = job.folder(0) / "net-1_5.ckpt"
    status = path.stat()
    ckpt_bytes.write(path, 6)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    (damage,) = catalog.verify("run").damaged
    assert (damage.rule, damage.detail) == (Rule.DIGEST_MISMATCH, "holds the state after 6 updates, 5 were recorded")
    assert catalog.resolve("run").rejections[0].reasons[0].rule is Rule.DIGEST_MISMATCH


def test_bytes_that_were_registered_are_right_whatever_the_reader_makes_of_them(
    catalog: Catalog, tmp_path: Path
) -> None:
    launch = catalog.join("run")
    for name, content in (("a-1_5.ckpt", b"no format at all"), ("b-1_5.ckpt", b"\xd8\x5e\x3a\x7f encrypted")):
        (tmp_path / name).write_bytes(content)
        launch.register(tmp_path / name, global_step=5)
    for digest in (False, True):
        assert catalog.verify("run", digest).damaged == ()


def test_what_the_catalog_does_not_know_is_told_and_is_no_damage(catalog: Catalog, tmp_path: Path) -> None:
    """Unless it is young: then it may be being registered."""
    job = saved(catalog, tmp_path)
    strange = ckpt_bytes.write(job.folder(0) / "other-1_1.ckpt", 1)
    (job.folder(0) / "notes.txt").write_text("mine")
    assert catalog.verify("run").unknown == ()
    os.utime(strange, (1_700_000_000, 1_700_000_000))
    done = catalog.verify("run")
    assert [each.path for each in done.unknown] == [str(strange)]
    assert done.damaged == ()


@pytest.mark.parametrize("form", ["ckpt", "safetensors"])
def test_the_crc_in_a_file_is_compared_where_no_digest_is_known(catalog: Catalog, tmp_path: Path, form: str) -> None:
    tree = tmp_path / "job"
    tree.mkdir()
    for step in (3, 6, 9):
        path = tree / f"net-{step}_1.{form}"
        counter, weight = step.to_bytes(4, "little"), b"\x07" * 8
        if form == "ckpt":
            content = ckpt_bytes.value("global_step", "Int32", (1,), counter)
            content += ckpt_bytes.value("weight", "Int8", (8,), weight)
            path.write_bytes(content + b"crc_num" + zlib.crc32(content).to_bytes(10, "big"))
        else:
            told = {"format": "ms", "crc_num": str(zlib.crc32(b"global_step" + counter + b"weight" + weight))}
            head = head_of([("global_step", "Int32", (1,), 4), ("weight", "Int8", (8,), 8)], told)
            path.write_bytes(head + counter + weight)
    catalog.scan(tree, run="run", world_size=1)
    flip(path, path.read_bytes().index(weight))
    assert catalog.verify("run").damaged == ()
    (damage,) = catalog.verify("run", digest=True).damaged
    assert (damage.path, damage.rule) == (str(path), Rule.DIGEST_MISMATCH)
    assert "CRC32" in damage.detail


def test_an_error_of_the_disk_is_damage_and_what_cannot_be_looked_at_is_not(catalog: Catalog, tmp_path: Path) -> None:
    """Reading the first bytes of a process's memory is a real EIO; a link to itself a real ELOOP."""
    launch = catalog.join("run")
    whole = launch.register(ckpt_bytes.write(tmp_path / "net-1_5.ckpt", 5), global_step=5)
    bad, circle = tmp_path / "net-1_6.ckpt", tmp_path / "net-1_7.ckpt"
    bad.symlink_to("/proc/self/mem")
    circle.symlink_to(circle)
    records = [
        replace(whole, path=str(bad), global_step=6, size=0, mtime_ns=None),
        replace(whole, path=str(circle), global_step=7),
    ]
    put_files(catalog, records)
    done = catalog.verify("run", digest=True)
    assert [(each.path, each.rule) for each in done.damaged] == [(str(bad), Rule.UNREADABLE)]
    assert "Input/output error" in done.damaged[0].detail
    assert [(each.path, each.reason) for each in done.troubles] == [(str(circle), "Too many levels of symbolic links")]
    assert done.checked == 2
    assert states(catalog) == {
        "net-1_5.ckpt": (FileState.COMPLETE, None),
        "net-1_6.ckpt": (FileState.DAMAGED, Rule.UNREADABLE),
        "net-1_7.ckpt": (FileState.COMPLETE, None),
    }


def test_what_a_later_launch_writes_over_is_its_save_and_no_damage(catalog: Catalog, tmp_path: Path) -> None:
    """Registered or not yet: a name may be used again."""
    job = saved(catalog, tmp_path, 5, 10)
    second = job.start()
    from ckptstore.core.model import Kind

    for launch in second:
        folder = str(job.folder(launch.rank))
        launch.add_source(folder, kind=Kind.PERIODIC, prefix="net", breakpoint_prefix="net", names_before=())
    path = ckpt_bytes.write(job.folder(0) / "net-1_5.ckpt", 5, weight=3.0)
    done = catalog.verify("run", digest=True)
    assert done.damaged == ()
    assert [each.path for each in done.skipped] == [str(path)]
    second[0].register(path, global_step=5, optimizer_step=5)
    done = catalog.verify("run", digest=True)
    assert (done.damaged, done.skipped, done.checked) == ((), (), 4)


def test_a_sample_has_the_newest_state_what_is_newer_and_what_is_damaged(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, ranks = begun(catalog, tmp_path, *range(1, 41))
    flip(job.folder(1) / "net-1_1.ckpt", 40)
    catalog.verify("run", digest=True)
    ranks[0].register(job.write(ranks[0], 50), global_step=50)
    looked_at = listened(monkeypatch)
    done = catalog.verify("run", sample=0.1)
    always = {str(job.folder(0) / "net-5_10.ckpt"), str(job.folder(1) / "net-1_1.ckpt")}
    always |= {str(job.folder(rank) / "net-4_10.ckpt") for rank in (0, 1)}
    assert always <= set(looked_at)
    assert done.checked == len(looked_at) == 4 + 8  # of the 77 others a tenth, rounded up
    first = set(looked_at)
    looked_at.clear()
    catalog.verify("run", sample=0.1)
    assert set(looked_at) != first  # one in 10^10 is as unlucky
    assert catalog.verify("run", sample=1).checked == 81
    for wrong in (0, -1, 1.5, float("nan")):
        with pytest.raises(UsageError, match="as 0.1 or 10%"):
            catalog.verify("run", sample=wrong)


def after_portions(monkeypatch: pytest.MonkeyPatch, count: int, action: Callable[[], object]) -> None:
    """Have portions of two files, and something happen once so many are recorded."""
    recorded: list[int] = []
    finish = verify._Verifier._finish

    def listen(self: verify._Verifier, run_id: int, looks: Any) -> None:
        finish(self, run_id, looks)
        recorded.append(len(looks))
        if len(recorded) == count:
            action()

    monkeypatch.setattr(verify, "MOST_FILES", 2)
    monkeypatch.setattr(verify._Verifier, "_finish", listen)


def test_a_catalog_that_fails_in_the_middle_keeps_what_was_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    url = str(home / "catalog.db")
    newest = saved(connect(url), tmp_path / "ckpt", *range(1, 11)).folder(0) / "net-1_10.ckpt"
    flip(newest, 40)
    with monkeypatch.context() as patch:
        after_portions(patch, 3, lambda: home.rename(tmp_path / "away"))
        with pytest.raises(CatalogUnavailableError, match="the findings up to now are recorded") as raised:
            connect(url).verify("run", digest=True)
    assert f"there is no directory {home}" in str(raised.value)
    (tmp_path / "away").rename(home)
    assert [file.path for file in connect(url).files("run") if file.state is FileState.DAMAGED] == [str(newest)]


@pytest.mark.parametrize("count", [1, 4])
def test_shards_are_disjoint_and_together_everything(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """Of files that are whole, damaged, gone, or not known to the catalog."""
    job = saved(catalog, tmp_path, *range(1, 11))
    damaged, gone = job.folder(0) / "net-1_10.ckpt", job.folder(1) / "net-1_5.ckpt"
    flip(damaged, 40)
    gone.unlink()
    strange = ckpt_bytes.write(job.folder(0) / "other-1_1.ckpt", 1)
    os.utime(strange, (1_700_000_000, 1_700_000_000))
    looked_at = listened(monkeypatch)
    every = [catalog.verify("run", digest=True, shard=(number, count)) for number in range(1, count + 1)]
    assert sorted(looked_at) == sorted(file.path for file in catalog.files("run"))
    assert sum(done.checked for done in every) == 20
    found = sorted((each.path, each.rule) for done in every for each in done.damaged)
    assert found == [(str(damaged), Rule.DIGEST_MISMATCH), (str(gone), Rule.MISSING_FILE)]
    assert [each.path for done in every for each in done.unknown] == [str(strange)]


def test_a_path_is_in_the_same_shard_everywhere() -> None:
    """Also one that is no UTF-8. The numbers were taken once: another hash would give others."""
    paths = [f"/data/rank_{rank}/net-1_{step}.ckpt" for rank in range(8) for step in range(1, 6)]
    assert [sum(verify.in_shard(path, (number, 4)) for path in paths) for number in range(1, 5)] == [12, 14, 8, 6]
    assert [number for number in range(1, 5) if verify.in_shard("/data/\udcff.ckpt", (number, 4))] == [1]


@pytest.mark.parametrize("wrong", [(0, 4), (5, 4), (1, 0)])
def test_a_shard_is_one_of_n(sqlite_url: str, wrong: tuple[int, int]) -> None:
    with pytest.raises(UsageError, match="from 1/N to N/N"):
        connect(sqlite_url).verify(shard=wrong)


def test_the_remedy_of_a_damaged_file_repairs_it(catalog: Catalog, tmp_path: Path) -> None:
    """To bring the original back alone is not enough: the file stays marked."""
    job = saved(catalog, tmp_path, 5)
    path = job.folder(0) / "net-1_5.ckpt"
    original = path.read_bytes()
    os.truncate(path, 50)
    catalog.verify("run")
    (rejection,) = catalog.resolve("run").rejections
    assert rejection.remedies == (
        f"for rank 0: bring back the original {path} from a backup, then run: ckptstore verify run",
    )
    path.write_bytes(original)
    assert catalog.resolve("run").plan is None
    catalog.verify("run")
    assert catalog.resolve("run").plan is not None
