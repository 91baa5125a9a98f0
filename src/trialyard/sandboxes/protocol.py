"""Messages between the supervisor and PID 1 of a box (the other end: native/protocol.h).

One datagram is one message. PID 1 is inside the box, so replies are checked for size and
kind, and nothing but how a command ended is taken from them.
"""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

VERSION = 2
CONTROL_FD = 3
FIRST_SECCOMP_FD = 4

RUN, KILL, SIGNAL = 1, 2, 3
HELLO, EXITED, KILLED = 1, 2, 3
FLAG_STDIN, FLAG_BODY_IN_MEMFD, FLAG_SHARED = 1, 2, 4
FLAG_ALONE = 1

INLINE_BODY_BYTES = 48 << 10
"""Longer bodies travel in a memfd: a datagram must fit the socket's buffer."""

_REQUEST = struct.Struct("<IIIIIIi")
_FORK = struct.Struct("<QI")
_REPLY = struct.Struct("<IIiiQI")
REPLY_BYTES = _REPLY.size


@dataclass(frozen=True, slots=True)
class Reply:
    """One message from PID 1."""

    op: int
    id: int
    wait_status: int
    start_errno: int
    cpu_us: int
    others_left: bool


def run_body(cwd: str, argv: Sequence[str], env: Mapping[str, str]) -> bytes:
    """The strings of a RUN request: cwd, argv, env, each ended by NUL."""
    strings = [cwd, *argv, *[f"{name}={value}" for name, value in env.items()]]
    return ("\0".join(strings) + "\0").encode("utf-8", "surrogateescape")


def run_header(id: int, flags: int, argc: int, envc: int, body_bytes: int) -> bytes:
    return _REQUEST.pack(RUN, id, flags, argc, envc, body_bytes, 0)


def kill_request(id: int, *, alone: bool) -> bytes:
    """Kill a command and all that it started; answered by KILLED when all are dead.

    `alone` says that nothing else has run in the box meanwhile, as far as we know.
    """
    return _REQUEST.pack(KILL, id, FLAG_ALONE if alone else 0, 0, 0, 0, 0)


def fork_request(
    id: int,
    command: int,
    open_files: int,
    group: str,
    words: tuple[str, Sequence[str], Mapping[str, str]],
) -> bytes:
    """Ask a zygote for a fork: cgroup, cwd, then what the interpreter reads (argc argv env)."""
    cwd, argv, env = words
    body = f"{group}\0{cwd}\0{len(argv)}\0".encode() + run_body("", argv, env)[1:]
    return (
        _REQUEST.pack(RUN, id, 0, len(argv), len(env), len(body), 0)
        + _FORK.pack(open_files, command)
        + body
    )


def parse_reply(message: bytes) -> Reply | None:
    """A reply, or None when the message is not one."""
    if len(message) != REPLY_BYTES:
        return None
    op, id, wait_status, start_errno, cpu_us, others_left = _REPLY.unpack(message)
    if op not in (HELLO, EXITED, KILLED):
        return None
    return Reply(op, id, wait_status, start_errno, cpu_us, bool(others_left))
