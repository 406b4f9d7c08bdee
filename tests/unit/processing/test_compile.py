"""processing/compile.py: a tree of operators as one loop."""

from dataclasses import replace
from typing import Any

import pytest

from streamsx.operators.forward import forward
from streamsx.operators.operator import Code, Operator
from streamsx.operators.rekey import rekey as rekey_by
from streamsx.processing.compile import Wiring, compiled, source_text
from streamsx.topology.nodes import Branch, Source
from tests.support.codecs import coded

Sent = list[tuple[str, bytes | None, bytes | None, int]]


def rekey(place: int, *then: Operator) -> Operator:
    """Return an operator that rekeys by the nth letter of the value."""
    return replace(rekey_by(lambda value: value[place], str.encode), then=then)


def wiring(send_to: Any) -> Wiring:
    return Wiring(send_to, {}, {}, {}, {}, {})


def decode(raw: bytes | None) -> Any:
    return str(raw or b"", "utf8")


TREE = Source(
    "words",
    coded(decode),
    coded(decode),
    (
        Branch("first", rekey(0, forward("a"), rekey(1, forward("b")), forward("c"))),
        Branch("plain", forward("d")),
    ),
)


def ran(source: Source, *words: bytes) -> tuple[Sent, list[tuple[int, str, int | None]]]:
    """Run the loop; return sent records and failures."""
    sent: Sent = []
    failures: list[tuple[int, str, int | None]] = []

    def send_to(topic: str) -> Any:
        return lambda key, value, at, _headers: sent.append((topic, key, value, at))

    loop = compiled(source, 0, wiring(send_to)).run
    records = [(b"k", word, 70 + n, None) for n, word in enumerate(words)]

    def failed(
        index: int,
        error: Exception,
        branch: int | None,
        *,
        result: bool = False,
        again: bool = False,
    ) -> bool:
        assert not result
        assert again is (branch is not None)
        failures.append((index, type(error).__name__, branch))
        return False

    loop(records, failed)
    return sent, failures


def test_key_applies_only_below_the_rekeying_operator() -> None:
    assert ran(TREE, b"xy") == (
        [("a", b"x", b"xy", 70), ("b", b"y", b"xy", 70), ("c", b"x", b"xy", 70),
         ("d", b"k", b"xy", 70)],
        [],
    )  # fmt: skip


def test_failed_branch_skips_one_record_and_other_branches_go_on() -> None:
    sent, failures = ran(TREE, b"x", b"xy")
    assert [(topic, at) for topic, _, _, at in sent] == [
        ("a", 70), ("d", 70), ("a", 71), ("b", 71), ("c", 71), ("d", 71),
    ]  # fmt: skip
    assert failures == [(0, "IndexError", 0)]


def test_undecodable_value_fails_before_any_branch() -> None:
    sent, failures = ran(TREE, b"\xff", b"xy")
    assert {at for _, _, _, at in sent} == {71}
    assert failures == [(0, "UnicodeDecodeError", None)]


def test_error_raised_by_failure_handler_ends_the_loop() -> None:
    def fails(_index: int, error: Exception, _branch: int | None, **_how: bool) -> bool:
        raise LookupError from error

    loop = compiled(TREE, 0, wiring(lambda _topic: print)).run
    with pytest.raises(LookupError):
        loop([(b"k", b"x", 0, None)], fails)


def test_traceback_shows_the_line_of_the_generated_loop() -> None:
    failures: list[Exception] = []
    loop = compiled(TREE, 3, wiring(lambda _topic: print)).run

    def failed(_index: int, error: Exception, _branch: int | None, **_how: bool) -> bool:
        failures.append(error)
        return False

    loop([(b"k", b"", 0, None)], failed)
    frame = failures[0].__traceback__
    assert frame is not None
    assert frame.tb_frame.f_code.co_filename == "<sub-topology 3, words>"
    assert source_text(TREE).splitlines()[frame.tb_lineno - 1].strip().startswith("key_0 = ")


def test_unused_value_is_not_decoded() -> None:
    def decode_nothing(raw: bytes | None) -> Any:
        raise AssertionError(raw)

    text = Code("{send}({key}, {raw}, {timestamp}, {headers})")
    source = replace(
        TREE,
        values=coded(decode_nothing),
        branches=(Branch("raw", Operator("raw", text, topic="a")),),
    )
    assert ran(source, b"x") == ([("a", b"k", b"x", 70)], [])


def test_operators_below_stand_inside_of_the_block_and_a_key_is_decoded_once_below_it() -> None:
    doubled = Code("for {new_value} in ({value}, {decoded}):\n    {then}", makes=("value",))
    text = Code("{send}({key}, {value}, {timestamp}, {decoded})")
    tree = replace(
        Operator("doubled", doubled),
        then=(Operator("one", text, topic="a"), Operator("two", text, topic="b")),
    )
    source = replace(TREE, branches=(Branch("x", tree),))
    expected: list[Any] = [
        ("a", b"k", "v", 70), ("b", b"k", "v", 70), ("a", b"k", "k", 70), ("b", b"k", "k", 70),
    ]  # fmt: skip
    assert ran(source, b"v")[0] == expected
    assert source_text(source).count("branch_key_0(") == 1
