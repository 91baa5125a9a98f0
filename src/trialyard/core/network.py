"""What a box may reach: nothing, or hosts and ports on an allow-list.

A `Network` is written as one string, ``none`` or ``allow-list:HOST:PORT,HOST:PORT``, and that
is its JSON form too. Hosts have one spelling each (`parse_host`): lower case, no dot at the
end, addresses as numbers in their usual form, so that comparing them is comparing strings.
"""

import re
import stat
from dataclasses import dataclass
from functools import cached_property
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from typing import Any, Literal

from pydantic import field_validator, model_serializer, model_validator

from trialyard.core.errors import UserError
from trialyard.core.record import Record

Address = IPv4Address | IPv6Address
ANY_PORT = 0
"""In place of a port: every port."""
_NAME_CHARACTERS = 253
_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_PORT = re.compile(r"[0-9]{1,5}")
_UNIX_PATH_BYTES = 107


class HostError(ValueError):
    """A host or port is not written as one."""


def parse_host(text: str) -> str | Address:
    """A host name in its one spelling, or the address that `text` is (IPv6 in brackets).

    What the resolver would take for an address although it does not look like one (``2130706433``,
    ``0x7f.1``, ``0177.0.0.1``) is refused. Raises `HostError`.
    """
    if text.startswith("[") and text.endswith("]"):
        return _parse_ipv6(text[1:-1])
    name = text.lower().removesuffix(".")
    labels = name.split(".")
    if not text.isascii() or not name or len(name) > _NAME_CHARACTERS:
        raise HostError("a host name has 1 to 253 ASCII characters (write others as xn--...)")
    if _NUMBER.fullmatch(labels[-1]):
        try:
            return IPv4Address(name)
        except ValueError:
            raise HostError("an IPv4 address is four decimal numbers of 0 to 255") from None
    if not all(_LABEL.fullmatch(label) for label in labels):
        raise HostError("a host name is letters, digits, '-' and '_' between dots")
    return name


def _parse_ipv6(text: str) -> IPv6Address:
    try:
        address = IPv6Address(text)
    except ValueError:
        raise HostError("an IPv6 address is written [2001:db8::1]") from None
    if address.scope_id is not None:
        raise HostError("an IPv6 address must have no zone")
    return address


def parse_port(text: str) -> int:
    """A port of 1 to 65535 in decimal digits. Raises `HostError`."""
    if not text.isascii() or not _PORT.fullmatch(text) or not 1 <= int(text) <= 65535:
        raise HostError("a port is a number of 1 to 65535")
    return int(text)


def split_authority(text: str) -> tuple[str, str]:
    """``HOST:PORT`` as host and port; the port is empty where there is none."""
    if text.startswith("["):
        host, bracket, rest = text.partition("]")
        if bracket and (not rest or rest.startswith(":")):
            return host + bracket, rest[1:]
        return text, ""
    host, _, port = text.partition(":")
    return host, port


def host_text(host: str | Address) -> str:
    """A host as it stands in front of a port."""
    return f"[{host}]" if isinstance(host, IPv6Address) else str(host)


@dataclass(frozen=True, slots=True)
class AllowedHost:
    """One entry of an allow-list. `subdomains`: names below `host`, without `host` itself."""

    host: str | Address
    port: int
    subdomains: bool = False

    def covers(self, host: str | Address, port: int) -> bool:
        """Whether this entry names that host (never a host that only resolves to it)."""
        if self.port not in (ANY_PORT, port):
            return False
        if self.subdomains:
            return isinstance(host, str) and host.endswith(f".{self.host}")
        return host == self.host

    def __str__(self) -> str:
        star = "*." if self.subdomains else ""
        return f"{star}{host_text(self.host)}:{self.port or '*'}"


def parse_allowed(text: str) -> AllowedHost:
    """An entry of an allow-list. Raises `UserError` that names the entry and the fix."""
    fix = "write HOST:PORT, e.g. a.org:443, *.example.org:443, 192.0.2.7:* or [2001:db8::1]:80"
    host_part, port_part = split_authority(text.strip())
    subdomains = host_part.startswith("*.")
    try:
        if not port_part:
            raise HostError("the port is missing")
        host = parse_host(host_part.removeprefix("*."))
        port = ANY_PORT if port_part == "*" else parse_port(port_part)
        if not isinstance(host, str):
            _check_address(host, subdomains)
    except HostError as error:
        raise UserError(f"network allow-list entry {text!r}: {error}; {fix}") from None
    return AllowedHost(host, port, subdomains)


def _check_address(address: Address, subdomains: bool) -> None:
    if subdomains:
        raise HostError("an address has no names below it")
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        raise HostError(f"an IPv4 address inside IPv6; list {address.ipv4_mapped}")
    if address.is_unspecified or address.is_multicast:
        raise HostError("this address is no host")


class Network(Record):
    """``none``: loopback only. ``allow-list``: the entries of `allow` too, through a proxy."""

    mode: Literal["none", "allow-list"] = "none"
    allow: tuple[str, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        mode, _, entries = value.partition(":")
        if mode not in ("none", "allow-list") or (mode == "none" and value != "none"):
            raise _invalid(f"network {value!r}: write none or allow-list:HOST:PORT,HOST:PORT")
        return {"mode": mode, "allow": tuple(entries.split(",")) if entries else ()}

    @field_validator("allow")
    @classmethod
    def _one_spelling(cls, entries: tuple[str, ...]) -> tuple[str, ...]:
        try:
            return tuple(dict.fromkeys(str(parse_allowed(entry)) for entry in entries))
        except UserError as error:
            raise _invalid(str(error)) from None

    @model_validator(mode="after")
    def _entries_fit_mode(self) -> "Network":
        if self.mode == "none" and self.allow:
            raise _invalid("network mode none takes no entries; write allow-list:HOST:PORT,...")
        if self.mode == "allow-list" and not self.allow:
            raise _invalid("network allow-list has no entry; write allow-list:HOST:PORT,...")
        return self

    @model_serializer
    def _text(self) -> str:
        return str(self)

    def __str__(self) -> str:
        return f"{self.mode}:{','.join(self.allow)}" if self.allow else self.mode

    @cached_property
    def entries(self) -> tuple[AllowedHost, ...]:
        """The allow-list, parsed."""
        return tuple(parse_allowed(entry) for entry in self.allow)


def _invalid(message: str) -> ValueError:
    return ValueError(message)


NetworkProtocol = Literal["connect", "http", "socks", "unknown"]
Verdict = Literal["allowed", "refused", "invalid", "unreachable"]


@dataclass(frozen=True, slots=True)
class NetworkAttempt:
    """One try of a box to reach something through its proxy."""

    time_s: float
    """Seconds since the epoch."""
    protocol: NetworkProtocol
    host: str
    """In its one spelling; empty when the request named none."""
    port: int
    address: str
    """The address that was connected to, or tried last; empty when none was."""
    verdict: Verdict
    reason: str
    """Why it was not allowed or failed; empty when it went well."""
    sent_bytes: int
    """From the box to the host that it reached."""
    received_bytes: int

    def to_json(self) -> dict[str, Any]:
        """JSON form."""
        return {name: getattr(self, name) for name in self.__slots__}


def check_relay(port: int, socket_path: str) -> None:
    """Raises `UserError` that names the field unless a relay can be made of these."""
    if isinstance(port, bool) or not isinstance(port, int) or not 1 <= port <= 65535:
        raise UserError(f"relay port {port!r}: must be a number of 1 to 65535")
    if not isinstance(socket_path, str) or not socket_path.startswith("/") or "\0" in socket_path:
        raise UserError(f"relay socket_path {socket_path!r}: must be an absolute path")
    if len(socket_path.encode("utf-8", "surrogateescape")) > _UNIX_PATH_BYTES:
        raise UserError(f"relay socket_path {socket_path!r}: longer than {_UNIX_PATH_BYTES} bytes")
    try:
        mode = Path(socket_path).stat().st_mode
    except OSError as error:
        raise UserError(
            f"relay socket_path {socket_path!r}: {error.strerror}; start its server first"
        ) from None
    if not stat.S_ISSOCK(mode):
        raise UserError(f"relay socket_path {socket_path!r}: is no Unix socket")
