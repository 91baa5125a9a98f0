"""Which addresses a box may reach, and the lookup of names on the host.

A name is compared with the allow-list before anything is looked up. What it resolves to is
checked address by address, and the caller connects to the very address that was checked: a
name cannot be rebound in between. An address that is not public is reached only where the
allow-list holds that literal address.
"""

import asyncio
import errno
import functools
import socket
import threading
from collections.abc import Awaitable, Callable, Sequence
from ipaddress import IPv4Network, IPv6Network, ip_address

from trialyard.core.network import Address, AllowedHost

Resolver = Callable[[str], Awaitable[Sequence[Address]]]
"""Addresses of a name, best first. Raises `OSError`."""

_CLOSED_V4 = tuple(
    (IPv4Network(network), what)
    for network, what in (
        ("0.0.0.0/8", "this host"),
        ("10.0.0.0/8", "private"),
        ("100.64.0.0/10", "shared (carrier or cloud metadata)"),
        ("127.0.0.0/8", "loopback"),
        ("168.63.129.16/32", "cloud metadata"),
        ("169.254.0.0/16", "link-local (cloud metadata)"),
        ("172.16.0.0/12", "private"),
        ("192.0.0.0/24", "reserved (cloud metadata)"),
        ("192.0.2.0/24", "documentation"),
        ("192.88.99.0/24", "6to4 relay"),
        ("192.168.0.0/16", "private"),
        ("198.18.0.0/15", "benchmarking"),
        ("198.51.100.0/24", "documentation"),
        ("203.0.113.0/24", "documentation"),
        ("224.0.0.0/4", "multicast"),
        ("240.0.0.0/4", "reserved or broadcast"),
    )
)
_GLOBAL_V6 = IPv6Network("2000::/3")
_CLOSED_V6 = tuple(
    (IPv6Network(network), what)
    for network, what in (
        ("2001::/23", "Teredo or another protocol's"),
        ("2001:db8::/32", "documentation"),
        ("2002::/16", "6to4"),
        ("3fff::/20", "documentation"),
    )
)


def closed_range(address: Address) -> str:
    """What kind of closed range an address lies in; empty for a public address."""
    if address.version == 4:
        return next((what for network, what in _CLOSED_V4 if address in network), "")
    if address not in _GLOBAL_V6:  # ::1, mapped and translated IPv4, ULA, link-local, multicast
        return "not a global IPv6 address"
    return next((what for network, what in _CLOSED_V6 if address in network), "")


def is_own(address: Address) -> bool:
    """Whether an address is this host's: exactly to those a socket can be bound."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((str(address), 0))
    except OSError as error:
        # Without IPv6 nothing is reached; any other trouble closes the address.
        return error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
    return True


def why_closed(address: Address, own: Callable[[Address], bool] = is_own) -> str:
    """Why a box may not reach an address that is not listed; empty when it may."""
    return closed_range(address) or ("the sandbox host's own" if own(address) else "")


def is_listed(entries: Sequence[AllowedHost], host: str | Address, port: int) -> bool:
    """Whether the allow-list names this host and port."""
    return any(entry.covers(host, port) for entry in entries)


async def resolve(name: str) -> list[Address]:
    """Addresses of a name by the host's resolver, in a thread of its own. Raises `OSError`.

    The thread is a daemon: a lookup that hangs holds up neither the loop nor the end of the
    program. Whoever calls bounds their number.
    """
    loop = asyncio.get_running_loop()
    found: asyncio.Future[list[Address]] = loop.create_future()

    def look_up() -> None:
        outcome: list[Address] | OSError
        try:
            outcome = _addresses(name)
        except OSError as error:
            outcome = error
        except UnicodeError:
            outcome = OSError(f"{name} is no host name")
        try:
            loop.call_soon_threadsafe(_settle, found, outcome)
        except RuntimeError:  # the loop is closed: nobody waits any more
            return

    threading.Thread(target=look_up, name="box-lookup", daemon=True).start()
    return await asyncio.shield(found)


def _addresses(name: str) -> list[Address]:
    rows = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    texts = [str(row[4][0]) for row in rows]
    return [ip_address(text) for text in dict.fromkeys(texts) if "%" not in text]


def _settle(found: "asyncio.Future[list[Address]]", outcome: list[Address] | OSError) -> None:
    if isinstance(outcome, OSError):
        found.set_exception(outcome)
        found.exception()  # nobody may be waiting any more
    else:
        found.set_result(outcome)


class BoundedResolver:
    """A resolver with at most `most` lookups under way, also those that nobody waits for."""

    def __init__(self, resolver: Resolver = resolve, most: int = 4) -> None:
        self._resolver = resolver
        self._room = asyncio.Semaphore(most)
        self._lookups: set[asyncio.Task[Sequence[Address]]] = set()

    async def __call__(self, name: str) -> Sequence[Address]:
        await self._room.acquire()
        lookup = asyncio.ensure_future(self._resolver(name))
        self._lookups.add(lookup)
        lookup.add_done_callback(functools.partial(_forget, self._lookups, self._room))
        return await asyncio.shield(lookup)

    async def close(self) -> None:
        """Wait for none of them."""
        for lookup in list(self._lookups):
            lookup.cancel()
        await asyncio.gather(*self._lookups, return_exceptions=True)


def _forget(
    lookups: set[asyncio.Task[Sequence[Address]]],
    room: asyncio.Semaphore,
    lookup: asyncio.Task[Sequence[Address]],
) -> None:
    lookups.discard(lookup)
    room.release()
    if not lookup.cancelled():
        lookup.exception()
