"""HTTP/1 heads as a filtering proxy must read them: strictly, or two parsers will disagree.

Pure functions on bytes. A head has lines that end in CRLF and nothing else; one Host; one way
to tell where the body ends. What is sent on is written anew from what was understood, so no
ambiguous byte of a box reaches a server. Raises `InvalidMessage`.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from trialyard.core.network import (
    Address,
    HostError,
    host_text,
    parse_host,
    parse_port,
    split_authority,
)

HEAD_BYTES = 32_768
_LINE_BYTES = 8192
_HEADERS = 128
_TOKEN = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,256}")
_VALUE = re.compile(rb"[\t\x20-\x7e\x80-\xff]*")
_TARGET = re.compile(rb"[\x21\x22\x24-\x7e]+")
_LENGTH = re.compile(rb"[0-9]{1,15}")
_CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[\t\x20-\x7e\x80-\xff]*)?\r\n")
_HOP_BY_HOP = frozenset(
    (b"connection", b"keep-alive", b"proxy-connection", b"proxy-authorization",
     b"proxy-authenticate", b"te", b"trailer", b"upgrade", b"http2-settings")
)  # fmt: skip
_FRAMING = frozenset((b"host", b"content-length", b"transfer-encoding"))

Header = tuple[bytes, bytes]
Body = Literal["chunked", "until-end"] | int
"""How a body ends: in chunks, with the connection, or after so many bytes."""


class InvalidMessage(ValueError):
    """A message that is not HTTP/1 as it should be; the text says what is wrong."""


@dataclass(frozen=True, slots=True)
class Request:
    """What a client asks of the proxy. `target` is empty for CONNECT, else a path or ``*``.

    `headers` are those from end to end.
    """

    method: bytes
    host: str | Address
    port: int
    target: bytes
    minor: int
    headers: tuple[Header, ...]
    body: Body

    @property
    def is_connect(self) -> bool:
        return self.method == b"CONNECT"

    def head(self) -> bytes:
        """As the server gets it: one request, then the end."""
        port = "" if self.port == 80 else f":{self.port}"
        kept = [header for header in self.headers if header[0].lower() != b"host"]
        line = b"%s %s HTTP/1.%d" % (self.method, self.target, self.minor)
        host = (b"Host", f"{host_text(self.host)}{port}".encode())
        return _write(line, [host, *kept, (b"Connection", b"close")])


@dataclass(frozen=True, slots=True)
class Response:
    """A server's head; `body` says how its body ends."""

    status: int
    line: bytes
    headers: tuple[Header, ...]
    body: Body

    @property
    def is_interim(self) -> bool:
        """A head before the real one, e.g. 100 Continue."""
        return 100 <= self.status < 200

    def head(self) -> bytes:
        """As the client gets it; after a final one the connection ends."""
        last = [] if self.is_interim else [(b"Connection", b"close")]
        return _write(self.line, [*self.headers, *last])


def parse_request(head: bytes) -> Request:
    """A head up to and with its empty line."""
    line, headers = _split(head)
    words = line.split(b" ")
    if len(words) != 3 or not _TOKEN.fullmatch(words[0]) or not _TARGET.fullmatch(words[1]):
        raise InvalidMessage("the first line is not METHOD TARGET HTTP/1.1")
    method, target, version = words
    if version not in (b"HTTP/1.0", b"HTTP/1.1"):
        raise InvalidMessage("only HTTP/1.0 and HTTP/1.1 are spoken here")
    minor = version[-1] - ord("0")
    if method == b"CONNECT":
        return Request(method, *_authority(target, None), b"", minor, (), 0)
    host, port, path = _absolute_target(method, target)
    _check_host(headers, host, port, minor)
    body = _body(headers)
    if body == "chunked" and minor == 0:
        raise InvalidMessage("HTTP/1.0 knows no Transfer-Encoding")
    return Request(method, host, port, path, minor, _end_to_end(headers), body or 0)


def parse_response(head: bytes, method: bytes) -> Response:
    """The head of an answer to a request of that method."""
    line, headers = _split(head)
    match = re.fullmatch(rb"HTTP/1\.[01] ([1-9][0-9]{2})( [\t\x20-\x7e\x80-\xff]*)?", line)
    if not match:
        raise InvalidMessage("the server's first line is not HTTP/1.1 STATUS REASON")
    status = int(match[1])
    if status == 101:
        raise InvalidMessage("the server changed the protocol unasked")
    body = _body(headers)
    if method == b"HEAD" or status < 200 or status in (204, 304):
        body = 0
    return Response(status, line, _end_to_end(headers), "until-end" if body is None else body)


def parse_chunk_size(line: bytes) -> int:
    """The size of the chunk that follows this line, which ends in CRLF."""
    match = _CHUNK_SIZE.fullmatch(line)
    if not match:
        raise InvalidMessage("a chunk does not begin with its size")
    return int(match[1], 16)


def _split(head: bytes) -> tuple[bytes, tuple[Header, ...]]:
    if not head.endswith(b"\r\n\r\n"):
        raise InvalidMessage("the head has no end")
    lines = head[:-4].split(b"\r\n")
    if len(lines) > _HEADERS + 1 or any(len(line) > _LINE_BYTES for line in lines):
        raise InvalidMessage(f"more than {_HEADERS} headers, or one of over {_LINE_BYTES} bytes")
    if not all(_VALUE.fullmatch(line) for line in lines):
        raise InvalidMessage("a line holds a bare CR or LF or another control character")
    return lines[0], tuple(_header(line) for line in lines[1:])


def _header(line: bytes) -> Header:
    name, colon, value = line.partition(b":")
    if not colon or not _TOKEN.fullmatch(name):
        raise InvalidMessage("a header is not NAME: VALUE on one line")
    return name, value.strip(b" \t")


def _authority(text: bytes, default_port: int | None) -> tuple[str | Address, int]:
    try:
        host, port = split_authority(text.decode("ascii"))
        if port == "" and default_port is not None and not text.endswith(b":"):
            return parse_host(host), default_port
        return parse_host(host), parse_port(port)
    except (HostError, UnicodeDecodeError) as error:
        raise InvalidMessage(f"no HOST:PORT to go to: {error}") from None


def _absolute_target(method: bytes, target: bytes) -> tuple[str | Address, int, bytes]:
    scheme, separator, rest = target.partition(b"://")
    if not separator or scheme.lower() != b"http":
        raise InvalidMessage("this is a proxy: ask for http://HOST/PATH, or CONNECT HOST:PORT")
    authority = re.split(rb"[/?]", rest, maxsplit=1)[0]
    host, port = _authority(authority, 80)
    path = rest[len(authority) :]
    if not path and method == b"OPTIONS":
        return host, port, b"*"
    return host, port, path if path.startswith(b"/") else b"/" + path


def _check_host(headers: Iterable[Header], host: str | Address, port: int, minor: int) -> None:
    values = [value for name, value in headers if name.lower() == b"host"]
    if not values and minor == 0:
        return
    if len(values) != 1:
        raise InvalidMessage("a request has exactly one Host")
    if _authority(values[0], 80) != (host, port):
        raise InvalidMessage("Host is not the host of the URL")


def _body(headers: Sequence[Header]) -> Body | None:
    """How the body ends; None when the headers do not say."""
    lengths = [value for name, value in headers if name.lower() == b"content-length"]
    codings = [value.lower() for name, value in headers if name.lower() == b"transfer-encoding"]
    if codings:
        if codings != [b"chunked"] or lengths:
            raise InvalidMessage("Transfer-Encoding must be chunked, without Content-Length")
        return "chunked"
    if not lengths:
        return None
    if len(lengths) != 1 or not _LENGTH.fullmatch(lengths[0]):
        raise InvalidMessage("Content-Length must be one number")
    return int(lengths[0])


def _end_to_end(headers: Sequence[Header]) -> tuple[Header, ...]:
    """Without those that are between two neighbours only."""
    listed = {
        option.strip(b" \t").lower()
        for name, value in headers
        if name.lower() == b"connection"
        for option in value.split(b",")
    }
    if listed & _FRAMING:
        raise InvalidMessage("Connection must not name Host or what tells where the body ends")
    dropped = listed | _HOP_BY_HOP
    return tuple(header for header in headers if header[0].lower() not in dropped)


def _write(line: bytes, headers: Iterable[Header]) -> bytes:
    lines = [line, *(b"%s: %s" % header for header in headers)]
    return b"\r\n".join(lines) + b"\r\n\r\n"
