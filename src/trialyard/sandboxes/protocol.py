"""Messages between the supervisor and PID 1 of a box (the other end: native/protocol.h).

One datagram is one message. PID 1 is inside the box, so replies are checked for size and
kind, and nothing but how a command ended is taken from them.
"""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

VERSION = 3
CONTROL_FD = 3
FIRST_SECCOMP_FD = 4

RUN, KILL, SIGNAL = 1, 2, 3
HELLO, EXITED, KILLED = 1, 2, 3
FLAG_STDIN, FLAG_BODY_IN_MEMFD, FLAG_SHARED, FLAG_TERMINAL, FLAG_USER = 1, 2, 4, 8, 16
FLAG_ALONE, FLAG_IN_SHELL, FLAG_LEADER_ONLY = 1, 2, 4

LOCKS_MARKER = 1 << 40
"""Command N and all that it starts have a hard RLIMIT_LOCKS of this minus N (native/init.c)."""
MAX_GROUPS = 64

INLINE_BODY_BYTES = 48 << 10
"""Longer bodies travel in a memfd: a datagram must fit the socket's buffer."""

_REQUEST = struct.Struct("<IIIIIIiIIIII")
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


@dataclass(frozen=True, slots=True)
class UserIds:
    """Whom a command becomes, in the box's own numbers."""

    uid: int
    gid: int
    groups: tuple[int, ...] = ()


def run_body(
    cwd: str, argv: Sequence[str], env: Mapping[str, str], user: UserIds | None = None
) -> bytes:
    """The strings of a RUN request: cwd, argv, env, groups, each ended by NUL."""
    groups = map(str, user.groups if user else ())
    strings = [cwd, *argv, *[f"{name}={value}" for name, value in env.items()], *groups]
    return ("\0".join(strings) + "\0").encode("utf-8", "surrogateescape")


def run_header(
    id: int,
    flags: int,
    counts: tuple[int, int],
    body_bytes: int,
    *,
    first_extra_fd: int = 0,
    user: UserIds | None = None,
) -> bytes:
    """`counts` are those of argv and env; the body ends with the user's groups, one by one."""
    who = user or UserIds(0, 0)
    return _REQUEST.pack(
        RUN, id, flags | (FLAG_USER if user else 0), *counts, body_bytes,
        0, 0, first_extra_fd, who.uid, who.gid, len(who.groups),
    )  # fmt: skip


def kill_request(id: int, *, alone: bool = False, shell: int | None = None) -> bytes:
    """Kill a command and all that it started; answered by KILLED when all are dead.

    `alone` says that nothing else has run in the box meanwhile, as far as we know. With
    `shell`, command `id` is one of that shell, whose own process stays.
    """
    flags = (FLAG_ALONE if alone else 0) | (FLAG_IN_SHELL if shell is not None else 0)
    return _REQUEST.pack(KILL, id, flags, 0, 0, 0, 0, shell or 0, 0, 0, 0, 0)


def signal_request(
    id: int, number: int, *, leader_only: bool = False, shell: int | None = None
) -> bytes:
    """Send a signal to a command's process group, or to its leader; not answered.

    With `shell`, command `id` is one of that shell, and what it runs gets the signal.
    """
    flags = FLAG_LEADER_ONLY if leader_only else 0
    flags |= FLAG_IN_SHELL if shell is not None else 0
    return _REQUEST.pack(SIGNAL, id, flags, 0, 0, 0, number, shell or 0, 0, 0, 0, 0)


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
        _REQUEST.pack(RUN, id, 0, len(argv), len(env), len(body), 0, 0, 0, 0, 0, 0)
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
