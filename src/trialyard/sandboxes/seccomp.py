"""Seccomp filters of a box, generated with libseccomp and exported as BPF bytes.

Two filters are stacked. The first is default-deny: named calls, sockets of named families
and protocols, no clone into new namespaces, no foreign ABI. The second refuses the terminal
ioctls that push input, compared on the low 32 bits as the kernel does; libseccomp cannot say
"anything but these" on part of an argument in one filter.
"""

import ctypes
import functools
import os
from collections.abc import Iterable, Sequence

from trialyard.core.errors import SandboxUnavailable
from trialyard.sandboxes.seccomp_rules import (
    REFUSED_ERRNO,
    UNKNOWN_CALL_ERRNO,
    Comparison,
    Rule,
    call_rules,
    terminal_input_rules,
)

_ALLOW = 0x7FFF0000
_BAD_ARCHITECTURE, _OPTIMIZE = 2, 8
_BINARY_TREE = 2
_EQUAL, _MASKED_EQUAL = 4, 7


class _Comparison(ctypes.Structure):
    _fields_ = (
        ("arg", ctypes.c_uint),
        ("op", ctypes.c_int),
        ("a", ctypes.c_uint64),
        ("b", ctypes.c_uint64),
    )


def _refuse(number: int) -> int:
    return 0x00050000 | number


def _comparison(it: Comparison) -> _Comparison:
    if it.mask is None:
        return _Comparison(it.argument, _EQUAL, it.value, 0)
    return _Comparison(it.argument, _MASKED_EQUAL, it.mask, it.value)


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

    def add(self, action: int, call: str | int, when: Sequence[Comparison]) -> None:
        """Add a rule; a call that this architecture lacks needs none."""
        number = (
            call
            if isinstance(call, int)
            else self._library.seccomp_syscall_resolve_name(call.encode())
        )
        if number < 0:
            return
        array = (_Comparison * len(when))(*map(_comparison, when))
        code = self._library.seccomp_rule_add_array(self._context, action, number, len(when), array)
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


def _export(box: _Filter, rules: Iterable[Rule]) -> bytes:
    for rule in rules:
        box.add(_ALLOW if rule.allow else _refuse(rule.errno), rule.call, rule.when)
    return box.export()


def _allow_list() -> bytes:
    box = _Filter(default=_refuse(UNKNOWN_CALL_ERRNO), bad_architecture=_refuse(REFUSED_ERRNO))
    box.optimize()
    return _export(box, [*call_rules(), Rule("ioctl")])


def _no_terminal_input() -> bytes:
    return _export(_Filter(default=_ALLOW, bad_architecture=_ALLOW), terminal_input_rules())


@functools.cache
def seccomp_filters() -> tuple[bytes, ...]:
    """BPF programs to load in this order. Raises `SandboxUnavailable` without libseccomp."""
    return (_no_terminal_input(), _allow_list())
