"""A network file system is seen in the mount table, and an SQLite catalog on one has no write-ahead log."""

import sqlite3
from pathlib import Path

import pytest

from ckptstore.api import connect
from ckptstore.catalog import mounts, schema
from ckptstore.errors import CatalogUnavailableError

TABLE = r"""
22 1 252:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw
30 22 0:26 / /proc rw - proc proc rw
41 22 0:50 / /data rw,relatime shared:9 - nfs4 server:/export rw,vers=4.2
42 41 8:1 / /data/local rw - xfs /dev/sda1 rw
43 22 0:51 / /with\040space rw - lustre mgs@tcp:/fs rw
44 22 0:52 / /bucket rw - fuse.s3fs s3fs rw
45 22 0:53 / /twice rw - ext4 /dev/sdb rw
46 45 0:54 / /twice rw - gpfs fs1 rw
a line that is none
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/data/catalog.db", "nfs4"),
        ("/data", "nfs4"),
        ("/database/catalog.db", "ext4"),
        ("/data/local/catalog.db", "xfs"),
        ("/with space/catalog.db", "lustre"),
        ("/bucket/x", "fuse.s3fs"),
        ("/twice/x", "gpfs"),
        ("/x", "ext4"),
    ],
)
def test_the_nearest_mount_counts_and_of_two_the_last(path: str, kind: str) -> None:
    assert mounts.file_system(path, TABLE) == kind
    assert mounts.file_system(path, "") is None, "nobody can tell without a table"
    assert mounts.file_system("/", Path("/proc/self/mountinfo").read_text())


def test_network_file_systems(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mounts, "_table", lambda: TABLE)
    found = {path: mounts.network_file_system(path) for path in ("/data", "/data/local", "/bucket", "/twice", "/x")}
    assert found == {"/data": "nfs4", "/data/local": None, "/bucket": "fuse.s3fs", "/twice": "gpfs", "/x": None}


def mode(path: Path) -> str:
    connection = sqlite3.connect(path)
    found: str = connection.execute("PRAGMA journal_mode").fetchone()[0]
    connection.close()
    return found


def made_locally(path: Path) -> None:
    catalog = connect(str(path))
    catalog.join("run")
    catalog.database.disconnect()


def test_a_catalog_on_a_network_file_system_has_no_write_ahead_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "catalog.db"
    made_locally(path)
    assert mode(path) == "wal"  # it was made on a local one, and copied
    monkeypatch.setattr(mounts, "_table", lambda: f"9 1 0:9 / {tmp_path} rw - nfs server:/x rw")
    catalog = connect(str(path))
    assert mode(path) == "delete"
    catalog.join("other")
    assert "is on a network file system (nfs)" in caplog.text
    new = tmp_path / "new.db"
    connect(str(new)).join("run")
    assert mode(new) == "delete"


def test_one_that_others_use_with_such_a_log_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "catalog.db"
    made_locally(path)
    user = sqlite3.connect(path)
    user.execute("SELECT * FROM runs").fetchall()
    monkeypatch.setattr(mounts, "_table", lambda: f"9 1 0:9 / {tmp_path} rw - nfs server:/x rw")
    monkeypatch.setattr(schema, "_LOCK_SECONDS", 0.2)
    with pytest.raises(CatalogUnavailableError, match="database is locked|does not work on nfs"):
        connect(str(path))
    user.close()
    connect(str(path))
