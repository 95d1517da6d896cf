"""Finds the database that a user names: by a URL, the path of a file, or the default."""

from __future__ import annotations

import re

import sqlalchemy as sa
from platformdirs import user_data_path

from ckptstore.errors import UsageError
from ckptstore.outside import Path, os

_HINT = "use sqlite:////path/catalog.db or postgresql://user@host/name"
_SLASHES = "write three slashes before a path from here, four before a whole one, as sqlite:////path/catalog.db"
_PLACES = ("host", "port", "service")
_SCHEMA = re.compile(r"-c\s*search_path=[\w,]+")
_LIKE_A_URL = re.compile(r"^\w+:|:[^/]*@|\b(host|dbname|user|password)\s*=")


def database_url(url: str | os.PathLike[str] | None) -> sa.URL:
    """The database of a URL or path, else of CKPTSTORE_URL, else the user's own file.

    A file gets its whole path: two catalogs of one name in two directories must not share what the machine remembers.
    Raises `UsageError` for an invalid URL.
    """
    if url == "":  # a variable that is not set: the default catalog may be another one
        raise UsageError("the URL of the catalog is empty", "name one; without --db, CKPTSTORE_URL counts")
    given = os.fspath(url or os.environ.get("CKPTSTORE_URL") or "")
    if not given:
        return sa.URL.create("sqlite", database=str(users_own()))
    text = given.strip()  # a variable that is read from a file ends with a line break
    if "://" not in text:
        return sa.URL.create("sqlite", database=str(_as_path(text)))
    return _parse(text)


def users_own() -> Path:
    """The user's own SQLite file, for commands that name no catalog."""
    return Path(user_data_path("ckptstore", appauthor=False), "catalog.db")


def _as_path(text: str) -> Path:
    """The path of an SQLite file. The error for a mistyped URL does not repeat it, since it may hold a password."""
    if text in ("", ":memory:"):
        raise UsageError("an SQLite catalog needs a file: other processes must see it", _HINT)
    if _LIKE_A_URL.search(text):
        raise UsageError("the catalog is neither a URL nor the path of a file", _HINT)
    try:
        return Path(text).expanduser().absolute()
    except RuntimeError:
        raise UsageError(f"{text} names a home that there is not", "give the whole path") from None


def _parse(text: str) -> sa.URL:
    try:
        url = sa.make_url(text)
    except (sa.exc.ArgumentError, ValueError):
        raise UsageError("the catalog's URL cannot be read", _HINT) from None
    backend = url.get_backend_name()
    if backend == "sqlite":
        if url.host or url.port or url.username is not None or url.password is not None:
            raise UsageError("the URL of an SQLite catalog names a host or a user", _SLASHES)
        if not url.database or url.database == ":memory:":
            raise UsageError("an SQLite catalog needs a file: other processes must see it", _HINT)
        if url.query:
            raise UsageError("the URL of an SQLite catalog takes no options", _HINT)
        return url.set(drivername="sqlite", database=str(Path(url.database).absolute()))
    if backend in ("postgresql", "postgres"):
        return _without_secrets(url).set(drivername="postgresql+psycopg")
    raise UsageError(f"a catalog cannot be on {backend!r}", _HINT)


def _without_secrets(url: sa.URL) -> sa.URL:
    """The URL with its password in the password field, which is hidden when a URL is printed.

    Errors repeat no part of the URL that might be a password.
    """
    if "@" in (url.host or ""):
        raise UsageError("the catalog's URL has an @ too many", "in a user's name or a password write it as %40")
    if "sslpassword" in url.query:
        raise UsageError(
            "the catalog's URL holds the password of a key", "put it into a PGSERVICEFILE, and ?service=NAME in the URL"
        )
    password = url.query.get("password")
    if isinstance(password, tuple):
        raise UsageError("the catalog's URL has its password twice", "give it once, or put it into a PGPASSFILE")
    return url if password is None else url.difference_update_query(["password"]).set(password=password)


def shown(url: sa.URL) -> str:
    """The URL for messages, as users write it: without its password, and only with options that say where it is.

    A catalog in memory has what journals say.
    """
    if url.database == ":memory:":
        return "the journals that were found"
    places = {
        name: value
        for name, value in url.query.items()
        if name in _PLACES or (name == "options" and _SCHEMA.fullmatch(str(value)))
    }
    return url.set(drivername=url.get_backend_name(), query=places).render_as_string(hide_password=True)
