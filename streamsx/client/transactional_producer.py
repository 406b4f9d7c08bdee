"""Producer with one transactional id: its batches count once their transaction is committed.

The stage of the id, and the meaning of each answer, are in `transactional_id`. This shell asks the
coordinator, one question until it is answered, and lets batches leave while the gate is open.

A question belongs to the transaction in which it was asked. After an abort the answer counts for
nothing: the InitProducerId that follows ends whatever the question has done.

Not here: offsets, which the group's member stages (`group`), and the time of an end (`tasks`).
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from streamsx import __version__
from streamsx.client.cluster import TRANSACTION
from streamsx.client.connection import CLIENT_ID, Connection
from streamsx.client.producer import Goals, Producer
from streamsx.client.record_accumulator import BACKOFF_S, SOON_S, OutputPartition
from streamsx.client.rejected_batch import RefusedRecord
from streamsx.client.transactional_id import (
    FEATURE,
    IMPLICIT_LEVEL,
    VERDICTS,
    TransactionalId,
    TransactionIdentity,
    TransactionStage,
    TransactionVerdict,
    denied_partitions,
    error_code,
)
from streamsx.errors import SettingError, StreamsxError, TransactionFenced, WorldError
from streamsx.event_loops import wait
from streamsx.journal import LOG
from streamsx.model import TaskId, TopicPartition
from streamsx.protocol.error_codes import ErrorCode, failure, name_of
from streamsx.protocol.wire import Api

LANE: Final = "transaction"
FINAL: Final = (TransactionVerdict.GOOD, TransactionVerdict.DENIED)
UNAUTHORIZED: Final = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
ADVICE: Final[dict[int, str]] = {
    ErrorCode.INVALID_TRANSACTION_TIMEOUT: (
        "the brokers refuse a transaction_timeout of {timeout_s:g} s: lower it, or raise their "
        "transaction.max.timeout.ms"
    ),
    UNAUTHORIZED: (
        "let {principal} write with this transactional id (ACL Write and Describe on "
        "TransactionalId), or set processing_guarantee=at_least_once"
    ),
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: (
        "let {principal} write with this transactional id, or set "
        "processing_guarantee=at_least_once"
    ),
    ErrorCode.UNSUPPORTED_VERSION: (
        "the brokers do not support transactions: set processing_guarantee=at_least_once"
    ),
}
"""Remedy for each code with which a coordinator denies a transactional id."""
FENCED: Final = (
    " (the transaction was open for longer than transaction_timeout, {timeout_s:g} s, or another "
    "process has begun under its id)"
)
"""What brokers mean by the codes of a fence: they do not say which of the two it was."""


class TransactionalProducer(Producer):
    """Producer of a worker's tasks under exactly-once.

    Args:
        args: as for `Producer`.
        transactional_id: the id, and the stage of its transaction.
        over: called with a reason when the transaction cannot be committed; it has to `abort`.
        fails: called with the error when no transaction can be begun any more.
        options: as for `Producer`.
    """

    transactional = True
    remedies: Mapping[int, str] = ADVICE

    def __init__(
        self, *args: Any, transactional_id: TransactionalId, over: Callable[[str], None],
        fails: Callable[[StreamsxError], None], **options: Any,
    ) -> None:  # fmt: skip
        super().__init__(*args, numbers=transactional_id, **options)
        self._id = transactional_id
        self._fails = fails
        self._on_over = over
        self._life = 0
        """Number of aborted transactions; what belongs to one of them counts for nothing."""
        self._adding = False
        self._taken = False
        """Whether another process has the id: this one asks for it no more."""
        self._node: int | None = None

    # -- begin and end

    async def start(self) -> None:
        """Begin the first transaction; what a process before this one has left open is aborted.

        Raises:
            SettingError: the coordinator denies this id or its time-out.
        """
        self._warned_at = self._clock.now()
        await self._begin()

    @property
    def open_transaction(self) -> TransactionIdentity:
        return self._id.open_transaction

    async def add_group(self, group: str) -> bool:
        """Tell the coordinator, in version 1, that offsets of a group are staged.

        Returns:
            Whether they can be; otherwise `over` was called.
        """
        if self._id.version > 1:
            return True
        reply = await self._ask_coordinator(Api.ADD_OFFSETS_TO_TXN, self._id.group_request(group))
        return self._is_granted(reply)

    async def end(self) -> bool:
        """Commit the transaction, and begin the next one.

        Returns:
            Whether the transaction is committed; otherwise `over` was called, or the transaction
            was aborted meanwhile.
        """
        reply = await self._ask_coordinator(Api.END_TXN, self._id.end_request())
        if not self._is_granted(reply):
            return False
        self._id.ended(reply)
        self._goes_on()
        return True

    def _is_granted(self, reply: Any) -> bool:
        """Return whether a request was granted; a missing right ends the worker."""
        if reply is None:
            return False
        if code := error_code(reply):
            self._fails(self._denied(code))
        return not code

    def abort(self) -> None:
        """Drop everything that was sent since the last end, and begin anew."""
        self._life += 1
        self._sending.drop_all()
        self._cut()
        self._moved.set()
        if self._id.stage is not TransactionStage.BEGINNING:
            self._id.aborted()
            if not self._taken:
                self._spawn(self._begin_again(), name="begin a transaction")

    async def _begin_again(self) -> None:
        try:
            await self._begin()
        except StreamsxError as error:
            self._fails(error)

    async def _begin(self) -> None:
        """Ask for the producer id, whatever is aborted meanwhile: nothing leaves before."""
        while True:
            reply = await self._tried(Api.INIT_PRODUCER_ID, self._id.init_request(), anew=True)
            code = ErrorCode.NONE if reply is None else error_code(reply)
            if reply is not None and VERDICTS.get(code) is TransactionVerdict.GOOD:
                break
            if code and VERDICTS.get(code, TransactionVerdict.DENIED) is TransactionVerdict.DENIED:
                raise self._denied(code)
            await asyncio.sleep(self._pause_s(code))
        self._id.initialised(reply)
        self._versions = self._id.versions(Api.PRODUCE)
        self._goes_on()

    def _goes_on(self) -> None:
        """Let the batches leave that have waited for the transaction."""
        self._moved.set()
        self.push()
        self._arm_again()

    def worked(self, seconds: float) -> None:
        """Note that a body is at work for so long; records may leave late from now on."""
        if self._id.worked(self._clock.now(), seconds):
            LOG.info(
                "A record takes %.1f s, and transaction_timeout is %g s: outputs are sent when "
                "a commit is due, until no record has taken that long for 10 minutes; no action "
                "needed.",
                seconds, self._id.timeout_s,
            )  # fmt: skip

    # -- questions to the coordinator

    async def _ask_coordinator(self, api: Api, body: dict[str, Any]) -> Any:
        """Ask until the answer is good, or no other try can help.

        None if the transaction is over, or was aborted.
        """
        life = self._life
        while life == self._life:
            reply = await self._tried(api, body)
            if life != self._life:
                break
            code = ErrorCode.NONE if reply is None else error_code(reply)
            verdict = VERDICTS.get(code, TransactionVerdict.DENIED)
            if reply is not None and verdict in FINAL:
                return reply
            if reply is not None and verdict in (
                TransactionVerdict.FENCED,
                TransactionVerdict.ABORT,
            ):
                self.is_over(code, f"{api.name} of {self._id.transactional_id}")
                break
            await asyncio.sleep(self._pause_s(code))
        return None

    async def _tried(self, api: Api, body: dict[str, Any], *, anew: bool = False) -> Any:
        """Ask once; None without an answer."""
        try:
            if self._node is None:
                self._node = await self._coordinator()
            connection = await self._cluster.open(self._node, LANE)
            if anew:
                await self._learn_version(connection)
            timeout_s = self._cluster.timeout_s
            reply = await connection.ask(api, body, timeout_s, self._id.versions(api))
        except WorldError as error:
            self._node = None
            self._warn(f"transaction {self._id.transactional_id}: {api.name}", str(error))
            return None
        code = error_code(reply)
        if VERDICTS.get(code) is TransactionVerdict.AGAIN:
            self._node = None
            self._warn(f"transaction {self._id.transactional_id}: {api.name}", name_of(code))
        return reply

    async def _coordinator(self) -> int:
        name = self._id.transactional_id
        try:
            return await self._cluster.coordinator(name, TRANSACTION)
        except SettingError as error:
            raise SettingError(f"{error}: {self._advice(UNAUTHORIZED)}") from error

    async def _learn_version(self, connection: Connection) -> None:
        """Take the version of the protocol that the brokers have finalized.

        Raises:
            UsageError: the brokers are too old for exactly-once.
        """
        about = {"client_software_name": CLIENT_ID, "client_software_version": __version__}
        reply = await connection.ask(Api.API_VERSIONS, about, self._cluster.timeout_s)
        levels = {each.name: each.max_version_level for each in reply.finalized_features or ()}
        self._id.version = 2 if levels.get(FEATURE, 0) >= IMPLICIT_LEVEL else 1
        for api in (Api.PRODUCE, Api.TXN_OFFSET_COMMIT, Api.END_TXN):
            connection.version(api, self._id.versions(api))

    def _pause_s(self, code: int) -> float:
        soon = VERDICTS.get(code) is TransactionVerdict.SOON
        return SOON_S if soon else BACKOFF_S

    def is_over(self, code: int, where: str) -> None:
        """Hear that the transaction cannot be committed.

        A worker that is fenced for the third time in a minute ends, and leaves the id to the other
        process. "It begins again for its last commit": the other one is fenced for the third time,
        too, and no worker is left.
        """
        if self._id.stage is TransactionStage.BEGINNING:
            return  # one of several answers that say so
        fenced = VERDICTS.get(code) is TransactionVerdict.FENCED
        if fenced and self._id.fenced(self._clock.now()):
            self._taken = True
            self._fails(
                TransactionFenced(
                    f"transactional id in use: {self._id.transactional_id}: fenced three times in "
                    "a minute: another process uses a copy of this state directory: give each "
                    "worker a directory of its own"
                )
            )
        why = FENCED.format(timeout_s=self._id.timeout_s) if fenced else ""
        self._on_over(f"{where}: {name_of(code)}{why}")

    def _denied(self, code: int) -> StreamsxError:
        return failure(code, f"transactional id {self._id.transactional_id}", self._advice(code))

    def _advice(self, code: int) -> str:
        principal = self._cluster.principal
        return self.remedies.get(code, "").format(timeout_s=self._id.timeout_s, principal=principal)

    # -- batches

    async def settle(self, goals: Mapping[TaskId, Goals], patience_s: float) -> frozenset[TaskId]:
        """Wait until every batch has arrived, and shut the gate.

        One transaction has the records of all tasks, so `goals` of some do not suffice. A broker
        that is away is waited for. A partition without a leader is waited for `patience_s` seconds.

        Returns:
            Tasks with records in partitions without a leader; the gate stays open then.
        """
        life = self._life
        self._id.flush()
        left = self._closed()
        until = self._clock.now() + patience_s
        while life == self._life:
            if self._arrived(left) and not (left := self._closed()):
                break  # else dead letters of records that were refused meanwhile
            now = self._clock.now()
            if now >= until:
                until = now + patience_s
                if self._leased and (late := self.leaderless()):
                    return frozenset(late)
            self._moved.clear()
            await wait(self._moved, until - now)
        if life == self._life:
            self._id.shut()
        return frozenset()

    def _closed(self) -> Goals:
        """Let all open batches leave; return what has to be acknowledged."""
        goals = self._sending.flush()
        self.push()
        return goals

    def _arrived(self, goals: Goals) -> bool:
        """Return whether the transaction has begun, and has all its batches."""
        begun = self._id.stage is TransactionStage.OPEN
        return begun and self.arrived(goals) and not self._sending.flying

    def leaderless(self) -> dict[TaskId, set[TopicPartition]]:
        """Return the tasks with records that wait for a leader, each with the partitions."""
        return self._sending.unsent(lambda tp: self._cluster.leader(tp) is None)

    def still_leaderless(self, tps: Iterable[TopicPartition]) -> bool:
        """Return whether one of these partitions has no leader; if so, look again soon."""
        if all(self._cluster.leader(tp) is not None for tp in tps):
            return False
        self._later("", "")
        return True

    async def flush(self) -> Mapping[TopicPartition, int]:
        """Wait until everything sent so far has arrived; late batches leave for that.

        Without this a body that awaits an acknowledgement waits for its commit, and the commit for
        the body.
        """
        self._id.flush()
        return await super().flush()

    async def acknowledged(self, partition: OutputPartition, number: int) -> int:
        """Wait for one batch as `Producer.acknowledged` does; late batches leave for that."""
        self._id.flush()
        return await super().acknowledged(partition, number)

    @property
    def unended(self) -> bool:
        """Return whether records have left, or wait, that no end has committed."""
        return self._id.opened or self._sending.next_at() is not None

    async def finish(self) -> None:
        """Abort what was sent behind the last commit; readers would wait for its time-out."""
        opened = self._id.opened or self._id.stage is TransactionStage.SHUT
        if opened and not self._taken:
            self._life += 1
            self._id.aborted()
            await self._begin()

    def push(self) -> None:
        """Send every batch that is due while the gate is open."""
        if self._id.leaves(self._clock.now()):
            super().push()
        else:
            self.follow_lease()

    def _arm_again(self) -> None:
        if self._id.leaves(self._clock.now()):
            super()._arm_again()

    def _admitted(self, partitions: list[OutputPartition]) -> list[OutputPartition]:
        self._id.left(self._clock.now())
        if self._id.version > 1:
            return partitions
        new = [each.tp for each in partitions if each.tp not in self._id.added]
        if new and not self._adding:
            self._adding = True
            self._spawn(self._add(new), name="add partitions to the transaction")
        return [each for each in partitions if each.tp in self._id.added]

    async def _add(self, tps: list[TopicPartition]) -> None:
        life = self._life
        try:
            reply = await self._ask_coordinator(
                Api.ADD_PARTITIONS_TO_TXN, self._id.add_request(tps)
            )
        finally:
            self._adding = False
        if reply is None or life != self._life:
            return
        if denied := denied_partitions(reply):
            self._refuse(denied)
            return
        self._id.added.update(tps)
        self._goes_on()

    def _refuse(self, denied: Mapping[TopicPartition, int]) -> None:
        """Hand partitions that the transaction may not have to those who have sent there.

        A batch that a broker refuses for that takes the same way.
        """
        for tp, code in denied.items():
            runs = self._sending.partition(tp).all_runs()
            for sender, source in {run.sender: run.source for run in runs}.items():
                self._refused(tp, code, RefusedRecord(sender, source, None, 0, ""))

    def _over(self, tp: TopicPartition, code: int) -> None:
        self.is_over(code, str(tp))
