"""The box is a sandbox: each layer is looked at itself, from inside and from the host."""

# ruff: noqa: ASYNC240 - the host is looked at directly
import struct
from pathlib import Path

import pytest

from tests.boxes import BACKENDS, PYTHON, a_box, namespace_pool, processes_of_uid, status_of
from trialyard.sandboxes import host
from trialyard.sandboxes.namespace import NamespaceSandbox
from trialyard.sandboxes.owner import UID_BASE
from trialyard.sandboxes.pool import NamespacePool

NO_CAPABILITIES = "0" * 16


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    """Every layer must be there whatever sets the box up."""
    return str(request.param)


async def stdout_of(box: NamespaceSandbox, *argv: str) -> str:
    result = await box.run(argv)
    assert result.ok, result.stderr
    return result.stdout.decode()


async def python_in(box: NamespaceSandbox, code: str) -> str:
    return await stdout_of(box, PYTHON, "-I", "-S", "-c", code)


async def test_no_capability_is_held_and_none_can_be_gained(box: NamespaceSandbox) -> None:
    text = await stdout_of(box, "cat", "/proc/self/status")
    status = dict(line.split(":\t", 1) for line in text.splitlines() if ":\t" in line)
    for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert status[name] == NO_CAPABILITIES
    assert status["NoNewPrivs"] == "1"
    assert status["Seccomp"] == "2"


async def test_pid_1_has_no_capability_either_and_cannot_be_inspected(
    box: NamespaceSandbox,
) -> None:
    status = status_of(box.host_pid)
    assert status["NSsid"].split()[-1] == "1"  # a session of its own
    assert status["CapEff"] == status["CapBnd"] == NO_CAPABILITIES
    assert status["Seccomp"] == "2"
    environment = Path(f"/proc/{box.host_pid}/environ").read_bytes()
    assert set(environment.split(b"\0")) <= {b"", b"PWD=/", b"HOME=/home/user"}
    for name in ("environ", "mem", "maps", "fd/3", "exe", "root", "cwd"):
        result = await box.run(["cat", f"/proc/1/{name}"])
        assert result.exit_code != 0, name


async def test_two_boxes_have_two_unprivileged_host_uids(pool: NamespacePool) -> None:
    async with a_box(pool) as first, a_box(pool) as second:
        uids = {first.host_uid, second.host_uid}
        assert len(uids) == 2
        assert min(uids) >= UID_BASE
        for box in (first, second):
            assert status_of(box.host_pid)["Uid"].split() == [str(box.host_uid)] * 4
            assert status_of(box.host_pid)["Gid"].split() == [str(box.host_uid)] * 4
            assert status_of(box.host_pid)["Groups"] == ""
        assert (await first.run(["id", "-u"])).stdout == b"1000\n"


async def test_every_namespace_is_its_own(box: NamespaceSandbox) -> None:
    for name in ("cgroup", "ipc", "mnt", "net", "pid", "user", "uts"):
        theirs = Path(f"/proc/{box.host_pid}/ns/{name}").readlink()
        assert theirs != Path(f"/proc/self/ns/{name}").readlink(), name


async def test_the_environment_of_the_host_stays_outside(
    box: NamespaceSandbox, monkeypatch: pytest.MonkeyPatch, pool: NamespacePool
) -> None:
    monkeypatch.setenv("ZZ_SECRET", "canary-env")
    async with a_box(pool) as fresh:
        text = await stdout_of(fresh, "env")
        names = {line.split("=")[0] for line in text.splitlines()}
        assert names == {"HOME", "LANG", "OMP_NUM_THREADS", "PATH"}
        given = await fresh.run(["env"], env={"A": "1", "PATH": "/usr/bin"})
        assert b"A=1\n" in given.stdout
        assert b"PATH=/usr/bin\n" in given.stdout
        assert b"canary" not in given.stdout
        pids = processes_of_uid(fresh.host_uid)
        assert pids
        for pid in pids:
            assert b"canary" not in Path(f"/proc/{pid}/environ").read_bytes()


async def test_host_files_are_not_there(box: NamespaceSandbox, tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("canary")
    secret.chmod(0o644)
    for path in (str(secret), "/root/.bashrc", "/etc/shadow", "/run/trialyard", "/home/root"):
        assert (await box.run(["cat", path])).exit_code != 0, path
    assert await stdout_of(box, "ls", "/home") == "user\n"


async def test_only_the_boxs_own_tree_is_writable(box: NamespaceSandbox) -> None:
    for path in (
        "/x", "/usr/x", "/usr/bin/env", "/etc/x", "/etc/passwd", "/dev/x", "/opt/x", "/bin/x",
        "/opt/trialyard/python/x", "/opt/trialyard/init", "/root/x", "/run/x", "/sys/x",
        "/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger", "/proc/sys/vm/overcommit_memory",
    ):  # fmt: skip
        result = await box.run(["sh", "-c", f"echo x >> {path}"])
        assert result.exit_code != 0, path
    for path in ("/work/x", "/tmp/x", "/out/x", "/dev/shm/x", "/var/tmp/x", "/home/user/x"):
        assert (await box.run(["sh", "-c", f"echo x >> {path}"])).ok, path


async def test_the_system_is_mounted_read_only_without_setuid_or_devices(
    box: NamespaceSandbox,
) -> None:
    lines = Path(f"/proc/{box.host_pid}/mountinfo").read_text().splitlines()
    mounts = {fields[4]: set(fields[5].split(",")) for fields in map(str.split, lines)}
    masks = {fields[4] for fields in map(str.split, lines) if fields[3].endswith("/null")}
    assert "nosuid" in mounts["/"]
    assert "nodev" in mounts["/"]
    for point, flags in mounts.items():
        assert "nosuid" in flags, point
        assert point in ("/dev", "/dev/pts", *masks) or "nodev" in flags, point
        assert "ro" in flags or point in ("/", "/proc", "/dev/shm", "/dev/pts"), point
    assert "/sys" not in mounts


async def test_files_about_the_host_are_covered_or_refused(box: NamespaceSandbox) -> None:
    for name in (
        "keys", "interrupts", "cmdline", "kcore", "kmsg", "slabinfo", "timer_list", "kpagecount",
        "kpageflags", "vmallocinfo", "sysrq-trigger", "sched_debug",
    ):  # fmt: skip
        result = await box.run(["cat", f"/proc/{name}"])
        assert result.stdout == b"", name
    addresses = await stdout_of(box, "sh", "-c", "cut -d' ' -f1 /proc/kallsyms | sort -u")
    assert set(addresses.split()) <= {"0" * 16}
    regions = await stdout_of(box, "sh", "-c", "cut -d: -f1 /proc/iomem | sort -u")
    assert set(regions.split()) <= {"00000000-00000000"}


async def test_no_terminal_and_a_session_of_its_own(box: NamespaceSandbox) -> None:
    code = """
import os
print(os.getsid(0) == os.getpid())
try: open("/dev/tty")
except OSError: print("none")
"""
    assert await python_in(box, code) == "True\nnone\n"


async def test_a_command_inherits_no_descriptor(box: NamespaceSandbox) -> None:
    assert await python_in(box, "import os; print(sorted(os.listdir('/proc/self/fd')))") == (
        "['0', '1', '2', '3']\n"
    )  # 3 is the listing itself


@pytest.mark.parametrize(
    ("what", "code"),
    [
        ("user namespace", "libc.unshare(0x10000000)"),
        ("mount namespace", "libc.unshare(0x20000)"),
        ("clone into a new namespace", "libc.syscall(56, 0x10000000 | 17, 0, 0, 0, 0)"),
        ("clone3", "libc.syscall(435, 0, 0)"),
        ("AF_ALG", "libc.socket(38, 5, 0)"),
        ("AF_VSOCK", "libc.socket(40, 1, 0)"),
        ("AF_PACKET", "libc.socket(17, 3, 0)"),
        ("raw socket", "libc.socket(2, 3, 1)"),
        ("raw socket with flags", "libc.socket(2, 3 | 0o2000000, 1)"),
        ("SCTP", "libc.socket(2, 1, 132)"),
        ("nftables netlink", "libc.socket(16, 3, 12)"),
        ("bpf", "libc.syscall(321, 0, 0, 0)"),
        ("io_uring", "libc.syscall(425, 8, ctypes.create_string_buffer(120))"),
        ("userfaultfd", "libc.syscall(323, 1)"),
        ("keyctl", "libc.syscall(250, 0, -3, 0)"),
        ("perf_event_open", "libc.syscall(298, ctypes.create_string_buffer(128), 0, -1, -1, 0)"),
        ("process_vm_readv", "libc.syscall(310, 1, 0, 0, 0, 0, 0)"),
        ("mount", "libc.mount(b'x', b'/tmp', b'tmpfs', 0, None)"),
        ("TIOCSTI", "libc.ioctl(0, 0x5412, b'x')"),
        ("TIOCSTI with high bits", "libc.ioctl(0, ctypes.c_ulong((1 << 32) | 0x5412), b'x')"),
        ("memfd_secret", "libc.syscall(447, 0)"),
        ("open by handle", "libc.syscall(304, -100, ctypes.create_string_buffer(64), 0)"),
    ],
)
async def test_the_kernel_is_out_of_reach(box: NamespaceSandbox, what: str, code: str) -> None:
    program = (
        "import ctypes, errno\nlibc = ctypes.CDLL(None, use_errno=True)\n"
        f"result = {code}\nprint(result, errno.errorcode.get(ctypes.get_errno()))"
    )
    result = await box.run([PYTHON, "-I", "-S", "-c", program])
    if what == "TIOCSTI":
        assert result.stdout == b"-1 EPERM\n"
    assert result.stdout.split()[0] == b"-1", (what, result)
    assert result.stdout.split()[1] in (b"EPERM", b"ENOSYS"), (what, result)


async def test_user_namespaces_are_locked_without_the_filters_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    allow_all = struct.pack("<HBBI", 0x06, 0, 0, 0x7FFF0000)
    monkeypatch.setattr(host, "seccomp_filters", lambda: (allow_all, allow_all))
    pool = namespace_pool()
    async with a_box(pool) as box:
        code = (
            "import ctypes; libc = ctypes.CDLL(None, use_errno=True);"
            "print(libc.unshare(0x10000000), ctypes.get_errno() in (1, 28), libc.unshare(0x20000))"
        )
        assert await python_in(box, code) == "-1 True -1\n"
    await pool.close()


async def test_ordinary_sockets_work_on_loopback_only(box: NamespaceSandbox) -> None:
    code = """
import socket
server = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(server.getsockname())
client.sendall(b"x")
print(server.accept()[0].recv(1))
try: socket.create_connection(("192.0.2.1", 80), 1)
except OSError as error: print(type(error).__name__)
"""
    assert await python_in(box, code) == "b'x'\nOSError\n"
