"""client/topic_limits.py: records that a topic accepts, by its configs."""

import pytest

from streamsx.client.topic_limits import (
    AFTER,
    BEFORE,
    EITHER,
    FOREVER,
    HOUR_MS,
    POLICY,
    SIZE,
    TIME_BY,
    UNKNOWN,
    limits_of,
)
from streamsx.errors import RecordRefused
from streamsx.model import BATCH_BYTES_MAX

NOW = 1_700_000_000_000


def test_topic_configs_give_size_time_and_key_limits() -> None:
    found = limits_of({SIZE: "5", AFTER: "6", BEFORE: str(FOREVER), POLICY: "delete,compact"})
    assert (found.bytes_max, found.after_ms, found.before_ms, found.keyed) == (5, 6, FOREVER, True)


def test_older_broker_config_limits_time_in_both_directions() -> None:
    found = limits_of({EITHER: "1000", POLICY: "delete"})
    assert (found.before_ms, found.after_ms, found.keyed) == (1000, 1000, False)


def test_log_append_time_topic_accepts_any_timestamp() -> None:
    found = limits_of({AFTER: "1000", BEFORE: "1000", TIME_BY: "LogAppendTime"})
    assert (found.before_ms, found.after_ms) == (FOREVER, FOREVER)


def test_topic_without_known_configs_has_default_limits() -> None:
    assert limits_of({}) == UNKNOWN
    assert UNKNOWN.bytes_max == BATCH_BYTES_MAX
    UNKNOWN.check_key("t")
    UNKNOWN.check_time("t", NOW * 1000, NOW)


@pytest.mark.parametrize("after_s", [-1.0, 0.0, 1.0])
def test_timestamps_within_limits_are_accepted(after_s: float) -> None:
    found = limits_of({AFTER: "1000", BEFORE: "1000"})
    found.check_time("t", NOW + int(after_s * 1000), NOW)


@pytest.mark.parametrize(("after_ms", "named"), [(1001, AFTER), (-1001, BEFORE)])
def test_timestamps_outside_limits_are_refused_with_config_name(after_ms: int, named: str) -> None:
    found = limits_of({AFTER: "1000", BEFORE: "1000"})
    with pytest.raises(RecordRefused, match=f"topic t: its timestamp .* {named} of the topic is"):
        found.check_time("t", NOW + after_ms, NOW)


def test_changelog_timestamps_are_clamped_to_limits_in_order() -> None:
    found = limits_of({AFTER: "10000", BEFORE: "10000"})
    times = [found.within(NOW + each, NOW) for each in (-99_000, -500, 0, 500, 99_000, 999_000)]
    assert times == [NOW - 9000, NOW - 500, NOW, NOW + 500, NOW + 9000, NOW + 9000]
    assert all(abs(time - NOW) < 10_000 for time in times)


def test_changelog_timestamp_without_known_limit_is_at_most_an_hour_ahead() -> None:
    assert NOW < UNKNOWN.within(NOW * 1000, NOW) < NOW + HOUR_MS
    assert UNKNOWN.within(0, NOW) == 0
