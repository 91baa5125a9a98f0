"""Heads that two parsers could read differently are refused; what is sent on has one reading."""

import contextlib
from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trialyard.sandboxes.network.http import (
    InvalidMessage,
    parse_chunk_size,
    parse_request,
    parse_response,
)


def request(line: str, *headers: str) -> bytes:
    return "\r\n".join([line, *headers, "", ""]).encode("latin-1")


def test_a_plain_request_is_written_anew_for_its_server() -> None:
    asked = parse_request(
        request(
            "POST http://EXAMPLE.org.:8080/a/b?c=%20 HTTP/1.1",
            "Host: example.org:8080",
            "Connection: keep-alive, X-Hop",
            "Proxy-Authorization: Basic eA==",
            "X-Hop: 1",
            "Upgrade: h2c",
            "Content-Length: 3",
            "X-Kept:  yes ",
        )
    )
    assert (asked.host, asked.port, asked.body) == ("example.org", 8080, 3)
    assert asked.head() == (
        b"POST /a/b?c=%20 HTTP/1.1\r\nHost: example.org:8080\r\nContent-Length: 3\r\n"
        b"X-Kept: yes\r\nConnection: close\r\n\r\n"
    )


@pytest.mark.parametrize(
    ("target", "host", "port", "path"),
    [
        ("http://a.org", "a.org", 80, b"/"),
        ("http://a.org?x", "a.org", 80, b"/?x"),
        ("HTTP://a.org:80/", "a.org", 80, b"/"),
        ("http://192.0.2.1:81/x", ip_address("192.0.2.1"), 81, b"/x"),
        ("http://[2001:db8::1]/x", ip_address("2001:db8::1"), 80, b"/x"),
        ("http://a.org/http://b.org/", "a.org", 80, b"/http://b.org/"),
    ],
)
def test_the_host_of_a_url_is_found(target: str, host: object, port: int, path: bytes) -> None:
    asked = parse_request(request(f"GET {target} HTTP/1.0"))
    assert (asked.host, asked.port, asked.target) == (host, port, path)


def test_connect_names_host_and_port() -> None:
    asked = parse_request(request("CONNECT Example.com:443 HTTP/1.1", "Host: anything"))
    assert (asked.is_connect, asked.host, asked.port) == (True, "example.com", 443)


@pytest.mark.parametrize(
    "line",
    [
        "GET / HTTP/1.1",
        "GET a.org HTTP/1.1",
        "GET https://a.org/ HTTP/1.1",
        "GET ftp://a.org/ HTTP/1.1",
        "GET http:///path HTTP/1.1",
        "GET http://a.org:/ HTTP/1.1",
        "GET http://a.org:0/ HTTP/1.1",
        "GET http://a.org:99999/ HTTP/1.1",
        "GET http://user@a.org/ HTTP/1.1",
        "GET http://user:80@a.org/ HTTP/1.1",
        "GET http://a.org\\@b.org/ HTTP/1.1",
        "GET http://a.org#@b.org/ HTTP/1.1",
        "GET http://a.org/#x HTTP/1.1",
        "GET http://a.org%2fb.org/ HTTP/1.1",
        "GET http://2852039166/ HTTP/1.1",
        "GET http://0xa9.254.169.254/ HTTP/1.1",
        "GET http://[::ffff:1.2.3.4/ HTTP/1.1",
        "GET  http://a.org/ HTTP/1.1",
        "GET http://a.org/ HTTP/1.1 ",
        "GET http://a.org/ HTTP/2.0",
        "GET http://a.org/\tHTTP/1.1",
        "GET http://a.org/",
        "PRI * HTTP/2.0",
        "G\xe9T http://a.org/ HTTP/1.1",
        "CONNECT a.org HTTP/1.1",
        "CONNECT a.org: HTTP/1.1",
        "CONNECT http://a.org:443/ HTTP/1.1",
        "CONNECT u@a.org:443 HTTP/1.1",
        "CONNECT a.org:443:444 HTTP/1.1",
        "CONNECT ::1:443 HTTP/1.1",
        "",
    ],
)
def test_what_leads_to_no_one_place_is_invalid(line: str) -> None:
    with pytest.raises(InvalidMessage):
        parse_request(request(line, "Host: a.org"))


@pytest.mark.parametrize(
    "headers",
    [
        [],
        ["Host: a.org", "Host: a.org"],
        ["Host: b.org"],
        ["Host: a.org:81"],
        ["Host: a.org@b.org"],
        ["Host: "],
        ["Host: a.org", "Content-Length: 1", "Content-Length: 1"],
        ["Host: a.org", "Content-Length: 1", "Transfer-Encoding: chunked"],
        ["Host: a.org", "Content-Length: +1"],
        ["Host: a.org", "Content-Length: 0x1"],
        ["Host: a.org", "Content-Length: 1,1"],
        ["Host: a.org", "Content-Length: " + "9" * 30],
        ["Host: a.org", "Transfer-Encoding: gzip, chunked"],
        ["Host: a.org", "Transfer-Encoding: xchunked"],
        ["Host: a.org", "Transfer-Encoding: chunked", "Transfer-Encoding: chunked"],
        ["Host: a.org", "Transfer-Encoding : chunked"],
        ["Host: a.org", " folded: x"],
        ["Host: a.org", "X: a\nY: b"],
        ["Host: a.org", "X: a\rY: b"],
        ["Host: a.org", "X: a\0"],
        ["Host: a.org", "no colon"],
        ["Host: a.org", ": empty name"],
        ["Host: a.org", "Connection: close, Content-Length"],
        ["Host: a.org", "Connection: transfer-encoding"],
        ["Host: a.org", "Connection: host"],
        ["Host: a.org", *(f"X-{n}: 1" for n in range(200))],
        ["Host: a.org", "X: " + "a" * 9000],
    ],
)
def test_headers_that_could_smuggle_are_invalid(headers: list[str]) -> None:
    with pytest.raises(InvalidMessage):
        parse_request(request("GET http://a.org/ HTTP/1.1", *headers))


TOKENS = st.text("abcXYZ019-_", min_size=1, max_size=12)
VALUES = st.text(st.characters(codec="latin-1", exclude_categories=["Cc"]), max_size=20)


@given(st.lists(st.tuples(TOKENS, VALUES), max_size=8), TOKENS)
def test_what_is_sent_on_is_read_back_the_same(headers: list[tuple[str, str]], path: str) -> None:
    lines = [f"{name}: {value}" for name, value in headers]
    try:
        asked = parse_request(request(f"GET http://a.org/{path} HTTP/1.1", "Host: a.org", *lines))
    except InvalidMessage:
        return
    head = asked.head()
    assert head.count(b"\r\n\r\n") == 1
    assert head.replace(b"\r\n", b"").count(b"\r") == head.replace(b"\r\n", b"").count(b"\n") == 0
    again = parse_request(head.replace(b"GET /", b"GET http://a.org/", 1))
    assert again.head() == head
    assert head.lower().count(b"\r\nhost:") == head.lower().count(b"\r\nconnection:") == 1


@given(st.binary(max_size=300))
def test_any_bytes_are_a_request_or_invalid(data: bytes) -> None:
    for head in (data, data + b"\r\n\r\n", b"GET http://a.org/ HTTP/1.1\r\n" + data + b"\r\n\r\n"):
        try:
            asked = parse_request(head)
        except InvalidMessage:
            continue
        assert 1 <= asked.port <= 65535
        with contextlib.suppress(InvalidMessage):
            parse_response(head, b"GET")


@pytest.mark.parametrize(
    ("line", "headers", "method", "body"),
    [
        ("HTTP/1.1 200 OK", ["Content-Length: 5"], b"GET", 5),
        ("HTTP/1.1 200 OK", ["Content-Length: 5"], b"HEAD", 0),
        ("HTTP/1.1 200 ", ["Transfer-Encoding: Chunked"], b"GET", "chunked"),
        ("HTTP/1.0 200", [], b"GET", "until-end"),
        ("HTTP/1.1 204 No", [], b"GET", 0),
        ("HTTP/1.1 304 Not", ["Content-Length: 5"], b"GET", 0),
        ("HTTP/1.1 100 Continue", [], b"POST", 0),
    ],
)
def test_where_an_answer_ends(line: str, headers: list[str], method: bytes, body: object) -> None:
    assert parse_response(request(line, *headers), method).body == body


def test_after_a_final_answer_the_connection_ends() -> None:
    answer = parse_response(request("HTTP/1.1 200 OK", "Connection: keep-alive", "A: b"), b"GET")
    assert answer.head() == b"HTTP/1.1 200 OK\r\nA: b\r\nConnection: close\r\n\r\n"
    interim = parse_response(request("HTTP/1.1 100 Continue"), b"GET")
    assert interim.is_interim
    assert interim.head() == b"HTTP/1.1 100 Continue\r\n\r\n"


@pytest.mark.parametrize(
    ("line", "headers"),
    [
        ("HTTP/1.1 101 Switching Protocols", []),
        ("HTTP/1.1 20 OK", []),
        ("HTTP/2 200 OK", []),
        ("ICY 200 OK", []),
        ("HTTP/1.1 200 OK", ["Content-Length: 1", "Content-Length: 2"]),
        ("HTTP/1.1 200 OK", ["Content-Length: 1", "Transfer-Encoding: chunked"]),
    ],
)
def test_an_answer_that_is_unclear_is_invalid(line: str, headers: list[str]) -> None:
    with pytest.raises(InvalidMessage):
        parse_response(request(line, *headers), b"GET")


@pytest.mark.parametrize(("line", "size"), [(b"0\r\n", 0), (b"aF\r\n", 175), (b"5;x=y\r\n", 5)])
def test_a_chunk_size(line: bytes, size: int) -> None:
    assert parse_chunk_size(line) == size


@pytest.mark.parametrize(
    "line",
    [b"\r\n", b"-1\r\n", b"0x5\r\n", b"5\n", b" 5\r\n", b"5 5\r\n", b"f" * 16 + b"\r\n", b""],
)
def test_no_chunk_size(line: bytes) -> None:
    with pytest.raises(InvalidMessage):
        parse_chunk_size(line)
