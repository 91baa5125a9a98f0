"""Servers of the host that boxes try to reach, and a client as a box would write it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def hello(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answers one HTTP request with its own head and body."""
    head = await reader.readuntil(b"\r\n\r\n")
    body = b""
    for line in head.split(b"\r\n"):
        if line.lower().startswith(b"content-length:"):
            body = await reader.readexactly(int(line.split(b":")[1]))
    said = head + body
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(said) + said)
    await writer.drain()


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Sends back what comes until the peer ends, then a last word."""
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.write(b"end")


def _closing(handler: Handler) -> Handler:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                await handler(reader, writer)
        finally:
            writer.close()

    return handle


@contextlib.asynccontextmanager
async def tcp_server(handler: Handler, host: str = "127.0.0.1") -> AsyncIterator[int]:
    """The port of a server on the host's loopback."""
    server = await asyncio.start_server(_closing(handler), host, 0)
    async with server:
        yield int(server.sockets[0].getsockname()[1])


@contextlib.asynccontextmanager
async def unix_server(handler: Handler, path: Path) -> AsyncIterator[str]:
    """The path of a server on a Unix socket."""
    server = await asyncio.start_unix_server(_closing(handler), path)
    async with server:
        yield str(path)


async def ask(port: int, data: bytes, *, end: bool = False) -> bytes:
    """All that comes back for `data` until the other side ends."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        with contextlib.suppress(OSError):
            writer.write(data)
            await writer.drain()
            if end:
                writer.write_eof()
        answer = b""
        with contextlib.suppress(ConnectionError):
            while chunk := await reader.read(65536):
                answer += chunk
        return answer
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
