"""Transactional ids: their owners, their transactions, and how these end (KIP-98). Pure.

Theory of operation. A transactional id belongs to one producer at a time, by producer id and epoch.
A producer that asks for the id gets it at the next epoch, and the previous owner is fenced. A
transaction begins with the first partition or group that is added. Offsets are staged for groups
within the transaction, while records go to the logs at once.

A transaction ends in two steps. First the decision and all staged offsets are one write
(PREPARE_*). Then each log gets a marker, until all logs have theirs (COMPLETE_*). After a crash
between the two steps the next start sends markers to the logs that still find the transaction open.

A repeated request is answered as before (KIP-360, KIP-890): the owner before the last change
(`before`) gets the result of that change. In the second version of the protocol each end raises the
epoch, so that nothing of one transaction can enter the next.
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import count, groupby
from math import inf

from streamsx.broker.groups import coordinator_events as e
from streamsx.broker.groups.coordinator_events import ReplyBody
from streamsx.broker.metadata_rows import (
    CommittedOffsets,
    OffsetKey,
    OffsetValue,
    StagedOffsetValue,
    TransactionGroupValue,
    TransactionKey,
    TransactionTopicValue,
    TransactionValue,
)
from streamsx.broker.refusal import Refused
from streamsx.protocol.error_codes import ErrorCode
from streamsx.protocol.wire import Api

TIMEOUT_MAX_MS = 15 * 60 * 1000
"""Longest transaction timeout, as Kafka's transaction.max.timeout.ms."""
EXPIRY_MS = 7 * 24 * 60 * 60 * 1000
"""Life of an unused transactional id, as Kafka's transactional.id.expiration.ms."""
LAST_EPOCH = 2**15 - 2
"""Last epoch that a producer is given. One more epoch is left to fence that producer; after that
the owner gets a new producer id.
"""
MARKERS_S = 1.0
"""Time after which markers that could not be written are tried again."""
BUMPS_SINCE = 5
"""EndTxn version from which the end raises the epoch (KIP-890)."""
ADDS_GROUP_SINCE = 5
"""TxnOffsetCommit version from which the request adds its group by itself (KIP-890)."""
FENCED_SINCE = {
    Api.INIT_PRODUCER_ID: 4,
    Api.ADD_PARTITIONS_TO_TXN: 2,
    Api.ADD_OFFSETS_TO_TXN: 2,
    Api.END_TXN: 2,
}
"""Versions from which a request knows code 90 (PRODUCER_FENCED); others get 47."""
NOBODY = (-1, -1)
Holder = tuple[int, int]
"""Producer id and epoch."""


class TransactionState(IntEnum):
    """State of a transaction, numbered as Kafka stores it."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5


ENDING = (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)


@dataclass(slots=True)
class Transaction:
    """Transactional id with its owner and its current or last transaction."""

    id: str
    owner: Holder
    timeout_ms: int = 0
    before: Holder = NOBODY
    next_id: int = -1
    state: TransactionState = TransactionState.EMPTY
    places: set[tuple[str, int]] = field(default_factory=set)
    staged: dict[str, CommittedOffsets] = field(default_factory=dict)
    changed_ms: int = -1
    started_ms: int = -1
    decision: int = 0
    """Number of the decision, counted in this process. The race: markers are requested twice; the
    first are written, and the transaction completes; the next transaction of that epoch is
    decided; now the second markers are reported as written. The number differs, so the next
    transaction waits for its own markers.
    """

    @property
    def ending(self) -> bool:
        """Return whether the end is decided, and some log still lacks its marker."""
        return self.state in ENDING

    def admits(self, producer_id: int, epoch: int) -> None:
        """Check that this producer may begin or continue a transaction.

        Raises:
            Refused: The producer is not the owner, or the last transaction is still ending.
        """
        if producer_id != self.owner[0]:
            raise Refused(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        if epoch != self.owner[1]:
            raise Refused(ErrorCode.PRODUCER_FENCED)
        if self.ending:
            raise Refused(ErrorCode.CONCURRENT_TRANSACTIONS)

    def raise_epoch(self) -> None:
        """Raise the owner's epoch, and keep the previous owner as `before`."""
        self.before = self.owner
        self.owner = (self.owner[0], self.owner[1] + 1)

    def row(self) -> TransactionValue:
        """Return the transaction as stored."""
        partitions = tuple(
            TransactionTopicValue(topic, tuple(partition for _, partition in held))
            for topic, held in groupby(sorted(self.places), key=lambda place: place[0])
        )
        groups = tuple(
            TransactionGroupValue(
                group,
                tuple(
                    StagedOffsetValue(
                        topic, partition, each.offset, each.leader_epoch, each.metadata,
                        each.commit_timestamp,
                    )
                    for (topic, partition), each in offsets.items()
                ),
            )
            for group, offsets in self.staged.items()
        )  # fmt: skip
        return TransactionValue(
            self.owner[0], self.before[0], self.next_id, self.owner[1], self.timeout_ms, self.state,
            partitions, self.changed_ms, self.started_ms, self.before[1], groups,
        )  # fmt: skip


def transaction_of(transactional_id: str, row: TransactionValue) -> Transaction:
    """Return the transaction that `Transaction.row` stored."""
    staged = {
        group.group: {
            (each.topic, each.partition): OffsetValue(
                each.offset, each.leader_epoch, each.metadata, each.commit_timestamp
            )
            for each in group.offsets
        }
        for group in row.groups
    }
    places = {(t.topic, p) for t in row.transaction_partitions or () for p in t.partition_ids}
    return Transaction(
        transactional_id, (row.producer_id, row.producer_epoch), row.transaction_timeout,
        (row.previous_producer_id, row.previous_epoch), row.next_producer_id,
        TransactionState(row.transaction_status), places, staged, row.last_update_timestamp,
        row.start_timestamp,
    )  # fmt: skip


class Transactions:
    """Machine of all transactional ids.

    `unknown` returns the error code for a topic and partition, NONE if the partition exists.
    """

    def __init__(self, unknown: Callable[[str, int], ErrorCode]) -> None:
        self.by_id: dict[str, Transaction] = {}
        self._unknown = unknown
        self._due: dict[str, float] = {}
        """When each open transaction times out, or its markers are tried again."""
        self._armed = inf
        self._now = 0.0
        self._wall_ms = 0
        self._decisions = count(1)
        self._effects: list[e.Effect] = []
        self._requests = {
            Api.INIT_PRODUCER_ID: self._init,
            Api.ADD_PARTITIONS_TO_TXN: self._add_partitions,
            Api.ADD_OFFSETS_TO_TXN: self._add_group,
            Api.END_TXN: self._end,
        }

    def step(self, now: float, event: e.TransactionEvent) -> list[e.Effect]:
        """Apply one event, and return the effects; offsets that take effect are in a Persist."""
        self._now = now
        self._effects = []
        self._wall_ms = event.wall_ms
        match event:
            case e.ClientRequest():
                self._answer(event)
            case e.AddPartition():
                self._add(event)
            case e.MarkersWritten():
                self._complete(event)
            case e.BrokerTick():
                self._tick()
            case e.OpenInLogs(found):
                self._effects += ends_of_strays(self.by_id.values(), found)
            case e.ExpireOffsets():
                self._expire()
        return self._over()

    def load(self, now: float, key: TransactionKey, row: TransactionValue) -> list[e.Effect]:
        """Load a persisted transaction; an ongoing one gets its full timeout again."""
        txn = self.by_id[key.transactional_id] = transaction_of(key.transactional_id, row)
        self._now = now
        self._effects = []
        if txn.state is TransactionState.ONGOING:
            self._due[txn.id] = now + txn.timeout_ms / 1000
        elif txn.ending:
            self._write_markers(txn)
        return self._over()

    def may_write(self, transactional_id: str, owner: Holder, place: tuple[str, int]) -> ErrorCode:
        """Return the error code for a write to this partition.

        The code is 48 (INVALID_TXN_STATE) if the owner's transaction lacks the partition (KIP-890).
        """
        txn = self.by_id.get(transactional_id)
        if txn is None or txn.owner[0] != owner[0]:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        if txn.owner != owner:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        holds = txn.state is TransactionState.ONGOING and place in txn.places
        return ErrorCode.NONE if holds else ErrorCode.INVALID_TXN_STATE

    def stage(
        self, now: float, request: e.ClientRequest, offsets: CommittedOffsets
    ) -> list[e.Effect]:
        """Stage offsets of a group, to take effect once the transaction is committed.

        Newer requests add the group to the transaction by themselves (KIP-890).

        Raises:
            Refused: The producer may not add to the transaction; 48 if an older request names a
                group that the transaction lacks.
        """
        self._now = now
        self._wall_ms = request.wall_ms
        self._effects = []
        body = request.body
        txn = self._owned(body.transactional_id, body.producer_id, body.producer_epoch)
        held = txn.state is TransactionState.ONGOING and body.group_id in txn.staged
        if not held and request.version < ADDS_GROUP_SINCE:
            raise Refused(ErrorCode.INVALID_TXN_STATE)
        self._begin(txn)
        txn.staged.setdefault(body.group_id, {}).update(offsets)
        self._save(txn)
        return self._over()

    def unstable(self, groups: Collection[str]) -> dict[str, set[tuple[str, int]]]:
        """Return the partitions of these groups with staged offsets, by group.

        The committed offsets of these partitions may still change. Groups without such partitions
        are left out. One pass over the transactions serves all groups.
        """
        found: dict[str, set[tuple[str, int]]] = {}
        for transactional_id in self._due:
            for group_id, offsets in self.by_id[transactional_id].staged.items():
                if offsets and group_id in groups:
                    found.setdefault(group_id, set()).update(offsets)
        return found

    def drop(self, lost: Callable[[str, str, int], bool]) -> list[e.Effect]:
        """Drop staged offsets for which `lost(group, topic, partition)` is true."""
        self._effects = []
        for txn in self.by_id.values():
            for group_id, offsets in txn.staged.items():
                gone = [place for place in offsets if lost(group_id, *place)]
                for place in gone:
                    del offsets[place]
                if gone:
                    self._save(txn)
        return self._effects

    # Requests.

    def _answer(self, request: e.ClientRequest) -> None:
        try:
            answer = self._requests[request.api](request)
        except Refused as why:
            answer = refused(request, why.code)
        self._effects.append(e.ClientReply(request.waiter, answer))

    def _init(self, request: e.ClientRequest) -> ReplyBody:
        body = request.body
        given = (request.body.producer_id, request.body.producer_epoch)
        if not body.transactional_id:
            raise Refused(ErrorCode.INVALID_REQUEST)
        if not 0 < body.transaction_timeout <= TIMEOUT_MAX_MS:
            raise Refused(ErrorCode.INVALID_TRANSACTION_TIMEOUT)
        fresh = int(request.fresh_id)
        txn = self.by_id.get(body.transactional_id)
        if txn is None:
            txn = Transaction(body.transactional_id, (fresh, -1))
            given = NOBODY
        if txn.ending:
            raise Refused(ErrorCode.CONCURRENT_TRANSACTIONS)
        ongoing = txn.state is TransactionState.ONGOING
        again = given == txn.before and not ongoing
        if given[0] >= 0 and not again and given != txn.owner:
            raise Refused(ErrorCode.PRODUCER_FENCED)
        if given[0] >= 0 and again and txn.owner[1] <= LAST_EPOCH:
            return {"producer_id": txn.owner[0], "producer_epoch": txn.owner[1]}
        if ongoing:  # no producer has this epoch: the client retries, and gets the next
            txn.raise_epoch()
            self._decide(txn, commit=False)
            raise Refused(ErrorCode.CONCURRENT_TRANSACTIONS)
        if txn.owner[1] >= LAST_EPOCH:
            txn.before = given if again else txn.owner
            txn.owner = (fresh, 0)
        else:
            txn.raise_epoch()
        if given[0] < 0:
            txn.before = NOBODY
        txn.timeout_ms = body.transaction_timeout
        txn.state = TransactionState.EMPTY
        self.by_id[txn.id] = txn
        self._save(txn)
        return {"producer_id": txn.owner[0], "producer_epoch": txn.owner[1]}

    def _add_partitions(self, request: e.ClientRequest) -> ReplyBody:
        body = request.body
        txn = self._owned(
            body.v3_and_below_transactional_id,
            body.v3_and_below_producer_id,
            body.v3_and_below_producer_epoch,
        )
        places = [(t.name, p) for t in body.v3_and_below_topics for p in t.partitions]
        codes = {place: self._unknown(*place) for place in places}
        if any(codes.values()):
            codes = {p: code or ErrorCode.OPERATION_NOT_ATTEMPTED for p, code in codes.items()}
            return added(request, codes.__getitem__)
        self._hold(txn, places)
        return added(request, lambda _: ErrorCode.NONE)

    def _add_group(self, request: e.ClientRequest) -> ReplyBody:
        body = request.body
        txn = self._owned(body.transactional_id, body.producer_id, body.producer_epoch)
        if not (txn.state is TransactionState.ONGOING and body.group_id in txn.staged):
            self._begin(txn)
            txn.staged.setdefault(body.group_id, {})
            self._save(txn)
        return {"error_code": ErrorCode.NONE}

    def _end(self, request: e.ClientRequest) -> ReplyBody:
        body = request.body
        given = (request.body.producer_id, request.body.producer_epoch)
        txn = self._known(body.transactional_id)
        bumps = request.version >= BUMPS_SINCE
        done, ending = (
            (TransactionState.COMPLETE_COMMIT, TransactionState.PREPARE_COMMIT)
            if body.committed
            else (TransactionState.COMPLETE_ABORT, TransactionState.PREPARE_ABORT)
        )
        again = (
            bumps and given[0] >= 0 and given == txn.before
            and txn.state is not TransactionState.ONGOING
            and (txn.owner[1] <= LAST_EPOCH or txn.next_id >= 0)
        )  # fmt: skip
        if not again and given[0] != txn.owner[0]:
            raise Refused(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        if not again and given != txn.owner:
            raise Refused(ErrorCode.PRODUCER_FENCED)
        if txn.state is ending:
            raise Refused(ErrorCode.CONCURRENT_TRANSACTIONS)
        if txn.state is not done or not (again or not bumps):
            empty = bumps and not body.committed and not (again or txn.ending)
            if txn.state is not TransactionState.ONGOING and not empty:
                raise Refused(ErrorCode.INVALID_TXN_STATE)
            if bumps:
                self._bump(txn, request.fresh_id)
            self._decide(txn, commit=body.committed)
        owner = (txn.next_id, 0) if txn.next_id >= 0 else txn.owner
        return {"error_code": ErrorCode.NONE, "producer_id": owner[0], "producer_epoch": owner[1]}

    # Parts shared by the requests.

    def _known(self, transactional_id: str | None) -> Transaction:
        if not transactional_id:
            raise Refused(ErrorCode.INVALID_REQUEST)
        if (txn := self.by_id.get(transactional_id)) is None:
            raise Refused(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        return txn

    def _owned(self, transactional_id: str | None, producer_id: int, epoch: int) -> Transaction:
        txn = self._known(transactional_id)
        txn.admits(producer_id, epoch)
        return txn

    def _over(self) -> list[e.Effect]:
        due = min(self._due.values(), default=inf)
        if due < self._armed:
            self._effects.append(e.Wake(e.TRANSACTIONS, due))
        self._armed = due
        return self._effects

    def _begin(self, txn: Transaction) -> None:
        if txn.state is not TransactionState.ONGOING:
            txn.state = TransactionState.ONGOING
            txn.started_ms = self._wall_ms
            self._due[txn.id] = self._now + txn.timeout_ms / 1000

    def _hold(self, txn: Transaction, places: Iterable[tuple[str, int]]) -> None:
        if txn.state is TransactionState.ONGOING and txn.places.issuperset(places):
            return
        self._begin(txn)
        txn.places.update(places)
        self._save(txn)

    def _add(self, event: e.AddPartition) -> None:
        """Add a partition if the owner may; the caller checks `may_write` afterwards."""
        txn = self.by_id.get(event.transactional_id)
        if txn is not None and txn.owner == event.owner and not txn.ending:
            self._hold(txn, [event.place])

    def _bump(self, txn: Transaction, fresh_id: str) -> None:
        if txn.owner[1] >= LAST_EPOCH:
            txn.next_id = int(fresh_id)
        txn.raise_epoch()

    def _decide(self, txn: Transaction, *, commit: bool) -> None:
        """Persist the decision with the staged offsets; it cannot be changed any more."""
        txn.state = TransactionState.PREPARE_COMMIT if commit else TransactionState.PREPARE_ABORT
        offsets = {
            OffsetKey(group_id, *place): value
            for group_id, staged in txn.staged.items()
            for place, value in staged.items()
            if commit
        }
        txn.staged = {}
        txn.decision = next(self._decisions)
        txn.changed_ms = self._wall_ms
        self._effects.append(
            e.Persist(((TransactionKey(txn.id), txn.row()), *sorted(offsets.items())))
        )
        self._write_markers(txn)

    def _write_markers(self, txn: Transaction) -> None:
        self._due[txn.id] = self._now + MARKERS_S
        commit = txn.state is TransactionState.PREPARE_COMMIT
        places = tuple(sorted(txn.places))
        self._effects.append(e.WriteMarkers(txn.id, txn.owner, places, txn.decision, commit=commit))

    def _complete(self, event: e.MarkersWritten) -> None:
        txn = self.by_id.get(event.transactional_id)
        if txn is None or not txn.ending or txn.decision != event.decision:
            return
        commit = txn.state is TransactionState.PREPARE_COMMIT
        txn.state = TransactionState.COMPLETE_COMMIT if commit else TransactionState.COMPLETE_ABORT
        if txn.next_id >= 0:
            txn.owner = (txn.next_id, 0)
            txn.next_id = -1
        txn.places = set()
        del self._due[txn.id]
        self._save(txn)

    def _tick(self) -> None:
        self._armed = inf
        for transactional_id, due in tuple(self._due.items()):
            txn = self.by_id[transactional_id]
            if due > self._now:
                continue
            if txn.ending:
                self._write_markers(txn)
            else:
                about = f"producer_id={txn.owner[0]} epoch={txn.owner[1]}"
                self._effects.append(
                    e.Story(
                        f"transaction_timed_out id={txn.id} {about}",
                        f"Transaction {txn.id} was aborted: its transaction_timeout is over.",
                    )
                )
                txn.raise_epoch()
                self._decide(txn, commit=False)

    def _expire(self) -> None:
        """Delete ids that were not used for `EXPIRY_MS`."""
        before = self._wall_ms - EXPIRY_MS
        old = [
            txn.id
            for txn in self.by_id.values()
            if txn.changed_ms <= before and txn.id not in self._due
        ]
        for transactional_id in old:
            del self.by_id[transactional_id]
        if old:
            self._effects.append(e.Persist(deletes=tuple(map(TransactionKey, old))))

    def _save(self, txn: Transaction) -> None:
        txn.changed_ms = self._wall_ms
        self._effects.append(e.Persist(((TransactionKey(txn.id), txn.row()),)))


def ends_of_strays(
    known: Iterable[Transaction], found: Iterable[tuple[Holder, tuple[str, int]]]
) -> list[e.Effect]:
    """End transactions that are open in the logs and belong to no transactional id.

    A power cut took their rows or markers. Such a transaction ends as the last one of its producer
    did, or is aborted.
    """
    effects: list[e.Effect] = []
    by_producer = {txn.owner[0]: txn for txn in known}
    for owner, place in found:
        txn = by_producer.get(owner[0])
        if txn is None or place not in txn.places:
            commit = txn is not None and txn.state is TransactionState.COMPLETE_COMMIT
            about = f"producer_id={owner[0]} topic={place[0]} partition={place[1]}"
            effects.append(
                e.Story(
                    f"transaction_stray {about} commit={commit}",
                    f"A transaction of no known producer is open in {place[0]}-{place[1]}: it is "
                    f"{'committed' if commit else 'aborted'}.",
                )
            )
            effects.append(e.WriteMarkers("", owner, (place,), 0, commit=commit))
    return effects


def refused(request: e.ClientRequest, code: ErrorCode) -> ReplyBody:
    """Return the reply to a transaction request that was refused."""
    if code is ErrorCode.PRODUCER_FENCED and request.version < FENCED_SINCE[request.api]:
        code = ErrorCode.INVALID_PRODUCER_EPOCH  # the client does not know the newer code
    if request.api is Api.ADD_PARTITIONS_TO_TXN:
        return added(request, lambda _: code)
    return {"error_code": code, "producer_id": -1, "producer_epoch": -1}


def added(request: e.ClientRequest, code: Callable[[tuple[str, int]], ErrorCode]) -> ReplyBody:
    """Return the reply to AddPartitionsToTxn."""
    topics = [
        {
            "name": topic.name,
            "results_by_partition": [
                {"partition_index": p, "partition_error_code": code((topic.name, p))}
                for p in topic.partitions
            ],
        }
        for topic in request.body.v3_and_below_topics
    ]
    return {"results_by_topic_v3_and_below": topics}
