"""What is on the host while a probe runs, and must stay out of its reach."""

# ruff: noqa: ASYNC220 - the host is looked at directly
import contextlib
import secrets
import socket
import subprocess
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

from trialyard.core.sandbox import Limits
from trialyard.sandboxes.namespace import NamespaceSandbox
from trialyard.sandboxes.pool import NamespacePool


@dataclass
class Planted:
    """What is on the host while a probe runs."""

    secret: str
    other_secret: str
    canary: Path
    sentinel: subprocess.Popen[bytes]
    port: int
    abstract: str
    host_name: str
    neighbour: NamespaceSandbox


@contextlib.asynccontextmanager
async def plant(pool: NamespacePool, tmp_path: Path) -> AsyncIterator[Planted]:
    secret, other = (f"secret-{secrets.token_hex(8)}" for _ in range(2))
    canary = tmp_path / "canary.txt"
    canary.write_text(secret)
    canary.chmod(0o644)
    sentinel = subprocess.Popen(["sleep", "600"])
    with answering(secret) as (port, abstract):
        try:
            async with pool.acquire(image="host", limits=Limits(), owner="neighbour") as box:
                assert isinstance(box, NamespaceSandbox)
                await box.write("secret.txt", other.encode())
                yield Planted(
                    secret, other, canary, sentinel, port, abstract, socket.gethostname(), box
                )
        finally:
            sentinel.kill()
            sentinel.wait()


@contextlib.contextmanager
def answering(secret: str) -> Iterator[tuple[int, str]]:
    """Listeners of the host, on its loopback and in its abstract socket names."""
    name = f"trialyard-probe-{secrets.token_hex(4)}"
    tcp = socket.create_server(("127.0.0.1", 0))
    unix = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    unix.bind("\0" + name)
    unix.listen()

    def serve(listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                with connection:
                    connection.sendall(secret.encode())

    threads = [threading.Thread(target=serve, args=(listener,)) for listener in (tcp, unix)]
    for thread in threads:
        thread.start()
    try:
        yield tcp.getsockname()[1], name
    finally:
        for listener in (tcp, unix):
            listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        for thread in threads:
            thread.join()
