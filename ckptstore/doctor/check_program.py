"""Which programs are installed here, by what their packages say: nothing of MindSpore is imported."""

from __future__ import annotations

import re
import sys
from importlib import metadata

from ckptstore.doctor.checkup import Check, Status

_NAME = "program"
_BOUND = re.compile(r"^mindspore\s*>=\s*(\d+)\.(\d+)")
_NUMBERS = re.compile(r"(\d+)\.(\d+)")
_OLD_NUMPY = 2  # the first that NumpySlicesDataset of MindSpore 2.10 fails on (mindspore.md §10)


def check() -> Check:
    """ckptstore, Python, and MindSpore if it is here."""
    own = f"ckptstore {metadata.version('ckptstore')}, Python {sys.version_info.major}.{sys.version_info.minor}"
    found, needed = _mindspore(), _needed()
    if found is None:
        return Check(_NAME, Status.OK, f"{own}; no MindSpore here, which only training needs")
    detail = f"{own}, MindSpore {found}"
    if _numbers(found) < needed:
        wanted = ".".join(map(str, needed))
        hint = f"training needs MindSpore {wanted} or later; the commands do not need it"
        return Check(_NAME, Status.WARNING, detail, hint)
    numpy = _version("numpy")
    if numpy is not None and _numbers(numpy)[0] >= _OLD_NUMPY:
        hint = "MindSpore's NumpySlicesDataset fails on it: pip install 'numpy<2'"
        return Check(_NAME, Status.WARNING, f"{detail}, numpy {numpy}", hint)
    return Check(_NAME, Status.OK, detail)


def _mindspore() -> str | None:
    """Its version, under whatever name it was installed."""
    version = _version("mindspore")
    if version is None:
        others = metadata.packages_distributions().get("mindspore", [])
        version = _version(others[0]) if others else None
    return version


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _needed() -> tuple[int, int]:
    """The oldest MindSpore that ckptstore says it works with."""
    bounds = [found for line in metadata.requires("ckptstore") or () if (found := _BOUND.match(line))]
    return (int(bounds[0][1]), int(bounds[0][2])) if bounds else (0, 0)


def _numbers(version: str) -> tuple[int, int]:
    found = _NUMBERS.match(version)
    return (int(found[1]), int(found[2])) if found else (0, 0)
