"""Fixtures of apps in memory, each with an id of its own, and drivers that close after the test."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from streamsx import App
from streamsx.testing import TestDriver


@pytest.fixture
def app() -> App:
    return App("shop", topic_partitions=2)


@pytest.fixture
def drive() -> Iterator[Callable[..., TestDriver]]:
    made: list[TestDriver] = []

    def start(app: App, **options: Any) -> TestDriver:
        made.append(TestDriver(app, **options))
        return made[-1]

    yield start
    for driver in made:
        driver.close()
