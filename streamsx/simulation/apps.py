"""App of the simulated workers, which counts words and reports each record that is done.

Bodies wait for futures that are foreign to the engine: only the event loop wakes them.
"""

import asyncio
import random
from collections.abc import Callable

from streamsx import App, Event, Stream, Topic
from streamsx.app.window import tumbling
from streamsx.model import TopicPartition
from streamsx.simulation.scene import (
    APP,
    FINALS,
    GRACE_MS,
    JOINED,
    LINES,
    ROUTED,
    WINDOW_MS,
    WITHIN_MS,
    WORDS,
    A,
    B,
    Scene,
)

POISON = "poison"
UNDECODABLE = b"\xff\xfe poison"
SLEEPS_S = (0.01, 0.3, 1.5)
FAILS = 0.15
WAITS = 0.03
"""Shares of records on which a moody `size` fails or waits: ten failures in a row: 1 in 2e8."""


HearsDone = Callable[[str, TopicPartition, int], None]
"""Callback with agent, partition and offset of each record that a body ended, failed or not."""


class _Reporter:
    """Helper of the app's bodies: reports records that are done, and waits for foreign futures."""

    __module__ = "user"  # the search for tables in bodies must not enter the world

    def __init__(self, scene: Scene, done: HearsDone, rng: random.Random) -> None:
        self._sleepy = scene.sleepy
        self._done = done
        self._rng = rng

    def finish(self, agent: str, event: Event) -> None:
        message = event.message
        self._done(agent, message.tp, message.offset)

    async def something_foreign(self) -> None:
        if self._sleepy and self._rng.random() < self._sleepy:
            await asyncio.sleep(self._rng.choice(SLEEPS_S))


def app_of(scene: Scene, done: HearsDone, rng: random.Random, **settings: object) -> App:
    """Make the app of a scene. Poison raises in the body, and is reported as done before that."""
    app = App(APP, **settings)
    reporter = _Reporter(scene, done, rng)
    words = app.topic(WORDS, value_type=str, value_serializer="raw")
    _split(app, words, reporter)
    _count(app, words, reporter)
    if scene.sizes:
        _size(app, words, reporter, moody=scene.moody)
    if scene.pair:
        _route(app, reporter)
    if scene.flows:
        _windows(app)
        _join(app)
    return app


def _split(app: App, words: Topic, reporter: _Reporter) -> None:
    @app.agent(app.topic(LINES, value_type=str, value_serializer="raw"), name="split")
    async def split(stream: Stream[str]) -> None:
        async for event in stream.events():
            if event.value.startswith(POISON):
                reporter.finish("split", event)
                raise ValueError(event.value)
            for word in event.value.split():
                await words.send(key=word, value=word)
            reporter.finish("split", event)


def _count(app: App, words: Topic, reporter: _Reporter) -> None:
    counts = app.Table("counts", default=int, key_type=str, value_type=int)

    @app.agent(words, name="count")
    async def count(stream: Stream[str]) -> None:
        async for event in stream.events():
            counts[event.value] += 1
            await reporter.something_foreign()
            reporter.finish("count", event)


def _size(app: App, words: Topic, reporter: _Reporter, *, moody: bool) -> None:
    sizes = app.Table("sizes", default=int, key_type=str, value_type=int)

    @app.agent(words, name="size")
    async def size(stream: Stream[str]) -> None:
        async for event in stream.events():
            found = mood(event.message.tp, event.message.offset) if moody else 1.0
            if found < FAILS:
                reporter.finish("size", event)
                raise ValueError(event.value)
            sizes[event.value] += len(event.value)
            if found < FAILS + WAITS:
                await asyncio.sleep(SLEEPS_S[event.message.offset % len(SLEEPS_S)])
            reporter.finish("size", event)


def mood(tp: TopicPartition, offset: int) -> float:
    """Return a number from 0 to 1 that depends on the record alone, not on its reader."""
    return random.Random(f"{tp}/{offset}").random()


def _route(app: App, reporter: _Reporter) -> None:
    routed = app.topic(ROUTED, value_type=str, value_serializer="raw")

    @app.agent(app.topic(A, B, value_type=str, value_serializer="raw"), name="route")
    async def route(stream: Stream[str]) -> None:
        async for event in stream.events():
            await reporter.something_foreign()
            await routed.send(value=event.value)
            reporter.finish("route", event)


def _windows(app: App) -> None:
    size = tumbling(f"{WINDOW_MS}ms", grace=f"{GRACE_MS}ms")
    words = app.flow(app.topic(WORDS, value_type=str, value_serializer="raw"))
    words.group_by_key().window(size).count("windows", emit="final").to(FINALS)


def _join(app: App) -> None:
    """Join words with those of odd numbers: the others have no match."""
    words = app.flow(app.topic(WORDS, value_type=str, value_serializer="raw"))
    words.join(
        words.filter(is_odd), _pair, kind="left", within=f"{WITHIN_MS}ms", grace=f"{GRACE_MS}ms",
        name="pairs",
    ).to(JOINED)  # fmt: skip


def is_odd(word: str) -> bool:
    return word[-1:] in set("13579")


def _pair(left: str, right: str | None) -> list[str | None]:
    return [left, right]


def readers(scene: Scene) -> dict[str, tuple[str, ...]]:
    """Return the agents that read each source topic."""
    pair = {A: ("route",), B: ("route",)} if scene.pair else {}
    return {LINES: ("split",), WORDS: ("count", "size") if scene.sizes else ("count",), **pair}
