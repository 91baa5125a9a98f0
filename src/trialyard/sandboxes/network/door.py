"""From a named host to a connection with it: the only way out of a box.

The order is the defence: the allow-list first (on the name, before anybody resolves it), then
the lookup, then a check of every address, then a connection to the address just checked.
"""

import asyncio
import contextlib
import errno
import socket
from collections.abc import Callable, Sequence

from trialyard.core.network import Address, AllowedHost, Verdict, host_text
from trialyard.sandboxes.network.addresses import Resolver, is_listed, is_own, why_closed
from trialyard.sandboxes.network.log import Attempt

OPEN_TIMEOUT_S = 15.0
CONNECT_TIMEOUT_S = 5.0
"""For one of several addresses."""
_ADDRESSES_TRIED = 4
_BUFFER_BYTES = 256 << 10


class Refusal(Exception):
    """A request leads nowhere: malformed, refused by policy, or failed."""

    def __init__(self, verdict: Verdict, reason: str, *, timed_out: bool = False) -> None:
        super().__init__(reason)
        self.verdict: Verdict = verdict
        self.reason = reason
        self.timed_out = timed_out
        """Told as another status: nothing came, rather than something wrong."""


class Door:
    """Opens connections of one box to what its allow-list names."""

    def __init__(
        self,
        entries: Sequence[AllowedHost],
        resolver: Resolver,
        own: Callable[[Address], bool] = is_own,
    ) -> None:
        self._entries = tuple(entries)
        self._resolver = resolver
        self._own = own

    async def open(self, host: str | Address, port: int, attempt: Attempt) -> socket.socket:
        """A connected socket; `attempt` learns what was tried. Raises `Refusal`."""
        attempt.host, attempt.port = str(host), port
        connection = await self._open(host, port, attempt)
        attempt.verdict, attempt.reason = "allowed", ""
        return connection

    async def _open(self, host: str | Address, port: int, attempt: Attempt) -> socket.socket:
        if not is_listed(self._entries, host, port):
            raise Refusal("refused", f"{host_text(host)}:{port} is not on the allow-list")
        try:
            async with asyncio.timeout(OPEN_TIMEOUT_S):
                addresses = await self._addresses(host, port)
                return await self._connect_any(addresses, port, attempt)
        except TimeoutError:
            text = f"{host_text(host)}:{port} does not answer"
            raise Refusal("unreachable", text, timed_out=True) from None

    async def _addresses(self, host: str | Address, port: int) -> list[Address]:
        """Those that may be connected to; listed literal addresses may be anything."""
        if not isinstance(host, str):
            return [host]
        try:
            found = await self._resolver(host)
        except OSError as error:
            raise Refusal("unreachable", f"{host} does not resolve: {_text(error)}") from None
        if not found:
            raise Refusal("unreachable", f"{host} has no address")
        closed = [
            "" if is_listed(self._entries, address, port) else why_closed(address, self._own)
            for address in found
        ]
        good = [address for address, why in zip(found, closed, strict=True) if not why]
        if not good:
            text = f"{host} resolves to {found[0]} ({closed[0]}), which only a listing of"
            raise Refusal("refused", f"{text} {host_text(found[0])}:{port} itself opens")
        return good[:_ADDRESSES_TRIED]

    async def _connect_any(
        self, addresses: Sequence[Address], port: int, attempt: Attempt
    ) -> socket.socket:
        last: Refusal | None = None
        for address in addresses:
            attempt.address = str(address)
            only = len(addresses) == 1
            try:
                async with asyncio.timeout(None if only else CONNECT_TIMEOUT_S):
                    return await connect(address, port)
            except TimeoutError:
                last = Refusal("unreachable", f"{address} does not answer", timed_out=True)
            except OSError as error:
                last = Refusal("unreachable", f"{address} cannot be reached: {_text(error)}")
        assert last is not None
        raise last


async def connect(address: Address, port: int) -> socket.socket:
    """A connection to exactly this address. Raises `OSError`."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    connection = socket.socket(family, socket.SOCK_STREAM)
    try:
        connection.setblocking(False)
        bound_buffers(connection, _BUFFER_BYTES)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await asyncio.get_running_loop().sock_connect(connection, (str(address), port))
    except BaseException:
        connection.close()
        raise
    return connection


def bound_buffers(connection: socket.socket, size_bytes: int) -> None:
    """What the kernel keeps for one connection is the host's memory, so it is bounded."""
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, size_bytes)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, size_bytes)


def _text(error: OSError) -> str:
    return errno.errorcode.get(error.errno or 0, "") or str(error.strerror or error)
