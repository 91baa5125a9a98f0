"""SOCKS5 requests: what is understood, and what the client is told otherwise."""

from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trialyard.sandboxes.network import socks


@pytest.mark.parametrize(
    ("kind", "data", "host"),
    [
        (1, bytes([192, 0, 2, 1]), ip_address("192.0.2.1")),
        (4, ip_address("2001:db8::1").packed, ip_address("2001:db8::1")),
        (3, b"Example.ORG.", "example.org"),
        (3, b"169.254.169.254", ip_address("169.254.169.254")),
    ],
)
def test_every_type_of_address_is_read(kind: int, data: bytes, host: object) -> None:
    assert socks.check_request(bytes([5, 1, 0, kind])) == kind
    assert socks.parse_address(kind, data) == host


@pytest.mark.parametrize(
    ("fixed", "code"),
    [
        (b"\x05\x02\x00\x01", socks.NO_SUCH_COMMAND),
        (b"\x05\x03\x00\x01", socks.NO_SUCH_COMMAND),
        (b"\x05\x01\x00\x02", socks.NO_SUCH_ADDRESS_TYPE),
        (b"\x04\x01\x00\x01", socks.FAILED),
        (b"\x05\x01\x01\x01", socks.FAILED),
    ],
)
def test_what_is_not_spoken_is_said(fixed: bytes, code: int) -> None:
    with pytest.raises(socks.SocksError) as caught:
        socks.check_request(fixed)
    assert caught.value.answer == socks.reply(code)
    assert len(caught.value.answer) == 10


@given(st.sampled_from([1, 3, 4]), st.binary(max_size=255))
def test_any_name_is_a_host_or_an_error(kind: int, data: bytes) -> None:
    size = socks.ADDRESS_BYTES.get(kind)
    try:
        host = socks.parse_address(kind, data if size is None else data.ljust(size)[:size])
    except socks.SocksError:
        return
    assert not isinstance(host, str) or host == host.lower()


def test_port_zero_is_none() -> None:
    assert socks.parse_port(b"\x01\xbb") == 443
    with pytest.raises(socks.SocksError):
        socks.parse_port(b"\0\0")
