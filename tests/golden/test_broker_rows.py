"""Rows of the embedded broker's RocksDB: groups, offsets, topics, transactions, its own."""

from pathlib import Path
from typing import Any

import pytest
from rocksdict import Options, Rdict

from streamsx.broker.metadata_rows import (
    KINDS,
    ClassicMemberValue,
    ConfigValue,
    ConsumerGroupKey,
    ConsumerGroupValue,
    ConsumerMemberKey,
    ConsumerMemberValue,
    CurrentKey,
    CurrentValue,
    GroupKey,
    GroupValue,
    MemberValue,
    OffsetKey,
    OffsetValue,
    PlacesValue,
    ProtocolValue,
    StagedOffsetValue,
    TargetKey,
    TargetValue,
    TopicKey,
    TopicValue,
    TransactionGroupValue,
    TransactionKey,
    TransactionTopicValue,
    TransactionValue,
    read_row,
    row_bytes,
)
from streamsx.broker.metadata_store import MetadataStore
from streamsx.errors import IncompatibleStore

ID = bytes(range(16))
ID_HEX = "000102030405060708090a0b0c0d0e0f"
RANGE = (ProtocolValue("range", b"x"),)
RANGE_HEX = "02 0672616e6765 0278 00"
PLACES = (PlacesValue(ID, (0, 2), (1, 3)),)
PLACES_HEX = f"02 {ID_HEX} 03 00000000 00000002 01 00 09 03 00000001 00000003"
ROWS: dict[str, tuple[Any, Any, bytes, str]] = {
    "group": (
        GroupKey("shop\0x"),
        GroupValue(
            "consumer", 3, "range", "m1", 5,
            (MemberValue("m1", None, "c", "/h", 1000, 2000, b"s", b"a", RANGE),), True,
        ),
        b"G\0shop\0x",
        ("0004 09636f6e73756d6572 00000003 0672616e6765 036d31 0000000000000005"
        "02 036d31 00 0263 032f68 000003e8 000007d0 0273 0261"
        f"01 904e 0a {RANGE_HEX} 01 904e 01 01"),
    ),
    "consumer_group": (
        ConsumerGroupKey("shop"), ConsumerGroupValue(4, 5), b"K\0shop",
        "0000 00000004 01 904e 04 00000005",
    ),
    "classic_member": (
        ConsumerMemberKey("shop", "m/1"),
        ConsumerMemberValue(
            "i", None, "c", "/h", ("t",), None, 1000, "uniform", ClassicMemberValue(2000, RANGE)
        ),
        b"M\0shop\0m/1",
        ("0000 0269 00 0263 032f68 02 0274 00 000003e8 08756e69666f726d"
        f"01 00 10 01 000007d0 {RANGE_HEX} 00"),
    ),
    "consumer_member": (
        ConsumerMemberKey("shop", "m2"),
        ConsumerMemberValue(None, "r", "c", "/h", (), None, 1000, None, None),
        b"M\0shop\0m2",
        "0000 00 0272 0263 032f68 01 00 000003e8 00 00",
    ),
    "target": (
        TargetKey("shop", "m1"), TargetValue(PLACES), b"A\0shop\0m1", f"0000 {PLACES_HEX} 00"
    ),
    "current": (
        CurrentKey("shop", "m1"),
        CurrentValue(5, 4, 1, PLACES, (PlacesValue(ID, (1,), None),)),
        b"C\0shop\0m1",
        f"0000 00000005 00000004 01 {PLACES_HEX} 02 {ID_HEX} 02 00000001 00 00",
    ),
    "offset": (
        OffsetKey("shop", "t", 7), OffsetValue(42, 0, "AQAAAYvP5WgA", 9), b"O\0shop\0t\x007",
        "0003 000000000000002a 00000000 000c 415141414159765035576741 0000000000000009",
    ),
    "topic": (
        TopicKey("shop-t"), TopicValue(ID, 4, (ConfigValue("cleanup.policy", "compact"),)),
        b"T\0shop-t",
        f"0000 {ID_HEX} 00000004 02 0f636c65616e75702e706f6c696379 08636f6d70616374 00 00",
    ),
    "transaction": (
        TransactionKey("tx"),
        TransactionValue(
            1000, 999, 1001, 3, 60000, 1, (TransactionTopicValue("t", (0, 1)),), 7, 6, 2,
            (TransactionGroupValue("shop", (StagedOffsetValue("t", 0, 5, 0, "m", 8),)),),
        ),
        b"X\0tx",
        ("0001 00000000000003e8 0003 0000ea60 01 02 0274 03 00000000 00000001 00"
        "0000000000000007 0000000000000006"
        "04 00 08 00000000000003e7 01 08 00000000000003e9 904e 02 0002"
        "914e 25 02 0573686f70 02 0274 00000000 0000000000000005 00000000 026d 0000000000000008"
        "00 00"),
    ),
    "transaction_not_begun": (
        TransactionKey("tx"), TransactionValue(1000, -1, -1, 0, 60000, 0, None, 7, -1, -1, ()),
        b"X\0tx",
        ("0001 00000000000003e8 0000 0000ea60 00 00 0000000000000007 ffffffffffffffff"
        "03 00 08 ffffffffffffffff 01 08 ffffffffffffffff 904e 02 ffff"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ROWS)
def test_row_is_written_as_these_bytes(name: str) -> None:
    key, value, key_bytes, value_hex = ROWS[name]
    made_key, made = row_bytes(key, value)
    assert made_key == key_bytes
    assert made.hex(" ") == bytes.fromhex(value_hex).hex(" ")


@pytest.mark.parametrize("name", ROWS)
def test_row_is_read_from_these_bytes(name: str) -> None:
    key, value, key_bytes, value_hex = ROWS[name]
    assert read_row(key_bytes, bytes.fromhex(value_hex)) == (key, value)


def test_every_kind_of_row_is_pinned() -> None:
    assert {kind.letter for kind in KINDS} == {row[2][:1].decode() for row in ROWS.values()}


def raw(path: Path) -> Rdict:
    return Rdict(str(path), Options(raw_mode=True))


def test_new_database_holds_its_format_and_the_next_producer_id(tmp_path: Path) -> None:
    meta = MetadataStore(tmp_path / "meta", sync=False)
    assert meta.next_producer_id() == 0
    meta.close()
    db = raw(tmp_path / "meta")
    assert dict(db.items()) == {b"V": b"1", b"P": b"1000"}
    db.close()


def test_database_of_these_rows_is_read(tmp_path: Path) -> None:
    db = raw(tmp_path / "meta")
    db[b"V"], db[b"P"] = b"1", b"3000"
    for _, _, key, value in ROWS.values():
        db[key] = bytes.fromhex(value)
    db.close()
    meta = MetadataStore(tmp_path / "meta", sync=False)
    found = dict(meta.rows("GKMACOTX"))
    assert meta.next_producer_id() == 3000
    meta.close()
    assert found == {key: value for key, value, _, _ in ROWS.values()}


def test_database_of_a_later_format_is_refused(tmp_path: Path) -> None:
    db = raw(tmp_path / "meta")
    db[b"V"] = b"2"
    db.close()
    with pytest.raises(IncompatibleStore, match="data of another format"):
        MetadataStore(tmp_path / "meta", sync=False)
