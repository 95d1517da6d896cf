"""Pages for people, made here; they are whole without scripts, and follow the runs with them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from starlette.responses import HTMLResponse
from starlette.routing import Route

from ckptstore.core.hints import Command
from ckptstore.core.picture import MEANINGS, signs_of
from ckptstore.core.text import size, span
from ckptstore.doctor.checkup import Status
from ckptstore.errors import RefusedError
from ckptstore.outside import utc_now
from ckptstore.resume import dicts
from ckptstore.resume.liveness import trouble
from ckptstore.resume.references import no_plan
from ckptstore.serve import charts

if TYPE_CHECKING:
    from datetime import datetime

    from starlette.requests import Request
    from starlette.responses import Response

    from ckptstore.core.model import Rejection, Resolution, RestorePlan
    from ckptstore.serve.questions import Questions

_CELLS = 64
"""Of a row of the picture: of wider jobs several ranks share one, which shows the worst of them."""
_SAVES_SHOWN = 200


class Pages:
    """The routes of pages."""

    def __init__(self, questions: Questions) -> None:
        self._ask = questions
        self._templates = Environment(
            loader=PackageLoader("ckptstore.serve"),
            autoescape=select_autoescape(default=True),
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.globals |= {"at_run": at_run, "ago": ago, "bytes": size, "trouble": trouble, "charts": charts}
        self._templates.filters |= {"moment": moment}

    def routes(self) -> list[Route]:
        """Those of runs come last: a run's name may hold a slash."""
        return [
            Route("/", self._runs),
            Route("/doctor", self._doctor),
            Route("/runs/{run:path}/saves/{step:step}", self._save),
            Route("/runs/{run:path}/launches", self._launches),
            Route("/runs/{run:path}/retention", self._retention),
            Route("/runs/{run:path}", self._run),
        ]

    def _page(self, name: str, title: str, status: int = 200, **values: Any) -> Response:
        return HTMLResponse(self._templates.get_template(f"{name}.html").render(title=title, **values), status)

    def failed(self, message: str, hint: str, status: int) -> Response:
        """What went wrong, and what to do."""
        return self._page("failed", "Not to be shown", status, message=message, hint=hint)

    async def _runs(self, request: Request) -> Response:  # noqa: ARG002
        rows = sorted(await self._ask.runs(), key=lambda row: (-trouble(row.status), row.run))
        return self._page("runs", "Runs", rows=rows)

    async def _run(self, request: Request) -> Response:
        name = request.path_params["run"]
        row, saves = await self._ask.run(name), await self._ask.saves(name)
        resolution = await self._ask.resolution(name)
        losses = [(save.global_step, save.metrics["loss"]) for save in saves if "loss" in save.metrics]
        return self._page(
            "run",
            f"Run {name}",
            run=name,
            row=row,
            saves=saves[:_SAVES_SHOWN],
            more=len(saves) - len(saves[:_SAVES_SHOWN]),
            resolution=resolution,
            no_plan=None if resolution.plan else no_plan(resolution),
            picture=picture(resolution),
            meanings=MEANINGS,
            moments=[save.created_at.timestamp() for save in saves],
            losses=sorted(losses),
            command=str(Command("resolve", name, "--explain")),
        )

    async def _save(self, request: Request) -> Response:
        name, step = request.path_params["run"], request.path_params["step"]
        files = [dicts.file(file) for file in await self._ask.save(name, step)]
        load = f"ckptstore.mindspore.load({f'{name}@{step}'!r}, network)"
        return self._page("save", f"Step {step} of run {name}", run=name, step=step, files=files, load=load)

    async def _launches(self, request: Request) -> Response:
        name = request.path_params["run"]
        rows = list(reversed(await self._ask.history(name)))
        return self._page("launches", f"Launches of run {name}", run=name, rows=rows)

    async def _retention(self, request: Request) -> Response:
        name = request.path_params["run"]
        rules = {key: value for key, value in request.query_params.items() if value}
        plan, refused = None, ""
        try:
            plan = await self._ask.gc(name, rules)
        except RefusedError as error:  # as where no policy is stored: the page asks for rules
            refused = error.message
        return self._page("retention", f"Retention of run {name}", run=name, plan=plan, rules=rules, refused=refused)

    async def _doctor(self, request: Request) -> Response:  # noqa: ARG002
        checks = sorted((await self._ask.doctor())["checks"], key=lambda check: -list(Status).index(check["status"]))
        return self._page("doctor", "Doctor", checks=checks)


def at_run(run: str, *further: object) -> str:
    """The address of a run's page, or of one below it."""
    return "/runs/" + "/".join(quote(str(each), safe="") for each in (run, *further))


def picture(resolution: Resolution) -> list[dict[str, Any]]:
    """A row a state, newest first, with a sign a rank, or several ranks of a wide job."""
    states: list[Rejection | RestorePlan] = [*resolution.rejections, *([resolution.plan] if resolution.plan else [])]
    found = []
    for state in states:
        cells = signs_of(state, _CELLS)
        if cells:
            found.append({"step": state.global_step, "cells": cells, "is_chosen": state is resolution.plan})
    return found


def ago(at: datetime) -> str:
    """How long ago that was."""
    return f"{span(utc_now() - at)} ago"


def moment(at: datetime | None) -> str:
    """A moment in UTC."""
    return "-" if at is None else f"{at:%Y-%m-%d %H:%M:%S}"
