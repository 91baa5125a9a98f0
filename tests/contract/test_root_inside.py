"""Root inside, nobody outside: what boxes with ``user="root"`` promise, on both backends."""

# ruff: noqa: ASYNC240 - the host is looked at directly
import asyncio
import os
import stat
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.boxes import (
    BACKENDS,
    PYTHON,
    a_box,
    all_processes,
    backend_of,
    namespace_pool,
    processes_of_uids,
    status_of,
)
from tests.debian import debian_image
from trialyard.core.errors import FileAccessError, UserError
from trialyard.core.image import Image
from trialyard.core.process import Process
from trialyard.core.sandbox import ExecStatus, Limits, Sandbox
from trialyard.images.host import HOST, host_image
from trialyard.sandboxes.namespace import NamespaceSandbox
from trialyard.sandboxes.owner import IDS_PER_RANGE, RANGE_BASE
from trialyard.sandboxes.plan import ROOT_CAPABILITIES
from trialyard.sandboxes.pool import NamespacePool
from trialyard.sandboxes.snapshots import SnapshotStore

CAPABILITIES = {
    "CHOWN": 0, "DAC_OVERRIDE": 1, "FOWNER": 3, "FSETID": 4, "KILL": 5, "SETGID": 6, "SETUID": 7,
    "SETPCAP": 8, "NET_BIND_SERVICE": 10, "SYS_CHROOT": 18, "AUDIT_WRITE": 29, "SETFCAP": 31,
}  # fmt: skip
HELD = f"{sum(1 << number for number in CAPABILITIES.values()):016x}"
NONE = "0" * 16


@pytest.fixture(scope="module")
def debian(tmp_path_factory: pytest.TempPathFactory) -> Image:
    return debian_image(tmp_path_factory.mktemp("debian"))


@pytest.fixture(params=BACKENDS)
async def pool(
    request: pytest.FixtureRequest, debian: Image, tmp_path: Path
) -> AsyncIterator[NamespacePool]:
    made = NamespacePool(
        {HOST: host_image(), "debian": debian},
        max_boxes=4,
        warm_per_kind=0,
        backend=backend_of(request.param),
        snapshots=SnapshotStore(tmp_path / "snapshots"),
    )
    yield made
    await made.close()
    counters = made.counters()
    assert counters["leaked"] == 0
    assert counters["created"] == counters["destroyed"]


@pytest.fixture(params=[HOST, "debian"])
async def box(pool: NamespacePool, request: pytest.FixtureRequest) -> AsyncIterator[Sandbox]:
    async with a_box(pool, user="root", image=request.param) as made:
        yield made


async def shell(box: Sandbox, script: str, *, user: str | int | None = None) -> str:
    result = await box.run(["sh", "-ec", script], user=user)
    assert result.ok, (result.stdout, result.stderr)
    return result.stdout.decode()


async def started(box: NamespaceSandbox, *, user: int | None = None) -> Process:
    """A process that runs until its box ends."""
    process = await box.start(["sh", "-c", "echo up; sleep 600"], user=user)
    for _ in range(500):
        if process.output()[0]:
            return process
        await asyncio.sleep(0.01)
    raise AssertionError("it does not start")


async def python(box: Sandbox, code: str) -> str:
    result = await box.run([PYTHON, "-I", "-S", "-c", code])
    assert result.ok, result.stderr
    return result.stdout.decode()


# --- who it is -----------------------------------------------------------------------------


async def test_commands_are_root_with_the_capabilities_of_a_container(
    box: NamespaceSandbox,
) -> None:
    assert ROOT_CAPABILITIES == CAPABILITIES
    text = await shell(box, "id -u; id -g; cat /proc/self/status")
    uid, gid, *lines = text.splitlines()
    assert (uid, gid) == ("0", "0")
    status = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
    assert [status[name] for name in ("CapPrm", "CapEff", "CapBnd")] == [HELD] * 3
    assert [status[name] for name in ("CapInh", "CapAmb")] == [NONE] * 2
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
    assert (await shell(box, "echo $HOME; case $PATH in *sbin*) echo sbin;; esac")) == (
        "/root\nsbin\n"
    )
    assert box.user == "root"


async def test_on_the_host_it_is_nobody(pool: NamespacePool) -> None:
    async with a_box(pool, user="root") as first, a_box(pool, user="root") as second:
        ranges = [first.host_uids, second.host_uids]
        assert not set(ranges[0]) & set(ranges[1])
        for box in (first, second):
            assert box.host_uids.start == box.host_uid >= RANGE_BASE
            assert len(box.host_uids) == IDS_PER_RANGE
            other = await started(box, user=65_534)
            await started(box)
            pids = all_processes(box.host_uid)
            assert len(pids) >= 4
            assert other.running
            for pid in pids:
                status = status_of(pid)
                for name in ("Uid", "Gid"):
                    assert all(int(id) in box.host_uids for id in status[name].split()), status
                assert set(status["Groups"].split()) <= {str(id) for id in box.host_uids}
                own = Path(f"/proc/{pid}/ns/user").readlink()
                if own == Path("/proc/self/ns/user").readlink():
                    assert status["CapEff"] == NONE  # what waits outside for its end
            map = Path(f"/proc/{box.host_pid}/uid_map").read_text().split()
            assert map == ["0", str(box.host_uid), str(IDS_PER_RANGE)]
            assert Path(f"/proc/{box.host_pid}/gid_map").read_text().split() == map


async def test_pid_1_is_root_too_and_out_of_its_reach(box: NamespaceSandbox) -> None:
    status = status_of(box.host_pid)
    assert status["Uid"].split() == [str(box.host_uid)] * 4
    assert (status["CapEff"], status["CapBnd"], status["Seccomp"]) == (HELD, HELD, "2")
    for name in ("environ", "mem", "maps", "fd/3", "exe", "root", "cwd", "syscall", "stack"):
        assert (await box.run(["cat", f"/proc/1/{name}"])).exit_code != 0, name
    await box.run(["sh", "-c", "kill -KILL 1; kill -STOP 1; kill -TERM 1"])
    assert (await box.run(["true"])).ok


async def test_every_namespace_is_its_own(box: NamespaceSandbox) -> None:
    for name in ("cgroup", "ipc", "mnt", "net", "pid", "user", "uts"):
        theirs = Path(f"/proc/{box.host_pid}/ns/{name}").readlink()
        assert theirs != Path(f"/proc/self/ns/{name}").readlink(), name


def test_bubblewrap_alone_leaves_root_what_it_has() -> None:
    """What the boxes are compared with: the same program, started as it comes."""
    if os.geteuid() != 0:
        pytest.fail("boxes need root, and so does this comparison")
    argv = ["bwrap", "--unshare-all", "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev"]
    done = subprocess.run(
        [*argv, "cat", "/proc/self/status", "/proc/self/uid_map"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    held = dict(line.split(":\t", 1) for line in done.stdout.splitlines() if ":\t" in line)
    assert int(held["CapEff"], 16) & 1 << 21  # SYS_ADMIN
    assert done.stdout.splitlines()[-1].split()[:2] == ["0", "0"]


@pytest.mark.parametrize("user", ["", "0", "admin", "ROOT"])
async def test_another_user_for_a_box_is_a_user_error(pool: NamespacePool, user: str) -> None:
    with pytest.raises(UserError, match="user"):
        pool.acquire(image=HOST, limits=Limits(), owner="t", user=user)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="user"):
        pool.acquire_many(
            2, image=HOST, limits=Limits(), owner="t", user=user  # type: ignore[arg-type]
        )  # fmt: skip


# --- what it can do ------------------------------------------------------------------------


async def test_it_owns_and_gives_away_its_files(box: NamespaceSandbox) -> None:
    text = await shell(
        box,
        "stat -c %u:%g /work /out /tmp /root /usr /etc /etc/passwd /dev/null /dev/shm;"
        "echo x > f; chown 1000:33 f; stat -c %u:%g f; chmod 4755 f; stat -c %a f;"
        "mkdir /new /var/new; touch /new/x; chown 65535 /new; stat -c %u /new",
    )
    assert text.split() == ["0:0"] * 9 + ["1000:33", "4755", "65535"]
    for id in (65_536, 200_000, box.host_uid):
        assert (await box.run(["chown", str(id), "f"])).exit_code != 0
    on_host = Path(f"/proc/{box.host_pid}/root/work/f").stat()
    assert (on_host.st_uid, on_host.st_gid) == (box.host_uid + 1000, box.host_uid + 33)


async def test_it_becomes_other_users(box: NamespaceSandbox) -> None:
    name = "user" if (await box.run(["id", "user"])).ok else "www-data"
    assert (await shell(box, f"su {name} -c whoami; runuser -u {name} whoami")) == (
        f"{name}\n{name}\n"
    )
    code = """
import os
os.setgroups([5, 33, 65535])
os.setresgid(1000, 1000, 1000); os.setresuid(1000, 1000, 1000)
print(os.getgroups(), os.getresuid())
for id in (0, 1001):
    try: os.setuid(id); print("back to", id)
    except OSError: pass
for line in open("/proc/self/status"):
    if line.startswith(("CapEff", "CapPrm")): print(line.split()[1])
"""
    assert await python(box, code) == (f"[5, 33, 65535] (1000, 1000, 1000)\n{NONE}\n{NONE}\n")
    for call in ("setuid(65536)", "setgid(70000)", "setgroups([65536])", "setresuid(-2, 0, 0)"):
        result = await box.run([PYTHON, "-I", "-S", "-c", f"import os; os.{call}"])
        assert result.exit_code == 1, call


async def test_commands_run_as_any_user_of_the_box(pool: NamespacePool) -> None:
    async with a_box(pool, user="root", image="debian") as box:
        assert (await shell(box, "id -u; id -g; echo $HOME", user="www-data")).split() == [
            "33", "33", "/var/www",
        ]  # fmt: skip
        assert (await shell(box, "id -u", user=4242)) == "4242\n"
        assert (await shell(box, "cat /var/www/page", user="www-data")) == "of www-data"
        assert (await box.run(["cat", "/var/www/page"], user=4242)).exit_code == 1
        assert (await box.run(["touch", "/etc/x"], user="www-data")).exit_code == 1
        assert (await shell(box, "id -u", user="root")) == "0\n"
        for user in ("stranger", -1, 65_536, "", "a:b"):
            with pytest.raises(UserError, match="user"):
                await box.run(["true"], user=user)


async def test_packages_are_unpacked_and_users_added(pool: NamespacePool) -> None:
    async with a_box(pool, user="root", image="debian") as box:
        await shell(box, "mkdir -p p/DEBIAN p/usr/bin p/var/lib/thing p/etc")
        await box.write("p/DEBIAN/control", b"Package: thing\nVersion: 1\nArchitecture: all\n"
                        b"Maintainer: a <a@b>\nDescription: thing\n")  # fmt: skip
        await box.write(
            "p/DEBIAN/postinst",
            b"#!/bin/sh\nset -e\nuseradd -r -u 500 -d /var/lib/thing thing\n"
            b"chown -R thing /var/lib/thing\nchmod 4755 /usr/bin/thing\n",
            mode=0o755,
        )
        await box.write("p/usr/bin/thing", b"#!/bin/sh\necho thing\n", mode=0o755)
        await shell(box, "dpkg-deb --build p thing.deb >/dev/null; dpkg -i thing.deb")
        assert await shell(box, "thing; dpkg-query -W; stat -c %u:%a /var/lib/thing") == (
            "thing\nthing\t1\n500:755\n"
        )
        assert (await shell(box, "id -u", user="thing")) == "500\n"
        assert (await shell(box, "stat -c %u:%g:%a /etc/shadow")) == "0:42:640\n"
        await shell(box, "dpkg -r thing; ! test -e /usr/bin/thing")


async def test_one_box_does_not_change_the_image_of_another(
    pool: NamespacePool, debian: Image
) -> None:
    async with a_box(pool, user="root", image="debian") as box:
        await shell(box, "echo changed > /var/www/page; chown 7:7 /usr/bin/env; rm /etc/shadow")
        assert (await shell(box, "stat -c %u:%g /var/www/page")) == "33:33\n"
    lower = Path(debian.lowers[0])
    assert (lower / "var/www/page").read_text() == "of www-data"
    assert (lower / "usr/bin/env").stat().st_uid == 0
    async with a_box(pool, user="root", image="debian") as box:
        assert (await shell(box, "cat /var/www/page; stat -c %u /usr/bin/env")) == "of www-data0\n"


async def test_the_system_is_all_there(box: NamespaceSandbox) -> None:
    inside = Path(f"/proc/{box.host_pid}/root")
    for path in ("usr", "usr/bin", "usr/lib", "opt/trialyard/python"):
        listed = (await shell(box, f"ls -A /{path}")).split()
        assert listed == sorted(listed)
        assert set(listed) == {each.name for each in (inside / path).iterdir()} != set(), path


async def test_a_low_port_and_a_terminal_of_its_group(box: NamespaceSandbox) -> None:
    code = """
import os, socket
print(socket.create_server(("127.0.0.1", 80)).getsockname()[1])
status = os.fstat(os.openpty()[1])
print(status.st_uid, status.st_gid, oct(status.st_mode & 0o777))
"""
    assert await python(box, code) == "80\n0 5 0o620\n"


async def test_a_snapshot_keeps_owners_for_either_user(pool: NamespacePool) -> None:
    async with a_box(pool, user="root", image="debian") as box:
        await shell(box, "mkdir /srv; for i in 0 33 1000; do touch /srv/$i; chown $i /srv/$i; done")
        await shell(box, "rm /var/www/page; chmod 4755 /srv/0")
        name = await box.snapshot()
    async with a_box(pool, user="root", image=name) as box:
        assert (await shell(box, "cd /srv; stat -c %u 0 33 1000")).split() == ["0", "33", "1000"]
        assert (await shell(box, "stat -c %u /; ls /var/www")) == "0\n"
        await shell(box, "echo x > /srv/33; chown 5 /srv/0")
    async with a_box(pool, image=name) as box:
        assert (await shell(box, "stat -c %u /srv/1000")) == "1000\n"
        await shell(box, "echo x > /srv/1000; ! echo x > /srv/33; ! echo x > /srv/0")


async def test_forks_have_root_inside_too(pool: NamespacePool) -> None:
    async with a_box(pool, user="root") as box:
        await shell(box, "echo mine > /root/x; chown 1000 /root/x")
        async with pool.fork(box, 2, owner="test") as forks:
            for fork in forks:
                assert isinstance(fork, NamespaceSandbox)
                assert fork.host_uids != box.host_uids
                assert (await shell(fork, "id -u; stat -c %u /root/x")) == "0\n1000\n"


async def test_a_time_out_kills_processes_of_every_user(pool: NamespacePool) -> None:
    async with a_box(pool, user="root") as box:
        keep = await started(box)
        before = len(processes_of_uids(box.host_uids))
        script = "for i in 33 1000; do setpriv --reuid $i sh -c 'setsid sleep 61 & sleep 61' & done"
        result = await box.run(["sh", "-c", f"{script}; sleep 61"], timeout_s=0.5)
        assert result.status is ExecStatus.TIMEOUT
        assert len(processes_of_uids(box.host_uids)) == before
        assert keep.running


# --- files, as the supervisor reads and writes them ------------------------------------------


async def test_what_the_supervisor_writes_belongs_to_root_inside(box: NamespaceSandbox) -> None:
    await box.write("a/b/c", b"x", mode=0o755)
    await box.upload({"t/u": b"y"}, directory="/opt/tests")
    await box.write("/etc/new" if box.image.name == "debian" else "/srv/new", b"z")
    text = await shell(box, "stat -c %u:%g a a/b a/b/c /opt/tests /opt/tests/t/u")
    assert text.split() == ["0:0"] * 5
    for path in ("work/a/b/c", "opt/tests/t/u"):
        assert Path(f"/proc/{box.host_pid}/root/{path}").stat().st_uid == box.host_uid


async def test_the_supervisor_may_what_root_inside_may(box: NamespaceSandbox) -> None:
    await shell(
        box,
        "mkdir -p d/e; echo one > d/e/f; chown -R 1000:1000 d; chmod 0700 d d/e; chmod 0600 d/e/f",
    )
    assert await box.read("d/e/f") == b"one\n"
    assert await box.download("d") == {"e/f": b"one\n"}
    assert [entry.path for entry in await box.list("d/e")] == ["/work/d/e/f"]
    await box.write("d/e/f", b"two")
    assert (await shell(box, "stat -c %u d/e/f; cat d/e/f")) == "1000\ntwo"
    await box.write("d/e/g", b"three")
    assert (await shell(box, "stat -c %u d/e/g")) == "0\n"
    await box.remove("d/e/f")
    await box.remove("d")
    assert await box.list(".") == []


async def test_no_link_of_root_inside_leads_the_supervisor_out(
    box: NamespaceSandbox, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("canary")
    secret.chmod(0o600)
    await shell(
        box,
        f"ln -s /proc/1/root{secret} a; ln -s /proc/self/root{secret} b; ln -s {secret} c;"
        "ln -s /proc/sysrq-trigger d; ln -s /proc/sys/kernel/core_pattern e; ln -s /proc/1 f;"
        f"ln -s ../../../../../../..{tmp_path} g; mkfifo h; ln -s /dev/zero i; ln -s /proc j",
    )
    for path in ("a", "b", "c", "d", "f/mem", "f/root/etc/shadow", "g/secret", "h", "i", "j/kcore"):
        with pytest.raises(FileAccessError):
            await box.read(path)
    for path in ("d", "e", "j/sysrq-trigger", "j/sys/kernel/core_pattern"):
        try:
            await box.write(path, b"x")
        except FileAccessError:
            continue
        assert (await box.stat(path)).kind == "file"  # the link itself was replaced
    pattern = Path("/proc/sys/kernel/core_pattern").read_text()
    assert pattern.strip() != "x"
    assert not any(b"canary" in data for data in (await box.download(".")).values())
    assert secret.read_text() == "canary"


async def test_a_setuid_program_of_root_inside_is_nobodys_on_the_host(
    box: NamespaceSandbox,
) -> None:
    await shell(box, "cp /bin/cat /out/c; chown 0:0 /out/c; chmod 6755 /out/c")
    status = Path(f"/proc/{box.host_pid}/root/out/c").stat()
    assert status.st_mode & stat.S_ISUID
    assert status.st_uid == box.host_uid
    as_user = await box.run(["/out/c", "/proc/self/status"], user=1000)
    seen = as_user.stdout.decode()
    assert "Uid:\t1000\t1000\t1000\t1000" in seen  # nor is it root's inside
    assert f"CapEff:\t{NONE}" in seen


# --- what it cannot ------------------------------------------------------------------------

_HOSTILE = {
    "mount a tmpfs": "call(165, b'x', b'/tmp', b'tmpfs', 0, 0)",
    "bind the host's disk": "call(165, b'/', b'/tmp', b'', 4096, 0)",
    "remount the root": "call(165, b'', b'/', b'', 32, 0)",
    "remount /proc/sys": "call(165, b'', b'/proc/sys', b'', 32 | 4096, 0)",
    "mount proc anew": "call(165, b'proc', b'/tmp', b'proc', 0, 0)",
    "unmount what covers": "call(166, b'/proc/sys', 2)",
    "open_tree": "call(428, -100, b'/', 1)",
    "fsopen": "call(430, b'tmpfs', 0)",
    "mount_setattr": "call(442, -100, b'/usr', 0, b'\\0' * 32, 32)",
    "pivot_root": "call(155, b'/', b'/')",
    "chroot": "call(161, b'/tmp')",
    "a disk's device": "os.mknod('/tmp/sda', 0o60666, os.makedev(8, 0))",
    "memory's device": "os.mknod('/tmp/mem', 0o20666, os.makedev(1, 1))",
    "a null device": "os.mknod('/dev/shm/null', 0o20666, os.makedev(1, 3))",
    "a raw socket": "socket.socket(2, 3, 1)",
    "a packet socket": "socket.socket(17, 3, 0)",
    "a netfilter socket": "socket.socket(16, 3, 12)",
    "an audit socket": "socket.socket(16, 3, 9)",
    "AF_ALG": "socket.socket(38, 5, 0)",
    "a new user namespace": "call(272, 0x10000000)",
    "a new mount namespace": "call(272, 0x20000)",
    "a new network namespace": "call(272, 0x40000000)",
    "a clone into a user namespace": "call(56, 0x10000000 | 17, 0, 0, 0, 0)",
    "enter a namespace": "call(308, os.open('/proc/self/ns/net', 0), 0)",
    "the namespaces of PID 1": "os.open('/proc/1/ns/mnt', 0)",
    "trace PID 1": "call(101, 16, 1, 0, 0)",
    "seize PID 1": "call(101, 0x4206, 1, 0, 0)",
    "read PID 1's memory": "open('/proc/1/mem', 'rb').read(1)",
    "write PID 1's memory": "open('/proc/1/mem', 'r+b')",
    "PID 1's root": "os.listdir('/proc/1/root/')",
    "a descriptor of PID 1": "call(438, os.pidfd_open(1), 3, 0)",
    "process_vm_writev": "call(311, 1, 0, 0, 0, 0, 0)",
    "lower PID 1's oom_score_adj": "write('/proc/1/oom_score_adj', '-1000')",
    "lower its own oom_score_adj": "write('/proc/self/oom_score_adj', '-1000')",
    "raise its marker": "resource.setrlimit(10, (1 << 40, 1 << 40))",
    "raise its core limit": "resource.setrlimit(resource.RLIMIT_CORE, (1, 1))",
    "open more files": "resource.setrlimit(resource.RLIMIT_NOFILE, (99999, 99999))",
    "core_pattern": "write('/proc/sys/kernel/core_pattern', '|/tmp/x')",
    "modprobe": "write('/proc/sys/kernel/modprobe', '/tmp/x')",
    "more user namespaces": "write('/proc/sys/user/max_user_namespaces', '99')",
    "the host name by sysctl": "write('/proc/sys/kernel/hostname', 'x')",
    "ip_forward": "write('/proc/sys/net/ipv4/ip_forward', '1')",
    "sysrq": "write('/proc/sysrq-trigger', 'h')",
    "mtrr": "write('/proc/mtrr', 'x')",
    "kernel memory": "1 / len(open('/proc/kcore', 'rb').read(1))",
    "kernel log": "1 / len(open('/proc/kmsg', 'rb').read(1))",
    "a wider uid map": "write('/proc/self/uid_map', '0 0 4294967295')",
    "setgroups of PID 1": "write('/proc/1/setgroups', 'deny')",
    "keys": "call(250, 0, -3, 0)",
    "bpf": "call(321, 0, 0, 0)",
    "perf": "call(298, b'\\0' * 128, 0, -1, -1, 0)",
    "io_uring": "call(425, 8, b'\\0' * 120)",
    "load a module": "call(175, b'', 0, b'')",
    "reboot": "call(169, 0xfee1dead, 672274793, 0, 0)",
    "the clock": "call(227, 0, b'\\0' * 16)",
    "the host name": "call(170, b'x', 1)",
    "swap": "call(167, b'/tmp/x', 0)",
    "quota": "call(179, 0, 0, 0, 0)",
    "open by handle": "call(304, -100, b'\\0' * 64, 0)",
    "real-time priority": "os.sched_setscheduler(0, 1, os.sched_param(1))",
    "a better nice value": "os.setpriority(0, 0, -5)",
    "an immutable file": "fcntl.ioctl(open('/tmp/i', 'w'), 0x40086602, b'\\x10' + bytes(7))",
    "push into a terminal": "fcntl.ioctl(0, 0x5412, b'x')",
    "a trusted attribute": "os.setxattr('/tmp', 'trusted.overlay.opaque', b'y')",
    "an id outside": "os.chown('/tmp', 65536, 65536)",
    "the host's root": "os.setuid(4294967294)",
    "the system": "open('/usr/x', 'w') if HOST else 1 / 0",
    "our own program": "open('/opt/trialyard/init', 'r+b')",
    "the interpreter": "open('/opt/trialyard/python/bin/python3', 'r+b')",
    "our devices": "os.unlink('/dev/null')",
    "their owners": "os.chown('/dev/null', 1, 1)",
    "cover /proc": "os.rename('/proc', '/tmp/p')",
    "unplug a mount": "os.unlink('/opt/trialyard/init')",
}


async def test_the_host_is_out_of_reach(box: NamespaceSandbox) -> None:
    names = list(_HOSTILE)
    code = f"""
import ctypes, errno, fcntl, os, resource, socket
HOST = {box.image.name == HOST}
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *arguments):
    if libc.syscall(ctypes.c_long(number), *(
        ctypes.c_long(each) if isinstance(each, int) else each for each in arguments
    )) == -1:
        raise OSError(ctypes.get_errno(), "refused")
def write(path, text):
    fd = os.open(path, os.O_WRONLY)
    os.write(fd, text.encode())
for name, attempt in {_HOSTILE!r}.items():
    try:
        eval(attempt)
    except (OSError, ValueError, ZeroDivisionError):
        continue
    print(name)
"""
    assert len(names) > 60
    assert await python(box, code) == ""
    assert box.alive
    assert (await box.run(["true"])).ok


async def test_private_files_of_the_host_stay_private(tmp_path: Path) -> None:
    """Root inside is seen to own what the host's root owns, but may read it as anybody."""
    layer = tmp_path / "layer"
    (layer / "shut").mkdir(parents=True)
    (layer / "open").write_text("public")
    (layer / "shut" / "inner").write_text("canary")
    for name, mode in (("private", 0o600), ("group", 0o640), ("run", 0o711)):
        (layer / name).write_text("canary")
        (layer / name).chmod(mode)
    (layer / "shut").chmod(0o700)
    pool = namespace_pool(layers={"/opt/trialyard/python": Path("/usr"), "/opt/layer": layer})
    async with a_box(pool, user="root") as box:
        assert (await shell(box, "ls /opt/layer; ls / | wc -l; ls /usr | wc -l")).split()[:5] == [
            "group", "open", "private", "run", "shut",
        ]  # fmt: skip
        text = await shell(box, "cd /opt/layer; stat -c %u:%g:%a . open private; cat open")
        assert text == "0:0:755\n0:0:644\n0:0:600\npublic"
        for path in ("private", "group", "run", "shut/inner"):
            result = await box.run(["cat", f"/opt/layer/{path}"])
            assert (result.exit_code, result.stdout) == (1, b""), path
        for script in ("chmod 644 private", "cp -a shut /tmp/s", "mv private x", "echo x > open"):
            assert (await box.run(["sh", "-c", script], cwd="/opt/layer")).exit_code != 0, script
        with pytest.raises(FileAccessError):
            await box.read("/opt/layer/private")
        assert "canary" not in str(await box.download("/opt/layer"))
    await pool.close()


async def test_files_of_another_box_are_out_of_reach(pool: NamespacePool) -> None:
    async with a_box(pool, user="root") as mine, a_box(pool, user="root") as other:
        await other.write("/work/secret", b"canary")
        for pid in (other.host_pid, os.getpid()):
            result = await mine.run(["cat", f"/proc/{pid}/root/work/secret"])
            assert result.exit_code == 1
        code = f"import os; os.kill({other.host_pid}, 0)"
        assert (await mine.run([PYTHON, "-I", "-c", code])).exit_code == 1


async def test_when_the_pool_closes_nothing_of_the_range_is_left(debian: Image) -> None:
    pool = NamespacePool({HOST: host_image(), "debian": debian}, warm_per_kind=1)
    mounts = Path("/proc/self/mounts").read_text()
    async with a_box(pool, user="root", image="debian") as box:
        uids = box.host_uids
        await started(box)
        await started(box, user=33)
        assert len(processes_of_uids(uids)) >= 4
    await pool.close()
    await asyncio.sleep(0)
    assert processes_of_uids(uids) == []
    assert Path("/proc/self/mounts").read_text() == mounts
