"""Wiring of a worker: creates its parts and connects them.

Only this module decides which part receives which other part.
"""

import asyncio
import socket
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

from streamsx import __version__
from streamsx.assignor.model import MemberMetadata, Rules
from streamsx.assignor.partition_assignor import StreamsPartitionAssignor, Subtopology
from streamsx.client.producer import HearsRefusals, Producer, always
from streamsx.client.rejected_batch import RefusedRecord
from streamsx.client.topic_limits_watch import OutputLimits
from streamsx.config import COOPERATIVE_SINCE, EAGER, Config
from streamsx.group.member import MemberConfig
from streamsx.group.outage import Outage
from streamsx.group.session import Session
from streamsx.group.subscription_builder import SubscriptionBuilder
from streamsx.journal import LOG
from streamsx.model import TopicPartition
from streamsx.processing.failure_policy import FailureAction, Policy
from streamsx.tasks.failure_reports import FailureReports
from streamsx.tasks.group_gateway import GroupGateway
from streamsx.tasks.log_bounds import LATEST, LogBounds
from streamsx.tasks.produce_errors import OnProduceError, ProduceErrorsOutsideTasks
from streamsx.tasks.rebalance_handler import RebalanceHandler
from streamsx.tasks.rebalance_listeners import ListenerCalls
from streamsx.tasks.repartition_purge import RepartitionPurge
from streamsx.tasks.start_positions import OffsetReset
from streamsx.tasks.store_opener import StoreOpener
from streamsx.tasks.task_driver import TaskDriver
from streamsx.tasks.worker_context import WorkerContext, sent_bytes
from streamsx.topology.internal_topics import TopicKind
from streamsx.worker.data_loop import DataLoop
from streamsx.worker.global_tables import GlobalTables
from streamsx.worker.host import KeyPlaces, WorkerHost
from streamsx.worker.late_topics import LateTopics

EXECUTOR_THREADS = 2
JITTER_STEPS = 1000


class WorkerComponents:
    """All parts of a worker, created and not yet running."""

    def __init__(self, context: WorkerContext, partitions: Mapping[str, int]) -> None:
        config = context.config
        clock = context.clock
        assignor = assignor_of(context, partitions)
        self.arrived = arrived = asyncio.Event()
        """Set when there is work for the data loop."""
        self.executor = ThreadPoolExecutor(EXECUTOR_THREADS, thread_name_prefix="executor")
        self.stores = StoreOpener(context, partitions, self.executor)
        self.session = session_of(context, assignor)
        self.limits = OutputLimits(context.cluster, clock, context.owner.spawn)
        self.producer = producer_of(context, self.limits, self._refused, self._leased, arrived.set)
        """Producer of the tasks; the host has a producer of its own."""
        topics = context.topology.topics
        passing = [spec.name for spec in topics if spec.kind is TopicKind.REPARTITION]
        self.failures = FailureReports(clock)
        self.purging = RepartitionPurge(context.cluster, passing)
        on_error = FailureAction(config.on_error)
        on_decode_error = FailureAction(config.on_decode_error)
        told = self.failures.report
        most = config.consecutive_failures_max
        passed = self.failures.passed
        policy = Policy(on_error, on_decode_error, told, most, passed)
        owner = context.owner
        self.listening = listening = ListenerCalls(
            context.listeners, lambda job, name: owner.spawn_users(job, name=name), owner.fail,
            context.journal, clock.now,
        )  # fmt: skip
        gateway = GroupGateway(self.session, assignor, listening)
        bounds = bounds_of(context, partitions)
        self.global_tables = GlobalTables(context, partitions)
        self.tasks = TaskDriver(
            context, gateway, self.stores, self.producer, policy, self.purging, arrived, bounds,
            self.global_tables.stores,
        )  # fmt: skip
        self.rebalance_handler = RebalanceHandler(
            context, partitions, assignor, self.session, gateway, self.tasks, listening
        )
        self.loop = DataLoop(
            context, self.tasks, self.producer, arrived, self.rebalance_handler.publish
        )
        word = OnProduceError(config.on_produce_error)
        fail = context.owner.fail
        outside = ProduceErrorsOutsideTasks(word, context.cluster.principal, clock, fail)
        producer = producer_of(context, self.limits, outside.refused)
        places = KeyPlaces(context.topology.subtopologies, partitions)
        late = LateTopics(context.cluster, config, context.owner.spawn, arrived.set)
        self.host = WorkerHost(
            clock, producer, self.tasks, lambda: self.rebalance_handler.leads, places, late
        )
        self._context = context

    def _refused(self, tp: TopicPartition, code: int, record: RefusedRecord) -> None:
        self.tasks.refusing.refused(tp, code, record)

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
    refused: HearsRefusals,
    held: Callable[[], bool] = always,
    room: Callable[[], object] = always,
) -> Producer:
    return Producer(
        context.cluster,
        context.clock,
        context.owner.spawn,
        refused,
        linger_s=context.config.producer_linger_s,
        buffer_bytes=sent_bytes(context.config),
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
        keep,
    )
