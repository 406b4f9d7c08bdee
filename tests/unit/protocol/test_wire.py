"""Frames: written once for all versions, refused when malformed."""

import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import pytest

from streamsx.protocol import wire
from streamsx.protocol.compiler import Malformed, get_varint, put_varint
from streamsx.protocol.wire import Api

HEARTBEAT = {"group_id": "g", "generation_id": 3, "member_id": "m", "group_instance_id": None}


def test_request_decoded_as_encoded() -> None:
    frame = wire.request_encoder(Api.HEARTBEAT, 3)(7, HEARTBEAT, "me")

    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    assert wire.request_head(frame[4:]) == (Api.HEARTBEAT, 3, 7)
    head, body = wire.request_decoder(Api.HEARTBEAT, 3)(frame[4:])
    assert head.client_id == "me"
    assert (body.group_id, body.generation_id, body.member_id) == ("g", 3, "m")


def test_response_decoded_as_encoded() -> None:
    frame = wire.response_encoder(Api.LIST_GROUPS, 4)(9, {"groups": [{"group_id": "g"}]})

    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    head, reply = wire.response_decoder(Api.LIST_GROUPS, 4)(frame[4:])
    assert head.correlation_id == 9
    assert [(group.group_id, group.group_state) for group in reply.groups] == [("g", "")]


def test_one_request_body_serves_all_versions() -> None:
    for version in range(wire.versions(Api.HEARTBEAT)[1] + 1):
        frame = wire.request_encoder(Api.HEARTBEAT, version)(1, HEARTBEAT)
        head, body = wire.request_decoder(Api.HEARTBEAT, version)(frame[4:])
        assert (head.client_id, body.member_id, body.group_instance_id) == (None, "m", None)


def test_field_missing_in_old_version_has_default() -> None:
    old = wire.response_encoder(Api.FETCH, 4)
    partition = {"partition_index": 1, "records": b"abc"}
    frame = old(1, {"responses": [{"topic": "t", "partitions": [partition]}]})

    read = wire.response_decoder(Api.FETCH, 4)(frame[4:])[1].responses[0]
    assert (read.topic, read.topic_id) == ("t", bytes(16))
    assert read.partitions[0].log_start_offset == -1
    assert read.partitions[0].current_leader.leader_epoch == -1


def test_omitted_timeout_has_default_in_milliseconds() -> None:
    frame = wire.request_encoder(Api.CREATE_TOPICS, 2)(1, {"topics": []})
    assert wire.request_decoder(Api.CREATE_TOPICS, 2)(frame[4:])[1].timeout == 60_000

    frame = wire.request_encoder(Api.JOIN_GROUP, 0)(1, {"group_id": "g", "session_timeout": 9})
    joins = wire.request_decoder(Api.JOIN_GROUP, 0)(frame[4:])[1]
    assert (joins.session_timeout, joins.rebalance_timeout) == (9, -1)


def test_null_written_as_empty_where_version_lacks_null() -> None:
    body = {"error_code": 0, "protocol_name": None, "members": None}
    frame = wire.response_encoder(Api.JOIN_GROUP, 5)(1, body)
    reply = wire.response_decoder(Api.JOIN_GROUP, 5)(frame[4:])[1]
    assert (reply.protocol_name, reply.members) == ("", [])


def test_decoded_records_are_view_of_frame() -> None:
    body = {"topic_data": [{"name": "t", "partition_data": [{"index": 0, "records": b"xyz"}]}]}
    frame = wire.request_encoder(Api.PRODUCE, 8)(1, body, "me")
    _, request = wire.request_decoder(Api.PRODUCE, 8)(memoryview(frame)[4:])
    assert request.topic_data[0].partition_data[0].records.obj is frame


def test_api_versions_response_keeps_oldest_header_in_all_versions() -> None:
    for version in range(5):
        frame = wire.response_encoder(Api.API_VERSIONS, version)(5, {"error_code": 35})
        assert frame[8:10] == b"\0\x23"
        assert wire.response_decoder(Api.API_VERSIONS, version)(frame[4:])[1].error_code == 35


def test_tagged_fields_of_response_header_are_skipped() -> None:
    frame = wire.response_encoder(Api.HEARTBEAT, 4)(1, {"error_code": 27})
    tagged = frame[4:8] + b"\x01\x05\x02ab" + frame[9:]
    assert wire.response_decoder(Api.HEARTBEAT, 4)(tagged)[1].error_code == 27


def test_unknown_tagged_fields_of_body_are_skipped() -> None:
    frame = wire.response_encoder(Api.HEARTBEAT, 4)(1, {"error_code": 27})
    tagged = frame[4:-1] + b"\x02\x05\x02ab\x80\x01\x00"
    assert wire.response_decoder(Api.HEARTBEAT, 4)(tagged)[1].error_code == 27


def offset_fetch(tail: bytes) -> bytes:
    """Return an OffsetFetch v1 request of group `g` whose topics are these bytes."""
    return bytes.fromhex("0009 0001 00000001 ffff 0001 67") + tail


@pytest.mark.parametrize(
    ("tail", "complaint"),
    [
        ("7fffffff", "topics: 2147483647 elements in 0 bytes"),
        ("ffffffff", "null where topics must not be"),
        ("00000001 ffff 00000000", "null where name must not be"),
        ("00000001 0005 74", "cut short"),
        ("00000001 0001 ff 00000000", "not UTF-8"),
        ("00000001 0001 74 00000001", "partition_indexes: 1 elements in 0 bytes"),
        ("", "cut short"),
    ],
)
def test_inconsistent_frame_is_malformed(tail: str, complaint: str) -> None:
    with pytest.raises(Malformed, match=complaint):
        wire.request_decoder(Api.OFFSET_FETCH, 1)(offset_fetch(bytes.fromhex(tail)))


def test_string_length_limit_equal_in_old_and_new_versions() -> None:
    """Names could exist that answers of old versions could not hold."""
    asked = [bytes(wire.request_encoder(16, 4)(1, {"states_filter": ["\u00e9" * n + "s"]}))[4:]
             for n in ((1 << 14) - 1, 1 << 14)]  # fmt: skip
    assert len(wire.request_decoder(16, 4)(asked[0])[1].states_filter[0].encode()) == 32767
    with pytest.raises(Malformed, match="states_filter: a string of 32769 bytes"):
        wire.request_decoder(16, 4)(asked[1])


def test_bytes_after_request_are_ignored() -> None:
    _, request = wire.request_decoder(Api.OFFSET_FETCH, 1)(offset_fetch(bytes(4) + b"more"))
    assert (request.group_id, request.topics) == ("g", [])


def test_bytes_after_response_are_malformed() -> None:
    frame = wire.response_encoder(Api.HEARTBEAT, 4)(1, {"error_code": 27})
    with pytest.raises(Malformed, match="13 bytes where its lengths say 12"):
        wire.response_decoder(Api.HEARTBEAT, 4)(frame[4:] + b"?")[1]


def test_tag_with_wrong_size_is_malformed() -> None:
    body = {"cluster_id": "abc", "topics": []}
    frame = wire.request_encoder(Api.FETCH, 12)(1, body)
    at = frame.rindex(b"\x04abc")
    frame[at - 1] += 1
    with pytest.raises(Malformed, match="cluster_id: a tag of another size"):
        wire.request_decoder(Api.FETCH, 12)(frame[4:])


@pytest.mark.parametrize(("api", "version"), [(4, 0), (999, 0), (-1, 0), (12, 5), (12, -1), (0, 2)])
def test_request_without_schema_is_malformed(api: int, version: int) -> None:
    with pytest.raises(Malformed):
        wire.request_decoder(api, version)


@pytest.mark.parametrize("number", [0, 1, 127, 128, 16383, 16384, 2**31 - 1, 2**32 - 1])
def test_varint_decoded_as_encoded(number: int) -> None:
    out = bytearray()
    put_varint(out, number)
    assert get_varint(memoryview(out), 0) == (number, len(out))


def test_varint_longer_than_five_bytes_is_malformed() -> None:
    with pytest.raises(Malformed, match="more than 5 bytes"):
        get_varint(memoryview(b"\xff" * 5 + b"\0"), 0)


@dataclass
class Old:
    __flexible__: ClassVar[bool] = True
    state: int = field(metadata={"kafka_type": "int8"}, default=0)


@dataclass
class Row:
    __flexible__: ClassVar[bool] = True
    topic: str = field(metadata={"kafka_type": "string"})
    partitions: tuple[int, ...] = field(metadata={"kafka_type": "int32"}, default=())
    epochs: tuple[int, ...] | None = field(metadata={"kafka_type": "int32", "tag": 0}, default=None)


@dataclass
class New:
    __flexible__: ClassVar[bool] = True
    state: int = field(metadata={"kafka_type": "int8"}, default=0)
    rows: tuple[Row, ...] = ()


def test_own_record_schemas_use_same_compiler() -> None:
    read = wire.record_decoder({0: Old, 1: New})
    rows = [{"topic": "t", "partitions": [1, 2], "epochs": [7, 8]}, {"topic": "u"}]

    written = wire.record_encoder(New, 1)({"state": 3, "rows": rows})
    assert written.hex(" ") == (
        "00 01 03 03"
        " 02 74 03 00 00 00 01 00 00 00 02 01 00 09 03 00 00 00 07 00 00 00 08"
        " 02 75 01 00"
        " 00"
    )
    record = read(written)
    assert [(r.topic, r.partitions, r.epochs) for r in record.rows] == [
        ("t", [1, 2], [7, 8]),
        ("u", [], None),
    ]
    old = read(wire.record_encoder(Old, 0)({"state": 4}))
    assert (old.state, old.rows) == (4, ())


def test_record_of_newer_version_is_malformed_unless_allowed() -> None:
    new = wire.record_encoder(Old, 2)({"state": 4}) + b"more"
    with pytest.raises(Malformed, match=r"version 2, known are \[0\]"):
        wire.record_decoder({0: Old})(new)
    assert wire.record_decoder({0: Old}, newer=True)(new).state == 4
    with pytest.raises(Malformed):
        wire.record_decoder({0: Old}, newer=True)(b"\xff\xff\0")


def test_wire_does_not_import_hypothesis(tmp_path: Path) -> None:
    """hypothesis would leave a folder where it runs."""
    pytest.importorskip("hypothesis")
    code = (
        "import os, sys; from streamsx.protocol.wire import request_encoder; request_encoder(3, 9);"
        "print('hypothesis' in sys.modules, os.listdir()); import hypothesis.strategies"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, check=True, capture_output=True, text=True
    )
    assert found.stdout == "False []\n"
