"""Table of the supported requests: API key, versions, handler and size limit.

The oldest version is the oldest of Kafka 4, or an older one where clients request it. The comment
of each entry lists the features beyond its first version, and after "Not:" the features of Kafka
that are missing.
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
"""Handler of a request: returns the response, or None if `call.reply` was called or will
be called.
"""


class Served(NamedTuple):
    """Versions, handler and size limit of one request."""

    oldest: int
    newest: int
    answer: Handler
    frame_bytes_max: int = 1 << 20
    """Largest request in bytes: as many names or partitions as a broker can have, and
    somewhat more.
    """


def answered(service: Service, call: ServedRequest) -> ReplyBody | None:
    """Answer a call with the handler in the table."""
    return SERVED[call.api].answer(service, call)


def frame_bytes_max(key: int) -> int:
    """Return the largest size of a request with this key.

    An unknown request gets a small limit, and its refusal once it has arrived.
    """
    return SERVED[key].frame_bytes_max if key in SERVED else LARGE_BYTES


def of_groups(service: Service, call: ServedRequest) -> None:
    """Pass the call to the group coordinator, which replies at once or when the group's other
    members arrive.
    """
    service.groups.ask(call)


FEATURES: ReplyBody = {
    "finalized_features_epoch": 0,
    "finalized_features": [
        {"name": "transaction.version", "max_version_level": 2, "min_version_level": 2}
    ],
}
"""Features (KIP-584): clients may use version 2 of transactions (KIP-890)."""


def versions(_: Service, call: ServedRequest) -> ReplyBody:
    """Return the table; an unknown version of the request is answered as version 0."""
    keys = [
        {"api_key": key, "min_version": served.oldest, "max_version": served.newest}
        for key, served in sorted(SERVED.items())
    ]
    code = ErrorCode.NONE if call.body else ErrorCode.UNSUPPORTED_VERSION
    return {"error_code": code, "api_keys": keys, **FEATURES}


SERVED: dict[int, Served] = {
    # One batch per partition, idempotent and transactional (KIP-98); since 12 a batch adds its
    # partition to its transaction (KIP-890); topic ids since 13 (KIP-516). Not: batches of magic 0
    # and 1; error messages per record (KIP-467). Only the connection limits the size.
    Api.PRODUCE: Served(3, 13, append_records.answer, sys.maxsize),
    # Long polls, topic ids since 13 (KIP-516), a single leader epoch (KIP-320). Not: followers, and
    # sessions (KIP-227: the response has session 0, so clients send full requests each time).
    Api.FETCH: Served(4, 18, fetch_records.answer),
    # Start and end, by timestamp (KIP-79), largest timestamp (KIP-734). Not: tiered storage; the
    # offsets of tiers (-4, -5, -6) are answered as of a log without tiers.
    Api.LIST_OFFSETS: Served(1, 11, partitions.list_offsets),
    # Topic ids since 10 (KIP-516). Not: authorized operations, racks.
    Api.METADATA: Served(0, 13, whereabouts.metadata, 256 << 10),
    # Leader epochs are kept (KIP-320), topic ids are understood (KIP-516). Not: the retention times
    # of versions 2 to 4, which Kafka ignores as well.
    Api.OFFSET_COMMIT: Served(2, 10, of_groups),
    # Several groups at once (KIP-709), topic ids (KIP-1074); offsets in an open transaction are
    # reported as unstable (KIP-447).
    Api.OFFSET_FETCH: Served(1, 10, of_groups),
    # Several keys at once since 4 (KIP-699). Not: coordinators of share groups.
    Api.FIND_COORDINATOR: Served(0, 6, whereabouts.coordinator),
    # Rebalance time-outs (KIP-62), static members (KIP-345), member ids before the join (KIP-394),
    # skipped assignments (KIP-814).
    Api.JOIN_GROUP: Served(0, 9, of_groups),
    # Classic protocol.
    Api.HEARTBEAT: Served(0, 4, of_groups),
    # Several members, also on behalf of others (KIP-345). Not: the reason (KIP-800) is not kept.
    Api.LEAVE_GROUP: Served(0, 5, of_groups),
    # Classic protocol; protocol names are checked (KIP-559). A leader sends the assignments of all
    # members.
    Api.SYNC_GROUP: Served(0, 5, of_groups, 16 << 20),
    # Classic protocol; an unknown group is an error since 6 (KIP-1043).
    Api.DESCRIBE_GROUPS: Served(0, 6, of_groups),
    # Filters by state (KIP-518) and type (KIP-848); includes groups that hold only offsets.
    Api.LIST_GROUPS: Served(0, 5, of_groups),
    # PLAIN and SCRAM. Not: tokens without a request frame (version 0), other mechanisms.
    Api.SASL_HANDSHAKE: Served(0, 1, authenticating.handshake, LARGE_BYTES),
    # An unknown version is answered as 0 (KIP-511). Features (KIP-584): transactions only.
    Api.API_VERSIONS: Served(0, 4, versions),
    # With configurations, which are returned since 5 (KIP-525). Not: replicas on other brokers.
    Api.CREATE_TOPICS: Served(2, 7, topic_admin.create_topics),
    # Deletes records and committed offsets too; by id since 6 (KIP-516).
    Api.DELETE_TOPICS: Served(1, 6, topic_admin.delete_topics),
    # Deletes everything before an offset (KIP-107); -1 stands for the end.
    Api.DELETE_RECORDS: Served(0, 2, partitions.delete_records),
    # A new id for an idempotent producer, the next epoch of a transactional id (KIP-98, KIP-360).
    # Not: two-phase commit with an external coordinator (KIP-939).
    Api.INIT_PRODUCER_ID: Served(0, 5, transacting.producer),
    # There is one leader in one epoch, so no log was ever truncated (KIP-320).
    Api.OFFSET_FOR_LEADER_EPOCH: Served(2, 4, partitions.epoch_ends),
    # From producers. Not: several transactions at once, which brokers send each other (since 4).
    Api.ADD_PARTITIONS_TO_TXN: Served(0, 3, of_groups),
    # Adds groups whose offsets are committed with the transaction.
    Api.ADD_OFFSETS_TO_TXN: Served(0, 4, of_groups),
    # Returns a new epoch since 5 (KIP-890).
    Api.END_TXN: Served(0, 5, transacting.producer),
    # With or without a member id (KIP-447); since 5 the request adds its group to the transaction
    # (KIP-890).
    Api.TXN_OFFSET_COMMIT: Served(0, 5, of_groups),
    # All configurations of topics, with types (KIP-226, KIP-569); of the broker, those that it has.
    # Not: synonyms, documentation.
    Api.DESCRIBE_CONFIGS: Served(1, 4, configurations.describe),
    # KIP-152. Not: session lifetimes (KIP-368), so no client must authenticate again.
    Api.SASL_AUTHENTICATE: Served(0, 2, authenticating.authenticate, LARGE_BYTES),
    # Adds partitions to topics (KIP-195).
    Api.CREATE_PARTITIONS: Served(0, 3, topic_admin.create_partitions),
    # Deletes empty groups and their offsets (KIP-229); each group for itself.
    Api.DELETE_GROUPS: Served(0, 2, of_groups),
    # Configurations of topics (KIP-339): set, delete, and for lists append and subtract. Not: of
    # the broker.
    Api.INCREMENTAL_ALTER_CONFIGS: Served(0, 1, configurations.alter),
    # Deletes a group's committed offsets of partitions (KIP-496).
    Api.OFFSET_DELETE: Served(0, 0, of_groups),
    # A single broker, which is also the controller (KIP-700, KIP-919).
    Api.DESCRIBE_CLUSTER: Served(0, 2, whereabouts.cluster),
    # KIP-848. Not: racks; regular expressions (version 1), which Kafka matches with RE2, are
    # refused.
    Api.CONSUMER_GROUP_HEARTBEAT: Served(0, 1, of_groups),
    # Groups of the consumer protocol. Not: authorized operations.
    Api.CONSUMER_GROUP_DESCRIBE: Served(0, 1, of_groups),
}
