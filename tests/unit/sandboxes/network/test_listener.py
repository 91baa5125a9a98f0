"""Connections of boxes are bounded, in number and in rate."""

import asyncio
import os
import select
import socket
from collections.abc import Iterator

import pytest

from trialyard.core.errors import SandboxError
from trialyard.sandboxes.network.listener import Listener, Room, listen_inside


def test_a_box_has_a_bounded_number_of_connections() -> None:
    room = Room(most=2)
    assert [room.take() for _ in range(3)] == [True, True, False]
    room.give_back()
    assert room.take()
    room.give_back()
    room.give_back()


def test_all_boxes_together_are_bounded_but_each_has_a_few() -> None:
    greedy, modest = Room(most_of_all=10), Room(most_of_all=10)
    assert sum(greedy.take() for _ in range(64)) == 10
    assert sum(modest.take() for _ in range(64)) == 4
    for room in (greedy, modest):
        while room.taken:
            room.give_back()
    assert modest.take()
    modest.give_back()


async def test_an_error_while_serving_gives_the_place_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def broken(connection: socket.socket) -> None:
        raise RuntimeError("a mistake of ours")

    listening = socket.socket()
    listening.setblocking(False)
    listening.bind(("127.0.0.1", 0))
    listening.listen()
    room = Room(2)
    listener = Listener(listening, broken, room)
    for _ in range(5):
        reader, writer = await asyncio.open_connection(*listening.getsockname())
        assert await reader.read() == b""
        writer.close()
    await listener.close()
    await listener.close()
    assert room.taken == 0
    assert "a mistake of ours" in caplog.text


async def test_a_connection_that_is_closed_before_it_is_served_is_not_left_open() -> None:
    async def never(connection: socket.socket) -> None:
        raise AssertionError("it was closed before")

    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    listening.listen()
    listening.setblocking(False)
    room = Room(2)
    listener = Listener(listening, never, room)
    with socket.create_connection(listening.getsockname()) as client:
        select.select([listening], [], [], 5)
        listener._on_ready()  # accepted, and its task has not begun
        await listener.close()
        client.settimeout(5)
        assert client.recv(1) == b""
    assert room.taken == 0


@pytest.fixture
def dead_pidfd() -> Iterator[int]:
    pid = os.posix_spawn("/bin/true", ["true"], {})
    pidfd = os.pidfd_open(pid)
    os.waitpid(pid, 0)
    yield pidfd
    os.close(pidfd)


async def test_a_process_that_ended_has_no_network(dead_pidfd: int) -> None:
    with pytest.raises(SandboxError, match="PID 1 ended"):
        await listen_inside(dead_pidfd, 0)
