"""Which users' journals are believed: the owner of a file cannot be forged, its content can.

A journal is about its own directory. It is believed if its owner owns the directory, is the reader or root, or is named
in CKPTSTORE_TRUST.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ckptstore.core.model import SCANNED
from ckptstore.errors import UsageError
from ckptstore.outside import grp, os, pwd

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ckptstore.core.model import Launch

TRUST = "CKPTSTORE_TRUST"
"""The variable that names users, and groups of them, whose journals are believed wherever they lie: `ann,ml-team`."""

ROOT = 0


@dataclass(frozen=True)
class Trust:
    """The trusted users, by number, beside root and the user of this process."""

    users: frozenset[int] = frozenset()

    @classmethod
    def of(cls, names: Iterable[str] = ()) -> Trust:
        """The users named by the variable and by `names`. Raises `UsageError` for a name of no user and no group."""
        named = [name for name in os.environ.get(TRUST, "").split(",") if name.strip()]
        return cls(frozenset(user for name in (*named, *names) for user in _users(name.strip())))

    def is_full(self, owner: int) -> bool:
        """Whether a user's journals are believed in any directory and about any run."""
        return owner in (ROOT, os.geteuid()) or owner in self.users

    def may_go_on(self, launch: Launch) -> bool:
        """Whether a start may go on from the states of a launch, by its owner. For root, any scanned launch will do."""
        owner = launch.owner
        is_found = launch.id.startswith(SCANNED) and os.geteuid() == ROOT
        return owner is None or is_found or self.is_full(owner)


def on_behalf_of(user: int, path: str) -> int:
    """The owner of a launch whose file this user found by a scan: if root found it, the owner of the file."""
    if user == ROOT:
        with suppress(OSError):
            return os.lstat(path).st_uid
    return user


def user_name(user: int) -> str:
    """The name of a user, or the number where this machine knows none."""
    with suppress(KeyError):
        return pwd.getpwuid(user).pw_name
    return str(user)


def _users(name: str) -> set[int]:
    if name.isdecimal():
        return {int(name)}
    with suppress(KeyError):
        return {pwd.getpwnam(name).pw_uid}
    try:
        group = grp.getgrnam(name)
    except KeyError:
        raise UsageError(f"{name!r} is no user and no group", f"name some in {TRUST} or --trust") from None
    return {user.pw_uid for user in pwd.getpwall() if user.pw_name in group.gr_mem or user.pw_gid == group.gr_gid}
