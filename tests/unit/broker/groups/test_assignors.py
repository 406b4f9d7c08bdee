"""Assignors of the broker: balanced, sticky, and each partition to a member that reads
its topic.
"""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamsx.broker.groups.assignors import ASSIGNORS, Target, all_of, ranges, uniform

T, U, V = b"t" * 16, b"u" * 16, b"v" * 16
SUBSCRIBED = st.dictionaries(
    st.sampled_from("abcdef"), st.frozensets(st.sampled_from([T, U, V])), max_size=6
)
PARTITIONS = st.fixed_dictionaries({t: st.integers(0, 7) for t in (T, U, V)})


@pytest.mark.parametrize("name", ASSIGNORS)
@given(SUBSCRIBED, PARTITIONS)
def test_assignor_gives_each_partition_to_one_subscribed_member(
    name: str, subscribed: dict[str, frozenset[bytes]], partitions: dict[bytes, int]
) -> None:
    target = ASSIGNORS[name](subscribed, partitions, {})
    assert target.keys() == subscribed.keys()
    given_out = Counter(place for places in target.values() for place in places)
    assert given_out == Counter(all_of(subscribed, partitions))
    assert all(t in subscribed[m] for m, places in target.items() for t, _ in places)


@given(SUBSCRIBED, PARTITIONS, PARTITIONS, st.data())
def test_uniform_assignor_is_balanced_and_stable(
    subscribed: dict[str, frozenset[bytes]], old: dict[bytes, int], new: dict[bytes, int],
    data: st.DataObject,
) -> None:  # fmt: skip
    before = uniform(subscribed, old, {})
    if subscribed:
        subscribed = dict(subscribed)
        del subscribed[data.draw(st.sampled_from(sorted(subscribed)))]
    after = uniform(subscribed, new, before)
    for giver, places in after.items():
        for taker, topics in subscribed.items():
            could = any(topic in topics for topic, _ in places)
            assert not could or len(places) - len(after[taker]) < 2, (giver, taker)
    assert uniform(subscribed, new, after) == after


def test_uniform_assignor_moves_only_share_of_new_member() -> None:
    everybody = {f"m{i}": frozenset({T}) for i in range(4)}
    before = uniform(everybody, {T: 40}, {})
    after = uniform(everybody | {"new": frozenset({T})}, {T: 40}, before)
    assert {len(places) for places in after.values()} == {8}
    assert all(after[m] < before[m] for m in everybody)


def test_range_assignor_coassigns_equal_topics() -> None:
    target: Target = ranges(dict.fromkeys("ab", frozenset({T, U})), {T: 3, U: 3}, {})
    assert target["a"] == {(T, 0), (T, 1), (U, 0), (U, 1)}
