"""Makes the parts of a worker and joins them: who is handed what stands here and nowhere else."""

import asyncio
import socket
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, Protocol

from streamsx import __version__
from streamsx.assignor.model import Rules
from streamsx.assignor.partition_assignor import StreamsPartitionAssignor, Subtopology
from streamsx.clock import Clock
from streamsx.config import Config
from streamsx.engine.committing import Committing
from streamsx.engine.failures import Failures, damage
from streamsx.engine.fetch import Fetcher
from streamsx.engine.gaps import Gaps
from streamsx.engine.group import GroupLink
from streamsx.engine.host import WorkerHost
from streamsx.engine.journal import LOG, Journal
from streamsx.engine.loop import DataLoop
from streamsx.engine.produce import Producer, always
from streamsx.engine.purge import Purging
from streamsx.engine.restoring import Restorer
from streamsx.engine.stores import OpenRows, Stores
from streamsx.engine.tasks import Parts, Tasks
from streamsx.errors import PartitionCountChanged
from streamsx.kafka.cluster import Cluster
from streamsx.lifecycle.fetch import FetchLimits
from streamsx.membership.events import ControlMessage
from streamsx.membership.member import LAST_COMMIT_S, MemberConfig
from streamsx.membership.outage import Outage
from streamsx.membership.seat import Seat
from streamsx.membership.session import Session
from streamsx.state.directory import StateDirectory
from streamsx.state.rocks import RocksMemory, RocksRows
from streamsx.task.policy import Policy, Word
from streamsx.topology.build import Topology
from streamsx.topology.internal_topics import TopicKind
from streamsx.topology.partitions import refuse_changes

EXECUTOR_THREADS = 2
CACHE_SHARE, BLOCKS_SHARE, BUFFERS_SHARE, HELD_SHARE = 0.40, 0.20, 0.15, 0.10
"""Of the memory budget: decoded objects, RocksDB's blocks and write buffers, fetched batches."""
DIRTY_SHARE = CACHE_SHARE / 4
"""More than this, and a commit does not wait for its interval."""
PATIENCE_SHARE = 1 / 2
"""Of the time in which a task has to be released: the rest is for its last commit."""
LAST_PATIENCE_S = LAST_COMMIT_S * PATIENCE_SHARE
RESTORE_PARTITION_BYTES: Final = 1 << 20
JITTER_STEPS = 1000


RowsOf = Callable[[int], OpenRows]
"""Of a memory budget in bytes: what opens the rows of persistent stores."""


def rocks_rows(budget_bytes: int) -> OpenRows:
    """RocksDB, with its share of the budget."""
    blocks, buffers = int(budget_bytes * BLOCKS_SHARE), int(budget_bytes * BUFFERS_SHARE)
    memory = RocksMemory(blocks_bytes=blocks, buffers_bytes=buffers)
    return lambda path, layout: RocksRows(path, memory, layout)


class Owner(Protocol):
    """The worker, as its parts see it."""

    def spawn(self, job: Coroutine[Any, Any, None], *, name: str) -> asyncio.Task[None]: ...
    def fail(self, error: Exception) -> None: ...
    def ended(self, error: Exception | None) -> None: ...
    def deliver(self, message: ControlMessage) -> None: ...


@dataclass(frozen=True, slots=True)
class Machinery:
    """The parts that the worker itself has to do with."""

    session: Session
    link: GroupLink
    fetcher: Fetcher
    changelogs: Fetcher
    producer: Producer
    """Of the tasks; the host has its own."""
    host: WorkerHost
    stores: Stores
    tasks: Tasks
    loop: DataLoop
    purging: Purging
    failures: Failures
    arrived: asyncio.Event
    """Something is there to do."""
    executor: ThreadPoolExecutor


@dataclass(frozen=True, slots=True)
class Given:
    """What a worker is made from. `partitions`: how many each topic has."""

    owner: Owner
    topology: Topology
    config: Config
    directory: StateDirectory
    journal: Journal
    clock: Clock
    cluster: Cluster
    partitions: Mapping[str, int]
    rows: RowsOf = rocks_rows

    @property
    def limit(self) -> int:
        return self.config.acceptable_recovery_lag


def assemble(given: Given) -> Machinery:
    """Nothing of it runs yet."""
    config, clock, cluster = given.config, given.clock, given.cluster
    gaps, arrived = Gaps(), asyncio.Event()
    executor = ThreadPoolExecutor(EXECUTOR_THREADS, thread_name_prefix="executor")
    stores = stores_of(given, executor)
    assignor = assignor_of(given)
    ended, counted = given.owner.ended, counted_by(given)
    link = GroupLink(clock, given.journal, assignor, gaps, ended, counted, limit=given.limit)
    session = session_of(given, assignor)
    producer = producer_of(given, lease_of(given, session, link), arrived.set)
    failures = Failures(clock)
    tasks = Tasks(parts_of(given, stores, producer, link, failures, arrived), gaps)
    data, log = limits_of(config)
    damaged = damage(given.journal)
    fetcher = Fetcher(cluster, clock, "data", data, arrived.set, tasks.source_cut, damaged)
    changelogs = Fetcher(cluster, clock, "restore", log, arrived.set, tasks.changelog_cut, damaged)
    kept = given.directory.kept
    restorer = Restorer(clock, changelogs, given.journal, tasks, kept, limit=given.limit)
    purging = purging_of(given)
    patience_s = config.revoke_timeout_s * PATIENCE_SHARE
    committing = Committing(
        clock,
        producer,
        link.commit,
        purging.committed,
        given.journal,
        given.owner.spawn,
        tasks,
        interval_s=config.commit_interval_s,
        dirty_bytes_max=int(config.memory_budget_bytes * DIRTY_SHARE),
        patience_s=lambda: LAST_PATIENCE_S if link.leaving else patience_s,
    )
    loop = DataLoop(
        clock, tasks, committing, restorer, fetcher, producer, arrived,
        slice_s=config.restore_slice_s, report=link.publish,
    )  # fmt: skip
    host = WorkerHost(clock, producer_of(given), tasks, lambda: link.leads)
    tasks.connect(fetcher, committing, restorer)
    link.connect(session, tasks, committing, (fetcher, changelogs))
    return Machinery(
        session, link, fetcher, changelogs, producer, host, stores, tasks, loop, purging, failures,
        arrived, executor,
    )  # fmt: skip


def stores_of(given: Given, executor: ThreadPoolExecutor) -> Stores:
    return Stores(
        given.clock,
        given.journal,
        given.directory,
        given.rows(given.config.memory_budget_bytes),
        layouts_of(given.topology, given.partitions),
        executor,
        cleanup_delay_s=given.config.state_cleanup_delay_s,
    )


def producer_of(
    given: Given, held: Callable[[], bool] = always, room: Callable[[], object] = always
) -> Producer:
    return Producer(
        given.cluster,
        given.clock,
        given.owner.spawn,
        given.owner.fail,
        linger_s=given.config.producer_linger_s,
        buffer_bytes=given.config.produce_buffer_bytes,
        compression=given.config.producer_compression_type or "none",
        held=held,
        room=room,
    )


def lease_of(given: Given, session: Session, link: GroupLink) -> Callable[[], bool]:
    """The group counts this worker in as of now, and all it has ever taken away has been heard of.

    The race: user code holds the data loop for a second; its member is fenced, joins again and has
    a lease; the data loop goes on, and what it has in its hand is from before.
    """
    if not given.topology.subtopologies:
        return always
    now = given.clock.now
    return lambda: session.losses == link.losses and now() < session.lease


def counted_by(given: Given) -> Callable[[Mapping[str, int]], None]:
    """Who hears of new partition counts, and ends the worker where its state does not fit."""

    def counted(counts: Mapping[str, int]) -> None:
        try:
            refuse_changes(given.topology, given.partitions, counts)
        except PartitionCountChanged as error:
            given.owner.fail(error)

    return counted


def parts_of(
    given: Given,
    stores: Stores,
    producer: Producer,
    link: GroupLink,
    failures: Failures,
    arrived: asyncio.Event,
) -> Parts:
    config = given.config
    return Parts(
        clock=given.clock,
        config=config,
        journal=given.journal,
        plans={plan.number: plan for plan in given.topology.subtopologies},
        stores=stores,
        producer=producer,
        cluster=given.cluster,
        group=link,
        policy=Policy(
            Word(config.on_error),
            Word(config.on_decode_error),
            failures.report,
            config.consecutive_failures_max,
        ),
        spawn=given.owner.spawn,
        arrived=arrived,
        fatal=given.owner.fail,
        cache_bytes=int(config.memory_budget_bytes * CACHE_SHARE),
    )


def purging_of(given: Given) -> Purging:
    topics = given.topology.topics
    return Purging(
        given.cluster, [spec.name for spec in topics if spec.kind is TopicKind.REPARTITION]
    )


def layouts_of(topology: Topology, partitions: Mapping[str, int]) -> dict[str, str]:
    return {
        node.name: node.layout(partitions[node.changelog])
        for plan in topology.subtopologies
        for node in plan.stores
    }


def limits_of(config: Config) -> tuple[FetchLimits, FetchLimits]:
    """Of the lanes for sources and for changelogs; both together hold their share at most."""
    held = int(config.memory_budget_bytes * HELD_SHARE)
    wait_ms = int(config.fetch_max_wait_s * 1000)
    data = FetchLimits(
        wait_ms,
        config.fetch_max_bytes,
        config.consumer_max_fetch_size_bytes,
        config.fetch_hold_bytes,
        held - held // 4,
        config.broker_check_crcs,
    )
    log = FetchLimits(
        wait_ms,
        config.fetch_max_bytes,
        RESTORE_PARTITION_BYTES,
        2 * RESTORE_PARTITION_BYTES,
        held // 4,
        config.broker_check_crcs,
    )
    return data, log


def assignor_of(given: Given) -> StreamsPartitionAssignor:
    topology, config = given.topology, given.config
    subtopologies = [
        Subtopology(
            plan.number,
            plan.topics,
            plan.stateful,
            signature,
            given.partitions[plan.topics[0]] if plan.stateful else None,
        )
        for plan, signature in zip(topology.subtopologies, topology.signatures, strict=True)
    ]
    rules = Rules(
        acceptable_recovery_lag=config.acceptable_recovery_lag,
        imbalance_percentage=config.imbalance_percentage,
        max_learners=config.max_learners,
        max_learners_per_member=config.max_learners_per_member,
    )
    return StreamsPartitionAssignor(
        subtopologies=subtopologies,
        rules=rules,
        process=given.directory.process_id.bytes,
        instance=given.journal.instance,
        version=__version__,
    )


def session_of(given: Given, assignor: StreamsPartitionAssignor) -> Session:
    """The group is named after the app. The member id lies in the state directory, for whoever
    holds it next."""
    group, config, directory = given.topology.app_id, given.config, given.directory
    member = MemberConfig(
        session_timeout_s=config.session_timeout_s,
        rebalance_timeout_s=config.rebalance_timeout_s,
        heartbeat_interval_s=config.heartbeat_interval_s,
        revoke_timeout_s=config.revoke_timeout_s,
        jitter=directory.process_id.int % JITTER_STEPS / JITTER_STEPS,
    )
    topics = sorted(topic for plan in given.topology.subtopologies for topic in plan.topics)

    def keep(member_id: str | None) -> None:
        if member_id is None:
            directory.forget_member()
        else:
            directory.remember_member(group, member_id, socket.gethostname())

    return Session(
        given.clock,
        member,
        group,
        Seat(assignor, tuple(topics)),
        given.owner.deliver,
        Outage(given.clock.now, config.session_timeout_s, LOG.warning),
        keep,
    )
