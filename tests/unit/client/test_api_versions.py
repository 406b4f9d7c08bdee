"""Version of a request, chosen from ours, the caller's and the broker's."""

import pytest

from streamsx.client.api_versions import (
    FETCH_BY_ID,
    NEWEST,
    NodeApiVersions,
    VersionRange,
    default_versions,
)
from streamsx.protocol import wire
from streamsx.protocol.wire import Api

KNOWN_NEWEST = wire.versions(Api.PRODUCE)[1]
BROKER = NodeApiVersions({Api.PRODUCE: (3, 99), Api.HEARTBEAT: (0, 1)})


@pytest.mark.parametrize(
    ("allowed", "chosen"),
    [
        (VersionRange(3, 8), 8),
        (VersionRange(3, 12), 12),
        (VersionRange(9, 9), 9),
        (VersionRange(0, 5), 5),
        (VersionRange(3, 99), KNOWN_NEWEST),
        (VersionRange(0, 2), None),
        (VersionRange(99, 99), None),
    ],
    ids=str,
)
def test_newest_allowed_version_that_both_sides_speak_is_chosen(
    allowed: VersionRange, chosen: int | None
) -> None:
    assert BROKER.latest_usable(Api.PRODUCE, allowed) == chosen


def test_older_broker_bounds_the_version() -> None:
    assert BROKER.latest_usable(Api.HEARTBEAT, default_versions(Api.HEARTBEAT)) == 1
    assert BROKER.latest_usable(Api.HEARTBEAT, VersionRange(2, 4)) is None


def test_request_unknown_to_the_broker_has_no_version() -> None:
    assert BROKER.latest_usable(Api.FETCH, FETCH_BY_ID) is None
    assert BROKER.latest_usable(Api.FETCH, default_versions(Api.FETCH)) is None


@pytest.mark.parametrize("api", NEWEST)
def test_default_versions_have_schemas(api: int) -> None:
    low, high = wire.versions(api)
    assert low <= default_versions(api).oldest <= default_versions(api).newest <= high
