"""The manifest of an export: one state of a run, its files with sizes and digests, and how it was made.

Any program may have written a manifest. It must equal, byte for byte, the text that this module writes for its content.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any

from blake3 import blake3
from msgspec import Meta, MsgspecError, Struct, convert, to_builtins

from ckptstore.core import limits
from ckptstore.core.bounded_json import parse as parse_json
from ckptstore.core.events import FileRecorded, from_line, launch_from_json, launch_to_json, to_line
from ckptstore.core.fields import Moment, Name, Text, Whole
from ckptstore.core.metrics import mean_metrics
from ckptstore.core.model import Checkpoint, Content, FileState, Launch
from ckptstore.core.naming import SEVERAL, TENSORFLOW, companion_of, parse_rank_directory, parse_tensorflow
from ckptstore.disk.name_claims import FOLDER
from ckptstore.errors import CkptstoreError, DamageError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

NAME = "manifest.json"
FORMAT = 1
"""The version of the format. An export with a greater one was made by a newer ckptstore, and is not read."""

MOST_BYTES = 96 << 20
"""The most bytes of a manifest. The manifest of 10,000 ranks has 9 MB."""

UNKNOWN = "0" * 64
"""Stands for a digest, with the same length, until the file is read."""

ROOT = "/export"
"""The records of an export have paths as if the export were in this directory."""


class Part(Struct, frozen=True):
    """A file of an export: its path relative to the export, its size in bytes, and its BLAKE3 in hexadecimal."""

    place: Text
    size: Whole
    digest: Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]


class Made(Struct, frozen=True):
    """How an export was made: the time, the version of ckptstore, and that of the installed MindSpore, if any."""

    at: Moment
    ckptstore: Text
    mindspore: Text | None = None


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The content of an export."""

    run: str  # the name of the exported run
    launch: Launch  # that saved the state
    files: tuple[Checkpoint, ...]  # paths, also of strategy files, are below `ROOT`
    parts: tuple[Part, ...]  # all files of the export, in their order
    made: Made

    @property
    def first(self) -> Checkpoint:
        """The file of the lowest rank. Its step and epoch are those of the state."""
        return self.files[0]

    @cached_property
    def by_place(self) -> Mapping[str, Part]:
        """The parts by their places."""
        return {part.place: part for part in self.parts}

    def parts_of(self, file: Checkpoint) -> list[Part]:
        """The files of a checkpoint: one file, the files with a prefix of TensorFlow, or all files in a directory."""
        place = place_of(file.path)
        if file.format not in SEVERAL:
            return [self.by_place[place]] if place in self.by_place else []
        if file.format == TENSORFLOW:
            named = ((part, parse_tensorflow(part.place)) for part in self.parts)
            return [part for part, name in named if name is not None and name.prefix == place]
        return [part for part in self.parts if part.place.startswith(f"{place}/")]

    @property
    def size(self) -> int:
        """The bytes of all files."""
        return sum(part.size for part in self.parts)

    @property
    def holds(self) -> Content:
        """Whether the state is whole, of weights only, or in shares."""
        return self.first.content


def to_text(manifest: Manifest) -> bytes:
    """The text of a manifest."""
    first, launch = manifest.first, manifest.launch
    content: dict[str, Any] = {
        "run": manifest.run,
        "global_step": first.global_step,
        "optimizer_step": first.optimizer_step,
        "epoch": first.epoch,
        "metrics": mean_metrics(file.metrics for file in manifest.files),
        "kinds": sorted({file.kind.value for file in manifest.files}),
        "holds": manifest.holds.value,
        "made": to_builtins(manifest.made),
        "launch": launch_to_json(launch),
        "files": [to_line(FileRecorded(file), ROOT) for file in manifest.files],
        "parts": to_builtins(manifest.parts),
    }
    return enveloped(json.dumps(content, indent=1, sort_keys=True).encode())


def enveloped(content: bytes, form: int = FORMAT) -> bytes:
    """Content with its format and the checksum of both. This envelope is the same in every format."""
    checksum = blake3(b"%d\n%b" % (form, content)).hexdigest()
    return b'{"ckptstore_export": %d, "checksum": "%b", "content":\n%b}\n' % (form, checksum.encode(), content)


_ENVELOPE = re.compile(rb'\{"ckptstore_export": (\d{1,9}), "checksum": "[0-9a-f]{64}", "content":\n(.*)\}\n', re.DOTALL)


def read(raw: bytes, source: str) -> Manifest:
    """Read a manifest from its bytes; `source` names the export in errors.

    Raises `DamageError` for bytes that no export has, `UsageError` for the export of a newer ckptstore.
    """
    try:
        form, content = _opened(raw)
        manifest = _of(parse_json(content)) if form <= FORMAT else None
        if manifest is not None:
            _check(manifest, raw)
    except (CkptstoreError, MsgspecError, ValueError, LookupError, TypeError, AttributeError, OverflowError) as error:
        raise DamageError(f"the manifest of {source} is damaged: {error}", "make the export again") from None
    if manifest is None:
        raise UsageError(f"{source} was made by a newer ckptstore (its format is {form})", "upgrade ckptstore")
    return manifest


def _opened(raw: bytes) -> tuple[int, bytes]:
    """The format and the content. Raises `ValueError`."""
    match = _ENVELOPE.fullmatch(raw)
    if match is None:
        raise ValueError("it does not have the form of a manifest")
    form, content = int(match[1]), match[2]
    if raw != enveloped(content, form):
        raise ValueError("its checksum does not match")
    return form, content


def _of(content: dict[str, Any]) -> Manifest:
    files: list[Checkpoint] = []
    for line in content["files"]:
        event = from_line(line, ROOT)
        if not isinstance(event, FileRecorded):
            raise ValueError("one of its records is not that of a file")  # noqa: TRY004 — one error for all kinds of damage
        files.append(event.file)
    return Manifest(
        run=convert(content["run"], Name),
        launch=launch_from_json(content["launch"]),
        files=tuple(files),
        parts=convert(content["parts"], tuple[Part, ...]),
        made=convert(content["made"], Made),
    )


def _check(manifest: Manifest, raw: bytes) -> None:
    """Raise `ValueError` unless these bytes are the text of the manifest, and its parts are those of one state."""
    if raw != to_text(manifest):
        raise ValueError("it is not as an export writes it")
    launch, places = manifest.launch, manifest.by_place.keys()
    _check_places(manifest)
    state = {(file.run, file.launch, file.global_step) for file in manifest.files}
    if state != {(launch.run, launch.id, manifest.first.global_step)}:
        raise ValueError("its files belong to more than one state, or to another launch")
    used: set[str] = set()
    for file in manifest.files:
        used |= _used_by(file, manifest)
    if used != places:
        raise ValueError(f"{min(places - used)!a} belongs to no checkpoint of the export")


def _used_by(file: Checkpoint, manifest: Manifest) -> set[str]:
    """The places of a checkpoint, its strategy file and its companion. Raises `ValueError` if its record differs."""
    if file.rank >= manifest.launch.world_size or file.state is not FileState.COMPLETE:
        raise ValueError(f"{file.path!a} has a rank that the launch lacks, or is not complete")
    own, places = manifest.parts_of(file), manifest.by_place.keys()
    if not own or sum(part.size for part in own) != file.size:
        raise ValueError(f"{file.path!a} is missing, or has another size than recorded")
    if file.format not in SEVERAL and own[0].digest != file.digest:
        raise ValueError(f"{file.path!a} is listed with two different digests")
    strategy = place_of(file.strategy_file) if file.strategy_file else ""
    if strategy and strategy not in places:
        raise ValueError(f"the strategy file {strategy!a} is missing")
    return {part.place for part in own} | (places & {strategy, place_of(companion_of(file.path))})


def _check_places(manifest: Manifest) -> None:
    places = manifest.by_place.keys()
    if len(places) != len(manifest.parts):
        raise ValueError("it lists one file twice")
    for place in places:
        _check_place(place)
    if any(above in places for place in places for above in _above(place)):
        raise ValueError("it lists one path as a file and as a directory")


def _check_place(place: str) -> None:
    parts = limits.path(place).split("/")
    if parse_rank_directory(parts[0]) is None or len(parts) < 2:  # noqa: PLR2004 — the rank's directory, and a name
        raise ValueError(f"{place!a} is not in the directory of a rank")
    if any(part in ("", ".", "..", FOLDER) for part in parts):
        raise ValueError(f"{place!a} cannot be the path of a file in an export")


def _above(place: str) -> Iterable[str]:
    parts = place.split("/")
    return ("/".join(parts[:count]) for count in range(1, len(parts)))


def place_of(path: str) -> str:
    """The place of a record's file, or of its companion: its path relative to the export."""
    return path.removeprefix(f"{ROOT}/")


def path_of(place: str) -> str:
    """The path in the record of a file in the export."""
    return f"{ROOT}/{place}"


def with_digests(manifest: Manifest, digests: Mapping[str, str]) -> Manifest:
    """The manifest with the digests of its parts and records, by their places."""
    parts = tuple(Part(part.place, part.size, digests[part.place]) for part in manifest.parts)
    files = tuple(replace(file, digest=digests[place_of(file.path)]) for file in manifest.files)
    return replace(manifest, parts=parts, files=files)
