"""What a box may ask of the kernel, as rules that any loader of seccomp filters can follow.

bubblewrap and zygotes get them as BPF (seccomp.py), OCI runtimes as JSON (oci_config.py):
one list, so that no backend is weaker than another. A call without a rule gets ENOSYS.
"""

import errno
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from trialyard.sandboxes.syscalls import ALLOWED, ALLOWED_BY_NUMBER, REFUSED

UNKNOWN_CALL_ERRNO = errno.ENOSYS
REFUSED_ERRNO = errno.EPERM
TERMINAL_INPUT_REQUESTS = (0x5412, 0x541C)
"""TIOCSTI and TIOCLINUX push input into terminals; the kernel looks at 32 bits of them."""
LOW_32_BITS = 0xFFFFFFFF

_NEW_NAMESPACES = 0x7E020000
_SOCKET_TYPE = 0xF
_PERSONALITIES = (0x0, 0x8, 0x20000, 0x20008, 0x40000, 0xFFFFFFFF)
_NETLINK_ROUTE, _NETLINK_AUDIT = 0, 9


@dataclass(frozen=True, slots=True)
class Comparison:
    """Holds when an argument of the call, masked if there is a mask, has a value."""

    argument: int
    value: int
    mask: int | None = None


@dataclass(frozen=True, slots=True)
class Rule:
    """Allows a call (or refuses it with `errno`) when all comparisons hold."""

    call: str | int
    allow: bool = True
    when: tuple[Comparison, ...] = ()
    errno: int = REFUSED_ERRNO


def call_rules() -> Iterator[Rule]:
    """All rules but those for the requests of ioctl, which loaders express differently."""
    yield from map(Rule, ALLOWED)
    yield from map(Rule, ALLOWED_BY_NUMBER)
    yield from (Rule(call, allow=False) for call in REFUSED if call != "personality")
    for persona in _PERSONALITIES:
        yield Rule("personality", when=(Comparison(0, persona),))
    yield Rule("clone", when=(Comparison(0, 0, _NEW_NAMESPACES),))
    yield from (Rule("socket", when=when) for when in _sockets())
    # As on a kernel without auditing: useradd, su and the like give up at any other refusal.
    audit = (Comparison(0, socket.AF_NETLINK), Comparison(2, _NETLINK_AUDIT))
    yield Rule("socket", allow=False, when=audit, errno=errno.EPROTONOSUPPORT)


def _sockets() -> Iterator[tuple[Comparison, ...]]:
    yield (Comparison(0, socket.AF_UNIX),)
    for family in (socket.AF_INET, socket.AF_INET6):
        for kind, protocols in (
            (socket.SOCK_STREAM, (0, socket.IPPROTO_TCP)),
            (socket.SOCK_DGRAM, (0, socket.IPPROTO_UDP)),
        ):
            for protocol in protocols:
                yield (
                    Comparison(0, family),
                    Comparison(1, kind, _SOCKET_TYPE),
                    Comparison(2, protocol),
                )
    yield (Comparison(0, socket.AF_NETLINK), Comparison(2, _NETLINK_ROUTE))


def terminal_input_rules() -> Iterator[Rule]:
    """ioctl refused for the terminal requests; for a filter that allows the rest."""
    for request in TERMINAL_INPUT_REQUESTS:
        yield Rule("ioctl", allow=False, when=(Comparison(1, request, LOW_32_BITS),))


def other_ioctl_rules() -> Iterator[Rule]:
    """ioctl allowed for every other request; for a filter that refuses the rest."""
    for mask, value in everything_but(TERMINAL_INPUT_REQUESTS):
        yield Rule("ioctl", when=(Comparison(1, value, mask),))


def everything_but(values: Sequence[int], *, bits: int = 32) -> list[tuple[int, int]]:
    """Disjoint (mask, value) blocks that cover exactly the numbers which are not in `values`."""
    blocks: list[tuple[int, int]] = []

    def split(bit: int, prefix: int, inside: list[int]) -> None:
        if not inside:
            blocks.append((LOW_32_BITS & (-1 << bit), prefix))
        elif bit > 0:
            half = 1 << (bit - 1)
            split(bit - 1, prefix, [value for value in inside if not value & half])
            split(bit - 1, prefix | half, [value for value in inside if value & half])

    split(bits, 0, list(values))
    return blocks
