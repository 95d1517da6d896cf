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
from ckptstore.serve.guard import VISIT
from ckptstore.serve.questions import rules_of

if TYPE_CHECKING:
    from collections.abc import Mapping
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
        self._templates.globals |= {"visit": VISIT.get}
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

    def failed(self, message: str, hint: str, status: int, title: str = "Not to be shown") -> Response:
        """What went wrong, and what to do."""
        return self._page("failed", title, status, message=message, hint=hint)

    def sign_in(self, target: str, trouble: str, status: int) -> Response:
        """The form that asks for the token, and leads on to `target`."""
        return self._page("sign_in", "Sign in", status, target=target, trouble=trouble)

    def collected(self, run: str, done: Mapping[str, Any]) -> Response:
        """What gc has done."""
        return self._page("collected", f"gc of run {run}", run=run, done=done)

    def undone(self, run: str, done: Mapping[str, Any]) -> Response:
        """What undo has brought back."""
        return self._page("undone", f"undo in run {run}", run=run, done=done)

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
        saves = [save for save in await self._ask.saves(name) if save.global_step == step]
        load = f"ckptstore.mindspore.load({f'{name}@{step}'!r}, network)"
        return self._page(
            "save",
            f"Step {step} of run {name}",
            run=name,
            step=step,
            files=files,
            load=load,
            pinned=any(save.pinned for save in saves),
            tags=sorted({tag for save in saves for tag in save.tags}),
        )

    async def _launches(self, request: Request) -> Response:
        name = request.path_params["run"]
        rows = list(reversed(await self._ask.history(name)))
        return self._page("launches", f"Launches of run {name}", run=name, rows=rows)

    async def _retention(self, request: Request) -> Response:
        name = request.path_params["run"]
        return await self.retention(name, {key: value for key, value in request.query_params.items() if value})

    async def retention(self, name: str, rules: Mapping[str, str], notice: str = "", status: int = 200) -> Response:
        """What gc would do by these rules, with the forms to have it done; `notice` says why it is shown."""
        planned, refused = None, ""
        try:
            planned = await self._ask.gc(name, rules_of(rules))
        except RefusedError as error:  # as where no policy is stored: the page asks for rules
            refused = error.message
        return self._page(
            "retention",
            f"Retention of run {name}",
            status,
            run=name,
            row=await self._ask.run(name),
            plan=planned.shown if planned else None,
            digest=planned.digest if planned else "",
            policy=(await self._ask.policy(name))["policy"],
            rules=rules,
            refused=refused,
            notice=notice,
        )

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
