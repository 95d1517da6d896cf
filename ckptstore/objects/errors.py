"""The errors of a store. No message holds a credential, or the literal answer of a server."""

from __future__ import annotations

from ckptstore.errors import CkptstoreError, DamageError, UsageError


class StoreError(CkptstoreError):
    """A request to a store failed."""


class UnreachableError(StoreError):
    """The store gives no answer, or cannot serve now: the same request may work later."""


class BusyError(UnreachableError):
    """Another process writes the same object now, or has just done so."""


class FullError(StoreError):
    """The store takes no more bytes."""


class DeniedError(StoreError):
    """The store refuses this user."""


class NoStoreError(StoreError, UsageError):
    """A URL names no store: the user gave it, or the journal of another user or of a newer ckptstore has it."""

    exit_code = UsageError.exit_code


class MissingError(StoreError):
    """The store has no object with that key."""


class WrongBytesError(StoreError, DamageError):
    """The object in the store differs from its record."""

    exit_code = DamageError.exit_code


class SourceError(StoreError):
    """The file to copy cannot be read, or is not the recorded one any more."""


class NoRoomError(StoreError):
    """The local disk has no room for the file to fetch."""
