"""Coordinator of all groups and transactions of the broker. Pure.

The coordinator finds the group that an event is for, and answers requests about several groups. One
machine serves the whole broker, so that one write can change several groups and end a transaction.
After a failed write this machine is thrown away, and another is loaded from the disk.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Any

from streamsx.broker.groups import coordinator_events as e
from streamsx.broker.groups.classic import ClassicGroup
from streamsx.broker.groups.classic_members import downgrade
from streamsx.broker.groups.consumer_group import (
    EPOCHS_SINCE,
    JOINS,
    ConsumerGroup,
    check_heartbeat,
)
from streamsx.broker.groups.coordinator_events import ReplyBody
from streamsx.broker.groups.group import CoordinatedGroup, GroupConfig
from streamsx.broker.groups.offsets import (
    NO_ID,
    Catalog,
    committer,
    deleted,
    fetched,
    judge_commit,
    judged,
)
from streamsx.broker.groups.transactions import Transactions, refused
from streamsx.broker.metadata_rows import (
    GroupKey,
    Key,
    OffsetKey,
    OffsetValue,
    TransactionKey,
    TransactionValue,
)
from streamsx.broker.refusal import Refused, each
from streamsx.protocol.error_codes import ErrorCode
from streamsx.protocol.wire import Api

ABSENT_SINCE = {Api.OFFSET_COMMIT: 9, Api.DESCRIBE_GROUPS: 6, Api.CONSUMER_GROUP_DESCRIBE: 0}
"""Versions from which a request gets an error code for an absent group."""
SEVERAL_SINCE = 8
"""OffsetFetch version from which a request names several groups (KIP-709), or none."""

GroupKind = ClassicGroup | ConsumerGroup
TOLD_AS = {
    ErrorCode.PRODUCER_FENCED: ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.STALE_MEMBER_EPOCH: ErrorCode.ILLEGAL_GENERATION,
}
"""Replacements for error codes that no version of TxnOffsetCommit knows."""


class Coordinator:
    """Machine that takes every event of `coordinator_events`.

    The requests are 8 to 16 without 10, 22, 24 to 28 without 27, 42, 47, 68 and 69.
    """

    def __init__(self, config: GroupConfig | None = None) -> None:
        self.config = config or GroupConfig()
        self.groups: dict[str, CoordinatedGroup] = {}
        self.catalog = Catalog()
        self.transactions = Transactions(self.catalog.unknown)
        self._for_several: dict[int, Callable[[float, e.ClientRequest], list[e.Effect]]] = {
            Api.OFFSET_COMMIT: self._commit,
            Api.OFFSET_FETCH: self._fetch,
            Api.DESCRIBE_GROUPS: partial(describe, self.groups),
            Api.CONSUMER_GROUP_DESCRIBE: partial(describe, self.groups),
            Api.CONSUMER_GROUP_HEARTBEAT: self._beat,
            Api.LIST_GROUPS: partial(list_groups, self.groups),
            Api.DELETE_GROUPS: self._delete,
            Api.OFFSET_DELETE: self._delete_offsets,
            Api.TXN_OFFSET_COMMIT: self._stage,
            Api.INIT_PRODUCER_ID: self._transact,
            Api.ADD_PARTITIONS_TO_TXN: self._transact,
            Api.ADD_OFFSETS_TO_TXN: self._transact,
            Api.END_TXN: self._transact,
        }

    def step(self, now: float, event: e.Event) -> list[e.Effect]:
        """Apply one event, and return the effects.

        Raises:
            InvalidTransition: The request is impossible in the group's state.
        """
        match event:
            case e.ClientRequest():
                try:
                    return self._for_several.get(event.api, self._of_member)(now, event)
                except Refused as why:
                    answer = {**refuse(event, why.code).body, **why.answer}
                    return [e.ClientReply(event.waiter, answer)]
            case e.AddPartition() | e.MarkersWritten() | e.OpenInLogs():
                return self._transact(now, event)
            case e.BrokerTick(e.TRANSACTIONS):
                return self._transact(now, event)
            case e.BrokerTick() | e.ClientGone():
                return self._step_group(now, event.group, event)
            case e.Topics():
                self.catalog.replace(event.topics)
                return self._drop_lost(lambda topic: self.catalog.identity(topic)[0] == NO_ID)
            case e.TopicsChanged():
                return self._change_topics(event)
            case e.ExpireOffsets(wall_ms):
                return [*self._expire(wall_ms), *self._transact(now, event)]
            case e.Load():
                return self._load(now, event)

    def _of_member(self, now: float, request: e.ClientRequest) -> list[e.Effect]:
        group_id = request.body.group_id
        if not group_id:
            raise Refused(ErrorCode.INVALID_GROUP_ID)
        effects = list[e.Effect]()
        old = self._group(group_id)
        if request.api is Api.JOIN_GROUP and not old.members():
            effects = self._become(group_id, ClassicGroup)
        joined = self._step_group(now, group_id, request)
        new = self.groups.get(group_id)
        if effects and not (new and (new.members() or new.awaited())):  # refused: undo
            self.groups[group_id] = old
            effects = []
        return [*effects, *joined]

    def _beat(self, now: float, request: e.ClientRequest) -> list[e.Effect]:
        """Handle a heartbeat; only a joining member creates a group, or converts an empty one."""
        body = request.body
        group = self.groups.get(request.body.group_id)
        joins = body.member_epoch == JOINS
        nobody = group is None or not group.members()
        check_heartbeat(body, request.version, self.config)
        if joins and isinstance(group, ClassicGroup) and not nobody:
            return self._upgrade(now, group, request)
        begins = joins and nobody
        if not (begins or isinstance(group, ConsumerGroup)):
            raise Refused(ErrorCode.GROUP_ID_NOT_FOUND)
        effects = self._become(body.group_id, ConsumerGroup) if begins else []
        return [*effects, *self._step_group(now, body.group_id, request)]

    def _upgrade(self, now: float, old: ClassicGroup, request: e.ClientRequest) -> list[e.Effect]:
        """Convert a classic group with its members, if the new member may join.

        Raises:
            Refused: The group cannot be converted.
        """
        new = ConsumerGroup(old.id, self.config, self.catalog)
        effects = new.upgraded(now, GroupKey(old.id), old.round.value())
        joined = new.step(now, request)
        if new.outlived():
            return [each for each in joined if isinstance(each, e.ClientReply)]
        self.groups[old.id] = new
        new.committed = old.committed
        return [*effects, *old.abandon(now), *joined]

    def _downgrade(self, now: float, old: ConsumerGroup) -> list[e.Effect]:
        """Make the group classic, after the last member of the consumer protocol has gone."""
        new = ClassicGroup(old.id, self.config, self.catalog)
        self.groups[old.id] = new
        new.committed = old.committed
        key = GroupKey(old.id)
        value = downgrade(old.held)
        return [
            e.Persist(((key, value),), tuple(old.keys())),
            *new.load(now, key, value),
            *new.begin_anew(now, {m.id: m.epoch for m in old.members()}),
        ]

    def _become(self, group_id: str, kind: type[GroupKind]) -> list[e.Effect]:
        """Create the group, or convert an empty one; the committed offsets stay."""
        old = self.groups.get(group_id)
        if isinstance(old, kind):
            return []
        new = self.groups[group_id] = kind(group_id, self.config, self.catalog)
        if old is None:
            return []
        new.committed = old.committed
        return deletion(old.keys())

    def _step_group(self, now: float, group_id: str, event: e.GroupEvent) -> list[e.Effect]:
        group = self.groups.get(group_id)
        if group is None:  # deleted before its tick came
            return []
        effects = group.step(now, event)
        if isinstance(group, ConsumerGroup) and group.outlived():
            return [*effects, *self._downgrade(now, group)]
        self._drop_if_void(group)
        return effects

    def _group(self, group_id: str, kind: type[GroupKind] = ClassicGroup) -> CoordinatedGroup:
        if group_id not in self.groups:
            self.groups[group_id] = kind(group_id, self.config, self.catalog)
        return self.groups[group_id]

    def _drop_if_void(self, group: CoordinatedGroup) -> None:
        """Drop a group that has no rows, members, promised ids or offsets.

        The first member of such a group was refused, or never came back.
        """
        there = group.keys() or group.members() or group.awaited() or group.committed
        if not (there or self.transactions.unstable({group.id})):
            del self.groups[group.id]

    def _transact(self, now: float, event: e.TransactionEvent) -> list[e.Effect]:
        """Apply an event to the transactions; staged offsets take effect with the decision."""
        effects = self.transactions.step(now, event)
        for effect in effects:
            for key, value in effect.puts if isinstance(effect, e.Persist) else ():
                if isinstance(key, OffsetKey):
                    assert isinstance(value, OffsetValue)
                    self._group(key.group).committed[key.topic, key.partition] = value
        return effects

    def _stage(self, now: float, request: e.ClientRequest) -> list[e.Effect]:
        """Handle a commit within a transaction, from a member or from no member (KIP-447)."""
        effects = list[e.Effect]()
        offsets, answer = judge_commit(request, ErrorCode.NONE, self.catalog, self.config)
        try:
            group = self.groups.get(request.body.group_id)
            effects += may_stage(now, group, request, self.catalog)
            if offsets:
                effects += self.transactions.stage(now, request, offsets)
                self._group(request.body.group_id)
        except Refused as why:
            code = TOLD_AS.get(why.code, why.code)
            _, answer = judge_commit(request, code, self.catalog, self.config)
        return [*effects, e.ClientReply(request.waiter, answer)]

    def _commit(self, now: float, request: e.ClientRequest) -> list[e.Effect]:
        body = request.body
        group = self.groups.get(body.group_id)
        effects = list[e.Effect]()
        refused = ErrorCode.NONE
        if group is not None:
            try:
                effects = group.may_commit(now, committer(request, self.catalog))
            except Refused as why:
                refused = why.code
        elif body.generation_id_or_member_epoch >= 0:
            absent = request.version >= ABSENT_SINCE[Api.OFFSET_COMMIT]
            refused = ErrorCode.GROUP_ID_NOT_FOUND if absent else ErrorCode.ILLEGAL_GENERATION
        offsets, answer = judge_commit(request, refused, self.catalog, self.config)
        reply = e.ClientReply(request.waiter, answer)
        if not offsets:
            return [*effects, reply]
        self._group(body.group_id).committed.update(offsets)
        puts = tuple((OffsetKey(body.group_id, *place), value) for place, value in offsets.items())
        return [*effects, e.Persist(puts), reply]

    def _fetch(self, _: float, request: e.ClientRequest) -> list[e.Effect]:
        version = request.version
        wanted = fetched_groups(request)
        ids = {asked.group_id for asked in wanted} if request.body.require_stable else ()
        unstable = self.transactions.unstable(ids)

        def answer(asked: Any) -> ReplyBody:
            group = self.groups.get(asked.group_id)
            if group is not None and version >= EPOCHS_SINCE:
                group.may_fetch(asked.member_id, asked.member_epoch)
            committed = group.committed if group else {}
            pending = unstable.get(asked.group_id, ())
            return fetched(committed, asked.topics, version, self.catalog, pending)

        answers = each(wanted, answer, "group_id")
        first = answers[0] if answers else {}
        return [e.ClientReply(request.waiter, {**first, "groups": answers})]

    def _delete(self, _: float, request: e.ClientRequest) -> list[e.Effect]:
        results = list[ReplyBody]()
        keys = list[Key]()
        lost = set[str]()
        for group_id in request.body.groups_names:
            group = self.groups.get(group_id)
            code = ErrorCode.NONE
            if group is None:
                code = ErrorCode.GROUP_ID_NOT_FOUND
            elif group.members():
                code = ErrorCode.NON_EMPTY_GROUP
            else:
                keys += [*group.keys(), *forgotten(group, group.committed)]
                lost.add(group_id)
                del self.groups[group_id]
            results.append({"group_id": group_id, "error_code": code})
        effects = self.transactions.drop(lambda group, *_: group in lost)
        reply = e.ClientReply(request.waiter, {"results": results})
        return [*effects, *deletion(keys), reply]

    def _delete_offsets(self, _: float, request: e.ClientRequest) -> list[e.Effect]:
        group = self.groups.get(request.body.group_id)
        if group is None:
            raise Refused(ErrorCode.GROUP_ID_NOT_FOUND)
        held = {*group.committed, *self.transactions.unstable({group.id}).get(group.id, ())}
        gone, answer = deleted(request, held, group.reads(), self.catalog)
        keys = forgotten(group, gone)
        effects = self.transactions.drop(lambda name, *place: name == group.id and place in gone)
        self._drop_if_void(group)
        return [*effects, *deletion(keys), e.ClientReply(request.waiter, answer)]

    def _expire(self, wall_ms: int) -> list[e.Effect]:
        """Delete unused offsets, and with its last offset a group without members."""
        effects: list[e.Effect] = []
        before = wall_ms - self.config.offsets_retention_ms
        pending = self.transactions.unstable(self.groups.keys())
        for _, group in sorted(self.groups.items()):
            committed = group.committed
            unused_since = group.unused_since()
            unused = [p for p, value in committed.items() if unused_since(p[0], value) <= before]
            keys = forgotten(group, unused)
            if not (committed or group.id in pending or group.members() or group.awaited()):
                keys += group.keys()
                del self.groups[group.id]
            if keys:
                effects.append(
                    e.Story(
                        f"group_expired group={group.id} rows={len(keys)}",
                        f"Group {group.id}: {len(keys)} unused offsets or rows were deleted.",
                    )
                )
            effects += deletion(keys)
        return effects

    def _change_topics(self, event: e.TopicsChanged) -> list[e.Effect]:
        before = {topic: self.catalog.identity(topic)[0] for topic in event.topics}
        for topic, identity in event.topics.items():
            self.catalog.put(topic, identity)
        lost = {t for t, old in before.items() if old not in (NO_ID, self.catalog.identity(t)[0])}
        return self._drop_lost(lost.__contains__) if lost else []

    def _drop_lost(self, lost_topic: Callable[[str], bool]) -> list[e.Effect]:
        """Delete offsets of deleted topics, so that a namesake created later has none."""
        keys: list[Key] = []
        for _, group in sorted(self.groups.items()):
            keys += forgotten(group, [place for place in group.committed if lost_topic(place[0])])
            self._drop_if_void(group)
        effects = self.transactions.drop(lambda _, topic, __: lost_topic(topic))
        return [*effects, *deletion(keys)]

    def _load(self, now: float, event: e.Load) -> list[e.Effect]:
        effects: list[e.Effect] = []
        for key, value in event.rows:
            if isinstance(key, TransactionKey):
                assert isinstance(value, TransactionValue)
                effects += self.transactions.load(now, key, value)
                for staged in value.groups:
                    self._group(staged.group)
                continue
            # Rows of groups come before offsets: an offset alone was committed without a group.
            classic = isinstance(key, GroupKey | OffsetKey)
            group = self._group(key.group, ClassicGroup if classic else ConsumerGroup)
            if isinstance(key, OffsetKey):
                assert isinstance(value, OffsetValue)
                group.committed[key.topic, key.partition] = value
            else:
                assert not isinstance(value, OffsetValue | TransactionValue)
                effects += group.load(now, key, value)
        return effects

    def forget(self, group_id: str) -> None:
        """Forget a group until `Load` brings its rows from the disk."""
        self.groups.pop(group_id, None)


def deletion(keys: Collection[Key]) -> list[e.Effect]:
    """Return one write that deletes these rows; no write if there are none."""
    return [e.Persist(deletes=tuple(keys))] if keys else []


def forgotten(group: CoordinatedGroup, places: Iterable[tuple[str, int]]) -> list[Key]:
    """Remove these committed offsets from a group, and return the keys of their rows in order."""
    gone = sorted(places)
    for place in gone:
        group.committed.pop(place, None)
    return [OffsetKey(group.id, *place) for place in gone]


def refuse(request: e.ClientRequest, code: ErrorCode) -> e.ClientReply:
    """Return the reply to a request refused as a whole, in the form that clients expect."""
    body = request.body
    error = {"error_code": code}
    answer: ReplyBody = error
    match request.api:
        case Api.OFFSET_COMMIT | Api.TXN_OFFSET_COMMIT:
            answer = {"topics": judged(body.topics, lambda *_: code)}
        case Api.OFFSET_FETCH:
            ids = [asked.group_id for asked in fetched_groups(request)]
            answer = {**error, "groups": [{"group_id": name, **error} for name in ids]}
        case Api.DESCRIBE_GROUPS | Api.CONSUMER_GROUP_DESCRIBE:
            answer = {"groups": [{"group_id": name, **error} for name in described_groups(request)]}
        case Api.DELETE_GROUPS:
            answer = {"results": [{"group_id": name, **error} for name in body.groups_names]}
        case Api.ADD_PARTITIONS_TO_TXN | Api.INIT_PRODUCER_ID | Api.END_TXN:
            answer = refused(request, code)
        case Api.JOIN_GROUP:
            answer = {**error, "member_id": body.member_id}
    return e.ClientReply(request.waiter, answer)


def describe(
    groups: Mapping[str, CoordinatedGroup], _: float, request: e.ClientRequest
) -> list[e.Effect]:
    """Describe each group in the request, in the terms of its protocol."""
    api = request.api
    answers = list[ReplyBody]()
    absent = request.version >= ABSENT_SINCE[api]
    nobody: ReplyBody = {
        "group_state": "Dead" if api is Api.DESCRIBE_GROUPS else "",
        "error_code": ErrorCode.GROUP_ID_NOT_FOUND if absent else ErrorCode.NONE,
    }
    for group_id in described_groups(request):
        group = groups.get(group_id)
        told = group.described() if group and group.described_by is api else nobody
        answers.append({"group_id": group_id, **told})
    return [e.ClientReply(request.waiter, {"groups": answers})]


def list_groups(
    groups: Mapping[str, CoordinatedGroup], _: float, request: e.ClientRequest
) -> list[e.Effect]:
    """List all groups, or those in some states and of some types."""
    states = {name.casefold() for name in request.body.states_filter}
    types = {name.casefold() for name in request.body.types_filter}
    wanted: list[ReplyBody] = []
    for group_id, group in sorted(groups.items()):
        told = {"group_id": group_id, "group_type": group.kind, **group.listed()}
        in_state = not states or told["group_state"].casefold() in states
        if in_state and (not types or group.kind in types):
            wanted.append(told)
    return [e.ClientReply(request.waiter, {"groups": wanted})]


def fetched_groups(request: e.ClientRequest) -> Collection[Any]:
    """Return the groups of an OffsetFetch, each once.

    Before version 8 a request had one group, at the top.
    """
    asked = request.body.groups if request.version >= SEVERAL_SINCE else (request.body,)
    return {each.group_id: each for each in asked}.values()


def described_groups(request: e.ClientRequest) -> Iterable[str]:
    """Return the group ids in a request that describes groups, each once."""
    body = request.body
    return dict.fromkeys(body.groups if request.api is Api.DESCRIBE_GROUPS else body.group_ids)


def may_stage(
    now: float, group: CoordinatedGroup | None, request: e.ClientRequest, catalog: Catalog
) -> list[e.Effect]:
    """Accept a commit within a transaction, and return the effects on the group.

    Raises:
        Refused: The group does not accept the commit.
    """
    who = committer(request, catalog)
    if not request.body.group_id:
        raise Refused(ErrorCode.INVALID_GROUP_ID)
    if who[:3] == ("", None, -1):  # no member, as in every request before KIP-447
        return []
    if group is None and who.epoch >= 0:
        raise Refused(ErrorCode.ILLEGAL_GENERATION)
    return [] if group is None else group.may_commit(now, who)
