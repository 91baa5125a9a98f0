"""What every `Sandbox` and `SandboxPool` promises, on both backends and on the fake."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from tests.boxes import BACKENDS, namespace_pool
from tests.timing import scaled
from trialyard.core.errors import (
    FileAccessError,
    NotFoundError,
    ResourceExhausted,
    SandboxLost,
    UserError,
)
from trialyard.core.sandbox import ExecStatus, Limits, Sandbox, SandboxPool
from trialyard.sandboxes.snapshots import SnapshotStore
from trialyard.testing.pool import FakePool
from trialyard.testing.sandbox import exited, scripted

FAKE_PROGRAM = scripted(
    {
        ("true",): exited(),
        ("sh", "-c", "echo out; echo err >&2; exit 3"): exited(3, b"out\n", b"err\n"),
    }
)


@pytest.fixture(params=[*BACKENDS, "fake"])
async def pool(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[SandboxPool]:
    made: SandboxPool = (
        FakePool(FAKE_PROGRAM, max_boxes=2)
        if request.param == "fake"
        else namespace_pool(
            max_boxes=2, backend=request.param, snapshots=SnapshotStore(tmp_path / "snapshots")
        )
    )
    yield made
    await made.close()


@pytest.fixture
async def box(pool: SandboxPool) -> AsyncIterator[Sandbox]:
    async with pool.acquire(image="host", limits=Limits(), owner="test") as sandbox:
        yield sandbox


async def test_a_command_that_fails_is_a_result(box: Sandbox) -> None:
    result = await box.run(["sh", "-c", "echo out; echo err >&2; exit 3"])
    assert (result.status, result.exit_code, result.signal) == (ExecStatus.EXITED, 3, None)
    assert (result.stdout, result.stderr) == (b"out\n", b"err\n")
    assert (result.stdout_bytes, result.stderr_bytes) == (4, 4)
    assert not result.ok
    assert (await box.run(["true"])).ok


async def test_a_missing_program_exits_with_127_and_says_so(box: Sandbox) -> None:
    result = await box.run(["no-such-program"])
    assert (result.status, result.exit_code) == (ExecStatus.EXITED, 127)
    assert b"cannot start" in result.stderr


@pytest.mark.parametrize("argv", [[], [""], ["a\0b"], "true"])
async def test_bad_argv_is_a_typed_error_that_names_the_field(
    box: Sandbox, argv: list[str]
) -> None:
    with pytest.raises(UserError, match="argv"):
        await box.run(argv)


async def test_what_was_written_is_read_listed_and_removed(box: Sandbox) -> None:
    await box.write("a/b.txt", b"\x00\xff")
    assert await box.read("a/b.txt") == b"\x00\xff"
    assert await box.read("/work/a/b.txt") == b"\x00\xff"
    await box.write("a/b.txt", b"new")
    assert await box.read("a/b.txt") == b"new"
    entry = await box.stat("a/b.txt")
    assert (entry.path, entry.kind, entry.size_bytes) == ("/work/a/b.txt", "file", 3)
    assert [(e.path, e.kind) for e in await box.list("a")] == [("/work/a/b.txt", "file")]
    await box.remove("a")
    await box.remove("a")
    with pytest.raises(FileAccessError):
        await box.read("a/b.txt")


async def test_a_tree_goes_in_and_comes_out(box: Sandbox) -> None:
    tree = {"x.py": b"1", "deep/er/y.bin": b"\x00" * 10}
    await box.upload(tree, directory="/out/tree")
    assert await box.download("/out/tree") == tree
    assert await box.download("/out") == {f"tree/{name}": data for name, data in tree.items()}


async def test_out_exists_and_is_empty(box: Sandbox) -> None:
    assert await box.list("/out") == []
    assert (await box.stat(box.workdir)).kind == "directory"


@pytest.mark.parametrize("name", ["../x", "/etc/x", "a/../../x", ""])
async def test_an_upload_cannot_name_a_path_outside(box: Sandbox, name: str) -> None:
    with pytest.raises(UserError, match="upload path"):
        await box.upload({name: b""}, directory="/out")


async def test_limits_on_reading_are_held(box: Sandbox) -> None:
    await box.upload({"a": b"x" * 100, "b": b"y" * 100}, directory="/out")
    with pytest.raises(FileAccessError):
        await box.read("/out/a", max_bytes=99)
    with pytest.raises(FileAccessError):
        await box.download("/out", max_bytes=150)
    with pytest.raises(FileAccessError):
        await box.download("/out", max_files=1)
    with pytest.raises(FileAccessError):
        await box.read("/out")
    with pytest.raises(FileAccessError):
        await box.list("/out/nothing")


async def test_a_snapshot_is_an_image_with_the_files_of_the_box(pool: SandboxPool) -> None:
    async with pool.acquire(image="host", limits=Limits(), owner="test") as box:
        await box.upload({"a": b"1", "deep/b": b"2"}, directory=".")
        name = await box.snapshot()
        assert await box.snapshot() == name, "equal content, equal name"
        await box.write("a", b"later")
        assert await box.snapshot() != name
        assert pool.image_digest(name)
        async with pool.acquire(image=name, limits=Limits(), owner="test") as restored:
            assert await restored.download(".") == {"a": b"1", "deep/b": b"2"}
            await restored.write("deep/b", b"changed")
            await restored.remove("a")
            second = await restored.snapshot()
        assert await box.download(".") == {"a": b"later", "deep/b": b"2"}
    async with pool.acquire(image=second, limits=Limits(), owner="test") as restored:
        assert await restored.download(".") == {"deep/b": b"changed"}
    with pytest.raises(SandboxLost):
        await box.snapshot()


async def test_a_fork_is_all_or_none(pool: SandboxPool) -> None:
    async with pool.acquire(image="host", limits=Limits(), owner="test", workdir="/here") as box:
        await box.write("x", b"from the first")
        with pytest.raises(UserError, match="count"):
            pool.fork(box, 0, owner="test")
        async with pool.fork(box, 1, owner="test") as (twin,):
            assert twin.workdir == "/here"
            assert await twin.read("x") == b"from the first"
            await twin.write("x", b"of its own")
        with pytest.raises(ResourceExhausted):
            await pool.fork(box, 2, owner="test", timeout_s=0.2).__aenter__()
        assert await box.read("x") == b"from the first"
        assert pool.counters()["live"] == 1
    with pytest.raises(NotFoundError, match="not in use"):
        await pool.fork(box, 1, owner="test").__aenter__()


async def test_a_closed_box_is_lost_for_every_call(pool: SandboxPool) -> None:
    async with pool.acquire(image="host", limits=Limits(), owner="test") as box:
        await box.close()
        await box.close()
        for call in (
            box.run(["true"]), box.read("x"), box.write("x", b""), box.list("."), box.stat("x"),
            box.remove("x"), box.download("."), box.upload({"x": b""}, directory="."),
        ):  # fmt: skip
            with pytest.raises(SandboxLost):
                await call


async def test_a_box_is_fresh_every_time(pool: SandboxPool) -> None:
    seen = set()
    for _ in range(3):
        async with pool.acquire(image="host", limits=Limits(), owner="test") as box:
            seen.add(box.id)
            assert await box.list(".") == []
            await box.write("mark", b"x")
    assert len(seen) == 3


async def test_no_room_is_resource_exhausted_until_a_box_is_given_back(pool: SandboxPool) -> None:
    def acquire(timeout_s: float):  # type: ignore[no-untyped-def]
        return pool.acquire(image="host", limits=Limits(), owner="t", timeout_s=timeout_s)

    async with acquire(scaled(10)), acquire(scaled(10)):
        with pytest.raises(ResourceExhausted, match="no room"):
            await acquire(0.05).__aenter__()
        assert pool.counters()["live"] == 2
    async with acquire(scaled(10)) as box:
        assert (await box.run(["true"])).ok


async def test_an_unknown_image_is_not_found(pool: SandboxPool) -> None:
    with pytest.raises(NotFoundError, match="nowhere"):
        pool.acquire(image="nowhere", limits=Limits(), owner="test")
    with pytest.raises(NotFoundError):
        pool.image_digest("nowhere")
    assert pool.image_digest("host") == pool.image_digest("host") != ""


async def test_the_counters_add_up(pool: SandboxPool) -> None:
    async with pool.acquire(image="host", limits=Limits(), owner="test"):
        pass
    await pool.close()
    counters = pool.counters()
    assert set(counters) == {"created", "destroyed", "live", "warm", "lost", "leaked"}
    assert counters["created"] == counters["destroyed"] >= 1
    assert counters["live"] == counters["warm"] == counters["leaked"] == 0


async def test_waiters_are_served_in_order(pool: SandboxPool) -> None:
    served: list[int] = []

    async def use(number: int) -> None:
        async with pool.acquire(image="host", limits=Limits(), owner=str(number)):
            served.append(number)

    async with pool.acquire(image="host", limits=Limits(), owner="holds one of two places"):
        tasks = []
        for number in range(5):
            tasks.append(asyncio.create_task(use(number)))
            await asyncio.sleep(0)
        await asyncio.gather(*tasks)
    assert served == list(range(5))


async def test_bigger_priority_is_served_first(pool: SandboxPool) -> None:
    served: list[int] = []

    async def use(priority: int) -> None:
        async with pool.acquire(
            image="host", limits=Limits(), owner=str(priority), priority=priority
        ):
            served.append(priority)

    async with pool.acquire(image="host", limits=Limits(), owner="holds one of two places"):
        async with pool.acquire(image="host", limits=Limits(), owner="holds the other"):
            tasks = [asyncio.create_task(use(priority)) for priority in (0, 1, 5, -1)]
            await asyncio.sleep(0)
        await asyncio.gather(*tasks)
    assert served == [5, 1, 0, -1]


async def test_a_group_comes_whole_or_not_at_all(pool: SandboxPool) -> None:
    def acquire(count: int, timeout_s: float) -> AbstractAsyncContextManager[list[Sandbox]]:
        return pool.acquire_many(
            count, image="host", limits=Limits(), owner="group", timeout_s=timeout_s
        )

    async with acquire(2, scaled(10)) as boxes:
        assert len({box.id for box in boxes}) == 2
        assert all([(await box.run(["true"])).ok for box in boxes])
        assert pool.counters()["live"] == 2
    assert pool.counters()["live"] == 0
    async with pool.acquire(image="host", limits=Limits(), owner="one"):
        with pytest.raises(ResourceExhausted, match="no room"):
            await acquire(2, 0.05).__aenter__()
        assert pool.counters()["live"] == 1
    with pytest.raises(UserError, match="count 3"):
        acquire(3, scaled(10))


async def test_two_groups_take_turns(pool: SandboxPool) -> None:
    async def use() -> None:
        async with pool.acquire_many(2, image="host", limits=Limits(), owner="group") as boxes:
            assert all([(await box.run(["true"])).ok for box in boxes])

    await asyncio.wait_for(asyncio.gather(*(use() for _ in range(4))), 60)


async def test_who_is_cancelled_while_waiting_leaves_the_room_free(pool: SandboxPool) -> None:
    def acquire() -> AbstractAsyncContextManager[list[Sandbox]]:
        return pool.acquire_many(2, image="host", limits=Limits(), owner="group", timeout_s=10)

    async with pool.acquire(image="host", limits=Limits(), owner="one"):
        waiting = asyncio.create_task(acquire().__aenter__())
        await asyncio.sleep(0.01)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    async with acquire() as boxes:
        assert len(boxes) == 2


async def test_a_lease_ends_at_its_time_to_live(pool: SandboxPool) -> None:
    async with pool.acquire(image="host", limits=Limits(), owner="test", ttl_s=0.3) as box:
        await asyncio.sleep(1)
        with pytest.raises(SandboxLost):
            await box.run(["true"])
    with pytest.raises(UserError, match="ttl_s"):
        pool.acquire(image="host", limits=Limits(wall_s=10), owner="test", ttl_s=11)


async def test_a_closed_pool_refuses(pool: SandboxPool) -> None:
    await pool.close()
    with pytest.raises(ResourceExhausted, match="closed"):
        async with pool.acquire(image="host", limits=Limits(), owner="late"):
            pass


async def test_a_relay_is_refused_with_the_field_that_is_wrong(
    box: Sandbox, tmp_path: Path
) -> None:
    path = str(tmp_path / "server")
    with pytest.raises(UserError, match="socket_path"):
        await box.relay(8080, path)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()
        with pytest.raises(UserError, match="port"):
            await box.relay(0, path)
        await box.relay(8080, path)
        with pytest.raises(UserError, match="port 8080: already in use"):
            await box.relay(8080, path)
        assert box.network_log() == ()
        await box.close()
        with pytest.raises(SandboxLost):
            await box.relay(8081, path)
