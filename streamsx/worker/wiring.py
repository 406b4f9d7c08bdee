"""Wiring of a worker: creates its parts and connects them.

Only this module decides which part receives which other part.
"""

import asyncio
import socket
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from streamsx import __version__
from streamsx.assignor.model import MemberMetadata, Rules
from streamsx.assignor.partition_assignor import StreamsPartitionAssignor, Subtopology
from streamsx.client.cluster import Cluster
from streamsx.client.fetcher import Fetcher, limits_of
from streamsx.client.producer import OnRefused, Producer, always
from streamsx.client.rejected_batch import RefusedRecord
from streamsx.client.topic_limits_watch import OutputLimits
from streamsx.client.transactional_id import TransactionalId
from streamsx.client.transactional_producer import TransactionalProducer
from streamsx.clock import Clock
from streamsx.config import COOPERATIVE_SINCE, EAGER, Config, is_exact
from streamsx.errors import TaskStopped, ValueRefused
from streamsx.group.member import MemberConfig
from streamsx.group.member_events import ControlMessage
from streamsx.group.outage import Outage
from streamsx.group.session import Session
from streamsx.group.subscription_builder import SubscriptionBuilder
from streamsx.journal import LOG, Journal
from streamsx.metrics import MetricRegistry
from streamsx.model import TaskId, TopicPartition
from streamsx.processing.failure_policy import Policy
from streamsx.state.directory import StateDirectory
from streamsx.tasks.active_tasks import ActiveTasks
from streamsx.tasks.committer import CommitLimits, CommitOutcomes, Committer, patient_until
from streamsx.tasks.failure_reports import FailureReports, report_damaged
from streamsx.tasks.group_gateway import GroupGateway
from streamsx.tasks.handovers import Handovers
from streamsx.tasks.idle_log import IdleLog
from streamsx.tasks.inactive_stores import InactiveStores
from streamsx.tasks.log_bounds import LATEST, LogBounds
from streamsx.tasks.produce_errors import ProduceErrors, ProduceErrorsOutsideTasks
from streamsx.tasks.rebalance_handler import RebalanceHandler
from streamsx.tasks.rebalance_listeners import ListenerCalls, RebalanceListeners
from streamsx.tasks.rebalance_log import RebalanceLog
from streamsx.tasks.repartition_purge import RepartitionPurge
from streamsx.tasks.restorer import Restorer
from streamsx.tasks.snapshot_restore import SnapshotRestore
from streamsx.tasks.source_watch import SourceWatch
from streamsx.tasks.start_positions import OffsetReset
from streamsx.tasks.store_cleanup import StoreCleanup
from streamsx.tasks.store_opener import StoreOpener
from streamsx.tasks.task_driver import TaskDriver
from streamsx.tasks.task_registry import Happened, TaskRegistry
from streamsx.tasks.task_reports import TaskReports
from streamsx.tasks.task_stores import TaskStores
from streamsx.tasks.transactional_committer import TransactionalCommitter
from streamsx.topology.build import Topology
from streamsx.topology.internal_topics import TopicKind, dead_letters_name
from streamsx.topology.nodes import SubTopology
from streamsx.topology.partitions import refuse_changes
from streamsx.worker.data_loop import DataLoop
from streamsx.worker.global_tables import GlobalTables
from streamsx.worker.host import KeyPlaces, WorkerHost
from streamsx.worker.late_topics import LateTopics
from streamsx.worker.memory_budget import RowsOf, memory_budget, rocks_rows
from streamsx.worker.slow_code import SlowCode
from streamsx.worker.throughput_log import ThroughputLog

EXECUTOR_THREADS = 2
JITTER_STEPS = 1000


class WorkerOwner(Protocol):
    """Interface of the worker for its parts."""

    def spawn(self, job: Coroutine[Any, Any, None], *, name: str) -> asyncio.Task[None]: ...
    def spawn_users(self, job: Coroutine[Any, Any, None], *, name: str) -> None: ...
    def fail(self, error: Exception) -> None: ...
    def ended(self, error: Exception | None) -> None: ...
    def deliver(self, message: ControlMessage) -> None: ...


@dataclass(frozen=True, slots=True)
class WorkerContext:
    """Objects of which one worker is made; only this module and the worker know them all."""

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


class WorkerComponents:
    """All parts of a worker, created and not yet running.

    Some parts call each other: a fetcher reports to the driver, and the driver decides what is
    fetched. The part that is created first gets a method of this class for the other one.
    """

    def __init__(self, context: WorkerContext, partitions: Mapping[str, int]) -> None:
        self._context = context
        self.arrived = asyncio.Event()
        """Set when there is work for the data loop."""
        self.executor = ThreadPoolExecutor(EXECUTOR_THREADS, thread_name_prefix="executor")
        self.failures = FailureReports(
            context.clock,
            context.metrics,
            context.journal,
            context.config.consecutive_failures_max,
        )
        self.limits = OutputLimits(context.cluster, context.clock, context.owner.spawn)
        assignor = assignor_of(context, partitions)
        self._join_group(assignor)
        self._read_and_send(partitions)
        self._keep_stores(partitions)
        self._own_tasks(partitions)
        self._follow_group(assignor, partitions)
        self._run_users(partitions)

    def _join_group(self, assignor: StreamsPartitionAssignor) -> None:
        """Create the member of the group and the ways to it."""
        context = self._context
        owner = context.owner
        self.session = session_of(context, assignor)
        self.listener_calls = ListenerCalls(
            listeners=context.listeners,
            spawn=lambda job, name: owner.spawn_users(job, name=name),
            fail=owner.fail,
            journal=context.journal,
            now=context.clock.now,
        )
        self._gateway = GroupGateway(self.session, assignor, self.listener_calls)

    def _read_and_send(self, partitions: Mapping[str, int]) -> None:
        """Create fetchers and the producer of the tasks; the host has a producer of its own."""
        context = self._context
        wake = self.arrived.set
        data, log = limits_of(context.config)
        damaged = partial(report_damaged, context.journal)
        self.fetcher = Fetcher(
            context.cluster, context.clock, "data", data, wake, self._source_cut, damaged
        )
        self.changelogs = Fetcher(
            context.cluster, context.clock, "restore", log, wake, self._changelog_cut, damaged
        )
        self.global_tables = GlobalTables(
            nodes=context.topology.tables,
            partitions=partitions,
            budget_bytes=memory_budget(context.config).global_bytes,
            limits=log,
            cluster=context.cluster,
            spawn=context.owner.spawn,
            journal=context.journal,
            clock=context.clock,
        )
        self.producer = self._task_producer()
        self.bounds = bounds_of(context, partitions)

    def _keep_stores(self, partitions: Mapping[str, int]) -> None:
        """Create the parts that open, fill, restore, close and delete stores."""
        context = self._context
        config = context.config
        directory = context.directory
        subtopologies = context.topology.subtopologies
        self.registry = TaskRegistry(together=not config.learner_partial_rebalance)
        self.opener = StoreOpener(
            subtopologies=subtopologies,
            partitions=partitions,
            open_rows=context.rows(config.memory_budget_bytes),
            directory=directory,
            executor=self.executor,
            journal=context.journal,
            clock=context.clock,
        )
        self.cleanup = StoreCleanup(
            subtopologies=subtopologies,
            directory=directory,
            executor=self.executor,
            delay_s=config.state_cleanup_delay_s,
            clock=context.clock,
        )
        self.snapshots = SnapshotRestore(
            uri=config.snapshot,
            topology=context.topology,
            partitions=partitions,
            cluster=context.cluster,
            directory=directory,
            journal=context.journal,
            clock=context.clock,
        )
        self.restorer = Restorer(
            fetcher=self.changelogs,
            lag_max=config.acceptable_recovery_lag,
            kept=directory.kept,
            restored=self._happened,
            failed=self._failed,
            journal=context.journal,
            clock=context.clock,
        )
        self.inactive = InactiveStores(self.bounds, self._changed)
        self.stores = TaskStores(
            plans=context.plans,
            opener=self.opener,
            snapshots=self.snapshots,
            restorer=self.restorer,
            inactive=self.inactive,
            bounds=self.bounds,
            registry=self.registry,
        )

    def _own_tasks(self, partitions: Mapping[str, int]) -> None:
        """Create the parts that run and commit tasks, and the driver of their life."""
        context = self._context
        config = context.config
        clock = context.clock
        tables = self.global_tables.stores
        budget = memory_budget(config)
        self.purge = purge_of(context)
        self.active_tasks = ActiveTasks(
            plans=context.plans,
            tables=tables,
            partitions=partitions,
            producer=self.producer,
            policy=policy_of(config, self.failures),
            wake=self.arrived.set,
            cache_bytes=budget.cache_bytes - (budget.global_bytes if tables else 0),
            clock=clock,
        )
        actives = self.active_tasks.running
        self.sources = SourceWatch(
            cluster=context.cluster,
            spawn=context.owner.spawn,
            bounds=self.bounds,
            fetcher=self.fetcher,
            actives=actives,
        )
        self.committer = self._committer()
        self.handovers = Handovers(
            registry=self.registry,
            actives=actives,
            lag=self.restorer.lag,
            caught_up=self.fetcher.caught_up,
            journal=context.journal,
            clock=clock,
        )
        self.tasks = TaskDriver(
            registry=self.registry,
            actives=self.active_tasks,
            stores=self.stores,
            sources=self.sources,
            committer=self.committer,
            handovers=self.handovers,
            bounds=self.bounds,
            gateway=self._gateway,
            spawn=context.owner.spawn,
            fail=context.owner.fail,
            journal=context.journal,
            clock=clock,
            abort_transaction=abort_of(self.producer),
        )
        self.produce_errors = produce_errors_of(context, self.tasks, self.producer)

    def _task_producer(self) -> Producer:
        """Create the producer of the tasks; under exactly-once it has a transactional id."""
        context = self._context
        config = context.config
        wake = self.arrived.set
        if not is_exact(config):
            return producer_of(context, self.limits, self._refused, self._leased, wake)
        name = f"{context.topology.app_id}-{context.directory.process_id}"
        return producer_of(
            context, self.limits, self._refused, self._leased, wake,
            partial(
                TransactionalProducer,
                transactional_id=TransactionalId(name, config.transaction_timeout_s),
                over=self._aborted,
                fails=context.owner.fail,
            ),
        )  # fmt: skip

    def _committer(self) -> Committer:
        context = self._context
        config = context.config
        made: Callable[..., Committer] = Committer
        if isinstance(self.producer, TransactionalProducer):
            made = partial(
                TransactionalCommitter,
                group=context.topology.app_id,
                patience_s=config.transaction_timeout_s,
                abort=self._abort,
                wake=self.arrived.set,
            )
        return made(
            producer=self.producer,
            offsets=self._gateway.commit,
            taken=self.purge.committed,
            limits=CommitLimits(config.commit_interval_s, memory_budget(config).dirty_bytes),
            outcomes=CommitOutcomes(self._happened, self._undone, self._failed),
            patient_until=self._patient_until,
            spawn=context.owner.spawn,
            journal=context.journal,
            clock=context.clock,
        )

    def _follow_group(
        self, assignor: StreamsPartitionAssignor, partitions: Mapping[str, int]
    ) -> None:
        """Create the handler of the group's messages, and the data loop."""
        context = self._context
        self.reports = TaskReports(
            registry=self.registry,
            actives=self.active_tasks.running,
            stores=self.stores,
            gateway=self._gateway,
            session=self.session,
            plans=context.plans,
            lag_max=context.config.acceptable_recovery_lag,
            clock=context.clock,
        )
        self.rebalance_handler = RebalanceHandler(
            owner=context.owner,
            assignor=assignor,
            session=self.session,
            gateway=self._gateway,
            tasks=self.tasks,
            committer=self.committer,
            handovers=self.handovers,
            fetchers=(self.fetcher, self.changelogs),
            listener_calls=self.listener_calls,
            reports=self.reports,
            log=RebalanceLog(
                actives=self.active_tasks,
                metrics=self.session.metrics,
                idle=IdleLog(readers_of(context.topology), context.journal),
                journal=context.journal,
                clock=context.clock,
            ),
            refuse_counts=partial(refuse_changes, context.topology, partitions),
            principal=context.cluster.principal,
            directory=str(context.directory.path),
            journal=context.journal,
            clock=context.clock,
        )
        self.loop = DataLoop(
            tasks=self.tasks,
            committer=self.committer,
            restorer=self.restorer,
            fetcher=self.fetcher,
            producer=self.producer,
            handovers=self.handovers,
            arrived=self.arrived,
            report=self.reports.publish,
            throughput=ThroughputLog(context.journal, context.metrics),
            slow_code=SlowCode(context.journal),
            metrics=context.metrics,
            slice_s=context.config.restore_slice_s,
            clock=context.clock,
        )

    def _run_users(self, partitions: Mapping[str, int]) -> None:
        """Create the host of user code outside of tasks, with a producer of its own."""
        context = self._context
        config = context.config
        cluster = context.cluster
        clock = context.clock
        outside = ProduceErrorsOutsideTasks(
            config.on_produce_error, cluster.principal, clock, context.owner.fail, context.metrics,
            dead_letters=dead_letters_name(config), outbox=lambda: self.host.producer,
            journal=context.journal,
        )  # fmt: skip
        self.host = WorkerHost(
            producer=producer_of(context, self.limits, outside.refused),
            tasks=self.tasks,
            leads=lambda: self.rebalance_handler.leads,
            places=KeyPlaces(context.topology.subtopologies, partitions),
            late=LateTopics(cluster, config, context.owner.spawn, self.arrived.set),
            clock=clock,
            committed=is_exact(config),
        )

    # -- for parts that are created before the part they call

    def _source_cut(self, tp: TopicPartition, _: int) -> None:
        self.sources.cut(tp)

    def _changelog_cut(self, tp: TopicPartition, _: int) -> None:
        self.tasks.changelog_cut(tp)

    def _happened(self, event: Happened) -> None:
        self.tasks.feed(event)

    def _undone(self, task: TaskId, why: ValueRefused | TaskStopped) -> None:
        self.tasks.undone(task, why)

    def _failed(self, task: TaskId, error: Exception) -> None:
        self.tasks.failed(task, error)

    def _aborted(self, why: str) -> None:
        self.tasks.abort(why)

    def _abort(self, why: str, stops: Mapping[TaskId, str]) -> None:
        self.tasks.abort(why, stops)

    def _changed(self) -> None:
        self.tasks.changed = True

    def _refused(self, tp: TopicPartition, code: int, record: RefusedRecord) -> None:
        self.produce_errors.refused(tp, code, record)

    def _patient_until(self, since: float) -> float:
        leave_by = self._gateway.leave_by if self._gateway.leaving else None
        return patient_until(since, self._context.config.revoke_timeout_s, leave_by)

    def _leased(self) -> bool:
        """Return whether the lease holds and the data loop has processed all losses.

        The race: user code blocks the data loop for a second; its member is fenced, joins again and
        has a lease; the data loop goes on with records from before the fence.
        """
        session = self.session
        context = self._context
        if not context.topology.subtopologies:
            return True
        return (
            session.losses == self.rebalance_handler.losses
            and context.clock.now() < session.member.lease.until
        )


def abort_of(producer: Producer) -> Callable[[], None] | None:
    """Return the abort of a producer's transaction; None for a producer without transactions."""
    return producer.abort if isinstance(producer, TransactionalProducer) else None


def purge_of(context: WorkerContext) -> RepartitionPurge:
    """Return the purge of committed records of repartition topics."""
    topics = context.topology.topics
    passing = [spec.name for spec in topics if spec.kind is TopicKind.REPARTITION]
    return RepartitionPurge(context.cluster, passing)


def policy_of(config: Config, failures: FailureReports) -> Policy:
    """Return the consequences of records that fail."""
    return Policy(
        config.on_error,
        config.on_decode_error,
        failures.report,
        config.consecutive_failures_max,
        failures.passed,
        failures.untaken,
        dead_letters_name(config),
        failures.note,
        failures.retried,
        undoes=True,
        whole=is_exact(config),
    )


def produce_errors_of(
    context: WorkerContext, tasks: TaskDriver, producer: Producer
) -> ProduceErrors:
    """Return the handler of task records that brokers refuse."""
    stores = (node for plan in context.topology.subtopologies for node in plan.stores)
    return ProduceErrors(
        choice=context.config.on_produce_error,
        principal=context.cluster.principal,
        actives=tasks.actives,
        current=producer.current,
        awaits=producer.await_last,
        changelogs=frozenset(node.changelog for node in stores),
        dead_letters=dead_letters_name(context.config),
        journal=context.journal,
        clock=context.clock,
        registry=context.metrics,
        stops=tasks.undone,
        sends_again=tasks.sends_again,
        fails=tasks.failed,
    )


def readers_of(topology: Topology) -> dict[int, list[str]]:
    """Return the names of the agents and flows of each sub-topology."""
    return {
        plan.number: sorted({name for s in plan.sources for name in s.readers.values()})
        for plan in topology.subtopologies
    }


def bounds_of(context: WorkerContext, partitions: Mapping[str, int]) -> LogBounds:
    config = context.config
    first = context.directory.source_counts()
    known = {topic: min(count, first.get(topic, count)) for topic, count in partitions.items()}
    rule = OffsetReset(
        config.consumer_auto_offset_reset == LATEST,
        context.topology.own,
        known,
        context.directory.source_ids(),
        config.on_lost_offsets,
    )
    return LogBounds(context.cluster, config, rule)


def producer_of(
    context: WorkerContext,
    limits: OutputLimits,
    refused: OnRefused,
    held: Callable[[], bool] = always,
    room: Callable[[], object] = always,
    kind: Callable[..., Producer] | None = None,
) -> Producer:
    return (kind or Producer)(
        context.cluster,
        context.clock,
        context.owner.spawn,
        refused,
        linger_s=context.config.producer_linger_s,
        buffer_bytes=memory_budget(context.config).sent_bytes,
        compression=context.config.producer_compression_type or "none",
        held=held,
        room=room,
        limits=limits,
    )


def assignor_of(context: WorkerContext, partitions: Mapping[str, int]) -> StreamsPartitionAssignor:
    topology = context.topology
    config = context.config
    subtopologies = [
        Subtopology(
            plan.number,
            plan.topics,
            plan.stateful,
            signature,
            partitions[plan.topics[0]] if plan.stateful else None,
        )
        for plan, signature in zip(topology.subtopologies, topology.signatures, strict=True)
    ]
    rules = Rules(
        acceptable_recovery_lag=config.acceptable_recovery_lag,
        imbalance_percentage=config.imbalance_percentage,
        max_learners=config.max_learners,
        max_learners_per_member=config.max_learners_per_member,
        standby=config.num_standby_replicas,
        tags=tuple(key for key, _ in config.tags),
    )
    me = MemberMetadata(
        "",
        instance=context.journal.instance,
        process=context.directory.process_id.hex,
        capacity=config.capacity,
        tags=dict(config.tags),
        eager=eager(config),
        version=__version__,
        session_ms=round(config.session_timeout_s * 1000),
        commit_ms=round(config.commit_interval_s * 1000),
    )
    return StreamsPartitionAssignor(me, rules, subtopologies)


def eager(config: Config) -> bool:
    """Return whether the worker releases all partitions before each join, as before KIP-429."""
    old = config.upgrade_from
    older = old == EAGER or (old and tuple(map(int, old.split("."))) < COOPERATIVE_SINCE)
    modes = config.rebalancing_mode == "upgrading", config.revoke_before_join == "all"
    return bool(older) or any(modes)


def session_of(context: WorkerContext, assignor: StreamsPartitionAssignor) -> Session:
    """Return the session of a worker.

    The group has the app's name. The member id is stored in the state directory, for the next
    process that uses the directory.
    """
    group = context.topology.app_id
    config = context.config
    directory = context.directory
    member = MemberConfig(
        session_timeout_s=config.session_timeout_s,
        rebalance_timeout_s=config.rebalance_timeout_s,
        heartbeat_interval_s=config.heartbeat_interval_s,
        revoke_timeout_s=config.revoke_timeout_s,
        eager=eager(config),
        protocol_type=config.protocol_type,
        group_instance_id=context.journal.instance if config.static_membership else None,
        nonce=int(context.clock.wall() * 1000) if config.static_membership else 0,
        jitter=directory.process_id.int % JITTER_STEPS / JITTER_STEPS,
    )
    topics = sorted(topic for plan in context.topology.subtopologies for topic in plan.topics)

    def keep(member_id: str | None) -> None:
        if member_id is None:
            directory.forget_member()
        else:
            directory.remember_member(group, member_id, socket.gethostname())

    return Session(
        context.clock,
        member,
        group,
        SubscriptionBuilder(assignor, tuple(topics), config.scale_down_timeout_s),
        context.owner.deliver,
        Outage(LOG.warning),
        context.metrics,
        keep,
        context.journal,
    )
