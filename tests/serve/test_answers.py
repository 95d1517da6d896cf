"""An answer is made once for all who ask, and given up in time."""

import asyncio

import pytest

from ckptstore.errors import CatalogBusyError
from ckptstore.outside import threading
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
