"""config.py: the table of settings, and values as people write them."""

import datetime
import math
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import streamsx
from streamsx.app.settings import resolve_config
from streamsx.config import (
    GROUPS,
    SETTINGS,
    Config,
    labels,
    name_of,
    seconds,
    servers,
    size_bytes,
)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (2, 2.0), (0.5, 0.5), ("2", 2.0), ("500ms", 0.5), ("60s", 60.0), ("10m", 600.0),
        ("1.5h", 5400.0), ("1d", 86400.0), (" 10 S ", 10.0), ("infinite", math.inf),
        (datetime.timedelta(minutes=1), 60.0), (0, 0.0),
    ],
)  # fmt: skip
def test_a_duration_is_seconds_however_it_is_written(written: object, meant: float) -> None:
    assert seconds(written) == meant


@pytest.mark.parametrize(
    "written", ["5x", "", "ms", "-1s", -1, None, True, "1.2.3s", "s5", "nan", math.nan, "1e999"]
)
def test_bad_duration_is_refused_with_the_form(written: object) -> None:
    with pytest.raises(ValueError, match="a duration is written"):
        seconds(written)


@pytest.mark.parametrize("written", ["-1s", -1, "-0.5m", datetime.timedelta(seconds=-1)])
def test_negative_duration_is_refused_with_the_reason(written: object) -> None:
    with pytest.raises(ValueError, match=r"a duration is written .*, and is never below 0"):
        seconds(written)


def test_minus_ahead_of_no_number_is_refused_with_the_form_alone() -> None:
    with pytest.raises(ValueError, match=r"or 10m$"):
        seconds("-x")


@pytest.mark.parametrize(
    ("setting", "refused", "least", "sensible"),
    [
        ("commit_interval", [0, "0ms", "infinite", "2d"], "1ms", "100ms to 1m"),
        ("revoke_timeout", [0, "infinite"], "1ms", "30s to 10m"),
        ("producer_linger", ["infinite", "1h"], 0, "0 to 100ms"),
        ("restore_slice", [0, "infinite", "1m"], "1ms", "1ms to 20ms"),
        ("session_timeout", [0, "infinite"], "1ms", "a broker takes"),
        ("heartbeat_interval", [0, "infinite"], "1ms", "a broker takes"),
        ("rebalance_timeout", [0, "infinite"], "1ms", "a broker takes"),
        ("fetch_max_wait", [0, "infinite"], "1ms", "a broker takes"),
        ("topic_replication_factor", [0], -1, "give 1 or more, or -1"),
    ],
)
def test_value_out_of_range_is_refused_with_the_sensible_range(
    setting: str, refused: list[object], least: object, sensible: str
) -> None:
    parse = SETTINGS[setting].metadata["parse"]
    assert parse(least) is not None
    assert parse(SETTINGS[setting].default) == SETTINGS[setting].default
    for value in refused:
        with pytest.raises(ValueError, match=sensible):
            parse(value)


@pytest.mark.parametrize(
    "setting", ["shutdown_timeout", "scale_down_timeout", "state_cleanup_delay"]
)
def test_zero_and_infinite_are_valid_for_waiting_times(setting: str) -> None:
    parse = SETTINGS[setting].metadata["parse"]
    assert (parse(0), parse("infinite")) == (0.0, math.inf)


@pytest.mark.parametrize(
    ("written", "meant"), [(100, 100), ("64KiB", 65536), ("1.5 MiB", 3 << 19), ("2gib", 2 << 30)]
)
def test_a_size_is_bytes(written: object, meant: int) -> None:
    assert size_bytes(written) == meant


@pytest.mark.parametrize("written", ["5x", "KiB", None, True, "-1", "nan", "1e999"])
def test_bad_size_is_refused_with_the_form(written: object) -> None:
    with pytest.raises(ValueError, match="a size is written"):
        size_bytes(written)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("kafka://a", ("a:9092",)),
        ("a:1,b:2", ("a:1", "b:2")),
        ("kafka://a:1;b:2", ("a:1", "b:2")),
        (["aiokafka://a", "kafka://b:1"], ("a:9092", "b:1")),
        ("kafka://[::1]:9093", ("[::1]:9093",)),
    ],
)
def test_brokers_are_hosts_with_ports(written: object, meant: tuple[str, ...]) -> None:
    assert servers(written) == meant


def test_tags_are_keys_and_values() -> None:
    assert labels({"zone": "a", "rack": 7}) == labels(" zone=a, rack=7,") == (
        ("zone", "a"), ("rack", "7")
    )  # fmt: skip
    for written in ("zone", "=a", "zone=", {"": "a"}):
        with pytest.raises(ValueError, match="write KEY=VALUE"):
            labels(written)
    with pytest.raises(ValueError, match="zone has two values"):
        labels("zone=a, zone=b")
    with pytest.raises(ValueError, match="write a dict, or KEY=VALUE"):
        labels([("zone", "a")])


@pytest.mark.parametrize(
    "written", ["http://a", "kafka://", "kafka://a:x", "a:99999", "a:0", "[::1:9092", "a:1,,b:2"]
)
def test_bad_broker_address_is_refused(written: str) -> None:
    with pytest.raises(ValueError, match=r"not a broker: '.*': write kafka://HOST:PORT"):
        servers(written)


@pytest.mark.parametrize("name", sorted({name_of(known) for known in SETTINGS.values()} - {"id"}))
def test_every_default_is_unchanged_by_its_own_parser(name: str) -> None:
    known = SETTINGS[name]
    default: Any = getattr(Config(id="x"), known.name)
    assert known.metadata["parse"](default) == default


def test_units_are_in_the_fields_and_not_in_the_names() -> None:
    assert SETTINGS["commit_interval"].name == "commit_interval_s"
    assert SETTINGS["memory_budget"].name == "memory_budget_bytes"
    assert name_of(SETTINGS["fetch_max_bytes"]) == "fetch_max_bytes"


def test_no_name_means_two_settings() -> None:
    names = [
        name for known in set(SETTINGS.values()) for name in SETTINGS if SETTINGS[name] is known
    ]
    assert len(names) == len(SETTINGS)


NAMES = sorted({name_of(known) for known in SETTINGS.values()})


@pytest.mark.parametrize("name", NAMES)
def test_each_setting_is_documented_in_sentences(name: str) -> None:
    doc = SETTINGS[name].metadata["doc"]
    assert doc[0].isupper() or doc[0] == "`"
    assert doc.endswith(".")
    assert "  " not in doc


@pytest.mark.parametrize("name", NAMES)
def test_each_word_of_a_choice_is_explained(name: str) -> None:
    """A parser of a choice lists its words when it refuses another one."""
    words = list[str]()
    try:
        SETTINGS[name].metadata["parse"]("no-such-word")
    except ValueError as error:
        if str(error).startswith("not one of "):
            words = str(error).removeprefix("not one of ").rpartition(": ")[0].split(", ")
    doc = SETTINGS[name].metadata["doc"]
    assert [word for word in words if f"`{word}`" not in doc] == []


@pytest.mark.parametrize("name", NAMES)
def test_dotted_name_of_kafka_means_its_setting(name: str) -> None:
    known = SETTINGS[name]
    dotted = known.metadata["kafka"]
    value = 10_000 if dotted.endswith(".ms") else known.default
    if dotted and dotted != "application.id":
        config = resolve_config("x", {"config": {dotted: value}}, {}, {}).config
        made = known.metadata["parse"]("10s" if dotted.endswith(".ms") else value)
        assert getattr(config, known.name) == made


def test_groups_begin_with_fields_of_their_own() -> None:
    assert GROUPS.keys() <= {each.name for each in fields(Config)}
    assert next(iter(GROUPS)) == fields(Config)[0].name


def test_each_setting_does_something() -> None:
    package = Path(streamsx.__file__).parent
    folders = [package, *(each.resolve() for each in package.iterdir() if each.is_symlink())]
    files = (file for folder in folders for file in folder.rglob("*.py"))
    used = "".join(file.read_text() for file in files if file.name != "config.py")
    idle = {each.name for each in fields(Config) if not re.search(rf"\.{each.name}\b", used)}
    assert idle == set()
