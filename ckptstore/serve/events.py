"""Events of runs, as server-sent events: once a second, each stream compares the runs with those a second ago."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from starlette.responses import Response, StreamingResponse

from ckptstore.errors import CatalogUnavailableError
from ckptstore.resume.liveness import JOINED, SILENT_FOR

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping, Sequence

    from starlette.requests import Request

    from ckptstore.resume.overview import RunRow
    from ckptstore.serve.questions import Questions

_MEDIA_TYPE = "text/event-stream"
_EVERY_SECONDS = 1.0
_SAY_NOTHING_FOR = 15
"""The number of looks without news after which a comment is sent: a proxy would close a silent stream."""


class Events:
    """The stream `/api/v1/events`."""

    def __init__(self, questions: Questions) -> None:
        self._ask = questions

    async def stream(self, request: Request) -> Response:
        """Answer with the stream. It ends when the client disconnects."""
        rows = await self._ask.runs()  # an error here is a normal answer: the stream has not begun yet
        if request.method == "HEAD":  # the next request of this connection would wait for the end of the stream
            return Response(media_type=_MEDIA_TYPE)
        return StreamingResponse(self._lines(rows), media_type=_MEDIA_TYPE)

    async def _lines(self, seen: Sequence[RunRow]) -> AsyncIterator[str]:
        before = {row.run: row for row in seen}
        yield ": watching\n\n"
        quiet = 0
        while True:
            await asyncio.sleep(_EVERY_SECONDS)
            try:
                rows = await self._ask.runs(valid=True)
            except CatalogUnavailableError as error:
                yield _event("unavailable", {"detail": error.message})
                continue
            now = before if rows is seen else {row.run: row for row in rows}
            found = [] if rows is seen else list(news(before, now))
            changed = {data["run"] for _, data in found}
            changed.update(run for run, row in now.items() if run in before and _is_other(before[run], row))
            seen = rows
            for run in changed:
                self._ask.outdate(run)
            told = "".join(_event(*each) for each in found)
            before, quiet = now, 0 if changed else quiet + 1
            if changed:
                yield told + _event("changed", {})
            elif quiet >= _SAY_NOTHING_FOR:
                quiet = 0
                yield ": nothing new\n\n"


def news(before: Mapping[str, RunRow], now: Mapping[str, RunRow]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The events between two looks: the name and the data of each."""
    for run, row in now.items():
        old = before.get(run)
        if old is None or row.launches > old.launches:
            yield "launch_started", {"run": run}
        if row.last is not None and (old is None or _save(row) != _save(old)):
            yield "saved", {"run": run, "global_step": row.last.global_step, "kind": row.last.kind}
        if old is not None and _kind_of(row.status) != _kind_of(old.status):
            yield "status", {"run": run, "status": row.status}
        if old is not None and row.trash_bytes > old.trash_bytes:
            yield "gc", {"run": run, "trash_bytes": row.trash_bytes}
    for run in before.keys() - now.keys():
        yield "forgotten", {"run": run}


def _is_other(old: RunRow, row: RunRow) -> bool:
    return replace(old, status=_kind_of(old.status)) != replace(row, status=_kind_of(row.status))


def _kind_of(status: str) -> str:
    """A status without its duration: a run that stays silent for longer has no new status."""
    return next((kind for kind in (SILENT_FOR, JOINED) if status.startswith(kind)), status)


def _save(row: RunRow) -> tuple[str, int, int] | None:
    return None if row.last is None else (row.last.launch.id, row.last.global_step, row.last.ranks)


def _event(name: str, data: Mapping[str, Any]) -> str:
    return f"event: {name}\ndata: {json.dumps(data)}\n\n"
