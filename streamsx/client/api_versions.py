"""Versions of requests: ours, a broker's, and the choice for each request. Pure.

Each request goes out in the newest version that its caller allows, the broker speaks and our codec
knows. Most callers allow every version up to `NEWEST`. A caller may allow another range, older or
newer, for one request: the same connection then carries both.

Not here: how a connection learns the broker's versions (`connection`), and the features that a
broker has finalized (`transactional_producer`).
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from streamsx.protocol import wire
from streamsx.protocol.wire import Api


class VersionRange(NamedTuple):
    """Versions of a request that a caller allows, both ends included."""

    oldest: int
    newest: int

    def __str__(self) -> str:
        return f"{self.oldest} to {self.newest}"


NEWEST: Final[dict[int, int]] = {
    Api.PRODUCE: 8,
    Api.FETCH: 11,
    Api.LIST_OFFSETS: 5,
    Api.METADATA: 10,
    Api.OFFSET_COMMIT: 7,
    Api.OFFSET_FETCH: 7,
    Api.FIND_COORDINATOR: 1,
    Api.JOIN_GROUP: 5,
    Api.HEARTBEAT: 3,
    Api.LEAVE_GROUP: 3,
    Api.SYNC_GROUP: 3,
    Api.DESCRIBE_GROUPS: 4,
    Api.LIST_GROUPS: 4,
    Api.API_VERSIONS: 3,
    Api.CREATE_TOPICS: 4,
    Api.DELETE_TOPICS: 5,
    Api.DELETE_RECORDS: 1,
    Api.INIT_PRODUCER_ID: 4,
    Api.ADD_PARTITIONS_TO_TXN: 3,
    Api.ADD_OFFSETS_TO_TXN: 3,
    Api.END_TXN: 3,
    Api.TXN_OFFSET_COMMIT: 3,
    Api.DESCRIBE_CONFIGS: 2,
    Api.CONSUMER_GROUP_DESCRIBE: 1,
}
"""Newest version of each request that callers allow by default.

These versions name topics by name, and ask for one group per request. Metadata has topic ids since
version 10.
"""
FETCH_BY_ID: Final = VersionRange(13, 13)
"""Versions of Fetch that name topics by id, for callers that know the ids."""


def default_versions(api: int) -> VersionRange:
    """Return the versions of a request for callers that ask for no others."""
    return VersionRange(wire.versions(api)[0], NEWEST[api])


class NodeApiVersions:
    """Versions of each request that one broker speaks."""

    def __init__(self, ranges: Mapping[int, tuple[int, int]]) -> None:
        self._ranges = ranges

    def spoken(self, api: int) -> VersionRange:
        """Return the broker's versions of a request; 0 to -1 if the broker does not know it."""
        return VersionRange(*self._ranges.get(api, (0, -1)))

    def latest_usable(self, api: int, allowed: VersionRange) -> int | None:
        """Return the newest allowed version that both sides speak; None if there is none."""
        ranges = (allowed, self.spoken(api), wire.versions(api))
        newest = min(high for _, high in ranges)
        return newest if newest >= max(low for low, _ in ranges) else None
