"""What can go wrong with a store. No message holds a credential, or what a server answered, word for word."""

from __future__ import annotations

from ckptstore.errors import CkptstoreError, DamageError


class StoreError(CkptstoreError):
    """A request to a store failed."""


class UnreachableError(StoreError):
    """The store gives no answer, or says that it cannot serve now: the same may work later."""


class FullError(StoreError):
    """The store takes no more bytes."""


class DeniedError(StoreError):
    """The store refuses this user."""


class MissingError(StoreError):
    """The store has no object of that key."""


class WrongBytesError(StoreError, DamageError):
    """What the store has is not what the catalog says of it."""

    exit_code = DamageError.exit_code


class SourceError(StoreError):
    """The file that was to be copied cannot be read, or is not the recorded one any more."""


class NoRoomError(StoreError):
    """The local disk has no room for the file to fetch."""
