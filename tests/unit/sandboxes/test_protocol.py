"""Messages to and from PID 1, and a PID 1 that is fed nonsense."""

import asyncio
import contextlib
import os
import socket
import struct
import subprocess

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.boxes import namespace_pool
from trialyard.core.sandbox import Limits
from trialyard.sandboxes import protocol
from trialyard.sandboxes.namespace import NamespaceSandbox
from trialyard.sandboxes.native import native_program

HELLO = struct.pack("<IIiiQI", protocol.HELLO, protocol.VERSION, 0, 0, 0, 0)


@given(st.binary(max_size=64))
def test_only_whole_replies_of_a_known_kind_are_replies(message: bytes) -> None:
    reply = protocol.parse_reply(message)
    known = message[:4] in [struct.pack("<I", op) for op in (1, 2, 3)]
    assert (reply is not None) == (len(message) == protocol.REPLY_BYTES and known)


def test_a_request_holds_its_strings() -> None:
    body = protocol.run_body("/work", ["a", "b c"], {"X": "é"})
    assert body == "/work\0a\0b c\0X=é\0".encode()
    assert protocol.run_body("/", ["\udcff"], {}) == b"/\0\xff\0"


def start_init() -> tuple[socket.socket, subprocess.Popen[bytes]]:
    """The program in its role as PID 1, outside any box: it only reads messages."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.settimeout(5)

    def place() -> None:
        os.dup2(theirs.fileno(), protocol.CONTROL_FD)

    process = subprocess.Popen(
        [native_program(), "init"], pass_fds=[protocol.CONTROL_FD], preexec_fn=place
    )
    theirs.close()
    assert ours.recv(256) == HELLO
    return ours, process


def request(op: int, *numbers: int, body: bytes = b"") -> bytes:
    """A message of PID 1's protocol: id flags argc envc bytes signal shell extra uid gid groups."""
    padded = (*numbers, *[0] * (11 - len(numbers)))
    return struct.pack("<IIIIIIiIIIII", op, *padded) + body


ANY = st.integers(0, 2**32 - 1)
RUNS = st.builds(
    lambda flags, argc, envc, size, extra, groups, body: request(
        protocol.RUN, 7, flags, argc, envc, size, 0, 0, extra, 0, 0, groups, body=body
    ),
    st.integers(0, 31), ANY, ANY, ANY, ANY, ANY, st.binary(max_size=64),
)  # fmt: skip
WELL_SIZED_RUNS = st.builds(
    lambda flags, argc, envc, groups, body: request(
        protocol.RUN, 7, flags, argc, envc, len(body), 0, 0, 0, 0, 0, groups, body=body
    ),
    st.integers(0, 31), st.integers(0, 9), st.integers(0, 9), st.integers(0, 70),
    st.lists(st.sampled_from([b"/", b"a", b"", b"=", b"7"]), max_size=99).map(
        lambda words: b"".join(word + b"\0" for word in words)
    ),
)  # fmt: skip


@settings(max_examples=25, deadline=None)
@given(st.lists(st.one_of(st.binary(min_size=1, max_size=300), RUNS, WELL_SIZED_RUNS), max_size=8))
def test_pid_1_survives_whatever_it_is_sent(messages: list[bytes]) -> None:
    control, process = start_init()
    try:
        for message in messages:
            if message[:4] in (b"\x02\0\0\0", b"\x03\0\0\0"):
                continue  # kills and signals are for processes of a box, and this is none
            control.send(message)
        control.send(request(protocol.RUN, 99))
        while True:
            reply = protocol.parse_reply(control.recv(256))
            assert reply is not None
            assert reply.start_errno != 0
            if reply.id == 99:
                break
    finally:
        control.close()
        assert process.wait(5) == 0  # end of file: it leaves


KILLS_AND_SIGNALS = st.builds(
    lambda op, id, flags, signal, shell: request(op, id, flags, 0, 0, 0, signal, shell),
    st.sampled_from([protocol.KILL, protocol.SIGNAL]), st.one_of(ANY, st.integers(0, 9)),
    st.integers(0, 7), st.integers(-(2**31), 2**31 - 1), st.one_of(ANY, st.integers(0, 9)),
)  # fmt: skip


def test_a_box_lives_on_whatever_its_pid_1_is_sent() -> None:
    with asyncio.Runner() as runner:
        pool, leases = namespace_pool(), contextlib.AsyncExitStack()
        lease = pool.acquire(image="host", limits=Limits(), owner="test")
        box = runner.run(leases.enter_async_context(lease))
        assert isinstance(box, NamespaceSandbox)

        async def send(messages: list[tuple[bytes, bool]]) -> None:
            null = os.open("/dev/null", os.O_RDWR)
            for message, with_descriptors in messages:
                box._process.send([message], [null] * 8 if with_descriptors else [])
            os.close(null)
            assert (await box.run(["echo", "alive"])).stdout == b"alive\n"

        message = st.one_of(st.binary(min_size=1), RUNS, WELL_SIZED_RUNS, KILLS_AND_SIGNALS)

        @settings(max_examples=40, deadline=None)
        @given(st.lists(st.tuples(message, st.booleans()), max_size=6))
        def attack(messages: list[tuple[bytes, bool]]) -> None:
            runner.run(send(messages))

        attack()
        runner.run(leases.aclose())
        runner.run(pool.close())
