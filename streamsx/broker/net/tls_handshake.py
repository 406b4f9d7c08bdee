"""TLS handshake of a connection: counted from the first byte on, served once TLS is established.

asyncio could do the handshake alone. But then the broker would not know of a connection before its
handshake is over (1,500 connections that never continue take 0.5 GiB, whatever `--connections-max`
is), nor of the encrypted answers in the buffers below (40 clients that do not read hold 400 MiB,
where 64 are promised).

Not here: certificates (`access`), requests and answers (`client_connection`).
"""

import asyncio
import ssl

from streamsx.broker.net.client_connection import ClientConnection


class TlsHandshake(asyncio.Protocol):
    """Protocol of one accepted connection until TLS is established; `client` is the protocol
    afterwards.
    """

    def __init__(self, client: ClientConnection, tls: ssl.SSLContext, timeout_s: float) -> None:
        self._client = client
        self._tls = tls
        self._timeout_s = timeout_s
        self._early = bytearray()
        self._lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start the handshake, unless the connection was refused because there are too many."""
        assert isinstance(transport, asyncio.Transport)
        self._client.connection_made(transport)
        if not transport.is_closing():
            # The client keeps a reference, so the task lives as long as the client.
            self._client.handshake = asyncio.ensure_future(self._shake_hands(transport))

    def data_received(self, data: bytes) -> None:
        """Keep the data that came with the last bytes of the handshake, in the same turn
        of the loop.
        """
        self._early += data

    def connection_lost(self, error: Exception | None) -> None:
        self._lost = True
        self._client.connection_lost(error)

    async def _shake_hands(self, below: asyncio.Transport) -> None:
        if below.is_closing():  # closed meanwhile, in favour of newer connections
            return
        try:
            secure = await asyncio.get_running_loop().start_tls(
                below, self, self._tls, server_side=True, ssl_handshake_timeout=self._timeout_s
            )
        except OSError as error:  # SSLError is an OSError
            # A reset came from the client, or from this broker, which has logged its reason.
            if not isinstance(error, ConnectionResetError):
                self._client.close(f"no TLS: {error}")
            self._client.connection_lost(error)
            error.__traceback__ = None  # its frames and 0.3 MB with them form a reference cycle
            return
        if secure is None or self._lost:  # the connection was lost meanwhile
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
