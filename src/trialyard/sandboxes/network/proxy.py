"""The proxy that a box with an allow-list speaks to: HTTP CONNECT, plain HTTP/1, SOCKS5.

One port serves all three; the first byte tells them apart. Each connection carries one request
and is closed after it. What a client sends is bounded in size and time before it is believed;
a bad request gets 400, a refused one 403, a failed one 502 or 504, each with its reason.
"""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

from trialyard.core.network import Address
from trialyard.sandboxes.network import http, socks
from trialyard.sandboxes.network.door import Door, Refusal
from trialyard.sandboxes.network.flow import Clock, FlowError, Meter, Wire, join
from trialyard.sandboxes.network.forward import forward
from trialyard.sandboxes.network.log import Attempt, NetworkLog

HEAD_S = 15.0
"""A request must be whole by then."""
IDLE_S = 300.0
TOTAL_S = 6 * 3600.0
_STATUS = {
    "invalid": "400 Bad Request",
    "refused": "403 Forbidden",
    "unreachable": "502 Bad Gateway",
}
_TIMED_OUT = "504 Gateway Timeout"
_ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"


class Proxy:
    """Serves the connections that one box makes to its proxy port."""

    def __init__(
        self,
        door: Door,
        meter: Meter,
        log: NetworkLog,
        *,
        head_s: float = HEAD_S,
        idle_s: float = IDLE_S,
    ) -> None:
        self._door = door
        self._meter = meter
        self._log = log
        self._head_s = head_s
        self._idle_s = idle_s

    async def serve(self, connection: socket.socket) -> None:
        """One connection, until it ends; closes it. Raises nothing but cancellation."""
        client = Wire(connection, self._meter)
        try:
            async with asyncio.timeout(self._head_s):
                first = await client.peek()
            if first:
                await self._serve(client, first[0])
        except (OSError, TimeoutError):
            return  # nothing was asked
        finally:
            client.close()

    async def _serve(self, client: Wire, first: int) -> None:
        attempt = self._log.begin()
        speak = self._serve_socks if first == socks.VERSION else self._serve_http
        try:
            await speak(client, attempt)
        except TimeoutError:
            attempt.reason = "nothing passed for too long"
        except OSError as error:
            attempt.reason = f"the connection broke: {error.strerror or error}"

    def _clock(self) -> Clock:
        return Clock(self._idle_s, TOTAL_S)

    @contextlib.asynccontextmanager
    async def _server(
        self, host: str | Address, port: int, attempt: Attempt
    ) -> AsyncIterator[Wire]:
        """A connection to the host; what passed is in `attempt` at the end. Raises `Refusal`."""
        server = Wire(await self._door.open(host, port, attempt), self._meter)
        attempt.counts = server
        try:
            yield server
        finally:
            server.close()

    # --- HTTP ---------------------------------------------------------------------------

    async def _serve_http(self, client: Wire, attempt: Attempt) -> None:
        try:
            request = await self._read_http(client)
            attempt.protocol = "connect" if request.is_connect else "http"
            async with self._server(request.host, request.port, attempt) as server:
                if request.is_connect:
                    await client.send(_ESTABLISHED)
                    await join(client, server, self._clock())
                    return
                await self._forward(request, client, server)
        except Refusal as refusal:
            attempt.reason = refusal.reason
            if client.sent_bytes == 0:  # else an answer is under way, and ends early
                attempt.verdict = refusal.verdict
                await client.send(_answer(refusal))
        await client.linger()

    async def _forward(self, request: http.Request, client: Wire, server: Wire) -> None:
        try:
            await forward(request, client, server, self._clock())
        except TimeoutError:
            raise Refusal("unreachable", "nothing passed for too long", timed_out=True) from None
        except OSError as error:
            raise Refusal("unreachable", f"the connection broke: {error.strerror}") from None

    async def _read_http(self, client: Wire) -> http.Request:
        try:
            async with asyncio.timeout(self._head_s):
                return http.parse_request(await client.until(b"\r\n\r\n", http.HEAD_BYTES))
        except TimeoutError:
            reason = f"no whole request within {self._head_s:g} s"
        except (FlowError, http.InvalidMessage) as error:
            reason = str(error)
        raise Refusal("invalid", reason)

    # --- SOCKS5 -------------------------------------------------------------------------

    async def _serve_socks(self, client: Wire, attempt: Attempt) -> None:
        attempt.protocol = "socks"
        try:
            host, port = await self._read_socks(client)
            async with self._server(host, port, attempt) as server:
                await client.send(socks.reply(socks.GRANTED))
                await join(client, server, self._clock())
                return
        except socks.SocksError as error:
            attempt.reason = str(error)
            await client.send(error.answer)
        except Refusal as refusal:
            attempt.verdict, attempt.reason = refusal.verdict, refusal.reason
            refused = refusal.verdict == "refused"
            code = socks.NOT_ALLOWED if refused else socks.HOST_UNREACHABLE
            await client.send(socks.reply(code))
        await client.linger()

    async def _read_socks(self, client: Wire) -> tuple[str | Address, int]:
        try:
            async with asyncio.timeout(self._head_s):
                _, num_methods = await client.exactly(2)
                if socks.NO_AUTHENTICATION not in await client.exactly(num_methods):
                    raise socks.SocksError("only without authentication", socks.NO_METHOD)
                await client.send(socks.METHOD_CHOSEN)
                kind = socks.check_request(await client.exactly(4))
                size = socks.ADDRESS_BYTES.get(kind) or (await client.exactly(1))[0]
                host = socks.parse_address(kind, await client.exactly(size))
                return host, socks.parse_port(await client.exactly(2))
        except TimeoutError:
            reason = f"no whole request within {self._head_s:g} s"
        except FlowError as error:
            reason = str(error)
        raise socks.SocksError(reason)


def _answer(refusal: Refusal) -> bytes:
    """A whole response that says why; the connection ends after it."""
    status = _TIMED_OUT if refusal.timed_out else _STATUS[refusal.verdict]
    body = f"trialyard: {refusal.reason}\n".encode()
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: text/plain; charset=utf-8\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body
