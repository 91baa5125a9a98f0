"""The proxy under attack: names, addresses, smuggling, slowness, floods. No box is needed."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Sequence
from ipaddress import ip_address

import pytest

from tests.servers import ask, echo, hello, tcp_server
from trialyard.core.network import Address, Network, NetworkAttempt
from trialyard.sandboxes.network.addresses import Resolver
from trialyard.sandboxes.network.door import Door
from trialyard.sandboxes.network.flow import Meter
from trialyard.sandboxes.network.listener import Listener, Room
from trialyard.sandboxes.network.log import KEPT, NetworkLog
from trialyard.sandboxes.network.proxy import Proxy


class Names:
    """A resolver that remembers what it was asked; each answer is used once, the last stays."""

    def __init__(self, **answers: Sequence[str]) -> None:
        self._answers = {name.replace("_", "."): list(rows) for name, rows in answers.items()}
        self.asked: list[str] = []

    async def __call__(self, name: str) -> Sequence[Address]:
        self.asked.append(name)
        rows = self._answers.get(name)
        if not rows:
            raise OSError("no such name")
        row = rows.pop(0) if len(rows) > 1 else rows[0]
        return [ip_address(text) for text in row.split()]


class Served:
    """A proxy that serves on a port of the host's loopback."""

    def __init__(self, port: int, log: NetworkLog, room: Room) -> None:
        self.port = port
        self._log = log
        self.room = room

    @property
    def log(self) -> tuple[NetworkAttempt, ...]:
        return self._log.attempts()

    async def status(self, data: bytes | str) -> tuple[int, str]:
        """Status and body of the answer to one request."""
        answer = await ask(self.port, data.encode("latin-1") if isinstance(data, str) else data)
        head, _, body = answer.partition(b"\r\n\r\n")
        return int(head.split(b" ")[1]), body.decode()

    async def get(self, url: str) -> tuple[int, str]:
        authority = url.split("/")[2]
        return await self.status(f"GET {url} HTTP/1.1\r\nHost: {authority}\r\n\r\n")


@contextlib.asynccontextmanager
async def serving(
    *allow: str, names: Resolver | None = None, head_s: float = 15.0, idle_s: float = 30.0
) -> AsyncIterator[Served]:
    network = Network(mode="allow-list", allow=allow)
    log, room = NetworkLog(), Room(8)
    proxy = Proxy(
        Door(network.entries, names or Names()), Meter(), log, head_s=head_s, idle_s=idle_s
    )
    listening = socket.socket()
    listening.setblocking(False)
    listening.bind(("127.0.0.1", 0))
    listening.listen(64)
    port = listening.getsockname()[1]
    listener = Listener(listening, proxy.serve, room)
    try:
        yield Served(port, log, room)
    finally:
        await listener.close()
        assert room.taken == 0


def name(kind: str, target: str, port: int) -> bytes:
    """One request for a host, in each of the three languages."""
    if kind == "connect":
        return f"CONNECT {target}:{port} HTTP/1.1\r\n\r\n".encode()
    if kind == "http":
        return f"GET http://{target}:{port}/ HTTP/1.1\r\nHost: {target}:{port}\r\n\r\n".encode()
    data = target.encode()
    return b"\x05\x01\x00\x05\x01\x00\x03" + bytes([len(data)]) + data + port.to_bytes(2, "big")


def granted(kind: str, answer: bytes) -> bool:
    if kind == "socks":
        return answer[:4] == b"\x05\x00\x05\x00"
    return answer.startswith(b"HTTP/1.1 200 ")


KINDS = ("connect", "http", "socks")


# --- what is allowed ------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
async def test_a_listed_address_is_reached(kind: str) -> None:
    async with tcp_server(hello) as port, serving(f"127.0.0.1:{port}") as proxy:
        data = name(kind, "127.0.0.1", port)
        inner = b"" if kind == "http" else b"GET /inner HTTP/1.1\r\n\r\n"
        answer = await ask(proxy.port, data + inner)
        assert granted(kind, answer)
        assert b"GET /" in answer
        [attempt] = proxy.log
        assert (attempt.protocol, attempt.verdict, attempt.address) == (
            kind,
            "allowed",
            "127.0.0.1",
        )
        assert attempt.received_bytes > 0


@pytest.mark.parametrize("kind", KINDS)
async def test_a_listed_name_is_reached_where_its_address_may_be(kind: str) -> None:
    names = Names(api_example_org=["127.0.0.1"])
    async with tcp_server(hello) as port:
        listed = (f"*.example.org:{port}", f"127.0.0.1:{port}")
        async with serving(*listed, names=names) as proxy:
            inner = b"" if kind == "http" else b"GET / HTTP/1.1\r\n\r\n"
            answer = await ask(proxy.port, name(kind, "API.Example.org.", port) + inner)
            assert granted(kind, answer)
            assert names.asked == ["api.example.org"]


async def test_bodies_of_both_kinds_reach_the_server_as_they_are() -> None:
    async with tcp_server(hello) as port, serving(f"127.0.0.1:{port}") as proxy:
        url = f"POST http://127.0.0.1:{port}/ HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n"
        status, body = await proxy.status(f"{url}Content-Length: 4\r\n\r\nbodyGET http://x/")
        assert status == 200
        assert body.endswith("\r\n\r\nbody")

    async def chunked(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"Transfer-Encoding: chunked" in head
        body = await reader.readuntil(b"0\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + body)
        await reader.read()  # keeps the connection open: the proxy knows where the answer ends

    async with tcp_server(chunked) as port, serving(f"127.0.0.1:{port}") as proxy:
        url = f"POST http://127.0.0.1:{port}/ HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n"
        sent = "Transfer-Encoding: chunked\r\n\r\n4;ext=1\r\nbody\r\n0\r\nTrailer: x\r\n\r\n"
        status, body = await proxy.status(url + sent)
        assert (status, body) == (200, "4\r\nbody\r\n0\r\n\r\n")


async def test_an_interim_answer_and_an_early_one_pass() -> None:
    async def early(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\nno")
        await writer.drain()
        await asyncio.sleep(0.1)

    async with tcp_server(early) as port, serving(f"127.0.0.1:{port}") as proxy:
        answer = await ask(
            proxy.port,
            f"POST http://127.0.0.1:{port}/ HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n"
            f"Expect: 100-continue\r\nContent-Length: 100\r\n\r\npart".encode(),
        )
        assert answer.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 413 ")
        assert answer.endswith(b"Connection: close\r\n\r\nno")


# --- what is refused ------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
async def test_what_is_not_listed_is_refused_before_anybody_resolves_it(kind: str) -> None:
    names = Names(example_org=["8.8.8.8"], evil_net=["8.8.8.8"])
    async with serving("example.org:443", "*.example.org:443", names=names) as proxy:
        for host, port in (
            ("evil.net", 443), ("example.org", 80), ("example.org.evil.net", 443),
            ("badexample.org", 443), ("8.8.8.8", 443), ("127.0.0.1", proxy.port),
        ):  # fmt: skip
            answer = await ask(proxy.port, name(kind, host, port))
            assert not granted(kind, answer)
            assert answer[:12] in (b"HTTP/1.1 403", b"\x05\x00" + b"\x05\x02\x00\x01" + bytes(6))
        assert names.asked == []
        assert {a.verdict for a in proxy.log} == {"refused"}
        assert len(proxy.log) == 6


METADATA = (
    "169.254.169.254", "169.254.169.254.", "2852039166", "0xa9fea9fe", "0xA9.0xFE.0xA9.0xFE",
    "0251.0376.0251.0376", "169.16689662", "[::ffff:169.254.169.254]", "[::ffff:a9fe:a9fe]",
    "[64:ff9b::a9fe:a9fe]", "[2002:a9fe:a9fe::]", "[fd00:ec2::254]", "100.100.100.200",
    "192.0.0.192", "168.63.129.16", "metadata.google.internal", "METADATA.GOOGLE.INTERNAL.",
    "user@169.254.169.254", "allowed.org@169.254.169.254", "169.254.169.254#allowed.org",
    "169.254.169.254\\@allowed.org", "169.254.169.254%2eallowed.org",
    "169.254.169.254%00.allowed.org", "\uff11\uff16\uff19.254.169.254",
    "169\u3002254\u3002169\u3002254", "xn--169-254", "localhost", "127.0.0.1", "127.1", "[::1]",
    "0", "0.0.0.0", "[::]",
)  # fmt: skip


@pytest.mark.parametrize("spelling", METADATA)
async def test_no_spelling_reaches_metadata_or_the_host(spelling: str) -> None:
    names = Names(allowed_org=["8.8.8.8"])
    async with serving("allowed.org:80", "*.allowed.org:80", names=names) as proxy:
        for kind in KINDS:
            answer = await ask(proxy.port, name(kind, spelling, 80))
            assert not granted(kind, answer)
        line = f"GET http://{spelling}/ HTTP/1.1\r\nHost: allowed.org\r\n\r\n"
        status, _ = await proxy.status(line.encode())
        assert status in (400, 403)
        assert names.asked == []
        assert {a.verdict for a in proxy.log} <= {"refused", "invalid"}


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1", "169.254.169.254", "10.0.0.1", "::1", "::ffff:127.0.0.1", "0.0.0.0", "fd00::1"],
)
@pytest.mark.parametrize("kind", KINDS)
async def test_a_listed_name_that_resolves_to_a_closed_address_is_refused(
    kind: str, address: str
) -> None:
    names = Names(rebound_org=[address])
    async with tcp_server(hello) as port, serving(f"rebound.org:{port}", names=names) as proxy:
        answer = await ask(proxy.port, name(kind, "rebound.org", port))
        assert not granted(kind, answer)
        [attempt] = proxy.log
        assert (attempt.verdict, attempt.address) == ("refused", "")
        assert "itself opens" in attempt.reason


async def test_a_literal_opens_its_own_port_only_to_names() -> None:
    names = Names(a_org=["127.0.0.1"])
    async with (
        tcp_server(hello) as port,
        tcp_server(hello) as other,
        serving("a.org:*", f"127.0.0.1:{port}", names=names) as proxy,
    ):
        assert (await proxy.get(f"http://a.org:{port}/"))[0] == 200
        assert (await proxy.get(f"http://a.org:{other}/"))[0] == 403


async def test_the_address_that_was_checked_is_the_one_connected_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A name that changes its address with every lookup is looked up once."""
    names = Names(rebound_org=["8.8.8.8", "127.0.0.1"])
    tried: list[str] = []

    async def connect(address: Address, port: int) -> socket.socket:
        tried.append(str(address))
        raise ConnectionRefusedError(111, "refused")

    monkeypatch.setattr("trialyard.sandboxes.network.door.connect", connect)
    async with serving("rebound.org:80", names=names) as proxy:
        assert (await proxy.get("http://rebound.org/"))[0] == 502
        assert (names.asked, tried) == (["rebound.org"], ["8.8.8.8"])
        assert (await proxy.get("http://rebound.org/"))[0] == 403
        assert tried == ["8.8.8.8"]
    mixed = Names(mixed_org=["169.254.169.254 8.8.8.8 127.0.0.1 1.1.1.1"])
    async with serving("mixed.org:80", names=mixed) as proxy:
        assert (await proxy.get("http://mixed.org/"))[0] == 502
        assert tried[1:] == ["8.8.8.8", "1.1.1.1"]


async def test_trouble_on_the_way_is_told() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async def odd(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail ready\r\n\r\n")

    async def closes(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")

    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        async with serving(f"127.0.0.1:{port}", "gone.org:80") as proxy:
            assert (await proxy.get(f"http://127.0.0.1:{port}/"))[0] == 502
            assert (await proxy.get("http://gone.org/")) == (
                502, "trialyard: gone.org does not resolve: no such name\n",
            )  # fmt: skip
    for handler, status in ((odd, 502), (closes, 502), (silent, 504)):
        async with (
            tcp_server(handler) as port,
            serving(f"127.0.0.1:{port}", idle_s=0.3) as proxy,
        ):
            assert (await proxy.get(f"http://127.0.0.1:{port}/"))[0] == status


# --- what is malformed ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: a.org\r\n\r\n",
        b"GET http://a.org/ HTTP/1.1\r\nHost: b.org\r\n\r\n",
        b"GET http://a.org/ HTTP/1.1\r\nHost: a.org\r\nHost: b.org\r\n\r\n",
        b"GET http://a.org/ HTTP/1.1\nHost: a.org\n\n\r\n\r\n",
        b"GET http://a.org/\rX HTTP/1.1\r\nHost: a.org\r\n\r\n",
        b"CONNECT a.org:443\r\nX: HTTP/1.1\r\n\r\n",
        b"GET http://a.org/ HTTP/1.1\r\nHost: a.org\r\nX: " + b"a" * 40_000 + b"\r\n\r\n",
        b"GET http://a.org/" + b"a" * 40_000 + b" HTTP/1.1\r\nHost: a.org\r\n\r\n",
        b"GET http://a.org/ HTTP/1.1\r\n" + b"X: y\r\n" * 200 + b"\r\n",
        b"\x04\x01\x00\x50\x7f\x00\x00\x01user\x00\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
        b"\0" * 100_000,
    ],
)
async def test_a_malformed_request_gets_400_and_leads_nowhere(data: bytes) -> None:
    names = Names(a_org=["8.8.8.8"], b_org=["8.8.8.8"])
    async with serving("a.org:*", "b.org:*", names=names) as proxy:
        status, body = await proxy.status(data)
        assert status == 400
        assert body.startswith("trialyard: ")
        assert body.count("\n") == 1
        assert names.asked == []
        assert [a.verdict for a in proxy.log] == ["invalid"]


async def test_a_second_request_behind_the_first_is_never_sent_on() -> None:
    async with tcp_server(hello) as port, serving(f"127.0.0.1:{port}") as proxy:
        one = f"GET http://127.0.0.1:{port}/one HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n"
        answer = await ask(proxy.port, (one + one.replace("one", "two")).encode())
        assert b"/one" in answer
        assert b"/two" not in answer
        assert answer.count(b"HTTP/1.1 200") == 1


@pytest.mark.parametrize(
    "rest",
    [
        "Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        "Transfer-Encoding: chunked\r\n\r\n2\r\nabXX0\r\n\r\n",
        "Transfer-Encoding: chunked\r\n\r\n2\r\nabcd\r\n0\r\n\r\n",
        "Transfer-Encoding: chunked\r\n\r\n" + "1" * 5000,
        "Transfer-Encoding: chunked\r\n\r\n0\r\n" + "Trailer: x\r\n" * 2000,
        "Transfer-Encoding: chunked\r\n\r\n5\r\nab",
        "Content-Length: 10\r\n\r\nabc",
    ],
)
async def test_a_broken_body_gets_400_and_the_server_sees_an_end(rest: str) -> None:
    ends: list[bytes] = []

    async def reads(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ends.append(await reader.read())

    async with tcp_server(reads) as port, serving(f"127.0.0.1:{port}") as proxy:
        head = f"POST http://127.0.0.1:{port}/ HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n"
        answer = await ask(proxy.port, (head + rest).encode(), end=True)
        assert answer.startswith(b"HTTP/1.1 400")
        assert [a.verdict for a in proxy.log] == ["invalid"]
    assert not any(end.endswith(b"0\r\n\r\n") for end in ends)


@pytest.mark.parametrize(
    ("data", "answer"),
    [
        (b"\x05\x01\x02", b"\x05\xff"),
        (b"\x05\x00", b"\x05\xff"),
        (b"\x05\x01\x00\x05\x02\x00\x01" + bytes(6), b"\x05\x00\x05\x07"),
        (b"\x05\x01\x00\x05\x03\x00\x01" + bytes(6), b"\x05\x00\x05\x07"),
        (b"\x05\x01\x00\x05\x01\x00\x09" + bytes(6), b"\x05\x00\x05\x08"),
        (b"\x05\x01\x00\x05\x01\x00\x01\x7f\x00\x00\x01\x00\x00", b"\x05\x00\x05\x01"),
        (b"\x05\x01\x00\x05\x01\x00\x03\x00\x00\x50", b"\x05\x00\x05\x01"),
        (b"\x05\x01\x00\x05\x01\x00\x03\x04a\x00.b\x00\x50", b"\x05\x00\x05\x01"),
        (b"\x05\x01\x00\x05\x01\x00\x01\xa9\xfe\xa9\xfe\x00\x50", b"\x05\x00\x05\x02"),
        (b"\x05\x01\x00\x05\x01\x00\x04" + bytes(10) + b"\xff\xff\x7f\0\0\1\0\x50",
         b"\x05\x00\x05\x02"),
        (b"\x05\x01\x00\x05\x01\x00\x01\x7f", b"\x05\x00\x05\x01"),
    ],
)  # fmt: skip
async def test_socks_requests_that_lead_nowhere(data: bytes, answer: bytes) -> None:
    async with serving("a.org:80") as proxy:
        assert (await ask(proxy.port, data, end=True))[: len(answer)] == answer


# --- slowness and floods --------------------------------------------------------------------


@pytest.mark.parametrize("data", [b"", b"GET http://a.org/ HT", b"\x05", b"\x05\x01\x00\x05\x01"])
async def test_who_is_slow_to_ask_is_sent_away(data: bytes) -> None:
    async with serving("a.org:80", head_s=0.2) as proxy:
        answer = await asyncio.wait_for(ask(proxy.port, data), 10)
        assert not data or answer[:12] in (
            b"HTTP/1.1 400", b"\x05\x01\x00\x01" + bytes(6), b"\x05\x00\x05\x01\x00\x01" + bytes(6),
        )  # fmt: skip


async def test_a_byte_now_and_then_does_not_keep_a_request_open() -> None:
    async with serving("a.org:80", head_s=0.3) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)

        async def dribble() -> None:
            with contextlib.suppress(ConnectionError):
                for byte in b"GET http://a.org/" + b"a" * 10_000:
                    writer.write(bytes([byte]))
                    await writer.drain()
                    await asyncio.sleep(0.02)

        dribbling = asyncio.create_task(dribble())
        assert (await asyncio.wait_for(reader.read(12), 10)) == b"HTTP/1.1 400"
        dribbling.cancel()
        await asyncio.gather(dribbling, return_exceptions=True)
        writer.close()


async def test_a_tunnel_that_stands_still_is_closed() -> None:
    async with tcp_server(echo) as port, serving(f"127.0.0.1:{port}", idle_s=0.2) as proxy:
        answer = await asyncio.wait_for(ask(proxy.port, name("connect", "127.0.0.1", port)), 10)
        assert answer.startswith(b"HTTP/1.1 200")
        assert proxy.log[0].reason == "nothing passed for too long"
        assert proxy.log[0].verdict == "allowed"


async def test_many_connections_are_served_a_few_at_a_time() -> None:
    """Eight have room; the others wait in the kernel, and all get their answer."""
    most = 0

    async with serving("a.org:80", head_s=0.5) as proxy:
        idle = [await asyncio.open_connection("127.0.0.1", proxy.port) for _ in range(20)]

        async def refused() -> int:
            nonlocal most
            status, _ = await proxy.get("http://b.org/")
            most = max(most, proxy.room.taken)
            return status

        answers = await asyncio.wait_for(asyncio.gather(*(refused() for _ in range(40))), 60)
        assert answers == [403] * 40
        assert most <= 8
        for _, writer in idle:
            writer.close()


async def test_the_log_is_bounded_and_keeps_the_first() -> None:
    ticks = iter(range(10 * KEPT))
    log = NetworkLog(clock=lambda: float(next(ticks)))
    for _ in range(3 * KEPT):
        log.begin()
    times = [attempt.time_s for attempt in log.attempts()]
    assert len(times) == KEPT
    assert times[0] == 0
    assert times[-1] == 3 * KEPT - 1
