"""Every request that is served: in which versions, and who answers it.

From the oldest version that Kafka 4 still has, and older where clients ask for it. Said of each is
what it knows beyond its first version, and what of Kafka's it does not.
"""

import sys
from collections.abc import Callable
from typing import NamedTuple

from streamsx.broker.api import (
    append_records,
    authenticating,
    configurations,
    fetch_records,
    partitions,
    topic_admin,
    transacting,
)
from streamsx.broker.api import metadata as whereabouts
from streamsx.broker.groups.coordinator_events import ReplyBody
from streamsx.broker.net.client_connection import ServedRequest
from streamsx.broker.service import Service
from streamsx.protocol.error_codes import ErrorCode
from streamsx.protocol.frames import LARGE_BYTES
from streamsx.protocol.wire import Api

Handler = Callable[[Service, ServedRequest], ReplyBody | None]
"""The answer; None if `call.reply` will be called, or was."""


class Served(NamedTuple):
    """The oldest and the newest version, who answers, and the largest request."""

    oldest: int
    newest: int
    answer: Handler
    frame_bytes_max: int = 1 << 20
    """Of a request: as many names or partitions as a broker can have, and somewhat more."""


def answered(service: Service, call: ServedRequest) -> ReplyBody | None:
    """As the table says."""
    return SERVED[call.api].answer(service, call)


def frame_bytes_max(key: int) -> int:
    """Of a request with this key; what is not served is told so when it has come."""
    return SERVED[key].frame_bytes_max if key in SERVED else LARGE_BYTES


def of_groups(service: Service, call: ServedRequest) -> None:
    """By the coordinator: whoever waits for others is answered when they have come."""
    service.groups.ask(call)


FEATURES: ReplyBody = {
    "finalized_features_epoch": 0,
    "finalized_features": [
        {"name": "transaction.version", "max_version_level": 2, "min_version_level": 2}
    ],
}
"""KIP-584: clients may use the second version of transactions (KIP-890)."""


def versions(_: Service, call: ServedRequest) -> ReplyBody:
    """This table; a version of the request that we do not know is answered as version 0."""
    keys = [
        {"api_key": key, "min_version": served.oldest, "max_version": served.newest}
        for key, served in sorted(SERVED.items())
    ]
    code = ErrorCode.NONE if call.body else ErrorCode.UNSUPPORTED_VERSION
    return {"error_code": code, "api_keys": keys, **FEATURES}


SERVED: dict[int, Served] = {
    # One batch per partition, idempotent and transactional (KIP-98); since 12 it adds its partition
    # to its transaction (KIP-890), topic ids since 13 (KIP-516). Not: batches of magic 0 and 1;
    # error messages per record (KIP-467). As large as a connection may send.
    Api.PRODUCE: Served(3, 13, append_records.answer, sys.maxsize),
    # Long polls, topic ids since 13 (KIP-516), the one leader epoch (KIP-320). Not: sessions
    # (KIP-227: the answer says session 0, so that clients send everything each time), followers.
    Api.FETCH: Served(4, 18, fetch_records.answer),
    # The ends, by timestamp (KIP-79), the youngest record (KIP-734). Not: of tiered storage (-4,
    # -5, -6) what there is without tiers.
    Api.LIST_OFFSETS: Served(1, 11, partitions.list_offsets),
    # Topic ids since 10 (KIP-516). Not: authorized operations, racks.
    Api.METADATA: Served(0, 13, whereabouts.metadata, 256 << 10),
    # KIP-98's leader epochs are kept, KIP-516's topic ids are understood. Not: the retention times
    # of version 2 to 4, which Kafka ignores as well.
    Api.OFFSET_COMMIT: Served(2, 10, of_groups),
    # Several groups at once (KIP-709), topic ids (KIP-1074); what a transaction holds is unstable
    # (KIP-447).
    Api.OFFSET_FETCH: Served(1, 10, of_groups),
    # Several at once since 4 (KIP-699). Not: coordinators of share groups.
    Api.FIND_COORDINATOR: Served(0, 6, whereabouts.coordinator),
    # KIP-62 time-outs, KIP-345 static members, KIP-394 ids first, KIP-814 skips.
    Api.JOIN_GROUP: Served(0, 9, of_groups),
    # Of the classic protocol.
    Api.HEARTBEAT: Served(0, 4, of_groups),
    # Of several members, also in the name of others (KIP-345); KIP-800's reason is not kept.
    Api.LEAVE_GROUP: Served(0, 5, of_groups),
    # Of the classic protocol, with KIP-559's protocol names checked. A leader speaks for everybody.
    Api.SYNC_GROUP: Served(0, 5, of_groups, 16 << 20),
    # Of the classic protocol; an absent group is an error since 6 (KIP-1043).
    Api.DESCRIBE_GROUPS: Served(0, 6, of_groups),
    # By state (KIP-518) and type (KIP-848); those that hold only offsets too.
    Api.LIST_GROUPS: Served(0, 5, of_groups),
    # PLAIN and SCRAM. Not: tokens without a request around them (0), other mechanisms.
    Api.SASL_HANDSHAKE: Served(0, 1, authenticating.handshake, LARGE_BYTES),
    # A version that we do not know is answered as 0 (KIP-511). Of features (KIP-584) transactions.
    Api.API_VERSIONS: Served(0, 4, versions),
    # With configurations; what came of them since 5 (KIP-525). Not: replicas on other brokers.
    Api.CREATE_TOPICS: Served(2, 7, topic_admin.create_topics),
    # With their records and committed offsets; by id since 6 (KIP-516).
    Api.DELETE_TOPICS: Served(1, 6, topic_admin.delete_topics),
    # Everything before an offset (KIP-107); -1 stands for the end.
    Api.DELETE_RECORDS: Served(0, 2, partitions.delete_records),
    # A new id for an idempotent producer, the next epoch of a transactional id (KIP-98, KIP-360).
    # Not: transactions that others decide (KIP-939).
    Api.INIT_PRODUCER_ID: Served(0, 5, transacting.producer),
    # There is one leader in one epoch, so nothing was ever cut (KIP-320).
    Api.OFFSET_FOR_LEADER_EPOCH: Served(2, 4, partitions.epoch_ends),
    # Of producers. Not: several transactions at once, which brokers ask of each other (since 4).
    Api.ADD_PARTITIONS_TO_TXN: Served(0, 3, of_groups),
    # Groups that are committed with it.
    Api.ADD_OFFSETS_TO_TXN: Served(0, 4, of_groups),
    # With a new epoch since 5 (KIP-890).
    Api.END_TXN: Served(0, 5, transacting.producer),
    # By members (KIP-447) or nobody in particular; since 5 it adds its group (KIP-890).
    Api.TXN_OFFSET_COMMIT: Served(0, 5, of_groups),
    # Of topics, with types (KIP-226, KIP-569); of the broker, what it has of them. Not: synonyms,
    # documentation.
    Api.DESCRIBE_CONFIGS: Served(1, 4, configurations.describe),
    # KIP-152. Not: sessions that end (KIP-368), so that nobody must do it again.
    Api.SASL_AUTHENTICATE: Served(0, 2, authenticating.authenticate, LARGE_BYTES),
    # More of them for a topic (KIP-195).
    Api.CREATE_PARTITIONS: Served(0, 3, topic_admin.create_partitions),
    # With their offsets, if nobody is in them (KIP-229); each by itself.
    Api.DELETE_GROUPS: Served(0, 2, of_groups),
    # Of topics (KIP-339): set, delete, and for lists append and subtract. Not: of the broker.
    Api.INCREMENTAL_ALTER_CONFIGS: Served(0, 1, configurations.alter),
    # What a group has committed for partitions (KIP-496).
    Api.OFFSET_DELETE: Served(0, 0, of_groups),
    # One broker, which is also the controller (KIP-700, KIP-919).
    Api.DESCRIBE_CLUSTER: Served(0, 2, whereabouts.cluster),
    # KIP-848. Not: racks; expressions (1), which Kafka matches with RE2: they are refused.
    Api.CONSUMER_GROUP_HEARTBEAT: Served(0, 1, of_groups),
    # Of the consumer protocol. Not: authorized operations.
    Api.CONSUMER_GROUP_DESCRIBE: Served(0, 1, of_groups),
}
