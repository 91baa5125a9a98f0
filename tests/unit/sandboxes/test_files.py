"""Files in a box: no link leads out, nothing blocks, everything is bounded and charged."""

import time
from pathlib import Path

import pytest

from trialyard.core.errors import FileAccessError, UserError
from trialyard.core.sandbox import Limits
from trialyard.sandboxes.namespace import NamespaceSandbox
from trialyard.sandboxes.pool import NamespacePool

MIB = 1 << 20


async def shell(box: NamespaceSandbox, script: str) -> None:
    result = await box.run(["sh", "-c", script])
    assert result.ok, result.stderr


async def test_links_stay_inside(box: NamespaceSandbox, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("canary")
    await shell(box, f"ln -s {secret} /out/a; ln -s / /out/root; ln -s /proc/self/root /out/magic")
    for path in ("/out/a", f"/out/root{secret}", f"/out/magic{secret}", f"/out/../..{secret}"):
        with pytest.raises(FileAccessError):
            await box.read(path)
    assert await box.download("/out") == {}
    assert (await box.stat("/out/a")).kind == "link"
    await box.write("/out/root/tmp/x", b"inside")
    assert await box.read("/tmp/x") == b"inside"


async def test_writing_through_a_link_replaces_it_and_never_touches_the_system(
    box: NamespaceSandbox,
) -> None:
    await shell(
        box,
        "ln -s /tmp/target answer.py; ln -s /proc/sysrq-trigger trigger; ln -s /proc/sys/kernel k;"
        "ln -s /usr/bin b",
    )
    await box.write("answer.py", b"mine")
    assert (await box.stat("answer.py")).kind == "file"
    with pytest.raises(FileAccessError):
        await box.read("/tmp/target")
    await box.write("trigger", b"h")
    assert (await box.stat("trigger")).kind == "file"
    for path in ("k/core_pattern", "b/env", "/usr/x", "/etc/passwd", "/proc/sysrq-trigger"):
        with pytest.raises(FileAccessError):
            await box.write(path, b"x")


async def test_special_files_never_block(box: NamespaceSandbox) -> None:
    await shell(
        box,
        "mkfifo /out/fifo; echo good > /out/good.txt;"
        "python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"/out/s\")'",
    )
    started = time.monotonic()
    for path in ("/out/fifo", "/out/s", "/dev/zero", "/dev/tty"):
        with pytest.raises(FileAccessError):
            await box.read(path)
        with pytest.raises(FileAccessError):
            await box.write(path, b"x")
    assert await box.download("/out") == {"good.txt": b"good\n"}
    assert [(e.path, e.kind) for e in await box.list("/out")] == [
        ("/out/fifo", "other"), ("/out/good.txt", "file"), ("/out/s", "other"),
    ]  # fmt: skip
    assert time.monotonic() - started < 2


async def test_what_is_written_belongs_to_the_boxs_user(box: NamespaceSandbox) -> None:
    await box.write("a/b/c", b"x", mode=0o755)
    await box.upload({"t/test.sh": b"x"}, directory="/tests")
    await box.write("/logs/verifier/x", b"x")
    for path in ("a", "a/b", "a/b/c", "/tests", "/tests/t", "/tests/t/test.sh", "/logs/verifier"):
        result = await box.run(["stat", "-c", "%U %a", path])
        assert result.stdout.split()[0] == b"user", path
    assert (await box.stat("a/b/c")).mode == 0o755
    await shell(box, "echo y > /tests/new; rm -r a")


async def test_what_is_written_counts_against_the_quota(pool: NamespacePool) -> None:
    limits = Limits(disk_bytes=4 * MIB, inodes=64)
    async with pool.acquire(image="host", limits=limits, owner="test") as box:
        with pytest.raises(FileAccessError, match="space"):
            await box.write("big", bytes(5 * MIB))
        await box.remove("big")
        with pytest.raises(FileAccessError):
            await box.upload({f"f{i}": b"" for i in range(300)}, directory="many")


async def test_hostile_trees_end_in_an_error_and_are_removed(box: NamespaceSandbox) -> None:
    await shell(
        box,
        'python3 -c \'import os\nfor i in range(3000): os.mkdir("d"); os.chdir("d")\';'
        "mkdir -p shut/in; echo x > shut/in/f; chmod 0 shut/in/f shut/in shut;"
        "echo x > \"$(printf 'bad\\377name')\"",
    )
    with pytest.raises(FileAccessError, match="nested deeper"):
        await box.download("d")
    with pytest.raises(FileAccessError, match="nested deeper"):
        await box.download(".")
    started = time.monotonic()
    await box.remove("d")
    assert time.monotonic() - started < 5
    assert await box.download(".") == {"bad\udcffname": b"x\n"}
    await box.remove("shut")
    await box.remove("bad\udcffname")
    assert await box.list(".") == []


async def test_sparse_files_are_bounded_by_their_size(box: NamespaceSandbox) -> None:
    await shell(box, "truncate -s 1T /out/sparse")
    with pytest.raises(FileAccessError, match="more than"):
        await box.read("/out/sparse", max_bytes=MIB)
    with pytest.raises(FileAccessError):
        await box.download("/out", max_bytes=MIB)


async def test_modes_lose_setuid(box: NamespaceSandbox) -> None:
    await box.write("x", b"", mode=0o4755)
    assert (await box.stat("x")).mode == 0o755


@pytest.mark.parametrize("path", ["", "a\0b"])
async def test_impossible_paths_are_user_errors(box: NamespaceSandbox, path: str) -> None:
    with pytest.raises(UserError, match="path"):
        await box.read(path)
    with pytest.raises(UserError, match="path"):
        await box.write(path, b"")


@pytest.mark.parametrize("workdir", ["relative", "/", "/usr/x", "/etc", "/proc/1", "/work/../usr"])
async def test_a_workdir_in_the_system_is_a_user_error(pool: NamespacePool, workdir: str) -> None:
    with pytest.raises(UserError, match="workdir"):
        pool.acquire(image="host", limits=Limits(), owner="test", workdir=workdir)


async def test_a_workdir_of_ones_own(pool: NamespacePool) -> None:
    async with pool.acquire(
        image="host", limits=Limits(), owner="test", workdir="/testbed/repo/"
    ) as box:
        assert box.workdir == "/testbed/repo"
        assert (await box.run(["sh", "-c", "pwd; touch x"])).stdout == b"/testbed/repo\n"
        assert (await box.stat("x")).path == "/testbed/repo/x"
