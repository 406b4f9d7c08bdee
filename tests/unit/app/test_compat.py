"""app/compat.py against Faust itself: each name of Faust works or is refused with a remedy."""

import sys
from collections.abc import Callable
from inspect import signature
from types import ModuleType
from typing import Any

import faust
import pytest
from faust.types.settings import Settings

import streamsx
from streamsx import App, Event, Stream
from streamsx.app import compat
from streamsx.app.lookup import app_named
from streamsx.config import SETTINGS
from streamsx.errors import NotSupported, SettingError
from streamsx.processing.batch import Batch
from streamsx.processing.inbox import Inbox, Values
from streamsx.testing import TestDriver
from streamsx.topology.nodes import Source
from tests.support.codecs import coded

FROM_FAUST = {
    "ChannelT", "Codec", "EventT", "GSSAPICredentials", "ModelOptions", "OAuthCredentials",
    "Record", "SASLCredentials", "SSLCredentials", "Schema", "Service", "ServiceT", "Settings",
    "StreamT", "TopicT", "uuid",
}  # fmt: skip
"""Names that are Faust's own here too: values, types, and what App refuses to take."""


SOURCE = Source("t", coded(repr), coded(repr))


async def reading(stream: Any) -> None:
    async for _ in stream:
        pass


@pytest.fixture
def ours(app: App) -> dict[str, Any]:
    """Return one object of each class, by Faust's name for it."""
    topic = app.topic("t")
    return {
        "App": app,
        "Agent": app.agent(topic, name="a")(reading),
        "Table": app.Table("t"),
        "Topic": topic,
        "Stream": Stream("a", topic, Values(Inbox(0, print), SOURCE), print),
        "Event": Event(1, 2, Batch("t", 0, [], [], [], [], None, 0), 0),
    }


THEIRS = {
    "App": faust.App, "Agent": faust.Agent, "Table": faust.Table, "Topic": faust.Topic,
    "Stream": faust.Stream, "Event": faust.Event,
}  # fmt: skip


def public(cls: type) -> set[str]:
    classes = [each for each in cls.__mro__ if each is not object]
    names = {name for each in classes for name in (*vars(each), *each.__annotations__)}
    return {name for name in names if not name.startswith("_")}


@pytest.mark.parametrize("kind", THEIRS)
def test_each_faust_attribute_is_supported_or_refused(ours: dict[str, Any], kind: str) -> None:
    there, theirs = set(dir(ours[kind])), public(THEIRS[kind])
    said = compat.ATTRIBUTES[kind].keys()
    assert said & there == set(), "refused, and ours"
    assert said - theirs == set(), "refused, and nobody's"
    for name in theirs - there:
        with pytest.raises(NotSupported, match=rf"not in this version: {kind.lower()}\.{name}: "):
            getattr(ours[kind], name)


def test_attribute_error_inside_a_property_is_not_masked(app: App) -> None:
    class Shop(App):
        @property
        def opened(self) -> str:
            return self.at_last  # type: ignore[no-any-return, attr-defined]

    with pytest.raises(AttributeError, match="'Shop' object has no attribute 'at_last'"):
        _ = Shop("shop").opened
    with pytest.raises(AttributeError, match="'App' object has no attribute 'no_such_thing'"):
        _ = app.no_such_thing  # type: ignore[attr-defined]


def test_refused_service_attributes_exist_in_faust() -> None:
    assert compat.SERVICE.keys() <= public(faust.Service)


@pytest.mark.parametrize("kind", THEIRS)
def test_unknown_attribute_is_an_attribute_error(ours: dict[str, Any], kind: str) -> None:
    assert not hasattr(ours[kind], "no_such_name")
    assert not hasattr(ours[kind], "__no_such_name__")


def test_each_faust_module_name_is_supported_or_refused() -> None:
    refused = set(compat.ATTRIBUTES["streamsx"])
    assert set(faust.__all__) == refused | FROM_FAUST | THEIRS.keys()
    for name in refused:
        with pytest.raises(NotSupported, match=f"not in this version: {name}: use "):
            getattr(streamsx, name)


def test_each_faust_setting_is_supported_refused_or_noted() -> None:
    assert compat.SETTINGS.keys() <= Settings.SETTINGS.keys() - SETTINGS.keys()
    for name in Settings.SETTINGS.keys() - SETTINGS.keys() - compat.SETTINGS.keys():
        assert App("shop", **{name: "x"}).settled.notes == (
            f"setting without effect here: {name} (app shop): leave it out",
        )


@pytest.mark.parametrize("name", compat.SETTINGS)
def test_unsupported_setting_is_refused_unless_at_the_usual_value(name: str) -> None:
    with pytest.raises(NotSupported, match=rf"setting {name} \(app shop\): \w+"):
        App("shop", **{name: "x"}).finalize()
    usual: dict[str, Any] = {name: compat.SETTINGS[name].usual}
    App("shop", **usual).finalize()


@pytest.mark.parametrize(
    ("call", "theirs", "own"),
    [
        ("@app.agent", faust.App.agent, App.agent),
        ("app.topic", faust.App.topic, App.topic),
        ("app.Table", faust.Table.__init__, App.Table),
        ("app.timer", faust.App.timer, App.timer),
        ("app.task", faust.App.task, App.task),
    ],
)
def test_each_faust_argument_is_supported_or_known(
    call: str, theirs: Callable[..., Any], own: Callable[..., Any]
) -> None:
    known = {*signature(own).parameters, *compat.ARGUMENTS[call], "kwargs", "app", "topics"}
    made = {"app.topic": streamsx.Topic, "app.Table": streamsx.Table}.get(call)
    known |= set(signature(made.__init__).parameters) if made else set()  # type: ignore[misc]
    assert set(signature(theirs).parameters) - known == set()


@pytest.mark.parametrize("call", ["@app.agent", "app.topic", "app.Table"])
def test_unsupported_argument_is_refused_or_noted_unless_at_the_usual_value(
    app: App, call: str
) -> None:
    make: dict[str, Callable[..., Any]] = {
        "@app.agent": lambda **given: app.agent("t", **given)(reading),
        "app.topic": lambda **given: app.topic("t", **given),
        "app.Table": lambda **given: app.Table("t", **given),
    }
    for name, known in compat.ARGUMENTS[call].items():
        app.agents.clear()
        app.tables.clear()
        make[call](**{name: known.usual})
        app.agents.clear()
        app.tables.clear()
        if known.remedy:
            with pytest.raises(NotSupported, match=rf"in this version: {call}\({name}=\): \w+ "):
                make[call](**{name: "x"})
        else:
            make[call](**{name: "x"})
            assert any(f"{call}({name}=): " in note for note in app.topology().notes)


def test_unsupported_call_late_in_a_body_is_refused_before_consuming(app: App) -> None:
    other = app.agent("others", name="other")(reading)

    @app.agent("orders", name="a")
    async def body(stream: Any) -> None:
        async for order in stream:
            if order == "never":
                await other.ask(order)  # type: ignore[attr-defined]

    with pytest.raises(NotSupported, match=r"not in this version: agent\.ask: use agent\.cast"):
        TestDriver(app)


def test_unsupported_module_name_in_a_body_is_refused_before_consuming(app: App) -> None:
    @app.agent("orders", name="a")
    async def body(stream: Any) -> None:
        async for _ in stream:
            streamsx.current_event()

    with pytest.raises(NotSupported, match="not in this version: current_event: use async for"):
        app.topology()


@pytest.mark.parametrize("line", ["stream.take(10, within=1)", "stream.noack()"])
def test_unsupported_stream_operation_is_refused_unchanged(app: App, line: str) -> None:
    scope: dict[str, Any] = {"__name__": __name__}
    exec(f"async def body(stream):\n async for _ in {line}:\n  pass", scope)
    app.agent("orders", name="a")(scope["body"])
    with pytest.raises(NotSupported, match=r"^not in this version: stream\.\w+: "):
        app.topology()


def test_remedy_for_take_warns_of_losing_a_local_list(app: App) -> None:
    @app.agent("orders", name="a")
    async def body(stream: Any) -> None:
        async for _ in stream.take(10, within=1):
            pass

    lost = "what a body keeps in a local list is lost when its worker ends"
    with pytest.raises(NotSupported, match=rf"stream\.take: put records into a table, .*{lost}"):
        app.topology()


def test_unsupported_event_method_ends_the_task_and_skips_no_record(app: App) -> None:
    out = app.topic("out")

    @app.agent(app.topic("orders", partitions=1), name="a")
    async def body(stream: Any) -> None:
        async for event in stream.events():
            await event.forward(out)

    with TestDriver(app, raises=False) as driver:
        with pytest.raises(NotSupported, match=r"event\.forward: use topic\.send.*orders-0"):
            driver.pipe("orders", [1])
        assert driver.failures == []


def test_import_of_an_unsupported_name_is_refused_with_a_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Finder:
        """Importer of modules that do not exist."""

        def find_spec(self, name: str, *_: object) -> None:
            if name == "shop_of_faust":
                exec("from streamsx import current_event", {})

    monkeypatch.setattr(sys, "meta_path", [Finder(), *sys.meta_path])
    with pytest.raises(NotSupported, match="not in this version: current_event: use async for"):
        app_named("shop_of_faust")


def test_subclass_may_define_a_refused_name() -> None:
    class Shop(App):
        def page(self) -> str:
            return "mine"

    assert Shop("shop").page() == "mine"
    with pytest.raises(NotSupported, match=r"app\.command"):
        Shop("shop").command  # type: ignore[attr-defined]  # noqa: B018
    assert isinstance(streamsx, ModuleType)


def test_unknown_setting_is_an_error() -> None:
    with pytest.raises(SettingError, match="unknown setting"):
        App("shop", no_such_thing=1).finalize()
