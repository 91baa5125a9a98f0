"""The network of one box: its proxy, where it has an allow-list, and its relays.

Needs of the box only a pidfd of its PID 1, so any backend can use it. Nothing is made before
`open` or `relay`; `close` ends every connection. The box's namespace itself has loopback only.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType

from trialyard.core.errors import SandboxLost
from trialyard.core.network import NetworkAttempt, check_relay
from trialyard.core.sandbox import Limits
from trialyard.sandboxes.network.addresses import BoundedResolver, Resolver, resolve
from trialyard.sandboxes.network.door import Door
from trialyard.sandboxes.network.flow import Meter
from trialyard.sandboxes.network.listener import LOOPBACK, Listener, Room, listen_inside
from trialyard.sandboxes.network.log import NetworkLog
from trialyard.sandboxes.network.proxy import Proxy
from trialyard.sandboxes.network.relay import Relay

PROXY_PORT = 3128
"""The same in every box, so that what a program prints of it is too."""
MOST_BYTES_PER_S = 100_000_000
"""Of a box without a bandwidth limit: more would take the supervisor's time, not the box's."""
_PROXY_URL = f"http://{LOOPBACK}:{PROXY_PORT}"
_DIRECT = "localhost,127.0.0.1,::1"
_PROXY_ENV = MappingProxyType(
    {
        spelling: value
        for name, value in (
            ("http_proxy", _PROXY_URL),
            ("https_proxy", _PROXY_URL),
            ("all_proxy", _PROXY_URL),
            ("no_proxy", _DIRECT),
        )
        for spelling in (name, name.upper())
    }
)


class BoxNetwork:
    """Made for a box that may not have started yet; lives in the box's event loop."""

    def __init__(self, limits: Limits, *, resolver: Resolver = resolve) -> None:
        self._network = limits.network
        self._meter = Meter(limits.bandwidth_bytes_per_s or MOST_BYTES_PER_S)
        self._log = NetworkLog()
        self._resolver = BoundedResolver(resolver)
        self._room = Room()
        self._listeners: list[Listener] = []
        self._opening = asyncio.Lock()
        self._is_open = False
        self._closed = False

    @property
    def env(self) -> Mapping[str, str]:
        """Defaults for the environment of commands: where the proxy is."""
        return _PROXY_ENV if self._network.mode == "allow-list" else {}

    @property
    def throttled(self) -> int:
        """How often the box had to wait for bandwidth."""
        return self._meter.throttled

    def log(self) -> tuple[NetworkAttempt, ...]:
        """Attempts through the proxy, oldest first; of very many the first and the latest."""
        return self._log.attempts()

    async def open(self, init_pidfd: int) -> None:
        """Start the proxy if the box has an allow-list; before its first command. Idempotent.

        Raises `SandboxError`, `SandboxLost`.
        """
        if self._network.mode == "none" or self._is_open:
            return
        async with self._opening:
            if not self._is_open:
                door = Door(self._network.entries, self._resolver)
                proxy = Proxy(door, self._meter, self._log)
                await self._listen(init_pidfd, PROXY_PORT, proxy.serve)
                self._is_open = True

    async def relay(self, init_pidfd: int, port: int, socket_path: str) -> None:
        """Connections to 127.0.0.1:`port` inside reach the host's Unix socket, until `close`.

        Raises `UserError` (bad port, port in use, no such socket), `SandboxError`.
        """
        check_relay(port, socket_path)
        async with self._opening:
            await self._listen(init_pidfd, port, Relay(socket_path, self._meter).serve)

    async def _listen(
        self, init_pidfd: int, port: int, serve: Callable[[socket.socket], Awaitable[None]]
    ) -> None:
        if self._closed:  # the pidfd may be closed too
            raise SandboxLost("the box is gone")
        listener = await listen_inside(init_pidfd, port)
        self._listeners.append(Listener(listener, serve, self._room))

    async def close(self) -> None:
        """End every connection; nothing is left. Idempotent."""
        self._closed = True
        async with self._opening:
            for listener in self._listeners:
                await listener.close()
            await self._resolver.close()
