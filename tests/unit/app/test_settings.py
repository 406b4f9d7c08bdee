"""app/settings.py: the source of a setting that wins, and the notes about the others."""

import re
import sys
from collections.abc import Mapping
from copy import copy
from typing import Any

import pytest
from faust.types.settings import Settings

from streamsx import App
from streamsx.app.settings import SettledConfig, resolve_config
from streamsx.errors import SettingError


def settle(
    code: Mapping[str, object] | None = None,
    command_line: Mapping[str, object] | None = None,
    **environment: str,
) -> SettledConfig:
    return resolve_config("shop", code or {}, command_line or {}, environment)


def test_command_line_precedes_own_variables_then_faust_then_code() -> None:
    sources: Any = {"TOPIC_PARTITIONS": "2", "STREAMSX_TOPIC_PARTITIONS": "3"}
    code = {"topic_partitions": 1}
    assert settle().config.topic_partitions == 8
    assert settle(code).config.topic_partitions == 1
    assert settle(code, TOPIC_PARTITIONS="2").config.topic_partitions == 2
    assert settle(code, **sources).config.topic_partitions == 3
    assert settle(code, {"topic_partitions": 4}, **sources).config.topic_partitions == 4


def test_static_member_stays_on_stop_unless_on_stop_is_set() -> None:
    stops = [
        settle(given).config.on_stop
        for given in (
            {},
            {"static_membership": True},
            {"static_membership": True, "on_stop": "leave"},
        )
    ]
    assert stops == ["leave", "stay", "leave"]


def test_faust_and_kafka_names_map_to_the_same_settings() -> None:
    config = settle(
        {
            "broker": "kafka://a;b:1",
            "broker_commit_interval": 2.5,
            "datadir": "state",
            "config": {"session.timeout.ms": 30_000, "max.warmup.replicas": 3, "linger.ms": "7"},
        }
    ).config
    assert config.bootstrap == ("a:9092", "b:1")
    assert (config.commit_interval_s, config.state_dir) == (2.5, "state")
    assert (config.session_timeout_s, config.max_learners) == (30.0, 3)
    assert config.producer_linger_s == 0.007


def test_own_and_faust_variables_are_read() -> None:
    config = settle(
        STREAMSX_BOOTSTRAP="a:1",
        STREAMSX_MAX_LEARNERS_PER_MEMBER="none",
        APP_DATADIR="there",
        STREAMSX_SCALE_DOWN_TIMEOUT="10m",
    ).config
    assert (config.bootstrap, config.state_dir) == (("a:1",), "there")
    assert (config.max_learners_per_member, config.scale_down_timeout_s) == (None, 600.0)


@pytest.mark.parametrize(("word", "meant"), [("warn", "warning"), ("CRIT", "critical")])
def test_log_levels_accept_faust_names(word: str, meant: str) -> None:
    assert settle(command_line={"log_level": word}).config.log_level == meant
    assert settle(STREAMSX_LOG_LEVEL=word).config.log_level == meant


def test_none_in_code_counts_as_unset_unless_none_is_a_value() -> None:
    config = settle({"broker": None, "max_learners_per_member": None}).config
    assert config.bootstrap == ("localhost:9092",)
    assert config.max_learners_per_member is None


def test_app_id_carries_the_version() -> None:
    assert settle({"version": 2}).config.id == "shop-v2"
    assert settle({"version": 3, "id_format": "{id}.{self.version}"}).config.id == "shop.3"


def test_revoke_timeout_defaults_to_the_rebalance_timeout() -> None:
    assert settle({"rebalance_timeout": 90}).config.revoke_timeout_s == 90
    assert settle({"rebalance_timeout": 90, "revoke_timeout": 5}).config.revoke_timeout_s == 5


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ({"comit_interval": 1}, r"unknown setting: comit_interval .*did you mean commit_interval"),
        ({"commit_interval": "soon"}, r"bad setting: commit_interval \(app shop\): 'soon': a dur"),
        ({"on_error": "skip"}, "on_error .*not one of log, dlq, stop_task, stop, stop_app, retry"),
        ({"on_error": "retry(3, 1s, dlq, 4)"}, r"a retry is written retry, or retry\(5, 2s, log\)"),
        ({"on_error": "retry()"}, r"a retry is written retry, or retry\(5, 2s, log\)"),
        ({"on_error": "retry(3, 1h)"}, "'1h': give 1ms to 1m"),
        ({"on_error": "retry(3, 1s, retry)"}, "not one of log, dlq"),
        ({"on_decode_error": "retry"}, "retry: bytes do not get better: use log or dlq"),
        ({"on_decode_error": "retry(5)"}, "bytes do not get better"),
        ({"on_produce_error": "retry"}, r"on_produce_error .*the producer has retried what can be"),
        ({"on_produce_error": "skip"}, "not one of stop_task, stop, stop_app, log, dlq: 'skip'"),
        ({"processing_guarantee": "twice"}, "not one of at_least_once, exactly_once: 'twice'"),
        ({"transaction_timeout": 0}, "transaction_timeout .*0: a broker takes 1ms to 24d"),
        ({"store": "aerospike://"}, "not one of rocksdb://, memory://"),
        (
            {"processing_guarantee": "exactly_once", "commit_interval": 10},
            "transaction_timeout 10 s is not above commit_interval 10 s",
        ),
        ({"session_timeout": 2}, "session_timeout 2 s is below 3 times heartbeat_interval 1 s"),
        ({"upgrade_from": "two"}, "upgrade_from .*'two': write the release you come from, such"),
        ({"revoke_before_join": "being_learned"}, "not in this version: being_learned: use none"),
        (
            {"rebalancing_mode": "upgrading", "protocol_type": "stream"},
            "rebalancing_mode upgrading is of protocol_type consumer, which is stream",
        ),
        ({"on_stop": "stay"}, "on_stop stay is of static_membership, which is false"),
        ({"session_timeout": "infinite"}, "session_timeout .*'infinite': a broker takes 1ms to"),
        ({"rebalance_timeout": "25d"}, "a broker takes 1ms to 24d"),
        ({"heartbeat_interval": 0}, "a broker takes 1ms to 24d"),
        ({"fetch_max_wait": "infinite"}, "a broker takes 1ms to 24d"),
        ({"fetch_max_bytes": "1KiB"}, "fetch_max_bytes 1024 is below consumer_max_fetch_size"),
        ({"commit_interval": 1, "broker_commit_interval": 1}, "set twice: commit_interval and"),
        ({"imbalance_percentage": "infinite"}, "imbalance_percentage .*: a share is written 0.2"),
        ({"imbalance_percentage": "inf"}, "a share is written 0.2"),
        ({"imbalance_percentage": "nan"}, "a share is written 0.2"),
        ({"imbalance_percentage": -0.1}, "a share is written 0.2"),
        ({"imbalance_percentage": "much"}, "'much': a share is written 0.2"),
        ({"topic_partitions": 0}, "not a whole number from 1 on"),
        ({"topic_partitions": "x"}, "not a whole number from 1 on: 'x'"),
        ({"topic_allow_declare": "perhaps"}, "not yes or no"),
        ({"id": "my shop"}, r"bad setting: id \(app my shop\): 'my shop': use letters, digits"),
        ({"id": ".."}, "bad setting: id"),
        ({"version": 2, "id_format": "{nope}"}, "id_format .*'{nope}' gives no id: 'nope': write"),
        ({"version": 2, "id_format": "{id}:{}"}, "bad setting: id_format"),
        ({"version": 2, "id_format": "{id} {self.version}"}, "gives no id: 'shop 2': use let"),
        ({"id": ""}, "bad setting: id"),
        ({"instance_id": "a,b"}, "bad setting: instance_id .*'a,b': use letters"),
        ({"events_file": ""}, "bad setting: events_file .*nothing is given"),
        ({"state_dir": " "}, "bad setting: state_dir .*nothing is given"),
        ({"restore_slice": 0}, "0: give 0.1ms to 1s: 1ms to 20ms is sensible"),
        ({"consumer_max_fetch_size": 0}, "0: give more than 0, and an end"),
        ({"produce_buffer": 0}, "0: give more than 0, and an end"),
        ({"config": 5}, r"bad setting: config \(app shop\): 5: give a dict"),
        ({"config": {"no.such.thing": 1}}, "unknown setting: no_such_thing"),
    ],
)
def test_invalid_setting_is_an_error_with_a_remedy(code: dict[str, object], says: str) -> None:
    with pytest.raises(SettingError, match=says):
        settle(code)


def test_faust_setting_without_effect_gives_one_note() -> None:
    assert settle({"web_port": 8080}).notes == (
        "setting without effect here: web_port (app shop): leave it out",
    )


def test_every_faust_setting_is_accepted() -> None:
    for name in Settings.SETTINGS:
        assert settle({name: None}).config.id == "shop"


def test_unknown_own_variable_gives_a_note() -> None:
    assert settle(STREAMSX_COMIT_INTERVAL="1s").notes == (
        "unknown variable: STREAMSX_COMIT_INTERVAL: did you mean STREAMSX_COMMIT_INTERVAL?",
    )


@pytest.mark.parametrize("word", ["exactly_once", "exactly_once_v2", "exactly-once"])
def test_exactly_once_commits_ten_times_a_second_unless_told_otherwise(word: str) -> None:
    exact = {"processing_guarantee": word}
    usual = resolve_config("shop", exact, {}, {}).config
    assert (usual.processing_guarantee, usual.commit_interval_s) == ("exactly_once", 0.1)
    given = resolve_config("shop", {**exact, "commit_interval": 2}, {}, {}).config
    assert given.commit_interval_s == 2


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("broker_session_timeout", 30.0),
        ("session_timeout", 30.0),
        ("session_timeout_s", 30.0),
        ("table_standby_replicas", 0),
        ("datadir", None),
    ],
)
def test_setting_is_read_by_any_of_its_names(name: str, value: object) -> None:
    assert getattr(App("shop", session_timeout=30).conf, name) == value


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("commit_intervall", "no such setting: did you mean commit_interval?"),
        ("web_port", "a setting of Faust without effect here: "),
    ],
)
def test_other_names_are_no_attributes_of_the_settings(name: str, says: str) -> None:
    with pytest.raises(AttributeError, match=rf"app\.conf\.{name}: {re.escape(says)}"):
        getattr(App("shop").conf, name)


@pytest.mark.parametrize("name", ["commit_interval", "commit_interval_s", "anything"])
def test_setting_cannot_be_changed_after_the_app_was_made(name: str) -> None:
    app = App("shop")
    says = rf"app\.conf\.{name} = 3 \({re.escape(__file__)}:\d+\): give it to App\('shop', {name}="
    with pytest.raises(SettingError, match=says):
        setattr(app.conf, name, 3)


def test_settings_can_be_copied_and_hashed() -> None:
    config = App("shop").conf
    assert copy(config) == config
    assert hash(config) == hash(copy(config))


def test_faust_command_line_is_refused_with_the_streamsx_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from faust.cli.base import prepare_app

    monkeypatch.setattr(sys, "argv", ["faust", "-A", "m", "worker"])
    with pytest.raises(SystemExit) as ended:
        prepare_app(App("shop"), "m")  # type: ignore[arg-type]  # as Faust does
    assert ended.value.code == 2
    said = "error: shop is an app of streamsx: type streamsx -A m worker\n"
    assert capsys.readouterr().err == said
