"""The changes that the server makes with --allow-changes: pins, tags, policies, gc, undo. As on the command line."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, TypeVar

from ckptstore.outside import ThreadPoolExecutor
from ckptstore.retention import dicts, in_trash, stored_policy
from ckptstore.retention.execute import collect
from ckptstore.retention.policy import from_json
from ckptstore.retention.protect import check_was_tag
from ckptstore.serve.guard import VISIT
from ckptstore.serve.problems import StillAtWorkError
from ckptstore.serve.questions import policy_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ckptstore.api import Catalog
    from ckptstore.serve.answers import Answers

T = TypeVar("T")

log = logging.getLogger("ckptstore.serve")

WAITED_SECONDS = 30.0
_THREADS = 8


class Changes:
    """The changes. Each returns the JSON of the command of its name, and raises the errors of that command.

    A change that takes longer than 30 s raises `StillAtWorkError`, and goes on.
    """

    def __init__(self, catalog: Catalog, answers: Answers, *, patience: float = WAITED_SECONDS) -> None:
        self._catalog, self._answers, self._patience = catalog, answers, patience
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="ckptstore-change")

    async def pin(self, run: str, step: int, *, pinned: bool) -> dict[str, Any]:
        """Do `pin` or `unpin`."""
        call = self._catalog.pin if pinned else self._catalog.unpin
        name = "pin" if pinned else "unpin"
        changed = await self._done(f"{name} {run!a} {step}", lambda: call(run, step))
        return {"run": run, "global_step": step, "pinned": pinned, "changed": changed}

    async def tag(self, run: str, step: int, name: str) -> dict[str, Any]:
        """Do `tag`."""
        changed = await self._done(f"tag {run!a} {step} {name!a}", lambda: self._catalog.tag(run, step, name))
        return {"run": run, "global_step": step, "tag": name, "changed": changed}

    async def untag(self, run: str, name: str) -> dict[str, Any]:
        """Do `untag`."""

        def work() -> bool:
            check_was_tag(self._catalog.database, run, name)
            return self._catalog.untag(run, name)

        changed = await self._done(f"untag {run!a} {name!a}", work)
        return {"run": run, "tag": name, "changed": changed}

    async def policy(self, run: str, rules: Mapping[str, Any] | None) -> dict[str, Any]:
        """Store these rules as the policy of a run, or forget the stored policy (None)."""
        database = self._catalog.database

        def work() -> dict[str, Any]:
            if rules is None:
                stored_policy.clear(database, run)
            else:
                stored_policy.store(database, run, from_json(rules))
            return policy_of(database, run)

        return await self._done(f"policy {run!a} {rules!a}", work)

    async def gc(self, run: str, rules: Mapping[str, Any], agreed: str) -> dict[str, Any]:
        """Do `gc --apply`. `agreed` is the digest of the plan that the user saw.

        Raises `PlanChangedError` if the plan is another one by now.
        """

        def work() -> dict[str, Any]:
            policy = from_json(rules) if rules else None
            outcome = collect(self._catalog.database, run, policy, apply_it=True, agreed=agreed)
            if outcome.error is not None:
                raise outcome.error
            return dicts.collected(outcome)

        return await self._done(f"gc {run!a} {dict(rules)!a}", work)

    async def undo(self, run: str) -> dict[str, Any]:
        """Do `undo`."""
        return await self._done(f"undo {run!a}", lambda: dicts.undone(in_trash.undo(self._catalog.database, run)))

    def close(self) -> None:
        """Accept no more changes. Changes that have begun are finished."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _done(self, what: str, work: Callable[[], T]) -> T:
        who = VISIT.get().who

        def logged() -> T:
            said = "done"
            try:
                return work()
            except Exception as error:
                said = ascii(str(error))
                raise
            finally:
                log.info("%s, by %s: %s", what, who, said)

        future = asyncio.get_running_loop().run_in_executor(self._threads, logged)
        future.add_done_callback(lambda _: self._answers.forget())
        try:
            return await asyncio.wait_for(asyncio.shield(future), self._patience)
        except asyncio.TimeoutError:
            raise StillAtWorkError(
                f"after {self._patience:g} s this is not finished: {what}",
                "it goes on: look at the run again before you repeat it",
            ) from None
