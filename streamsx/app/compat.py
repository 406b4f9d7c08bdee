"""What Faust has and we do not have (yet), by name, each with what to use instead.

Faust's attributes, arguments and settings are ours, or refused here before anything is consumed, or
mean nothing here, which is a note. None of them is an AttributeError, falls through into Faust
itself, or is passed over in silence. A test holds this against Faust's own classes.

Not here: what is ours.
"""

import importlib
from collections.abc import Mapping
from inspect import get_annotations, getattr_static
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from streamsx.errors import NotSupported


def _by_name(said: Mapping[str, str]) -> dict[str, str]:
    """From names by what is said of them."""
    return {name: remedy for remedy, names in said.items() for name in names.split()}


INSIDE: Final = "leave it out: it is of Faust's inside"
READ: Final = "use @app.agent"
JOB: Final = "use @app.task"
EVENTS: Final = "use streamsx worker --events FILE"
WORKER: Final = "use streamsx worker"
TABLE: Final = "use app.Table, in the agent whose records have its keys"
WINDOW: Final = "use a key with the window in it: table[user, int(event.message.timestamp // 60)]"
JOIN: Final = "use a table that one agent writes and the other reads, with the same partitions"
ACK: Final = "leave it out: a record is done when the body asks for the next"
TYPES: Final = "use key_type= and value_type="
POLICY: Final = "use App(on_error=...)"
NAMES: Final = "use app.topic with all the names"

SERVICE: Final = _by_name(
    {
        JOB: "add_context add_dependency add_future add_runtime_dependency on_first_start on_init"
        " on_start on_started on_stop on_shutdown task",
        "use @app.timer": "crontab itertimer timer",
        "use asyncio": "loop sleep wait wait_first wait_many",
        "use logging": "log logger",
        WORKER: "crash maybe_start restart set_shutdown should_stop start started stop"
        " wait_until_stopped",
    }
)
JOINS: Final = _by_name({JOIN: "combine inner_join join left_join outer_join"})
ATTRIBUTES: Final[Mapping[str, Mapping[str, str]]] = {
    "streamsx": _by_name(
        {
            "use app.topic": "Channel",
            TABLE: "GlobalTable SetGlobalTable SetTable",
            WINDOW: "HoppingWindow SlidingWindow TumblingWindow Window",
            EVENTS: "Monitor Sensor",
            WORKER: "Worker",
            "use async for event in stream.events()": "current_event",
        }
    ),
    "App": _by_name(
        {
            READ: "actor stream",
            "use app.topic": "channel",
            TABLE: "GlobalTable SetGlobalTable SetTable",
            "use App(id, **settings)": "Settings config_from_object",
            "use import, where the app is made": "discover",
            "use topic.send": "maybe_start_producer producer producer_only",
            "leave it out: a worker commits every commit_interval": "commit",
            "use a script of your own": "command",
            EVENTS: "monitor sensors on_partitions_assigned on_partitions_revoked rebalancing"
            " on_rebalance_complete on_rebalance_end on_rebalance_start",
            JOB: "on_after_configured on_before_configured on_before_shutdown on_configured"
            " on_worker_init service worker_init",
            "use headers= of send": "on_produce_message",
            "use aiohttp": "http_client",
            "use a web server beside the worker": "cache page router table_route topic_route web"
            " web_server",
            WORKER: "Worker client_only in_worker maybe_start_client start_client",
        }
    ),
    "Agent": _by_name(
        {
            "use agent.cast, and a topic that the answers are sent to": "ask ask_nowait join kvjoin"
            " kvmap map",
            "use streamsx.testing.TestDriver": "test_context",
            "use agent.channel": "get_topic_names stream",
            "use more partitions": "concurrency isolated_partitions",
            POLICY: "supervisor_strategy",
        }
    ),
    "Stream": JOINS
    | _by_name(
        {
            "use a list in the body": "noack_take take take_events take_with_timestamp",
            "use async for event in stream.events()": "current_event",
            "use if, in the body": "filter",
            "use a counter in the body": "enumerate",
            "use topic.send in the body": "echo",
            "use a call in the body": "add_processor",
            "use stream.through": "derive_topic",
            ACK: "ack noack",
        }
    ),
    "Table": JOINS
    | _by_name(
        {
            WINDOW: "hopping on_window_close tumbling using_window window",
            "use dict(table.items())": "as_ansitable copy data",
            "use table.changelog": "changelog_topic",
            TABLE: "is_global use_partitioner",
            TYPES: "schema",
            "use the agent that writes it": "on_changelog_event on_key_del on_key_get on_key_set",
            EVENTS: "on_recover",
        }
    ),
    "Topic": _by_name(
        {
            READ: "get stream",
            "use topic.send": "publish_message put",
            "use app.topic": "clone derive derive_topic",
            NAMES: "pattern",
            "use App(on_decode_error=...)": "on_decode_error on_key_decode_error"
            " on_value_decode_error",
            TYPES: "schema",
        }
    ),
    "Event": _by_name(
        {
            "use topic.send(key=event.key, value=event.value, headers=event.headers)": "forward",
            "use app.send": "send",
            ACK: "ack acked",
        }
    ),
}
"""By class, or our own module. Whatever else Faust's class has is of its inside."""


class FaustArgument(NamedTuple):
    """An argument or setting of Faust's. `usual`: its value in Faust, which is as good as none."""

    usual: object
    remedy: str = ""
    """Empty: it means nothing here, whatever it is."""


ARGUMENTS: Final[Mapping[str, Mapping[str, FaustArgument]]] = {
    "@app.agent": {
        "concurrency": FaustArgument(1, "use more partitions: each has an instance of its own"),
        "supervisor_strategy": FaustArgument(None, POLICY),
        "on_error": FaustArgument(None, f"{POLICY}, or try in the body"),
        "schema": FaustArgument(None, TYPES),
        "isolated_partitions": FaustArgument(False),
        "use_reply_headers": FaustArgument(True),
    },
    "app.topic": {
        "pattern": FaustArgument(None, NAMES),
        "schema": FaustArgument(None, TYPES),
        "acks": FaustArgument(True),
        "internal": FaustArgument(False),
        "loop": FaustArgument(None),
        "maxsize": FaustArgument(None),
    },
    "app.Table": {
        **dict.fromkeys(("window", "on_window_close"), FaustArgument(None, WINDOW)),
        "schema": FaustArgument(None, TYPES),
        "changelog_topic": FaustArgument(None, "use extra_topic_configs="),
        **dict.fromkeys(("on_recover", "recover_callbacks"), FaustArgument(None, EVENTS)),
        "on_changelog_event": FaustArgument(None, "use the agent that writes it"),
        **dict.fromkeys(("is_global", "use_partitioner"), FaustArgument(False, TABLE)),
        "synchronize_all_active_partitions": FaustArgument(False),
        "recovery_buffer_size": FaustArgument(1000),
        "standby_buffer_size": FaustArgument(None),
        "options": FaustArgument(None),
    },
    "app.timer": {"traced": FaustArgument(True), "max_drift_correction": FaustArgument(0.1)},
    "app.task": {"traced": FaustArgument(True)},
}
"""By call. Not those of `send`: to look for them would cost each record 17 of 400 ns."""

CLASSES: Final = (
    "Agent Event GlobalTable HttpClient Router Schema Serializers SetGlobalTable SetTable Stream"
    " Table Topic Worker"
)
SETTINGS: Final[Mapping[str, FaustArgument]] = {
    **dict.fromkeys(CLASSES.split(), FaustArgument(None, "leave it out: the classes are ours")),
    **dict.fromkeys(
        ("broker_consumer", "broker_producer", "url"), FaustArgument(None, "use broker")
    ),
    "agent_supervisor": FaustArgument("mode.OneForOneSupervisor", "use on_error"),
    "autodiscover": FaustArgument(False, "use import, where the app is made"),
    "env_prefix": FaustArgument(None, "use STREAMSX_<NAME>"),
    "producer_partitioner": FaustArgument(None, "use partition= of send"),
    "stream_ack_exceptions": FaustArgument(True, "use on_error='stop'"),
}
"""What would be missed. Faust's others that are not ours mean nothing here."""


ABSENT: Final = object()
OURS: Final = __name__.removesuffix("compat")
"""Users' own classes may bear any name."""


def refusal(thing: object, name: str) -> NotSupported | None:
    """Of an attribute that only Faust has; `thing`: one of ours, or our own module."""
    if isinstance(thing, ModuleType):
        remedy = ATTRIBUTES["streamsx"].get(name)
        return NotSupported(f"not in this version: {name}: {remedy}") if remedy else None
    ours = (each.__name__ for each in type(thing).__mro__ if each.__module__.startswith(OURS))
    kind = next((each for each in ours if each in ATTRIBUTES), None)
    if kind is None or name.startswith("_") or getattr_static(thing, name, ABSENT) is not ABSENT:
        return None
    remedy = ATTRIBUTES[kind].get(name)
    if remedy is None:
        theirs = getattr(importlib.import_module("faust"), kind).__mro__
        known = {each for base in theirs for each in (*vars(base), *get_annotations(base))}
        remedy = SERVICE.get(name, INSIDE) if name in known else None
    return NotSupported(f"not in this version: {kind.lower()}.{name}: {remedy}") if remedy else None


def sifted(call: str, where: str, given: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """What is ours of the arguments of a call, and a note for each that means nothing here.

    Raises NotSupported.
    """
    ours, notes = {}, []
    for name, value in given.items():
        known = ARGUMENTS[call].get(name)
        if known is None:
            ours[name] = value
        elif value is None or value == known.usual:
            continue
        elif known.remedy:
            raise NotSupported(f"not in this version: {call}({name}=): {where}: {known.remedy}")
        else:
            notes.append(f"argument without meaning here: {call}({name}=): {where}: leave it out")
    return ours, notes


class FaustNames:
    """A base of what bears a name of Faust's: what only Faust's has is refused by name."""

    __slots__ = ()

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if error := refusal(self, name):
                raise error
            return object.__getattribute__(self, name)  # raises, and what a property has raised
