"""Journals are copied up with the files that they tell of: a tier is enough."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ckptstore.api import Catalog
from ckptstore.errors import RefusedError, UsageError
from ckptstore.objects.directory import DirectoryStore
from ckptstore.objects.errors import UnreachableError
from ckptstore.objects.store import Seen
from ckptstore.objects.tiers import open_tier
from ckptstore.replicate.journals import JournalCopies, bring_back
from ckptstore.replicate.replicator import Replicator
from ckptstore.tiers.fetch import Fetched
from tests.command_line import no_right_to_pass_by_permissions
from tests.jobs import begun
from tests.replicate.rounds import AT_ONCE, files_below, one_round
from tests.tiers.jobs import declared


def lines(directory: Path) -> list[str]:
    return sorted(line for path in directory.rglob("*.jsonl") for line in path.read_text().splitlines())


def test_a_tier_alone_makes_a_catalog_anew_and_gives_the_newest_state(
    catalog: Catalog, other: Catalog, tmp_path: Path
) -> None:
    far = declared(catalog, tmp_path / "far")
    job, ranks = begun(catalog, tmp_path / "ckpt", 5)
    assert one_round(catalog).files == 2
    files = job.save(ranks, 10)
    kept = {file.rank: Path(file.path).read_bytes() for file in files}
    assert one_round(catalog).files == 2
    told = lines(tmp_path / "ckpt")
    shutil.rmtree(tmp_path / "ckpt")
    with pytest.raises(UsageError, match="are brought back into a directory"):
        other.scan(far.url)
    with pytest.raises(UsageError, match="are brought back into a directory"):
        other.scan(far.url, into="")  # it is not the working directory
    with pytest.raises(UsageError, match="a dry run writes nothing"):
        other.scan(far.url, into=tmp_path / "back", dry_run=True)
    assert not (tmp_path / "back").exists()
    other.scan(far.url, into=tmp_path / "back")
    assert lines(tmp_path / "back") == told
    found = other.resolve("run")
    assert found.plan.global_step == 10
    sources = [each.source for each in found.plan.ranks]
    here = Fetched().local(other.database, found.plan, sources)
    assert {each.rank: Path(each.source.path).read_bytes() for each in here.ranks} == kept
    again = other.scan(far.directory, into=tmp_path / "back")  # it can be repeated, and its directory may be named
    assert again.counts == {}, "no copy is taken for another checkpoint"
    assert lines(tmp_path / "back") == told


@pytest.mark.of_files
def test_only_what_is_new_is_copied(catalog: Catalog, tmp_path: Path) -> None:
    declared(catalog, tmp_path / "far")
    job, ranks = begun(catalog, tmp_path / "ckpt", 5)
    agent = Replicator(catalog.database)

    def parts() -> list[str]:
        agent.round(settled_for=AT_ONCE)
        return [each for each in files_below(tmp_path / "far") if "/journals/" in each]

    first = parts()
    assert parts() == first
    job.save(ranks, 10)
    second = parts()
    assert set(first) < set(second)
    sizes = [tuple(map(int, each.rpartition("/")[2].split("-"))) for each in second]
    written = sum(path.stat().st_size for path in (tmp_path / "ckpt").rglob("*.jsonl"))
    assert sum(end - begin for begin, end in sizes) == written
    assert [(tmp_path / "far" / each).stat().st_size for each in second] == [end - begin for begin, end in sizes]
    agent = Replicator(catalog.database)  # another process goes on where the store is
    job.save(ranks, 15)
    third = parts()
    assert sum((tmp_path / "far" / each).stat().st_size for each in third) == sum(
        path.stat().st_size for path in (tmp_path / "ckpt").rglob("*.jsonl")
    )


@pytest.mark.of_files
def test_the_parts_in_a_tier_are_listed_once_for_each_directory(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bucket is asked over the network: one request for each journal took minutes, with nothing to copy."""
    declared(catalog, tmp_path / "far")
    job, ranks = begun(catalog, tmp_path / "ckpt", 5)
    for step in (10, 15):
        ranks = job.begin()
        job.save(ranks, step)
    assert len(list((tmp_path / "ckpt").rglob("*.jsonl"))) == 8, "of two ranks: of each launch, and shared"
    one_round(catalog)
    asked: list[str] = []
    lists = DirectoryStore.list

    def listed(store: DirectoryStore, prefix: str = "") -> Iterator[Seen]:
        asked.append(prefix)
        return lists(store, prefix)

    monkeypatch.setattr(DirectoryStore, "list", listed)
    assert one_round(catalog).files == 0
    assert len(asked) == 2


@pytest.mark.of_files
def test_the_journals_of_a_process_that_was_killed_are_copied_by_the_next(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had copied the files. The next one copied no file, and so no journal: the tier alone gave no catalog."""
    far = declared(catalog, tmp_path / "far")
    begun(catalog, tmp_path / "ckpt", 5)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as before_the_journals, pytest.raises(KeyboardInterrupt):
        before_the_journals.setattr(JournalCopies, "copy", killed)
        one_round(catalog)
    assert one_round(catalog).files == 0
    bring_back(open_tier(far.url), str(tmp_path / "back"))
    assert lines(tmp_path / "back") == lines(tmp_path / "ckpt")


def test_parts_that_overlap_or_lack_and_names_that_lead_elsewhere(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_tier(f"file://{tmp_path}/far")
    store.prepare()
    prefix = "run/journals/0123456789abcdef/rank_0-abc.jsonl"
    for key, content in (
        (f"{prefix}/0-4", "abcd"),
        (f"{prefix}/2-6", "cdef"),
        (f"{prefix}/2-3", "c"),
        (f"{prefix}/9-10", "j"),
        (f"{prefix}/6-99999", "gh"),  # not the bytes that its key says
        ("run/journals/0123456789abcdef/..jsonl/0-1", "x"),
        ("run/journals/not-an-identity/rank_0-abc.jsonl/0-1", "x"),
        ("run/L1/5/0123-net.ckpt", "x"),
    ):
        path = tmp_path / "far" / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    back = tmp_path / "back"
    (directory,) = bring_back(store, str(back))
    assert files_below(back) == [
        "0123456789abcdef/.ckptstore/identity-0123456789abcdef",
        "0123456789abcdef/.ckptstore/rank_0-abc.jsonl",
    ]
    segment = Path(directory, ".ckptstore", "rank_0-abc.jsonl")
    assert segment.read_text() == "abcdef"
    assert f"/far lacks a part of {segment}: its records from byte 6 on are missing" in caplog.text
    segment.write_text("abcdefgh")  # it was written to since
    bring_back(store, str(back))
    assert segment.read_text() == "abcdefgh"
    segment.write_text("other")
    with pytest.raises(RefusedError, match="is another journal"):
        bring_back(store, str(back))


@pytest.mark.of_files
def test_a_journal_that_cannot_be_read_keeps_nothing_else_from_the_tier(catalog: Catalog, tmp_path: Path) -> None:
    """Before, the tier rested for it, and no file of another run was copied."""
    declared(catalog, tmp_path / "far")
    for run in ("a", "b"):
        begun(catalog, tmp_path / run, 5, run=run)
    folder = tmp_path / "a/rank_0/.ckptstore"
    (folder / "shared-0.jsonl").symlink_to("nowhere")
    done = one_round(catalog)
    assert done.files == 4
    told = (str(folder.parent), f"cannot copy {folder}/shared-0.jsonl")
    assert [(each.path, each.reason.partition(":")[0]) for each in done.troubles] == [told]
    copied = {each.split("/")[3] for each in files_below(tmp_path / "far") if "/journals/" in each}
    assert copied == {path.name for run in ("a", "b") for path in (tmp_path / run).rglob("*.jsonl") if path.exists()}


def test_a_journal_whose_last_part_was_cut_is_said_to_lack_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Before, only a gap before another part was said, and the newest records were lost in silence."""
    store = open_tier(f"file://{tmp_path}/far")
    store.prepare()
    folder = tmp_path / "far/run/journals/0123456789abcdef/rank_0-abc.jsonl"
    folder.mkdir(parents=True)
    (folder / "0-4").write_text("abcd")
    (folder / "4-8").write_text("ef")
    (directory,) = bring_back(store, str(tmp_path / "back"))
    segment = Path(directory, ".ckptstore", "rank_0-abc.jsonl")
    assert segment.read_text() == "abcd"
    assert f"/far lacks a part of {segment}: its records from byte 4 on are missing" in caplog.text


@pytest.mark.of_files
@pytest.mark.parametrize("goes_on", [True, False])
def test_a_part_that_was_cut_is_copied_again_by_the_next_process(
    catalog: Catalog, tmp_path: Path, *, goes_on: bool
) -> None:
    """Before, it counted as copied, and no part after it was of use."""
    far = declared(catalog, tmp_path / "far")
    job, ranks = begun(catalog, tmp_path / "ckpt", 5)
    one_round(catalog)
    for part in (tmp_path / "far/run/journals").rglob("*-*"):
        if part.is_file():
            part.write_bytes(part.read_bytes()[:-1])
    if goes_on:
        job.save(ranks, 10)
    assert one_round(catalog).troubles == []
    bring_back(open_tier(far.url), str(tmp_path / "back"))
    assert lines(tmp_path / "back") == lines(tmp_path / "ckpt")


@pytest.mark.of_files
def test_a_directory_of_a_tier_that_may_not_be_read_is_named(tmp_path: Path) -> None:
    """Before, its journals did not come back, and nothing said so."""
    tier = tmp_path / "far"
    open_tier(f"file://{tier}").prepare()
    for identity in ("0123456789abcdef", "fedcba9876543210"):
        part = tier / f"run/journals/{identity}/rank_0-abc.jsonl/0-1"
        part.parent.mkdir(parents=True)
        part.write_text("x")
    (tier / "lost+found").mkdir()
    closed = part.parents[1]
    program = (
        "import sys; from ckptstore.objects.tiers import open_tier;"
        "from ckptstore.replicate.journals import bring_back;"
        " bring_back(open_tier('file://' + sys.argv[1]), sys.argv[2])"
    )
    command = [*no_right_to_pass_by_permissions(), sys.executable, "-c", program, str(tier), str(tmp_path / "back")]
    for each in (closed, tier / "lost+found"):
        each.chmod(0)
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr == f"{closed} is passed over: it cannot be read (Permission denied)\n"
    assert [path.name for path in (tmp_path / "back").iterdir()] == ["0123456789abcdef"]


@pytest.mark.of_files
def test_a_part_that_another_process_copies_is_left_to_it(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tier counted as unreachable, and replicate ended with 1."""
    far = declared(catalog, tmp_path / "far")
    begun(catalog, tmp_path / "ckpt", 5)
    directory = str(tmp_path / "ckpt" / "rank_0")
    real = DirectoryStore._copy
    parts: list[str] = []

    def copy(store: DirectoryStore, path: str, *rest: Any) -> None:
        if Path(path).name == "part":
            parts.append(path)
            if len(parts) == 1:
                JournalCopies().copy(open_tier(far.url), far, "run", directory, {0})
        real(store, path, *rest)

    monkeypatch.setattr(DirectoryStore, "_copy", copy)
    assert one_round(catalog).troubles == []
    assert len(parts) == 4  # each rank's journal, and the shared one beside it
    bring_back(open_tier(far.url), str(tmp_path / "back"))
    assert lines(tmp_path / "back") == lines(tmp_path / "ckpt")


@pytest.mark.of_files
def test_a_store_that_has_none_is_named(catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    far = declared(catalog, tmp_path / "far")
    with pytest.raises(UsageError, match="has no journals"):
        catalog.scan(far.url, into=tmp_path / "back")
    begun(catalog, tmp_path / "ckpt", 5)

    def copy(*_: object) -> None:
        raise UnreachableError("it is away", "wait")

    monkeypatch.setattr("ckptstore.replicate.journals.JournalCopies.copy", copy)
    assert [each.path for each in one_round(catalog).troubles] == ["far"]


@pytest.mark.of_files
@pytest.mark.parametrize(
    "url", ["s3://key:secret@bucket/prefix", "s3:/key:secret@bucket", "obs://key:secret@bucket", "s3://b?key=secret"]
)
def test_a_url_that_may_hold_a_password_is_not_repeated(catalog: Catalog, tmp_path: Path, url: str) -> None:
    into = {"into": tmp_path / "back"}
    for given in (into, {**into, "dry_run": True}, *([{}] if "://" in url else ())):  # else it is a path
        with pytest.raises(UsageError) as refused:
            catalog.scan(url, **given)
        assert "secret" not in str(refused.value)
