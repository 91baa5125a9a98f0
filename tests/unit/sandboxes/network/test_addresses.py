"""Which addresses are closed, and that lookups are bounded."""

import asyncio
import socket
from collections.abc import Sequence
from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trialyard.core.network import Address
from trialyard.sandboxes.network.addresses import (
    BoundedResolver,
    closed_range,
    is_own,
    resolve,
    why_closed,
)

CLOSED = (
    "0.0.0.0", "0.1.2.3", "10.0.0.1", "10.255.255.255", "100.64.0.1", "100.100.100.200",
    "100.127.255.255", "127.0.0.1", "127.255.0.1", "168.63.129.16", "169.254.169.254",
    "169.254.170.2", "172.16.0.1", "172.31.255.255", "192.0.0.192", "192.168.1.1", "198.18.0.1",
    "224.0.0.1", "239.1.1.1", "240.0.0.1", "255.255.255.255", "::", "::1",
    "::ffff:169.254.169.254", "::ffff:8.8.8.8", "::7f00:1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::1",
    "100::1", "fc00::1", "fd00:ec2::254", "fd20:ce::254", "fe80::1", "fec0::1", "ff02::1",
    "2001::1", "2001:0:4136:e378:8000:63bf:3fff:fdd2", "2001:db8::1", "2002:7f00:1::1",
    "2002:a9fe:a9fe::", "3fff::1", "5f00::1",
)  # fmt: skip
OPEN = (
    "8.8.8.8", "1.1.1.1", "100.63.255.255", "100.128.0.1", "172.32.0.1", "169.253.1.1",
    "2606:4700::1", "2a00::1",
)  # fmt: skip


@pytest.mark.parametrize("text", CLOSED)
def test_special_addresses_are_closed(text: str) -> None:
    assert closed_range(ip_address(text))


@pytest.mark.parametrize("text", OPEN)
def test_public_addresses_are_open(text: str) -> None:
    assert why_closed(ip_address(text), own=lambda _: False) == ""


@given(st.ip_addresses())
def test_no_address_is_open_that_python_knows_as_special(address: Address) -> None:
    if not closed_range(address):
        assert address.is_global
        assert not address.is_multicast


def test_the_hosts_own_addresses_are_known() -> None:
    assert is_own(ip_address("127.0.0.1"))
    assert not is_own(ip_address("8.8.8.8"))
    assert not is_own(ip_address("2001:4860:4860::8888"))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("8.8.8.8", 53))
        except OSError:
            return  # this machine has no way out
        assert is_own(ip_address(probe.getsockname()[0]))
    assert why_closed(ip_address("8.8.8.8"), own=lambda _: True) == "the sandbox host's own"


async def test_a_name_is_looked_up_in_a_thread_of_its_own() -> None:
    assert ip_address("127.0.0.1") in await resolve("localhost")
    with pytest.raises(OSError, match=r".+"):
        await resolve("does-not-exist.invalid")
    with pytest.raises(OSError, match=r".+"):
        await resolve("a" * 70 + ".org")


async def test_lookups_are_bounded_also_those_that_nobody_waits_for() -> None:
    running, most = 0, 0

    async def slow(name: str) -> Sequence[Address]:
        nonlocal running, most
        running += 1
        most = max(most, running)
        try:
            await asyncio.sleep(0.02)
        finally:
            running -= 1
        return [ip_address("8.8.8.8")]

    resolver = BoundedResolver(slow, most=2)
    tasks = [asyncio.create_task(resolver(f"{n}.org")) for n in range(10)]
    await asyncio.sleep(0.01)
    for task in tasks[:5]:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert most == 2
    left = asyncio.create_task(resolver("last.org"))
    await asyncio.sleep(0)
    left.cancel()
    await resolver.close()
    await asyncio.sleep(0)
    assert running == 0
