"""Boxes that reach out: through their proxy, through a relay, and by no other way."""

import asyncio
import os
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.boxes import BACKENDS, namespace_pool
from tests.servers import echo, hello, tcp_server, unix_server
from trialyard.core.sandbox import ExecResult, Limits, Sandbox
from trialyard.sandboxes.box_log import BoxLog, read_box_log
from trialyard.sandboxes.network.listener import CONNECTIONS_PER_BOX
from trialyard.sandboxes.pool import NamespacePool
from trialyard.sandboxes.pool_metrics import PoolMetrics

FETCH = """
import sys, urllib.request, urllib.error
for url in sys.argv[1:]:
    try:
        with urllib.request.urlopen(url, timeout=20) as answer:
            print(answer.status, answer.read().decode().splitlines()[0])
    except urllib.error.HTTPError as error:
        print(error.code, error.read().decode().strip())
    except OSError as error:
        print("failed", error)
"""
RAW = """
import errno, socket, sys
for family, kind, address in (
    (socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", int(sys.argv[1]))),
    (socket.AF_INET, socket.SOCK_STREAM, ("203.0.113.1", 80)),
    (socket.AF_INET, socket.SOCK_STREAM, ("169.254.169.254", 80)),
    (socket.AF_INET, socket.SOCK_DGRAM, ("8.8.8.8", 53)),
    (socket.AF_INET6, socket.SOCK_STREAM, ("2001:db8::1", 80)),
):
    s = socket.socket(family, kind)
    s.settimeout(5)
    try:
        s.connect(address)
        print("reached", address)
    except OSError as error:
        print(errno.errorcode.get(error.errno, error))
try:
    print("resolved", socket.getaddrinfo("example.org", 80))
except OSError as error:
    print("no name")
"""


@pytest.fixture(params=BACKENDS)
async def pool(request: pytest.FixtureRequest) -> AsyncIterator[NamespacePool]:
    made = namespace_pool(backend=request.param)
    yield made
    await made.close()
    assert made.counters()["leaked"] == 0


def limits(network: str, **more: object) -> Limits:
    return Limits.model_validate({"network": network, **more})


async def python(box: Sandbox, code: str, *argv: str, **env: str) -> ExecResult:
    return await box.run(["python3", "-c", code, *argv], env=env, timeout_s=60)


async def lines(box: Sandbox, code: str, *argv: str, **env: str) -> list[str]:
    result = await python(box, code, *argv, **env)
    assert result.ok, result.stderr
    return result.stdout.decode().splitlines()


async def test_a_box_reaches_what_is_listed_and_nothing_else(pool: NamespacePool) -> None:
    async with tcp_server(hello) as port, tcp_server(hello) as other:
        allowed = limits(f"allow-list:127.0.0.1:{port}")
        async with pool.acquire(image="host", limits=allowed, owner="test") as box:
            said = await lines(
                box,
                FETCH,
                f"http://127.0.0.1:{port}/path?q=1",
                f"http://127.0.0.1:{other}/",
                f"http://localhost:{port}/",
                "http://169.254.169.254/latest/meta-data",
                "http://example.org/",
                no_proxy="",
                NO_PROXY="",
            )
            assert said[0] == "200 GET /path?q=1 HTTP/1.1"
            assert [line.split()[0] for line in said[1:]] == ["403"] * 4
            log = [(a.host, a.port, a.address, a.verdict) for a in box.network_log()]
            assert log == [
                ("127.0.0.1", port, "127.0.0.1", "allowed"),
                ("127.0.0.1", other, "", "refused"),
                ("localhost", port, "", "refused"),
                ("169.254.169.254", 80, "", "refused"),
                ("example.org", 80, "", "refused"),
            ]
            first = box.network_log()[0]
            assert first.sent_bytes > 50
            assert first.received_bytes > 50


@pytest.mark.parametrize("mode", ["none", "allow-list:127.0.0.1:*,*.example.org:*"])
async def test_without_the_proxy_there_is_no_way_out(pool: NamespacePool, mode: str) -> None:
    async with (
        tcp_server(hello) as port,
        pool.acquire(image="host", limits=limits(mode), owner="test") as box,
    ):
        assert await lines(box, RAW, str(port)) == [
            "ECONNREFUSED", *["ENETUNREACH"] * 4, "no name",
        ]  # fmt: skip


async def test_a_server_on_localhost_inside_works_in_every_mode(pool: NamespacePool) -> None:
    code = """
import http.server, threading, urllib.request, os
server = http.server.HTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
threading.Thread(target=server.serve_forever, daemon=True).start()
print(urllib.request.urlopen(f"http://localhost:{server.server_port}/").status)
"""
    for mode in ("none", "allow-list:example.org:443"):
        async with pool.acquire(image="host", limits=limits(mode), owner="test") as box:
            assert await lines(box, code) == ["200"]


async def test_the_environment_names_the_proxy_and_the_caller_wins(pool: NamespacePool) -> None:
    allowed = limits("allow-list:example.org:443")
    async with pool.acquire(image="host", limits=allowed, owner="test") as box:
        names = ("http_proxy", "HTTPS_PROXY", "all_proxy", "NO_PROXY")
        code = f"import os; print([os.environ.get(name) for name in {names!r}])"
        url = "http://127.0.0.1:3128"
        assert await lines(box, code) == [str([url, url, url, "localhost,127.0.0.1,::1"])]
        assert "'mine'" in (await lines(box, code, HTTPS_PROXY="mine"))[0]
    async with pool.acquire(image="host", limits=Limits(), owner="test") as box:
        assert await lines(box, code) == ["[None, None, None, None]"]


async def test_an_agent_inside_reaches_the_hosts_unix_socket_and_nothing_else(
    pool: NamespacePool, tmp_path: Path
) -> None:
    async with (
        unix_server(hello, tmp_path / "gateway") as path,
        tcp_server(hello) as port,
        pool.acquire(image="host", limits=Limits(), owner="test") as box,
    ):
        await box.relay(8080, path)
        said = await lines(box, FETCH, "http://localhost:8080/v1/chat", f"http://localhost:{port}/")
        assert said[0] == "200 GET /v1/chat HTTP/1.1"
        assert said[1].startswith("failed")


async def test_a_relay_carries_several_connections_and_half_closes(
    pool: NamespacePool, tmp_path: Path
) -> None:
    code = """
import hashlib, os, socket, threading
def one(number, out):
    data = os.urandom(1 << 20)
    s = socket.create_connection(("127.0.0.1", 9000))
    def send():
        s.sendall(data)
        s.shutdown(socket.SHUT_WR)
    t = threading.Thread(target=send); t.start()
    back = b""
    while chunk := s.recv(65536): back += chunk
    t.join()
    out[number] = back == data + b"end"
out = [None] * 8
threads = [threading.Thread(target=one, args=(n, out)) for n in range(8)]
[t.start() for t in threads]; [t.join() for t in threads]
print(all(out))
"""
    async with (
        unix_server(echo, tmp_path / "s") as path,
        pool.acquire(image="host", limits=Limits(), owner="test") as box,
    ):
        await box.relay(9000, path)
        assert await lines(box, code) == ["True"]


async def test_bandwidth_is_held_over_all_connections_and_reported(
    pool: NamespacePool, tmp_path: Path
) -> None:
    code = """
import socket, threading, time
def one():
    s = socket.create_connection(("127.0.0.1", 9000))
    s.sendall(bytes(20_000)); s.shutdown(socket.SHUT_WR)
    while s.recv(65536): pass
begin = time.monotonic()
threads = [threading.Thread(target=one) for _ in range(3)]
[t.start() for t in threads]; [t.join() for t in threads]
print(time.monotonic() - begin)
"""
    slow = limits("none", bandwidth_bytes_per_s=100_000)
    async with (
        unix_server(echo, tmp_path / "s") as path,
        pool.acquire(image="host", limits=slow, owner="test") as box,
    ):
        await box.relay(9000, path)
        result = await python(box, code)
        assert result.ok
        assert "network" in result.limits_hit
        # Sixty thousand bytes each way, less the burst of a tenth of a second.
        assert float(result.stdout) > 1.0
        assert "network" not in (await box.run(["true"])).limits_hit


async def held_by(box: Sandbox, code: str, *argv: str) -> "asyncio.Task[ExecResult]":
    """A program under way that has said that it is where it should be."""
    said = asyncio.Event()
    run = asyncio.create_task(
        box.run(["python3", "-c", code, *argv], on_output=lambda *_: said.set())
    )
    await asyncio.wait_for(said.wait(), 30)
    return run


async def test_attempts_are_kept_in_the_box_log_and_counted(
    pool: NamespacePool, tmp_path: Path
) -> None:
    log, metrics = BoxLog(tmp_path / "boxes"), PoolMetrics(pool)
    pool.observe(log.on_event)
    allowed = limits("allow-list:example.org:443")
    async with pool.acquire(image="host", limits=allowed, owner="run/1") as box:
        await lines(box, FETCH, "http://evil.example.net/")
    await pool.close()
    log.close()
    [event] = [e for e in read_box_log(tmp_path / "boxes") if e["event"] == "network"]
    assert (event["owner"], event["host"], event["port"]) == ("run/1", "evil.example.net", 80)
    assert (event["verdict"], event["protocol"], event["sent_bytes"]) == ("refused", "http", 0)
    assert 'trialyard_box_network_attempts_total{verdict="refused"} 1' in metrics.text()


async def test_a_box_that_floods_its_proxy_is_bounded_and_lives(pool: NamespacePool) -> None:
    """Two thousand connections, some silent, some asking: refused all, and nothing else ends."""
    code = """
import socket
held = []
for number in range(2000):
    s = socket.socket(); s.setblocking(False)
    try: s.connect(("127.0.0.1", 3128))
    except BlockingIOError: pass
    held.append(s)
    if len(held) == 200:
        for s in held[::2]:
            try: s.send(b"CONNECT 169.254.169.254:80 HTTP/1.1\\r\\n\\r\\n")
            except OSError: pass
        for s in held: s.close()
        held = []
print("done")
"""
    before = descriptors()
    allowed = limits("allow-list:example.org:443", open_files=4096)
    async with pool.acquire(image="host", limits=allowed, owner="test") as box:
        run = asyncio.create_task(lines(box, code))
        most = 0
        while not run.done():
            most = max(most, descriptors())
            await asyncio.sleep(0.005)
        assert await run == ["done"]
        assert most - before < CONNECTIONS_PER_BOX + 60
        assert {a.verdict for a in box.network_log()} <= {"refused", "invalid"}
        assert (await box.run(["true"])).ok


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


async def test_nothing_is_left_of_a_boxs_network(pool: NamespacePool, tmp_path: Path) -> None:
    hold = """
import socket, sys, time
held = [socket.create_connection(("127.0.0.1", 9000)) for _ in range(20)]
for port in (sys.argv[1],) * 20:
    s = socket.create_connection(("127.0.0.1", 3128)); held.append(s)
    s.sendall(f"CONNECT 127.0.0.1:{port} HTTP/1.1\\r\\n\\r\\n".encode()); s.recv(100)
print("held", flush=True)
time.sleep(60)
"""
    async with unix_server(echo, tmp_path / "s") as path, tcp_server(echo) as port:
        allowed = limits(f"allow-list:127.0.0.1:{port}")
        for repeat in range(3):
            async with pool.acquire(image="host", limits=allowed, owner="test") as box:
                await box.relay(9000, path)
                run = await held_by(box, hold, str(port))
                await box.close()
                await asyncio.gather(run, return_exceptions=True)
            await asyncio.sleep(0.2)
            now = (descriptors(), threading.active_count(), len(asyncio.all_tasks()))
            if repeat == 0:
                before = now
        assert now == before
