"""Seccomp filters of a box, generated with libseccomp and exported as BPF bytes.

Two filters are stacked. The first is default-deny: named calls, sockets of named families
and protocols, no clone into new namespaces, no foreign ABI. The second refuses the terminal
ioctls that push input, compared on the low 32 bits as the kernel does; libseccomp cannot say
"anything but these" on part of an argument in one filter.
"""

import ctypes
import errno
import functools
import os
import socket

from trialyard.core.errors import SandboxUnavailable
from trialyard.sandboxes.syscalls import ALLOWED, ALLOWED_BY_NUMBER, REFUSED

_ALLOW = 0x7FFF0000
_BAD_ARCHITECTURE, _OPTIMIZE = 2, 8
_BINARY_TREE = 2
_EQUAL, _MASKED_EQUAL = 4, 7

_NEW_NAMESPACES = 0x7E020000
_LOW_32 = 0xFFFFFFFF
_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C
_SOCKET_TYPE = 0xF
_PERSONALITIES = (0x0, 0x8, 0x20000, 0x20008, 0x40000, 0xFFFFFFFF)
_NETLINK_ROUTE = 0


class _Comparison(ctypes.Structure):
    _fields_ = (
        ("arg", ctypes.c_uint),
        ("op", ctypes.c_int),
        ("a", ctypes.c_uint64),
        ("b", ctypes.c_uint64),
    )


def _refuse(number: int) -> int:
    return 0x00050000 | number


def _equal(arg: int, value: int) -> _Comparison:
    return _Comparison(arg, _EQUAL, value, 0)


def _masked(arg: int, mask: int, value: int) -> _Comparison:
    return _Comparison(arg, _MASKED_EQUAL, mask, value)


@functools.cache
def _library() -> ctypes.CDLL:
    try:
        library = ctypes.CDLL("libseccomp.so.2", use_errno=True)
    except OSError as error:
        raise SandboxUnavailable(
            f"libseccomp is missing ({error}); install it (Debian and Ubuntu: libseccomp2)"
        ) from error
    library.seccomp_init.restype = ctypes.c_void_p
    library.seccomp_init.argtypes = [ctypes.c_uint32]
    library.seccomp_release.argtypes = [ctypes.c_void_p]
    library.seccomp_attr_set.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32]
    library.seccomp_rule_add_array.argtypes = [
        ctypes.c_void_p,
        ctypes.c_uint32,
        ctypes.c_int,
        ctypes.c_uint,
        ctypes.POINTER(_Comparison),
    ]
    library.seccomp_export_bpf.argtypes = [ctypes.c_void_p, ctypes.c_int]
    library.seccomp_syscall_resolve_name.argtypes = [ctypes.c_char_p]
    return library


class _Filter:
    """One libseccomp filter under construction."""

    def __init__(self, default: int, bad_architecture: int) -> None:
        self._library = _library()
        self._context = self._library.seccomp_init(default)
        if not self._context:
            raise SandboxUnavailable("libseccomp could not make a filter (seccomp_init)")
        self._set(_BAD_ARCHITECTURE, bad_architecture)

    def _set(self, attribute: int, value: int) -> bool:
        return bool(self._library.seccomp_attr_set(self._context, attribute, value) == 0)

    def optimize(self) -> None:
        """Search a binary tree; older libraries cannot, and stay correct but slower."""
        self._set(_OPTIMIZE, _BINARY_TREE)

    def add(self, action: int, call: str | int, *comparisons: _Comparison) -> None:
        """Add a rule; a call that this architecture lacks needs none."""
        number = (
            call
            if isinstance(call, int)
            else self._library.seccomp_syscall_resolve_name(call.encode())
        )
        if number < 0:
            return
        array = (_Comparison * len(comparisons))(*comparisons)
        code = self._library.seccomp_rule_add_array(
            self._context, action, number, len(comparisons), array
        )
        if code != 0:
            raise SandboxUnavailable(f"libseccomp refused a rule for {call}: {os.strerror(-code)}")

    def export(self) -> bytes:
        """The BPF program as bytes; the filter is used up."""
        fd = os.memfd_create("seccomp")
        try:
            code = self._library.seccomp_export_bpf(self._context, fd)
            if code != 0:
                raise SandboxUnavailable(f"libseccomp export failed: {os.strerror(-code)}")
            return os.pread(fd, 1 << 20, 0)
        finally:
            os.close(fd)
            self._library.seccomp_release(self._context)


def _allow_sockets(box: _Filter) -> None:
    box.add(_ALLOW, "socket", _equal(0, socket.AF_UNIX))
    for family in (socket.AF_INET, socket.AF_INET6):
        for kind, protocols in (
            (socket.SOCK_STREAM, (0, socket.IPPROTO_TCP)),
            (socket.SOCK_DGRAM, (0, socket.IPPROTO_UDP)),
        ):
            for protocol in protocols:
                box.add(
                    _ALLOW,
                    "socket",
                    _equal(0, family),
                    _masked(1, _SOCKET_TYPE, kind),
                    _equal(2, protocol),
                )
    box.add(_ALLOW, "socket", _equal(0, socket.AF_NETLINK), _equal(2, _NETLINK_ROUTE))


def _allow_list() -> bytes:
    refuse = _refuse(errno.EPERM)
    box = _Filter(default=_refuse(errno.ENOSYS), bad_architecture=refuse)
    box.optimize()
    for name in (*ALLOWED, "ioctl"):
        box.add(_ALLOW, name)
    for number in ALLOWED_BY_NUMBER:
        box.add(_ALLOW, number)
    for call in REFUSED:
        if call != "personality":
            box.add(refuse, call)
    for persona in _PERSONALITIES:
        box.add(_ALLOW, "personality", _equal(0, persona))
    box.add(_ALLOW, "clone", _masked(0, _NEW_NAMESPACES, 0))
    _allow_sockets(box)
    return box.export()


def _no_terminal_input() -> bytes:
    box = _Filter(default=_ALLOW, bad_architecture=_ALLOW)
    for request in (_TIOCSTI, _TIOCLINUX):
        box.add(_refuse(errno.EPERM), "ioctl", _masked(1, _LOW_32, request))
    return box.export()


@functools.cache
def seccomp_filters() -> tuple[bytes, ...]:
    """BPF programs to load in this order. Raises `SandboxUnavailable` without libseccomp."""
    return (_no_terminal_input(), _allow_list())
