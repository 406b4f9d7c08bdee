"""Context of a worker: the objects that each part of the worker is made from."""

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
from streamsx.metrics import MetricRegistry
from streamsx.state.api import Rows
from streamsx.state.directory import StateDirectory
from streamsx.state.rocks import RocksMemory, RocksRows
from streamsx.tasks.rebalance_listeners import RebalanceListeners
from streamsx.topology.build import Topology
from streamsx.topology.nodes import SubTopology

CACHE_SHARE = 0.40
"""Share of the memory budget for decoded objects."""
BLOCKS_SHARE = 0.20
"""Share of the memory budget for RocksDB's blocks."""
BUFFERS_SHARE = 0.15
"""Share of the memory budget for RocksDB's write buffers."""

SENT_SHARE = 1 / 16
"""Share of the memory budget for records that are sent and not acknowledged, as far as
`produce_buffer` allows: 32 of 512 MiB."""
SENT_BYTES_MIN = 2 << 20
"""Least such bytes of each of the two producers, as far as `produce_buffer` allows."""

OpenRows = Callable[[Path, str], Rows]
"""Function that opens the rows in a folder, with their layout. Raises StoreLocked, StoreCorrupt,
IncompatibleStore.
"""
RowsOf = Callable[[int], OpenRows]
"""Function that returns, for a memory budget in bytes, the opener of persistent stores' rows."""


def rocks_rows(budget_bytes: int) -> OpenRows:
    """Return an opener of RocksDB stores, which together use RocksDB's share of the budget."""
    blocks = int(budget_bytes * BLOCKS_SHARE)
    buffers = int(budget_bytes * BUFFERS_SHARE)
    memory = RocksMemory(blocks_bytes=blocks, buffers_bytes=buffers)
    return lambda path, layout: RocksRows(path, memory, layout)


def sent_bytes(config: Config) -> int:
    """Return the bytes that one producer may hold without an acknowledgement."""
    share = int(config.memory_budget_bytes * SENT_SHARE)
    return min(config.produce_buffer_bytes, max(SENT_BYTES_MIN, share))


class WorkerOwner(Protocol):
    """Interface of the worker for its parts."""

    def spawn(self, job: Coroutine[Any, Any, None], *, name: str) -> asyncio.Task[None]: ...
    def spawn_users(self, job: Coroutine[Any, Any, None], *, name: str) -> None: ...
    def fail(self, error: Exception) -> None: ...
    def ended(self, error: Exception | None) -> None: ...
    def deliver(self, message: ControlMessage) -> None: ...


@dataclass(frozen=True, slots=True)
class WorkerContext:
    """Objects from which the parts of one worker are made."""

    owner: WorkerOwner
    topology: Topology
    config: Config
    directory: StateDirectory
    journal: Journal
    clock: Clock
    cluster: Cluster
    rows: RowsOf = rocks_rows
    listeners: RebalanceListeners = field(default_factory=RebalanceListeners)
    metrics: MetricRegistry = field(default_factory=MetricRegistry)

    @property
    def plans(self) -> Mapping[int, SubTopology]:
        """Return the sub-topologies by number."""
        return {plan.number: plan for plan in self.topology.subtopologies}
