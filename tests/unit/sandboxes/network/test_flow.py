"""Bytes between two ends: none lost, none piled up, none faster than allowed."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trialyard.sandboxes.network.flow import Clock, FlowError, Meter, Wire, both, join


def wire_pair(meter: Meter) -> tuple[Wire, socket.socket]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.setblocking(False)
    return Wire(ours, meter), theirs


@contextlib.asynccontextmanager
async def joined(
    meter: Meter, clock: Callable[[], Clock]
) -> AsyncIterator[tuple[socket.socket, socket.socket, "asyncio.Task[None]"]]:
    """Two far ends with a join between them."""
    (one, left), (other, right) = wire_pair(meter), wire_pair(meter)
    task = asyncio.create_task(join(one, other, clock()))
    try:
        yield left, right, task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        one.close()
        other.close()
        left.close()
        right.close()


async def read_all(connection: socket.socket) -> bytes:
    loop, data = asyncio.get_running_loop(), b""
    while chunk := await loop.sock_recv(connection, 65536):
        data += chunk
    return data


async def test_each_direction_ends_by_itself_and_no_byte_is_lost() -> None:
    loop = asyncio.get_running_loop()
    async with joined(Meter(), lambda: Clock(None)) as (left, right, task):
        sent = bytes(range(256)) * 4000

        async def send() -> None:
            await loop.sock_sendall(left, sent)
            left.shutdown(socket.SHUT_WR)

        sending = asyncio.create_task(send())
        assert await read_all(right) == sent
        await sending
        await loop.sock_sendall(right, b"answer")
        assert not task.done()
        right.shutdown(socket.SHUT_WR)
        assert await read_all(left) == b"answer"
        await task


async def test_who_answers_without_reading_is_heard() -> None:
    loop = asyncio.get_running_loop()
    async with joined(Meter(), lambda: Clock(10)) as (left, right, task):
        right.shutdown(socket.SHUT_RD)
        await loop.sock_sendall(left, b"a question")
        await asyncio.sleep(0.02)
        await loop.sock_sendall(right, b"no")
        right.close()
        assert await read_all(left) == b"no"
        left.close()
        await task


async def test_what_nobody_takes_stays_with_who_sends() -> None:
    async with joined(Meter(), lambda: Clock(None)) as (left, _right, _task):
        sent, quiet = 0, 0
        while quiet < 50:
            try:
                sent += left.send(bytes(65536))
                quiet = 0
            except BlockingIOError:
                quiet += 1
            await asyncio.sleep(0)
        assert sent < 4 << 20


async def test_a_flood_gets_one_chunk_a_turn_of_the_loop() -> None:
    """However many connections a box floods, others get their turn after one chunk."""
    meter = Meter()
    passed = turns = 0

    async def reader(wire: Wire) -> None:
        nonlocal passed
        while await wire.some():
            passed += 1

    pairs = [wire_pair(meter) for _ in range(16)]
    for _, theirs in pairs:
        with contextlib.suppress(BlockingIOError):
            while True:
                theirs.send(bytes(65536))
        theirs.close()
    tasks = [asyncio.create_task(reader(wire)) for wire, _ in pairs]
    while not all(task.done() for task in tasks):
        before = passed
        await asyncio.sleep(0)
        turns += 1
        assert passed - before <= 1
    assert passed > 16
    for wire, _ in pairs:
        wire.close()


async def test_bandwidth_is_shared_and_what_waits_is_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a clock of its own: who waits, waits for as long as the bytes before him take."""
    now_s, slept_s = 100.0, 0.0
    real_sleep = asyncio.sleep

    async def sleep(seconds: float) -> None:
        nonlocal now_s, slept_s
        now_s += seconds
        slept_s += seconds
        await real_sleep(0)

    loop = asyncio.get_running_loop()
    monkeypatch.setattr(asyncio, "sleep", sleep)
    monkeypatch.setattr(loop, "time", lambda: now_s)
    meter = Meter(10_000)
    assert meter.chunk_bytes == 1000
    await asyncio.gather(*(meter.spend(1000) for _ in range(50)))
    assert slept_s == pytest.approx(50 * 1000 / 10_000 - 0.1)
    assert 48 <= meter.throttled <= 49  # rounding decides about the first after the burst


async def test_no_bandwidth_means_no_wait() -> None:
    meter = Meter(None)
    await meter.spend(1 << 40)
    assert meter.throttled == 0


async def _ended(part: Awaitable[None]) -> type[BaseException] | None:
    try:
        await asyncio.wait_for(part, 10)
    except (TimeoutError, OSError) as error:
        return type(error)
    return None


async def test_an_exchange_that_stands_still_ends() -> None:
    async with joined(Meter(), lambda: Clock(0.05)) as (_left, _right, task):
        assert await _ended(task) is TimeoutError


async def test_an_exchange_that_moves_for_ever_ends_too() -> None:
    loop = asyncio.get_running_loop()
    async with joined(Meter(), lambda: Clock(10, 0.2)) as (left, right, task):

        async def chatter() -> None:
            while True:
                await loop.sock_sendall(left, b"x")
                await loop.sock_recv(right, 10)

        talking = asyncio.create_task(chatter())
        assert await _ended(task) is TimeoutError
        talking.cancel()
        await asyncio.gather(talking, return_exceptions=True)


async def test_a_broken_end_ends_both() -> None:
    async def fails() -> None:
        raise ConnectionResetError("gone")

    waiting = asyncio.Event()
    with pytest.raises(ConnectionResetError, match="gone"):
        await both(fails(), _forever(waiting))


async def _forever(event: asyncio.Event) -> None:
    await event.wait()


@given(
    st.lists(st.binary(min_size=1, max_size=40), max_size=8),
    st.integers(2, 100),
)
async def test_until_splits_at_the_mark_however_the_bytes_come(
    parts: list[bytes], most: int
) -> None:
    data = b"".join(parts)
    wire, theirs = wire_pair(Meter())
    try:
        for part in parts:
            theirs.send(part)
        theirs.close()
        found = data.find(b"\r\n")
        if 0 <= found <= most - 2:
            assert await wire.until(b"\r\n", most) == data[: found + 2]
            rest = b""
            while chunk := await wire.some():
                rest += chunk
            assert rest == data[found + 2 :]
        elif not data:
            assert await wire.until(b"\r\n", most) == b""
        else:
            with pytest.raises(FlowError):
                await wire.until(b"\r\n", most)
    finally:
        wire.close()


async def test_until_gives_up_at_its_bound_although_more_comes() -> None:
    wire, theirs = wire_pair(Meter())
    theirs.send(bytes(20_000))
    with pytest.raises(FlowError, match="more than 1000 bytes"):
        await asyncio.wait_for(wire.until(b"\r\n", 1000), 10)
    wire.close()
    theirs.close()


async def test_exactly_needs_all_of_it() -> None:
    wire, theirs = wire_pair(Meter())
    theirs.send(b"abcde")
    theirs.close()
    assert await wire.exactly(3) == b"abc"
    with pytest.raises(FlowError):
        await wire.exactly(3)
    wire.close()
