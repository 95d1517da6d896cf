"""Copies journals to a tier, with the files that they record, and brings them back: a tier can rebuild a catalog.

Journals only grow. So each copy makes an object of the bytes added since the last copy; its key names their offsets.
"""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING

from blake3 import blake3

from ckptstore.core.copy_keys import folder_of
from ckptstore.core.groups import grouped
from ckptstore.core.hints import Command
from ckptstore.disk.files import names_in, real_directory, sync
from ckptstore.disk.name_claims import FOLDER
from ckptstore.disk.presence import identity_of
from ckptstore.errors import RefusedError, UsageError, reason_of
from ckptstore.objects.errors import BusyError, SourceError
from ckptstore.objects.tiers import open_tier
from ckptstore.outside import Path, open_file, os, tempfile

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ckptstore.core.copies import Tier
    from ckptstore.objects.store import Seen, Store

log = logging.getLogger("ckptstore")

_KEY = re.compile(r"[^/]+/journals/([0-9a-f]{16})/([A-Za-z0-9_-]{1,100}\.jsonl)/([0-9]{1,15})-([0-9]{1,15})")


class JournalCopies:
    """Copies the journals that one process sees. It lists the parts in a store once for each directory."""

    def __init__(self) -> None:
        self._ends: dict[tuple[Tier, str], int] = {}

    def copy(self, store: Store, tier: Tier, run: str, directory: str, ranks: set[int]) -> None:
        """Copy the parts that a store lacks: of a directory's shared journals, and of those of `ranks`.

        Raises `StoreError`; `SourceError` if a journal cannot be read, after the others were copied.
        """
        identity = identity_of(directory)
        if not identity:
            return
        stems = ("shared-", *(f"rank_{rank}-" for rank in ranks))
        names = [name for name in names_in(f"{directory}/{FOLDER}") if name.endswith(".jsonl")]
        paths = {f"{directory}/{FOLDER}/{name}": name for name in sorted(names) if name.startswith(stems)}
        folder = f"{folder_of(run)}journals/{identity}/"
        new = [path for path in paths if (tier, path) not in self._ends]
        there = store.list(folder) if new else ()
        parts = grouped((each.key[len(folder) :].partition("/")[0], each) for each in there)
        for path in new:
            for part in (each for each in parts.get(paths[path], ()) if _is_cut(each)):
                store.remove(part.key)  # a part that is there is not written again
            self._ends[tier, path] = _end(each.key for each in parts.get(paths[path], ()) if not _is_cut(each))
        unread: list[SourceError] = []
        for path, name in paths.items():
            try:
                self._ends[tier, path] = _copy(store, path, f"{folder}{name}/", self._ends[tier, path])
            except SourceError as error:  # noqa: PERF203 — the others are copied all the same
                unread.append(error)
        if unread:
            raise unread[0]


def brought_back(url: str, into: str | Path | None, *, dry_run: bool = False) -> str:
    """Bring back the journals of a tier into a directory; return the directory.

    Raises `UsageError`, also for a `dry_run`, which writes nothing; and as `bring_back` does.
    """
    if not into:  # the URL is not shown: a mistyped one may hold a password
        hint = f"say where: {Command('scan', 'URL', '--into', 'DIR')}"
        raise UsageError("the journals of a tier are brought back into a directory before they are read", hint)
    directory = real_directory(into)
    if dry_run:
        hint = f"leave that out; the checkpoints stay in the tier: {Command('scan', 'URL', '--into', directory)}"
        raise UsageError("a dry run writes nothing, so it cannot bring back the journals of a tier", hint)
    if not bring_back(open_tier(url), directory):
        raise UsageError(f"{url} has no journals", "give a tier, as it was declared")
    return directory


def bring_back(store: Store, into: str) -> list[str]:
    """Write the journals of a store below `into`: a directory for each that they came from; return these directories.

    The checkpoints are not fetched: a start does that. Raises `StoreError`, `OSError`, and `RefusedError` if another
    journal is there.
    """
    found: dict[tuple[str, str], list[tuple[int, int, str]]] = {}
    for each in store.list():
        if parsed := _KEY.fullmatch(each.key):
            identity, name, begin, end = parsed.groups()
            found.setdefault((identity, name), []).append((int(begin), int(end), "" if _is_cut(each) else each.key))
    directories: dict[str, str] = {}
    for (identity, name), parts in sorted(found.items()):
        directory = directories.setdefault(identity, f"{into.rstrip('/')}/{identity}")
        folder = Path(directory, FOLDER)
        folder.mkdir(parents=True, exist_ok=True)
        _write(store, folder / name, sorted(parts))
        (folder / f"identity-{identity}").touch()
        sync(str(folder))
    return sorted(directories.values())


def _copy(store: Store, path: str, prefix: str, begin: int) -> int:
    """Copy the bytes of a journal from `begin` on; return up to where they are known to be copied."""
    try:
        with open_file(path, "rb") as file:
            file.seek(begin)
            news = file.read()
        if not news:
            return begin
        end = begin + len(news)
        with tempfile.TemporaryDirectory(prefix="ckptstore-") as folder:
            part = Path(folder) / "part"
            part.write_bytes(news)
            store.put(str(part), f"{prefix}{begin}-{end}", len(news), blake3(news).hexdigest())
    except BusyError:  # that process copies the same bytes; the next round sees whether it did
        return begin
    except OSError as error:
        raise SourceError(f"cannot copy {path}: {reason_of(error)}", "it is not copied") from None
    return end


def _is_cut(part: Seen) -> bool:
    """Whether an object is a part of a journal that has not as many bytes as its key says."""
    found = _KEY.fullmatch(part.key)
    return found is not None and part.size != int(found[4]) - int(found[3])


def _end(keys: Iterable[str]) -> int:
    """The byte up to which these parts of a journal leave no gap."""
    spans = sorted((int(found[3]), int(found[4])) for key in keys if (found := _KEY.fullmatch(key)))
    end = 0
    for begin, last in spans:
        if begin <= end:
            end = max(end, last)
    return end


def _write(store: Store, path: Path, parts: list[tuple[int, int, str]]) -> None:
    """Write a journal of its parts: their offsets, and their keys (empty: the object is damaged)."""
    content = bytearray()
    for begin, end, key in parts:
        if key and begin <= len(content) < end:
            for piece in store.pieces(key, len(content) - begin, end - begin):
                content += piece
    if len(content) < max(end for _, end, _ in parts):
        how = "scan again, since a listing may be late, or scan the run's own directories"
        log.warning(
            "%s lacks a part of %s: its records from byte %d on are missing; %s", store.name, path, len(content), how
        )
    if path.exists():
        there = path.read_bytes()
        if not content.startswith(there):
            if there.startswith(content):
                return
            raise RefusedError(f"{path} is another journal", "bring them back into an empty directory")
    draft = f"{path}.draft"
    with open_file(draft, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(draft, path)
