"""Refusing to run where boxes would not be safe, with the cure in the message."""

import os
from pathlib import Path

import pytest

from tests.boxes import namespace_pool
from trialyard.core.errors import SandboxUnavailable, UserError
from trialyard.core.image import Image
from trialyard.core.sandbox import Limits
from trialyard.images.host import host_image
from trialyard.sandboxes import native, protocol, system_files
from trialyard.sandboxes.plan import check_workdir
from trialyard.sandboxes.pool import NamespacePool


async def use(pool: NamespacePool) -> None:
    async with pool.acquire(image="host", limits=Limits(), owner="test"):
        pass


async def test_an_ordinary_user_is_told_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(SandboxUnavailable, match="as root"):
        await use(namespace_pool())


async def test_without_bubblewrap_nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    with pytest.raises(SandboxUnavailable, match="apt-get install bubblewrap"):
        await use(namespace_pool())


async def test_without_the_native_program_nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "PROGRAM_NAME", "absent")
    with pytest.raises(SandboxUnavailable, match="C compiler"):
        await use(namespace_pool())


async def test_a_missing_layer_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="/opt/x"):
        await use(namespace_pool(layers={"/opt/x": tmp_path / "absent"}))


async def test_a_box_that_cannot_start_says_why_and_leaves_nothing(tmp_path: Path) -> None:
    broken = Image("broken", "0", (str(tmp_path / "absent"),))
    pool = NamespacePool({"host": host_image(), "broken": broken})
    with pytest.raises(SandboxUnavailable, match=r"image layer.*No such file"):
        async with pool.acquire(image="broken", limits=Limits(), owner="test"):
            pass
    await use(pool)
    await pool.close()
    assert pool.counters()["leaked"] == 0


async def test_an_image_of_layers_is_writable_for_its_box_alone(tmp_path: Path) -> None:
    for name in ("usr", "lib64", "proc", "dev", "etc", "data"):
        (tmp_path / "image" / name).mkdir(parents=True)
    (tmp_path / "image" / "data" / "x").write_text("from the image")
    (tmp_path / "image" / "data" / "open").mkdir(mode=0o777)
    (tmp_path / "image" / "data" / "open").chmod(0o777)
    os.chmod(tmp_path, 0o755)  # noqa: PTH101 - pytest makes it private
    image = Image("layers", "1", (str(tmp_path / "image"),))
    # A static program is all that this image needs.
    pool = NamespacePool({"layers": image}, layers={"/bin/box": native.native_program()})
    async with pool.acquire(image="layers", limits=Limits(), owner="test") as box:
        version = (await box.run(["/bin/box", "version"])).stdout
        assert version == f"{protocol.VERSION}\n".encode()
        assert await box.read("/data/x") == b"from the image"
        await box.write("/data/open/new", b"mine")
    assert not (tmp_path / "image" / "data" / "open" / "new").exists()
    async with pool.acquire(image="layers", limits=Limits(), owner="test") as box:
        assert await box.list("/data/open") == []
    await pool.close()


def hostile_layer(parent: Path) -> tuple[Path, Path]:
    """A layer in which every place for work is a link, and the directory that they lead to."""
    outside = parent / "outside"
    outside.mkdir(mode=0o700)
    root = parent / "image"
    for name in ("usr", "lib64", "proc", "dev", "etc", "var"):
        (root / name).mkdir(parents=True)
    for name in ("tmp", "work", "out", "var/tmp", "run", "home", "sys", "bin"):
        (root / name).symlink_to(outside)
    return root, outside


async def test_links_in_an_image_cannot_lead_the_launcher_out_of_the_tree(tmp_path: Path) -> None:
    root, outside = hostile_layer(tmp_path)
    image = Image("hostile", "1", (str(root),))
    pool = NamespacePool({"hostile": image}, layers={"/bin/box": native.native_program()})
    with pytest.raises(SandboxUnavailable, match="mkdir"):
        async with pool.acquire(image="hostile", limits=Limits(), owner="test"):
            pass
    await pool.close()
    status = outside.stat()
    assert (status.st_uid, status.st_mode & 0o777) == (0, 0o700)
    assert list(outside.iterdir()) == []


@pytest.mark.parametrize("workdir", ["/work", "/testbed", "/home/user/x", "/tmp/a"])
def test_places_for_work(workdir: str) -> None:
    assert check_workdir(workdir + "/") == workdir


def test_equal_packages_equal_digest(tmp_path: Path) -> None:
    assert host_image() == host_image()
    assert host_image().lowers == ()
    (tmp_path / "var/lib/dpkg").mkdir(parents=True)
    (tmp_path / "var/lib/dpkg/status").write_text("a")
    first = host_image(tmp_path).digest
    (tmp_path / "var/lib/dpkg/status").write_text("b")
    assert host_image(tmp_path).digest != first


def test_etc_holds_nothing_secret(tmp_path: Path) -> None:
    etc = system_files.shared_etc(tmp_path)
    assert system_files.shared_etc(tmp_path) == etc
    names = {entry.name for entry in etc.iterdir()}
    assert names.isdisjoint({"shadow", "ssh", "machine-id", "sudoers", "gshadow", "ssl-private"})
    assert "root:x" in (etc / "passwd").read_text()
    for path in etc.rglob("*"):
        if not path.is_symlink():
            assert path.stat().st_mode & 0o004, path


def test_dev_null_must_be_the_null_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stat.S_ISCHR", lambda _: False)
    with pytest.raises(SandboxUnavailable, match="mknod"):
        system_files.check_dev_null()
