"""membership/claims.py: who has what, by the algebra."""

from hypothesis import given
from hypothesis import strategies as st

from streamsx.membership.claims import Claims
from streamsx.model import TopicPartition

P, Q, R = (TopicPartition("orders", n) for n in range(3))


def claims(*owned: TopicPartition, generation: int = 1) -> Claims:
    made = Claims()
    made.apply(set(owned), generation)
    return made


def test_two_and_three_after_one_and_two_takes_three_and_asks_for_one() -> None:
    mine = claims(P, Q)
    assert mine.apply({Q, R}, 2) == (R,)
    assert mine.owned == {P, Q, R}
    assert mine.revoke(number=1, until=60.0) == (P,)


def test_a_partition_keeps_the_generation_it_came_in() -> None:
    mine = claims(P)
    mine.apply({P, Q}, 2)
    assert mine.since == {P: 1, Q: 2}


def test_what_is_asked_for_is_asked_for_once() -> None:
    mine = claims(P, Q)
    mine.apply({Q}, 2)
    mine.revoke(1, 60.0)
    mine.apply(set(), 3)
    assert mine.revoke(2, 70.0) == (Q,)


def test_a_release_gives_up_what_was_asked_for_and_nothing_else() -> None:
    mine = claims(P, Q)
    mine.apply({Q}, 2)
    mine.revoke(1, 60.0)
    assert mine.release({P, Q}, 1) == ((P,), ())
    assert mine.owned == {Q}


def test_what_was_given_back_before_its_release_was_never_away() -> None:
    mine = claims(P)
    mine.apply(set(), 2)
    mine.revoke(1, 60.0)
    mine.apply({P}, 3)
    assert mine.release({P}, 1) == ((), (P,))
    assert mine.since == {P: 1}
    assert not mine.revoking


def test_an_answer_to_an_earlier_revoke_is_none_to_this_one() -> None:
    mine = claims(P)
    mine.apply(set(), 2)
    mine.revoke(1, 60.0)
    mine.drop({P})
    mine.apply({P}, 4)
    mine.apply(set(), 5)
    mine.revoke(2, 90.0)
    assert mine.release({P}, 1) == ((), ())
    assert mine.owned == {P}


def test_late_is_what_should_be_released_by_now() -> None:
    mine = claims(P, Q)
    mine.apply({Q}, 2)
    mine.revoke(1, 60.0)
    mine.apply(set(), 3)
    mine.revoke(2, 70.0)
    assert mine.late(59.9) == set()
    assert mine.late(60.0) == {P}


some = st.frozensets(st.sampled_from([P, Q, R]))
steps = st.lists(
    st.one_of(
        st.tuples(st.just("apply"), some, st.none()),
        st.tuples(st.just("release"), some, st.integers(0, 8)),
        st.tuples(st.just("drop"), some, st.none()),
        st.tuples(st.just("forget"), some, st.none()),
    ),
    max_size=20,
)


@given(steps)
def test_the_sets_lie_within_each_other_whatever_happens(
    script: list[tuple[str, frozenset[TopicPartition], int | None]],
) -> None:
    mine = Claims()
    for generation, (what, tps, number) in enumerate(script):
        owned = mine.owned
        match what:
            case "apply":
                assert set(mine.apply(tps, generation)) == tps - owned
            case "release":
                gone, back = mine.release(tps, number or 0)
                assert mine.owned == owned.difference(gone)
                assert set(back) <= mine.owned - mine.revoking.keys()
            case "drop":
                assert set(mine.drop(tps)) == owned & tps
            case _:
                mine.forget()
        mine.revoke(generation, until=60.0)
        assert mine.to_be_revoked <= mine.revoking.keys() <= mine.owned
        assert mine.since.keys() == mine.owned
