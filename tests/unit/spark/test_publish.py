"""Rows of a batch in changelogs: the newest of each key, in order."""

import pyarrow as pa
import pytest

from streamsx.app.lookup import app_named
from streamsx.broker.api.served import SERVED
from streamsx.broker.groups.coordinator_events import ReplyBody
from streamsx.broker.net.client_connection import ServedRequest
from streamsx.errors import UsageError
from streamsx.model import TopicPartition
from streamsx.protocol.error_codes import ErrorCode
from streamsx.protocol.wire import Api
from streamsx.spark.plan import LOG
from streamsx.spark.publish import by_place, newest, pieces, require_transactions
from streamsx.spark.rows import batch_of
from streamsx.testing import Broker

Sent = tuple[str, int, int, bytes, bytes | None]
"""Topic, partition, offset, key, value."""


def rows(*sent: Sent) -> pa.RecordBatch:
    columns = [(LOG, *each[:3], each[2], *each[3:], *[None] * 3) for each in sent]
    return batch_of(list(zip(*columns, strict=True)))


def test_newest_record_per_key_is_kept_in_send_order() -> None:
    log = pa.Table.from_batches(
        [
            rows(("t", 0, 1, b"a", b"1"), ("t", 1, 9, b"a", b"other"), ("u", 0, 8, b"a", b"x")),
            rows(("t", 0, 4, b"a", None), ("t", 0, 3, b"b", b"2"), ("t", 0, 2, b"a", b"3")),
        ]
    )
    found = {tp: each["value"].to_pylist() for tp, each in by_place(newest(log))}
    assert found == {
        TopicPartition("t", 0): [b"2", None],
        TopicPartition("t", 1): [b"other"],
        TopicPartition("u", 0): [b"x"],
    }


def test_long_log_is_split_into_pieces() -> None:
    batches = [rows(("t", 0, at, b"%d" % at, b"v")) for at in range(5)]
    found = list(pieces(batches, batches[0].nbytes * 2))
    assert [len(each) for each in found] == [2, 2, 1]
    assert [at for each in found for at in each["offset"].to_pylist()] == [*range(5)]
    assert list(pieces([])) == []


def told(call: ServedRequest, answer: ReplyBody) -> ReplyBody:
    return {
        **answer,
        "coordinators": [{"key": key, **answer} for key in call.body.coordinator_keys],
    }


def test_broker_without_transactions_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker answers as ours did when it had no transactions."""
    none = {"error_code": ErrorCode.INVALID_REQUEST, "node_id": -1}
    served = SERVED[Api.FIND_COORDINATOR]._replace(answer=lambda _, call: told(call, none))
    monkeypatch.setitem(SERVED, Api.FIND_COORDINATOR, served)
    with Broker() as broker:
        app_named("streamsx.examples.wordcount").override(bootstrap=broker.bootstrap)
        with pytest.raises(UsageError, match=r"brokers without transactions: use another$"):
            require_transactions("streamsx.examples.wordcount", "use another")
