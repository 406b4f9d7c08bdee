"""Connection taken over from aiokafka: replies in pieces, losses, bad replies; with a scripted
broker.
"""

import asyncio
import itertools
import socket
import ssl
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamsx.client.api_versions import NEWEST, VersionRange
from streamsx.client.connection import Address, Connection, connect
from streamsx.client.security import PLAINTEXT, Security
from streamsx.errors import BrokerUnreachable, SettingError, UsageError
from streamsx.protocol import wire
from streamsx.protocol.wire import Api
from tests.support.scripted_broker import Answer, Asked, ScriptedBroker

BEAT = {"group_id": "g", "generation_id": 1, "member_id": "m"}
Story = Callable[[ScriptedBroker, Connection], Coroutine[Any, Any, None]]


def run(story: Story, answers: dict[int, Answer], security: Security = PLAINTEXT) -> None:
    """Run a story with a scripted broker and a connection to it."""

    async def told() -> None:
        async with asyncio.timeout(10), ScriptedBroker(answers) as broker:
            opened = await connect(Address("127.0.0.1", broker.port), security)
            try:
                await story(broker, opened)
            finally:
                await opened.close()

    asyncio.run(told())


def beat_with_generation(asked: Asked) -> wire.Body:
    """Return a heartbeat whose error code is its generation, so that replies can be told apart."""
    return {"error_code": asked.body.generation_id}


def beat(generation: int) -> wire.Body:
    return {**BEAT, "generation_id": generation}


async def never(asked: Asked) -> None:
    await asyncio.Event().wait()


BEATS: dict[int, Answer] = {Api.HEARTBEAT: beat_with_generation}


def test_request_receives_response() -> None:
    async def story(broker: ScriptedBroker, opened: Connection) -> None:
        reply = await opened.ask(Api.HEARTBEAT, beat(27))
        assert reply.error_code == 27

    run(story, BEATS)


@pytest.mark.parametrize("piece", [0, 1, 3, 4, 5])
def test_responses_arrive_in_request_order_in_any_pieces(piece: int) -> None:
    async def story(broker: ScriptedBroker, opened: Connection) -> None:
        broker.piece = piece
        asked = [opened.ask(Api.HEARTBEAT, beat(i)) for i in range(20)]
        assert [reply.error_code for reply in await asyncio.gather(*asked)] == list(range(20))

    run(story, BEATS)


@given(st.lists(st.integers(0, 30_000), max_size=6), st.lists(st.integers(1, 40_000), min_size=1))
def test_frames_reassembled_from_any_network_pieces(sizes: list[int], cuts: list[int]) -> None:
    async def story(broker: ScriptedBroker, opened: Connection) -> None:
        arrived: list[int] = []
        sent = b""
        for number, size in enumerate(sizes, 1):
            opened.call(Api.JOIN_GROUP, {}, lambda reply: arrived.append(len(reply.leader)))
            sent += wire.response_encoder(Api.JOIN_GROUP, 5)(number, {"leader": "x" * size})
        for cut in itertools.cycle(cuts):
            if not sent:
                break
            buffer = opened.get_buffer(-1)
            count = min(cut, len(buffer), len(sent))
            buffer[:count] = sent[:count]
            opened.buffer_updated(count)
            sent = sent[count:]
        assert arrived == sizes

    run(story, {Api.JOIN_GROUP: never})


@pytest.mark.parametrize("size", [60_000, 65_536, 70_000, 3_000_000])
def test_large_reply_received_into_buffer_of_records(size: int) -> None:
    records = bytes(range(256)) * (size // 256)

    def fetched(asked: Asked) -> wire.Body:
        partition = {"partition_index": 0, "records": records}
        return {"responses": [{"topic": "t", "partitions": [partition]}]}

    async def story(broker: ScriptedBroker, opened: Connection) -> None:
        first = opened.ask(Api.FETCH, {"topics": []})
        replies = await asyncio.gather(first, opened.ask(Api.HEARTBEAT, beat(5)))
        view = replies[0].responses[0].partitions[0].records
        assert view == records
        assert len(view.obj) < size + 100
        assert replies[1].error_code == 5

    run(story, {Api.FETCH: fetched, **BEATS})


def test_callback_runs_during_reply_arrival() -> None:
    async def story(broker: ScriptedBroker, opened: Connection) -> None:
        order: list[str] = []
        opened.call(Api.HEARTBEAT, beat(1), lambda _: order.append("first"))
        opened.call(Api.HEARTBEAT, beat(2), lambda _: order.append("second"))
        arrived = opened.buffer_updated

        def noted(nbytes: int) -> None:
            arrived(nbytes)
            order.append("received")

        opened.buffer_updated = noted  # type: ignore[method-assign]  # to see when it runs
        await opened.ask(Api.HEARTBEAT, beat(3))
        assert order[0] == "first"
        assert set(order) == {"first", "second", "received"}
        assert order.index("received") > order.index("first")

    run(story, BEATS)


def test_waiting_and_later_requests_fail_when_broker_closes() -> None:
    async def story(broker: ScriptedBroker, opened: Connection) -> None:
        asked = [opened.ask(Api.JOIN_GROUP, {}), opened.ask(Api.HEARTBEAT, BEAT)]
        heard = asyncio.gather(*asked, return_exceptions=True)
        await until(lambda: broker.asked_for(Api.JOIN_GROUP))
        broker.hang_up()

        assert [str(error) for error in await heard] == [
            f"JOIN_GROUP v5: {broker.bootstrap}: closed by the broker",
            f"HEARTBEAT v3: {broker.bootstrap}: closed by the broker",
        ]
        assert opened.closed
        with pytest.raises(BrokerUnreachable, match=r"HEARTBEAT v3: .*: closed by the broker"):
            await opened.ask(Api.HEARTBEAT, BEAT)

    run(story, {Api.JOIN_GROUP: never, **BEATS})


async def until(true: Callable[[], object]) -> None:
    """Let the loop turn until a condition holds; the timeout of `run` ends a wait in vain."""
    while not true():  # noqa: ASYNC110  # no event tells what a socket will bring
        await asyncio.sleep(0)


def test_idle_connection_closed_when_broker_closes() -> None:
    async def story(broker: ScriptedBroker, opened: Connection) -> None:
        await opened.ask(Api.HEARTBEAT, BEAT)
        assert not opened.closed
        broker.hang_up()
        await until(lambda: opened.closed)

    run(story, BEATS)


def test_aiokafka_read_task_cancelled_after_takeover() -> None:
    async def story(broker: ScriptedBroker, opened: Connection) -> None:
        await opened.ask(Api.HEARTBEAT, BEAT)
        assert opened._opened._read_task.cancelled()

    run(story, BEATS)


def test_connection_reset_reported_to_aiokafka() -> None:
    async def story(broker: ScriptedBroker, opened: Connection) -> None:
        assert opened._opened.connected()
        transport: Any = opened._transport
        transport._fatal_error(ConnectionResetError("by peer"))
        await until(lambda: opened.closed and not opened._opened.connected())
        assert "by peer" in repr(opened)

    run(story, BEATS)


def test_request_timeout_aborts_connection_and_names_request() -> None:
    async def story(broker: ScriptedBroker, opened: Connection) -> None:
        behind = asyncio.create_task(opened.ask(Api.HEARTBEAT, BEAT))
        with pytest.raises(BrokerUnreachable, match=r"JOIN_GROUP v5: .*: no answer in 0.01 s"):
            await opened.ask(Api.JOIN_GROUP, {}, 0.01)
        with pytest.raises(BrokerUnreachable, match=r"HEARTBEAT v3: .*: no answer in 0.01 s"):
            await behind
        assert opened.closed

    run(story, {Api.JOIN_GROUP: never, Api.HEARTBEAT: never})


def test_cancelled_request_does_not_disturb_others() -> None:
    async def story(broker: ScriptedBroker, opened: Connection) -> None:
        first = asyncio.create_task(opened.ask(Api.HEARTBEAT, beat(1)))
        second = asyncio.create_task(opened.ask(Api.HEARTBEAT, beat(2)))
        await asyncio.sleep(0)
        first.cancel()
        assert (await second).error_code == 2
        assert not opened.closed

    run(story, BEATS)


def test_silent_connection_closed_after_timeout_though_request_cancelled() -> None:
    """Each later request waited for all of its own timeout, on the same connection."""

    async def story(broker: ScriptedBroker, opened: Connection) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await opened.ask(Api.HEARTBEAT, BEAT, 0.2)
        await until(lambda: opened.closed)
        assert "no answer in 0.2 s" in repr(opened)

    run(story, {Api.HEARTBEAT: never})


def test_abort_resets_connection_instead_of_closing() -> None:
    async def told() -> None:
        ends: asyncio.Queue[BaseException | bytes] = asyncio.Queue()

        async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            keys = [{"api_key": Api.HEARTBEAT, "max_version": 4}]
            await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
            writer.write(wire.response_encoder(Api.API_VERSIONS, 0)(1, {"api_keys": keys}))
            try:
                ends.put_nowait(await reader.read(4))
                ends.put_nowait(await reader.read())
            except ConnectionError as error:
                ends.put_nowait(error)
            writer.close()

        async with asyncio.timeout(10), await asyncio.start_server(talk, "127.0.0.1", 0) as server:
            opened = await connect(Address(*server.sockets[0].getsockname()))
            opened.call(Api.HEARTBEAT, BEAT, lambda _: None)
            await ends.get()
            opened.abort()
            assert isinstance(await ends.get(), ConnectionResetError)
            assert opened.closed

    asyncio.run(told())


def answered(frame: bytes) -> Answer:
    return lambda asked: len(frame).to_bytes(4, "big", signed=True) + frame


LIES: list[tuple[Answer, str]] = [
    (lambda asked: b"\xff\xff\xff\xff", "a frame of -1 bytes"),
    (lambda asked: b"\x00\x00\x00\x03abc", "a frame of 3 bytes"),
    (lambda asked: b"HTTP/1.1 400 Bad Request\r\n\r\n", "a frame of 1213486160 bytes"),
    (answered(bytes(10)), "a reply to 0, not to 1"),
    (answered(b"\0\0\0\1" + bytes(5)), "cut short"),
    (answered(b"\0\0\0\1" + bytes(7)), "11 bytes where its lengths say 10"),
]


@pytest.mark.parametrize(("lie", "complaint"), LIES)
def test_malformed_reply_closes_connection_with_one_clear_error(
    lie: Answer, complaint: str
) -> None:
    async def story(broker: ScriptedBroker, opened: Connection) -> None:
        asked = [opened.ask(Api.HEARTBEAT, BEAT), opened.ask(Api.HEARTBEAT, BEAT)]
        first, second = await asyncio.gather(*asked, return_exceptions=True)
        assert str(first) == str(second)
        assert f"{broker.bootstrap}: malformed: {complaint}" in str(first)
        assert opened.closed

    run(story, {Api.HEARTBEAT: lie})


@pytest.mark.parametrize("rubbish", [b"\xff\xff\xff\xff", b"\0\0\0\5abcde", b"\0\0\0\3abc"])
def test_reply_accepted_before_rubbish_in_same_packet(rubbish: bytes) -> None:
    async def story(broker: ScriptedBroker, opened: Connection) -> None:
        asked = [opened.ask(Api.HEARTBEAT, BEAT), opened.ask(Api.HEARTBEAT, BEAT)]
        first, second = await asyncio.gather(*asked, return_exceptions=True)
        assert getattr(first, "error_code", first) == 27
        assert isinstance(second, BrokerUnreachable)
        assert opened.closed

    good = wire.response_encoder(Api.HEARTBEAT, 3)(1, {"error_code": 27})
    run(story, {Api.HEARTBEAT: lambda asked: bytes(good) + rubbish})


def test_unrequested_reply_closes_connection() -> None:
    async def story(broker: ScriptedBroker, opened: Connection) -> None:
        await opened.ask(Api.HEARTBEAT, BEAT)
        await until(lambda: opened.closed)
        assert "a reply to nothing" in repr(opened)

    twice = wire.response_encoder(Api.HEARTBEAT, 3)(1, {}) * 2
    run(story, {Api.HEARTBEAT: lambda asked: bytes(twice)})


def test_exception_in_callback_does_not_keep_loss_from_others() -> None:
    async def story(broker: ScriptedBroker, opened: Connection) -> None:
        raised: list[object] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: raised.append(context["exception"]))
        heard: asyncio.Future[object] = loop.create_future()

        def fails(reply: object) -> None:
            raise KeyError("ours")

        opened.call(Api.HEARTBEAT, BEAT, fails)
        opened.call(Api.HEARTBEAT, BEAT, heard.set_result)
        opened.abort("the lease ran out")
        assert "HEARTBEAT v3" in str(await heard)
        assert "the lease ran out" in str(await heard)
        assert [type(error) for error in raised] == [KeyError]

    run(story, {Api.HEARTBEAT: never})


def test_newest_version_common_to_client_and_broker_is_used() -> None:
    async def told() -> None:
        async with ScriptedBroker(BEATS) as broker:
            broker.ranges = {Api.HEARTBEAT: (0, 1), Api.FETCH: (0, 3), Api.PRODUCE: (10, 12)}
            opened = await connect(Address("127.0.0.1", broker.port))
            assert opened.version(Api.HEARTBEAT) == 1
            assert opened.version(Api.METADATA) == NEWEST[Api.METADATA]
            for api in (Api.FETCH, Api.PRODUCE):
                with pytest.raises(UsageError, match=f"{api.name}: .*: use Kafka 2.5 or newer"):
                    opened.version(api)
            await opened.ask(Api.HEARTBEAT, BEAT)
            assert broker.asked_for(Api.HEARTBEAT)[0].version == 1
            await opened.close()

    asyncio.run(told())


def test_each_request_has_the_newest_allowed_version() -> None:
    async def story() -> None:
        async with ScriptedBroker(BEATS) as broker:
            broker.ranges = {Api.HEARTBEAT: (1, 4)}
            opened = await connect(Address("127.0.0.1", broker.port))
            for allowed in (VersionRange(0, 2), None, VersionRange(4, 9)):
                await opened.ask(Api.HEARTBEAT, BEAT, versions=allowed)
            assert [asked.version for asked in broker.asked_for(Api.HEARTBEAT)] == [2, 3, 4]
            await opened.close()

    asyncio.run(story())


def test_request_without_common_version_raises_usage_error() -> None:
    async def story() -> None:
        async with ScriptedBroker(BEATS) as broker:
            broker.ranges = {Api.HEARTBEAT: (1, 3)}
            opened = await connect(Address("127.0.0.1", broker.port))
            newer = VersionRange(4, 4)
            assert not opened.speaks(Api.HEARTBEAT, newer)
            with pytest.raises(
                UsageError, match=r"HEARTBEAT: .*: it speaks versions 1 to 3, we 4 to"
            ):
                await opened.ask(Api.HEARTBEAT, BEAT, versions=newer)
            assert opened.speaks(Api.HEARTBEAT, VersionRange(3, 4))
            await opened.close()

    asyncio.run(story())


def test_closed_port_raises_unreachable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = Address(*taken.getsockname())
    with pytest.raises(BrokerUnreachable, match=f"no connection: {address}: "):
        asyncio.run(connect(address))


def test_silent_broker_raises_unreachable() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        pytest.raises(BrokerUnreachable, match=r"no answer in 0.0333 s: 127.0.0.1:"),
    ):
        asyncio.run(connect(Address(*silent.getsockname()), timeout_s=0.1 / 3))


def names(monkeypatch: pytest.MonkeyPatch, name: str, *addresses: str) -> None:
    """Make the resolver of the machine return several addresses for a name."""
    real = socket.getaddrinfo

    def found(host: Any, *about: Any, **more: Any) -> Any:
        hosts = addresses if host == name else [host]
        return [each for one in hosts for each in real(one, *about, **more)]

    monkeypatch.setattr(socket, "getaddrinfo", found)


@pytest.mark.parametrize("first", ["refuses", "is silent", "hangs up"])
def test_next_address_of_hostname_is_tried(monkeypatch: pytest.MonkeyPatch, first: str) -> None:
    names(monkeypatch, "kafka.test", "127.0.0.2", "127.0.0.1")

    async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async def story() -> None:
        async with ScriptedBroker(BEATS) as broker, AsyncExitStack() as stack:
            if first == "is silent":
                stack.enter_context(socket.create_server(("127.0.0.2", broker.port)))
            elif first == "hangs up":
                await stack.enter_async_context(
                    await asyncio.start_server(hang_up, "127.0.0.2", broker.port)
                )
            opened = await connect(Address("kafka.test", broker.port))
            await opened.ask(Api.HEARTBEAT, BEAT)
            await opened.close()

    asyncio.run(story())


def test_unreachable_hostname_error_lists_each_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names(monkeypatch, "kafka.test", "127.0.0.2", "127.0.0.1")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(BrokerUnreachable) as told:
        asyncio.run(connect(Address("kafka.test", port)))
    for address in "127.0.0.2", "127.0.0.1":
        assert f"no connection: kafka.test:{port} ({address}): " in str(told.value)


def test_unknown_hostname_raises_unreachable() -> None:
    with pytest.raises(BrokerUnreachable, match=r"no connection: kafka\.invalid:9092: "):
        asyncio.run(connect(Address("kafka.invalid", 9092)))


def test_certificate_checked_against_hostname_not_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    certificate = Path(__file__).parents[2] / "support" / "localhost.pem"
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(certificate)
    trusting = ssl.create_default_context(cafile=str(certificate))
    security = Security(security_protocol="SSL", ssl_context=trusting)

    async def story(name: str) -> None:
        names(monkeypatch, name, "127.0.0.2", "127.0.0.1")
        async with ScriptedBroker(BEATS, ssl_context=server) as broker:
            opened = await connect(Address(name, broker.port), security)
            await opened.close()

    asyncio.run(story("localhost"))
    with pytest.raises(BrokerUnreachable, match="certificate verify failed"):
        asyncio.run(story("kafka.test"))


@pytest.mark.parametrize("tls", [False, True])
def test_hang_up_on_connect_error_asks_for_kafka_and_security_settings(tls: bool) -> None:
    async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async def story() -> None:
        async with await asyncio.start_server(hang_up, "127.0.0.1", 0) as server:
            context = ssl.create_default_context() if tls else None
            security = Security("SSL" if tls else "PLAINTEXT", ssl_context=context)
            await connect(Address(*server.sockets[0].getsockname()), security)

    what = "one with TLS" if tls else "one without TLS and credentials"
    with pytest.raises(BrokerUnreachable, match=f"is it a Kafka broker, and {what}"):
        asyncio.run(story())


def test_tcp_user_timeout_is_set_on_socket() -> None:
    async def told() -> int:
        async with ScriptedBroker() as broker:
            opened = await connect(Address("127.0.0.1", broker.port), user_timeout_ms=2000)
            sock = opened._transport.get_extra_info("socket")
            value: int = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
            await opened.close()
            return value

    assert asyncio.run(told()) == 2000


def test_tls_connection_taken_over_like_plain_connection() -> None:
    certificate = Path(__file__).parents[2] / "support" / "localhost.pem"
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(certificate)
    records = bytes(1_000_000)

    def fetched(asked: Asked) -> wire.Body:
        partition = {"partition_index": 0, "records": records}
        return {"responses": [{"topic": "t", "partitions": [partition]}]}

    async def told() -> None:
        trusting = ssl.create_default_context(cafile=str(certificate))
        security = Security(security_protocol="SSL", ssl_context=trusting)
        async with ScriptedBroker({Api.FETCH: fetched, **BEATS}, ssl_context=server) as broker:
            opened = await connect(Address("127.0.0.1", broker.port), security)
            broker.piece = 10_000
            reply = await opened.ask(Api.FETCH, {"topics": []})
            assert reply.responses[0].partitions[0].records == records
            opened.call(Api.HEARTBEAT, BEAT, lambda _: None)
            opened.abort()
            assert opened.closed
            await opened.close()

    asyncio.run(told())


def sasl(accepts: bytes) -> dict[int, Answer]:
    def handshake(asked: Asked) -> wire.Body:
        return {"mechanisms": ["PLAIN"]}

    def authenticate(asked: Asked) -> wire.Body:
        if asked.body.auth_bytes == accepts:
            return {"auth_bytes": b""}
        return {"error_code": 58, "error_message": "who is that?", "auth_bytes": b""}

    return {Api.SASL_HANDSHAKE: handshake, Api.SASL_AUTHENTICATE: authenticate, **BEATS}


def test_sasl_user_authenticated_before_takeover() -> None:
    async def story(broker: ScriptedBroker, opened: Connection) -> None:
        assert (await opened.ask(Api.HEARTBEAT, beat(3))).error_code == 3

    run(story, sasl(b"me\0me\0secret"), user("me", "secret"))


def test_wrong_password_raises_setting_error() -> None:
    async def story(broker: ScriptedBroker, opened: Connection) -> None:
        raise AssertionError("it let us in")

    with pytest.raises(SettingError, match=r"refused by the broker: 127.0.0.1:.*who is that"):
        run(story, sasl(b"me\0me\0secret"), user("me", "wrong"))


def user(name: str, password: str) -> Security:
    return Security(
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="PLAIN",
        sasl_plain_username=name,
        sasl_plain_password=password,
    )


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"security_protocol": "TLS"}, "unknown security_protocol"),
        ({"security_protocol": "SSL"}, "ssl_context is missing"),
        ({"security_protocol": "SASL_PLAINTEXT"}, "sasl_mechanism is missing"),
        (
            {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN"},
            "user or password is missing",
        ),
    ],
)
def test_inconsistent_security_settings_refused(settings: dict[str, str], complaint: str) -> None:
    with pytest.raises(SettingError, match=complaint):
        Security(**settings)  # type: ignore[arg-type]  # all of these are strings


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:9092", Address("127.0.0.1", 9092)),
        (" kafka-1.example:19092 ", Address("kafka-1.example", 19092)),
        ("[::1]:9092", Address("::1", 9092)),
    ],
)
def test_addresses_parsed_and_formatted(text: str, address: Address) -> None:
    assert Address.parse(text) == address
    assert str(address) == text.strip()


@pytest.mark.parametrize("text", ["", "localhost", ":9092", "localhost:", "a:0", "a:65536", "a:b"])
def test_invalid_address_refused(text: str) -> None:
    with pytest.raises(SettingError, match="write HOST:PORT"):
        Address.parse(text)
