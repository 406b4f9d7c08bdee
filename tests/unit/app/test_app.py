"""app/app.py: settings of an app, and its whole topology."""

from typing import Any

import pytest

from streamsx import App
from streamsx.errors import NameClash, SettingError, TopologyError


def test_settings_are_read_on_first_use(monkeypatch: pytest.MonkeyPatch) -> None:
    app = App("shop", comit_interval=1)
    with pytest.raises(SettingError, match="comit_interval"):
        app.finalize()
    app = App("shop", topic_partitions=3)
    monkeypatch.setenv("STREAMSX_COMMIT_INTERVAL", "250ms")
    assert (app.conf.topic_partitions, app.conf.commit_interval_s) == (3, 0.25)


def test_command_line_overrides_settings_read_before() -> None:
    app = App("shop", broker="kafka://a", topic_partitions=3)
    assert app.conf.bootstrap == ("a:9092",)
    app.override(bootstrap="b:1", state_dir="here")
    assert (app.conf.bootstrap, app.conf.state_dir) == (("b:1",), "here")
    assert app.conf.topic_partitions == 3


def test_topic_names_carry_the_app_version(app: App) -> None:
    app = App("shop", version=2)
    table = app.Table("t")

    @app.agent(tables=[table], name="a")
    async def body(stream: Any) -> None:
        async for _ in stream:
            pass

    assert [spec.name for spec in app.topology().topics] == ["shop-v2-a", "shop-v2-t-changelog"]


def test_changelog_named_like_a_topic_is_an_error(app: App) -> None:
    table = app.Table("t")

    @app.agent("shop-t-changelog", tables=[table])
    async def body(stream: Any) -> None:
        async for _ in stream:
            pass

    with pytest.raises(NameClash, match="two topics with one name: shop-t-changelog"):
        app.topology()


def test_agent_name_invalid_as_topic_name_is_an_error(app: App) -> None:
    @app.agent(name="what is this?")
    async def body(stream: Any) -> None:
        async for _ in stream:
            pass

    with pytest.raises(TopologyError, match="not a name of a topic"):
        app.topology()


def test_topics_sent_to_by_timers_and_tasks_are_in_the_topology(app: App) -> None:
    ticks, started = app.topic("ticks", partitions=3), app.topic("started")

    @app.timer(1.0)
    async def tick() -> None:
        await ticks.send(value=1)

    @app.task
    async def start(given: App) -> None:
        await started.send(value=given.conf.id)

    kinds = {spec.name: (spec.kind.value, spec.partitions) for spec in app.topology().topics}
    assert kinds == {"started": ("output", None), "ticks": ("output", 3)}


def test_app_without_agents_has_an_empty_topology(app: App) -> None:
    assert app.topology().subtopologies == ()
    assert not app.is_leader()
