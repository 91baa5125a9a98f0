"""A relay: connections to one port inside a box go to one Unix socket of the host."""

import asyncio
import contextlib
import socket

from trialyard.sandboxes.network.flow import Clock, Meter, Wire, join

CONNECT_TIMEOUT_S = 10.0


class Relay:
    """Serves the connections to one relay port. They live as long as both ends want."""

    def __init__(self, socket_path: str, meter: Meter) -> None:
        self._socket_path = socket_path
        self._meter = meter

    async def serve(self, connection: socket.socket) -> None:
        """One connection, until it ends; closes it. Raises nothing but cancellation."""
        client = Wire(connection, self._meter)
        try:
            with contextlib.suppress(OSError, TimeoutError):
                await self._join(client)
        finally:
            client.close()

    async def _join(self, client: Wire) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as upstream:
            upstream.setblocking(False)
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                await _connect(upstream, self._socket_path)
            await join(client, Wire(upstream, self._meter), Clock(None))


async def _connect(upstream: socket.socket, path: str) -> None:
    """Connect; a server whose queue is full says EAGAIN, which is no readiness to wait for."""
    wait_s = 0.005
    while True:
        try:
            upstream.connect(path)
            return
        except BlockingIOError:
            await asyncio.sleep(wait_s)
            wait_s = min(0.5, wait_s * 2)
