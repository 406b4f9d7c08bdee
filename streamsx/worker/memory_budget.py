"""Memory budget of a worker, and the shares of the parts that hold rows and batches.

The share of fetched batches is in `client/fetcher`, beside the limits that are made of it.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

from streamsx.config import Config
from streamsx.state.rocks import RocksMemory, RocksRows
from streamsx.tasks.store_opener import OpenRows

CACHE_SHARE: Final = 0.40
"""Share of the memory budget for decoded objects."""
DIRTY_SHARE: Final = CACHE_SHARE / 4
"""Share of the memory budget. With more dirty bytes, a commit does not wait for the interval."""
GLOBAL_SHARE: Final = CACHE_SHARE / 8
"""Share of the memory budget, a part of the cache's, for the values of global tables if any."""
BLOCKS_SHARE: Final = 0.20
"""Share of the memory budget for RocksDB's blocks."""
BUFFERS_SHARE: Final = 0.15
"""Share of the memory budget for RocksDB's write buffers."""
SENT_SHARE: Final = 1 / 16
"""Share of the memory budget for records that are sent and not acknowledged, as far as
`produce_buffer` allows: 32 of 512 MiB."""
SENT_BYTES_MIN: Final = 2 << 20
"""Least such bytes of each of the two producers, as far as `produce_buffer` allows."""

RowsOf = Callable[[int], OpenRows]
"""Function that returns, for a memory budget in bytes, the opener of persistent stores' rows."""


class MemoryBudget(NamedTuple):
    """Memory budget of one worker.

    `cache_bytes`: decoded objects; `dirty_bytes`: dirty rows that begin a commit; `sent_bytes`:
    records without an acknowledgement, of one producer; `global_bytes`: decoded values of all
    global tables.
    """

    cache_bytes: int
    dirty_bytes: int
    sent_bytes: int
    global_bytes: int


def memory_budget(config: Config) -> MemoryBudget:
    """Return the shares of a worker with these settings."""
    budget_bytes = config.memory_budget_bytes
    sent_bytes = max(SENT_BYTES_MIN, int(budget_bytes * SENT_SHARE))
    return MemoryBudget(
        cache_bytes=int(budget_bytes * CACHE_SHARE),
        dirty_bytes=int(budget_bytes * DIRTY_SHARE),
        sent_bytes=min(config.produce_buffer_bytes, sent_bytes),
        global_bytes=int(budget_bytes * GLOBAL_SHARE),
    )


def rocks_rows(budget_bytes: int) -> OpenRows:
    """Return an opener of RocksDB stores, which together use RocksDB's share of the budget."""
    blocks = int(budget_bytes * BLOCKS_SHARE)
    buffers = int(budget_bytes * BUFFERS_SHARE)
    memory = RocksMemory(blocks_bytes=blocks, buffers_bytes=buffers)
    return lambda path, layout: RocksRows(path, memory, layout)
