"""client/connect_race.py: one of several attempts has to succeed."""

import asyncio

import pytest

from streamsx.client.connect_race import first_success
from streamsx.errors import BrokerUnreachable, SettingError

PATIENCE_S = 0.05


def race(*stories: float | Exception) -> tuple[int, list[int]]:
    """Each attempt takes so long, or fails with that: which has succeeded, which were cancelled."""
    cancelled: list[int] = []

    async def attempt(number: int) -> int:
        story = stories[number]
        if isinstance(story, Exception):
            raise story
        try:
            await asyncio.sleep(story)
        except asyncio.CancelledError:
            cancelled.append(number)
            raise
        return number

    return asyncio.run(first_success(range(len(stories)), attempt, PATIENCE_S)), cancelled


def test_the_next_one_is_tried_at_once_when_the_last_has_failed() -> None:
    assert race(BrokerUnreachable("a"), BrokerUnreachable("b"), 0.0) == (2, [])


def test_the_next_one_is_tried_beside_a_silent_one_which_is_cancelled() -> None:
    assert race(60.0, 0.0, 0.0) == (1, [0])


def test_all_reasons_are_given_when_none_succeeds() -> None:
    with pytest.raises(BrokerUnreachable, match=r"^a; b$"):
        race(BrokerUnreachable("a"), BrokerUnreachable("b"))


def test_what_no_other_attempt_would_mend_ends_the_race() -> None:
    with pytest.raises(SettingError, match="refused"):
        race(SettingError("refused"), 0.0)
