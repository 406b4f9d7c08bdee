"""What a worker is made from; its parts are handed all of it, and take what they need."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from streamsx.client.cluster import Cluster
from streamsx.clock import Clock
from streamsx.config import Config
from streamsx.group.member_events import ControlMessage
from streamsx.journal import Journal
from streamsx.state.api import Rows
from streamsx.state.directory import StateDirectory
from streamsx.state.rocks import RocksMemory, RocksRows
from streamsx.tasks.rebalance_listeners import RebalanceListeners
from streamsx.topology.build import Topology
from streamsx.topology.nodes import SubTopology

CACHE_SHARE, BLOCKS_SHARE, BUFFERS_SHARE = 0.40, 0.20, 0.15
"""Of the memory budget: decoded objects; RocksDB's blocks and write buffers."""

SENT_SHARE, SENT_BYTES_MIN = 1 / 16, 2 << 20
"""Of the budget, for what is sent and not acknowledged, as far as `produce_buffer` allows it: 32 of
512 MiB. But so much at least, of each of the two producers."""

OpenRows = Callable[[Path, str], Rows]
"""Opens the rows in a folder, with their layout. Raises StoreLocked, StoreCorrupt,
IncompatibleStore.
"""
RowsOf = Callable[[int], OpenRows]
"""Of a memory budget in bytes: what opens the rows of persistent stores."""


def rocks_rows(budget_bytes: int) -> OpenRows:
    """RocksDB, with its share of the budget."""
    blocks, buffers = int(budget_bytes * BLOCKS_SHARE), int(budget_bytes * BUFFERS_SHARE)
    memory = RocksMemory(blocks_bytes=blocks, buffers_bytes=buffers)
    return lambda path, layout: RocksRows(path, memory, layout)


def sent_bytes(config: Config) -> int:
    """Return how much one producer may hold that is not acknowledged."""
    share = int(config.memory_budget_bytes * SENT_SHARE)
    return min(config.produce_buffer_bytes, max(SENT_BYTES_MIN, share))


class WorkerOwner(Protocol):
    """The worker, as its parts see it."""

    def spawn(self, job: Coroutine[Any, Any, None], *, name: str) -> asyncio.Task[None]: ...
    def spawn_users(self, job: Coroutine[Any, Any, None], *, name: str) -> None: ...
    def fail(self, error: Exception) -> None: ...
    def ended(self, error: Exception | None) -> None: ...
    def deliver(self, message: ControlMessage) -> None: ...


@dataclass(frozen=True, slots=True)
class WorkerContext:
    owner: WorkerOwner
    topology: Topology
    config: Config
    directory: StateDirectory
    journal: Journal
    clock: Clock
    cluster: Cluster
    rows: RowsOf = rocks_rows
    listeners: RebalanceListeners = field(default_factory=RebalanceListeners)

    @property
    def plans(self) -> Mapping[int, SubTopology]:
        """By number."""
        return {plan.number: plan for plan in self.topology.subtopologies}
