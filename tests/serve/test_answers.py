"""An answer is made once for all who ask, and given up in time."""

import asyncio
from contextlib import suppress
from types import SimpleNamespace

import pytest

from ckptstore.errors import CatalogBusyError, CatalogUnavailableError
from ckptstore.outside import threading
from ckptstore.serve import answers as module
from ckptstore.serve.answers import Answers


def test_those_who_ask_together_get_one_answer() -> None:
    async def ask() -> tuple[list[int], int]:
        answers, made = Answers(), list[int]()
        found = await asyncio.gather(*(answers.get("x", lambda: made.append(1) or len(made)) for _ in range(50)))
        answers.close()
        return found, len(made)

    assert asyncio.run(ask()) == ([1] * 50, 1)


def test_one_that_takes_too_long_is_given_up_and_asked_once() -> None:
    is_free, asked = threading.Event(), list[int]()

    def work() -> str:
        asked.append(1)
        is_free.wait()
        return "late"

    async def ask() -> str:
        answers = Answers(patience=0.05)
        for _ in range(3):
            with pytest.raises(CatalogBusyError, match="did not answer within 0.05 s"):
                await answers.get("x", work)
        is_free.set()
        answers._patience = 60
        found = await answers.get("x", work)
        answers.close()
        return found

    assert asyncio.run(ask()) == "late"
    assert len(asked) == 1


def test_an_error_is_told_to_all_who_asked() -> None:
    async def ask() -> list[object]:
        answers = Answers()
        found = await asyncio.gather(*(answers.get("x", lambda: 1 // 0) for _ in range(3)), return_exceptions=True)
        answers.close()
        return list(found)

    assert [type(each) for each in asyncio.run(ask())] == [ZeroDivisionError] * 3


def test_an_old_one_is_given_while_it_is_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """It counts for ten times as long as it took; three times as old it does not count at all."""
    now = [0.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    asked = list[int]()

    def work() -> int:
        asked.append(1)
        now[0] += 2
        return len(asked)

    async def ask() -> list[int]:
        answers, found = Answers(), list[int]()
        for later in (0, 19, 2, 0, 100):
            now[0] += later
            found.append(await answers.get("x", work))
            renewed = answers._made["x"].next
            if renewed is not None:
                await renewed.within(60)
        answers.close()
        return found

    assert asyncio.run(ask()) == [1, 1, 1, 2, 3]


def test_who_asks_for_a_valid_answer_waits_for_the_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it the stream of events reports a save one look too late: live pages took 2.4 s instead of 1.4."""
    now = [0.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    asked = list[int]()

    async def ask() -> list[int]:
        answers, found = Answers(), list[int]()
        for later, valid in ((0, True), (0.5, True), (1, False), (0, True)):
            now[0] += later
            found.append(await answers.get("x", lambda: asked.append(1) or len(asked), valid=valid))
        answers.close()
        return found

    assert asyncio.run(ask()) == [1, 1, 1, 2]


def test_what_is_outdated_is_made_anew_though_it_would_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a look at all runs shows something new of one: what is asked of that one afterwards is newer."""
    now = [0.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    asked = list[str]()

    async def ask() -> list[list[str]]:
        answers, found = Answers(), list[list[str]]()

        def work(name: str) -> str:
            asked.append(name)
            now[0] += 1
            return name

        for before, look_again in ((True, True), (False, True), (False, False)):
            asked.clear()
            if before:
                await answers.get(("run", "a"), lambda: work("a"))
                await answers.get(("run", "b"), lambda: work("b"))
            if look_again:
                answers._made.pop("runs", None)
                await answers.get("runs", lambda: work("runs"))
            answers.outdate("a", "runs")
            await answers.get(("run", "a"), lambda: work("a again"))
            await answers.get(("run", "b"), lambda: work("b again"))
            found.append(list(asked))
        answers.close()
        return found

    assert asyncio.run(ask()) == [["a", "b", "runs", "a again"], ["runs", "a again"], []]


def test_what_is_outdated_while_it_is_made_is_made_once_more() -> None:
    may_end, asked = threading.Event(), list[int]()

    def work() -> int:
        asked.append(1)
        may_end.wait()
        return len(asked)

    async def ask() -> int:
        answers = Answers(patience=60)
        waiting = asyncio.ensure_future(answers.get(("run", "a"), work))
        while not asked:
            await asyncio.sleep(0)
        await answers.get("runs", lambda: 0)
        answers.outdate("a", "runs")
        may_end.set()
        found = await waiting
        answers.close()
        return found

    assert asyncio.run(ask()) == 2


def test_no_second_query_is_started_when_an_answer_gets_old_while_it_is_made_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A catalog that hangs took two of the server's threads for each question."""
    now, is_free, asked = [0.0], threading.Event(), list[int]()
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def work() -> int:
        asked.append(1)
        if len(asked) > 1:
            is_free.wait()
        return len(asked)

    async def ask() -> int:
        answers = Answers(patience=0.05)
        assert await answers.get("x", work) == 1
        now[0] = 2
        assert await answers.get("x", work) == 1  # the next one is begun, and hangs
        now[0] = 4
        with pytest.raises(CatalogBusyError):
            await answers.get("x", work)
        is_free.set()
        answers._patience = 60
        found = await answers.get("x", work)
        answers.close()
        return found

    assert asyncio.run(ask()) == 2
    assert len(asked) == 2


def test_disks_that_hang_do_not_take_the_threads_of_the_catalog() -> None:
    """Looks at a file system that had gone took them all: it was said that the catalog does not answer."""
    is_back = threading.Event()

    async def ask() -> str:
        answers = Answers(patience=0.01)
        for run in map(str, range(10)):
            for question in (("findings", run), ("resolution", run), ("history", run), ("gc", run, ()), "metrics"):
                with pytest.raises(CatalogBusyError, match="the catalog or a disk did not answer"):
                    await answers.get(question, is_back.wait)
        try:
            return await answers.get("runs", lambda: "known", patience=5)
        finally:
            is_back.set()
            answers.close()

    assert asyncio.run(ask()) == "known"


def test_an_error_counts_for_a_second_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """A catalog that could not be reached for 10 s was reported as unreachable for 100 s more, though it was back."""
    now = [0.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def fail() -> str:
        now[0] += 10
        raise CatalogUnavailableError("away")

    async def ask() -> str:
        answers = Answers()
        with pytest.raises(CatalogUnavailableError, match="away"):
            await answers.get("x", fail)
        now[0] += 1.5
        with suppress(CatalogUnavailableError):
            await answers.get("x", lambda: "back")
        renewed = answers._made["x"].next
        if renewed is not None:
            await renewed.within(60)
        found = await answers.get("x", lambda: "back")
        answers.close()
        return found

    assert asyncio.run(ask()) == "back"
