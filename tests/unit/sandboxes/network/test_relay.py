"""A relay to a server that is busy or gone."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from pathlib import Path

from tests.servers import ask
from trialyard.sandboxes.network.flow import Meter
from trialyard.sandboxes.network.listener import Listener, Room
from trialyard.sandboxes.network.relay import Relay


@contextlib.asynccontextmanager
async def relaying(path: Path) -> AsyncIterator[int]:
    listening = socket.socket()
    listening.setblocking(False)
    listening.bind(("127.0.0.1", 0))
    listening.listen()
    room = Room()
    listener = Listener(listening, Relay(str(path), Meter()).serve, room)
    try:
        yield listening.getsockname()[1]
    finally:
        await listener.close()
        assert room.taken == 0


async def test_a_server_that_is_gone_ends_the_connection_at_once(tmp_path: Path) -> None:
    async with relaying(tmp_path / "gone") as port:
        assert await asyncio.wait_for(ask(port, b"hello"), 10) == b""


async def test_who_finds_the_servers_queue_full_waits_for_his_turn(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "s"))
        server.listen(0)
        server.setblocking(False)
        async with relaying(tmp_path / "s") as port:
            asked = [asyncio.create_task(ask(port, b"x", end=True)) for _ in range(5)]
            await asyncio.sleep(0.1)
            for _ in asked:
                connection, _ = await asyncio.get_running_loop().sock_accept(server)
                connection.sendall(b"served")
                connection.close()
            assert await asyncio.wait_for(asyncio.gather(*asked), 10) == [b"served"] * 5
