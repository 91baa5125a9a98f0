"""Messages to and from PID 1, and a PID 1 that is fed nonsense."""

import os
import socket
import struct
import subprocess

from hypothesis import given, settings
from hypothesis import strategies as st

from trialyard.sandboxes import protocol
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


@settings(max_examples=25, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.binary(min_size=28, max_size=300),
            st.builds(
                lambda flags, argc, envc, size, body: (
                    struct.pack("<IIIIIIi", protocol.RUN, 7, flags, argc, envc, size, 0) + body
                ),
                st.integers(0, 3), st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1),
                st.integers(0, 2**32 - 1), st.binary(max_size=64),
            ),
        ),
        max_size=8,
    )
)  # fmt: skip
def test_pid_1_survives_whatever_it_is_sent(messages: list[bytes]) -> None:
    control, process = start_init()
    try:
        for message in messages:
            if message[:4] in (b"\x02\0\0\0", b"\x03\0\0\0"):
                continue  # kills and signals are for processes of a box, and this is none
            control.send(message)
        control.send(struct.pack("<IIIIIIi", protocol.RUN, 99, 0, 0, 0, 0, 0))
        while True:
            reply = protocol.parse_reply(control.recv(256))
            assert reply is not None
            assert reply.start_errno != 0
            if reply.id == 99:
                break
    finally:
        control.close()
        assert process.wait(5) == 0  # end of file: it leaves
