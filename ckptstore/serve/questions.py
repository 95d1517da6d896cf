"""The queries of the server to the catalog: the calls that the command line makes, with their answers cached."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from starlette.convertors import Convertor, register_url_convertor

from ckptstore.catalog.runs import run_names
from ckptstore.doctor.doctor import examine
from ckptstore.errors import CatalogBusyError, UsageError
from ckptstore.resume import overview
from ckptstore.resume.dicts import fields
from ckptstore.retention import dicts as retention_dicts
from ckptstore.retention import stored_policy
from ckptstore.retention.execute import collect
from ckptstore.retention.policy import from_json
from ckptstore.serve.guard import SLASH
from ckptstore.serve.metrics import measure
from ckptstore.tiers import facts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from ckptstore.api import Catalog
    from ckptstore.catalog.copies import Backlog
    from ckptstore.catalog.engine import Database
    from ckptstore.core.model import Checkpoint, Resolution
    from ckptstore.core.tabular import Listing
    from ckptstore.resume.history import LaunchRow
    from ckptstore.resume.overview import RunRow, SaveDetails, SaveRow
    from ckptstore.serve.answers import Answers
    from ckptstore.serve.metrics import Measured
    from ckptstore.tiers.facts import Listed

COUNTS = ("keep_last", "keep_every", "keep_hourly", "keep_daily", "keep_weekly", "keep_best", "floor")
WORDS = ("keep_within", "metric", "mode")
_DIGITS = 18
SOON_SECONDS = 0.3
"""How long a page waits for doctor, which looks at every directory."""


class _Step(Convertor[int]):
    """A step in an address."""

    regex = f"[0-9]{{1,{_DIGITS}}}"

    def convert(self, value: str) -> int:
        return int(value)

    def to_string(self, value: int) -> str:
        return str(value)


class _Run(Convertor[str]):
    """The name of a run in an address. It may contain a slash, as `/` or as `%2F`."""

    regex = ".*"

    def convert(self, value: str) -> str:
        return value.replace(SLASH, "/")

    def to_string(self, value: str) -> str:
        return value.replace("/", SLASH)


register_url_convertor("step", _Step())
register_url_convertor("run", _Run())


@dataclass(frozen=True)
class Planned:
    """A plan of gc."""

    shown: dict[str, Any]  # the JSON that the command line prints
    digest: str  # of the plan; empty if there is none


class InTier(NamedTuple):
    """A tier, as a run uses it."""

    listed: Listed  # the copies in it
    waiting: Backlog | None  # the files that wait to be copied to it; None for a tier of level 0, the nodes' own disks


class Questions:
    """The queries. Each raises the errors of its call, and `CatalogBusyError` if the answer takes more than 5 s."""

    def __init__(self, catalog: Catalog, answers: Answers) -> None:
        self._catalog, self._answers = catalog, answers

    async def runs(self, *, valid: bool = False) -> Listing[RunRow]:
        """Every run. `valid`: see `Answers.get`."""
        return await self._answers.get("runs", self._catalog.runs, valid=valid)

    def outdate(self, run: str) -> None:
        """Drop the answers about a run that are older than the current list of runs. Call it if the list has news."""
        self._answers.outdate(run, "runs")

    async def run(self, run: str) -> RunRow:
        """One run."""
        return await self._answers.get(("run", run), lambda: overview.run_row(self._catalog.database, run))

    async def saves(self, run: str) -> Listing[SaveRow]:
        """The saves of a run."""
        return await self._answers.get(("saves", run), lambda: self._catalog.saves(run))

    async def saves_of(self, run: str, step: int) -> list[SaveRow]:
        """The saves of a step of a run."""
        return await self._answers.get(
            ("saves", run, step), lambda: overview.saves(self._catalog.database, run, step=step)
        )

    async def save(self, run: str, step: int) -> Listing[Checkpoint]:
        """The files of a step."""
        return await self._answers.get(("save", run, step), lambda: self._catalog.show(run, step))

    async def resolution(self, reference: str) -> Resolution:
        """The state from which a run goes on, or the one of a reference.

        Like the command `resolve`, it adds to the catalog what journals and disks show.
        """
        return await self._answers.get(("resolution", reference), lambda: self._catalog.resolve(reference))

    async def state(self, run: str, step: int) -> Resolution:
        """The file that each rank would load at a step, or the reasons why the step cannot be restored."""
        return await self._answers.get(("state", run, step), lambda: self._catalog.resolve(run, step=step))

    async def history(self, run: str) -> Listing[LaunchRow]:
        """The launches of a run."""
        return await self._answers.get(("history", run), lambda: self._catalog.history(run))

    async def policy(self, run: str) -> dict[str, Any]:
        """The stored policy of a run."""
        return await self._answers.get(("policy", run), lambda: policy_of(self._catalog.database, run))

    async def gc(self, run: str, rules: Mapping[str, Any]) -> Planned:
        """The plan of gc by these rules (none: the stored policy). No file is touched.

        Raises the error of gc if it makes no plan.
        """

        def plan() -> Planned:
            outcome = collect(self._catalog.database, run, from_json(rules) if rules else None)
            if outcome.plan is None and outcome.error is not None:
                raise outcome.error
            return Planned(retention_dicts.collected(outcome), outcome.plan.digest if outcome.plan else "")

        return await self._answers.get(("gc", run, tuple(sorted(rules.items()))), plan)

    async def doctor(self) -> dict[str, Any]:
        """The findings of doctor about everything."""
        return {"checks": await self._answers.get(("findings", None), lambda: self._examine(None))}

    async def findings(self, run: str | None = None) -> list[dict[str, Any]] | None:
        """The findings of doctor, about a run or everything. None: doctor is not ready yet."""
        with suppress(CatalogBusyError):
            return await self._answers.get(("findings", run), lambda: self._examine(run), patience=SOON_SECONDS)
        return None

    def _examine(self, run: str | None) -> list[dict[str, Any]]:
        done = examine(self._catalog.database.url.render_as_string(hide_password=False), run)
        return [fields(check, "name run status detail hint") for check in done.checks]

    async def details(self, run: str, rows: Sequence[SaveRow], most_files: int) -> SaveDetails:
        """The durations and the ranks of these saves of a run."""
        return await self._answers.get(
            ("details", run), lambda: overview.details(self._catalog.database, rows, most_files=most_files)
        )

    async def moments(self, rows: Sequence[RunRow], count: int) -> Mapping[str, Sequence[datetime]]:
        """The times of the newest saves of each run, `count` at most."""
        asked = "moments", tuple(row.run for row in rows)
        return await self._answers.get(asked, lambda: overview.moments(self._catalog.database, rows, count))

    async def hosts(self, run: str, step: int) -> Mapping[tuple[str, int], str]:
        """The host of each rank that saved a step, by launch and rank."""
        return await self._answers.get(("hosts", run, step), lambda: overview.hosts(self._catalog.database, run, step))

    async def tiers(self, run: str) -> list[InTier]:
        """The copies of a run in each tier, and the files that wait to be copied. Only tiers in use are listed."""

        def look() -> list[InTier]:
            waiting = facts.waiting(self._catalog.database, run)
            there = facts.listed(self._catalog.database, run)
            return [InTier(each, waiting.get(each.known.tier)) for each in there if each.known.declared]

        return await self._answers.get(("tiers", run), look)

    async def tiers_with(self, run: str, step: int) -> Mapping[str, Sequence[str]]:
        """The tiers that have a ready copy of each file of a step, by the file's id."""
        files = await self.save(run, step)
        return await self._answers.get(
            ("tiers of files", run, step), lambda: facts.tiers_with(self._catalog.database, files)
        )

    async def metrics(self) -> Measured:
        """The metrics for Prometheus."""
        rows = await self.runs()
        return await self._answers.get("metrics", lambda: measure(self._catalog.database, rows))

    async def names(self) -> list[str]:
        """The names of all runs: the cheapest query that shows whether the catalog answers."""
        return await self._answers.get("names", lambda: run_names(self._catalog.database, None))


def policy_of(database: Database, run: str) -> dict[str, Any]:
    """The stored policy of a run, as the command line prints it."""
    stored = stored_policy.show(database, run)
    return {"run": run, "policy": stored.to_json() if stored else None}


def is_number(text: str) -> bool:
    """Whether the text is a whole number of at most 18 digits: it fits the catalog, and Python can read it.

    Python reads no number of more than 4,300 digits.
    """
    return text.isascii() and text.isdigit() and len(text) <= _DIGITS


def rules_of(rules: Mapping[str, str]) -> dict[str, Any]:
    """The rules of a policy from the fields of an address or a form. Raises `UsageError` for an unknown or bad one."""
    found: dict[str, Any] = {}
    for name, value in rules.items():
        if name in COUNTS and is_number(value):
            found[name] = int(value)
        elif name in WORDS:
            found[name] = value
        elif name in COUNTS:
            raise UsageError(f"{name} is {value!a}", "give a whole number from 0 on")
        else:
            raise UsageError(f"{name}={value!a} is no rule", f"rules are: {', '.join((*COUNTS, *WORDS))}")
    return found
