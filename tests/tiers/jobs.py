"""A job of two nodes: each rank saves to a directory of its own, and copies go to a tier."""

from collections.abc import Iterable
from pathlib import Path

from ckptstore.api import Catalog
from ckptstore.core.copies import Beside, CopyState, Tier
from ckptstore.core.copy_keys import key_of
from ckptstore.core.model import Checkpoint
from ckptstore.core.naming import companion_of
from ckptstore.disk.files import digest
from ckptstore.journal.recorder import shared
from ckptstore.objects.tiers import open_tier
from ckptstore.tiers import facts


def declared(catalog: Catalog, at: Path | str, name: str = "", level: int = 1) -> Tier:
    """A tier, by default of the name that its directory has."""
    tier = facts.tier_of(name or Path(at).name, str(at), level)
    catalog.runs()  # makes the schema
    facts.add(catalog.database, tier)
    return tier


def copied(catalog: Catalog, tier: Tier, files: Iterable[Checkpoint], *, at: Path | None = None) -> None:
    """Copy files up as an agent does: what lies beside them first. `at` is where this process sees the file."""
    store = open_tier(tier.url)
    for file in files:
        beside = []
        path = str(at or file.path)
        companion = Path(companion_of(path))
        if companion.exists():
            size, told = companion.stat().st_size, digest(str(companion))
            beside = [Beside(companion.name, key_of(file, companion.name, told), size, told)]
            store.put(str(companion), beside[0].key, size, told)
        store.put(path, key_of(file), file.size or 0, file.digest or "")
        facts.record_copy(shared(catalog.database), file, tier, CopyState.READY, beside=beside)
