"""client/connect_race.py: one of several attempts has to succeed."""

import asyncio

import pytest

from streamsx.client.connect_race import first_success
from streamsx.errors import BrokerUnreachable, SettingError

PATIENCE_S = 0.05


def race(*stories: float | Exception) -> tuple[int, list[int]]:
    """Race attempts that take so long or fail; return the winner and the cancelled ones."""
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


def test_next_attempt_starts_at_once_after_failure() -> None:
    assert race(BrokerUnreachable("a"), BrokerUnreachable("b"), 0.0) == (2, [])


def test_next_attempt_starts_beside_silent_attempt_and_cancels_loser() -> None:
    assert race(60.0, 0.0, 0.0) == (1, [0])


def test_race_without_success_raises_all_reasons() -> None:
    with pytest.raises(BrokerUnreachable, match=r"^a; b$"):
        race(BrokerUnreachable("a"), BrokerUnreachable("b"))


def test_unretriable_error_ends_race() -> None:
    with pytest.raises(SettingError, match="refused"):
        race(SettingError("refused"), 0.0)
