"""Finds the kind of file system of a path in the mount table: SQLite's write-ahead log needs a local one."""

from __future__ import annotations

import re

from ckptstore.outside import Path, os

_TABLE = Path("/proc/self/mountinfo")
_NETWORK = frozenset(
    (
        "nfs",
        "nfs4",
        "cifs",
        "smb3",
        "smbfs",
        "lustre",
        "gpfs",
        "beegfs",
        "ceph",
        "glusterfs",
        "afs",
        "orangefs",
        "pvfs2",
    )
)
_NETWORK_FUSE = re.compile(r"fuse\.(\w*gluster|sshfs|s3|juicefs|ceph|rclone|goofys|gcs|cfs|alluxio|moosefs|mfs|beegfs)")
_ESCAPE = re.compile(r"\\([0-7]{3})")


def network_file_system(path: str) -> str | None:
    """The name of the network file system that a path is on; None if it is local or unknown."""
    kind = kind_of(path)
    return kind if kind is not None and is_network(kind) else None


def kind_of(path: str) -> str | None:
    """The kind of file system that a path is on, as `ext4`; None if unknown."""
    return file_system(path, _table())


def is_network(kind: str) -> bool:
    """Whether a file system of this kind is shared by machines."""
    return kind in _NETWORK or _NETWORK_FUSE.match(kind) is not None


def file_system(path: str, table: str) -> str | None:
    """The kind of file system that a path is on, by a mount table (`proc_pid_mountinfo(5)`); None if no entry fits."""
    real = os.path.realpath(path)
    best, kind = "", None
    for line in table.splitlines():
        own, _, rest = line.partition(" - ")
        fields = own.split()
        if len(fields) < 5 or not rest:  # noqa: PLR2004 — the fifth is the mount point
            continue
        point = _ESCAPE.sub(lambda found: chr(int(found[1], 8)), fields[4])
        is_above = real == point or real.startswith(point.rstrip("/") + "/")
        if is_above and len(point) >= len(best):  # the last one mounted there hides the others
            best, kind = point, rest.split()[0]
    return kind


def _table() -> str:
    try:
        return _TABLE.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:  # not Linux
        return ""
