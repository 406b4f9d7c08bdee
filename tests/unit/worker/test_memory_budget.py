"""Shares of a worker's memory budget."""

import pytest

from streamsx.client.fetcher import HELD_SHARE
from streamsx.config import Config
from streamsx.worker.memory_budget import (
    BLOCKS_SHARE,
    BUFFERS_SHARE,
    CACHE_SHARE,
    SENT_SHARE,
    MemoryBudget,
    memory_budget,
)

MIB = 1 << 20


def test_shares_leave_room_for_sealed_rows() -> None:
    """Sealed rows on their way to the stores are as many as dirty ones, and not in the cache."""
    shares = CACHE_SHARE + BLOCKS_SHARE + BUFFERS_SHARE + HELD_SHARE + SENT_SHARE
    assert shares <= 0.95


def test_budget_of_512_mib_is_shared() -> None:
    budget = memory_budget(Config(id="app", memory_budget_bytes=512 * MIB))
    assert budget == MemoryBudget(int(204.8 * MIB), int(51.2 * MIB), 32 * MIB, int(25.6 * MIB))


@pytest.mark.parametrize(
    ("budget_mib", "buffer_mib", "sent_mib"), [(16, 32, 2), (64, 32, 4), (1024, 32, 32), (16, 1, 1)]
)
def test_sent_bytes_have_a_least_share_and_respect_produce_buffer(
    budget_mib: int, buffer_mib: int, sent_mib: int
) -> None:
    config = Config(
        id="app", memory_budget_bytes=budget_mib * MIB, produce_buffer_bytes=buffer_mib * MIB
    )
    assert memory_budget(config).sent_bytes == sent_mib * MIB
