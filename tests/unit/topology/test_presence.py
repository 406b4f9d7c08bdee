"""topology/presence.py: topics that are gone or replaced, and the state that depends on them."""

import pytest

from streamsx.errors import ChangelogLost
from streamsx.topology.presence import NO_ID, Absence, Presence, refuse_lost

OLD, NEW = b"a" * 16, b"b" * 16
TOPIC = "shop-totals-changelog"


def look(noted: bytes, found: bytes | None) -> None:
    refuse_lost("totals", TOPIC, noted, found, "w1/shop/stores/totals")


@pytest.mark.parametrize(
    ("noted", "found"),
    [(OLD, OLD), (NO_ID, NEW), (OLD, NO_ID), (NO_ID, NO_ID)],
    ids=["the same", "nobody had noted it", "a broker without ids", "never any id"],
)
def test_state_is_accepted_with_the_noted_changelog(noted: bytes, found: bytes) -> None:
    look(noted, found)


@pytest.mark.parametrize("noted", [OLD, NO_ID])
def test_missing_changelog_of_existing_state_is_refused_with_remedies(noted: bytes) -> None:
    with pytest.raises(ChangelogLost) as caught:
        look(noted, None)
    says = str(caught.value)
    assert says.startswith(
        f"changelog is gone: topic {TOPIC}: the state of table totals in w1/shop"
    )
    assert "raise the app's version" in says
    assert "move that folder away" in says
    assert "address of the brokers" in says


def test_state_of_a_recreated_changelog_is_refused() -> None:
    with pytest.raises(
        ChangelogLost, match="deleted and created again: topic shop-totals-changelog: "
    ):
        look(OLD, NEW)


def test_topic_absent_for_a_while_is_reported_gone_at_intervals() -> None:
    presence = Presence({"a": OLD, "b": OLD})
    told = {now: presence.heard(now, {"a": None, "b": OLD}) for now in map(float, range(5, 80, 5))}
    assert {now for now, effects in told.items() if effects} == {15.0, 45.0, 75.0}
    assert told[15.0] == [Absence("a", anew=False)]


def test_topic_absent_for_a_moment_is_not_reported() -> None:
    presence = Presence({"a": OLD})
    found = [None, OLD, None, None, OLD]
    assert [presence.heard(5.0 * n, {"a": each}) for n, each in enumerate(found)] == [[]] * 5


def test_recreated_topic_is_reported_at_once_and_only_once() -> None:
    presence = Presence({"a": OLD, "b": None, "c": NO_ID})
    found = {"a": NEW, "b": NEW, "c": NEW}
    assert presence.heard(0.0, found) == [Absence("a", anew=True)]
    assert presence.heard(5.0, found) == []
    assert presence.heard(10.0, {"b": OLD, "d": OLD}) == [Absence("b", anew=True)]
