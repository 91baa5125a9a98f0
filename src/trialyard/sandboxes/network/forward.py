"""One plain HTTP/1 request and its answer, through the proxy.

The request is written anew and sent over a connection of its own; its body is framed anew too.
Both directions run at once, since a server may answer before it has read everything.
"""

import asyncio

from trialyard.sandboxes.network import http
from trialyard.sandboxes.network.door import Refusal
from trialyard.sandboxes.network.flow import Clock, FlowError, Wire

_LINE_BYTES = 1024
_TRAILER_BYTES = 8192
_INTERIM_HEADS = 8


async def forward(request: http.Request, client: Wire, server: Wire, clock: Clock) -> None:
    """Raises `Refusal` (a bad body or answer), `OSError` or `TimeoutError`."""
    async with clock:
        await server.send(request.head())
        upload = asyncio.ensure_future(_upload(request, client, server, clock))
        download = asyncio.ensure_future(_download(request, server, client, clock))
        try:
            await asyncio.wait({upload, download}, return_when=asyncio.FIRST_COMPLETED)
            if upload.done():
                upload.result()
            await download
        finally:
            upload.cancel()
            download.cancel()
            await asyncio.gather(upload, download, return_exceptions=True)


async def _upload(request: http.Request, client: Wire, server: Wire, clock: Clock) -> None:
    try:
        await _copy_body(request.body, client, server, clock)
    except (FlowError, http.InvalidMessage) as error:
        raise Refusal("invalid", f"the body: {error}") from None
    except OSError:
        return  # the server takes no more; its answer may say why


async def _download(request: http.Request, server: Wire, client: Wire, clock: Clock) -> None:
    try:
        for _ in range(_INTERIM_HEADS):
            head = await server.until(b"\r\n\r\n", http.HEAD_BYTES)
            response = http.parse_response(head, request.method)
            await client.send(response.head())
            clock.moved()
            if not response.is_interim:
                await _copy_body(response.body, server, client, clock)
                return
        raise FlowError(f"more than {_INTERIM_HEADS} heads and no answer")
    except (FlowError, http.InvalidMessage) as error:
        raise Refusal("unreachable", f"the server's answer: {error}") from None


async def _copy_body(body: http.Body, source: Wire, sink: Wire, clock: Clock) -> None:
    if body == "chunked":
        await _copy_chunks(source, sink, clock)
    elif body == "until-end":
        while chunk := await source.some():
            await sink.send(chunk)
            clock.moved()
    else:
        assert isinstance(body, int)
        await _copy(body, source, sink, clock)


async def _copy(num_bytes: int, source: Wire, sink: Wire, clock: Clock) -> None:
    while num_bytes > 0:
        chunk = await source.some(num_bytes)
        if not chunk:
            raise FlowError("it ended too early")
        num_bytes -= len(chunk)
        await sink.send(chunk)
        clock.moved()


async def _copy_chunks(source: Wire, sink: Wire, clock: Clock) -> None:
    """Chunk by chunk, without extensions and trailers."""
    while size := http.parse_chunk_size(await source.until(b"\r\n", _LINE_BYTES)):
        await sink.send(b"%x\r\n" % size)
        await _copy(size, source, sink, clock)
        if await source.exactly(2) != b"\r\n":
            raise http.InvalidMessage("a chunk is longer than its size")
        await sink.send(b"\r\n")
    left = _TRAILER_BYTES
    while (line := await source.until(b"\r\n", left)) != b"\r\n":
        if not line:
            raise FlowError("it ended too early")
        left -= len(line)
    await sink.send(b"0\r\n\r\n")
