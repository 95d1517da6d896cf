"""What showed each bug of the past shows none now; `python -m tests.world.past --scripts` puts them back first."""

import pytest

from tests.world.past.scripts import SCRIPTS


@pytest.mark.parametrize("name", sorted(SCRIPTS))
def test_what_showed_a_bug_of_the_past_shows_none(name: str) -> None:
    SCRIPTS[name].run(SCRIPTS[name].places[0])
