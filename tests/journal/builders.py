"""Launches whose ranks say where they save, one that the catalog is out of reach of, and what became of it."""

import errno

import pytest

from ckptstore.api import Catalog
from ckptstore.core.model import FileState, RestorePlan
from ckptstore.errors import CatalogUnavailableError
from ckptstore.journal import jsonl
from ckptstore.training.rank_launch import RankLaunch


def plan_of(launch: RankLaunch) -> RestorePlan:
    plan = launch.resolve()
    assert plan is not None
    return plan


def cut_off(launch: RankLaunch, monkeypatch: pytest.MonkeyPatch) -> None:
    """The catalog cannot be used by this rank."""

    def refuse(**_: object) -> object:
        raise CatalogUnavailableError("no such server")

    monkeypatch.setattr(launch.database, "write", refuse)


def make_unreadable(journal: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk does not give this journal any more."""
    read = jsonl.read

    def refuse(path: str, *asked: int) -> jsonl.Contents:
        if path == journal:
            raise OSError(errno.EIO, "Input/output error")
        return read(path, *asked)

    monkeypatch.setattr(jsonl, "read", refuse)


def states(catalog: Catalog) -> dict[int, set[FileState]]:
    """The states of the files of each step."""
    found: dict[int, set[FileState]] = {}
    for file in catalog.files("run"):
        found.setdefault(file.global_step, set()).add(file.state)
    return found
