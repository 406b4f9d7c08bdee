"""The shell's answers to what it is started with, and what it says it serves."""

import asyncio
from pathlib import Path

import pytest

from streamsx.broker.connection import Limits
from streamsx.broker.server import Broker, handlers
from streamsx.errors import UsageError
from streamsx.kafka import wire


@pytest.mark.parametrize("api", handlers(), ids=lambda api: wire.Api(api).name)
def test_each_version_that_is_served_has_a_schema(api: int) -> None:
    _, (oldest, newest) = handlers()[api]
    known = wire.versions(api)
    assert known[0] <= oldest <= newest <= known[1]


@pytest.mark.parametrize("topic", [("t", 0), ("t", -1), ("t", 9), ("a b", 1), ("", 1)])
def test_a_topic_that_cannot_be_is_refused_before_anything_is_made(
    tmp_path: Path, topic: tuple[str, int]
) -> None:
    name, partitions = topic

    async def started() -> None:
        limits = Limits(partitions_max=8)
        async with Broker(tmp_path / "data", topics={name: partitions}, limits=limits):
            raise AssertionError("it serves")

    with pytest.raises(UsageError, match=f"bad topic: {name}:{partitions}: "):
        asyncio.run(started())
