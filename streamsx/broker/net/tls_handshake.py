"""A connection that begins with TLS: counted from its first byte on, and served when TLS stands.

asyncio would do it by itself, but then nobody knows of the connection before the handshake is over
("1,500 that never go on take 0.5 GiB, whatever `--connections-max` says"), nor of the answers that
lie encrypted below ("40 silent readers hold 400 MiB, where 64 are promised").

Not here: certificates (`access`), what is said on the connection (`connection`).
"""

import asyncio
import ssl

from streamsx.broker.net.client_connection import ClientConnection


class TlsHandshake(asyncio.Protocol):
    """Of one accepted connection; then `client` has it."""

    def __init__(self, client: ClientConnection, tls: ssl.SSLContext, timeout_s: float) -> None:
        self._client, self._tls, self._timeout_s = client, tls, timeout_s
        self._early = bytearray()
        self._lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Accepted. It may be closed at once: there are enough."""
        assert isinstance(transport, asyncio.Transport)
        self._client.connection_made(transport)
        if not transport.is_closing():
            # The client has it, and so it lives as long as that.
            self._client.handshake = asyncio.ensure_future(self._shake_hands(transport))

    def data_received(self, data: bytes) -> None:
        """In the turn in which the handshake ends: what came with its last bytes."""
        self._early += data

    def connection_lost(self, error: Exception | None) -> None:
        self._lost = True
        self._client.connection_lost(error)

    async def _shake_hands(self, below: asyncio.Transport) -> None:
        if below.is_closing():  # others have come meanwhile
            return
        try:
            secure = await asyncio.get_running_loop().start_tls(
                below, self, self._tls, server_side=True, ssl_handshake_timeout=self._timeout_s
            )
        except OSError as error:  # of ssl too
            if not isinstance(error, ConnectionResetError):  # by the client, or by us with a word
                self._client.close(f"no TLS: {error}")
            self._client.connection_lost(error)
            error.__traceback__ = None  # whose frames, and 0.3 MB with them, hold each other
            return
        if secure is None or self._lost:  # it was lost meanwhile
            self._client.connection_lost(None)
            return
        secure.set_protocol(self._client)
        self._client.secured(secure)
        while self._early:
            room = self._client.get_buffer(len(self._early))
            count = min(len(room), len(self._early))
            room[:count] = self._early[:count]
            del self._early[:count]
            self._client.buffer_updated(count)
