"""Broker that answers by a script: for what real brokers do rarely, late or wrongly.

It knows every request and version of our codec, and answers ApiVersions and Metadata by itself: it
is its only node, leads all partitions, and has the given topics. It keeps no records.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from ssl import SSLContext
from typing import Any, NamedTuple, Self

from streamsx.protocol import wire
from streamsx.protocol.error_codes import ErrorCode
from streamsx.protocol.wire import Api, Body

NODE = 1


class Asked(NamedTuple):
    """Request that arrived."""

    api: int
    version: int
    correlation_id: int
    body: Any
    connection: int
    """Counted from 1."""


Answer = Callable[[Asked], Body | bytes | Awaitable[Body | bytes | None] | None]
"""A body to encode, or bytes to send as they are, or None to hang up. Awaited if it waits: nothing
else is answered on that connection until then, as with Kafka."""


class ScriptedBroker:
    """Broker in this process. An async context manager.

    `answers`, `topics`, `ranges` and `piece` may be changed while it runs.
    """

    def __init__(
        self,
        answers: Mapping[int, Answer] | None = None,
        topics: Mapping[str, int] | None = None,
        ssl_context: SSLContext | None = None,
    ) -> None:
        self.answers: dict[int, Answer] = dict(answers or {})
        self.topics = dict(topics or {})
        """Partition counts."""
        self.ranges: dict[int, tuple[int, int]] = {}
        """Versions it claims to speak, where they are not those of our codec."""
        self.features: Body = {}
        """Further fields of ApiVersions: the features that it has finalized."""
        self.piece = 0
        """How many bytes it sends at a time; 0 for all."""
        self.asked: list[Asked] = []
        self.connections = 0
        self._ssl_context = ssl_context
        self._server: asyncio.Server | None = None
        self._talks: set[asyncio.Task[None]] = set()
        self.port = 0

    @property
    def bootstrap(self) -> str:
        """Return HOST:PORT, the same after a restart."""
        return f"127.0.0.1:{self.port}"

    def asked_for(self, api: int) -> list[Asked]:
        """Return the requests of one kind, in the order of arrival."""
        return [asked for asked in self.asked if asked.api == api]

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Listen, on the earlier port if there was one."""
        self._server = await asyncio.start_server(
            self._connected, "127.0.0.1", self.port, ssl=self._ssl_context
        )
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Close all connections and stop listening."""
        if self._server:
            self._server.close()
        talks = list(self._talks)
        self.hang_up()
        await asyncio.gather(*talks, return_exceptions=True)

    def hang_up(self) -> None:
        """Close all connections, as a broker does with idle ones."""
        for talk in self._talks:
            talk.cancel()

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        talk = asyncio.create_task(self._talk(reader, writer, self.connections), name="talk")
        self._talks.add(talk)
        talk.add_done_callback(self._talks.discard)

    async def _talk(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int
    ) -> None:
        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError):
                while await self._answer(reader, writer, number):
                    pass
        finally:
            writer.close()

    async def _answer(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int
    ) -> bool:
        size = int.from_bytes(await reader.readexactly(4), "big")
        frame = await reader.readexactly(size)
        api, version, correlation_id = wire.request_head(frame)
        _, body = wire.request_decoder(api, version)(frame)
        asked = Asked(api, version, correlation_id, body, number)
        self.asked.append(asked)
        answer = self._script(api)(asked)
        if isinstance(answer, Awaitable):
            answer = await answer
        if answer is None:
            return False
        encode = wire.response_encoder(api, version)
        sent = answer if isinstance(answer, bytes) else bytes(encode(correlation_id, answer))
        piece = self.piece or len(sent)
        for at in range(0, len(sent), piece):
            writer.write(sent[at : at + piece])
            await writer.drain()
            await asyncio.sleep(0)  # lets the other side read it
        return True

    def _script(self, api: int) -> Answer:
        own: dict[int, Answer] = {
            Api.API_VERSIONS: self._api_versions,
            Api.METADATA: self._metadata,
        }
        return {**own, **self.answers}[api]

    def _api_versions(self, asked: Asked) -> Body:
        ranges = {api.value: wire.versions(api) for api in Api} | self.ranges
        keys = [
            {"api_key": api, "min_version": low, "max_version": high}
            for api, (low, high) in ranges.items()
        ]
        return {"error_code": ErrorCode.NONE, "api_keys": keys, **self.features}

    def _metadata(self, asked: Asked) -> Body:
        wanted = self.topics if asked.body.topics is None else [t.name for t in asked.body.topics]
        return {
            "brokers": [{"node_id": NODE, "host": "127.0.0.1", "port": self.port}],
            "controller_id": NODE,
            "topics": [self._topic(name) for name in wanted],
        }

    def _topic(self, name: str) -> Body:
        if name not in self.topics:
            return {"name": name, "error_code": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
        partitions = [{"partition_index": i, "leader_id": NODE} for i in range(self.topics[name])]
        return {"name": name, "partitions": partitions}
