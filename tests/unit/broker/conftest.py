"""A broker on the test's own event loop, and a client that sends bytes."""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import pytest

from streamsx.broker.net.server import BrokerServer
from streamsx.protocol import wire
from streamsx.protocol.record_batch import Builder
from streamsx.protocol.wire import Api

Story = Callable[["Client", "Client"], Coroutine[Any, Any, None]]
Run = Callable[..., None]


class Client:
    """Connection of a client; `broker` lets a test look inside."""

    def __init__(self, broker: BrokerServer) -> None:
        self.broker = broker

    async def __aenter__(self) -> Self:
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.broker.port)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.writer.close()
        with suppress(ConnectionError):
            await self.writer.wait_closed()

    def send(self, api: Api, version: int, **body: Any) -> None:
        self.writer.write(wire.request_encoder(api, version)(1, body, "test"))

    async def told(self, api: Api, version: int) -> Any:
        async with asyncio.timeout(10):
            size = int.from_bytes(await self.reader.readexactly(4))
            return wire.response_decoder(api, version)(await self.reader.readexactly(size))[1]

    async def ask(self, api: Api, version: int, **body: Any) -> Any:
        self.send(api, version, **body)
        return await self.told(api, version)

    async def produce(self, *values: bytes, partition: int = 0, acks: int = 1) -> Any:
        self.send(Api.PRODUCE, 9, **produced(*values, partition=partition, acks=acks))
        told = await self.told(Api.PRODUCE, 9)
        return told.responses[0].partition_responses[0]


def batch(*values: bytes, key: bytes | None = None) -> bytes:
    builder = Builder(1 << 20)
    for value in values:
        builder.append(1, key, value)
    return bytes(builder.close())


def produced(
    *values: bytes, partition: int = 0, acks: int = 1, topic: str = "t", key: bytes | None = None
) -> dict[str, Any]:
    data = [{"index": partition, "records": batch(*values, key=key)}]
    topics = [{"name": topic, "partition_data": data}]
    return {"acks": acks, "timeout": 1000, "topic_data": topics}


async def until(condition: Callable[[], object]) -> None:
    """Wait until a condition holds."""
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110  # of things that tell nobody
            await asyncio.sleep(0.001)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    async def whole(story: Story, about: dict[str, Any]) -> None:
        topics = about.pop("topics", {"t": 2})
        async with (
            BrokerServer(tmp_path / "data", topics=topics, **about) as broker,
            Client(broker) as client, Client(broker) as other,
        ):  # fmt: skip
            await story(client, other)

    return lambda story, **about: asyncio.run(whole(story, about))
