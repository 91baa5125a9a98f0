"""How a network policy is written, and that a host has one spelling."""

import json
import socket
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from trialyard.core.errors import UserError
from trialyard.core.network import (
    HostError,
    Network,
    check_relay,
    parse_allowed,
    parse_host,
    split_authority,
)
from trialyard.core.sandbox import Limits

NAMES = st.from_regex(r"[a-z][a-z0-9-]{0,10}[a-z0-9](\.[a-z][a-z0-9]{1,8}){0,3}", fullmatch=True)
HOSTS = st.one_of(
    NAMES, st.ip_addresses(v=4).map(str), st.ip_addresses(v=6).map(lambda a: f"[{a}]")
)


@pytest.mark.parametrize(
    "text", ["none", "allow-list:example.com:443", "allow-list:a.b:*,[::1]:80"]
)
def test_a_network_is_one_string_in_and_out(text: str) -> None:
    limits = Limits.model_validate({"network": text})
    assert str(limits.network) == text
    assert json.loads(limits.model_dump_json())["network"] == text
    assert Limits.model_validate_json(limits.model_dump_json()) == limits
    assert hash(limits) == hash(Limits.model_validate({"network": text}))


def test_fields_are_accepted_too_and_none_is_the_default() -> None:
    network = Network(mode="allow-list", allow=("Example.com.:443", "example.com:443"))
    assert network.allow == ("example.com:443",)
    assert Limits().network == Network() == Network.model_validate("none")


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("all", "network 'all'"),
        ("none:a:1", "network 'none:a:1'"),
        ("allow-list", "no entry"),
        ("allow-list:", "no entry"),
        ("allow-list:example.com", "entry 'example.com': the port is missing"),
        ("allow-list:a.org:443,b.org:0", "entry 'b.org:0'"),
        ("allow-list:a.org:65536", "entry 'a.org:65536'"),
        ("allow-list:a.org:٤٤٣", "entry"),
        ("allow-list:*:443", "entry '\\*:443'"),
        ("allow-list:*.1.2.3.4:443", "entry '\\*.1.2.3.4:443'"),
        ("allow-list:a..org:443", "entry 'a..org:443'"),
        ("allow-list:http://a.org:443", "entry 'http://a.org:443'"),
        ("allow-list:::1:443", "entry '::1:443'"),
        ("allow-list:[::ffff:10.0.0.1]:443", "list 10.0.0.1"),
        ("allow-list:[fe80::1%eth0]:443", "no zone"),
        ("allow-list:0.0.0.0:443", "is no host"),
        ("allow-list:[ff02::1]:443", "is no host"),
        ("allow-list:127.1:443", "four decimal numbers"),
        ("allow-list:2130706433:443", "four decimal numbers"),
        ("allow-list:bücher.de:443", "xn--"),
    ],
)
def test_an_error_names_the_entry_and_the_fix(text: str, names: str) -> None:
    with pytest.raises(ValidationError, match=names):
        Limits.model_validate({"network": text})


def test_entries_without_the_mode_are_refused() -> None:
    with pytest.raises(ValidationError, match="mode none takes no entries"):
        Network(allow=("a.org:443",))


@pytest.mark.parametrize(
    ("entry", "host", "port", "covered"),
    [
        ("example.org:443", "example.org", 443, True),
        ("example.org:443", "example.org", 80, False),
        ("example.org:443", "www.example.org", 443, False),
        ("example.org:*", "example.org", 80, True),
        ("*.example.org:443", "a.b.example.org", 443, True),
        ("*.example.org:443", "example.org", 443, False),
        ("*.example.org:443", "badexample.org", 443, False),
        ("*.example.org:443", "example.org.evil.net", 443, False),
        ("192.0.2.7:80", "192.0.2.7", 80, True),
        ("192.0.2.7:80", "[::ffff:192.0.2.7]", 80, False),
        ("[2001:DB8:0::7]:80", "[2001:db8::7]", 80, True),
    ],
)
def test_an_entry_covers_what_it_names_and_no_more(
    entry: str, host: str, port: int, covered: bool
) -> None:
    assert parse_allowed(entry).covers(parse_host(host), port) is covered


@given(HOSTS, st.one_of(st.just("*"), st.integers(1, 65535).map(str)))
def test_every_entry_survives_being_written(host: str, port: str) -> None:
    try:
        entry = parse_allowed(f"{host}:{port}")
    except UserError:
        return
    assert parse_allowed(str(entry)) == entry
    assert parse_allowed(str(entry).upper()) == entry


@given(st.one_of(HOSTS, st.text(max_size=40)))
def test_a_host_has_one_spelling(text: str) -> None:
    try:
        host = parse_host(text)
    except HostError:
        return
    if isinstance(host, str):
        assert host == host.lower() == parse_host(host)
        assert host.isascii()
        assert not host.endswith(".")


@given(
    st.one_of(st.from_regex(r"[0-9xXa-f.]{1,20}", fullmatch=True), st.ip_addresses(v=4).map(str))
)
def test_what_the_resolver_takes_for_an_address_is_never_a_name(text: str) -> None:
    """inet_aton takes decimal, octal, hexadecimal and short forms; a name must be none of them."""
    try:
        host = parse_host(text)
    except HostError:
        return
    try:
        number = socket.inet_aton(text.removesuffix("."))
    except OSError:
        return
    assert host == IPv4Address(number)


@pytest.mark.parametrize(
    "text",
    [
        "2852039166", "0xa9fea9fe", "0251.0376.0251.0376", "0xa9.0xfe.0xa9.0xfe", "169.16689662",
        "169.254.43518", "169.254.169.254 ", "user@169.254.169.254", "169.254.169.254\0",
        "１６９.254.169.254", "169。254。169。254", "169.254.169.254%00", "[169.254.169.254]",
        "[::1%lo]", "[::1", "::1", "a b", "", ".", "..", "-a.org", "a-.org", "a" * 64 + ".org",
        "a." * 130 + "b", "a.org/x", "a.org#", "a\r\nb.org", "a.0x7f", "a.1", "*.example.org",
    ],
)  # fmt: skip
def test_odd_spellings_are_no_host(text: str) -> None:
    with pytest.raises(HostError):
        parse_host(text)


def test_one_dot_at_the_end_and_case_do_not_matter() -> None:
    assert parse_host("EXAMPLE.org.") == "example.org"
    assert parse_host("127.0.0.1.") == IPv4Address("127.0.0.1")
    assert parse_host("[::FFFF:7f00:1]") == IPv6Address("::ffff:127.0.0.1")


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("a:1", ("a", "1")),
        ("a", ("a", "")),
        ("[::1]:2", ("[::1]", "2")),
        ("[::1]", ("[::1]", "")),
        ("[::1]x:2", ("[::1]x:2", "")),
        ("[::1", ("[::1", "")),
    ],
)
def test_an_authority_is_split_at_its_port(text: str, parts: tuple[str, str]) -> None:
    assert split_authority(text) == parts


@pytest.mark.parametrize("port", [0, -1, 65536, True, "80", None, 80.0])
def test_a_relay_port_is_checked(port: object, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="relay port"):
        check_relay(port, str(tmp_path))  # type: ignore[arg-type]  # that is what is tested


def test_a_relay_needs_a_unix_socket(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (
        "relative",
        "/a\0b",
        "/" + "x" * 200,
        str(tmp_path / "no"),
        str(tmp_path / "file"),
    ):
        with pytest.raises(UserError, match="relay socket_path"):
            check_relay(80, path)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "s"))
        check_relay(80, str(tmp_path / "s"))
