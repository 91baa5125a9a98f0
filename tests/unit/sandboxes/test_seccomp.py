"""The filters as programs: what they hold, whatever the kernel makes of them."""

import ctypes
import errno
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trialyard.core.errors import SandboxUnavailable
from trialyard.sandboxes import seccomp
from trialyard.sandboxes.seccomp import seccomp_filters
from trialyard.sandboxes.seccomp_rules import LOW_32_BITS, everything_but
from trialyard.sandboxes.syscalls import ALLOWED, REFUSED

DANGEROUS = {
    "bpf", "perf_event_open", "userfaultfd", "io_uring_setup", "io_uring_enter", "keyctl",
    "add_key", "mount", "umount2", "unshare", "setns", "pivot_root", "chroot", "clone3",
    "open_by_handle_at", "kexec_load", "init_module", "reboot", "swapon", "settimeofday",
    "process_vm_readv", "process_vm_writev", "pidfd_getfd", "kcmp", "vmsplice", "syslog",
    "memfd_secret", "fanotify_init", "quotactl", "move_pages", "modify_ldt", "iopl",
}  # fmt: skip


def test_nothing_dangerous_is_on_the_list() -> None:
    assert DANGEROUS.isdisjoint(ALLOWED)
    assert set(REFUSED).isdisjoint(ALLOWED)
    assert len(ALLOWED) == len(set(ALLOWED))


def test_conditional_calls_are_not_allowed_as_a_whole() -> None:
    assert {"socket", "clone", "ioctl", "personality"}.isdisjoint(ALLOWED)


def test_filters_are_programs_the_kernel_takes() -> None:
    for program in seccomp_filters():
        assert len(program) % 8 == 0
        assert 0 < len(program) // 8 < 4096  # BPF_MAXINSNS, and native/zygote.c's room
    small, large = (len(program) // 8 for program in seccomp_filters())
    assert small < 32
    assert large < 1024


def test_whatever_is_not_named_is_refused() -> None:
    """The last instruction of the allow-list's default path is ENOSYS, never ALLOW."""
    _, program = seccomp_filters()
    returns = {k for code, _, _, k in struct.iter_unpack("<HBBI", program) if code == 0x06}
    assert returns == {
        0x7FFF0000,
        *(0x00050000 | number for number in (1, 38, errno.EPROTONOSUPPORT)),
    }


def test_a_missing_library_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_library(*_: object, **__: object) -> None:
        raise OSError("not found")

    seccomp._library.cache_clear()
    monkeypatch.setattr(ctypes, "CDLL", no_library)
    with pytest.raises(SandboxUnavailable, match="libseccomp2"):
        seccomp._library()
    monkeypatch.undo()
    seccomp._library.cache_clear()


@given(st.integers(min_value=0, max_value=LOW_32_BITS))
def test_blocks_cover_every_number_but_the_named_ones(number: int) -> None:
    named = (0x5412, 0x541C)
    blocks = everything_but(named)
    for value in (number, *named, *(one ^ (1 << number % 32) for one in named)):
        hits = [block for block in blocks if value & block[0] == block[1]]
        assert len(hits) == (value not in named)
