"""Mistakes that are reported together, each with its place."""

import pytest

from streamsx.errors import (
    NameClash,
    SettingError,
    SeveralMistakes,
    TopologyError,
    UsageError,
)
from streamsx.mistakes import Mistakes, all_of, at


def refuse(error: UsageError) -> None:
    raise error


def test_only_mistake_is_raised_as_it_is() -> None:
    mistakes = Mistakes()
    with mistakes.noted("shop.py:3"):
        refuse(NameClash("two of one name: rename one"))
    with pytest.raises(NameClash, match=r"^two of one name: rename one \(shop.py:3\)$"):
        mistakes.check()


def test_several_mistakes_are_one_error_with_a_line_each() -> None:
    mistakes = Mistakes()
    for _ in range(2):
        mistakes.add(SettingError("first"))
    with mistakes.noted():
        refuse(TopologyError("second"))
    with pytest.raises(TopologyError) as told:
        mistakes.check()
    assert str(told.value) == "first\nsecond"
    assert [type(each) for each in all_of(told.value)] == [SettingError, TopologyError]


def test_noted_several_count_one_by_one() -> None:
    mistakes = Mistakes()
    mistakes.add(SeveralMistakes([UsageError("a"), UsageError("b (x.py:1)")]), "shop.py:3")
    with pytest.raises(SeveralMistakes) as told:
        mistakes.check()
    assert str(told.value) == "a (shop.py:3)\nb (x.py:1)"


def test_no_mistake_raises_nothing() -> None:
    Mistakes().check()


@pytest.mark.parametrize(
    ("text", "made_at", "placed"),
    [
        ("a: b", "shop.py:3", "a: b (shop.py:3)"),
        ("a (shop.py:7): b", "shop.py:3", "a (shop.py:7): b"),
        ("a (<stdin>:7): b", "shop.py:3", "a (<stdin>:7): b"),
        ("broker localhost:9092: b", "shop.py:3", "broker localhost:9092: b (shop.py:3)"),
        ("a: b", "", "a: b"),
    ],
)
def test_place_is_given_once(text: str, made_at: str, placed: str) -> None:
    found = at(SettingError(text), made_at)
    assert (type(found), str(found)) == (SettingError, placed)
