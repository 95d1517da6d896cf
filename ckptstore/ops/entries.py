"""How what journals hold is written down.

Paths are relative to the journal's directory, so that a copied tree is read where it is; no URL is in any of them.
"""

from __future__ import annotations

import base64
import os.path
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from ckptstore.core import limits
from ckptstore.core.limits import HIGHEST, count, finite, integer, moment, name, optional, ranks, text, whole
from ckptstore.core.model import Checkpoint, Content, FileState, Kind, Launch, Outcome, Rule
from ckptstore.core.replicas import data_parallel, from_json
from ckptstore.ops.records import Began, Ended, LayoutFile, Pinned, Ruled, Tagged, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ckptstore.catalog.reads import Source
    from ckptstore.core.replicas import Layout
    from ckptstore.ops.records import Said
    from ckptstore.storage.journal import Entry


def of_launch(began: Began, directory: str) -> Entry:
    """The entry of a launch; a plan's files are named by rank, kind and path, for their launch and step are its own."""
    launch = began.launch
    entry = {"t": "launch", **_launch(launch)}
    if began.at is not None:
        entry["start"] = {
            "at": began.at.isoformat(),
            "from": _launch(began.origin) if began.origin else None,
            "step": launch.parent_step,
            "start_step": launch.start_step,
            "branched": launch.branched,
            "plan": [[rank, file.rank, file.kind.value, _relative(file.path, directory)] for rank, file in began.plan],
        }
    return entry


def of_source(source: Source) -> Entry:
    """The entry of where a rank saves: its journal is in that very directory."""
    return {
        "t": "source",
        "launch": source.launch,
        "rank": source.rank,
        "kind": source.kind.value,
        "prefix": source.prefix,
        "breakpoint_prefix": source.breakpoint_prefix,
        "names_before": sorted(source.names_before),
        "host": source.host,
        "content": source.content.value if source.content else None,
    }


def of_end(ended: Ended) -> Entry:
    """The entry of an ending."""
    return {"t": "end", **ended.__dict__, "at": ended.at.isoformat()}


def of_verdict(verdict: Verdict, directory: str) -> Entry:
    """The entry of what came of a plan; the file is named by what its id is made of."""
    file = verdict.file
    return {
        "t": "outcome",
        "launch": verdict.launch,
        "rank": verdict.rank,
        "outcome": verdict.outcome.value,
        "file": _named(file, directory) if file else None,
        "detail": verdict.detail,
        "at": verdict.at.isoformat(),
    }


def of_layout_file(kept: LayoutFile, directory: str) -> Entry:
    """The entry of a strategy or group info file; a content of more than `MOST_CONTENT` bytes is left out."""
    content = base64.b64encode(kept.content).decode("ascii") if kept.content is not None and has_content(kept) else None
    return {"t": "layout", **kept.__dict__, "path": _relative(kept.path, directory), "content": content}


def has_content(kept: LayoutFile) -> bool:
    """Whether the entry of a layout file holds what is in the file."""
    return kept.content is not None and len(kept.content) <= MOST_CONTENT


MOST_CONTENT = 1 << 20
"""Bytes of compressed content in a line: the strategy of thousands of ranks fits, and many ranks may write one each."""


def of_word(word: Pinned | Tagged | Ruled) -> Entry:
    """The entry of a pin, a tag or a policy, or of its end."""
    return {"t": _WORDS[type(word)], **word.__dict__, "at": word.at.isoformat()}


_WORDS: dict[type, str] = {Pinned: "pin", Tagged: "tag", Ruled: "policy"}


def of_file(file: Checkpoint, directory: str) -> Entry:
    """The entry of a file's record; what says nothing is left out."""
    told = {
        **{name: getattr(file, name) for name in _PLAIN},
        "kind": file.kind.value,
        "path": _relative(file.path, directory),
        "content": file.content.value,
        "strategy_file": _relative(file.strategy_file, directory) if file.strategy_file else None,
        "metrics": dict(file.metrics),
        "state": file.state.value,
        "problem": file.problem.value if file.problem else None,
        "at": file.created_at.isoformat() if file.created_at else None,
        "amended": file.amended_at.isoformat() if file.amended_at else None,
    }
    return {"t": "file", **{name: value for name, value in told.items() if value not in (None, "", {})}}


_PLAIN: dict[str, Callable[[Any], Any]] = {
    "run": name,
    "launch": name,
    "global_step": whole,
    "rank": integer,
    "optimizer_step": whole,
    "epoch": integer,
    "step_in_epoch": integer,
    "size": whole,
    "digest": partial(text, longest=64),
    "mtime_ns": partial(whole, lowest=-HIGHEST),
    "format": partial(text, longest=16),
    "quarantine": text,
}


def said(entries: Sequence[Entry], directory: str, into: Said) -> None:
    """Add what a journal of `directory` says. It can tell of files in and below its own directory only.

    What no catalog can hold, as another program may have written it, is unusable like what makes no sense.
    """
    for entry in entries:
        try:
            _add(entry, directory, into)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError):  # noqa: PERF203 — one bad entry spoils no other
            into.unusable += 1


def _add(entry: Entry, directory: str, into: Said) -> None:
    from ckptstore.catalog.reads import Source  # noqa: PLC0415 — SQLAlchemy, which a writer has no need of

    kind = entry["t"]
    if kind == "launch":
        into.began.append(_as_began(entry, directory))
    elif kind == "file":
        into.files.append(_as_file(entry, directory))
    elif kind == "source":
        into.sources.append(
            Source(
                launch=name(entry["launch"]),
                rank=integer(entry["rank"]),
                directory=directory,
                kind=Kind(entry["kind"]),
                prefix=text(entry["prefix"]),
                breakpoint_prefix=text(entry["breakpoint_prefix"]),
                names_before=frozenset(map(str, entry["names_before"])),
                host=optional(text, entry["host"]),
                content=optional(Content, entry.get("content")),
            )
        )
    elif kind == "outcome":
        into.verdicts.append(_as_verdict(entry, directory))
    elif kind == "layout":
        into.layout_files.append(_as_layout_file(entry, directory))
    elif kind == "end":
        into.ended.append(
            Ended(
                launch=name(entry["launch"]),
                rank=integer(entry["rank"]),
                global_step=whole(entry["global_step"]),
                optimizer_step=optional(whole, entry["optimizer_step"]),
                error=optional(text, entry["error"]),
                quarantine=text(entry["quarantine"]),
                at=moment(entry["at"]),
            )
        )
    elif kind == "pin":
        step, pinned = whole(entry["global_step"]), bool(entry["pinned"])
        into.pinned.append(Pinned(name(entry["run"]), step, pinned, moment(entry["at"])))
    elif kind == "tag":
        into.tagged.append(
            Tagged(name(entry["run"]), name(entry["name"]), optional(whole, entry["global_step"]), moment(entry["at"]))
        )
    elif kind == "policy":
        rules = None if entry["rules"] is None else dict(entry["rules"])  # gc says what it does not know of them
        into.ruled.append(Ruled(name(entry["run"]), rules, moment(entry["at"])))


def _as_began(entry: Entry, directory: str) -> Began:
    launch = _as_launch(entry)
    start = entry.get("start")
    if start is None:
        return Began(launch)
    at = moment(start["at"])
    if start["from"] is None:
        return Began(replace(launch, decided=True, branched=bool(start["branched"])), at)
    origin = _as_launch(start["from"])
    step = whole(start["step"])
    launch = replace(
        launch,
        decided=True,
        parent=origin.id,
        parent_step=step,
        start_step=optional(whole, start["start_step"]),
        branched=bool(start["branched"]),
    )
    plan = tuple(
        (
            integer(rank),
            Checkpoint(
                run=launch.run,
                launch=origin.id,
                kind=Kind(kind),
                global_step=step,
                rank=integer(source),
                path=_absolute(path, directory),
            ),
        )
        for rank, source, kind, path in start["plan"]
    )
    return Began(launch, at, origin, plan)


def _as_verdict(entry: Entry, directory: str) -> Verdict:
    file = entry["file"]
    return Verdict(
        launch=name(entry["launch"]),
        rank=integer(entry["rank"]),
        outcome=Outcome(entry["outcome"]),
        at=moment(entry["at"]),
        file=None if file is None else _as_named(file, directory),
        detail=optional(text, entry["detail"]),
    )


def _as_layout_file(entry: Entry, directory: str) -> LayoutFile:
    content = entry["content"]
    return LayoutFile(
        launch=name(entry["launch"]),
        rank=integer(entry["rank"]),
        path=_absolute(entry["path"], directory),
        digest=text(entry["digest"], 64),
        kind=text(entry["kind"], 16),
        content=None if content is None else base64.b64decode(content, validate=True),
    )


def _named(file: Checkpoint, directory: str) -> dict[str, Any]:
    """What the id of a file is made of."""
    return {
        "run": file.run,
        "launch": file.launch,
        "kind": file.kind.value,
        "global_step": file.global_step,
        "rank": file.rank,
        "path": _relative(file.path, directory),
    }


def _as_named(told: dict[str, Any], directory: str) -> Checkpoint:
    return Checkpoint(
        run=name(told["run"]),
        launch=name(told["launch"]),
        kind=Kind(told["kind"]),
        global_step=whole(told["global_step"]),
        rank=integer(told["rank"]),
        path=_absolute(told["path"], directory),
    )


def _as_file(entry: Entry, directory: str) -> Checkpoint:
    path = _absolute(entry["path"], directory)
    if not path.startswith(f"{directory.rstrip('/')}/"):
        raise ValueError(f"{path} is outside of {directory}")
    strategy_file = entry.get("strategy_file")
    return Checkpoint(
        **{name: check(entry[name]) for name, check in _PLAIN.items() if name in entry},
        kind=Kind(entry["kind"]),
        path=path,
        content=Content(entry["content"]),
        strategy_file=_absolute(strategy_file, directory) if strategy_file else None,
        metrics={text(name): finite(value) for name, value in entry.get("metrics", {}).items()},
        state=FileState(entry["state"]),
        problem=Rule(entry["problem"]) if "problem" in entry else None,
        created_at=moment(entry["at"]),
        amended_at=optional(moment, entry.get("amended")),
    )


def _launch(launch: Launch) -> dict[str, Any]:
    return {
        "run": launch.run,
        "id": launch.id,
        "order": launch.order,
        "world_size": launch.world_size,
        "layout": _layout(launch.layout, launch.world_size),
        "steps_per_epoch": launch.steps_per_epoch,
        "batch_size": launch.batch_size,
        "shards": launch.shards,
        "created_at": launch.created_at.isoformat() if launch.created_at else None,
    }


def _as_launch(told: dict[str, Any]) -> Launch:
    world_size = ranks(told["world_size"])
    layout = told["layout"]
    return Launch(
        id=name(told["id"]),
        run=name(told["run"]),
        order=integer(told["order"]),
        world_size=world_size,
        layout=data_parallel(world_size) if layout == _ALL else from_json(layout),
        steps_per_epoch=optional(count, told["steps_per_epoch"]),
        batch_size=optional(count, told["batch_size"]),
        shards=optional(count, told["shards"]),
        created_at=moment(told["created_at"]),
    )


_ALL = "data_parallel"


def _layout(layout: Layout, world_size: int) -> object:
    """The layout; one that has all ranks in one group in a word: it is in the journal of each of them."""
    return _ALL if layout == data_parallel(world_size) else layout.to_json()


def _relative(path: str, directory: str) -> str:
    """The path from the directory, unless they have nothing in common."""
    if path.startswith(f"{directory}/") and "//" not in path:
        return path[len(directory) + 1 :]
    if not path.startswith("/") or os.path.commonpath([path, directory]) == "/":
        return path
    return os.path.relpath(path, directory)


def _absolute(path: str, directory: str) -> str:
    return limits.path(os.path.normpath(path if path.startswith("/") else f"{directory}/{path}"))
