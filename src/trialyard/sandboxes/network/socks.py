"""SOCKS5 (RFC 1928) as far as the proxy speaks it: no authentication, CONNECT only.

Pure functions on bytes; a name stays a name here, since the allow-list comes before a lookup.
"""

from ipaddress import IPv4Address, IPv6Address

from trialyard.core.network import Address, HostError, parse_host

VERSION = 5
NO_AUTHENTICATION = 0
METHOD_CHOSEN = b"\x05\x00"
NO_METHOD = b"\x05\xff"

GRANTED, FAILED, NOT_ALLOWED, HOST_UNREACHABLE = 0, 1, 2, 4
NO_SUCH_COMMAND, NO_SUCH_ADDRESS_TYPE = 7, 8
_CONNECT = 1
_IPV4, _NAME, _IPV6 = 1, 3, 4
ADDRESS_BYTES = {_IPV4: 4, _IPV6: 16}
"""Length by type of address; a name begins with its own."""


def reply(code: int) -> bytes:
    """A reply; the address that the proxy connected from is none of the box's business."""
    return bytes((VERSION, code, 0, _IPV4)) + bytes(6)


class SocksError(ValueError):
    """A message that is not SOCKS5 as spoken here; `answer` is what the client gets."""

    def __init__(self, message: str, answer: bytes = reply(FAILED)) -> None:
        super().__init__(message)
        self.answer = answer


def check_request(fixed: bytes) -> int:
    """The address type in a request's first four bytes. Raises `SocksError`."""
    version, command, reserved, kind = fixed
    if version != VERSION or reserved != 0:
        raise SocksError("the request is not SOCKS5")
    if command != _CONNECT:
        raise SocksError("only CONNECT is spoken here", reply(NO_SUCH_COMMAND))
    if kind not in (_IPV4, _NAME, _IPV6):
        raise SocksError("no such type of address", reply(NO_SUCH_ADDRESS_TYPE))
    return kind


def parse_address(kind: int, data: bytes) -> str | Address:
    """The host that the request names. Raises `SocksError`."""
    if kind == _IPV4:
        return IPv4Address(data)
    if kind == _IPV6:
        return IPv6Address(data)
    try:
        return parse_host(data.decode("ascii"))
    except (HostError, UnicodeDecodeError) as error:
        raise SocksError(f"no host to go to: {error}") from None


def parse_port(data: bytes) -> int:
    """The port, of which 0 is none. Raises `SocksError`."""
    port = int.from_bytes(data, "big")
    if port == 0:
        raise SocksError("no port to go to")
    return port
