"""The coordinator: owns all groups, finds the one that an event is for, answers for several. Pure.

One machine for the whole broker, so that one write can change several groups, and so that a write
that failed throws away one machine and loads another from what is on disk.
"""

from collections.abc import Callable, Iterable
from typing import Any

from streamsx.broker import events as e
from streamsx.broker.classic import ClassicGroup
from streamsx.broker.consumer_group import EPOCHS_SINCE, JOINS, ConsumerGroup, check_heartbeat
from streamsx.broker.events import ReplyBody
from streamsx.broker.group import CoordinatedGroup, GroupConfig
from streamsx.broker.offsets import (
    NO_ID,
    Catalog,
    committer,
    deleted,
    fetched,
    judge_commit,
    refused_commit,
    rows,
)
from streamsx.broker.records import GroupKey, Key, OffsetKey, OffsetValue
from streamsx.broker.refusal import Refused
from streamsx.kafka.errors import ErrorCode
from streamsx.kafka.wire import Api

ABSENT_SINCE = {Api.OFFSET_COMMIT: 9, Api.DESCRIBE_GROUPS: 6, Api.CONSUMER_GROUP_DESCRIBE: 0}
"""The version from which a request is told that the group is absent."""
SEVERAL_SINCE = 8
"""The version from which an OffsetFetch asks for several groups (KIP-709), or for none."""


GroupKind = ClassicGroup | ConsumerGroup
OF_CLASSIC = (GroupKey, OffsetKey)
"""Rows that a classic group has; what stands alone was committed without a group."""


class Coordinator:
    """Takes every event of `events`; the requests are 8, 9, 11 to 16, 42, 47, 68 and 69."""

    def __init__(self, config: GroupConfig | None = None) -> None:
        self.config = config or GroupConfig()
        self.groups: dict[str, CoordinatedGroup] = {}
        self.catalog = Catalog()
        self._for_several = {
            Api.OFFSET_COMMIT: self._commit,
            Api.OFFSET_FETCH: self._fetch,
            Api.DESCRIBE_GROUPS: self._describe,
            Api.CONSUMER_GROUP_DESCRIBE: self._describe,
            Api.CONSUMER_GROUP_HEARTBEAT: self._beat,
            Api.LIST_GROUPS: self._list,
            Api.DELETE_GROUPS: self._delete,
            Api.OFFSET_DELETE: self._delete_offsets,
        }

    def step(self, now: float, event: e.Event) -> list[e.Effect]:
        """Raises InvalidTransition for a request that came through in an impossible state."""
        match event:
            case e.ClientRequest():
                return self._for_several.get(event.api, self._of_member)(now, event)
            case e.BrokerTick() | e.Gone():
                return self._step_group(now, event.group, event)
            case e.Topics():
                self.catalog.replace(event.topics)
                return self._drop_lost(lambda topic: self.catalog.identity(topic)[0] == NO_ID)
            case e.TopicChanged():
                return self._change_topic(event)
            case e.ExpireOffsets(wall_ms):
                return self._expire(wall_ms)
            case e.Load():
                return self._load(now, event)

    def _of_member(self, now: float, request: e.ClientRequest) -> list[e.Effect]:
        group_id = request.body.group_id
        if not group_id:
            return [self.refuse(request, ErrorCode.INVALID_GROUP_ID)]
        effects, group = list[e.Effect](), self._group(group_id)
        if request.api is Api.JOIN_GROUP and not group.members():
            effects = self._become(group_id, ClassicGroup)
        return [*effects, *self._step_group(now, group_id, request)]

    def _beat(self, now: float, request: e.ClientRequest) -> list[e.Effect]:
        """Only who joins makes a group, or another one of an empty group."""
        body = request.body
        try:
            check_heartbeat(body, request.version)
        except Refused as why:
            return [e.ClientReply(request.waiter, why.answer)]
        group, effects = self.groups.get(body.group_id), list[e.Effect]()
        if body.member_epoch == JOINS and (group is None or not group.members()):
            effects = self._become(body.group_id, ConsumerGroup)
        elif not isinstance(group, ConsumerGroup):
            return [self.refuse(request, ErrorCode.GROUP_ID_NOT_FOUND)]
        return [*effects, *self._step_group(now, body.group_id, request)]

    def _become(self, group_id: str, kind: type[GroupKind]) -> list[e.Effect]:
        """What an empty group has committed stays."""
        old = self.groups.get(group_id)
        if isinstance(old, kind):
            return []
        new = self.groups[group_id] = self._new(group_id, kind)
        if old is None:
            return []
        new.committed = old.committed
        return [e.Persist(deletes=tuple(old.keys()))] if old.keys() else []

    def _step_group(
        self, now: float, group_id: str, event: e.ClientRequest | e.BrokerTick | e.Gone
    ) -> list[e.Effect]:
        group = self.groups.get(group_id)
        if group is None:  # deleted before its Tick came
            return []
        effects = group.step(now, event)
        self._drop_if_void(group)
        return effects

    def _group(self, group_id: str, kind: type[GroupKind] = ClassicGroup) -> CoordinatedGroup:
        if group_id not in self.groups:
            self.groups[group_id] = self._new(group_id, kind)
        return self.groups[group_id]

    def _new(self, group_id: str, kind: type[GroupKind]) -> CoordinatedGroup:
        return kind(group_id, self.config, self.catalog)

    def _drop_if_void(self, group: CoordinatedGroup) -> None:
        """Nothing on disk and nobody to come: its first member was refused, or never came back."""
        if not (group.members() or group.awaited() or group.committed or group.keys()):
            del self.groups[group.id]

    def _commit(self, now: float, request: e.ClientRequest) -> list[e.Effect]:
        body = request.body
        group, effects = self.groups.get(body.group_id), list[e.Effect]()
        refused = ErrorCode.NONE
        if group is not None:
            try:
                effects = group.may_commit(now, committer(request, self.catalog))
            except Refused as why:
                refused = why.code
        elif body.generation_id_or_member_epoch >= 0:
            absent = request.version >= ABSENT_SINCE[Api.OFFSET_COMMIT]
            refused = ErrorCode.GROUP_ID_NOT_FOUND if absent else ErrorCode.ILLEGAL_GENERATION
        note_max = self.config.offset_metadata_bytes_max
        puts, answer = judge_commit(request, refused, self.catalog, note_max)
        reply = e.ClientReply(request.waiter, answer)
        if not puts:
            return [*effects, reply]
        committed = self._group(body.group_id).committed
        committed |= {(key.topic, key.partition): value for key, value in puts.items()}
        return [*effects, e.Persist(tuple(puts.items())), reply]

    def _fetch(self, _: float, request: e.ClientRequest) -> list[e.Effect]:
        version, answers = request.version, list[ReplyBody]()
        for asked in fetched_groups(request):
            group = self.groups.get(asked.group_id)
            try:
                if group is not None and version >= EPOCHS_SINCE:
                    group.may_fetch(asked.member_id, asked.member_epoch)
            except Refused as why:
                answers.append({"group_id": asked.group_id, **why.answer})
                continue
            committed = group.committed if group else {}
            answers.append(fetched(asked.group_id, committed, asked.topics, version, self.catalog))
        first = answers[0] if answers else {}
        return [e.ClientReply(request.waiter, {**first, "groups": answers})]

    def _describe(self, _: float, request: e.ClientRequest) -> list[e.Effect]:
        api, answers = request.api, list[ReplyBody]()
        absent = request.version >= ABSENT_SINCE[api]
        nobody: ReplyBody = {
            "group_state": "Dead" if api is Api.DESCRIBE_GROUPS else "",
            "error_code": ErrorCode.GROUP_ID_NOT_FOUND if absent else ErrorCode.NONE,
        }
        for group_id in described_groups(request):
            group = self.groups.get(group_id)
            there = group is not None and group.described_by is api
            told = group.described() if group is not None and there else nobody
            answers.append({"group_id": group_id, **told})
        return [e.ClientReply(request.waiter, {"groups": answers})]

    def _list(self, _: float, request: e.ClientRequest) -> list[e.Effect]:
        states = {name.casefold() for name in request.body.states_filter}
        types = {name.casefold() for name in request.body.types_filter}
        told = (
            {"group_id": group_id, "group_type": group.kind, **group.listed()}
            for group_id, group in sorted(self.groups.items())
        )
        groups = [
            group
            for group in told
            if (not states or group["group_state"].casefold() in states)
            and (not types or group["group_type"] in types)
        ]
        return [e.ClientReply(request.waiter, {"groups": groups})]

    def _delete(self, _: float, request: e.ClientRequest) -> list[e.Effect]:
        results: list[ReplyBody] = []
        keys: list[Key] = []
        for group_id in request.body.groups_names:
            group, code = self.groups.get(group_id), ErrorCode.NONE
            if group is None:
                code = ErrorCode.GROUP_ID_NOT_FOUND
            elif group.members():
                code = ErrorCode.NON_EMPTY_GROUP
            else:
                keys += [*group.keys(), *rows(group_id, group.committed)]
                del self.groups[group_id]
            results.append({"group_id": group_id, "error_code": code})
        reply = e.ClientReply(request.waiter, {"results": results})
        return [e.Persist(deletes=tuple(keys)), reply] if keys else [reply]

    def _delete_offsets(self, _: float, request: e.ClientRequest) -> list[e.Effect]:
        group = self.groups.get(request.body.group_id)
        if group is None:
            return [self.refuse(request, ErrorCode.GROUP_ID_NOT_FOUND)]
        try:
            keys, answer = deleted(request, group.committed, group.reads(), self.catalog)
        except Refused as why:
            return [self.refuse(request, why.code)]
        for key in keys:
            del group.committed[key.topic, key.partition]
        self._drop_if_void(group)
        reply = e.ClientReply(request.waiter, answer)
        return [e.Persist(deletes=tuple(keys)), reply] if keys else [reply]

    def _expire(self, wall_ms: int) -> list[e.Effect]:
        """With its last offset a group goes too, if nobody is in it."""
        effects: list[e.Effect] = []
        before = wall_ms - self.config.offsets_retention_ms
        for _, group in sorted(self.groups.items()):
            committed, unused_since = group.committed, group.unused_since()
            keys: list[Key] = []
            for key in rows(group.id, committed):
                place = key.topic, key.partition
                if unused_since(key.topic, committed[place]) <= before:
                    keys.append(key)
                    del committed[place]
            if not (committed or group.members() or group.awaited()):
                keys += group.keys()
                del self.groups[group.id]
            if keys:
                effects.append(e.Story(f"group_expired group={group.id} rows={len(keys)}"))
                effects.append(e.Persist(deletes=tuple(keys)))
        return effects

    def _change_topic(self, event: e.TopicChanged) -> list[e.Effect]:
        old_id = self.catalog.identity(event.topic)[0]
        self.catalog.put(event.topic, event.identity)
        if old_id in (NO_ID, self.catalog.identity(event.topic)[0]):
            return []
        return self._drop_lost(lambda topic: topic == event.topic)

    def _drop_lost(self, lost_topic: Callable[[str], bool]) -> list[e.Effect]:
        """Offsets of a topic that is gone, or of its namesake, must not greet the next one."""
        keys: list[Key] = []
        for _, group in sorted(self.groups.items()):
            lost = [key for key in rows(group.id, group.committed) if lost_topic(key.topic)]
            for _, topic, partition in lost:
                del group.committed[topic, partition]
            self._drop_if_void(group)
            keys += lost
        return [e.Persist(deletes=tuple(keys))] if keys else []

    def _load(self, now: float, event: e.Load) -> list[e.Effect]:
        effects: list[e.Effect] = []
        for key, value in event.rows:
            group = self._group(
                key.group, ClassicGroup if type(key) in OF_CLASSIC else ConsumerGroup
            )
            if isinstance(key, OffsetKey):
                assert isinstance(value, OffsetValue)
                group.committed[key.topic, key.partition] = value
            else:
                assert not isinstance(value, OffsetValue)
                effects += group.load(now, key, value)
        return effects

    def forget(self, group_id: str) -> None:
        """Know nothing of a group, until `Load` says what is on disk."""
        self.groups.pop(group_id, None)

    def refuse(self, request: e.ClientRequest, code: ErrorCode) -> e.ClientReply:
        """The answer to a request of which nothing is done, in the form its clients look for."""
        body, error = request.body, {"error_code": code}
        answer: ReplyBody = error
        match request.api:
            case Api.OFFSET_DELETE:
                answer = {**error, "topics": []}
            case Api.OFFSET_COMMIT:
                answer = {"topics": [refused_commit(topic, code) for topic in body.topics]}
            case Api.OFFSET_FETCH:
                ids = [asked.group_id for asked in fetched_groups(request)]
                answer = {**error, "groups": [{"group_id": name, **error} for name in ids]}
            case Api.DESCRIBE_GROUPS | Api.CONSUMER_GROUP_DESCRIBE:
                answer = {
                    "groups": [{"group_id": name, **error} for name in described_groups(request)]
                }
            case Api.DELETE_GROUPS:
                answer = {"results": [{"group_id": name, **error} for name in body.groups_names]}
            case Api.JOIN_GROUP:
                answer = {**error, "member_id": body.member_id}
        return e.ClientReply(request.waiter, answer)


def fetched_groups(request: e.ClientRequest) -> Iterable[Any]:
    """Of an OffsetFetch: before version 8 there was one group, at the top."""
    return request.body.groups if request.version >= SEVERAL_SINCE else (request.body,)


def described_groups(request: e.ClientRequest) -> Iterable[str]:
    """The ids in either of the requests that describe groups."""
    body = request.body
    return [*(body.groups if request.api is Api.DESCRIBE_GROUPS else body.group_ids)]
