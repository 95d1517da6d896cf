"""Pages for people. They are complete without JavaScript; with JavaScript they also update themselves."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from starlette.responses import HTMLResponse
from starlette.routing import Route

from ckptstore.core.groups import grouped
from ckptstore.core.hints import Command
from ckptstore.core.picture import MEANINGS
from ckptstore.core.text import count, of_ranks, ranges, size, span
from ckptstore.doctor.checkup import Status
from ckptstore.errors import RefusedError
from ckptstore.outside import utc_now
from ckptstore.resume import dicts
from ckptstore.resume.liveness import trouble
from ckptstore.serve import charts, view
from ckptstore.serve.guard import VISIT
from ckptstore.serve.questions import rules_of
from ckptstore.serve.view import at_run

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from datetime import datetime

    from starlette.requests import Request
    from starlette.responses import Response

    from ckptstore.resume.overview import RunRow
    from ckptstore.serve.questions import Planned, Questions

_SAVES_SHOWN, _RUNS_SHOWN, _CHECKS_SHOWN, _STATES_SHOWN = 200, 100, 300, 500
_SPARKS = 24
_MOST_CELLS = 20_000
"""The largest number of files that are looked up for the picture of ranks and steps."""
_GRAVITY = list(Status)


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
        self._templates.globals |= {"visit": VISIT.get, "command_of": Command, "count": count}
        self._templates.filters |= {"moment": moment, "seconds": lambda value: f"{value:.3g} s"}

    def routes(self) -> list[Route]:
        """The routes. The shortest address of a run comes last, since a run's name may contain a slash."""
        return [
            Route("/", self._runs),
            Route("/doctor", self._doctor),
            Route("/runs/{run:run}/saves/{step:step}", self._save),
            Route("/runs/{run:run}/launches", self._launches),
            Route("/runs/{run:run}/retention", self._retention),
            Route("/runs/{run:run}", self._run),
        ]

    def _page(self, name: str, title: str, status: int = 200, **values: Any) -> Response:
        text = self._templates.get_template(f"{name}.html").render(title=title, **values)
        return HTMLResponse(text.encode("utf-8", "backslashreplace"), status)  # as `Json`: a shell's bytes may be odd

    def failed(self, message: str, hint: str, status: int, title: str = "Not to be shown") -> Response:
        """The page of an error, with what to do."""
        return self._page("failed", title, status, message=message, hint=hint)

    def sign_in(self, target: str, trouble: str, status: int) -> Response:
        """The form that asks for the token, and then leads to `target`."""
        return self._page("sign_in", "Sign in", status, target=target, trouble=trouble)

    def collected(self, run: str, done: Mapping[str, Any]) -> Response:
        """The result of a gc."""
        return self._page("collected", f"gc of run {run}", run=run, done=done)

    def undone(self, run: str, done: Mapping[str, Any]) -> Response:
        """The result of an undo."""
        return self._page("undone", f"undo in run {run}", run=run, done=done)

    async def _runs(self, request: Request) -> Response:
        rows, findings = await asyncio.gather(self._ask.runs(), self._ask.findings())
        shown, after = page_of(rows, worst_of(findings or ()), request.query_params.get("after", ""))
        return self._page(
            "runs",
            "Runs",
            rows=[each.row for each in shown],
            worst=worst_of(findings or ()),
            is_looking=findings is None,
            moments=await self._ask.moments([each.row for each in shown], _SPARKS),
            after=after,
            is_first="after" not in request.query_params,
        )

    async def _run(self, request: Request) -> Response:
        name = request.path_params["run"]
        row, saves, resolution, launches, findings, tiers = await asyncio.gather(
            self._ask.run(name),
            self._ask.saves(name),
            self._ask.resolution(name),
            self._ask.history(name),
            self._ask.findings(name),
            self._ask.tiers(name),
        )
        shown = saves[:_SAVES_SHOWN]
        details = await self._ask.details(name, shown, _MOST_CELLS)
        return self._page(
            "run",
            f"Run {name}",
            run=name,
            row=row,
            saves=shown,
            seconds=details.seconds,
            more=len(saves) - len(shown),
            resolution=resolution,
            findings=None if findings is None else [each for each in findings if each["run"] and is_told(each)],
            picture=view.picture(resolution, shown, details),
            heads=view.heads(launches[-1].launch.world_size) if launches else (),
            meanings=[(view.KINDS[sign], sign, meaning) for sign, meaning in MEANINGS.items()],
            lost=view.lost(resolution),
            timeline=view.timeline(launches, saves, details),
            lineage=view.lineage(launches, saves),
            stored=view.stored(saves),
            tiers=tiers,
            newest_in=view.newest_in_tiers(saves),
            losses=sorted((save.global_step, save.metrics["loss"]) for save in saves if "loss" in save.metrics),
            command=str(Command("resolve", name, "--explain")),
        )

    async def _save(self, request: Request) -> Response:
        name, step = request.path_params["run"], request.path_params["step"]
        files, saves, state, hosts, in_tiers = await asyncio.gather(
            self._ask.save(name, step),
            self._ask.saves_of(name, step),
            self._ask.state(name, step),
            self._ask.hosts(name, step),
            self._ask.tiers_with(name, step),
        )
        loaded_by = grouped((source.path, rank) for rank, source in (state.plan.ranks if state.plan else ()))
        return self._page(
            "save",
            f"Step {step} of run {name}",
            run=name,
            step=step,
            files=[dicts.file(file) for file in files],
            hosts=hosts,
            in_tiers={(file.launch, file.path): in_tiers[file.id] for file in files if file.id in in_tiers},
            loaded_by={path: of_ranks(ranks) for path, ranks in loaded_by.items()},
            state=state,
            groups=[ranges(group) for group in state.plan.launch.layout.groups] if state.plan else [],
            load=f"ckptstore.mindspore.load({f'{name}@{step}'!r}, network)",
            command=str(Command("resolve", name, "--step", step)),
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
        """The plan of gc by these rules, with the form that carries it out. `notice` stands above the plan."""
        (planned, refused), row, stored = await asyncio.gather(
            self._planned(name, rules_of(rules)), self._ask.run(name), self._ask.policy(name)
        )
        plan = planned.shown if planned else None
        states = [(kind, plan[kind][:_STATES_SHOWN]) for kind in ("remove", "keep")] if plan else []
        return self._page(
            "retention",
            f"Retention of run {name}",
            status,
            run=name,
            row=row,
            plan=plan,
            states=states,
            more=sum(len(plan[kind]) - len(some) for kind, some in states) if plan else 0,
            strip=view.strip(states),
            digest=planned.digest if planned else "",
            policy=stored["policy"],
            rules=rules,
            refused=refused,
            notice=notice,
        )

    async def _planned(self, name: str, rules: Mapping[str, Any]) -> tuple[Planned | None, str]:
        try:
            return await self._ask.gc(name, rules), ""
        except RefusedError as error:  # for example no policy is stored: the page asks for rules
            return None, str(error)

    async def _doctor(self, request: Request) -> Response:  # noqa: ARG002
        findings = await self._ask.findings()
        checks = sorted(findings or (), key=lambda check: -_GRAVITY.index(check["status"]))
        return self._page(
            "doctor", "Doctor", checks=checks[:_CHECKS_SHOWN], every=len(checks), is_looking=findings is None
        )


class Placed(NamedTuple):
    """A run in the list of all runs."""

    need: int  # how much it needs a person: 2 now, 1 perhaps, 0 not
    row: RunRow


def page_of(
    rows: Iterable[RunRow], worst: Mapping[str, Mapping[str, Any]], after: str
) -> tuple[list[Placed], str | None]:
    """A page of runs, those that need a person first, and the `after` of the next page (None: there are no more).

    `after` is the last run of the page before, as `NEED:RUN`. So a run that is added or removed moves no other one to
    another page.
    """
    placed = [Placed(max(trouble(row.status), _needs(worst.get(row.run))), row) for row in rows]
    placed.sort(key=lambda each: (-each.need, each.row.run))
    need, _, run = after.partition(":")
    if need in ("0", "1", "2"):
        placed = [each for each in placed if (-each.need, each.row.run) > (-int(need), run)]
    shown = placed[:_RUNS_SHOWN]
    return shown, f"{shown[-1].need}:{shown[-1].row.run}" if len(placed) > len(shown) else None


def _needs(check: Mapping[str, Any] | None) -> int:
    return {Status.PROBLEM: 2, Status.WARNING: 1}.get(check["status"], 0) if check else 0


def worst_of(findings: Iterable[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """The gravest check of each run. A run whose checks are all OK is left out."""
    found: dict[str, Mapping[str, Any]] = {}
    for check in findings:
        run = check["run"]
        if run and check["status"] != Status.OK:
            before = found.get(run)
            if before is None or _GRAVITY.index(check["status"]) > _GRAVITY.index(before["status"]):
                found[run] = check
    return found


def is_told(check: Mapping[str, Any]) -> bool:
    """Whether the page of a run shows a check: each one that is not OK, and the room on its disk."""
    return bool(check["status"] != Status.OK or check["name"] == "disk")


def ago(at: datetime) -> str:
    """How long ago `at` was, in words."""
    return f"{span(utc_now() - at)} ago"


def moment(at: datetime | None) -> str:
    """A moment in UTC."""
    return "-" if at is None else f"{at:%Y-%m-%d %H:%M:%S}"
